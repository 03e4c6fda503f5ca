//! Bottlenecks staged for real, drawn at random, and machines without any: the lab's verdict must name each, or
//! say that there is none. `ROPEWALK_LAB_STAGINGS=all` stages every one, else a few are drawn.
//!
//! A machine that others use is another machine: a wrong verdict counts only if they left this one alone meanwhile.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod common;

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use common::{ROPEWALK, Random, seed};
use serde_json::Value;

/// How many are drawn in a short run.
const DRAWN: usize = 4;
/// How often one is staged while others use the machine.
const TRIES: u32 = 3;
/// The share of the machine's CPUs that others may have.
const OTHERS_MAX: f64 = 0.15;

/// Loop devices on files, each throttled for the processes of one cgroup; gone when dropped.
struct SlowDisks {
    dir: tempfile::TempDir,
    cgroup: PathBuf,
    version: u8,
    loops: Vec<String>,
}

impl SlowDisks {
    /// One device for each rate, in reads a second. `None`, with the reason printed, where this kernel or user
    /// cannot have them.
    fn new(rates: &[u64]) -> Option<SlowDisks> {
        let (root, version) = match () {
            () if Path::new("/sys/fs/cgroup/blkio/blkio.throttle.read_iops_device").exists() => {
                (PathBuf::from("/sys/fs/cgroup/blkio"), 1)
            }
            () if fs::read_to_string("/sys/fs/cgroup/cgroup.controllers")
                .is_ok_and(|list| list.contains("io")) =>
            {
                let _ = fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+io");
                (PathBuf::from("/sys/fs/cgroup"), 2)
            }
            () => {
                println!("not staged: no cgroup with a block-I/O throttle");
                return None;
            }
        };
        let cgroup = root.join(format!("ropewalk-lab-test-{}", std::process::id()));
        if let Err(e) = fs::create_dir_all(&cgroup) {
            println!("not staged: {}: {e}", cgroup.display());
            return None;
        }
        let dir = tempfile::Builder::new().prefix("ropewalk-lab-").tempdir_in("/var/tmp").unwrap();
        let mut disks = SlowDisks { dir, cgroup, version, loops: Vec::new() };
        for (i, &rate) in rates.iter().enumerate() {
            let file = disks.dir.path().join(format!("disk{i}"));
            // Bytes, not a hole: reading a hole reads nothing.
            let mut bytes = vec![0; 32 << 20];
            Random(i as u64).fill(&mut bytes);
            fs::write(&file, &bytes).unwrap();
            let output =
                Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(&file).output();
            let Some(output) = output.ok().filter(|o| o.status.success()) else {
                println!("not staged: losetup gives no loop device");
                return None;
            };
            let device = String::from_utf8(output.stdout).unwrap().trim().to_owned();
            let name = device.trim_start_matches("/dev/").to_owned();
            disks.loops.push(device);
            let number = fs::read_to_string(format!("/sys/block/{name}/dev")).unwrap();
            disks.throttle(number.trim(), rate);
        }
        Some(disks)
    }

    fn throttle(&self, number: &str, rate: u64) {
        let (file, line) = match self.version {
            1 => ("blkio.throttle.read_iops_device", format!("{number} {rate}")),
            _ => ("io.max", format!("{number} riops={rate}")),
        };
        fs::write(self.cgroup.join(file), line).expect("set the throttle");
    }

    /// A command whose process and children are throttled.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("sh");
        let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.cgroup.display());
        command.args(["-c", &enter, "sh", program]);
        command
    }
}

impl Drop for SlowDisks {
    fn drop(&mut self) {
        for device in &self.loops {
            let _ = Command::new("losetup").args(["-d", device]).status();
        }
        let _ = fs::remove_dir(&self.cgroup);
    }
}

