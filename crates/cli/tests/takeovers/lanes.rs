//! Clusters side by side, some rounds on each, since most of a round is waiting. Each is this test again: a process with a directory and
//! namespaces of its own. What it says is passed on, and stays in its directory if it fails.
//!
//! One that fails stops no other. The rounds that were left to it get a new cluster. One that says nothing any more is ended, and what is
//! left of it is taken away: a thread of it may wait for a lock that nobody gives.

use std::{
    collections::VecDeque,
    env,
    fs::{self, File},
    io::{BufRead, BufReader},
    ops::Range,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::mount::{UnmountFlags, unmount};

use crate::{
    common::{ROPEWALK, ok, until},
    interrupt, number,
};

/// What the testbed of one is called, before its process's number.
pub const BED: &str = "take";
/// Names to one what it is.
const LANE: &str = "ROPEWALK_TAKEOVERS_LANE";
/// Rounds of one, at most.
const EACH: u64 = 10;
/// For so long one may say nothing: the longest waits of a round, one after the other.
const SILENT_MAX: Duration = Duration::from_secs(600);
/// For so long it may take to end after something failed: what still waits then has no deadline.
const FAILING_MAX: Duration = Duration::from_secs(240);
const LOOK: Duration = Duration::from_millis(100);

/// The rounds of this process on a cluster in that directory; none: it begins those that have some.
pub fn own() -> Option<(Range<u64>, PathBuf)> {
    let text = env::var(LANE).ok()?;
    let mut parts = text.splitn(3, ',');
    let mut next = || parts.next().unwrap();
    Some((next().parse().unwrap()..next().parse().unwrap(), next().into()))
}

/// How many there are at once: `ROPEWALK_TAKEOVERS_AT_ONCE`, or one for each CPU. With more nothing else is done on the machine.
fn at_once() -> usize {
    let cpus = thread::available_parallelism().map_or(1, |cpus| cpus.get());
    number("ROPEWALK_TAKEOVERS_AT_ONCE").map_or(cpus.min(8), |n| n.max(1) as usize)
}

/// One of them.
struct Lane {
    rounds: Range<u64>,
    dir: PathBuf,
    child: Child,
    said: BufReader<File>,
    line: Vec<u8>,
    /// When it has to say something, at the latest.
    says_by: Instant,
    /// When it has to end, as something has failed.
    ends_by: Option<Instant>,
    /// The round it is at.
    at: Option<u64>,
    /// Rounds that are over.
    done: u64,
    over: bool,
}

impl Lane {
    fn begin(test: &str, seed: u64, rounds: Range<u64>, base: &Path, left: Option<Duration>) -> Lane {
        let dir = base.join(format!("r{}", rounds.start));
        fs::create_dir(&dir).unwrap();
        let log = File::create(dir.join("said.log")).unwrap();
        let mut again = Command::new(env::current_exe().unwrap());
        again
            .args([test, "--exact", "--nocapture"])
            .env(LANE, format!("{},{},{}", rounds.start, rounds.end, dir.display()))
            .env("ROPEWALK_TEST_SEED", seed.to_string())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            // A signal of the terminal is for us, who end it and clean up.
            .process_group(0);
        if let Some(left) = left {
            again.env("ROPEWALK_TAKEOVERS_SECONDS", left.as_secs().to_string());
        }
        let said = BufReader::new(File::open(dir.join("said.log")).unwrap());
        Lane {
            rounds,
            dir,
            child: again.spawn().unwrap(),
            said,
            line: Vec::new(),
            says_by: Instant::now() + SILENT_MAX,
            ends_by: None,
            at: None,
            done: 0,
            over: false,
        }
    }

    /// Passes on what it has said since.
    fn listen(&mut self) {
        while self.said.read_until(b'\n', &mut self.line).unwrap() > 0 && self.line.ends_with(b"\n") {
            let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).trim_end().to_owned();
            self.says_by = Instant::now() + SILENT_MAX;
            println!("[{}] {line}", self.rounds.start);
            if line.contains("panicked at") {
                self.ends_by.get_or_insert_with(|| Instant::now() + FAILING_MAX);
            }
            let Some((number, rest)) = line.strip_prefix("round ").and_then(|text| text.split_once(' '))
            else {
                continue;
            };
            if rest.starts_with("done") {
                (self.at, self.done) = (None, self.done + 1);
            } else {
                self.at = number.parse().ok();
            }
        }
    }

    /// Whether it is over, and why it failed.
    fn look(&mut self) -> Option<Result<(), String>> {
        self.listen();
        if let Some(status) = self.child.try_wait().unwrap() {
            self.listen(); // its last words
            return Some(if status.success() { Ok(()) } else { Err(status.to_string()) });
        }
        let now = Instant::now();
        if self.ends_by.is_some_and(|by| by <= now) {
            return Some(Err(format!("something failed, and it did not end within {FAILING_MAX:?}")));
        }
        (self.says_by <= now).then(|| Err(format!("it said nothing for {SILENT_MAX:?}")))
    }

    /// Ends it, and takes away what it left but its files.
    fn clear(&mut self) {
        let _ = self.child.kill(); // it may have ended
        // A thread that waits for an answer of a mount ends with that.
        unmount_below(&self.dir);
        let bed = format!("{BED}{}", self.child.id());
        let _ = Command::new(ROPEWALK).args(["lab", "testbed", "down", &bed]).output(); // it may be gone
        unmount_below(&self.dir);
        self.child.wait().unwrap();
        self.over = true;
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if !self.over {
            self.clear();
        }
    }
}

