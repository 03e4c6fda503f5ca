//! Records that are not what was written and yet match their CRCs, which only a fault of the program or a hand can make: what
//! reads them refuses them or takes them as they stand, and does not panic.

use std::time::Duration;

use base::{Grant, NodeId, PdiskId, SessionId};
use wire::mgr::{MgrError, MgrReply};

use super::*;
use crate::{
    cluster::Cluster,
    keys::{
        ConfigRecord, CounterRecord, DeleteQueueRecord, DeleteRecord, EndingRecord, EntryRecord,
        ExtentRecord, FormatRecord, FsRecord, LeapRecord, LeaseRecord, MapRecord, NodeRecord, OrphanRecord,
        PdiskRecord, RemovedFsRecord, ReplyRecord, SessionRecord,
    },
    mutate::mutated,
    store::{seal_bytes, seal_record},
};

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

fn put<T: Record>(to: &mut Records, key: Vec<u8>, record: T) {
    let value = seal_record(&key, &record);
    to.insert(key, value);
}

/// One of every kind.
fn records() -> Records {
    let mut all = Records::new();
    let (fs, ino, session) = (FsId(1), InodeNo(9), SessionId(3));
    let entry = EntryRecord { name: b"name".to_vec(), ino, kind: FileKind::File };
    let node = wire::map::NodeEntry {
        id: base::NodeId(1),
        session: Some(session),
        addrs: vec!["127.0.0.1:1".into()],
        ..Default::default()
    };
    let pdisk = wire::map::PdiskEntry { id: PdiskId(1), nodes: vec![base::NodeId(1)], ..Default::default() };
    let map = MapRecord {
        nodes: vec![node],
        pdisks: vec![pdisk],
        filesystems: vec![wire::map::FsEntry { id: fs, name: "fs1".into(), pool: base::PoolId(1) }],
        clients: vec![wire::map::ClientEntry { session, ..Default::default() }],
        ..MapRecord::default()
    };
    let pool = PoolEntry { id: base::PoolId(1), table: vec![PdiskId(1)], width: 1, ..PoolEntry::default() };
    let strips = wire::strip::DeleteStrips {
        fs,
        inode: ino,
        first: base::BlockIndex(0),
        last: base::BlockIndex(u64::MAX),
        highest: keys::floor_version(Grant(4)),
    };
    let strips = DeleteRecord { pool: pool.id, strips, blocks: 5 };
    let pdisk = PdiskRecord { capacity: 1 << 30, ..PdiskRecord::default() };
    put(
        &mut all,
        keys::format_key(),
        FormatRecord { version: 1, cluster: base::ClusterId(7), hash_key: [1, 2] },
    );
    put(&mut all, keys::map_key(), map);
    put(&mut all, keys::pool_key(pool.id), pool);
    put(&mut all, keys::counter_key(), CounterRecord { session, grant: Grant(4) });
    put(&mut all, keys::lease_key(), LeaseRecord { longest_us: 300_000_000 });
    put(&mut all, keys::pdisk_key(PdiskId(1)), pdisk.clone());
    put(&mut all, keys::pdisk_key(PdiskId(2)), keys::PdiskRecord1::from(pdisk));
    put(&mut all, keys::build_key(NodeId(3)), keys::BuildRecord { build: wire::version::Build::own() });
    put(&mut all, keys::node_key(NodeId(3)), NodeRecord { used: false });
    put(&mut all, keys::rack_key(NodeId(3)), keys::RackRecord { rack: "r1".into() });
    let left = base::StripSet(0b101);
    let key = crate::losses::loss_key(base::PoolId(1), base::GroupId(2));
    put(&mut all, key, crate::LossRecord { left, since: base::Epoch(9) });
    let used = Some(keys::JoinedRecord { request: [3; 32], node: Some(NodeId(3)) });
    let (hash, role, expires) = ([2; 32], wire::hello::Role::Server, 1_900_000_000);
    put(&mut all, keys::invitation_key(7), keys::InvitationRecord { hash, role, expires, used });
    let member = keys::MemberRecord {
        name: "m3".into(),
        role,
        node: Some(NodeId(3)),
        joined: 1,
        certified: 1,
        until: expires,
        authority: [4; 32],
        key: [5; 32],
    };
    put(&mut all, keys::member_key(base::MemberId(7)), member.clone());
    put(&mut all, keys::member_key(base::MemberId(8)), keys::MemberRecord1::from(member));
    let limits = wire::map::Limits { filesystems: vec![fs], read_only: true, ..Default::default() };
    put(&mut all, keys::limits_key(base::MemberId(7)), limits);
    put(&mut all, keys::session_key(session), SessionRecord { fs, mount: "/m".into(), ..Default::default() });
    for (slot, outcome) in [(1, Ok(MgrReply::Done)), (2, Err(MgrError::NoSession))] {
        put(&mut all, keys::reply_key(session, slot), ReplyRecord { seq: 8, outcome });
    }
    put(&mut all, keys::numbers_key(session), keys::NumbersRecord { next: ino, end: InodeNo(ino.0 + 9) });
    put(&mut all, keys::ending_key(fs), EndingRecord { unresolved: true, fence: None });
    put(&mut all, keys::config_key("leaseDuration"), ConfigRecord { value: "10s".into() });
    put(&mut all, keys::fs_key(fs), FsRecord { last_ino: ino, inodes: 2 });
    put(&mut all, keys::removed_fs_key(FsId(2)), RemovedFsRecord { emptied: true });
    put(&mut all, keys::inode_key(fs, ino), Inode { size: 1 << 40, nlink: 1, ..Inode::default() });
    put(&mut all, keys::entry_key(fs, InodeNo::ROOT, 1 << 40), entry);
    put(&mut all, keys::extent_key(fs, ino, 30), ExtentRecord { first: 20 });
    put(&mut all, keys::extent_key(fs, ino, u64::MAX), ExtentRecord { first: 40 });
    put(&mut all, keys::leap_key(fs, ino), LeapRecord { after: InodeNo(4) });
    put(&mut all, keys::orphan_key(session, fs, ino), OrphanRecord {});
    put(&mut all, keys::delete_queue_key(), DeleteQueueRecord { last: 6, entries: 1, blocks: 5 });
    put(&mut all, keys::delete_key(6), strips.clone());
    put(&mut all, keys::delete_key(7), strips);
    for key in [keys::body_key(fs, ino), keys::xattr_key(fs, ino, b"user.a")] {
        let value = seal_bytes(&key, BYTES_VERSION, b"content");
        all.insert(key, value);
    }
    all
}

