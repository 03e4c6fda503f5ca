//! Reads, writes and fallocate of open files, under their tokens.

use std::{pin::pin, sync::Arc, time::Instant};

use wire::token::Need;

use super::{
    handle::{Handle, OpenFile, ReadData, WriteFlags},
    privileges::Privileges,
    state::FileState,
};
use crate::{
    core::Core,
    error::Errno,
    pages::{piece::Content, resize::Fallocate},
};

impl Core {
    /// See [`crate::Client::read`].
    pub async fn read_under_token(
        self: &Arc<Core>,
        handle: Handle,
        offset: u64,
        len: usize,
    ) -> Result<ReadData, Errno> {
        let file = self.file(handle)?;
        if !file.flags.read {
            return Err(Errno::EBADF);
        }
        let range = (offset, len as u64);
        let need = |state: &FileState| state.read_need(range.0, range.1);
        let work = pin!(async {
            let _hold = self.hold_for(&file.inode, Some(range), need).await?;
            self.read(&file, offset, len).await
        });
        let begun = Instant::now();
        let read = self.operation("read", Some(file.inode.ino), work).await;
        // Within half of its time it ends for other reasons.
        if read.is_err()
            && begun.elapsed() > self.patience() / 2
            && file.inode.lock().page_drop.read_in_vain()
        {
            let ino = file.inode.ino;
            tracing::error!(inode = %ino, "it is out of reach, and others want it: who comes to read it has EIO until they have it");
        }
        read
    }

    /// See [`crate::Client::try_read_cached`].
    pub fn try_read_under_token(
        self: &Arc<Core>,
        handle: Handle,
        offset: u64,
        len: usize,
    ) -> Option<ReadData> {
        let file = self.file(handle).ok().filter(|f| f.flags.read)?;
        if self.calls.dead() || !self.calls.lease_valid() {
            return None;
        }
        {
            let state = file.inode.lock();
            if !state.token.allows(state.read_need(offset, len as u64)) || state.token.is_giving() {
                return None;
            }
        }
        self.try_read_cached(&file, offset, len)
    }

    /// At `offset`, or at the end if it is found here.
    pub async fn write_under_token(
        self: &Arc<Core>,
        file: &OpenFile,
        offset: u64,
        data: Content<'_>,
        flags: WriteFlags,
        privileges: Privileges,
    ) -> Result<usize, Errno> {
        let len = data.len() as u64;
        let work = pin!(async {
            loop {
                let at = (!self.appends(file, flags)).then_some(offset);
                let need = |state: &FileState| state.write_need(at, len);
                let range = Some((offset, len));
                let _hold = self.hold_to_change(&file.inode, range, privileges, need).await?;
                // Others may have come meanwhile: then the end is found here.
                if at.is_none() || !self.appends(file, flags) {
                    return self.write_at(file, at, data, flags).await;
                }
            }
        });
        self.operation("write", Some(file.inode.ino), work).await
    }

    /// See [`crate::Client::fallocate`].
    pub async fn fallocate_under_token(
        self: &Arc<Core>,
        handle: Handle,
        mode: Fallocate,
        offset: u64,
        len: u64,
        privileges: Privileges,
    ) -> Result<(), Errno> {
        let file = self.file_to_write(handle)?;
        let (inode, flags) = (&file.inode, file.flags);
        let work = pin!(async {
            let _hold = self.hold_to_change(inode, None, privileges, |_| Need::Write).await?;
            self.fallocate(inode, mode, offset, len).await?;
            if flags.sync || flags.dsync {
                self.calls.told().await?;
                self.make_durable(inode, offset, offset + len, !flags.sync).await?;
            }
            Ok(())
        });
        self.operation("fallocate", Some(inode.ino), work).await
    }

    /// See [`crate::Client::will_need`].
    pub async fn will_need(self: &Arc<Core>, handle: Handle, offset: u64, len: u64) -> Result<(), Errno> {
        let file = self.file(handle)?;
        let need = |state: &FileState| state.read_need(offset, len);
        let _hold = self.hold_for(&file.inode, None, need).await?;
        // What is not learned with it is not loaded ahead.
        self.learn_blocks(&file.inode, offset, offset.saturating_add(1)).await?;
        let end = offset.saturating_add(len).min(file.inode.lock().attr.size);
        self.load_ahead(&file.inode, offset.min(end), end);
        Ok(())
    }

    /// See [`crate::Client::copy_range`].
    pub async fn copy_range(
        self: &Arc<Core>,
        (from, from_offset, to, to_offset, len): (Handle, u64, Handle, u64, u64),
        privileges: Privileges,
    ) -> Result<u64, Errno> {
        let mut done = 0;
        while done < len {
            let step = (len - done).min(4 << 20) as usize;
            let copied = self.copy_step((from, from_offset + done), (to, to_offset + done), step, privileges);
            match copied.await {
                Ok(0) => break,
                Ok(copied) => done += copied as u64,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Copies up to `len` bytes; returns how many: less also where an error came after a part. Then nothing of what follows
    /// is written, which would be in the place of the rest.
    async fn copy_step(
        self: &Arc<Core>,
        (from, from_offset): (Handle, u64),
        (to, to_offset): (Handle, u64),
        len: usize,
        privileges: Privileges,
    ) -> Result<usize, Errno> {
        let data = self.read_under_token(from, from_offset, len).await?;
        let file = self.file_to_write(to)?;
        // It says where, whatever the handle.
        let flags = WriteFlags { append: false, ..file.flags.of_a_write() };
        let mut done = 0;
        for piece in data.pieces() {
            let at = to_offset + done as u64;
            match self.write_under_token(&file, at, piece.as_ref().into(), flags, privileges).await {
                Ok(written) if written == piece.len() => done += written,
                Ok(part) => return Ok(done + part),
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }
}
