//! What is busy while a cell runs: each CPU, the load generators' threads, links, devices. Counters of /proc
//! and /sys are read four times a second; each value is the median of its values over the intervals, so that
//! start and end of a load do not dilute it. Only reads; a counter that is not there is left out.

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

pub use inside::{Inside, PdiskUse, Watched};
pub(crate) use median::median;
pub use processes::ProcessUse;
use sample::{Sample, read};
pub use sample::{Who, allowed_cpus};

/// Time between two readings.
const INTERVAL: Duration = Duration::from_millis(250);
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
    pub fn start(groups: LoadGroups) -> std::io::Result<Observer> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().name("lab-observe".into()).spawn(move || {
            let (mut samples, mut interval) = (vec![read(&groups.list())], INTERVAL);
            let mut next = Instant::now() + interval;
            while !stopped.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(10));
                if Instant::now() < next {
                    continue;
                }
                samples.push(read(&groups.list()));
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

/// Values of one thing over the intervals; intervals in which it was not there count as zero.
#[derive(Default)]
struct Series<K: Ord>(BTreeMap<K, Vec<f64>>);

impl<K: Ord> Series<K> {
    fn push(&mut self, key: K, value: f64) {
        self.0.entry(key).or_default().push(value);
    }
    fn median(mut values: Vec<f64>, intervals: usize) -> f64 {
        values.resize(intervals.max(values.len()), 0.0);
        median(&values)
    }
}

fn usage(samples: &[Sample]) -> Usage {
    let pairs: Vec<(&Sample, &Sample)> = samples.windows(2).map(|w| (&w[0], &w[1])).collect();
    let intervals = pairs.len();
    let (mut busy, mut steal) = (Series::default(), Series::default());
    let mut by_who = Series::default();
    let mut threads = Series::default();
    let mut interrupts = Vec::new();
    let (mut links, mut devices) = (Series::default(), Series::default());
    for (a, b) in &pairs {
        let seconds = (b.at - a.at).as_secs_f64().max(1e-3);
        for (cpu, now) in &b.cpus {
            let Some(before) = a.cpus.get(cpu) else { continue };
            busy.push(*cpu, now.busy.saturating_sub(before.busy) as f64 / 100.0 / seconds);
            steal.push(*cpu, now.steal.saturating_sub(before.steal) as f64 / 100.0 / seconds);
        }
        interrupts.push(b.interrupts.saturating_sub(a.interrupts) as f64 / seconds);
        let mut sums = BTreeMap::<Who, f64>::new();
        for (id, now) in &b.threads {
            let before = a.threads.get(id).map_or(0, |t| t.run_ns);
            let part = now.run_ns.saturating_sub(before) as f64 / 1e9 / seconds;
            *sums.entry(now.who).or_default() += part;
            if now.who != Who::Foreign {
                threads.push((now.who, now.name.clone(), *id), part.min(1.0));
            }
        }
        for who in [Who::Load, Who::Served, Who::Kernel, Who::Foreign] {
            by_who.push(who, sums.get(&who).copied().unwrap_or_default());
        }
        for (name, now) in &b.links {
            let Some(before) = a.links.get(name) else { continue };
            links.push((name.clone(), 0), now.0.saturating_sub(before.0) as f64 / seconds);
            links.push((name.clone(), 1), now.1.saturating_sub(before.1) as f64 / seconds);
        }
        for (name, now) in &b.devices {
            let Some(before) = a.devices.get(name) else { continue };
            for (i, (now, before)) in now.iter().zip(before).enumerate() {
                devices.push((name.clone(), i), now.saturating_sub(*before) as f64 / seconds);
            }
        }
    }
    let who = |who| by_who.0.get(&who).map_or(0.0, |values| median(values));
    let allowed = allowed_cpus();
    let cpus = busy.0.iter().map(|(&cpu, values)| CpuUse {
        cpu,
        busy: median(values).min(1.0),
        steal: steal.0.get(&cpu).map_or(0.0, |s| median(s)).min(1.0),
        allowed: allowed.is_empty() || allowed.contains(&cpu),
    });
    let mut threads: Vec<ThreadUse> = threads
        .0
        .into_iter()
        .map(|((who, name, _), values)| ThreadUse {
            name,
            who,
            busy: Series::<u8>::median(values, intervals),
        })
        .filter(|thread| thread.busy >= 0.02)
        .collect();
    threads.sort_by(|a, b| b.busy.total_cmp(&a.busy));
    threads.truncate(THREADS_MAX);
    let link = |name: &String| LinkUse {
        name: name.clone(),
        rx: links.0.get(&(name.clone(), 0)).map_or(0.0, |v| median(v)),
        tx: links.0.get(&(name.clone(), 1)).map_or(0.0, |v| median(v)),
    };
    let names: BTreeSet<&String> = links.0.keys().map(|(name, _)| name).collect();
    let device = |name: &String| {
        let value = |i| devices.0.get(&(name.clone(), i)).map_or(0.0, |v| median(v));
        DeviceUse {
            name: name.clone(),
            operations: value(0),
            bytes: value(1) * 512.0,
            busy: (value(2) / 1000.0).min(1.0),
            queue: value(3) / 1000.0,
        }
    };
    let disks: BTreeSet<&String> = devices.0.keys().map(|(name, _)| name).collect();
    Usage {
        intervals: intervals as u32,
        cpus: cpus.collect(),
        load_cpus: who(Who::Load),
        served_cpus: who(Who::Served),
        kernel_cpus: who(Who::Kernel),
        foreign_cpus: who(Who::Foreign),
        interrupts: median(&interrupts),
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
    fn medians() {
        assert_eq!((median(&[]), median(&[3.0]), median(&[9.0, 1.0, 2.0])), (0.0, 3.0, 2.0));
        assert_eq!(median(&[1.0, 2.0, 3.0, 4.0]), 2.5);
    }

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
        let observer = Observer::start(LoadGroups::default()).unwrap();
        std::thread::sleep(Duration::from_millis(1600));
        let usage = observer.stop(None);
        stop.store(true, Relaxed);
        spin.join().unwrap();
        // How much of a CPU it got, and how often it was looked, is the machine's affair.
        assert!(usage.intervals >= 1 && !usage.cpus.is_empty(), "{usage:?}");
        let thread = usage.threads.iter().find(|t| t.name.contains("lab-load-spin")).expect("the thread");
        assert!(thread.who == Who::Load && usage.load_cpus > 0.0, "{usage:?}");
        assert!(usage.cpus.iter().any(|c| c.allowed), "{usage:?}");
    }
}
