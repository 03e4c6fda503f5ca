//! Every key of the store, and the records under them (docs/format-manager.md says the same in words).
//!
//! A key is one letter, then numbers in big-endian, so that keys sort as numbers do.

use std::ops::ControlFlow;

use base::{Epoch, FsId, Grant, Incarnation, InodeNo, MemberId, NodeId, PdiskId, PoolId, SessionId, Version};
use serde::{Deserialize, Serialize};
use wire::{
    hello::Role,
    map::{ClientEntry, FsEntry, Limits, NodeEntry, PdiskEntry, PoolEntry},
    mgr::{FileKind, LogMark, MgrError, MgrReply, ProcessIdent, Timestamp},
    strip::DeleteStrips,
    version::Build,
};

use crate::store::{BadRecord, Read, Record, StoreError, Txn, open_record, seal_record};

/// Reading failed: the store, or one record.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// The store failed: the manager stops.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// One record is damaged: EIO to whoever wants it.
    #[error(transparent)]
    Record(#[from] BadRecord),
}

macro_rules! record {
    ($type:ty, $name:literal, $version:literal) => {
        impl Record for $type {
            const NAME: &'static str = $name;
            const VERSION: u8 = $version;
        }
    };
}

/// Builds a key: a letter, then parts.
pub struct Key(Vec<u8>);

impl Key {
    /// The letter.
    pub fn new(letter: u8) -> Key {
        let mut bytes = Vec::with_capacity(32);
        bytes.push(letter);
        Key(bytes)
    }
    /// A 16-bit number.
    pub fn u16(mut self, n: u16) -> Key {
        self.0.extend_from_slice(&n.to_be_bytes());
        self
    }
    /// A 32-bit number.
    pub fn u32(mut self, n: u32) -> Key {
        self.0.extend_from_slice(&n.to_be_bytes());
        self
    }
    /// A 64-bit number.
    pub fn u64(mut self, n: u64) -> Key {
        self.0.extend_from_slice(&n.to_be_bytes());
        self
    }
    /// Bytes, at the end of a key.
    pub fn bytes(mut self, bytes: &[u8]) -> Key {
        self.0.extend_from_slice(bytes);
        self
    }
    /// The key.
    pub fn done(self) -> Vec<u8> {
        self.0
    }
}

/// The big-endian number in the last eight bytes of a key.
pub fn last_u64(key: &[u8]) -> u64 {
    key.last_chunk::<8>().copied().map(u64::from_be_bytes).unwrap_or_default()
}

/// The record at `key`.
pub fn read<T: Record>(from: &dyn Read, key: &[u8]) -> Result<Option<T>, ReadError> {
    match from.get(key)? {
        Some(value) => Ok(Some(open_record(key, &value)?)),
        None => Ok(None),
    }
}

/// Goes over the keys from `start` to before `end` as long as `visit` says so. Its first error ends it.
pub fn walk(
    from: &dyn Read,
    start: &[u8],
    end: &[u8],
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<bool, ReadError>,
) -> Result<(), ReadError> {
    let mut outcome = Ok(());
    from.scan(start, end, &mut |key, value| match visit(key, value) {
        Ok(true) => ControlFlow::Continue(()),
        Ok(false) => ControlFlow::Break(()),
        Err(error) => {
            outcome = Err(error);
            ControlFlow::Break(())
        }
    })?;
    outcome
}

/// Sets the record at `key`.
pub fn write<T: Record>(txn: &mut Txn<'_>, key: Vec<u8>, record: &T) {
    let value = seal_record(&key, record);
    txn.put(key, value);
}

/// `!`: what this store is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FormatRecord {
    /// The level of the cluster. A store of one that this build does not know is refused.
    pub version: u32,
    /// The cluster it belongs to.
    pub cluster: base::ClusterId,
    /// Key of the hash of directory entries: secret, so that nobody can make names that collide.
    pub hash_key: [u64; 2],
}
record!(FormatRecord, "format", 1);
/// `!`
pub fn format_key() -> Vec<u8> {
    Key::new(b'!').done()
}

/// `m`: the cluster map without its pools.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct MapRecord {
    /// Its version.
    pub epoch: Epoch,
    /// The cluster.
    pub cluster: base::ClusterId,
    /// Its name.
    pub name: String,
    /// Nodes.
    pub nodes: Vec<NodeEntry>,
    /// Pdisks.
    pub pdisks: Vec<PdiskEntry>,
    /// File systems.
    pub filesystems: Vec<FsEntry>,
    /// Client sessions.
    pub clients: Vec<ClientEntry>,
    /// Members whose certificates are worth nothing any more.
    pub revoked: Vec<MemberId>,
}
record!(MapRecord, "map", 2);

