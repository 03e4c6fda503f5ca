//! Several managers, their clients and etcd in one thread, from a seed: answers come late, twice or never, requests are done
//! long after they were sent, leases run out, managers die and come back, etcd comes back as an older copy.
//!
//! Told at once: what was acknowledged is not in the journal, stands there twice, or is not what the one that acknowledged it
//! has in its table. With any one rule taken out such a loss must be found.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    super::Changes,
    holder::{Ask, Entry, Heard, Holder, Next, Origin, Revision, Rule, Start, Stop, Waits},
    part::{self, Assembly, PART_BYTES},
};

const JOURNAL: u64 = 77;
const MANAGERS: usize = 3;
const STEPS: usize = 700;
/// Seeds tried for a loss.
const SEEDS: u64 = 5000;
/// Records that stay behind what the leader's table has.
const KEPT: u64 = 6;
/// What a manager says first of all: the claim.
const CLAIM: u64 = 0;

/// What is taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// Of a put: that the leader's key is its sender's.
    LeaderGuard,
    /// Of a put: that nothing is there.
    NumberGuard,
    /// Both.
    BothGuards,
    /// Of a put: that the record before is the one known.
    BeforeGuard,
    /// Of an end: that the leader's key is its sender's, and the last record the one known.
    EndGuards,
    /// The first record of who leads.
    Claim,
    /// What a table already has is not done again.
    StoredReplies,
    Holder(Rule),
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) ^ (self.0 >> 12)) % n
    }
    fn percent(&mut self, n: u64) -> bool {
        self.below(100) < n
    }
}

#[derive(Clone)]
struct Fake {
    without: Without,
    revision: Revision,
    leader: Option<(Revision, u64, u64)>,
    start: Option<Start>,
    records: BTreeMap<u64, (Revision, Vec<u8>)>,
    /// The same, never trimmed.
    ever: BTreeMap<u64, Vec<u8>>,
}

impl Fake {
    fn is_without(&self, guard: Without) -> bool {
        self.without == guard || self.without == Without::BothGuards
    }

    fn leads(&self, revision: Revision) -> bool {
        self.leader.is_some_and(|(created, ..)| created == revision)
    }

    fn done(&mut self, (member, life): (u64, u64), ask: &Ask) -> Heard {
        let leader = self.leader.map(|(created, ..)| created);
        match ask {
            Ask::Win => {
                if self.leader.is_none() {
                    self.revision += 1;
                    self.leader = Some((self.revision, member, life));
                }
                let (created, member, life) = self.leader.unwrap();
                Heard::Leader { created, member, life, who: String::new() }
            }
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
                    leader,
                    start: self.start,
                    first: self.records.keys().next().copied(),
                    records: all.map(entry).collect(),
                    more: self.records.range(from..).count() > 3,
                }
            }
            Ask::Append { leader: of, last, first, before, bytes } => {
                let known = match first {
                    true => self.start.map(|start| start.created),
                    false => self.records.get(last).map(|(created, _)| *created),
                };
                let there = self.records.get(&(last + 1));
                if (self.leads(*of) || self.is_without(Without::LeaderGuard))
                    && (there.is_none() || self.is_without(Without::NumberGuard))
                    && (known == Some(*before) || self.without == Without::BeforeGuard)
                {
                    self.revision += 1;
                    self.records.insert(last + 1, (self.revision, bytes.to_vec()));
                    self.ever.insert(last + 1, bytes.to_vec());
                    return Heard::Appended(self.revision);
                }
                let there = there.map(|(created, bytes)| Entry {
                    number: last + 1,
                    created: *created,
                    bytes: bytes.clone(),
                });
                Heard::Refused { leader, there }
            }
        }
    }

    /// The operations in the journal, in order.
    fn ops(&self) -> Result<Vec<u64>, String> {
        let (mut ops, mut assembly, mut expected) = (Vec::new(), Assembly::default(), 1);
        for (&number, bytes) in &self.ever {
            if number != expected {
                return Err(format!("record {expected} is missing"));
            }
            expected += 1;
            ops.extend(assembly.push(JOURNAL, number, bytes).map_err(|e| e.to_string())?.map(op_of));
        }
        Ok(ops)
    }
}

fn op_of(changes: Changes) -> u64 {
    let (key, _) = changes.first_key_value().unwrap();
    u64::from_be_bytes(key[..8].try_into().unwrap())
}

