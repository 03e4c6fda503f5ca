//! Operations on open files.
//!
//! A write that goes round the kernel's page cache: the kernel drops the pages before it sends the write, but
//! a reader may fetch old ones while the write is under way, and they stay (at the end of a growing file: zeros for what was
//! just appended), also when that reader has closed the file. Of asynchronous writes the kernel does not drop them again. So they
//! are dropped here once the write is done and before it is answered, wherever the kernel may have any ([`Inodes::pages`]):
//! what was filled with older bytes was asked for before, and the kernel waits for pages that are still being filled.
//!
//! [`Inodes::pages`]: crate::inodes::Inodes::pages

use std::{sync::Arc, time::Duration};

use base::InodeNo;
use tokio::task::JoinHandle;

use crate::{
    abi,
    calls::{Calls, Errno, Fallocate, Handle, NewInode, OpenFlags, Privileges},
    inodes::{Pages, Way},
    names::stale,
    reply::Answer,
    request::{Header, Operation, name_too_long},
    session::{DIRECT_BIT, OpenFile, Session, handle},
};

/// How long a write waits for old pages to be dropped, and again while any are being filled by what is asked of us. If none are,
/// the kernel may have no room to ask, which such writes take: one that is answered makes some.
const DROP_PATIENCE: Duration = Duration::from_millis(50);
/// How often at most: READs that are with us end by their own deadlines, but others may follow.
const DROP_TRIES: u32 = 1200;

/// Most that one copy_file_range copies, bytes: the caller comes back for the rest, and can be stopped.
const COPY_MAX: u64 = 64 << 20;

/// From the flags of open(2).
pub(crate) fn open_flags(flags: u32) -> OpenFlags {
    let flags = flags as i32;
    let has = |bits: i32| flags & bits == bits;
    let access = flags & libc::O_ACCMODE;
    OpenFlags {
        read: access != libc::O_WRONLY,
        write: access != libc::O_RDONLY,
        append: has(libc::O_APPEND),
        direct: has(libc::O_DIRECT),
        sync: has(libc::O_SYNC),
        dsync: has(libc::O_DSYNC),
        truncate: has(libc::O_TRUNC),
        drop_privileges: false,
        caller_appends: false,
    }
}

/// From the mode of fallocate(2).
fn fallocate_mode(mode: u32) -> Result<Fallocate, Errno> {
    let mode = mode as i32;
    let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Ok(Fallocate::Allocate { keep_size }),
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => Ok(Fallocate::PunchHole),
        libc::FALLOC_FL_ZERO_RANGE => Ok(Fallocate::ZeroRange { keep_size }),
        _ => Err(Errno(libc::EOPNOTSUPP)),
    }
}

impl<C: Calls> Session<C> {
    pub(crate) async fn serve_file(
        self: &Arc<Self>,
        header: &Header,
        operation: Operation,
    ) -> Result<Answer, Errno> {
        let ino = header.ino;
        match operation {
            Operation::Open { flags, kill_suidgid } => self.open(ino, flags, kill_suidgid).await,
            Operation::Create { name, mode, flags, kill_suidgid } => {
                self.create(header, &name, mode, flags, kill_suidgid).await
            }
            Operation::Tmpfile { mode, flags } => self.create_unnamed(header, mode, flags).await,
            Operation::Release { fh } => {
                self.forget_file(handle(fh));
                self.calls.release(handle(fh));
                Ok(Answer::Done)
            }
            Operation::Flush { fh, owner } => {
                self.calls.drop_locks(ino, owner).await;
                self.calls.flush(handle(fh)).await.map(|()| Answer::Done)
            }
            Operation::Getlk(args) => self.test_lock(ino, &args).await,
            Operation::Setlk { args, wait } => self.set_lock(header, &args, wait).await,
            Operation::Fsync { fh, datasync } => {
                self.calls.fsync(ino, fh.map(handle), datasync).await.map(|()| Answer::Done)
            }
            Operation::Fallocate { fh, offset, length, mode } => {
                self.fallocate(header, fh, offset, length, mode).await
            }
            Operation::Lseek { fh, offset, whence } => {
                let found = match whence as i32 {
                    libc::SEEK_DATA => self.calls.seek_data(handle(fh), offset).await?,
                    libc::SEEK_HOLE => self.calls.seek_hole(handle(fh), offset).await?,
                    _ => return Err(Errno(libc::EINVAL)),
                };
                Ok(Answer::Offset(found))
            }
            Operation::CopyRange { args, wide } => self.copy_range(header, &args, wide).await,
            _ => Err(Errno(libc::ENOSYS)),
        }
    }

    async fn open(&self, ino: InodeNo, flags: u32, kill_suidgid: bool) -> Result<Answer, Errno> {
        let flags = OpenFlags { drop_privileges: kill_suidgid, ..open_flags(flags) };
        self.refuse_write(flags.write || flags.truncate)?;
        let opened = self.calls.open(ino, self.caching().flags_below(flags)).await;
        if kill_suidgid {
            self.privileges_dropped(ino);
        }
        let opened = opened?;
        let (fh, answer_flags) = self.opened(ino, opened, &flags);
        Ok(Answer::Opened(fh, answer_flags))
    }