fn checked(records: &Records) -> Found {
    let mut state = State::default();
    for (key, value) in records {
        if let Err(error) = state.record(key, value) {
            state.found.add(error.to_string());
        }
    }
    state.compare();
    state.found
}

#[test]
fn changed_records_are_refused_or_taken_as_they_stand() {
    let whole = records();
    let damaged = |found: &Found| found.problems.iter().any(|problem| problem.contains("is damaged"));
    assert!(!damaged(&checked(&whole)), "{:?}", checked(&whole));
    // Length of the key, key, version and content.
    let sample = |(key, value): (&Vec<u8>, &Vec<u8>)| {
        [&[key.len() as u8], &key[..], &value[..value.len() - 4]].concat()
    };
    mutated(&whole.iter().map(sample).collect::<Vec<_>>(), 30_000, |bytes| {
        let Some((&len, rest)) = bytes.split_first() else { return };
        let (key, covered) = rest.split_at(rest.len().min(len.into()));
        let Some((&version, content)) = covered.split_first() else { return };
        let mut records = whole.clone();
        records.insert(key.to_vec(), seal_bytes(key, version, content));
        let _ = checked(&records);
        if let Ok(mut cluster) = Cluster::load(&records, Duration::from_secs(10), Duration::from_secs(1)) {
            let _ = cluster.begin_life();
        }
    });
}
