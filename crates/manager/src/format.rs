//! Making a manager's directory: the store with the first map, the file systems' roots, counters.
//!
//! The store is made under another name and renamed when it is complete and durable, so that a crash
//! leaves either a whole manager or nothing that looks like one.

use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder, File},
    io::Read as _,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    time::SystemTime,
};

use base::{ClusterId, Epoch, FsId, InodeNo, NodeId, PdiskId};
use wire::{
    map::{ClusterMap, FsEntry, NodeEntry, NodeRack, PdiskEntry, PdiskState, PoolEntry},
    mgr::Timestamp,
    version::{Build, LEVEL_RECORDS_PACKED},
};

use crate::{
    ManagerError,
    cluster::{LEASE_MAX, data_strips, given_nodes, last_removed_fs, last_told_pdisk, map_record},
    keys::{self, FormatRecord},
    namespace::{DirHash, FsContext, new_root},
    store::{self, Look, RedbStore, Snapshot, Store, Txn},
};

/// File name of the store.
const STORE_NAME: &str = "store.redb";
const CACHE_BYTES: usize = 16 << 20;

/// What a new cluster consists of.
#[derive(Debug, Clone, Default)]
pub struct Spec {
    /// Identity: random.
    pub cluster: ClusterId,
    /// Name, for people.
    pub name: String,
    /// Nodes, by rising id; sessions and addresses come with registration.
    pub nodes: Vec<NodeEntry>,
    /// Their racks, as far as known, by rising node.
    pub racks: Vec<NodeRack>,
    /// Pdisks, by rising id; state, incarnation and epoch are set here.
    pub pdisks: Vec<PdiskEntry>,
    /// Pools with their tables, by rising id.
    pub pools: Vec<PoolEntry>,
    /// File systems, by rising id.
    pub filesystems: Vec<FsEntry>,
}

/// Path of the store in a manager's directory.
pub fn store_path(dir: &Path) -> PathBuf {
    dir.join(STORE_NAME)
}

/// Makes a manager's store in `dir`, which must be empty or absent.
pub fn format(dir: &Path, spec: Spec) -> Result<(), ManagerError> {
    check(&spec)?;
    build(dir, |store| {
        let snapshot = store.snapshot()?;
        let changes = first_state(&spec, random_key()?, &snapshot)?;
        store.commit(&changes)?;
        Ok(())
    })
}

/// How far every number that only grows is moved by a restore: what was given out between the dump and
/// now is unknown, and must not be given again.
pub(crate) const RESTORE_LEAP: u64 = 1 << 32;
/// The same for numbers of file systems, nodes and pdisks, which have 32 bits.
const RESTORE_LEAP_SHORT: u32 = 1 << 16;

/// Makes a manager's store in `dir`, which must be empty or absent, from a dump. Epoch, sessions, grants
/// and the numbers of inodes, file systems, nodes and pdisks go on far above those of the dump. Returns the number of keys.
pub fn restore(dir: &Path, dump: &mut dyn std::io::Read) -> Result<u64, ManagerError> {
    let mut count = 0;
    build(dir, |store| {
        count = store::restore(dump, store)?;
        let snapshot = store.snapshot()?;
        check_format(&*snapshot, dir)?;
        store.commit(&leap(&*snapshot)?)?;
        Ok(())
    })?;
    Ok(count)
}

/// What [`accept_loss`] gave up.
#[derive(Debug)]
pub struct Accepted {
    /// Records that are left.
    pub records: u64,
    /// What was lost, for people.
    pub lost: Vec<String>,
}

