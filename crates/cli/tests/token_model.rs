//! All interleavings of two clients and the manager over one inode, driving the shipped state machines:
//! `manager::tokens::Tokens` and `client::tokens::Cell`. Messages may overtake each other; a client may be ended
//! while its writes are on their way; the manager may restart. Each planted fault breaks one duty of those
//! who drive the machines, and must be found.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::{
    collections::{BTreeSet, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use base::{Grant, InodeNo, SessionId};
use client::tokens::{Cell, Enter, Recalled};
use manager::tokens::{Acts, Tokens};
use wire::token::{Recall, Token, TokenMode};

const INO: InodeNo = InodeNo(9);
const NOW: Duration = Duration::ZERO;
const NEVER: Duration = Duration::from_secs(1000);

/// A duty that is not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// A token is given back before what was written under it is stored.
    ReleaseBeforeStoring,
    /// Tokens of an ended session move on before the servers refuse it.
    MoveOnBeforeFence,
    /// A recall that comes before its grant does not void it.
    ForgetEarlyRecalls,
    /// A restarted manager believes that nobody holds anything.
    NoClaims,
    /// What is cached outlives the token.
    KeepCache,
    /// The manager takes late releases for new ones.
    TrustLateReleases,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Message {
    Acquire { from: usize, mode: TokenMode, life: u64 },
    Release { from: usize, token: Token, life: u64 },
    Poll { from: usize, life: u64 },
    Claim { from: usize, tokens: Vec<Token>, life: u64 },
    Grant { to: usize, token: Token },
    Recalls { to: usize, list: Vec<String>, recalls: Vec<(u8, Token)> },
    Store { from: usize, serial: Grant, value: u64 },
}

/// A wish of the application that waits for a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    Read,
    Write,
}

#[derive(Clone, Debug)]
struct Client {
    cell: Cell,
    /// What is cached, and whether it is newer than the store.
    cache: Option<(u64, bool)>,
    wish: Option<Wish>,
    operations: u32,
    polling: bool,
    /// A store message is on its way, before the token goes.
    storing: bool,
    ended: bool,
}

#[derive(Clone, Debug)]
struct World {
    tokens: Tokens,
    next_grant: u64,
    /// Tickets of requests the manager holds.
    asked: Vec<(u64, usize)>,
    /// The manager's life: answers of an earlier one do not come.
    life: u64,
    clients: Vec<Client>,
    messages: BTreeSet<(u64, Message)>,
    numbered: u64,
    /// What pdisks and manager hold, and under which grant.
    stored: (u64, Grant),
    /// The last value written anywhere by a session that was not ended.
    last: u64,
    values: u64,
    fenced: [bool; 2],
    may_end: bool,
    may_restart: bool,
    /// A release may still be sent twice.
    may_repeat: bool,
}

fn session(client: usize) -> SessionId {
    SessionId(client as u64 + 1)
}

impl World {
    fn new(operations: u32, may_end: bool, may_restart: bool, may_repeat: bool) -> World {
        let client = Client {
            cell: Cell::default(),
            cache: None,
            wish: None,
            operations,
            polling: false,
            storing: false,
            ended: false,
        };
        let mut tokens = Tokens::new(false);
        (0..2).for_each(|c| tokens.begin(session(c), false));
        World {
            tokens,
            next_grant: 0,
            asked: Vec::new(),
            life: 0,
            clients: vec![client; 2],
            messages: BTreeSet::new(),
            numbered: 0,
            stored: (0, Grant(0)),
            last: 0,
            values: 0,
            fenced: [false; 2],
            may_end,
            may_restart,
            may_repeat,
        }
    }

    /// Numbers are used again, so that worlds that differ in nothing else are one.
    fn ticket(&mut self, of: usize) -> u64 {
        let free = (1..).find(|n| self.asked.iter().all(|(ticket, _)| ticket != n)).unwrap();
        self.asked.push((free, of));
        free
    }

    fn send(&mut self, message: Message) {
        self.numbered += 1;
        self.messages.insert((self.numbered, message));
    }

