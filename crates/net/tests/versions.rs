//! Builds of several versions meet: they speak the greatest that both know, or part and say why.
#![allow(clippy::unwrap_used)] // tests

mod common;

use std::time::Duration;

use common::*;
use net::{CallError, Endpoint, EndpointConfig};
use wire::version::Build;

fn of(protocol: u16, name: &str, config: EndpointConfig) -> EndpointConfig {
    EndpointConfig { build: Build::with(protocol, 1), name: name.to_owned(), ..config }
}

fn versions(endpoint: &Endpoint) -> Vec<u16> {
    let peers = endpoint.status();
    peers.iter().flat_map(|peer| &peer.connections).map(|connection| connection.version).collect()
}

#[tokio::test]
async fn two_builds_speak_the_greatest_version_that_both_know() {
    for (connecting, accepting, spoken) in [(9, 9, 9), (9, 10, 9), (10, 9, 9), (10, 10, 10), (10, 11, 10)] {
        // In the clear and encrypted.
        for config in [plain(2), config(2)] {
            let (server, addr) = server_with(of(accepting, "there", listening(1)));
            let client = Endpoint::start(of(connecting, "here", config)).unwrap();
            let reply = client
                .peer(&[addr])
                .call(bulk(ECHO, b"hello", bytes::Bytes::from(pattern(100_000, 3))))
                .await
                .unwrap();
            assert_eq!((reply.header.version, &reply.body[..]), (spoken, &b"hello"[..]));
            assert_eq!(reply.payload.into_bytes(), pattern(100_000, 3));
            for endpoint in [&client, &server] {
                let versions = versions(endpoint);
                assert!(!versions.is_empty() && versions.iter().all(|&v| v == spoken), "{versions:?}");
            }
            // The other way round, on the same connections.
            client.serve(net::Service::Callback, lab());
            assert!(client.peer(&[addr]).call(call(CALL_BACK, b"")).await.is_ok());
        }
    }
}

#[tokio::test]
async fn a_message_goes_to_no_peer_that_is_too_old_for_it() {
    let client = Endpoint::start(of(10, "here", plain(2))).unwrap();
    let new = || net::Call { since: 10, ..call(ECHO, b"new") };
    let (_server, addr) = server_with(of(10, "there", listening(1)));
    assert!(client.peer(&[addr]).call(new()).await.is_ok());
    let (_server, addr) = server_with(of(9, "there", listening(1)));
    let error = client.peer(&[addr]).call(new()).await.unwrap_err();
    assert!(
        matches!(error, CallError::TooOld { speaks: 9, since: 10, .. }) && error.not_executed(),
        "{error}"
    );
    // The older message does, as often as the newer one was refused before: that has taken none of the connection's room.
    for _ in 0..600 {
        assert!(matches!(client.peer(&[addr]).call(new()).await, Err(CallError::TooOld { .. })));
    }
    assert!(client.peer(&[addr]).call(call(ECHO, b"old")).await.is_ok());
}

#[tokio::test]
async fn without_a_common_version_both_sides_name_the_other_and_the_remedy() {
    for (connecting, accepting, here, there) in [
        (9, 11, "n1 is too new; install a ropewalk here that speaks version 10", "n2 is too old"),
        (11, 9, "n1 is too old; install a ropewalk there that speaks version 10", "n2 is too new"),
    ] {
        let seen = base::events::events().after(0).last().map_or(0, |event| event.number);
        let (server, addr) = server_with(of(accepting, "n1", listening(1)));
        let client = Endpoint::start(of(connecting, "n2", config(2))).unwrap();
        let error = client.peer(&[addr]).call(call(ECHO, b"")).await.unwrap_err();
        assert!(matches!(&error, CallError::Refused(reason) if reason.contains(here)), "{error}");
        // Both are of this process, and so is the list of events.
        let told = async {
            loop {
                let events = base::events::events().after(seen);
                let told =
                    |text: &str| events.iter().any(|e| e.name == "net_refused" && e.text.contains(text));
                if told(here) && told(there) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(SOON, told).await.expect("both sides tell it as an event");
        assert!(versions(&server).is_empty());
    }
}
