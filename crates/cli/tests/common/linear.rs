//! Whether a history of one register is linearizable: some order of the operations, in which each lies
//! between its start and its end, explains every read (Wing and Gong 1993, with Lowe's memory of states).
#![allow(dead_code)] // each test file uses a part

use std::collections::HashSet;

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Act {
    /// This value was written.
    Write(u64),
    /// This value was read.
    Read(u64),
}

/// An operation with the times, by one clock, between which it took effect.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    pub act: Act,
    pub start: u64,
    pub end: u64,
    /// A write that may have had no effect. If it had one, it was in time.
    pub maybe: bool,
}

/// Whether there is such an order, beginning with the value 0.
pub fn is_linearizable(history: &[Done]) -> bool {
    let mut history = history.to_vec();
    history.sort_by_key(|done| done.start);
    let mut seen = HashSet::new();
    let mut open = vec![(vec![false; history.len()], 0u64, 0u64)];
    while let Some((taken, first, value)) = open.pop() {
        let mut first = first as usize;
        while first < history.len() && taken[first] {
            first += 1;
        }
        if history.iter().zip(&taken).all(|(done, taken)| *taken || done.maybe) {
            return true;
        }
        // Whoever starts after the end of one that is not taken yet comes after it.
        let limit = history[first..]
            .iter()
            .zip(&taken[first..])
            .filter(|(done, taken)| !**taken && !done.maybe)
            .map(|(done, _)| done.end)
            .min()
            .unwrap_or(u64::MAX);
        let latest =
            history.iter().zip(&taken).filter(|(_, taken)| **taken).map(|(done, _)| done.start).max();
        for (at, done) in history.iter().enumerate().skip(first) {
            if done.start > limit {
                break;
            }
            if taken[at] || latest.is_some_and(|latest| done.end < latest) {
                continue;
            }
            let next = match done.act {
                Act::Write(new) => new,
                Act::Read(read) if read == value => value,
                Act::Read(_) => continue,
            };
            let mut taken = taken.clone();
            taken[at] = true;
            if seen.insert((taken.clone(), next)) {
                open.push((taken, first as u64, next));
            }
        }
    }
    false
}
