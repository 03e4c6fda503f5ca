//! Pid files: how the cluster's processes on this machine are found. One names a process only while that very process lives: it
//! holds the start time too, so that a reused id is never mistaken, and the namespaces in which both hold. The process
//! keeps it locked: nobody takes its place, from wherever.

use std::{
    fs,
    io::{Read, Seek, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use super::ident::{own_scope, start_ticks};
use crate::{cluster_dir::access, interrupt};

/// The line of a process that says below it, before it ends, what became of what was written; those of older versions do not.
const SAYS: &str = "says what is lost";
/// Nothing is.
const NOTHING: &str = "nothing";

/// Makes the directory of a file. A client's copy of a cluster's directory holds `cluster.toml` only, at first.
pub fn make_parent(file: &Path) -> Result<()> {
    let Some(dir) = file.parent() else { return Ok(()) };
    access::make_dir(dir).with_context(|| format!("create {}", dir.display()))
}

/// How long a pid file may be held by a process that ends, until its last thread has.
pub const HELD_PATIENCE: Duration = Duration::from_secs(5);

/// Writes this process's pid file and holds it, locked, as long as the returned file is open: that is seen in every
/// namespace. `None`: another process holds it, which need not be one that is seen from here. `first` is done when nobody else holds
/// it, and before this one is seen.
pub fn claim_pid_file(path: &Path, patience: Duration, first: impl Fn()) -> Result<Option<fs::File>> {
    make_parent(path)?;
    let what = || format!("write {}", path.display());
    let end = Instant::now() + patience;
    loop {
        let mut options = access::options();
        let mut file = options.write(true).create(true).truncate(false).open(path).with_context(what)?;
        match file.try_lock() {
            Ok(()) => {
                // The one before may have taken it away just now.
                let own = file.metadata().with_context(what)?.ino();
                if fs::metadata(path).is_ok_and(|there| there.ino() == own) {
                    first();
                    file.set_len(0).with_context(what)?;
                    file.write_all(pid_lines().as_bytes()).with_context(what)?;
                    return Ok(Some(file));
                }
            }
            Err(fs::TryLockError::WouldBlock) if Instant::now() > end => return Ok(None),
            Err(fs::TryLockError::WouldBlock) => {}
            Err(fs::TryLockError::Error(error)) => return Err(error).with_context(what),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn pid_lines() -> String {
    let pid = std::process::id();
    format!("{pid}\n{}\n{}\n", start_ticks(pid).unwrap_or(0), own_scope())
}

/// A process that a pid file names.
#[derive(Clone, Copy)]
pub struct Named {
    /// Its id.
    pub pid: u32,
    ticks: u64,
}

impl Named {
    /// Waits until it is gone; false if it lives on, or if the command is told to stop. Its file goes before it does, and its first
    /// thread before the others: until the last has ended it keeps files locked, and ports.
    pub fn wait_gone(self, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        let ended = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid));
            base::proc_stat::has_ended(self.ticks, stat.is_err(), stat.ok().as_deref())
        };
        while !ended() {
            if Instant::now() > end || interrupt::asked() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }
}

/// The live process that a pid file names, if its id means anything here.
pub fn live(path: &Path) -> Option<Named> {
    let text = fs::read_to_string(path).ok()?;
    let mut lines = text.lines();
    let pid: u32 = lines.next()?.trim().parse().ok()?;
    let ticks: u64 = lines.next()?.trim().parse().ok()?;
    // Files of older versions do not say where their ids mean something.
    let here = lines.next().is_none_or(|scope| scope == own_scope());
    (here && start_ticks(pid) == Some(ticks)).then_some(Named { pid, ticks })
}

/// Its id alone.
pub fn live_pid(path: &Path) -> Option<u32> {
    live(path).map(|named| named.pid)
}

/// The pid file that a process holds. When it was last changed tells when the process was last seen to write what is left.
pub fn held_by(pid: u32) -> Option<fs::File> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten().map(|entry| entry.path());
    let is_one = |file: &PathBuf| fs::read_link(file).is_ok_and(|to| to.extension() == Some("pid".as_ref()));
    // By the descriptor: its name may mean another file here.
    files.filter(is_one).find_map(|file| fs::File::open(file).ok())
}

/// Its process says at its end what is lost ([`say`]).
pub fn say_so(mut held: &fs::File) -> std::io::Result<()> {
    writeln!(held, "{SAYS}")
}

/// What a process says of what was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Said {
    /// One of an older version says nothing.
    Never,
    /// It was not yet at its end, or is at it and cannot tell.
    NotYet,
    /// All is stored.
    NothingLost,
    /// This is lost, or will be if the process ends now.
    Lost(String),
}

/// Says it in place of what was said before, in the file that this process holds.
pub fn say(held: &fs::File, said: &Said) -> std::io::Result<()> {
    let before = (pid_lines().len() + SAYS.len() + 1) as u64;
    // Of one that is killed here nothing is believed.
    held.set_len(before)?;
    let line = match said {
        Said::Never | Said::NotYet => return Ok(()),
        Said::NothingLost => NOTHING.to_owned(),
        Said::Lost(what) => what.replace('\n', " "),
    };
    held.write_all_at(format!("{line}\n").as_bytes(), before)
}

/// What a process that has ended has said in the file that it held.
pub fn said(mut held: &fs::File) -> Said {
    let mut text = String::new();
    if held.rewind().and_then(|()| held.read_to_string(&mut text)).is_err() {
        return Said::Never;
    }
    let mut lines = text.lines().skip_while(|line| *line != SAYS);
    match (lines.next(), lines.next()) {
        (None, _) => Said::Never,
        (_, None) => Said::NotYet,
        (_, Some(NOTHING)) => Said::NothingLost,
        (_, Some(lost)) => Said::Lost(lost.to_owned()),
    }
}

/// A process holds one pid file. Tests, which are of one process, hold theirs one after the other.
#[cfg(test)]
pub static ONE_HELD: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_file_of_a_reused_id_names_nobody() {
        let _one = ONE_HELD.lock();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.pid");
        let unseen = || assert_eq!(live_pid(&path), None, "what is done first is done before it is seen");
        let held = claim_pid_file(&path, Duration::ZERO, unseen).unwrap().unwrap();
        assert_eq!(live_pid(&path), Some(std::process::id()));
        let stamp = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(7);
        held.set_modified(stamp).unwrap();
        let seen = held_by(std::process::id()).unwrap().metadata().unwrap();
        assert_eq!(seen.ino(), held.metadata().unwrap().ino());
        assert_eq!(seen.modified().unwrap(), stamp);
        assert_eq!(said(&held_by(std::process::id()).unwrap()), Said::Never, "an older one does not say");
        say_so(&held).unwrap();
        let seen = held_by(std::process::id()).unwrap();
        let lost = |what: &str| Said::Lost(what.to_owned());
        assert_eq!(said(&seen), Said::NotYet);
        for what in [lost("much of it"), lost("this"), Said::NotYet, lost("that"), Said::NothingLost] {
            say(&held, &what).unwrap();
            assert_eq!(said(&seen), what);
        }
        say(&held, &lost("two\nlines")).unwrap();
        assert_eq!(said(&seen), lost("two lines"));
        assert_eq!(live_pid(&path), Some(std::process::id()));
        let elsewhere = pid_lines().replace(&own_scope(), "another boot pid:[1] time:[1]");
        fs::write(&path, elsewhere).unwrap();
        assert_eq!(live_pid(&path), None, "its number is somebody else's here");
        // It lives all the same, and holds the file.
        assert!(claim_pid_file(&path, Duration::ZERO, || panic!("it is held")).unwrap().is_none());
        drop(held);
        // A child that another test begins just now has the file open until it runs its own program.
        assert!(claim_pid_file(&path, HELD_PATIENCE, || ()).unwrap().is_some());
        fs::write(&path, format!("{}\n1\n", std::process::id())).unwrap();
        assert_eq!(live_pid(&path), None);
    }

    #[test]
    fn a_process_is_waited_for_also_when_its_file_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.pid");
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = child.id();
        fs::write(&path, format!("{pid}\n{}\n{}\n", start_ticks(pid).unwrap(), own_scope())).unwrap();
        let process = live(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(!process.wait_gone(Duration::ZERO), "it ends only now");
        child.kill().unwrap();
        // Nobody has looked how it ended.
        assert!(process.wait_gone(Duration::from_secs(60)));
        child.wait().unwrap();
    }
}
