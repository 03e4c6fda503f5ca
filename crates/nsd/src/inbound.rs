//! What requests under way may take of the server's memory, by pdisk, in equal shares, so that a disk that does not answer leaves the rest
//! to the others: their payloads, of `inbound_bytes_max`; the bytes that reads of clients will answer with, of as much once more; those
//! that rebuild and scrub read, of half as much, so that they and clients do not wait for each other. What is larger than half a share, as a
//! strip is where a server has many pdisks, goes beside it where it does not fit, one at a time: many small ones cannot keep it out. And there are no more requests
//! than small ones fit into a share of payloads, with or without a payload: they go on when their callers have given up, and ask again.
//! Beyond any of these a request is answered `Busy`, and its caller asks again.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use base::PdiskId;

/// What a request counts for at least: as many bytes as one may have that takes no part of `inbound_bytes_max` where it is received.
const REQUEST_BYTES: u64 = 16 << 10;

/// A pdisk's share of something.
#[derive(Default)]
struct Share {
    max: u64,
    taken: AtomicU64,
    /// A large one is under way beside them.
    beside: AtomicBool,
}

/// What was taken of a share.
#[derive(Clone, Copy, Default)]
enum Part {
    #[default]
    None,
    Bytes(u64),
    Beside,
}

impl Share {
    fn of(max: u64) -> Share {
        Share { max, ..Share::default() }
    }

    /// What there was room for; it goes back by [`Share::give`].
    fn take(&self, bytes: u64) -> Option<Part> {
        let fits = |taken: u64| (taken + bytes <= self.max).then_some(taken + bytes);
        if self.taken.fetch_update(Relaxed, Relaxed, fits).is_ok() {
            return Some(Part::Bytes(bytes));
        }
        (bytes > self.max / 2 && !self.beside.swap(true, Relaxed)).then_some(Part::Beside)
    }

    fn give(&self, part: Part) {
        match part {
            Part::None => {}
            Part::Bytes(bytes) => drop(self.taken.fetch_sub(bytes, Relaxed)),
            Part::Beside => self.beside.store(false, Relaxed),
        }
    }
}

/// What a pdisk has. Of one that is not served all is 0: its request is refused elsewhere.
#[derive(Default)]
struct Shares {
    payloads: Share,
    /// Of reads by clients, and of those by rebuild and scrub.
    replies: [Share; 2],
    requests: Share,
}

/// The shares.
pub struct Inbound(HashMap<PdiskId, Arc<Shares>>);

/// A request's part of its pdisk's shares, given back by dropping it.
pub struct Room {
    of: Arc<Shares>,
    request: Part,
    payload: Part,
    reply: [Part; 2],
}

impl Room {
    /// Takes room for the bytes of the answer to a read, once. False: it is used up.
    #[must_use]
    pub fn for_reply(&mut self, bytes: u64, background: bool) -> bool {
        let which = usize::from(background);
        let part = self.of.replies[which].take(bytes);
        self.reply[which] = part.unwrap_or_default();
        part.is_some()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.of.payloads.give(self.payload);
        self.of.replies.iter().zip(self.reply).for_each(|(share, part)| share.give(part));
        self.of.requests.give(self.request);
    }
}

impl Inbound {
    /// Of `bytes` of payloads in all.
    pub fn new(bytes: u64, pdisks: impl Iterator<Item = PdiskId>) -> Inbound {
        let ids: Vec<PdiskId> = pdisks.collect();
        let share = bytes / ids.len().max(1) as u64;
        Inbound::of(&ids, share, (share / REQUEST_BYTES).max(1))
    }

    fn of(ids: &[PdiskId], share: u64, requests: u64) -> Inbound {
        let shares = || Shares {
            payloads: Share::of(share),
            replies: [Share::of(share), Share::of(share / 2)],
            requests: Share::of(requests),
        };
        Inbound(ids.iter().map(|id| (*id, Arc::new(shares()))).collect())
    }

