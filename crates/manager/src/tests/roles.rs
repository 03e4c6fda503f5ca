//! Who asks what over the network: by the role and node that his certificate proves, not by what the request says.

use std::net::SocketAddr;

use net::Role;

use super::*;

fn endpoint(role: Role, node: u32, listen: Vec<SocketAddr>) -> net::Endpoint {
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
    for (role, node, session, request) in [
        // Another node, a server's session, what a client has not.
        (Role::Server, 2, SessionId(0), begin(1)),
        (Role::Server, 2, SessionId(0), add.clone()),
        (Role::Server, 2, session, renew(std::slice::from_ref(&failed))),
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
        (Role::Server, MgrRequest::NodeRemove { node: NodeId(2) }),
        (Role::Lab, MgrRequest::Cluster),
        (Role::Admin, MgrRequest::Admit(Box::default())),
    ] {
        let reply = ask(role, 0, SessionId(0), &request).await;
        assert!(matches!(&reply, MgrReply::Error(MgrError::Role(_))), "{role:?} {request:?}: {reply:?}");
    }
    // Its own business.
    assert_eq!(ask(Role::Server, 1, SessionId(0), &add).await, MgrReply::Done);
    assert!(matches!(ask(Role::Server, 1, session, &renew(&[])).await, MgrReply::Renewed { .. }));
    running.stop().await;
}

/// A client with a certificate of its own.
fn client(member: u64) -> net::Endpoint {
    let secret = net::Secret::new([7; 32]);
    let authority = trust::Authority::from_secret(ClusterId(7), &secret).unwrap();
    let (roles, nodes) = (trust::Roles::of(&[Role::Client]), trust::Nodes::These(vec![]));
    let it = trust::Member { cluster: ClusterId(7), id: MemberId(member), roles, nodes };
    let asked = trust::Request::new().unwrap();
    let certificate = authority.sign_request(&it, &asked.request, Duration::ZERO).unwrap();
    let believed = vec![authority.certificate().clone()];
    let identity = Some(net::Identity::new(asked.key, certificate, believed).unwrap());
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
        let deadline = std::time::Instant::now() + Duration::from_secs(5);
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
