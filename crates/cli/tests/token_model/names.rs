//! Clients that make, move and remove names ahead of a manager, and the messages between them. What decides is the shipped code:
//! `client::untold::Untold` and `manager::tokens::Tokens`; the rest is what `client::names::ahead` and the manager's namespace do with
//! it, in the fewest steps that can be told apart from outside. Each client has names of its own, one in each of two directories.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use base::{Grant, InodeNo, SessionId};
use client::untold::Untold;
use manager::tokens::{Acts, Tokens};
use wire::{
    mgr::{Change, FileKind, Timestamp},
    token::Recall,
};

use crate::{
    Explored,
    names_acts::{Act, Fault, waits_for},
    names_store::{Answer, Asked, Step, Store, Touched, Tree, change, changed, full, home},
};

const NEVER: Duration = Duration::MAX;
const NOW: Duration = Duration::ZERO;
/// Numbers granted at once, and changes in one message.
const NUMBERS: u32 = 2;
const BATCH: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Life {
    #[default]
    Before,
    /// It has asked for a session.
    Begins,
    Lives,
    Gone,
}

#[derive(Clone, Debug, Default)]
struct Node {
    life: Life,
    /// It believes that it holds everything.
    whole: bool,
    untold: Untold,
    steps: Vec<Step>,
    now: Tree,
    touched: Touched,
    /// What the last step changed, and what is asked about: when so many are told, and whether it was sent.
    last: BTreeSet<InodeNo>,
    asking: Option<(InodeNo, u64, bool)>,
    /// How many steps an fsync, or another client that was let in, has made certain.
    durable: usize,
    /// fsync waits until so many are told, which are so many steps.
    syncing: Option<(u64, usize)>,
    /// What it holds is to be said when so many are told.
    claiming: Option<u64>,
    /// Messages without an answer, each with how many changes it tells.
    sent: Vec<(u8, usize)>,
    last_id: u8,
    acts_left: u8,
    polls: bool,
}

#[derive(Clone, Debug)]
pub struct Names {
    tokens: Tokens,
    grants: u64,
    nodes: Vec<Node>,
    /// What is on its way to the manager and back: from whom or to whom, by which number.
    asked: Vec<(usize, u8, Asked)>,
    answers: Vec<(usize, u8, Answer)>,
    store: Store,
    replies: BTreeMap<(usize, u8), Answer>,
    /// What is left of a session that has ended: nothing of it changes any more.
    left: Vec<Option<Tree>>,
    deaths: u8,
    restarts: u8,
    copies: u8,
    fault: Fault,
}

/// What can happen next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    Begin(usize),
    Act(usize, Act),
    AskNumbers(usize),
    Tell(usize),
    Arrive(usize),
    Copy(usize),
    Answer(usize),
    Crash(usize),
    CutOff(usize),
    Restart,
}

fn session(node: usize) -> SessionId {
    SessionId(node as u64 + 1)
}

impl Names {
    /// Clients, each of which does so much; how often one may die or be cut off, the manager begin anew, a message come twice.
    pub fn new(clients: usize, acts: u8, [deaths, restarts, copies]: [u8; 3], fault: Fault) -> Names {
        let node = Node { acts_left: acts, ..Node::default() };
        let mut names = Names {
            tokens: Tokens::new(false),
            grants: 0,
            nodes: vec![node; clients],
            asked: Vec::new(),
            answers: Vec::new(),
            store: Store::new(clients),
            replies: BTreeMap::new(),
            left: vec![None; clients],
            deaths,
            restarts,
            copies,
            fault,
        };
        names.nodes[0].life = Life::Begins;
        names.admit();
        names
    }

