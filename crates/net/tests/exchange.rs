//! The authority of a cluster is exchanged while processes speak to each other: no call is lost, and who still has a certificate
//! of the one before is out at the end.
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use common::*;
use net::{Endpoint, EndpointConfig, Identity, Lane, Secret};
use trust::Authorities;

/// Of a process that has the secrets; 0: none before.
fn with(newest: u8, former: u8) -> Identity {
    let former = (former > 0).then(|| Secret::new([former; 32]));
    let newest = Secret::new([newest; 32]);
    let authorities = Authorities::from_secrets(CLUSTER, &newest, former.as_ref()).unwrap();
    Identity::from_authorities(CLUSTER, &authorities).unwrap()
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exchange_loses_no_call_and_leaves_out_who_has_not_taken_part() {
    let config = |node| EndpointConfig { identity: Some(with(1, 0)), ..config(node) };
    let (server, addr) = server_with(EndpointConfig { listen: listening(1).listen, ..config(1) });
    let [client, late] = [2, 3].map(|node| Endpoint::start(config(node)).unwrap());
    let (over, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let callers: Vec<_> = [(Lane::Control, 0), (Lane::Bulk, 0), (Lane::Bulk, 64 << 10)]
        .into_iter()
        .map(|(lane, len)| {
            let (peer, over, calls) = (client.peer(&[addr]), Arc::clone(&over), Arc::clone(&calls));
            tokio::spawn(async move {
                while !over.load(Ordering::SeqCst) {
                    let payload = bytes::Bytes::from(pattern(len, 3));
                    // Of those that may not be sent twice.
                    let call = net::Call { lane, payload: payload.clone().into(), ..call(ECHO, b"x") };
                    let reply = peer.call(call).await.unwrap();
                    assert_eq!((&reply.body[..], reply.payload.len()), (&b"x"[..], len));
                    calls.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let go_on = async || {
        let before = calls.load(Ordering::SeqCst);
        until("calls go on", || calls.load(Ordering::SeqCst) > before + 50).await;
    };
    let late_peer = late.peer(&[addr]);
    late_peer.call(call(ECHO, b"late")).await.unwrap();
    go_on().await;
    assert!(server.of_other_authorities().is_empty());

    // It begins at either end, and each is understood by those that know nothing of it yet.
    server.set_identity(with(2, 1)).unwrap();
    until("all others are behind", || server.of_other_authorities().len() == 2).await;
    go_on().await;
    client.set_identity(with(2, 1)).unwrap();
    until("one is", || server.of_other_authorities().iter().map(|other| other.2.0).eq([3])).await;
    go_on().await;
    late_peer.call(call(ECHO, b"still")).await.unwrap();

    // It ends: who has taken part goes on, who has not is refused.
    server.set_identity(with(2, 0)).unwrap();
    go_on().await;
    client.set_identity(with(2, 0)).unwrap();
    go_on().await;
    until("the late one is out", || server.of_other_authorities().is_empty() && !late_peer.is_connected())
        .await;
    let hasty = || net::Call { patience: Some(Duration::from_millis(300)), ..call(ECHO, b"") };
    late_peer.call(hasty()).await.unwrap_err();
    // With its own certificate of the new one it is in again, though it believes the former one as well.
    late.set_identity(with(2, 1)).unwrap();
    late_peer.call(call(ECHO, b"again")).await.unwrap();
    over.store(true, Ordering::SeqCst);
    for caller in callers {
        caller.await.unwrap();
    }
}