/// The same as version 1 had it: no members.
#[derive(Serialize, Deserialize)]
pub(crate) struct MapRecord1 {
    epoch: Epoch,
    cluster: base::ClusterId,
    name: String,
    nodes: Vec<NodeEntry>,
    pdisks: Vec<PdiskEntry>,
    filesystems: Vec<FsEntry>,
    clients: Vec<(SessionId, FsId)>,
}
record!(MapRecord1, "map", 1);

#[cfg(test)]
impl From<MapRecord> for MapRecord1 {
    fn from(record: MapRecord) -> MapRecord1 {
        let MapRecord { epoch, cluster, name, nodes, pdisks, filesystems, clients, revoked: _ } = record;
        let clients = clients.into_iter().map(|client| (client.session, client.fs)).collect();
        MapRecord1 { epoch, cluster, name, nodes, pdisks, filesystems, clients }
    }
}

/// The record of the map; the default if there is none.
pub fn read_map(from: &dyn Read) -> Result<MapRecord, ReadError> {
    let key = map_key();
    let value = from.get(&key)?;
    Ok(value.map(|value| open_map(&key, &value)).transpose()?.unwrap_or_default())
}

/// The record of the map in a value, of an earlier version too.
pub fn open_map(key: &[u8], value: &[u8]) -> Result<MapRecord, BadRecord> {
    let newest = open_record::<MapRecord>(key, value);
    if newest.is_err()
        && let Ok(old) = open_record::<MapRecord1>(key, value)
    {
        let MapRecord1 { epoch, cluster, name, nodes, pdisks, filesystems, clients } = old;
        let client = |(session, fs)| ClientEntry { session, fs, member: MemberId(0) };
        let clients = clients.into_iter().map(client).collect();
        return Ok(MapRecord { epoch, cluster, name, nodes, pdisks, filesystems, clients, revoked: vec![] });
    }
    newest
}

/// `m`
pub fn map_key() -> Vec<u8> {
    Key::new(b'm').done()
}

record!(PoolEntry, "pool", 1);
/// `l POOL`: a pool with its layout table.
pub fn pool_key(pool: PoolId) -> Vec<u8> {
    Key::new(b'l').u32(pool.0).done()
}

/// `n`: numbers that only grow.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct CounterRecord {
    /// Last session given.
    pub session: SessionId,
    /// Last grant given.
    pub grant: Grant,
}
record!(CounterRecord, "counter", 1);
/// `n`
pub fn counter_key() -> Vec<u8> {
    Key::new(b'n').done()
}

/// `h`: the longest lease that may still be out.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// Its length.
    pub longest_us: u64,
}
record!(LeaseRecord, "lease", 1);
/// `h`
pub fn lease_key() -> Vec<u8> {
    Key::new(b'h').done()
}

/// `p PDISK`: what a pdisk said last of itself; one that comes back behind it is out of date.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PdiskRecord {
    /// Its life.
    pub incarnation: Incarnation,
    /// The process that served that life.
    pub process: ProcessIdent,
    /// The point of its log up to which everything was durable. The default: it is taken as it comes.
    pub log: LogMark,
    /// Bytes it can hold.
    pub capacity: u64,
    /// Bytes free.
    pub free: u64,
}
record!(PdiskRecord, "pdisk", 2);

/// The same as version 1 had it: the position alone.
#[derive(Serialize, Deserialize)]
pub(crate) struct PdiskRecord1 {
    incarnation: Incarnation,
    process: ProcessIdent,
    log_position: u64,
    capacity: u64,
    free: u64,
}
record!(PdiskRecord1, "pdisk", 1);

#[cfg(test)]
impl From<PdiskRecord> for PdiskRecord1 {
    fn from(record: PdiskRecord) -> PdiskRecord1 {
        let PdiskRecord { incarnation, process, log, capacity, free } = record;
        PdiskRecord1 { incarnation, process, log_position: log.position, capacity, free }
    }
}

/// The record of a pdisk; the default if there is none.
pub fn read_pdisk(from: &dyn Read, pdisk: PdiskId) -> Result<PdiskRecord, ReadError> {
    let key = pdisk_key(pdisk);
    let value = from.get(&key)?;
    Ok(value.map(|value| open_pdisk(&key, &value)).transpose()?.unwrap_or_default())
}

