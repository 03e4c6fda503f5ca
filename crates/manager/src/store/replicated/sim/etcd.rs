//! etcd as the simulation has it: it does each request at one moment, or never, or later; keys under a lease go some time after that.

use std::collections::BTreeMap;

use super::{
    super::{
        holder::{Ask, Entry, Heard, Revision, Start},
        part::Assembly,
    },
    HEIR_TIME, JOURNAL, LEADER_LEASE, Time, Without,
    table::{Rows, op_of},
};
use crate::store::memory;

/// What a manager asks of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// What its holder asks.
    Hold(Ask),
    /// The lease of the leader's key is to last anew; when that was asked for.
    Renew { leader: Revision, asked: Time },
    /// The leader's key goes, and only that member may make it for a while.
    Leave { leader: Revision, heir: u64 },
}

/// And what it answers.
pub enum Answer {
    Held(Heard),
    /// Whether the key stood there, and when it was asked for.
    Renewed(bool, Time),
}

#[derive(Clone, Copy)]
struct Leader {
    created: Revision,
    member: u64,
    life: u64,
    until: Time,
}

/// What the journal says, as it was put.
#[derive(Clone, Default)]
pub struct Journal {
    count: u64,
    assembly: Assembly,
    /// The table of who has applied it all.
    pub rows: Rows,
    /// The clients' operations, in order.
    pub ops: Vec<u64>,
    pub broken: Option<String>,
}

impl Journal {
    fn push(&mut self, number: u64, bytes: &[u8]) {
        if number != self.count + 1 {
            self.broken = Some(format!("record {} is missing", self.count + 1));
        }
        self.count = number;
        match self.assembly.push(JOURNAL, number, bytes) {
            Ok(None) => {}
            Ok(Some(changes)) => {
                self.ops.extend(op_of(&changes));
                memory::apply(&mut self.rows, changes);
            }
            Err(error) => self.broken = Some(error.to_string()),
        }
    }
}

/// See the module.
#[derive(Clone)]
pub struct Fake {
    without: Without,
    revision: Revision,
    leader: Option<Leader>,
    heir: Option<(u64, Time)>,
    start: Option<Start>,
    pub records: BTreeMap<u64, (Revision, Vec<u8>)>,
    /// The same, never trimmed.
    pub ever: BTreeMap<u64, Vec<u8>>,
    first: Rows,
    pub journal: Journal,
}

impl Fake {
    /// With a journal that was begun, or without.
    pub fn new(without: Without, first: &Rows, begun: bool) -> Fake {
        Fake {
            without,
            revision: 1,
            leader: None,
            heir: None,
            start: begun.then_some(Start { journal: JOURNAL, base: 0, ended: None, created: 1 }),
            records: BTreeMap::new(),
            ever: BTreeMap::new(),
            first: first.clone(),
            journal: Journal { rows: first.clone(), ..Journal::default() },
        }
    }

    /// An older copy takes its place. Revisions go on, as they should after a restore.
    pub fn become_older(&mut self, older: Fake) {
        *self = Fake { revision: self.revision, ..older };
    }

    fn is_without(&self, guard: Without) -> bool {
        self.without == guard || self.without == Without::BothGuards
    }

    pub fn leads(&self, revision: Revision) -> bool {
        self.leader.is_some_and(|leader| leader.created == revision)
    }

    /// Whether the leader's key is gone now, where its lease is over.
    pub fn lapse(&mut self, now: Time) -> bool {
        self.leader.take_if(|leader| leader.until < now).is_some()
    }

    /// The leader removes records.
    pub fn trim(&mut self, leader: Revision, below: u64) -> u64 {
        let before = self.records.len();
        if self.leads(leader) && self.records.contains_key(&below) {
            self.records.retain(|number, _| *number >= below);
        }
        (before - self.records.len()) as u64
    }

