//! Locks of programs on two mounts of one file system: separate processes exclude each other, wait, are
//! interrupted, die; the manager and a mount are killed. One mount is over io_uring where the kernel has it.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use common::until;
use mounts::Mounts;
use rustix::process::{Pid, Signal, kill_process};

const SOON: Duration = Duration::from_secs(120);

/// tests/locks.py, told what to do.
struct Program {
    child: Child,
    tell: ChildStdin,
    said: mpsc::Receiver<String>,
}

fn script() -> Command {
    let mut command = Command::new("python3");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/locks.py"));
    command
}

impl Program {
    /// With `file` open as `f`.
    fn new(file: &Path) -> Program {
        let mut child = script().stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (say, said) = mpsc::channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        thread::spawn(move || lines.map_while(Result::ok).for_each(|line| drop(say.send(line))));
        let mut program = Program { tell: child.stdin.take().unwrap(), child, said };
        assert_eq!(program.ask(&format!("open f {}", file.display())), "ok");
        program
    }
    fn tell(&mut self, command: &str) {
        writeln!(self.tell, "{command}").unwrap();
    }
    fn hear(&self) -> String {
        self.said.recv_timeout(SOON).expect("an answer in time")
    }
    fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.hear()
    }
    /// Tells it to wait, and sees that it does.
    fn waits(&mut self, command: &str) {
        self.tell(command);
        let calls = [libc::SYS_fcntl, libc::SYS_flock];
        until("it is in the system call", || {
            let call = fs::read_to_string(format!("/proc/{}/syscall", self.pid())).unwrap();
            calls.iter().any(|number| call.starts_with(&format!("{number} ")))
        });
        let early = self.said.recv_timeout(Duration::from_millis(300));
        assert!(early.is_err(), "{command}: {early:?}");
    }
    fn pid(&self) -> u32 {
        self.child.id()
    }
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid() as i32).unwrap(), signal).unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn two_mounts() -> Mounts {
    let mut mounts = Mounts::new(1);
    let path = mounts.more.path().join("other");
    fs::create_dir(&path).unwrap();
    mounts.mount_by(&path, "auto");
    mounts.all.push(path);
    mounts
}

/// Waits until the manager knows that a program waits.
fn waits_at_the_manager(mounts: &Mounts, program: &Program) {
    until("it waits at the manager", || {
        let waiting = mounts.cluster.json(&["locks", "--waiting"]);
        waiting.as_array().unwrap().iter().any(|row| row["pid"] == program.pid() && row["waits"] == true)
    });
}

#[test]
fn programs_on_two_mounts_exclude_each_other() {
    let mounts = two_mounts();
    let [here, there] = [mounts.at(0, "f"), mounts.at(1, "f")];
    let (mut a, mut b) = (Program::new(&here), Program::new(&there));
    ranges(&mut a, &mut b);
    whole_files(&mut a, &mut b, &here);
    inherited(&mut a, &mut b, &here);
    waiting(&mut a, &mut b);
    circles(&mounts, &mut a, &mut b);
    listing(&mounts, &mut a, &mut b);
    deaths(&mut a, &there);
    counting(&mounts);
    mounts.all.iter().for_each(|mount| closing(&mount.join("closed")));
}

fn ranges(a: &mut Program, b: &mut Program) {
    assert_eq!(a.ask("fcntl f exclusive 100 100"), "ok");
    assert_eq!(b.ask("fcntl f exclusive 199 10"), "EAGAIN");
    assert_eq!(b.ask("fcntl f exclusive 200 10"), "ok");
    assert_eq!(b.ask("test f shared 0 0"), format!("exclusive 100 100 {}", a.pid()));
    assert_eq!(a.ask("test f shared 0 0"), format!("exclusive 200 10 {}", b.pid()));
    // A hole in the middle, and a change of mode that keeps the rest.
    assert_eq!(a.ask("fcntl f none 140 20"), "ok");
    assert_eq!(b.ask("fcntl f shared 140 20"), "ok");
    assert_eq!(a.ask("fcntl f shared 100 10"), "ok");
    assert_eq!(b.ask("fcntl f shared 100 10"), "ok");
    assert_eq!(b.ask("fcntl f shared 100 11"), "EAGAIN");
    assert_eq!(b.ask("fcntl f shared 160 1"), "EAGAIN");
}

