//! One flipped bit, anywhere in the store's three files: it is harmless, refused when the store is opened, or an error for
//! what it concerns. Never another content.
//!
//! `ROPEWALK_FLIPS=5000` tries so many.
#![allow(clippy::print_stdout)] // it prints what came of them

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind},
};

use super::{Changes, JournaledStore, RedbStore, Store as _, StoreError, mark, volatile::Volatile};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

const FLIPS: u64 = 400;

/// The bytes of the three files.
#[derive(Clone)]
struct Files([Vec<u8>; 3]);

fn open(media: &[Volatile; 3]) -> Result<JournaledStore, StoreError> {
    let [table, journal, mark] = media.clone();
    JournaledStore::on_media(RedbStore::on_backend(table)?, Box::new(journal), Box::new(mark))
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound.max(1)
    }
}

/// Keys like those of entries of two directories, with values of all sizes; some are removed again.
fn story(store: &JournaledStore, model: &mut Map, from: u64, to: u64) {
    for n in from..to {
        let key = [&b"d"[..], &(n % 2).to_be_bytes(), &(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_be_bytes()]
            .concat();
        let len = if n % 50 == 7 { 9000 } else { 20 + n as usize % 120 };
        let mut changes: Changes = [(key, Some(vec![n as u8; len]))].into();
        if n % 5 == 4
            && let Some(first) = model.keys().nth(n as usize % model.len().max(1))
        {
            changes.insert(first.clone(), None);
        }
        super::memory::apply(model, changes.clone());
        store.commit(&changes).unwrap();
    }
}

/// A store in use: its table holds most, its journal the rest. Closed in good order, or as a crash leaves it.
fn made(closed: bool) -> (Files, Map) {
    let media = [Vec::new(), vec![0; 128 * 4096], vec![0; mark::BYTES as usize]].map(Volatile::holding);
    let mut model = Map::new();
    story(&open(&media).unwrap(), &mut model, 0, 700);
    let store = open(&media).unwrap();
    story(&store, &mut model, 700, 760);
    let crashed = media.each_ref().map(|medium| medium.power_cut(|| true).bytes());
    drop(store);
    (Files(if closed { media.map(|medium| medium.bytes()) } else { crashed }), model)
}

/// Compares all there is with the model; whether anything was refused.
fn compare(store: &JournaledStore, model: &Map, told: &str) -> bool {
    let snapshot = match store.snapshot() {
        Ok(snapshot) => snapshot,
        Err(_) => return true,
    };
    let mut errors = 0;
    for (key, value) in model {
        match snapshot.get(key) {
            Ok(found) => assert_eq!(found.as_ref(), Some(value), "{told}: {key:02x?}"),
            Err(_) => errors += 1,
        }
        let absent = [&key[..], b"x"].concat();
        match snapshot.get(&absent) {
            Ok(found) => assert_eq!(found, None, "{told}: {absent:02x?}"),
            Err(_) => errors += 1,
        }
    }
    for directory in 0..2u64 {
        let start = [&b"d"[..], &directory.to_be_bytes()].concat();
        let end = super::prefix_end(&start);
        let mut expected = model.range(start.clone()..end.clone());
        let outcome = snapshot.scan(&start, &end, &mut |key, value| {
            assert_eq!(expected.next(), Some((&key.to_vec(), &value.to_vec())), "{told}: listed");
            ControlFlow::Continue(())
        });
        match outcome {
            Ok(()) => assert_eq!(expected.next(), None, "{told}: the list ends early"),
            Err(_) => errors += 1,
        }
    }
    errors > 0
}

#[derive(Debug, Default)]
struct Outcomes {
    harmless: u32,
    refused: u32,
    errors: u32,
}

fn one(files: &Files, model: &Map, file: usize, bit: usize, outcomes: &mut Outcomes) {
    let told = format!("file {file}, bit {} of byte {}", bit % 8, bit / 8);
    let mut files = files.clone();
    files.0[file][bit / 8] ^= 1 << (bit % 8);
    let media = files.0.map(Volatile::holding);
    let mut model = model.clone();
    for round in 0..2 {
        let store =
            catch_unwind(|| open(&media)).unwrap_or_else(|_| panic!("{told}: a panic at its opening"));
        let Ok(store) = store else {
            outcomes.refused += 1;
            return;
        };
        if compare(&store, &model, &format!("{told}, round {round}")) {
            outcomes.errors += 1;
            return;
        }
        // What goes on with it stays right, or stops. (A panic ends the manager.)
        let wrote = catch_unwind(AssertUnwindSafe(|| story(&store, &mut model, 1000, 1040)));
        if wrote.is_err() {
            outcomes.errors += 1;
            return;
        }
    }
    outcomes.harmless += 1;
}

#[test]
fn a_flipped_bit_is_harmless_refused_or_an_error() {
    let flips = std::env::var("ROPEWALK_FLIPS").ok().and_then(|n| n.parse().ok()).unwrap_or(FLIPS);
    let mut random = Random(0x5eed);
    for closed in [true, false] {
        let (files, model) = made(closed);
        // Where something is; the rest is room.
        let used = files.0.each_ref().map(|bytes| {
            let used = bytes.iter().enumerate().filter(|(_, byte)| **byte != 0);
            used.map(|(at, _)| at).collect::<Vec<_>>()
        });
        let mut outcomes: [Outcomes; 3] = Default::default();
        for n in 0..flips / 2 {
            let file = [0, 0, 0, 1, 1, 2][random.below(6)];
            let at = if n % 8 == 0 {
                random.below(files.0[file].len())
            } else {
                used[file][random.below(used[file].len())]
            };
            one(&files, &model, file, at * 8 + random.below(8), &mut outcomes[file]);
        }
        println!(
            "closed {closed}: table {:?}, journal {:?}, mark {:?}",
            outcomes[0], outcomes[1], outcomes[2]
        );
        assert!(outcomes[0].refused + outcomes[0].errors > 0, "no flip of the table was noticed");
        assert!(outcomes[1].refused > 0, "no flip of the journal was noticed");
    }
}

/// Keys are removed until what is left of them is put together with what stands beside it, which may be damaged: the engine, which
/// cannot tell, would take that for nothing.
#[test]
fn what_is_removed_takes_nothing_damaged_along() {
    let media = [Vec::new(), vec![0; 128 * 4096], vec![0; mark::BYTES as usize]].map(Volatile::holding);
    let key = |n: u32| n.to_be_bytes().to_vec();
    let all: Changes = (0..1200).map(|n| (key(n), Some(vec![n as u8; 90]))).collect();
    open(&media).unwrap().commit(&all).unwrap();
    // It is in the table; that it is removed is in the journal.
    let store = open(&media).unwrap();
    let mut model = Map::new();
    super::memory::apply(&mut model, all);
    // So many that leaves are left with all, little or nothing of theirs.
    for group in 1..12 {
        let gone: Changes = (100 * group..100 * group + 22 + 3 * group).map(|n| (key(n), None)).collect();
        super::memory::apply(&mut model, gone.clone());
        store.commit(&gone).unwrap();
    }
    let files = Files(media.each_ref().map(|medium| medium.power_cut(|| true).bytes()));
    drop(store);
    let (mut refused, mut errors) = (0, 0);
    for block in 0..(files.0[0].len() - 4096) / 4100 {
        let mut files = files.clone();
        files.0[0][4096 + block * 4100 + 500] ^= 4;
        match open(&files.0.map(Volatile::holding)) {
            Err(_) => refused += 1,
            Ok(store) => errors += u32::from(compare(&store, &model, &format!("block {}", block + 1))),
        }
    }
    println!("{refused} refused, {errors} with errors");
    assert!(refused > 0 && errors > 0);
}
