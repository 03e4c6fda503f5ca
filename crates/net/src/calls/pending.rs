//! The calls of one connection group and the room of its connections: pure bookkeeping, no I/O.
//!
//! An entry lives from the call's start until its reply, its connection's end, or the caller's giving up;
//! one that was sent and then given up stays, without its caller, until the peer has answered, because the
//! peer's window counts it until then.

use std::time::Instant;

use base::{InodeNo, OpClass};
use tokio::sync::oneshot;
use wire::{
    frame::Service,
    hello::{Lane, Window},
};

use crate::{
    calls::{call::Reply, idmap::IdMap, payload::Destination},
    config::Dispatch,
};

/// What a call was told in the end.
pub(crate) type Outcome = Result<Reply, Failure>;

/// A call's connection failed it.
pub(crate) enum Failure {
    /// The connection ended before the reply was complete.
    Lost { maybe_executed: bool, reason: String, destination: Option<Destination> },
    /// The reply does not fit into the destination.
    TooLong { len: usize, room: usize },
}

/// A call on its way.
pub(crate) struct Pending {
    pub service: Service,
    pub class: OpClass,
    pub op: u8,
    pub inode: InodeNo,
    pub since: Instant,
    pub deadline: Instant,
    /// Bytes of the request that count against the peer's window.
    pub cost: u64,
    /// Bytes expected back, as far as known.
    pub expected: u64,
    pub destination: Option<Destination>,
    pub unit_crcs: bool,
    /// The connection that carries it; `None`: it waits for one.
    pub conn: Option<u64>,
    /// `None`: the caller has given up, or it waits for a connection.
    pub tx: Option<oneshot::Sender<Outcome>>,
    /// Its reply is being received, the destination is with the receiver.
    pub receiving: bool,
}

/// A connection's room, as the sender keeps it.
pub(crate) struct Member {
    pub conn: u64,
    pub lane: Lane,
    /// What the peer accepts of unanswered requests.
    pub window: Window,
    pub requests: u32,
    pub bytes: u64,
    /// Reply bytes expected.
    pub expected: u64,
    /// Measured bytes a second; 0 is not yet known.
    pub rate: u64,
    last_used: u64,
    /// It is being drained or closed: nothing more is given to it.
    pub retired: bool,
    /// Nothing seems to get through: nothing more is given to it while there are others.
    pub suspect: bool,
    /// It was without requests at some time since the last look.
    idled: bool,
    /// The peer that made it is still trying it out: nothing is given to it.
    pub trial: bool,
}

impl Member {
    fn has_room(&self, cost: u64) -> bool {
        self.requests == 0
            || (self.requests < self.window.requests && self.bytes.saturating_add(cost) <= self.window.bytes)
    }
}

/// Why no connection could be given.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum Unassigned {
    /// There is none.
    NoConnection,
    /// All are at the peer's window.
    NoRoom,
    /// The call is no longer in the table.
    Gone,
}

/// The measured rates of a group's connections as weights. Rates within a factor of two count as equal:
/// they differ by chance, and queues even that out by themselves.
struct Rates {
    best: u64,
    mean: u64,
    alike: bool,
}

impl Rates {
    fn of(members: &[Member]) -> Rates {
        let known = || members.iter().map(|m| m.rate).filter(|&r| r > 0);
        let best = known().max().unwrap_or(1);
        let mean = (known().sum::<u64>() / known().count().max(1) as u64).max(1);
        Rates { best, mean, alike: known().min().is_none_or(|least| least >= best / 2) }
    }
    fn weight(&self, m: &Member) -> u64 {
        match m.rate {
            _ if self.alike => 1_000_000,
            0 => self.mean,
            // One measured very slow still gets a share: its rate can only be seen in use.
            rate => rate.max(self.best / 8),
        }
    }
}

#[derive(Default)]
pub(crate) struct Table {
    calls: IdMap<Pending>,
    members: Vec<Member>,
    uses: u64,
    /// Bulk calls wait while this is not 0: connections are being placed.
    holds: u32,
}

