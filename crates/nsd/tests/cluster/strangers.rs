//! A delete names no session: it is the manager's alone, whoever else belongs to the cluster.

use std::time::{Duration, Instant};

use base::{BlockIndex, Version};
use net::{Call, Endpoint, EndpointConfig, Role, Service};
use wire::{
    frame,
    nsd::{NsdRefusal, NsdReply, NsdRequest},
    strip::DeleteStrips,
};

use crate::common::*;

const BLOCK: u32 = 256 << 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delete_without_a_session_is_the_managers_alone() {
    let cluster = Cluster::start("2+1p", BLOCK, 3, 1).await;
    let mut client = cluster.client();
    cluster.seen().await;
    client.put(0, content(1, BLOCK / UNIT)).await;
    let item = DeleteStrips {
        fs: FS,
        inode: INODE,
        first: BlockIndex(0),
        last: BlockIndex(u64::MAX),
        highest: Version::MAX,
    };
    for role in [Role::Client, Role::Admin, Role::Server, Role::Lab, Role::Manager] {
        if role == Role::Manager {
            client.check_all().await;
        }
        let endpoint = Endpoint::start(EndpointConfig { role, ..endpoint_config() }).unwrap();
        let node = cluster.nodes[0].as_ref().unwrap();
        let request = NsdRequest::Delete { pdisk: base::PdiskId(1), items: vec![item] };
        let deadline = Instant::now() + Duration::from_secs(30);
        let call = Call {
            epoch: client.io.view().epoch(),
            ..Call::new(Service::Nsd, request.op(), frame::encode(&request), deadline)
        };
        let reply = endpoint.peer(node.endpoint.local_addrs()).call(call).await.unwrap();
        let reply: NsdReply = frame::decode(&reply.body).unwrap();
        let wanted = match role {
            Role::Manager => NsdReply::Done,
            _ => NsdReply::Refused(NsdRefusal::Fenced),
        };
        assert_eq!(reply, wanted, "{role:?}");
    }
}
