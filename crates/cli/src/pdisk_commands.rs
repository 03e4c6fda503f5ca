//! `ropewalk pdisk verify|dump`: the tools of one pdisk, without a cluster; and how servers open theirs.

use std::io::Write;

use anyhow::{Context, Result, bail};
use base::{
    ByteSize, ClusterId, PdiskId,
    tunables::{IoEngine, Tunables},
};
use pdisk::{EngineChoice, IoConfig, OpenOptions, tools};

use crate::{args::PdiskDir, output};

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
        ..OpenOptions::new(cluster, id)
    }
}
