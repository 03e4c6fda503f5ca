//! A copy kept by another machine of the cluster ([`super::keeper`]).
//!
//! With the manager's machine gone nothing beside the copy can tell that it is behind. So the cluster's servers are the witness
//! ([`super::votes`]): before anything is acknowledged that the copy lacks, either its keeper has removed its number, or more than half
//! of the servers have recorded that it does not count. As long as neither is so the manager commits nothing, and says for what it
//! waits. Whoever promotes the copy has it recorded at the servers first. A server says one of both about a copy, for ever.
//!
//! So a manager whose copy was promoted, if it comes back, can commit nothing: its copy takes no more, and it cannot give it up either.
//! Nor does it answer reads that could be stale: while a copy counts it answers only within [`LEASE`] of the sending of something that
//! the keeper has confirmed ([`Confirmed`]), and a promotion lets that time pass after the keeper has ended.
//!
//! The witness ([`super::witness`]) says to the manager itself which copy may count. The vote is of the servers that the store
//! has, or the copy: a commit that changes them is made in an order in which a crash leaves no two that could pass each other
//! ([`super::order`]).

use std::{
    fmt,
    ops::ControlFlow,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use base::presence::boot_time;
use parking_lot::Mutex;
use wire::frame;

use super::{
    super::{Changes, Confirmed, JournaledStore, Read, Store as _, StoreError, Txn, files::random},
    message::{Answer, Ask, Life},
    order::{Order, order},
    place::{Copied, DEADLINE, Held, Place},
    until_end::UntilEnd,
    votes::{Voter, to_give_up, to_promote},
    way::Way,
    witness::{Said, Witness},
};

/// For so long after it has sent what the keeper confirmed a manager answers.
pub(super) const LEASE: Duration =
    if cfg!(test) { Duration::from_millis(300) } else { Duration::from_secs(3) };
/// How long servers, and a keeper that is to forget, may take.
const VOTE: Duration = if cfg!(test) { Duration::from_millis(200) } else { Duration::from_secs(2) };
/// Before they are asked again.
const PAUSE: Duration = if cfg!(test) { Duration::from_millis(10) } else { Duration::from_millis(300) };
/// Bytes of records or changes in a message, about.
const PART: usize = 1 << 20;

/// So often the keeper may say no to a commit: it has started anew, or its disk does not take it.
const REFUSALS_MAX: u32 = 3;

/// Finds the servers in a state of the store.
#[derive(Clone, Copy)]
pub struct Voters {
    /// The key of the record they are in.
    pub key: fn() -> Vec<u8>,
    /// Reads them.
    pub of: fn(&dyn Read) -> Result<Vec<Voter>, StoreError>,
}

/// See the module. Copies share it.
#[derive(Clone)]
pub struct Node(Arc<Inner>);

struct Inner {
    way: Box<dyn Way>,
    /// What the cluster calls the keeper.
    name: String,
    witness: Witness,
    voters: Voters,
    /// The last one that was begun.
    life: Mutex<Life>,
    confirmed: Confirmed,
    /// Whether a copy counts, so that the manager answers only as long as that is confirmed.
    counts: Mutex<bool>,
    waits: Mutex<Option<String>>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("name", &self.0.name).finish_non_exhaustive()
    }
}

fn failed(reason: impl Into<String>) -> StoreError {
    StoreError::Engine { action: "commit to the copy of the", reason: reason.into() }
}

fn failed_draw(error: std::io::Error) -> StoreError {
    StoreError::Engine { action: "draw a number for a copy of the", reason: error.to_string() }
}

/// What was asked for was not done.
enum No {
    /// As the keeper says.
    Said(String),
    /// As far as is known.
    Silent(String),
}

impl No {
    fn why(self) -> String {
        match self {
            No::Said(why) | No::Silent(why) => why,
        }
    }
}

