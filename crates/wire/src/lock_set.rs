//! The locks of one inode, by owner: setting a range replaces what the owner had of it, so that ranges are
//! cut and joined. Used by the manager for all sessions and by a client for its own.

use std::time::Duration;

use crate::lock::{Lock, LockMode};

/// A lock that is held, by an owner within `holder`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held<H> {
    /// The session, or nothing where there is only one.
    pub holder: H,
    /// The lock.
    pub lock: Lock,
    /// When it was given; a part of it keeps that.
    pub since: Duration,
}

/// Locks of one inode. Those of one owner and kind do not overlap, and where they touch their modes differ.
#[derive(Clone, Debug)]
pub struct LockSet<H>(Vec<Held<H>>);

impl<H> Default for LockSet<H> {
    fn default() -> LockSet<H> {
        LockSet(Vec::new())
    }
}

impl<H: Copy + PartialEq> LockSet<H> {
    /// All, in no order.
    pub fn all(&self) -> &[Held<H>] {
        &self.0
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// Those of one owner and kind.
    pub fn of(&self, holder: H, like: &Lock) -> impl Iterator<Item = &Held<H>> {
        let like = *like;
        self.0.iter().filter(move |held| is_of(held, holder, &like))
    }
    /// Those of others that stand in the way of `lock`.
    pub fn against(&self, holder: H, lock: &Lock) -> impl Iterator<Item = &Held<H>> {
        let lock = *lock;
        self.0.iter().filter(move |held| !is_of(held, holder, &lock) && !held.lock.goes_with(&lock))
    }
    /// Keeps those that `keep` says.
    pub fn retain(&mut self, keep: impl FnMut(&Held<H>) -> bool) {
        self.0.retain(keep);
    }

    /// Gives an owner `lock` in place of what it had of the range. Whether others may hold more now.
    pub fn set(&mut self, holder: H, lock: Lock, now: Duration) -> bool {
        let mut joined = Held { holder, lock, since: now };
        let (mut freed, mut parts) = (false, Vec::new());
        self.0.retain(|held| {
            let old = held.lock;
            // `end` is below 2^63: no overflow.
            let touches = old.start <= lock.end + 1 && lock.start <= old.end + 1;
            if !is_of(held, holder, &lock) || !touches || !(old.overlaps(&lock) || old.mode == lock.mode) {
                return true;
            }
            if old.mode == lock.mode {
                joined.lock.start = joined.lock.start.min(old.start);
                joined.lock.end = joined.lock.end.max(old.end);
                return false;
            }
            freed |= lock.mode < old.mode;
            if old.start < lock.start {
                parts.push(Held { lock: Lock { end: lock.start - 1, ..old }, ..*held });
            }
            if old.end > lock.end {
                parts.push(Held { lock: Lock { start: lock.end + 1, ..old }, ..*held });
            }
            false
        });
        self.0.append(&mut parts);
        if lock.mode != LockMode::None {
            self.0.push(joined);
        }
        freed
    }
}

fn is_of<H: PartialEq>(held: &Held<H>, holder: H, like: &Lock) -> bool {
    held.holder == holder && held.lock.owner == like.owner && held.lock.kind == like.kind
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{END, LockKind};

    const BYTES: u64 = 12;

    /// Splitmix64 (Steele, Lea, Flood, 2014).
    fn next(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Random locks of three owners of two sessions against one mode for each owner and byte.
    #[test]
    fn ranges_are_cut_and_joined_as_bytes_would_be() {
        for seed in 0..200 {
            let mut state = seed;
            let mut draw = |n: u64| next(&mut state) % n;
            let mut set = LockSet::default();
            let mut model = [[[LockMode::None; BYTES as usize]; 3]; 2];
            for step in 0..60 {
                let (holder, owner) = (draw(2) as usize, draw(3));
                let (a, b) = (draw(BYTES), draw(BYTES));
                let mode = [LockMode::None, LockMode::Shared, LockMode::Exclusive][draw(3) as usize];
                let lock =
                    Lock { kind: LockKind::Fcntl, mode, owner, pid: 1, start: a.min(b), end: a.max(b) };
                let clash = (0..2).any(|h| {
                    (0..3).filter(|&o| (h, o) != (holder, owner as usize)).any(|o| {
                        let bytes = &model[h][o][lock.start as usize..=lock.end as usize];
                        bytes
                            .iter()
                            .any(|&m| m.min(mode) > LockMode::None && m.max(mode) == LockMode::Exclusive)
                    })
                });
                assert_eq!(set.against(holder, &lock).next().is_some(), clash, "seed {seed}, step {step}");
                let bytes = &mut model[holder][owner as usize][lock.start as usize..=lock.end as usize];
                let frees = bytes.iter().any(|&m| m > mode);
                assert_eq!(set.set(holder, lock, Duration::ZERO), frees, "seed {seed}, step {step}");
                bytes.fill(mode);
                for (holder, owners) in model.iter().enumerate() {
                    for (owner, bytes) in owners.iter().enumerate() {
                        let like = Lock { owner: owner as u64, ..lock };
                        let mut found = [LockMode::None; BYTES as usize];
                        for held in set.of(holder, &like) {
                            for at in held.lock.start..=held.lock.end {
                                assert_eq!(found[at as usize], LockMode::None, "overlap, seed {seed}");
                                found[at as usize] = held.lock.mode;
                            }
                        }
                        assert_eq!(&found, bytes, "seed {seed}, step {step}");
                        let runs = bytes.chunk_by(|a, b| a == b).filter(|r| r[0] > LockMode::None).count();
                        assert_eq!(set.of(holder, &like).count(), runs, "not joined, seed {seed}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_last_byte_is_no_special_case() {
        let lock = |mode, start, end| Lock { mode, start, end, ..Lock::default() };
        let mut set = LockSet::default();
        set.set((), lock(LockMode::Exclusive, 0, END), Duration::ZERO);
        set.set((), lock(LockMode::None, END, END), Duration::ZERO);
        assert_eq!(set.all().iter().map(|h| (h.lock.start, h.lock.end)).collect::<Vec<_>>(), [(0, END - 1)]);
        set.set((), lock(LockMode::Exclusive, END, END), Duration::ZERO);
        assert_eq!(set.all().len(), 1);
    }
}
