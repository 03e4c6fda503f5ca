//! What is busy while a cell runs: each CPU, the load generators' threads, links, devices. Counters of /proc
//! and /sys are read up to ten times a second; each value is the mean over the middle of the load (`steady`), so that
//! its start and end do not dilute it. Only reads; a counter that is not there is left out.

mod inside;
mod median;
mod processes;
mod sample;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

pub use inside::{Inside, PdiskUse, Process, Watched};
pub(crate) use median::median;
use median::steady;
pub use processes::ProcessUse;
use sample::{Sample, read};
pub use sample::{Serving, Who, allowed_cpus};

/// Time between two readings,
const INTERVAL: Duration = Duration::from_millis(100);
/// and at least so many times what one takes.
const INTERVAL_READINGS: u32 = 20;
/// Readings kept of one cell; beyond, the time between them doubles.
const SAMPLES_MAX: usize = 2048;
/// The busiest threads that a record keeps.
const THREADS_MAX: usize = 12;
/// Links and devices that moved less than this are left out, in bytes a second.
const QUIET: f64 = 1000.0;

/// CPUs of the second node are counted from here on, those of the third from twice as much: no machine has more.
pub const NODE_CPUS: u32 = 100_000;

/// One CPU.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct CpuUse {
    /// Its number.
    pub cpu: u32,
    /// Part of the time it worked, 0 to 1, with interrupts; without what the host took away.
    pub busy: f64,
    /// Part of the time the host of a virtual machine took away.
    pub steal: f64,
    /// Whether the load may run on it.
    pub allowed: bool,
}

impl CpuUse {
    /// Which node's it is, from 0.
    pub fn node(&self) -> u32 {
        self.cpu / NODE_CPUS
    }
    /// Its number, with its node's where there are several.
    pub fn name(&self) -> String {
        let (node, cpu) = (self.node(), self.cpu % NODE_CPUS);
        if node == 0 { cpu.to_string() } else { format!("{}:{cpu}", node + 1) }
    }
}

/// One thread.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ThreadUse {
    /// Name of its process and its own.
    pub name: String,
    /// Whose it is.
    pub who: Who,
    /// Part of the time it was on a CPU, 0 to 1.
    pub busy: f64,
    /// Part of the time it was ready to run and had no CPU.
    #[serde(default)]
    pub waited: f64,
}

/// One link (network interface).
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct LinkUse {
    /// Its name, with `NAMESPACE/` before it where it is not in this one.
    pub name: String,
    /// Bytes a second in.
    pub rx: f64,
    /// Bytes a second out.
    pub tx: f64,
}

/// One block device.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct DeviceUse {
    /// The kernel's name.
    pub name: String,
    /// Operations a second.
    pub operations: f64,
    /// Bytes a second.
    pub bytes: f64,
    /// Part of the time it had something to do, 0 to 1. For devices that serve many at once this says little.
    pub busy: f64,
    /// Operations in it at a time.
    pub queue: f64,
}

/// What was busy during a cell.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Intervals seen.
    pub intervals: u32,
    /// Each CPU that is online.
    pub cpus: Vec<CpuUse>,
    /// CPUs' worth of work of the load generators.
    pub load_cpus: f64,
    /// CPUs' worth of work of Ropewalk's processes that are not load generators.
    pub served_cpus: f64,
    /// CPUs' worth of work of the kernel's own threads.
    pub kernel_cpus: f64,
    /// CPUs' worth of work of other programs, as far as they lived through an interval.
    pub foreign_cpus: f64,
    /// Threads of the load and of what serves it that were ready to run and had no CPU, at a time; absent where the kernel
    /// does not count that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited: Option<f64>,
    /// Interrupts a second of the whole machine.
    pub interrupts: f64,
    /// What Ropewalk's processes held at the end.
    pub processes: Vec<ProcessUse>,
    /// The busiest threads of load generators, Ropewalk and the kernel.
    pub threads: Vec<ThreadUse>,
    /// Links that moved something.
    pub links: Vec<LinkUse>,
    /// Devices that moved something.
    pub devices: Vec<DeviceUse>,
    /// What the processes of a cluster of the run's own said of themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inside: Option<Inside>,
}

impl Usage {
    /// CPUs' worth of work in all.
    pub fn busy_cpus(&self) -> f64 {
        self.cpus.iter().map(|cpu| cpu.busy).sum()
    }
}