    fn opened(&self, ino: InodeNo, opened: Handle, flags: &OpenFlags) -> (u64, u32) {
        let caching = self.caching_of(opened);
        let way = self.inodes.open_way(ino, caching.way(flags));
        let direct = way != Way::Buffered;
        self.remember_file(opened, OpenFile { ino, way, maps: flags.read && flags.write });
        let fh = opened.0 | if direct { DIRECT_BIT } else { 0 };
        (fh, caching.open_answer_flags(flags, direct))
    }

    async fn create(
        &self,
        header: &Header,
        name: &[u8],
        mode: u32,
        flags: u32,
        kill_suidgid: bool,
    ) -> Result<Answer, Errno> {
        self.refuse_write(true)?;
        if name_too_long(name) {
            return Err(Errno(libc::ENAMETOOLONG));
        }
        let new = NewInode {
            mode: (mode & 0o7777) as u16,
            uid: header.uid,
            gid: header.gid,
            existing_ok: flags as i32 & libc::O_EXCL == 0,
            ..NewInode::default()
        };
        let (mut attr, made) = self.calls.create(header.ino, name, new).await?;
        if !made {
            self.check_existing(header, attr.ino, flags).await?;
        }
        let truncate = !made && open_flags(flags).truncate;
        let flags = OpenFlags { truncate, drop_privileges: kill_suidgid, ..open_flags(flags) };
        let opened = self.calls.open(attr.ino, self.caching().flags_below(flags)).await.map_err(stale)?;
        if flags.truncate {
            attr = self.calls.getattr(attr.ino).await?;
        }
        let (fh, answer_flags) = self.opened(attr.ino, opened, &flags);
        Ok(Answer::Created(Box::new(attr), fh, answer_flags))
    }

    async fn create_unnamed(&self, header: &Header, mode: u32, flags: u32) -> Result<Answer, Errno> {
        self.refuse_write(true)?;
        let (uid, gid) = (header.uid, header.gid);
        let new = NewInode { mode: (mode & 0o7777) as u16, uid, gid, ..NewInode::default() };
        // The kernel refuses the link as well.
        let linkable = flags as i32 & libc::O_EXCL == 0;
        let flags = OpenFlags { truncate: false, ..open_flags(flags) };
        let below = self.caching().flags_below(flags);
        let (attr, opened) = self.calls.create_unnamed(header.ino, new, linkable, below).await?;
        let (fh, answer_flags) = self.opened(attr.ino, opened, &flags);
        Ok(Answer::Created(Box::new(attr), fh, answer_flags))
    }

    pub(crate) async fn read(&self, fh: u64, offset: u64, size: u32) -> Result<Answer, Errno> {
        Ok(Answer::Data(self.calls.read(handle(fh), offset, size).await?))
    }

    pub(crate) async fn write(
        self: &Arc<Self>,
        ino: InodeNo,
        fh: u64,
        offset: u64,
        (write_flags, flags): (u32, u32),
        data: &[u8],
    ) -> Result<Answer, Errno> {
        let privileges = match write_flags & abi::WRITE_KILL_SUIDGID {
            0 => Privileges::Kept,
            _ => Privileges::Dropped,
        };
        if write_flags & abi::WRITE_CACHE != 0 {
            // A page of a mapping has its place in the file. The kernel sends it by any writable handle.
            return all_of_it(self.calls.write_page(handle(fh), offset, data).await?, data);
        }
        // What it was opened with may be changed by now, and one write may ask for more.
        let flags = open_flags(flags).of_a_write();
        let written = self.calls.write(handle(fh), offset, data, flags, privileges).await;
        if privileges == Privileges::Dropped {
            self.privileges_dropped(ino);
        }
        let written = written?;
        // O_DIRECT may have been set after the open.
        let direct = fh & DIRECT_BIT != 0 || write_flags & abi::WRITE_LOCKOWNER != 0;
        if direct {
            // Where an append went is the client's knowledge: all to the end of the file.
            let len = if flags.append { 0 } else { data.len() as u64 };
            self.drop_old_pages(ino, offset, len).await;
        }
        if fh & DIRECT_BIT == 0 && flags.append && self.caching().client_appends {
            // Opened before others came: the kernel put the bytes where it thought the end was. Its pages
            // are locked until this is answered.
            drop(self.drop_pages(ino, 0, 0));
        }
        Ok(Answer::Written(written as u32))
    }

    /// Drops what a write that went round the kernel's pages has made old.
    async fn drop_old_pages(&self, ino: InodeNo, offset: u64, len: u64) {
        let (offset, len, left) = match self.inodes.pages(ino) {
            Pages::None => return,
            Pages::InUse => (offset, len, None),
            // All of them, once: the writes that follow have nothing to drop.
            Pages::Left(left) => (0, 0, Some(left)),
        };
        let mut dropping = self.drop_pages(ino, offset, len);
        for _ in 0..DROP_TRIES {
            match tokio::time::timeout(DROP_PATIENCE, &mut dropping).await {
                Ok(dropped) => {
                    if let (Ok(true), Some(left)) = (dropped, left) {
                        self.inodes.dropped(ino, left);
                    }
                    return;
                }
                Err(_) if !self.inodes.is_filling(ino) => break,
                Err(_) => {}
            }
        }
        tracing::debug!(%ino, "old pages go on being dropped after the write");
    }

