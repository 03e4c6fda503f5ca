//! What a cluster of the run's own says of itself: how long programs waited on its mounts, and for what. Each process counts in its
//! metrics; they are read before a load and behind it, outside the time in which links are watched. A process that does not answer
//! leaves all of it out.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::unix::fs::FileExt,
    path::PathBuf,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::median::median;
use crate::testbed::within;

/// How long one process may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// What it may say.
const TEXT_MAX: u64 = 8 << 20;
/// Flushes whose median says what the disk takes for one.
const FLUSHES: usize = 9;
/// Bytes that are flushed: about what a small commit writes.
const FLUSHED: [u8; 4096] = [7; 4096];

/// One pdisk.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PdiskUse {
    /// Node and pdisk.
    pub name: String,
    /// Part of the time in which it had something to do.
    pub busy: f64,
    /// What one of its batches took, in milliseconds.
    pub mean_ms: f64,
    /// Batches a second.
    pub batches: f64,
}

/// What the processes said.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Inside {
    /// Seconds a second that programs waited for the mounts: how many waited at a time.
    pub waiting: f64,
    /// Seconds a second that mounts waited for tokens.
    pub tokens: f64,
    /// Part of the time in which the manager was in a commit.
    pub commits: f64,
    /// What a commit took, in milliseconds: the median, to a factor of two.
    pub commit_ms: f64,
    /// What the disk below the manager took just afterwards to make 4 KiB durable, in milliseconds.
    pub flush_ms: f64,
    /// Each pdisk that did something.
    pub pdisks: Vec<PdiskUse>,
}

/// A process that can be asked: its metrics are on the loopback of its network namespace.
pub struct Process {
    /// Its name.
    pub name: String,
    /// The namespace.
    pub namespace: String,
    /// The port.
    pub port: u16,
}

/// A cluster whose processes can be asked.
pub struct Watched {
    /// The processes.
    pub processes: Vec<Process>,
    /// A directory on the disk below the manager.
    pub disk: PathBuf,
}

/// What the processes have counted since they began.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Counted {
    waiting: f64,
    tokens: f64,
    commits: f64,
    /// Commits that took at most so many seconds.
    commits_within: Vec<(f64, f64)>,
    /// Seconds busy, seconds of all batches, batches.
    pdisks: BTreeMap<String, [f64; 3]>,
}

impl Watched {
    /// What they have counted up to now.
    pub fn read(&self) -> Option<Counted> {
        let mut counted = Counted::default();
        for process in &self.processes {
            let said = within(&process.namespace, || answer(process.port)).ok()?.ok()?;
            counted.add(&process.name, &said);
        }
        Some(counted)
    }

    /// What they did since then, of a load that lasted so long.
    pub fn since(&self, before: &Counted, lasted: Duration) -> Option<Inside> {
        let now = self.read()?;
        let flush_ms = self.flush().ok()? * 1e3;
        Some(Inside { flush_ms, ..now.since(before, lasted.as_secs_f64()) })
    }

    /// Seconds that the disk takes to make a little durable.
    fn flush(&self) -> io::Result<f64> {
        let path = self.disk.join("flushed");
        let file = File::create(&path)?;
        let mut took = Vec::new();
        for n in 0..FLUSHES as u64 {
            let began = Instant::now();
            file.write_all_at(&FLUSHED, n * FLUSHED.len() as u64)?;
            file.sync_data()?;
            took.push(began.elapsed().as_secs_f64());
        }
        std::fs::remove_file(path)?;
        Ok(median(&took))
    }
}

fn answer(port: u16) -> io::Result<String> {
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&to, ANSWER_MAX)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    stream.set_write_timeout(Some(ANSWER_MAX))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n")?;
    let mut text = Vec::new();
    stream.take(TEXT_MAX).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

impl Counted {
    fn add(&mut self, process: &str, text: &str) {
        for line in text.lines() {
            let Some((name, value)) = line.rsplit_once(' ') else { continue };
            let Some(name) = name.strip_prefix("ropewalk_") else { continue };
            let Ok(value) = value.trim().parse::<f64>() else { continue };
            let (family, labels) = name.split_once('{').unwrap_or((name, ""));
            let label = |key: &str| labels.split_once(&format!("{key}=\""))?.1.split('"').next();
            let pdisk = |field: usize, counted: &mut Counted| {
                if let Some(pdisk) = label("pdisk") {
                    counted.pdisks.entry(format!("{process}/{pdisk}")).or_default()[field] += value;
                }
            };
            match family {
                "file_op_seconds_sum" => self.waiting += value,
                "token_wait_seconds_sum" => self.tokens += value,
                "manager_commit_seconds_sum" => self.commits += value,
                "manager_commit_seconds_bucket" => {
                    let le = label("le").and_then(|le| le.parse::<f64>().ok());
                    self.commits_within.extend(le.map(|le| (le, value)));
                }
                "pdisk_busy_seconds_total" => pdisk(0, self),
                "pdisk_op_seconds_sum" => pdisk(1, self),
                "pdisk_op_seconds_count" => pdisk(2, self),
                _ => {}
            }
        }
    }

