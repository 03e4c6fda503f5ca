//! Decoding of kernel requests into [`Request`]. Every transport uses it.
//! The bytes come from the kernel, yet a request that does not fit its structure is an error of that
//! request alone (EIO), never a panic. The data of a WRITE stays in the buffer it was read into.

use base::InodeNo;
use thiserror::Error;
use wire::mgr::NAME_LEN_MAX;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::abi::{self, opcode};

/// Who asks, and which inode it is about.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// Identity of the request on its connection.
    pub unique: u64,
    /// Operation number.
    pub opcode: u32,
    /// The inode, or the directory of names.
    pub ino: InodeNo,
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Thread that asks; 0 if the kernel does on its own.
    pub pid: u32,
}

/// What is asked.
#[derive(Debug)]
pub enum Operation {
    /// An entry by name.
    Lookup { name: Vec<u8> },
    /// References given up: (inode, how many). No answer.
    Forget { nodes: Vec<(InodeNo, u64)> },
    /// Attributes.
    Getattr,
    /// Attributes with the creation time.
    Statx,
    /// Changes attributes.
    Setattr(abi::SetattrIn),
    /// Target of a symlink.
    Readlink,
    /// A new symlink.
    Symlink { name: Vec<u8>, target: Vec<u8> },
    /// A new file, pipe, socket or device.
    Mknod { name: Vec<u8>, mode: u32, rdev: u32 },
    /// A new directory.
    Mkdir { name: Vec<u8>, mode: u32 },
    /// Removes a name.
    Unlink { name: Vec<u8> },
    /// Removes an empty directory.
    Rmdir { name: Vec<u8> },
    /// Moves a name; flags of renameat2.
    Rename { name: Vec<u8>, new_parent: InodeNo, new_name: Vec<u8>, flags: u32 },
    /// Another name for `from`.
    Link { from: InodeNo, name: Vec<u8> },
    /// Opens a file.
    Open { flags: u32, kill_suidgid: bool },
    /// Makes and opens a file.
    Create { name: Vec<u8>, mode: u32, flags: u32, kill_suidgid: bool },
    /// Makes and opens a file without a name.
    Tmpfile { mode: u32, flags: u32 },
    /// Reads; `fills`: into pages of the kernel's cache.
    Read { fh: u64, offset: u64, size: u32, fills: bool },
    /// Writes `size` bytes that stand at `data` of the request's bytes. `flags`: of open(2), as they are for this write.
    Write { fh: u64, offset: u64, write_flags: u32, flags: u32, data: std::ops::Range<usize> },
    /// Capacity and use.
    Statfs,
    /// Last close.
    Release { fh: u64 },
    /// A close, by the process or open file `owner`.
    Flush { fh: u64, owner: u64 },
    /// The lock in the way of one.
    Getlk(abi::LkIn),
    /// Sets a lock or gives it up.
    Setlk { args: abi::LkIn, wait: bool },
    /// fsync of a file or directory.
    Fsync { fh: Option<u64>, datasync: bool },
    /// Sets an extended attribute; flags of setxattr.
    Setxattr { name: Vec<u8>, value: Vec<u8>, flags: u32 },
    /// Value of an extended attribute; size 0 asks for its length.
    Getxattr { name: Vec<u8>, size: u32 },
    /// Names of extended attributes; size 0 asks for their length.
    Listxattr { size: u32 },
    /// Removes an extended attribute.
    Removexattr { name: Vec<u8> },
    /// Entries of a directory.
    Readdir { offset: u64, size: u32, plus: bool },
    /// fallocate.
    Fallocate { fh: u64, offset: u64, length: u64, mode: u32 },
    /// SEEK_DATA and SEEK_HOLE.
    Lseek { fh: u64, offset: u64, whence: u32 },
    /// copy_file_range; `wide` answers with 64 bits.
    CopyRange { args: abi::CopyFileRangeIn, wide: bool },
    /// The thread that waits for `unique` got a signal.
    Interrupt { unique: u64 },
    /// Everything durable.
    Syncfs,
    /// access(2) and chdir(2), where the kernel does not know the answer: bits of R_OK, W_OK, X_OK.
    Access { mask: u32 },
    /// Opens a directory.
    Opendir,
    /// Nothing to do, but an answer is due.
    Nothing,
    /// Not served: ENOSYS tells the kernel never to ask again, or to do it itself.
    Other,
}

