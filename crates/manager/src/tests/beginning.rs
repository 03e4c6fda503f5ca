//! A cluster that begins with one node and nothing on it, and loses power after each thing that it gets.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_new_cluster_gets_survives_power_cuts() {
    let one = NodeEntry { id: NodeId(1), name: "n1".into(), ..NodeEntry::default() };
    let empty = Spec { nodes: vec![one], pdisks: vec![], pools: vec![], filesystems: vec![], ..spec(1) };
    let dir = tempfile::tempdir().unwrap();
    format(&dir.path().join("manager"), empty.clone()).unwrap();

    let node =
        |name: &str, n: u32| MgrRequest::NodeAdd { name: name.into(), addrs: vec![format!("127.0.0.{n}:1")] };
    let remove = |node: u32| MgrRequest::NodeRemove { node: NodeId(node) };
    let pdisk = |id: u32| MgrRequest::PdiskAdd {
        pdisk: PdiskId(id),
        name: format!("p{id}"),
        node: NodeId(id),
        capacity: 1 << 30,
        pools: vec![],
    };
    let added = |node: u32| MgrReply::NodeAdded { node: NodeId(node) };
    let pool = MgrRequest::PoolCreate {
        name: "data".into(),
        code: "2way".into(),
        block_size: 1 << 20,
        pdisks: vec![],
        survives: None,
    };
    let renamed = MgrRequest::NodeSet { node: NodeId(2), name: Some("bea".into()), addrs: None, rack: None };
    let steps = [
        (node("n2", 2), added(2)),
        (node("n3", 3), added(3)),
        (remove(3), MgrReply::Done),
        (node("n3", 3), added(4)),
        (pdisk(1), MgrReply::Done),
        (pdisk(2), MgrReply::Done),
        (pool, MgrReply::Done),
        (MgrRequest::FsCreate { name: "fs1".into(), pool: PoolId(1) }, MgrReply::Done),
        (renamed, MgrReply::Done),
    ];
    let mut media = Media::new(true);
    for (request, expected) in steps {
        let manager = made_on_media(&media, &empty).await.unwrap();
        let reply = manager.handle(caller(SessionId(0)), request.clone()).await;
        assert_eq!(reply, expected, "{request:?}");
        let left = media.power_cut(|| false);
        manager.stop().await;
        media = left;
    }
    let manager = made_on_media(&media, &empty).await.unwrap();
    let names: Vec<(u32, String)> =
        manager.map().borrow().nodes.iter().map(|node| (node.id.0, node.name.clone())).collect();
    assert_eq!(names, [(1, "n1".into()), (2, "bea".into()), (4, "n3".into())]);
    register(&manager, 1, 1).await;
    register(&manager, 2, 1).await;
    assert_eq!(open_session(&manager).await.0, SessionId(3), "after two servers");
    manager.stop().await;
}
