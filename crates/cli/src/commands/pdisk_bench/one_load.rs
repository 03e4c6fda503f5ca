//! `ropewalk pdisk bench --load`: one load, without a comparison.

use std::{path::Path, time::Duration};

use anyhow::Result;
use pdisk::tools::bench;

use crate::{args::PdiskBench, output};

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
    (options.io.io_coalesce_count, options.io.io_coalesce_us) = (args.coalesce_count, args.coalesce_us);
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