/// Makes a store that is refused one that can be started, from what can be read of it: the table, and its journal as far as
/// that is whole. Numbers go on as after a restore. The former files stay beside it, with `.given-up` at the end of their
/// names. Records that are damaged stay so: EIO.
pub fn accept_loss(dir: &Path) -> Result<Accepted, ManagerError> {
    let io = |action, path: &Path| {
        let path = path.to_owned();
        move |source| ManagerError::Io { action, path, source }
    };
    let path = store_path(dir);
    let look = Look::open(&path, CACHE_BYTES)?;
    let mut lost = look.problems.clone();
    let (new, store) = store::beside(&path, CACHE_BYTES)?;
    let mut copied = || -> Result<u64, ManagerError> {
        let (records, gaps) = store::copy(&*look.snapshot()?, &store)?;
        lost.extend(gaps.into_iter().map(|gap| format!("the table: {gap}")));
        if lost.is_empty() {
            return Err(ManagerError::NothingLost { path: path.clone() });
        }
        let snapshot = store.snapshot()?;
        check_format(&*snapshot, dir)?;
        store.commit(&leap(&*snapshot)?)?;
        Ok(records)
    };
    let records = copied().inspect_err(|_| {
        // Nothing changed. The error that counts is the first one.
        let _ = fs::remove_file(&new);
    })?;
    drop((store, look));
    let given_up = |path: &Path| {
        let mut name = path.as_os_str().to_owned();
        name.push(".given-up");
        PathBuf::from(name)
    };
    let move_away = |path: &Path| match fs::rename(path, given_up(path)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io("rename", path)(error)),
        _ => Ok(()),
    };
    // In this order: whatever ends it half way, the store is refused, or is the new one.
    let _ = fs::remove_file(given_up(&path)); // of an earlier time
    fs::hard_link(&path, given_up(&path)).map_err(io("keep", &path))?;
    move_away(&store::mark_path(&path))?;
    fs::rename(&new, &path).map_err(io("rename", &new))?;
    move_away(&store::journal_path(&path))?;
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(io("sync", dir))?;
    Ok(Accepted { records, lost })
}

fn leap(from: &dyn store::Read) -> Result<store::Changes, ManagerError> {
    let mut txn = Txn::new(from);
    let mut map = keys::read_map(from).map_err(ManagerError::from)?;
    map.epoch.0 += RESTORE_LEAP;
    let mut counters: keys::CounterRecord = read_or_default(from, &keys::counter_key())?;
    counters.session.0 += RESTORE_LEAP;
    counters.grant.0 += RESTORE_LEAP;
    for pdisk in &map.pdisks {
        // What it wrote since the dump is not known: it is taken as it comes.
        let known = keys::read_pdisk(from, pdisk.id).map_err(ManagerError::from)?;
        let record = keys::PdiskRecord { log: Default::default(), ..known };
        keys::write(&mut txn, keys::pdisk_key(pdisk.id), &record);
    }
    for fs in &map.filesystems {
        let key = keys::fs_key(fs.id);
        let mut record: keys::FsRecord = read_or_default(from, &key)?;
        let after = record.last_ino;
        record.last_ino.0 += RESTORE_LEAP;
        keys::write(&mut txn, keys::leap_key(fs.id, record.last_ino), &keys::LeapRecord { after });
        keys::write(&mut txn, key, &record);
    }
    // Strips of a file system made after the dump may be there: its number counts as that of a removed one.
    let last = map.filesystems.iter().map(|fs| fs.id).max().unwrap_or_default().max(last_removed_fs(from)?);
    let last = FsId(last.0.saturating_add(RESTORE_LEAP_SHORT));
    keys::write(&mut txn, keys::removed_fs_key(last), &keys::RemovedFsRecord { emptied: true });
    // The same of pdisks that were added after it.
    let last = map.pdisks.iter().map(|pdisk| pdisk.id).max().unwrap_or_default().max(last_told_pdisk(from)?);
    let last = PdiskId(last.0.saturating_add(RESTORE_LEAP_SHORT));
    keys::write(&mut txn, keys::pdisk_key(last), &keys::PdiskRecord::default());
    // A node that joined after the dump may come back: its number is nobody else's.
    let given = given_nodes(from).map_err(ManagerError::from)?.last;
    let last = map.nodes.iter().map(|node| node.id).max().unwrap_or_default().max(given);
    let last = NodeId(last.0.saturating_add(RESTORE_LEAP_SHORT));
    keys::write(&mut txn, keys::node_key(last), &keys::NodeRecord { used: true });
    keys::write(&mut txn, keys::map_key(), &map);
    keys::write(&mut txn, keys::counter_key(), &counters);
    // Managers that followed cannot follow this: the one that starts with it is the first again.
    let mut managers = Vec::new();
    let prefix = keys::manager_key("");
    from.scan(&prefix, &store::prefix_end(&prefix), &mut |key, _| {
        managers.push(key.to_vec());
        std::ops::ControlFlow::Continue(())
    })?;
    managers.into_iter().for_each(|key| txn.delete(key));
    // Which leases were given out meanwhile is not known either.
    let longest_us = LEASE_MAX.as_micros() as u64;
    keys::write(&mut txn, keys::lease_key(), &keys::LeaseRecord { longest_us });
    txn.keep();
    Ok(txn.into_changes())
}

