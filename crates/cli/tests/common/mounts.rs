//! A cluster with several mounts of its file system.
#![allow(dead_code)] // each test file uses a part
#![allow(clippy::unwrap_used)]

use std::{
    fs,
    path::{Path, PathBuf},
};

use rustix::process::Pid;

use crate::common::{Cluster, THREE, ok, until};

/// A cluster and more mounts of its file system beside its own.
pub struct Mounts {
    pub cluster: Cluster,
    pub more: tempfile::TempDir,
    pub all: Vec<PathBuf>,
}

impl Mounts {
    pub fn new(count: usize) -> Mounts {
        Mounts::over(
            Cluster::prepare(&[&THREE[..], &["--pdisk-size", "1g", "--block-size", "1m"]].concat()),
            count,
        )
    }

    /// With everything on a file system in memory where it has room: for what is not about disks, and would wait for
    /// their flushes most of the time.
    pub fn in_memory(count: usize) -> Mounts {
        Mounts::over(Mounts::memory(), count)
    }

    /// The cluster for that, prepared.
    pub fn memory() -> Cluster {
        Mounts::memory_of("256m")
    }

    /// The same with pdisks of this size.
    pub fn memory_of(pdisk: &str) -> Cluster {
        let memory = Path::new("/dev/shm");
        let room = rustix::fs::statvfs(memory).is_ok_and(|fs| fs.f_bavail * fs.f_frsize > 4 << 30);
        let base = if room { memory.to_path_buf() } else { std::env::temp_dir() };
        Cluster::prepare_in(&base, &[&THREE[..], &["--pdisk-size", pdisk, "--block-size", "1m"]].concat())
    }

    /// Brings up a cluster that is prepared.
    pub fn over(cluster: Cluster, count: usize) -> Mounts {
        cluster.start();
        let more = tempfile::Builder::new().prefix("ropewalk-mounts-").tempdir().unwrap();
        let mut mounts = Mounts { all: vec![cluster.mnt()], cluster, more };
        (1..count).for_each(|_| mounts.add());
        mounts
    }

    pub fn add(&mut self) {
        let path = self.more.path().join(format!("m{}", self.all.len()));
        fs::create_dir(&path).unwrap();
        self.mount(&path);
        self.all.push(path);
    }

    pub fn mount(&self, path: &Path) {
        self.mount_by(path, "classic");
    }

    /// Over this transport.
    pub fn mount_by(&self, path: &Path, transport: &str) {
        let (dir, path) = (self.cluster.dir(), path.to_str().unwrap());
        let dir = dir.to_str().unwrap();
        ok(&["mount", "--dir", dir, "--fuse-transport", transport, "fs1", path]);
    }

    pub fn at(&self, mount: usize, name: &str) -> PathBuf {
        self.all[mount].join(name)
    }

    /// The tokens of an inode, as far as anything may be kept or used under them.
    pub fn tokens_of(&self, inode: u64) -> Vec<serde_json::Value> {
        let tokens = self.cluster.json(&["tokens"]);
        let of = |t: &&serde_json::Value| t["inode"] == inode && t["mode"] != "open";
        tokens.as_array().unwrap().iter().filter(of).cloned().collect()
    }

    /// Messages of a mount to the manager so far.
    pub fn messages(&self, at: usize) -> u64 {
        let name = self.all[at].canonicalize().unwrap();
        let mut mount = serde_json::Value::Null;
        until("the mount answers", || {
            let all = self.cluster.json(&["net", "status"]);
            let it = all.as_array().unwrap().iter().find(|p| p["process"] == name.to_str().unwrap()).unwrap();
            mount = it["answer"].clone();
            mount.is_array()
        });
        let manager = mount.as_array().unwrap().iter().find(|peer| peer["node"] == 0).unwrap();
        let sent = |connection: &serde_json::Value| connection["frames_sent"].as_u64().unwrap();
        manager["connections"].as_array().unwrap().iter().map(sent).sum()
    }

    pub fn process(&self, mount: usize) -> Pid {
        let name =
            format!("mount{}", self.all[mount].canonicalize().unwrap().to_str().unwrap().replace('/', "-"));
        let found = self.cluster.processes().into_iter().find(|(process, _)| *process == name);
        Pid::from_raw(found.expect("the mount's process").1).unwrap()
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for path in &self.all[1..] {
            // Whatever is left of it.
            let _ = rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH);
        }
    }
}
