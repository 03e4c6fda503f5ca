//! Extended attributes of the namespaces user, security and trusted; and the one that tells an inode's pool.

use std::ops::ControlFlow;

use base::{FsId, InodeNo};
use libc::{E2BIG, EEXIST, EINVAL, ENODATA, ENOSPC, ENOTDIR, EOPNOTSUPP, ERANGE};
use wire::{
    map::PoolEntry,
    mgr::{
        FileKind, MgrReply, POOL_XATTR, Timestamp, XATTR_NAME_LEN_MAX, XATTR_NAMESPACES, XATTR_VALUE_LEN_MAX,
    },
};

use super::{Editor, Fault, Op, errno, inode};
use crate::{
    closing::closed_name,
    keys::{BYTES_VERSION, XATTR_KEY_HEAD, xattr_key},
    store::{Read, open_bytes, open_record, prefix_end, seal_bytes},
};

/// Most bytes of all names of an inode, with a NUL each: what listxattr can return.
const NAMES_LEN_MAX: u32 = 64 << 10;
/// Most bytes of all values of an inode.
const VALUES_LEN_MAX: u32 = 1 << 20;

fn check_name(name: &[u8]) -> Op<()> {
    if name.len() > XATTR_NAME_LEN_MAX || name.is_empty() {
        return errno(ERANGE);
    }
    let known = XATTR_NAMESPACES.iter().any(|prefix| name.starts_with(prefix) && name.len() > prefix.len());
    if known && !name.contains(&0) { Ok(()) } else { errno(EOPNOTSUPP) }
}

/// A pool by whatever tells it apart.
fn pool(from: &dyn Read, wanted: impl Fn(&PoolEntry) -> bool) -> Op<Option<PoolEntry>> {
    let (mut found, mut bad) = (None, None);
    from.scan(b"l", &prefix_end(b"l"), &mut |key, value| {
        match open_record::<PoolEntry>(key, value) {
            Ok(pool) if wanted(&pool) => found = Some(pool),
            Ok(_) => {}
            Err(error) => bad = Some(error),
        }
        ControlFlow::Continue(())
    })?;
    bad.map_or(Ok(found), |error| Err(error.into()))
}

/// The value; ENODATA if there is none.
pub fn get(from: &dyn Read, fs: FsId, ino: InodeNo, name: &[u8]) -> Op<Vec<u8>> {
    if name == POOL_XATTR {
        let home = inode::get(from, fs, ino)?.pool;
        return Ok(pool(from, |pool| pool.id == home)?
            .map(|pool| pool.name.into_bytes())
            .unwrap_or_default());
    }
    check_name(name)?;
    let key = xattr_key(fs, ino, name);
    match from.get(&key)? {
        Some(value) => Ok(open_bytes("extended attribute", &key, BYTES_VERSION, &value)?.to_vec()),
        None => {
            inode::get(from, fs, ino)?;
            errno(ENODATA)
        }
    }
}

/// The names, sorted.
pub fn list(from: &dyn Read, fs: FsId, ino: InodeNo) -> Op<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    if inode::get(from, fs, ino)?.xattr_names > 0 {
        let prefix = xattr_key(fs, ino, b"");
        from.scan(&prefix, &prefix_end(&prefix), &mut |key, _| {
            names.push(key[XATTR_KEY_HEAD..].to_vec());
            ControlFlow::Continue(())
        })?;
    }
    Ok(names)
}

impl Editor<'_, '_> {
    fn xattr_len(&self, ino: InodeNo, name: &[u8]) -> Op<Option<u32>> {
        match get(self.txn, self.fs.fs, ino, name) {
            Ok(value) => Ok(Some(value.len() as u32)),
            Err(Fault::Errno(ENODATA)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What is made in a directory from now on goes to another pool.
    fn set_pool(&mut self, ino: InodeNo, name: &[u8], now: Timestamp) -> Op<MgrReply> {
        let mut inode = self.get(ino)?;
        if inode.kind != FileKind::Directory {
            return errno(ENOTDIR); // the blocks of a file stay where they are
        }
        let open = |pool: &PoolEntry| pool.name.as_bytes() == name && closed_name(&pool.name).is_none();
        let Some(pool) = pool(self.txn, open)? else { return errno(EINVAL) };
        (inode.pool, inode.block_size, inode.ctime) = (pool.id, pool.block_size, now);
        self.put(ino, &inode);
        Ok(MgrReply::Attr(Box::new(inode::attr(ino, &inode))))
    }

    pub(super) fn set_xattr(
        &mut self,
        ino: InodeNo,
        name: &[u8],
        value: &[u8],
        create: bool,
        replace: bool,
        now: Timestamp,
    ) -> Op<MgrReply> {
        if name == POOL_XATTR {
            return if create { errno(EEXIST) } else { self.set_pool(ino, value, now) };
        }
        check_name(name)?;
        if value.len() > XATTR_VALUE_LEN_MAX {
            return errno(E2BIG);
        }
        let mut inode = self.get(ino)?;
        match self.xattr_len(ino, name)? {
            Some(_) if create => return errno(EEXIST),
            None if replace => return errno(ENODATA),
            Some(old) => inode.xattr_values = inode.xattr_values.saturating_sub(old),
            None => inode.xattr_names += name.len() as u32 + 1,
        }
        inode.xattr_values += value.len() as u32;
        if inode.xattr_names > NAMES_LEN_MAX || inode.xattr_values > VALUES_LEN_MAX {
            return errno(ENOSPC);
        }
        let key = xattr_key(self.fs.fs, ino, name);
        let sealed = seal_bytes(&key, BYTES_VERSION, value);
        self.txn.put(key, sealed);
        inode.ctime = now;
        self.put(ino, &inode);
        Ok(MgrReply::Attr(Box::new(inode::attr(ino, &inode))))
    }

    pub(super) fn remove_xattr(&mut self, ino: InodeNo, name: &[u8], now: Timestamp) -> Op<MgrReply> {
        check_name(name)?;
        let mut inode = self.get(ino)?;
        let Some(old) = self.xattr_len(ino, name)? else { return errno(ENODATA) };
        inode.xattr_values = inode.xattr_values.saturating_sub(old);
        inode.xattr_names = inode.xattr_names.saturating_sub(name.len() as u32 + 1);
        inode.ctime = now;
        self.txn.delete(xattr_key(self.fs.fs, ino, name));
        self.put(ino, &inode);
        Ok(MgrReply::Attr(Box::new(inode::attr(ino, &inode))))
    }
}