fn read_or_default<T: store::Record + Default>(
    from: &dyn store::Read,
    key: &[u8],
) -> Result<T, ManagerError> {
    match from.get(key)? {
        Some(value) => Ok(store::open_record(key, &value)?),
        None => Ok(T::default()),
    }
}

fn build(dir: &Path, fill: impl FnOnce(&RedbStore) -> Result<(), ManagerError>) -> Result<(), ManagerError> {
    let io = |action, path: &Path| {
        let path = path.to_owned();
        move |source| ManagerError::Io { action, path, source }
    };
    let existed = dir.exists();
    // For its owner only, whatever the umask.
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io("make", dir))?;
    let unfinished = dir.join(format!("{STORE_NAME}.new"));
    for entry in fs::read_dir(dir).map_err(io("list", dir))? {
        let name = entry.map_err(io("list", dir))?.file_name();
        if name != *format!("{STORE_NAME}.new") && name != *"lost+found" {
            return Err(ManagerError::DirectoryUsed { path: dir.to_owned() });
        }
    }
    if unfinished.exists() {
        fs::remove_file(&unfinished).map_err(io("remove", &unfinished))?;
    }
    let filled =
        RedbStore::create(&unfinished, CACHE_BYTES).map_err(ManagerError::from).and_then(|s| fill(&s));
    if let Err(error) = filled {
        // Nothing changed: neither file nor directory stays. The error that counts is the first one.
        let _ = fs::remove_file(&unfinished);
        if !existed {
            let _ = fs::remove_dir(dir);
        }
        return Err(error);
    }
    let path = store_path(dir);
    fs::rename(&unfinished, &path).map_err(io("rename", &unfinished))?;
    let sync = |path: &Path| File::open(path).and_then(|dir| dir.sync_all());
    sync(dir).map_err(io("sync", dir))?;
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        sync(parent).map_err(io("sync", parent))?;
    }
    Ok(())
}

/// The file systems of a map, as the namespace wants them.
pub fn contexts(map: &ClusterMap, hash: DirHash) -> Vec<FsContext> {
    map.filesystems.iter().map(|fs| FsContext { fs: fs.id, hash, full: false }).collect()
}

/// The time, for new inodes.
pub fn wall_clock() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp { secs: since.as_secs() as i64, nanos: since.subsec_nanos() }
}

/// Everything a new store holds. `hash_key` is what directories hash their names with.
pub fn first_state(
    spec: &Spec,
    hash_key: [u64; 2],
    snapshot: &Snapshot,
) -> Result<store::Changes, ManagerError> {
    let mut map = ClusterMap {
        epoch: Epoch(1),
        cluster: spec.cluster,
        name: spec.name.clone(),
        nodes: spec.nodes.clone(),
        pdisks: spec.pdisks.clone(),
        pools: spec.pools.clone(),
        filesystems: spec.filesystems.clone(),
        clients: Vec::new(),
        revoked: Vec::new(),
        limited: Vec::new(),
        level: 0, // stands in the record of the format
        racks: spec.racks.clone(),
        managers: Vec::new(),
    };
    map.nodes.iter_mut().for_each(|node| node.session = None);
    for pdisk in &mut map.pdisks {
        pdisk.state = PdiskState::Ok;
        pdisk.changed = Epoch(1);
        pdisk.incarnation = base::Incarnation(0);
    }
    let mut txn = Txn::new(&**snapshot);
    let format =
        FormatRecord { version: Build::own().levels.greatest.into(), cluster: spec.cluster, hash_key };
    keys::write(&mut txn, keys::format_key(), &format);
    keys::write(&mut txn, keys::map_key(), &map_record(&map));
    for NodeRack { node, rack } in &map.racks {
        keys::write(&mut txn, keys::rack_key(*node), &keys::RackRecord { rack: rack.clone() });
    }
    for pool in &mut map.pools {
        pool.changed = Epoch(1);
        keys::write(&mut txn, keys::pool_key(pool.id), pool);
    }
    let now = wall_clock();
    for fs in &map.filesystems {
        let block_size = map.pool(fs.pool).map(|pool| pool.block_size).unwrap_or(1 << 20);
        let (root, counts) = new_root(fs.pool, block_size, now);
        keys::write(&mut txn, keys::inode_key(fs.id, InodeNo::ROOT), &root);
        keys::write(&mut txn, keys::fs_key(fs.id), &counts);
    }
    txn.keep();
    Ok(txn.into_changes())
}

