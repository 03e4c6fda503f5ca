//! What survives: the manager's store and the strips of one pdisk, in memory. What may be done to a strip is decided by
//! `pdisk::rules`.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use base::{Grant, GroupId, PoolId, StripId, Version, units::UNIT};
use bytes::Bytes;
use manager::store::{Changes, Read, Snapshot, Store, StoreError, Visit};
use pdisk::rules;
use wire::{
    crc::{crc32c, unit_crcs},
    nsd::{NsdRefusal, NsdReply, NsdRequest},
    strip::{
        DeleteStrips, PrepareStrip, ReadStrip, ReadVersion, StripRead, StripRefusal, StripState, VersionInfo,
    },
};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// The manager's store as one life of it has it open. Who is killed commits nothing more.
#[derive(Clone, Default)]
pub struct Kept {
    /// Now, and before the last commit.
    states: Arc<Mutex<(Arc<Map>, Arc<Map>)>>,
    killed: Arc<AtomicBool>,
}

struct Seen(Arc<Map>);

impl Read for Seen {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.0.get(key).cloned())
    }
    fn scan(&self, start: &[u8], end: &[u8], visit: Visit<'_>) -> Result<(), StoreError> {
        let range = if start < end { self.0.range(start.to_vec()..end.to_vec()) } else { Default::default() };
        for (key, value) in range {
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }
}

impl Kept {
    pub fn kill(&self) {
        self.killed.store(true, SeqCst);
    }

    /// For the next life. `behind`: the last commit was acknowledged and is lost.
    pub fn next_life(&self, behind: bool) -> Kept {
        if behind {
            let mut states = self.states.lock().unwrap();
            states.0 = states.1.clone();
        }
        Kept { states: self.states.clone(), killed: Arc::default() }
    }
}

impl Store for Kept {
    fn snapshot(&self) -> Result<Snapshot, StoreError> {
        Ok(Arc::new(Seen(self.states.lock().unwrap().0.clone())))
    }
    fn commit(&self, changes: &Changes) -> Result<(), StoreError> {
        if self.killed.load(SeqCst) {
            return Err(StoreError::Engine { action: "commit to the", reason: "killed".into() });
        }
        let mut states = self.states.lock().unwrap();
        let mut next = (*states.0).clone();
        for (key, value) in changes {
            match value {
                Some(value) => drop(next.insert(key.clone(), value.clone())),
                None => drop(next.remove(key)),
            }
        }
        let before = std::mem::replace(&mut states.0, Arc::new(next));
        states.1 = before;
        Ok(())
    }
    fn describe(&self) -> String {
        "memory".into()
    }
    fn waits(&self) -> bool {
        false
    }
}

/// One version of a strip. Its bytes are not copied with it.
#[derive(Clone)]
struct Held {
    info: VersionInfo,
    bytes: Bytes,
    crcs: Vec<u32>,
}

#[derive(Clone, Default)]
struct Strip {
    pool: PoolId,
    group: GroupId,
    adopted: Option<Held>,
    prepared: Option<Held>,
    sealed_below: Grant,
    /// Something was done to it in this life of its server.
    touched: bool,
}

/// The strips of a pdisk.
#[derive(Default)]
pub struct Strips {
    here: BTreeMap<StripId, Strip>,
    changes: u64,
    /// Of this life.
    deletes: Vec<DeleteStrips>,
    /// Before the last change of one strip.
    before: Option<(StripId, Strip)>,
}

type Refused<T> = Result<T, StripRefusal>;