/// The changes of an operation; each third takes two parts.
fn changes_of(op: u64) -> Changes {
    let value = vec![op as u8; if op % 3 == 1 { PART_BYTES } else { 9 }];
    [(op.to_be_bytes().to_vec(), Some(value))].into()
}

/// What a manager has of the journal.
#[derive(Clone, Default)]
struct Table {
    applied: u64,
    crc: Option<u32>,
    ops: Vec<u64>,
}

struct Manager {
    holder: Holder,
    life: u64,
    assembly: Assembly,
    now: Table,
    asks: Option<Ask>,
    /// Parts to be put, and the operation they are of.
    parts: Vec<Vec<u8>>,
    /// The CRC in the last of them.
    crc: Option<u32>,
    op: Option<u64>,
    opened: bool,
    serves: bool,
    ends: bool,
}

impl Manager {
    fn idle(&self) -> bool {
        self.asks.is_none() && self.op.is_none()
    }

    /// Begins to commit.
    fn commit(&mut self, op: u64) {
        self.parts = part::split(JOURNAL, self.life, self.holder.last() + 1, &changes_of(op)).unwrap();
        self.crc = self.parts.last().map(|part| part::stored_crc(part));
        self.op = Some(op);
        let first = self.parts.remove(0);
        self.asks = Some(self.holder.append(first));
    }
}

#[derive(Default, Debug)]
struct Seen {
    acked: u64,
    takeovers: u64,
    regained: u64,
    stops: u64,
    ghosts: u64,
    trimmed: u64,
    ended: u64,
}

struct World {
    random: Random,
    without: Without,
    etcd: Fake,
    older: Option<Fake>,
    rolls_back: bool,
    rolled_back: bool,
    ghosts: Vec<((u64, u64), Ask)>,
    managers: [Option<Manager>; MANAGERS],
    durable: [Table; MANAGERS],
    lives: u64,
    /// Which life began to serve last.
    served: u64,
    /// The operation that the client wants done.
    op: u64,
    acked: BTreeSet<u64>,
    seen: Seen,
}

impl World {
    fn new(seed: u64, without: Without, rolls_back: bool) -> World {
        // Who reads before it leads begins none.
        let begun = without == Without::Holder(Rule::ReadBehindTheFence);
        let etcd = Fake {
            without,
            revision: 1,
            leader: None,
            start: begun.then_some(Start { journal: JOURNAL, base: 0, ended: None, created: 1 }),
            records: BTreeMap::new(),
            ever: BTreeMap::new(),
        };
        World {
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            without,
            etcd,
            older: None,
            rolls_back,
            rolled_back: false,
            ghosts: Vec::new(),
            managers: [const { None }; MANAGERS],
            durable: [const { Table { applied: 0, crc: None, ops: Vec::new() } }; MANAGERS],
            lives: 0,
            served: 0,
            op: 1,
            acked: BTreeSet::new(),
            seen: Seen::default(),
        }
    }

    /// The managers' journal was begun by somebody.
    fn start(&mut self, at: usize) {
        self.lives += 1;
        let now = self.durable[at].clone();
        let origin = Origin {
            journal: JOURNAL,
            applied: now.applied,
            crc: now.crc,
            acked: now.applied,
            new: now.applied == 0,
        };
        let rule = match self.without {
            Without::Holder(rule) => Some(rule),
            _ => None,
        };
        let mut holder = Holder::new(origin, at as u64, self.lives).without(rule);
        let asks = Some(holder.open());
        let (life, assembly) = (self.lives, Assembly::default());
        self.managers[at] = Some(Manager {
            holder,
            life,
            assembly,
            now,
            asks,
            parts: Vec::new(),
            crc: None,
            op: None,
            opened: false,
            serves: false,
            ends: false,
        });
    }

    /// Sends what a manager asks, with luck.
    fn exchange(&mut self, who: (u64, u64), ask: &Ask) -> Heard {
        match self.random.below(100) {
            0..70 => self.etcd.done(who, ask),
            70..80 => {
                self.etcd.done(who, ask);
                Heard::Unknown
            }
            80..88 => Heard::Unknown,
            88..95 => {
                self.ghosts.push((who, ask.clone()));
                Heard::Unknown
            }
            _ => {
                self.ghosts.push((who, ask.clone()));
                self.etcd.done(who, ask)
            }
        }
    }

