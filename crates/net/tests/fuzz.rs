//! A seeded loop over the decoders of what comes from the network: valid conversations, changed at random, and
//! plain noise. Nothing panics, nothing allocates by what a length only claims. (`fuzz/run.sh` runs the same under a
//! coverage-guided fuzzer; its seeds are read here, and written with `ROPEWALK_UPDATE_SEEDS=1`.)

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;
#[path = "../../../fuzz/decode.rs"]
mod decode;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};

use common::*;
use decode::decode_all;
use net::Lane;
use wire::{
    auth::Proven,
    frame::{self, FrameKind, HEADER_LEN, Header},
    hello::{HelloReply, LinkCount, Links, NetRequest},
};

/// Notes the largest allocation.
struct Watching;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Watching = Watching;

#[allow(unsafe_code)]
// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
    /// Changes a few bytes; sometimes writes a length of all ones, cuts or repeats.
    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len());
            match self.below(6) {
                0 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
                1 if !bytes.is_empty() => bytes[at] = self.next() as u8,
                2 => bytes.iter_mut().skip(at).take(10).for_each(|b| *b = 0xff),
                3 => bytes.truncate(at),
                4 => bytes.extend_from_within(at..),
                _ => bytes.insert(at, self.next() as u8),
            }
        }
    }
}

/// Messages of each kind, and what the fuzzer was begun with.
fn samples() -> Vec<Vec<u8>> {
    let link = |name: &str| LinkCount { name: name.to_owned(), received: 1 << 40, sent: 7 };
    let mut samples = vec![
        hello()[HEADER_LEN..].to_vec(),
        frame::encode(&introduction(Lane::Bulk, 99)),
        frame::encode(&Proven { said: vec![1, 2, 3], proof: [4; 32] }),
        frame::encode(&HelloReply::Refused { reason: "no".to_owned() }),
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
fn decoders_survive_whatever_comes() {
    let seed = std::env::var("ROPEWALK_TEST_SEED").ok().and_then(|s| s.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    println!("seed {seed}: ROPEWALK_TEST_SEED={seed} repeats it");
    let rounds = std::env::var("ROPEWALK_FUZZ_ROUNDS").ok().and_then(|s| s.parse().ok()).unwrap_or(200_000);
    let samples = samples();
    samples.iter().for_each(|sample| decode_all(sample));
    let mut random = Random(seed);
    LARGEST.store(0, Ordering::Relaxed);
    for round in 0..rounds {
        let mut bytes = samples[round % samples.len()].clone();
        random.mutate(&mut bytes);
        decode_all(&bytes);
        let noise: Vec<u8> = (0..random.below(200)).map(|_| random.next() as u8).collect();
        decode_all(&noise);
    }
    // serde reserves at most a megabyte ahead of what is there.
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(largest <= 2 << 20, "an allocation of {largest} bytes");
}

#[tokio::test]
async fn a_server_survives_changed_conversations_and_allocates_by_what_has_come() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (server, addr) = server();
    let mut random = Random(u64::from(std::process::id()));
    let conversation = [
        frame(request(1), b"abc", &pattern(3000, 1)),
        frame(Header { once: true, settled: 2, ..request(2) }, b"x", b""),
        frame(Header { offered: 9000, ..request(3) }, b"y", b""),
        frame(Header { kind: FrameKind::Ping, ..Header::default() }, b"", b""),
    ];
    for _ in 0..300 {
        let mut stream = tokio::net::TcpStream::connect(addr).await.unwrap();
        let (mut introduction, _) = challenged(&mut stream, &introduction(Lane::Bulk, 99)).await.unwrap();
        // The introduction, or a frame after it.
        let spoiled = random.below(2 * conversation.len());
        if spoiled >= conversation.len() {
            random.mutate(&mut introduction);
        }
        let mut bytes = introduction;
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
    LARGEST.store(0, Ordering::Relaxed);
    let mut stream = tokio::net::TcpStream::connect(addr).await.unwrap();
    shake_hands(&mut stream, Lane::Control, 99).await.unwrap();
    let lying = Header { body_len: frame::BODY_LEN_MAX, ..request(1) };
    stream.write_all(&lying.encode()).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(largest <= 2 << 20, "an allocation of {largest} bytes");
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