    fn since(&self, before: &Counted, seconds: f64) -> Inside {
        let seconds = seconds.max(1e-3);
        let rate = |now: f64, before: f64| (now - before).max(0.0) / seconds;
        let within = self.commits_within.iter().zip(&before.commits_within);
        let within: Vec<(f64, f64)> = within.map(|(now, before)| (now.0, now.1 - before.1)).collect();
        let half = within.last().map_or(0.0, |(_, all)| all / 2.0);
        let middle = within.iter().find(|(_, count)| *count >= half && half > 0.0);
        let one = |(name, now): (&String, &[f64; 3])| {
            let old = before.pdisks.get(name).copied().unwrap_or_default();
            let [busy, took, batches] = [0, 1, 2].map(|i| rate(now[i], old[i]));
            let mean_ms = if batches > 0.0 { took / batches * 1e3 } else { 0.0 };
            PdiskUse { name: name.clone(), busy: busy.min(1.0), mean_ms, batches }
        };
        Inside {
            waiting: rate(self.waiting, before.waiting),
            tokens: rate(self.tokens, before.tokens),
            commits: rate(self.commits, before.commits).min(1.0),
            commit_ms: middle.map_or(0.0, |(le, _)| le * 1e3),
            flush_ms: 0.0,
            pdisks: self.pdisks.iter().map(one).filter(|pdisk| pdisk.batches > 0.0).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(texts: &[(&str, &str)]) -> Counted {
        let mut counted = Counted::default();
        texts.iter().for_each(|(process, text)| counted.add(process, text));
        counted
    }

    #[test]
    fn what_processes_counted_becomes_rates() {
        let manager = |sum: f64, within: [u32; 3]| {
            format!(
                "# HELP ropewalk_manager_commit_seconds x\nropewalk_manager_commit_seconds_bucket{{le=\"0.001\"}} {}\n\
                 ropewalk_manager_commit_seconds_bucket{{le=\"0.002\"}} {}\n\
                 ropewalk_manager_commit_seconds_bucket{{le=\"+Inf\"}} {}\nropewalk_manager_commit_seconds_sum {sum}\n",
                within[0], within[1], within[2]
            )
        };
        let mount = "ropewalk_file_op_seconds_sum{op=\"read\"} 3\nropewalk_file_op_seconds_sum{op=\"open\"} 1\n\
                     ropewalk_token_wait_seconds_sum{need=\"write\"} 2.5\n";
        let server = "ropewalk_pdisk_busy_seconds_total{pdisk=\"pdisk1\"} 1.5\n\
                      ropewalk_pdisk_op_seconds_sum{op=\"read\",pdisk=\"pdisk1\"} 0.4\n\
                      ropewalk_pdisk_op_seconds_count{op=\"read\",pdisk=\"pdisk1\"} 100\n";
        let (first, second) = (manager(1.0, [5, 5, 5]), manager(2.6, [6, 14, 15]));
        let before = counted(&[("manager", &first)]);
        let now = counted(&[("manager", &second), ("n1", server), ("m1", mount), ("m2", mount)]);
        let inside = now.since(&before, 2.0);
        assert_eq!((inside.waiting, inside.tokens, inside.commit_ms), (4.0, 2.5, 2.0));
        assert!((inside.commits - 0.8).abs() < 1e-9, "{inside:?}");
        let pdisk = PdiskUse { name: "n1/pdisk1".into(), busy: 0.75, mean_ms: 4.0, batches: 50.0 };
        assert_eq!(inside.pdisks, [pdisk]);
        // Nothing happened, or what is said is no metric.
        assert_eq!(now.since(&now, 2.0).commit_ms, 0.0);
        assert_eq!(
            counted(&[("x", "HTTP/1.1 404 Not Found\r\n\r\nropewalk_ x\nropewalk_pdisk_op_seconds_sum 1")]),
            Counted::default()
        );
    }
}