    /// Does what a manager in one of its lives asks.
    pub fn done(&mut self, who: (u64, u64), request: &Request, now: Time) -> Answer {
        match request {
            Request::Hold(ask) => Answer::Held(self.hold(who, ask, now)),
            Request::Renew { leader, asked } => {
                let led = self.leads(*leader);
                if let Some(leader) = self.leader.as_mut().filter(|_| led) {
                    leader.until = now + LEADER_LEASE;
                }
                Answer::Renewed(led, *asked)
            }
            Request::Leave { leader, heir } => {
                if self.leads(*leader) {
                    (self.leader, self.heir) = (None, Some((*heir, now + HEIR_TIME)));
                }
                Answer::Held(Heard::Done)
            }
        }
    }

    fn win(&mut self, (member, life): (u64, u64), now: Time) -> Heard {
        self.heir.take_if(|(_, until)| *until < now);
        if self.leader.is_none() {
            if self.heir.is_some_and(|(heir, _)| heir != member) {
                return Heard::Unknown; // it is another one's turn
            }
            self.heir = None;
            self.revision += 1;
            self.leader = Some(Leader { created: self.revision, member, life, until: now + LEADER_LEASE });
        }
        let Some(Leader { created, member, life, .. }) = self.leader else { return Heard::Unknown };
        Heard::Leader { created, member, life, who: String::new() }
    }

    fn hold(&mut self, who: (u64, u64), ask: &Ask, now: Time) -> Heard {
        match ask {
            Ask::Win => self.win(who, now),
            Ask::Depose { leader } => {
                if self.leads(*leader) {
                    self.leader = None;
                }
                Heard::Done
            }
            Ask::Begin { leader, journal, base } => {
                if self.leads(*leader) && self.start.is_none() {
                    self.revision += 1;
                    self.start =
                        Some(Start { journal: *journal, base: *base, ended: None, created: self.revision });
                }
                Heard::Done
            }
            Ask::End { leader, last, before, .. } => {
                let known = match self.start {
                    Some(start) if start.base == *last => Some(start.created),
                    _ => self.records.get(last).map(|(created, _)| *created),
                };
                let holds =
                    self.leads(*leader) && known == Some(*before) && !self.records.contains_key(&(last + 1));
                if let Some(start) = &mut self.start
                    && (holds || self.without == Without::EndGuards)
                {
                    start.ended = Some(*last);
                }
                Heard::Done
            }
            Ask::Read { from } => {
                let all = self.records.range(from..).take(3);
                let entry = |(&number, (created, bytes)): (&u64, &(Revision, Vec<u8>))| Entry {
                    number,
                    created: *created,
                    bytes: bytes.clone(),
                };
                Heard::Records {
                    leader: self.leader.map(|leader| leader.created),
                    start: self.start,
                    first: self.records.keys().next().copied(),
                    records: all.map(entry).collect(),
                    more: self.records.range(from..).count() > 3,
                }
            }
            Ask::Append { leader, last, first, before, bytes } => {
                self.append(*leader, *last, (*first, *before), bytes)
            }
        }
    }

    fn append(&mut self, of: Revision, last: u64, (first, before): (bool, Revision), bytes: &[u8]) -> Heard {
        let known = match first {
            true => self.start.map(|start| start.created),
            false => self.records.get(&last).map(|(created, _)| *created),
        };
        let there = self.records.get(&(last + 1));
        if (self.leads(of) || self.is_without(Without::LeaderGuard))
            && (there.is_none() || self.is_without(Without::NumberGuard))
            && (known == Some(before) || self.without == Without::BeforeGuard)
        {
            self.revision += 1;
            self.records.insert(last + 1, (self.revision, bytes.to_vec()));
            let replaced = self.ever.insert(last + 1, bytes.to_vec()).is_some();
            if replaced {
                self.journal = Journal { rows: self.first.clone(), ..Journal::default() };
                self.ever.iter().for_each(|(number, bytes)| self.journal.push(*number, bytes));
            } else {
                self.journal.push(last + 1, bytes);
            }
            return Heard::Appended(self.revision);
        }
        let there =
            there.map(|(created, bytes)| Entry { number: last + 1, created: *created, bytes: bytes.clone() });
        Heard::Refused { leader: self.leader.map(|leader| leader.created), there }
    }
}