/// The process groups that make the load, so that their CPU time can be told from others'.
#[derive(Clone, Default)]
pub struct LoadGroups(Arc<Mutex<BTreeSet<i32>>>);

impl LoadGroups {
    /// A process group that makes load from now on.
    pub fn add(&self, group: i32) {
        self.0.lock().insert(group);
    }
    fn list(&self) -> BTreeSet<i32> {
        self.0.lock().clone()
    }
}

/// Reads counters until stopped.
pub struct Observer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Sample>>,
}

impl Observer {
    /// Starts reading. Threads of this process whose name begins with `lab-load` are load generators too.
    pub fn start(groups: LoadGroups, serving: Serving) -> std::io::Result<Observer> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().name("lab-observe".into()).spawn(move || {
            let took = Instant::now();
            let mut samples = vec![read(&groups.list(), &serving)];
            let mut interval = INTERVAL.max(took.elapsed() * INTERVAL_READINGS);
            let mut next = took + interval;
            while !stopped.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(10));
                if Instant::now() < next {
                    continue;
                }
                samples.push(read(&groups.list(), &serving));
                if samples.len() >= SAMPLES_MAX {
                    let mut even = 0;
                    samples.retain(|_| {
                        even += 1;
                        even % 2 == 1
                    });
                    interval *= 2;
                }
                next = Instant::now() + interval;
            }
            samples
        })?;
        Ok(Observer { stop, thread })
    }

    /// Stops, and says what was busy since `began`, or all the time.
    pub fn stop(self, began: Option<Instant>) -> Usage {
        self.stop.store(true, Relaxed);
        let mut samples = self.thread.join().unwrap_or_default();
        if let Some(began) = began {
            let after = samples.iter().filter(|sample| sample.at >= began).count();
            // One interval at least, however short the load.
            samples.drain(..samples.len() - after.max(2).min(samples.len()));
        }
        let served = samples.last().map(|sample| &sample.served);
        Usage { processes: served.map(processes::read).unwrap_or_default(), ..usage(&samples) }
    }
}

/// Values of things, interval by interval; an interval in which one was not there counts as zero.
struct Series<K: Ord> {
    values: BTreeMap<K, Vec<f64>>,
    intervals: usize,
}

impl<K: Ord> Series<K> {
    fn new(intervals: usize) -> Series<K> {
        Series { values: BTreeMap::new(), intervals }
    }
    fn add(&mut self, key: K, interval: usize, value: f64) {
        let values = self.values.entry(key).or_insert_with(|| vec![0.0; self.intervals]);
        values[interval] += value;
    }
    fn get(&self, key: &K) -> f64 {
        self.values.get(key).map_or(0.0, |values| steady(values))
    }
}

