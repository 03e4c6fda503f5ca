//! Small stripes through everything that can happen to them while pdisks are away: written in part and in full, adopted at once
//! or later or never, begun and not ended, left by a writer that is killed, cut and written again, removed, a strip damaged.
//! Pdisks go and come one after the other, more of them than the code bears the loss of; those that are back catch up by the
//! shipped verdicts. No strip of what was acknowledged is ever taken away, nothing old is left to be read, nothing is left
//! half done that nobody knows, and when everybody is back it ends.
//!
//! Where more than M strips were away or damaged at a time, and a write was torn as well, or a delete not heard beside what is
//! only prepared, a pdisk may wait: there only that nothing is taken is asserted.
//!
//! Every world that so many steps lead to is visited once. `ROPEWALK_HISTORIES=n` tells another step, every nth of the last.

use std::collections::HashMap;

use base::{Grant, StripSet};
use pdisk::rules::{self, Action};
use stripe::resolve::{Decision, Member, decide};

use super::*;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    Nothing,
    /// These data strips are written, and adopted at once.
    Write(u32),
    /// The same, adopted later: the writer knows what it is to adopt, and forgets it where a pdisk ceases to count.
    Prepare(u32),
    /// Begun, and stored only on the first, or the last, strip of it that is written to.
    BeginFirst(u32),
    BeginLast(u32),
    /// What is known to be complete is adopted; what was left by a writer that is gone is resolved.
    Settle,
    /// The writer is killed.
    Crash,
    /// The block is cut off; the file stays.
    Cut,
    /// The file goes.
    Unlink,
    /// The bytes of a strip rot.
    Rot(usize),
}

/// What each strip holds.
type Content = Vec<Option<Version>>;

#[derive(Clone)]
struct World {
    geometry: Geometry,
    strips: Vec<StripState>,
    /// What is prepared was so before this life of the pdisk.
    leftover: Vec<bool>,
    /// Who counts, and who is written to.
    ok: Vec<bool>,
    written: Vec<bool>,
    last: Version,
    /// The current version of each strip; none: there is no block.
    current: Option<Content>,
    /// A version that was begun and not acknowledged: it may become the current one.
    begun: Option<Content>,
    /// What the writer is to adopt.
    known: Content,
    /// The writer is gone, and what it left is not resolved.
    dead: bool,
    /// The manager has the inode.
    inode: bool,
    /// Fewer strips of the current version are left than it takes to read it: bytes rotted.
    gone: bool,
    /// Fewer counted and were whole at some time than it takes to read.
    beyond: bool,
    /// A write was not brought to its end, or a strip was damaged.
    torn: bool,
    /// A pdisk that was away has not heard of a delete.
    cut: bool,
}

type Outcome<T> = Result<T, String>;

fn adopted_of(state: &StripState) -> Option<Version> {
    state.adopted.as_ref().map(|a| a.version)
}
fn prepared_of(state: &StripState) -> Option<Version> {
    state.prepared.as_ref().map(|p| p.version)
}

impl World {
    fn new(geometry: Geometry) -> World {
        let width = geometry.width();
        World {
            geometry,
            strips: vec![StripState::default(); width],
            leftover: vec![false; width],
            ok: vec![true; width],
            written: vec![true; width],
            last: Version { grant: Grant(1), seq: 0 },
            current: None,
            begun: None,
            known: vec![None; width],
            dead: false,
            inode: true,
            gone: false,
            beyond: false,
            torn: false,
            cut: false,
        }
    }

    fn width(&self) -> usize {
        self.ok.len()
    }
    fn needs(&self) -> usize {
        usize::from(self.geometry.code.data())
    }
    fn record(&self) -> Owner {
        match (self.inode, &self.current) {
            (false, _) => Owner::Nobody,
            (true, None) => Owner::Unrecorded,
            (true, Some(_)) => Owner::Recorded,
        }
    }

