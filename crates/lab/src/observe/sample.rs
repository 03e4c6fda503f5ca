//! One reading of the counters.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
    time::Instant,
};

use serde::{Deserialize, Serialize};

use crate::cpu_ticks::{self, Ticks};

/// Nanoseconds of a tick of /proc.
const TICK_NS: u64 = 10_000_000;

/// Whose a thread is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Who {
    /// It makes the load.
    Load,
    /// A process of Ropewalk that may serve it.
    Served,
    /// The kernel's own.
    Kernel,
    /// Another program's.
    #[default]
    Foreign,
}

/// Which of Ropewalk's processes serve the load: others of the same name on this machine are other programs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Serving {
    /// Any of them may.
    #[default]
    Any,
    /// None does.
    Nobody,
    /// Those whose command line names this directory of a cluster.
    Below(PathBuf),
}

/// CPU time of one CPU in ticks of 10 ms.
pub struct CpuTicks {
    pub busy: u64,
    pub steal: u64,
}

/// CPU time of one thread.
pub struct Thread {
    pub name: String,
    pub who: Who,
    pub run_ns: u64,
    /// How long it was ready to run and had no CPU, where the kernel counts that.
    pub wait_ns: Option<u64>,
}

/// One reading.
pub struct Sample {
    pub at: Instant,
    pub cpus: BTreeMap<u32, CpuTicks>,
    /// Of the whole machine since it started.
    pub interrupts: u64,
    /// Ropewalk's processes beside this one.
    pub served: BTreeSet<i32>,
    /// By thread id.
    pub threads: BTreeMap<i32, Thread>,
    /// Bytes in and out.
    pub links: BTreeMap<String, (u64, u64)>,
    /// Operations, sectors of 512 bytes, milliseconds busy, milliseconds × operations in it.
    pub devices: BTreeMap<String, [u64; 4]>,
}

/// Reads everything.
pub fn read(groups: &BTreeSet<i32>, serving: &Serving) -> Sample {
    let (threads, namespaces, served) = threads(groups, serving);
    let mut links = BTreeMap::new();
    add_links("", Path::new("/proc/self/net/dev"), &mut links);
    for (name, pid) in namespaces {
        add_links(&format!("{name}/"), Path::new(&format!("/proc/{pid}/net/dev")), &mut links);
    }
    Sample {
        at: Instant::now(),
        cpus: cpus(),
        interrupts: interrupts(),
        served,
        threads,
        links,
        devices: devices(),
    }
}

fn interrupts() -> u64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("intr "));
    line.and_then(|line| line.split(' ').next()?.parse().ok()).unwrap_or_default()
}

fn cpus() -> BTreeMap<u32, CpuTicks> {
    let used = |[user, nice, system, _, _, irq, soft, steal]: Ticks| CpuTicks {
        busy: user + nice + system + irq + soft,
        steal,
    };
    cpu_ticks::read().1.into_iter().map(|(cpu, ticks)| (cpu, used(ticks))).collect()
}

/// Threads by id; one process of the load or of Ropewalk in each network namespace that is not ours; Ropewalk's
/// processes that serve.
type Seen = (BTreeMap<i32, Thread>, BTreeMap<String, i32>, BTreeSet<i32>);

fn threads(groups: &BTreeSet<i32>, serving: &Serving) -> Seen {
    let (mut threads, mut namespaces, mut served) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
    let own = std::process::id() as i32;
    let home = fs::metadata("/proc/self/ns/net").map(|m| m.ino()).unwrap_or_default();
    let all: BTreeMap<i32, Stat> = numbers(Path::new("/proc"))
        .into_iter()
        .filter_map(|pid| Some((pid, stat(&format!("/proc/{pid}/stat"))?)))
        .collect();
    // Ropewalk's processes, whatever the file is called that this one was started from.
    let own_name = all.get(&own).map_or("ropewalk", |stat| stat.name.as_str());
    for (&pid, stat) in &all {
        let who = match () {
            () if makes_load(pid, &all, groups) => Who::Load,
            () if pid == 2 || stat.parent == 2 => Who::Kernel,
            () if pid == own => Who::Served,
            () if (stat.name == own_name || stat.name == "ropewalk") && serves(pid, serving) => Who::Served,
            () => Who::Foreign,
        };
        if who == Who::Served && pid != own {
            served.insert(pid);
        }
        if matches!(who, Who::Load | Who::Served)
            && let Ok(ns) = fs::metadata(format!("/proc/{pid}/ns/net"))
            && ns.ino() != home
        {
            namespaces.entry(namespace_name(ns.ino())).or_insert(pid);
        }
        if who == Who::Foreign || who == Who::Kernel {
            let (name, run_ns) = (stat.name.clone(), stat.ticks * TICK_NS);
            threads.insert(pid, Thread { name, who, run_ns, wait_ns: None });
            continue;
        }
        for tid in numbers(Path::new(&format!("/proc/{pid}/task"))) {
            let dir = format!("/proc/{pid}/task/{tid}");
            let name = fs::read_to_string(format!("{dir}/comm")).unwrap_or_default();
            let name = name.trim();
            // The lab's own load threads live in its process.
            let who = match who {
                Who::Served if pid == own && name.starts_with("lab-load") => Who::Load,
                who => who,
            };
            let full = if name == stat.name { name.to_owned() } else { format!("{}/{name}", stat.name) };
            let (run_ns, wait_ns) = times(&dir);
            threads.insert(tid, Thread { name: full, who, run_ns, wait_ns });
        }
    }
    (threads, namespaces, served)
}

