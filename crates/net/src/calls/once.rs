//! What a node remembers of the requests of one peer that must take effect exactly once.
//!
//! When a connection is lost the peer sends such a request again, under the same number, on another one. The
//! first copy to come is carried out; every other gets the same reply, or waits for it. A request is
//! remembered until the peer says that it is settled (each request tells the lowest number it still waits
//! for), or its deadline has passed: it is never sent again after that. The memory is bounded: of the oldest ones
//! first the reply is dropped and only the number kept, then that too. What was, or may have been, carried out and
//! has no reply any more is answered `Forgotten`, never carried out a second time.
//!
//! Bookkeeping only: `C` is the connection a reply goes to.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Instant,
};

use wire::frame::Status;

use crate::calls::response::Response;

/// Replies remembered for one peer, at most; further ones push out the oldest.
const REPLIES_MAX: usize = 4096;
/// Numbers remembered of those that were pushed out.
const DROPPED_MAX: usize = 1 << 16;
/// Connections on which copies of one running request are waited for; further ones push out the oldest.
const COPIES_MAX: usize = 16;
/// Bytes of the replies, payloads included.
const BYTES_MAX: usize = 64 << 20;

enum Entry<C> {
    /// It is being carried out; the reply goes wherever a copy came from. Which copy was sent last is not known: one on a
    /// lost connection may be read after the one that was sent in its place.
    Running {
        waiting: VecDeque<C>,
    },
    Done {
        response: Response,
        bytes: usize,
        expires: Instant,
    },
}

/// What to do with a request that has come.
pub(crate) enum Begin {
    /// Carry it out.
    New,
    /// It is being carried out already: the reply will go to the connection it came on now as well.
    Attached,
    /// It was carried out: this is the reply.
    Done(Response),
    /// The peer has its reply: this is a copy that was late.
    Stale,
    /// It may have been carried out: that is no longer known.
    Forgotten,
    /// Another process has taken the place of the one that asks.
    Former,
}

pub(crate) struct Once<C> {
    /// The peer's process, as the latest handshake says. What is read late of a former one changes nothing here.
    process: u64,
    entries: BTreeMap<u64, Entry<C>>,
    /// Done ones, oldest first.
    order: VecDeque<u64>,
    bytes: usize,
    /// The peer waits for nothing below this.
    settled: u64,
    /// Carried out, but the reply was pushed out; may be asked for until then.
    dropped: BTreeMap<u64, Instant>,
    /// Numbers below this were pushed out of `dropped`, and may be asked for until then.
    forgotten: Option<(u64, Instant)>,
}

impl<C> Default for Once<C> {
    fn default() -> Self {
        Once {
            process: 0,
            entries: BTreeMap::new(),
            order: VecDeque::new(),
            bytes: 0,
            settled: 0,
            dropped: BTreeMap::new(),
            forgotten: None,
        }
    }
}

impl<C> Once<C> {
    /// The peer is this process from now on; another one than before begins anew.
    pub(crate) fn be_of(&mut self, process: u64) {
        if process != self.process {
            *self = Once { process, ..Once::default() };
        }
    }

    /// Request `id` of `process` has come on `on`.
    pub(crate) fn begin(&mut self, now: Instant, process: u64, id: u64, settled: u64, on: C) -> Begin {
        if process != self.process {
            return Begin::Former;
        }
        self.settle(settled);
        self.expire(now);
        if id < self.settled {
            return Begin::Stale;
        }
        match self.entries.get_mut(&id) {
            Some(Entry::Running { waiting }) => {
                waiting.push_back(on);
                if waiting.len() > COPIES_MAX {
                    waiting.pop_front();
                }
                Begin::Attached
            }
            Some(Entry::Done { response, .. }) => Begin::Done(response.clone()),
            None if self.dropped.contains_key(&id)
                || self.forgotten.is_some_and(|(below, until)| id < below && now < until) =>
            {
                Begin::Forgotten
            }
            None => {
                self.entries.insert(id, Entry::Running { waiting: VecDeque::from([on]) });
                Begin::New
            }
        }
    }

