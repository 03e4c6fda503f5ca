//! Ports that are one test's as long as it runs, also while nothing listens on them: what it stops, and starts again, finds its ports
//! free.

use std::{
    net::TcpListener,
    sync::atomic::{AtomicU16, Ordering::Relaxed},
};

/// Below those that clusters and the system choose for themselves, any of which could be that of a server that is down.
const PORTS: std::ops::Range<u16> = 5_000..10_000;
/// Ports of one taker. The last one is held: whoever is refused that looks elsewhere.
const EACH: u16 = 32;

/// Some ports in a row.
pub struct Ports {
    pub first: u16,
    _held: TcpListener,
}

impl Ports {
    pub fn take() -> Ports {
        static TAKEN: AtomicU16 = AtomicU16::new(0);
        let places = (PORTS.end - PORTS.start) / EACH;
        // Each time others, as long as there are some: whoever calls the one before still does not meet the next one.
        let begin = (std::process::id() as u16 % places + TAKEN.fetch_add(1, Relaxed) % places) % places;
        let place = |n: u16| {
            let first = PORTS.start + (begin + n) % places * EACH;
            let bound = |port| TcpListener::bind(("127.0.0.1", port)).ok();
            let held = bound(first + EACH - 1)?;
            // Nobody else's either, of those who do not take them here.
            (first..first + EACH - 1)
                .all(|port| bound(port).is_some())
                .then_some(Ports { first, _held: held })
        };
        (0..places).find_map(place).expect("ports that nobody uses")
    }
}
