//! What this process and its host use of CPU, memory and network, read from `/proc` once a second for `ropewalk analytics`.
//! Of the processes of a host that share a cluster's directory one tells of the host: the one that holds a lock. When it
//! ends another takes it. What cannot be read is left out.

use std::{
    collections::HashMap,
    fs,
    path::PathBuf,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use base::stats::{self, Brought, Counter, Utilisation, counter, gauge, utilisation};
use parking_lot::Mutex;

use super::ident;
use crate::cluster_dir::access;

/// How often who tells of the host asks how fast its links are.
const EVERY: Duration = Duration::from_secs(1);
/// After this it is tried again where the lock cannot be waited for.
const AGAIN: Duration = Duration::from_secs(10);
/// Interfaces of a host that are told apart.
const INTERFACES_MAX: usize = 64;
/// Sums that are remembered: those of a host, and two for each interface.
const SUMS_MAX: usize = 2 * INTERFACES_MAX + 8;
/// CPUs and directions of links of a host that are told apart.
const SHARES_MAX: usize = 1024;
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
    let usage = Arc::new(Usage::default());
    usage.own.lock().look();
    let brought: Weak<Usage> = Arc::downgrade(&usage);
    stats::bring_up_to_date(brought);
    // Nothing of it but the lock is used.
    let _held = loop {
        match claim(histories) {
            Ok(held) => break held,
            Err(_) => std::thread::sleep(AGAIN),
        }
    };
    loop {
        // A card may take its time to say how fast it is: no second waits for that.
        let speeds = speeds(std::path::Path::new("/sys/class/net"));
        usage.host.lock().get_or_insert_with(Host::begin).speeds = speeds;
        std::thread::sleep(EVERY);
    }
}

/// Looked at when a second is closed, so that each has its own figures, however busy the machine is.
#[derive(Default)]
struct Usage {
    own: Mutex<Own>,
    /// If this process tells of it.
    host: Mutex<Option<Host>>,
}

impl Brought for Usage {
    fn up_to_date(&self) {
        self.own.lock().look();
        if let Some(host) = &mut *self.host.lock() {
            host.look();
        }
    }
}

/// Waits until this process is the one that tells of the host.
fn claim(histories: &std::path::Path) -> std::io::Result<fs::File> {
    access::make_dir(histories)?;
    let file = access::options().write(true).create(true).truncate(false).open(histories.join(LOCK))?;
    file.lock()?;
    Ok(file)
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

/// Sums that the system keeps of what is used of a thing, and what of it could have been.
#[derive(Default)]
struct Shares(HashMap<String, (Utilisation, u64, u64)>);

impl Shares {
    /// Both are sums since long ago.
    fn now(&mut self, key: &str, used: u64, possible: u64, make: impl FnOnce() -> Utilisation) {
        let room = self.0.len() < SHARES_MAX;
        match self.0.get_mut(key) {
            Some((share, last_used, last_possible)) => {
                share.add(used.saturating_sub(*last_used), possible.saturating_sub(*last_possible));
                (*last_used, *last_possible) = (used, possible);
            }
            None if room => drop(self.0.insert(key.to_owned(), (make(), used, possible))),
            None => {}
        }
    }

    /// So much more could have been used than when it was looked at last.
    fn more(&mut self, key: &str, used: u64, more: u64, make: impl FnOnce() -> Utilisation) {
        let last = self.0.get(key).map_or(0, |(_, _, possible)| *possible);
        self.now(key, used, last + more, make);
    }
}

/// Of each CPU in `/proc/stat`: its name, the ticks in which it was at work, all ticks. A guest's are in those of the user.
fn cpus(stat: &str) -> impl Iterator<Item = (&str, u64, u64)> {
    stat.lines().filter_map(|line| {
        let (name, ticks) = line.split_once(' ')?;
        let cpu = name.strip_prefix("cpu").filter(|number| !number.is_empty())?;
        let ticks: Vec<u64> = ticks.split_whitespace().take(8).filter_map(|n| n.parse().ok()).collect();
        let idle = ticks.get(3)? + ticks.get(4).unwrap_or(&0);
        let all: u64 = ticks.iter().sum();
        Some((cpu, all - idle, all))
    })
}

/// As in [`Host::speeds`].
fn speeds(links: &std::path::Path) -> HashMap<String, u64> {
    let links = fs::read_dir(links).into_iter().flatten().flatten().take(INTERFACES_MAX);
    let speed = |link: fs::DirEntry| {
        let megabits = fs::read_to_string(link.path().join("speed")).ok()?.trim().parse::<u64>().ok()?;
        // What it does not know some drivers tell as all ones.
        (1..u64::from(u32::MAX))
            .contains(&megabits)
            .then(|| (link.file_name().to_string_lossy().into_owned(), megabits * 125_000))
    };
    links.filter_map(speed).collect()
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
    shares: Shares,
    /// Bytes a second that an interface can carry in each direction, of those that tell.
    speeds: HashMap<String, u64>,
    /// When it was looked at last.
    looked: Instant,
}

impl Host {
    /// What is counted begins now.
    fn begin() -> Host {
        let name = ident::own_ident().host;
        let mut host = Host {
            name,
            sums: Sums::default(),
            shares: Shares::default(),
            speeds: HashMap::new(),
            looked: Instant::now(),
        };
        host.look();
        host
    }

    fn look(&mut self) {
        let host = self.name.as_str();
        let now = Instant::now();
        let since = now.duration_since(std::mem::replace(&mut self.looked, now));
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        for (cpu, busy, all) in cpus(&stat) {
            let labels = [("host", host), ("cpu", cpu)];
            self.shares.now(cpu, busy, all, || utilisation("host_cpu_utilisation", &labels));
        }
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
                    if let Some(speed) = self.speeds.get(interface) {
                        let could = (*speed as f64 * since.as_secs_f64()) as u64;
                        let make = || utilisation("host_net_utilisation", &labels);
                        self.shares.more(&key, bytes, could, make);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_tell_their_speed_have_one() {
        let place = tempfile::tempdir().unwrap();
        for (link, speed) in
            [("eth0", Some("1000\n")), ("eth1", Some("-1\n")), ("ib0", Some("4294967295\n")), ("lo", None)]
        {
            fs::create_dir(place.path().join(link)).unwrap();
            speed.iter().for_each(|speed| fs::write(place.path().join(link).join("speed"), speed).unwrap());
        }
        assert_eq!(speeds(place.path()), [("eth0".to_owned(), 125_000_000)].into());
    }

    #[test]
    fn cpus_are_at_work_when_they_are_not_idle() {
        let stat = "cpu  30 0 10 150 10 0 0 0 7 0\ncpu0 20 0 5 70 5 0 0 0 7 0\ncpu11 10 0 5 80 5 0 0 0 0 0\nintr 5\ncpu12 x\n";
        let found: Vec<_> = cpus(stat).collect();
        assert_eq!(found, [("0", 25, 100), ("11", 15, 100)]);
    }
}
