//! Set-user-id and set-group-id bits go with a change of content by somebody without CAP_FSETID, and stay with one by root: every
//! way to change content, on the mount and on a local directory, whose answers must be the same.

#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

mod common;

use std::{path::Path, process::Command};

use common::{is_root, mount_with};

/// `DIR USER`: for each mode and each way to change, what stat says of the mode afterwards, by path and through the open file.
const WAYS: &str = r#"
import ctypes, fcntl, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
top, user = sys.argv[1], int(sys.argv[2])
page = mmap.mmap(-1, 4096)
page.write(b"n" * 4096)
def fallocate(file, mode, at, length):
    if libc.fallocate(file, mode, ctypes.c_long(at), ctypes.c_long(length)):
        raise OSError(ctypes.get_errno(), "fallocate")
ways = {
    "pwrite": (0, lambda f: os.pwrite(f, b"x", 5)),
    "direct": (os.O_DIRECT, lambda f: os.pwritev(f, [page], 0)),
    "dsync": (os.O_DSYNC, lambda f: os.pwrite(f, b"x", 5)),
    "append": (os.O_APPEND, lambda f: os.write(f, b"x")),
    "ftruncate": (0, lambda f: os.ftruncate(f, 100)),
    "grow": (0, lambda f: os.ftruncate(f, 100000)),
    "O_TRUNC": (os.O_TRUNC, lambda f: None),
    "allocate": (0, lambda f: fallocate(f, 0, 0, 9000)),
    "punch": (0, lambda f: fallocate(f, 3, 0, 4096)),
    "zero": (0, lambda f: fallocate(f, 16, 0, 4096)),
    "copy": (0, lambda f: os.copy_file_range(source, f, 5000, 0, 0)),
    "nothing": (0, lambda f: os.pread(f, 10, 0)),
}
source = os.open(top + "/source", os.O_RDWR | os.O_CREAT, 0o644)
os.pwrite(source, b"s" * 8192, 0)
for name in ways:
    for mode in (0o6777, 0o4766, 0o2777, 0o755 if user == 0 else 0o777):
        path = f"{top}/{name}{mode:o}"
        with open(path, "wb") as file:
            file.write(b"o" * 8192)
        os.chmod(path, mode)
sys.stdout.flush()
if os.fork() == 0:
    os.setgroups([]), os.setgid(user), os.setuid(user)
    for name, (flags, change) in ways.items():
        for mode in (0o6777, 0o4766, 0o2777, 0o755 if user == 0 else 0o777):
            path = f"{top}/{name}{mode:o}"
            file = os.open(path, os.O_RDWR | flags)
            change(file)
            print(f"{name} {mode:o}: {os.stat(path).st_mode & 0o7777:o} {os.fstat(file).st_mode & 0o7777:o}")
    sys.stdout.flush()
    os._exit(0)
assert os.wait()[1] == 0
"#;

fn modes(dir: &Path, user: u32) -> String {
    std::fs::create_dir(dir).unwrap();
    std::fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let run = Command::new("python3").args(["-c", WAYS]).arg(dir).arg(user.to_string()).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).unwrap()
}

#[test]
fn privileges_go_with_every_change_of_content() {
    if !is_root() {
        eprintln!("SKIPPED, NOTHING TESTED: this needs root");
        return;
    }
    let Some(m) = mount_with(|_| {}) else { return };
    let local = tempfile::tempdir().unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    for dir in [local.path(), m.dir.parent().unwrap()] {
        std::fs::set_permissions(dir, std::fs::Permissions::clone(&open)).unwrap();
    }
    for user in [65534, 0] {
        let name = format!("by{user}");
        let (here, there) = (modes(&m.path(&name), user), modes(&local.path().join(&name), user));
        assert_eq!(here, there, "user {user}: on the mount and on a local directory");
        assert!(
            here.contains(if user == 0 { "punch 6777: 6777 6777" } else { "punch 6777: 777 777" }),
            "{here}"
        );
        // And so it is below, not only in the kernel.
        m.prune();
        for line in here.lines() {
            let (file, modes) = line.split_once(": ").unwrap();
            let path = m.path(&name).join(file.replace(' ', ""));
            let mode =
                std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(path).unwrap().permissions());
            assert_eq!(format!("{:o}", mode & 0o7777), modes.split(' ').next().unwrap(), "{file}");
        }
    }
    m.end();
}
