//! Mounts in PID namespaces of their own, as containers have them: process ids of one mean nothing in another, so none
//! may take another for dead and end its session.

#![allow(clippy::unwrap_used)] // tests

mod common;

use std::{
    fs::{self, File},
    io::{Read, Seek, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use common::{Cluster, LET_GO, ROPEWALK, ok, until};

/// A mount in namespaces of its own: there it is process 1.
struct Container {
    unshare: Child,
    mnt: PathBuf,
}

/// The same mount point in each, as containers of one image have it.
fn mount_point(cluster: &Cluster) -> PathBuf {
    let mnt = cluster.mnt().parent().unwrap().join("box");
    fs::create_dir_all(&mnt).unwrap();
    mnt.canonicalize().unwrap()
}

impl Container {
    fn start(cluster: &Cluster, name: &str) -> Container {
        let mnt = mount_point(cluster);
        let log = fs::File::create(cluster.dir().join(format!("log/{name}.log"))).unwrap();
        let unshare = Command::new("unshare")
            .args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"])
            .args([&format!("{LET_GO} && exec \"$0\" \"$@\""), ROPEWALK, "mount", "--foreground"])
            .args(["--dir", cluster.dir().to_str().unwrap(), "fs1", mnt.to_str().unwrap()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let container = Container { unshare, mnt };
        let end = Instant::now() + Duration::from_secs(60);
        while !container.pid().is_some_and(|pid| {
            let info = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
            info.contains(container.mnt.to_str().unwrap())
        }) {
            assert!(Instant::now() < end, "not mounted: {}", cluster.logs());
            std::thread::sleep(Duration::from_millis(20));
        }
        container
    }

    /// The mount's process, as it is known here.
    fn pid(&self) -> Option<i32> {
        let of = self.unshare.id();
        fs::read_to_string(format!("/proc/{of}/task/{of}/children"))
            .ok()?
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    }

    /// The mount, seen from here.
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.pid().unwrap())).join(self.mnt.strip_prefix("/").unwrap())
    }

    fn end(&mut self) {
        if let Some(pid) = self.pid().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.unshare.wait();
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
    }
}

#[test]
fn mounts_in_other_pid_namespaces_do_not_end_each_other() {
    let cluster = Cluster::up(&["--nodes", "1", "--pdisks", "1", "--code", "1way", "--pdisk-size", "256m"]);
    let sessions = || {
        let list = cluster.json(&["clients", "list"]);
        list.as_array().unwrap().iter().map(|c| c["session"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let mut living = sessions();
    assert_eq!(living.len(), 1);
    let mut containers = Vec::new();
    for name in ["a", "b", "c"] {
        let container = Container::start(&cluster, name);
        fs::write(container.path().join(name), name).unwrap();
        let now = sessions();
        assert!(living.iter().all(|session| now.contains(session)), "{living:?} were there, then {now:?}");
        assert_eq!(now.len(), living.len() + 1);
        living = now;
        containers.push(container);
    }
    // Each works, and sees what the others did.
    for container in &containers {
        for name in ["a", "b", "c"] {
            assert_eq!(fs::read_to_string(container.path().join(name)).unwrap(), name);
        }
        fs::write(container.path().join("last"), "x").unwrap();
    }
    assert_eq!(fs::read_to_string(cluster.mnt().join("b")).unwrap(), "b");
    containers.iter_mut().for_each(Container::end);
    // What a mount says at its end may not be heard: its lease ends it then.
    until("their sessions have ended", || sessions().len() == 1);
    // One in the same namespace that is killed is known to be dead at once, as before.
    let dead = sessions()[0];
    cluster.kill(|name| name.starts_with("mount"));
    let _ = rustix::mount::unmount(cluster.mnt(), rustix::mount::UnmountFlags::DETACH);
    ok(&["mount", "--dir", cluster.dir().to_str().unwrap(), "fs1", cluster.mnt().to_str().unwrap()]);
    assert!(!sessions().contains(&dead));
    cluster.down();
}

/// The process of the mount on this path that is no container's.
fn process_of(cluster: &Cluster, mnt: &Path) -> Option<i32> {
    let name = format!("mount{}", mnt.to_str().unwrap().replace('/', "-"));
    cluster.processes().into_iter().find(|(process, _)| *process == name).map(|(_, pid)| pid)
}

/// Its own process ends with it, not that of the container.
#[test]
fn an_unmount_ends_the_mount_that_is_there() {
    let cluster = Cluster::up(&["--nodes", "1", "--pdisks", "1", "--code", "1way", "--pdisk-size", "256m"]);
    // It is there first: whoever looks for a process by the mount point finds it.
    let container = Container::start(&cluster, "a");
    let inside = container.pid().unwrap();
    let mnt = mount_point(&cluster);
    let (dir, path) = (cluster.dir(), mnt.to_str().unwrap());
    let mut held = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(container.path().join("held"))
        .unwrap();
    for (round, words) in [&["umount", path][..], &["umount", "--force", path]].into_iter().enumerate() {
        ok(&["mount", "--dir", dir.to_str().unwrap(), "fs1", path]);
        let own = process_of(&cluster, &mnt).unwrap();
        assert_ne!(own, inside);
        let name = format!("host{round}");
        fs::write(mnt.join(&name), "host").unwrap();
        let open = (round == 1).then(|| File::open(mnt.join(&name)).unwrap());
        ok(words);
        until("its process ends", || process_of(&cluster, &mnt).is_none());
        drop(open);
        assert_eq!(container.pid(), Some(inside), "{words:?}: the container's process is gone");
        held.write_all(b"inside").unwrap();
        held.sync_all().unwrap();
        assert_eq!(fs::read_to_string(container.path().join(&name)).unwrap(), "host");
    }
    let mut all = String::new();
    held.rewind().unwrap();
    held.read_to_string(&mut all).unwrap();
    assert_eq!(all, "insideinside");
    // So does the end of the cluster.
    ok(&["mount", "--dir", dir.to_str().unwrap(), "fs1", path]);
    drop(held);
    ok(&["down", "--force", "--dir", dir.to_str().unwrap()]);
    until("its process ends", || process_of(&cluster, &mnt).is_none());
    assert_eq!(container.pid(), Some(inside), "the container's process is gone");
}
