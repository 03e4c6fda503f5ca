//! What this machine's CPUs and memory give by themselves, measured at the start of each run: what "full" means
//! for a CPU here, and how fast memory is copied. Verdicts take their thresholds from these, not from a constant.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    hint::black_box,
    time::{Duration, Instant},
};

use base::ByteSize;
use serde::{Deserialize, Serialize};

use crate::observe::allowed_cpus;

/// What was measured.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// CPUs the run may use.
    pub cpus: u32,
    /// Part of a CPU that a thread got that never waits: 1 on an idle machine of one's own.
    pub cpu_full: f64,
    /// Bytes a second that all allowed CPUs copy together when they have nothing else to do, source and target outside the
    /// caches.
    pub memory_copy: f64,
    /// Bytes that the caches farthest from the allowed CPUs hold together; 0 where the kernel does not say.
    #[serde(default)]
    pub caches: u64,
}

/// Bytes of memory that are free or can be freed; more than any machine has where the kernel does not say.
pub fn free_memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib << 10)
}

const ROUND: Duration = Duration::from_millis(200);
const COPY: usize = 64 << 20;
/// Memory is copied for so long: that of a virtual machine, which is not its own, gave 3 to 14 GB/s in rounds of 200 ms.
const COPYING: Duration = Duration::from_secs(1);

/// Measures; takes about two seconds.
pub fn machine() -> Machine {
    let allowed = allowed_cpus();
    let cpus = allowed.len().max(1);
    Machine {
        cpus: cpus as u32,
        cpu_full: cpu_full(),
        memory_copy: memory_copy(cpus),
        caches: caches(&allowed),
    }
}

/// The last-level caches of the CPUs, each once however many CPUs share it.
pub fn caches(cpus: &BTreeSet<u32>) -> u64 {
    let last = |cpu: &u32| {
        let read = |n: u32, file: &str| {
            let path = format!("/sys/devices/system/cpu/cpu{cpu}/cache/index{n}/{file}");
            fs::read_to_string(path).map(|text| text.trim().to_owned()).ok()
        };
        let of = (0..8).filter_map(|n| {
            let level: u32 = read(n, "level")?.parse().ok()?;
            let size: ByteSize = read(n, "size")?.to_lowercase().parse().ok()?;
            Some((level, read(n, "shared_cpu_list")?, size.0))
        });
        of.max_by_key(|(level, ..)| *level)
    };
    let each: BTreeMap<String, u64> =
        cpus.iter().filter_map(last).map(|(_, shared, size)| (shared, size)).collect();
    each.values().sum()
}

fn on_cpu() -> Option<f64> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(text.split(' ').next()?.parse::<u64>().ok()? as f64 / 1e9)
}

/// The best of some rounds: a neighbour may take one.
fn cpu_full() -> f64 {
    let round = |_| {
        let (cpu, start) = (on_cpu(), Instant::now());
        let mut n = 0u64;
        while start.elapsed() < ROUND {
            n = black_box(n.wrapping_add(1));
        }
        let wall = start.elapsed().as_secs_f64();
        cpu.zip(on_cpu()).map_or(1.0, |(before, after)| (after - before) / wall)
    };
    (0..5).map(round).fold(0.0, f64::max).min(1.0)
}

/// By the CPU time that each thread got: what others took is not the memory's.
fn memory_copy(threads: usize) -> f64 {
    let copy = || {
        let source = vec![1u8; COPY];
        let mut target = vec![2u8; COPY];
        let (cpu, start, mut bytes) = (on_cpu(), Instant::now(), 0u64);
        while start.elapsed() < COPYING {
            target.copy_from_slice(black_box(&source));
            black_box(&mut target);
            bytes += COPY as u64;
        }
        let wall = start.elapsed().as_secs_f64();
        let took = cpu.zip(on_cpu()).map_or(wall, |(before, after)| after - before);
        bytes as f64 / if took > 0.0 { took.min(wall) } else { wall }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads.min(64)).map(|_| scope.spawn(copy)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).sum()
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_machine_has_cpus_and_memory() {
        let machine = super::machine();
        assert!(machine.cpus >= 1 && machine.cpu_full > 0.0 && machine.cpu_full <= 1.0, "{machine:?}");
        assert!(machine.memory_copy > 1e7, "{machine:?}");
    }
}