    /// Whether that succeeded; it goes on whether waited for or not.
    fn drop_pages(&self, ino: InodeNo, offset: u64, len: u64) -> JoinHandle<bool> {
        let notifier = self.notifier.clone();
        // The kernel waits there for pages being read or written, which other threads answer.
        tokio::task::spawn_blocking(move || {
            let dropped = notifier.inval_inode(ino, offset, len);
            if let Err(error) = &dropped {
                tracing::warn!(%ino, %error, "pages cached by the kernel could not be dropped");
            }
            dropped.is_ok()
        })
    }

    /// A change of content took setuid and setgid away, also if it failed. The kernel asks for size and times anew then, but goes on to believe
    /// the mode it has.
    fn privileges_dropped(&self, ino: InodeNo) {
        if self.inodes.drop_privileges(ino)
            && let Err(error) = self.notifier.inval_attr(ino)
        {
            tracing::warn!(%ino, %error, "the kernel may keep a mode that is no more");
        }
    }

    async fn fallocate(
        &self,
        header: &Header,
        fh: u64,
        offset: u64,
        length: u64,
        mode: u32,
    ) -> Result<Answer, Errno> {
        let mode = fallocate_mode(mode)?;
        let privileges = privileges_of(header);
        let done = self.calls.fallocate(handle(fh), mode, offset, length, privileges).await;
        if privileges == Privileges::Dropped {
            self.privileges_dropped(header.ino);
        }
        done.map(|()| Answer::Done)
    }

    async fn copy_range(
        &self,
        header: &Header,
        args: &abi::CopyFileRangeIn,
        wide: bool,
    ) -> Result<Answer, Errno> {
        let privileges = privileges_of(header);
        let len = args.len.min(COPY_MAX);
        let (from, to) = (handle(args.fh_in), handle(args.fh_out));
        let copied = self.calls.copy_range(from, args.off_in, to, args.off_out, len, privileges).await;
        if privileges == Privileges::Dropped {
            self.privileges_dropped(InodeNo(args.nodeid_out));
        }
        let copied = copied?;
        Ok(if wide { Answer::Copied(copied) } else { Answer::Written(copied as u32) })
    }

    fn refuse_write(&self, writes: bool) -> Result<(), Errno> {
        // The kernel refuses most of it itself; opens it passes on.
        if writes && self.rights.read_only { Err(Errno(libc::EROFS)) } else { Ok(()) }
    }
}

/// What the kernel's own pages are answered: it takes all of them for written, however many bytes an answer without an error names.
fn all_of_it(written: usize, data: &[u8]) -> Result<Answer, Errno> {
    if written == data.len() { Ok(Answer::Written(written as u32)) } else { Err(Errno(libc::EIO)) }
}

/// Whether a change of content by this thread leaves set-user-id and set-group-id bits (CAP_FSETID), where the kernel does not
/// say so. What cannot be read counts as no.
fn privileges_of(header: &Header) -> Privileges {
    let status = std::fs::read_to_string(format!("/proc/{}/status", header.pid));
    match status.is_ok_and(|status| has_fsetid(&status)) {
        true => Privileges::Kept,
        false => Privileges::Dropped,
    }
}

fn has_fsetid(status: &str) -> bool {
    const CAP_FSETID: u64 = 1 << 4;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    effective.is_some_and(|mask| mask & CAP_FSETID != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_leave_privileges_is_read_from_the_thread() {
        assert!(has_fsetid("Name:\tx\nCapPrm:\t0\nCapEff:\t000001ffffffffff\n"));
        assert!(!has_fsetid("CapPrm:\t000001ffffffffff\nCapEff:\t0000000000000000\n"));
        assert!(!has_fsetid("Name:\tx\n"));
    }

    #[test]
    fn modes_that_move_data_are_not_supported() {
        let keep_size = true;
        assert_eq!(fallocate_mode(1), Ok(Fallocate::Allocate { keep_size }));
        assert_eq!(fallocate_mode(3), Ok(Fallocate::PunchHole));
        assert_eq!(fallocate_mode(0x10), Ok(Fallocate::ZeroRange { keep_size: false }));
        for mode in [2, 8, 0x20, 0x40, 0x13] {
            assert_eq!(fallocate_mode(mode), Err(Errno(libc::EOPNOTSUPP)));
        }
    }

    #[test]
    fn sync_is_more_than_dsync() {
        let dsync = open_flags((libc::O_WRONLY | libc::O_DSYNC) as u32);
        assert!(dsync.dsync && !dsync.sync && dsync.write && !dsync.read);
        let sync = open_flags((libc::O_RDWR | libc::O_SYNC) as u32);
        assert!(sync.dsync && sync.sync && sync.write && sync.read);
    }
}
