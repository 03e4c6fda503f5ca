//! What a job gave, and the three ways in which gpfsperf has printed it.
//!
//! The unit of "Kbytes" changed with the shape of the line: 1000 bytes where "Op Rate" stands, 1024
//! before. In all of them: thread utilization = operation rate x average latency / threads.

use std::{
    fmt::Write,
    path::{Path, PathBuf},
    time::Duration,
};

use base::stats::HistSnapshot;
use serde::Serialize;

use super::{
    cpu::Cpu,
    job::{Job, Operation, Pattern},
};

/// Which of gpfsperf's report lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Style {
    /// "Op Rate", "Avg Latency"; Kbytes of 1000.
    #[default]
    New,
    /// "iops" and a line of CPU utilization; Kbytes of 1024.
    Mid,
    /// Rate and thread utilization only; Kbytes of 1024.
    Old,
}

/// The reads or the writes of a job.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Part {
    /// Records.
    pub operations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Latency of a record, milliseconds.
    pub latency: Latency,
}

/// Latency in milliseconds, and how it is spread.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Latency {
    /// All together, seconds.
    #[serde(rename = "sum_s")]
    pub sum_seconds: f64,
    /// Mean.
    #[serde(rename = "mean_ms")]
    pub mean: f64,
    /// The shortest.
    #[serde(rename = "min_ms")]
    pub min: f64,
    /// Half were not longer.
    #[serde(rename = "p50_ms")]
    pub p50: f64,
    /// 90 % were not longer.
    #[serde(rename = "p90_ms")]
    pub p90: f64,
    /// 99 %.
    #[serde(rename = "p99_ms")]
    pub p99: f64,
    /// 99.9 %.
    #[serde(rename = "p999_ms")]
    pub p999: f64,
    /// The longest.
    #[serde(rename = "max_ms")]
    pub max: f64,
    /// (below so many microseconds, operations), powers of two of nanoseconds.
    pub histogram: Vec<(f64, u64)>,
}

impl Part {
    /// From what was recorded.
    pub fn new(recorded: &HistSnapshot, record_bytes: u64) -> Part {
        Part {
            operations: recorded.count(),
            bytes: recorded.count() * record_bytes,
            latency: Latency::new(recorded),
        }
    }
}

impl Latency {
    fn new(recorded: &HistSnapshot) -> Latency {
        let ms = |d: Duration| d.as_secs_f64() * 1e3;
        let mut histogram = Vec::new();
        let mut below = 0;
        for bits in 0..=40 {
            let n = recorded.count_below_power(bits) - below;
            below += n;
            if n > 0 {
                histogram.push(((1u64 << bits) as f64 / 1e3, n));
            }
        }
        if recorded.count() > below {
            histogram.push((f64::INFINITY, recorded.count() - below));
        }
        Latency {
            sum_seconds: recorded.sum().as_secs_f64(),
            mean: ms(recorded.mean()),
            min: ms(recorded.min()),
            p50: ms(recorded.quantile(0.5)),
            p90: ms(recorded.quantile(0.9)),
            p99: ms(recorded.quantile(0.99)),
            p999: ms(recorded.quantile(0.999)),
            max: ms(recorded.max()),
            histogram,
        }
    }
}

fn as_text<S: serde::Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}

/// What a job gave. Rates are decimal.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The file. JSON is text: there a name that is none is shown as nearly as text can.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// What was done.
    pub job: Job,
    /// The file's cache was given up before.
    pub uncached: bool,
    /// From the common start to the end of the last thread, with fsync where asked for.
    #[serde(rename = "took_s")]
    pub elapsed_seconds: f64,
    /// Bytes moved.
    pub bytes: u64,
    /// Records moved.
    pub operations: u64,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// Records a second.
    pub operations_per_second: f64,
    /// Mean latency of a record, milliseconds.
    pub latency_ms: f64,
    /// Share of the threads' time that was spent in calls.
    pub thread_utilization: f64,
    /// The reads.
    pub reads: Part,
    /// The writes.
    pub writes: Part,
    /// CPU time of client and servers.
    pub cpu: Cpu,
    /// CPU-seconds for 10^9 bytes: client (this process and the mount's).
    pub client_cpu_seconds_per_gb: f64,
    /// The same of the servers, where known.
    pub server_cpu_seconds_per_gb: Option<f64>,
    /// The whole machine meanwhile, percent: user, system, idle, wait.
    pub machine_percent: Option<[f64; 4]>,
}

