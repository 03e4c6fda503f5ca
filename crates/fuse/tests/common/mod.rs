//! Shared by the tests that mount for real.
#![allow(dead_code)] // each test uses its part
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

pub mod model;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};

use fuse::{Mount, MountOptions};
use model::Model;

/// Mounts are system-wide: one test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A model file system, mounted; unmounted when dropped, also by a panic.
pub struct Mounted {
    pub mount: Option<Mount<Model>>,
    pub model: Arc<Model>,
    pub dir: PathBuf,
    pub runtime: tokio::runtime::Runtime,
    _parent: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

/// Mounts with default options changed by `change`; `None`, loudly, where there is no /dev/fuse.
pub fn mount_with(change: impl FnOnce(&mut MountOptions)) -> Option<Mounted> {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED, NOTHING TESTED: there is no /dev/fuse on this machine");
        return None;
    }
    let turn = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().canonicalize().unwrap().join("mnt");
    std::fs::create_dir(&dir).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let model = Arc::new(Model::new());
    let mut options = MountOptions::new(&dir, "model");
    // Both transports pass the same tests: ROPEWALK_FUSE_TRANSPORT=classic, uring.
    options.transport = fuse::Transport::Auto;
    if let Ok(transport) = std::env::var("ROPEWALK_FUSE_TRANSPORT") {
        options.transport = transport.parse().unwrap();
    }
    change(&mut options);
    let mount = {
        let _inside = runtime.enter();
        Mount::start(model.clone(), options).unwrap()
    };
    Some(Mounted { mount: Some(mount), model, dir, runtime, _parent: parent, _turn: turn })
}

/// Mounts with default options.
pub fn mount() -> Option<Mounted> {
    mount_with(|_| {})
}

/// Waits for something another thread or process does; fails after a minute, which is not a measure
/// of anything.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if holds() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("waited in vain: {what}");
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

impl Mounted {
    /// Has the kernel give up what it caches of names: a remount prunes them.
    pub fn prune(&self) {
        let status =
            std::process::Command::new("mount").args(["-i", "-o", "remount,rw"]).arg(&self.dir).status();
        assert!(status.unwrap().success());
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn mount(&self) -> &Mount<Model> {
        self.mount.as_ref().unwrap()
    }

    /// Unmounts and checks that every reference was given back and every handle closed.
    pub fn end(self) {
        // What was open is closed by the kernel on its own time; and a program that another thread has just started may have it.
        wait_until("it is unmounted", || self.runtime.block_on(self.mount().unmount(false)).is_ok());
        assert_eq!(self.model.leaks(), (0, 0), "references and handles left after the end");
    }
}
