//! `ropewalk pdisk bench`: the strip store against fio: same block size, depth, file size and disk, turn by
//! turn in one run. Every figure is the median of the rounds, each ratio that of the rounds' ratios, beside its goal.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use base::ByteSize;
use pdisk::{
    IoConfig,
    tools::bench::{self, Aging, Bench, Load, OpenRow, Options, Row},
};
use serde::Serialize;

use crate::{args::PdiskBench, output, pdisk_commands};

/// Operations and bytes a second, CPU microseconds an operation.
#[derive(Clone, Copy, Default, Serialize)]
struct Rate {
    iops: f64,
    mb: f64,
    cpu_us: f64,
}

/// One load, ours and fio's.
#[derive(Serialize)]
struct Compared {
    load: String,
    store: Rate,
    p50_us: f64,
    p99_us: f64,
    fio: Option<Rate>,
    /// The median of the rounds' ratios: the rates of a shared disk change from round to round.
    ratio: Option<f64>,
    /// Of each round, rising.
    ratios: Vec<f64>,
    /// The least ratio that is good enough; `None`: no goal is set for this load here.
    goal: Option<f64>,
}

/// One line of a table of settings.
#[derive(Serialize)]
struct SettingRow {
    table: &'static str,
    setting: String,
    iops: f64,
    cpu_seconds_per_second: f64,
    iops_per_cpu_second: f64,
    p50_us: f64,
}

/// Everything measured in one directory.
#[derive(Serialize)]
struct Report {
    dir: PathBuf,
    tmpfs: bool,
    loads: Vec<Compared>,
    tables: Vec<SettingRow>,
    open: Option<OpenRow>,
    aging: Option<Aging>,
}

/// Most seconds that opening 1,000,000 strips may take.
const OPEN_GOAL_S: f64 = 5.0;
/// Most memory that opening may take: bytes a strip, and the CRCs, 4 bytes for each 4096 of the data file.
const OPEN_BYTES_A_STRIP: u64 = 1024;

/// `ropewalk pdisk bench`. Exit status 0 also where a goal is missed: the table says so.
pub fn bench(args: &PdiskBench) -> Result<()> {
    if let Some(dir) = args.dirs.first().filter(|_| args.open_only) {
        return output::json(&bench::open(dir, IoConfig::default())?);
    }
    if args.load.is_some() {
        return args.dirs.iter().try_for_each(|dir| pdisk_commands::bench_one(dir, args));
    }
    if args.seconds == 0 || args.rounds == 0 {
        bail!("--seconds and --rounds must be at least 1");
    }
    let mut reports = Vec::new();
    for dir in &args.dirs {
        let report = measure(dir, args).with_context(|| format!("measure {}", dir.display()))?;
        if !args.json {
            show(&report);
        }
        reports.push(report);
    }
    if args.json { output::json(&reports) } else { Ok(()) }
}

fn measure(dir: &Path, args: &PdiskBench) -> Result<Report> {
    let bar = output::spinner("filling");
    let tmpfs = rustix::fs::statfs(dir)?.f_type == 0x0102_1994;
    let (mut tables, mut open, mut aging) = (Vec::new(), None, None);
    let loads = compare(dir, tmpfs, args, &bar)?;
    if args.tables {
        bar.set_message("tables of queues and coalescing");
        tables = setting_tables(dir, args)?;
    }
    if args.aging {
        bar.set_message("aging");
        let mut bench = Bench::start(options(dir, args))?;
        aging = Some(bench.age(2 * args.size.0)?);
    }
    if args.strips > 0 {
        bar.set_message("opening");
        open = Some(measure_open(dir, args.strips)?);
    }
    bar.finish_and_clear();
    Ok(Report { dir: dir.into(), tmpfs, loads, tables, open, aging })
}

fn options(dir: &Path, args: &PdiskBench) -> Options {
    Options { size: args.size.0, time: Duration::from_secs(args.seconds), ..Options::new(dir) }
}

