//! All of it in one thread: who is asked next, what comes late, twice or never, who dies, is all drawn from the seed.

use std::{collections::BTreeSet, sync::Arc};

use wire::map::ClusterMap;

use super::{
    super::{
        holder::{Ask, Heard, Next, Rule, Stop, Waits},
        part,
    },
    CONFIRMED, JOURNAL, KEPT, MANAGERS, Random, SERVER_LEASE, SERVERS, STEPS, Seen, Time, Without,
    etcd::{Answer, Fake, Request},
    manager::{Answers, Manager, Of},
    servers::{Server, write},
    table::{Copying, Rows, Table, op_of},
};

/// See the module.
pub struct World {
    random: Random,
    without: Without,
    now: Time,
    etcd: Fake,
    older: Option<Fake>,
    rolls_back: bool,
    rolled_back: bool,
    /// Leases run out before their time: no commit hangs on that. Answers do, so here managers know by themselves who leads.
    hasty: bool,
    ghosts: Vec<((u64, u64), Request)>,
    managers: [Option<Manager>; MANAGERS],
    /// What is durable of their tables; none: it is to be copied.
    tables: [Option<Table>; MANAGERS],
    copies: [Copying; MANAGERS],
    lives: u64,
    /// Which life began to serve last.
    served: u64,
    /// The operation that the client wants done.
    op: u64,
    acked: BTreeSet<u64>,
    servers: [Server; SERVERS],
    /// The newest map that was published.
    map: Option<Arc<ClusterMap>>,
    /// The last write that was whole.
    written: u64,
    seen: Seen,
}

impl World {
    pub fn new(seed: u64, without: Without, (rolls_back, hasty): (bool, bool), first: &Rows) -> World {
        // Who reads before it leads begins none.
        let begun = without == Without::Holder(Rule::ReadBehindTheFence);
        let table = Table { rows: first.clone(), ..Table::default() };
        World {
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            without,
            now: 1_000_000,
            etcd: Fake::new(without, first, begun),
            older: None,
            rolls_back,
            rolled_back: false,
            hasty,
            ghosts: Vec::new(),
            managers: [const { None }; MANAGERS],
            tables: std::array::from_fn(|_| Some(table.clone())),
            copies: Default::default(),
            lives: 0,
            served: 0,
            op: 1,
            acked: BTreeSet::new(),
            servers: std::array::from_fn(|at| Server::new(at as u32 + 1)),
            map: None,
            written: 0,
            seen: Seen::default(),
        }
    }

    fn start(&mut self, at: usize) {
        if let (None, Some(table)) = (&self.managers[at], &self.tables[at]) {
            self.lives += 1;
            self.managers[at] = Some(Manager::open(at as u64, self.lives, table.clone(), self.without));
        }
    }

    /// Sends what a manager asks, with luck; none: no answer.
    fn exchange(&mut self, who: (u64, u64), request: Request) -> Option<Answer> {
        match self.random.below(100) {
            0..70 => Some(self.etcd.done(who, &request, self.now)),
            70..80 => {
                self.etcd.done(who, &request, self.now);
                None
            }
            80..88 => None,
            88..95 => {
                self.ghosts.push((who, request));
                None
            }
            _ => {
                self.ghosts.push((who, request.clone()));
                Some(self.etcd.done(who, &request, self.now))
            }
        }
    }

    /// The next request of a manager's holder, and what follows.
    fn step(&mut self, at: usize) -> Result<(), String> {
        let Some(manager) = &mut self.managers[at] else { return Ok(()) };
        let Some(ask) = manager.asks.take() else { return Ok(()) };
        let who = (at as u64, manager.life);
        let again = manager.opened && ask == Ask::Win;
        let heard = match self.exchange(who, Request::Hold(ask.clone())) {
            Some(Answer::Held(heard)) => heard,
            _ => Heard::Unknown,
        };
        let manager = self.managers[at].as_mut().unwrap();
        if let Heard::Leader { created, member, life, .. } = &heard
            && (*member, *life) == who
        {
            manager.leader = Some(*created);
            self.seen.regained += u64::from(again);
        }
        let next = manager.holder.heard(ask, heard);
        for entry in manager.holder.take_found() {
            let whole = manager.assembly.push(JOURNAL, entry.number, &entry.bytes);
            if let Some(changes) = whole.map_err(|error| error.to_string())? {
                manager.now.apply(entry.number, Some(part::stored_crc(&entry.bytes)), changes);
            }
        }
        match next {
            Next::Ask(ask) | Next::Again(ask, Waits::Silent | Waits::Led(_)) => manager.asks = Some(ask),
            Next::Stop(why) => return self.stop(at, &why),
            Next::Done if !manager.opened => {
                manager.opened = true;
                match self.without == Without::Claim {
                    true => self.begin_to_serve(at)?,
                    false => manager.claim(),
                }
            }
            Next::Done => self.committed(at)?,
        }
        Ok(())
    }

