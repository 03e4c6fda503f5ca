//! Mounting and unmounting: what is refused, what is said, how it ends.

#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

mod common;

use std::{
    fs,
    process::{Command, Stdio},
    sync::Arc,
};

use common::{is_root, model::Model, mount, mount_with, wait_until};
use fuse::{Mount, MountError, MountOptions};

fn try_mount(m: &common::Mounted, options: MountOptions) -> Result<Mount<Model>, MountError> {
    let _inside = m.runtime.enter();
    Mount::start(Arc::new(Model::new()), options)
}

#[test]
fn unusable_mount_points_are_refused_with_their_name() {
    let Some(m) = mount() else { return };
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    let error = try_mount(&m, MountOptions::new(&missing, "model")).err().unwrap();
    assert!(matches!(&error, MountError::Missing { path } if *path == missing), "{error}");

    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = try_mount(&m, MountOptions::new(&file, "model")).err().unwrap();
    assert!(matches!(error, MountError::NotADirectory { .. }), "{error}");

    let error = try_mount(&m, MountOptions::new(dir.path(), "model")).err().unwrap();
    assert!(matches!(error, MountError::NotEmpty { entries: 1, .. }), "{error}");

    let error = try_mount(&m, MountOptions::new(&m.dir, "model")).err().unwrap();
    assert!(matches!(&error, MountError::AlreadyMounted { kind, .. } if kind == "fuse.ropewalk"), "{error}");
    fs::write(m.path("still here"), "x").unwrap();
    m.end();
}

#[test]
fn a_directory_with_entries_can_be_allowed_and_is_back_afterwards() {
    let Some(m) = mount() else { return };
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("below"), "x").unwrap();
    let options = MountOptions { allow_non_empty: true, ..MountOptions::new(dir.path(), "model") };
    let over = try_mount(&m, options).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    m.runtime.block_on(over.unmount(false)).unwrap();
    assert!(dir.path().join("below").exists());
    m.end();
}

#[test]
fn a_mount_in_use_is_not_unmounted_and_the_user_is_named() {
    let Some(m) = mount() else { return };
    let file = fs::File::create(m.path("open")).unwrap();
    let me = format!("({})", std::process::id());
    // Where there are many processes, on a busy machine, it looks at some of them only.
    wait_until("the user is named", || {
        let error = m.runtime.block_on(m.mount().unmount(false)).unwrap_err();
        let MountError::Busy { users, .. } = &*error else { panic!("{error}") };
        users.iter().any(|u| u.ends_with(&me))
    });
    assert_eq!(m.mount().status().open_files, 1);
    drop(file);
    // The kernel closes handles on its own time.
    wait_until("unmounted", || m.runtime.block_on(m.mount().unmount(false)).is_ok());
    m.end();
}

#[test]
fn force_frees_the_directory_at_once_and_closes_what_was_open() {
    let Some(m) = mount() else { return };
    let file = fs::File::create(m.path("open")).unwrap();
    m.runtime.block_on(m.mount().unmount(true)).unwrap();
    assert_eq!(fs::read_dir(&m.dir).unwrap().count(), 0, "the directory below shows");
    m.runtime.block_on(m.mount().unmounted()).unwrap();
    assert_eq!(m.model.leaks(), (0, 0));
    assert!(file.metadata().is_err());
    fs::create_dir(m.path("usable")).unwrap();
}

#[test]
fn an_unmount_from_outside_ends_the_mount_and_makes_everything_durable() {
    let Some(m) = mount() else { return };
    fs::write(m.path("file"), "text").unwrap();
    let before = m.model.syncs.load(std::sync::atomic::Ordering::Relaxed);
    let program = if is_root() { vec!["umount"] } else { vec!["fusermount3", "-u"] };
    // Whoever on this machine just looks at it keeps it busy for that moment.
    wait_until("it is unmounted", || {
        Command::new(program[0]).args(&program[1..]).arg(&m.dir).status().unwrap().success()
    });
    m.runtime.block_on(m.mount().unmounted()).unwrap();
    assert!(m.model.syncs.load(std::sync::atomic::Ordering::Relaxed) > before);
    assert_eq!(m.model.leaks(), (0, 0));
    // Unmounting what is gone is no error, and touches nothing else.
    m.runtime.block_on(m.mount().unmount(false)).unwrap();
}

#[test]
fn an_end_by_signal_unmounts_even_what_is_in_use() {
    let Some(m) = mount() else { return };
    let mut user = Command::new("sleep").arg("1000").current_dir(&m.dir).spawn().unwrap();
    let end = m.runtime.block_on(m.mount().end_on_signal());
    user.kill().unwrap();
    user.wait().unwrap();
    end.unwrap();
    assert_eq!(m.model.leaks(), (0, 0));
}

#[test]
fn data_that_cannot_be_made_durable_is_an_error_of_fsync_and_of_the_unmount() {
    let Some(m) = mount() else { return };
    let file = fs::File::create(m.path("file")).unwrap();
    m.model.sync_errno.store(libc_eio(), std::sync::atomic::Ordering::Relaxed);
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(5));
    assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(5));
    drop(file);
    wait_until("unmount to be tried", || {
        let error = m.runtime.block_on(m.mount().unmount(false)).unwrap_err();
        matches!(*error, MountError::NotDurable { errno: 5, .. })
    });
}

fn libc_eio() -> u64 {
    5
}

/// A process that is killed leaves a directory that answers "not connected"; the next mount takes it.
#[test]
fn a_mount_whose_process_is_gone_is_replaced() {
    let Some(m) = mount() else { return };
    let memfs = std::env::current_exe().unwrap().parent().unwrap().with_file_name("examples").join("memfs");
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(memfs)
        .arg(dir.path())
        .stderr(Stdio::null())
        .spawn()
        .expect("cargo test builds examples");
    wait_until("the other process to mount", || {
        fs::read_to_string("/proc/self/mountinfo").unwrap().contains(dir.path().to_str().unwrap())
            && fs::write(dir.path().join("x"), "x").is_ok()
    });
    child.kill().unwrap();
    child.wait().unwrap();
    // Over io_uring the kernel takes a moment to find out.
    wait_until("the mount to be dead", || {
        fs::metadata(dir.path()).is_err_and(|error| error.raw_os_error() == Some(107))
    });
    let mount = try_mount(&m, MountOptions::new(dir.path(), "model")).unwrap();
    fs::write(dir.path().join("y"), "y").unwrap();
    m.runtime.block_on(mount.unmount(false)).unwrap();
    m.end();
}

#[test]
fn a_read_only_mount_changes_nothing() {
    let Some(m) = mount_with(|o| o.read_only = true) else { return };
    let error = fs::write(m.path("x"), "x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(30), "EROFS");
    assert_eq!(fs::create_dir(m.path("d")).unwrap_err().raw_os_error(), Some(30));
    m.end();
}
