//! The store's loads on a directory, without anything to compare with: `cargo bench -p ropewalk-pdisk -- DIR`.
//! `ropewalk pdisk bench` measures them against fio. Without DIR it runs tiny, so that it keeps working.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a program for people

use std::{path::Path, time::Duration};

use pdisk::{
    IoConfig,
    tools::bench::{self, Bench, Load, Options},
};

fn main() {
    let dir = std::env::args().skip(1).find(|word| !word.starts_with('-'));
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
