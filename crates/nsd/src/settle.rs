//! One strip of a served pdisk brought to what it should be: ask everybody, and the manager where its record decides,
//! judge, act. Used by catch-up and by repair. What it changes it changes through the pdisk's own rules, so that a write that comes
//! in between wins.

use std::time::Instant;

use base::{GroupId, OpClass, PdiskId, PoolId, StripIndex, StripeId, Version};
use bytes::{Bytes, BytesMut};
use stripe::{ClusterView, Geometry, StripeError, StripeIo};
use thiserror::Error;
use wire::{
    map::PdiskState,
    owned::Owner,
    strip::{DeleteStrips, StripRefusal, StripState},
};

use crate::{
    judge::{Seen, Verdict, Why, all_named, judge},
    records::{NoRecord, Records},
    strips::Strips,
};

/// What became of a strip.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settled {
    /// Nothing was to be done.
    Fine,
    /// It was in doubt, and can be read after all.
    Sound,
    /// A prepared version is adopted.
    Adopted,
    /// A left-over prepared version is gone.
    Discarded,
    /// Made anew: this many bytes.
    Installed(u64),
    /// Removed.
    Deleted,
    /// Given up: too few strips of the stripe are left to make it.
    Hopeless,
}

/// Why a strip could not be settled now; it may be later.
#[derive(Clone, Debug, Error)]
pub enum Unsettled {
    /// It cannot be judged yet.
    #[error("cannot be judged yet: {0}")]
    Judge(Why),
    /// Another strip's server does not answer.
    #[error("{0} does not answer: {1}")]
    Silent(StripIndex, stripe::Fault),
    /// The stripe cannot be read.
    #[error(transparent)]
    Stripe(#[from] StripeError),
    /// The manager's record decides, and cannot be asked.
    #[error(transparent)]
    Record(#[from] NoRecord),
    /// The pdisk refused the change.
    #[error("{0}")]
    Refused(#[from] StripRefusal),
}

/// A strip's place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Place {
    /// The stripe.
    pub stripe: StripeId,
    /// Its pool.
    pub pool: PoolId,
    /// Its group.
    pub group: GroupId,
    /// Which strip is here.
    pub index: StripIndex,
}

/// Most looks at a strip in one attempt.
const LOOKS_MAX: usize = 4;

/// Who makes a strip, and how.
pub struct Maker<'a> {
    /// The way to the other strips.
    pub io: &'a StripeIo,
    /// The way to the manager's record.
    pub records: &'a Records,
    /// The pdisk it is made on.
    pub on: PdiskId,
    /// The strip's member is not read for it: this is it, or it does not count.
    pub avoid: bool,
    /// A strip that cannot be made of the others is given up. Not where it moves: it is copied from the place it comes from, once
    /// that is there.
    pub gives_up: bool,
    /// Its disk did not give the strip. An error of a disk, or of the way to it, may pass; a mark that bytes are lost does not. So it
    /// is taken for lost, and marked when its bytes have been made of the others' and it still cannot be read.
    pub doubted: bool,
    /// Kind of work.
    pub class: OpClass,
    /// An attempt ends here.
    pub deadline: Instant,
}

impl Maker<'_> {
    /// Asks, judges, acts; once more while a prepared version is left, and after one is dropped: what stood beneath it is
    /// judged then.
    pub async fn settle(&self, pdisk: &impl Strips, place: Place) -> Result<Settled, Unsettled> {
        let mut first = None;
        for _ in 0..LOOKS_MAX {
            let last = self.once(pdisk, place).await?;
            let settled = *first.get_or_insert(last);
            let strip = place.stripe.strip(place.index);
            let left = pdisk.state(vec![strip]).await?.pop().is_some_and(|s| s.prepared.is_some());
            if last == Settled::Fine || last != Settled::Discarded && !left {
                return Ok(settled);
            }
        }
        Err(Unsettled::Judge(Why::Newer))
    }