    fn step(&mut self, at: usize) -> Result<(), String> {
        let Some(manager) = &mut self.managers[at] else { return Ok(()) };
        let Some(ask) = manager.asks.take() else { return Ok(()) };
        let who = (at as u64, manager.life);
        let again = manager.opened && ask == Ask::Win;
        let heard = self.exchange(who, &ask);
        if let (true, Heard::Leader { member, life, .. }) = (again, &heard) {
            self.seen.regained += u64::from((*member, *life) == who);
        }
        let manager = self.managers[at].as_mut().unwrap();
        let next = manager.holder.heard(ask, heard);
        for entry in manager.holder.take_found() {
            let whole = manager.assembly.push(JOURNAL, entry.number, &entry.bytes);
            if let Some(changes) = whole.map_err(|error| error.to_string())? {
                manager.now.ops.push(op_of(changes));
                manager.now.applied = entry.number;
                manager.now.crc = Some(part::stored_crc(&entry.bytes));
            }
        }
        match next {
            Next::Ask(ask) | Next::Again(ask, Waits::Silent | Waits::Led(_)) => manager.asks = Some(ask),
            Next::Stop(why) => {
                self.seen.stops += 1;
                self.managers[at] = None;
                let later = |last: u64| self.etcd.ever.range(last + 1..).next().is_some();
                if matches!(why, Stop::Ended(last) if later(last) && !self.rolled_back) {
                    return Err(format!("ended too early: {why}"));
                }
                if matches!(why, Stop::Behind { .. }) {
                    // A newer copy of the table is brought.
                    let newest = self.durable.iter().max_by_key(|table| table.applied).cloned();
                    self.durable[at] = newest.unwrap_or_default();
                }
            }
            Next::Done if !manager.opened => {
                manager.opened = true;
                match self.without == Without::Claim {
                    true => self.begin_to_serve(at)?,
                    false => manager.commit(CLAIM),
                }
            }
            Next::Done => self.committed(at)?,
        }
        Ok(())
    }

    fn begin_to_serve(&mut self, at: usize) -> Result<(), String> {
        let manager = self.managers[at].as_mut().unwrap();
        manager.serves = true;
        self.served = manager.life;
        self.seen.takeovers += 1;
        let ops = manager.now.ops.clone();
        self.compare(&ops)
    }

    /// A part was put, or a look ended.
    fn committed(&mut self, at: usize) -> Result<(), String> {
        let manager = self.managers[at].as_mut().unwrap();
        if manager.ends {
            let ops = manager.now.ops.clone();
            self.managers[at] = None;
            self.compare(&ops)?;
            self.seen.ended += 1;
        }
        let Some(manager) = self.managers[at].as_mut() else { return Ok(()) };
        let Some(op) = manager.op else { return Ok(()) };
        if !manager.parts.is_empty() {
            let part = manager.parts.remove(0);
            manager.asks = Some(manager.holder.append(part));
            return Ok(());
        }
        manager.op = None;
        manager.now.ops.push(op);
        manager.now.applied = manager.holder.last();
        manager.now.crc = manager.crc;
        let (life, ops) = (manager.life, manager.now.ops.clone());
        if op == CLAIM {
            return self.begin_to_serve(at);
        }
        if self.served != life && !self.rolled_back {
            return Err(format!("life {life} goes on, and {} has served since", self.served));
        }
        self.compare(&ops)?;
        self.acknowledge(op);
        Ok(())
    }

    fn compare(&self, table: &[u64]) -> Result<(), String> {
        let journal = self.etcd.ops()?;
        if self.seen.ended > 0 && !self.rolled_back {
            return Err("a manager goes on after the journal has ended".into());
        }
        if journal != table {
            return Err(format!("acknowledged from a table that is not the journal: {table:?}, {journal:?}"));
        }
        let ops: Vec<u64> = journal.iter().copied().filter(|op| *op != CLAIM).collect();
        match ops.len() == ops.iter().collect::<BTreeSet<_>>().len() {
            true => Ok(()),
            false => Err(format!("done twice: {ops:?}")),
        }
    }

    fn acknowledge(&mut self, op: u64) {
        self.acked.insert(op);
        self.seen.acked += 1;
        if op == self.op {
            self.op += 1;
        }
    }

    /// The client asks a manager.
    fn ask(&mut self, at: usize) {
        let (op, repeats) = (self.op, self.without == Without::StoredReplies);
        let Some(manager) = self.managers[at].as_mut().filter(|m| m.serves && m.idle()) else { return };
        if manager.now.ops.contains(&op) && !repeats {
            self.acknowledge(op);
        } else {
            manager.commit(op);
        }
    }

