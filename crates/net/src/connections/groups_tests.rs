//! Which groups are forgotten.

use base::{CipherList, ClusterId};
use tokio::{runtime::Handle, time::timeout};
use trust::{Identity as Proof, Secret};
use wire::{
    frame::Service,
    hello::{NetRequest, Role},
};

use super::*;
use crate::{calls::call::Call, config::EndpointConfig, endpoint::Endpoint, peer::Peer};

const SOON: Duration = Duration::from_secs(90);
const AT_ONCE: Duration = Duration::ZERO;

fn config(node: u32) -> EndpointConfig {
    let cluster = ClusterId(7);
    EndpointConfig {
        cluster,
        identity: Some(Proof::from_secret(cluster, &Secret::new([7; 32])).unwrap()),
        cipher_list: CipherList::Empty,
        node: NodeId(node),
        role: Role::Admin,
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        ..EndpointConfig::default()
    }
}

/// Of an endpoint without a janitor of its own.
fn groups() -> Arc<Groups> {
    let config = config(2);
    let identity = config.identity.clone().unwrap().preferring(CipherList::Empty).unwrap();
    let identity = identity.speaking(config.build.protocols);
    Groups::new(Core::new(config, identity, Handle::current(), Vec::new()))
}

fn peer(groups: &Groups, addr: SocketAddr) -> Peer {
    let (group, user) = groups.dialed(&[addr]);
    Peer::of_user(group, user)
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, wait).await.expect(what);
}

#[tokio::test]
async fn a_dialed_group_that_nobody_has_or_uses_is_forgotten_with_its_keeper() {
    let (groups, addr) = (groups(), "127.0.0.1:1".parse().unwrap());
    let first = peer(&groups, addr);
    let second = first.clone();
    for one in [first, second] {
        groups.forget(AT_ONCE, AT_ONCE);
        assert_eq!(groups.all().len(), 1, "somebody has it");
        drop(one);
    }
    groups.forget(AT_ONCE, SOON);
    assert_eq!(groups.all().len(), 1, "somebody had it just now");
    let group = Arc::downgrade(&groups.all()[0]);
    groups.forget(AT_ONCE, AT_ONCE);
    assert!(groups.all().is_empty());
    until("its keeper ends", || group.strong_count() == 0).await;
    // It is another one when it is asked for again.
    let _peer = peer(&groups, addr);
    assert_eq!(groups.all().len(), 1);
}

#[tokio::test]
async fn a_dialed_group_that_is_connected_is_kept() {
    let server = Endpoint::start(config(1)).unwrap();
    let groups = groups();
    let links = Call::new(Service::Net, 0, wire::frame::encode(&NetRequest::Links), Instant::now() + SOON);
    peer(&groups, server.local_addrs()[0]).call(links).await.unwrap();
    groups.forget(AT_ONCE, AT_ONCE);
    assert_eq!(groups.all().len(), 1);
    server.shutdown();
    until("it is forgotten", || {
        groups.forget(AT_ONCE, AT_ONCE);
        groups.all().is_empty()
    })
    .await;
}
