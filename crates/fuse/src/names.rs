//! Operations on names and attributes.

use std::{
    sync::{Arc, LazyLock},
    time::{SystemTime, UNIX_EPOCH},
};

use base::InodeNo;
use wire::mgr::{
    Attr, FileKind, POOL_XATTR, SYMLINK_LEN_MAX, Timestamp, XATTR_NAME_LEN_MAX, XATTR_VALUE_LEN_MAX,
};
use zerocopy::IntoBytes;

use crate::{
    abi::{self, fattr},
    buffers::Payload,
    caching::Caching,
    calls::{Calls, Errno, NewInode, SYNC_ATTRIBUTE, SetAttrs, UNCACHE_ATTRIBUTE},
    reply::{Answer, entry_out, kind_bits, kind_of},
    request::{Header, Operation, name_too_long},
    session::Session,
};

const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
/// Positions of "." and ".." come first; an entry's is its cookie moved up by as much.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;
const ENTRIES_MAX: u32 = 4096;
/// The label that `ls -l` asks for, of each file until it hears that there are none.
const LABEL: &[u8] = b"security.selinux";
/// Whether anything here obeys labels. Nothing does: an inode without one is then said to be unable to have one, as on file
/// systems that keep none, and a program asks once for the whole mount. Labels that are kept all the same (a copy of another
/// machine's files) are given. SELinux itself must hear that there is none, or it would refuse the file.
static LABELS_COUNT: LazyLock<bool> =
    LazyLock::new(|| has_selinux(&std::fs::read_to_string("/proc/filesystems").unwrap_or_default()));

fn error<T>(errno: i32) -> Result<T, Errno> {
    Err(Errno(errno))
}

fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name_too_long(name) { error(libc::ENAMETOOLONG) } else { Ok(()) }
}

/// What the kernel is told of an inode that is no more: it looks the name up once more then, which another mount may
/// have led elsewhere meanwhile and which was never absent.
pub(crate) fn stale(errno: Errno) -> Errno {
    if errno.0 == libc::ENOENT { Errno(libc::ESTALE) } else { errno }
}

impl<C: Calls> Session<C> {
    /// Does what is asked.
    pub(crate) async fn serve(
        self: &Arc<Self>,
        header: &Header,
        operation: Operation,
        payload: Option<Payload>,
    ) -> Result<Answer, Errno> {
        let of_inode = operation.is_of_inode();
        let answer = match (operation, payload) {
            (Operation::Read { fh, offset, size, .. }, _) => self.read(fh, offset, size).await,
            (Operation::Write { fh, offset, write_flags, flags, .. }, Some(payload)) => {
                self.write(header.ino, fh, offset, (write_flags, flags), payload.bytes()).await
            }
            (Operation::Write { .. }, None) => error(libc::EIO),
            // In a place of its own: each read and write would have to bring along room for the largest of them.
            (operation, _) => Box::pin(self.serve_one(header, operation)).await,
        };
        match answer {
            Err(errno) if of_inode => Err(stale(errno)),
            answer => answer,
        }
    }

