//! What hangs on client sessions: exactly-once mutations, and inodes held open without a name.
//!
//! A mutation's outcome, good or bad, is stored under (session, slot) in its own transaction. A
//! repetition gets the stored outcome; a late copy of an older one is refused. All of it goes with the
//! session; orphans go once the session is fenced, since until then a write of it may still arrive.

use std::ops::ControlFlow;

use base::{FsId, InodeNo, SessionId, Version};
use libc::{EINVAL, ENOENT};
use wire::{
    credentials::Who,
    mgr::{Change, MgrError, MgrReply, OpId, SLOTS},
};

use super::{Actor, Editor, Fault, FsContext, Op, apply};
use crate::{
    keys::{self, EndingRecord, Inode, ReplyRecord, SessionRecord},
    store::{Read, StoreError, Txn, prefix_end},
};

/// Applies a mutation once. `Err` only if the store failed. `openers` are sessions that have inodes open
/// which may lose their last name by it.
pub fn mutate(
    txn: &mut Txn<'_>,
    context: impl Fn(FsId) -> Option<FsContext>,
    session: SessionId,
    op: OpId,
    change: Change,
    openers: &[(InodeNo, SessionId)],
    who: &Who,
) -> Result<Result<MgrReply, MgrError>, StoreError> {
    match mutate_inner(txn, context, session, op, change, openers, who) {
        Ok(outcome) => Ok(outcome),
        Err(fault) => {
            txn.discard();
            fault.into_reply().map(Err)
        }
    }
}

fn mutate_inner(
    txn: &mut Txn<'_>,
    context: impl Fn(FsId) -> Option<FsContext>,
    session: SessionId,
    op: OpId,
    change: Change,
    openers: &[(InodeNo, SessionId)],
    who: &Who,
) -> Op<Result<MgrReply, MgrError>> {
    let Some(record) = keys::read::<SessionRecord>(txn, &keys::session_key(session))? else {
        return Ok(Err(MgrError::NoSession));
    };
    let Some(fs) = context(record.fs) else { return Ok(Err(MgrError::Errno(ENOENT))) };
    if op.slot >= SLOTS || op.seq == 0 {
        return Ok(Err(MgrError::Errno(EINVAL)));
    }
    let key = keys::reply_key(session, op.slot);
    let last = keys::read::<ReplyRecord>(txn, &key)?;
    let last_seq = last.as_ref().map(|last| last.seq);
    match last {
        Some(last) if last.seq == op.seq => return Ok(last.outcome),
        Some(last) if op.seq < last.seq => return Ok(Err(MgrError::Superseded)),
        _ => {}
    }
    let outcome = match apply(txn, fs, Actor { session, who, grant: record.grant, openers }, change) {
        Ok(reply) => Ok(reply),
        Err(fault) => {
            txn.discard();
            Err(fault.into_reply()?)
        }
    };
    debug_assert!(last_seq.is_none_or(|last| last < op.seq), "a slot's numbers rise");
    let reply = ReplyRecord { seq: op.seq, outcome };
    keys::write(txn, key, &reply);
    txn.keep();
    Ok(reply.outcome)
}

/// Removes a session's record, its replies and its inode numbers. Its orphans stay for [`collect_orphans`].
pub fn end_session(txn: &mut Txn<'_>, session: SessionId) -> Result<(), StoreError> {
    txn.delete(keys::session_key(session));
    txn.delete(keys::numbers_key(session));
    let prefix = keys::reply_prefix(session);
    let mut replies = Vec::new();
    txn.scan(&prefix, &prefix_end(&prefix), &mut |key, _| {
        replies.push(key.to_vec());
        ControlFlow::Continue(())
    })?;
    replies.into_iter().for_each(|key| txn.delete(key));
    Ok(())
}

/// A session gave up its last right on an inode: if it was an orphan of it, it is no longer.
pub fn drop_orphan(
    txn: &mut Txn<'_>,
    context: impl Fn(FsId) -> Option<FsContext>,
    session: SessionId,
    fs: FsId,
    ino: InodeNo,
) -> Op<()> {
    let key = keys::orphan_key(session, fs, ino);
    match (txn.get(&key)?, context(fs)) {
        (Some(_), Some(fs)) => collect(txn, fs, session, ino, key),
        _ => Ok(()),
    }
}

/// Looks at `limit` orphans from this key on (none: from the first) and removes those of sessions that have ended and are fenced.
/// From where to go on, if more may be there: those that stay are passed once.
pub fn collect_orphans(
    txn: &mut Txn<'_>,
    context: impl Fn(FsId) -> Option<FsContext>,
    from: &[u8],
    limit: usize,
) -> Op<Option<Vec<u8>>> {
    let (mut found, mut next) = (Vec::new(), None);
    txn.scan(from.max(b"o"), &prefix_end(b"o"), &mut |key, _| {
        if found.len() == limit {
            next = Some(key.to_vec());
            return ControlFlow::Break(());
        }
        found.push(key.to_vec());
        ControlFlow::Continue(())
    })?;
    for key in found {
        let Some((session, fs, ino)) = parse(&key) else { continue };
        if keys::read::<SessionRecord>(txn, &keys::session_key(session))?.is_some() {
            continue;
        }
        let ending = keys::read::<EndingRecord>(txn, &keys::ending_key(fs))?.unwrap_or_default();
        let (None, Some(fs)) = (ending.fence, context(fs)) else { continue };
        collect(txn, fs, session, ino, key)?;
    }
    Ok(next)
}