/// The record of a pdisk in a value, of an earlier version too.
pub fn open_pdisk(key: &[u8], value: &[u8]) -> Result<PdiskRecord, BadRecord> {
    let newest = open_record::<PdiskRecord>(key, value);
    if newest.is_err()
        && let Ok(old) = open_record::<PdiskRecord1>(key, value)
    {
        let PdiskRecord1 { incarnation, process, log_position, capacity, free } = old;
        let log = LogMark { position: log_position, digest: 0 };
        return Ok(PdiskRecord { incarnation, process, log, capacity, free });
    }
    newest
}

/// `p PDISK`
pub fn pdisk_key(pdisk: PdiskId) -> Vec<u8> {
    Key::new(b'p').u32(pdisk.0).done()
}

/// `s SESSION`: a live client session. No record: the session is not alive.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SessionRecord {
    /// What it has mounted.
    pub fs: FsId,
    /// The grant of its write tokens.
    pub grant: Grant,
    /// Its process.
    pub process: ProcessIdent,
    /// Where it answers admin requests.
    pub admin_addr: String,
    /// Mount point.
    pub mount: String,
}
record!(SessionRecord, "session", 1);
/// `s SESSION`
pub fn session_key(session: SessionId) -> Vec<u8> {
    Key::new(b's').u64(session.0).done()
}

/// `r SESSION SLOT`: the last mutation of a slot and its outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplyRecord {
    /// Which.
    pub seq: u64,
    /// What came of it.
    pub outcome: Result<MgrReply, MgrError>,
}
record!(ReplyRecord, "reply", 1);
/// `r SESSION SLOT`
pub fn reply_key(session: SessionId, slot: u16) -> Vec<u8> {
    Key::new(b'r').u64(session.0).u16(slot).done()
}
/// `r SESSION`
pub fn reply_prefix(session: SessionId) -> Vec<u8> {
    Key::new(b'r').u64(session.0).done()
}

/// `N SESSION`: the inode numbers that a session may still use for what it makes ahead of the manager. Each is used once, in
/// rising order; a new grant takes the place of the last.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct NumbersRecord {
    /// The lowest that was not used.
    pub next: InodeNo,
    /// Above the last.
    pub end: InodeNo,
}
record!(NumbersRecord, "numbers", 1);
/// `N SESSION`
pub fn numbers_key(session: SessionId) -> Vec<u8> {
    Key::new(b'N').u64(session.0).done()
}

/// `u FS`: how the last sessions of a file system ended.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct EndingRecord {
    /// A session ended uncleanly and its stripes are not resolved yet.
    pub unresolved: bool,
    /// The epoch without the session that ended last: it must be in force at every server that still
    /// has a lease before anything of that session is given on. None once it is.
    pub fence: Option<Epoch>,
}
record!(EndingRecord, "ending", 1);
/// `u FS`
pub fn ending_key(fs: FsId) -> Vec<u8> {
    Key::new(b'u').u32(fs.0).done()
}

/// `f FS`: counts of a file system.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct FsRecord {
    /// Last inode number given; never given again.
    pub last_ino: InodeNo,
    /// Inodes in use.
    pub inodes: u64,
}
record!(FsRecord, "file system", 1);
/// `f FS`
pub fn fs_key(fs: FsId) -> Vec<u8> {
    Key::new(b'f').u32(fs.0).done()
}

/// `z FS`: a file system that was removed. It stays, so that its number is never given again.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RemovedFsRecord {
    /// Nothing of it is left in the store.
    pub emptied: bool,
}
record!(RemovedFsRecord, "removed file system", 1);
/// `z FS`
pub fn removed_fs_key(fs: FsId) -> Vec<u8> {
    Key::new(b'z').u32(fs.0).done()
}

/// `y FS LAST`: inode numbers after one, up to LAST, that a restored store goes past: whether they were given nobody knows.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LeapRecord {
    /// The last number that was known to be given.
    pub after: InodeNo,
}
record!(LeapRecord, "leap", 1);
/// `y FS LAST`
pub fn leap_key(fs: FsId, last: InodeNo) -> Vec<u8> {
    Key::new(b'y').u32(fs.0).u64(last.0).done()
}

/// `w NODE`: a node that was added or removed while the cluster runs. It stays, so that its number is never given again.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct NodeRecord {
    /// A server of it has registered once, or the node was removed.
    pub used: bool,
}
record!(NodeRecord, "node", 1);
/// `w NODE`
pub fn node_key(node: NodeId) -> Vec<u8> {
    Key::new(b'w').u32(node.0).done()
}