    fn stop(&mut self, at: usize, why: &Stop) -> Result<(), String> {
        self.seen.stops += 1;
        self.managers[at] = None;
        let later = |last: u64| self.etcd.ever.range(last + 1..).next().is_some();
        if matches!(why, Stop::Ended(last) if later(*last) && !self.rolled_back) {
            return Err(format!("ended too early: {why}"));
        }
        if matches!(why, Stop::Behind { .. }) {
            self.tables[at] = None;
        }
        Ok(())
    }

    fn begin_to_serve(&mut self, at: usize) -> Result<(), String> {
        let manager = self.managers[at].as_mut().unwrap();
        manager.serves = true;
        self.served = manager.life;
        self.seen.takeovers += 1;
        self.compare(at)
    }

    /// A record was put, or a look ended.
    fn committed(&mut self, at: usize) -> Result<(), String> {
        let manager = self.managers[at].as_mut().unwrap();
        if manager.ends {
            self.compare(at)?;
            self.managers[at] = None;
            self.seen.ended += 1;
            return Ok(());
        }
        let Some(of) = manager.committed() else { return Ok(()) };
        let life = manager.life;
        if matches!(of, Of::Claim) {
            return self.begin_to_serve(at);
        }
        if self.served != life && !self.rolled_back {
            return Err(format!("life {life} goes on, and {} has served since", self.served));
        }
        self.compare(at)?;
        match of {
            Of::Claim => {}
            Of::Op(op) => self.acknowledge(op),
            Of::Cluster(answers) => self.answer(at, answers),
        }
        Ok(())
    }

    /// A manager says what it has is so: its table is what the journal makes.
    fn compare(&self, at: usize) -> Result<(), String> {
        let Some(manager) = &self.managers[at] else { return Ok(()) };
        let journal = &self.etcd.journal;
        if let Some(broken) = &journal.broken {
            return Err(broken.clone());
        }
        if self.seen.ended > 0 && !self.rolled_back {
            return Err("a manager goes on after the journal has ended".into());
        }
        if journal.rows != manager.now.rows {
            return Err(format!("life {} acknowledges from a table that is not the journal's", manager.life));
        }
        match journal.ops.len() == journal.ops.iter().collect::<BTreeSet<_>>().len() {
            true => Ok(()),
            false => Err(format!("done twice: {:?}", journal.ops)),
        }
    }

    fn acknowledge(&mut self, op: u64) {
        self.acked.insert(op);
        self.seen.acked += 1;
        self.op += u64::from(op == self.op);
    }

    /// The client asks a manager.
    fn ask(&mut self, at: usize) {
        let (op, repeats) = (self.op, self.without == Without::StoredReplies);
        let Some(manager) = self.managers[at].as_mut().filter(|m| m.serves && m.idle()) else { return };
        if manager.now.has(op) && !repeats {
            self.acknowledge(op);
        } else {
            let changes = manager.now.changes_of(op);
            assert_eq!(op_of(&changes), Some(op));
            manager.commit(Of::Op(op), changes);
        }
    }

    /// Whether what a manager says now may leave it.
    fn may_answer(&self, manager: &Manager) -> bool {
        let confirmed = match self.hasty {
            true => manager.leader.is_some_and(|leader| self.etcd.leads(leader)),
            false => self.now <= manager.confirmed,
        };
        confirmed || self.without == Without::Confirmed
    }

