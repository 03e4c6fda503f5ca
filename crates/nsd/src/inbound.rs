//! What the payloads of requests under way may take of `inbound_bytes_max`, by pdisk: each has an equal share, so that a disk
//! that does not answer leaves the rest to the others. Beyond it a request is answered `Busy`, and its caller asks again.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use base::PdiskId;

/// The shares.
pub struct Inbound {
    share: u64,
    of: HashMap<PdiskId, Arc<AtomicU64>>,
}

/// Bytes of a share, given back by dropping it.
pub struct Room {
    of: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Inbound {
    /// Of `bytes` in all.
    pub fn new(bytes: u64, pdisks: impl Iterator<Item = PdiskId>) -> Inbound {
        let of: HashMap<_, _> = pdisks.map(|id| (id, Arc::default())).collect();
        Inbound { share: bytes / of.len().max(1) as u64, of }
    }

    /// Room for a payload; `None`: the pdisk's share is used up. A payload that is larger than the share goes alone. A pdisk that
    /// is not served has no share: its request is refused elsewhere.
    pub fn take(&self, pdisk: PdiskId, bytes: u64) -> Option<Room> {
        let of = self.of.get(&pdisk).cloned().unwrap_or_default();
        let fits =
            |taken: u64| (taken == 0 || bytes == 0 || taken + bytes <= self.share).then_some(taken + bytes);
        of.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        Some(Room { of, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pdisk_has_its_share() {
        let (one, two) = (PdiskId(1), PdiskId(2));
        let inbound = Inbound::new(100, [one, two].into_iter());
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
}
