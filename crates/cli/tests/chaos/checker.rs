//! The judge, outside the file system: from what was done and acknowledged it knows what may be there. Pure: it takes
//! operations with their outcomes, and what was seen.
//!
//! A write counts from its answer on; it must survive the end of its mount from the answer of an fsync on. What was not
//! fsynced when an fsync failed (its mount died, or was fenced) may be there or not, each cell by itself. An
//! operation that failed may have happened. What was seen when all was at rest, and fsynced, stays.

use std::collections::{BTreeMap, BTreeSet};

use super::cells::Seen;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Acknowledged bytes are zeros, or beyond the end.
    Lost,
    /// Older bytes than the acknowledged ones.
    Stale,
    /// Bytes that nobody wrote there.
    Foreign,
    /// A record in parts, twice, or in another order.
    Append,
    /// A name that must be there is not, or one that must not be is.
    Name,
    /// Two hold one exclusive lock.
    Lock,
    /// A call failed that must not.
    Error,
    /// A call that took longer than its deadline.
    Wait,
    /// A process is gone that nobody killed.
    Process,
    /// A pdisk does not become `ok` again, or a stripe is not whole.
    NotOk,
    /// Descriptors, threads or memory are not given back.
    Growth,
    /// None: a fault that was called one.
    Planted,
}

/// What is wrong, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    pub class: Class,
    pub text: String,
}

/// One violation.
pub fn violation(class: Class, text: impl Into<String>) -> Violation {
    Violation { class, text: text.into() }
}

/// Something that is set again and again by one writer.
#[derive(Clone, Debug, Default)]
struct Register {
    /// What it can be on the disks; `[]` is 0.
    firm: Vec<u32>,
    /// Set since, in order: what to, and whether that was acknowledged.
    since: Vec<(Vec<u32>, bool)>,
}

impl Register {
    fn firm(&self) -> Vec<u32> {
        if self.firm.is_empty() { vec![0] } else { self.firm.clone() }
    }

    /// What a read can see while the writer's mount lives.
    fn live(&self) -> Vec<u32> {
        let mut may = Vec::new();
        for (values, acknowledged) in self.since.iter().rev() {
            may.extend(values);
            if *acknowledged {
                return unique(may);
            }
        }
        may.extend(self.firm());
        unique(may)
    }

    /// What can be seen when the writer's mount may have died.
    fn any(&self) -> Vec<u32> {
        unique(self.since.iter().flat_map(|(values, _)| values.clone()).chain(self.firm()).collect())
    }

    fn set(&mut self, values: Vec<u32>, acknowledged: bool) {
        self.since.push((values, acknowledged));
    }

    fn sync(&mut self) {
        (self.firm, self.since) = (self.live(), Vec::new());
    }

    /// Whatever it is, it is so much at least.
    fn reach(&mut self, least: u32) {
        self.firm = self.firm();
        let since = self.since.iter_mut().flat_map(|(values, _)| values);
        self.firm.iter_mut().chain(since).for_each(|value| *value = least.max(*value));
    }

    fn lose(&mut self) {
        (self.firm, self.since) = (self.any(), Vec::new());
    }
}

fn unique(mut values: Vec<u32>) -> Vec<u32> {
    values.sort_unstable();
    values.dedup();
    values
}

/// When something is looked at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// While the writer works, and no mount concerned is in a fault.
    Live,
    /// While the writer's mount may have died.
    Doubt,
    /// At rest: what was written is fsynced, or given up.
    Rest,
}

/// A file with one writer.
#[derive(Clone, Debug)]
pub struct Bytes {
    /// Its number in its cells.
    pub file: u32,
    cells: Vec<Register>,
    len: Register,
    /// Something was lost since it was last seen at rest: its length may be one of a part of a write.
    loose: bool,
}

impl Bytes {
    pub fn new(file: u32) -> Bytes {
        Bytes { file, cells: Vec::new(), len: Register::default(), loose: false }
    }

    /// Its length in cells, or one that it may have.
    pub fn len(&self) -> u32 {
        self.len.live().last().copied().unwrap_or(0)
    }