impl Table {
    pub(crate) fn insert(&mut self, id: u64, call: Pending) {
        self.calls.insert(id, call);
    }
    pub(crate) fn calls(&self) -> impl Iterator<Item = (&u64, &Pending)> {
        self.calls.iter()
    }
    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }
    pub(crate) fn add_member(&mut self, conn: u64, lane: Lane, window: Window) {
        self.members.push(Member {
            conn,
            lane,
            window,
            requests: 0,
            bytes: 0,
            expected: 0,
            rate: 0,
            last_used: 0,
            retired: false,
            suspect: false,
            idled: true,
            trial: false,
        });
    }
    pub(crate) fn retire(&mut self, conn: u64) {
        if let Some(m) = self.members.iter_mut().find(|m| m.conn == conn) {
            m.retired = true;
        }
    }
    pub(crate) fn set_rate(&mut self, conn: u64, rate: u64) {
        if let Some(m) = self.members.iter_mut().find(|m| m.conn == conn) {
            m.rate = rate;
        }
    }
    pub(crate) fn set_suspect(&mut self, conn: u64, suspect: bool) {
        if let Some(m) = self.members.iter_mut().find(|m| m.conn == conn) {
            m.suspect = suspect;
        }
    }

    /// A connection that the peer may still give up: see `Member::trial`.
    pub(crate) fn set_trial(&mut self, conn: u64, trial: bool) {
        if let Some(m) = self.members.iter_mut().find(|m| m.conn == conn) {
            m.trial = trial;
        }
    }
    /// Bulk calls wait until as many `release` as `hold` were called.
    pub(crate) fn hold(&mut self) {
        self.holds += 1;
    }
    pub(crate) fn release_hold(&mut self) {
        self.holds = self.holds.saturating_sub(1);
    }
    /// Bulk requests that are unanswered.
    pub(crate) fn bulk_requests(&self) -> u32 {
        self.members.iter().filter(|m| m.lane == Lane::Bulk).map(|m| m.requests).sum()
    }

    /// Whether calls wait for answers or connections.
    pub(crate) fn is_busy(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Whether all that is unanswered are small requests on their connections: nothing is measured by them.
    pub(crate) fn is_light(&self) -> bool {
        self.bulk_requests() == 0 && self.calls.iter().all(|(_, call)| call.conn.is_some())
    }

    /// When the first of the requests on `conn` began that are unanswered and began after `after`.
    pub(crate) fn first_since(&self, conn: u64, after: Instant) -> Option<Instant> {
        let of = self.calls.iter().filter(|(_, call)| call.conn == Some(conn));
        of.map(|(_, call)| call.since).filter(|since| *since > after).min()
    }

    /// (Requests unanswered now, whether there were some all the time since this was last asked.)
    pub(crate) fn look_at(&mut self, conn: u64) -> (u32, bool) {
        let Some(m) = self.members.iter_mut().find(|m| m.conn == conn) else { return (0, false) };
        (m.requests, !std::mem::replace(&mut m.idled, m.requests == 0))
    }

    /// Gives call `id` to a connection of `lane`: with `Dispatch::ShortestQueue` the one on which it would
    /// be answered first. Returns it, the receiver of the outcome, and how many requests the connection
    /// had already.
    pub(crate) fn assign(
        &mut self,
        id: u64,
        lane: Lane,
        dispatch: Dispatch,
    ) -> Result<(u64, oneshot::Receiver<Outcome>, u32), Unassigned> {
        let call = self.calls.get_mut(&id).ok_or(Unassigned::Gone)?;
        let of_lane = |m: &Member| m.lane == lane && !m.retired && !m.trial;
        if !self.members.iter().any(of_lane) {
            return Err(Unassigned::NoConnection);
        }
        if self.holds > 0 && lane == Lane::Bulk {
            return Err(Unassigned::NoRoom);
        }
        let all_suspect = !self.members.iter().any(|m| of_lane(m) && !m.suspect);
        let weight = call.cost + call.expected;
        let rates = Rates::of(&self.members);
        let open = self.members.iter_mut().filter(|m| of_lane(m) && (all_suspect || !m.suspect));
        let chosen = match dispatch {
            Dispatch::ShortestQueue => open.filter(|m| m.has_room(call.cost)).min_by_key(|m| {
                let queued = (m.bytes + m.expected + weight) as u128;
                // Nanoseconds until answered: integers, so that ties are ties.
                (queued * 1_000_000_000 / rates.weight(m) as u128, m.last_used)
            }),
            Dispatch::RoundRobin => open.filter(|m| m.has_room(call.cost)).min_by_key(|m| m.last_used),
            Dispatch::Pinned => {
                let mut open: Vec<&mut Member> = open.collect();
                // Not empty: somebody is of the lane, and not all of those left out are suspect.
                let turn = (call.inode.0 % open.len().max(1) as u64) as usize;
                Some(open.swap_remove(turn)).filter(|m| m.has_room(call.cost))
            }
        };
        let Some(member) = chosen else { return Err(Unassigned::NoRoom) };
        self.uses += 1;
        member.last_used = self.uses;
        let before = member.requests;
        member.requests += 1;
        member.bytes += call.cost;
        member.expected += call.expected;
        let (tx, rx) = oneshot::channel();
        (call.conn, call.tx) = (Some(member.conn), Some(tx));
        Ok((member.conn, rx, before))
    }

    fn release(&mut self, call: &Pending) {
        if let Some(m) = self.members.iter_mut().find(|m| Some(m.conn) == call.conn) {
            m.requests = m.requests.saturating_sub(1);
            m.idled |= m.requests == 0;
            m.bytes = m.bytes.saturating_sub(call.cost);
            m.expected = m.expected.saturating_sub(call.expected);
        }
    }

    /// Removes a call whose request no connection has, and undoes its assignment. Its connection may have room then.
    pub(crate) fn take_back(&mut self, id: u64) -> Option<Pending> {
        let call = self.calls.remove(&id)?;
        self.release(&call);
        Some(call)
    }

    /// The head of the reply to `id` has come on `conn`: hands out its destination. `None`: no such
    /// request was made there.
    pub(crate) fn begin_reply(&mut self, conn: u64, id: u64) -> Option<ReplyTo> {
        let call = self.calls.get_mut(&id).filter(|c| c.conn == Some(conn) && !c.receiving)?;
        call.receiving = true;
        Some(match (&call.tx, call.destination.take()) {
            (None, _) => ReplyTo::Nobody,
            (Some(_), Some(destination)) => ReplyTo::Destination(destination),
            (Some(_), None) => ReplyTo::Pool { unit_crcs: call.unit_crcs },
        })
    }

    /// The reply is complete, or could not be completed: removes the call. The receiver of `tx` gets the
    /// outcome.
    pub(crate) fn end_reply(&mut self, conn: u64, id: u64) -> Option<Pending> {
        if self.calls.get(&id)?.conn != Some(conn) {
            return None;
        }
        self.take_back(id)
    }

    /// The receiver failed in the middle of the payload: the destination goes back to the call.
    pub(crate) fn put_back(&mut self, id: u64, destination: Destination) {
        if let Some(call) = self.calls.get_mut(&id) {
            call.destination = Some(destination);
            call.receiving = false;
        }
    }

    /// The caller gives up after the request was sent. Returns the connection to tell.
    pub(crate) fn abandon(&mut self, id: u64) -> Option<u64> {
        let call = self.calls.get_mut(&id)?;
        call.tx = None;
        call.destination = None;
        call.conn
    }

    /// A connection has ended: its calls, to be told.
    pub(crate) fn remove_member(&mut self, conn: u64) -> Vec<(u64, Pending)> {
        self.members.retain(|m| m.conn != conn);
        self.calls.extract_if(|_, call| call.conn == Some(conn)).collect()
    }

    /// All calls, for the end of the endpoint.
    pub(crate) fn drain(&mut self) -> Vec<(u64, Pending)> {
        self.members.clear();
        self.calls.drain().collect()
    }
}