    /// Whether the bytes of a version are there; `None` is what was never written.
    fn has(&self, i: usize, wanted: Option<Version>) -> bool {
        let state = &self.strips[i];
        wanted.is_none() || adopted_of(state) == wanted && !state.lost || prepared_of(state) == wanted
    }
    /// Whether the writer reads the current version there.
    fn reads(&self, i: usize) -> bool {
        let wanted = self.current.as_ref().and_then(|c| c[i]);
        let adopted = adopted_of(&self.strips[i]) == wanted && !self.strips[i].lost;
        self.ok[i] && (adopted || wanted.is_some() && self.known[i] == wanted && self.has(i, wanted))
    }
    /// Whether enough of a content is anywhere.
    fn exists(&self, content: &Content) -> bool {
        (0..self.width()).filter(|&i| self.has(i, content[i])).count() >= self.needs()
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Nothing => {}
            Act::Write(data) => {
                if self.write(data, |_| true) {
                    self.adopt_known();
                }
            }
            Act::Prepare(data) => {
                self.write(data, |_| true);
            }
            Act::BeginFirst(data) => {
                let first = self.touched(data).into_iter().find(|&i| self.written[i]);
                self.write(data, |i| Some(i) == first);
            }
            Act::BeginLast(data) => {
                let last = self.touched(data).into_iter().rfind(|&i| self.written[i]);
                self.write(data, |i| Some(i) == last);
            }
            Act::Settle => self.settle_known(),
            Act::Crash => {
                (self.dead, self.torn) = (true, true);
                self.known.fill(None);
            }
            Act::Cut | Act::Unlink => {
                self.settle_known();
                if self.dead {
                    return;
                }
                (self.current, self.begun, self.gone) = (None, None, false);
                self.known.fill(None);
                self.inode &= act == Act::Cut;
                self.cut |= self.written.contains(&false);
                for i in (0..self.width()).filter(|&i| self.written[i]) {
                    self.strips[i] = StripState::default();
                }
            }
            Act::Rot(i) if self.strips[i].adopted.is_some() => {
                (self.strips[i].lost, self.torn) = (true, true);
                self.look();
                self.gone |= self.current.as_ref().is_some_and(|c| !self.exists(c));
            }
            Act::Rot(_) => {}
        }
    }

    fn touched(&self, data: u32) -> Vec<usize> {
        let (k, replicated) = (self.geometry.k(), self.geometry.replicated());
        let fresh = self.current.is_none();
        // A new block is written over what the servers say is left of an older one.
        let left = |i: usize| fresh && self.ok[i] && self.strips[i].adopted.is_some();
        (0..self.width()).filter(|&i| replicated || i >= k || data >> i & 1 == 1 || left(i)).collect()
    }

    /// Writes: prepared where `there` says; true if that is enough to be acknowledged.
    fn write(&mut self, data: u32, there: impl Fn(usize) -> bool) -> bool {
        if !self.inode || self.dead {
            return false;
        }
        self.clear_begun();
        if self.begun.is_some() && !there(usize::MAX) {
            return false;
        }
        let touched = self.touched(data);
        let (k, fresh, width) = (self.geometry.k(), self.current.is_none(), self.width());
        let stores = |i: &usize| touched.contains(i) && self.written[*i];
        let fits = |i: &usize| stores(i) || !touched.contains(i) && self.ok[*i] && (fresh || self.reads(*i));
        if (0..width).filter(fits).count() < self.needs() || !(0..width).any(|i| stores(&i)) {
            return false;
        }
        // What a strip that is not up to date lacks is read.
        let behind = touched.iter().any(|&i| self.written[i] && !self.reads(i));
        let readable = (0..width).filter(|&i| self.reads(i)).count() >= self.needs();
        if !fresh && behind && !readable {
            return false;
        }
        self.last.seq += 1;
        let mut next = self.current.clone().unwrap_or(vec![None; width]);
        touched.iter().for_each(|&i| next[i] = Some(self.last));
        let covers = if self.geometry.replicated() { Vec::new() } else { next[..k].to_vec() };
        let set: StripSet = touched.iter().map(|&i| StripIndex(i as u8)).collect();
        let mut all = true;
        for i in touched.iter().copied() {
            if !self.written[i] {
                continue;
            }
            if !there(i) {
                all = false;
                continue;
            }
            if self.known[i].is_some() && self.known[i] == prepared_of(&self.strips[i]) {
                self.adopt(i);
            }
            let covers = if i >= k { covers.clone() } else { Vec::new() };
            let info = VersionInfo { version: self.last, touched: set, len: 4096, covers };
            self.strips[i].prepared = Some(info);
            (self.leftover[i], self.known[i]) = (false, None);
        }
        if !all {
            (self.begun, self.torn) = (Some(next), true);
            return false;
        }
        for i in 0..width {
            match touched.contains(&i) {
                true => self.known[i] = self.written[i].then_some(self.last),
                false if fresh => self.known[i] = None,
                false => {}
            }
        }
        (self.current, self.begun) = (Some(next), None);
        // What is gone stays so until all is written again.
        self.gone &= !(0..k).all(|i| touched.contains(&i));
        self.gone |= self.current.as_ref().is_some_and(|c| !self.exists(c));
        true
    }

    fn adopt(&mut self, i: usize) {
        let strip = &mut self.strips[i];
        (strip.adopted, strip.lost) = (strip.prepared.take(), false);
    }

    fn adopt_known(&mut self) {
        for i in 0..self.width() {
            if let Some(version) = self.known[i].take()
                && self.written[i]
                && rules::adopt(&self.strips[i], version) == Ok(Action::Apply)
            {
                self.adopt(i);
            }
        }
    }

    /// The writer drops what it has begun, and finds out if that has become the current version meanwhile. Of a pdisk that is
    /// away it knows nothing.
    fn clear_begun(&mut self) {
        let Some(begun) = &self.begun else { return };
        let version = begun.iter().flatten().max().copied();
        if self.strips.iter().zip(&self.written).any(|(s, w)| *w && adopted_of(s) == version) {
            // A block that was never acknowledged nobody names.
            self.current = self.current.is_some().then(|| self.begun.take()).flatten();
            return;
        }
        for (strip, _) in self.strips.iter_mut().zip(&self.written).filter(|(_, w)| **w) {
            strip.prepared.take_if(|p| Some(p.version) == version);
        }
        if self.written.iter().all(|written| *written) {
            self.begun = None;
        }
    }

    /// Whoever knows something brings it to an end: the writer, or the resolution of what it left.
    fn settle_known(&mut self) {
        if !self.dead {
            self.adopt_known();
            self.clear_begun();
            return;
        }
        for _ in 0..8 {
            let member = |i: usize| match (self.ok[i], self.written[i]) {
                (true, _) => Member::Ok(self.strips[i].clone()),
                (_, true) => Member::Returning(self.strips[i].clone()),
                _ => Member::Away(PdiskState::Missing),
            };
            let members: Vec<Member> = (0..self.width()).map(member).collect();
            let (adopt, discard, install, target) = match decide(self.geometry, &members) {
                Decision::Clean => {
                    self.dead = false;
                    // Who comes next reads what counts.
                    return self.clear_begun();
                }
                Decision::Unavailable { .. } => return,
                Decision::Back { discard, .. } => (Vec::new(), discard, Vec::new(), None),
                Decision::Forward { adopt, discard, install, target, .. } => {
                    (adopt, discard, install, target)
                }
            };
            for (i, version) in adopt {
                let i = usize::from(i.0);
                if self.written[i] && rules::adopt(&self.strips[i], version) == Ok(Action::Apply) {
                    self.adopt(i);
                }
            }
            for (i, version) in discard {
                let i = usize::from(i.0);
                if self.written[i] && rules::discard(&self.strips[i], version) == Ok(Action::Apply) {
                    self.strips[i].prepared = None;
                }
            }
            for i in install {
                if let Some(target) = &target {
                    self.install(usize::from(i.0), target);
                }
            }
        }
    }

    /// The strip made anew, if its pdisk takes it and enough of the others can be read.
    fn install(&mut self, me: usize, target: &StripeTarget) -> bool {
        let version_of = |i: usize| target.version_of(StripIndex(i as u8));
        let Some(version) = version_of(me) else { return false };
        let right = |i: usize| version_of(i).is_none() || self.written[i] && self.has(i, version_of(i));
        let sources = (0..self.width()).filter(|&i| i != me && right(i)).count();
        if sources < self.needs() || rules::install(&self.strips[me], version) != Ok(Action::Apply) {
            return false;
        }
        let covers = if me >= self.geometry.k() { target.covers.clone() } else { Vec::new() };
        let info = VersionInfo { version, covers, len: 4096, touched: target.touched };
        let strip = &mut self.strips[me];
        strip.prepared.take_if(|p| p.version <= version);
        (strip.adopted, strip.lost) = (Some(info), false);
        true
    }

    /// Those who are not away are back; each catches up as far as it can, in this order or from the end.
    fn back(&mut self, away: u32, from_end: bool) -> Outcome<()> {
        for i in 0..self.width() {
            let before = self.written[i];
            self.written[i] = away >> i & 1 == 0;
            self.ok[i] &= self.written[i];
            if !self.written[i] {
                self.known[i] = None;
            } else if !before {
                self.leftover[i] = true;
            }
        }
        self.look();
        self.catch_up(from_end)
    }

    /// Whether more strips than the code bears the loss of do not count now, or are damaged.
    fn look(&mut self) {
        let counts = self.ok.iter().zip(&self.strips).filter(|(ok, strip)| **ok && !strip.lost).count();
        self.beyond |= counts < self.needs();
    }

    fn catch_up(&mut self, from_end: bool) -> Outcome<()> {
        let width = self.width();
        for _ in 0..2 * width {
            for n in 0..width {
                let me = if from_end { width - 1 - n } else { n };
                if self.written[me] && self.settle(me)? {
                    self.ok[me] = true;
                }
            }
        }
        Ok(())
    }

    /// One look, and others while something is prepared; true if its pdisk need not wait for it.
    fn settle(&mut self, me: usize) -> Outcome<bool> {
        // One that counts looks at a strip only when it found it damaged.
        if self.ok[me] && !self.strips[me].lost {
            return Ok(true);
        }
        let state = |i: usize| match (self.ok[i], self.written[i]) {
            (true, _) => PdiskState::Ok,
            (_, true) => PdiskState::Returning,
            _ => PdiskState::Missing,
        };
        let all_back = (0..self.width()).all(|i| i == me || self.written[i]);
        if !self.ok[me] && !all_back && !vouched(self.geometry, me, state) {
            return Ok(false);
        }
        for _ in 0..4 {
            let (done, verdict) = self.once(me)?;
            let discarded = matches!(verdict, Verdict::Discard(_) | Verdict::DiscardLeftover(_));
            match done {
                None => return Ok(false),
                Some(true) if discarded || self.strips[me].prepared.is_some() => {}
                Some(_) => return Ok(true),
            }
        }
        Ok(false)
    }

    /// `None`: not to be settled now; else whether something was done.
    fn once(&mut self, me: usize) -> Outcome<(Option<bool>, Verdict)> {
        let seen = |i: usize| match (i == me, self.ok[i], self.written[i]) {
            (true, ..) => Seen::Mine,
            (_, true, _) => Seen::Ok(Some(self.strips[i].clone())),
            (_, _, true) => Seen::Returning(Some(self.strips[i].clone())),
            _ => Seen::Away,
        };
        let others: Vec<Seen> = (0..self.width()).map(seen).collect();
        let mut verdict = judge(self.geometry, me, Some(&self.strips[me]), &others, None);
        if verdict == Verdict::Ask {
            verdict = judge(self.geometry, me, Some(&self.strips[me]), &others, Some(self.record()));
        }
        let kept =
            self.current.as_ref().filter(|c| !self.gone && c[me].is_some() && self.has(me, c[me])).cloned();
        let had = self.strips[me].clone();
        let done = match &verdict {
            Verdict::Fine | Verdict::Hopeless(None, _) => Some(false),
            Verdict::Delete(highest) | Verdict::Hopeless(Some(highest), _) => {
                let strip = &mut self.strips[me];
                strip.prepared.take_if(|p| p.version <= *highest);
                if strip.adopted.take_if(|a| a.version <= *highest).is_some() {
                    strip.lost = false;
                }
                Some(true)
            }
            Verdict::Adopt(version) if rules::adopt(&had, *version) == Ok(Action::Apply) => {
                self.adopt(me);
                Some(true)
            }
            Verdict::Discard(version) if rules::discard(&had, *version) == Ok(Action::Apply) => {
                self.strips[me].prepared = None;
                Some(true)
            }
            Verdict::DiscardLeftover(_) if self.leftover[me] => {
                self.strips[me].prepared = None;
                Some(true)
            }
            // The beginning of a write, over what it should be.
            Verdict::DiscardLeftover(_) => {
                let beneath = StripState { prepared: None, ..had.clone() };
                let fine =
                    judge(self.geometry, me, Some(&beneath), &others, Some(self.record())) == Verdict::Fine;
                fine.then_some(false)
            }
            Verdict::AdoptLeftover(_) if self.leftover[me] => {
                self.adopt(me);
                Some(true)
            }
            Verdict::Install(target) => {
                if !self.inode {
                    return Err("made for an inode that is gone".into());
                }
                self.install(me, target).then_some(true)
            }
            _ => None,
        };
        // What was begun may become the current version, as a whole.
        let begun =
            self.begun.as_ref().is_some_and(|b| b[me].is_some() && self.has(me, b[me]) && self.exists(b));
        if let Some(current) = kept.filter(|c| !begun && !self.has(me, c[me])) {
            return Err(format!("{me} of {current:?} goes: {verdict:?} of {had:?} beside {others:?}"));
        }
        Ok((done, verdict))
    }

    /// Everybody is back: nobody waits, and what can be read is what was acknowledged.
    fn ends(mut self, from_end: bool) -> Outcome<()> {
        self.back(0, from_end)?;
        for _ in 0..4 {
            self.settle_known();
            self.catch_up(from_end)?;
        }
        let width = self.width();
        // What both together leave may be known to nobody; then it is waited for.
        let torn = self.torn || self.cut && self.strips.iter().any(|s| s.prepared.is_some());
        if (self.beyond || self.gone) && torn && !self.ok.iter().all(|ok| *ok) {
            return Ok(());
        }
        if !self.ok.iter().all(|ok| *ok) {
            let waits = (0..width).find(|&i| !self.ok[i]).unwrap_or(0);
            let verdict = self.once(waits)?.1;
            return Err(format!("{waits} waits for ever: {verdict:?}, {:?}", self.strips));
        }
        if let Some(i) = (0..width).find(|&i| self.strips[i].prepared.is_some()) {
            return Err(format!("{i} holds for ever what nobody knows: {:?}", self.strips[i]));
        }
        let held: Content = self.strips.iter().map(adopted_of).collect();
        let right = |content: &Content| (0..width).all(|i| held[i] == content[i] && !self.strips[i].lost);
        let Some(current) = &self.current else {
            // What is cut may leave something that nobody names; of a file that is gone nothing is left.
            let left = !self.inode && held.iter().any(Option::is_some);
            return if left { Err(format!("left of a file that is gone: {held:?}")) } else { Ok(()) };
        };
        let fine = right(current) || self.begun.as_ref().is_some_and(right);
        if !self.gone && !fine {
            return Err(format!("it is {held:?}, not {current:?} (begun: {:?})", self.begun));
        }
        // What is damaged is never read.
        let old = |i: usize| held[i].is_some() && held[i] != current[i] && !self.strips[i].lost;
        let stale = (0..width).find(|&i| old(i));
        match stale.filter(|_| !fine) {
            Some(i) => Err(format!("strip {i} is left at {:?}, beside {current:?}", held[i])),
            None => Ok(()),
        }
    }

    /// All that tells one world from another.
    fn key(&self) -> Vec<u64> {
        let version = |v: Option<Version>| v.map_or(0, |v| v.seq + 1);
        let info = |key: &mut Vec<u64>, info: &Option<VersionInfo>| {
            let Some(info) = info else { return key.push(0) };
            key.extend([info.version.seq + 1, u64::from(info.touched.0)]);
            key.extend(info.covers.iter().map(|v| version(*v)));
        };
        let mut key = Vec::with_capacity(8 * self.width());
        for i in 0..self.width() {
            let flags = [self.strips[i].lost, self.leftover[i], self.ok[i], self.written[i]];
            key.push(flags.iter().fold(0, |n, flag| n << 1 | u64::from(*flag)));
            info(&mut key, &self.strips[i].adopted);
            info(&mut key, &self.strips[i].prepared);
            key.push(version(self.known[i]));
        }
        for content in [&self.current, &self.begun] {
            key.extend(content.iter().flatten().map(|v| version(*v)));
            key.push(u64::MAX);
        }
        key.extend([
            self.last.seq,
            u64::from(self.dead),
            u64::from(self.inode),
            u64::from(self.gone),
            u64::from(self.beyond),
            u64::from(self.torn),
            u64::from(self.cut),
        ]);
        key
    }
}

