//! Requests under way: references, interrupts, listings, limits, faults below.

#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

mod common;

use std::{
    fs::{self, File},
    io::{Read, Write},
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    },
    process::{Command, Stdio},
    sync::atomic::Ordering,
    thread,
    time::Duration,
};

use base::InodeNo;
use common::{is_root, mount, mount_with, wait_until};
use fuse::calls::Calls;
use rustix::fs::{Access, AtFlags, CWD};

/// Names looked up and given up again, many times: nothing is held. FORGETS=1000000 for the long form.
#[test]
fn every_reference_is_given_back() {
    let Some(m) = mount() else { return };
    if !is_root() {
        eprintln!("SKIPPED: only root may remount, which makes the kernel forget");
        return m.end();
    }
    let wanted: u64 = std::env::var("FORGETS").map_or(20_000, |n| n.parse().unwrap());
    const FILES: u64 = 1000;
    for i in 0..FILES {
        File::create(m.path(&format!("file-{i}"))).unwrap();
    }
    for round in 0..wanted.div_ceil(FILES) {
        m.prune();
        wait_until("the kernel to forget", || m.mount().status().inodes <= 1);
        // A machine that is short of memory, or told to forget, forgets some by itself: then they are looked up again.
        wait_until("all to be known at once", || {
            if round % 2 == 0 {
                // Listing with attributes, then by name.
                let listed = fs::read_dir(&m.dir).unwrap().map(|e| e.unwrap().metadata().unwrap().len());
                assert_eq!(listed.count() as u64, FILES);
            } else {
                (0..FILES).for_each(|i| assert!(m.path(&format!("file-{i}")).exists()));
            }
            m.mount().status().inodes >= FILES
        });
    }
    m.prune();
    wait_until("the kernel to forget", || m.mount().status().inodes <= 1);
    assert_eq!(m.model.leaks(), (0, 0));
    assert_eq!(m.model.inodes() as u64, FILES + 1);
    m.end();
}

#[test]
fn the_transport_is_the_one_asked_for() {
    let Some(m) = mount_with(|o| o.transport = fuse::Transport::Classic) else { return };
    assert!(!m.mount().status().agreed.is_over_uring());
    fs::write(m.path("x"), "x").unwrap();
    m.end();
    let offered = fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    if offered.is_err() {
        eprintln!("SKIPPED, FUSE OVER IO_URING NOT TESTED: this kernel has none");
        return;
    }
    if !is_root() && offered.unwrap().trim() != "Y" {
        eprintln!("SKIPPED, FUSE OVER IO_URING NOT TESTED: it is off, and only root may turn it on");
        return;
    }
    let Some(m) = mount_with(|o| o.transport = fuse::Transport::Auto) else { return };
    assert!(m.mount().status().agreed.is_over_uring(), "where it can be had it is taken");
    fs::write(m.path("x"), vec![3; 3 << 20]).unwrap();
    assert!(fs::read(m.path("x")).unwrap() == vec![3; 3 << 20]);
    m.end();
}

/// A direct read or write is one request for each MiB, wherever in a page the program's memory begins: what a request
/// writes into a block is stored whole or not at all, and the last bytes of a split one would come after it.
#[test]
fn direct_requests_of_the_largest_size_are_not_split() {
    const LEN: usize = 1 << 20;
    for transport in [fuse::Transport::Classic, fuse::Transport::Auto] {
        let Some(m) = mount_with(|o| o.transport = transport) else { return };
        let limit = fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit");
        if limit.as_ref().map_or(0, |limit| limit.trim().parse().unwrap()) <= LEN / 4096 {
            eprintln!("SKIPPED, NOTHING TESTED: requests have 256 pages here at most, {limit:?}");
            return m.end();
        }
        let mut direct = File::options();
        direct.create_new(true).read(true).write(true).custom_flags(0o40000);
        let file = direct.open(m.path("x")).unwrap();
        let mut space = vec![0; 3 * LEN + 8192];
        let start = space.as_ptr().align_offset(4096);
        for (round, (shift, requests)) in [(0, 1), (16, 1), (4095, 3), (0, 3)].into_iter().enumerate() {
            let counts = || (m.model.writes.load(Ordering::Relaxed), m.model.reads.load(Ordering::Relaxed));
            let (before, memory) = (counts(), start + shift..start + shift + requests * LEN);
            space[memory.clone()].fill(1 + round as u8);
            file.write_all_at(&space[memory.clone()], 0).unwrap();
            space.fill(0);
            file.read_exact_at(&mut space[memory.clone()], 0).unwrap();
            assert!(space[memory].iter().all(|&byte| byte == 1 + round as u8));
            let requests = requests as u64;
            assert_eq!(counts(), (before.0 + requests, before.1 + requests), "from {shift} within a page");
        }
        drop(file);
        m.end();
    }
}

