//! Who asks what over the network: by the role and node that his certificate proves, not by what the request says.

use std::net::SocketAddr;

use net::Role;
use wire::mgr::PdiskWish;

use super::*;

pub(super) fn endpoint(role: Role, node: u32, listen: Vec<SocketAddr>) -> net::Endpoint {
    let identity = net::Identity::from_secret(ClusterId(7), &net::Secret::new([7; 32])).ok();
    let (cluster, node) = (ClusterId(7), NodeId(node));
    let config = net::EndpointConfig { cluster, identity, role, node, listen, ..Default::default() };
    net::Endpoint::start(config).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_asks_for_another() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manager");
    format(&path, spec(3)).unwrap();
    let at = endpoint(Role::Manager, 0, vec!["127.0.0.1:0".parse().unwrap()]);
    let running = Manager::open(&path).unwrap().serve(&at).unwrap();
    let ask = async |role, node, session, request: &MgrRequest| {
        let body = wire::frame::encode(request);
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        let call = net::Call { session, ..net::Call::new(net::Service::Manager, 1, body, deadline) };
        let from = endpoint(role, node, vec![]);
        let reply = from.peer(at.local_addrs()).call(call).await.unwrap();
        wire::frame::decode::<MgrReply>(&reply.body).unwrap()
    };
    let begin = |node: u32| MgrRequest::RegisterServer {
        node: NodeId(node),
        process: ProcessIdent { pid: node, ..ProcessIdent::default() },
        addrs: vec![format!("127.0.0.1:{node}")],
        pdisks: vec![],
    };
    let reply = ask(Role::Server, 1, SessionId(0), &begin(1)).await;
    let MgrReply::Registered { session, .. } = reply else { panic!("{reply:?}") };
    let failed = PdiskReport { id: PdiskId(1), failed: true, ..PdiskReport::default() };
    let renew = |pdisks: &[PdiskReport]| MgrRequest::Renew { epoch: Epoch(1), pdisks: pdisks.to_vec() };
    let add = MgrRequest::PdiskAdd {
        pdisk: PdiskId(9),
        name: "p".into(),
        node: NodeId(1),
        capacity: 1 << 30,
        pools: vec![],
    };
    let set = |pdisk, wish| MgrRequest::PdiskSet { pdisk: PdiskId(pdisk), wish };
    for (role, node, session, request) in [
        // Another node, a server's session, what a client has not.
        (Role::Server, 2, SessionId(0), begin(1)),
        (Role::Server, 2, SessionId(0), add.clone()),
        (Role::Server, 2, session, renew(std::slice::from_ref(&failed))),
        (Role::Server, 2, SessionId(0), set(1, PdiskWish::Drain)),
        (Role::Server, 1, SessionId(0), set(1, PdiskWish::Keep)),
        (Role::Server, 1, SessionId(0), set(99, PdiskWish::Remove)),
        (Role::Client, 0, session, renew(std::slice::from_ref(&failed))),
        (Role::Client, 0, session, renew(&[])),
        (Role::Client, 0, session, MgrRequest::WaitMap { have: Epoch(u64::MAX) }),
        (Role::Client, 0, SessionId(0), renew(std::slice::from_ref(&failed))),
        (Role::Client, 0, SessionId(0), begin(1)),
    ] {
        let reply = ask(role, node, session, &request).await;
        assert!(
            matches!(&reply, MgrReply::Error(MgrError::Config(_))),
            "{role:?} {node} {request:?}: {reply:?}"
        );
    }
    for (role, request) in [
        (Role::Client, MgrRequest::ConfigSet { pairs: vec![] }),
        (Role::Client, set(1, PdiskWish::Drain)),
        (Role::Server, MgrRequest::NodeRemove { node: NodeId(2) }),
        (Role::Lab, MgrRequest::Cluster),
        (Role::Admin, MgrRequest::Admit(Box::default())),
    ] {
        let reply = ask(role, 0, SessionId(0), &request).await;
        assert!(matches!(&reply, MgrReply::Error(MgrError::Role(_))), "{role:?} {request:?}: {reply:?}");
    }
    // Its own business.
    assert_eq!(ask(Role::Server, 1, SessionId(0), &add).await, MgrReply::Done);
    assert_eq!(ask(Role::Server, 1, SessionId(0), &set(9, PdiskWish::Drain)).await, MgrReply::Done);
    assert_eq!(ask(Role::Admin, 0, SessionId(0), &set(9, PdiskWish::Keep)).await, MgrReply::Done);
    assert!(matches!(ask(Role::Server, 1, session, &renew(&[])).await, MgrReply::Renewed { .. }));
    running.stop().await;
}

