//! `ropewalk lab ceilings` and `lab array`.

use std::{
    num::NonZeroU64,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use base::ByteSize;
use lab::ceiling;
use serde::Serialize;

use crate::{args::Array, output};

#[derive(Serialize)]
struct Ceilings {
    loopback_tcp_gb_per_second: f64,
    loopback_tcp_connections: u32,
    loopback_tcp_cpu_seconds_per_gb: f64,
    disk_write_gb_per_second: f64,
    disk_read_gb_per_second: f64,
    disk_direct: bool,
    pipeline_read_gb_per_second: f64,
    pipeline_write_gb_per_second: f64,
    pipeline_read_cpu_seconds_per_gb: f64,
    pipeline_write_cpu_seconds_per_gb: f64,
    bytes: u64,
}

/// `ropewalk lab ceilings`.
pub fn ceilings(dir: &Path, size: ByteSize, json: bool) -> Result<()> {
    let bar = output::spinner("measuring loopback TCP");
    let mut best: Option<(u32, ceiling::Rate)> = None;
    for connections in [1, 2, 4] {
        let rate = ceiling::loopback_tcp(Duration::from_secs(2), connections as _)?;
        if best.as_ref().is_none_or(|(_, b)| rate.gb_per_second() > b.gb_per_second()) {
            best = Some((connections, rate));
        }
    }
    let (connections, tcp) = best.context("no measurement of loopback TCP")?;
    bar.set_message("measuring the disk");
    let (write, read) = ceiling::disk(dir, size.0)?;
    bar.set_message("measuring file, CRC, TCP, memory, CRC");
    let best = |way| -> Result<ceiling::Rate> {
        let rates = [1, 2].map(|connections| ceiling::pipeline(dir, size.0, connections, way));
        let [one, two] = rates;
        let (one, two) = (one?, two?);
        Ok(if one.gb_per_second() > two.gb_per_second() { one } else { two })
    };
    let (pipe_read, pipe_write) = (best(ceiling::Way::Read)?, best(ceiling::Way::Write)?);
    bar.finish_and_clear();
    let result = Ceilings {
        loopback_tcp_gb_per_second: tcp.gb_per_second(),
        loopback_tcp_connections: connections,
        loopback_tcp_cpu_seconds_per_gb: tcp.cpu_seconds_per_gb(),
        disk_write_gb_per_second: write.rate.gb_per_second(),
        disk_read_gb_per_second: read.rate.gb_per_second(),
        disk_direct: write.direct && read.direct,
        pipeline_read_gb_per_second: pipe_read.gb_per_second(),
        pipeline_write_gb_per_second: pipe_write.gb_per_second(),
        pipeline_read_cpu_seconds_per_gb: pipe_read.cpu_seconds_per_gb(),
        pipeline_write_cpu_seconds_per_gb: pipe_write.cpu_seconds_per_gb(),
        bytes: size.0,
    };
    if json {
        return output::json(&result);
    }
    let direct = if result.disk_direct { "O_DIRECT" } else { "buffered: O_DIRECT is refused there" };
    let row = |what: String, rate: f64| vec![what, format!("{rate:.2}")];
    output::table(
        &["RAW CEILING", "GB/s"],
        vec![
            row(
                format!("loopback TCP, best of 1, 2, 4 connections ({connections})"),
                result.loopback_tcp_gb_per_second,
            ),
            row(
                format!("disk under {}, write {size} and flush ({direct})", dir.display()),
                result.disk_write_gb_per_second,
            ),
            row(
                format!("disk under {}, read {size} ({direct})", dir.display()),
                result.disk_read_gb_per_second,
            ),
            row(
                "raw pipeline: read that file (buffered), CRC, TCP, receive, CRC; best of 1, 2 connections"
                    .into(),
                result.pipeline_read_gb_per_second,
            ),
            row(
                "raw pipeline: CRC, TCP, receive, CRC, write that file (buffered)".into(),
                result.pipeline_write_gb_per_second,
            ),
        ],
    );
    Ok(())
}

/// `ropewalk lab array`.
pub fn array(args: &Array) -> Result<()> {
    let setup = layout::sim::Setup {
        nodes: args.nodes,
        pdisks_per_node: args.pdisks,
        code: args.code.parse()?,
        groups: None,
        spare: 0,
        seed: 1,
        pdisk_bytes: args.pdisk_size.0,
        pdisk_bytes_per_second: NonZeroU64::new(u64::from(args.rate.get()) * 1_000_000)
            .context("a rate of zero")?,
    };
    let bar = output::spinner("building the layout table");
    let start = Instant::now();
    let report = layout::sim::simulate(&setup, || start.elapsed())?;
    bar.finish_and_clear();
    if args.json {
        return output::json(&report);
    }
    output::line(report.to_string().trim_end());
    Ok(())
}
