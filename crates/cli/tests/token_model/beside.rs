//! Clients beside each other that make names in one directory ahead of a manager, which lets one do so at a time, and look at what the
//! others have made or change something there themselves. What decides is the shipped code: `client::tokens::Cell`,
//! `client::untold::Untold` and `manager::tokens::Tokens`. Each makes names one, two, three: what is stored of it is a number.

use std::{collections::BTreeMap, time::Duration};

use base::{Grant, InodeNo, SessionId};
use client::{
    tokens::{Cell, Recalled},
    untold::Untold,
};
use manager::tokens::{Acts, NextGrant, Tokens};
use wire::{
    mgr::{Change, FileKind, Timestamp},
    token::{Need, Recall, Token, TokenMode},
};

use crate::Explored;

const NEVER: Duration = Duration::MAX;
const NOW: Duration = Duration::ZERO;
const DIR: InodeNo = InodeNo::ROOT;
/// Changes in one message.
const BATCH: usize = 2;

/// A rule taken out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// None.
    None,
    /// The directory is given up before what was made in it is told.
    Untold,
    /// Who looks is answered while another one makes names there.
    Entered,
    /// Who looks is answered while it is not known who makes names there.
    Unclaimed,
    /// Names are made while what is held is being claimed.
    Claimed,
}

/// What a client asks the manager.
#[derive(Clone, Debug)]
enum Asked {
    Make,
    /// Or to change something.
    Look(bool),
    Tell(Vec<Change>),
    Release(Token),
    Claim,
}

/// What it hears.
#[derive(Clone, Debug)]
enum Answer {
    Done,
    Token(Token),
    Looked(Vec<u64>),
    NoSession,
}

#[derive(Clone, Debug, Default)]
struct Node {
    gone: bool,
    cell: Cell,
    untold: Untold,
    /// Names that a program was told are made.
    made: u64,
    /// The directory is given up when so many are told; what is held is claimed then.
    giving: Option<u64>,
    claiming: Option<u64>,
    claims: u32,
    /// When the directory was asked for: after how many claims.
    asked_after: u32,
    /// What a look must see of each.
    looks: Option<Vec<u64>>,
    /// Requests without an answer.
    sent: Vec<(u8, Asked)>,
    last_id: u8,
    acts_left: u8,
    polls: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Beside {
    tokens: Tokens,
    grants: u64,
    nodes: Vec<Node>,
    asked: Vec<(usize, u8, Asked)>,
    answers: Vec<(usize, u8, Answer)>,
    recalls: Vec<(usize, Vec<Recall>)>,
    /// Names of each that are stored.
    store: Vec<u64>,
    told: BTreeMap<(usize, u8), bool>,
    /// Who has got inode numbers, and may make names ahead.
    numbers: Vec<bool>,
    /// Sessions that have ended.
    ended: Vec<bool>,
    deaths: u8,
    restarts: u8,
    fault: Fault,
}

/// What can happen next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    Ask(usize),
    Make(usize),
    Look(usize),
    Change(usize),
    Tell(usize),
    Arrive(usize),
    Answer(usize),
    Recall(usize),
    Crash(usize),
    CutOff(usize),
    Restart,
}

fn session(node: usize) -> SessionId {
    SessionId(node as u64 + 1)
}

/// The ticket of a request; those below are polls.
fn ticket(node: usize, id: u8) -> u64 {
    100 + node as u64 * 256 + u64::from(id)
}

fn of_ticket(ticket: u64) -> (usize, u8) {
    (((ticket - 100) / 256) as usize, ((ticket - 100) % 256) as u8)
}

impl Beside {
    /// Clients, each of which does so much; how often one may die or be cut off, and the manager begin anew.
    pub fn new(clients: usize, acts: u8, [deaths, restarts]: [u8; 2], fault: Fault) -> Beside {
        let mut tokens = Tokens::new(false);
        (0..clients).for_each(|i| tokens.begin(session(i), false, false));
        let node = |i: usize| {
            let mut untold = Untold::default();
            untold.add_numbers(InodeNo(1000 * (i as u64 + 1)), 100);
            Node { untold, acts_left: acts, ..Node::default() }
        };
        let mut beside = Beside {
            tokens,
            grants: 0,
            nodes: (0..clients).map(node).collect(),
            asked: Vec::new(),
            answers: Vec::new(),
            recalls: Vec::new(),
            store: vec![0; clients],
            told: BTreeMap::new(),
            numbers: vec![false; clients],
            ended: vec![false; clients],
            deaths,
            restarts,
            fault,
        };
        beside.settle();
        beside
    }

