//! Servers that hang while a mount's page pool is full of dirty pages: every program has an answer, `waiters` says what
//! is waited for, what was acknowledged is there, and everything goes on when the servers do.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use common::{ok, processes::signal};
use mounts::Mounts;
use rustix::process::{Pid, Signal, kill_process};

/// Far beyond the bound of every operation here.
const PATIENCE: Duration = Duration::from_secs(240);
/// Writers, each with more than the pool holds.
const WRITERS: u64 = 3;
const WRITE: usize = 256 << 10;
const FILE: u64 = 48 << 20;

struct Stopped(Vec<Pid>);

impl Drop for Stopped {
    fn drop(&mut self) {
        for server in &self.0 {
            // Gone is as good.
            let _ = kill_process(*server, Signal::CONT);
        }
    }
}

fn stop_servers(mounts: &Mounts) -> Stopped {
    let servers = mounts.cluster.processes().into_iter().filter(|(name, _)| name.starts_with('n'));
    let servers: Vec<Pid> = servers.map(|(_, pid)| Pid::from_raw(pid).unwrap()).collect();
    assert_eq!(servers.len(), 3, "{:?}", mounts.cluster.processes());
    servers.iter().for_each(|server| signal(*server, Signal::STOP));
    Stopped(servers)
}

/// Writes until there is an error; what was written is known by then.
fn write_on(path: &Path, flags: i32) -> (u64, io::Error) {
    let file =
        OpenOptions::new().write(true).create(true).truncate(false).custom_flags(flags).open(path).unwrap();
    let mut at = 0;
    loop {
        if at >= FILE {
            match file.sync_all() {
                Ok(()) => at = 0,
                Err(error) => return (at, error),
            }
        }
        match file.write_at(&vec![5; WRITE], at) {
            Ok(written) => at += written as u64,
            Err(error) => return (at, error),
        }
    }
}

#[test]
fn a_full_page_pool_whose_servers_hang_answers_everybody_and_goes_on() {
    let mut mounts = Mounts::new(1);
    let dir = mounts.cluster.dir();
    let dir = dir.to_str().unwrap();
    // The deadline is that of mounts made from now on. In that time it has to be seen what they wait for: a command asks the servers as well,
    // and waits for each.
    ok(&["config", "set", "--dir", dir, "pagepool=64m", "operationDeadline=45s"]);
    // Written by another mount: the one that is tried never had it in its page pool.
    fs::write(mounts.at(0, "cold"), vec![9; 24 << 20]).unwrap();
    ok(&["umount", mounts.all[0].to_str().unwrap()]);
    mounts.add();
    let at = |name: &str| mounts.at(1, name);
    let acknowledged: Vec<u8> = (0..3_000_000u32).map(|i| (i / 7) as u8).collect();
    fs::write(at("kept"), &acknowledged).unwrap();
    File::open(at("kept")).unwrap().sync_all().unwrap();

    let stopped = stop_servers(&mounts);
    let (mut answers, mut listed) = (Vec::new(), Vec::new());
    thread::scope(|scope| {
        let at = &at;
        let mut programs = Vec::new();
        for writer in 0..WRITERS {
            let path = at(&format!("w{writer}"));
            let flags = if writer == 0 { libc::O_DIRECT } else { 0 };
            programs.push(scope.spawn(move || write_on(&path, flags).1));
        }
        programs.push(scope.spawn(move || {
            let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(at("cold"));
            let (file, mut bytes) = (direct.unwrap(), vec![0; 4096]);
            file.read_exact_at(&mut bytes, 1 << 20).unwrap_err()
        }));
        let end = Instant::now() + PATIENCE;
        while !programs.iter().all(|program| program.is_finished()) {
            assert!(Instant::now() < end, "somebody has no answer; seen {listed:?}");
            for process in mounts.cluster.json(&["waiters"]).as_array().unwrap() {
                let inside = process["answer"]["inside"].as_array().cloned().unwrap_or_default();
                listed.extend(inside.iter().map(|wait| {
                    let by = wait["operation"].as_str().unwrap_or("background");
                    format!("{by}: {}", wait["what"].as_str().unwrap())
                }));
            }
            listed.sort();
            listed.dedup();
            thread::sleep(Duration::from_millis(100));
        }
        answers.extend(programs.into_iter().map(|program| program.join().unwrap()));
    });
    let failed = |error: &io::Error| error.raw_os_error() == Some(libc::EIO);
    assert!(answers.iter().all(failed), "{answers:?}");
    let names = |wait: &str| listed.iter().any(|row| row == wait);
    assert!(names("write: dirty pages to be written"), "{listed:?}");
    assert!(names("read: a block to be read"), "{listed:?}");

    drop(stopped);
    mounts.cluster.wait_all_ok(PATIENCE);
    let end = Instant::now() + PATIENCE;
    let again = loop {
        // What was dirty goes out first.
        match OpenOptions::new().write(true).create(true).truncate(false).open(at("again")).and_then(|file| {
            file.write_all_at(&[7; 100_000], 0)?;
            file.sync_all()
        }) {
            Ok(()) => break fs::read(at("again")).unwrap(),
            Err(error) => assert!(Instant::now() < end, "{error}\n{}", mounts.cluster.logs()),
        }
    };
    assert_eq!(again, [7; 100_000]);
    let pools = mounts.cluster.json(&["pagepool"]);
    let mount = pools.as_array().unwrap().iter().find(|one| one["pagepool"].is_object()).unwrap();
    let bytes = |field: &str| mount["memory"][field].as_u64().unwrap();
    let bound = |part: &str| mount["memory"]["bound"][part].as_u64().unwrap();
    assert!(
        bytes("resident_most_bytes") > 32 << 20 && bytes("resident_most_bytes") <= bytes("max_bytes"),
        "{mount}"
    );
    assert!(
        mount["pagepool"]["used_most_bytes"].as_u64().unwrap() <= (64 << 20) + bound("writing_bytes"),
        "{mount}"
    );
    ok(&["umount", mounts.all[1].to_str().unwrap()]);
    mounts.mount(&mounts.all[1]);
    assert!(fs::read(mounts.at(1, "kept")).unwrap() == acknowledged, "what was acknowledged");
    assert!(fs::read(mounts.at(1, "cold")).unwrap() == vec![9; 24 << 20], "what was acknowledged");
    assert!(fs::read(mounts.at(1, "again")).unwrap() == [7; 100_000], "what was acknowledged");
    mounts.cluster.down();
}
