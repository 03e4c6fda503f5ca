//! Extended attributes, and what else is kept at the manager as plain bytes.

use std::sync::Arc;

use base::InodeNo;
use wire::{
    mgr::{Change, FileKind, MgrReply, MgrRequest, XATTR_NAMESPACES},
    token::Need,
};

use super::touch::Touched;
use crate::{
    calls::unexpected,
    core::{Core, now},
    error::Errno,
};

impl Core {
    /// See [`crate::Client::getxattr`].
    pub async fn getxattr(&self, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>, Errno> {
        if XATTR_NAMESPACES.iter().any(|space| name.starts_with(space)) && self.is_plain(ino) {
            // The kernel asks for file capabilities before the first write to every file, `ls -l` for a label of each.
            return Err(Errno(libc::ENODATA));
        }
        self.bytes("GetXattr", MgrRequest::GetXattr { ino, name: name.to_vec() }).await
    }

    /// See [`crate::Client::listxattr`].
    pub async fn listxattr(&self, ino: InodeNo) -> Result<Vec<Vec<u8>>, Errno> {
        if self.is_plain(ino) {
            return Ok(Vec::new());
        }
        match self.calls.ask(MgrRequest::ListXattr { ino }).await? {
            MgrReply::Names(names) => Ok(names),
            other => Err(unexpected("ListXattr", &other)),
        }
    }

    pub async fn change_xattr(self: &Arc<Core>, ino: InodeNo, change: Change) -> Result<(), Errno> {
        let core = self.clone();
        self.carry_out(async move { core.change_xattr_now(ino, change).await }).await
    }

    async fn change_xattr_now(self: &Arc<Core>, ino: InodeNo, change: Change) -> Result<(), Errno> {
        let inode = self.inode(ino);
        let _hold = match self.getattr(ino).await?.kind {
            FileKind::File => Some(self.hold(&inode, Need::Write).await?),
            _ => None,
        };
        inode.lock().attr.plain = false;
        let changing = self.change(&[], &[ino]);
        let reply = self.calls.mutate(change).await;
        changing.file_changed(&reply);
        let newest = changing.end(&reply, &[], Touched::Unknown);
        match reply? {
            MgrReply::Attr(attr) if attr.kind == FileKind::File => {}
            MgrReply::Attr(attr) => {
                self.changed_attr(*attr, newest);
            }
            MgrReply::Done => {
                if let Some(inode) = self.inode_known(ino) {
                    inode.lock().attr.ctime = now();
                }
            }
            other => return Err(unexpected("change of an extended attribute", &other)),
        }
        Ok(())
    }

    /// An answer that is plain bytes.
    pub async fn bytes(&self, what: &'static str, request: MgrRequest) -> Result<Vec<u8>, Errno> {
        match self.calls.ask(request).await? {
            MgrReply::Bytes(bytes) => Ok(bytes),
            other => Err(unexpected(what, &other)),
        }
    }
}