/// A step: who is away, in which order the others catch up, and what happens then.
type Step = (u32, bool, Act);

/// The worlds of a code, and how each was reached.
struct Histories {
    acts: Vec<Act>,
    /// With how many steps from it were told.
    seen: HashMap<Vec<u64>, usize>,
    told: u64,
}

impl Histories {
    fn check(&mut self, outcome: Outcome<()>, history: &[Step]) {
        self.told += 1;
        if let Err(loss) = outcome {
            panic!("{loss}\naway, from the end, and then: {history:?}");
        }
    }

    /// Tells what may follow a world, as many steps as are left; of the last step every so manieth.
    fn follow(&mut self, world: &World, history: &mut Vec<Step>, steps: usize, every: u64, turn: &mut u64) {
        for away in 0..1u32 << world.width() {
            for from_end in [false, true] {
                let mut back = world.clone();
                let came = back.back(away, from_end);
                history.push((away, from_end, Act::Nothing));
                self.check(came, history);
                history.pop();
                for act in self.acts.clone() {
                    *turn += 1;
                    if steps == 1 && !turn.is_multiple_of(every) {
                        continue;
                    }
                    let mut next = back.clone();
                    next.act(act);
                    let before = self.seen.get(&next.key()).copied();
                    if before.is_some_and(|told| told >= steps) {
                        continue;
                    }
                    self.seen.insert(next.key(), steps);
                    history.push((away, from_end, act));
                    if before.is_none() {
                        self.check(next.clone().ends(false), history);
                        self.check(next.clone().ends(true), history);
                    }
                    if steps > 1 {
                        self.follow(&next, history, steps - 1, every, turn);
                    }
                    history.pop();
                }
            }
        }
    }
}