impl Strips {
    /// Carries out one admitted request.
    pub fn carry_out(&mut self, request: NsdRequest, payload: &Bytes) -> (NsdReply, Bytes) {
        let none = Bytes::new();
        let done = |result: Refused<()>| result.map_or_else(refused, |()| NsdReply::Done);
        let reply = match request {
            NsdRequest::Prepare { strip, .. } => done(self.prepare(&strip, payload)),
            NsdRequest::Install { strip, .. } => done(self.install(&strip, payload, self.deletes.len())),
            NsdRequest::Adopt { items, .. } => {
                NsdReply::Outcomes(items.into_iter().map(|(id, version)| self.adopt(id, version)).collect())
            }
            NsdRequest::Discard { items, .. } => {
                NsdReply::Outcomes(items.into_iter().map(|(id, version)| self.discard(id, version)).collect())
            }
            NsdRequest::Seal { strips, below, .. } => {
                for id in &strips {
                    let strip = self.change(*id);
                    strip.sealed_below = strip.sealed_below.max(below);
                }
                self.states(strips.into_iter(), usize::MAX)
            }
            NsdRequest::State { strips, .. } => self.states(strips.into_iter(), usize::MAX),
            NsdRequest::ListGroup { pool, group, after, limit, .. } => {
                let mut states = self.list_group(pool, group, after);
                let more = states.len() > limit as usize;
                states.truncate(limit as usize);
                NsdReply::States { states, more }
            }
            NsdRequest::ListPrepared { fs, after, limit, .. } => {
                let listed = self.after(after, |strip| strip.prepared.is_some());
                self.states(listed.into_iter().filter(|id| id.stripe.fs == fs), limit as usize)
            }
            NsdRequest::Read { read, .. } => match self.read(&read) {
                Ok((read, bytes)) => return (NsdReply::Read(read), bytes),
                Err(refusal) => refused(refusal),
            },
            NsdRequest::Delete { items, .. } => {
                items.iter().for_each(|item| self.delete(item));
                NsdReply::Done
            }
            NsdRequest::Suspect { strip, .. } => panic!("{strip} does not match its CRCs"),
        };
        (reply, none)
    }

    fn after(&self, after: Option<StripId>, of: impl Fn(&Strip) -> bool) -> Vec<StripId> {
        let rest = self.here.iter().filter(|(id, _)| after.is_none_or(|after| **id > after));
        rest.filter(|(_, strip)| of(strip)).map(|(id, _)| *id).collect()
    }

    /// A strip that is changed.
    fn change(&mut self, id: StripId) -> &mut Strip {
        self.changes += 1;
        let strip = self.here.entry(id).or_default();
        self.before = Some((id, strip.clone()));
        strip.touched = true;
        strip
    }