    /// Cells were written, durably at once if `firm`.
    pub fn wrote(&mut self, first: u32, count: u32, tag: u32, acknowledged: bool, firm: bool) {
        let end = first + count;
        let lens: Vec<u32> = self.len.live().into_iter().map(|len| len.max(end)).collect();
        self.cells.resize(self.cells.len().max(end as usize), Register::default());
        self.loose |= !acknowledged;
        let cells = &mut self.cells[first as usize..end as usize];
        for register in cells.iter_mut() {
            register.set(vec![tag], acknowledged);
        }
        self.len.set(unique(lens), acknowledged);
        if firm && acknowledged {
            cells.iter_mut().for_each(Register::sync);
            // No more than that: what an earlier write added behind it is not durable by this one.
            self.len.reach(end);
        }
    }

    /// The file was cut, or made longer.
    pub fn truncated(&mut self, len: u32, acknowledged: bool) {
        for register in self.cells.iter_mut().skip(len as usize) {
            register.set(vec![0], acknowledged);
        }
        self.len.set(vec![len], acknowledged);
    }

    /// An fsync ended. One that failed gives up what was not fsynced.
    pub fn synced(&mut self, acknowledged: bool) {
        let all = self.cells.iter_mut().chain([&mut self.len]);
        if acknowledged {
            all.for_each(Register::sync);
        } else {
            all.for_each(Register::lose);
            self.loose = true;
        }
    }

    /// Whether these cells, from `first` on, may be there; `whole` says that the file ends with them.
    pub fn check(&self, first: u32, seen: &[Seen], whole: bool, when: When) -> Vec<Violation> {
        let mut wrong = Vec::new();
        let may = |register: &Register| if when == When::Doubt { register.any() } else { register.live() };
        let end = first + seen.len() as u32;
        if whole {
            let lens = may(&self.len);
            let between = (self.loose || when == When::Doubt)
                && lens.first().is_some_and(|least| *least <= end)
                && lens.last().is_some_and(|most| *most >= end);
            if !lens.contains(&end) && !between {
                let class = if lens.iter().all(|len| *len > end) { Class::Lost } else { Class::Stale };
                let text = format!("file {} has {end} cells, and may have {lens:?}", self.file);
                wrong.push(violation(class, text));
            }
        }
        let empty = Register::default();
        for (place, seen) in (first..).zip(seen) {
            let may = may(self.cells.get(place as usize).unwrap_or(&empty));
            let at = format!("file {} cell {place}", self.file);
            let (class, text) = match *seen {
                Seen::Zero if may.contains(&0) => continue,
                Seen::Zero => (Class::Lost, format!("{at}: zeros, and it may hold {may:?}")),
                Seen::Foreign => (Class::Foreign, format!("{at}: bytes that nobody wrote")),
                Seen::Cell { file, place: of, tag, .. } if (file, of) != (self.file, place) => {
                    (Class::Foreign, format!("{at}: write {tag} of file {file} cell {of}"))
                }
                Seen::Cell { tag, .. } if may.contains(&tag) => continue,
                Seen::Cell { tag, .. } => {
                    (Class::Stale, format!("{at}: write {tag}, and it may hold {may:?}"))
                }
            };
            wrong.push(violation(class, text));
        }
        // Cells beyond what is there: absent is as zeros.
        if whole && !self.loose && when != When::Doubt {
            for (place, register) in self.cells.iter().enumerate().skip(end as usize) {
                if !may(register).contains(&0) {
                    wrong.push(violation(
                        Class::Lost,
                        format!("file {} cell {place}: beyond the end", self.file),
                    ));
                }
            }
        }
        wrong
    }

    /// What was seen of the whole file at rest is so from now on.
    pub fn saw(&mut self, seen: &[Seen]) {
        self.cells.resize(self.cells.len().max(seen.len()), Register::default());
        for (place, register) in self.cells.iter_mut().enumerate() {
            let tag = match seen.get(place) {
                Some(Seen::Cell { tag, .. }) => *tag,
                _ => 0,
            };
            *register = Register { firm: vec![tag], since: Vec::new() };
        }
        self.len = Register { firm: vec![seen.len() as u32], since: Vec::new() };
        self.loose = false;
    }
}