/// Where a reply's payload goes.
pub(crate) enum ReplyTo {
    Destination(Destination),
    Pool {
        unit_crcs: bool,
    },
    /// The caller has given up: read it away.
    Nobody,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(cost: u64, expected: u64) -> Pending {
        Pending {
            service: Service::Lab,
            class: OpClass::Lab,
            op: 0,
            inode: InodeNo(0),
            since: Instant::now(),
            deadline: Instant::now(),
            cost,
            expected,
            destination: None,
            unit_crcs: false,
            conn: None,
            tx: None,
            receiving: false,
        }
    }

    fn table(conns: u64, requests: u32, bytes: u64) -> Table {
        let mut t = Table::default();
        t.add_member(100, Lane::Control, Window { requests, bytes });
        (1..=conns).for_each(|c| t.add_member(c, Lane::Bulk, Window { requests, bytes }));
        t
    }

    fn assign(t: &mut Table, id: u64, c: Pending) -> Result<u64, Unassigned> {
        t.insert(id, c);
        t.assign(id, Lane::Bulk, Dispatch::ShortestQueue).map(|(conn, ..)| conn)
    }

    #[test]
    fn equal_load_goes_round_and_unequal_load_to_the_emptier() {
        let mut t = table(3, 100, 1 << 30);
        let first: Vec<u64> = (0..3).map(|i| assign(&mut t, i, call(10, 0)).unwrap()).collect();
        assert_eq!(first, [1, 2, 3]);
        t.end_reply(2, 1).unwrap();
        assert_eq!(assign(&mut t, 10, call(1, 0)), Ok(2));
        assert_eq!(assign(&mut t, 11, call(1, 0)), Ok(2));
    }

    #[test]
    fn a_connection_measured_faster_gets_more() {
        let mut t = table(2, 10_000, 1 << 40);
        t.set_rate(1, 300);
        t.set_rate(2, 100);
        let on_1 = (0..400).filter(|&i| assign(&mut t, i, call(1000, 0)) == Ok(1)).count();
        assert!((295..=305).contains(&on_1), "{on_1} of 400");
    }

