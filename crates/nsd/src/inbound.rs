//! What requests under way may take of the server's memory, by pdisk, in equal shares, so that a disk that does not answer leaves the rest
//! to the others: their payloads, of `inbound_bytes_max`; the bytes that reads will answer with, of as much once more; those that rebuild
//! and scrub read, of half as much, so that they and clients do not wait for each other. And there are no more requests than small ones
//! fit into a share of payloads, with or without a payload: they go on when their callers have given up, and ask again. Beyond any of
//! these a request is answered `Busy`, and its caller asks again.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use base::PdiskId;

/// What a request counts for at least: as many bytes as one may have that takes no part of `inbound_bytes_max` where it is received.
const REQUEST_BYTES: u64 = 16 << 10;

/// Bytes that a request takes as long as it is under way.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Needs {
    /// Of its payload.
    pub payload: u64,
    /// Of the answer to a read; at most.
    pub reply: u64,
    /// It reads for rebuild or scrub.
    pub background: bool,
}

impl Needs {
    /// Payloads, replies to clients, replies to rebuild and scrub.
    fn each(self) -> [u64; 3] {
        let of = |background| if self.background == background { self.reply } else { 0 };
        [self.payload, of(false), of(true)]
    }
}

#[derive(Default)]
struct Taken {
    /// As [`Needs::each`] has them.
    bytes: [AtomicU64; 3],
    requests: AtomicU64,
}

/// The shares.
pub struct Inbound {
    share: u64,
    requests_max: u64,
    of: HashMap<PdiskId, Arc<Taken>>,
}

/// A request's part of a share, given back by dropping it.
pub struct Room {
    of: Arc<Taken>,
    bytes: [u64; 3],
}

impl Drop for Room {
    fn drop(&mut self) {
        for (taken, bytes) in self.of.bytes.iter().zip(self.bytes) {
            taken.fetch_sub(bytes, Ordering::Relaxed);
        }
        self.of.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Inbound {
    /// Of `bytes` of payloads in all.
    pub fn new(bytes: u64, pdisks: impl Iterator<Item = PdiskId>) -> Inbound {
        let of: HashMap<_, _> = pdisks.map(|id| (id, Arc::default())).collect();
        let share = bytes / of.len().max(1) as u64;
        Inbound { share, requests_max: (share / REQUEST_BYTES).max(1), of }
    }

    /// Room for a request; `None`: a share of the pdisk is used up. What is larger than its share goes alone. A pdisk that is not
    /// served has no share: its request is refused elsewhere.
    pub fn take(&self, pdisk: PdiskId, needs: Needs) -> Option<Room> {
        let of = self.of.get(&pdisk).cloned().unwrap_or_default();
        let one = |taken: u64| (taken < self.requests_max).then_some(taken + 1);
        of.requests.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one).ok()?;
        let mut room = Room { of, bytes: [0; 3] };
        let most = [self.share, self.share, self.share / 2];
        for (i, bytes) in needs.each().into_iter().enumerate().filter(|(_, bytes)| *bytes > 0) {
            let fits = |taken: u64| (taken == 0 || taken + bytes <= most[i]).then_some(taken + bytes);
            // What it has got by now goes back with `room`.
            room.of.bytes[i].fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
            room.bytes[i] = bytes;
        }
        Some(room)
    }

    /// Requests at a pdisk that it has not answered, and the most there may be.
    pub fn requests(&self, pdisk: PdiskId) -> (u64, u64) {
        let now = self.of.get(&pdisk).map_or(0, |of| of.requests.load(Ordering::Relaxed));
        (now, self.requests_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(bytes: u64) -> Needs {
        Needs { payload: bytes, ..Needs::default() }
    }

    #[test]
    fn each_pdisk_has_its_share() {
        let (one, two) = (PdiskId(1), PdiskId(2));
        let inbound = Inbound { requests_max: 9, ..Inbound::new(100, [one, two].into_iter()) };
        let first = inbound.take(one, payload(30));
        assert!(first.is_some() && inbound.take(one, payload(21)).is_none());
        let second = inbound.take(one, payload(20));
        assert!(
            second.is_some()
                && inbound.take(one, payload(1)).is_none()
                && inbound.take(one, payload(0)).is_some()
        );
        let large = inbound.take(two, payload(80));
        assert!(
            large.is_some()
                && inbound.take(two, payload(1)).is_none()
                && inbound.take(two, payload(0)).is_some()
        );
        drop((first, large));
        assert!(inbound.take(one, payload(30)).is_some() && inbound.take(two, payload(50)).is_some());
        assert!(inbound.take(PdiskId(3), payload(1000)).is_some());
    }

    #[test]
    fn requests_without_payload_are_bounded_too() {
        let (one, two) = (PdiskId(1), PdiskId(2));
        let inbound = Inbound::new(6 * REQUEST_BYTES, [one, two].into_iter());
        let held: Vec<_> = (0..3).map(|_| inbound.take(one, payload(0))).collect();
        assert!(held.iter().all(Option::is_some) && inbound.take(one, payload(0)).is_none());
        assert!(inbound.take(two, payload(0)).is_some());
        assert_eq!((inbound.requests(one), inbound.requests(two)), ((3, 3), (0, 3)));
        drop(held);
        let large = inbound.take(one, payload(4 * REQUEST_BYTES));
        assert!(large.is_some() && inbound.take(one, payload(1)).is_none() && inbound.requests(one).0 == 1);
    }

    #[test]
    fn replies_have_shares_of_their_own() {
        let one = PdiskId(1);
        let inbound = Inbound { requests_max: 99, ..Inbound::new(100, [one].into_iter()) };
        let read = |reply, background| inbound.take(one, Needs { payload: 0, reply, background });
        let client = read(60, false);
        assert!(client.is_some() && read(41, false).is_none() && read(0, false).is_some());
        let others = [read(40, false), read(50, true), inbound.take(one, payload(100))];
        assert!(others.iter().all(Option::is_some) && read(1, false).is_none() && read(1, true).is_none());
        assert_eq!(inbound.requests(one).0, 4, "what was refused has left nothing");
        drop((client, others));
        let large = read(1000, true);
        assert!(large.is_some() && read(1, true).is_none() && read(100, false).is_some());
    }
}
