//! The manager as a whole: directories, restarts, power cuts, a failing store, deletes at pdisks.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use base::{
    BlockIndex, ClusterId, Epoch, FsId, Grant, Incarnation, InodeNo, MemberId, NodeId, PdiskId, PoolId,
    SessionId, Version,
};
use tokio::time::Instant;
use wire::{
    map::{ClusterMap, FsEntry, NodeEntry, PdiskEntry, PoolEntry},
    mgr::{
        Change, Extent, FileKind, MgrError, MgrReply, MgrRequest, OpId, PdiskReport, ProcessIdent, Timestamp,
    },
    strip::DeleteStrips,
};

use crate::{
    Caller, Manager, ManagerError, Spec, format,
    reaper::{self, Deleter, Pass},
    store::{
        JournaledStore, RedbStore, Store,
        volatile::{Fails, Volatile},
    },
};

mod beginning;
mod beside;
mod damage;
mod dumped;
mod ended;
mod every_request;
mod full;
mod made;
mod restart;
mod roles;
mod squash;
mod subtree;

fn spec(nodes: u32) -> Spec {
    Spec {
        racks: vec![],
        cluster: ClusterId(7),
        name: "c".into(),
        nodes: (1..=nodes)
            .map(|id| NodeEntry { id: NodeId(id), name: format!("n{id}"), ..NodeEntry::default() })
            .collect(),
        pdisks: (1..=nodes)
            .map(|id| PdiskEntry { id: PdiskId(id), nodes: vec![NodeId(id)], ..PdiskEntry::default() })
            .collect(),
        pools: vec![PoolEntry {
            id: PoolId(1),
            name: "pool1".into(),
            code: "2+1p".into(),
            block_size: 1 << 20,
            width: nodes as u8,
            table: (1..=nodes).map(PdiskId).collect(),
            ..PoolEntry::default()
        }],
        filesystems: vec![FsEntry { id: FsId(1), name: "fs1".into(), pool: PoolId(1) }],
    }
}

fn caller(session: SessionId) -> Caller {
    let expires = Instant::now() + Duration::from_secs(90);
    Caller { session, member: MemberId(0), expires, build: None }
}

async fn register(manager: &Manager, node: u32, incarnation: u64) -> SessionId {
    let report = PdiskReport {
        id: PdiskId(node),
        incarnation: Incarnation(incarnation),
        capacity: 1 << 30,
        free: 1 << 30,
        ..PdiskReport::default()
    };
    let request = MgrRequest::RegisterServer {
        node: NodeId(node),
        process: ProcessIdent { pid: 100 * node, ..ProcessIdent::default() },
        addrs: vec![format!("127.0.0.1:{node}")],
        pdisks: vec![report],
    };
    match manager.handle(caller(SessionId(0)), request).await {
        MgrReply::Registered { session, .. } => session,
        other => panic!("{other:?}"),
    }
}

fn open_request(proven_dead: Option<SessionId>) -> MgrRequest {
    MgrRequest::OpenSession {
        fs: "fs1".into(),
        process: ProcessIdent { pid: 7, ..ProcessIdent::default() },
        admin_addr: String::new(),
        mount: "/m".into(),
        proven_dead: proven_dead.into_iter().collect(),
        share: false,
    }
}

async fn open_session(manager: &Manager) -> (SessionId, Grant) {
    match manager.handle(caller(SessionId(0)), open_request(None)).await {
        MgrReply::SessionOpen { session, grant, .. } => (session, grant),
        other => panic!("{other:?}"),
    }
}

fn create(name: &str, kind: FileKind) -> Change {
    Change::Create {
        parent: InodeNo::ROOT,
        name: name.into(),
        kind,
        mode: 0o644,
        uid: 0,
        gid: 0,
        rdev: 0,
        target: vec![],
        now: Timestamp::default(),
        existing_ok: false,
    }
}

fn mutate(seq: u64, change: Change) -> MgrRequest {
    MgrRequest::Mutate { op: OpId { slot: 1, seq }, change, hold: false, by: None }
}