    /// Room for a request and its payload; `None`: a share of the pdisk is used up.
    pub fn take(&self, pdisk: PdiskId, payload: u64) -> Option<Room> {
        let of = self.0.get(&pdisk).cloned().unwrap_or_default();
        let request = of.requests.take(1)?;
        // What it has got by now goes back with the room.
        let mut room = Room { of, request, payload: Part::None, reply: [Part::None; 2] };
        room.payload = room.of.payloads.take(payload)?;
        Some(room)
    }

    /// Requests at a pdisk that it has not answered, and the most there may be.
    pub fn requests(&self, pdisk: PdiskId) -> (u64, u64) {
        self.0.get(&pdisk).map_or((0, 0), |of| (of.requests.taken.load(Relaxed), of.requests.max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: PdiskId = PdiskId(1);
    const TWO: PdiskId = PdiskId(2);

    #[test]
    fn each_pdisk_has_its_share() {
        let inbound = Inbound::of(&[ONE, TWO], 50, 9);
        let first = inbound.take(ONE, 30);
        assert!(first.is_some() && inbound.take(ONE, 21).is_none());
        let second = inbound.take(ONE, 20);
        assert!(second.is_some() && inbound.take(ONE, 1).is_none() && inbound.take(ONE, 0).is_some());
        assert_eq!(
            (inbound.requests(ONE), inbound.requests(TWO)),
            ((2, 9), (0, 9)),
            "what was refused left nothing"
        );
        assert!(inbound.take(TWO, 50).is_some());
        drop(first);
        assert!(inbound.take(ONE, 30).is_some() && inbound.take(PdiskId(3), 1000).is_some());
    }

    #[test]
    fn what_is_large_goes_beside_a_share_one_at_a_time() {
        let inbound = Inbound::of(&[ONE], 50, 9);
        let small = inbound.take(ONE, 50);
        let larger = inbound.take(ONE, 51);
        assert!(small.is_some() && larger.is_some());
        assert!(inbound.take(ONE, 1).is_none() && inbound.take(ONE, 51).is_none());
        drop(larger);
        assert!(inbound.take(ONE, 1).is_none() && inbound.take(ONE, 80).is_some());
        assert!(inbound.take(ONE, 25).is_none() && inbound.take(ONE, 26).is_some(), "more than half of it");
    }

    #[test]
    fn requests_without_payload_are_bounded_too() {
        let inbound = Inbound::new(6 * REQUEST_BYTES, [ONE, TWO].into_iter());
        let held: Vec<_> = (0..3).map(|_| inbound.take(ONE, 0)).collect();
        assert!(held.iter().all(Option::is_some) && inbound.take(ONE, 0).is_none());
        assert!(inbound.take(TWO, 0).is_some());
        assert_eq!((inbound.requests(ONE), inbound.requests(TWO)), ((3, 3), (0, 3)));
        drop(held);
        assert_eq!(inbound.requests(ONE), (0, 3));
    }

    #[test]
    fn replies_have_shares_of_their_own() {
        let inbound = Inbound::of(&[ONE], 100, 99);
        let read = |bytes, background| {
            inbound.take(ONE, 0).is_some_and(|mut room| room.for_reply(bytes, background))
        };
        let held = |bytes, background| {
            let mut room = inbound.take(ONE, 0).unwrap();
            assert!(room.for_reply(bytes, background));
            room
        };
        let client = held(60, false);
        assert!(!read(41, false) && read(40, false) && read(0, false));
        let others = [held(40, false), held(50, true), inbound.take(ONE, 100).unwrap()];
        assert!(!read(1, false) && !read(1, true));
        assert_eq!(inbound.requests(ONE).0, 4, "what was refused has left nothing");
        // A large one among many small ones.
        let large = [held(1000, false), held(51, true)];
        assert!(!read(1000, false) && !read(51, true));
        drop((client, others, large));
        assert!(read(100, false) && read(1000, true));
    }
}
