//! The managers that a process knows, and which of them it asks: one at a time, the active one. It is found by asking: one that is
//! not active says so and names the one that is, and one that does not answer is left for the next. New ones stand in the map.
//! All parts of a process share one, so that what one has found serves the others.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use base::{Epoch, NodeId};
use net::{Call, CallError, Endpoint};
use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::watch;
use wire::{
    frame,
    map::{ClusterMap, ManagerEntry},
    mgr::{MgrError, MgrReply},
};

/// Where there are several, one that cannot be connected to is left after this.
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);
/// Before the next is asked.
const PAUSE: Duration = Duration::from_millis(50);
/// One that did not answer is not tried again within this time because others say that it is active: they may not know yet.
const LEFT_FOR: Duration = Duration::from_secs(1);

/// Why no manager answered.
#[derive(Debug, Error)]
pub enum AskError {
    /// Not reached, or no answer in time.
    #[error(transparent)]
    Call(#[from] CallError),
    /// None of those that answer is active.
    #[error("{0}")]
    NoneActive(MgrError),
    /// Not an answer of a manager.
    #[error("the manager's answer does not fit the request")]
    Protocol,
}

/// See the module. Copies share it.
#[derive(Clone, Debug)]
pub struct Managers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// With the epoch of the map that names them.
    known: watch::Sender<(Epoch, Vec<ManagerEntry>)>,
    asked: Mutex<Asked>,
}

#[derive(Debug)]
struct Asked {
    now: Vec<SocketAddr>,
    /// The last one that did not answer.
    left: Option<(Vec<SocketAddr>, Instant)>,
}

impl Managers {
    /// Those that are known at the beginning, the first to be asked first.
    pub fn new(known: Vec<ManagerEntry>) -> Managers {
        let now = known.first().map(ManagerEntry::sockets).unwrap_or_default();
        Managers(Arc::new(Shared {
            known: watch::Sender::new((Epoch(0), known)),
            asked: Mutex::new(Asked { now, left: None }),
        }))
    }

    /// One, at these addresses.
    pub fn at(addrs: &[SocketAddr]) -> Managers {
        let addrs = addrs.iter().map(SocketAddr::to_string).collect();
        Managers::new(vec![ManagerEntry { name: String::new(), addrs }])
    }

    /// Those that are known.
    pub fn known(&self) -> Vec<ManagerEntry> {
        self.0.known.borrow().1.clone()
    }

    /// Their addresses, for people.
    pub fn places(&self) -> String {
        let known = self.0.known.borrow();
        let all: Vec<&str> = known.1.iter().flat_map(|one| &one.addrs).map(String::as_str).collect();
        all.join(", ")
    }

    /// What people call them, and where they are: as `Endpoint::set_names` takes it.
    pub fn names(&self) -> Vec<(Option<NodeId>, String, Vec<SocketAddr>)> {
        let known = self.known();
        let called = |one: &ManagerEntry| match known.len() {
            1 => "the manager".to_owned(),
            _ => format!("manager {}", one.name),
        };
        known.iter().map(|one| (None, called(one), one.sockets())).collect()
    }

    /// The addresses of the one that is asked first.
    pub fn asked(&self) -> Vec<SocketAddr> {
        self.0.asked.lock().now.clone()
    }

    /// Waits until a map has named others than are known now. They are those, then.
    pub async fn changed(&self, now: &[ManagerEntry]) -> Vec<ManagerEntry> {
        let mut known = self.0.known.subscribe();
        // It ends only with its sender, which is held here.
        let found = known.wait_for(|(_, known)| known != now).await;
        found.map(|found| found.1.clone()).unwrap_or_default()
    }

    /// What a map says of them. One that names none is of a cluster that has one only.
    pub fn learn(&self, map: &ClusterMap) {
        if map.managers.is_empty() {
            return;
        }
        self.0.known.send_if_modified(|(epoch, known)| {
            if map.epoch < *epoch {
                return false;
            }
            *epoch = map.epoch;
            let changed = *known != map.managers;
            known.clone_from(&map.managers);
            changed
        });
    }

