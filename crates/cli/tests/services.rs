//! What a service manager and mount(8) see of the processes: readiness only when they serve, a sign of life, the end; a mount by
//! the helper, and umount. systemd itself is tried by scripts/deb-try.sh.
#![allow(clippy::unwrap_used)]

mod common;

use std::{
    fs,
    os::unix::{fs::symlink, net::UnixDatagram},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::mpsc::{self, Receiver},
    time::{Duration, Instant},
};

use common::{Cluster, ROPEWALK, heard, ok, until};
use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_secs(60);

/// A process under a service manager: this test. What it says is taken from the socket at once: that has room for a few messages, and what
/// finds none is not said.
struct Service {
    child: Child,
    said: Receiver<String>,
}

impl Service {
    fn start(cluster: &Cluster, place: &Path, args: &[&str]) -> Service {
        let _ = fs::remove_file(place);
        let socket = UnixDatagram::bind(place).unwrap();
        let (tell, said) = mpsc::channel();
        // Until the test's own end.
        std::thread::spawn(move || {
            let mut message = [0; 512];
            while let Ok(len) = socket.recv(&mut message) {
                let _ = tell.send(String::from_utf8_lossy(&message[..len]).into_owned());
            }
        });
        let log = fs::File::create(place.with_extension("out")).unwrap();
        let child = Command::new(ROPEWALK)
            .args(args)
            .args(["--dir", cluster.dir().to_str().unwrap()])
            .env("NOTIFY_SOCKET", place)
            .env("WATCHDOG_USEC", "3000000")
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Service { child, said }
    }

    /// Lines that it said, up to one of these, which is the last.
    fn said_until(&self, last: &str) -> Vec<String> {
        let (mut lines, end) = (Vec::new(), Instant::now() + PATIENCE);
        while lines.last().is_none_or(|line| line != last) {
            let left = end.saturating_duration_since(Instant::now());
            let said = self.said.recv_timeout(left).unwrap_or_else(|e| panic!("{last}: {lines:?}: {e}"));
            // Of one message the state comes first, then its text.
            lines.extend(said.lines().rev().map(str::to_owned));
        }
        lines
    }

    fn end(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        self.said_until("STOPPING=1");
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill(); // of a test that fails
        let _ = self.child.wait();
    }
}

fn ready(cluster: &Cluster, name: &str) -> bool {
    cluster.dir().join("run").join(format!("{name}.ready")).exists()
}

#[test]
fn a_server_is_ready_when_it_serves_and_shows_that_it_lives() {
    let cluster = Cluster::three(&["--pdisk-size", "1g"]);
    cluster.down();
    let place = |name: &str| cluster.dir().join(format!("{name}.notify"));
    // Without a manager a server serves nothing.
    let n1 = Service::start(&cluster, &place("n1"), &["serve", "--name", "n1"]);
    n1.said_until("STATUS=waits for the manager");
    let more = n1.said.recv_timeout(Duration::from_secs(2));
    assert!(more.is_err(), "it says something before there is a manager: {more:?}");
    let manager = Service::start(&cluster, &place("manager"), &["serve", "--name", "manager"]);
    manager.said_until("READY=1");
    assert!(ready(&cluster, "manager"));
    let before = n1.said_until("READY=1");
    assert!(before.contains(&"STATUS=opens its pdisks".to_owned()) && ready(&cluster, "n1"), "{before:?}");
    // A third of the time is a second.
    for _ in 0..3 {
        n1.said_until("WATCHDOG=1");
    }
    n1.end();
    manager.end();
}

/// Calls the helper as mount(8) does: by its name.
fn helper(cluster: &Cluster, name: &str, args: &[&str]) -> Output {
    let link: PathBuf = cluster.dir().join(name);
    let _ = symlink(ROPEWALK, &link);
    heard(|| Command::new(&link).args(args).output().unwrap())
}

/// Unmounts it. A program that another test has just started may have a file of it open for a moment, as it has all that is open here.
fn unmount(cluster: &Cluster, args: &[&str]) {
    until("it is unmounted", || helper(cluster, "umount.fuse.ropewalk", args).status.success());
}

fn done(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn is_mounted(at: &Path) -> bool {
    fs::read_to_string("/proc/self/mounts").unwrap().contains(&format!(" {} fuse.ropewalk ", at.display()))
}

#[test]
fn the_helpers_mount_and_unmount_as_mount_calls_them() {
    let cluster = Cluster::three(&["--pdisk-size", "1g"]);
    let at = cluster.mnt();
    ok(&["umount", at.to_str().unwrap()]);
    let (dir, at_text) = (format!("dir={}", cluster.dir().display()), at.to_str().unwrap());
    let mount = |options: &str| {
        let options = format!("{options},{dir}");
        helper(&cluster, "mount.ropewalk", &["fs1", at_text, "-v", "-o", &options])
    };
    let refused = mount("rw,cache=none");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("cache=none") && said.contains("noatime"), "{said}");
    assert!(!is_mounted(&at));
    done(&helper(&cluster, "mount.ropewalk", &["fs1", at_text, "-f", "-o", &dir]));
    assert!(!is_mounted(&at), "-f only checks");
    // As mount(8) hands on what fstab says.
    done(&mount("rw,noexec,nosuid,nodev,user,_netdev,nofail,x-systemd.automount"));
    let options = fs::read_to_string("/proc/self/mounts").unwrap();
    let options = options.lines().find(|line| line.contains(at_text)).unwrap();
    assert!(options.contains("noexec"), "{options}");
    fs::write(at.join("file"), vec![7; 3 << 20]).unwrap();
    let again = mount("rw");
    assert!(String::from_utf8_lossy(&again.stderr).contains("is a mount point already"), "{again:?}");
    let open = fs::File::open(at.join("file")).unwrap();
    assert!(!helper(&cluster, "umount.fuse.ropewalk", &[at_text]).status.success(), "a file is open");
    drop(open);
    unmount(&cluster, &[at_text, "-n"]);
    let left: Vec<_> =
        cluster.processes().into_iter().filter(|(name, _)| name.starts_with("mount")).collect();
    assert!(!is_mounted(&at) && left.is_empty(), "{left:?}");
    done(&mount("ro"));
    assert_eq!(fs::read(at.join("file")).unwrap(), vec![7; 3 << 20]);
    assert!(fs::write(at.join("file"), "x").is_err(), "only reading");
    unmount(&cluster, &[at_text]);
}

#[test]
fn the_level_of_the_log_changes_while_a_server_runs() {
    let cluster = Cluster::three(&["--pdisk-size", "1g"]);
    let log = || fs::read_to_string(cluster.dir().join("log/n1.log")).unwrap();
    let dir = cluster.dir();
    let set =
        |level: &str| ok(&["config", "set", "--dir", dir.to_str().unwrap(), &format!("logLevel={level}")]);
    assert!(!log().contains("DEBUG"));
    set("debug");
    until("the level is debug", || {
        // It asks the server, which tells of its connection.
        ok(&["status", "--dir", dir.to_str().unwrap()]);
        log().contains("the log's level is debug now") && log().contains("DEBUG")
    });
    set("error");
    until("the level is error", || log().contains("the log's level is error now"));
}
