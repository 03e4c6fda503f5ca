//! Small stripes through everything that can happen to them while pdisks are away: written in part and in full, cut and
//! written again, removed, a strip damaged. Whenever pdisks are back they catch up by the shipped verdicts. No strip of
//! what was acknowledged is ever taken away, nothing old is left to be read, and when everybody is back it ends.

use base::{Grant, StripSet};

use super::*;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    Nothing,
    /// These data strips are written.
    Write(u32),
    /// The block is cut off; the file stays.
    Cut,
    /// The file goes.
    Unlink,
    /// The bytes of a strip rot.
    Rot(usize),
}

struct World {
    geometry: Geometry,
    strips: Vec<StripState>,
    /// Who counts, and who is written to.
    ok: Vec<bool>,
    written: Vec<bool>,
    last: Version,
    /// The current version of each strip; none: there is no block.
    current: Option<Vec<Option<Version>>>,
    /// The manager has the inode.
    inode: bool,
    /// Fewer counted at some time than it takes to read: then some may not have heard of the last version.
    beyond: bool,
}

impl World {
    fn new(geometry: Geometry) -> World {
        let (width, last) = (geometry.width(), Version { grant: Grant(1), seq: 0 });
        let strips = vec![StripState::default(); width];
        World {
            geometry,
            strips,
            ok: vec![true; width],
            written: vec![true; width],
            last,
            current: None,
            inode: true,
            beyond: false,
        }
    }

    fn record(&self) -> Owner {
        match (self.inode, &self.current) {
            (false, _) => Owner::Nobody,
            (true, None) => Owner::Unrecorded,
            (true, Some(_)) => Owner::Recorded,
        }
    }

    /// Whether a strip is there as it should be.
    fn good(&self, i: usize) -> bool {
        let wanted = self.current.as_ref().and_then(|c| c[i]);
        let state = &self.strips[i];
        state.adopted.as_ref().map(|a| a.version) == wanted && !state.lost
    }

    fn act(&mut self, act: Act) {
        let (k, width) = (self.geometry.k(), self.geometry.width());
        let replicated = self.geometry.replicated();
        match act {
            Act::Nothing => {}
            Act::Write(data) if self.inode => {
                let fresh = self.current.is_none();
                // A new block is written over what the servers say is left of an older one.
                let left = |i: usize| fresh && self.ok[i] && self.strips[i].adopted.is_some();
                let touched: Vec<usize> =
                    (0..width).filter(|&i| replicated || i >= k || data >> i & 1 == 1 || left(i)).collect();
                let needs = usize::from(self.geometry.code.data());
                let fits = |&i: &usize| self.ok[i] && (fresh || touched.contains(&i) || self.good(i));
                // Acknowledged by everybody who is written to, and a change in part needs what it changes.
                let behind = |&&i: &&usize| self.written[i] && !fresh && !self.good(i);
                if (0..width).filter(fits).count() < needs || touched.iter().any(|i| behind(&i)) {
                    return;
                }
                self.last.seq += 1;
                let mut next = self.current.clone().unwrap_or(vec![None; width]);
                touched.iter().for_each(|&i| next[i] = Some(self.last));
                let covers = if replicated { Vec::new() } else { next[..k].to_vec() };
                let set: StripSet = touched.iter().map(|&i| StripIndex(i as u8)).collect();
                for &i in touched.iter().filter(|&&i| self.written[i]) {
                    let covers = if i >= k { covers.clone() } else { Vec::new() };
                    let info = VersionInfo { version: self.last, touched: set, len: 4096, covers };
                    self.strips[i] = StripState { adopted: Some(info), ..StripState::default() };
                }
                self.current = Some(next);
            }
            Act::Cut | Act::Unlink => {
                (self.current, self.inode) = (None, self.inode && act == Act::Cut);
                for i in (0..width).filter(|&i| self.written[i]) {
                    self.strips[i] = StripState::default();
                }
            }
            Act::Rot(i) if self.strips[i].adopted.is_some() => self.strips[i].lost = true,
            Act::Write(_) | Act::Rot(_) => {}
        }
    }

    /// Those who are not away are back; each catches up as far as it can.
    fn back(&mut self, away: u32) {
        for i in 0..self.ok.len() {
            self.written[i] = away >> i & 1 == 0;
            self.ok[i] &= self.written[i];
        }
        self.beyond |= self.ok.iter().filter(|ok| **ok).count() < usize::from(self.geometry.code.data());
        for _ in 0..2 * self.ok.len() {
            for me in 0..self.ok.len() {
                let done = self.written[me] && self.settle(me);
                self.ok[me] |= done;
            }
        }
    }

