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
}

impl First {
    pub(super) fn new() -> First {
        let name = format!("ropewalk-self-test-{}-first", std::process::id());
        let root = Path::new("/sys/fs/cgroup");
        let one = root.join("cpu");
        let group = if one.join("cpu.shares").exists() { one.join(name) } else { root.join(name) };
        let made = fs::create_dir(&group);
        let first = First { group: made.is_ok().then_some(group) };
        match &first.group {
            Some(group) if weigh(group).is_ok() => first,
            _ => First { group: None },
        }
    }

    /// The words before a command.
    pub(super) fn under(&self) -> Vec<String> {
        let Some(group) = &self.group else { return Vec::new() };
        let enter = format!("echo $$ > {}/cgroup.procs; exec \"$@\"", group.display());
        ["sh", "-c", &enter, "sh"].map(str::to_owned).to_vec()
    }
}

impl Drop for First {
    fn drop(&mut self) {
        for _ in 0..TRIES {
            match self.group.as_ref().map(fs::remove_dir) {
                Some(Err(_)) => std::thread::sleep(Duration::from_millis(50)),
                _ => return,
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