    /// What the other strips of a stripe are under this map, all asked at once.
    async fn others(
        &self,
        place: Place,
        view: &ClusterView,
        geometry: Geometry,
    ) -> Result<Vec<Seen>, Unsettled> {
        let &Maker { io, avoid, class, deadline, .. } = self;
        let me = usize::from(place.index.0);
        let answers = io.states(place.stripe, place.pool, class, PdiskState::written, deadline).await?;
        if io.view().epoch() != view.epoch() {
            return Err(Unsettled::Judge(Why::Newer)); // who counts has changed meanwhile
        }
        let members = view.members(place.pool, place.group);
        let mut others = Vec::with_capacity(answers.len());
        for (i, answer) in answers.into_iter().enumerate() {
            let seen = match answer {
                // A strip that moves and is the only one of its stripe: where it comes from knows what it should be.
                Some(answer) if i == me && !avoid && geometry.width() == 1 => {
                    others.push(Seen::Mine);
                    Seen::Ok(Some(answer.map_err(|fault| Unsettled::Silent(place.index, fault))?))
                }
                _ if i == me => Seen::Mine,
                Some(Ok(state)) if members.get(i).is_some_and(|m| view.state(*m) == PdiskState::Ok) => {
                    Seen::Ok(Some(state))
                }
                Some(Ok(state)) => Seen::Returning(Some(state)),
                // One that is catching up may be left out, as long as the others say enough.
                Some(Err(_)) if members.get(i).is_some_and(|m| view.state(*m) == PdiskState::Returning) => {
                    Seen::Away
                }
                Some(Err(fault)) => return Err(Unsettled::Silent(StripIndex(i as u8), fault)),
                None => Seen::Away,
            };
            others.push(seen);
        }
        Ok(others)
    }

    /// Whether those who were asked would have named the strip if it were to be there ([`all_named`]).
    fn named(&self, place: Place, view: &ClusterView, geometry: Geometry, others: &[Seen]) -> bool {
        let (members, me) = (view.members(place.pool, place.group), usize::from(place.index.0));
        let state = |i: usize| match members.get(i) {
            Some(_) if i != me && others.get(i) == Some(&Seen::Away) => PdiskState::Missing,
            Some(m) => view.state(*m),
            None => PdiskState::Missing,
        };
        let gone = |i: usize| members.get(i).is_some_and(|m| view.is_given_up(*m));
        all_named(geometry, me, members.get(me) != Some(&self.on), state, gone)
    }

