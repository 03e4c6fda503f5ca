//! A mount of a squashed machine: what its kernel lets root do, it may not do here.
//!
//! The kernel checks with the user that it sees, by modes that say whose files are whose; root it lets do everything. So what somebody
//! is let in to by a handle (a file, a directory), and what is asked by name, is checked once more with the user that he acts as.
//! What changes names and attributes the manager checks, which hears who asks. The kernel keeps no names there: each way through a
//! directory is asked for.
//!
//! Where all act as one user the kernel, which sees others, checks nothing: it asks here. What it has kept is that user's to see.

use std::sync::Arc;

use base::InodeNo;
use wire::{
    credentials::{Credentials, Owned, READ, SEARCH, WRITE, Who},
    mgr::Attr,
};

use crate::{
    abi::fattr,
    buffers::Payload,
    calls::{Calls, Errno},
    names::stale,
    reply::Answer,
    request::{Header, Operation},
    session::Session,
};

/// The kernel opens a file to run it.
const OPEN_TO_RUN: u32 = 0x20;

fn owned(attr: &Attr) -> Owned {
    Owned { uid: attr.uid, gid: attr.gid, mode: attr.mode }
}

/// What somebody wants who opens with these flags.
fn to_open(flags: u32) -> u16 {
    let read = if flags & OPEN_TO_RUN != 0 { SEARCH } else { READ };
    let truncate = if flags as i32 & libc::O_TRUNC != 0 { WRITE } else { 0 };
    truncate
        | match flags as i32 & libc::O_ACCMODE {
            libc::O_WRONLY => WRITE,
            libc::O_RDWR => READ | WRITE,
            _ => read,
        }
}

impl<C: Calls> Session<C> {
    /// On a squashed machine.
    pub(crate) async fn serve_checked(
        self: &Arc<Self>,
        header: &Header,
        operation: Operation,
        payload: Option<Payload>,
        by: Credentials,
    ) -> Result<Answer, Errno> {
        if let Err(errno) = self.check_rights(header, &operation, &by).await {
            return Err(if operation.is_of_inode() { stale(errno) } else { errno });
        }
        client::on_behalf(by, self.serve(header, operation, payload)).await
    }

    /// Refuses what the program may not do whose request this is.
    async fn check_rights(
        &self,
        header: &Header,
        operation: &Operation,
        by: &Credentials,
    ) -> Result<(), Errno> {
        let wanted = match operation {
            // "." is the inode of a file handle.
            Operation::Lookup { name } if name != b"." => SEARCH,
            Operation::Open { flags, .. } => to_open(*flags),
            Operation::Access { mask } => *mask as u16 & (READ | WRITE | SEARCH),
            Operation::Opendir | Operation::Readdir { .. } => READ,
            Operation::Setattr(args) if args.valid & fattr::SIZE != 0 && args.valid & fattr::FH == 0 => WRITE,
            Operation::Getxattr { name, .. } if name.starts_with(b"user.") => READ,
            Operation::Getxattr { name, .. } if name.starts_with(b"trusted.") => {
                return Err(Errno(libc::ENODATA));
            }
            _ => return Ok(()),
        };
        self.check_use(header.ino, wanted, by).await
    }

    /// The same of a file that is opened by the name under which it would have been made.
    pub(crate) async fn check_existing(
        &self,
        header: &Header,
        ino: InodeNo,
        flags: u32,
    ) -> Result<(), Errno> {
        match self.rights.caller(header) {
            Some(by) => self.check_use(ino, to_open(flags), &by).await,
            None => Ok(()),
        }
    }

    async fn check_use(&self, ino: InodeNo, wanted: u16, by: &Credentials) -> Result<(), Errno> {
        let who = Who::of(self.rights.squash, Some(by));
        let what = owned(&self.getattr(ino).await?);
        let may = who.may(what, wanted) && (wanted & WRITE == 0 || who.may_write(what));
        if may { Ok(()) } else { Err(Errno(libc::EACCES)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_say_what_is_wanted() {
        for (flags, wanted) in [
            (libc::O_RDONLY, READ),
            (libc::O_WRONLY, WRITE),
            (libc::O_RDWR | libc::O_APPEND, READ | WRITE),
            (libc::O_RDONLY | libc::O_TRUNC, READ | WRITE),
            (libc::O_RDONLY | OPEN_TO_RUN as i32, SEARCH),
        ] {
            assert_eq!(to_open(flags as u32), wanted, "{flags:o}");
        }
    }
}