    fn with<R>(&mut self, call: impl FnOnce(&mut Tokens, manager::tokens::NextGrant<'_>) -> R) -> R {
        let grants = &mut self.grants;
        call(&mut self.tokens, &mut || {
            *grants += 1;
            Grant(*grants)
        })
    }

    fn told(&mut self, acts: Acts) {
        for (ticket, recalls) in acts.told {
            let i = ticket as usize;
            self.nodes[i].polls = false;
            for recall in recalls {
                match recall {
                    Recall::Share => self.share(i),
                    Recall::Whole(_) => self.nodes[i].whole = true,
                    _ => {}
                }
            }
        }
    }

    /// Another comes: nothing is made ahead from now on.
    fn share(&mut self, i: usize) {
        let node = &mut self.nodes[i];
        node.whole = false;
        node.claiming = Some(if self.fault == Fault::ToldLate { 0 } else { node.untold.end() });
    }

    /// Lets in who waits for a session, when all others have said what they hold.
    fn admit(&mut self) {
        for i in 0..self.nodes.len() {
            if self.nodes[i].life != Life::Begins {
                continue;
            }
            let alone = self.tokens.is_empty();
            if !alone && !self.tokens.ready() {
                let mut acts = Acts::default();
                self.tokens.share(NOW, &mut acts);
                self.told(acts);
                continue;
            }
            self.tokens.begin(session(i), alone, false);
            (self.nodes[i].life, self.nodes[i].whole) = (Life::Lives, alone);
            // It sees what the others have made.
            for (other, left) in self.nodes.iter_mut().zip(&self.left) {
                if other.life == Life::Lives && left.is_none() {
                    other.durable = other.steps.len();
                }
            }
        }
    }

    fn act(&mut self, i: usize, act: Act) {
        let fault = self.fault;
        let node = &mut self.nodes[i];
        node.acts_left -= 1;
        let at = |name: char| node.now.get(&name).map(|ino| InodeNo(*ino));
        let (highest, now) = (base::Version::MAX, Timestamp::default());
        let step = match act {
            Act::Make(name) => {
                let kind = FileKind::File;
                let (mode, uid, gid, rdev, target) = (0o644, 0, 0, 0, Vec::new());
                let (parent, name_there) = (home(name), full(i, name));
                let made = node.untold.make(|ino| {
                    let name = name_there;
                    Some(Change::CreateAs { ino, parent, name, kind, mode, uid, gid, rdev, target, now })
                });
                made.map(|ino| Step::Make(name, ino.0))
            }
            Act::Remove(name) => {
                let expect = at(name);
                let (parent, name_there) = (home(name), full(i, name));
                let done = node.untold.change(|| {
                    let (name, directory, open) = (name_there, false, false);
                    Some(Change::Unlink { parent, name, directory, open, highest, expect, now })
                });
                done.then_some(Step::Remove(name))
            }
            Act::Move(from, to) => {
                let expect = Some((at(from).unwrap_or_default(), at(to).unwrap_or_default()));
                let done = node.untold.change(|| {
                    Some(Change::Rename {
                        parent: home(from),
                        name: full(i, from),
                        new_parent: home(to),
                        new_name: full(i, to),
                        no_replace: false,
                        exchange: false,
                        open: false,
                        highest,
                        expect,
                        now,
                    })
                });
                done.then_some(Step::Move(from, to))
            }
            Act::Sync => {
                node.syncing =
                    Some((if fault == Fault::SyncEarly { 0 } else { node.untold.end() }, node.steps.len()));
                None
            }
            Act::Ask(ino) => {
                node.asking = Some((ino, waits_for(&node.untold, ino, fault), false));
                None
            }
        };
        if let Some(step) = step {
            node.last = changed(&node.now, step);
            change(&mut node.now, &mut node.touched, step);
            node.steps.push(step);
        }
    }

    fn send(&mut self, i: usize, count: usize, asked: Asked) {
        let node = &mut self.nodes[i];
        node.last_id += 1;
        node.sent.push((node.last_id, count));
        self.asked.push((i, node.last_id, asked));
    }

    /// How many changes of a client are in messages without an answer; none may be told if it waits for one.
    fn tells_from(&self, i: usize) -> Option<usize> {
        let node = &self.nodes[i];
        let under_way: usize = node.sent.iter().map(|(_, count)| count).sum();
        // A question stands in nobody's way.
        let sent = node.sent.len() - usize::from(node.asking.is_some_and(|(.., sent)| sent));
        let may = match self.fault {
            Fault::Disorder => sent < 2,
            _ => sent == 0,
        };
        (may && node.untold.count() > under_way).then_some(under_way)
    }

    /// What waits goes on.
    fn settle(&mut self) {
        for i in 0..self.nodes.len() {
            while self.nodes[i].life == Life::Lives && !self.nodes[i].polls && self.left[i].is_none() {
                self.nodes[i].polls = true;
                let acts = self.tokens.poll(session(i), i as u64, NEVER, NOW);
                self.told(acts);
            }
        }
        self.admit();
        for i in 0..self.nodes.len() {
            let node = &mut self.nodes[i];
            if node.life != Life::Lives {
                continue;
            }
            if let Some((end, steps)) = node.syncing {
                match node.untold.is_told(end) {
                    Ok(true) => (node.durable, node.syncing) = (node.durable.max(steps), None),
                    Ok(false) => {}
                    Err(_) => node.syncing = None,
                }
            }
            match node.asking.map(|(ino, end, sent)| (ino, sent, node.untold.is_told(end))) {
                Some((ino, false, Ok(true))) => {
                    node.asking = Some((ino, 0, true));
                    self.send(i, 0, Asked::Attr(ino));
                }
                Some((.., Err(_))) => node.asking = None,
                _ => {}
            }
            let node = &mut self.nodes[i];
            match node.claiming.map(|end| node.untold.is_told(end)) {
                Some(Ok(true)) => {
                    node.claiming = None;
                    self.send(i, 0, Asked::Claim);
                }
                Some(Err(_)) => node.claiming = None,
                _ => {}
            }
        }
    }

    fn arrive(&mut self, k: usize) -> Result<(), String> {
        let (i, id, asked) = self.asked.remove(k);
        if self.left[i].is_some() && self.fault != Fault::AfterEnd {
            self.answers.push((i, id, Answer::NoSession));
            return Ok(());
        }
        let answer = match (self.replies.get(&(i, id)), asked) {
            (Some(answer), _) if self.fault != Fault::Twice => answer.clone(),
            (_, Asked::Claim) => {
                let acts = self.with(|tokens, next| tokens.claim(session(i), &[], true, NOW, next));
                self.told(acts);
                Answer::Done
            }
            (_, Asked::Attr(ino)) => {
                Answer::Attr(self.store.touched[i].get(&ino).copied().unwrap_or_default())
            }
            (_, Asked::Numbers) => Answer::Numbers(self.store.grant(i, NUMBERS)),
            (_, Asked::Many(changes)) => {
                let mut answer = Answer::Done;
                for change in &changes {
                    if !self.store.carry_out(i, change)? {
                        answer = Answer::Refused;
                    }
                }
                answer
            }
        };
        self.replies.insert((i, id), answer.clone());
        self.answers.push((i, id, answer));
        Ok(())
    }

    fn answer(&mut self, k: usize) -> Result<(), String> {
        let (i, id, answer) = self.answers.remove(k);
        let node = &mut self.nodes[i];
        let Some(at) = node.sent.iter().position(|sent| sent.0 == id).filter(|_| node.life == Life::Lives)
        else {
            return Ok(());
        };
        let (_, count) = node.sent.remove(at);
        match answer {
            Answer::Done => node.untold.advance(count),
            Answer::Numbers(first) => node.untold.add_numbers(first, NUMBERS),
            Answer::Attr(seen) => {
                let Some((ino, ..)) = node.asking.take() else { return Ok(()) };
                let done = node.touched.get(&ino).copied().unwrap_or_default();
                if seen != done {
                    return Err(format!("{i} changed {ino} {done} times and is told of {seen}"));
                }
            }
            Answer::NoSession => {
                node.untold.close();
                (node.whole, node.asking) = (false, None);
                node.acts_left = 0;
            }
            Answer::Refused => return Err(format!("{i} was answered, and the manager refuses it")),
        }
        Ok(())
    }

    /// The manager ends a session, and lets nothing of it in any more.
    fn end(&mut self, i: usize) {
        self.left[i] = Some(self.store.trees[i].clone());
        self.tokens.end(session(i));
        let acts = self.with(|tokens, next| tokens.drop_session(session(i), NOW, next));
        self.told(acts);
        let acts = self.with(|tokens, next| tokens.all_resolved(NOW, next));
        self.told(acts);
    }

    fn restart(&mut self) {
        self.tokens = Tokens::new(false);
        for i in 0..self.nodes.len() {
            let node = &mut self.nodes[i];
            node.polls = false;
            if node.life == Life::Lives && self.left[i].is_none() {
                self.tokens.begin(session(i), true, false);
            }
        }
        if self.fault == Fault::NumbersTwice {
            self.store.forget_grants();
        }
    }

    /// What is stored of each client's names is a beginning of what it did, and no less than what is certain.
    fn check(&self) -> Result<(), String> {
        for (i, node) in self.nodes.iter().enumerate() {
            if self.left[i].as_ref().is_some_and(|left| *left != self.store.trees[i]) {
                return Err(format!("{i} has ended, and its names change: {:?}", self.store.trees[i]));
            }
            self.store.is_beginning(i, &node.steps, node.durable)?;
        }
        Ok(())
    }
}

impl Explored for Names {
    type Event = Event;

