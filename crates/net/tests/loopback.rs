//! Calls between two endpoints over loopback.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use base::{
    AlignedBuf,
    start::{is_thread_lent, lend_thread},
};
use bytes::Bytes;
use common::*;
use net::{
    Call, CallError, CallState, Endpoint, EndpointConfig, Lane, NetError, Payload, Response, Service, Status,
    Window, handler_fn,
};
use tokio::{sync::oneshot, time::timeout};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_calls_at_once_each_get_their_own_reply() {
    let (_server, addr) = server();
    let client = Endpoint::start(config(2)).unwrap();
    let peer = client.peer(&[addr]);
    let calls: Vec<_> = (0..600u32)
        .map(|i| {
            let peer = peer.clone();
            tokio::spawn(async move {
                let lane = if i % 3 == 0 { Lane::Bulk } else { Lane::Control };
                let payload = pattern((i as usize % 7) * 1000, i as u8);
                let call = Call { lane, ..bulk(ECHO, &i.to_le_bytes(), Bytes::from(payload.clone())) };
                let reply = peer.call(call).await.unwrap();
                assert_eq!(&reply.body[..], i.to_le_bytes());
                assert_eq!(reply.payload.into_bytes(), payload);
            })
        })
        .collect();
    for call in calls {
        timeout(SOON, call).await.unwrap().unwrap();
    }
    assert!(client.waiters().is_empty());
    assert_eq!(peer.identity().map(|(node, _)| node), Some(base::NodeId(1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payloads_go_straight_into_their_pages() {
    let (server, addr) = server();
    let client = Endpoint::start(config(2)).unwrap();
    let peer = client.peer(&[addr]);
    let lengths = [1, 4096, 1 << 20, (16 << 20) - 5, 16 << 20];
    for len in lengths {
        // Pages of odd sizes, together a little more than the payload.
        let (mut pages, mut room) = (Vec::new(), 0);
        while room <= len {
            pages.push(AlignedBuf::zeroed(4096 * (1 + pages.len() % 37)));
            room += pages[pages.len() - 1].len();
        }
        let call =
            Call { into: Some(Box::new(pages)), ..bulk(SOURCE, &(len as u32).to_le_bytes(), Payload::new()) };
        let reply = timeout(SOON, peer.call(call)).await.unwrap().unwrap();
        let (pages, received) = reply.payload.downcast::<Vec<AlignedBuf>>().unwrap();
        assert_eq!(received, len);
        let flat: Vec<u8> = pages.iter().flat_map(|p| p.iter().copied()).collect();
        assert!(flat[..len] == pattern(len, 1) && flat[len..].iter().all(|&b| b == 0) && flat.len() == room);
        // And the other way: one aligned buffer at the server.
        let sent = pattern(len, 3);
        let reply = peer.call(bulk(SINK, &[], Bytes::from(sent.clone()))).await.unwrap();
        assert_eq!(&reply.body[..], wire::crc::crc32c(&sent).to_le_bytes());
    }
    let copied = |e: &Endpoint| -> (u64, u64) {
        let conns = e.status().into_iter().flat_map(|p| p.connections);
        conns.fold((0, 0), |(d, c), conn| (d + conn.payload_direct, c + conn.payload_copied))
    };
    for end in [&client, &server] {
        let (direct, copied) = copied(end);
        assert_eq!((direct, copied), (lengths.iter().sum::<usize>() as u64, 0));
    }
}

/// Heartbeats are no small requests, behind which frames are read ahead: after a rest a payload goes straight into its place as before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payloads_go_straight_into_their_pages_after_a_rest() {
    let often = |config| {
        let (heartbeat_interval, heartbeat_timeout) = (Duration::from_millis(10), SOON);
        EndpointConfig { heartbeat_interval, heartbeat_timeout, ..config }
    };
    let (server, addr) = server_with(often(listening(1)));
    let client = Endpoint::start(often(plain(2))).unwrap();
    let peer = client.peer(&[addr]);
    peer.call(bulk(SINK, &[], Bytes::from(vec![1; 1 << 20]))).await.unwrap();
    let all = || server.status().into_iter().flat_map(|p| p.connections);
    let before: Vec<_> = all().map(|c| (c.remote, c.frames_received)).collect();
    let rested = async {
        let since = |c: &net::ConnStatus| before.iter().find(|b| b.0 == c.remote).map_or(0, |b| b.1);
        while all().any(|c| c.frames_received < since(&c) + 20) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(2 * SOON, rested).await.unwrap();
    peer.call(bulk(SINK, &[], Bytes::from(vec![2; 1 << 20]))).await.unwrap();
    assert_eq!(all().map(|c| c.payload_copied).sum::<u64>(), 0);
}

/// A destination that keeps the address of its memory.
struct Page(Box<[u8]>, usize);

impl net::ReceiveInto for Page {
    fn room(&self) -> usize {
        self.0.len()
    }
    fn slices<'a>(&'a mut self, offset: usize, out: &mut Vec<&'a mut [u8]>) {
        out.push(&mut self.0[offset..]);
    }
}

#[tokio::test]
async fn a_reply_is_in_the_memory_that_the_caller_gave() {
    let (server, addr) = server();
    let client = Endpoint::start(config(2)).unwrap();
    let memory = vec![0u8; 1 << 20].into_boxed_slice();
    let address = memory.as_ptr() as usize;
    let call = Call {
        into: Some(Box::new(Page(memory, address))),
        ..bulk(SOURCE, &(1u32 << 20).to_le_bytes(), Payload::new())
    };
    let reply = client.peer(&[addr]).call(call).await.unwrap();
    let (page, len) = reply.payload.downcast::<Page>().unwrap();
    assert_eq!((page.0.as_ptr() as usize, len), (page.1, 1 << 20));
    assert!(page.0[..] == pattern(1 << 20, 1));
    // And the server passes a request's buffer on as it was received.
    server.serve(
        Service::Lab,
        handler_fn(|r| async move {
            let address = r.payload.as_ptr() as usize;
            let kept = Payload::from(r.payload.clone());
            let same = kept.parts()[0].as_ptr() as usize == address && address.is_multiple_of(4096);
            Response::with_payload(vec![u8::from(same)], kept)
        }),
    );
    let reply = client.peer(&[addr]).call(bulk(ECHO, b"", Bytes::from(vec![3; 70_000]))).await.unwrap();
    assert_eq!(&reply.body[..], [1]);
    let direct = |e: &Endpoint| e.status()[0].connections.iter().map(|c| c.payload_copied).sum::<u64>();
    assert_eq!((direct(&client), direct(&server)), (0, 0));
}

#[tokio::test]
async fn a_received_payload_is_one_aligned_buffer() {
    let (server, addr) = server();
    server.serve(
        Service::Lab,
        handler_fn(|r| async move {
            Response::ok(vec![u8::from((r.payload.as_ptr() as usize).is_multiple_of(4096))])
        }),
    );
    let client = Endpoint::start(config(2)).unwrap();
    let parts: Payload = (0..300).map(|i| Bytes::from(pattern(1000 + i, i as u8))).collect();
    let reply = client.peer(&[addr]).call(bulk(ECHO, b"x", parts)).await.unwrap();
    assert_eq!(&reply.body[..], [1]);
}

/// A service that tells the CRCs it was given, and sends the payload back.
struct Sums(bool);

impl net::Handler for Sums {
    fn handle(&self, r: net::Request) -> net::BoxFuture<'static, Response> {
        let sums = r.unit_crcs.iter().flat_map(|crc| crc.to_le_bytes()).collect();
        Box::pin(std::future::ready(Response::with_payload(sums, Payload::from(r.payload.clone()))))
    }

    fn wants_unit_crcs(&self) -> bool {
        self.0
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crcs_are_of_each_whole_unit_as_it_came_if_they_are_wanted() {
    for (there, here) in [(true, true), (true, false), (false, true)] {
        let (server, addr) = server();
        server.serve(Service::Lab, Arc::new(Sums(there)));
        let client = Endpoint::start(config(2)).unwrap();
        let peer = client.peer(&[addr]);
        for len in [0, 1, 4095, 4096, 4097, 300 << 10, (4 << 20) + 4096, 16 << 20] {
            let payload = pattern(len, len as u8);
            let sums: Vec<u32> = payload.chunks_exact(4096).map(wire::crc::crc32c).collect();
            let call = Call { unit_crcs: here, ..bulk(ECHO, b"", Bytes::from(payload.clone())) };
            let reply = peer.call(call).await.unwrap();
            let told: Vec<u8> = sums.iter().flat_map(|crc| crc.to_le_bytes()).collect();
            assert_eq!(&reply.body[..], if there { &told[..] } else { &[] }, "{len}");
            assert_eq!(reply.unit_crcs, if here { &sums[..] } else { &[] }, "{len}");
            assert!(reply.payload.into_bytes() == payload, "{len}");
        }
    }
}

#[tokio::test]
async fn a_reply_too_long_for_its_destination_fails_that_call_only() {
    let (_server, addr) = server();
    let client = Endpoint::start(config(2)).unwrap();
    let peer = client.peer(&[addr]);
    let call = |room: usize| Call {
        into: Some(Box::new(vec![0u8; room])),
        ..bulk(SOURCE, &5000u32.to_le_bytes(), Payload::new())
    };
    let error = peer.call(call(4999)).await.unwrap_err();
    assert!(matches!(error, CallError::PayloadTooLong { len: 5000, room: 4999 }), "{error}");
    assert_eq!(peer.call(call(5000)).await.unwrap().payload.len(), 5000);
}

#[tokio::test]
async fn both_sides_call_over_the_same_connections() {
    let (server, addr) = server();
    let client = Endpoint::start(config(2)).unwrap();
    client.serve(
        Service::Callback,
        handler_fn(|r| async move { Response::ok([&r.body[..], b", heard"].concat()) }),
    );
    let peer = client.peer(&[addr]);
    let reply = peer.call(call(CALL_BACK, b"")).await.unwrap();
    assert_eq!(&reply.body[..], b"from the server, heard");
    // And unasked, by process number.
    let back = server.peer_by_process(base::NodeId(2), client.process()).unwrap();
    let reply = back.call(Call::new(Service::Callback, 1, b"again".to_vec(), Instant::now() + SOON)).await;
    assert_eq!(&reply.unwrap().body[..], b"again, heard");
    assert!(server.peer_by_process(base::NodeId(3), client.process()).is_none());
}

#[tokio::test]
async fn statuses_and_panics_are_answers() {
    let (_server, addr) = server_with(EndpointConfig { role: net::Role::Manager, ..listening(1) });
    let client = Endpoint::start(config(2)).unwrap();
    let peer = client.peer(&[addr]);
    let status = |e: CallError| match e {
        CallError::Status { status, .. } => status,
        e => panic!("{e}"),
    };
    let missing = Call::new(Service::Manager, 1, vec![], Instant::now() + SOON);
    assert_eq!(status(peer.call(missing).await.unwrap_err()), Status::NoService);
    assert_eq!(status(peer.call(call(200, b"")).await.unwrap_err()), Status::BadRequest);
    assert_eq!(status(peer.call(call(PANIC, b"")).await.unwrap_err()), Status::Internal);
    assert_eq!(&peer.call(call(ECHO, b"alive")).await.unwrap().body[..], b"alive");
    let long = Call { payload: vec![Bytes::from(vec![0; 9 << 20]); 2].into(), ..call(ECHO, b"") };
    assert!(matches!(peer.call(long).await.unwrap_err(), CallError::Frame(_)));
}

#[tokio::test]
async fn a_call_that_is_given_up_is_cancelled_at_the_peer_and_its_room_comes_back() {
    let window = Window { requests: 2, bytes: 1 << 20 };
    let (server, addr) = server_with(EndpointConfig { window, ..listening(1) });
    let client = Endpoint::start(config(2)).unwrap();
    let peer = client.peer(&[addr]);
    let stuck = |ms| Call { deadline: Instant::now() + Duration::from_millis(ms), ..call(NEVER, b"") };
    // Two fill the window; they end by their deadlines, the cancels end the handlers.
    let (a, b) = tokio::join!(peer.call(stuck(100)), peer.call(stuck(100)));
    assert!(matches!((a, b), (Err(CallError::Deadline), Err(CallError::Deadline))));
    assert_eq!(&timeout(SOON, peer.call(call(ECHO, b"next"))).await.unwrap().unwrap().body[..], b"next");
    let ended = async {
        while !server.serving().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, ended).await.expect("the handlers end");
    // A dropped future is the same.
    let mut waiting = Box::pin(peer.call(stuck(60_000)));
    let reached = async {
        while server.serving().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        _ = &mut waiting => panic!("it never ends"),
        reached = timeout(SOON, reached) => reached.expect("it is at the server"),
    }
    let waiters = client.waiters();
    assert_eq!(waiters.iter().map(|w| (w.op, w.state)).collect::<Vec<_>>(), [(NEVER, CallState::Reply)]);
    assert_eq!(server.serving().len(), 1);
    drop(waiting);
    peer.call(call(ECHO, b"behind the cancel")).await.unwrap();
    timeout(SOON, async {
        while !(server.serving().is_empty() && client.waiters().is_empty()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("the cancelled request ends at both sides");
}

#[tokio::test]
async fn the_window_bounds_what_is_under_way() {
    let window = Window { requests: 4, bytes: 1 << 20 };
    let (server, addr) = server_with(EndpointConfig { window, ..listening(1) });
    let most = Arc::new(AtomicUsize::new(0));
    let now = Arc::new(AtomicUsize::new(0));
    let (m, n) = (Arc::clone(&most), Arc::clone(&now));
    server.serve(
        Service::Lab,
        handler_fn(move |_| {
            let (m, n) = (Arc::clone(&m), Arc::clone(&n));
            async move {
                m.fetch_max(n.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(2)).await;
                n.fetch_sub(1, Ordering::SeqCst);
                Response::ok(vec![])
            }
        }),
    );
    let client = Endpoint::start(config(2)).unwrap();
    let peer = client.peer(&[addr]);
    let calls: Vec<_> = (0..100)
        .map(|_| {
            let peer = peer.clone();
            tokio::spawn(async move { peer.call(call(ECHO, b"")).await.map(|_| ()) })
        })
        .collect();
    for call in calls {
        timeout(SOON, call).await.unwrap().unwrap().unwrap();
    }
    assert_eq!(most.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn patience_is_for_a_missing_connection_and_not_for_missing_room() {
    let window = Window { requests: 1, bytes: 1 << 20 };
    let (server, addr) = server_with(EndpointConfig { window, ..listening(1) });
    server.serve(
        Service::Lab,
        handler_fn(|_| async move {
            tokio::time::sleep(Duration::from_millis(150)).await;
            Response::ok(vec![])
        }),
    );
    let client = Endpoint::start(config(2)).unwrap();
    let peer = client.peer(&[addr]);
    peer.call(call(ECHO, b"")).await.unwrap();
    // The last of them waits ten times as long as its patience for room on the one connection, which is made.
    let calls: Vec<_> = (0..5)
        .map(|_| {
            let (peer, patience) = (peer.clone(), Some(Duration::from_millis(60)));
            tokio::spawn(async move { peer.call(Call { patience, ..call(ECHO, b"") }).await })
        })
        .collect();
    for call in calls {
        timeout(SOON, call).await.unwrap().unwrap().unwrap();
    }
    // When the connection is gone and none can be made, patience begins with the loss, and ends the call long before its
    // deadline.
    server.shutdown();
    let patience = Some(Duration::from_millis(60));
    let error =
        timeout(SOON / 2, peer.call(Call { patience, ..call(ECHO, b"") })).await.unwrap().unwrap_err();
    assert!(matches!(error, CallError::Disconnected { .. }), "{error}");
}

#[tokio::test]
async fn requests_beyond_the_shared_memory_are_tried_again_until_they_fit() {
    let (server, addr) = server_with(EndpointConfig { inbound_bytes_max: 24 << 20, ..listening(1) });
    server.serve(
        Service::Lab,
        handler_fn(|r| async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Response::ok(r.payload.len().to_le_bytes().to_vec())
        }),
    );
    let client = Endpoint::start(config(2)).unwrap();
    let peer = client.peer(&[addr]);
    let payload = Bytes::from(vec![7; 5 << 20]);
    let calls: Vec<_> = (0..24)
        .map(|_| {
            let (peer, payload) = (peer.clone(), payload.clone());
            tokio::spawn(async move { peer.call(bulk(SINK, &[], payload)).await })
        })
        .collect();
    for call in calls {
        let reply = timeout(SOON, call).await.unwrap().unwrap().unwrap();
        assert_eq!(&reply.body[..], (5usize << 20).to_le_bytes());
    }
}

#[tokio::test]
async fn a_taken_port_is_named_with_a_remedy() {
    let (_server, addr) = server();
    let error = Endpoint::start(EndpointConfig { listen: vec![addr], ..config(2) }).err().unwrap();
    let text = error.to_string();
    assert!(matches!(error, NetError::PortTaken { .. }) && text.contains(&addr.to_string()), "{text}");
    let error = Endpoint::start(EndpointConfig { conns_max: 17, ..config(2) }).err().unwrap();
    assert!(error.to_string().contains("conns_max is 17"), "{error}");
}

#[tokio::test]
async fn bulk_connections_are_the_lower_of_both_sides() {
    let (_server, addr) = server_with(EndpointConfig { conns_max: 3, ..listening(1) });
    let client = Endpoint::start(EndpointConfig { conns_max: 8, ..config(2) }).unwrap();
    let peer = client.peer(&[addr]);
    peer.call(bulk(ECHO, b"", Payload::new())).await.unwrap();
    timeout(SOON, async {
        while client.status()[0].connections.len() < 4 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
    let status = &client.status()[0];
    assert_eq!(status.conns_wanted, 3);
    assert_eq!(status.connections.iter().filter(|c| c.lane == Lane::Control).count(), 1);
    assert!(status.connections.iter().all(|c| c.tcp.is_some() == (c.transport == "tcp")));
}

/// It saves waking another thread for the answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_goes_on_where_it_is_woken_if_that_thread_is_lent() {
    let (waiting, waits) = std::sync::mpsc::channel::<oneshot::Sender<()>>();
    let server = Endpoint::start(listening(1)).unwrap();
    let handler = handler_fn(move |request| {
        let waiting = waiting.clone();
        async move {
            if request.header.op != ECHO {
                let (wake, woken) = oneshot::channel();
                waiting.send(wake).unwrap();
                woken.await.unwrap();
            }
            assert!(request.header.op != PANIC, "as asked");
            drop(tokio::spawn(async {})); // It has its runtime there.
            Response::ok(vec![is_thread_lent().into()])
        }
    });
    server.serve(Service::Lab, handler);
    let client = Endpoint::start(config(2)).unwrap();
    let peer = client.peer(&[server.local_addrs()[0]]);
    for (op, lent) in [(NEVER, true), (NEVER, false), (PANIC, true), (NEVER, true)] {
        let (asking, asked) = (peer.clone(), call(op, b""));
        let asked = tokio::spawn(async move { asking.call(asked).await });
        let wake = tokio::task::block_in_place(|| waits.recv_timeout(SOON)).unwrap();
        // The receiver has gone on from the first, which therefore waits.
        assert_eq!(peer.call(call(ECHO, b"")).await.unwrap().body[..], [0]);
        let send = move || wake.send(()).unwrap();
        std::thread::spawn(move || if lent { lend_thread(send) } else { send() }).join().unwrap();
        match timeout(SOON, asked).await.unwrap().unwrap() {
            Ok(reply) => assert_eq!((op, reply.body[..].to_vec()), (NEVER, vec![lent.into()])),
            Err(CallError::Status { status, .. }) => assert_eq!((op, status), (PANIC, Status::Internal)),
            Err(error) => panic!("{error}"),
        }
    }
}
