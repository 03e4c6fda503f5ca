//! The store's loads on a directory, without anything to compare with: `cargo bench -p ropewalk-pdisk -- DIR`.
//! `ropewalk pdisk bench` measures them against fio. Without DIR it runs tiny, so that it keeps working.
//! `-- flushes DIR`: eight pdisks on one disk, large writes with data and record flushed together and one after the other, in turns.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a program for people

use std::{path::Path, time::Duration};

use pdisk::{
    IoConfig,
    tools::bench::{self, Bench, Load, Options},
};

/// Large writes in turns: what it brings to flush data and record together.
fn flushes(dir: &Path) {
    let options =
        Options { size: 512 << 20, pdisks: 8, time: Duration::from_millis(700), ..Options::new(dir) };
    let mut bench = Bench::start(options).unwrap();
    for depth in [1, 8, 48] {
        let mut ratios: Vec<f64> = (0..7)
            .map(|round| {
                let mut rates = [0.0; 2];
                for turn in 0..2 {
                    let together = (round + turn) % 2;
                    bench.flush_together(together == 1);
                    let row = bench.run(Load::Write { depth }).unwrap();
                    rates[together] = row.mb_per_second();
                }
                println!("depth {depth}: data first {:.0} MB/s, together {:.0} MB/s", rates[0], rates[1]);
                rates[1] / rates[0]
            })
            .collect();
        ratios.sort_by(f64::total_cmp);
        println!("depth {depth}: together / data first {:.2} ({:.2}-{:.2})", ratios[3], ratios[0], ratios[6]);
    }
}

fn main() {
    let mut words = std::env::args().skip(1).filter(|word| !word.starts_with('-')).peekable();
    if words.next_if(|word| word == "flushes").is_some() {
        return flushes(Path::new(&words.next().expect("flushes: which directory?")));
    }
    let dir = words.next();
    let (scratch, tiny) = (tempfile::tempdir().unwrap(), dir.is_none());
    let dir = dir.as_deref().map_or(scratch.path(), Path::new);
    let (size, time) =
        if tiny { (64 << 20, Duration::from_millis(100)) } else { (2 << 30, Duration::from_secs(3)) };
    let mut bench = Bench::start(Options { size, time, ..Options::new(dir) }).unwrap();
    let loads = [
        Load::Write { depth: 8 },
        Load::Read { depth: 8 },
        Load::RandomRead { depth: 32, batch: 1 },
        Load::RandomRead { depth: 32, batch: 8 },
        Load::SyncWrite { writers: 1 },
        Load::SyncWrite { writers: 32 },
    ];
    for load in loads {
        let row = bench.run(load).unwrap();
        let (load, iops, cpu) = (&row.load, row.iops(), row.cpu_us());
        println!("{load}: {iops:.0} a second, {cpu:.1} us of CPU each, {} groups of the log", row.groups);
    }
    println!("{:?}", bench.age(if tiny { 8 << 20 } else { 4 << 30 }).unwrap());
    drop(bench);
    bench::fill(dir, if tiny { 1000 } else { 1_000_000 }, IoConfig::default()).unwrap();
    println!("{:?}", bench::open(dir, IoConfig::default()).unwrap());
    std::fs::remove_dir_all(dir.join("pdisk-bench")).unwrap();
}