fn compare(
    dir: &Path,
    tmpfs: bool,
    args: &PdiskBench,
    bar: &indicatif::ProgressBar,
) -> Result<Vec<Compared>> {
    let fio = Fio { file: dir.join("pdisk-bench.fio"), size: args.size.0 / 2, seconds: args.seconds };
    let with_fio = !args.no_fio && fio.lay_out();
    if !with_fio && !args.no_fio {
        eprintln!("fio does not run here: the store's figures stand alone");
    }
    let random = Some(if tmpfs { 0.5 } else { 0.8 });
    let sync = (!tmpfs).then_some(0.5);
    let loads = [
        (Load::Write { depth: 8 }, "--rw=write --bs=1m --iodepth=8", Some(0.9)),
        (Load::Read { depth: 8 }, "--rw=read --bs=1m --iodepth=8", Some(0.9)),
        (Load::RandomRead { depth: 32, batch: 1 }, "--rw=randread --bs=4k --iodepth=32", random),
        // In batches fio submits and awaits as many at once as well.
        (
            Load::RandomRead { depth: 32, batch: 8 },
            "--rw=randread --bs=4k --iodepth=32 --iodepth_batch_submit=8 --iodepth_batch_complete_min=8",
            random,
        ),
        (Load::SyncWrite { writers: 1 }, "--rw=randwrite --bs=4k --iodepth=1 --fdatasync=1", None),
        (Load::SyncWrite { writers: 32 }, "--rw=randwrite --bs=4k --iodepth=32 --fdatasync=32", sync),
    ];
    let mut bench = Bench::start(options(dir, args))?;
    let mut compared = Vec::new();
    for (load, job, goal) in loads {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let mut ratios = Vec::new();
        for round in 0..args.rounds {
            bar.set_message(format!("{load:?}, round {}", round + 1));
            // Who begins changes, so that a disk that grows slower or faster favours nobody.
            let fio_first = if with_fio && round % 2 == 0 { Some(fio.run(job)?) } else { None };
            let row = bench.run(load)?;
            let raw = if with_fio && fio_first.is_none() { Some(fio.run(job)?) } else { fio_first };
            if let Some(raw) = raw {
                ratios.push(row.iops() / raw.iops);
                theirs.push(raw);
            }
            ours.push(row);
        }
        ratios.sort_by(f64::total_cmp);
        ours.sort_by(|a, b| a.iops().total_cmp(&b.iops()));
        theirs.sort_by(|a, b| a.iops.total_cmp(&b.iops));
        let row = &ours[ours.len() / 2];
        let store = Rate { iops: row.iops(), mb: row.mb_per_second(), cpu_us: row.cpu_us() };
        let fio = theirs.get(theirs.len() / 2).copied();
        compared.push(Compared {
            load: row.load.clone(),
            store,
            p50_us: row.p50_us,
            p99_us: row.p99_us,
            ratio: ratios.get(ratios.len() / 2).copied(),
            ratios,
            fio,
            goal,
        });
    }
    Ok(compared)
}

/// Queues 1 to 16 under several pdisks and under one busy pdisk, and completions gathered or not.
fn setting_tables(dir: &Path, args: &PdiskBench) -> Result<Vec<SettingRow>> {
    let load = Load::RandomRead { depth: 64, batch: 1 };
    let mut rows = Vec::new();
    for queues in [1, 2, 4, 8, 16] {
        let io = IoConfig { num_io_queues: queues, io_dma_mib: 128, ..IoConfig::default() };
        let size = (args.size.0 / 16).max(64 << 20);
        let mut bench = Bench::start(Options { size, pdisks: 16, io, ..options(dir, args) })?;
        rows.push(setting_row("queues, 16 pdisks", queues.to_string(), &bench.run(load)?));
    }
    for queues in [1, 2, 4] {
        let io = IoConfig { num_io_queues: 16, io_dma_mib: 128, ..IoConfig::default() };
        let mut bench = Bench::start(Options { io, queues_per_pdisk: queues, ..options(dir, args) })?;
        rows.push(setting_row("queues_per_pdisk of 16, one pdisk", queues.to_string(), &bench.run(load)?));
    }
    let io = IoConfig { num_io_queues: 1, ..IoConfig::default() };
    let mut bench = Bench::start(Options { io, ..options(dir, args) })?;
    for (count, us) in [(1, 0), (4, 50), (8, 100), (32, 200)] {
        bench.coalesce(count, us)?;
        rows.push(setting_row("coalescing count/us, one queue", format!("{count}/{us}"), &bench.run(load)?));
    }
    Ok(rows)
}