    fn with(&mut self, call: impl FnOnce(&mut Tokens, NextGrant<'_>) -> Acts) {
        let grants = &mut self.grants;
        let acts = call(&mut self.tokens, &mut || {
            *grants += 1;
            Grant(*grants)
        });
        for (ticket, recalls) in acts.told {
            self.recalls.push((ticket as usize, recalls));
        }
        for (ticket, token, _) in acts.granted {
            self.reply(of_ticket(ticket), Answer::Token(token));
        }
        for ticket in acts.cleared {
            let seen = self.store.clone();
            self.reply(of_ticket(ticket), Answer::Looked(seen));
        }
    }

    fn reply(&mut self, (i, id): (usize, u8), answer: Answer) {
        self.answers.push((i, id, answer));
    }

    fn lives(&self, i: usize) -> bool {
        !self.nodes[i].gone
    }

    fn send(&mut self, i: usize, asked: Asked) {
        let node = &mut self.nodes[i];
        node.last_id += 1;
        node.sent.push((node.last_id, asked.clone()));
        self.asked.push((i, node.last_id, asked));
    }

    fn is_under_way(&self, i: usize, which: fn(&Asked) -> bool) -> bool {
        self.nodes[i].sent.iter().any(|(_, asked)| which(asked))
    }

    fn may_make(&self, i: usize) -> bool {
        let node = &self.nodes[i];
        let claims = node.claiming.is_some() && self.fault != Fault::Claimed;
        node.cell.mode() == TokenMode::Write && !node.cell.is_giving() && !claims
    }

    fn make(&mut self, i: usize) {
        let node = &mut self.nodes[i];
        let (parent, name, now) = (DIR, (node.made + 1).to_string().into_bytes(), Timestamp::default());
        let (kind, mode, uid, gid, rdev, target) = (FileKind::File, 0o644, 0, 0, 0, Vec::new());
        let change =
            |ino| Some(Change::CreateAs { ino, parent, name, kind, mode, uid, gid, rdev, target, now });
        node.made += u64::from(node.untold.make(change).is_some());
    }

    /// What waits goes on.
    fn settle(&mut self) {
        for i in 0..self.nodes.len() {
            if !self.lives(i) {
                continue;
            }
            if !self.nodes[i].polls && !self.ended[i] {
                self.nodes[i].polls = true;
                self.with(|tokens, _| tokens.poll(session(i), i as u64, NEVER, NOW));
            }
            let node = &mut self.nodes[i];
            let told = |end: u64| node.untold.is_told(end) == Ok(true);
            let (gives, claims) = (node.giving.is_some_and(told), node.claiming.is_some_and(told));
            if gives {
                node.giving = None;
                let left = node.cell.gave(DIR, false);
                self.send(i, Asked::Release(left));
            }
            if claims && !self.is_under_way(i, |asked| matches!(asked, Asked::Claim)) {
                let node = &mut self.nodes[i];
                node.claims += 1;
                node.cell.forget(DIR);
                self.send(i, Asked::Claim);
            }
        }
    }

    fn recalled(&mut self, i: usize, recalls: Vec<Recall>) {
        self.nodes[i].polls = false;
        for recall in recalls {
            let node = &mut self.nodes[i];
            let end = if self.fault == Fault::Untold { 0 } else { node.untold.end() };
            match recall {
                Recall::Token(token) => match node.cell.recalled(&token, TokenMode::Read, false) {
                    Recalled::Answer(left) => self.send(i, Asked::Release(left)),
                    Recalled::Begin => node.giving = Some(end),
                    Recalled::UnderWay => {}
                },
                Recall::Share if node.claiming.is_none() => node.claiming = Some(node.untold.end()),
                _ => {}
            }
        }
    }

    fn arrive(&mut self, k: usize) -> Result<(), String> {
        let (i, id, asked) = self.asked.remove(k);
        if self.ended[i] {
            self.reply((i, id), Answer::NoSession);
            return Ok(());
        }
        let (of, ticket) = (session(i), ticket(i, id));
        match asked {
            Asked::Make => {
                self.numbers[i] = true;
                self.with(|tokens, next| tokens.acquire(of, DIR, Need::Make, ticket, NEVER, NOW, next));
            }
            Asked::Look(false) if !self.is_led_by_other(i) => {
                let seen = self.store.clone();
                self.reply((i, id), Answer::Looked(seen));
            }
            Asked::Look(false) => {
                self.with(|tokens, next| tokens.look(of, DIR, ticket, NEVER, NOW, next));
            }
            Asked::Look(true) => {
                self.with(|tokens, next| tokens.change(of, DIR, ticket, NEVER, NOW, next));
            }
            Asked::Tell(changes) => {
                if self.told.insert((i, id), true).is_none() {
                    for change in changes {
                        let next = (self.store[i] + 1).to_string().into_bytes();
                        match change {
                            Change::CreateAs { name, .. } if name == next => self.store[i] += 1,
                            other => {
                                return Err(format!("{i} tells {other:?}, and has told {}", self.store[i]));
                            }
                        }
                    }
                }
                self.reply((i, id), Answer::Done);
            }
            Asked::Release(left) => {
                self.with(|tokens, next| tokens.release(of, &[left], NOW, next));
                self.reply((i, id), Answer::Done);
            }
            Asked::Claim => {
                self.with(|tokens, next| tokens.claim(of, &[], true, NOW, next));
                self.reply((i, id), Answer::Done);
            }
        }
        Ok(())
    }

    /// Whether somebody who looks waits for another one.
    fn is_led_by_other(&self, i: usize) -> bool {
        let holders = self.tokens.holders(DIR);
        let writes = |(of, token): &(SessionId, Token)| *of != session(i) && token.mode == TokenMode::Write;
        let unclear = self.tokens.unclear().names && self.fault != Fault::Unclaimed;
        self.fault != Fault::Entered && (unclear || holders.iter().any(writes))
    }

    fn answer(&mut self, k: usize) -> Result<(), String> {
        let (i, id, answer) = self.answers.remove(k);
        let node = &mut self.nodes[i];
        let Some(at) = node.sent.iter().position(|sent| sent.0 == id).filter(|_| !node.gone) else {
            return Ok(());
        };
        let (_, asked) = node.sent.remove(at);
        match (answer, asked) {
            (Answer::NoSession, _) => {
                node.untold.close();
                (node.acts_left, node.looks) = (0, None);
            }
            (Answer::Token(token), _) if node.claims != node.asked_after => {
                let left = node.cell.unused(&token);
                self.send(i, Asked::Release(left));
            }
            (Answer::Token(token), _) if node.cell.granted(&token, false, false) => {
                node.cell.leave(Need::Names)
            }
            (Answer::Done, Asked::Tell(changes)) => node.untold.advance(changes.len()),
            (Answer::Done, Asked::Claim) => node.claiming = None,
            (Answer::Looked(seen), _) => {
                let due = node.looks.take().unwrap_or_default();
                for (other, (seen, due)) in seen.into_iter().zip(due).enumerate() {
                    if seen < due && !self.ended[other] {
                        return Err(format!(
                            "{i} looks, and sees {seen} names of {other}, which had made {due}"
                        ));
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The manager ends a session, and lets nothing of it in any more.
    fn end(&mut self, i: usize) {
        self.ended[i] = true;
        self.tokens.end(session(i));
        self.with(|tokens, next| tokens.drop_session(session(i), NOW, next));
        self.with(|tokens, next| tokens.all_resolved(NOW, next));
        for id in self.unanswered(i) {
            self.reply((i, id), Answer::NoSession);
        }
    }

    /// Requests of a client that are with the manager.
    fn unanswered(&self, i: usize) -> Vec<u8> {
        let on_its_way = |id: u8| {
            self.asked.iter().any(|(of, its, _)| (*of, *its) == (i, id))
                || self.answers.iter().any(|(of, its, _)| (*of, *its) == (i, id))
        };
        let sent = self.nodes[i].sent.iter().map(|(id, _)| *id);
        sent.filter(|id| !on_its_way(*id)).collect()
    }

    /// It knows no tokens, and whoever waits for an answer asks again.
    fn restart(&mut self) {
        self.tokens = Tokens::new(false);
        self.recalls.clear();
        for i in 0..self.nodes.len() {
            self.nodes[i].polls = false;
            if self.ended[i] {
                continue;
            }
            self.tokens.begin(session(i), true, false);
            if self.numbers[i] {
                self.tokens.may_be_ahead(session(i));
            }
            let unanswered = self.unanswered(i);
            let again = self.nodes[i].sent.iter().filter(|(id, _)| unanswered.contains(id));
            let again: Vec<_> = again.map(|(id, asked)| (i, *id, asked.clone())).collect();
            self.asked.extend(again);
        }
    }
}

impl Explored for Beside {
    type Event = Event;

    fn events(&self) -> Vec<Event> {
        let mut all = Vec::new();
        for (i, node) in self.nodes.iter().enumerate().filter(|(_, node)| !node.gone) {
            if node.acts_left > 0 {
                if node.cell.mode() < TokenMode::Write
                    && node.claiming.is_none()
                    && !self.is_under_way(i, |asked| matches!(asked, Asked::Make))
                {
                    all.push(Event::Ask(i));
                }
                if self.may_make(i) {
                    all.push(Event::Make(i));
                }
                // What is asked follows what was made.
                if node.looks.is_none() && node.untold.count() == 0 {
                    all.extend([Event::Look(i), Event::Change(i)]);
                }
            }
            if node.untold.count() > 0 && !self.is_under_way(i, |asked| matches!(asked, Asked::Tell(_))) {
                all.push(Event::Tell(i));
            }
            if self.deaths > 0 && !self.ended[i] {
                all.extend([Event::Crash(i), Event::CutOff(i)]);
            }
        }
        all.extend((0..self.asked.len()).map(Event::Arrive));
        all.extend((0..self.answers.len()).map(Event::Answer));
        all.extend((0..self.recalls.len()).map(Event::Recall));
        if self.restarts > 0 {
            all.push(Event::Restart);
        }
        all
    }

    fn is_stuck(&self, events: &[Event]) -> bool {
        let goes_on = |event: &Event| {
            matches!(event, Event::Tell(_) | Event::Arrive(_) | Event::Answer(_) | Event::Recall(_))
        };
        let waits = |node: &Node| !node.gone && !node.sent.is_empty();
        self.nodes.iter().any(waits) && !events.iter().any(goes_on)
    }

    fn step(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Ask(i) => {
                let node = &mut self.nodes[i];
                node.acts_left -= 1;
                if node.cell.begin_asking() {
                    node.asked_after = node.claims;
                    self.send(i, Asked::Make);
                }
            }
            Event::Make(i) => {
                self.nodes[i].acts_left -= 1;
                self.make(i);
            }
            Event::Look(i) | Event::Change(i) => {
                // All that was answered, by sessions that live, is to be seen.
                let due = (0..self.nodes.len()).map(|other| match self.ended[other] {
                    true => 0,
                    false => self.nodes[other].made,
                });
                self.nodes[i].looks = Some(due.collect());
                self.nodes[i].acts_left -= 1;
                self.send(i, Asked::Look(matches!(event, Event::Change(_))));
            }
            Event::Tell(i) => {
                let next = self.nodes[i].untold.front(BATCH);
                self.send(i, Asked::Tell(next));
            }
            Event::Arrive(k) => self.arrive(k)?,
            Event::Answer(k) => self.answer(k)?,
            Event::Recall(k) => {
                let (i, recalls) = self.recalls.remove(k);
                if self.lives(i) && !self.ended[i] {
                    self.recalled(i, recalls);
                }
            }
            Event::Crash(i) => {
                self.deaths -= 1;
                self.nodes[i].gone = true;
                self.end(i);
            }
            Event::CutOff(i) => {
                self.deaths -= 1;
                self.end(i);
            }
            Event::Restart => {
                self.restarts -= 1;
                self.restart();
            }
        }
        self.settle();
        let more = self.store.iter().zip(&self.nodes).position(|(stored, node)| *stored > node.made);
        more.map_or(Ok(()), |i| Err(format!("more of {i} is stored than it made")))
    }

    fn canonical(&self) -> String {
        format!("{self:?}")
    }
}
