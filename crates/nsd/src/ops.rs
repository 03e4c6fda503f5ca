//! One admitted request, carried to its pdisk and answered.

use base::{BlockIndex, FsId, InodeNo, StripId, StripIndex, StripeId};
use bytes::Bytes;
use pdisk::{Payload, Pdisk};
use wire::{
    nsd::{BATCH_MAX, NsdRefusal, NsdReply, NsdRequest},
    strip::{STRIP_LEN_MAX, StripRefusal, StripState},
};

/// What came of it besides the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// Nothing.
    Nothing,
    /// This strip is damaged here.
    Lost(StripId),
}

/// The answer, its payload, and what was found on the way.
pub type Outcome = (NsdReply, Bytes, Found);

fn refused(refusal: StripRefusal) -> NsdReply {
    NsdReply::Refused(NsdRefusal::Strip(refusal))
}

fn reply(reply: NsdReply) -> Outcome {
    (reply, Bytes::new(), Found::Nothing)
}

fn done(result: Result<(), StripRefusal>) -> Outcome {
    reply(result.map_or_else(refused, |()| NsdReply::Done))
}

/// Why a request is malformed, if it is: bounds that the message itself breaks.
pub fn malformed(request: &NsdRequest) -> Option<&'static str> {
    let too_many = |n: usize| (n > BATCH_MAX).then_some("too many items in one request");
    match request {
        NsdRequest::Adopt { items, .. } | NsdRequest::Discard { items, .. } => too_many(items.len()),
        NsdRequest::Seal { strips, .. } | NsdRequest::State { strips, .. } => too_many(strips.len()),
        NsdRequest::Delete { items, .. } => too_many(items.len()),
        NsdRequest::Read { read, .. } => too_many(read.ranges.len()),
        _ => None,
    }
}

/// The most bytes that the answer to a request has beside its message: what a read asks for, of one strip at most.
pub fn reply_bytes(request: &NsdRequest) -> u64 {
    let NsdRequest::Read { read, .. } = request else { return 0 };
    let asked: u64 = read.ranges.iter().map(|range| u64::from(range.len)).sum();
    asked.min(STRIP_LEN_MAX.into())
}

/// Carries out one request.
pub async fn carry_out(pdisk: &Pdisk, request: NsdRequest, payload: Payload) -> Outcome {
    match request {
        NsdRequest::Prepare { strip, .. } => {
            done(pdisk.prepare(vec![(strip, payload)]).await.pop().unwrap_or(Err(StripRefusal::Failed)))
        }
        NsdRequest::Install { strip, .. } => done(pdisk.install(strip, payload).await),
        NsdRequest::Adopt { items, .. } => reply(NsdReply::Outcomes(pdisk.adopt(items).await)),
        NsdRequest::Discard { items, .. } => reply(NsdReply::Outcomes(pdisk.discard(items).await)),
        NsdRequest::Seal { strips, below, .. } => states(pdisk.seal(strips, below).await, false),
        NsdRequest::State { strips, .. } => states(pdisk.state(strips).await, false),
        NsdRequest::Delete { items, .. } => done(pdisk.delete(items).await.map(|_| ())),
        NsdRequest::ListGroup { pool, group, after, limit, .. } => {
            let limit = page(limit);
            let listed = pdisk.list_group(pool, group, after, limit).await;
            let more = listed.as_ref().is_ok_and(|l| l.len() >= limit);
            states(listed, more)
        }
        NsdRequest::ListPrepared { fs, after, limit, .. } => {
            let limit = page(limit);
            let listed = pdisk.list_prepared(after.max(before(fs)), limit).await;
            let full = listed.as_ref().is_ok_and(|l| l.len() >= limit);
            let listed = listed.map(|mut list| {
                list.retain(|s| s.strip.stripe.fs == fs);
                list
            });
            // A page that ends in another file system ends the listing.
            let more = full && listed.as_ref().is_ok_and(|l| l.len() >= limit);
            states(listed, more)
        }
        NsdRequest::Read { read, .. } => {
            let strip = read.strip;
            match pdisk.read(vec![read]).await.pop().unwrap_or(Err(StripRefusal::Failed)) {
                Ok((read, bytes)) => (NsdReply::Read(read), bytes, Found::Nothing),
                Err(StripRefusal::Lost) => (refused(StripRefusal::Lost), Bytes::new(), Found::Lost(strip)),
                Err(refusal) => reply(refused(refusal)),
            }
        }
        NsdRequest::Suspect { strip, .. } => match pdisk.mark_lost(strip).await {
            Ok(true) => (NsdReply::Done, Bytes::new(), Found::Lost(strip)),
            Ok(false) | Err(StripRefusal::Absent) => reply(NsdReply::Done),
            Err(refusal) => reply(refused(refusal)),
        },
    }
}

fn states(listed: Result<Vec<StripState>, StripRefusal>, more: bool) -> Outcome {
    reply(listed.map_or_else(refused, |states| NsdReply::States { states, more }))
}

fn page(limit: u32) -> usize {
    (limit as usize).clamp(1, BATCH_MAX)
}

/// The last strip that could be of the file system before `fs`.
fn before(fs: FsId) -> Option<StripId> {
    let fs = FsId(fs.0.checked_sub(1)?);
    let stripe = StripeId { fs, inode: InodeNo(u64::MAX), block: BlockIndex(u64::MAX) };
    Some(StripId { stripe, index: StripIndex(u8::MAX) })
}
