//! CPU and memory of one client node where several share this machine: a control group, of version 2 or 1, removed at the
//! end. What runs in it is put there by who starts it.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use base::ByteSize;

use crate::plan::Params;

/// Microseconds over which a share of CPUs is kept.
const PERIOD: u64 = 100_000;
/// How often, and after how long, it is tried again to remove a group whose last process is about to go: that may wait for a CPU.
const REMOVE_TRIES: u32 = 1500;
const REMOVE_EACH: Duration = Duration::from_millis(20);

/// What a client node may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Asked {
    /// CPUs.
    pub cpus: Option<u64>,
    /// Bytes of memory.
    pub memory: Option<u64>,
}

impl Asked {
    /// What the parameters `cpus` and `memory` say.
    pub fn of(params: &Params) -> Asked {
        Asked {
            cpus: params.get("cpus").and_then(|value| value.parse().ok()),
            memory: params.get("memory").and_then(|v| v.parse::<ByteSize>().ok()).map(|size| size.0),
        }
    }

    /// Whether nothing is limited.
    pub fn is_nothing(self) -> bool {
        self == Asked::default()
    }

    /// In words.
    pub fn words(self) -> String {
        let cpus = |n: u64| if n == 1 { "1 CPU".to_owned() } else { format!("{n} CPUs") };
        let memory = |bytes| format!("{} of memory", ByteSize(bytes));
        let says = [self.cpus.map(cpus), self.memory.map(memory)];
        says.into_iter().flatten().collect::<Vec<_>>().join(" and ")
    }

    /// Where the controllers are, and how they are told: version 2, else version 1.
    fn settings(self) -> Vec<Setting> {
        let root = Path::new("/sys/fs/cgroup");
        let whole = root.join("cgroup.controllers").exists();
        let cpu = |cpus: u64| match whole {
            true => (root.to_owned(), "cpu.max", format!("{} {PERIOD}", cpus * PERIOD)),
            false => (root.join("cpu"), "cpu.cfs_quota_us", (cpus * PERIOD).to_string()),
        };
        let memory = |bytes: u64| match whole {
            true => (root.to_owned(), "memory.max", bytes.to_string()),
            false => (root.join("memory"), "memory.limit_in_bytes", bytes.to_string()),
        };
        self.cpus.map(cpu).into_iter().chain(self.memory.map(memory)).collect()
    }
}

/// One limit: the hierarchy's directory, the file, and what is written into it.
type Setting = (PathBuf, &'static str, String);

/// The control groups of one client node; none where nothing is limited. They are gone when this is dropped.
#[derive(Debug, Default)]
pub struct Limits {
    groups: Vec<PathBuf>,
}

impl Limits {
    /// Makes those of node `node` of this process.
    pub fn make(asked: Asked, node: u32) -> Result<Limits, String> {
        let mut limits = Limits::default();
        for (dir, file, value) in asked.settings() {
            let group = dir.join(format!("ropewalk-lab-{}-n{node}", std::process::id()));
            let there = limits.groups.contains(&group);
            let made = if there { Ok(()) } else { fs::create_dir(&group) };
            if made.is_ok() && !there {
                limits.groups.push(group.clone());
            }
            if let Err(e) = made.and_then(|()| fs::write(group.join(file), &value)) {
                return Err(format!(
                    "a client node cannot be limited to {}: {}: {e}; limits need root and control groups, so leave them out \
                     elsewhere",
                    asked.words(),
                    group.join(file).display()
                ));
            }
        }
        Ok(limits)
    }

    /// The groups, one for each hierarchy.
    pub fn groups(&self) -> &[PathBuf] {
        &self.groups
    }
}

impl Drop for Limits {
    fn drop(&mut self) {
        // Every process in it was told to end.
        for group in &self.groups {
            let mut tries = 0..REMOVE_TRIES;
            while fs::remove_dir(group).is_err_and(|e| e.kind() == std::io::ErrorKind::ResourceBusy)
                && tries.next().is_some()
            {
                thread::sleep(REMOVE_EACH);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_read_and_told() {
        let of = |pairs: &[(&str, &str)]| {
            Asked::of(&pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect())
        };
        assert!(of(&[("scale", "1")]).is_nothing());
        let both = of(&[("cpus", "16"), ("memory", "96g")]);
        assert_eq!(both, Asked { cpus: Some(16), memory: Some(96 << 30) });
        assert_eq!(both.words(), "16 CPUs and 96g of memory");
        assert_eq!(of(&[("cpus", "1")]).words(), "1 CPU");
        assert_eq!((both.settings().len(), of(&[]).settings().len()), (2, 0));
        assert!(both.settings().iter().any(|(_, _, value)| value.starts_with("1600000")));
    }
}
