//! One strip of a served pdisk brought to what it should be: ask everybody, judge, act. Used by catch-up
//! and by repair. What it changes it changes through the pdisk's own rules, so that a write that comes
//! in between wins.

use std::time::Instant;

use base::{GroupId, OpClass, PoolId, StripIndex, StripeId, Version};
use bytes::{Bytes, BytesMut};
use pdisk::Pdisk;
use stripe::{StripeError, StripeIo};
use thiserror::Error;
use wire::{
    map::PdiskState,
    strip::{DeleteStrips, StripRefusal, StripState},
};

use crate::judge::{Seen, Verdict, Why, judge};

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

/// Asks, judges, acts. The strip's member is not read for it if it is to be avoided: this is it, or it does
/// not count.
pub async fn settle(
    io: &StripeIo,
    pdisk: &Pdisk,
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
    let answers = io.states(place.stripe, place.pool, class, |s| s == PdiskState::Ok, deadline).await?;
    let mut others = Vec::with_capacity(answers.len());
    for (i, answer) in answers.into_iter().enumerate() {
        others.push(match answer {
            _ if i == me => Seen::Mine,
            Some(Ok(state)) => Seen::Ok(Some(state)),
            Some(Err(fault)) => return Err(Unsettled::Silent(StripIndex(i as u8), fault)),
            None => Seen::Away,
        });
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
        Verdict::Delete(highest) => {
            pdisk.delete(vec![only(place.stripe, highest)]).await?;
            Ok(Settled::Deleted)
        }
        Verdict::Install(target) => {
            let (prepare, payload) =
                io.rebuild_strip(place.stripe, place.pool, place.group, place.index, &target, avoid, class).await?;
            let bytes = payload.iter().map(|b| b.len() as u64).sum();
            pdisk.install(prepare, joined(payload)).await?;
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