    fn events(&self) -> Vec<Event> {
        let mut all = Vec::new();
        for (i, node) in self.nodes.iter().enumerate() {
            if node.life == Life::Before {
                all.push(Event::Begin(i));
            }
            if node.life != Life::Lives {
                continue;
            }
            if node.acts_left > 0 && node.syncing.is_none() && node.asking.is_none() {
                let there = |name: char| node.now.contains_key(&name);
                let may = |act: &Act| match *act {
                    Act::Make(name) => node.whole && !node.untold.wants_numbers() && !there(name),
                    Act::Remove(name) => node.whole && there(name),
                    Act::Move(from, _) => node.whole && there(from),
                    Act::Sync => !node.steps.is_empty(),
                    Act::Ask(_) => true,
                };
                let asks = node.last.iter().map(|ino| Act::Ask(*ino));
                let acts = Act::ALL.into_iter().filter(may).chain(asks);
                all.extend(acts.map(|act| Event::Act(i, act)));
            }
            let idle = node.sent.is_empty() && node.untold.count() == 0;
            if node.whole && node.untold.wants_numbers() && idle && node.acts_left > 0 {
                all.push(Event::AskNumbers(i));
            }
            if self.tells_from(i).is_some() {
                all.push(Event::Tell(i));
            }
            if self.deaths > 0 && self.left[i].is_none() {
                all.extend([Event::Crash(i), Event::CutOff(i)]);
            }
        }
        all.extend((0..self.asked.len()).map(Event::Arrive));
        if self.copies > 0 {
            all.extend((0..self.asked.len()).map(Event::Copy));
        }
        all.extend((0..self.answers.len()).map(Event::Answer));
        if self.restarts > 0 {
            all.push(Event::Restart);
        }
        all
    }

