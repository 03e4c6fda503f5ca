//! One strip of a served pdisk brought to what it should be: ask everybody, judge, act. Used by catch-up
//! and by repair. What it changes it changes through the pdisk's own rules, so that a write that comes
//! in between wins.

use std::time::Instant;

use base::{GroupId, OpClass, PoolId, StripIndex, StripeId, Version};
use bytes::{Bytes, BytesMut};
use stripe::{StripeError, StripeIo};
use thiserror::Error;
use wire::{
    map::PdiskState,
    strip::{DeleteStrips, StripRefusal, StripState},
};

use crate::{
    judge::{Seen, Verdict, Why, judge},
    strips::Strips,
};

/// What became of a strip.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settled {
    /// Nothing was to be done.
    Fine,
    /// A prepared version is adopted.
    Adopted,
    /// A left-over prepared version is gone.
    Discarded,
    /// Made anew: this many bytes.
    Installed(u64),
    /// Removed.
    Deleted,
}

/// Why a strip could not be settled now; it may be later.
#[derive(Clone, Debug, Error)]
pub enum Unsettled {
    /// It cannot be judged yet.
    #[error("cannot be judged yet: {0:?}")]
    Judge(Why),
    /// Another strip's server does not answer.
    #[error("{0} does not answer: {1}")]
    Silent(StripIndex, stripe::Fault),
    /// The stripe cannot be read.
    #[error(transparent)]
    Stripe(#[from] StripeError),
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

/// Most looks at a strip whose prepared version is still to be judged.
const LOOKS_MAX: usize = 3;

/// Asks, judges, acts; once more while a prepared version is left. The strip's member is not read for it
/// if it is to be avoided: this is it, or it does not count.
pub async fn settle(
    io: &StripeIo,
    pdisk: &impl Strips,
    place: Place,
    avoid: bool,
    class: OpClass,
    deadline: Instant,
) -> Result<Settled, Unsettled> {
    let first = once(io, pdisk, place, avoid, class, deadline).await?;
    let mut last = first;
    for _ in 1..LOOKS_MAX {
        let strip = place.stripe.strip(place.index);
        let left = pdisk.state(vec![strip]).await?.pop().is_some_and(|s| s.prepared.is_some());
        if last == Settled::Fine || !left {
            break;
        }
        last = once(io, pdisk, place, avoid, class, deadline).await?;
    }
    Ok(first)
}

async fn once(
    io: &StripeIo,
    pdisk: &impl Strips,
    place: Place,
    avoid: bool,
    class: OpClass,
    deadline: Instant,
) -> Result<Settled, Unsettled> {
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
    let answers = io.states(place.stripe, place.pool, class, |s| s == PdiskState::Ok, deadline).await?;
    let mut others = Vec::with_capacity(answers.len());
    for (i, answer) in answers.into_iter().enumerate() {
        let seen = match answer {
            // A strip that moves and is the only one of its stripe: where it comes from knows what it should be.
            Some(answer) if i == me && !avoid && geometry.width() == 1 => {
                others.push(Seen::Mine);
                Seen::Ok(Some(answer.map_err(|fault| Unsettled::Silent(place.index, fault))?))
            }
            _ if i == me => Seen::Mine,
            Some(Ok(state)) => Seen::Ok(Some(state)),
            Some(Err(fault)) => return Err(Unsettled::Silent(StripIndex(i as u8), fault)),
            None => Seen::Away,
        };
        others.push(seen);
    }
    // Last, so that it is not older than the others.
    let mine = pdisk.state(vec![strip]).await?.pop();
    match judge(geometry, me, mine.as_ref(), &others) {
        Verdict::Fine => Ok(Settled::Fine),
        Verdict::Later(why) => Err(Unsettled::Judge(why)),
        Verdict::Adopt(version) => {
            one(pdisk.adopt(vec![(strip, version)]).await)?;
            Ok(Settled::Adopted)
        }
        Verdict::Discard(version) => {
            one(pdisk.discard(vec![(strip, version)]).await)?;
            Ok(Settled::Discarded)
        }
        // The others were asked about what was here before.
        Verdict::Delete(highest) if before.is_none_or(|b| b < highest) => Err(Unsettled::Judge(Why::Newer)),
        Verdict::DiscardLeftover(version) => {
            if pdisk.discard_leftover(strip, version).await? {
                return Ok(Settled::Discarded);
            }
            // The beginning of a write, unless it was adopted meanwhile: then it is judged as that.
            let adopted = pdisk.state(vec![strip]).await?.pop().and_then(|s| s.adopted);
            if adopted.is_some() { Err(Unsettled::Judge(Why::Newer)) } else { Ok(Settled::Fine) }
        }
        Verdict::Delete(highest) => {
            // First, while nothing has touched the strip in this life of the pdisk.
            if let Some(prepared) = mine.and_then(|m| m.prepared) {
                pdisk.discard_leftover(strip, prepared.version).await?;
            }
            pdisk.delete(vec![only(place.stripe, highest)]).await?;
            Ok(Settled::Deleted)
        }
        Verdict::Install(target) => {
            let (prepare, payload) = io
                .rebuild_strip(place.stripe, place.pool, place.group, place.index, &target, avoid, class)
                .await?;
            let bytes = payload.iter().map(|b| b.len() as u64).sum();
            pdisk.install_since(prepare, joined(payload), since).await?;
            Ok(Settled::Installed(bytes))
        }
    }
}

fn one(results: Vec<Result<(), StripRefusal>>) -> Result<(), StripRefusal> {
    results.into_iter().next().unwrap_or(Err(StripRefusal::Failed))
}

fn only(stripe: StripeId, highest: Version) -> DeleteStrips {
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
