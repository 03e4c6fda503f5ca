//! A manager, some clients, one file of two blocks, one server, and the messages between them. What decides is the
//! shipped code: `manager::tokens::Tokens` and `client::tokens::Cell`; the rest is what `client::sharing` does with
//! it, in the fewest steps that can be told apart from outside.

use std::time::Duration;

use base::{Grant, InodeNo, SessionId};
use client::tokens::{Cell, Enter, Recalled};
use manager::tokens::{Acts, Tokens};
use wire::token::{Need, Recall, Span, Token, TokenMode, Use};

use crate::Explored;

pub const INO: InodeNo = InodeNo(7);
const NEVER: Duration = Duration::MAX;
const NOW: Duration = Duration::ZERO;
/// When a question has waited too long: it fails.
const EXPIRES: Duration = Duration::from_secs(1);

/// A rule taken out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// None.
    None,
    /// Released before what is dirty is stored.
    ReleaseFirst,
    /// The same of what may be read by others before it goes.
    LowerFirst,
    /// It may be read by others while somebody is in here to write it.
    LowerBeside,
    /// What is kept in memory outlives its token.
    KeepPages,
    /// Tokens of a dead session move on before the server refuses it.
    NoFence,
    /// Times are said to be told and are not.
    NoCommit,
    /// A grant is used though it was recalled before it came.
    UseVoid,
    /// What a dead session left half written is not resolved.
    NoResolve,
    /// A token given back is said to be the newest one.
    LateRelease,
    /// Times that came with a grant count, though newer ones were given up since it was asked for.
    OldTimes,
}

/// What a program does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    Write(usize),
    Read(usize),
    Times,
    /// Something that needs the file alone.
    Alone,
}

impl Act {
    pub const ALL: [Act; 6] =
        [Act::Write(0), Act::Write(1), Act::Read(0), Act::Read(1), Act::Times, Act::Alone];

    fn need(self) -> Need {
        let block = |b: usize| Span { first: b as u64, end: b as u64 + 1 };
        match self {
            Act::Write(b) => Need::Blocks(block(b), Use::Write),
            Act::Read(b) => Need::Blocks(block(b), Use::Read),
            Act::Times => Need::Attr,
            Act::Alone => Need::Write,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Wants,
    Asks,
    Uses,
}

/// A grant on its way: token, duty to resolve, times at the manager, claims before it was asked for.
type GrantSent = (Token, bool, u8, u8);

#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Its process lives, and believes in its lease.
    live: bool,
    /// Its process lives and has slept: only what is on its way can still arrive.
    asleep: bool,
    cell: Cell,
    cached: [Option<u8>; 2],
    dirty: [bool; 2],
    times: u8,
    times_dirty: bool,
    /// Times when the present act began.
    since: u8,
    doing: Option<(Act, Stage)>,
    pub acts_left: u8,
    polls: bool,
    claims: u8,
    grant: Option<GrantSent>,
    recalls: Vec<Recall>,
    releases: Vec<Message>,
}

#[derive(Clone, Debug)]
enum Message {
    Release(Token),
    Claim(Option<Token>),
    Published(Grant),
}

#[derive(Clone, Debug)]
pub struct World {
    tokens: Tokens,
    grants: u64,
    unresolved: bool,
    pub nodes: Vec<Node>,
    /// Sessions that the manager has ended, and those the server refuses.
    ended: Vec<bool>,
    fenced: Vec<bool>,
    /// Per block: what is adopted, and whose version stands beside it.
    adopted: [u8; 2],
    prepared: [Option<(usize, u8)>; 2],
    times: u8,
    /// What must be seen: the last write of each block, none if it died with its writer.
    last: [Option<u8>; 2],
    clock: u8,
    /// The time that whoever asks must see.
    must: u8,
    pub crashes: u8,
    pub restarts: u8,
    pub expiries: u8,
    fault: Fault,
}

/// What can happen next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    Begin(usize, Act),
    Enter(usize),
    /// Somebody for whose pages the giving up waits is let in under what goes.
    Late(usize),
    Granted(usize),
    Use(usize),
    Flush(usize, usize),
    Recalled(usize, usize),
    Lower(usize),
    Give(usize),
    Arrive(usize, usize),
    Crash(usize),
    Sleep(usize),
    End(usize),
    Fence(usize),
    Expire,
    Restart,
}

fn session(node: usize) -> SessionId {
    SessionId(node as u64 + 1)
}

