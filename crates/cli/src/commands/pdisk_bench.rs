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

use crate::{args::PdiskBench, commands::pdisk_tools, output};

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
    /// Operations that one flush of the log made durable; 0: nothing was written.
    writes_a_flush: f64,
}

/// What many synchronous writers reach more than one.
#[derive(Serialize)]
struct Gain {
    /// What fio's many are.
    against: &'static str,
    /// Medians of the rounds.
    store: f64,
    fio: f64,
    /// The median of the rounds' ratios.
    ratio: f64,
    ratios: Vec<f64>,
    goal: Option<f64>,
}

/// A load, what fio does beside it, and the goal of the ratio.
struct Case {
    load: Load,
    job: &'static str,
    goal: Option<f64>,
    /// Said of fio, where it is not plain.
    against: &'static str,
}

/// What both did in one round.
type Round = (Row, Option<Rate>);

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
    gains: Vec<Gain>,
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
    args.dirs.iter().try_for_each(|dir| nothing_left(dir))?;
    clean_on_interrupt(args.dirs.clone())?;
    if args.load.is_some() {
        return args.dirs.iter().try_for_each(|dir| pdisk_tools::bench_one(dir, args));
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

/// What a measurement makes in its directory.
const MADE: [&str; 2] = ["pdisk-bench", FIO_FILE];
const FIO_FILE: &str = "pdisk-bench.fio";

/// Refuses a directory in which another measurement runs, or was killed.
fn nothing_left(dir: &Path) -> Result<()> {
    match MADE.iter().map(|name| dir.join(name)).find(|left| left.exists()) {
        Some(left) => {
            let left = left.display();
            bail!("{left} is there: a `pdisk bench` runs here, or was killed; if none runs: rm -r {left}")
        }
        None => Ok(()),
    }
}

/// Ctrl-C (or SIGTERM) takes away what was made, and ends the program.
fn clean_on_interrupt(dirs: Vec<PathBuf>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    std::thread::Builder::new().name("interrupt".into()).spawn(move || {
        let asked = runtime.block_on(async {
            let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
            tokio::select! {
                asked = tokio::signal::ctrl_c() => asked,
                _ = terminate.recv() => Ok(()),
            }
        });
        if let Err(e) = asked {
            return tracing::warn!(error = %e, "Ctrl-C will leave the files of the measurement");
        }
        for path in dirs.iter().flat_map(|dir| MADE.map(|name| dir.join(name))) {
            // Of the two one is a directory; neither need be there.
            let _ = std::fs::remove_dir_all(&path).or_else(|_| std::fs::remove_file(&path));
        }
        std::process::exit(130);
    })?;
    Ok(())
}

fn measure(dir: &Path, args: &PdiskBench) -> Result<Report> {
    let bar = output::spinner("filling");
    let tmpfs = rustix::fs::statfs(dir)?.f_type == 0x0102_1994;
    let (mut tables, mut open, mut aging) = (Vec::new(), None, None);
    let (loads, gains) = compare(dir, tmpfs, args, &bar)?;
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
    Ok(Report { dir: dir.into(), tmpfs, loads, gains, tables, open, aging })
}

fn options(dir: &Path, args: &PdiskBench) -> Options {
    Options { size: args.size.0, time: Duration::from_secs(args.seconds), ..Options::new(dir) }
}

/// The loads, and what fio does beside each.
fn cases(tmpfs: bool) -> (Vec<Case>, Vec<Case>) {
    let random = Some(if tmpfs { 0.5 } else { 0.8 });
    let sync = (!tmpfs).then_some(0.5);
    let case = |load, job, goal, against| Case { load, job, goal, against };
    let plain = vec![
        case(Load::Write { depth: 8 }, "--rw=write --bs=1m --iodepth=8", Some(0.9), ""),
        // Nothing that job writes is durable. Here each of eight waits for its own flush, as each of the store's writers does.
        case(
            Load::Write { depth: 8 },
            "--rw=write --bs=1m --iodepth=1 --fdatasync=1 --numjobs=8 --thread --group_reporting --size=12% \
             --offset_increment=12%",
            None,
            "8 durable jobs of fio",
        ),
        case(Load::Read { depth: 8 }, "--rw=read --bs=1m --iodepth=8", Some(0.9), ""),
        case(Load::RandomRead { depth: 32, batch: 1 }, "--rw=randread --bs=4k --iodepth=32", random, ""),
        // In batches fio submits and awaits as many at once as well.
        case(
            Load::RandomRead { depth: 32, batch: 8 },
            "--rw=randread --bs=4k --iodepth=32 --iodepth_batch_submit=8 --iodepth_batch_complete_min=8",
            random,
            "",
        ),
    ];
    let many = Load::SyncWrite { writers: 32 };
    let synchronous = vec![
        case(Load::SyncWrite { writers: 1 }, "--rw=randwrite --bs=4k --iodepth=1 --fdatasync=1", None, ""),
        // fio flushes once every 32 writes and goes on writing meanwhile: no write waits for its own flush.
        case(many, "--rw=randwrite --bs=4k --iodepth=32 --fdatasync=32", sync, "fio --fdatasync=32"),
        // Here each waits for its own, as each of the store's writers does.
        case(
            many,
            "--rw=randwrite --bs=4k --iodepth=1 --fdatasync=1 --numjobs=32 --thread --group_reporting",
            None,
            "32 jobs of fio",
        ),
    ];
    (plain, synchronous)
}

fn compare(
    dir: &Path,
    tmpfs: bool,
    args: &PdiskBench,
    bar: &indicatif::ProgressBar,
) -> Result<(Vec<Compared>, Vec<Gain>)> {
    let fio = Fio { file: dir.join(FIO_FILE), size: args.size.0 / 2, seconds: args.seconds };
    let with_fio = !args.no_fio && fio.lay_out();
    if !with_fio && !args.no_fio {
        output::note("fio does not run here: the store's figures stand alone");
    }
    let mut bench = Bench::start(options(dir, args))?;
    let mut measure = |case: &Case, round: usize| -> Result<Round> {
        bar.set_message(format!("{:?}, round {}", case.load, round + 1));
        // Who begins changes, so that a disk that grows slower or faster favours nobody.
        let fio_first = if with_fio && round.is_multiple_of(2) { Some(fio.run(case.job)?) } else { None };
        let row = bench.run(case.load)?;
        let raw = if with_fio && fio_first.is_none() { Some(fio.run(case.job)?) } else { fio_first };
        Ok((row, raw))
    };
    let (mut plain, mut synchronous) = cases(tmpfs);
    if !with_fio {
        // Some differ in what fio does only.
        plain.dedup_by_key(|case| case.load);
        synchronous.dedup_by_key(|case| case.load);
    }
    let mut compared = Vec::new();
    for case in &plain {
        let rounds: Vec<Round> = (0..args.rounds).map(|round| measure(case, round)).collect::<Result<_>>()?;
        compared.push(compared_of(case, &rounds));
    }
    // One writer and many in each round, so that a gain is one of the same seconds.
    let mut rounds: Vec<Vec<Round>> = synchronous.iter().map(|_| Vec::new()).collect();
    for round in 0..args.rounds {
        for (case, taken) in synchronous.iter().zip(&mut rounds) {
            taken.push(measure(case, round)?);
        }
    }
    compared.extend(synchronous.iter().zip(&rounds).map(|(case, rounds)| compared_of(case, rounds)));
    let many = synchronous.iter().zip(&rounds).skip(1);
    let gains = many.filter_map(|(case, many)| gain_of(case, &rounds[0], many, tmpfs)).collect();
    Ok((compared, gains))
}

fn compared_of(case: &Case, rounds: &[Round]) -> Compared {
    let ratios = rounds.iter().filter_map(|(row, raw)| Some(row.iops() / raw.as_ref()?.iops)).collect();
    let ratios = rising(ratios);
    let mut ours: Vec<&Row> = rounds.iter().map(|(row, _)| row).collect();
    ours.sort_by(|a, b| a.iops().total_cmp(&b.iops()));
    let mut theirs: Vec<Rate> = rounds.iter().filter_map(|(_, raw)| *raw).collect();
    theirs.sort_by(|a, b| a.iops.total_cmp(&b.iops));
    let row = ours[ours.len() / 2];
    let writes = matches!(case.load, Load::Write { .. } | Load::SyncWrite { .. });
    let against = if case.against.is_empty() || theirs.is_empty() {
        String::new()
    } else {
        format!(" ({})", case.against)
    };
    Compared {
        load: format!("{}{against}", row.load),
        store: Rate { iops: row.iops(), mb: row.mb_per_second(), cpu_us: row.cpu_us() },
        p50_us: row.p50_us,
        p99_us: row.p99_us,
        fio: theirs.get(theirs.len() / 2).copied(),
        ratio: ratios.get(ratios.len() / 2).copied(),
        ratios,
        goal: case.goal,
        writes_a_flush: if writes { row.operations as f64 / row.groups.max(1) as f64 } else { 0.0 },
    }
}

/// `None` without fio.
fn gain_of(case: &Case, one: &[Round], many: &[Round], tmpfs: bool) -> Option<Gain> {
    let gains = one.iter().zip(many).filter_map(|((one, raw_one), (many, raw_many))| {
        Some((many.iops() / one.iops(), raw_many.as_ref()?.iops / raw_one.as_ref()?.iops))
    });
    let (ours, theirs): (Vec<f64>, Vec<f64>) = gains.unzip();
    let ratios = rising(ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect());
    let (ours, theirs) = (rising(ours), rising(theirs));
    let middle = ratios.len() / 2;
    Some(Gain {
        against: case.against,
        store: *ours.get(middle)?,
        fio: *theirs.get(middle)?,
        ratio: *ratios.get(middle)?,
        ratios,
        goal: case.goal.filter(|_| !tmpfs).map(|_| 0.8),
    })
}

fn rising(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// Queues 1 to 16 under several pdisks and under one busy pdisk, and completions gathered or not.
fn setting_tables(dir: &Path, args: &PdiskBench) -> Result<Vec<SettingRow>> {
    let load = Load::RandomRead { depth: 64, batch: 1 };
    let mut rows = Vec::new();
    for queues in [1, 2, 4, 8, 16] {
        let io = IoConfig { num_io_queues: queues, io_dma_mib: 128, ..IoConfig::default() };
        let size = (args.size.0 / 16).max(64 << 20);
        let mut bench = Bench::start(Options { size, pdisks: 16, io, ..options(dir, args) })?;
        for (said, count, us) in [("", 1, 0), (", coalescing 8/100", 8, 100)] {
            bench.coalesce(count, us)?;
            rows.push(setting_row("queues, 16 pdisks", format!("{queues}{said}"), &bench.run(load)?));
        }
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
            if c.writes_a_flush > 0.0 { format!("{:.1}", c.writes_a_flush) } else { dash() },
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
            "OPS/FLUSH",
            "fio OPS/s",
            "fio MB/s",
            "fio CPU µs",
            "RATIO",
            "GOAL",
            "",
        ],
        report.loads.iter().map(cells).collect(),
    );
    for gain in &report.gains {
        let (least, most) =
            (gain.ratios.first().unwrap_or(&gain.ratio), gain.ratios.last().unwrap_or(&gain.ratio));
        let said = gain.goal.map(|goal| format!(" (goal {goal:.2}: {})", verdict(gain.ratio >= goal)));
        output::line(format!(
            "gain from 1 to 32 synchronous writers: store {:.1}, {} {:.1}, ratio {:.2} ({least:.2}-{most:.2}){}",
            gain.store,
            gain.against,
            gain.fio,
            gain.ratio,
            said.unwrap_or_default()
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