    /// Changes since it was made: how far its log is.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    pub fn deletes_seen(&self) -> usize {
        self.deletes.len()
    }

    /// The server has died. `behind`: what it changed last is lost.
    pub fn end_life(&mut self, behind: bool) {
        if let Some((id, strip)) = self.before.take().filter(|_| behind) {
            self.here.insert(id, strip);
        }
        self.deletes.clear();
        self.here.values_mut().for_each(|strip| strip.touched = false);
    }

    pub fn list_group(&self, pool: PoolId, group: GroupId, after: Option<StripId>) -> Vec<StripState> {
        let of = |strip: &Strip| (strip.pool, strip.group) == (pool, group);
        self.after(after, of).into_iter().map(|id| self.state(id)).collect()
    }

    pub fn state(&self, id: StripId) -> StripState {
        let none = Strip::default();
        let strip = self.here.get(&id).unwrap_or(&none);
        let info = |held: &Option<Held>| held.as_ref().map(|held| held.info.clone());
        StripState {
            strip: id,
            pool: strip.pool,
            group: strip.group,
            adopted: info(&strip.adopted),
            prepared: info(&strip.prepared),
            sealed_below: strip.sealed_below,
            lost: false,
        }
    }

    fn states(&self, ids: impl Iterator<Item = StripId>, limit: usize) -> NsdReply {
        let mut ids = ids.peekable();
        let states = ids.by_ref().take(limit).map(|id| self.state(id)).collect();
        NsdReply::States { states, more: ids.peek().is_some() }
    }

    fn prepare(&mut self, request: &PrepareStrip, payload: &Bytes) -> Refused<()> {
        checked(request, payload)?;
        let decision = rules::prepare(&self.state(request.strip), request);
        if decision.adopt.is_none() {
            decision.then.clone()?;
        }
        let strip = self.change(request.strip);
        if decision.adopt.is_some() {
            strip.adopted = strip.prepared.take();
        }
        if decision.then? == rules::PrepareAction::Store {
            (strip.pool, strip.group) = (request.pool, request.group);
            let base = strip.adopted.clone().filter(|_| request.base.is_some());
            strip.prepared = Some(over(base, request, payload));
        }
        Ok(())
    }

    /// `since`: deletes that had been seen when it was begun.
    pub fn install(&mut self, request: &PrepareStrip, payload: &Bytes, since: usize) -> Refused<()> {
        checked(request, payload)?;
        let present = request.info.version;
        let deleted = |item: &DeleteStrips| covers(item, &request.strip) && item.highest >= present;
        // A life remembers them all.
        if since > self.deletes.len() || self.deletes.iter().any(deleted) {
            return Err(StripRefusal::NotNewer { present });
        }
        rules::install(&self.state(request.strip), present)?;
        let strip = self.change(request.strip);
        (strip.pool, strip.group) = (request.pool, request.group);
        (strip.adopted, strip.prepared) = (Some(over(None, request, payload)), None);
        Ok(())
    }

    pub fn adopt(&mut self, id: StripId, version: Version) -> Refused<()> {
        if rules::adopt(&self.state(id), version)? == rules::Action::Apply {
            let strip = self.change(id);
            strip.adopted = strip.prepared.take();
        }
        Ok(())
    }

    pub fn discard(&mut self, id: StripId, version: Version) -> Refused<()> {
        if rules::discard(&self.state(id), version)? == rules::Action::Apply {
            self.change(id).prepared = None;
        }
        Ok(())
    }

    fn left_over(&self, id: StripId, version: Version) -> bool {
        let left = |strip: &&Strip| !strip.touched && version_of(&strip.prepared) == Some(version);
        self.here.get(&id).filter(left).is_some()
    }

    /// Drops what an earlier life left prepared; false if it is not that.
    pub fn discard_leftover(&mut self, id: StripId, version: Version) -> bool {
        let found = self.left_over(id, version);
        if found {
            self.change(id).prepared = None;
        }
        found
    }

    /// Adopts what an earlier life left prepared; false if it is not that.
    pub fn adopt_leftover(&mut self, id: StripId, version: Version) -> Refused<bool> {
        let found = self.left_over(id, version);
        if found {
            self.adopt(id, version)?;
        }
        Ok(found)
    }

    pub fn delete(&mut self, item: &DeleteStrips) {
        self.changes += 1;
        self.deletes.push(*item);
        for (_, strip) in self.here.iter_mut().filter(|(id, _)| covers(item, id)) {
            let stays = |held: &Held| held.info.version > item.highest;
            strip.adopted = strip.adopted.take().filter(stays);
            strip.prepared = strip.prepared.take().filter(stays);
        }
    }

    fn read(&self, read: &ReadStrip) -> Refused<(StripRead, Bytes)> {
        let strip = self.here.get(&read.strip).ok_or(StripRefusal::Absent)?;
        let versions = [&strip.adopted, &strip.prepared];
        let held = match read.version {
            ReadVersion::Adopted => strip.adopted.as_ref(),
            ReadVersion::Exactly(v) => versions.into_iter().flatten().find(|held| held.info.version == v),
        };
        let held = held.ok_or(StripRefusal::Absent)?;
        let (mut ranges, mut crcs, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
        for mut range in read.ranges.iter().copied().filter(|range| range.offset < held.info.len) {
            range.len = range.len.min(held.info.len - range.offset);
            let (from, to) = (range.offset as usize, range.end() as usize);
            bytes.extend_from_slice(&held.bytes[from..to]);
            crcs.extend_from_slice(&held.crcs[from / UNIT..to / UNIT]);
            ranges.push(range);
        }
        Ok((StripRead { info: held.info.clone(), ranges, crcs }, bytes.into()))
    }
}

fn covers(item: &DeleteStrips, id: &StripId) -> bool {
    let stripe = id.stripe;
    (stripe.fs, stripe.inode) == (item.fs, item.inode) && (item.first..=item.last).contains(&stripe.block)
}

fn version_of(held: &Option<Held>) -> Option<Version> {
    held.as_ref().map(|held| held.info.version)
}

fn refused(refusal: StripRefusal) -> NsdReply {
    NsdReply::Refused(NsdRefusal::Strip(refusal))
}

fn checked(request: &PrepareStrip, payload: &Bytes) -> Refused<()> {
    rules::well_formed(request, payload.len())?;
    assert!(unit_crcs(payload).eq(request.crcs.iter().copied()), "a payload does not match its CRCs");
    Ok(())
}

/// The new version: what came, over its base or zeros.
fn over(base: Option<Held>, request: &PrepareStrip, payload: &Bytes) -> Held {
    let (mut bytes, mut crcs) = base.map(|held| (held.bytes.to_vec(), held.crcs)).unwrap_or_default();
    let len = request.info.len as usize;
    bytes.resize(len, 0);
    crcs.resize(len / UNIT, crc32c(&[0; UNIT]));
    let mut at = 0;
    for range in &request.ranges {
        let (from, size) = (range.offset as usize, range.len as usize);
        bytes[from..from + size].copy_from_slice(&payload[at..at + size]);
        let units = range.units();
        crcs[from / UNIT..from / UNIT + units].copy_from_slice(&request.crcs[at / UNIT..at / UNIT + units]);
        at += size;
    }
    Held { info: request.info.clone(), bytes: bytes.into(), crcs }
}
