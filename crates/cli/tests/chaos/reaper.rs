//! What cleans up after a runner that is interrupted: nothing of it is left then, no process, no mount, no namespace, no directory.

use std::{
    io::Write,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use parking_lot::Mutex;

use super::interrupt;

/// A process that outlives this one, however this one ends, and then ends and removes what is left in its directories.
pub struct Reaper(Mutex<Child>);

/// Until its input ends it learns of directories. Only what has one of these in its command line is killed.
const REAP: &str = r#"
while read -r dir; do set -- "$@" "$dir"; done
for dir; do
    [ -d "$dir" ] || continue
    quiet=0
    while [ $quiet -lt 3 ]; do
        quiet=$((quiet + 1))
        for proc in /proc/[0-9]*; do
            [ "$(cat "$proc/comm" 2>/dev/null)" = ropewalk ] || continue
            grep -qsaF -- "$dir/" "$proc/cmdline" || continue
            kill -9 "${proc#/proc/}" 2>/dev/null
            quiet=0
        done
        sleep 0.1
    done
done
# The last is the innermost, but a mount point is made before what is mounted there.
tac /proc/self/mounts | while read -r _ at _; do
    for dir; do
        case $at in "$dir"|"$dir"/*) umount -l "$at" ;; esac
    done
done
for dir; do rm -rf --one-file-system -- "$dir"; done
"#;

impl Reaper {
    pub fn start() -> Reaper {
        let mut sh = Command::new("sh");
        // In a process group of its own: a signal for the runner's is not for it.
        sh.args(["-c", REAP, "sh"]).stdin(Stdio::piped()).process_group(0);
        Reaper(Mutex::new(sh.spawn().unwrap()))
    }

    /// Told of before anything runs or is mounted in it.
    pub fn watch(&self, dir: &Path) {
        let mut child = self.0.lock();
        if let Some(stdin) = child.stdin.as_mut() {
            writeln!(stdin, "{}", dir.display()).unwrap();
        }
    }

    /// It begins now. Our own end can take a while: threads that wait for a mount whose network we were.
    pub fn begin(&self) {
        drop(self.0.lock().stdin.take());
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.begin();
        let _ = self.0.get_mut().wait();
    }
}

/// After SIGINT or SIGTERM the process says `last` and ends; `last` may let a reaper begin.
pub fn on_interrupt(last: impl Fn() -> String + Send + 'static) {
    interrupt::watch();
    std::thread::spawn(move || {
        loop {
            let Some(signal) = interrupt::signal() else {
                std::thread::sleep(Duration::from_millis(50));
                continue;
            };
            println!("interrupted by signal {signal}\n{}", last());
            std::process::exit(128 + signal);
        }
    });
}

/// The runner is this program again, with a network namespace, a file system in memory and a disk of its own.
#[test]
fn an_interrupted_runner_says_what_it_did_and_leaves_nothing() {
    use std::io::{BufRead, BufReader, Read};
    let patience = Duration::from_secs(120);
    let runner = Command::new(std::env::current_exe().unwrap())
        .args(["campaign", "--exact", "--nocapture"])
        .envs([("ROPEWALK_CHAOS_ROUNDS", "50"), ("ROPEWALK_CHAOS_SEED", "1")])
        .env("ROPEWALK_CHAOS_FAULTS", "net-delay,full")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut runner, mut lines, mut all) = (runner, Vec::new(), String::new());
    let mut output = BufReader::new(runner.stdout.take().unwrap());
    // Until its first round is over, and the second runs.
    while lines.iter().filter(|line: &&String| line.starts_with("round ")).count() < 2 {
        let mut line = String::new();
        assert!(output.read_line(&mut line).unwrap() > 0, "it ended: {lines:?}");
        lines.push(line);
    }
    let dir = lines.iter().find_map(|line| line.trim().strip_prefix("in ")).unwrap().to_owned();
    let root = Path::new(&dir).parent().unwrap().to_owned();
    let at_work = |root: &Path| {
        let root = format!("{}/", root.display());
        let commands = std::fs::read_dir("/proc").unwrap().flatten();
        let runs = commands.filter_map(|entry| {
            let named = std::fs::read_to_string(entry.path().join("comm")).ok()?;
            let line = std::fs::read(entry.path().join("cmdline")).ok().filter(|_| named == "ropewalk\n")?;
            let line = String::from_utf8_lossy(&line).into_owned();
            line.contains(&root).then_some(line)
        });
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let mounts = mounts.lines().filter(|line| line.contains(&root)).map(str::to_owned);
        runs.chain(mounts).collect::<Vec<String>>()
    };
    assert!(!at_work(&root).is_empty(), "{root:?}");
    let pid = rustix::process::Pid::from_child(&runner);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    output.read_to_string(&mut all).unwrap();
    assert_eq!(runner.wait().unwrap().code(), Some(128 + libc::SIGTERM));
    assert!(all.contains("interrupted by signal 15") && all.contains("figures: {"), "{all}");
    let end = std::time::Instant::now() + patience;
    while root.exists() || !at_work(&root).is_empty() {
        assert!(std::time::Instant::now() < end, "left: {root:?} {:?}", at_work(&root));
        std::thread::sleep(Duration::from_millis(100));
    }
}