    fn absorb(&mut self, acts: Acts) {
        let owner = |asked: &mut Vec<(u64, usize)>, ticket: u64| {
            let at = asked.iter().position(|(t, _)| *t == ticket)?;
            Some(asked.remove(at).1)
        };
        for (ticket, token, _) in acts.granted {
            if let Some(to) = owner(&mut self.asked, ticket) {
                self.send(Message::Grant { to, token });
            }
        }
        for (ticket, recalls) in acts.told {
            let Some(to) = owner(&mut self.asked, ticket) else { continue };
            let list = recalls.iter().map(|r| format!("{r:?}")).collect();
            let recalls = recalls
                .into_iter()
                .filter_map(|recall| match recall {
                    Recall::Token(token) => Some((0, token)),
                    Recall::Share => Some((1, Token::default())),
                    Recall::Whole(_) | Recall::Resolve(_) => None,
                })
                .collect();
            self.send(Message::Recalls { to, list, recalls });
        }
    }

    fn call(&mut self, call: impl FnOnce(&mut Tokens, &mut dyn FnMut() -> Grant) -> Acts) {
        let mut number = self.next_grant;
        let acts = call(&mut self.tokens, &mut || {
            number += 1;
            Grant(number)
        });
        self.next_grant = number;
        self.absorb(acts);
    }

    /// The application's operation, under the token; an error if it sees what it must not.
    fn operate(&mut self, at: usize, wish: Wish) -> Result<(), String> {
        let stored = self.stored.0;
        let client = &mut self.clients[at];
        let (cached, _) = *client.cache.get_or_insert((stored, false));
        match wish {
            Wish::Read if cached != self.last => {
                return Err(format!("client {at} reads {cached}, the last write was {}", self.last));
            }
            Wish::Read => {}
            Wish::Write => {
                self.values += 1;
                client.cache = Some((self.values, true));
                self.last = self.values;
            }
        }
        client.cell.leave();
        Ok(())
    }

    /// Everything that may happen next; an error breaks what must hold.
    fn steps(&self, fault: Fault) -> Result<Vec<World>, String> {
        let mut next = Vec::new();
        for at in 0..2 {
            if self.clients[at].ended {
                continue;
            }
            self.client_steps(at, fault, &mut next)?;
        }
        for message in &self.messages {
            let mut world = self.clone();
            if self.may_repeat && matches!(message.1, Message::Release { .. }) {
                let mut world = self.clone();
                world.may_repeat = false;
                world.deliver(message.1.clone(), fault)?;
                next.push(world);
            }
            world.messages.remove(message);
            world.deliver(message.1.clone(), fault)?;
            next.push(world);
        }
        if self.may_end && !self.clients[0].ended {
            let mut world = self.clone();
            world.may_end = false;
            world.tokens.end(session(0));
            if fault == Fault::MoveOnBeforeFence {
                world.call(|tokens, next| tokens.drop_session(session(0), NOW, next));
            }
            // What it wrote and did not store is lost: the next sees what was stored.
            next.push(world);
        }
        if !self.may_end && !self.fenced[0] && self.tokens.ending().contains(&session(0))
            || fault == Fault::MoveOnBeforeFence && !self.may_end && !self.fenced[0]
        {
            let mut world = self.clone();
            world.fenced[0] = true;
            world.clients[0].ended = true;
            if world.clients[1].cache.is_none_or(|(_, dirty)| !dirty)
                && world
                    .tokens
                    .holders(INO)
                    .iter()
                    .all(|(s, t)| *s != session(1) || t.mode < TokenMode::Write)
            {
                world.last = world.stored.0;
            }
            world.call(|tokens, next| tokens.drop_session(session(0), NOW, next));
            next.push(world);
        }
        if self.may_restart {
            let mut world = self.clone();
            world.restart(fault);
            next.push(world);
        }
        Ok(next)
    }

    fn restart(&mut self, fault: Fault) {
        self.may_restart = false;
        self.life += 1;
        self.tokens = Tokens::new(false);
        self.asked.clear();
        let life = self.life;
        // Calls that were not answered are sent again; answers on their way are lost.
        self.messages.retain(|(_, m)| {
            !matches!(m, Message::Grant { .. } | Message::Recalls { .. } | Message::Poll { .. })
        });
        for at in 0..2 {
            self.tokens.begin(session(at), fault != Fault::NoClaims);
            self.clients[at].polling = true;
            self.send(Message::Poll { from: at, life });
            if let Some(wish) = self.clients[at].wish {
                self.messages.retain(|(_, m)| !matches!(m, Message::Acquire { from, .. } if *from == at));
                self.send(Message::Acquire { from: at, mode: mode_of(wish), life });
            }
        }
    }

