//! What was measured in one directory, as a table for people.

use std::path::PathBuf;

use base::ByteSize;
use pdisk::tools::bench::{Aging, OpenRow};
use serde::Serialize;

use super::compare::{Compared, Gain, Rate};
use crate::output;

/// One line of a table of settings.
#[derive(Serialize)]
pub struct SettingRow {
    pub table: &'static str,
    pub setting: String,
    pub iops: f64,
    pub cpu_seconds_per_second: f64,
    pub iops_per_cpu_second: f64,
    pub p50_us: f64,
}

/// Everything measured in one directory.
#[derive(Serialize)]
pub struct Report {
    pub dir: PathBuf,
    pub tmpfs: bool,
    pub loads: Vec<Compared>,
    pub gains: Vec<Gain>,
    pub tables: Vec<SettingRow>,
    pub open: Option<OpenRow>,
    pub aging: Option<Aging>,
}

/// Most seconds that opening 1,000,000 strips may take.
const OPEN_GOAL_S: f64 = 5.0;

/// Most memory that opening may take: bytes a strip, and the CRCs, 4 bytes for each 4096 of the data file.
const OPEN_BYTES_A_STRIP: u64 = 1024;

fn verdict(good: bool) -> String {
    if good { "pass" } else { "MISS" }.to_owned()
}

/// Prints it.
pub fn show(report: &Report) {
    let kind = if report.tmpfs { "tmpfs" } else { "disk" };
    output::line(format!("\n{} ({kind}); MB is 10^6 bytes; CPU is of all threads", report.dir.display()));
    let dash = || "-".to_owned();
    let cells = |c: &Compared| {
        let of = |f: &dyn Fn(&Rate) -> String| c.fio.as_ref().map_or_else(dash, f);
        vec![
            c.load.clone(),
            format!("{:.0}", c.store.iops),
            format!("{:.0}", c.store.bytes_per_second / 1e6),
            format!("{:.1}", c.store.cpu_us),
            format!("{:.0}", c.p50_us),
            format!("{:.0}", c.p99_us),
            if c.writes_a_flush > 0.0 { format!("{:.1}", c.writes_a_flush) } else { dash() },
            of(&|f| format!("{:.0}", f.iops)),
            of(&|f| format!("{:.0}", f.bytes_per_second / 1e6)),
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