/// Gives up all that is mounted there, the innermost first.
fn unmount_below(dir: &Path) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let places = mounts.lines().rev().filter_map(|line| line.split(' ').nth(1));
    for place in places.filter(|place| Path::new(place).starts_with(dir)) {
        let _ = unmount(place, UnmountFlags::FORCE | UnmountFlags::DETACH); // it may go by itself
    }
}

/// Has these rounds run; fails if one did. `end`: none is begun after it.
pub fn run(test: &str, seed: u64, rounds: Range<u64>, end: Option<Instant>) {
    interrupt::watch();
    let (begun, at_once) = (Instant::now(), at_once());
    let base = tempfile::Builder::new().prefix("ropewalk-take-").tempdir().unwrap();
    // As many for each as can be, so that all have something to do.
    let count = rounds.end - rounds.start;
    let each = count.div_ceil(at_once as u64).clamp(1, EACH);
    let share = |first: u64| first..rounds.end.min(first + each);
    let mut left: VecDeque<Range<u64>> = rounds.clone().step_by(each as usize).map(share).collect();
    let (mut lanes, mut done, mut failed) = (Vec::new(), 0, Vec::new());
    loop {
        let late = end.is_some_and(|end| Instant::now() > end);
        while lanes.len() < at_once && !late {
            let Some(rounds) = left.pop_front() else { break };
            let time = end.map(|end| end.saturating_duration_since(Instant::now()));
            lanes.push(Lane::begin(test, seed, rounds, base.path(), time));
        }
        if lanes.is_empty() {
            break;
        }
        thread::sleep(LOOK);
        if let Some(signal) = interrupt::signal() {
            done += lanes.iter().map(|lane: &Lane| lane.done).sum::<u64>();
            drop(lanes);
            panic!("interrupted by signal {signal}: {done} rounds were over, failed: {failed:#?}");
        }
        lanes.retain_mut(|lane| {
            let Some(outcome) = lane.look() else { return true };
            done += lane.done;
            lane.clear();
            let Err(why) = outcome else {
                fs::remove_dir_all(&lane.dir).unwrap();
                return false;
            };
            let Range { start, end } = lane.rounds;
            let (what, first, rest) = match lane.at {
                Some(at) => (format!("round {at}"), at, at + 1..end),
                None => (format!("before or after rounds {start} to {}", end - 1), start, end..end),
            };
            let said = lane.dir.join("said.log");
            failed.push(format!(
                "{what} ({why}): {}; again: ROPEWALK_TEST_SEED={seed} ROPEWALK_TAKEOVERS_FIRST={first}",
                said.display()
            ));
            println!("FAILED: {}", failed[failed.len() - 1]);
            if !rest.is_empty() {
                left.push_front(rest);
            }
            false
        });
    }
    println!(
        "{done} of {count} rounds of seed {seed}, {at_once} at once, in {:.0?}; {} failed",
        begun.elapsed(),
        failed.len()
    );
    if !failed.is_empty() {
        let _ = base.keep(); // what they said
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn a_lane_that_does_not_end_is_ended_and_leaves_nothing() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("r3");
    fs::create_dir_all(dir.join("mnt")).unwrap();
    let child = Command::new("sleep").arg("1000").process_group(0).spawn().unwrap();
    let bed = format!("{BED}{}", child.id());
    ok(&["lab", "testbed", "up", "--name", &bed]);
    let mut inside = Command::new(ROPEWALK);
    inside.args(["lab", "testbed", "exec", "--name", &bed, "h1", "sleep", "1000"]);
    let mut inside = inside.spawn().unwrap();
    // Until it is what it was told to be it may not be in there yet, and is not found.
    let comm = format!("/proc/{}/comm", inside.id());
    until("it runs inside", || fs::read_to_string(&comm).is_ok_and(|name| name == "sleep\n"));
    let mounted = Command::new("mount").args(["-t", "tmpfs", "lane"]).arg(dir.join("mnt")).status();
    assert!(mounted.unwrap().success());
    fs::write(dir.join("said.log"), "round 3 done\nround 4 of seed 1: [Kill]\n").unwrap();
    let said = BufReader::new(File::open(dir.join("said.log")).unwrap());
    let (line, now) = (Vec::new(), Instant::now());
    let (rounds, dir_of, ends_by) = (3..5, dir.clone(), Some(now));
    let mut lane = Lane {
        rounds,
        dir: dir_of,
        child,
        said,
        line,
        says_by: now,
        ends_by,
        at: None,
        done: 0,
        over: false,
    };
    let outcome = lane.look();
    assert!(matches!(outcome, Some(Err(_))) && (lane.at, lane.done) == (Some(4), 1), "{outcome:?}");
    lane.clear();
    inside.wait().unwrap();
    assert!(!fs::read_to_string("/proc/self/mounts").unwrap().contains(dir.to_str().unwrap()));
    // Another one's name may begin so.
    let beds: Vec<serde_json::Value> =
        serde_json::from_str(&ok(&["lab", "testbed", "status", "--json"])).unwrap();
    assert!(beds.iter().all(|other| other["spec"]["name"] != bed.as_str()), "{bed} is left");
}