    /// Asks the active one; `make` makes the call, anew for each that is tried. An answer may be any but that the asked one is
    /// not active.
    pub async fn ask(&self, endpoint: &Endpoint, make: impl Fn() -> Call) -> Result<MgrReply, AskError> {
        let mut silent = 0;
        loop {
            let (asked, others) = (self.asked(), self.others());
            let mut call = make();
            let deadline = call.deadline;
            if others > 0 {
                call.patience = Some(call.patience.map_or(CONNECT_PATIENCE, |own| own.min(CONNECT_PATIENCE)));
            }
            match endpoint.peer(&asked).call(call).await {
                Ok(reply) => match frame::decode(&reply.body).map_err(|_| AskError::Protocol)? {
                    MgrReply::Error(refusal @ MgrError::NotActive { .. }) => {
                        // Somebody is there: another may be about to take over.
                        silent = 0;
                        self.turn(&asked, &refusal);
                        if Instant::now() + PAUSE >= deadline {
                            return Err(AskError::NoneActive(refusal));
                        }
                    }
                    reply => {
                        self.hear(&reply);
                        return Ok(reply);
                    }
                },
                // The next would send back to it.
                Err(error @ CallError::TooOld { .. }) => return Err(error.into()),
                Err(error) => {
                    silent += 1;
                    let next = others > 0 && self.leave(&asked);
                    // What one may have done is not asked of another here: who asks knows whether it may be done twice.
                    if !next || silent > others || !error.not_executed() || Instant::now() + PAUSE >= deadline
                    {
                        return Err(error.into());
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// How many there are beside the one that is asked now, which need not be among those that are known.
    fn others(&self) -> usize {
        let asked = self.asked();
        self.0.known.borrow().1.iter().filter(|one| one.sockets() != asked).count()
    }

    fn hear(&self, reply: &MgrReply) {
        match reply {
            MgrReply::Map(map) | MgrReply::Registered { map, .. } | MgrReply::SessionOpen { map, .. } => {
                self.learn(map);
            }
            MgrReply::Cluster(report) => self.learn(&report.map),
            _ => {}
        }
    }

    /// One is not active: the one that it names is asked, or the next.
    fn turn(&self, from: &[SocketAddr], refusal: &MgrError) {
        let named = match refusal {
            MgrError::NotActive { active: Some(active) } => active.sockets(),
            _ => Vec::new(),
        };
        let mut asked = self.0.asked.lock();
        if asked.now != from {
            return; // somebody has found another one meanwhile
        }
        let left = asked.left.as_ref().is_some_and(|(left, at)| *left == named && at.elapsed() < LEFT_FOR);
        if named.is_empty() || named == from || left {
            asked.now = self.next(&asked);
        } else {
            asked.now = named;
        }
    }

    /// One does not answer: the next is asked. Whether there is one.
    fn leave(&self, from: &[SocketAddr]) -> bool {
        let mut asked = self.0.asked.lock();
        if asked.now == from {
            asked.left = Some((from.to_vec(), Instant::now()));
            asked.now = self.next(&asked);
        }
        asked.now != from
    }

    /// The one after the one that is asked now, but for one that did not answer just now.
    fn next(&self, asked: &Asked) -> Vec<SocketAddr> {
        let all: Vec<_> =
            self.known().iter().map(ManagerEntry::sockets).filter(|one| !one.is_empty()).collect();
        let at = all.iter().position(|one| *one == asked.now).map_or(0, |at| at + 1);
        let turned = (0..all.len()).map(|n| &all[(at + n) % all.len()]);
        let left = |one: &Vec<SocketAddr>| {
            asked.left.as_ref().is_some_and(|(left, since)| left == one && since.elapsed() < LEFT_FOR)
        };
        let found = turned.clone().find(|one| !left(one)).or_else(|| turned.clone().next());
        found.cloned().unwrap_or_else(|| asked.now.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(n: u8) -> ManagerEntry {
        ManagerEntry { name: format!("m{n}"), addrs: vec![format!("127.0.0.{n}:7450")] }
    }

    fn not_active(active: Option<u8>) -> MgrError {
        MgrError::NotActive { active: active.map(entry) }
    }

    #[test]
    fn the_one_that_is_named_is_asked_but_for_one_that_was_just_left() {
        let managers = Managers::new(vec![entry(1), entry(2), entry(3)]);
        let at = |n| entry(n).sockets();
        managers.turn(&at(1), &not_active(Some(3)));
        assert_eq!(managers.asked(), at(3));
        managers.turn(&at(1), &not_active(Some(2)));
        assert_eq!(managers.asked(), at(3), "what was found meanwhile counts");
        assert!(managers.leave(&at(3)));
        assert_eq!(managers.asked(), at(1));
        managers.turn(&at(1), &not_active(Some(3)));
        assert_eq!(managers.asked(), at(2), "the third did not answer just now");
        managers.turn(&at(2), &not_active(None));
        assert_eq!(managers.asked(), at(1));
        managers.turn(&at(1), &not_active(Some(9)));
        assert_eq!(managers.asked(), at(9), "one that it did not know");
        managers.turn(&at(9), &not_active(None));
        assert_eq!(managers.asked(), at(1));
        assert!(!Managers::at(&at(1)).leave(&at(1)));
        // Who knows one only, and was sent to another that is dead, comes back.
        let one = Managers::new(vec![entry(1)]);
        assert_eq!(one.others(), 0);
        one.turn(&at(1), &not_active(Some(2)));
        assert_eq!((one.asked(), one.others()), (at(2), 1));
        assert!(one.leave(&at(2)));
        assert_eq!(one.asked(), at(1));
    }

    #[test]
    fn a_map_names_those_that_there_are() {
        let managers = Managers::at(&entry(1).sockets());
        let map = |epoch, n: &[u8]| ClusterMap {
            epoch: Epoch(epoch),
            managers: n.iter().map(|n| entry(*n)).collect(),
            ..ClusterMap::default()
        };
        managers.learn(&map(3, &[]));
        assert_eq!(managers.known().len(), 1);
        managers.learn(&map(5, &[1, 2]));
        managers.learn(&map(4, &[1, 2, 3]));
        assert_eq!(managers.known(), [entry(1), entry(2)]);
    }
}