    /// The table becomes durable; the leader trims.
    fn settle(&mut self, at: usize) {
        let Some(manager) = self.managers[at].as_ref().filter(|m| m.idle()) else { return };
        self.durable[at] = manager.now.clone();
        let below = manager.now.applied.saturating_sub(KEPT);
        let there = self.etcd.records.contains_key(&below);
        if manager.serves && there && self.etcd.leads(manager.holder.leader()) {
            let before = self.etcd.records.len();
            self.etcd.records.retain(|number, _| *number >= below);
            self.seen.trimmed += (before - self.etcd.records.len()) as u64;
        }
    }

    fn run(mut self) -> Result<Seen, String> {
        for _ in 0..STEPS {
            let at = self.random.below(MANAGERS as u64) as usize;
            match self.random.below(100) {
                0..60 => self.step(at)?,
                60..76 => self.ask(at),
                76..80 => {
                    if let Some(manager) = self.managers[at].as_mut().filter(|m| m.opened && m.idle()) {
                        manager.ends = manager.serves && self.random.percent(4);
                        let holder = &mut manager.holder;
                        manager.asks = Some(if manager.ends { holder.end() } else { holder.look() });
                    }
                }
                80..84 => self.settle(at),
                84..88 if self.random.percent(40) => self.etcd.leader = None,
                88..94 if !self.ghosts.is_empty() => {
                    let (who, ask) =
                        self.ghosts.swap_remove(self.random.below(self.ghosts.len() as u64) as usize);
                    self.etcd.done(who, &ask);
                    self.seen.ghosts += 1;
                }
                94..97 if self.managers[at].is_none() => self.start(at),
                97 if self.random.percent(40) => self.managers[at] = None,
                98 if self.rolls_back => self.older = Some(self.etcd.clone()),
                99 if self.random.percent(20) => {
                    if let Some(older) = self.older.take() {
                        // Revisions go on, as they should after a restore.
                        self.etcd = Fake { revision: self.etcd.revision, ..older };
                        self.rolled_back = true;
                    }
                }
                _ => {}
            }
        }
        let journal = self.etcd.ops()?;
        match self.acked.iter().find(|op| !self.rolled_back && !journal.contains(op)) {
            Some(op) => Err(format!("operation {op} was acknowledged, and is lost: {journal:?}")),
            None => Ok(self.seen),
        }
    }
}

/// Of so many seeds the first that finds a loss.
fn loss(without: Without, seeds: u64) -> Option<(u64, String)> {
    (0..seeds).find_map(|seed| {
        let rolls_back =
            matches!(without, Without::BeforeGuard | Without::Holder(Rule::SameRecordAsTheTables));
        World::new(seed, without, rolls_back).run().err().map(|why| (seed, why))
    })
}

#[test]
fn nothing_acknowledged_is_lost_or_done_twice() {
    let mut all = Seen::default();
    for seed in 0..3000 {
        let seen = World::new(seed, Without::Nothing, seed % 4 == 0).run();
        let seen = seen.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        all.acked += seen.acked;
        all.takeovers += seen.takeovers;
        all.regained += seen.regained;
        all.stops += seen.stops;
        all.ghosts += seen.ghosts;
        all.trimmed += seen.trimmed;
        all.ended += seen.ended;
    }
    assert!(all.ended > 100, "{all:?}");
    let enough = [all.acked, all.takeovers, all.regained, all.stops, all.ghosts, all.trimmed];
    assert!(enough.iter().all(|count| *count > 1000), "{all:?}");
}

/// Who leads claims the number that a deposed one would use next: so each of the two guards catches it alone.
#[test]
fn of_the_leaders_guard_and_the_numbers_one_suffices_and_without_both_a_loss_is_found() {
    for without in [Without::LeaderGuard, Without::NumberGuard] {
        assert_eq!(loss(without, 1000), None, "{without:?}");
    }
    assert!(loss(Without::BothGuards, SEEDS).is_some());
}

#[test]
fn with_a_rule_taken_out_a_loss_is_found() {
    for without in [
        Without::BeforeGuard,
        Without::EndGuards,
        Without::Claim,
        Without::StoredReplies,
        Without::Holder(Rule::SilenceIsNoSuccess),
        Without::Holder(Rule::OnlyTheOwnRecord),
        Without::Holder(Rule::ReadBehindTheFence),
        Without::Holder(Rule::NobodyWroteMeanwhile),
        Without::Holder(Rule::SameRecordAsTheTables),
    ] {
        let found = loss(without, SEEDS);
        assert!(found.is_some(), "{without:?} is not missed");
    }
}