    async fn serve_one(self: &Arc<Self>, header: &Header, operation: Operation) -> Result<Answer, Errno> {
        let ino = header.ino;
        match operation {
            Operation::Lookup { name } => self.lookup(ino, &name).await,
            Operation::Getattr => Ok(Answer::Attr(Box::new(self.getattr(ino).await?))),
            Operation::Statx => Ok(Answer::Statx(Box::new(self.getattr(ino).await?))),
            Operation::Setattr(args) => self.setattr(ino, &args).await,
            Operation::Readlink => Ok(Answer::Bytes(self.calls.readlink(ino).await?)),
            Operation::Symlink { name, target } => {
                if target.len() > SYMLINK_LEN_MAX {
                    return error(libc::ENAMETOOLONG);
                }
                let kind = FileKind::Symlink;
                self.make(header, &name, NewInode { kind, mode: 0o777, target, ..NewInode::default() }).await
            }
            Operation::Mknod { name, mode, rdev } => {
                let kind = kind_of(mode).ok_or(Errno(libc::EINVAL))?;
                let mode = (mode & 0o7777) as u16;
                self.make(header, &name, NewInode { kind, mode, rdev, ..NewInode::default() }).await
            }
            Operation::Mkdir { name, mode } => {
                let (kind, mode) = (FileKind::Directory, (mode & 0o7777) as u16);
                self.make(header, &name, NewInode { kind, mode, ..NewInode::default() }).await
            }
            Operation::Unlink { name } => self.unlink(ino, &name, false).await,
            Operation::Rmdir { name } => self.unlink(ino, &name, true).await,
            Operation::Rename { name, new_parent, new_name, flags } => {
                self.rename(ino, &name, new_parent, &new_name, flags).await
            }
            Operation::Link { from, name } => {
                check_name(&name)?;
                Ok(Answer::Entry(Box::new(self.calls.link(from, ino, &name).await?)))
            }
            Operation::Statfs => Ok(Answer::Statfs(self.calls.statfs().await?)),
            Operation::Setxattr { name, value, flags } => self.setxattr(ino, &name, &value, flags).await,
            Operation::Getxattr { name, size } if name == SYNC_ATTRIBUTE => {
                self.sync().await?;
                xattr_answer(Vec::new(), size)
            }
            Operation::Getxattr { name, size } => {
                check_xattr_name(&name)?;
                match self.calls.getxattr(ino, &name).await {
                    Err(Errno(libc::ENODATA)) if name == LABEL && !*LABELS_COUNT => error(libc::EOPNOTSUPP),
                    value => xattr_answer(value?, size),
                }
            }
            Operation::Listxattr { size } => {
                let names = self.calls.listxattr(ino).await?;
                let list = names.iter().flat_map(|n| n.iter().copied().chain([0])).collect();
                xattr_answer(list, size)
            }
            Operation::Removexattr { name } => {
                check_xattr_name(&name)?;
                self.calls.removexattr(ino, &name).await.map(|()| Answer::Done)
            }
            Operation::Readdir { offset, size, plus } => self.readdir(ino, offset, size, plus).await,
            Operation::Syncfs => self.sync().await.map(|()| Answer::Done),
            // What is refused was refused before.
            Operation::Access { .. } => Ok(Answer::Done),
            // Asked each time, and nothing kept: its names are not everybody's to see.
            Operation::Opendir if self.rights.are_checked() => Ok(Answer::OpenedDirectory),
            // The kernel does without from now on, and keeps what is in directories.
            Operation::Opendir => error(libc::ENOSYS),
            Operation::Nothing => Ok(Answer::Done),
            Operation::Other => error(libc::ENOSYS),
            operation => self.serve_file(header, operation).await,
        }
    }

    pub(crate) async fn getattr(&self, ino: InodeNo) -> Result<Attr, Errno> {
        match self.calls.getattr(ino).await {
            Err(Errno(libc::ENOENT)) => self.inodes.removed(ino).ok_or(Errno(libc::ENOENT)),
            result => result,
        }
    }

    async fn lookup(&self, parent: InodeNo, name: &[u8]) -> Result<Answer, Errno> {
        check_name(name)?;
        match self.calls.lookup(parent, name).await {
            Ok(attr) => Ok(Answer::Entry(Box::new(attr))),
            Err(Errno(libc::ENOENT)) => Ok(Answer::Absent),
            Err(error) => Err(error),
        }
    }

    async fn make(&self, header: &Header, name: &[u8], new: NewInode) -> Result<Answer, Errno> {
        check_name(name)?;
        let new = NewInode { uid: header.uid, gid: header.gid, ..new };
        let (attr, _) = self.calls.create(header.ino, name, new).await?;
        Ok(Answer::Entry(Box::new(attr)))
    }

    async fn unlink(&self, parent: InodeNo, name: &[u8], directory: bool) -> Result<Answer, Errno> {
        check_name(name)?;
        self.calls.unlink(parent, name, directory).await.map(|()| Answer::Done)
    }

    async fn rename(
        &self,
        parent: InodeNo,
        name: &[u8],
        new_parent: InodeNo,
        new_name: &[u8],
        flags: u32,
    ) -> Result<Answer, Errno> {
        check_name(name)?;
        check_name(new_name)?;
        let (no_replace, exchange) = (flags & RENAME_NOREPLACE != 0, flags & RENAME_EXCHANGE != 0);
        if flags & !(RENAME_NOREPLACE | RENAME_EXCHANGE) != 0 || (no_replace && exchange) {
            return error(libc::EINVAL);
        }
        self.calls.rename(parent, name, new_parent, new_name, no_replace, exchange).await?;
        Ok(Answer::Done)
    }