impl Node {
    /// Kept by the manager of this name, for a manager whose `witness` says what it has kept so far.
    pub fn new(way: Box<dyn Way>, name: &str, witness: Witness, voters: Voters) -> Result<Node, StoreError> {
        let life = Life::draw().map_err(failed_draw)?;
        Ok(Node(Arc::new(Inner {
            way,
            name: name.to_owned(),
            witness,
            voters,
            life: Mutex::new(life),
            confirmed: Confirmed::default(),
            counts: Mutex::new(false),
            waits: Mutex::default(),
        })))
    }
}

impl Inner {
    /// An answer that is no refusal.
    fn ask(&self, ask: &Ask, patience: Duration) -> Result<Answer, No> {
        let silent = |why: String| No::Silent(format!("{} does not answer: {why}", self.name));
        let body = self.way.keeper(frame::encode(ask), patience).map_err(silent)?;
        match frame::decode(&body) {
            Ok(Answer::Refused { why }) => Err(No::Said(format!("{} says: {why}", self.name))),
            Ok(answer) => Ok(answer),
            Err(error) => Err(No::Said(format!("{} answers what is no answer: {error}", self.name))),
        }
    }

    fn something_else(&self) -> No {
        No::Said(format!("{} answers something else", self.name))
    }

    fn done(&self, ask: &Ask, patience: Duration) -> Result<(), No> {
        match self.ask(ask, patience)? {
            Answer::Done => Ok(()),
            _ => Err(self.something_else()),
        }
    }

    /// What must be done.
    fn order(&self, ask: &Ask) -> Result<(), StoreError> {
        self.done(ask, DEADLINE).map_err(|no| failed(no.why()))
    }

    /// From now on nothing of an earlier one is done any more.
    fn begin(&self) -> Life {
        let mut life = self.life.lock();
        *life = life.next();
        *life
    }

    fn look(&self, life: Life, patience: Duration) -> Result<(u64, Held), No> {
        match self.ask(&Ask::Look { life }, patience)? {
            Answer::Held { id, journal, last, tail } => Ok((id, ((journal, last), tail))),
            _ => Err(self.something_else()),
        }
    }

    /// The copy that counts.
    fn counting(&self, life: Life) -> Result<(u64, Held), String> {
        let Said::Whole(id) = self.witness.said().map_err(|error| error.to_string())? else {
            return Err("it lacks what was committed last".into());
        };
        let (there, held) = self.look(life, DEADLINE / 2).map_err(No::why)?;
        if there == id { Ok((id, held)) } else { Err("it is not the copy that was kept last".into()) }
    }

    /// Asks all servers to record that copy `id` does not count, as its keeper has not, for that reason. Some: too few have, for people;
    /// an error: it was promoted.
    fn give_up(&self, id: u64, kept: &str, voters: &[Voter]) -> Result<Option<String>, StoreError> {
        let need = to_give_up(voters.len());
        let body = frame::encode(&Ask::Vote { id, promoted: false });
        let (mut for_it, mut against, mut silent) = (0, 0, Vec::new());
        for (voter, heard) in voters.iter().zip(self.way.voters(voters, &body, VOTE)) {
            match heard.as_deref().map(frame::decode) {
                Ok(Ok(Answer::Stands { promoted: false })) => for_it += 1,
                Ok(Ok(Answer::Stands { promoted: true })) => against += 1,
                _ => silent.push(voter.name.as_str()),
            }
        }
        if for_it >= need {
            return Ok(None);
        }
        // Fewer may have recorded one that was begun and refused: nobody was promoted by that, and this may be the only store.
        if against > 0 && against >= to_promote(voters.len()) {
            return Err(StoreError::Engine {
                action: "go on with the",
                reason: format!(
                    "its copy on {} was promoted: that one is the manager now, and what this one has counts no more; move its directory away",
                    self.name
                ),
            });
        }
        let keeper = &self.name;
        // Between two commits that change the servers the copy may have one fewer than the store.
        let (begun, promoted) = match against {
            0 => (String::new(), String::new()),
            n => (
                format!(", {n} recorded a promotion instead, too few for one"),
                format!(". If {keeper} is the manager all the same, move this one's directory away"),
            ),
        };
        let (silent, those) = match silent.as_slice() {
            [] => (String::new(), ""),
            silent => (format!(", {} do not answer", silent.join(", ")), ", or those"),
        };
        Ok(Some(format!(
            "the copy of the manager's store on {keeper} is to be given up, and is not yet ({kept}): before anything is acknowledged \
             without it {need} of {} servers have to record that; {for_it} have{begun}{silent}. Start {keeper}{those}; else `ropewalk \
             manager mirror --off`{promoted}",
            voters.len(),
        )))
    }
}

