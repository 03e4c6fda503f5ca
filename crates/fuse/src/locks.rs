//! fcntl and flock locks: from the kernel's form to the file system below, and the wait that a signal ends.
//! A lock request's inode is open: its handle says to the file system below through what it was set.

use std::sync::Arc;

use base::InodeNo;
use wire::lock::{END, Lock, LockKind, LockMode};

use crate::{
    abi,
    calls::{Calls, Errno},
    reply::Answer,
    request::Header,
    session::Session,
    session::handle,
};

fn lock(args: &abi::LkIn) -> Result<Lock, Errno> {
    let mode = match args.lock.kind as i32 {
        libc::F_RDLCK => LockMode::Shared,
        libc::F_WRLCK => LockMode::Exclusive,
        libc::F_UNLCK => LockMode::None,
        _ => return Err(Errno(libc::EINVAL)),
    };
    let kind = if args.lk_flags & abi::LK_FLOCK == 0 { LockKind::Fcntl } else { LockKind::Flock };
    let lock = Lock {
        kind,
        mode,
        owner: args.owner,
        pid: args.lock.pid,
        start: args.lock.start,
        end: args.lock.end.min(END),
    };
    if lock.is_valid() { Ok(lock) } else { Err(Errno(libc::EINVAL)) }
}

fn file_lock(lock: Option<Lock>) -> abi::FileLock {
    let Some(lock) = lock else {
        return abi::FileLock { kind: libc::F_UNLCK as u32, ..abi::FileLock::default() };
    };
    let kind = if lock.mode == LockMode::Shared { libc::F_RDLCK } else { libc::F_WRLCK };
    abi::FileLock { start: lock.start, end: lock.end, kind: kind as u32, pid: lock.pid }
}

impl<C: Calls> Session<C> {
    pub(crate) async fn test_lock(&self, ino: InodeNo, args: &abi::LkIn) -> Result<Answer, Errno> {
        Ok(Answer::Lock(file_lock(self.calls.test_lock(ino, lock(args)?).await?)))
    }

    pub(crate) async fn set_lock(
        self: &Arc<Self>,
        header: &Header,
        args: &abi::LkIn,
        wait: bool,
    ) -> Result<Answer, Errno> {
        let (lock, fh) = (lock(args)?, handle(args.fh));
        if !wait || lock.mode == LockMode::None {
            return self.calls.lock(fh, lock, None).await.map(|()| Answer::Done);
        }
        let cell = self.waiting().find(header.unique).ok_or(Errno(libc::EIO))?;
        let room = cell.sink().wait_room().cloned();
        let in_queue = room.map(|room| room.try_acquire_owned()).transpose();
        let done = match (self.lock_waits.try_acquire(), in_queue) {
            (Ok(_permit), Ok(_in_queue)) => self.calls.lock(fh, lock, Some(cell.interrupted().clone())).await,
            // There must be room for those who unlock.
            _ => match self.calls.lock(fh, lock, None).await {
                Err(Errno(libc::EAGAIN)) => Err(Errno(libc::ENOLCK)),
                done => done,
            },
        };
        done.map(|()| Answer::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_of_the_kernel_are_taken_and_given_back() {
        let wish = |kind: i32, start, end| abi::LkIn {
            owner: 7,
            lock: abi::FileLock { start, end, kind: kind as u32, pid: 3 },
            ..abi::LkIn::default()
        };
        let got = lock(&wish(libc::F_WRLCK, 5, u64::MAX >> 1)).unwrap();
        assert_eq!((got.mode, got.start, got.end, got.owner), (LockMode::Exclusive, 5, END, 7));
        assert_eq!(file_lock(Some(got)).kind, libc::F_WRLCK as u32);
        assert_eq!(file_lock(None).kind, libc::F_UNLCK as u32);
        assert_eq!(lock(&wish(libc::F_RDLCK, 9, 8)), Err(Errno(libc::EINVAL)));
        assert_eq!(lock(&wish(17, 0, 8)), Err(Errno(libc::EINVAL)));
        let flock = abi::LkIn { lk_flags: abi::LK_FLOCK, ..wish(libc::F_RDLCK, 0, u64::MAX) };
        assert_eq!(lock(&flock).unwrap().kind, LockKind::Flock);
    }
}