/// Tells the histories of so many steps.
fn histories(code: &str, steps: usize, sets: &[u32], every: u64) -> u64 {
    let geometry = Geometry::new(code.parse().expect("a code"), 256 << 10);
    let width = geometry.width();
    let mut acts =
        vec![Act::Nothing, Act::Settle, Act::Crash, Act::Cut, Act::Unlink, Act::Rot(0), Act::Rot(width - 1)];
    let ways = [Act::Write, Act::Prepare, Act::BeginFirst, Act::BeginLast];
    acts.extend(sets.iter().flat_map(|set| ways.map(|way| way(*set))));
    let mut world = World::new(geometry);
    world.act(Act::Write(u32::MAX >> (32 - geometry.k())));
    let mut all = Histories { acts, seen: HashMap::new(), told: 0 };
    all.follow(&world, &mut Vec::new(), steps, every, &mut 0);
    println!("{code}: {} histories, {} worlds", all.told, all.seen.len());
    all.told
}

#[test]
fn a_catch_up_ends_and_takes_nothing_that_counts() {
    let mut told = 0;
    told += histories("2way", 4, &[1], 1);
    told += histories("2+1p", 3, &[0b01, 0b10], 1);
    told += histories("3way", 3, &[1], 1);
    told += histories("4+2p", 2, &[0b0001, 0b0110], 19);
    if let Some(every) = std::env::var("ROPEWALK_HISTORIES").ok().and_then(|n| n.parse::<u64>().ok()) {
        told += histories("2+1p", 4, &[0b01, 0b10], every);
        told += histories("3way", 4, &[1], every);
        told += histories("4+2p", 3, &[0b0001, 0b0110], every * 2003);
    }
    println!("{told} histories");
}

