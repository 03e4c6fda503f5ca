//! A mount whose session was ended, while its servers do not answer either: its programs and its unmount wait for nothing
//! that cannot come any more.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::{
    fs::{self, File},
    io::{Read, Write},
    process::Stdio,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use common::{ROPEWALK, ok, processes::signal};
use mounts::Mounts;
use rustix::process::{Pid, Signal, kill_process};

/// What calls to servers wait for here, and the end of a session, which is heard with the next renewal of its lease.
const DEADLINE: &str = "operationDeadline=600s";
const AT_ONCE: Duration = Duration::from_secs(60);

/// Processes that stand still until this is dropped.
struct Stopped(Vec<Pid>);

impl Drop for Stopped {
    fn drop(&mut self) {
        for &pid in &self.0 {
            // One that is gone needs none.
            let _ = kill_process(pid, Signal::CONT);
        }
    }
}

fn session_of(mounts: &Mounts, mount: usize) -> String {
    let path = mounts.all[mount].canonicalize().unwrap();
    let clients = mounts.cluster.json(&["clients", "list"]);
    let ours = |client: &&serde_json::Value| client["mount"] == path.to_str().unwrap();
    clients.as_array().unwrap().iter().find(ours).unwrap()["session"].to_string()
}

#[test]
fn nobody_waits_in_a_session_that_has_ended() {
    let mut mounts = Mounts::in_memory(1);
    let dir = mounts.cluster.dir();
    let dir = dir.to_str().unwrap();
    // Of mounts made from now on.
    ok(&["config", "set", "--dir", dir, DEADLINE]);
    mounts.add();
    let content = vec![7; 3 << 20];
    fs::write(mounts.at(0, "of-another"), &content).unwrap();
    let mut file = File::create(mounts.at(1, "f")).unwrap();
    file.write_all(&content).unwrap();
    file.sync_all().unwrap();
    let mut other = File::open(mounts.at(1, "of-another")).unwrap();
    let session = session_of(&mounts, 1);
    let servers = mounts.cluster.processes().into_iter().filter(|(name, _)| name.starts_with('n'));
    let servers = Stopped(servers.map(|(_, pid)| Pid::from_raw(pid).unwrap()).collect());
    assert_eq!(servers.0.len(), 3);
    servers.0.iter().for_each(|&pid| signal(pid, Signal::STOP));

    let (tell, told) = mpsc::channel();
    let sync = tell.clone();
    let writer = thread::spawn(move || {
        file.write_all(&content).unwrap();
        sync.send(("fsync", file.sync_all().unwrap_err())).unwrap();
    });
    let reader = thread::spawn(move || tell.send(("read", other.read(&mut [0; 4096]).unwrap_err())).unwrap());
    // They are to be under way; one that comes later ends all the same.
    thread::sleep(Duration::from_secs(1));
    assert!(told.try_recv().is_err());
    let ended = Instant::now();
    ok(&["clients", "detach", "--dir", dir, &session]);
    for _ in 0..2 {
        let (what, error) = told.recv_timeout(AT_ONCE).expect("a call waits on");
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{what}");
        println!("{what} ended after {:?}", ended.elapsed());
    }
    // What is open would be in its way.
    [writer, reader].into_iter().for_each(|thread| thread.join().unwrap());
    let began = Instant::now();
    let mut umount = std::process::Command::new(ROPEWALK);
    umount.args(["umount", mounts.all[1].to_str().unwrap()]).stderr(Stdio::piped());
    let mut umount = umount.spawn().unwrap();
    let status = loop {
        if let Some(status) = umount.try_wait().unwrap() {
            break status;
        }
        assert!(began.elapsed() < AT_ONCE, "the unmount waits on\n{}", mounts.cluster.logs());
        thread::sleep(Duration::from_millis(50));
    };
    let mut said = String::new();
    umount.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(!status.success(), "what was written is lost, and it does not say so: {said}");
    assert!(said.contains("lost is what was written last to 1 files (inodes "), "{said}");
    println!("unmounted after {:?}", began.elapsed());
    drop(servers);
    mounts.cluster.wait_all_ok(Duration::from_secs(120));
    assert_eq!(fs::read(mounts.at(0, "f")).unwrap(), vec![7; 3 << 20]);
}