/// An epoch that was never given out: a server's word for it ends a manager with an older store, nobody else's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manager_is_not_ended_by_the_epoch_that_a_client_says() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manager");
    format(&path, spec(3)).unwrap();
    let at = endpoint(Role::Manager, 0, vec!["127.0.0.1:0".parse().unwrap()]);
    let running = Manager::open(&path).unwrap().serve(&at).unwrap();
    let ask = async |role, node, epoch| {
        let body = wire::frame::encode(&MgrRequest::GetMap);
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        let call = net::Call { epoch, ..net::Call::new(net::Service::Manager, 1, body, deadline) };
        endpoint(role, node, vec![]).peer(at.local_addrs()).call(call).await
    };
    for role in [Role::Client, Role::Admin] {
        let error = ask(role, 0, Epoch(u64::MAX)).await.unwrap_err().to_string();
        assert!(error.contains("never given out"), "{role:?}: {error}");
        tokio::select! {
            biased;
            error = running.failed() => panic!("{role:?}: {error}"),
            reply = ask(role, 0, Epoch(0)) => {
                let reply = wire::frame::decode::<MgrReply>(&reply.unwrap().body).unwrap();
                assert!(!matches!(reply, MgrReply::Error(_)), "{role:?}: {reply:?}");
            }
        }
    }
    assert!(ask(Role::Server, 1, Epoch(u64::MAX)).await.is_err());
    let failed = tokio::time::timeout(Duration::from_secs(60), running.failed());
    assert!(failed.await.unwrap().to_string().contains("older copy"));
    running.stop().await;
}

