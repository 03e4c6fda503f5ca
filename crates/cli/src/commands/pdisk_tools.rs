//! `ropewalk pdisk verify|dump`: the tools of one pdisk, without a cluster; and how servers open theirs.

use std::{io::Write, path::Path, time::Duration};

use anyhow::{Context, Result, bail};
use base::{
    ByteSize, ClusterId, PdiskId,
    tunables::{IoEngine, Tunables},
};
use pdisk::{
    EngineChoice, IoConfig, OpenOptions,
    tools::{self, bench},
};

use crate::{
    args::{PdiskBench, PdiskDir},
    output,
};

/// `ropewalk pdisk verify`: exit status 0 only if nothing is wrong.
pub fn verify(args: &PdiskDir) -> Result<()> {
    let bar = output::progress("comparing", 0);
    let report = tools::verify(&args.dir, args.log_dir.as_deref(), &mut |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    if args.json {
        output::json(&report)?;
    } else {
        report.findings.iter().for_each(|finding| output::line(finding.to_string()));
        report.notes.iter().for_each(|note| output::line(format!("note: {note}")));
        output::line(format!(
            "{} strips ({} seals alone), {} of {} used, {} compared, {} of log behind the checkpoint",
            report.strips,
            report.tombstones,
            ByteSize(report.used_bytes),
            ByteSize(report.data_bytes),
            ByteSize(report.compared_bytes),
            ByteSize(report.log_bytes),
        ));
    }
    if !report.is_consistent() {
        bail!("{}: {} inconsistencies", args.dir.display(), report.findings.len() as u64 + report.not_listed);
    }
    Ok(())
}

/// `ropewalk pdisk dump`: a line an item; with `--json` an object a line.
pub fn dump(args: &PdiskDir) -> Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut written = Ok(());
    tools::dump(&args.dir, args.log_dir.as_deref(), &mut |item| {
        if written.is_ok() {
            written = if args.json {
                serde_json::to_writer(&mut out, &item).map_err(Into::into).and_then(|()| out.write_all(b"\n"))
            } else {
                writeln!(out, "{item}")
            };
        }
    })?;
    match written.and_then(|()| out.flush()) {
        // Whoever read it has seen enough.
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("write to standard output"),
    }
}

/// `ropewalk pdisk bench --load`: one load, without a comparison.
pub fn bench_one(dir: &Path, args: &PdiskBench) -> Result<()> {
    let (rows, one_queue) = measure(dir, args)?;
    if args.json {
        let rows = rows.iter().map(|row| -> Result<serde_json::Value> {
            let mut row = serde_json::to_value(row)?;
            row["one_queue"] = one_queue.clone().into();
            Ok(row)
        });
        return output::json(&rows.collect::<Result<Vec<_>>>()?);
    }
    if let Some(why) = one_queue {
        output::note(&why);
    }
    let show = |row: &bench::Row| {
        vec![
            row.load.clone(),
            format!("{:.0}", row.iops()),
            format!("{:.1}", row.mb_per_second()),
            format!("{:.0}", row.p50_us),
            format!("{:.0}", row.p99_us),
            format!("{:.1}", row.cpu_us()),
            row.groups.to_string(),
            format!("{:.0}", row.group_us),
        ]
    };
    output::table(
        &["LOAD", "OPS/s", "MB/s", "P50 µs", "P99 µs", "CPU µs/OP", "LOG GROUPS", "GROUP µs"],
        rows.iter().map(show).collect(),
    );
    Ok(())
}

/// The rows, and why there is one queue only if more were asked for.
fn measure(dir: &Path, args: &PdiskBench) -> Result<(Vec<bench::Row>, Option<String>)> {
    let bar = output::spinner("filling");
    let mut options = bench::Options {
        size: args.size.0,
        time: Duration::from_secs(args.seconds),
        pdisks: args.pdisks,
        queues_per_pdisk: args.queues_per_pdisk,
        ..bench::Options::new(dir)
    };
    options.io.num_io_queues = args.queues.unwrap_or(options.io.num_io_queues);
    options.io.io_dma_mib = args.io_dma_mib.unwrap_or(options.io.io_dma_mib);
    let mut bench = bench::Bench::start(options)?;
    let depth = args.depth;
    let loads = match args.load.as_deref() {
        Some("write") => vec![bench::Load::Write { depth }],
        Some("read") => vec![bench::Load::Read { depth }],
        Some("random-read") => vec![bench::Load::RandomRead { depth, batch: args.batch.min(depth) }],
        Some(_) => vec![bench::Load::SyncWrite { writers: depth }],
        None => vec![
            bench::Load::Write { depth: 8 },
            bench::Load::Read { depth: 8 },
            bench::Load::RandomRead { depth: 32, batch: 1 },
            bench::Load::RandomRead { depth: 32, batch: 8 },
            bench::Load::SyncWrite { writers: 1 },
            bench::Load::SyncWrite { writers: 32 },
        ],
    };
    bar.set_message("measuring");
    let rows = loads.into_iter().map(|load| bench.run(load)).collect::<Result<_, _>>();
    bar.finish_and_clear();
    Ok((rows?, bench.why_one_queue().map(str::to_owned)))
}

/// How the node's queues run. `ROPEWALK_PDISK_FAULT` holds a fault plan, or `@FILE` with one: for tests.
pub fn io_config(tunables: &Tunables) -> Result<IoConfig> {
    let fault = match std::env::var("ROPEWALK_PDISK_FAULT") {
        Ok(plan) => Some(pdisk::FaultPlan::load(&plan).context("read ROPEWALK_PDISK_FAULT")?),
        Err(_) => None,
    };
    let t = tunables;
    Ok(IoConfig {
        num_io_queues: t.num_io_queues(),
        io_coalesce_count: t.io_coalesce_count(),
        io_coalesce_us: t.io_coalesce_us(),
        io_dma_mib: t.io_dma_mib(),
        queue_depth: t.queue_depth_max(),
        io_spin_us: t.io_spin_us(),
        engine: match t.io_engine() {
            IoEngine::Auto => EngineChoice::Auto,
            IoEngine::IoUring => EngineChoice::IoUring,
            IoEngine::Psync => EngineChoice::Psync,
        },
        fault,
    })
}

/// How a server opens a pdisk.
pub fn open_options(tunables: &Tunables, cluster: ClusterId, id: PdiskId) -> OpenOptions {
    OpenOptions {
        queues_per_pdisk: tunables.queues_per_pdisk(),
        // The table allows no more than the option takes.
        fast_write_limit: tunables.fast_write_limit().0 as u32,
        fast_write_memory: tunables.fast_write_memory().0,
        index_memory: Some(tunables.index_memory().0).filter(|bytes| *bytes > 0),
        marks_asked: true,
        ..OpenOptions::new(cluster, id)
    }
}
