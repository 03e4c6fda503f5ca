//! `ropewalk perf`, gpfsperf's job: one process for each client node, with a common start. A client node is a
//! directory named as writable: a mount of its own, or one that several share.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde_json::Value;

use super::{
    context::{Context, EngineError},
    process::{Running, command},
};
use crate::{
    cell::{Cell, Figures, Latency},
    plan::Step,
};

/// From starting the processes to their common start. Who begins later than that fails: a busy machine takes a second.
const LEAD: Duration = Duration::from_millis(1500);
/// How long making one file for a reading cell may take, and how long a job may, in seconds.
const JOB_MAX: f64 = 600.0;

fn file(cell: &Cell, context: &Context<'_>, n: usize) -> PathBuf {
    let dirs = &context.targets.dirs;
    let dir: &Path = match dirs.len() {
        0 => context.work,
        many => &dirs[(context.part as usize + n) % many],
    };
    // One file for all is the first one's, each by its own mount.
    let n = if yes(cell, "shared") { 0 } else { n };
    dir.join(format!("{}{n}", prefix(context)))
}

/// How the names of this node's files begin.
fn prefix(context: &Context<'_>) -> String {
    format!(".ropewalk-lab-perf-{}-", context.part)
}

fn text<'a>(cell: &'a Cell, key: &str, default: &'a str) -> &'a str {
    cell.params.get(key).map_or(default, String::as_str)
}

fn yes(cell: &Cell, key: &str) -> bool {
    text(cell, key, "false") == "true"
}

/// How many processes make the load of a cell: one for each client node.
fn nodes(cell: &Cell) -> usize {
    match cell.of {
        Step::Nodes => cell.step as usize,
        _ => text(cell, "clients", "1").parse().unwrap_or(1),
    }
}

fn job(
    cell: &Cell,
    context: &Context<'_>,
    operation: &str,
    n: usize,
    start: Option<f64>,
) -> Result<Running, EngineError> {
    let Some(program) = context.ropewalk else {
        return Err(EngineError::Target("the program ropewalk cannot be found".into()));
    };
    let mut perf = command(None, &program.display().to_string());
    let pattern = if operation == "create" { "seq" } else { text(cell, "pattern", "seq") };
    perf.args(["perf", operation, pattern]).arg(file(cell, context, n));
    perf.args(["-r", text(cell, "record", "1m"), "-n", text(cell, "amount", "256m"), "--json"]);
    match cell.of {
        Step::Workers => perf.args(["--th", &cell.step.to_string()]),
        _ => perf.args(["--th", text(cell, "threads", "1")]),
    };
    if yes(cell, "dio") {
        perf.arg("--dio");
    }
    if yes(cell, "cached") {
        perf.arg("--noinv");
    }
    if operation == "mixrw" {
        perf.args(["--readratio", text(cell, "readratio", "70")]);
    }
    if operation != "read" && text(cell, "fsync", "true") == "true" {
        perf.arg("--fsync");
    }
    if let Some(at) = start {
        perf.args(["--start-at", &format!("{at:.3}")]);
    }
    Running::start(perf, "ropewalk", JOB_MAX, context)
}

/// Makes the files that the cell reads, before anything is observed.
pub fn prepare(cell: &Cell, context: &Context<'_>) -> Result<(), EngineError> {
    if text(cell, "operation", "read") == "create" {
        return Ok(());
    }
    let wanted = text(cell, "amount", "256m").parse::<base::ByteSize>().map_or(0, |size| size.0);
    for n in 0..nodes(cell) {
        if fs::metadata(file(cell, context, n)).map(|m| m.len()).ok() != Some(wanted) {
            job(cell, context, "create", n, None)?.output(context)?;
        }
        if yes(cell, "cached") {
            job(cell, context, "read", n, None)?.output(context)?;
        }
    }
    Ok(())
}

/// Removes the files again.
pub fn clean(context: &Context<'_>) {
    let own = prefix(context);
    for dir in context.targets.dirs.iter().map(PathBuf::as_path).chain([context.work]) {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        for entry in entries.filter(|e| e.file_name().to_string_lossy().starts_with(&own)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Runs one cell: as many processes as it has client nodes.
pub fn run(cell: &Cell, context: &Context<'_>) -> Result<Figures, EngineError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let start = (now + LEAD).as_secs_f64();
    let operation = text(cell, "operation", "read");
    let jobs: Vec<Running> =
        (0..nodes(cell)).map(|n| job(cell, context, operation, n, Some(start))).collect::<Result<_, _>>()?;
    context.load_begins(Instant::now() + LEAD);
    let mut sum = Figures::default();
    let mut longest = 0.0f64;
    let (mut bytes, mut operations) = (0.0, 0.0);
    for (n, job) in jobs.into_iter().enumerate() {
        let one = figures(&job.output(context)?)?;
        bytes += one.bytes;
        operations += one.operations;
        longest = longest.max(one.elapsed);
        sum.parts.insert(format!("client {}", n + 1), one.bytes / one.elapsed.max(1e-9));
        let latency = sum.latency.get_or_insert_default();
        for (all, own) in [
            (&mut latency.mean, one.latency.mean),
            (&mut latency.p50, one.latency.p50),
            (&mut latency.p99, one.latency.p99),
            (&mut latency.p999, one.latency.p999),
            (&mut latency.max, one.latency.max),
        ] {
            *all = all.max(own);
        }
    }
    // All bytes by the time of the slowest: a client that ends early must not look faster together.
    sum.bytes = bytes / longest.max(1e-9);
    sum.operations = operations / longest.max(1e-9);
    Ok(sum)
}

struct One {
    bytes: f64,
    operations: f64,
    elapsed: f64,
    latency: Latency,
}

fn figures(text: &str) -> Result<One, EngineError> {
    let bad = |why: String| EngineError::Output { program: "ropewalk perf".into(), why };
    let root: Value = serde_json::from_str(text).map_err(|e| bad(e.to_string()))?;
    // One report for each repetition.
    let report = &root["runs"][0];
    let number = |value: &Value| value.as_f64().filter(|v| v.is_finite());
    let need = |key: &str| number(&report[key]).ok_or_else(|| bad(format!("no {key:?}")));
    let (bytes, operations, elapsed) = (need("bytes")?, need("operations")?, need("took_s")?);
    if bytes <= 0.0 || elapsed <= 0.0 {
        return Err(bad("nothing was moved".into()));
    }
    let us = |key: &str| {
        let of = |part: &str| number(&report[part]["latency"][key]).unwrap_or_default() * 1e3;
        of("reads").max(of("writes"))
    };
    let latency = Latency {
        mean: us("mean_ms"),
        p50: us("p50_ms"),
        p99: us("p99_ms"),
        p999: us("p999_ms"),
        max: us("max_ms"),
    };
    Ok(One { bytes, operations, elapsed, latency })
}

#[cfg(test)]
mod tests {
    #[test]
    fn reads_what_perf_prints() {
        let report = "{\"bytes\":2000000,\"operations\":20,\"took_s\":2.0,\"reads\":{\"latency\":{\"p99_ms\":1.5}},\
                      \"writes\":{\"latency\":{\"p99_ms\":0.5}}}";
        let one = super::figures(&format!("{{\"runs\":[{report}]}}")).unwrap();
        assert_eq!((one.bytes, one.operations, one.elapsed, one.latency.p99), (2e6, 20.0, 2.0, 1500.0));
        for text in ["", "[]", "{}", "{\"runs\":[{\"bytes\":0,\"operations\":0,\"took_s\":1}]}"] {
            assert!(super::figures(text).is_err(), "{text}");
        }
    }
}
