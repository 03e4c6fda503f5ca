//! A store that is damaged, older than it should be, or whose manager panics: what is asked for is right, refused, or EIO,
//! and the manager says so.

use wire::mgr::MgrRequest::Lookup;

use super::*;
use crate::{
    Options, accept_loss,
    check::check,
    keys::{self, Inode},
    scrub,
    store::{self, Damaged, StoreError, journal_path, mark_path, open_record, seal_record},
};

const NAMES: u64 = 600;

/// A store with files, directories and links in it, and nobody at work; the session that made them lives.
async fn made(path: &Path) -> SessionId {
    format(path, spec(3)).unwrap();
    let manager = Manager::open(path).unwrap();
    let (session, _) = open_session(&manager).await;
    for seq in 1..=NAMES {
        let kind = if seq % 50 == 0 { FileKind::Directory } else { FileKind::File };
        let reply =
            manager.handle(caller(session), mutate(seq, create(&format!("name{seq:04}"), kind))).await;
        assert!(matches!(reply, MgrReply::Created { new: true, .. }), "{reply:?}");
    }
    manager.stop().await;
    session
}

/// How many names are found, and for how many that is not known. None may be absent.
async fn look_up(manager: &Manager, session: SessionId) -> (u64, u64) {
    let (mut found, mut unknown) = (0, 0);
    for n in 1..=NAMES {
        let wish = Lookup { parent: InodeNo::ROOT, name: format!("name{n:04}").into() };
        match manager.handle(caller(session), wish).await {
            MgrReply::Error(MgrError::Errno(libc::EIO)) => unknown += 1,
            MgrReply::Error(other) => panic!("name{n:04}: {other:?}"),
            _ => found += 1,
        }
    }
    (found, unknown)
}