/// Whether a process belongs to a group that makes load, or descends from its first process: fio's jobs begin
/// sessions of their own.
fn makes_load(mut pid: i32, all: &BTreeMap<i32, Stat>, groups: &BTreeSet<i32>) -> bool {
    // No chain of parents is longer.
    for _ in 0..64 {
        let Some(stat) = all.get(&pid) else { return false };
        if groups.contains(&stat.group) || groups.contains(&pid) {
            return true;
        }
        pid = stat.parent;
    }
    false
}

/// Whether a process of Ropewalk serves the load, as far as can be told.
fn serves(pid: i32, serving: &Serving) -> bool {
    match serving {
        Serving::Any => true,
        Serving::Nobody => false,
        Serving::Below(dir) => {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|word| word == dir.as_os_str().as_bytes())
        }
    }
}

/// Nanoseconds on a CPU, and ready to run without one, by the scheduler's statistics where it keeps them.
fn times(dir: &str) -> (u64, Option<u64>) {
    let exact = fs::read_to_string(format!("{dir}/schedstat")).ok().and_then(|text| {
        let mut words = text.split(' ').map(|word| word.parse::<u64>().ok());
        Some((words.next()??, Some(words.next()??)))
    });
    let ticks = || Some((stat(&format!("{dir}/stat"))?.ticks * TICK_NS, None));
    exact.or_else(ticks).unwrap_or_default()
}

struct Stat {
    name: String,
    parent: i32,
    group: i32,
    ticks: u64,
}

fn stat(path: &str) -> Option<Stat> {
    let text = fs::read_to_string(path).ok()?;
    let (open, close) = (text.find('(')?, text.rfind(')')?);
    let fields: Vec<&str> = text.get(close + 2..)?.split(' ').collect();
    let number = |i: usize| fields.get(i)?.parse::<i64>().ok();
    Some(Stat {
        name: text.get(open + 1..close)?.to_owned(),
        parent: number(1)? as i32,
        group: number(2)? as i32,
        ticks: (number(11)? + number(12)?) as u64,
    })
}

fn numbers(dir: &Path) -> Vec<i32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// A namespace's name under /run/netns, else its number.
fn namespace_name(inode: u64) -> String {
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let named = entries.filter(|entry| fs::metadata(entry.path()).is_ok_and(|m| m.ino() == inode));
    named
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .next()
        .unwrap_or(format!("net:{inode}"))
}

fn add_links(prefix: &str, path: &Path, into: &mut BTreeMap<String, (u64, u64)>) {
    for line in fs::read_to_string(path).unwrap_or_default().lines() {
        let Some((name, counters)) = line.split_once(':') else { continue };
        let counters: Vec<u64> = counters.split_ascii_whitespace().map_while(|w| w.parse().ok()).collect();
        if let (Some(&rx), Some(&tx)) = (counters.first(), counters.get(8)) {
            into.insert(format!("{prefix}{}", name.trim()), (rx, tx));
        }
    }
}

fn devices() -> BTreeMap<String, [u64; 4]> {
    let text = fs::read_to_string("/proc/diskstats").unwrap_or_default();
    let line = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let number = |i: usize| words.get(i)?.parse::<u64>().ok();
        let name = words.get(2)?;
        // Partitions count again what their disk counts.
        if !Path::new("/sys/block").join(name).exists() {
            return None;
        }
        let counters = [number(3)? + number(7)?, number(5)? + number(9)?, number(12)?, number(13)?];
        Some(((*name).to_owned(), counters))
    };
    text.lines().filter_map(line).collect()
}

/// The CPUs this process may run on; empty if that cannot be seen.
pub fn allowed_cpus() -> BTreeSet<u32> {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
    let range = |part: &str| {
        let (a, b) = part.split_once('-').unwrap_or((part, part));
        Some(a.trim().parse::<u32>().ok()?..=b.trim().parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}
