//! A job's log in the shape of FULLSTIMER: what an analyst's own tools read.

use std::{
    fmt::Write,
    path::{Path, PathBuf},
};

use super::{build::Report, words::date};
use crate::workload::{Job, Outcome};

/// Seconds, or h:mm:ss.ss from a minute on.
fn time(seconds: f64) -> String {
    if seconds < 60.0 {
        return format!("{seconds:.2} seconds");
    }
    let (minutes, rest) = ((seconds / 60.0) as u64, seconds % 60.0);
    match minutes {
        0..60 => format!("{minutes}:{rest:05.2}"),
        _ => format!("{}:{:02}:{rest:05.2}", minutes / 60, minutes % 60),
    }
}

/// The log of each job of a run, with the name of its file.
pub fn logs(report: &Report) -> Vec<(PathBuf, String)> {
    let mut logs = Vec::new();
    for record in report.plans.iter().flat_map(|plan| &plan.series).flat_map(|series| &series.records) {
        let jobs = record.figures.iter().flat_map(|figures| &figures.jobs);
        let ends = jobs.clone().map(|job| job.started_s + job.used.real_s).fold(0.0, f64::max);
        // Preparation came before the load.
        let began_ms = record.started_ms + ((record.wall_seconds - ends).max(0.0) * 1000.0) as u64;
        // Plans, series, steps and repeats are kept apart.
        let cell = &record.cell;
        let dir = Path::new(&cell.plan).join(format!(
            "{}-{}-{}",
            cell.series.replace(' ', "-"),
            cell.step,
            cell.repeat
        ));
        logs.extend(jobs.map(|job| (dir.join(format!("{}.log", job.name())), fullstimer(job, began_ms))));
    }
    logs
}

/// The log of a job of a load that began at `began_ms` (milliseconds since 1970).
fn fullstimer(job: &Job, began_ms: u64) -> String {
    let used = &job.used;
    let mut log = String::new();
    match &job.outcome {
        Outcome::Right => {}
        Outcome::Wrong(why) | Outcome::Failed(why) => {
            let _ = writeln!(log, "ERROR: {}.", why.replace('\n', " "));
        }
    }
    let _ = writeln!(log, "NOTE: {} {} used (Total process time):", job.engine, job.test);
    let mut row = |name: &str, value: String| {
        let _ = writeln!(log, "      {name:<34}{value}");
    };
    row("real time", time(used.real_s));
    row("user cpu time", time(used.user_s));
    row("system cpu time", time(used.system_s));
    row("memory", format!("{:.2}k", used.memory_bytes as f64 / 1024.0));
    row("Timestamp", date(began_ms + (1000.0 * (job.started_s + used.real_s)) as u64));
    for (name, value) in [
        ("Page Faults", used.faults),
        ("Page Reclaims", used.reclaims),
        ("Voluntary Context Switches", used.voluntary),
        ("Involuntary Context Switches", used.involuntary),
        ("Block Input Operations", used.blocks_in),
        ("Block Output Operations", used.blocks_out),
        ("Bytes Read", used.read_bytes.max(0) as u64),
        ("Bytes Written", used.written_bytes.max(0) as u64),
    ] {
        row(name, value.to_string());
    }
    log
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Used, catalogue::Class};

    #[test]
    fn times_have_the_two_shapes() {
        assert_eq!(time(0.014), "0.01 seconds");
        assert_eq!(time(61.5), "1:01.50");
        assert_eq!(time(3725.0), "1:02:05.00");
        let used = Used { real_s: 2.0, memory_bytes: 236 << 10, ..Used::default() };
        let job = Job {
            test: "gsort".into(),
            class: Class::Io,
            engine: "sort".into(),
            node: 1,
            number: 2,
            started_s: 1.0,
            used,
            outcome: Outcome::Failed("no\nroom".into()),
        };
        let log = fullstimer(&job, 0);
        assert!(log.starts_with("ERROR: no room.\nNOTE: sort gsort used (Total process time):\n"), "{log}");
        assert!(log.contains("real time                         2.00 seconds\n"), "{log}");
        assert!(log.contains("memory                            236.00k\n"), "{log}");
    }
}
