//! The store against fio: same block size, depth, file size and disk, turn by turn in one run.
//! `cargo bench -p ropewalk-pdisk -- DIR... [--seconds N] [--rounds N] [--size BYTES] [--strips N] [--tables]`
//! Each DIR is on a disk to measure (one of them on tmpfs shows the cost of the store itself). Every figure
//! is the median of the rounds. Without fio the store's own figures are shown alone.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a program for people

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use base::ByteSize;
use pdisk::{
    EngineChoice, IoConfig,
    tools::bench::{self, Bench, Load, Options, Row},
};

struct Arguments {
    dirs: Vec<PathBuf>,
    seconds: u64,
    rounds: usize,
    size: u64,
    strips: u64,
    tables: bool,
}

fn arguments() -> Arguments {
    let mut found =
        Arguments { dirs: vec![], seconds: 3, rounds: 3, size: 2 << 30, strips: 1_000_000, tables: false };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number =
            || words.next().and_then(|w| w.parse::<u64>().ok()).expect("a number follows the option");
        match word.as_str() {
            "--seconds" => found.seconds = number(),
            "--rounds" => found.rounds = number() as usize,
            "--size" => found.size = number(),
            "--strips" => found.strips = number(),
            "--tables" => found.tables = true,
            // Cargo's own.
            "--bench" => {}
            dir => found.dirs.push(dir.into()),
        }
    }
    found
}

/// One fio job's outcome: operations and bytes a second, CPU microseconds an operation.
#[derive(Clone, Copy, Default, Debug)]
struct Rate {
    iops: f64,
    mb: f64,
    cpu_us: f64,
}

struct Fio<'a> {
    dir: &'a Path,
    size: u64,
    seconds: u64,
}

impl Fio<'_> {
    fn file(&self) -> PathBuf {
        self.dir.join("pdisk-bench.fio")
    }

    fn command(&self) -> Command {
        let mut fio = Command::new("fio");
        fio.args([
            "--name=raw",
            "--direct=1",
            "--ioengine=io_uring",
            "--output-format=json",
            "--randrepeat=0",
        ]);
        fio.arg(format!("--filename={}", self.file().display())).arg(format!("--size={}", self.size));
        fio
    }

    /// Writes the file once, so that no measurement allocates.
    fn lay_out(&self) -> bool {
        let mut fio = self.command();
        fio.args(["--rw=write", "--bs=1m", "--iodepth=8", "--end_fsync=1"]);
        fio.output().is_ok_and(|o| o.status.success())
    }

    fn run(&self, arguments: &[String]) -> Rate {
        let mut fio = self.command();
        fio.arg(format!("--runtime={}", self.seconds)).arg("--time_based").args(arguments);
        let output = fio.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let job = &json["jobs"][0];
        let side = if job["read"]["io_bytes"].as_u64() > Some(0) { &job["read"] } else { &job["write"] };
        let number = |v: &serde_json::Value| v.as_f64().unwrap_or(0.0);
        let iops = number(&side["iops"]);
        let cpu = (number(&job["usr_cpu"]) + number(&job["sys_cpu"])) / 100.0;
        Rate { iops, mb: number(&side["bw_bytes"]) / 1e6, cpu_us: cpu * 1e6 / iops.max(1.0) }
    }
}

impl Drop for Fio<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.file());
    }
}

fn median(mut rates: Vec<Rate>) -> Rate {
    rates.sort_by(|a, b| a.iops.total_cmp(&b.iops));
    rates[rates.len() / 2]
}