/// Runs a plan and returns the verdicts of its series.
fn verdicts(mut command: Command, text: &str, options: &[&str]) -> Vec<Value> {
    let dir = tempfile::Builder::new().prefix("ropewalk-lab-").tempdir_in("/var/tmp").unwrap();
    let plan = dir.path().join("plan.toml");
    fs::write(&plan, text).unwrap();
    let out = dir.path().join("out");
    command.args(["lab", "run"]).arg(&plan).args(options).arg("--out").arg(&out).stdin(Stdio::null());
    let output = command.output().expect("run the lab");
    assert!(
        output.status.success(),
        "{text}\n{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    let report = common::ok(&["lab", "report", out.to_str().unwrap(), "--format", "json"]);
    let report: Value = serde_json::from_str(&report).unwrap();
    let series = report["plans"][0]["series"].as_array().unwrap().clone();
    assert!(!out.join("work").exists(), "the run's own files are gone");
    series
}

/// What a staging panics with if the verdict is wrong.
struct WrongVerdict;

/// CPU time of the machine since it started, in ticks.
struct CpuTime {
    all: f64,
    /// Of this process and the children it waited for; and idle.
    own_or_idle: f64,
}

impl CpuTime {
    fn now() -> CpuTime {
        let numbers =
            |text: &str| text.split_whitespace().filter_map(|n| n.parse().ok()).collect::<Vec<f64>>();
        let machine = numbers(fs::read_to_string("/proc/stat").unwrap().lines().next().unwrap());
        let own = fs::read_to_string("/proc/self/stat").unwrap();
        // Behind the name, which may hold spaces, and the state: proc(5) from field 4 on.
        let own = numbers(own.rsplit(')').next().unwrap());
        let [_user, _nice, _system, idle, io] = machine[..5] else { panic!("/proc/stat: {machine:?}") };
        CpuTime { all: machine[..8].iter().sum(), own_or_idle: idle + io + own[10..14].iter().sum::<f64>() }
    }

    /// The share of the machine that others had since then.
    fn others_since(&self, then: &CpuTime) -> f64 {
        let all = self.all - then.all;
        (all - (self.own_or_idle - then.own_or_idle)).max(0.0) / all.max(1.0)
    }
}

/// Stages it, and again if the verdict is wrong while others use the machine.
fn staged(name: &str, stage: impl Fn()) {
    for _ in 0..TRIES {
        let before = CpuTime::now();
        let Err(panic) = catch_unwind(AssertUnwindSafe(&stage)) else { return };
        let others = CpuTime::now().others_since(&before);
        println!("  others had {:.0} % of the machine", others * 100.0);
        if others < OTHERS_MAX || !panic.is::<WrongVerdict>() {
            resume_unwind(panic);
        }
    }
    println!("not judged: {name}");
}

/// The first verdict must be this limit; everything it rests on is printed.
fn expect(series: &[Value], limit: &str, name: &str) {
    let verdict = &series[0]["verdict"];
    println!("  wanted {limit}: {} {}", verdict["limit"], verdict["text"]);
    let evidence = serde_json::to_string_pretty(&series[0]["verdict"]).unwrap();
    let points = serde_json::to_string(&series[0]["analysis"]["points"]).unwrap();
    let names = verdict["names"].to_string();
    if verdict["limit"] != limit || !names.contains(name) {
        println!("wrong: {name:?} is wanted, in {names}\n{evidence}\n{points}");
        panic_any(WrongVerdict);
    }
}

fn head(step: &str, steps: &str) -> String {
    format!("name = 'staged'\ntitle = 'staged'\nstep = '{step}'\nsteps = {steps}\nseconds = 1.5\n")
}

fn devices_plan() -> String {
    head("devices", "[1, 2, 3]")
        + "[[series]]\nname = 'r'\nengine = 'fio'\nfigure = 'operations'\n\
           set = { rw = 'randread', bs = '4k', ioengine = 'libaio', iodepth = 8 }\n"
}

fn device_options(disks: &SlowDisks) -> Vec<&str> {
    disks.loops.iter().flat_map(|device| ["--device", device.as_str()]).collect()
}

type Staging = (&'static str, fn(&mut Random));

const STAGINGS: &[Staging] = &[
    ("no bottleneck: equal devices", |random| {
        let rate = 300 + random.below(500);
        let Some(disks) = SlowDisks::new(&[rate; 3]) else { return };
        let series = verdicts(disks.command(ROPEWALK), &devices_plan(), &device_options(&disks));
        expect(&series, "none", "");
    }),
    ("a slowed device", |random| {
        let rate = 400 + random.below(500);
        let mut rates = [rate; 3];
        let slow = random.below(3) as usize;
        rates[slow] = rate / (3 + random.below(3));
        let Some(disks) = SlowDisks::new(&rates) else { return };
        let series = verdicts(disks.command(ROPEWALK), &devices_plan(), &device_options(&disks));
        expect(&series, "slow-device", &disks.loops[slow]);
    }),
    ("one busy disk on many queues", |random| {
        let Some(disks) = SlowDisks::new(&[1000]) else { return };
        // The pdisk lies on the disk of /var/tmp; that one is throttled for us.
        let device = disks.disk_below();
        disks.throttle(&device, 200 + random.below(300));
        let text = head("queues", "[1, 2, 4]")
            + "[[series]]\nname = 'q'\nengine = 'pdisk'\nfigure = 'operations'\n\
               set = { load = 'random-read', disks = 1, dma_mib = 256, size = '64m', depth = 16 }\n";
        let series = verdicts(disks.command(ROPEWALK), &text, &[]);
        expect(&series, "queue", "queue");
    }),
    ("too few clients", |random| {
        let rate = 100 + random.below(200);
        let Some(disks) = SlowDisks::new(&[rate * 50]) else { return };
        let text = head("nodes", "[1, 2, 4]")
            + &format!(
                "[[series]]\nname = 'c'\nengine = 'fio'\nfigure = 'operations'\n\
                 set = {{ rw = 'randread', bs = '4k', ioengine = 'psync', rate_iops = {rate} }}\n"
            );
        let series = verdicts(disks.command(ROPEWALK), &text, &device_options(&disks));
        expect(&series, "clients", "");
    }),
    ("a pinned CPU", |random| {
        let cpus = std::thread::available_parallelism().unwrap().get() as u64;
        if cpus < 2 {
            println!("not staged: one CPU only");
            return;
        }
        let cpu = random.below(cpus).to_string();
        let dir = tempfile::Builder::new().prefix("ropewalk-lab-").tempdir_in("/dev/shm").unwrap();
        let files: Vec<PathBuf> = (0..3).map(|n| dir.path().join(format!("disk{n}"))).collect();
        files.iter().for_each(|file| fs::write(file, vec![7; 8 << 20]).unwrap());
        let options: Vec<&str> = files.iter().flat_map(|file| ["--device", file.to_str().unwrap()]).collect();
        let text = devices_plan().replace("libaio", "psync").replace("iodepth = 8", "direct = false");
        let mut pinned = Command::new("taskset");
        pinned.args(["-c", &cpu, ROPEWALK]);
        let series = verdicts(pinned, &text, &options);
        expect(&series, "pinned-cpu", &format!("CPU {cpu}"));
    }),
    ("a throttled link", |random| {
        let speed = 60 + random.below(200);
        let text = head("connections", "[1, 2, 4]")
            + &format!(
                "[[series]]\nname = 'l'\nengine = 'iperf3'\nfigure = 'bytes'\n\
                 set = {{ links = 1, policy = 1, speed = {speed} }}\n"
            );
        let series = verdicts(Command::new(ROPEWALK), &text, &[]);
        expect(&series, "link", "l1");
    }),
    ("a wrong hash policy", |random| {
        let speed = 60 + random.below(200);
        let text = head("connections", "[1, 2, 4, 8]")
            + &format!(
                "[[series]]\nname = 'h'\nengine = 'iperf3'\nfigure = 'bytes'\n\
                 set = {{ links = 2, policy = 0, speed = {speed} }}\n"
            );
        let series = verdicts(Command::new(ROPEWALK), &text, &[]);
        expect(&series, "hash-policy", "/l");
    }),
    ("no wrong hash policy", |random| {
        let speed = 60 + random.below(200);
        let text = head("connections", "[1, 16]")
            + &format!(
                "[[series]]\nname = 'h'\nengine = 'iperf3'\nfigure = 'bytes'\n\
                 set = {{ links = 2, policy = 1, speed = {speed} }}\n"
            );
        let series = verdicts(Command::new(ROPEWALK), &text, &[]);
        // Sixteen connections over two links by ports: all on one in 1 of 32768 runs.
        expect(&series, "link", "/l");
    }),
];

impl SlowDisks {
    /// Number of the disk below the directory of the files.
    fn disk_below(&self) -> String {
        use std::os::unix::fs::MetadataExt;
        let dev = fs::metadata(self.dir.path()).unwrap().dev();
        format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev))
    }
}

#[test]
fn staged_bottlenecks_are_named_and_absent_ones_are_not() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: loop devices, throttles and network namespaces need root");
        return;
    }
    let mut random = Random(seed());
    let wanted = std::env::var("ROPEWALK_LAB_STAGINGS").unwrap_or_default();
    let mut order: Vec<&Staging> = STAGINGS.iter().collect();
    for i in (1..order.len()).rev() {
        order.swap(i, random.below(i as u64 + 1) as usize);
    }
    match wanted.as_str() {
        "all" => {}
        "" => order.truncate(DRAWN),
        word => order.retain(|(name, _)| name.contains(word)),
    }
    assert!(!order.is_empty(), "no staging is called {wanted:?}");
    for (name, stage) in order {
        println!("staged: {name}");
        let drawn = random.next();
        staged(name, || stage(&mut Random(drawn)));
    }
}
