//! Stagings have the CPUs before other programs: a control group of its own weight, for the runs and all that they start. Without
//! it, where there are no control groups, others disturb more, and more answers are not judged.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// So many times what a program has by default.
const TIMES: u64 = 32;
/// What a program has by default: version 1, and 2.
const USUAL: [u64; 2] = [1024, 100];
/// How often an empty group is tried to be removed: what ran in it may still be about to go.
const TRIES: u32 = 20;

/// The group; gone when dropped.
pub(super) struct First {
    group: Option<PathBuf>,
    /// One of the same processes that counts their CPU time, also of those that nobody waits for; version 1 has it apart.
    counts: Option<PathBuf>,
}

impl First {
    pub(super) fn new() -> First {
        let name = format!("ropewalk-self-test-{}-first", std::process::id());
        let root = Path::new("/sys/fs/cgroup");
        let one = root.join("cpu");
        let group = if one.join("cpu.shares").exists() { one.join(&name) } else { root.join(&name) };
        let counts = root.join("cpuacct").join(&name);
        let made = |group: PathBuf| fs::create_dir(&group).is_ok().then_some(group);
        let mut first = First { group: made(group), counts: None };
        if first.group.as_ref().is_some_and(|group| weigh(group).is_ok()) {
            first.counts = made(counts);
            first
        } else {
            First { group: None, counts: None }
        }
    }

    /// CPU time of all that ran in it, if it is counted.
    pub(super) fn used(&self) -> Option<Duration> {
        let text = fs::read_to_string(self.counts.as_ref()?.join("cpuacct.usage")).ok()?;
        Some(Duration::from_nanos(text.trim().parse().ok()?))
    }

    /// The words before a command.
    pub(super) fn under(&self) -> Vec<String> {
        let groups: Vec<&PathBuf> = self.group.iter().chain(&self.counts).collect();
        if groups.is_empty() {
            return Vec::new();
        }
        let each = |group: &&PathBuf| format!("echo $$ > {}/cgroup.procs; ", group.display());
        let enter: String = groups.iter().map(each).collect();
        ["sh", "-c", &(enter + "exec \"$@\""), "sh"].map(str::to_owned).to_vec()
    }
}

impl Drop for First {
    fn drop(&mut self) {
        for group in self.group.iter().chain(&self.counts) {
            let mut tries = 0..TRIES;
            while fs::remove_dir(group).is_err() && tries.next().is_some() {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

/// Gives a group its weight.
pub(super) fn weigh(group: &Path) -> io::Result<()> {
    let (shares, weight) = (group.join("cpu.shares"), group.join("cpu.weight"));
    if shares.exists() {
        return fs::write(shares, (TIMES * USUAL[0]).to_string());
    }
    // It may be on already, or refuse; the weight itself tells.
    let _ = fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+cpu");
    fs::write(weight, (TIMES * USUAL[1]).to_string())
}