/// A client with a certificate of its own.
pub(super) fn client(member: u64) -> net::Endpoint {
    let secret = net::Secret::new([7; 32]);
    let authority = trust::Authority::from_secret(ClusterId(7), &secret).unwrap();
    let (roles, nodes) = (trust::Roles::of(&[Role::Client]), trust::Nodes::These(vec![]));
    let it = trust::Member { cluster: ClusterId(7), id: MemberId(member), roles, nodes };
    let asked = trust::Request::new().unwrap();
    let certificate = authority.sign_request(&it, &asked.request, Duration::ZERO).unwrap();
    let believed = vec![authority.certificate().clone()];
    let identity = Some(net::Identity::new(asked.key, vec![certificate], believed).unwrap());
    let config =
        net::EndpointConfig { cluster: ClusterId(7), identity, role: Role::Client, ..Default::default() };
    net::Endpoint::start(config).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_its_members_alone_and_ends_when_that_is_revoked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manager");
    format(&path, spec(3)).unwrap();
    let at = endpoint(Role::Manager, 0, vec!["127.0.0.1:0".parse().unwrap()]);
    let running = Manager::open(&path).unwrap().serve(&at).unwrap();
    let ask = async |from: &net::Endpoint, session, request: &MgrRequest| {
        let body = wire::frame::encode(request);
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        let call = net::Call { session, ..net::Call::new(net::Service::Manager, 1, body, deadline) };
        let reply = from.peer(at.local_addrs()).call(call).await?;
        Ok::<_, net::CallError>(wire::frame::decode::<MgrReply>(&reply.body).unwrap())
    };
    let (owner, thief) = (client(5), client(6));
    let open = MgrRequest::OpenSession {
        fs: "fs1".into(),
        process: ProcessIdent { pid: 5, ..ProcessIdent::default() },
        admin_addr: String::new(),
        mount: "/m".into(),
        proven_dead: vec![],
        share: false,
    };
    let MgrReply::SessionOpen { session, .. } = ask(&owner, SessionId(0), &open).await.unwrap() else {
        panic!()
    };
    let root = MgrRequest::GetAttr { ino: InodeNo::ROOT };
    for request in [&root, &MgrRequest::CloseSession, &MgrRequest::WaitRecalls] {
        let reply = ask(&thief, session, request).await.unwrap();
        assert!(matches!(&reply, MgrReply::Error(MgrError::Config(_))), "{request:?}: {reply:?}");
    }
    let reply = ask(&owner, session, &root).await.unwrap();
    assert!(matches!(&reply, MgrReply::Attr(_)), "{reply:?}");
    at.shut_out(&[MemberId(5)]);
    let error = ask(&owner, session, &root).await.unwrap_err();
    assert!(error.to_string().contains("revoked"), "{error}");
    assert!(ask(&thief, SessionId(0), &MgrRequest::GetMap).await.is_ok());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_only_read_one_file_system_asks_nothing_that_changes_it_or_is_of_another() {
    use wire::{
        map::Limits,
        mgr::OpId,
        token::{Need, Span, Use},
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manager");
    format(&path, spec(3)).unwrap();
    let at = endpoint(Role::Manager, 0, vec!["127.0.0.1:0".parse().unwrap()]);
    let running = Manager::open(&path).unwrap().serve(&at).unwrap();
    let ask = async |from: &net::Endpoint, session, request: &MgrRequest| {
        let body = wire::frame::encode(request);
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        let call = net::Call { session, ..net::Call::new(net::Service::Manager, 1, body, deadline) };
        let reply = from.peer(at.local_addrs()).call(call).await.unwrap();
        wire::frame::decode::<MgrReply>(&reply.body).unwrap()
    };
    let (own, reader) = (endpoint(Role::Manager, 0, vec![]), client(5));
    let create = MgrRequest::FsCreate { name: "fs2".into(), pool: base::PoolId(1) };
    assert_eq!(ask(&own, SessionId(0), &create).await, MgrReply::Done);
    let limits = Limits { filesystems: vec![FsId(1)], read_only: true, ..Limits::default() };
    let invite =
        MgrRequest::Invite { token: 5, hash: [1; 32], role: Role::Client, expires: 100, now: 1, limits };
    assert_eq!(ask(&own, SessionId(0), &invite).await, MgrReply::Done);
    let open = |fs: &str| MgrRequest::OpenSession {
        fs: fs.into(),
        process: ProcessIdent { pid: 5, ..ProcessIdent::default() },
        admin_addr: String::new(),
        mount: "/m".into(),
        proven_dead: vec![],
        share: false,
    };
    let refused = ask(&reader, SessionId(0), &open("fs2")).await;
    assert!(matches!(refused, MgrReply::Error(MgrError::Config(_))), "{refused:?}");
    let reply = ask(&reader, SessionId(0), &open("fs1")).await;
    let MgrReply::SessionOpen { session, map, .. } = reply else { panic!("{reply:?}") };
    assert!(map.is_guest(MemberId(5)));

    let ino = InodeNo::ROOT;
    let op = OpId { slot: 1, seq: 1 };
    let made = Change::SetXattr {
        ino,
        name: b"user.a".to_vec(),
        value: vec![],
        create: false,
        replace: false,
        now: Default::default(),
    };
    let forget = Change::Forget { ino: InodeNo(99), highest: base::Version::default() };
    let span = Span { first: 0, end: 1 };
    for request in [
        MgrRequest::Mutate { op, change: made.clone(), hold: false, by: None },
        MgrRequest::MutateMany { changes: vec![(op, forget.clone()), (op, made)] },
        MgrRequest::Acquire { ino, need: Need::Write },
        MgrRequest::Acquire { ino, need: Need::Blocks(span, Use::Write) },
        MgrRequest::Reserve { pool: base::PoolId(1), bytes: 1, held: 0 },
        MgrRequest::ResolveDone,
        MgrRequest::Resolved { ino },
        MgrRequest::ResolvePassDone { pass: 1 },
    ] {
        assert_eq!(
            ask(&reader, session, &request).await,
            MgrReply::Error(MgrError::Errno(libc::EROFS)),
            "{request:?}"
        );
    }
    let (fs, after) = (FsId(2), InodeNo(0));
    let stripe = |fs| base::StripeId { fs: FsId(fs), inode: ino, block: base::BlockIndex(0) };
    for request in [
        MgrRequest::StatFs { fs },
        MgrRequest::Tokens { fs, after },
        MgrRequest::Locks { fs, after },
        MgrRequest::LostFiles { fs, after },
        MgrRequest::Owned { fs, ino, block: base::BlockIndex(0) },
        MgrRequest::Owners { blocks: vec![stripe(1), stripe(2)] },
    ] {
        assert_eq!(
            ask(&reader, session, &request).await,
            MgrReply::Error(MgrError::Errno(libc::EACCES)),
            "{request:?}"
        );
    }
    // What it may.
    for request in [
        MgrRequest::GetAttr { ino },
        MgrRequest::Mutate { op, change: forget, hold: false, by: None },
        MgrRequest::StatFs { fs: FsId(1) },
        MgrRequest::Locks { fs: FsId(1), after },
        MgrRequest::Owners { blocks: vec![stripe(1)] },
    ] {
        let reply = ask(&reader, session, &request).await;
        let no = [libc::EROFS, libc::EACCES].map(|errno| MgrReply::Error(MgrError::Errno(errno)));
        assert!(!no.contains(&reply), "{request:?}: {reply:?}");
    }
    let MgrReply::Cluster(report) = ask(&reader, SessionId(0), &MgrRequest::Cluster).await else { panic!() };
    assert_eq!(report.map.filesystems.iter().map(|fs| fs.id).collect::<Vec<_>>(), [FsId(1)]);
    running.stop().await;
}