impl Operation {
    /// Where in the file it begins, if it is about a place there.
    pub fn offset(&self) -> Option<u64> {
        match self {
            Operation::Read { offset, .. }
            | Operation::Write { offset, .. }
            | Operation::Fallocate { offset, .. }
            | Operation::Lseek { offset, .. } => Some(*offset),
            Operation::CopyRange { args, .. } => Some(args.off_in),
            _ => None,
        }
    }

    /// How many bytes of its pages the kernel writes by it, if it does.
    pub fn page_bytes(&self) -> Option<u64> {
        match self {
            Operation::Write { write_flags, data, .. } if write_flags & abi::WRITE_CACHE != 0 => {
                Some(data.len() as u64)
            }
            _ => None,
        }
    }
}

/// A decoded request.
#[derive(Debug)]
pub struct Request {
    /// Who asks.
    pub header: Header,
    /// What.
    pub operation: Operation,
}

/// Why a request could not be decoded.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("FUSE request of {len} bytes, operation {opcode}: {reason}")]
pub struct BadRequest {
    /// Its identity, if its header could be read: the answer is EIO.
    pub unique: Option<u64>,
    len: usize,
    opcode: u32,
    reason: &'static str,
}

struct Cursor<'a> {
    rest: &'a [u8],
}

impl Operation {
    /// Whether ENOENT can only mean that the inode of the header is no more. Not of those by an open file, which
    /// keeps it, and those that name an entry of a directory.
    pub fn is_of_inode(&self) -> bool {
        use Operation::*;
        matches!(
            self,
            Getattr
                | Statx
                | Setattr(_)
                | Readlink
                | Open { .. }
                | Setxattr { .. }
                | Getxattr { .. }
                | Listxattr { .. }
                | Removexattr { .. }
        )
    }
}

impl<'a> Cursor<'a> {
    fn take<T: FromBytes + Immutable + KnownLayout>(&mut self) -> Result<T, &'static str> {
        let (value, rest) = T::read_from_prefix(self.rest).map_err(|_| "shorter than its structure")?;
        self.rest = rest;
        Ok(value)
    }

    /// Bytes up to a NUL, which is taken too.
    fn string(&mut self) -> Result<&'a [u8], &'static str> {
        let end = self.rest.iter().position(|b| *b == 0).ok_or("string without its end")?;
        let string = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Ok(string)
    }

    fn name(&mut self) -> Result<Vec<u8>, &'static str> {
        let name = self.string()?;
        if name.is_empty() || name.contains(&b'/') {
            return Err("name that is empty or has a slash");
        }
        // A name of more than 255 bytes is decoded: the operation answers ENAMETOOLONG.
        Ok(name.to_vec())
    }
}

/// Whether a name is longer than any directory keeps.
pub fn name_too_long(name: &[u8]) -> bool {
    name.len() > NAME_LEN_MAX
}

impl From<&abi::InHeader> for Header {
    fn from(raw: &abi::InHeader) -> Header {
        Header {
            unique: raw.unique,
            opcode: raw.opcode,
            ino: InodeNo(raw.nodeid),
            uid: raw.uid,
            gid: raw.gid,
            pid: raw.pid,
        }
    }
}

impl Request {
    /// The same, with the kernel's number of its root replaced by that of the directory that is the root.
    pub fn rooted(mut self, root: InodeNo) -> Request {
        let named = |ino: &mut InodeNo| {
            if *ino == InodeNo::ROOT {
                *ino = root;
            }
        };
        named(&mut self.header.ino);
        if let Operation::Rename { new_parent, .. } = &mut self.operation {
            named(new_parent);
        }
        self
    }