    /// The client reads, from whoever answers.
    fn read(&mut self, at: usize) -> Result<(), String> {
        let Some(manager) = &self.managers[at] else { return Ok(()) };
        let serves = manager.serves || self.without == Without::Whole && manager.leader.is_some();
        if !serves || !self.may_answer(manager) || self.rolled_back {
            return Ok(());
        }
        self.seen.reads += 1;
        match self.acked.iter().find(|op| !manager.now.has(**op)) {
            Some(op) => Err(format!("life {} does not know of operation {op}", manager.life)),
            None => Ok(()),
        }
    }

    /// A manager's lease is renewed.
    fn renew(&mut self, at: usize) {
        let Some((life, leader)) = self.managers[at].as_ref().and_then(|m| Some((m.life, m.leader?))) else {
            return;
        };
        let answer = self.exchange((at as u64, life), Request::Renew { leader, asked: self.now });
        if let (Some(Answer::Renewed(true, asked)), Some(manager)) = (answer, &mut self.managers[at]) {
            manager.confirmed = asked + CONFIRMED;
        }
    }

    /// A manager makes way for another one.
    fn promote(&mut self, at: usize) {
        let heir = self.random.below(MANAGERS as u64);
        let Some(manager) = self.managers[at].as_ref().filter(|m| m.serves && m.idle()) else { return };
        let (life, Some(leader)) = (manager.life, manager.leader) else { return };
        self.tables[at] = Some(manager.now.clone());
        self.exchange((at as u64, life), Request::Leave { leader, heir });
        self.managers[at] = None;
        self.seen.promoted += 1;
    }

    /// One whose table is lost, or too far behind, asks who leads for the next part of its.
    fn copy(&mut self, from: usize) {
        let lacks = |at: &usize| self.tables[*at].is_none() && self.managers[*at].is_none();
        let Some(at) = (0..MANAGERS).find(lacks) else { return };
        let from =
            if self.managers[from].as_ref().is_some_and(|m| m.serves) { from } else { (from + 1) % MANAGERS };
        let Some(manager) = self.managers[from].as_ref().filter(|m| m.serves && self.may_answer(m)) else {
            return;
        };
        let held = manager.held.unwrap_or(manager.now.applied);
        let begins = self.copies[at].begins(manager.life);
        let whole = self.copies[at].take(&manager.now, manager.life, self.without);
        if let Some(manager) = self.managers[from].as_mut().filter(|_| begins) {
            manager.held = Some(held);
        }
        if let Some(table) = whole {
            self.tables[at] = Some(table);
            self.seen.copied += 1;
        }
    }

    /// The table becomes durable; the leader trims.
    fn settle(&mut self, at: usize) {
        let Some(manager) = self.managers[at].as_mut().filter(|m| m.idle()) else { return };
        self.tables[at] = Some(manager.now.clone());
        if let (true, Some(leader)) = (manager.serves, manager.leader) {
            manager.held.take_if(|_| self.random.percent(10));
            let below = manager.now.applied.saturating_sub(KEPT);
            self.seen.trimmed += self.etcd.trim(leader, manager.held.map_or(below, |held| held.min(below)));
        }
    }

    /// A manager's disk is lost. Not the last two.
    fn lose(&mut self, at: usize) {
        if self.tables.iter().flatten().count() == MANAGERS {
            (self.managers[at], self.tables[at]) = (None, None);
            self.copies[at] = Copying::default();
        }
    }

    /// A server asks a manager for its lease, or to be registered; none: the manager looks who is late.
    fn tell(&mut self, server: Option<usize>) {
        let at = (0..MANAGERS).find(|at| self.managers[*at].as_ref().is_some_and(|m| m.serves && m.idle()));
        let Some(at) = at else { return };
        let may_answer = self.managers[at].as_ref().is_some_and(|m| self.may_answer(m));
        let Some(manager) = self.managers[at].as_mut() else { return };
        let asked = server.map(|n| {
            let map = manager.map.as_ref().filter(|_| may_answer);
            let (session, request) = self.servers[n].asks(map, self.written);
            (n, session, request)
        });
        if let Some(answers) = manager.tell(asked, self.now, self.without) {
            self.answer(at, answers);
        }
    }

    fn contact(&mut self) {
        let n = self.random.below(SERVERS as u64) as usize;
        if self.now < self.servers[n].cut_off {
            return;
        }
        if self.random.percent(4) {
            self.servers[n].cut_off = self.now + self.random.below(3 * SERVER_LEASE.as_millis() as u64);
            return;
        }
        self.tell(Some(n));
    }