fn parse(key: &[u8]) -> Option<(SessionId, FsId, InodeNo)> {
    let key: &[u8; 21] = key.try_into().ok()?;
    let session = u64::from_be_bytes(*key[1..9].first_chunk()?);
    let fs = u32::from_be_bytes(*key[9..13].first_chunk()?);
    let ino = u64::from_be_bytes(*key[13..21].first_chunk()?);
    Some((SessionId(session), FsId(fs), InodeNo(ino)))
}

/// Removes one orphan, in an operation of its own. A damaged one is left where it is.
fn collect(txn: &mut Txn<'_>, fs: FsContext, session: SessionId, ino: InodeNo, key: Vec<u8>) -> Op<()> {
    // The dead session may have written blocks it never told of: the delete is always queued. The
    // grant is only a bound of `highest` and unknown here; every version goes anyhow.
    let highest = Version { grant: base::Grant(0), seq: 1 };
    let mut editor =
        Editor { txn, fs, actor: Actor { session, who: &Who::Root, grant: base::Grant(0), openers: &[] } };
    let outcome = match keys::read::<Inode>(editor.txn, &keys::inode_key(fs.fs, ino)) {
        Ok(Some(inode)) if inode.nlink == 0 => match editor.is_orphan_of_others(ino) {
            Ok(false) => editor.remove_inode(ino, &inode, highest),
            Ok(true) => Ok(()),
            Err(fault) => Err(fault),
        },
        Ok(_) => Ok(()),
        Err(error) => Err(error.into()),
    };
    match outcome {
        Ok(()) => {
            txn.delete(key);
            txn.keep();
            Ok(())
        }
        Err(Fault::Store(error)) => Err(error.into()),
        Err(fault) => {
            tracing::error!(%fault, %ino, "orphan cannot be removed");
            txn.discard();
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{FS, Stage},
        *,
    };
    use crate::keys::OrphanRecord;

    #[test]
    fn damaged_orphans_are_passed_once() {
        let mut stage = Stage::new(16);
        let (fs, gone) = (stage.fs, SessionId(99));
        for ino in 10..15 {
            let key = keys::inode_key(FS, InodeNo(ino));
            stage.txn(|txn| {
                keys::write(txn, keys::orphan_key(gone, FS, InodeNo(ino)), &OrphanRecord {});
                // Damaged, but the last, which has gone already.
                if ino < 14 {
                    txn.put(key, vec![0xff; 8]);
                }
            });
        }
        let (mut from, mut rounds) = (Vec::new(), 0);
        while let Some(next) = stage.txn(|txn| collect_orphans(txn, |_| Some(fs), &from, 2)).unwrap() {
            (from, rounds) = (next, rounds + 1);
            assert!(rounds < 10, "it goes round");
        }
        let left = stage.map.keys().filter(|key| key[0] == b'o').count();
        assert_eq!(left, 4, "what is damaged stays, what comes after it goes");
    }

    /// A session has ended and is not fenced yet. The last live one that has the inode open closes it.
    #[test]
    fn what_a_session_that_is_not_fenced_may_still_write_to_stays() {
        let mut stage = Stage::new(16);
        let (fs, ended, ino) = (stage.fs, SessionId(99), InodeNo(70));
        let collect =
            |stage: &mut Stage| stage.txn(|txn| collect_orphans(txn, |_| Some(fs), &[], 9)).unwrap();
        let fence = |epoch| EndingRecord { unresolved: true, fence: epoch };
        let own = stage.session;
        stage.txn(|txn| {
            keys::write(txn, keys::inode_key(FS, ino), &Inode::default());
            for session in [own, ended] {
                keys::write(txn, keys::orphan_key(session, FS, ino), &OrphanRecord {});
            }
            keys::write(txn, keys::ending_key(FS), &fence(Some(base::Epoch(3))));
        });
        stage.change(Change::Forget { ino, highest: Version::ZERO }).unwrap();
        assert_eq!(collect(&mut stage), None);
        assert!(stage.attr(ino).is_some(), "it is gone before what was written can be refused");
        stage.txn(|txn| keys::write(txn, keys::ending_key(FS), &fence(None)));
        assert_eq!(collect(&mut stage), None);
        assert_eq!((stage.attr(ino), stage.map.keys().filter(|key| key[0] == b'o').count()), (None, 0));
    }
}