fn setting_row(table: &'static str, setting: String, row: &Row) -> SettingRow {
    let cpu = row.cpu_seconds / row.seconds;
    SettingRow {
        table,
        setting,
        iops: row.iops(),
        cpu_seconds_per_second: cpu,
        iops_per_cpu_second: row.iops() / cpu.max(1e-9),
        p50_us: row.p50_us,
    }
}

/// Opened by a process of its own, whose memory is the pdisk's alone.
fn measure_open(dir: &Path, strips: u64) -> Result<OpenRow> {
    let made = bench::fill(dir, strips, IoConfig::default());
    let opened = made.map_err(anyhow::Error::from).and_then(|()| {
        let me = std::env::current_exe().context("find this program")?;
        let out = Command::new(me).args(["pdisk", "bench", "--open-only"]).arg(dir).output()?;
        if !out.status.success() {
            bail!("open in a fresh process: {}", String::from_utf8_lossy(&out.stderr).trim());
        }
        Ok(serde_json::from_slice(&out.stdout)?)
    });
    std::fs::remove_dir_all(dir.join("pdisk-bench")).context("remove the benchmark's files")?;
    opened
}

struct Fio {
    file: PathBuf,
    size: u64,
    seconds: u64,
}

impl Fio {
    fn command(&self) -> Command {
        let mut fio = Command::new("fio");
        fio.args([
            "--name=raw",
            "--direct=1",
            "--ioengine=io_uring",
            "--output-format=json",
            "--randrepeat=0",
        ]);
        fio.arg(format!("--filename={}", self.file.display())).arg(format!("--size={}", self.size));
        fio
    }

    /// Writes the file once, so that no measurement allocates. False: there is no fio, or it cannot.
    fn lay_out(&self) -> bool {
        let mut fio = self.command();
        fio.args(["--rw=write", "--bs=1m", "--iodepth=8", "--end_fsync=1"]);
        fio.output().is_ok_and(|o| o.status.success())
    }