    #[test]
    fn rates_that_differ_little_count_as_equal() {
        let mut t = table(2, 10_000, 1 << 40);
        t.set_rate(1, 190);
        t.set_rate(2, 100);
        let on_1 = (0..400).filter(|&i| assign(&mut t, i, call(1000, 0)) == Ok(1)).count();
        assert_eq!(on_1, 200);
    }

    #[test]
    fn round_robin_counts_and_pinned_follows_the_inode() {
        let mut t = table(3, 100, 1 << 30);
        let mut give = |id, inode, dispatch| {
            t.insert(id, Pending { inode: InodeNo(inode), ..call(id * 1000, 0) });
            t.assign(id, Lane::Bulk, dispatch).map(|(conn, ..)| conn).unwrap()
        };
        let given: Vec<u64> = (0..6).map(|i| give(i, 0, Dispatch::RoundRobin)).collect();
        assert_eq!(given, [1, 2, 3, 1, 2, 3]);
        let given: Vec<u64> = (0..6).map(|i| give(10 + i, i / 2, Dispatch::Pinned)).collect();
        assert_eq!(given, [1, 1, 2, 2, 3, 3]);
    }

    #[test]
    fn a_suspect_gets_nothing_while_there_are_others() {
        let mut t = table(2, 100, 1 << 30);
        t.set_suspect(1, true);
        assert!((0..9).all(|i| assign(&mut t, i, call(1 << 20, 0)) == Ok(2)));
        t.set_suspect(2, true);
        assert_eq!(assign(&mut t, 20, call(1, 0)), Ok(1));
    }

    #[test]
    fn busy_means_busy_all_the_time() {
        let mut t = table(1, 100, 1 << 30);
        assert_eq!(t.look_at(1), (0, false));
        assign(&mut t, 1, call(1, 0)).unwrap();
        assert_eq!(t.look_at(1), (1, false), "it began within");
        assign(&mut t, 2, call(1, 0)).unwrap();
        t.end_reply(1, 1).unwrap();
        assert_eq!(t.look_at(1), (1, true));
        t.end_reply(1, 2).unwrap();
        assign(&mut t, 3, call(1, 0)).unwrap();
        assert_eq!(t.look_at(1), (1, false), "it was idle in between");
    }

    #[test]
    fn the_window_holds_by_requests_and_bytes_and_one_always_fits() {
        let mut t = table(1, 2, 100);
        assert_eq!(assign(&mut t, 1, call(1000, 0)), Ok(1));
        assert_eq!(assign(&mut t, 2, call(1, 0)), Err(Unassigned::NoRoom));
        t.end_reply(1, 1).unwrap();
        assert!(t.assign(2, Lane::Bulk, Dispatch::ShortestQueue).is_ok());
        assert_eq!(assign(&mut t, 3, call(99, 0)), Ok(1));
        assert_eq!(assign(&mut t, 4, call(0, 0)), Err(Unassigned::NoRoom));
        assert!(matches!(t.assign(5, Lane::Bulk, Dispatch::RoundRobin), Err(Unassigned::Gone)));
    }

    #[test]
    fn an_abandoned_call_holds_its_room_until_the_peer_answers() {
        let mut t = table(1, 1, 100);
        assert_eq!(assign(&mut t, 1, call(1, 0)), Ok(1));
        assert_eq!(t.abandon(1), Some(1));
        assert_eq!(assign(&mut t, 2, call(1, 0)), Err(Unassigned::NoRoom));
        assert!(matches!(t.begin_reply(1, 1), Some(ReplyTo::Nobody)));
        assert!(t.end_reply(1, 1).unwrap().tx.is_none());
        assert!(t.assign(2, Lane::Bulk, Dispatch::ShortestQueue).is_ok());
        assert_eq!(t.abandon(99), None);
    }

    #[test]
    fn replies_are_taken_once_and_only_from_the_connection_asked() {
        let mut t = table(2, 9, 100);
        let conn = assign(&mut t, 1, call(1, 0)).unwrap();
        assert!(t.begin_reply(conn + 1, 1).is_none());
        assert!(t.begin_reply(conn, 2).is_none());
        assert!(matches!(t.begin_reply(conn, 1), Some(ReplyTo::Pool { unit_crcs: false })));
        assert!(t.begin_reply(conn, 1).is_none(), "a second reply to the same request");
    }

    #[test]
    fn a_lost_connection_gives_up_its_calls_only() {
        let mut t = table(2, 9, 100);
        let a = assign(&mut t, 1, call(1, 0)).unwrap();
        let b = assign(&mut t, 2, call(1, 0)).unwrap();
        assert_ne!(a, b);
        let lost: Vec<u64> = t.remove_member(a).into_iter().map(|(id, _)| id).collect();
        assert_eq!(lost, [1]);
        assert_eq!(t.remove_member(b).len(), 1);
        assert_eq!(assign(&mut t, 3, call(1, 0)), Err(Unassigned::NoConnection));
    }
}
