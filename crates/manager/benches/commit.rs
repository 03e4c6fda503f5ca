//! What one small durable commit costs: the bare table, the table behind its journal, and the ceiling, a 4 KiB
//! write with fdatasync to a file on the same disk.
//!
//! `cargo bench -p ropewalk-manager --bench commit -- [DIR]`
//! Prints commits per second and CPU per commit for each, and the ratio to the ceiling.
#![allow(clippy::print_stdout)] // it prints its figures

use std::{
    io::{Seek as _, Write as _},
    path::PathBuf,
    time::Instant,
};

use manager::store::{Changes, JournaledStore, RedbStore, Store};

const COMMITS: u32 = 5000;

fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("own stat");
    base::proc_stat::cpu_seconds(&stat).expect("times of a live process")
}

/// Times `COMMITS` calls; returns calls a second.
fn measure(name: &str, ceiling: Option<f64>, mut commit: impl FnMut(u32)) -> f64 {
    let (start, cpu) = (Instant::now(), cpu_seconds());
    (0..COMMITS).for_each(&mut commit);
    let rate = f64::from(COMMITS) / start.elapsed().as_secs_f64();
    let micros = (cpu_seconds() - cpu) * 1e6 / f64::from(COMMITS);
    let ratio = ceiling.map_or(String::new(), |ceiling| format!("   ratio {:.2}", rate / ceiling));
    println!("{name:24} {rate:8.0} commits/s   {micros:5.0} us CPU each{ratio}");
    rate
}

/// As many changes as making a small file has: inode, body, entry, directory, reply, counters.
fn changes(n: u32) -> Changes {
    let value = |len: usize| Some(vec![n as u8; len]);
    (0..6u32).map(|part| ([&part.to_be_bytes()[..], &n.to_be_bytes()].concat(), value(100))).collect()
}

fn main() {
    let dir: PathBuf =
        std::env::args().nth(1).filter(|arg| !arg.starts_with('-')).unwrap_or("/var/tmp".into()).into();
    let dir = tempfile::tempdir_in(&dir).expect("a directory on the disk to measure");
    let path = dir.path().join("store.redb");

    let mut file = std::fs::File::create(dir.path().join("raw")).expect("file");
    file.write_all(&vec![0; 16 << 20]).expect("fill");
    file.sync_all().expect("sync");
    let page = vec![1; 4096];
    let ceiling = measure("4 KiB write + fdatasync", None, |n| {
        file.seek(std::io::SeekFrom::Start(u64::from(n % 4096) * 4096)).expect("seek");
        file.write_all(&page).expect("write");
        file.sync_data().expect("sync");
    });
    let table = RedbStore::create(&path, 64 << 20).expect("store");
    measure("table, durable", Some(ceiling), |n| table.commit(&changes(n)).expect("commit"));
    drop(table);
    let store = JournaledStore::open(&path, 64 << 20).expect("store");
    measure("table behind journal", Some(ceiling), |n| store.commit(&changes(n + COMMITS)).expect("commit"));
    drop(store);
    let start = Instant::now();
    JournaledStore::open(&path, 64 << 20).expect("store");
    println!("opening it again: {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
}