/// A file that many append records to.
#[derive(Clone, Debug, Default)]
pub struct Appended {
    /// What was seen at rest: it stays as it is.
    known: Vec<Seen>,
    /// By writer, in order: number of the record, cells, acknowledged, fsynced.
    records: BTreeMap<u32, Vec<(u32, u32, bool, bool)>>,
}

impl Appended {
    pub fn appended(&mut self, writer: u32, tag: u32, parts: u32, acknowledged: bool) {
        self.records.entry(writer).or_default().push((tag, parts, acknowledged, false));
    }

    /// An fsync of this writer ended well.
    pub fn synced(&mut self, writer: u32) {
        for record in self.records.entry(writer).or_default() {
            record.3 |= record.2;
        }
    }

    /// The whole file at rest: what was known, then every fsynced record once, whole, each writer's in order.
    pub fn check(&self, file: u32, seen: &[Seen]) -> Vec<Violation> {
        let mut wrong = Vec::new();
        let wrongly = |class, text: String| violation(class, format!("appended file {file}: {text}"));
        if seen.get(..self.known.len()) != Some(self.known.as_slice()) {
            let at = self.known.iter().zip(seen).position(|(a, b)| a != b).unwrap_or(seen.len());
            return vec![wrongly(Class::Lost, format!("what was there is no more, from cell {at} on"))];
        }
        let mut found: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let (mut at, mut holes, mut order) = (self.known.len(), 0, Vec::new());
        while at < seen.len() {
            let Seen::Cell { file: of, tag, parts, .. } = seen[at] else {
                if seen[at] == Seen::Foreign {
                    wrong.push(wrongly(Class::Foreign, format!("cell {at}: bytes that nobody wrote")));
                }
                (at, holes) = (at + 1, holes + 1);
                continue;
            };
            if of != file {
                wrong.push(wrongly(Class::Foreign, format!("cell {at}: of file {of}")));
            }
            let whole = (0..parts).take_while(|i| {
                seen.get(at + *i as usize) == Some(&Seen::Cell { file: of, place: *i, tag, parts })
            });
            let whole = whole.count() as u32;
            found.entry(tag).or_default().push(whole);
            order.push(tag);
            at += whole.max(1) as usize;
        }
        let mut lost_cells = 0;
        for (writer, records) in &self.records {
            let mut last = 0;
            for &(tag, parts, acknowledged, firm) in records {
                let times = found.remove(&tag).unwrap_or_default();
                let who = format!("record {tag} of writer {writer}");
                if !firm && times != [parts] {
                    lost_cells += parts;
                }
                match times.as_slice() {
                    [] if firm => wrong.push(wrongly(Class::Lost, format!("{who} was fsynced and is lost"))),
                    [] => {}
                    [n] if *n == parts || !firm => {}
                    [n] => wrong.push(wrongly(Class::Append, format!("{who}: {n} of {parts} cells"))),
                    more if firm || more.iter().all(|n| *n == parts) => {
                        wrong.push(wrongly(Class::Append, format!("{who} is there {} times", more.len())));
                    }
                    _ => {}
                }
                if let Some(place) = order.iter().position(|t| *t == tag).filter(|_| acknowledged) {
                    if place < last {
                        wrong.push(wrongly(Class::Append, format!("{who} stands before an earlier one")));
                    }
                    last = place;
                }
            }
        }
        for tag in found.keys() {
            wrong.push(wrongly(Class::Foreign, format!("record {tag} was not appended now")));
        }
        if holes > lost_cells {
            wrong.push(wrongly(Class::Lost, format!("{holes} cells of zeros, {lost_cells} can be missing")));
        }
        wrong
    }

    /// What was seen at rest is so from now on.
    pub fn saw(&mut self, seen: &[Seen]) {
        self.known = seen.to_vec();
        self.records.clear();
    }
}

/// What became of an operation on names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    Done,
    /// The name is there, or is not: nothing happened.
    Refused,
    /// Any other error: it may have happened.
    Unknown,
}

/// An operation on names of one worker.
#[derive(Clone, Debug)]
pub enum NameOp {
    /// O_EXCL; the file holds this tag.
    Create(String, u32),
    Rename(String, String),
    Link(String, String),
    Unlink(String),
}

type World = BTreeMap<String, u32>;

