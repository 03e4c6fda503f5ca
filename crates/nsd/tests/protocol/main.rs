//! The protocol model: one stripe of 2+1p on three pdisks, a fourth to move to, writers that crash, pdisks that
//! die and come back, messages that arrive late or twice. Every state that the shipped decisions can reach
//! within the bounds is visited (`pdisk::rules`, `stripe::resolve`, `nsd::judge`, `ClusterMap`'s epochs);
//! whatever is read must be what was acknowledged last, or begun since, never a mixture, with any further
//! pdisk lost that the code allows. Then each rule is taken out, and a loss must be found.
//!
//! `ROPEWALK_MODEL_STATES` sets how many states are visited at most (default 40000 for each case that must
//! hold, ten times that for each rule).
#![allow(clippy::unwrap_used, clippy::print_stdout)] // tests

mod world;

use std::collections::{HashSet, VecDeque};

use world::{Bounds, State, Without};

/// A way to a loss: what happened, and what is wrong then.
type Way = Vec<String>;

/// Visits states, nearest first, then walks at random as far as states were visited; the way to the first
/// loss, and how many states were visited.
fn explore(bounds: Bounds, without: Without, most: usize) -> (Option<Way>, usize) {
    let (way, visited) = nearest(bounds, without, most / 2);
    match way {
        Some(way) => (Some(way), visited),
        None if visited < most / 2 => (None, visited), // there are no others
        None => walk(bounds, without, visited, most),
    }
}

fn nearest(bounds: Bounds, without: Without, most: usize) -> (Option<Way>, usize) {
    let mut seen: HashSet<u64> = HashSet::new();
    let digest = |state: &State| {
        use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
        BuildHasherDefault::<DefaultHasher>::default().hash_one(state)
    };
    let mut trail: Vec<(usize, String)> = vec![(0, String::new())];
    let start = State::new();
    seen.insert(digest(&start));
    let mut queue = VecDeque::from([(start, 0)]);
    while let Some((state, at)) = queue.pop_front() {
        if seen.len() >= most {
            break;
        }
        for (label, next) in state.next(bounds, without) {
            if !seen.insert(digest(&next)) {
                continue;
            }
            trail.push((at, label));
            let here = trail.len() - 1;
            if let Some(loss) = next.loss(without) {
                let (mut way, mut i) = (vec![loss], here);
                while i != 0 {
                    way.push(trail[i].1.clone());
                    i = trail[i].0;
                }
                way.reverse();
                return (Some(way), seen.len());
            }
            queue.push_back((next, here));
        }
    }
    (None, seen.len())
}

/// Longest walk.
const STEPS: usize = 80;

fn walk(bounds: Bounds, without: Without, mut visited: usize, most: usize) -> (Option<Way>, usize) {
    let mut random = 1u64;
    while visited < most {
        let (mut state, mut way) = (State::new(), Vec::new());
        for _ in 0..STEPS {
            let mut next = state.next(bounds, without);
            if next.is_empty() {
                break;
            }
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (label, chosen) = next.swap_remove((random >> 33) as usize % next.len());
            way.push(label);
            state = chosen;
            visited += 1;
            if let Some(loss) = state.loss(without) {
                way.push(loss);
                return (Some(way), visited);
            }
        }
    }
    (None, visited)
}

fn most() -> usize {
    std::env::var("ROPEWALK_MODEL_STATES").ok().and_then(|s| s.parse().ok()).unwrap_or(40_000)
}

const BASE: Bounds = Bounds {
    writes: 2,
    crashes: 1,
    deaths: 0,
    moves: false,
    short: false,
    repairs: false,
    fence: true,
    sealing: true,
};

/// A block of which one data strip was written.
const SHORT: Bounds = Bounds { writes: 1, crashes: 0, deaths: 1, moves: true, short: true, ..BASE };

#[test]
fn nothing_is_lost() {
    let cases = [
        ("two writes, a crash", BASE),
        ("two crashes", Bounds { crashes: 2, ..BASE }),
        ("a pdisk dies and comes back", Bounds { deaths: 1, ..BASE }),
        ("without fence, by the seal alone", Bounds { fence: false, ..BASE }),
        ("without seal, by the fence alone", Bounds { sealing: false, ..BASE }),
        ("strips are made anew", Bounds { repairs: true, crashes: 0, ..BASE }),
        ("a strip moves", Bounds { moves: true, ..BASE }),
        ("a strip moves, a pdisk dies", Bounds { moves: true, deaths: 1, crashes: 0, ..BASE }),
        ("the only data strip moves, a pdisk dies", SHORT),
    ];
    for (name, bounds) in cases {
        let (loss, states) = explore(bounds, Without::Nothing, most());
        println!("{name}: {states} states");
        assert!(loss.is_none(), "{name}: {:#?}", loss.unwrap());
    }
}

#[test]
fn every_rule_is_needed() {
    use Without::*;
    let dies = Bounds { deaths: 1, crashes: 0, ..BASE };
    let moves = Bounds { moves: true, crashes: 0, ..BASE };
    let cases = [
        (Seal, Bounds { fence: false, crashes: 2, ..BASE }),
        (Fence, Bounds { sealing: false, crashes: 2, ..BASE }),
        (BaseCheck, dies),
        (NextWhenComplete, BASE),
        (AllTouchedAnswer, BASE),
        (GroupEpoch, dies),
        (CatchUp, dies),
        (ReadOnlyWhatCaughtUp, dies),
        (HeldWaits, dies),
        (MapInForceBeforeCatchUp, moves),
        // What a catch-up stores late another look of it makes good; a pdisk that counts does not look again.
        (InstallOnlyOverOlder, Bounds { repairs: true, crashes: 0, ..BASE }),
        (ForwardWhenAdopted, BASE),
        (WritesInNewPlace, moves),
        (AllThereBeforeSwitch, moves),
        (ResolveNewPlace, Bounds { crashes: 1, ..moves }),
        (AllNamed, SHORT),
    ];
    let mut kept = Vec::new();
    for (rule, bounds) in cases {
        let (loss, states) = explore(bounds, rule, most() * 10);
        match loss {
            Some(way) => println!("without {rule:?} ({states} states):\n  {}", way.join("\n  ")),
            None => kept.push((rule, states)),
        }
    }
    assert!(kept.is_empty(), "no loss is found without these: {kept:?}");
}