    /// One look; true if its pdisk need not wait for it.
    fn settle(&mut self, me: usize) -> bool {
        // One that counts looks at a strip only when it found it damaged.
        if self.ok[me] && !self.strips[me].lost {
            return true;
        }
        let seen = |i: usize| match (i == me, self.ok[i], self.written[i]) {
            (true, ..) => Seen::Mine,
            (_, true, _) => Seen::Ok(Some(self.strips[i].clone())),
            (_, _, true) => Seen::Returning(Some(self.strips[i].clone())),
            _ => Seen::Away,
        };
        let others: Vec<Seen> = (0..self.ok.len()).map(seen).collect();
        let mut verdict = judge(self.geometry, me, Some(&self.strips[me]), &others, None);
        if verdict == Verdict::Ask {
            verdict = judge(self.geometry, me, Some(&self.strips[me]), &others, Some(self.record()));
        }
        let was_good = self.current.is_some() && self.good(me) && self.strips[me].adopted.is_some();
        match verdict {
            Verdict::Fine | Verdict::Hopeless(None, _) => return true,
            Verdict::Delete(highest) | Verdict::Hopeless(Some(highest), _) => {
                assert!(!was_good, "{me} of {:?} goes: {verdict:?} beside {others:?}", self.current);
                let older = self.strips[me].adopted.as_ref().is_some_and(|a| a.version <= highest);
                assert!(older, "{highest} does not reach it");
                self.strips[me] = StripState::default();
                return matches!(verdict, Verdict::Hopeless(..));
            }
            Verdict::Install(target) => {
                let wanted = target.version_of(StripIndex(me as u8));
                assert!(self.inode, "made for an inode that is gone");
                let right = |i: usize| {
                    let held = self.strips[i].adopted.as_ref().filter(|_| !self.strips[i].lost);
                    let wanted = target.version_of(StripIndex(i as u8));
                    wanted.is_none() || self.written[i] && held.map(|a| a.version) == wanted
                };
                let sources = (0..self.ok.len()).filter(|&i| i != me && right(i)).count();
                if sources >= usize::from(self.geometry.code.data()) {
                    let covers = if me >= self.geometry.k() { target.covers.clone() } else { Vec::new() };
                    let info = VersionInfo {
                        version: wanted.expect("a version"),
                        covers,
                        len: 4096,
                        touched: target.touched,
                    };
                    self.strips[me] = StripState { adopted: Some(info), ..StripState::default() };
                }
            }
            Verdict::Later(_) => {}
            Verdict::Adopt(_) | Verdict::Discard(_) | Verdict::DiscardLeftover(_) | Verdict::Ask => {
                panic!("{verdict:?} where nothing is prepared")
            }
        }
        false
    }

    /// Everybody is back: nobody waits, and what can be read is what was acknowledged.
    fn ends(&mut self) {
        let width = self.ok.len();
        let readable = |of: &World| {
            of.current.is_some()
                && (0..width).filter(|&i| of.good(i)).count() >= usize::from(of.geometry.code.data())
        };
        let was = readable(self);
        self.back(0);
        assert!(!was || readable(self), "it could be read before: {:?}", self.strips);
        assert!(self.ok.iter().all(|ok| *ok), "somebody waits for ever: {:?}", self.ok);
        for i in 0..width {
            let held = self.strips[i].adopted.as_ref().map(|a| a.version);
            let wanted = self.current.as_ref().and_then(|c| c[i]);
            assert!(!was || self.beyond || self.good(i), "strip {i} is {held:?}, not {wanted:?}");
            let stale = self.current.is_some() && held.is_some() && held != wanted;
            assert!(!stale, "strip {i} is left at {held:?}, beside {wanted:?}");
            // What is cut may leave something that nobody names; of a file that is gone nothing is left.
            assert!(self.inode || held.is_none(), "strip {i} of a file that is gone is left");
        }
    }
}

/// Tells the histories of so many steps, or every so manieth: who is away, and what happens then.
fn histories(code: &str, steps: usize, sets: &[u32], every: usize) -> u64 {
    let geometry = Geometry::new(code.parse().expect("a code"), 256 << 10);
    let width = geometry.width();
    let mut acts = vec![Act::Nothing, Act::Cut, Act::Unlink, Act::Rot(0), Act::Rot(width - 1)];
    acts.extend(sets.iter().map(|set| Act::Write(*set)));
    let choices = (acts.len() as u64) << width;
    let mut told = 0;
    for number in (0..choices.pow(steps as u32)).step_by(every) {
        let (mut left, mut history) = (number, Vec::new());
        for _ in 0..steps {
            let choice = left % choices;
            left /= choices;
            history.push(((choice & ((1 << width) - 1)) as u32, acts[(choice >> width) as usize]));
        }
        let run = std::panic::catch_unwind(|| {
            let mut world = World::new(geometry);
            world.act(Act::Write(u32::MAX >> (32 - geometry.k())));
            for &(away, act) in &history {
                world.back(away);
                world.act(act);
            }
            world.ends();
        });
        assert!(run.is_ok(), "{code}, away and then: {history:?}");
        told += 1;
    }
    told
}

#[test]
fn a_catch_up_ends_and_takes_nothing_that_counts() {
    let mut told = 0;
    told += histories("2+1p", 3, &[0b01, 0b10], 1);
    told += histories("2way", 3, &[1], 1);
    told += histories("3way", 3, &[1], 1);
    told += histories("4+2p", 2, &[0b0001, 0b0110], 19);
    println!("{told} histories");
}
