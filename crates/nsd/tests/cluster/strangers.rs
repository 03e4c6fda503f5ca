//! What who belongs to the cluster may still not do: delete without a session, reach strips of a file system that he has not
//! mounted, change anything if he may only read, use what the manager keeps from him.

use std::time::{Duration, Instant};

use base::{BlockIndex, FsId, Grant, StripId, Version};
use net::{Call, Endpoint, EndpointConfig, Role, Service};
use wire::{
    credentials::{NOBODY, Squash},
    frame,
    map::{ClientEntry, LimitedMember, Limits, Subtree},
    nsd::{NsdRefusal, NsdReply, NsdRequest},
    strip::{DeleteStrips, PrepareStrip, Range, ReadStrip, ReadVersion, StripState},
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
        let deadline = Instant::now() + Duration::from_secs(60);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_reaches_its_own_file_system_and_changes_nothing_if_it_only_reads() {
    let cluster = Cluster::start("2+1p", BLOCK, 3, 1).await;
    let mut client = cluster.client();
    cluster.seen().await;
    client.put(0, content(1, BLOCK / UNIT)).await;
    let (reader, of_other) = (cluster.manager.client(), cluster.manager.new_session());
    let member = base::MemberId(0);
    cluster.manager.change(|map, _| map.clients.push(ClientEntry { session: of_other, fs: FsId(9), member }));
    cluster.seen().await;
    let endpoint = Endpoint::start(endpoint_config()).unwrap();
    let node = cluster.nodes[0].as_ref().unwrap();
    let ask_under = async |session, epoch, request: &NsdRequest| {
        let deadline = Instant::now() + Duration::from_secs(60);
        let call = Call {
            session,
            epoch,
            ..Call::new(Service::Nsd, request.op(), frame::encode(request), deadline)
        };
        let reply = endpoint.peer(node.endpoint.local_addrs()).call(call).await.unwrap();
        frame::decode::<NsdReply>(&reply.body).unwrap()
    };
    let ask =
        async |session, request: &NsdRequest| ask_under(session, client.io.view().epoch(), request).await;
    let pdisk = base::PdiskId(1);
    let at = client.io.view();
    let members = at.members(POOL, at.pool(POOL).unwrap().group_of(stripe(0))).to_vec();
    let index = members.iter().position(|id| *id == pdisk).unwrap();
    let StripState { strip, pool, group, .. } = cluster.strips(0).await.swap_remove(index).1;
    let prepare = PrepareStrip {
        strip,
        pool,
        group,
        info: Default::default(),
        base: None,
        adopt: None,
        ranges: vec![],
        crcs: vec![],
    };
    let read =
        ReadStrip { strip, version: ReadVersion::Adopted, ranges: vec![Range { offset: 0, len: UNIT }] };
    let item = DeleteStrips {
        fs: FS,
        inode: INODE,
        first: BlockIndex(0),
        last: BlockIndex(u64::MAX),
        highest: Version::MAX,
    };
    let looks = [
        NsdRequest::Read { pdisk, read },
        NsdRequest::State { pdisk, strips: vec![strip] },
        NsdRequest::ListPrepared { pdisk, fs: FS, after: None, limit: 10 },
        NsdRequest::Suspect { pdisk, strip },
    ];
    let changes = [
        NsdRequest::Prepare { pdisk, strip: prepare.clone() },
        NsdRequest::Install { pdisk, strip: prepare },
        NsdRequest::Adopt { pdisk, items: vec![(strip, Version::MAX)] },
        NsdRequest::Discard { pdisk, items: vec![(strip, Version::MAX)] },
        NsdRequest::Seal { pdisk, strips: vec![strip], below: Grant(u64::MAX) },
        NsdRequest::Delete { pdisk, items: vec![item] },
    ];
    let group = NsdRequest::ListGroup { pdisk, pool, group, after: None, limit: 10 };
    let refused = NsdReply::Refused(NsdRefusal::NotAllowed);
    for request in looks.iter().chain(&changes) {
        assert_eq!(ask(of_other, request).await, refused, "{request:?}");
    }
    assert_eq!(ask(reader, &group).await, refused, "what a group holds is of all file systems");
    let limits = Limits { filesystems: vec![], read_only: true, ..Limits::default() };
    cluster.manager.change(|map, _| map.limited = vec![LimitedMember { member, limits }]);
    cluster.seen().await;
    for request in &looks {
        assert_ne!(ask(reader, request).await, refused, "{request:?}");
    }
    for request in &changes {
        assert_eq!(ask(reader, request).await, refused, "{request:?}");
    }
    // Bound to a subtree: the manager says which files are in it.
    let subtree = Some(Subtree { path: "/a".into(), root: base::InodeNo(2) });
    let limits = Limits { filesystems: vec![FS], read_only: false, subtree, ..Limits::default() };
    cluster.manager.change(|map, _| map.limited = vec![LimitedMember { member, limits }]);
    cluster.seen().await;
    let StripId { stripe: at, index } = strip;
    let of_other = StripId { stripe: base::StripeId { inode: base::InodeNo(INODE.0 + 1), ..at }, index };
    let state = |strips: Vec<StripId>| NsdRequest::State { pdisk, strips };
    for _ in 0..2 {
        assert_ne!(ask(reader, &state(vec![strip])).await, refused);
        assert_eq!(ask(reader, &state(vec![of_other])).await, refused);
        assert_eq!(ask(reader, &state(vec![strip, of_other, strip])).await, refused);
        for all in [&looks[2], &group] {
            assert_eq!(ask(reader, all).await, refused, "{all:?}");
        }
    }
    // Squashed: which it may read, and which it may write.
    let squash = Squash::Root { uid: NOBODY, gid: NOBODY };
    let limits = Limits { squash, ..Limits::default() };
    cluster.manager.change(|map, _| map.limited = vec![LimitedMember { member, limits: limits.clone() }]);
    cluster.seen().await;
    for _ in 0..2 {
        for request in [&looks[0], &looks[1], &looks[3], &state(vec![strip])] {
            assert_ne!(ask(reader, request).await, refused, "{request:?}");
        }
        for request in changes.iter().chain([&looks[2], &group, &state(vec![of_other])]) {
            assert_eq!(ask(reader, request).await, refused, "{request:?}");
        }
    }
    // Sessions that the server has perhaps not heard of when their first request comes: it waits for the map that says what they may.
    for _ in 0..8 {
        let late = cluster.manager.new_session();
        let its = ClientEntry { session: late, fs: FS, member };
        cluster.manager.change(|map, _| map.clients.push(its));
        let epoch = cluster.manager.view().epoch;
        assert_eq!(ask_under(late, epoch, &changes[0]).await, refused);
        assert_ne!(ask_under(late, epoch, &looks[0]).await, refused);
    }
    cluster.manager.change(|map, _| map.limited.clear());
    cluster.seen().await;
    client.check_all().await;
}