    /// Request `id` has been carried out; returns where the reply goes.
    pub(crate) fn end(
        &mut self,
        process: u64,
        id: u64,
        response: &Response,
        expires: Instant,
    ) -> VecDeque<C> {
        if process != self.process || !matches!(self.entries.get(&id), Some(Entry::Running { .. })) {
            return VecDeque::new();
        }
        let Some(Entry::Running { waiting }) = self.entries.remove(&id) else { return VecDeque::new() };
        // Nothing was done then: another try is the first.
        let undone = matches!(
            response.status,
            Status::Busy | Status::Expired | Status::NoService | Status::BadRequest
        );
        if !undone && id >= self.settled {
            let bytes = response.body.len() + response.payload.len();
            self.entries.insert(id, Entry::Done { response: response.clone(), bytes, expires });
            self.order.push_back(id);
            self.bytes += bytes;
            while self.order.len() > REPLIES_MAX || self.bytes > BYTES_MAX {
                self.push_out();
            }
        }
        waiting
    }

    fn settle(&mut self, settled: u64) {
        if settled <= self.settled {
            return;
        }
        self.settled = settled;
        self.dropped = self.dropped.split_off(&settled);
        // One still being carried out stays: its reply gives the peer's room back.
        let done = |(id, e): (&u64, &Entry<C>)| matches!(e, Entry::Done { .. }).then_some(*id);
        let gone: Vec<u64> = self.entries.range(..settled).filter_map(done).collect();
        for id in &gone {
            if let Some(Entry::Done { bytes, .. }) = self.entries.remove(id) {
                self.bytes -= bytes;
            }
        }
        if !gone.is_empty() {
            self.order.retain(|&id| id >= settled);
        }
    }

    /// What is past its deadline is not asked for again. Replies come in about the order of their deadlines;
    /// one that is out of it goes a little later.
    fn expire(&mut self, now: Instant) {
        while let Some(id) = self.order.front().copied() {
            match self.entries.get(&id) {
                Some(Entry::Done { expires, .. }) if *expires > now => return,
                Some(Entry::Done { bytes, .. }) => {
                    self.bytes -= bytes;
                    self.entries.remove(&id);
                }
                Some(Entry::Running { .. }) | None => {}
            }
            self.order.pop_front();
        }
        while self.dropped.first_key_value().is_some_and(|(_, until)| *until <= now) {
            self.dropped.pop_first();
        }
    }

    fn push_out(&mut self) {
        let Some(id) = self.order.pop_front() else { return };
        if let Some(Entry::Done { bytes, expires, .. }) = self.entries.remove(&id) {
            self.bytes -= bytes;
            self.dropped.insert(id, expires);
        }
        if self.dropped.len() > DROPPED_MAX
            && let Some((id, expires)) = self.dropped.pop_first()
        {
            let (below, until) = self.forgotten.unwrap_or((0, expires));
            self.forgotten = Some((below.max(id + 1), until.max(expires)));
        }
    }

    /// Whether anything of it may still be asked for.
    pub(crate) fn is_needed(&self, now: Instant) -> bool {
        let waits = |e: &Entry<C>| match e {
            Entry::Running { .. } => true,
            Entry::Done { expires, .. } => now < *expires,
        };
        self.forgotten.is_some_and(|(_, until)| now < until)
            || self.dropped.values().any(|until| now < *until)
            || self.entries.values().any(waits)
    }

    /// Forgets everything: the endpoint ends.
    pub(crate) fn clear(&mut self) {
        *self = Once::default();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PROCESS: u64 = 7;

    fn reply(text: &str) -> Response {
        Response::ok(text.as_bytes().to_vec())
    }

    struct Bench {
        once: Once<&'static str>,
        now: Instant,
    }

    impl Bench {
        fn new() -> Bench {
            Bench { once: Once { process: PROCESS, ..Once::default() }, now: Instant::now() }
        }
        fn begin(&mut self, id: u64, settled: u64, on: &'static str) -> Begin {
            self.once.begin(self.now, PROCESS, id, settled, on)
        }
        fn end(&mut self, id: u64, response: &Response) -> VecDeque<&'static str> {
            self.once.end(PROCESS, id, response, self.now + Duration::from_secs(60))
        }
    }

    #[test]
    fn a_second_copy_gets_the_first_ones_reply() {
        let mut b = Bench::new();
        assert!(matches!(b.begin(5, 5, "a"), Begin::New));
        assert!(matches!(b.begin(5, 5, "b"), Begin::Attached));
        assert_eq!(b.end(5, &reply("done")), ["a", "b"], "to every connection that asked");
        let Begin::Done(again) = b.begin(5, 5, "c") else { panic!() };
        assert_eq!(again.body, b"done");
        assert!(b.end(5, &reply("other")).is_empty());
        b.begin(6, 5, "first");
        (0..2 * COPIES_MAX).for_each(|_| drop(b.begin(6, 5, "again")));
        assert_eq!(b.end(6, &reply("done")), ["again"; COPIES_MAX]);
    }

