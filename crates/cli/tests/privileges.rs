//! Set-user-id and set-group-id bits that one mount sets, and a change of content on another one by an unprivileged user who
//! had the file open before: the bits go, and nothing else of the mode is put back.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::{fs::Permissions, os::unix::fs::PermissionsExt, process::Command};

use mounts::Mounts;

/// `HERE THERE USER`: two mounts, and who changes files HERE whose modes are set THERE.
const WAYS: &str = r#"
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
here, there, user = sys.argv[1], sys.argv[2], int(sys.argv[3])
page = mmap.mmap(-1, 4096)
page.write(b"n" * 4096)
def fallocate(file, mode, at, length):
    if libc.fallocate(file, mode, ctypes.c_long(at), ctypes.c_long(length)):
        raise OSError(ctypes.get_errno(), "fallocate")
def cut(file):
    os.close(os.open(f"/proc/self/fd/{file}", os.O_WRONLY | os.O_TRUNC))
ways = {
    "pwrite": (0, lambda f: os.pwrite(f, b"x", 5)),
    "write only": (os.O_WRONLY, lambda f: os.pwrite(f, b"x", 5)),
    "direct": (os.O_DIRECT, lambda f: os.pwritev(f, [page], 0)),
    "dsync": (os.O_DSYNC, lambda f: os.pwrite(f, b"x", 5)),
    "append": (os.O_APPEND, lambda f: os.write(f, b"x")),
    "ftruncate": (0, lambda f: os.ftruncate(f, 100)),
    "grow": (0, lambda f: os.ftruncate(f, 100000)),
    "O_TRUNC": (0, cut),
    "allocate": (0, lambda f: fallocate(f, 0, 0, 9000)),
    "punch": (0, lambda f: fallocate(f, 3, 0, 4096)),
    "zero": (0, lambda f: fallocate(f, 16, 0, 4096)),
    "copy": (0, lambda f: os.copy_file_range(source, f, 5000, 0, 0)),
    "nothing": (0, lambda f: None),
}
# As the other user found it, as it is set while he has it open, and as he is to leave it.
modes = [(0o777, 0o6777, 0o777), (0o6777, 0o606, 0o606), (0o777, 0o4717, 0o717)]
source = os.open(here + "/source", os.O_RDWR | os.O_CREAT, 0o644)
os.pwrite(source, b"s" * 8192, 0)
files = [(f"/{name}-{before:o}-{then:o}", *ways[name], before, then, after)
         for name in ways for before, then, after in modes]
for name, *_, before, _, _ in files:
    # Large enough to be changed block by block.
    with open(there + name, "wb") as file:
        file.write(b"o" * (3 << 20))
    os.chmod(there + name, before)
turn, go_on = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    os.setgroups([]), os.setgid(user), os.setuid(user)
    opened = [os.open(here + name, (0 if flags & os.O_WRONLY else os.O_RDWR) | flags) for name, flags, *_ in files]
    for file, (name, _, _, before, _, _) in zip(opened, files):
        os.pwrite(file, b"i", 9000) if before == 0o777 else None
        assert os.fstat(file).st_mode & 0o7777 == before, name
    os.write(turn[1], b"x")
    os.read(go_on[0], 1)
    for file, (name, _, change, *_) in zip(opened, files):
        change(file)
        print(f"{name[1:]} here {os.fstat(file).st_mode & 0o7777:o}")
    sys.stdout.flush()
    os._exit(0)
os.close(turn[1])
assert os.read(turn[0], 1) == b"x", "the other user failed"
for name, *_, then, _ in files:
    os.chmod(there + name, then)
os.write(go_on[1], b"x")
assert os.wait()[1] == 0
for name, *_, then, after in files:
    print(f"{name[1:]} there {os.stat(there + name).st_mode & 0o7777:o}")
    wanted = then if name.startswith("/nothing") else after
    print(f"wanted: {name[1:]} here {wanted:o}\nwanted: {name[1:]} there {wanted:o}")
"#;

#[test]
fn bits_that_another_mount_set_go_with_a_change_of_content() {
    let mounts = Mounts::new(2);
    for path in [mounts.cluster.dir().parent().unwrap(), mounts.more.path(), &mounts.all[0], &mounts.all[1]] {
        std::fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }
    let mut run = Command::new("python3");
    let run = run.args(["-c", WAYS]).args([&mounts.all[1], &mounts.all[0]]).arg("65534").output().unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{said}{}", String::from_utf8_lossy(&run.stderr));
    let lines = |wanted: bool| {
        let mut lines: Vec<&str> =
            said.lines().filter(|line| line.starts_with("wanted: ") == wanted).collect();
        lines.iter_mut().for_each(|line| *line = line.trim_start_matches("wanted: "));
        lines.sort_unstable();
        lines
    };
    let (is, wanted) = (lines(false), lines(true));
    assert_eq!(is.len(), wanted.len());
    let wrong: Vec<_> = is.iter().zip(&wanted).filter(|(is, wanted)| is != wanted).collect();
    assert!(wrong.is_empty(), "(is, wanted): {wrong:#?}");
    mounts.cluster.down();
}
