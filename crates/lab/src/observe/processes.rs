//! What Ropewalk's processes and the load generators hold: memory and descriptors, as the kernel counts them. Only
//! reads; a process that is gone meanwhile is left out.

use std::{collections::BTreeSet, fs, path::Path};

use serde::{Deserialize, Serialize};

/// Processes that a record keeps at most, the largest first.
const PROCESSES_MAX: usize = 32;

/// One process.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ProcessUse {
    /// Its program and the command it was given, such as `ropewalk serve`.
    pub name: String,
    /// Its number.
    pub pid: i32,
    /// Memory of its own that is resident, in bytes.
    #[serde(rename = "resident_bytes")]
    pub resident: u64,
    /// Open descriptors.
    pub descriptors: u64,
}

fn name(dir: &str) -> Option<String> {
    let line = fs::read_to_string(Path::new(dir).join("cmdline")).ok()?;
    let mut words = line.split('\0');
    let program = words.next()?.rsplit('/').next()?;
    Some(format!("{program} {}", words.next().unwrap_or_default()).trim_end().to_owned())
}

/// What the processes hold now, the largest first.
pub fn read(processes: &BTreeSet<i32>) -> Vec<ProcessUse> {
    let one = |&pid: &i32| {
        let dir = format!("/proc/{pid}");
        let status = fs::read_to_string(Path::new(&dir).join("status")).ok()?;
        // Pages of files come and go with the kernel's cache.
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
        let kib: u64 = line.trim().split(' ').next()?.parse().ok()?;
        let descriptors = fs::read_dir(Path::new(&dir).join("fd")).map_or(0, Iterator::count) as u64;
        Some(ProcessUse { name: name(&dir)?, pid, resident: kib << 10, descriptors })
    };
    let mut all: Vec<ProcessUse> = processes.iter().filter_map(one).collect();
    all.sort_by_key(|process| std::cmp::Reverse(process.resident));
    all.truncate(PROCESSES_MAX);
    all
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_process_holds_something() {
        let own = std::process::id() as i32;
        let all = super::read(&[own, i32::MAX].into());
        assert!(all.len() == 1 && all[0].pid == own && !all[0].name.is_empty(), "{all:?}");
        assert!(all[0].resident > 0 && all[0].descriptors > 2, "{all:?}");
    }
}
