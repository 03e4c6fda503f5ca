//! `ropewalk pdisk bench`: the strip store's own queues, on a directory that may be written.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{
    context::{Context, EngineError},
    process::{Running, command},
};
use crate::{
    cell::{Cell, Figures, Latency},
    plan::Step,
    removal::{self, REMOVE_MAX},
};

/// Runs one cell: the step is the number of queues, unless the plan steps something else.
pub fn run(cell: &Cell, context: &Context<'_>) -> Result<Figures, EngineError> {
    let Some(program) = context.ropewalk else {
        return Err(EngineError::Target("the program ropewalk cannot be found".into()));
    };
    let dir = context.targets.dirs.first().map_or(context.work, |dir| dir.as_path());
    let own = dir.join(format!(".ropewalk-lab-pdisk-{}", context.part));
    // A run that was stopped may have left something.
    let _ = removal::tree(&own, REMOVE_MAX);
    fs::create_dir(&own).map_err(|e| EngineError::Target(format!("{}: {e}", own.display())))?;
    let outcome = bench(cell, context, program, &own);
    let _ = removal::tree(&own, REMOVE_MAX);
    outcome
}

fn bench(cell: &Cell, context: &Context<'_>, program: &Path, dir: &Path) -> Result<Figures, EngineError> {
    let param = |key: &str, default: &str| cell.params.get(key).cloned().unwrap_or(default.to_owned());
    let queues = if cell.of == Step::Queues { cell.step.to_string() } else { param("queues", "1") };
    let mut bench = command(None, &program.display().to_string());
    bench.args(["pdisk", "bench"]).arg(dir).args(["--json", "--load", &param("load", "random-read")]);
    bench.args(["--seconds", &context.seconds.ceil().to_string(), "--size", &param("size", "256m")]);
    bench.args(["--queues", &queues, "--pdisks", &param("disks", "1")]);
    bench.args(["--queues-per-pdisk", &param("queues_per_pdisk", "1"), "--depth", &param("depth", "32")]);
    if let Some(mib) = cell.params.get("dma_mib") {
        bench.args(["--io-dma-mib", mib]);
    }
    for (key, option) in [("coalesce_count", "--coalesce-count"), ("coalesce_us", "--coalesce-us")] {
        cell.params.get(key).into_iter().for_each(|value| {
            bench.args([option, value]);
        });
    }
    let limit = context.seconds.ceil() + 120.0;
    let text = Running::start(bench, "ropewalk", limit, context)?.output(context)?;
    // Filling came first.
    if let Some(began) = Instant::now().checked_sub(Duration::from_secs_f64(context.seconds.ceil())) {
        context.load_begins(began);
    }
    figures(&text)
}

fn figures(text: &str) -> Result<Figures, EngineError> {
    let bad = |why: String| EngineError::Output { program: "ropewalk pdisk bench".into(), why };
    let root: Value = serde_json::from_str(text).map_err(|e| bad(e.to_string()))?;
    let row = &root[0];
    let need = |key: &str| row[key].as_f64().ok_or_else(|| bad(format!("no {key:?}")));
    let (operations, bytes, seconds) = (need("operations")?, need("bytes")?, need("took_s")?);
    if operations <= 0.0 || seconds <= 0.0 {
        return Err(bad("no operation was done".into()));
    }
    let (mean, p50, p99) = (need("mean_us")?, need("p50_us")?, need("p99_us")?);
    let latency = Some(Latency { mean, p50, p99, p999: need("p999_us")?, max: need("max_us")? });
    let one_queue = row["one_queue"].as_str().map(str::to_owned);
    let (operations, bytes) = (operations / seconds, bytes / seconds);
    Ok(Figures { operations, bytes, latency, one_queue, ..Figures::default() })
}

#[cfg(test)]
mod tests {
    #[test]
    fn reads_what_the_bench_prints() {
        let text = "[{\"load\":\"x\",\"operations\":20,\"bytes\":81920,\"took_s\":2.0,\
                    \"mean_us\":6,\"p50_us\":5,\"p99_us\":9,\"p999_us\":10,\"max_us\":11}]";
        let figures = super::figures(text).unwrap();
        let latency = figures.latency.unwrap();
        assert_eq!((latency.mean, latency.p99, latency.p999, latency.max), (6.0, 9.0, 10.0, 11.0));
        assert_eq!((figures.operations, figures.bytes, figures.one_queue), (10.0, 40960.0, None));
        let fallen = super::figures(&text.replace("}]", ",\"one_queue\":\"too little\"}]")).unwrap();
        assert_eq!(fallen.one_queue.as_deref(), Some("too little"));
        for text in ["", "[]", "[{}]", "{}"] {
            assert!(super::figures(text).is_err(), "{text}");
        }
    }
}