/// The names of one worker: every state that they may be in. No state mixes the halves of an operation.
#[derive(Clone, Debug)]
pub struct Names {
    worlds: Vec<World>,
    /// Files whose content was not acknowledged.
    loose: BTreeSet<u32>,
}

impl Default for Names {
    fn default() -> Names {
        Names { worlds: vec![World::new()], loose: BTreeSet::new() }
    }
}

/// The world after it, if it can be done.
fn after(world: &World, op: &NameOp) -> Option<World> {
    let mut next = world.clone();
    match op {
        NameOp::Create(name, tag) => next.insert(name.clone(), *tag).is_none(),
        NameOp::Rename(from, to) => match next.remove(from) {
            // Two names of one file: nothing happens.
            Some(tag) if next.get(to) == Some(&tag) => {
                next.insert(from.clone(), tag);
                true
            }
            Some(tag) => {
                next.insert(to.clone(), tag);
                true
            }
            None => false,
        },
        NameOp::Link(from, to) => match next.get(from).copied() {
            Some(tag) => next.insert(to.clone(), tag).is_none(),
            None => false,
        },
        NameOp::Unlink(name) => next.remove(name).is_some(),
    }
    .then_some(next)
}

impl Names {
    /// Whether it is known which names are there.
    pub fn is_certain(&self) -> bool {
        self.worlds.len() == 1
    }

    /// The content of a file was not acknowledged.
    pub fn loosen(&mut self, tag: u32) {
        self.loose.insert(tag);
    }

    /// The content of the file with this name is lost.
    pub fn loosen_named(&mut self, name: &str) {
        self.loose.extend(self.worlds.iter().filter_map(|world| world.get(name)));
    }

    /// Whether the content of that file may be missing.
    pub fn is_loose(&self, tag: u32) -> bool {
        self.loose.contains(&tag)
    }

    /// An operation ended.
    pub fn did(&mut self, op: &NameOp, outcome: Outcome) -> Option<Violation> {
        let can = |world: &World| after(world, op);
        let next: Vec<World> = match outcome {
            Outcome::Done => self.worlds.iter().filter_map(can).collect(),
            Outcome::Refused => self.worlds.iter().filter(|w| can(w).is_none()).cloned().collect(),
            Outcome::Unknown => {
                // It may be there, and nobody filled it.
                if let NameOp::Create(_, tag) = op {
                    self.loosen(*tag);
                }
                self.worlds.iter().flat_map(|w| [Some(w.clone()), can(w)]).flatten().collect()
            }
        };
        if next.is_empty() {
            let text = format!("{op:?} was {outcome:?}, which cannot be with {:?}", self.worlds);
            return Some(violation(Class::Name, text));
        }
        self.worlds = next;
        self.worlds.dedup();
        None
    }

    /// All names of this worker at rest, with their tags (`None`: no content).
    pub fn check(&mut self, seen: &BTreeMap<String, Option<u32>>) -> Option<Violation> {
        let fits = |world: &&World| {
            world.len() == seen.len()
                && world.iter().all(|(name, tag)| match seen.get(name) {
                    Some(Some(found)) => found == tag,
                    Some(None) => self.loose.contains(tag),
                    None => false,
                })
        };
        match self.worlds.iter().find(fits).cloned() {
            Some(world) => {
                self.worlds = vec![world];
                None
            }
            None => {
                let text = format!("the names are {seen:?}, and may be {:?}", self.worlds);
                Some(violation(Class::Name, text))
            }
        }
    }
}

/// An exclusive lock was surely held, from the answer of lock to the call of unlock (or the end of its mount).
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    pub worker: u32,
    pub from: u64,
    pub to: u64,
}

/// Two that held one lock at a time.
pub fn held_twice(holds: &[Hold]) -> Option<Violation> {
    let mut holds = holds.to_vec();
    holds.sort_by_key(|hold| hold.from);
    let mut latest: Option<Hold> = None;
    for hold in holds {
        if let Some(other) = latest.filter(|other| other.to > hold.from && other.worker != hold.worker) {
            return Some(violation(Class::Lock, format!("{other:?} and {hold:?}")));
        }
        if latest.is_none_or(|other| other.to < hold.to) {
            latest = Some(hold);
        }
    }
    None
}