    async fn once(&self, pdisk: &impl Strips, place: Place) -> Result<Settled, Unsettled> {
        let &Maker { io, records, avoid, gives_up, doubted, class, deadline, .. } = self;
        let me = usize::from(place.index.0);
        let strip = place.stripe.strip(place.index);
        let view = io.view();
        let Some(pool) = view.pool(place.pool) else {
            return Err(StripeError::NoSuchPool { pool: place.pool }.into());
        };
        let geometry = pool.geometry;
        // What happens here while the others are asked must not be undone.
        let since = pdisk.deletes_seen();
        let before = pdisk.state(vec![strip]).await?.pop().and_then(|s| s.adopted).map(|a| a.version);
        let others = self.others(place, &view, geometry).await?;
        // Last, so that it is not older than the others.
        let mut mine = pdisk.state(vec![strip]).await?.pop();
        if let Some(mine) = mine.as_mut().filter(|_| doubted) {
            mine.lost |= mine.adopted.is_some();
        }
        let mut record = None;
        let mut verdict = judge(geometry, me, mine.as_ref(), &others, record);
        if verdict == Verdict::Ask {
            // After the strips were asked: what they hold was begun before.
            record = Some(records.of(place.stripe, deadline).await?);
            verdict = judge(geometry, me, mine.as_ref(), &others, record);
        }
        // Where nothing is: who named it may have gone since, and those who answer never have heard of it.
        let there = mine.as_ref().is_some_and(|m| m.adopted.is_some());
        let gone = record == Some(Owner::Nobody); // nothing is to be there
        let fine = || match there || gone || self.named(place, &view, geometry, &others) {
            true => Ok(Settled::Fine),
            false => Err(Unsettled::Judge(Why::Unnamed)),
        };
        match verdict {
            Verdict::Fine => fine(),
            Verdict::Later(why) => Err(Unsettled::Judge(why)),
            Verdict::Adopt(version) => {
                one(pdisk.adopt(vec![(strip, version)]).await)?;
                Ok(Settled::Adopted)
            }
            Verdict::Discard(version) => {
                one(pdisk.discard(vec![(strip, version)]).await)?;
                Ok(Settled::Discarded)
            }
            // Not reached: the record was asked.
            Verdict::Ask => Err(Unsettled::Judge(Why::PerhapsDeleted)),
            Verdict::Hopeless(older, _) if gives_up => {
                // Given up for good: not for what a write that came between two answers looks like.
                tokio::time::sleep(io.config().retry_pause).await;
                if self.others(place, &view, geometry).await? != others {
                    return Err(Unsettled::Judge(Why::Newer));
                }
                if let Some(older) = older {
                    pdisk.delete(vec![only(place.stripe, older)]).await?;
                }
                tracing::error!(stripe = %place.stripe, index = %place.index, "too few strips of a block are left: it is lost");
                Ok(Settled::Hopeless)
            }
            // Of an inode that is gone everything goes, whatever came in between.
            Verdict::Delete(Version::MAX) => {
                pdisk.delete(vec![only(place.stripe, Version::MAX)]).await?;
                Ok(Settled::Deleted)
            }
            // The others were asked about what was here before.
            Verdict::Delete(highest) if before.is_none_or(|b| b < highest) => {
                Err(Unsettled::Judge(Why::Newer))
            }
            Verdict::DiscardLeftover(version) => {
                if pdisk.discard_leftover(strip, version).await? {
                    return Ok(Settled::Discarded);
                }
                // The beginning of a write, unless it was adopted meanwhile: then it is judged as that.
                let adopted = pdisk.state(vec![strip]).await?.pop().and_then(|s| s.adopted);
                if adopted.is_some_and(|a| a.version >= version) {
                    return Err(Unsettled::Judge(Why::Newer));
                }
                let beneath = mine.map(|m| StripState { prepared: None, ..m });
                match judge(geometry, me, beneath.as_ref(), &others, record) {
                    Verdict::Fine => fine(),
                    _ => Err(Unsettled::Judge(Why::Prepared)),
                }
            }
            Verdict::AdoptLeftover(version) => match pdisk.adopt_leftover(strip, version).await? {
                true => Ok(Settled::Adopted),
                false => Err(Unsettled::Judge(Why::Prepared)),
            },
            Verdict::Delete(highest) => {
                pdisk.delete(vec![only(place.stripe, highest)]).await?;
                Ok(Settled::Deleted)
            }
            Verdict::Install(target) | Verdict::Hopeless(_, target) => {
                let (prepare, payload) = io
                    .rebuild_strip(place.stripe, place.pool, place.group, place.index, &target, avoid, class)
                    .await?;
                if doubted && !pdisk.mark_lost(strip).await? {
                    return Ok(Settled::Sound);
                }
                let bytes = payload.iter().map(|b| b.len() as u64).sum();
                pdisk.install_since(prepare, joined(payload), since).await?;
                Ok(Settled::Installed(bytes))
            }
        }
    }
}

fn one(results: Vec<Result<(), StripRefusal>>) -> Result<(), StripRefusal> {
    results.into_iter().next().unwrap_or(Err(StripRefusal::Failed))
}

/// A delete of one block up to a version.
pub fn only(stripe: StripeId, highest: Version) -> DeleteStrips {
    let StripeId { fs, inode, block } = stripe;
    DeleteStrips { fs, inode, first: block, last: block, highest }
}

/// One buffer; a decoded strip already is one.
fn joined(mut payload: Vec<Bytes>) -> Bytes {
    match payload.len() {
        0 => Bytes::new(),
        1 => payload.swap_remove(0),
        _ => {
            let mut all = BytesMut::with_capacity(payload.iter().map(Bytes::len).sum());
            payload.iter().for_each(|part| all.extend_from_slice(part));
            all.freeze()
        }
    }
}

/// Whether a state differs so little from nothing that it needs no look.
pub fn empty(state: &StripState) -> bool {
    state.adopted.is_none() && state.prepared.is_none()
}
