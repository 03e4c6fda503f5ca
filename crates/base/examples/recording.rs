//! What it costs to record an operation, and to close the seconds: CPU time by the clock of the threads.
//!   cargo run --release -p ropewalk-base --example recording [THREADS [FILES [KIB]]]        KIB: memory that is read before each operation, as a program does
#![allow(clippy::print_stdout)] // what is measured is printed

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use base::stats::{self, Key, Names, Set};

const SECONDS: Duration = Duration::from_secs(3);

fn main() {
    let mut given = std::env::args().skip(1).filter_map(|word| word.parse::<u64>().ok());
    let (threads, files) = (given.next().unwrap_or(4), given.next().unwrap_or(16));
    let kib = given.next().unwrap_or(0);
    let recorder = stats::recorder(Set::File, Names { op: |_| "read", class: |_| "data" });
    if stats::keep().is_err() {
        return;
    }
    let (cost, said) = (stats::gauge("analytics_cost_millionths", &[]), Cell::new(0.0));
    let run = |record: bool| {
        let thread = |thread: u64| {
            let memory = vec![1u8; kib as usize * 1024];
            let (begun, until) = (stats::thread_cpu(), Instant::now() + SECONDS);
            let mut done = 0u64;
            while Instant::now() < until {
                for n in 0..1000 {
                    let n = done + n;
                    std::hint::black_box(
                        memory.iter().step_by(64).fold(0, |sum: u64, byte| sum + u64::from(*byte)),
                    );
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
            std::thread::sleep(SECONDS * 4 / 5);
            said.set(cost.get() as f64 / 1e4);
            running.into_iter().filter_map(|one| one.join().ok()).collect()
        });
        let (done, cpu) = each.iter().fold((0, Duration::ZERO), |all, one| (all.0 + one.0, all.1 + one.1));
        (cpu.as_nanos() as f64 / done as f64, done as f64 / SECONDS.as_secs_f64())
    };
    let ((nothing, _), (recorded, rate)) = (run(false), run(true));
    let each = recorded - nothing;
    println!(
        "{threads} threads, {files} files: {each:.1} ns of CPU an operation (the loop without it: {nothing:.1} ns)"
    );
    println!("200,000 operations a second: {:.2} % of a CPU", each * 200_000.0 / 1e7);
    println!(
        "at {rate:.0} a second: {:.2} % of a CPU by this, {:.2} % as analytics.cost says, closing the second included",
        each * rate / 1e7,
        said.get()
    );
}