/// `g NODE`: the rack that the node is in; nothing there: none that is known.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RackRecord {
    /// Its name.
    pub rack: String,
}
record!(RackRecord, "rack", 1);
/// `g NODE`
pub fn rack_key(node: NodeId) -> Vec<u8> {
    Key::new(b'g').u32(node.0).done()
}

/// `c NODE`: what the node's server ran when it was heard last. Only from [`wire::version::LEVEL_BUILDS_KEPT`] on.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct BuildRecord {
    /// It.
    pub build: Build,
}
record!(BuildRecord, "build", 1);
/// `c NODE`
pub fn build_key(node: NodeId) -> Vec<u8> {
    Key::new(b'c').u32(node.0).done()
}

/// `v TOKEN`: an invitation: with the token whose secret has that hash a machine may join, once. It stays until it has expired, so
/// that a machine whose answer was lost hears it again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InvitationRecord {
    /// SHA-256 of the secret.
    pub hash: [u8; 32],
    /// What the machine will be.
    pub role: Role,
    /// Seconds since 1970.
    pub expires: u64,
    /// Who has used it.
    pub used: Option<JoinedRecord>,
}
record!(InvitationRecord, "invitation", 1);
/// Who has joined.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JoinedRecord {
    /// SHA-256 of its request for a certificate.
    pub request: [u8; 32],
    /// Its node, if it is a server.
    pub node: Option<NodeId>,
}
/// `v TOKEN`
pub fn invitation_key(token: u64) -> Vec<u8> {
    Key::new(b'v').u64(token).done()
}

/// `j MEMBER`: a machine that has joined. Whether it is revoked stands in the map.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemberRecord {
    /// What it called itself.
    pub name: String,
    /// What it is.
    pub role: Role,
    /// Its node, if it is a server.
    pub node: Option<NodeId>,
    /// When it joined, seconds since 1970.
    pub joined: u64,
    /// When its certificate was signed, seconds since 1970.
    pub certified: u64,
    /// When that ends, seconds since 1970.
    pub until: u64,
    /// Who has signed it: SHA-256 of the authority's certificate; 0: not known.
    pub authority: [u8; 32],
    /// SHA-256 of its public key: of no other one it is renewed; 0: not known.
    pub key: [u8; 32],
}
record!(MemberRecord, "member", 2);

/// The same as version 1 had it: without what signed the certificate, and of which key it is.
#[derive(Serialize, Deserialize)]
pub(crate) struct MemberRecord1 {
    name: String,
    role: Role,
    node: Option<NodeId>,
    joined: u64,
    certified: u64,
    until: u64,
}
record!(MemberRecord1, "member", 1);

#[cfg(test)]
impl From<MemberRecord> for MemberRecord1 {
    fn from(record: MemberRecord) -> MemberRecord1 {
        let MemberRecord { name, role, node, joined, certified, until, authority: _, key: _ } = record;
        MemberRecord1 { name, role, node, joined, certified, until }
    }
}

/// The record of a member in a value, of an earlier version too.
pub fn open_member(key: &[u8], value: &[u8]) -> Result<MemberRecord, BadRecord> {
    let newest = open_record::<MemberRecord>(key, value);
    if newest.is_err()
        && let Ok(old) = open_record::<MemberRecord1>(key, value)
    {
        let MemberRecord1 { name, role, node, joined, certified, until } = old;
        let (authority, key) = ([0; 32], [0; 32]);
        return Ok(MemberRecord { name, role, node, joined, certified, until, authority, key });
    }
    newest
}

/// `j MEMBER`
pub fn member_key(member: MemberId) -> Vec<u8> {
    Key::new(b'j').u64(member.0).done()
}

record!(Limits, "limits", 1);
/// `a MEMBER`: what the sessions of a member may do, from its invitation on; nothing there: everything.
pub fn limits_key(member: MemberId) -> Vec<u8> {
    Key::new(b'a').u64(member.0).done()
}