    fn is_stuck(&self, events: &[Event]) -> bool {
        let goes_on = |event: &Event| {
            matches!(event, Event::AskNumbers(_) | Event::Tell(_) | Event::Arrive(_) | Event::Answer(_))
        };
        let waits = |node: &Node| match node.life {
            Life::Lives => node.syncing.is_some() || node.asking.is_some(),
            life => life == Life::Begins,
        };
        self.nodes.iter().any(waits) && !events.iter().any(goes_on)
    }

    fn step(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Begin(i) => self.nodes[i].life = Life::Begins,
            Event::Act(i, act) => self.act(i, act),
            Event::AskNumbers(i) => self.send(i, 0, Asked::Numbers),
            Event::Tell(i) => {
                let from = self.tells_from(i).unwrap_or_default();
                let next = self.nodes[i].untold.front(from + BATCH).split_off(from);
                self.send(i, next.len(), Asked::Many(next));
            }
            Event::Arrive(k) => self.arrive(k)?,
            Event::Copy(k) => {
                self.copies -= 1;
                self.asked.push(self.asked[k].clone());
            }
            Event::Answer(k) => self.answer(k)?,
            Event::Crash(i) => {
                self.deaths -= 1;
                self.nodes[i].life = Life::Gone;
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
        self.check()
    }

    fn canonical(&self) -> String {
        format!("{self:?}")
    }
}
