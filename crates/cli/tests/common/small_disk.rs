//! A disk of its own, in memory, that gets full.

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use rustix::mount::{UnmountFlags, unmount};

/// See the module.
pub struct Disk(pub PathBuf);

impl Disk {
    /// Of so many MiB, there.
    pub fn mount(at: &Path, mib: u32) -> Disk {
        fs::create_dir_all(at).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={mib}m,mode=0700"), "copy"]).arg(at);
        assert!(mount.status().unwrap().success(), "mount a file system in memory");
        Disk(at.to_owned())
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    /// Leaves no room but so much.
    pub fn fill(&self, left: u64) {
        let (mut file, piece) = (File::create(self.filler()).unwrap(), vec![7; 1 << 18]);
        while file.write_all(&piece).is_ok() {}
        let filled = file.metadata().unwrap().len();
        file.set_len(filled.saturating_sub(left)).unwrap();
    }

    /// Gives it back.
    pub fn empty(&self) {
        fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH); // nothing else can be done about it
    }
}
