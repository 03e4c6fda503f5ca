//! `umount --force` always returns: files open, programs waiting, the mount's process hanging. And what programs wait for
//! inside a mount is shown.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use common::{ok, processes::signal, until};
use mounts::Mounts;
use rustix::process::{Signal, kill_process};

/// Ends it; what was said, and whether all is known to be stored.
fn by_force(mounts: &Mounts, mount: usize) -> (String, bool) {
    let arguments = ["umount", "--force", mounts.all[mount].to_str().unwrap()];
    let mut child = Command::new(common::ROPEWALK).args(arguments).stderr(Stdio::piped()).spawn().unwrap();
    let mut status = None;
    until("umount --force returns", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!table.contains(mounts.all[mount].to_str().unwrap()), "still mounted");
    (said, status.unwrap().success())
}

fn program(script: &str, mounts: &Mounts, mount: usize) -> Child {
    // Not started in the mount: entering its directory would wait for it before there is a program.
    let mut command = Command::new("sh");
    command.args(["-c", &format!("cd {} && {script}", mounts.all[mount].display())]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn a_forced_unmount_always_returns() {
    let mounts = Mounts::new(2);
    let mut held = File::create(mounts.at(1, "held")).unwrap();
    held.write_all(&vec![7; 3 << 20]).unwrap();
    let (said, stored) = by_force(&mounts, 1);
    assert!(stored && !said.contains("was killed"), "an open file was waited for: {said}");
    assert!(held.write_all(b"late").is_err());
    assert_eq!(fs::read(mounts.at(0, "held")).unwrap(), vec![7; 3 << 20], "what was written is not lost");
    drop(held);

    mounts.mount(&mounts.all[1]);
    let hanging = mounts.process(1);
    signal(hanging, Signal::STOP);
    let mut waits = program("cat held", &mounts, 1);
    thread::sleep(Duration::from_millis(300));
    assert!(waits.try_wait().unwrap().is_none(), "it should wait for the mount's process");
    let (said, stored) = by_force(&mounts, 1);
    assert!(!stored && said.contains("was killed") && said.contains("it has not said"), "{said}");
    until("nobody waits any more", || waits.try_wait().unwrap().is_some());
    mounts.mount(&mounts.all[1]);
    assert_eq!(fs::read(mounts.at(1, "held")).unwrap(), vec![7; 3 << 20]);
    mounts.cluster.down();
}

/// Nothing of it gets on then: who has to tell the manager something is killed, who has not ends well.
#[test]
fn a_forced_unmount_without_a_manager_names_what_may_be_lost() {
    let mounts = Mounts::in_memory(2);
    let mut file = File::create(mounts.at(0, "f")).unwrap();
    file.write_all(&[7]).unwrap();
    file.sync_all().unwrap();
    fs::create_dir(mounts.at(1, "d")).unwrap();
    ok(&["sync", mounts.all[1].to_str().unwrap()]);
    let inode = std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap());
    mounts.cluster.kill(|name| name == "manager");
    file.write_all(&vec![7; 3 << 20]).unwrap();
    drop(file);
    let (said, stored) = by_force(&mounts, 1);
    assert!(stored && !said.contains("lost is"), "{said}");
    let (said, stored) = by_force(&mounts, 0);
    let lost = format!("lost is what was written last to 1 files (inodes {inode})");
    assert!(!stored && said.contains("was killed") && said.contains(&lost), "{said}");
    mounts.cluster.start_server("manager");
    mounts.cluster.down();
}

/// A mount namespace of its own, as a container has it, which sees all that is mounted now.
fn container() -> Child {
    let mut child = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", "echo; exec cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    child
}

#[test]
fn a_mount_that_a_container_holds_says_so_and_goes_when_it_does() {
    let mounts = Mounts::new(2);
    let path = mounts.all[1].to_str().unwrap();
    fs::write(mounts.at(1, "held"), vec![7; 3 << 20]).unwrap();
    let mut holder = container();
    let begin = || {
        let unmount = Command::new(common::ROPEWALK).args(["umount", path]).stderr(Stdio::piped()).spawn();
        let mut unmount = unmount.unwrap();
        let said = BufReader::new(unmount.stderr.take().unwrap());
        (unmount, said, String::new())
    };
    let (mut unmount, mut said, mut line) = begin();
    let end = Instant::now() + Duration::from_secs(60);
    // It is told by a line of its own, and the command goes on.
    while !line.contains(&format!("({}): nsenter", holder.id())) {
        if said.read_line(&mut line).unwrap() == 0 {
            // A program that another test has just begun has for a moment all that was open here.
            let is_in_use = line.contains("is in use; close what is open there");
            assert!(is_in_use && Instant::now() < end, "it ended: {line}");
            unmount.wait().unwrap();
            (unmount, said, line) = begin();
        }
    }
    assert!(line.contains(&format!("umount '{path}'")), "{line}");
    assert!(unmount.try_wait().unwrap().is_none(), "who holds it still does: {line}");
    drop(holder.stdin.take());
    holder.wait().unwrap();
    assert!(unmount.wait().unwrap().success());

    // Told to end, its process ends, whoever holds the mount.
    mounts.mount(&mounts.all[1]);
    fs::write(mounts.at(1, "more"), vec![8; 3 << 20]).unwrap();
    let mut holder = container();
    let (said, stored) = by_force(&mounts, 1);
    assert!(stored && !said.contains("was killed"), "a container was waited for: {said}");
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(fs::read(mounts.at(0, "held")).unwrap(), vec![7; 3 << 20]);
    assert_eq!(fs::read(mounts.at(0, "more")).unwrap(), vec![8; 3 << 20], "what was written is not lost");
    mounts.cluster.down();
}

/// A program that has a file mapped, with no descriptor of it, and has changed each page of it to `n`.
fn mapping(path: &Path, n: u8, before: &[&str]) -> Child {
    let script = "import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
os.ftruncate(file, 16 << 20)
mapped = mmap.mmap(file, 16 << 20)
# It has a descriptor of its own.
os.closerange(3, 64)
for page in range(0, 16 << 20, 4096):
    mapped[page] = int(sys.argv[2])
print(flush=True)
sys.stdin.read()
os._exit(0)";
    let n = n.to_string();
    let words = [before, &["python3", "-c", script, path.to_str().unwrap(), &n]].concat();
    let mut command = Command::new(words[0]);
    let mut child = command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    child
}

/// syncfs(2) waits for none of these pages.
#[test]
fn what_programs_have_changed_in_mappings_is_written_at_the_end() {
    const OTHERS: [&str; 4] = ["unshare", "--mount", "--propagation", "private"];
    let mounts = Mounts::in_memory(1);
    let ways = ["a signal", "a signal, mapped in a container", "a signal after umount -l", "force"];
    for (n, how) in ways.into_iter().enumerate() {
        // Over both transports, where there are both.
        if n > 0 {
            mounts.mount_by(&mounts.all[0], if n % 2 == 0 { "auto" } else { "classic" });
        }
        let (path, process) = (mounts.at(0, &n.to_string()), mounts.process(0));
        let mut mapping = mapping(&path, n as u8 + 1, if n == 1 { &OTHERS } else { &[] });
        match n {
            3 => assert!(by_force(&mounts, 0).1),
            2 => rustix::mount::unmount(&mounts.all[0], rustix::mount::UnmountFlags::DETACH).unwrap(),
            _ => {}
        }
        if n < 3 {
            kill_process(process, Signal::TERM).unwrap();
        }
        until("the mount's process has ended", || {
            mounts.cluster.processes().iter().all(|(_, pid)| *pid != process.as_raw_nonzero().get())
        });
        mounts.mount_by(&mounts.all[0], "classic");
        let content = fs::read(&path).unwrap();
        let lost = content.chunks(4096).filter(|page| page[0] != n as u8 + 1).count();
        assert_eq!((content.len(), lost), (16 << 20, 0), "{how}: pages are lost\n{}", mounts.cluster.logs());
        drop(mapping.stdin.take());
        mapping.wait().unwrap();
        ok(&["umount", mounts.all[0].to_str().unwrap()]);
    }
    mounts.mount(&mounts.all[0]);
    mounts.cluster.down();
}

/// Small files, larger ones, and pages of a mapping, which syncfs(2) does not wait for either.
#[test]
fn what_was_written_before_a_sync_is_there_when_the_mount_is_killed() {
    let mounts = Mounts::in_memory(1);
    let (place, cluster) = (mounts.all[0].to_str().unwrap(), mounts.cluster.dir());
    ok(&["umount", place]);
    ok(&["mount", "--dir", cluster.to_str().unwrap(), "--names", "ahead", "fs1", place]);
    let dir = mounts.at(0, "d");
    fs::create_dir(&dir).unwrap();
    let files = || (0..300usize).map(|n| (dir.join(n.to_string()), vec![n as u8; 1 + n * 7919 % 50_000]));
    let script = "import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 64 << 20)
mapped = mmap.mmap(file, 64 << 20)
for line in sys.stdin:
    for page in range(0, 64 << 20, 8192):
        mapped[page] = int(line)
    print(flush=True)
os._exit(0)";
    let mut python = Command::new("python3");
    python.args(["-c", script, mounts.at(0, "mapped").to_str().unwrap()]);
    let mut mapping = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut change = |n: u8| {
        writeln!(mapping.stdin.as_mut().unwrap(), "{n}").unwrap();
        mapping.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    };
    change(1);
    let elsewhere = tempfile::tempdir().unwrap();
    let elsewhere = elsewhere.path().to_str().unwrap();
    assert!(
        common::refused(&["sync", place, elsewhere])
            .contains(&format!("{elsewhere} is on no ropewalk mount"))
    );
    assert!(common::refused(&["sync", &format!("{place}/absent")]).contains("No such file"));
    let bound = tempfile::tempdir().unwrap();
    let bound = bound.path().to_str().unwrap();
    for options in [&["--bind", place][..], &["-o", "remount,bind,ro"]] {
        assert!(Command::new("mount").args(options).arg(bound).status().unwrap().success());
    }
    // As by syncfs(2): nothing is changed.
    ok(&["sync", bound]);
    assert!(Command::new("umount").args(["-i", bound]).status().unwrap().success());
    // Few at a time: each of these waits in the mount for others.
    change(2);
    let one = || Command::new(common::ROPEWALK).args(["sync", place]).stderr(Stdio::piped()).spawn().unwrap();
    let many: Vec<Child> = (0..40).map(|_| one()).collect();
    let ended: Vec<_> = many.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    let (done, not): (Vec<_>, Vec<_>) = ended.iter().partition(|output| output.status.success());
    assert!(!done.is_empty());
    assert!(not.iter().all(|output| String::from_utf8_lossy(&output.stderr).contains("too many sync")));
    files().for_each(|(path, content)| fs::write(path, content).unwrap());
    change(9);
    ok(&["sync", dir.to_str().unwrap()]);
    mounts.cluster.kill(|process| process.starts_with("mount"));
    drop(mapping.stdin.take());
    mapping.wait().unwrap();
    rustix::mount::unmount(&mounts.all[0], rustix::mount::UnmountFlags::DETACH).unwrap();
    mounts.mount_by(&mounts.all[0], "classic");
    let lost = files().filter(|(path, content)| fs::read(path).ok().as_ref() != Some(content)).count();
    let mapped = fs::read(mounts.at(0, "mapped")).unwrap();
    let pages = mapped.chunks(4096).filter(|page| page[0] == 9).count();
    assert_eq!((lost, pages), (0, 8192));
    ok(&["mount", "--dir", cluster.to_str().unwrap(), "--read-only", "fs1", bound]);
    assert!(common::refused(&["sync", bound]).contains("is read-only here"));
    ok(&["umount", bound]);
    mounts.cluster.down();
}

/// What a program did with pages that it had changed, and what came of it: no error, or one.
const PAGES: &str = "import errno, mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 16 << 20)
mapped = mmap.mmap(file, 16 << 20)
def change():
    for page in range(0, 16 << 20, 4096):
        mapped[page] = (mapped[page] + 1) % 256
ways = {'change': change, 'msync': mapped.flush, 'fsync': lambda: os.fsync(file)}
for line in sys.stdin:
    try:
        ways[line.strip()]()
        print('done', flush=True)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
os._exit(0)";

/// Each is told once who asks whether pages of a mapping are stored that there is no room for.
#[test]
fn pages_of_mappings_that_cannot_be_written_are_an_error() {
    let mounts = Mounts::over(Mounts::memory_of("64m"), 1);
    let (place, filler) = (mounts.all[0].to_str().unwrap(), mounts.at(0, "filler"));
    let mut python = Command::new("python3");
    python.args(["-c", PAGES, mounts.at(0, "mapped").to_str().unwrap()]);
    let mut program = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut says = BufReader::new(program.stdout.take().unwrap()).lines();
    let mut tells = program.stdin.take().unwrap();
    let mut does = |way: &str| {
        writeln!(tells, "{way}").unwrap();
        says.next().unwrap().unwrap()
    };
    // Made, and found to be whole, while there is room.
    assert_eq!(does("fsync"), "done");
    let (mut file, mut piece) = (File::create(&filler).unwrap(), vec![7; 1 << 20]);
    while piece.len() >= 4096 {
        if file.write_all(&piece).and_then(|()| file.sync_data()).is_err() {
            piece.truncate(piece.len() / 2);
        }
    }
    drop(file);

    assert_eq!(does("change"), "done");
    assert!(common::refused(&["sync", place]).contains("not all that was written there is durable"));
    ok(&["sync", place]);
    assert_eq!([does("fsync"), does("fsync")], ["ENOSPC", "done"], "the program has not heard of it yet");
    for way in ["msync", "fsync"] {
        assert_eq!([does("change"), does(way), does(way)], ["done", "ENOSPC", "done"], "{way}");
    }

    fs::remove_file(&filler).unwrap();
    let content = || fs::read(mounts.at(0, "mapped")).unwrap();
    until("there is room again", || does("change") == "done" && does("msync") == "done");
    // Of what failed before the kernel tells who syncs, too.
    let _ = Command::new(common::ROPEWALK).args(["sync", place]).stderr(Stdio::null()).status().unwrap();
    assert_eq!(does("change"), "done");
    ok(&["sync", place]);
    let before = content();
    mounts.cluster.kill(|process| process.starts_with("mount"));
    drop(tells);
    program.wait().unwrap();
    rustix::mount::unmount(&mounts.all[0], rustix::mount::UnmountFlags::DETACH).unwrap();
    mounts.mount(&mounts.all[0]);
    assert!(content() == before, "what was synced is lost");
    mounts.cluster.down();
}

/// What it waits for ends after some seconds here, and after a minute elsewhere.
#[test]
fn an_unmount_waits_for_a_manager_that_is_away() {
    let mounts = Mounts::in_memory(2);
    let dir = mounts.cluster.dir();
    ok(&["config", "set", "--dir", dir.to_str().unwrap(), "operationDeadline=10s"]);
    for path in &mounts.all {
        ok(&["umount", path.to_str().unwrap()]);
    }
    for path in &mounts.all {
        mounts.mount(path);
    }
    let processes = [0, 1].map(|mount| mounts.process(mount));
    let files = [0, 1].map(|mount| {
        let mut file = File::create(mounts.at(mount, &mount.to_string())).unwrap();
        file.write_all(&[7]).unwrap();
        file
    });
    mounts.cluster.kill(|name| name == "manager");
    // Of this nothing is told before: what has nothing to tell ends at once.
    for mut file in files {
        file.write_all(&vec![7; 3 << 20]).unwrap();
    }
    // A program that another test has just begun has for a moment all that was open here.
    until("it is unmounted", || {
        rustix::mount::unmount(&mounts.all[0], rustix::mount::UnmountFlags::empty()).is_ok()
    });
    kill_process(processes[1], Signal::TERM).unwrap();
    let live = || mounts.cluster.processes().iter().filter(|(name, _)| name.starts_with("mount")).count();
    thread::sleep(Duration::from_secs(25));
    assert_eq!(live(), 2, "the end of a mount has given up\n{}", mounts.cluster.logs());
    mounts.cluster.start_server("manager");
    until("their processes have ended", || live() == 0);
    for log in fs::read_dir(dir.join("log")).unwrap() {
        let said = fs::read_to_string(log.unwrap().path()).unwrap();
        assert!(
            !said.contains("could not be made durable") && !said.contains("write what is left"),
            "{said}"
        );
    }
    mounts.mount(&mounts.all[0]);
    for mount in 0..2 {
        assert!(fs::read(mounts.at(0, &mount.to_string())).unwrap() == vec![7; 1 + (3 << 20)], "{mount}");
    }
    mounts.cluster.down();
}

#[test]
fn what_programs_wait_for_is_shown() {
    let mounts = Mounts::new(2);
    let file = File::create(mounts.at(0, "f")).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let inode = std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap());
    let mut waits = program("exec flock f true", &mounts, 1);
    until("the wait for a lock is listed", || {
        let waiters = mounts.cluster.json(&["waiters"]);
        let asked = |p: &serde_json::Value| p["answer"]["asked"].as_array().cloned().unwrap_or_default();
        let asked: Vec<_> = waiters.as_array().unwrap().iter().flat_map(asked).collect();
        asked
            .iter()
            .any(|a| a["operation"] == "wait for a lock" && a["inode"] == inode && a["pid"] == waits.id())
    });
    let dir = mounts.cluster.dir();
    // Who is asked may answer late on a busy machine.
    until("the table names it", || {
        ok(&["waiters", "--dir", dir.to_str().unwrap()]).contains(&format!("pid {}", waits.id()))
    });
    drop(file);
    assert!(waits.wait().unwrap().success());
    mounts.cluster.down();
}

/// A killed process is gone for whoever looks before the last of its threads has closed its port.
#[test]
fn the_port_of_a_killed_process_is_waited_for() {
    let mounts = Mounts::new(1);
    let dir = mounts.cluster.dir();
    let config = fs::read_to_string(dir.join("cluster.toml")).unwrap();
    let address = config.lines().find_map(|line| line.strip_prefix("manager = ")).unwrap().trim_matches('"');
    mounts.cluster.kill(|name| name == "manager");
    // A connection of another test can have it for a moment.
    let mut port = None;
    until("its port is free", || {
        port = TcpListener::bind(address).ok();
        port.is_some()
    });
    let closed = thread::spawn(move || {
        thread::sleep(Duration::from_secs(1));
        drop(port);
    });
    ok(&["up", "--detach", "--dir", dir.to_str().unwrap()]);
    closed.join().unwrap();
    mounts.cluster.down();
}