    fn client_steps(&self, at: usize, fault: Fault, next: &mut Vec<World>) -> Result<(), String> {
        let client = &self.clients[at];
        if !client.polling {
            let mut world = self.clone();
            world.clients[at].polling = true;
            world.send(Message::Poll { from: at, life: self.life });
            next.push(world);
        }
        if client.operations > 0 && client.wish.is_none() {
            for wish in [Wish::Read, Wish::Write] {
                let mut world = self.clone();
                world.clients[at].operations -= 1;
                match world.clients[at].cell.enter(mode_of(wish)) {
                    Enter::In => world.operate(at, wish)?,
                    Enter::Ask => {
                        world.clients[at].wish = Some(wish);
                        world.send(Message::Acquire { from: at, mode: mode_of(wish), life: self.life });
                    }
                    Enter::Wait => continue,
                }
                next.push(world);
            }
        }
        if client.cell.is_giving() && !client.storing {
            let mut world = self.clone();
            let serial = client.cell.serial();
            match client.cache {
                Some((value, true)) => {
                    world.send(Message::Store { from: at, serial, value });
                    world.clients[at].storing = true;
                    if fault == Fault::ReleaseBeforeStoring {
                        world.give(at, fault);
                    }
                }
                _ => world.give(at, fault),
            }
            next.push(world);
        }
        Ok(())
    }

    fn give(&mut self, at: usize, fault: Fault) {
        let client = &mut self.clients[at];
        let token = client.cell.gave(INO, false);
        client.storing = false;
        match &mut client.cache {
            _ if fault == Fault::KeepCache => {}
            Some((_, dirty)) if token.mode >= TokenMode::Read => *dirty = false,
            cache => *cache = None,
        }
        let life = self.life;
        self.send(Message::Release { from: at, token, life });
    }

    fn deliver(&mut self, message: Message, fault: Fault) -> Result<(), String> {
        match message {
            Message::Acquire { from, mode, life } if life == self.life => {
                let ticket = self.ticket(from);
                if !self.tokens.ending().contains(&session(from)) && !self.fenced[from] {
                    self.call(|tokens, next| {
                        tokens.acquire(session(from), INO, mode, ticket, NEVER, NOW, next)
                    });
                }
            }
            Message::Poll { from, life } if life == self.life => {
                let ticket = self.ticket(from);
                self.call(|tokens, _| tokens.poll(session(from), ticket, NEVER, NOW));
            }
            Message::Release { from, mut token, .. } => {
                if fault == Fault::TrustLateReleases {
                    token.serial = Grant(u64::MAX);
                }
                if !self.tokens.ending().contains(&session(from)) {
                    self.call(|tokens, next| tokens.release(session(from), &[token], NOW, next));
                }
            }
            Message::Claim { from, tokens: held, life } if life == self.life => {
                self.call(|tokens, next| tokens.claim(session(from), &held, true, NOW, next));
            }
            Message::Acquire { .. } | Message::Poll { .. } | Message::Claim { .. } => {}
            Message::Grant { to, token } if !self.clients[to].ended => self.grant(to, token)?,
            Message::Recalls { to, recalls, .. } if !self.clients[to].ended => {
                self.clients[to].polling = false;
                for (kind, token) in recalls {
                    self.recall(to, kind, token, fault);
                }
            }
            Message::Grant { .. } | Message::Recalls { .. } => {}
            Message::Store { from, serial, value } => {
                if self.fenced[from] {
                    return Ok(()); // the servers refuse it
                }
                if serial < self.stored.1 {
                    return Err(format!("a write under {serial:?} after one under {:?}", self.stored.1));
                }
                self.stored = (value, serial);
                let client = &mut self.clients[from];
                if client.storing && client.cell.is_giving() {
                    if let Some((cached, dirty)) = &mut client.cache
                        && *cached == value
                    {
                        *dirty = false;
                    }
                    self.give(from, fault);
                }
            }
        }
        Ok(())
    }