/// `i FS INODE`: an inode.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Inode {
    /// What it is.
    pub kind: FileKind,
    /// Permission bits, 0..=0o7777.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Links; 0 is an orphan that somebody holds open.
    pub nlink: u32,
    /// Bytes.
    pub size: u64,
    /// Allocated blocks.
    pub blocks: u64,
    /// Bytes of storage (the last block cut at the size, or the inline content).
    pub stored: u64,
    /// A block was ever allocated: removing the inode means deleting at the pdisks.
    pub had_blocks: bool,
    /// Device number.
    pub rdev: u32,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of anything.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    /// Where its blocks are.
    pub pool: PoolId,
    /// Bytes of a block.
    pub block_size: u32,
    /// Where it has its name: of a directory where ".." leads, of others the directory of the last name made. 0: not known.
    pub parent: InodeNo,
    /// Directories: entries.
    pub entries: u64,
    /// Bytes of the names of its extended attributes, with a NUL each.
    pub xattr_names: u32,
    /// Bytes of their values.
    pub xattr_values: u32,
}
record!(Inode, "inode", 1);
/// `i FS INODE`
pub fn inode_key(fs: FsId, ino: InodeNo) -> Vec<u8> {
    Key::new(b'i').u32(fs.0).u64(ino.0).done()
}

/// `d FS DIRECTORY COOKIE`: an entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EntryRecord {
    /// Its name.
    pub name: Vec<u8>,
    /// Where it leads.
    pub ino: InodeNo,
    /// What is there.
    pub kind: FileKind,
}
record!(EntryRecord, "entry", 1);
/// `d FS DIRECTORY COOKIE`
pub fn entry_key(fs: FsId, dir: InodeNo, cookie: u64) -> Vec<u8> {
    Key::new(b'd').u32(fs.0).u64(dir.0).u64(cookie).done()
}

/// Version of the plain bytes under `b` and `x`.
pub const BYTES_VERSION: u8 = 1;
/// `b FS INODE`: inline content, or the target of a symlink (plain bytes).
pub fn body_key(fs: FsId, ino: InodeNo) -> Vec<u8> {
    Key::new(b'b').u32(fs.0).u64(ino.0).done()
}

/// `x FS INODE NAME`: an extended attribute (plain bytes).
pub fn xattr_key(fs: FsId, ino: InodeNo, name: &[u8]) -> Vec<u8> {
    Key::new(b'x').u32(fs.0).u64(ino.0).bytes(name).done()
}
/// Bytes of an `x` key before the name.
pub const XATTR_KEY_HEAD: usize = 1 + 4 + 8;

/// `e FS INODE END`: a run of allocated blocks that ends before block END.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExtentRecord {
    /// First block.
    pub first: u64,
}
record!(ExtentRecord, "extent", 1);
/// `e FS INODE END`
pub fn extent_key(fs: FsId, ino: InodeNo, end: u64) -> Vec<u8> {
    Key::new(b'e').u32(fs.0).u64(ino.0).u64(end).done()
}
/// `e FS INODE`
pub fn extent_prefix(fs: FsId, ino: InodeNo) -> Vec<u8> {
    Key::new(b'e').u32(fs.0).u64(ino.0).done()
}

/// `o SESSION FS INODE`: an inode without a name that the session holds open.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OrphanRecord {}
record!(OrphanRecord, "orphan", 1);
/// `o SESSION FS INODE`
pub fn orphan_key(session: SessionId, fs: FsId, ino: InodeNo) -> Vec<u8> {
    Key::new(b'o').u64(session.0).u32(fs.0).u64(ino.0).done()
}

/// `q NUMBER`: strips to delete at every pdisk of a pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeleteRecord {
    /// The pool.
    pub pool: PoolId,
    /// Which.
    pub strips: DeleteStrips,
    /// Upper bound of the blocks that hold data, for the listing.
    pub blocks: u64,
}
record!(DeleteRecord, "delete", 1);
/// `q NUMBER`
pub fn delete_key(number: u64) -> Vec<u8> {
    Key::new(b'q').u64(number).done()
}

/// `t`: ends of the delete queue.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct DeleteQueueRecord {
    /// Last number given.
    pub last: u64,
    /// Entries waiting.
    pub entries: u64,
    /// Blocks in them.
    pub blocks: u64,
}
record!(DeleteQueueRecord, "delete queue", 1);
/// `t`
pub fn delete_queue_key() -> Vec<u8> {
    Key::new(b't').done()
}

/// `k NAME`: a tunable that differs from its default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConfigRecord {
    /// Its value.
    pub value: String,
}
record!(ConfigRecord, "tunable", 1);
/// `k NAME`
pub fn config_key(name: &str) -> Vec<u8> {
    Key::new(b'k').bytes(name.as_bytes()).done()
}

/// A version below which everything of earlier grants lies.
pub fn floor_version(grant: Grant) -> Version {
    Version { grant, seq: 0 }
}