fn whole_files(a: &mut Program, b: &mut Program, here: &Path) {
    assert_eq!(a.ask(&format!("open again {}", here.display())), "ok");
    assert_eq!(a.ask("close again"), "ok");
    assert_eq!(b.ask("fcntl f exclusive 0 0"), "ok", "fcntl locks go with any close");
    assert_eq!(a.ask("flock f exclusive"), "ok", "flock does not see fcntl");
    assert_eq!(b.ask("flock f shared"), "EAGAIN");
    assert_eq!(a.ask(&format!("open again {}", here.display())), "ok");
    assert_eq!(a.ask("close again"), "ok");
    assert_eq!(b.ask("flock f shared"), "EAGAIN", "flock stays with its own open file");
    assert_eq!(a.ask("flock f shared"), "ok");
    assert_eq!(b.ask("flock f shared"), "ok");
    assert_eq!(a.ask("close f"), "ok");
    until("flock goes with the last close", || b.ask("flock f exclusive") == "ok");
    assert_eq!(b.ask("flock f none"), "ok");
    assert_eq!(b.ask("fcntl f none 0 0"), "ok");
    assert_eq!(a.ask(&format!("open f {}", here.display())), "ok");
}

/// A descriptor that a process has closed is a child's still. What the process locked anew stays when that one ends.
fn inherited(a: &mut Program, b: &mut Program, here: &Path) {
    assert_eq!(a.ask(&format!("open old {}", here.display())), "ok");
    assert_eq!(a.ask("fcntl old exclusive 0 0"), "ok");
    assert_eq!(a.ask("fcntl old none 0 0"), "ok");
    assert_eq!(a.ask("flock old exclusive"), "ok");
    assert_eq!(a.ask("fork"), "ok");
    assert_eq!(a.ask("close old"), "ok");
    assert_eq!(a.ask("fcntl f exclusive 0 0"), "ok");
    assert_eq!(b.ask("fcntl f exclusive 0 0"), "EAGAIN");
    assert_eq!(a.ask("end"), "ok");
    until("the flock goes with the last close", || b.ask("flock f exclusive") == "ok");
    // What else went with it was given up before that, or is a moment later.
    for _ in 0..20 {
        assert_eq!(b.ask("fcntl f exclusive 0 0"), "EAGAIN");
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!((a.ask("fcntl f none 0 0"), b.ask("flock f none")), ("ok".into(), "ok".into()));
}

/// What goes with the last close of an open file is gone for whoever asks afterwards on the same mount.
fn closing(file: &Path) {
    let run = Command::new("python3").args(["-c", CLOSING]).arg(file).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

const CLOSING: &str = r#"
import fcntl, os, struct, sys
GETLK, SETLK = 36, 37
def lock(kind): return struct.pack("hhqqi4x", kind, os.SEEK_SET, 10, 5, 0)
other = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
for turn in range(300):
    holder = os.open(sys.argv[1], os.O_RDWR)
    fcntl.fcntl(holder, SETLK, lock(fcntl.F_WRLCK))
    if turn % 3 == 0:
        fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(holder)
    for command in (GETLK, fcntl.F_GETLK) if turn % 2 else (fcntl.F_GETLK, GETLK):
        found = struct.unpack("hhqqi4x", fcntl.fcntl(other, command, lock(fcntl.F_WRLCK)))
        assert found[0] == fcntl.F_UNLCK, (turn, command, found)
    if turn % 3 == 0:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_UN)
# A descriptor that was closed and is not the last one ends nothing.
holder = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(holder, SETLK, lock(fcntl.F_WRLCK))
os.close(os.dup(holder))
found = struct.unpack("hhqqi4x", fcntl.fcntl(other, GETLK, lock(fcntl.F_RDLCK)))
assert (found[0], found[2], found[3]) == (fcntl.F_WRLCK, 10, 5), found
"#;

fn waiting(a: &mut Program, b: &mut Program) {
    for kind in ["fcntl f exclusive 5 5", "flock f exclusive"] {
        let free = kind.replace("exclusive", "none");
        assert_eq!(a.ask(kind), "ok");
        b.waits(&format!("{kind} wait"));
        b.signal(Signal::USR1);
        assert_eq!(b.hear(), "EINTR");
        b.waits(&format!("{kind} wait"));
        assert_eq!(a.ask(&free), "ok");
        assert_eq!(b.hear(), "ok");
        assert_eq!(a.ask(kind), "EAGAIN");
        assert_eq!(b.ask(&free), "ok");
        assert_eq!(a.ask(kind), "ok", "what was interrupted is not held");
        assert_eq!(a.ask(&free), "ok");
    }
}

fn circles(mounts: &Mounts, a: &mut Program, b: &mut Program) {
    assert_eq!(a.ask("fcntl f exclusive 0 1"), "ok");
    assert_eq!(b.ask("fcntl f exclusive 1 1"), "ok");
    a.waits("fcntl f exclusive 1 1 wait");
    waits_at_the_manager(mounts, a);
    assert_eq!(b.ask("fcntl f exclusive 0 1 wait"), "EDEADLK");
    assert_eq!(b.ask("fcntl f none 0 0"), "ok");
    assert_eq!(a.hear(), "ok");
    assert_eq!(a.ask("fcntl f none 0 0"), "ok");
}

fn listing(mounts: &Mounts, a: &mut Program, b: &mut Program) {
    assert_eq!(a.ask("fcntl f shared 10 10"), "ok");
    b.waits("fcntl f exclusive 0 0 wait");
    waits_at_the_manager(mounts, b);
    let listed = mounts.cluster.json(&["locks"]);
    let rows = listed.as_array().unwrap();
    assert_eq!(rows.len(), 2, "{listed}");
    let inode = fs::metadata(mounts.at(0, "f")).unwrap().ino();
    for (row, pid, mode, start, waits) in
        [(&rows[0], a.pid(), "shared", 10, false), (&rows[1], b.pid(), "exclusive", 0, true)]
    {
        assert_eq!((&row["path"], &row["kind"], &row["mode"]), (&"f".into(), &"fcntl".into(), &mode.into()));
        assert_eq!((&row["pid"], &row["inode"]), (&pid.into(), &inode.into()));
        assert_eq!((&row["start"], &row["waits"]), (&start.into(), &waits.into()), "{listed}");
    }
    assert_eq!((&rows[0]["end"], rows[1]["end"].is_null()), (&19.into(), true));
    assert_eq!(mounts.cluster.json(&["locks", "--waiting"]).as_array().unwrap().len(), 2);
    assert_eq!(a.ask("fcntl f none 0 0"), "ok");
    assert_eq!(b.hear(), "ok");
    assert_eq!(b.ask("fcntl f none 0 0"), "ok");
    assert_eq!(mounts.cluster.json(&["locks"]), serde_json::json!([]));
}

/// A program that is killed while it holds, and one while it waits.
fn deaths(a: &mut Program, there: &Path) {
    let (mut holder, mut waiter) = (Program::new(there), Program::new(there));
    assert_eq!(holder.ask("fcntl f exclusive 0 10"), "ok");
    assert_eq!(holder.ask("flock f exclusive"), "ok");
    waiter.waits("fcntl f exclusive 0 10 wait");
    a.waits("fcntl f exclusive 5 1 wait");
    waiter.signal(Signal::KILL);
    let dead = Instant::now();
    waiter.child.wait().unwrap();
    assert!(dead.elapsed() < SOON, "who waits for a lock can be killed");
    holder.signal(Signal::KILL);
    assert_eq!(a.hear(), "ok");
    until("the flock of a killed program is free", || a.ask("flock f exclusive") == "ok");
    assert_eq!(a.ask("flock f none"), "ok");
    assert_eq!(a.ask("fcntl f none 0 0"), "ok");
}

/// Four programs on two mounts add to numbers in files, under locks of both kinds.
fn counting(mounts: &Mounts) {
    const TIMES: usize = 25;
    let start = |kind: &str, mount: usize| {
        let mut command = script();
        command.arg("count").arg(mounts.at(mount, kind)).arg(TIMES.to_string()).arg(kind);
        command.spawn().unwrap()
    };
    let all: Vec<Child> = ["fcntl", "flock"]
        .into_iter()
        .inspect(|kind| drop(fs::File::create(mounts.at(0, kind)).unwrap()))
        .flat_map(|kind| [0, 1, 0, 1].map(|mount| start(kind, mount)))
        .collect();
    for mut child in all {
        assert!(child.wait().unwrap().success());
    }
    for kind in ["fcntl", "flock"] {
        assert_eq!(fs::read_to_string(mounts.at(0, kind)).unwrap(), (4 * TIMES).to_string(), "{kind}");
    }
}

/// The manager is killed while locks are held and waited for: nobody else gets them, waiting goes on. Then a
/// mount is killed: its locks go on to who waits, when it is fenced.
/// A file that is locked, and so many processes on one CPU, of one queue of io_uring, that wait for it; then it is unlocked. How many did
/// not get it.
const CROWD: &str = "import fcntl, os, sys
path, count = sys.argv[1], int(sys.argv[2])
held = os.open(path, os.O_CREAT | os.O_RDWR)
fcntl.flock(held, fcntl.LOCK_EX)
os.sched_setaffinity(0, {0})
for _ in range(count):
    if os.fork() == 0:
        try:
            fcntl.flock(os.open(path, os.O_RDWR), fcntl.LOCK_EX)
            os._exit(0)
        except OSError as error:
            os._exit(error.errno)
print('begun', flush=True)
input()
fcntl.flock(held, fcntl.LOCK_UN)
print(sum(os.wait()[1] != 0 for _ in range(count)))";

/// As many as a queue has entries to begin with, and more, wait for one lock: each gets it, and others are served meanwhile.
#[test]
fn a_crowd_waits_for_one_lock() {
    let mounts = two_mounts();
    let (path, count) = (mounts.at(1, "crowd"), 300);
    let crowd = Command::new("python3")
        .args(["-c", CROWD, path.to_str().unwrap(), &count.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut crowd = crowd.unwrap();
    let mut lines = BufReader::new(crowd.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "begun");
    until("all wait", || {
        let locks = mounts.cluster.json(&["locks", "--waiting"]);
        locks.as_array().unwrap().iter().filter(|row| row["waits"] == true).count() == count
    });
    fs::write(mounts.at(1, "beside"), vec![7; 1 << 20]).unwrap();
    assert_eq!(fs::read(mounts.at(0, "beside")).unwrap(), vec![7; 1 << 20]);
    crowd.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "0", "so many did not get it");
    assert!(crowd.wait().unwrap().success());
}

#[test]
fn locks_outlive_the_manager_and_die_with_their_mount() {
    let mounts = two_mounts();
    let files: Vec<PathBuf> = (0..2).map(|mount| mounts.at(mount, "f")).collect();
    let [mut a, mut b, mut c] = [0, 1, 0].map(|mount| Program::new(&files[mount]));
    assert_eq!(b.ask("fcntl f exclusive 0 10"), "ok");
    assert_eq!(b.ask("flock f exclusive"), "ok");
    assert_eq!(a.ask("fcntl f exclusive 20 10"), "ok");
    a.waits("fcntl f exclusive 5 1 wait");
    for round in 0..2 {
        mounts.cluster.kill(|name| name == "manager");
        // Asked while there is none, and answered by the next one.
        c.tell("fcntl f shared 9 1");
        mounts.cluster.start_server("manager");
        assert_eq!(c.hear(), "EAGAIN", "round {round}");
        assert_eq!(c.ask("flock f shared"), "EAGAIN", "round {round}");
        assert_eq!(b.ask("fcntl f exclusive 25 1"), "EAGAIN", "round {round}");
    }
    assert_eq!(b.ask("fcntl f none 5 1"), "ok");
    assert_eq!(a.hear(), "ok");
    a.waits("fcntl f exclusive 0 10 wait");
    c.waits("flock f exclusive wait");
    let killed = Instant::now();
    kill_process(mounts.process(1), Signal::KILL).unwrap();
    assert_eq!((a.hear(), c.hear()), ("ok".into(), "ok".into()));
    println!("the locks of a killed mount were given on after {:?}", killed.elapsed());
}
