//! The store's loads against fio's: same block size, depth, file size and disk, turn by turn in one run. Every figure is the
//! median of the rounds, each ratio that of the rounds' ratios, beside its goal.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use pdisk::tools::bench::{Bench, Load, Options, Row};
use serde::Serialize;

use crate::{args::PdiskBench, output};

/// Operations and bytes a second, CPU microseconds an operation.
#[derive(Clone, Copy, Default, Serialize)]
pub struct Rate {
    pub iops: f64,
    pub bytes_per_second: f64,
    pub cpu_us: f64,
}

/// One load, ours and fio's.
#[derive(Serialize)]
pub struct Compared {
    pub load: String,
    pub store: Rate,
    pub p50_us: f64,
    pub p99_us: f64,
    pub fio: Option<Rate>,
    /// The median of the rounds' ratios: the rates of a shared disk change from round to round.
    pub ratio: Option<f64>,
    /// Of each round, rising.
    pub ratios: Vec<f64>,
    /// The least ratio that is good enough; `None`: no goal is set for this load here.
    pub goal: Option<f64>,
    /// Operations that one flush of the log made durable; 0: nothing was written.
    pub writes_a_flush: f64,
}

/// What many synchronous writers reach more than one.
#[derive(Serialize)]
pub struct Gain {
    /// What fio's many are.
    pub against: &'static str,
    /// Medians of the rounds.
    pub store: f64,
    pub fio: f64,
    /// The median of the rounds' ratios.
    pub ratio: f64,
    pub ratios: Vec<f64>,
    pub goal: Option<f64>,
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

/// What fio makes in the directory that is measured.
pub const FIO_FILE: &str = "pdisk-bench.fio";

/// How the store is measured.
pub fn options(dir: &Path, args: &PdiskBench) -> Options {
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

/// Measures every load in turn.
pub fn compare(
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
        store: Rate { iops: row.iops(), bytes_per_second: row.mb_per_second() * 1e6, cpu_us: row.cpu_us() },
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
        Ok(Rate { iops, bytes_per_second: number(&side["bw_bytes"]), cpu_us: cpu * 1e6 / iops.max(1.0) })
    }
}

impl Drop for Fio {
    fn drop(&mut self) {
        // Not there, if fio never ran.
        let _ = std::fs::remove_file(&self.file);
    }
}