async fn failure(manager: &Manager) -> String {
    let failed = tokio::time::timeout(Duration::from_secs(60), manager.failed());
    failed.await.expect("the manager lives on").to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manager_that_panicked_ends_and_answers_nothing_more() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manager");
    format(&path, spec(3)).unwrap();
    let manager = Manager::open(&path).unwrap();
    let (session, _) = open_session(&manager).await;
    let planted = manager.inner().writer.run(|_| panic!("planted")).await;
    assert!(matches!(planted, Err(MgrError::Store(_))), "{planted:?}");
    let told = failure(&manager).await;
    assert!(told.contains("writer panicked: planted"), "{told}");
    let reply = manager.handle(caller(session), mutate(1, create("a", FileKind::File))).await;
    assert!(matches!(reply, MgrReply::Error(MgrError::Store(_))), "{reply:?}");
    manager.stop().await;
    // Started again it goes on; a panic of another of its tasks ends it as well.
    let manager = Manager::open(&path).unwrap();
    let reply = manager.handle(caller(session), mutate(1, create("a", FileKind::File))).await;
    assert!(matches!(reply, MgrReply::Created { new: true, .. }), "{reply:?}");
    manager.spawn(async {
        tokio::task::yield_now().await;
        panic!("planted");
    });
    let told = failure(&manager).await;
    assert!(told.contains("tasks panicked"), "{told}");
    manager.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_copy_is_found_by_whoever_saw_a_newer_map() {
    let dir = tempfile::tempdir().unwrap();
    let (path, old) = (dir.path().join("manager"), dir.path().join("old"));
    let session = made(&path).await;
    std::fs::create_dir(&old).unwrap();
    let all =
        || std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    for name in all() {
        std::fs::copy(path.join(&name), old.join(&name)).unwrap();
    }
    let identity = || net::Identity::from_secret(ClusterId(7), &net::Secret::new([7; 32])).ok();
    let config = || net::EndpointConfig {
        cluster: ClusterId(7),
        identity: identity(),
        ..net::EndpointConfig::default()
    };
    let serve = |path: &Path| {
        let listen = vec!["127.0.0.1:0".parse().unwrap()];
        let endpoint =
            net::Endpoint::start(net::EndpointConfig { listen, role: net::Role::Manager, ..config() })
                .unwrap();
        (Manager::open(path).unwrap().serve(&endpoint).unwrap(), endpoint)
    };
    let server = net::EndpointConfig { role: net::Role::Server, node: NodeId(1), ..config() };
    let server = net::Endpoint::start(server).unwrap();
    let ask = async |endpoint: &net::Endpoint, epoch| {
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        let body = wire::frame::encode(&MgrRequest::GetMap);
        let call = net::Call { session, epoch, ..net::Call::new(net::Service::Manager, 1, body, deadline) };
        server.peer(endpoint.local_addrs()).call(call).await
    };
    let (running, endpoint) = serve(&path);
    register(running.manager(), 2, 1).await;
    let epoch = running.manager().map().borrow().epoch;
    ask(&endpoint, epoch).await.unwrap();
    running.stop().await;
    let (running, endpoint) = serve(&old);
    ask(&endpoint, Epoch(epoch.0 - 1)).await.unwrap();
    assert!(ask(&endpoint, epoch).await.is_err());
    let told = failure(running.manager()).await;
    assert!(told.contains("older copy") && told.contains("manager restore"), "{told}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_finds_what_does_not_fit_together() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manager");
    made(&path).await;
    let found = check(&path).unwrap();
    assert!(found.problems.is_empty() && found.records > 2 * NAMES, "{found:?}");
    assert!(matches!(accept_loss(&path), Err(ManagerError::NothingLost { .. })));
    let store = JournaledStore::open(&format::store_path(&path), 1 << 20).unwrap();
    let snapshot = store.snapshot().unwrap();
    let key = |n| keys::inode_key(FsId(1), InodeNo(n));
    let inode = |n| open_record::<Inode>(&key(n), &snapshot.get(&key(n)).unwrap().unwrap()).unwrap();
    let (mut root, mut five) = (inode(1), inode(5));
    root.entries += 1;
    five.blocks = 3;
    let torn = snapshot.get(&key(7)).unwrap().map(|mut value| {
        value[3] ^= 1;
        value
    });
    let changes = [
        (key(1), Some(seal_record(&key(1), &root))),
        (key(4), None),
        (key(5), Some(seal_record(&key(5), &five))),
        (key(7), torn),
    ];
    drop(snapshot);
    store.commit(&changes.into()).unwrap();
    drop(store);
    let told = check(&path).unwrap().problems.join("\n");
    for what in ["600 entries, and 601 are recorded", "0 blocks, and 3", "1 names lead to it", "CRC mismatch"]
    {
        assert!(told.contains(what), "{what}:\n{told}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_reads_whatever_the_manager_reads() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manager");
    format(&path, spec(3)).unwrap();
    let manager = Manager::open(&path).unwrap();
    register(&manager, 2, 1).await;
    manager.stop().await;
    let store = JournaledStore::open(&format::store_path(&path), 1 << 20).unwrap();
    let (pdisk, key) = (PdiskId(2), keys::pdisk_key(PdiskId(2)));
    let now = keys::read_pdisk(&*store.snapshot().unwrap(), pdisk).unwrap();
    assert_ne!(now, keys::PdiskRecord::default());
    let former = seal_record(&key, &keys::PdiskRecord1::from(now.clone()));
    store.commit(&[(key, Some(former))].into()).unwrap();
    let read = keys::read_pdisk(&*store.snapshot().unwrap(), pdisk).unwrap();
    assert_eq!((read.incarnation, read.process), (now.incarnation, now.process));
    let map = keys::read_map(&*store.snapshot().unwrap()).unwrap();
    let former = seal_record(&keys::map_key(), &keys::MapRecord1::from(map.clone()));
    store.commit(&[(keys::map_key(), Some(former))].into()).unwrap();
    assert_eq!(keys::read_map(&*store.snapshot().unwrap()).unwrap(), map);
    drop(store);
    let found = check(&path).unwrap();
    assert!(found.problems.is_empty(), "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_damaged_block_holds_is_eio_and_the_rest_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manager");
    let session = made(&path).await;
    // So that all is in the table.
    Manager::open(&path).unwrap().stop().await;
    let table = format::store_path(&path);
    // A name in the middle of them all: beside the first and the last stands what every lookup needs.
    let mut names = Vec::new();
    let store = JournaledStore::open(&table, 1 << 20).unwrap();
    keys::walk(&*store.snapshot().unwrap(), b"d", b"e", |key, value| {
        names.push(open_record::<keys::EntryRecord>(key, value)?.name);
        Ok(true)
    })
    .unwrap();
    drop(store);
    let name = names.swap_remove(names.len() / 2);
    let whole = std::fs::read(&table).unwrap();
    // Wherever it stands: the engine leaves former copies of a page behind.
    let mut bytes = whole.clone();
    for (at, found) in whole.windows(name.len()).enumerate() {
        if *found == *name {
            bytes[at] ^= 4;
        }
    }
    assert!(bytes != whole);
    std::fs::write(&table, &bytes).unwrap();

    let manager = Manager::open(&path).unwrap();
    let (found, unknown) = look_up(&manager, session).await;
    assert!(unknown > 0 && found > NAMES / 2, "{found} found, {unknown} unknown");
    let list = MgrRequest::ReadDir { ino: InodeNo::ROOT, cookie: 0, limit: 4096, plus: false };
    let listed = manager.handle(caller(session), list).await;
    assert_eq!(listed, MgrReply::Error(MgrError::Errno(libc::EIO)), "a list that ends early");
    let MgrReply::Cluster(report) = manager.handle(caller(SessionId(0)), MgrRequest::Cluster).await else {
        panic!()
    };
    assert!(report.store_damage[0].contains("1 blocks"), "{:?}", report.store_damage);
    manager.stop().await;

    let bytes = std::fs::read(&table).unwrap();
    let found = check(&path).unwrap();
    assert!(found.problems.iter().any(|text| text.contains("cannot be read")), "{found:?}");
    // A dump is refused, or lacks what cannot be read and says so.
    let look = store::Look::open(&table, 1 << 20).unwrap();
    let snapshot = look.snapshot().unwrap();
    let mut dump = Vec::new();
    assert!(store::dump(&*snapshot, &mut dump, Damaged::Refuse).is_err());
    dump.clear();
    let (records, left_out) = store::dump(&*snapshot, &mut dump, Damaged::LeaveOut).unwrap();
    assert!(records > NAMES && left_out.len() == 1, "{records}, {left_out:?}");
    drop((snapshot, look));
    assert!(std::fs::read(&table).unwrap() == bytes, "looking has changed it");
    let copy = dir.path().join("copy");
    assert_eq!(crate::restore(&copy, &mut dump.as_slice()).unwrap(), records);
    // So does giving it up, and the former table stays.
    let accepted = accept_loss(&path).unwrap();
    assert!(accepted.records == records && accepted.lost.len() == 1, "{accepted:?}");
    assert!(std::fs::read(path.join("store.redb.given-up")).unwrap() == bytes);
    let manager = Manager::open(&path).unwrap();
    assert!(manager.map().borrow().epoch.0 > 1 << 32);
    manager.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_scrub_finds_what_nobody_asks_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manager");
    made(&path).await;
    let table = format::store_path(&path);
    let manager = Manager::open(&path).unwrap();
    let pace = scrub::Pace { step: Duration::from_millis(1), round: Duration::from_millis(10) };
    manager.spawn(scrub::run(manager.inner().clone(), pace));
    let reported = async || match manager.handle(caller(SessionId(0)), MgrRequest::Cluster).await {
        MgrReply::Cluster(report) => report.store_damage,
        other => panic!("{other:?}"),
    };
    assert_eq!(reported().await, Vec::<String>::new());
    // Under the running manager, whose memory has all of it.
    let whole = std::fs::read(&table).unwrap();
    let at = whole.windows(8).position(|bytes| bytes == b"name0123").unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&table).unwrap();
    let until = Instant::now() + Duration::from_secs(90);
    while reported().await.is_empty() {
        std::os::unix::fs::FileExt::write_all_at(&file, &[whole[at] ^ 1], at as u64).unwrap();
        assert!(Instant::now() < until, "the scrub finds nothing");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    loop {
        let MgrReply::Events(events) =
            manager.handle(caller(SessionId(0)), MgrRequest::Events { after: 0 }).await
        else {
            panic!()
        };
        if events.iter().any(|event| event.text.contains("store is damaged")) {
            break;
        }
        assert!(Instant::now() < until, "no event");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    manager.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_cut_journal_lost_is_given_up_only_when_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manager");
    let session = made(&path).await;
    let table = format::store_path(&path);
    Manager::open(&path).unwrap().stop().await;
    let manager = Manager::open(&path).unwrap();
    let next = NAMES + 1;
    for seq in next..next + 3 {
        let reply =
            manager.handle(caller(session), mutate(seq, create(&seq.to_string(), FileKind::File))).await;
        assert!(matches!(reply, MgrReply::Created { new: true, .. }), "{reply:?}");
    }
    // As a crash leaves it, its journal cut.
    let left = dir.path().join("left");
    std::fs::create_dir(&left).unwrap();
    let to = format::store_path(&left);
    for (from, to) in [
        (table.clone(), to.clone()),
        (journal_path(&table), journal_path(&to)),
        (mark_path(&table), mark_path(&to)),
    ] {
        std::fs::copy(from, to).unwrap();
    }
    manager.stop().await;
    let journal = std::fs::OpenOptions::new().write(true).open(journal_path(&to)).unwrap();
    journal.set_len(2 * 4096).unwrap();
    let error = Manager::open(&left).err().unwrap().to_string();
    assert!(error.contains("are lost") && error.contains("store.journal"), "{error}");
    assert!(!check(&left).unwrap().problems.is_empty());
    let accepted = accept_loss(&left).unwrap();
    assert!(accepted.lost[0].contains("are lost"), "{accepted:?}");
    assert_eq!(check(&left).unwrap().problems, Vec::<String>::new());
    let manager = Manager::open(&left).unwrap();
    assert_eq!(look_up(&manager, session).await, (NAMES, 0));
    manager.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manager_that_finds_its_table_damaged_at_its_start_says_that_its_copy_has_all() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("manager"), dir.path().join("copy"));
    made(&path).await;
    std::fs::create_dir(&copy).unwrap();
    let mirror = store::Mirror::new(&copy, &dir.path().join("mirror"));
    let options = Options { mirror: Some(std::sync::Arc::new(mirror.clone())), ..Options::default() };
    let manager = Manager::open_with(&path, &options).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while !manager.inner().store.upgrade().unwrap().remarks().is_empty() {
        assert!(Instant::now() < until, "no copy is made");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    manager.stop().await;
    // What every start reads.
    let table = format::store_path(&path);
    let one = JournaledStore::open(&table, 1 << 20).unwrap();
    let map = one.snapshot().unwrap().get(&keys::map_key()).unwrap().unwrap();
    drop(one);
    let whole = std::fs::read(&table).unwrap();
    let mut bytes = whole.clone();
    for (at, found) in whole.windows(map.len()).enumerate() {
        if *found == *map {
            bytes[at] ^= 4;
        }
    }
    assert!(bytes != whole);
    std::fs::write(&table, &bytes).unwrap();
    let error = Manager::open_with(&path, &options).err().unwrap().to_string();
    assert!(error.contains("damaged") && error.contains("promote --from-mirror"), "{error}");
    // The one that was being opened lets it go.
    let taken = loop {
        match mirror.promote(&path) {
            Err(StoreError::InUse { .. }) if Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            taken => break taken,
        }
    };
    taken.unwrap();
    let manager = Manager::open_with(&path, &options).unwrap();
    manager.stop().await;
    assert_eq!(check(&path).unwrap().problems, Vec::<String>::new());
}
