//! Tokens, leases and fencing explored: interleavings of a few acts of two clients, and of three, on a file of two blocks, with
//! crashes, sleepers, restarts of the manager and questions that wait too long, by the shipped transition functions: up
//! to a number of states in order, longer ones at random. The same of clients that make names ahead of the manager. A rule taken out must be missed.
//! `ROPEWALK_TEST_SEED=random` walks elsewhere, and a number repeats that; `ROPEWALK_TOKEN_WALKS=N` walks N times as often, `ROPEWALK_SOAK=1`
//! explores more as well.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "token_model/beside.rs"]
mod beside;
mod common;
#[path = "common/concerned.rs"]
mod concerned;
#[path = "token_model/names.rs"]
mod names;
#[path = "token_model/names_acts.rs"]
mod names_acts;
#[path = "token_model/names_store.rs"]
mod names_store;
#[path = "token_model/world.rs"]
mod world;

use std::{
    collections::HashSet,
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use base::{Grant, InodeNo, SessionId};
use beside::Beside;
use client::tokens::{Cell, Enter, Recalled};
use common::{Random, seed};
use manager::tokens::Tokens;
use names::Names;
use wire::token::{Need, Recall, Span, Token, TokenMode, Use};
use world::{Fault, World};

/// What is explored.
trait Explored: Clone {
    type Event: Copy + Debug;
    /// Everything that can happen.
    fn events(&self) -> Vec<Self::Event>;
    /// Whether somebody waits while nothing can happen, of these, but what nobody has to do.
    fn is_stuck(&self, events: &[Self::Event]) -> bool;
    /// Lets it happen; an error says which promise was broken.
    fn step(&mut self, event: Self::Event) -> Result<(), String>;
    /// The state as text that is the same for states that differ in nothing but numbers of grants.
    fn canonical(&self) -> String;
}

/// Two of twenty million states have the same one in a run of a hundred thousand; then one of them is not looked at.
fn digest(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// All states that can be reached, at most `max`; how many, or what was broken and how.
fn explore<W: Explored>(start: W, max: usize) -> Result<usize, String> {
    let mut seen = HashSet::from([digest(&start.canonical())]);
    let mut open: Vec<(W, Vec<W::Event>)> = vec![(start, Vec::new())];
    while let Some((world, path)) = open.pop() {
        let events = world.events();
        if world.is_stuck(&events) {
            return Err(format!("stuck after {path:?}"));
        }
        for event in events {
            let mut next = world.clone();
            next.step(event).map_err(|broken| format!("{broken}\nafter {path:?} {event:?}"))?;
            if seen.len() < max && seen.insert(digest(&next.canonical())) {
                open.push((next, path.iter().copied().chain([event]).collect()));
            }
        }
    }
    Ok(seen.len())
}

/// One walk at random to its end.
fn walk(mut world: impl Explored, random: &mut Random) -> Result<(), String> {
    let mut path = Vec::new();
    for _ in 0..200 {
        let events = world.events();
        if world.is_stuck(&events) {
            return Err(format!("stuck after {path:?}"));
        }
        let Some(event) = events.get(random.below(events.len().max(1) as u64) as usize) else { break };
        path.push(*event);
        world.step(*event).map_err(|broken| format!("{broken}\nafter {path:?}"))?;
    }
    Ok(())
}

fn walks(count: u64, fault: Fault) -> Result<(), String> {
    let mut random = Random(seed());
    (0..count).try_for_each(|n| {
        let clients = 2 + random.below(2);
        // All but one may die.
        let mishaps = [clients, 2, 2].map(|max| random.below(max) as u8);
        let walked = walk(World::new(clients as usize, 4, mishaps, fault), &mut random);
        walked.map_err(|broken| format!("{n} walks, then {broken}"))
    })
}

fn walks_of_names(count: u64, fault: names_acts::Fault) -> Result<(), String> {
    let mut random = Random(seed());
    (0..count).try_for_each(|n| {
        let mishaps = [2, 2, 3].map(|max| random.below(max) as u8);
        let walked = walk(Names::new(2, 6, mishaps, fault), &mut random);
        walked.map_err(|broken| format!("{n} walks, then {broken}"))
    })
}

fn walks_beside(count: u64, fault: beside::Fault) -> Result<(), String> {
    let mut random = Random(seed());
    (0..count).try_for_each(|n| {
        let clients = 2 + random.below(2) as usize;
        let mishaps = [2, 2].map(|max| random.below(max) as u8);
        let walked = walk(Beside::new(clients, 6, mishaps, fault), &mut random);
        walked.map_err(|broken| format!("{n} walks, then {broken}"))
    })
}

fn soak() -> bool {
    std::env::var("ROPEWALK_SOAK").is_ok_and(|soak| soak == "1")
}

/// How many times as many walks are wanted.
fn times() -> u64 {
    std::env::var("ROPEWALK_TOKEN_WALKS")
        .ok()
        .map_or(1, |times| times.parse().expect("ROPEWALK_TOKEN_WALKS is a number"))
}

#[test]
fn every_order_of_a_few_acts_keeps_the_promises() {
    let max = if soak() { 20_000_000 } else { 5_000 };
    for (acts, mishaps) in [(1, [0; 3]), (2, [0; 3]), (1, [1, 0, 0]), (1, [0, 1, 0]), (1, [0, 0, 1])] {
        let states = explore(World::new(2, acts, mishaps, Fault::None), max);
        let states = states.unwrap_or_else(|broken| panic!("{broken}"));
        let all = if states < max { "all" } else { "the first" };
        println!("{acts} acts each, {mishaps:?} deaths, restarts, questions too late: {all} {states} states");
    }
}

/// Two hold a block each and want to write the other's. Readers with pages of both, for which each giving up waits, wait for the other one: they go
/// on once what goes is not written any more, also where a grant was made before the manager had heard of that.
#[test]
fn two_that_give_blocks_up_to_each_other_let_readers_in_first() {
    const INO: InodeNo = InodeNo(7);
    let span = |first, end| Span { first, end };
    let write = |block| Need::Blocks(span(block, block + 1), Use::Write);
    let both = Need::Blocks(span(0, 2), Use::Read);
    let (mut tokens, mut cells, mut grants) = (Tokens::new(false), [Cell::default(), Cell::default()], 0);
    let session = |i: usize| SessionId(i as u64 + 1);
    let mut next = || {
        grants += 1;
        Grant(grants)
    };
    (0..2).for_each(|i| tokens.begin(session(i), false, false));
    let mut ask = |tokens: &mut Tokens, i: usize, need, ticket| {
        tokens.acquire(session(i), INO, need, ticket, Duration::MAX, Duration::ZERO, &mut next).granted
    };
    let recalled = |tokens: &mut Tokens, cells: &mut [Cell; 2], i: usize| {
        let told = tokens.poll(session(i), 10, Duration::MAX, Duration::ZERO).told;
        let [(_, recalls)] = &told[..] else { panic!("{told:?}") };
        let [Recall::Token(wanted)] = &recalls[..] else { panic!("{recalls:?}") };
        assert_eq!(cells[i].recalled(wanted, TokenMode::Read, true), Recalled::Begin);
    };
    // A number of its own for what is granted by a release.
    let mut later = 100;
    let mut release = |tokens: &mut Tokens, i: usize, token: Token| {
        let next = &mut || {
            later += 1;
            Grant(later)
        };
        tokens.release(session(i), &[token], Duration::ZERO, next).granted
    };
    // Each is at work in a block of its own.
    assert_eq!(cells[0].enter(write(0)), Enter::Ask);
    let granted = ask(&mut tokens, 0, write(0), 20);
    assert!(cells[0].granted(&granted[0].1, false, false));
    cells[0].leave(write(0));
    assert_eq!(cells[1].enter(write(1)), Enter::Ask);
    assert!(ask(&mut tokens, 1, write(1), 21).is_empty());
    recalled(&mut tokens, &mut cells, 0);
    let left = cells[0].gave(INO, true);
    let granted = release(&mut tokens, 0, left);
    assert!(cells[1].granted(&granted[0].1, false, false));
    cells[1].leave(write(1));
    // Each wants the other's, and has readers of both.
    for (i, cell) in cells.iter_mut().enumerate() {
        let need = write(1 - i as u64);
        assert_eq!(cell.enter(need), Enter::Ask);
        let granted =
            tokens.acquire(session(i), INO, need, 30 + i as u64, Duration::MAX, Duration::ZERO, &mut || {
                unreachable!("the other has it")
            });
        assert!(granted.granted.is_empty());
    }
    (0..2).for_each(|i| recalled(&mut tokens, &mut cells, i));
    for (i, cell) in cells.iter_mut().enumerate() {
        assert!(cell.ask_late(both));
        let granted =
            tokens.acquire(session(i), INO, both, 40 + i as u64, Duration::MAX, Duration::ZERO, &mut || {
                unreachable!("the other writes a block of it")
            });
        assert!(granted.granted.is_empty(), "{i} reads what the other writes");
    }
    let [first, second] = [0, 1].map(|i: usize| {
        cells[i].lower();
        cells[i].take_lowered(INO).unwrap()
    });
    let take = |cell: &mut Cell, granted: &[(u64, Token, bool)], tickets: [u64; 2]| {
        assert_eq!(granted.iter().map(|grant| grant.0).collect::<HashSet<_>>(), HashSet::from(tickets));
        assert!(cell.end_late(|cell| cell.granted(&granted[0].1, false, true)));
        assert!(cell.allows(both) && !cell.allows(write(0)) && !cell.allows(write(1)));
        cell.refused();
        cell.leave(both);
    };
    let granted = release(&mut tokens, 0, first);
    take(&mut cells[1], &granted, [31, 41]);
    assert!(release(&mut tokens, 1, second).is_empty(), "it is about an earlier grant");
    let second = cells[1].take_lowered(INO).unwrap();
    let granted = release(&mut tokens, 1, second);
    take(&mut cells[0], &granted, [30, 40]);
    // All goes, and each writer asks once more.
    for (i, cell) in cells.iter_mut().enumerate() {
        let left = cell.gave(INO, true);
        release(&mut tokens, i, left);
        assert_eq!(cell.enter(write(1 - i as u64)), Enter::Ask);
    }
}

#[test]
fn longer_walks_keep_the_promises() {
    let count = if soak() { 5_000_000 } else { 100_000 * times() };
    walks(count, Fault::None).unwrap_or_else(|broken| panic!("{broken}"));
}

#[test]
fn a_rule_taken_out_is_missed() {
    use Fault::*;
    let lowering = [LowerFirst, LowerBeside];
    let others = [ReleaseFirst, KeepPages, NoFence, NoCommit, UseVoid, NoResolve, LateRelease, OldTimes];
    for fault in lowering.into_iter().chain(others) {
        // The rarest needs far more walks than the others.
        let found = walks(2_000_000, fault);
        assert!(found.is_err(), "{fault:?} is not found");
        println!("{fault:?}: {}", found.unwrap_err());
    }
}

#[test]
fn names_made_ahead_keep_the_promises() {
    let max = if soak() { 5_000_000 } else { 20_000 };
    for (acts, mishaps) in [(2, [0; 3]), (3, [1, 0, 0]), (3, [0, 1, 0]), (3, [0, 0, 1]), (2, [1, 1, 1])] {
        let states = explore(Names::new(2, acts, mishaps, names_acts::Fault::None), max);
        let states = states.unwrap_or_else(|broken| panic!("{broken}"));
        let all = if states < max { "all" } else { "the first" };
        println!("names: {acts} acts each, {mishaps:?} deaths, restarts, copies: {all} {states} states");
    }
}

#[test]
fn longer_walks_of_names_made_ahead_keep_the_promises() {
    let count = if soak() { 3_000_000 } else { 30_000 * times() };
    walks_of_names(count, names_acts::Fault::None).unwrap_or_else(|broken| panic!("{broken}"));
}

#[test]
fn a_rule_of_names_made_ahead_taken_out_is_missed() {
    use concerned::LeftOut::*;
    use names_acts::Fault::*;
    let questions = [Unwaited, Concerns(Directories), Concerns(Target), Concerns(Replaced), Entry];
    let rules = [ToldLate, NumbersTwice, Disorder, Twice, SyncEarly, AfterEnd];
    for fault in rules.into_iter().chain(questions) {
        let found = walks_of_names(1_000_000, fault);
        assert!(found.is_err(), "{fault:?} is not found");
        println!("{fault:?}: {}", found.unwrap_err());
    }
}

#[test]
fn names_made_beside_each_other_keep_the_promises() {
    let max = if soak() { 5_000_000 } else { 20_000 };
    for (acts, mishaps) in [(2, [0; 2]), (3, [0; 2]), (3, [1, 0]), (3, [0, 1]), (2, [1, 1])] {
        let states = explore(Beside::new(2, acts, mishaps, beside::Fault::None), max);
        let states = states.unwrap_or_else(|broken| panic!("{broken}"));
        let all = if states < max { "all" } else { "the first" };
        println!("beside: {acts} acts each, {mishaps:?} deaths, restarts: {all} {states} states");
    }
}

#[test]
fn longer_walks_of_names_made_beside_each_other_keep_the_promises() {
    let count = if soak() { 3_000_000 } else { 30_000 * times() };
    walks_beside(count, beside::Fault::None).unwrap_or_else(|broken| panic!("{broken}"));
}

#[test]
fn a_rule_of_names_made_beside_each_other_taken_out_is_missed() {
    use beside::Fault::*;
    for fault in [Untold, Entered, Unclaimed, Claimed] {
        let found = walks_beside(1_000_000, fault);
        assert!(found.is_err(), "{fault:?} is not found");
        println!("{fault:?}: {}", found.unwrap_err());
    }
}