    fn grant(&mut self, to: usize, token: Token) -> Result<(), String> {
        let Some(wish) = self.clients[to].wish else { return Ok(()) };
        let life = self.life;
        if self.clients[to].cell.is_giving() {
            // What comes is not mixed with what goes: looked at again afterwards.
            self.send(Message::Grant { to, token });
            return Ok(());
        }
        self.clients[to].wish = None;
        if self.clients[to].cell.granted(token, false) {
            return self.operate(to, wish);
        }
        // It was recalled before it came: asked for anew.
        if let Enter::Ask = self.clients[to].cell.enter(mode_of(wish)) {
            self.clients[to].wish = Some(wish);
            self.send(Message::Acquire { from: to, mode: mode_of(wish), life });
        }
        Ok(())
    }

    fn recall(&mut self, to: usize, kind: u8, mut token: Token, fault: Fault) {
        let life = self.life;
        if kind == 1 {
            let tokens = self.clients[to].cell.token(INO).into_iter().collect();
            return self.send(Message::Claim { from: to, tokens, life });
        }
        if fault == Fault::ForgetEarlyRecalls && token.serial > self.clients[to].cell.serial() {
            let lost = Token { mode: TokenMode::None, ..token };
            return self.send(Message::Release { from: to, token: lost, life });
        }
        token.ino = INO;
        match self.clients[to].cell.recalled(token, TokenMode::Read, false) {
            Recalled::Answer(token) => {
                if token.mode < TokenMode::Read && fault != Fault::KeepCache {
                    self.clients[to].cache = None;
                }
                self.send(Message::Release { from: to, token, life });
            }
            Recalled::UnderWay | Recalled::Begin => {}
        }
    }

    /// Two worlds that can do the same look the same.
    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let messages: BTreeSet<&Message> = self.messages.iter().map(|(_, message)| message).collect();
        format!(
            "{:?}{:?}{:?}{:?}{:?}{:?}{:?}{:?}{:?}{:?}",
            self.tokens,
            self.next_grant,
            self.asked,
            self.clients,
            messages,
            self.stored,
            self.last,
            self.fenced,
            self.may_end,
            (self.may_restart, self.may_repeat, self.life)
        )
        .hash(&mut hasher);
        hasher.finish()
    }
}

fn mode_of(wish: Wish) -> TokenMode {
    match wish {
        Wish::Read => TokenMode::Read,
        Wish::Write => TokenMode::Write,
    }
}

/// Visits every world that can be reached, at most `worlds_max`; how many there are, or what is broken.
fn explore(start: World, fault: Fault, worlds_max: usize) -> Result<usize, String> {
    let mut seen = HashSet::from([start.fingerprint()]);
    let mut open = vec![start];
    while let Some(world) = open.pop() {
        let steps = world.steps(fault)?;
        let waiting = world.clients.iter().position(|client| client.wish.is_some() && !client.ended);
        if let (true, Some(at)) = (steps.is_empty(), waiting) {
            return Err(format!("client {at} waits for ever: {world:?}"));
        }
        for next in steps {
            if seen.len() < worlds_max && seen.insert(next.fingerprint()) {
                open.push(next);
            }
        }
    }
    Ok(seen.len())
}

fn worlds_max() -> usize {
    std::env::var("ROPEWALK_MODEL_WORLDS").ok().and_then(|n| n.parse().ok()).unwrap_or(400_000)
}

#[test]
fn no_interleaving_breaks_what_must_hold() {
    for (operations, may_end, may_restart, may_repeat) in
        [(2, false, false, true), (2, true, false, false), (1, false, true, false)]
    {
        let start = World::new(operations, may_end, may_restart, may_repeat);
        let worlds = explore(start, Fault::None, worlds_max()).unwrap();
        println!("{operations} operations each, end {may_end}, restart {may_restart}: {worlds} worlds");
        assert!(worlds > 500 && worlds < worlds_max(), "{worlds}: not all, or hardly any");
    }
}

#[test]
fn each_planted_fault_is_found() {
    for (fault, may_end, may_restart, may_repeat) in [
        (Fault::ReleaseBeforeStoring, false, false, false),
        (Fault::MoveOnBeforeFence, true, false, false),
        (Fault::ForgetEarlyRecalls, false, false, false),
        (Fault::NoClaims, false, true, false),
        (Fault::KeepCache, false, false, false),
        (Fault::TrustLateReleases, false, false, true),
    ] {
        let found = explore(World::new(3, may_end, may_restart, may_repeat), fault, worlds_max() * 4);
        let broken = found.expect_err(&format!("{fault:?} is not found"));
        println!("{fault:?}: {broken}");
    }
}
