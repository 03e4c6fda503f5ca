//! Story: every process of the cluster is killed at once, again and again, under a load of writers that
//! fsync. Whatever was fsynced is there afterwards; what was in flight is old or new, never anything else.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

mod common;

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use parking_lot::Mutex;

use common::{Cluster, Random};

const UNIT: usize = 4096;
const FILE_UNITS: u64 = 3 * 1024; // 12 MiB: three blocks of 4 MiB
const WRITERS: usize = 4;

/// What one unit of a file may hold: the value acknowledged by fsync, or one written since.
#[derive(Clone)]
struct Unit {
    acked: u64,
    since: Vec<u64>,
}

/// One writer's file and what is known of it. Value 0 is "never written" (zeros).
struct Record {
    units: Vec<Unit>,
    next: u64,
}

/// A unit's bytes follow from its place and value.
fn content(writer: usize, unit: u64, value: u64) -> Vec<u8> {
    let mut bytes = vec![0; UNIT];
    if value != 0 {
        Random((writer as u64) << 48 ^ unit << 24 ^ value).fill(&mut bytes);
        bytes[..8].copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// Writes and fsyncs until told to stop or the file system goes away.
fn write_until_killed(
    file: &File,
    writer: usize,
    record: &mut Record,
    random: &mut Random,
    stop: &AtomicBool,
) {
    while !stop.load(Ordering::Relaxed) {
        let mut written = Vec::new();
        for _ in 0..1 + random.below(4) {
            let units_max = if random.below(4) == 0 { 300 } else { 8 };
            let count = 1 + random.below(units_max);
            let first = random.below(FILE_UNITS - count);
            let value = record.next;
            record.next += 1;
            let mut bytes = Vec::new();
            for unit in first..first + count {
                bytes.extend(content(writer, unit, value));
                record.units[unit as usize].since.push(value);
                written.push((unit, value));
            }
            if file.write_all_at(&bytes, first * UNIT as u64).is_err() {
                return;
            }
        }
        if file.sync_data().is_err() {
            return;
        }
        // The last write of this round to each unit is acknowledged now.
        for (index, value) in written {
            let unit = &mut record.units[index as usize];
            unit.acked = unit.acked.max(value);
            unit.since.retain(|&v| v > value);
        }
    }
}

/// Every unit is what was acknowledged, or newer. What was found counts as acknowledged from now on.
fn check(file: &File, writer: usize, record: &mut Record, round: usize) {
    let len = file.metadata().expect("stat").len();
    for (index, unit) in record.units.iter_mut().enumerate() {
        let offset = index as u64 * UNIT as u64;
        let mut bytes = vec![0; UNIT];
        if offset < len {
            file.read_exact_at(&mut bytes[..UNIT.min((len - offset) as usize)], offset).expect("read");
        }
        let value = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert!(
            value == unit.acked || unit.since.contains(&value),
            "round {round}, writer {writer}, unit {index}: holds {value}, acknowledged {}, written since {:?}",
            unit.acked,
            unit.since
        );
        assert!(
            bytes == content(writer, index as u64, value),
            "round {round}, writer {writer}, unit {index}: mixed bytes"
        );
        *unit = Unit { acked: value, since: Vec::new() };
    }
}

#[test]
fn nothing_fsynced_is_lost_when_everything_is_killed() {
    let seed = common::seed();
    let rounds: usize = std::env::var("ROPEWALK_KILL_ROUNDS").ok().and_then(|s| s.parse().ok()).unwrap_or(20);
    let mut random = Random(seed);
    let cluster = Cluster::up(&["--pdisk-size", "512m"]);
    let fresh = || Record { units: vec![Unit { acked: 0, since: Vec::new() }; FILE_UNITS as usize], next: 1 };
    let records: Vec<Mutex<Record>> = (0..WRITERS).map(|_| Mutex::new(fresh())).collect();
    let path = |writer: usize| cluster.mnt().join(format!("file{writer}"));
    let mut acked_writes = 0;
    for round in 0..rounds {
        let stop = AtomicBool::new(false);
        let checked = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for (writer, record) in records.iter().enumerate() {
                let seed = random.next();
                let (stop, checked, path) = (&stop, &checked, path(writer));
                scope.spawn(move || {
                    let mut record = record.lock();
                    let file = OpenOptions::new()
                        .read(true)
                        .write(true)
                        .create(true)
                        .truncate(false)
                        .open(path)
                        .expect("open");
                    check(&file, writer, &mut record, round);
                    checked.fetch_add(1, Ordering::Relaxed);
                    write_until_killed(&file, writer, &mut record, &mut Random(seed), stop);
                });
            }
            // Nobody may still read when the mount is killed.
            common::until("all have checked", || checked.load(Ordering::Relaxed) == WRITERS);
            std::thread::sleep(Duration::from_millis(300 + random.below(1500)));
            cluster.kill(|_| true);
            stop.store(true, Ordering::Relaxed);
        });
        cluster.start();
        acked_writes = records.iter().map(|r| r.lock().next).sum();
    }
    for (writer, record) in records.iter().enumerate() {
        let file = File::open(path(writer)).expect("open");
        check(&file, writer, &mut record.lock(), rounds);
    }
    println!("{rounds} times everything killed, {acked_writes} writes, nothing fsynced lost");
    assert!(acked_writes > 0, "the load wrote nothing");
    cluster.down();
}
