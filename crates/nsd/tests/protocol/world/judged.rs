//! Strips looked at by those who make them good: resolution, catch-up, moves and repair, by the shipped decisions.

use base::{StripIndex, Version};
use nsd::judge::{Seen, Verdict, Why, all_named, judge};
use stripe::resolve::{Decision, Member, Moved, decide, decide_moved};
use wire::{map::PdiskState, owned::Owner, strip::StripState};

use super::{Content, K, State, WIDTH, Without, disk::Stored, geometry};

impl State {
    /// The members as catch-up, moves and resolution see them.
    fn seen(&self, me: usize) -> Vec<Seen> {
        let map = self.map();
        (0..WIDTH)
            .map(|slot| match map.table[slot] {
                _ if slot == me => Seen::Mine,
                d if map.states[d] == PdiskState::Ok => Seen::Ok(Some(self.disks[d].state())),
                d if map.states[d].written() && self.alive[d] => Seen::Returning(Some(self.disks[d].state())),
                _ => Seen::Away,
            })
            .collect()
    }

    /// What strip `slot` holds at the versions of `target`, from the other members (or its own).
    fn rebuilt(&self, slot: usize, target: &stripe::StripeTarget) -> Option<Stored> {
        let map = self.map();
        let version = target.version_of(StripIndex(slot as u8))?;
        let holds = |s: usize, version: Version| {
            let d = map.table[s];
            let found = self.disks[d].adopted.iter().chain(&self.disks[d].prepared);
            let mut found = found.filter(|x| x.version == version);
            (map.states[d].written() && self.alive[d]).then(|| found.next()).flatten()
        };
        let mut right = 0;
        for other in (0..WIDTH).filter(|s| *s != slot) {
            let wanted =
                if other < K { target.covers.get(other).copied().flatten() } else { Some(target.version) };
            match wanted {
                None => right += 1,
                Some(wanted) if holds(other, wanted).is_some() => right += 1,
                Some(_) => {}
            }
        }
        if right < K {
            return None;
        }
        // The content: what the history says that version of the strip was, if the sources are sound.
        let content = self.content_of(slot, version)?;
        let covers = if slot >= K { target.covers.clone() } else { Vec::new() };
        Some(Stored { version, touched: target.touched.0 | 1 << slot, covers, content })
    }

    /// What a version of a strip should be.
    pub(super) fn content_of(&self, slot: usize, version: Version) -> Option<Content> {
        self.history_of(version).map(|number| self.history[number][slot])
    }
    fn history_of(&self, version: Version) -> Option<usize> {
        self.versions.iter().position(|v| *v == version)
    }

    /// A disk that counts looks at its strip as at one whose bytes are damaged.
    pub(super) fn repair(&mut self, me: usize, disk: usize) {
        let mine = StripState { lost: true, ..self.disks[disk].state() };
        let verdict = judge(geometry(), me, Some(&mine), &self.seen(me), Some(Owner::Recorded));
        if let Verdict::Install(target) = verdict {
            self.pending = self.rebuilt(me, &target).map(|stored| (disk, stored));
        }
    }