impl World {
    /// How often a process may die or sleep, the manager begin anew, a question have waited too long.
    pub fn new(clients: usize, acts: u8, [crashes, restarts, expiries]: [u8; 3], fault: Fault) -> World {
        let mut tokens = Tokens::new(false);
        let node = Node { live: true, acts_left: acts, ..Node::default() };
        (0..clients).for_each(|i| tokens.begin(session(i), false, false));
        World {
            tokens,
            grants: 0,
            unresolved: false,
            nodes: vec![node; clients],
            ended: vec![false; clients],
            fenced: vec![false; clients],
            adopted: [0; 2],
            prepared: [None; 2],
            times: 0,
            last: [Some(0); 2],
            clock: 0,
            must: 0,
            crashes,
            restarts,
            expiries,
            fault,
        }
    }

    /// Clients always ask what is wanted of them.
    fn poll(&mut self) {
        for i in 0..self.nodes.len() {
            while self.nodes[i].live && !self.nodes[i].polls {
                self.nodes[i].polls = true;
                let acts = self.tokens.poll(session(i), 10 + i as u64, NEVER, NOW);
                self.apply(acts);
            }
        }
    }

    fn with<R>(&mut self, call: impl FnOnce(&mut Tokens, manager::tokens::NextGrant<'_>) -> R) -> R {
        let grants = &mut self.grants;
        call(&mut self.tokens, &mut || {
            *grants += 1;
            Grant(*grants)
        })
    }

    fn apply(&mut self, acts: Acts) {
        for (ticket, token, resolve) in acts.granted {
            let node = &mut self.nodes[(ticket - 20) as usize];
            node.grant = Some((token, resolve, self.times, node.claims));
        }
        for ticket in acts.late.into_iter().filter(|ticket| *ticket >= 20) {
            let node = &mut self.nodes[(ticket - 20) as usize];
            node.cell.refused();
            node.doing = None;
        }
        for (ticket, recalls) in acts.told {
            let node = &mut self.nodes[(ticket - 10) as usize];
            node.polls = false;
            node.recalls.extend(recalls.into_iter().filter(|recall| !matches!(recall, Recall::Resolve(_))));
        }
    }

    fn enter(&mut self, i: usize) {
        let node = &mut self.nodes[i];
        let Some((act, _)) = node.doing else { return };
        if node.cell.enter(act.need()) == Enter::In {
            node.doing = Some((act, Stage::Uses));
            return;
        }
        node.doing = Some((act, Stage::Asks));
        let acts = self.with(|tokens, next| {
            tokens.acquire(session(i), INO, act.need(), 20 + i as u64, EXPIRES, NOW, next)
        });
        self.apply(acts);
    }

    fn granted(&mut self, i: usize) {
        let node = &mut self.nodes[i];
        let (Some((token, resolve, times, claims)), Some((act, _))) = (node.grant.take(), node.doing) else {
            return;
        };
        let before = node.cell.mode();
        let outdated = self.fault != Fault::OldTimes && node.cell.is_outdated();
        if claims != node.claims || outdated {
            node.doing = Some((act, Stage::Wants));
            return node.releases.push(Message::Release(node.cell.unused(&token)));
        }
        if self.fault == Fault::UseVoid {
            let mut fresh = Cell::default();
            fresh.enter(act.need());
            fresh.granted(&token, resolve, false);
            node.cell = fresh;
        } else if !node.cell.granted(&token, resolve, false) {
            node.doing = Some((act, Stage::Wants));
            return;
        }
        node.times = if before == TokenMode::Part { node.times.max(times) } else { times };
        if resolve {
            self.resolve(i);
        }
        let node = &mut self.nodes[i];
        if act == Act::Times || node.cell.allows(act.need()) {
            node.doing = Some((act, Stage::Uses));
        } else {
            node.cell.leave(act.need());
            node.doing = Some((act, Stage::Wants));
        }
    }

    /// What stands half written goes forward; what nobody has any more is lost.
    fn resolve(&mut self, i: usize) {
        if self.fault != Fault::NoResolve {
            for b in 0..2 {
                if let Some((_, value)) = self.prepared[b].take() {
                    self.adopted[b] = value;
                }
                self.last[b].get_or_insert(self.adopted[b]);
            }
        }
        let acts = self.with(|tokens, next| tokens.resolved(session(i), INO, NOW, next));
        self.apply(acts);
        self.nodes[i].cell.resolved();
    }

    fn use_it(&mut self, i: usize) -> Result<(), String> {
        let Some((act, _)) = self.nodes[i].doing.take() else { return Ok(()) };
        self.nodes[i].cell.leave(act.need());
        match act {
            Act::Write(b) => self.write(i, b),
            Act::Alone => (0..2).for_each(|b| self.write(i, b)),
            Act::Read(b) => {
                let own = self.prepared[b].filter(|(by, _)| *by == i).map(|(_, value)| value);
                let node = &mut self.nodes[i];
                let seen = *node.cached[b].get_or_insert(own.unwrap_or(self.adopted[b]));
                // What died with its writer is old or new, from the first look on.
                let last = *self.last[b].get_or_insert(seen);
                if seen != last {
                    return Err(format!("{i} reads {seen} in block {b}, {last} was written"));
                }
            }
            Act::Times => {
                let node = &self.nodes[i];
                if node.times < node.since {
                    return Err(format!(
                        "{i} sees time {}, it was {} before it asked",
                        node.times, node.since
                    ));
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, i: usize, b: usize) {
        self.clock += 1;
        self.must = self.clock;
        let node = &mut self.nodes[i];
        (node.cached[b], node.dirty[b]) = (Some(self.clock), true);
        (node.times, node.times_dirty) = (self.clock, true);
        self.last[b] = Some(self.clock);
    }

    fn flush(&mut self, i: usize, b: usize) -> Result<(), String> {
        let node = &mut self.nodes[i];
        node.dirty[b] = false;
        if self.fenced[i] {
            return Ok(());
        }
        match (self.prepared[b], node.cached[b]) {
            (Some((other, _)), _) if other != i => Err(format!("{i} writes block {b} beside {other}")),
            (_, Some(value)) => {
                self.prepared[b] = Some((i, value));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn recalled(&mut self, i: usize, k: usize) {
        let node = &mut self.nodes[i];
        match node.recalls.remove(k) {
            Recall::Token(wanted) => {
                if let Recalled::Answer(left) = node.cell.recalled(&wanted, TokenMode::Write, false) {
                    node.releases.push(Message::Release(left));
                }
            }
            Recall::Share => {
                node.claims += 1;
                node.releases.push(Message::Claim(node.cell.token(INO)));
            }
            Recall::Publish(_, number) => {
                if self.fault != Fault::NoCommit {
                    self.commit_times(i);
                }
                self.nodes[i].releases.push(Message::Published(number));
            }
            Recall::Whole(_) | Recall::Resolve(_) | Recall::Locks(_) => {}
        }
    }

    fn commit_times(&mut self, i: usize) {
        let node = &mut self.nodes[i];
        if std::mem::take(&mut node.times_dirty) {
            self.times = self.times.max(node.times);
        }
    }

    /// What goes of a part may only be read from now on, until it goes.
    fn lower(&mut self, i: usize) -> Result<(), String> {
        if self.fault != Fault::LowerFirst {
            self.make_clean(i)?;
        }
        let node = &mut self.nodes[i];
        node.cell.lower();
        node.releases.extend(node.cell.take_lowered(INO).map(Message::Release));
        Ok(())
    }

    fn make_clean(&mut self, i: usize) -> Result<(), String> {
        let losing = self.nodes[i].cell.losing();
        let part = losing.to == TokenMode::Part && self.nodes[i].cell.mode() == TokenMode::Part;
        let block = |b: usize| Span { first: b as u64, end: b as u64 + 1 };
        if self.fault != Fault::ReleaseFirst {
            for b in 0..2 {
                if self.nodes[i].dirty[b] && (!part || losing.written.covers(block(b), Use::Write)) {
                    self.flush(i, b)?;
                }
                if let Some((by, value)) = self.prepared[b].filter(|(by, _)| *by == i) {
                    debug_assert_eq!(by, i);
                    (self.adopted[b], self.prepared[b]) = (value, None);
                }
            }
            if !part {
                self.commit_times(i);
            }
        }
        Ok(())
    }

    fn give(&mut self, i: usize) -> Result<(), String> {
        self.make_clean(i)?;
        let losing = self.nodes[i].cell.losing();
        let block = |b: usize| Span { first: b as u64, end: b as u64 + 1 };
        let node = &mut self.nodes[i];
        for b in (0..2).filter(|b| losing.gone.covers(block(*b), Use::Read)) {
            if self.fault != Fault::KeepPages {
                node.cached[b] = None;
            }
        }
        let token = node.cell.gave(INO, false);
        node.releases.push(Message::Release(token));
        Ok(())
    }

    fn arrive(&mut self, i: usize, k: usize) {
        let message = self.nodes[i].releases.remove(k);
        let late = self.fault == Fault::LateRelease;
        let acts = self.with(|tokens, next| match message {
            Message::Release(token) => {
                let serial = if late { Grant(u64::MAX) } else { token.serial };
                tokens.release(session(i), &[Token { serial, ..token }], NOW, next)
            }
            Message::Claim(token) => {
                let held: Vec<Token> = token.into_iter().collect();
                tokens.claim(session(i), &held, true, NOW, next)
            }
            Message::Published(number) => tokens.published(session(i), INO, number, NOW, next),
        });
        self.apply(acts);
    }

    /// What a session has not stored is lost with it, or not: nobody knows yet.
    fn forget_writes(&mut self, i: usize, all: bool) {
        for b in 0..2 {
            let prepared = self.prepared[b].is_some_and(|(by, _)| by == i);
            if self.nodes[i].dirty[b] || prepared && (all || self.nodes[i].live) {
                self.last[b] = None;
            }
        }
        // Its times are those that somebody else knows who lives.
        let others = || self.nodes.iter().enumerate().filter(|(other, node)| *other != i && node.live);
        self.must = others().map(|(_, node)| node.times).fold(self.times, u8::max);
        for node in &mut self.nodes {
            node.since = node.since.min(self.must);
        }
    }

    fn drop_session(&mut self, i: usize) {
        let acts = self.with(|tokens, next| tokens.drop_session(session(i), NOW, next));
        self.apply(acts);
    }

    /// At no time two hold what excludes each other.
    fn check(&self) -> Result<(), String> {
        let held: Vec<Token> =
            self.nodes.iter().filter(|node| node.live).map(|node| node.cell.known(INO)).collect();
        let mut pairs = held.iter().enumerate().flat_map(|(i, a)| held[..i].iter().map(move |b| (a, b)));
        pairs.try_for_each(|(a, b)| Self::check_two(a, b))
    }

    fn check_two(a: &Token, b: &Token) -> Result<(), String> {
        let shared = a.usable().meet(&b.usable());
        let written = |token: &Token| {
            let usable = token.usable();
            shared.runs().iter().any(|run| usable.beyond(run.span, Use::Read).is_some())
        };
        // Who only reads a part cannot move the times.
        let writes = |token: &Token| token.usable().beyond(Span::ALL, Use::Read).is_some();
        let exact = |one: &Token, other: &Token| {
            one.mode >= TokenMode::Read && other.mode == TokenMode::Part && writes(other)
        };
        if written(a) || written(b) || exact(a, b) || exact(b, a) {
            return Err(format!("both at once: {a:?} and {b:?}"));
        }
        Ok(())
    }
}

impl Explored for World {
    type Event = Event;

    fn events(&self) -> Vec<Event> {
        let mut all = Vec::new();
        for (i, node) in self.nodes.iter().enumerate() {
            if node.live {
                match node.doing {
                    None if node.acts_left > 0 => all.extend(Act::ALL.map(|act| Event::Begin(i, act))),
                    Some((act, Stage::Wants)) if node.cell.clone().enter(act.need()) != Enter::Wait => {
                        all.push(Event::Enter(i));
                    }
                    Some((act, Stage::Wants)) if node.cell.clone().enter_late(act.need()) => {
                        all.push(Event::Late(i));
                    }
                    Some((_, Stage::Uses)) => all.push(Event::Use(i)),
                    _ => {}
                }
                if node.grant.is_some() && !node.cell.is_giving() {
                    all.push(Event::Granted(i));
                }
                all.extend((0..node.recalls.len()).map(|k| Event::Recalled(i, k)));
                if node.cell.is_giving() && node.cell.users() == 0 {
                    all.push(Event::Give(i));
                }
                let written = || !node.cell.losing().written.is_empty();
                if node.cell.is_giving() && node.cell.mode() == TokenMode::Part && written() {
                    // Who reads may be in.
                    if node.cell.writers() == 0 || self.fault == Fault::LowerBeside {
                        all.push(Event::Lower(i));
                    }
                }
                if self.crashes > 0 {
                    all.extend([Event::Crash(i), Event::Sleep(i)]);
                }
            }
            if node.live || node.asleep && !self.fenced[i] {
                all.extend((0..2).filter(|b| node.dirty[*b]).map(|b| Event::Flush(i, b)));
            }
            if node.live {
                all.extend((0..node.releases.len()).map(|k| Event::Arrive(i, k)));
            }
            if !node.live && !self.ended[i] {
                all.push(Event::End(i));
            }
            if self.ended[i] && self.tokens.ending().contains(&session(i)) {
                all.push(Event::Fence(i));
            }
        }
        let waits = |node: &Node| matches!(node.doing, Some((_, Stage::Asks))) && node.grant.is_none();
        if self.expiries > 0 && self.nodes.iter().any(waits) {
            all.push(Event::Expire);
        }
        if self.restarts > 0 {
            all.push(Event::Restart);
        }
        all
    }

    fn is_stuck(&self, events: &[Event]) -> bool {
        let idle = |event: &Event| {
            matches!(
                event,
                Event::Begin(..)
                    | Event::Crash(_)
                    | Event::Sleep(_)
                    | Event::Expire
                    | Event::Restart
                    | Event::Flush(..)
            )
        };
        self.nodes.iter().any(|node| node.live && node.doing.is_some()) && events.iter().all(idle)
    }

    fn step(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Begin(i, act) => {
                let must = self.must;
                let node = &mut self.nodes[i];
                (node.doing, node.since) = (Some((act, Stage::Wants)), must);
                node.acts_left -= 1;
            }
            Event::Enter(i) => self.enter(i),
            Event::Late(i) => {
                let node = &mut self.nodes[i];
                if let Some((act, Stage::Wants)) = node.doing
                    && node.cell.enter_late(act.need())
                {
                    node.doing = Some((act, Stage::Uses));
                }
            }
            Event::Granted(i) => self.granted(i),
            Event::Use(i) => self.use_it(i)?,
            Event::Flush(i, b) => self.flush(i, b)?,
            Event::Recalled(i, k) => self.recalled(i, k),
            Event::Lower(i) => self.lower(i)?,
            Event::Give(i) => self.give(i)?,
            Event::Arrive(i, k) => self.arrive(i, k),
            Event::Crash(i) => {
                self.crashes -= 1;
                self.forget_writes(i, true);
                self.nodes[i] = Node::default();
            }
            Event::Sleep(i) => {
                self.crashes -= 1;
                self.forget_writes(i, false);
                (self.nodes[i].live, self.nodes[i].asleep) = (false, true);
            }
            Event::End(i) => {
                (self.ended[i], self.unresolved) = (true, true);
                self.tokens.end(session(i));
                if self.fault == Fault::NoFence {
                    self.drop_session(i);
                }
            }
            Event::Fence(i) => {
                self.fenced[i] = true;
                self.drop_session(i);
            }
            Event::Expire => {
                self.expiries -= 1;
                let acts = self.with(|tokens, next| tokens.tick(false, EXPIRES, next));
                self.apply(acts);
            }
            Event::Restart => {
                self.restarts -= 1;
                self.tokens = Tokens::new(self.unresolved);
                for i in 0..self.nodes.len() {
                    // Who is ended is in the store, its fence too; here the fence was waited for.
                    if self.ended[i] {
                        self.fenced[i] = true;
                    } else {
                        self.tokens.begin(session(i), true, false);
                    }
                    let node = &mut self.nodes[i];
                    node.polls = false;
                    if let Some((act, Stage::Asks)) = node.doing.filter(|_| node.grant.is_none()) {
                        // The call is repeated.
                        node.doing = Some((act, Stage::Wants));
                        node.cell.refused();
                    }
                }
            }
        }
        self.poll();
        self.check()
    }

    fn canonical(&self) -> String {
        let text = format!("{self:?}");
        let parts: Vec<&str> = text.split("Grant(").collect();
        let number = |part: &str| part.split(')').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        let mut numbers: Vec<u64> = parts[1..].iter().map(|part| number(part)).collect();
        numbers.push(self.grants);
        numbers.sort_unstable();
        numbers.dedup();
        let mut out = String::with_capacity(text.len());
        for (k, part) in parts.iter().enumerate() {
            let rest = if k == 0 { part } else { part.split_once(')').map_or("", |(_, rest)| rest) };
            if k > 0 {
                out.push_str(&format!("G{}", numbers.binary_search(&number(part)).unwrap_or(0)));
            }
            out.push_str(rest);
        }
        // The counter itself is one of the numbers.
        out.replace(&format!("grants: {}", self.grants), "")
    }
}
