//! What survives: the manager's store and the strips of one pdisk, in memory. What may be done to a strip is decided by
//! `pdisk::rules`.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use base::{FsId, Grant, GroupId, PoolId, StripId, Version, units::UNIT};
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

/// One version of a strip.
#[derive(Clone)]
struct Held {
    info: VersionInfo,
    bytes: Vec<u8>,
    crcs: Vec<u32>,
}

#[derive(Default)]
struct Strip {
    pool: PoolId,
    group: GroupId,
    adopted: Option<Held>,
    prepared: Option<Held>,
    sealed_below: Grant,
}

/// The strips of a pdisk.
#[derive(Default)]
pub struct Strips(BTreeMap<StripId, Strip>);

type Refused<T> = Result<T, StripRefusal>;

impl Strips {
    /// Carries out one admitted request.
    pub fn carry_out(&mut self, request: NsdRequest, payload: &Bytes) -> (NsdReply, Bytes) {
        let none = Bytes::new();
        let done = |result: Refused<()>| result.map_or_else(refused, |()| NsdReply::Done);
        let reply = match request {
            NsdRequest::Prepare { strip, .. } => done(self.prepare(&strip, payload)),
            NsdRequest::Install { strip, .. } => done(self.install(&strip, payload)),
            NsdRequest::Adopt { items, .. } => {
                NsdReply::Outcomes(items.into_iter().map(|(id, version)| self.adopt(id, version)).collect())
            }
            NsdRequest::Discard { items, .. } => {
                NsdReply::Outcomes(items.into_iter().map(|(id, version)| self.discard(id, version)).collect())
            }
            NsdRequest::Seal { strips, below, .. } => {
                for id in &strips {
                    let strip = self.0.entry(*id).or_default();
                    strip.sealed_below = strip.sealed_below.max(below);
                }
                self.states(strips.into_iter(), usize::MAX)
            }
            NsdRequest::State { strips, .. } => self.states(strips.into_iter(), usize::MAX),
            NsdRequest::ListGroup { pool, group, after, limit, .. } => {
                let of = |strip: &Strip| (strip.pool, strip.group) == (pool, group);
                self.states(self.after(after, of).into_iter(), limit as usize)
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
        let rest = self.0.iter().filter(|(id, _)| after.is_none_or(|after| **id > after));
        rest.filter(|(_, strip)| of(strip)).map(|(id, _)| *id).collect()
    }

    fn state(&self, id: StripId) -> StripState {
        let none = Strip::default();
        let strip = self.0.get(&id).unwrap_or(&none);
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
        let strip = self.0.entry(request.strip).or_default();
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

    fn install(&mut self, request: &PrepareStrip, payload: &Bytes) -> Refused<()> {
        checked(request, payload)?;
        rules::install(&self.state(request.strip), request.info.version)?;
        let strip = self.0.entry(request.strip).or_default();
        (strip.pool, strip.group) = (request.pool, request.group);
        (strip.adopted, strip.prepared) = (Some(over(None, request, payload)), None);
        Ok(())
    }

    fn adopt(&mut self, id: StripId, version: Version) -> Refused<()> {
        if rules::adopt(&self.state(id), version)? == rules::Action::Apply {
            let strip = self.0.entry(id).or_default();
            strip.adopted = strip.prepared.take();
        }
        Ok(())
    }

    fn discard(&mut self, id: StripId, version: Version) -> Refused<()> {
        if rules::discard(&self.state(id), version)? == rules::Action::Apply {
            self.0.entry(id).or_default().prepared = None;
        }
        Ok(())
    }

    fn delete(&mut self, item: &DeleteStrips) {
        let of = |id: &StripId, fs: FsId| {
            let stripe = id.stripe;
            stripe.fs == fs && stripe.inode == item.inode && (item.first..=item.last).contains(&stripe.block)
        };
        for (_, strip) in self.0.iter_mut().filter(|(id, _)| of(id, item.fs)) {
            let stays = |held: &Held| held.info.version > item.highest;
            strip.adopted = strip.adopted.take().filter(stays);
            strip.prepared = strip.prepared.take().filter(stays);
        }
    }

    fn read(&self, read: &ReadStrip) -> Refused<(StripRead, Bytes)> {
        let strip = self.0.get(&read.strip).ok_or(StripRefusal::Absent)?;
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
    let (mut bytes, mut crcs) = base.map(|held| (held.bytes, held.crcs)).unwrap_or_default();
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
    Held { info: request.info.clone(), bytes, crcs }
}