fn rate(row: &Row) -> Rate {
    Rate { iops: row.iops(), mb: row.mb_per_second(), cpu_us: row.cpu_us() }
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

fn compare(dir: &Path, arguments: &Arguments) {
    let fio = Fio { dir, size: arguments.size / 2, seconds: arguments.seconds };
    let with_fio = fio.lay_out();
    let mut options = Options::new(dir);
    (options.size, options.time) = (arguments.size, Duration::from_secs(arguments.seconds));
    let mut bench = Bench::start(options).unwrap();
    let loads = [
        (Load::Write { depth: 8 }, "--rw=write --bs=1m --iodepth=8", 0.9),
        (Load::Read { depth: 8 }, "--rw=read --bs=1m --iodepth=8", 0.9),
        (Load::RandomRead { depth: 32, batch: 1 }, "--rw=randread --bs=4k --iodepth=32", 0.8),
        (Load::RandomRead { depth: 32, batch: 8 }, "--rw=randread --bs=4k --iodepth=32", 0.8),
        (Load::SyncWrite { writers: 1 }, "--rw=randwrite --bs=4k --iodepth=1 --fdatasync=1", 0.5),
        (Load::SyncWrite { writers: 32 }, "--rw=randwrite --bs=4k --iodepth=32 --fdatasync=32", 0.5),
    ];
    println!("\n{} ({})", dir.display(), if is_tmpfs(dir) { "tmpfs" } else { "disk" });
    println!(
        "{:<44} {:>10} {:>10} {:>8} {:>10} {:>10} {:>8} {:>6} {:>6}",
        "", "store IOPS", "MB/s", "CPU µs", "fio IOPS", "MB/s", "CPU µs", "ratio", "want"
    );
    let mut singles = Vec::new();
    for (load, job, want) in loads {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let mut name = String::new();
        for _ in 0..arguments.rounds {
            if with_fio {
                theirs.push(fio.run(&words(job)));
            }
            let row = bench.run(load).unwrap();
            ours.push(rate(&row));
            name = row.load;
        }
        let (ours, theirs) = (median(ours), if with_fio { median(theirs) } else { Rate::default() });
        let want = if is_tmpfs(dir) && want == 0.8 { 0.5 } else { want };
        println!(
            "{name:<44} {:>10.0} {:>10.0} {:>8.1} {:>10.0} {:>10.0} {:>8.1} {:>6.2} {want:>6.2}",
            ours.iops,
            ours.mb,
            ours.cpu_us,
            theirs.iops,
            theirs.mb,
            theirs.cpu_us,
            ours.iops / theirs.iops
        );
        if let Load::SyncWrite { .. } = load {
            singles.push((ours.iops, theirs.iops));
        }
    }
    let (ours, theirs) = (singles[1].0 / singles[0].0, singles[1].1 / singles[0].1);
    println!(
        "gain from 1 to 32 writers: store {ours:.1}, fio {theirs:.1}, ratio {:.2} (want 0.80)",
        ours / theirs
    );
}

fn tables(dir: &Path, arguments: &Arguments) {
    println!("\nqueues, {}: 16 pdisks on one node, random read 4 KiB, depth 64", dir.display());
    println!("{:>6} {:>10} {:>10} {:>16}", "queues", "IOPS", "CPU s/s", "IOPS per CPU s");
    for queues in [1, 2, 4, 8, 16] {
        let io = IoConfig { num_io_queues: queues, ..IoConfig::default() };
        let size = (arguments.size / 16).max(64 << 20);
        let time = Duration::from_secs(arguments.seconds);
        let mut bench = Bench::start(Options { size, pdisks: 16, time, io, ..Options::new(dir) }).unwrap();
        let row = bench.run(Load::RandomRead { depth: 64, batch: 1 }).unwrap();
        show(&queues.to_string(), &row);
    }
    println!("\none busy pdisk: queues_per_pdisk of 16, random read 4 KiB, depth 64");
    for queues in [1, 2, 4] {
        let io = IoConfig { num_io_queues: 16, ..IoConfig::default() };
        let time = Duration::from_secs(arguments.seconds);
        let options =
            Options { time, io, queues_per_pdisk: queues, size: arguments.size, ..Options::new(dir) };
        let mut bench = Bench::start(options).unwrap();
        let row = bench.run(Load::RandomRead { depth: 64, batch: 1 }).unwrap();
        show(&queues.to_string(), &row);
    }
    println!("\ncoalescing, one queue, random read 4 KiB, depth 64");
    let io = IoConfig { num_io_queues: 1, ..IoConfig::default() };
    let time = Duration::from_secs(arguments.seconds);
    let mut bench = Bench::start(Options { time, io, size: arguments.size, ..Options::new(dir) }).unwrap();
    for (count, us) in [(1, 0), (4, 50), (8, 100), (32, 200)] {
        bench.coalesce(count, us).unwrap();
        let row = bench.run(Load::RandomRead { depth: 64, batch: 1 }).unwrap();
        show(&format!("{count}/{us}"), &row);
    }
}

fn show(name: &str, row: &Row) {
    let cpu = row.cpu_seconds / row.seconds;
    println!("{name:>6} {:>10.0} {cpu:>10.2} {:>16.0}", row.iops(), row.iops() / cpu.max(1e-9));
}

fn is_tmpfs(dir: &Path) -> bool {
    rustix::fs::statfs(dir).is_ok_and(|s| s.f_type == 0x0102_1994)
}

fn main() {
    let mut arguments = arguments();
    if arguments.dirs.is_empty() {
        // A benchmark that `cargo test` compiles runs tiny, so that it keeps working.
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            size: 64 << 20,
            time: Duration::from_millis(100),
            io: IoConfig { engine: EngineChoice::Auto, ..IoConfig::default() },
            ..Options::new(dir.path())
        };
        let mut bench = Bench::start(options).unwrap();
        for load in [Load::Write { depth: 2 }, Load::Read { depth: 2 }, Load::SyncWrite { writers: 2 }] {
            println!("{:?}", bench.run(load).unwrap());
        }
        println!("{:?}", bench::open(dir.path(), 1000, IoConfig::default()).unwrap());
        return;
    }
    for dir in std::mem::take(&mut arguments.dirs) {
        compare(&dir, &arguments);
        if arguments.strips > 0 {
            let row = bench::open(&dir, arguments.strips, IoConfig::default()).unwrap();
            let each = row.memory_bytes / row.strips.max(1);
            let memory = ByteSize(row.memory_bytes >> 20 << 20);
            println!(
                "open with {} strips: {:.2} s (want < 5), {memory} of memory, {each} bytes a strip",
                row.strips, row.seconds
            );
        }
        if arguments.tables {
            tables(&dir, &arguments);
        }
    }
}