/// More requests that wait than a queue has entries: the kernel keeps the rest, and none is lost.
#[test]
fn more_waiting_reads_than_there_are_entries_are_all_answered() {
    let Some(m) = mount_with(|o| o.ring_depth = Some(4)) else { return };
    fs::write(m.path("x"), vec![5; 64 << 10]).unwrap();
    let open = || File::options().read(true).custom_flags(0o40000).open(m.path("x")).unwrap();
    let files: Vec<File> = (0..60).map(|_| open()).collect();
    m.model.set_gate(false);
    let readers = files.into_iter().map(|file| {
        thread::spawn(move || {
            let mut space = vec![0; (64 << 10) + 4096];
            let start = space.as_ptr().align_offset(4096);
            file.read_exact_at(&mut space[start..start + (64 << 10)], 0).unwrap();
            assert!(space[start..start + (64 << 10)].iter().all(|&b| b == 5));
        })
    });
    let readers: Vec<_> = readers.collect();
    wait_until("reads to wait", || m.mount().status().waiting.len() >= 4);
    m.model.set_gate(true);
    readers.into_iter().for_each(|r| r.join().unwrap());
    m.end();
}

#[test]
fn unlinked_inodes_go_when_the_last_reference_goes() {
    let Some(m) = mount() else { return };
    let mut file = File::options().read(true).write(true).create_new(true).open(m.path("x")).unwrap();
    fs::remove_file(m.path("x")).unwrap();
    file.write_all(b"still here").unwrap();
    assert_eq!(m.model.inodes(), 2);
    drop(file);
    wait_until("the inode to go", || m.model.inodes() == 1);
    m.end();
}

/// What O_TMPFILE makes has no name; a link gives it its first one, unless it was made without that. Without one it goes when it is closed.
#[test]
fn a_file_without_a_name_is_named_by_a_link_or_goes() {
    let Some(m) = mount() else { return };
    let make = |more: i32| {
        let mut options = File::options();
        options.read(true).write(true).mode(0o640).custom_flags(libc::O_TMPFILE | more).open(&m.dir).unwrap()
    };
    let link = |file: &File, name: &str| {
        let from = format!("/proc/self/fd/{}", file.as_raw_fd());
        let done = rustix::fs::linkat(CWD, from, CWD, m.path(name), AtFlags::SYMLINK_FOLLOW);
        done.map_err(|error| error.raw_os_error())
    };
    let (mut named, exclusive, left) = (make(0), make(libc::O_EXCL), make(0));
    assert_eq!((m.model.inodes(), fs::read_dir(&m.dir).unwrap().count()), (4, 0));
    named.write_all(b"text").unwrap();
    let of = |file: &File| file.metadata().map(|of| (of.nlink(), of.len(), of.mode() & 0o7777)).unwrap();
    assert_eq!(of(&named), (0, 4, 0o640));
    assert_eq!(link(&named, "f"), Ok(()));
    assert_eq!((of(&named), fs::read(m.path("f")).unwrap()), ((1, 4, 0o640), b"text".to_vec()));
    assert_eq!(link(&exclusive, "g"), Err(libc::ENOENT));
    fs::remove_file(m.path("f")).unwrap();
    assert_eq!((of(&named).0, link(&named, "h")), (0, Err(libc::ENOENT)));
    drop((named, exclusive, left));
    wait_until("all of them to go", || m.model.inodes() == 1);
    m.end();
}