impl Place for Node {
    fn name(&self) -> String {
        format!("on {}", self.0.name)
    }

    fn whole(&self) -> Result<(), String> {
        self.0.counting(self.0.begin()).map(drop)
    }

    fn open(&self, _: Option<u64>) -> Result<Box<dyn Copied>, String> {
        let inner = Arc::clone(&self.0);
        let life = inner.begin();
        let (id, held) = inner.counting(life)?;
        let (journal, last) = held.0;
        *inner.counts.lock() = true;
        Ok(Box::new(AtNode { of: inner, life, journal, last, id, held, counts: true }))
    }

    fn ready(&self) -> Result<(), StoreError> {
        self.0.order(&Ask::Ready)
    }

    fn make(
        &self,
        (journal, last): (u64, u64),
        from: &UntilEnd<'_>,
    ) -> Result<Option<Box<dyn Copied>>, StoreError> {
        let (of, life) = (Arc::clone(&self.0), self.0.begin());
        of.order(&Ask::Make { life, journal, last })?;
        let mut start = Vec::new();
        loop {
            let (mut records, mut bytes) = (Vec::new(), 0);
            from.scan(&start, &[u8::MAX; 16], &mut |key, value| {
                bytes += key.len() + value.len();
                records.push((key.to_vec(), value.to_vec()));
                if bytes < PART { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            if from.ended() {
                return Ok(None);
            }
            let Some((key, _)) = records.last() else { break };
            start = [key.as_slice(), &[0]].concat();
            of.order(&Ask::Records { life, last, records })?;
        }
        of.order(&Ask::Made { life })?;
        let id = random().map_err(failed_draw)?;
        let held = ((journal, last), None);
        Ok(Some(Box::new(AtNode { of, life, journal, last, id, held, counts: false })))
    }

    fn dismiss(&self, state: &dyn Read, ends: &AtomicBool) -> Result<(), StoreError> {
        let of = &self.0;
        for id in of.witness.named()? {
            let voters = (of.voters.of)(state)?;
            while let Err(no) = of.done(&Ask::Forget { id }, VOTE) {
                let Some(why) = of.give_up(id, &no.why(), &voters)? else { break };
                if of.waits.lock().replace(why.clone()).is_none() {
                    tracing::warn!("{why}");
                }
                if ends.load(Ordering::Relaxed) {
                    return Err(failed(why));
                }
                thread::sleep(PAUSE);
            }
            *of.waits.lock() = None;
        }
        of.witness.say(Said::Behind)?;
        // Nobody can take its place, and what comes late does not shorten that.
        let mut counts = of.counts.lock();
        *counts = false;
        of.confirmed.until(Duration::from_micros(u64::MAX));
        Ok(())
    }

    fn order(&self, store: &JournaledStore, changes: &Changes) -> Result<Order, StoreError> {
        let Voters { key, of } = self.0.voters;
        if !changes.contains_key(&key()) {
            return Ok(Order::Any);
        }
        let state = store.snapshot()?;
        let mut after = Txn::new(&*state);
        for (key, value) in changes {
            match value {
                Some(value) => after.put(key.clone(), value.clone()),
                None => after.delete(key.clone()),
            }
        }
        Ok(order(&of(&*state)?, &of(&after)?))
    }

    fn waits_for(&self) -> Option<String> {
        self.0.waits.lock().clone()
    }

    fn confirmed(&self) -> Option<Confirmed> {
        Some(self.0.confirmed.clone())
    }

    fn beats(&self) -> Duration {
        LEASE / 4
    }

    fn instead(&self, path: &Path, why: &str) -> StoreError {
        let reason = format!(
            "{why}. Nothing was changed. `ropewalk manager promote --from-mirror`, on the machine of {}, takes the copy; `ropewalk manager \
             mirror --off` gives it up",
            self.0.name
        );
        StoreError::Open { path: path.to_owned(), reason }
    }

    fn remedy(&self) -> &'static str {
        "that one answers, and has room"
    }
}

/// A copy there.
struct AtNode {
    of: Arc<Inner>,
    life: Life,
    journal: u64,
    last: u64,
    id: u64,
    held: Held,
    counts: bool,
}

impl AtNode {
    /// The keeper may have started anew, or the answer be lost: what it has says what is to be done.
    fn commit_settled(&self, parts: &[Changes], number: u64) -> Result<(), String> {
        let (life, until) = (self.life, Instant::now() + DEADLINE);
        let left = || until.saturating_duration_since(Instant::now());
        let Some((last, before)) = parts.split_last() else { return Ok(()) };
        let said = before.iter().map(|part| Ask::Part { life, number, changes: part.clone() });
        let asks: Vec<Ask> = said.chain([Ask::Commit { life, number, changes: last.clone() }]).collect();
        let mut refusals = 0;
        loop {
            let outcome = asks.iter().try_for_each(|ask| self.of.done(ask, left()));
            let Err(no) = outcome else { return Ok(()) };
            refusals += u32::from(matches!(no, No::Said(_)));
            let why = no.why();
            if !self.counts || left().is_zero() || refusals >= REFUSALS_MAX {
                return Err(why);
            }
            thread::sleep(PAUSE.min(left()));
            match self.of.look(life, left()) {
                Ok((id, ((journal, last), _)))
                    if id == self.id && journal == self.journal && (number - 1..=number).contains(&last) => {}
                Ok(_) => return Err(why),
                // Its disk may be full, or it may be about to start.
                Err(no) => refusals += u32::from(matches!(no, No::Said(_))),
            }
        }
    }

    /// The keeper has confirmed something that was sent then: nobody has promoted the copy since.
    fn confirm(&self, sent: Duration) {
        let counts = self.of.counts.lock();
        if *counts && self.counts {
            self.of.confirmed.until(sent + LEASE);
        }
    }
}

fn in_parts(changes: &Changes) -> Vec<Changes> {
    let (mut parts, mut bytes) = (vec![Changes::new()], 0);
    for (key, value) in changes {
        if bytes > PART {
            parts.push(Changes::new());
            bytes = 0;
        }
        bytes += key.len() + value.as_ref().map_or(0, Vec::len);
        if let Some(part) = parts.last_mut() {
            part.insert(key.clone(), value.clone());
        }
    }
    parts
}

impl Copied for AtNode {
    fn holds(&self) -> Held {
        self.held.clone()
    }

    fn commit(&mut self, changes: &Changes) -> Result<(), StoreError> {
        let sent = boot_time();
        self.commit_settled(&in_parts(changes), self.last + 1).map_err(failed)?;
        self.last += 1;
        self.confirm(sent);
        Ok(())
    }

    fn count(&mut self) -> Result<(), StoreError> {
        self.of.witness.say(Said::Whole(self.id))?;
        // From now on it may be promoted.
        *self.of.counts.lock() = true;
        self.of.confirmed.end();
        let sent = boot_time();
        self.of.order(&Ask::Count { life: self.life, id: self.id })?;
        self.counts = true;
        self.confirm(sent);
        Ok(())
    }

    fn beat(&mut self) -> Result<(), StoreError> {
        let until = Instant::now() + DEADLINE;
        loop {
            let sent = boot_time();
            let outcome = self.of.order(&Ask::Beat { life: self.life });
            if outcome.is_ok() {
                self.confirm(sent);
                return Ok(());
            }
            if until <= Instant::now() {
                return outcome;
            }
            thread::sleep(PAUSE);
            // One that has started anew is told whom to listen to.
            match self.of.look(self.life, until.saturating_duration_since(Instant::now())) {
                Ok((id, ((journal, last), _)))
                    if id == self.id && journal == self.journal && last == self.last => {}
                Ok(_) => return outcome,
                Err(_) => {} // it may be about to start
            }
        }
    }
}