    fn run(&self, job: &str) -> Result<Rate> {
        let mut fio = self.command();
        fio.arg(format!("--runtime={}", self.seconds)).arg("--time_based").args(job.split(' '));
        let output = fio.output().context("run fio")?;
        if !output.status.success() {
            bail!("fio {job}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).context("read fio's figures")?;
        let job = &json["jobs"][0];
        let side = if job["read"]["io_bytes"].as_u64() > Some(0) { &job["read"] } else { &job["write"] };
        let number = |v: &serde_json::Value| v.as_f64().unwrap_or(0.0);
        let iops = number(&side["iops"]);
        let cpu = (number(&job["usr_cpu"]) + number(&job["sys_cpu"])) / 100.0;
        Ok(Rate { iops, mb: number(&side["bw_bytes"]) / 1e6, cpu_us: cpu * 1e6 / iops.max(1.0) })
    }
}

impl Drop for Fio {
    fn drop(&mut self) {
        // Not there, if fio never ran.
        let _ = std::fs::remove_file(&self.file);
    }
}

fn verdict(good: bool) -> String {
    if good { "pass" } else { "MISS" }.to_owned()
}

fn show(report: &Report) {
    let kind = if report.tmpfs { "tmpfs" } else { "disk" };
    output::line(format!("\n{} ({kind}); MB is 10^6 bytes; CPU is of all threads", report.dir.display()));
    let dash = || "-".to_owned();
    let cells = |c: &Compared| {
        let of = |f: &dyn Fn(&Rate) -> String| c.fio.as_ref().map_or_else(dash, f);
        vec![
            c.load.clone(),
            format!("{:.0}", c.store.iops),
            format!("{:.0}", c.store.mb),
            format!("{:.1}", c.store.cpu_us),
            format!("{:.0}", c.p50_us),
            format!("{:.0}", c.p99_us),
            of(&|f| format!("{:.0}", f.iops)),
            of(&|f| format!("{:.0}", f.mb)),
            of(&|f| format!("{:.1}", f.cpu_us)),
            c.ratio.map_or_else(dash, |r| {
                let (least, most) = (c.ratios.first().unwrap_or(&r), c.ratios.last().unwrap_or(&r));
                format!("{r:.2} ({least:.2}-{most:.2})")
            }),
            c.goal.map_or_else(dash, |g| format!("{g:.2}")),
            c.ratio.zip(c.goal).map_or_else(dash, |(r, g)| verdict(r >= g)),
        ]
    };
    output::table(
        &[
            "LOAD",
            "OPS/s",
            "MB/s",
            "CPU µs/OP",
            "P50 µs",
            "P99 µs",
            "fio OPS/s",
            "fio MB/s",
            "fio CPU µs",
            "RATIO",
            "GOAL",
            "",
        ],
        report.loads.iter().map(cells).collect(),
    );
    let gain = |rate: &dyn Fn(&Compared) -> Option<f64>| {
        let [.., one, many] = &report.loads[..] else { return None };
        Some(rate(many)? / rate(one)?)
    };
    if let (Some(ours), Some(theirs)) = (gain(&|c| Some(c.store.iops)), gain(&|c| Some(c.fio?.iops))) {
        let ratio = ours / theirs;
        let said =
            if report.tmpfs { String::new() } else { format!(" (goal 0.80: {})", verdict(ratio >= 0.8)) };
        output::line(format!(
            "gain from 1 to 32 synchronous writers: store {ours:.1}, fio {theirs:.1}, ratio {ratio:.2}{said}"
        ));
    }
    if let Some(open) = &report.open {
        show_open(open);
    }
    if let Some(a) = &report.aging {
        output::line(format!(
            "aging: {} overwritten at random in pieces of up to 256 KiB: {:.1} extents a strip before, {:.1} \
             after; sequential read {:.0} MB/s before, {:.0} after ({:.2})",
            ByteSize(a.overwritten_bytes >> 20 << 20),
            a.extents_before,
            a.extents_after,
            a.read_before.mb_per_second(),
            a.read_after.mb_per_second(),
            a.read_after.mb_per_second() / a.read_before.mb_per_second(),
        ));
    }
    if !report.tables.is_empty() {
        output::line("\nrandom read 4 KiB, depth 64");
        let cells = |r: &SettingRow| {
            vec![
                r.table.to_owned(),
                r.setting.clone(),
                format!("{:.0}", r.iops),
                format!("{:.2}", r.cpu_seconds_per_second),
                format!("{:.0}", r.iops_per_cpu_second),
                format!("{:.0}", r.p50_us),
            ]
        };
        output::table(
            &["SETTING", "", "IOPS", "CPU s/s", "IOPS PER CPU s", "P50 µs"],
            report.tables.iter().map(cells).collect(),
        );
    }
}

fn show_open(open: &OpenRow) {
    let bound = open.strips * OPEN_BYTES_A_STRIP + open.data_bytes / 1024 + (64 << 20);
    let mib = |bytes: u64| ByteSize(bytes >> 20 << 20);
    let time = if open.strips >= 1_000_000 {
        format!(" (goal below {OPEN_GOAL_S:.0} s: {})", verdict(open.seconds < OPEN_GOAL_S))
    } else {
        String::new()
    };
    output::line(format!(
        "open of {} strips: {:.2} s{time}; memory {} ({} bytes a strip), {} at the highest; bound {}: {}",
        open.strips,
        open.seconds,
        mib(open.memory_bytes),
        open.memory_bytes / open.strips.max(1),
        mib(open.peak_bytes),
        mib(bound),
        verdict(open.peak_bytes <= bound),
    ));
}