impl Report {
    /// From what was measured: `[reads, writes]`, machine ticks before and after.
    pub fn new(
        path: &Path,
        job: Job,
        elapsed: Duration,
        parts: [Part; 2],
        cpu: Cpu,
        machine: Option<([u64; 4], [u64; 4])>,
    ) -> Report {
        let [reads, writes] = parts;
        let seconds = elapsed.as_secs_f64().max(1e-9);
        let (bytes, operations) = (reads.bytes + writes.bytes, reads.operations + writes.operations);
        let in_calls = reads.latency.sum_seconds + writes.latency.sum_seconds;
        let per_gb = |cpu: f64| if bytes == 0 { 0.0 } else { cpu / (bytes as f64 / 1e9) };
        Report {
            path: path.to_owned(),
            uncached: false,
            elapsed_seconds: elapsed.as_secs_f64(),
            bytes,
            operations,
            bytes_per_second: bytes as f64 / seconds,
            operations_per_second: operations as f64 / seconds,
            latency_ms: in_calls / operations.max(1) as f64 * 1e3,
            thread_utilization: in_calls / seconds / f64::from(job.spec.threads.max(1)),
            reads,
            writes,
            client_cpu_seconds_per_gb: per_gb(cpu.client_seconds),
            server_cpu_seconds_per_gb: cpu.server_seconds.map(per_gb),
            cpu,
            machine_percent: machine.map(percent),
            job,
        }
    }

    /// Nothing was moved: the file's cache was given up.
    pub fn uncached(path: &Path, job: Job) -> Report {
        let none = || Part::new(&HistSnapshot::default(), 0);
        let cpu = Cpu::default();
        let report = Report::new(path, job, Duration::ZERO, [none(), none()], cpu, None);
        Report { uncached: true, ..report }
    }

    /// gpfsperf's lines under its echo of the command.
    pub fn lines(&self, command: &str, style: Style) -> String {
        let job = &self.job;
        let mut out = format!("{command}\n");
        if job.spec.operation == Operation::Uncache {
            out += "  file cache flushed\n";
            return out;
        }
        let yes =
            |on: bool, what: &'static str, not: &'static str| format!("  {}\n", if on { what } else { not });
        let size = |bytes| short(bytes);
        out += &format!(
            "  recSize {} nBytes {} fileSize {}\n",
            size(job.record_bytes),
            size(job.transfer_bytes),
            size(job.file_bytes)
        );
        out += &format!("  nProcesses 1 nThreadsPerProcess {}\n", job.spec.threads);
        if job.spec.pattern == Pattern::Strided {
            out += &format!("  stride {}\n", size(job.stride_bytes));
        }
        if job.spec.operation == Operation::MixRw {
            out += &format!("  read ratio {}%\n", job.spec.read_ratio);
        }
        out += &yes(self.uncached, "file cache flushed before test", "file cache not flushed before test");
        out += &yes(job.spec.direct, "using direct I/O", "not using direct I/O");
        if job.transfer_bytes > job.file_bytes {
            out += "  offsets accessed will cycle through the same file segment\n";
        }
        out += "  not using shared memory buffer\n  not releasing byte-range token after open\n";
        if job.spec.sync_writes {
            out += "  every write synchronous\n";
        }
        out += &yes(job.spec.fsync && job.writes(), "fsync at end of test", "no fsync at end of test");
        out += &format!("    {}\n", self.rate_line(style));
        if style == Style::Mid
            && let Some([user, system, idle, wait]) = self.machine_percent
        {
            let _ = writeln!(
                out,
                "    CPU utilization: user {user:.2}%, sys {system:.2}%, idle {idle:.2}%, wait {wait:.2}%"
            );
        }
        out
    }

    fn rate_line(&self, style: Style) -> String {
        let utilization = self.thread_utilization;
        match style {
            Style::New => format!(
                "Data rate was {:.2} Kbytes/sec, Op Rate was {:.2} Ops/sec, Avg Latency was {:.3} milliseconds, \
                 thread utilization {utilization:.3}, bytesTransferred {}",
                self.bytes_per_second / 1000.0,
                self.operations_per_second,
                self.latency_ms,
                self.bytes
            ),
            Style::Mid => format!(
                "Data rate was {:.2} Kbytes/sec, iops was {:.2}, thread utilization {utilization:.3}",
                self.bytes_per_second / 1024.0,
                self.operations_per_second
            ),
            Style::Old => format!(
                "Data rate was {:.2} Kbytes/sec, thread utilization {utilization:.3}",
                self.bytes_per_second / 1024.0
            ),
        }
    }

