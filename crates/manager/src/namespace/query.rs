//! Questions to the namespace: answered from a snapshot, nothing is changed.

use libc::{EINVAL, ENOENT, ENOSYS};
use wire::mgr::{FileKind, MgrReply, MgrRequest};

use super::{FsContext, Op, dir, errno, extents, inode, xattr};
use crate::store::Read;

/// Answers one of the reading requests.
pub fn query(from: &dyn Read, fs: &FsContext, request: &MgrRequest) -> Op<MgrReply> {
    let attr_of = |ino| -> Op<MgrReply> {
        let inode = inode::get(from, fs.fs, ino)?;
        Ok(MgrReply::Attr(Box::new(inode::attr(ino, &inode))))
    };
    match request {
        MgrRequest::Lookup { parent, name } => {
            let dir = dir::get_dir(from, fs, *parent)?;
            match name.as_slice() {
                b"." => attr_of(*parent),
                b".." => attr_of(dir.parent),
                name => match dir::find(from, fs, *parent, name)? {
                    Some((_, entry)) => attr_of(entry.ino),
                    None => errno(ENOENT),
                },
            }
        }
        MgrRequest::GetAttr { ino } => attr_of(*ino),
        MgrRequest::ReadDir { ino, cookie, limit, plus } => {
            let parent = dir::get_dir(from, fs, *ino)?.parent;
            let (entries, end) = dir::list(from, fs, *ino, *cookie, *limit, *plus)?;
            Ok(MgrReply::Entries { entries, end, parent })
        }
        MgrRequest::ReadLink { ino } => match inode::get(from, fs.fs, *ino)?.kind {
            FileKind::Symlink => Ok(MgrReply::Bytes(inode::body(from, fs.fs, *ino)?)),
            _ => errno(EINVAL),
        },
        MgrRequest::ReadInline { ino } => match inode::get(from, fs.fs, *ino)?.kind {
            FileKind::File => Ok(MgrReply::Bytes(inode::body(from, fs.fs, *ino)?)),
            _ => errno(EINVAL),
        },
        MgrRequest::Extents { ino, from: block, limit } => {
            inode::get(from, fs.fs, *ino)?;
            let (extents, more) = extents::list(from, fs.fs, *ino, *block, *limit)?;
            Ok(MgrReply::Extents { extents, more })
        }
        MgrRequest::GetXattr { ino, name } => Ok(MgrReply::Bytes(xattr::get(from, fs.fs, *ino, name)?)),
        MgrRequest::ListXattr { ino } => Ok(MgrReply::Names(xattr::list(from, fs.fs, *ino)?)),
        _ => errno(ENOSYS),
    }
}