    /// Decodes what one read of the device, or one ring entry, gave.
    pub fn decode(bytes: &[u8]) -> Result<Request, BadRequest> {
        let bad = |unique, opcode, reason| BadRequest { unique, len: bytes.len(), opcode, reason };
        let mut cursor = Cursor { rest: bytes };
        let header: abi::InHeader = cursor.take().map_err(|reason| bad(None, 0, reason))?;
        if header.len as usize != bytes.len() {
            return Err(bad(Some(header.unique), header.opcode, "length differs from its header's"));
        }
        let operation = Operation::decode(&header, &mut cursor, bytes.len())
            .map_err(|reason| bad(Some(header.unique), header.opcode, reason))?;
        Ok(Request { header: Header::from(&header), operation })
    }

    /// Decodes what a ring entry gave: the header, the operation's own structure, and the rest apart. The
    /// data of a WRITE is all of `payload`, which is not copied.
    pub fn decode_apart(header: &[u8], op: &[u8], payload: &[u8]) -> Result<Request, BadRequest> {
        let len = header.len() + op.len() + payload.len();
        let bad = |unique, opcode, reason| BadRequest { unique, len, opcode, reason };
        let raw = abi::InHeader::read_from_bytes(header)
            .map_err(|_| bad(None, 0, "header of another length than it has"))?;
        if raw.opcode != opcode::WRITE {
            return Request::decode(&[header, op, payload].concat());
        }
        let args = abi::WriteIn::read_from_prefix(op).map_err(|_| "shorter than its structure");
        let reason = |reason| bad(Some(raw.unique), raw.opcode, reason);
        let (args, _) = args.map_err(reason)?;
        if args.size as usize != payload.len() || raw.len as usize != len {
            return Err(reason("other data than it says"));
        }
        let abi::WriteIn { fh, offset, write_flags, flags, .. } = args;
        let operation = Operation::Write { fh, offset, write_flags, flags, data: 0..payload.len() };
        Ok(Request { header: Header::from(&raw), operation })
    }
}