    /// What gpfsperf does not tell: reads and writes apart, latencies, CPU time.
    pub fn more_lines(&self, histogram: bool) -> String {
        let mut out = String::new();
        for (name, part) in [("read", &self.reads), ("write", &self.writes)] {
            if part.operations == 0 {
                continue;
            }
            let l = &part.latency;
            let rate = part.bytes as f64 / self.elapsed_seconds.max(1e-9) / 1e6;
            let _ = writeln!(
                out,
                "    {name}: {rate:.2} MB/s; latency in ms: mean {:.3} min {:.3} p50 {:.3} p90 {:.3} p99 {:.3} \
                 p99.9 {:.3} max {:.3}",
                l.mean, l.min, l.p50, l.p90, l.p99, l.p999, l.max
            );
            if histogram {
                out += &bars(&l.histogram);
            }
        }
        let _ = write!(out, "    CPU-seconds per GB: client {:.3}", self.client_cpu_seconds_per_gb);
        match self.server_cpu_seconds_per_gb {
            Some(servers) => {
                let both = servers + self.client_cpu_seconds_per_gb;
                let _ = writeln!(out, ", servers {servers:.3}, together {both:.3}");
            }
            None => out += ", servers unknown\n",
        }
        out
    }
}

fn bars(histogram: &[(f64, u64)]) -> String {
    let most = histogram.iter().map(|&(_, n)| n).max().unwrap_or(1).max(1);
    let mut out = String::new();
    for &(below, n) in histogram {
        let bar = "#".repeat((n * 50).div_ceil(most) as usize);
        let _ = writeln!(out, "      below {below:>14.3} us {n:>10} {bar}");
    }
    out
}

fn percent((before, after): ([u64; 4], [u64; 4])) -> [f64; 4] {
    let used: [u64; 4] = std::array::from_fn(|i| after[i].saturating_sub(before[i]));
    let all = used.iter().sum::<u64>().max(1) as f64;
    used.map(|n| n as f64 * 100.0 / all)
}

/// A size as gpfsperf prints it: the largest unit that divides it, in capitals.
fn short(bytes: u64) -> String {
    base::ByteSize(bytes).to_string().to_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::job::{Spec, spec};

    fn report(record: u64, operations: u64, elapsed: f64, latency_ms: f64, threads: u32) -> Report {
        let job = Job {
            spec: Spec { threads, ..spec(Operation::Read, Pattern::Seq) },
            record_bytes: record,
            file_bytes: record * operations,
            transfer_bytes: record * operations,
            stride_bytes: record,
        };
        let sum_seconds = latency_ms / 1e3 * operations as f64;
        let latency = Latency { sum_seconds, ..Latency::default() };
        let reads = Part { operations, bytes: operations * record, latency };
        let writes = Part { operations: 0, bytes: 0, latency: Latency::default() };
        let took = Duration::from_secs_f64(elapsed);
        Report::new(Path::new("/f"), job, took, [reads, writes], Cpu::default(), None)
    }

    /// The lines of the three generations that are known from elsewhere keep these identities.
    #[test]
    fn units_and_identities_of_the_known_lines_hold() {
        // 200 GiB in 8 MiB records at 606.68 operations a second, 19.350 ms, 12 threads: utilization 0.978.
        let new = report(8 << 20, 25_600, 25_600.0 / 606.68, 19.350, 12).lines("x", Style::New);
        assert!(new.contains("Op Rate was 606.68 Ops/sec, Avg Latency was 19.350 milliseconds, thread utilization 0.978, bytesTransferred 214748364800"), "{new}");
        let kbytes: f64 =
            new.split("Data rate was ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        assert!((kbytes - 5_089_216.97).abs() < 30.0, "Kbytes of 1000: {kbytes}");
        let mid = report(8 << 20, 25_600, 25_600.0 / 284.47, 1.0, 1).lines("x", Style::Mid);
        let kbytes: f64 =
            mid.split("Data rate was ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        assert!(
            (kbytes - 2_330_376.56).abs() < 30.0 && mid.contains("iops was 284.47"),
            "Kbytes of 1024: {mid}"
        );
        let old = report(8 << 20, 100, 1.0, 1.0, 1).lines("x", Style::Old);
        assert!(old.ends_with("Kbytes/sec, thread utilization 0.100\n"), "{old}");
    }

    #[test]
    fn the_head_says_how_it_was_measured() {
        let text = report(1 << 20, 4, 1.0, 1.0, 2).lines("perf read seq /f", Style::New);
        let head: Vec<&str> = text.lines().take(4).collect();
        assert_eq!(
            head,
            [
                "perf read seq /f",
                "  recSize 1M nBytes 4M fileSize 4M",
                "  nProcesses 1 nThreadsPerProcess 2",
                "  file cache not flushed before test"
            ]
        );
        assert!(text.contains("  not using direct I/O\n") && text.contains("  no fsync at end of test\n"));
    }
}
