//! `ropewalk pdisk bench`: the strip store against fio, by load; and what it does alone: queues, aging, opening.

mod compare;
mod one_load;
mod report;

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use pdisk::{
    IoConfig,
    tools::bench::{self, Bench, Load, OpenRow, Options, Row},
};

use self::{
    compare::{FIO_FILE, compare, options},
    report::{Report, SettingRow, show},
};
use crate::{args::PdiskBench, output, process::stop::Stop};

/// `ropewalk pdisk bench`. Exit status 0 also where a goal is missed: the table says so.
pub fn bench(args: &PdiskBench) -> Result<()> {
    if let Some(dir) = args.dirs.first().filter(|_| args.open_only) {
        return output::json(&bench::open(dir, IoConfig::default())?);
    }
    args.dirs.iter().try_for_each(|dir| nothing_left(dir))?;
    clean_on_interrupt(args.dirs.clone())?;
    let outcome = measure_all(args);
    while ENDING.load(SeqCst) {
        // What failed did so because its files are taken away; who takes them ends the program.
        std::thread::park();
    }
    outcome
}

fn measure_all(args: &PdiskBench) -> Result<()> {
    if args.load.is_some() {
        return args.dirs.iter().try_for_each(|dir| one_load::bench_one(dir, args));
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
/// What was made is being taken away.
static ENDING: AtomicBool = AtomicBool::new(false);
/// How long what was made is taken away after Ctrl-C.
const CLEAN_MAX: Duration = Duration::from_secs(5);
/// So often it is looked whether something has come again.
const CLEAN_LOOKS: u32 = 10;
/// Between two looks.
const CLEAN_PAUSE: Duration = Duration::from_millis(20);

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

/// From now on Ctrl-C (or SIGTERM) takes away what was made, and ends the program.
fn clean_on_interrupt(dirs: Vec<PathBuf>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let mut stop = {
        let _inside = runtime.enter();
        Stop::listen()?
    };
    std::thread::Builder::new().name("interrupt".into()).spawn(move || {
        runtime.block_on(stop.wait());
        ENDING.store(true, SeqCst);
        // The measurement may be making files meanwhile, until what it needs is gone: it is over when nothing comes any more.
        let (since, mut quiet) = (Instant::now(), 0);
        while quiet < CLEAN_LOOKS && since.elapsed() < CLEAN_MAX {
            let left = dirs.iter().any(|dir| nothing_left(dir).is_err());
            quiet = if left { 0 } else { quiet + 1 };
            for path in dirs.iter().flat_map(|dir| MADE.map(|name| dir.join(name))) {
                // Of the two one is a directory; neither need be there.
                let _ = std::fs::remove_dir_all(&path).or_else(|_| std::fs::remove_file(&path));
            }
            std::thread::sleep(CLEAN_PAUSE);
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
