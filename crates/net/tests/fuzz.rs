//! A seeded loop over the decoders of what comes from the network: valid conversations, changed at random, and
//! plain noise. Nothing panics, nothing allocates by what a length only claims. (`fuzz/run.sh` runs the same under a
//! coverage-guided fuzzer; its seeds are read here, and written with `ROPEWALK_UPDATE_SEEDS=1`.)

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;
#[path = "../../../fuzz/decode.rs"]
mod decode;
#[path = "../../../fuzz/mutate.rs"]
mod mutate;
#[path = "../../../fuzz/watching.rs"]
mod watching;

use common::*;
use decode::decode_all;
use mutate::{Random, mutated};
use net::Lane;
use wire::{
    frame::{self, FrameKind, Header},
    hello::{LinkCount, Links, NetRequest, Welcome},
};

/// Messages of each kind, and what the fuzzer was begun with.
fn samples() -> Vec<Vec<u8>> {
    let link = |name: &str| LinkCount { name: name.to_owned(), received: 1 << 40, sent: 7 };
    let mut samples = vec![
        frame::encode(&introduction(Lane::Bulk, 99)),
        frame::encode(&Welcome::Refused { reason: "no".to_owned() }),
        frame::encode(&NetRequest::Fetch(u64::MAX)),
        frame::encode(&Links { links: vec![link("eth0"), link("eth1")], bond: None, layer3_only: true }),
        frame(request(1), b"abc", b"payload"),
        frame(Header { kind: FrameKind::Drain, ..Header::default() }, b"", b""),
    ];
    let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/net_frame");
    if std::env::var_os("ROPEWALK_UPDATE_SEEDS").is_some() {
        for (i, sample) in samples.iter().enumerate() {
            std::fs::write(format!("{seeds}/sample{i}"), sample).unwrap();
        }
    }
    let files = std::fs::read_dir(seeds).unwrap().map(|file| std::fs::read(file.unwrap().path()).unwrap());
    samples.extend(files);
    samples
}

#[test]
fn decoders_survive_changed_and_random_bytes() {
    watching::forget();
    mutated(&samples(), 200_000, decode_all);
    let mut random = Random::seeded();
    let noise = |len: usize| (0..len).map(|_| random.next() as u8).collect();
    mutated(&(0..200).map(noise).collect::<Vec<_>>(), 200_000, decode_all);
    watching::assert_little();
}

#[tokio::test]
async fn a_server_survives_changed_conversations_and_allocates_by_what_has_come() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (server, addr) = server();
    let mut random = Random::seeded();
    let conversation = [
        frame(request(1), b"abc", &pattern(3000, 1)),
        frame(Header { once: true, settled: 2, ..request(2) }, b"x", b""),
        frame(Header { offered: 9000, ..request(3) }, b"y", b""),
        frame(Header { kind: FrameKind::Ping, ..Header::default() }, b"", b""),
    ];
    for _ in 0..300 {
        let mut stream = tokio::net::TcpStream::connect(addr).await.unwrap();
        // The introduction, or a frame after it.
        let spoiled = random.below(2 * conversation.len());
        if spoiled >= conversation.len() {
            let mut tls = before_introduction(&identity(), &mut stream).await.unwrap();
            let mut said = step(FrameKind::Introduction, &introduction(Lane::Bulk, 99));
            random.mutate(&mut said);
            let _ = tls.send(&mut stream, &said).await;
        } else {
            shake_hands(&mut stream, Lane::Bulk, 99).await.unwrap();
        }
        let mut bytes = Vec::new();
        for (i, f) in conversation.iter().enumerate() {
            let mut f = f.clone();
            if i == spoiled {
                random.mutate(&mut f);
            }
            bytes.extend_from_slice(&f);
        }
        let _ = stream.write_all(&bytes).await;
        let _ = stream.shutdown().await;
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(SOON, stream.read_to_end(&mut rest)).await;
        let _ = closed.expect("the server closes");
    }
    // A header that claims the longest body, and no body: memory follows the bytes that come.
    watching::forget();
    let mut stream = tokio::net::TcpStream::connect(addr).await.unwrap();
    shake_hands(&mut stream, Lane::Control, 99).await.unwrap();
    let lying = Header { body_len: frame::BODY_LEN_MAX, ..request(1) };
    stream.write_all(&lying.encode()).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    watching::assert_little();
    drop(stream);
    let client = net::Endpoint::start(config(2)).unwrap();
    client.peer(&[addr]).call(call(ECHO, b"well?")).await.unwrap();
    let quiet = async {
        while !server.serving().is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, quiet).await.expect("nothing is left over");
}