    async fn setattr(&self, ino: InodeNo, args: &abi::SetattrIn) -> Result<Answer, Errno> {
        let has = |bit| args.valid & bit != 0;
        let set = SetAttrs {
            mode: has(fattr::MODE).then_some((args.mode & 0o7777) as u16),
            uid: has(fattr::UID).then_some(args.uid),
            gid: has(fattr::GID).then_some(args.gid),
            size: has(fattr::SIZE).then_some(args.size),
            atime: time(args.valid, fattr::ATIME, fattr::ATIME_NOW, args.atime, args.atimensec),
            mtime: time(args.valid, fattr::MTIME, fattr::MTIME_NOW, args.mtime, args.mtimensec),
            ctime: None,
            // The kernel leaves it to us to take setuid and setgid away: on truncation where it says so, and on every change
            // of owner, where the client does it by itself.
            drop_privileges: has(fattr::KILL_SUIDGID),
        };
        match self.calls.setattr(ino, set).await {
            // As of a file it is those who have it open whom it is changed for. On a squashed machine it takes the manager
            // to say whether they may, which does not have it any more.
            Err(Errno(libc::ENOENT)) if !self.rights.are_checked() => {
                self.inodes.set_removed(ino, &set, now())
            }
            Err(error) => return Err(error),
            Ok(attr) => Some(attr),
        }
        .map(|attr| Answer::Attr(Box::new(attr)))
        .ok_or(Errno(libc::ENOENT))
    }

    async fn setxattr(&self, ino: InodeNo, name: &[u8], value: &[u8], flags: u32) -> Result<Answer, Errno> {
        if name != UNCACHE_ATTRIBUTE {
            check_xattr_name(name)?;
        }
        if value.len() > XATTR_VALUE_LEN_MAX {
            return error(libc::E2BIG);
        }
        let create = flags & libc::XATTR_CREATE as u32 != 0;
        let replace = flags & libc::XATTR_REPLACE as u32 != 0;
        self.calls.setxattr(ino, name, value, create, replace).await.map(|()| Answer::Done)
    }

    async fn readdir(&self, ino: InodeNo, mut offset: u64, size: u32, plus: bool) -> Result<Answer, Errno> {
        let mut out = Entries::new(size as usize, plus);
        let cookie = offset.saturating_sub(DOT_DOT);
        let listing = match self.calls.readdir(ino, cookie, out.count_max(), plus).await {
            Ok(listing) => listing,
            // Removed while open: nothing is in it.
            Err(Errno(libc::ENOENT)) => return Ok(Answer::Entries(Vec::new(), Vec::new())),
            Err(error) => return Err(error),
        };
        if offset == 0 && out.push(b".", ino, FileKind::Directory, DOT, &None) {
            offset = DOT;
        }
        if offset == DOT && out.push(b"..", listing.parent, FileKind::Directory, DOT_DOT, &None) {
            offset = DOT_DOT;
        }
        let mut full = offset < DOT_DOT;
        for e in listing.entries {
            full = full || !out.push(&e.name, e.ino, e.kind, e.cookie.saturating_add(DOT_DOT), &e.attr);
            if let (true, Some(attr)) = (full, e.attr) {
                // Answered to us, but not passed on.
                self.calls.forget(attr.ino, 1);
            }
        }
        Ok(Answer::Entries(out.bytes, out.referred))
    }
}

fn time(valid: u32, bit: u32, now_bit: u32, secs: i64, nanos: u32) -> Option<Timestamp> {
    if valid & now_bit != 0 {
        return Some(now());
    }
    (valid & bit != 0).then_some(Timestamp { secs, nanos: nanos.min(999_999_999) })
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { secs: since.as_secs() as i64, nanos: since.subsec_nanos() }
}

/// From the file systems that the kernel has.
fn has_selinux(filesystems: &str) -> bool {
    filesystems.split_whitespace().any(|name| name == "selinuxfs")
}