    #[test]
    fn settled_ones_are_forgotten_and_late_copies_not_carried_out() {
        let mut b = Bench::new();
        for id in [3, 4, 9] {
            assert!(matches!(b.begin(id, 3, "a"), Begin::New));
            b.end(id, &reply("x"));
        }
        assert!(matches!(b.begin(10, 9, "a"), Begin::New));
        assert!(matches!(b.begin(4, 3, "a"), Begin::Stale));
        assert!(matches!(b.begin(9, 9, "a"), Begin::Done(_)));
        assert_eq!((b.once.order.len(), b.once.bytes), (1, 1));
    }

    #[test]
    fn what_was_not_done_is_tried_again() {
        let mut b = Bench::new();
        assert!(matches!(b.begin(1, 1, "a"), Begin::New));
        assert_eq!(b.end(1, &Response::error(Status::Busy, "later")), ["a"]);
        assert!(matches!(b.begin(1, 1, "a"), Begin::New));
    }

    #[test]
    fn what_had_to_be_forgotten_is_never_done_twice() {
        let mut b = Bench::new();
        for id in 0..REPLIES_MAX as u64 + 10 {
            assert!(matches!(b.begin(id, 0, "a"), Begin::New));
            b.end(id, &reply("x"));
        }
        assert_eq!(b.once.entries.len(), REPLIES_MAX);
        assert!(matches!(b.begin(9, 0, "a"), Begin::Forgotten));
        assert!(matches!(b.begin(10, 0, "a"), Begin::Done(_)));
        let mut b = Bench::new();
        for id in 1..2 * REPLIES_MAX as u64 {
            b.begin(id, 0, "a");
            b.end(id, &reply("x"));
        }
        assert!(matches!(b.begin(0, 0, "a"), Begin::New), "overtaken by many, but never carried out");
        for id in 1..(DROPPED_MAX + 2 * REPLIES_MAX) as u64 {
            b.begin(id, 0, "a");
            b.end(id, &reply("x"));
        }
        assert!(b.once.dropped.len() <= DROPPED_MAX);
        assert!(matches!(b.begin(1, 0, "a"), Begin::Forgotten), "known by the watermark");
        let mut b = Bench::new();
        for id in 0..5 {
            b.begin(id, 0, "a");
            b.end(
                id,
                &Response { payload: bytes::Bytes::from(vec![0u8; BYTES_MAX / 4]).into(), ..reply("") },
            );
        }
        assert!(b.once.bytes <= BYTES_MAX);
        assert!(b.once.is_needed(b.now));
        assert!(!b.once.is_needed(b.now + Duration::from_secs(61)));
    }

    #[test]
    fn replies_past_their_deadlines_are_dropped() {
        let mut b = Bench::new();
        b.begin(1, 1, "a");
        b.end(1, &reply("x"));
        b.now += Duration::from_secs(61);
        assert!(matches!(b.begin(2, 1, "a"), Begin::New));
        assert_eq!((b.once.entries.len(), b.once.order.len(), b.once.bytes), (1, 0, 0));
    }

    #[test]
    fn another_process_begins_anew_and_what_is_read_late_of_a_former_one_changes_nothing() {
        let mut b = Bench::new();
        b.begin(5, 5, "a");
        b.end(5, &reply("x"));
        b.begin(6, 5, "a");
        let (next, expires) = (PROCESS + 1, b.now + Duration::from_secs(60));
        b.once.be_of(next);
        assert!(matches!(b.once.begin(b.now, next, 2, 1, "b"), Begin::New));
        assert!(matches!(b.once.begin(b.now, next, 5, 1, "b"), Begin::New));
        b.once.end(next, 2, &reply("y"), expires);
        assert!(matches!(b.begin(7, 7, "a"), Begin::Former));
        assert!(b.end(6, &reply("x")).is_empty());
        b.once.be_of(next);
        let Begin::Done(again) = b.once.begin(b.now, next, 2, 1, "c") else { panic!("done twice") };
        assert_eq!(again.body, b"y");
        assert!(matches!(b.once.begin(b.now, next, 5, 1, "c"), Begin::Attached));
    }
}
