//! Story: inodes by file handle, as an NFS server on a mount keeps them, and names that another mount leads to
//! other inodes just when they are used.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::{
    fs::{self, File},
    io::Read,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use mounts::Mounts;

/// Of four uses each, in turns with replacements.
const ROUNDS: usize = 100;

/// `handle.py save PATH HANDLE`, `handle.py open MOUNT HANDLE`: what is there (kind, size), or the name of the error.
const HANDLE: &str = r#"
import ctypes, errno, os, stat, sys
libc = ctypes.CDLL(None, use_errno=True)
what, path, handle = sys.argv[1:]
if what == "save":
    bytes, mount = ctypes.create_string_buffer(b"\x80".ljust(136, b"\0"), 136), ctypes.c_int()
    if libc.name_to_handle_at(-100, path.encode(), bytes, ctypes.byref(mount), 0):
        sys.exit(os.strerror(ctypes.get_errno()))
    open(handle, "wb").write(bytes.raw)
else:
    at = os.open(path, os.O_RDONLY)
    found = libc.open_by_handle_at(at, open(handle, "rb").read(), os.O_RDONLY)
    if found < 0:
        print(errno.errorcode[ctypes.get_errno()], end="")
    elif stat.S_ISDIR(os.fstat(found).st_mode):
        print("directory of", *sorted(os.listdir(found)), end="")
    else:
        print("file:", os.read(found, 100).decode(), end="")
"#;

fn handle(what: &str, path: &Path, handle: &Path) -> String {
    let run = Command::new("python3").args(["-c", HANDLE, what]).args([path, handle]).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).unwrap()
}

/// Handles made on one mount lead to their inodes on every mount, wherever these were moved, also after the mount,
/// the manager and the servers were killed; those of removed inodes are stale.
#[test]
fn file_handles_outlive_restarts() {
    let mut mounts = Mounts::new(2);
    fs::create_dir_all(mounts.at(0, "a/b")).unwrap();
    fs::write(mounts.at(0, "a/b/file"), "content").unwrap();
    fs::write(mounts.at(0, "a/b/gone"), "").unwrap();
    let more = mounts.more.path().to_path_buf();
    let saved = |name: &str| more.join(format!("handle-{name}"));
    for (path, name) in [("a/b/file", "file"), ("a/b", "dir"), ("a/b/gone", "gone"), ("", "root")] {
        handle("save", &mounts.at(0, path), &saved(name));
    }
    let check = |mount: &Path| {
        let open = |name| handle("open", mount, &saved(name));
        assert_eq!(open("file"), "file: content");
        assert_eq!(open("dir"), "directory of other");
        assert_eq!(open("gone"), "ESTALE");
        assert_eq!(open("root"), "directory of a moved");
    };
    fs::rename(mounts.at(1, "a/b/file"), mounts.at(1, "moved")).unwrap();
    fs::remove_file(mounts.at(1, "a/b/gone")).unwrap();
    fs::write(mounts.at(1, "a/b/other"), "").unwrap();
    mounts.all.iter().for_each(|mount| check(mount));
    mounts.cluster.kill(|_| true);
    for mount in &mounts.all {
        common::ropewalk(&["umount", "--force", mount.to_str().unwrap()]);
    }
    mounts.cluster.start();
    check(&mounts.all[0]);
    mounts.add();
    check(mounts.all.last().unwrap());
}

/// A directory that this mount made and its kernel has dropped is found by its handle, alone and beside others.
#[test]
fn a_directory_made_here_is_found_by_its_handle() {
    let mut mounts = Mounts::new(1);
    for (number, others) in [false, true].into_iter().enumerate() {
        if others {
            mounts.add();
        }
        let (top, saved) = (mounts.at(0, &format!("top{number}")), mounts.more.path().join("handle"));
        fs::create_dir_all(top.join("dir/inner")).unwrap();
        fs::write(top.join("dir/file"), "").unwrap();
        for (path, holds) in [("dir", "directory of file inner"), ("dir/inner", "directory of")] {
            handle("save", &top.join(path), &saved);
            // What the kernel keeps of names goes, and with it inodes that nobody uses.
            fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
            assert_eq!(handle("open", &mounts.all[0], &saved), holds, "others: {others}");
        }
    }
}

/// Says so also when the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// A name that is only ever replaced is never absent, whatever is done with it elsewhere at that moment.
#[test]
fn a_replaced_name_is_never_absent() {
    let mounts = Mounts::new(2);
    let (here, there) = (mounts.at(0, "f"), mounts.at(1, "f"));
    fs::write(&here, "12345").unwrap();
    let (ended, in_turns, used) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let next = mounts.at(1, "next");
            while !ended.load(SeqCst) {
                fs::write(&next, "12345").unwrap();
                fs::rename(&next, &there).unwrap();
                let before = used.load(SeqCst);
                while in_turns.load(SeqCst) && used.load(SeqCst) == before && !ended.load(SeqCst) {
                    thread::sleep(Duration::from_millis(1));
                }
            }
        });
        let _ends = Ends(&ended);
        let uses: [fn(&Path) -> std::io::Result<u64>; 4] = [
            |path| {
                let mut file = File::open(path)?;
                // Nobody else has it open; what was removed meanwhile stays until it is closed.
                thread::sleep(Duration::from_millis(1));
                let mut bytes = Vec::new();
                Ok(file.read_to_end(&mut bytes).expect("read what is open") as u64)
            },
            |path| File::options().write(true).open(path).map(|_| 5),
            |path| fs::set_permissions(path, fs::Permissions::from_mode(0o640)).map(|()| 5),
            |path| fs::metadata(path).map(|found| found.size()),
        ];
        // How many of them the kernel gave up: it looks once more only.
        let use_it = || -> usize {
            let given_up = |act: fn(&Path) -> std::io::Result<u64>| {
                let outcome = act(&here);
                used.fetch_add(1, SeqCst);
                match &outcome {
                    Ok(size) => assert_eq!(*size, 5),
                    Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{error}"),
                }
                outcome.is_err()
            };
            uses.iter().filter(|act| given_up(**act)).count()
        };
        let end = Instant::now() + Duration::from_secs(3);
        let (mut rounds, mut stale) = (0, 0);
        while Instant::now() < end {
            stale += use_it();
            rounds += 1;
        }
        println!("{} uses of a name, {stale} of which met two replacements", 4 * rounds);
        // How often that is depends on how long a use takes, which may be any time on a busy machine. Where no use sees the end of more
        // than one replacement the kernel's second look does.
        in_turns.store(true, SeqCst);
        let stale: usize = (0..ROUNDS).map(|_| use_it()).sum();
        println!("in turns: {stale} of {}", 4 * ROUNDS);
        assert!(stale < ROUNDS, "{stale} of {}", 4 * ROUNDS);
    });
}
