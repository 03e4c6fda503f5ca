//! What requests under way may take of `inbound_bytes_max`, by pdisk: their payloads an equal share, so that a disk that does not
//! answer leaves the rest to the others; and there are no more of them than small ones fit into such a share, with or without a
//! payload: they go on when their callers have given up, and ask again. Beyond either a request is answered `Busy`, and its caller
//! asks again.

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

#[derive(Default)]
struct Taken {
    bytes: AtomicU64,
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
    bytes: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.of.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.of.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Inbound {
    /// Of `bytes` in all.
    pub fn new(bytes: u64, pdisks: impl Iterator<Item = PdiskId>) -> Inbound {
        let of: HashMap<_, _> = pdisks.map(|id| (id, Arc::default())).collect();
        let share = bytes / of.len().max(1) as u64;
        Inbound { share, requests_max: (share / REQUEST_BYTES).max(1), of }
    }

    /// Room for a request with so many bytes of payload; `None`: the pdisk's share is used up. A payload that is larger than the
    /// share goes alone. A pdisk that is not served has no share: its request is refused elsewhere.
    pub fn take(&self, pdisk: PdiskId, bytes: u64) -> Option<Room> {
        let of = self.of.get(&pdisk).cloned().unwrap_or_default();
        let one = |taken: u64| (taken < self.requests_max).then_some(taken + 1);
        of.requests.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one).ok()?;
        let fits =
            |taken: u64| (taken == 0 || bytes == 0 || taken + bytes <= self.share).then_some(taken + bytes);
        if of.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_err() {
            of.requests.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Room { of, bytes })
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

    #[test]
    fn each_pdisk_has_its_share() {
        let (one, two) = (PdiskId(1), PdiskId(2));
        let inbound = Inbound { requests_max: 9, ..Inbound::new(100, [one, two].into_iter()) };
        let first = inbound.take(one, 30);
        assert!(first.is_some() && inbound.take(one, 21).is_none());
        let second = inbound.take(one, 20);
        assert!(second.is_some() && inbound.take(one, 1).is_none() && inbound.take(one, 0).is_some());
        let large = inbound.take(two, 80);
        assert!(large.is_some() && inbound.take(two, 1).is_none() && inbound.take(two, 0).is_some());
        drop((first, large));
        assert!(inbound.take(one, 30).is_some() && inbound.take(two, 50).is_some());
        assert!(inbound.take(PdiskId(3), 1000).is_some());
    }

    #[test]
    fn requests_without_payload_are_bounded_too() {
        let (one, two) = (PdiskId(1), PdiskId(2));
        let inbound = Inbound::new(6 * REQUEST_BYTES, [one, two].into_iter());
        let held: Vec<_> = (0..3).map(|_| inbound.take(one, 0)).collect();
        assert!(held.iter().all(Option::is_some) && inbound.take(one, 0).is_none());
        assert!(inbound.take(two, 0).is_some());
        assert_eq!((inbound.requests(one), inbound.requests(two)), ((3, 3), (0, 3)));
        drop(held);
        let large = inbound.take(one, 4 * REQUEST_BYTES);
        assert!(large.is_some() && inbound.take(one, 1).is_none() && inbound.requests(one).0 == 1);
    }
}