fn usage(samples: &[Sample]) -> Usage {
    let pairs: Vec<(&Sample, &Sample)> = samples.windows(2).map(|w| (&w[0], &w[1])).collect();
    let intervals = pairs.len();
    let (mut busy, mut steal) = (Series::new(intervals), Series::new(intervals));
    let (mut ran, mut waited) = (Series::new(intervals), Series::new(intervals));
    let (mut threads, mut waits) = (Series::new(intervals), Series::new(intervals));
    let mut interrupts = Series::new(intervals);
    let (mut links, mut devices) = (Series::new(intervals), Series::new(intervals));
    let mut counted = false;
    for (i, (a, b)) in pairs.iter().enumerate() {
        let seconds = (b.at - a.at).as_secs_f64().max(1e-3);
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        for (cpu, now) in &b.cpus {
            let Some(before) = a.cpus.get(cpu) else { continue };
            busy.add(*cpu, i, rate(now.busy, before.busy) / 100.0);
            steal.add(*cpu, i, rate(now.steal, before.steal) / 100.0);
        }
        interrupts.add((), i, rate(b.interrupts, a.interrupts));
        for (id, now) in &b.threads {
            let before = a.threads.get(id);
            let part = rate(now.run_ns, before.map_or(0, |t| t.run_ns)) / 1e9;
            ran.add(now.who, i, part);
            if now.who == Who::Foreign {
                continue;
            }
            let key = (now.who, now.name.clone(), *id);
            if let Some(wait) = now.wait_ns {
                counted = true;
                let part = rate(wait, before.and_then(|t| t.wait_ns).unwrap_or(0)) / 1e9;
                waited.add((), i, part);
                waits.add(key.clone(), i, part.min(1.0));
            }
            threads.add(key, i, part.min(1.0));
        }
        for (name, now) in &b.links {
            let Some(before) = a.links.get(name) else { continue };
            links.add((name.clone(), 0), i, rate(now.0, before.0));
            links.add((name.clone(), 1), i, rate(now.1, before.1));
        }
        for (name, now) in &b.devices {
            let Some(before) = a.devices.get(name) else { continue };
            for (n, (now, before)) in now.iter().zip(before).enumerate() {
                devices.add((name.clone(), n), i, rate(*now, *before));
            }
        }
    }
    let allowed = allowed_cpus();
    let cpus = busy.values.iter().map(|(&cpu, values)| CpuUse {
        cpu,
        busy: steady(values).min(1.0),
        steal: steal.get(&cpu).min(1.0),
        allowed: allowed.is_empty() || allowed.contains(&cpu),
    });
    let thread = |(key, values): (&(Who, String, i32), &Vec<f64>)| ThreadUse {
        name: key.1.clone(),
        who: key.0,
        busy: steady(values),
        waited: waits.get(key),
    };
    let mut threads: Vec<ThreadUse> =
        threads.values.iter().map(thread).filter(|thread| thread.busy >= 0.02).collect();
    threads.sort_by(|a, b| b.busy.total_cmp(&a.busy));
    threads.truncate(THREADS_MAX);
    let names: BTreeSet<&String> = links.values.keys().map(|(name, _)| name).collect();
    let link = |name: &String| {
        let of = |way| links.get(&(name.clone(), way));
        LinkUse { name: name.clone(), rx: of(0), tx: of(1) }
    };
    let disks: BTreeSet<&String> = devices.values.keys().map(|(name, _)| name).collect();
    let device = |name: &String| {
        let value = |n| devices.get(&(name.clone(), n));
        DeviceUse {
            name: name.clone(),
            operations: value(0),
            bytes: value(1) * 512.0,
            busy: (value(2) / 1000.0).min(1.0),
            queue: value(3) / 1000.0,
        }
    };
    Usage {
        intervals: intervals as u32,
        cpus: cpus.collect(),
        load_cpus: ran.get(&Who::Load),
        served_cpus: ran.get(&Who::Served),
        kernel_cpus: ran.get(&Who::Kernel),
        foreign_cpus: ran.get(&Who::Foreign),
        waited: counted.then(|| waited.get(&())),
        interrupts: interrupts.get(&()),
        processes: Vec::new(),
        threads,
        links: names.into_iter().map(link).filter(|l| l.rx + l.tx > QUIET).collect(),
        devices: disks.into_iter().map(device).filter(|d| d.bytes > QUIET || d.queue > 0.01).collect(),
        inside: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spinning_load_thread_is_seen_and_told_from_others() {
        // It spins from before the first reading until after the last, however late these come.
        let (stop, spins) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (ended, begun) = (Arc::clone(&stop), Arc::clone(&spins));
        let spin = std::thread::Builder::new().name("lab-load-spin".into()).spawn(move || {
            while !ended.load(Relaxed) {
                begun.store(true, Relaxed);
            }
        });
        let spin = spin.unwrap();
        while !spins.load(Relaxed) {
            std::thread::yield_now();
        }
        // How much of a CPU it gets, and how often it is looked, is the machine's affair: so long that it is looked twice.
        let mut time = Duration::from_millis(1600);
        let usage = loop {
            let observer = Observer::start(LoadGroups::default(), Serving::Any).unwrap();
            std::thread::sleep(time);
            let usage = observer.stop(None);
            if usage.intervals >= 1 {
                break usage;
            }
            assert!(time < Duration::from_secs(60), "{usage:?}");
            time *= 2;
        };
        stop.store(true, Relaxed);
        spin.join().unwrap();
        assert!(!usage.cpus.is_empty(), "{usage:?}");
        let thread = usage.threads.iter().find(|t| t.name.contains("lab-load-spin")).expect("the thread");
        assert!(thread.who == Who::Load && usage.load_cpus > 0.0, "{usage:?}");
        assert!(usage.cpus.iter().any(|c| c.allowed), "{usage:?}");
    }
}