/// Tells one history, and both its ends.
fn told(code: &str, history: &[Step]) -> Outcome<()> {
    let geometry = Geometry::new(code.parse().expect("a code"), 256 << 10);
    let mut world = World::new(geometry);
    world.act(Act::Write(u32::MAX >> (32 - geometry.k())));
    for &(away, from_end, act) in history {
        world.back(away, from_end)?;
        world.act(act);
    }
    world.clone().ends(false)?;
    world.ends(true)
}

#[test]
fn histories_that_went_wrong_once() {
    use Act::*;
    let all: [(&str, &[Step]); 9] = [
        ("2+1p", &[(4, false, Cut), (4, false, Prepare(1)), (4, false, Prepare(2)), (7, true, Write(1))]),
        ("2+1p", &[(4, false, Cut), (4, false, Prepare(2)), (4, false, Prepare(1)), (3, true, Write(2))]),
        (
            "2+1p",
            &[(4, false, Cut), (4, false, Prepare(2)), (0, false, BeginFirst(1)), (3, false, Prepare(1))],
        ),
        (
            "2+1p",
            &[(4, false, Cut), (4, false, Prepare(1)), (0, false, BeginFirst(2)), (7, false, BeginLast(2))],
        ),
        ("2+1p", &[(1, false, Write(1)), (1, false, BeginFirst(2)), (3, false, Rot(2)), (6, false, Nothing)]),
        ("2+1p", &[(0, false, Prepare(2)), (0, false, BeginFirst(1)), (0, false, Crash), (2, true, Rot(2))]),
        ("2+1p", &[(0, false, Prepare(2)), (6, false, Cut), (0, false, Prepare(2)), (3, true, Nothing)]),
        ("2+1p", &[(1, false, Write(1)), (1, false, BeginFirst(2)), (3, false, Rot(2)), (6, false, Rot(0))]),
        ("2+1p", &[(1, false, Write(1)), (1, false, BeginFirst(2)), (7, false, Rot(0)), (1, false, Rot(2))]),
    ];
    for (code, history) in all {
        if let Err(loss) = told(code, history) {
            panic!("{loss}\naway, from the end, and then: {history:?}");
        }
    }
}
