//! What it costs to record an operation, and to close the seconds: CPU time by the clock of the threads.
//!   cargo run --release -p ropewalk-base --example recording [THREADS [FILES]]
#![allow(clippy::print_stdout)] // what is measured is printed

use std::time::{Duration, Instant};

use base::stats::{self, Key, Names, Set};

const SECONDS: Duration = Duration::from_secs(3);

fn main() {
    let mut given = std::env::args().skip(1).filter_map(|word| word.parse::<u64>().ok());
    let (threads, files) = (given.next().unwrap_or(4), given.next().unwrap_or(16));
    let recorder = stats::recorder(Set::File, Names { op: |_| "read", class: |_| "data" });
    if stats::keep().is_err() {
        return;
    }
    let run = |record: bool| {
        let thread = |thread: u64| {
            let (begun, until) = (stats::thread_cpu(), Instant::now() + SECONDS);
            let mut done = 0u64;
            while Instant::now() < until {
                for n in 0..1000 {
                    let n = done + n;
                    let inode = 100 + n.wrapping_mul(7) % files;
                    let key = Key { session: thread, inode, fs: 1, op: 15, ..Key::default() };
                    let latency = Duration::from_nanos(20_000 + n % 30_000);
                    let key = std::hint::black_box(key);
                    if record {
                        recorder.record(&key, 4096, latency);
                    }
                }
                done += 1000;
            }
            (done, stats::thread_cpu() - begun)
        };
        let each: Vec<(u64, Duration)> = std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads).map(|n| scope.spawn(move || thread(n))).collect();
            running.into_iter().filter_map(|one| one.join().ok()).collect()
        });
        let (done, cpu) = each.iter().fold((0, Duration::ZERO), |all, one| (all.0 + one.0, all.1 + one.1));
        cpu.as_nanos() as f64 / done as f64
    };
    let (nothing, recorded) = (run(false), run(true));
    let each = recorded - nothing;
    println!(
        "{threads} threads, {files} files: {each:.1} ns of CPU an operation (the loop without it: {nothing:.1} ns)"
    );
    println!("200,000 operations a second: {:.2} % of a CPU", each * 200_000.0 / 1e7);
}