    /// One look of a disk at its strip; true if it is what it should be.
    pub(super) fn settle(&mut self, me: usize, disk: usize, without: Without) -> bool {
        match judge(geometry(), me, Some(&self.disks[disk].state()), &self.seen(me), Some(Owner::Recorded)) {
            Verdict::Fine => {
                let there = self.disks[disk].adopted.is_some() || without == Without::AllNamed;
                return there || self.named(me, disk);
            }
            Verdict::Adopt(version) => self.disks[disk].adopt(version),
            Verdict::Discard(version) => self.disks[disk].discard(version),
            Verdict::Install(target) => {
                // What was asked for is stored later: writes may come in between.
                self.pending = self.rebuilt(me, &target).map(|stored| (disk, stored));
            }
            Verdict::Delete(version) => {
                self.disks[disk].adopted.take_if(|a| a.version <= version);
                self.disks[disk].prepared.take_if(|a| a.version <= version);
            }
            // What moves is copied from where it comes from, once that is there.
            Verdict::Hopeless(_, target) if self.map().table[me] != disk => {
                self.pending = self.rebuilt(me, &target).map(|stored| (disk, stored));
            }
            Verdict::Hopeless(older, _) => {
                self.disks[disk].adopted.take_if(|a| older.is_some_and(|older| a.version <= older));
                return true;
            }
            // The beginning of a write, over what it should be.
            Verdict::DiscardLeftover(_) if self.disks[disk].touched => {
                let beneath = StripState { prepared: None, ..self.disks[disk].state() };
                let verdict = judge(geometry(), me, Some(&beneath), &self.seen(me), Some(Owner::Recorded));
                return verdict == Verdict::Fine;
            }
            Verdict::AdoptLeftover(_) if self.disks[disk].touched => {}
            Verdict::AdoptLeftover(version) => self.disks[disk].adopt(version),
            Verdict::DiscardLeftover(version) => self.disks[disk].discard(version),
            Verdict::Later(Why::Held(_)) if without == Without::HeldWaits => return true,
            Verdict::Later(Why::Held(now)) => {
                let first = *self.disks[disk].held.get_or_insert(now);
                return first < now;
            }
            Verdict::Ask | Verdict::Later(_) => {}
        }
        false
    }

    /// Whether those who can be asked would have named the strip.
    fn named(&self, me: usize, disk: usize) -> bool {
        let map = self.map();
        let state = |slot: usize| match map.table[slot] {
            d if map.states[d] == PdiskState::Returning && !self.alive[d] => PdiskState::Missing,
            d => map.states[d],
        };
        all_named(geometry(), me, map.table[me] != disk, state, |_| false)
    }

    /// One round of resolution. `None`: nothing is left to do.
    pub(super) fn resolve(&mut self, without: Without) -> Option<bool> {
        let map = self.map().clone();
        let members: Vec<Member> = (map.table.iter())
            .map(|&d| match map.states[d] {
                PdiskState::Ok => Member::Ok(self.disks[d].state()),
                PdiskState::Returning if self.alive[d] => Member::Returning(self.disks[d].state()),
                state => Member::Away(state),
            })
            .collect();
        let mut decision = decide(geometry(), &members);
        if without == Without::ForwardWhenAdopted
            && let Decision::Forward { version, .. } = &decision
            && members.iter().any(
                |m| matches!(m, Member::Ok(s) if s.adopted.as_ref().is_some_and(|a| a.version == *version)),
            )
        {
            let version = *version;
            let discard = (0..WIDTH as u8).map(|i| (StripIndex(i), version)).collect();
            decision = Decision::Back { version, discard };
        }
        match decision {
            Decision::Clean => {
                if let (Some((slot, to, _)), true) = (map.moving, without != Without::ResolveNewPlace) {
                    match decide_moved(geometry(), &members, StripIndex(slot as u8), &self.disks[to].state())
                    {
                        Some(Moved::Adopt(version)) => self.disks[to].adopt(version),
                        Some(Moved::Discard(version)) => self.disks[to].discard(version),
                        None => {}
                    }
                }
                None
            }
            Decision::Unavailable { .. } => Some(false),
            Decision::Back { discard, .. } => {
                for (index, version) in discard {
                    self.disks[map.table[usize::from(index.0)]].discard(version);
                }
                Some(true)
            }
            Decision::Forward { adopt, discard, install, target, .. } => {
                for (index, version) in adopt {
                    self.disks[map.table[usize::from(index.0)]].adopt(version);
                }
                for (index, version) in discard {
                    self.disks[map.table[usize::from(index.0)]].discard(version);
                }
                for index in install {
                    let slot = usize::from(index.0);
                    if let Some(stored) = target.as_ref().and_then(|t| self.rebuilt(slot, t)) {
                        self.disks[map.table[slot]].install(stored, false);
                    }
                }
                Some(true)
            }
        }
    }
}