impl Operation {
    fn decode(header: &abi::InHeader, c: &mut Cursor<'_>, len: usize) -> Result<Operation, &'static str> {
        Ok(match header.opcode {
            opcode::LOOKUP => Operation::Lookup { name: c.name()? },
            opcode::FORGET => {
                let args: abi::ForgetIn = c.take()?;
                Operation::Forget { nodes: vec![(InodeNo(header.nodeid), args.nlookup)] }
            }
            opcode::BATCH_FORGET => Operation::batch_forget(c)?,
            opcode::GETATTR => Operation::Getattr,
            opcode::STATX => Operation::Statx,
            opcode::SETATTR => Operation::Setattr(c.take()?),
            opcode::READLINK => Operation::Readlink,
            opcode::SYMLINK => Operation::Symlink { name: c.name()?, target: c.string()?.to_vec() },
            opcode::MKNOD => {
                let args: abi::MknodIn = c.take()?;
                Operation::Mknod { name: c.name()?, mode: args.mode, rdev: args.rdev }
            }
            opcode::MKDIR => {
                let args: abi::MkdirIn = c.take()?;
                Operation::Mkdir { name: c.name()?, mode: args.mode }
            }
            opcode::UNLINK => Operation::Unlink { name: c.name()? },
            opcode::RMDIR => Operation::Rmdir { name: c.name()? },
            opcode::RENAME => {
                let args: abi::RenameIn = c.take()?;
                Operation::rename(c, args.newdir, 0)?
            }
            opcode::RENAME2 => {
                let args: abi::Rename2In = c.take()?;
                Operation::rename(c, args.newdir, args.flags)?
            }
            opcode::LINK => {
                let args: abi::LinkIn = c.take()?;
                Operation::Link { from: InodeNo(args.oldnodeid), name: c.name()? }
            }
            opcode::OPEN => {
                let args: abi::OpenIn = c.take()?;
                let kill_suidgid = args.open_flags & abi::OPEN_KILL_SUIDGID != 0;
                Operation::Open { flags: args.flags, kill_suidgid }
            }
            opcode::CREATE => {
                let args: abi::CreateIn = c.take()?;
                let kill_suidgid = args.open_flags & abi::OPEN_KILL_SUIDGID != 0;
                Operation::Create { name: c.name()?, mode: args.mode, flags: args.flags, kill_suidgid }
            }
            opcode::TMPFILE => {
                // The name that follows is "/", whatever the file will be called.
                let args: abi::CreateIn = c.take()?;
                Operation::Tmpfile { mode: args.mode, flags: args.flags }
            }
            opcode::READ => {
                let args: abi::ReadIn = c.take()?;
                let fills = args.read_flags & abi::READ_LOCKOWNER == 0;
                Operation::Read { fh: args.fh, offset: args.offset, size: args.size, fills }
            }
            opcode::WRITE => {
                let args: abi::WriteIn = c.take()?;
                let size = args.size as usize;
                if c.rest.len() < size {
                    return Err("less data than it says");
                }
                let start = len - c.rest.len();
                Operation::Write {
                    fh: args.fh,
                    offset: args.offset,
                    write_flags: args.write_flags,
                    flags: args.flags,
                    data: start..start + size,
                }
            }
            opcode::STATFS => Operation::Statfs,
            opcode::RELEASE => Operation::Release { fh: c.take::<abi::ReleaseIn>()?.fh },
            opcode::FLUSH => {
                let args: abi::FlushIn = c.take()?;
                Operation::Flush { fh: args.fh, owner: args.lock_owner }
            }
            opcode::GETLK => Operation::Getlk(c.take()?),
            opcode::SETLK => Operation::Setlk { args: c.take()?, wait: false },
            opcode::SETLKW => Operation::Setlk { args: c.take()?, wait: true },
            opcode::FSYNC | opcode::FSYNCDIR => {
                let args: abi::FsyncIn = c.take()?;
                // Directories have no handles here.
                let fh = (header.opcode == opcode::FSYNC).then_some(args.fh);
                Operation::Fsync { fh, datasync: args.fsync_flags & abi::FSYNC_FDATASYNC != 0 }
            }
            opcode::SETXATTR => {
                let args: abi::SetxattrIn = c.take()?;
                let name = c.string()?.to_vec();
                let value = c.rest.get(..args.size as usize).ok_or("value shorter than it says")?;
                Operation::Setxattr { name, value: value.to_vec(), flags: args.flags }
            }
            opcode::GETXATTR => {
                let args: abi::GetxattrIn = c.take()?;
                Operation::Getxattr { name: c.string()?.to_vec(), size: args.size }
            }
            opcode::LISTXATTR => Operation::Listxattr { size: c.take::<abi::GetxattrIn>()?.size },
            opcode::REMOVEXATTR => Operation::Removexattr { name: c.string()?.to_vec() },
            opcode::READDIR | opcode::READDIRPLUS => {
                let args: abi::ReadIn = c.take()?;
                let plus = header.opcode == opcode::READDIRPLUS;
                Operation::Readdir { offset: args.offset, size: args.size, plus }
            }
            opcode::FALLOCATE => {
                let args: abi::FallocateIn = c.take()?;
                Operation::Fallocate {
                    fh: args.fh,
                    offset: args.offset,
                    length: args.length,
                    mode: args.mode,
                }
            }
            opcode::LSEEK => {
                let args: abi::LseekIn = c.take()?;
                Operation::Lseek { fh: args.fh, offset: args.offset, whence: args.whence }
            }
            opcode::COPY_FILE_RANGE => Operation::CopyRange { args: c.take()?, wide: false },
            opcode::COPY_FILE_RANGE_64 => Operation::CopyRange { args: c.take()?, wide: true },
            opcode::INTERRUPT => Operation::Interrupt { unique: c.take::<abi::InterruptIn>()?.unique },
            opcode::SYNCFS => Operation::Syncfs,
            opcode::ACCESS => Operation::Access { mask: c.take::<abi::AccessIn>()?.mask },
            opcode::OPENDIR => Operation::Opendir,
            // Directories have no handles here: nothing is to be closed.
            opcode::DESTROY | opcode::RELEASEDIR => Operation::Nothing,
            _ => Operation::Other,
        })
    }

    fn rename(c: &mut Cursor<'_>, newdir: u64, flags: u32) -> Result<Operation, &'static str> {
        Ok(Operation::Rename { name: c.name()?, new_parent: InodeNo(newdir), new_name: c.name()?, flags })
    }

    fn batch_forget(c: &mut Cursor<'_>) -> Result<Operation, &'static str> {
        let args: abi::BatchForgetIn = c.take()?;
        let count = args.count as usize;
        if c.rest.len() / size_of::<abi::ForgetOne>() < count {
            return Err("fewer inodes than it says");
        }
        let mut nodes = Vec::with_capacity(count);
        for _ in 0..count {
            let one: abi::ForgetOne = c.take()?;
            nodes.push((InodeNo(one.nodeid), one.nlookup));
        }
        Ok(Operation::Forget { nodes })
    }
}

/// Name of an operation, for people.
pub fn operation_name(number: u32) -> &'static str {
    match number {
        opcode::LOOKUP => "lookup",
        opcode::FORGET | opcode::BATCH_FORGET => "forget",
        opcode::GETATTR | opcode::STATX => "getattr",
        opcode::SETATTR => "setattr",
        opcode::READLINK => "readlink",
        opcode::SYMLINK => "symlink",
        opcode::MKNOD => "mknod",
        opcode::MKDIR => "mkdir",
        opcode::UNLINK => "unlink",
        opcode::RMDIR => "rmdir",
        opcode::RENAME | opcode::RENAME2 => "rename",
        opcode::LINK => "link",
        opcode::OPEN => "open",
        opcode::CREATE => "create",
        opcode::TMPFILE => "tmpfile",
        opcode::READ => "read",
        opcode::WRITE => "write",
        opcode::STATFS => "statfs",
        opcode::RELEASE => "release",
        opcode::FLUSH => "flush",
        opcode::GETLK => "getlk",
        opcode::SETLK => "setlk",
        opcode::SETLKW => "wait for a lock",
        opcode::FSYNC | opcode::FSYNCDIR => "fsync",
        opcode::SETXATTR => "setxattr",
        opcode::GETXATTR => "getxattr",
        opcode::LISTXATTR => "listxattr",
        opcode::REMOVEXATTR => "removexattr",
        opcode::ACCESS => "access",
        opcode::OPENDIR => "opendir",
        opcode::READDIR | opcode::READDIRPLUS => "readdir",
        opcode::FALLOCATE => "fallocate",
        opcode::LSEEK => "lseek",
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => "copy_file_range",
        opcode::INTERRUPT => "interrupt",
        opcode::SYNCFS => "syncfs",
        _ => "other",
    }
}

/// Bytes of a request: header, then `parts`.
#[cfg(test)]
fn encode(opcode: u32, ino: u64, unique: u64, parts: &[&[u8]]) -> Vec<u8> {
    let len = size_of::<abi::InHeader>() + parts.iter().map(|p| p.len()).sum::<usize>();
    use zerocopy::IntoBytes;
    let header = abi::InHeader { len: len as u32, opcode, unique, nodeid: ino, ..Default::default() };
    let mut bytes = header.as_bytes().to_vec();
    parts.iter().for_each(|p| bytes.extend_from_slice(p));
    bytes
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes as _;

    use super::*;

    #[test]
    fn names_and_structures_are_taken_in_order() {
        let args = abi::Rename2In { newdir: 9, flags: 1, padding: 0 };
        let bytes = encode(opcode::RENAME2, 5, 77, &[args.as_bytes(), b"old\0new\0"]);
        let request = Request::decode(&bytes).unwrap();
        assert_eq!((request.header.unique, request.header.ino), (77, InodeNo(5)));
        let Operation::Rename { name, new_parent, new_name, flags } = request.operation else { panic!() };
        assert_eq!((&name[..], new_parent, &new_name[..], flags), (&b"old"[..], InodeNo(9), &b"new"[..], 1));
    }

    #[test]
    fn a_file_without_a_name_comes_with_that_of_no_file() {
        let args = abi::CreateIn { flags: 2, mode: 0o100600, umask: 0, open_flags: 0 };
        let bytes = encode(opcode::TMPFILE, 5, 77, &[args.as_bytes(), b"/\0"]);
        let operation = Request::decode(&bytes).unwrap().operation;
        assert!(matches!(operation, Operation::Tmpfile { mode: 0o100600, flags: 2 }), "{operation:?}");
    }

    #[test]
    fn written_data_is_a_range_of_the_buffer() {
        let args = abi::WriteIn { fh: 3, offset: 10, size: 5, ..Default::default() };
        let bytes = encode(opcode::WRITE, 2, 1, &[args.as_bytes(), b"hello"]);
        let Operation::Write { data, .. } = Request::decode(&bytes).unwrap().operation else { panic!() };
        assert_eq!(&bytes[data.clone()], b"hello");
        assert_eq!(data.start, 80, "buffers are offset so that this falls on a page");
    }

    /// Every operation, cut at every length, with lengths that lie: an error, never a panic.
    #[test]
    fn short_and_lying_requests_are_errors() {
        for opcode in 0..60 {
            for len in 0..200 {
                for fill in [0u8, b'a', 0xff] {
                    let mut bytes = encode(opcode, 1, 1, &[&vec![fill; len]]);
                    let _ = Request::decode(&bytes);
                    bytes[0] ^= 1;
                    assert!(Request::decode(&bytes).is_err());
                    let _ = Request::decode(&bytes[..len.min(bytes.len())]);
                }
            }
        }
        let unnamed = Request::decode(&encode(opcode::LOOKUP, 1, 4, &[b"a/b\0"])).unwrap_err();
        assert_eq!(unnamed.unique, Some(4));
    }

    /// Requests of every kind, whole as the kernel sends them, and changed: whole ones decode, others may.
    #[test]
    fn changed_requests_are_refused_or_mean_something() {
        let mut samples = Vec::new();
        for opcode in 0..60 {
            for args in (0..160).step_by(8) {
                for names in [&b""[..], b"a\0", b"old\0new\0", b"user.x\0v\0\0\0\0"] {
                    let bytes = encode(opcode, 5, 7, &[&vec![0; args], names]);
                    if Request::decode(&bytes).is_ok() {
                        samples.push(bytes);
                    }
                }
            }
        }
        let known: std::collections::BTreeSet<u8> = samples.iter().map(|bytes| bytes[4]).collect();
        assert!(known.len() > 30, "{known:?}");
        crate::mutate::mutated(&samples, 200_000, |bytes| {
            let mut bytes = bytes.to_vec();
            let _ = Request::decode(&bytes);
            if bytes.len() >= 4 {
                let len = bytes.len() as u32;
                bytes[..4].copy_from_slice(&len.to_ne_bytes());
            }
            if let Ok(Request { operation: Operation::Write { data, .. }, .. }) = Request::decode(&bytes) {
                assert!(data.end <= bytes.len());
            }
            let header = size_of::<abi::InHeader>().min(bytes.len());
            let op = (header + 40).min(bytes.len());
            let _ = Request::decode_apart(&bytes[..header], &bytes[header..op], &bytes[op..]);
        });
    }
}
