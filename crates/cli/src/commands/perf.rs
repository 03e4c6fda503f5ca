//! `ropewalk perf`: finds the mount or the client library, the processes whose CPU time counts, and lets
//! the lab run the job.

use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, Result, bail};
use lab::perf::{
    CLIENT, Direct, Mounted, PerfError, Process, Report, SERVER, Spec, Style, Surroundings, Target,
};
use serde::Serialize;

use crate::{
    args::Perf,
    cluster_dir::ClusterDir,
    interrupt::Interrupted,
    output,
    process::{admin, endpoint, mounts, pid_file, stop::Stop, tunables},
};

/// How long the end of the direct client may take to write what is dirty.
const FLUSH_PATIENCE: Duration = Duration::from_secs(300);

/// Set by Ctrl-C and SIGTERM.
static STOP: AtomicBool = AtomicBool::new(false);

/// `ropewalk perf`.
pub fn perf(args: &Perf) -> Result<()> {
    let runtime = endpoint::runtime()?;
    // From before the file is opened on.
    let mut stop = runtime.block_on(async { Stop::listen() })?;
    runtime.spawn(async move {
        stop.wait().await;
        STOP.store(true, Relaxed);
    });
    let (dir, mount) = if args.direct_client {
        (Some(args.dir.open()?), None)
    } else {
        // A file that is on no mount is in no cluster, whichever --dir or ROPEWALK_DIR names.
        match mounts::of_file(&args.file) {
            Some((mountpoint, Some(cluster))) => (Some(cluster), Some(mountpoint)),
            Some((mountpoint, None)) => {
                (args.dir.dir.as_deref().map(ClusterDir::open).transpose()?, Some(mountpoint))
            }
            None => (None, None),
        }
    };
    let processes = processes(dir.as_ref(), mount.as_deref());
    let reports = match &dir {
        Some(dir) if args.direct_client => direct(args, dir, &processes, &runtime)?,
        _ => repeat(args, &Mounted, &processes)?,
    };
    show(args, &reports)
}

/// The processes on this machine that serve the file, besides this one.
fn processes(dir: Option<&ClusterDir>, mountpoint: Option<&Path>) -> Vec<Process> {
    let mut found = Vec::new();
    if let Some((pid, _)) = mountpoint.and_then(|at| mounts::server_of(at).ok().flatten()) {
        found.push(Process { role: CLIENT, pid });
    }
    if let Some(dir) = dir {
        let pids = dir.server_names().into_iter().filter_map(|name| pid_file::live_pid(&dir.pid_file(&name)));
        found.extend(pids.map(|pid| Process { role: SERVER, pid }));
    }
    found
}

fn direct(
    args: &Perf,
    dir: &ClusterDir,
    processes: &[Process],
    runtime: &tokio::runtime::Runtime,
) -> Result<Vec<Report>> {
    let client = runtime.block_on(async {
        let own = endpoint::start_client_endpoint(dir)?;
        admin::serve_admin(&own, "client", "perf");
        tunables::begin(&own, dir).await;
        let config = endpoint::client_config(dir, &args.fs, "(ropewalk perf)".into(), &own);
        endpoint::mount_client(dir, &own, config).await
    })?;
    let fs = client::blocking::FileSystem::new(client.clone(), runtime.handle().clone());
    let reports = repeat(args, &Direct::new(fs), processes);
    let ended = runtime.block_on(client.shutdown(Instant::now() + FLUSH_PATIENCE));
    let reports = reports?;
    ended.context("write what is left")?;
    Ok(reports)
}

fn repeat(args: &Perf, target: &dyn Target, processes: &[Process]) -> Result<Vec<Report>> {
    let spec = Spec {
        operation: args.operation,
        pattern: args.pattern,
        record: args.record.map(|r| r.0),
        amount: args.amount,
        stride: args.stride,
        threads: args.threads,
        read_ratio: args.read_ratio,
        direct: args.direct,
        fsync: args.fsync,
        sync_writes: args.sync_writes,
        invalidate: !args.keep_caches,
        verify: args.verify,
        seed: args.seed,
    };
    let start_at = match args.start_at {
        None => None,
        Some(seconds) => {
            let since = Duration::try_from_secs_f64(seconds).context("--start-at: no time")?;
            if SystemTime::UNIX_EPOCH + since < SystemTime::now() {
                bail!("--start-at {seconds}: that time has passed");
            }
            Some(SystemTime::UNIX_EPOCH + since)
        }
    };
    let mut reports = Vec::new();
    for run in 0..args.repeat {
        let bar = output::byte_progress("transferring", 0);
        let progress = |done, all| {
            bar.set_length(all);
            bar.set_position(done);
        };
        let around = Surroundings {
            processes,
            start_at: start_at.filter(|_| run == 0),
            stop: &STOP,
            progress: &progress,
        };
        let report = match lab::perf::run(target, &args.file, &spec, &around) {
            Err(stopped @ PerfError::Stopped) => return Err(Interrupted(stopped.to_string()).into()),
            ended => ended?,
        };
        bar.finish_and_clear();
        reports.push(report);
    }
    Ok(reports)
}

#[derive(Serialize)]
struct Output<'a> {
    command: String,
    runs: &'a [Report],
    median_bytes_per_second: f64,
    median_operations_per_second: f64,
}

fn show(args: &Perf, reports: &[Report]) -> Result<()> {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let command = words.collect::<Vec<_>>().join(" ");
    let median = |of: fn(&Report) -> f64| {
        let mut all: Vec<f64> = reports.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or(0.0)
    };
    let out = Output {
        command: format!("ropewalk {command}"),
        runs: reports,
        median_bytes_per_second: median(|r| r.bytes_per_second),
        median_operations_per_second: median(|r| r.operations_per_second),
    };
    if args.json {
        return output::json(&out);
    }
    let style = match args.style.as_str() {
        "mid" => Style::Mid,
        "old" => Style::Old,
        _ => Style::New,
    };
    for report in reports {
        output::line(report.lines(&out.command, style).trim_end());
        if report.operations > 0 {
            output::line(report.more_lines(args.histogram).trim_end());
        }
    }
    if reports.len() > 1 {
        output::line(format!(
            "  median of {}: {:.2} MB/s, {:.2} Ops/sec",
            reports.len(),
            out.median_bytes_per_second / 1e6,
            out.median_operations_per_second
        ));
    }
    Ok(())
}