/// Bytes nobody can guess.
pub fn random_key() -> Result<[u64; 2], ManagerError> {
    let path = Path::new("/dev/urandom");
    let mut bytes = [0; 16];
    File::open(path).and_then(|mut file| file.read_exact(&mut bytes)).map_err(|source| ManagerError::Io {
        action: "read",
        path: path.to_owned(),
        source,
    })?;
    let both = u128::from_le_bytes(bytes);
    Ok([both as u64, (both >> 64) as u64])
}

/// The format record, if the store is ours and of a level that this build knows.
pub fn check_format(from: &dyn store::Read, dir: &Path) -> Result<FormatRecord, ManagerError> {
    let key = keys::format_key();
    let Some(value) = from.get(&key)? else {
        return Err(ManagerError::NotFormatted { path: dir.to_owned() });
    };
    let record: FormatRecord = store::open_record(&key, &value)?;
    let (found, levels) = (record.version, Build::own().levels);
    if !u16::try_from(found).is_ok_and(|level| levels.contains(level)) {
        return Err(ManagerError::OtherVersion { path: store_path(dir), found, levels });
    }
    Ok(record)
}

/// Whether records in etcd may be packed: the cluster is at a level that has that. `cluster finalize`
/// has seen to it that everybody can read that, managers that follow included.
pub fn packs_records(from: &dyn store::Read) -> bool {
    let key = keys::format_key();
    let record = from.get(&key).ok().flatten().and_then(|value| store::open_record(&key, &value).ok());
    record.is_some_and(|record: FormatRecord| record.version >= LEVEL_RECORDS_PACKED.into())
}

fn rising<T: Copy + Ord>(ids: impl Iterator<Item = T>) -> bool {
    let ids: Vec<T> = ids.collect();
    ids.is_sorted_by(|a, b| a < b)
}

/// Refuses a description that contradicts itself.
fn check(spec: &Spec) -> Result<(), ManagerError> {
    let bad = |field: &str, reason: String| Err(ManagerError::BadSpec { field: field.to_owned(), reason });
    if spec.cluster == ClusterId(0) || spec.name.is_empty() {
        return bad("cluster", "wants a name and an identity".into());
    }
    let sorted = rising(spec.nodes.iter().map(|x| x.id))
        && rising(spec.pdisks.iter().map(|x| x.id))
        && rising(spec.pools.iter().map(|x| x.id))
        && rising(spec.filesystems.iter().map(|x| x.id));
    if !sorted {
        return bad("ids", "must rise".into());
    }
    for pdisk in &spec.pdisks {
        let known = |node| spec.nodes.iter().any(|entry| entry.id == node);
        if pdisk.nodes.is_empty() || !pdisk.nodes.iter().all(|&node| known(node)) {
            return bad(&pdisk.id.to_string(), format!("unknown nodes {:?}", pdisk.nodes));
        }
    }
    for pool in &spec.pools {
        let field = format!("pool {}", pool.name);
        let width = usize::from(pool.width);
        if data_strips(&pool.code).is_none_or(|data| data > pool.width) {
            return bad(&field, format!("code {} does not fit width {width}", pool.code));
        }
        if !pool.block_size.is_power_of_two() || !((256 << 10)..=(16 << 20)).contains(&pool.block_size) {
            return bad(
                &field,
                format!("block size {} is not a power of two from 256k to 16m", pool.block_size),
            );
        }
        if pool.table.is_empty() || !pool.table.len().is_multiple_of(width) {
            return bad(&field, format!("table of {} entries for width {width}", pool.table.len()));
        }
        for group in pool.table.chunks_exact(width) {
            let members: BTreeSet<_> = group.iter().collect();
            let known = group.iter().all(|&id| spec.pdisks.iter().any(|pdisk| pdisk.id == id));
            if members.len() != width || !known {
                return bad(&field, format!("group {group:?} has unknown or repeated pdisks"));
            }
        }
    }
    for fs in &spec.filesystems {
        if !spec.pools.iter().any(|pool| pool.id == fs.pool) || fs.name.is_empty() {
            return bad(&format!("file system {}", fs.name), format!("unknown {}", fs.pool));
        }
    }
    Ok(())
}