async fn names(manager: &Manager, session: SessionId) -> BTreeSet<String> {
    let request = MgrRequest::ReadDir { ino: InodeNo::ROOT, cookie: 0, limit: 4096, plus: true };
    match manager.handle(caller(session), request).await {
        MgrReply::Entries { entries, end: true, .. } => {
            entries.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_directory_is_used_once_and_a_bad_description_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manager");
    let mut bad = spec(3);
    bad.pools[0].table = vec![PdiskId(1), PdiskId(1), PdiskId(2)];
    let error = format(&path, bad).unwrap_err().to_string();
    assert!(error.contains("pool pool1") && error.contains("pdisk1"), "{error}");
    assert!(!path.exists());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _inside = runtime.enter();
    assert!(matches!(Manager::open(&path), Err(ManagerError::NotFormatted { .. })));
    format(&path, spec(3)).unwrap();
    assert!(matches!(format(&path, spec(3)), Err(ManagerError::DirectoryUsed { .. })));
    let manager = Manager::open(&path).unwrap();
    let again = Manager::open(&path).err().unwrap().to_string();
    assert!(again.contains("in use by another manager"), "{again}");
    runtime.block_on(manager.stop());

    // A store of another version is refused, and named.
    let store = JournaledStore::open(&format::store_path(&path), 1 << 20).unwrap();
    let key = crate::keys::format_key();
    let mut record = format::check_format(&*store.snapshot().unwrap(), &path).unwrap();
    record.version = 99;
    let value = crate::store::seal_record(&key, &record);
    store.commit(&[(key, Some(value))].into()).unwrap();
    drop(store);
    assert!(matches!(Manager::open(&path), Err(ManagerError::OtherVersion { found: 99, .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_there_after_a_restart_and_nothing_is_done_twice() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manager");
    format(&path, spec(3)).unwrap();
    let manager = Manager::open(&path).unwrap();
    let server = register(&manager, 1, 1).await;
    let (session, grant) = open_session(&manager).await;
    let first = manager.handle(caller(session), mutate(1, create("a", FileKind::File))).await;
    let second = manager.handle(caller(session), mutate(2, create("b", FileKind::Directory))).await;
    assert!(matches!(first, MgrReply::Created { new: true, .. }));
    let refused = manager.handle(caller(session), mutate(3, create("b", FileKind::File))).await;
    assert_eq!(refused, MgrReply::Error(MgrError::Errno(libc::EEXIST)));
    let pairs = |value: &str| vec![("pagepool".to_owned(), value.to_owned())];
    let set = |value| manager.handle(caller(session), MgrRequest::ConfigSet { pairs: pairs(value) });
    assert!(matches!(set("much").await, MgrReply::Error(MgrError::Config(text)) if text.contains("much")));
    assert_eq!(set("256m").await, MgrReply::Done);
    let epoch = manager.map().borrow().epoch;
    manager.stop().await;

    let manager = Manager::open(&path).unwrap();
    assert_eq!(manager.map().borrow().epoch, epoch);
    let again = manager.handle(caller(session), mutate(3, create("b", FileKind::File))).await;
    assert_eq!(again, refused);
    let late = manager.handle(caller(session), mutate(2, create("b", FileKind::Directory))).await;
    assert_eq!(late, MgrReply::Error(MgrError::Superseded));
    assert_ne!(second, late);
    assert_eq!(names(&manager, session).await, ["a", "b"].map(String::from).into());
    let config = manager.handle(caller(session), MgrRequest::ConfigGet).await;
    assert_eq!(config, MgrReply::Config(pairs("256m")));
    // Server and client go on under their old sessions.
    for session in [server, session] {
        let renew = MgrRequest::Renew { epoch, pdisks: vec![] };
        assert!(matches!(manager.handle(caller(session), renew).await, MgrReply::Renewed { .. }));
    }
    assert_eq!(manager.handle(caller(session), MgrRequest::CloseSession).await, MgrReply::Done);
    let dead = manager.handle(caller(session), mutate(4, create("c", FileKind::File))).await;
    assert_eq!(dead, MgrReply::Error(MgrError::NoSession));
    let (next, next_grant) = open_session(&manager).await;
    assert!(next > session && next_grant > grant);
    let MgrReply::Cluster(report) = manager.handle(caller(SessionId(0)), MgrRequest::Cluster).await else {
        panic!()
    };
    assert_eq!((report.inodes, report.clients.len()), (vec![3], 1));
    assert!(report.store.contains("not replicated"));
    manager.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_map_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manager");
    format(&path, spec(3)).unwrap();
    let manager = Manager::open(&path).unwrap();
    let have = manager.map().borrow().epoch;
    let expires = Instant::now() + Duration::from_millis(20);
    let soon = Caller { session: SessionId(0), member: MemberId(0), expires, build: None };
    assert_eq!(manager.handle(soon, MgrRequest::WaitMap { have }).await, MgrReply::MapUnchanged);
    let waiting = {
        let manager = manager.clone();
        tokio::spawn(async move { manager.handle(caller(SessionId(0)), MgrRequest::WaitMap { have }).await })
    };
    register(&manager, 2, 1).await;
    let MgrReply::Map(map) = waiting.await.unwrap() else { panic!() };
    assert!(map.epoch > have && map.node(NodeId(2)).unwrap().session.is_some());
    assert_eq!(map.epoch, Epoch(have.0 + 1));
    manager.stop().await;
}

/// With many clients each would hear of each otherwise, a map for each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_hears_of_the_cluster_and_not_of_other_clients() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manager");
    format(&path, spec(3)).unwrap();
    let manager = Manager::open(&path).unwrap();
    let (server, _) = (register(&manager, 1, 1).await, register(&manager, 2, 1).await);
    let (session, _) = open_session(&manager).await;
    let have = manager.map().borrow().epoch;
    let waiting = {
        let manager = manager.clone();
        tokio::spawn(async move { manager.handle(caller(session), MgrRequest::WaitMap { have }).await })
    };
    // A server hears of both: who is no client is fenced.
    let beside = {
        let manager = manager.clone();
        let MgrRequest::OpenSession { fs, process, admin_addr, .. } = open_request(None) else { panic!() };
        let (mount, proven_dead, share) = ("/other".into(), Vec::new(), true);
        let open = MgrRequest::OpenSession { fs, process, admin_addr, mount, proven_dead, share };
        tokio::spawn(async move { manager.handle(caller(SessionId(0)), open).await })
    };
    // The first says what it holds: nothing.
    manager.handle(caller(session), MgrRequest::WaitRecalls).await;
    manager.handle(caller(session), MgrRequest::Claim { tokens: vec![], last: true }).await;
    let MgrReply::SessionOpen { session: other, .. } = beside.await.unwrap() else { panic!() };
    let served = manager.handle(caller(server), MgrRequest::WaitMap { have }).await;
    let MgrReply::Map(map) = served else { panic!("{served:?}") };
    assert!(map.client(session).is_some() && map.client(other).is_some());
    let of = async |session, epoch| match manager
        .handle(caller(session), MgrRequest::Renew { epoch, pdisks: vec![] })
        .await
    {
        MgrReply::Renewed { epoch, .. } => epoch,
        other => panic!("{other:?}"),
    };
    assert!(of(session, have).await <= have && of(server, map.epoch).await == map.epoch && map.epoch > have);
    assert_eq!(manager.handle(caller(other), MgrRequest::CloseSession).await, MgrReply::Done);
    assert!(!waiting.is_finished() && of(session, have).await <= have);

    register(&manager, 3, 1).await;
    let MgrReply::Map(map) = waiting.await.unwrap() else { panic!() };
    assert!(map.node(NodeId(3)).unwrap().session.is_some() && map.clients.is_empty());
    assert_eq!((map.epoch, of(session, map.epoch).await), (manager.map().borrow().epoch, map.epoch));
    assert_eq!(manager.handle(caller(session), MgrRequest::GetMap).await, MgrReply::Map(map));
    manager.stop().await;
}

/// The media of a manager that loses power: the table's, the journal's and the mark's.
#[derive(Clone)]
struct Media {
    table: Volatile,
    journal: Volatile,
    mark: Volatile,
}

impl Media {
    /// The journal is small, so that it begins anew often.
    fn new(honest: bool) -> Media {
        let journal = Volatile::new(honest);
        redb::StorageBackend::set_len(&journal, 12 * 4096).unwrap();
        let mark = Volatile::new(honest);
        redb::StorageBackend::set_len(&mark, 1024).unwrap();
        Media { table: Volatile::new(honest), journal, mark }
    }

    /// What is left when power is lost now: `survives` decides for each write that was not flushed.
    fn power_cut(&self, survives: impl FnMut() -> bool) -> Media {
        let media = [&self.mark, &self.journal, &self.table];
        let [mark, journal, table] = Volatile::cut_together(media, survives);
        Media { table, journal, mark }
    }
}

/// A manager on media that lose power.
async fn on_media(media: &Media) -> Result<Manager, ManagerError> {
    made_on_media(media, &spec(3)).await
}

/// The same of another cluster, where there is none yet.
async fn made_on_media(media: &Media, spec: &Spec) -> Result<Manager, ManagerError> {
    let table = RedbStore::on_backend(media.table.clone())?;
    let store =
        JournaledStore::on_media(table, Box::new(media.journal.clone()), Box::new(media.mark.clone()))?;
    let snapshot = store.snapshot()?;
    if format::check_format(&*snapshot, Path::new("m")).is_err() {
        store.commit(&format::first_state(spec, [1, 2], &snapshot)?)?;
    }
    drop(snapshot);
    Manager::on_store(Arc::new(store), Path::new("m"))
}

/// Creates files from several slots at once, cuts the power in the middle, and says which acknowledged
/// ones are lost. None: the store cannot be opened at all.
async fn cut_power(honest: bool, seed: u64) -> Option<BTreeSet<String>> {
    let media = Media::new(honest);
    let manager = on_media(&media).await.unwrap();
    let (session, _) = open_session(&manager).await;
    let acknowledged = Arc::new(Mutex::new(BTreeSet::new()));
    let mut writers = tokio::task::JoinSet::new();
    for slot in 0..4u16 {
        let (manager, acknowledged) = (manager.clone(), acknowledged.clone());
        writers.spawn(async move {
            for seq in 1..10_000 {
                let name = format!("{slot}.{seq}");
                let request = MgrRequest::Mutate {
                    op: OpId { slot, seq },
                    change: create(&name, FileKind::File),
                    hold: false,
                    by: None,
                };
                let reply = manager.handle(caller(session), request).await;
                assert!(matches!(reply, MgrReply::Created { new: true, .. }), "{reply:?}");
                acknowledged.lock().unwrap().insert(name);
            }
        });
    }
    let wanted = 20 + seed as usize % 40;
    while acknowledged.lock().unwrap().len() < wanted {
        tokio::task::yield_now().await;
    }
    // What is acknowledged before the cut must survive it.
    let promised = acknowledged.lock().unwrap().clone();
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut survives = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random.is_multiple_of(2)
    };
    let left = media.power_cut(&mut survives);
    writers.shutdown().await;
    manager.stop().await;
    let manager = on_media(&left).await.ok()?;
    let found = match manager.handle(caller(session), MgrRequest::GetAttr { ino: InodeNo::ROOT }).await {
        MgrReply::Attr(_) => names(&manager, session).await,
        _ => BTreeSet::new(), // even the session is gone
    };
    manager.stop().await;
    Some(promised.difference(&found).cloned().collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_changes_survive_power_cuts() {
    for seed in 0..12 {
        let lost = cut_power(true, seed).await;
        assert_eq!(lost, Some(BTreeSet::new()), "seed {seed}");
    }
}

/// The test above is worth something: without flushes it fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_flushes_power_cuts_lose_changes() {
    let outcome = tokio::spawn(cut_power(false, 3)).await;
    // The engine may refuse, or panic over, what is left of its file; or changes are missing.
    assert!(!matches!(&outcome, Ok(Some(lost)) if lost.is_empty()), "nothing was lost: {outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_store_stops_the_manager() {
    let media = Media::new(true);
    let manager = on_media(&media).await.unwrap();
    let (session, _) = open_session(&manager).await;
    media.table.fail(Fails::Flushes, 0);
    media.journal.fail(Fails::Flushes, 0);
    let reply = manager.handle(caller(session), mutate(1, create("a", FileKind::File))).await;
    assert!(matches!(reply, MgrReply::Error(MgrError::Store(_))), "{reply:?}");
    assert!(manager.failed().await.to_string().contains("commit"));
    assert!(names(&manager, session).await.is_empty(), "nothing uncommitted is shown");
    let reply = manager.handle(caller(session), mutate(1, create("a", FileKind::File))).await;
    assert!(matches!(reply, MgrReply::Error(MgrError::Store(_))), "{reply:?}");
    manager.stop().await;
}

#[derive(Clone, Default)]
struct FakeServers {
    asked: Arc<Mutex<Vec<(PdiskId, DeleteStrips)>>>,
    dead: Arc<Mutex<BTreeSet<PdiskId>>>,
}

impl Deleter for FakeServers {
    async fn delete(&self, _: &ClusterMap, pdisk: PdiskId, items: Vec<DeleteStrips>) -> Result<(), String> {
        if self.dead.lock().unwrap().contains(&pdisk) {
            return Err("dead".into());
        }
        self.asked.lock().unwrap().extend(items.into_iter().map(|item| (pdisk, item)));
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletes_wait_for_every_pdisk_that_counts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manager");
    format(&path, spec(3)).unwrap();
    let manager = Manager::open(&path).unwrap();
    let (session, grant) = open_session(&manager).await;
    let reply = manager.handle(caller(session), mutate(1, create("a", FileKind::File))).await;
    let MgrReply::Created { attr, .. } = reply else { panic!("{reply:?}") };
    let now = Timestamp::default();
    let written = Change::CommitWrite {
        ino: attr.ino,
        size: 5 << 20,
        allocated: vec![Extent { first: BlockIndex(0), count: 5 }],
        inline: None,
        mtime: now,
        ctime: now,
        mode: None,
        uid: None,
        gid: None,
        atime: None,
        shared: false,
    };
    let unlink = Change::Unlink {
        parent: InodeNo::ROOT,
        name: b"a".to_vec(),
        directory: false,
        open: true,
        highest: Version { grant, seq: 5 },
        expect: None,
        now,
    };
    for (seq, change) in [(2, written), (3, unlink)] {
        let reply = manager.handle(caller(session), mutate(seq, change)).await;
        assert!(!matches!(reply, MgrReply::Error(_)), "{reply:?}");
    }
    let pending = || async {
        match manager.handle(caller(SessionId(0)), MgrRequest::Cluster).await {
            MgrReply::Cluster(report) => report.deletes_pending,
            other => panic!("{other:?}"),
        }
    };
    let servers = Arc::new(FakeServers::default());
    servers.dead.lock().unwrap().insert(PdiskId(2));
    assert_eq!(
        reaper::reap(manager.inner(), &servers, &mut Pass::default()).await,
        Ok(0),
        "it is still open"
    );
    // The client dies; its open file goes as soon as the next session begins after the fence.
    let reply = manager.handle(caller(SessionId(0)), open_request(Some(session))).await;
    assert!(matches!(reply, MgrReply::SessionOpen { resolve: true, .. }), "{reply:?}");
    while pending().await == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(pending().await, 5);
    assert!(reaper::reap(manager.inner(), &servers, &mut Pass::default()).await.is_err());
    assert_eq!(pending().await, 5, "pdisk 2 has not answered");
    servers.dead.lock().unwrap().clear();
    assert_eq!(reaper::reap(manager.inner(), &servers, &mut Pass::default()).await, Ok(1));
    assert_eq!(pending().await, 0);
    let asked = servers.asked.lock().unwrap().clone();
    let pdisks: BTreeSet<PdiskId> = asked.iter().map(|(pdisk, _)| *pdisk).collect();
    assert_eq!(pdisks.len(), 3);
    assert!(asked.iter().all(|(_, item)| item.inode == attr.ino && item.highest == Version::MAX));
    manager.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_answers_over_the_network_and_a_dump_makes_the_same_manager() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manager");
    format(&path, spec(3)).unwrap();
    let identity = net::Identity::from_secret(ClusterId(7), &net::Secret::new([7; 32])).ok();
    let config = net::EndpointConfig { cluster: ClusterId(7), identity, ..net::EndpointConfig::default() };
    let listen = vec!["127.0.0.1:0".parse().unwrap()];
    let endpoint =
        net::Endpoint::start(net::EndpointConfig { listen, role: net::Role::Manager, ..config.clone() })
            .unwrap();
    let running = Manager::open(&path).unwrap().serve(&endpoint).unwrap();
    let client = net::Endpoint::start(config).unwrap();
    let peer = client.peer(endpoint.local_addrs());
    let call = async |session, request: MgrRequest| {
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        let body = wire::frame::encode(&request);
        let call = net::Call {
            session,
            idempotent: true,
            ..net::Call::new(net::Service::Manager, 1, body, deadline)
        };
        wire::frame::decode::<MgrReply>(&peer.call(call).await.unwrap().body).unwrap()
    };
    let MgrReply::SessionOpen { session, .. } = call(SessionId(0), open_request(None)).await else {
        panic!()
    };
    let made = call(session, mutate(1, create("a", FileKind::File))).await;
    assert!(matches!(made, MgrReply::Created { .. }));
    let many = MgrRequest::MutateMany {
        changes: vec![
            (OpId { slot: 2, seq: 1 }, create("b", FileKind::File)),
            (OpId { slot: 3, seq: 1 }, create("b", FileKind::File)),
        ],
    };
    let MgrReply::Many(outcomes) = call(session, many).await else { panic!() };
    assert!(outcomes[0].is_ok());
    assert_eq!(outcomes[1], Err(MgrError::Errno(libc::EEXIST)));

    let mut dump = Vec::new();
    crate::store::dump(&*running.manager().snapshot(), &mut dump, crate::store::Damaged::Refuse).unwrap();
    running.stop().await;
    let copy = dir.path().join("copy");
    crate::restore(&copy, &mut dump.as_slice()).unwrap();
    assert!(crate::restore(&copy, &mut dump.as_slice()).is_err(), "used already");
    let manager = Manager::open(&copy).unwrap();
    assert!(manager.map().borrow().epoch.0 > 1 << 32, "numbers given after the dump are not given again");
    assert_eq!(names(&manager, session).await, ["a", "b"].map(String::from).into());
    assert_eq!(manager.handle(caller(session), mutate(1, create("a", FileKind::File))).await, made);
    let pool = manager.map().borrow().pools[0].id;
    let wish = MgrRequest::FsCreate { name: "later".into(), pool };
    manager.handle(caller(SessionId(0)), wish).await;
    let number = manager.map().borrow().fs_by_name("later").unwrap().id;
    assert!(number.0 > 1 << 16, "{number} may be that of one made after the dump");
    let wish = MgrRequest::NodeAdd { name: "later".into(), addrs: vec!["192.0.2.1:10".into()] };
    let reply = manager.handle(caller(SessionId(0)), wish).await;
    let MgrReply::NodeAdded { node } = reply else { panic!("{reply:?}") };
    assert!(node.0 > 1 << 16, "{node} may be that of one added after the dump");
    let reply = manager.handle(caller(SessionId(0)), MgrRequest::LastPdisk).await;
    assert!(matches!(reply, MgrReply::LastPdisk { pdisk } if pdisk.0 > 1 << 16), "{reply:?}");
    manager.stop().await;
}