/// A reader that cannot get its data can be killed, and the mount goes on.
#[test]
fn a_killed_process_does_not_wait_for_its_read() {
    let Some(m) = mount() else { return };
    fs::write(m.path("file"), vec![7; 100_000]).unwrap();
    if is_root() {
        m.prune();
    }
    let cold = m.path("cold");
    fs::write(&cold, vec![7; 100_000]).unwrap();
    rustix::fs::fadvise(File::open(&cold).unwrap(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
    m.model.set_gate(false);
    let mut cat = Command::new("dd")
        .arg(format!("if={}", cold.display()))
        .args(["iflag=direct", "bs=64k"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the read to wait", || m.mount().status().waiting.iter().any(|w| w.operation == "read"));
    let waiting = m.mount().status().waiting;
    let read = waiting.iter().find(|w| w.operation == "read").unwrap();
    assert_eq!(read.pid, cat.id());
    // Names are served while data waits.
    fs::create_dir(m.path("dir")).unwrap();
    cat.kill().unwrap();
    // Hangs here if the kill does not get through.
    let status = cat.wait().unwrap();
    assert!(!status.success());
    m.model.set_gate(true);
    assert_eq!(fs::read(&cold).unwrap().len(), 100_000);
    wait_until("nothing to wait", || m.mount().status().waiting.is_empty());
    m.end();
}

/// A signal that does not kill leaves a read alone.
#[test]
fn a_signal_that_is_handled_does_not_fail_a_read() {
    let Some(m) = mount() else { return };
    fs::write(m.path("file"), "text\n").unwrap();
    m.model.set_gate(false);
    // The shell itself reads, with a handler for the signal.
    let script = "trap 'got=1' USR1; exec 3<\"$1\"; IFS= read -r line <&3; echo \"$line $got\"";
    let mut command = Command::new("bash");
    command.args(["-c", script, "sh"]).arg(m.path("file")).stdout(Stdio::piped());
    let file = m.path("file");
    let direct = File::open(&file).unwrap();
    rustix::fs::fadvise(&direct, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    drop(direct);
    let mut shell = command.spawn().unwrap();
    wait_until("the read to wait", || m.mount().status().waiting.iter().any(|w| w.operation == "read"));
    let kill = Command::new("kill").args(["-USR1", &shell.id().to_string()]).status().unwrap();
    assert!(kill.success());
    // The interrupt has been looked at by the time another request is through.
    (0..100).for_each(|i| assert!(!m.path(&format!("missing-{i}")).exists()));
    m.model.set_gate(true);
    let mut line = String::new();
    shell.stdout.take().unwrap().read_to_string(&mut line).unwrap();
    assert!(shell.wait().unwrap().success());
    assert_eq!(line, "text 1\n");
    m.end();
}

/// Who syncs can be stopped, also before it is his turn, and keeps nobody from making names where he does; what he has begun goes on.
#[test]
fn who_syncs_can_be_stopped() {
    let Some(m) = mount() else { return };
    m.model.set_gate(false);
    let script = "import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.getxattr(sys.argv[1], 'ropewalk.sync')";
    let sync = || Command::new("python3").args(["-c", script]).arg(&m.dir).spawn().unwrap();
    let mut two = [sync(), sync()];
    let asked = || m.mount().status().waiting.iter().filter(|w| w.operation == "getxattr").count();
    wait_until("both to ask", || asked() == 2);
    fs::create_dir(m.path("made")).unwrap();
    for (program, signal) in two.iter_mut().zip(["-INT", "-KILL"]) {
        let kill = Command::new("kill").args([signal, &program.id().to_string()]).status().unwrap();
        assert!(kill.success());
        wait_until("it to end", || program.try_wait().unwrap().is_some());
    }
    assert_eq!(m.model.syncs.load(Ordering::Relaxed), 0);
    m.model.set_gate(true);
    wait_until("nothing to wait", || m.mount().status().waiting.is_empty());
    assert_eq!(m.model.syncs.load(Ordering::Relaxed), 2);
    assert!(sync().wait().unwrap().success());
    assert_eq!(m.model.syncs.load(Ordering::Relaxed), 3);
    m.end();
}

/// The kernel does not look how much of its pages was written.
#[test]
fn pages_that_are_written_in_part_are_an_error() {
    let Some(m) = mount() else { return };
    fs::write(m.path("x"), vec![1; 64 << 10]).unwrap();
    m.model.write_most.store(4096, Ordering::Relaxed);
    let script = "import errno, mmap, os, sys
mapped = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 0)
mapped[:] = bytes(len(mapped))
for _ in range(2):
    try:
        mapped.flush()
        print('done')
    except OSError as error:
        print(errno.errorcode[error.errno])";
    let said = Command::new("python3").args(["-c", script]).arg(m.path("x")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout), "EIO\ndone\n");
    m.end();
}

/// With the least of everything, more at once than there is room for.
#[test]
fn the_smallest_limits_slow_down_but_do_not_stop() {
    let change = |o: &mut fuse::MountOptions| {
        (o.threads, o.requests_max, o.write_buffers_max, o.max_background) = (1, 1, 1, 1);
        o.ring_depth = Some(1);
    };
    let Some(m) = mount_with(change) else { return };
    thread::scope(|s| {
        for i in 0..8u8 {
            let path = m.path(&format!("file-{i}"));
            s.spawn(move || {
                let direct = File::options()
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .custom_flags(0o40000)
                    .open(&path)
                    .unwrap();
                let data = vec![i; (4 << 20) + 4096];
                let start = data.as_ptr().align_offset(4096);
                for k in 0..4 {
                    direct.write_all_at(&data[start..start + (1 << 20)], k << 20).unwrap();
                }
                assert!(fs::read(&path).unwrap() == vec![i; 4 << 20]);
            });
        }
    });
    m.end();
}

#[test]
fn a_fault_below_is_an_error_of_that_call_only() {
    let Some(m) = mount() else { return };
    assert_eq!(fs::metadata(m.path("panic")).unwrap_err().raw_os_error(), Some(5), "EIO");
    fs::write(m.path("x"), "x").unwrap();
    assert_eq!(fs::read(m.path("x")).unwrap(), b"x");
    m.end();
}

/// The kernel reads ahead for a program, and asks once more for its page when that fails: the program does not wait twice.
#[test]
fn a_read_that_failed_after_a_long_wait_fails_without_another() {
    let Some(m) = mount() else { return };
    fs::write(m.path("x"), vec![6; 1 << 20]).unwrap();
    rustix::fs::fadvise(File::open(m.path("x")).unwrap(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
    m.model.set_gate(false);
    let path = m.path("x");
    let reader = thread::spawn(move || File::open(path).unwrap().read(&mut [0; 4096]));
    wait_until("the read to wait", || m.mount().status().waiting.iter().any(|w| w.operation == "read"));
    thread::sleep(Duration::from_millis(1100));
    *m.model.failing.lock().unwrap() = Some(Vec::new());
    m.model.set_gate(true);
    assert_eq!(reader.join().unwrap().unwrap_err().raw_os_error(), Some(libc::EIO));
    let mut asked = m.model.failing.lock().unwrap().take().unwrap();
    let count = asked.len();
    asked.sort_unstable();
    asked.dedup();
    assert_eq!(asked.len(), count, "something was asked for twice: {asked:?}");
    // What failed is read when it can be.
    wait_until("the file to be read", || fs::read(m.path("x")).is_ok_and(|got| got == vec![6; 1 << 20]));
    m.end();
}

#[test]
fn long_names_and_many_entries_are_listed_once_each() {
    let Some(m) = mount() else { return };
    let name = |i: usize| format!("{i:05}{}", "n".repeat(i % 251));
    for i in 0..2000 {
        File::create(m.path(&name(i))).unwrap();
    }
    for _ in 0..3 {
        let mut listed: Vec<String> =
            fs::read_dir(&m.dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        listed.sort();
        assert_eq!(listed, (0..2000).map(name).collect::<Vec<_>>());
        if is_root() {
            m.prune();
        }
    }
    m.end();
}

#[test]
fn cached_data_is_not_asked_for_again() {
    let Some(m) = mount() else { return };
    fs::write(m.path("x"), vec![1; 1 << 20]).unwrap();
    let first = fs::read(m.path("x")).unwrap();
    // It may be given up meanwhile where memory is short; not each time.
    wait_until("the kernel's cache to be kept across opens", || {
        assert!(fs::read(m.path("x")).unwrap() == first);
        let reads = m.model.reads.load(Ordering::Relaxed);
        for _ in 0..10 {
            assert!(fs::read(m.path("x")).unwrap() == first);
        }
        m.model.reads.load(Ordering::Relaxed) == reads
    });
    m.end();
}

/// Others come while a listing with attributes is under way: of what it brings nothing is kept.
#[test]
fn a_listing_from_before_others_came_is_not_believed() {
    let Some(m) = mount() else { return };
    if !is_root() {
        eprintln!("SKIPPED: only root may remount, which makes the kernel forget");
        return m.end();
    }
    // In the root, whose own name is never asked for: with a directory's name what is below goes as well.
    File::create(m.path("file")).unwrap();
    m.prune();
    wait_until("the kernel to forget", || m.mount().status().inodes <= 1);
    m.model.set_gate(false);
    let before = m.model.listings.load(Ordering::Relaxed);
    let lists = {
        let at = m.dir.clone();
        thread::spawn(move || fs::read_dir(at).unwrap().count())
    };
    wait_until("it is asked for", || m.model.listings.load(Ordering::Relaxed) > before);
    m.model.kernel().set_shared(true);
    m.model.set_gate(true);
    assert_eq!(lists.join().unwrap(), 1);
    // Somebody else removes it.
    m.runtime.block_on(m.model.unlink(InodeNo::ROOT, b"file", false)).unwrap();
    // What asks for the name alone: for some attributes the kernel asks in any case.
    let there = rustix::fs::accessat(CWD, m.path("file"), Access::EXISTS, AtFlags::empty());
    assert_eq!(there, Err(rustix::io::Errno::NOENT));
    m.end();
}
