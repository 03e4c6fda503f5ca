//! Which queue serves which pdisk: where a machine has several NUMA nodes, a queue belongs to one of them,
//! and a pdisk gets queues of the node its device hangs on. The decision is pure; what it is decided from
//! is read from sysfs.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Which NUMA node each queue belongs to.
pub(super) struct Placement {
    /// `None`: to none yet.
    nodes: Vec<Option<u32>>,
    /// Queues are given in turn.
    next: usize,
}

impl Placement {
    pub fn new(queues: usize) -> Placement {
        Placement { nodes: vec![None; queues], next: 0 }
    }

    /// The queues for a pdisk that wants `count` and is near NUMA node `near` (`None`: there is one node
    /// only, or the device does not say). Queues of that node come first, then those of none, which are
    /// its own from then on; a queue of another node is better than none.
    pub fn assign(&mut self, count: usize, near: Option<u32>) -> Vec<usize> {
        let n = self.nodes.len();
        let count = count.min(n);
        let mut order: Vec<usize> = (0..n).map(|i| (self.next + i) % n).collect();
        self.next = (self.next + count) % n;
        if near.is_some() {
            let nodes = &self.nodes;
            // A node gets its fair share of the queues before it shares one among its pdisks.
            let mine = nodes.iter().filter(|node| **node == near).count();
            let known: Vec<u32> =
                nodes.iter().flatten().copied().filter(|node| Some(*node) != near).collect();
            let others = known.iter().collect::<std::collections::BTreeSet<_>>().len();
            let wants_more = mine < n.div_ceil(others + 1).max(count);
            order.sort_by_key(|q| match nodes[*q] {
                None if wants_more => 0,
                node if node == near => 1,
                None => 2,
                Some(_) => 3,
            });
        }
        order.truncate(count);
        for q in &order {
            self.nodes[*q] = self.nodes[*q].or(near);
        }
        order.sort_unstable();
        order
    }
}

/// The NUMA node of the device that `path` is on; `None`: the machine has one, or sysfs does not say.
pub(super) fn device_node(sys: &Path, path: &Path) -> Option<u32> {
    let nodes = fs::read_to_string(sys.join("devices/system/node/online")).ok()?;
    if cpu_list(nodes.trim()).len() < 2 {
        return None;
    }
    let device = fs::metadata(path).ok()?.dev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    let mut at = fs::canonicalize(sys.join(format!("dev/block/{major}:{minor}"))).ok()?;
    // The nearest of its parents that says: partitions and queues do not, the controller does.
    loop {
        let said = fs::read_to_string(at.join("numa_node")).ok().and_then(|t| t.trim().parse::<i32>().ok());
        match said {
            Some(node) => return u32::try_from(node).ok(),
            None if at.pop() && at.starts_with(sys) => {}
            None => return None,
        }
    }
}

/// Lets threads run on the CPUs of a NUMA node only.
pub(super) fn pin(sys: &Path, node: u32, tids: impl Iterator<Item = i32>) {
    let path: PathBuf = sys.join(format!("devices/system/node/node{node}/cpulist"));
    let cpus = fs::read_to_string(path).map(|t| cpu_list(t.trim())).unwrap_or_default();
    if cpus.is_empty() {
        return;
    }
    // SAFETY: a cpu_set_t is plain bits, all zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in cpus.into_iter().filter(|c| *c < libc::CPU_SETSIZE as usize) {
        // SAFETY: the number is below CPU_SETSIZE.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    for tid in tids {
        // SAFETY: the set lives during the call; the size is its own.
        let done = unsafe { libc::sched_setaffinity(tid, std::mem::size_of_val(&set), &set) };
        if done != 0 {
            let error = std::io::Error::last_os_error();
            tracing::info!(%error, node, "an I/O thread was not placed near its devices");
        }
    }
}

/// The numbers of a list as the kernel writes it: `0-3,8,10-11`. What cannot be read is left out.
fn cpu_list(text: &str) -> Vec<usize> {
    let mut list = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>())
            && last < 1 << 16
        {
            list.extend(first..=last);
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_one_node_queues_go_in_turn() {
        let mut p = Placement::new(4);
        assert_eq!(
            [p.assign(1, None), p.assign(2, None), p.assign(2, None)],
            [vec![0], vec![1, 2], vec![0, 3]]
        );
        assert_eq!(p.assign(16, None), [0, 1, 2, 3], "never more than there are");
    }

    #[test]
    fn pdisks_get_queues_near_their_devices() {
        let mut p = Placement::new(4);
        let given: Vec<_> = [0, 1, 0, 1, 0, 1, 0, 1].map(|node| p.assign(1, Some(node))[0]).into();
        let near = |node: usize| given.iter().skip(node).step_by(2).copied().collect::<Vec<_>>();
        let (zero, one) = (near(0), near(1));
        assert!(zero.iter().all(|q| !one.contains(q)), "no queue serves both nodes: {given:?}");
        for queues in [zero, one] {
            let different: std::collections::BTreeSet<_> = queues.iter().collect();
            assert_eq!(different.len(), 2, "each node uses its half: {given:?}");
        }
    }

    #[test]
    fn one_queue_serves_every_node() {
        let mut p = Placement::new(1);
        assert_eq!([p.assign(1, Some(0)), p.assign(1, Some(1)), p.assign(1, None)], [[0], [0], [0]]);
    }

    #[test]
    fn sysfs_says_where_a_device_is() {
        let sys = tempfile::tempdir().unwrap();
        let root = sys.path();
        let make = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let device = fs::metadata(root).unwrap().dev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        make("devices/pci0/nvme0/numa_node", "1\n");
        make("devices/pci0/nvme0/block/nvme0n1/size", "1");
        make("devices/system/node/online", "0-1\n");
        fs::create_dir_all(root.join("dev/block")).unwrap();
        let target = root.join("devices/pci0/nvme0/block/nvme0n1");
        std::os::unix::fs::symlink(target, root.join(format!("dev/block/{major}:{minor}"))).unwrap();
        assert_eq!(device_node(root, root), Some(1));
        make("devices/pci0/nvme0/numa_node", "-1\n");
        assert_eq!(device_node(root, root), None, "the device does not know");
        make("devices/system/node/online", "0\n");
        make("devices/pci0/nvme0/numa_node", "0\n");
        assert_eq!(device_node(root, root), None, "there is one node only");
        assert_eq!(cpu_list("0-2,5,7-8"), [0, 1, 2, 5, 7, 8]);
    }
}