    /// What is durable is published, and answered.
    fn answer(&mut self, at: usize, answers: Answers) {
        let Some(manager) = self.managers[at].as_mut() else { return };
        if let Some(map) = answers.map {
            manager.map = Some(map);
        }
        let newest = self.map.as_ref().map(|map| map.epoch);
        if let Some(map) = manager.map.as_ref().filter(|map| newest.is_none_or(|newest| map.epoch > newest)) {
            self.map = Some(map.clone());
        }
        let may_answer = self.managers[at].as_ref().is_some_and(|m| self.may_answer(m));
        if let Some((n, asked, reply)) = answers.server.filter(|_| may_answer)
            && self.random.percent(85)
        {
            self.servers[n].heard(asked, reply);
            self.seen.leases += 1;
        }
    }

    fn write(&mut self) {
        if let Some(map) = &self.map
            && write(&mut self.servers, map, self.written + 1, self.now)
        {
            self.written += 1;
            self.seen.written += 1;
        }
    }

    fn read_data(&self) -> Result<(), String> {
        let old = |server: &Server| server.reads(self.now).is_some_and(|read| read < self.written);
        match self.servers.iter().position(old) {
            Some(at) if !self.rolled_back => {
                Err(format!("server {} answers from before write {}, under its lease", at + 1, self.written))
            }
            _ => Ok(()),
        }
    }

    fn look(&mut self, at: usize) {
        if let Some(manager) = self.managers[at].as_mut().filter(|m| m.opened && m.idle()) {
            // A rule is looked for among what can show it missing.
            let often = if self.without == Without::EndGuards { 40 } else { 2 };
            manager.ends = manager.serves && self.random.percent(often);
            let holder = &mut manager.holder;
            manager.asks = Some(if manager.ends { holder.end() } else { holder.look() });
        }
    }

    fn roll_back(&mut self) {
        if let Some(older) = self.older.take() {
            self.etcd.become_older(older);
            self.rolled_back = true;
        }
    }

    fn ghost(&mut self) {
        let nth = self.random.below(self.ghosts.len() as u64) as usize;
        let (who, request) = self.ghosts.swap_remove(nth);
        self.etcd.done(who, &request, self.now);
        self.seen.ghosts += 1;
    }

    /// The leader's key goes, in its time, or early.
    fn lapse(&mut self) {
        let early = self.hasty && self.random.percent(30);
        self.seen.lapsed += u64::from(self.etcd.lapse(if early { Time::MAX } else { self.now }));
    }

    /// A rule is looked for among what can show it missing.
    fn seek(&mut self, at: usize) -> Result<(), String> {
        if self.without.is_of_copies() && self.random.percent(1) {
            self.lose(at);
        }
        if self.without == Without::ServerLeases && self.random.percent(10) {
            self.tell(None);
            self.write();
            self.read_data()?;
        }
        Ok(())
    }

    /// What was seen; or the loss.
    pub fn run(mut self) -> Result<Seen, String> {
        for _ in 0..STEPS {
            self.now += self.random.below(60);
            let at = self.random.below(MANAGERS as u64) as usize;
            self.seek(at)?;
            match self.random.below(1000) {
                0..440 => self.step(at)?,
                440..560 => self.ask(at),
                560..590 => self.look(at),
                590..620 => self.settle(at),
                620..670 => self.lapse(),
                670..710 if !self.ghosts.is_empty() => self.ghost(),
                710..735 => self.start(at),
                735..740 => self.managers[at] = None,
                740..750 if self.rolls_back => self.older = Some(self.etcd.clone()),
                750..752 => self.roll_back(),
                752..756 => self.lose(at),
                756..800 => self.copy(at),
                800..850 => self.renew(at),
                850..856 => self.promote(at),
                856..930 => self.contact(),
                930..945 => self.tell(None),
                945..960 => self.write(),
                960..975 => self.read_data()?,
                975.. => self.read(at)?,
                _ => {}
            }
        }
        match self.acked.iter().find(|op| !self.rolled_back && !self.etcd.journal.ops.contains(op)) {
            Some(op) => Err(format!("operation {op} was acknowledged, and is lost")),
            None => Ok(self.seen),
        }
    }
}