/// ACLs and other attributes that only a file system itself can give meaning to are not supported, and
/// that is said: keeping an ACL that nobody obeys would be a hole.
fn check_xattr_name(name: &[u8]) -> Result<(), Errno> {
    const SPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    if name != POOL_XATTR && !SPACES.iter().any(|space| name.starts_with(space)) {
        return error(libc::EOPNOTSUPP);
    }
    if name.len() > XATTR_NAME_LEN_MAX { error(libc::ERANGE) } else { Ok(()) }
}

fn xattr_answer(bytes: Vec<u8>, size: u32) -> Result<Answer, Errno> {
    match size as usize {
        0 => Ok(Answer::XattrSize(bytes.len() as u32)),
        size if bytes.len() > size => error(libc::ERANGE),
        _ => Ok(Answer::Bytes(bytes)),
    }
}

/// The entries of one READDIR answer.
struct Entries {
    bytes: Vec<u8>,
    referred: Vec<Attr>,
    size_max: usize,
    plus: bool,
}

impl Entries {
    fn new(size_max: usize, plus: bool) -> Entries {
        Entries { bytes: Vec::new(), referred: Vec::new(), size_max, plus }
    }

    fn header_len(&self) -> usize {
        size_of::<abi::Dirent>() + if self.plus { size_of::<abi::EntryOut>() } else { 0 }
    }

    /// About as many entries as fit, for names of common length.
    fn count_max(&self) -> u32 {
        ((self.size_max / (self.header_len() + 16)) as u32).clamp(1, ENTRIES_MAX)
    }

    /// Adds an entry; false if it does not fit. `attr` makes the kernel refer to the inode.
    fn push(
        &mut self,
        name: &[u8],
        ino: InodeNo,
        kind: FileKind,
        position: u64,
        attr: &Option<Attr>,
    ) -> bool {
        let len = (self.header_len() + name.len()).next_multiple_of(8);
        if self.bytes.len() + len > self.size_max {
            return false;
        }
        let end = self.bytes.len() + len;
        if self.plus {
            // All zeros: no attributes, no reference. How long they may be kept is set when they are sent.
            let entry = attr.as_ref().map(|attr| entry_out(attr, &Caching::UNCACHED)).unwrap_or_default();
            self.bytes.extend_from_slice(entry.as_bytes());
        }
        let kind = kind_bits(kind) >> 12;
        let dirent = abi::Dirent { ino: ino.0, off: position, namelen: name.len() as u32, kind };
        self.bytes.extend_from_slice(dirent.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        if self.plus {
            self.referred.extend(attr.clone());
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_padded_and_never_over_the_size() {
        let mut plain = Entries::new(64, false);
        assert!(plain.push(b"abc", InodeNo(9), FileKind::File, 3, &None));
        assert_eq!(plain.bytes.len(), 32);
        assert_eq!(u32::from_ne_bytes(plain.bytes[20..24].try_into().unwrap()), u32::from(libc::DT_REG));
        assert!(plain.push(b"12345678", InodeNo(9), FileKind::File, 4, &None));
        assert!(!plain.push(b"x", InodeNo(9), FileKind::File, 5, &None));
        let mut plus = Entries::new(1000, true);
        assert!(plus.push(b".", InodeNo::ROOT, FileKind::Directory, 1, &None));
        assert!(plus.push(b"f", InodeNo(2), FileKind::File, 3, &Some(Attr::default())));
        assert_eq!((plus.bytes.len(), plus.referred.len()), (320, 1));
        assert_eq!(plus.bytes[..8], [0; 8], "no reference to the directory itself");
    }

    #[test]
    fn labels_count_where_the_kernel_has_selinux() {
        assert!(has_selinux("nodev\tsysfs\nnodev\tselinuxfs\n\text4\n"));
        assert!(!has_selinux("nodev\tsysfs\n\text4\n"));
        assert!(!has_selinux(""));
    }

    #[test]
    fn acls_are_refused_by_name() {
        assert_eq!(check_xattr_name(b"system.posix_acl_access"), error(libc::EOPNOTSUPP));
        assert_eq!(check_xattr_name(b"user.x"), Ok(()));
        assert_eq!(check_xattr_name(POOL_XATTR), Ok(()));
        assert_eq!(check_xattr_name(&[b"user.".as_slice(), &[b'x'; 251]].concat()), error(libc::ERANGE));
    }
}
