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
