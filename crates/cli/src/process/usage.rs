//! What this process and its host use of CPU, memory and network, read from `/proc` once a second for `ropewalk analytics`.
//! Of the processes of a host that share a cluster's directory one tells of the host: the one that holds a lock. When it
//! ends another takes it. What cannot be read is left out.

use std::{collections::HashMap, fs, path::PathBuf, time::Duration};

use base::stats::{Counter, counter, gauge};

use super::ident;
use crate::cluster_dir::access;

const EVERY: Duration = Duration::from_secs(1);
/// Interfaces of a host that are told apart.
const INTERFACES_MAX: usize = 64;
/// Sums that are remembered: those of a host, and two for each interface.
const SUMS_MAX: usize = 2 * INTERFACES_MAX + 8;
/// Who tells of the host, in the directory of histories.
const LOCK: &str = "host.lock";

/// Begins to look, until the process ends. `histories`: where the lock lies.
pub fn begin(histories: PathBuf) {
    let begun = std::thread::Builder::new().name("usage".to_owned()).spawn(move || run(&histories));
    if let Err(error) = begun {
        tracing::warn!("CPU, memory and network are not counted: start a thread: {error}");
    }
}

fn run(histories: &std::path::Path) {
    let mut own = Own::default();
    let mut host = None;
    loop {
        own.look();
        // Nothing of it but the lock is used.
        host = host.or_else(|| claim(histories).map(|held| (held, Host::new())));
        if let Some((_, host)) = &mut host {
            host.look();
        }
        std::thread::sleep(EVERY);
    }
}

fn claim(histories: &std::path::Path) -> Option<fs::File> {
    access::make_dir(histories).ok()?;
    let file = access::options().write(true).create(true).truncate(false).open(histories.join(LOCK)).ok()?;
    file.try_lock().is_ok().then_some(file)
}

/// A sum that the system keeps: counted is what it gained since it was looked at first.
#[derive(Default)]
struct Sums(HashMap<String, (Counter, u64)>);

impl Sums {
    fn now(&mut self, key: &str, sum: u64, make: impl FnOnce() -> Counter) {
        let room = self.0.len() < SUMS_MAX;
        match self.0.get_mut(key) {
            Some((counter, last)) => {
                counter.add(sum.saturating_sub(*last));
                *last = sum;
            }
            None if room => drop(self.0.insert(key.to_owned(), (make(), sum))),
            None => {} // a host may make interfaces without end
        }
    }
}

/// Microseconds of a clock tick: the kernel shows hundredths on every architecture that we run on, whatever it counts by.
const TICK_US: u64 = 10_000;

#[derive(Default)]
struct Own(Sums);

impl Own {
    fn look(&mut self) {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The name may hold anything; behind its bracket begins field 3.
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        for (mode, at) in [("user", 11), ("system", 12)] {
            if let Some(ticks) = fields.get(at).and_then(|ticks| ticks.parse::<u64>().ok()) {
                self.0.now(mode, ticks * TICK_US, || counter("process_cpu_microseconds", &[("mode", mode)]));
            }
        }
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        for (what, name) in [("resident", "VmRSS:"), ("swap", "VmSwap:")] {
            if let Some(bytes) = kib(&status, name) {
                gauge("process_memory_bytes", &[("what", what)]).set(bytes as i64);
            }
        }
    }
}

/// The bytes of a line `NAME 123 kB`.
fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

struct Host {
    name: String,
    sums: Sums,
}

impl Host {
    fn new() -> Host {
        Host { name: ident::own_ident().host, sums: Sums::default() }
    }

    fn look(&mut self) {
        let host = self.name.as_str();
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let all = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
        let modes = ["user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"];
        for (mode, ticks) in modes.into_iter().zip(all) {
            if let Ok(ticks) = ticks.parse::<u64>() {
                let make = || counter("host_cpu_microseconds", &[("host", host), ("mode", mode)]);
                self.sums.now(mode, ticks * TICK_US, make);
            }
        }
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let lines = [
            ("total", "MemTotal:"),
            ("available", "MemAvailable:"),
            ("cached", "Cached:"),
            ("dirty", "Dirty:"),
        ];
        for (what, name) in lines {
            if let Some(bytes) = kib(&memory, name) {
                gauge("host_memory_bytes", &[("host", host), ("what", what)]).set(bytes as i64);
            }
        }
        let net = fs::read_to_string("/proc/net/dev").unwrap_or_default();
        for (interface, fields) in net.lines().filter_map(|line| line.split_once(':')).take(INTERFACES_MAX) {
            let (interface, fields): (&str, Vec<&str>) =
                (interface.trim(), fields.split_whitespace().collect());
            for (direction, at) in [("received", 0), ("sent", 8)] {
                if let Some(bytes) = fields.get(at).and_then(|bytes| bytes.parse::<u64>().ok()) {
                    let labels = [("host", host), ("interface", interface), ("direction", direction)];
                    let key = format!("{interface} {direction}");
                    self.sums.now(&key, bytes, || counter("host_net_bytes", &labels));
                }
            }
        }
    }
}
