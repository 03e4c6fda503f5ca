//! Every kind of request and reply, changed at random: nothing panics, nothing allocates by what a length only claims, and what is
//! accepted is what would be sent.
#![allow(clippy::unwrap_used)] // helpers of tests

#[path = "../../../fuzz/decode.rs"]
mod decode;
#[path = "../../../fuzz/mutate.rs"]
mod mutate;
#[path = "../../../fuzz/watching.rs"]
mod watching;

use decode::decode_all;
use mutate::{Random, mutated};
use serde::de::DeserializeOwned;
use wire::{
    admin::{AdminReply, AdminRequest},
    hello::{Introduction, NetRequest, Welcome},
    map::ClusterMap,
    mgr::{MgrReply, MgrRequest},
    nsd::{NsdReply, NsdRequest},
};

/// Bytes that decode as a message, of every variant, found by trying: a new variant needs no line here.
fn samples<T: DeserializeOwned>(variants: usize) -> Vec<Vec<u8>> {
    let (mut random, mut found) = (Random(1), Vec::new());
    for variant in 0..=u8::MAX {
        let before = found.len();
        for attempt in 0..30_000 {
            // Mostly small numbers: lengths, bools, variants.
            let kinds = 2 + attempt % 7;
            let mut bytes = vec![variant];
            bytes.extend((0..400).map(|_| match random.below(kinds) {
                0 => random.next() as u8 & 0x7f,
                1 => 1 + random.below(3) as u8,
                _ => 0,
            }));
            if let Ok((_, rest)) = postcard::take_from_bytes::<T>(&bytes) {
                found.push(bytes[..bytes.len() - rest.len()].to_vec());
            }
            if found.len() == before + 6 {
                break;
            }
        }
        if found.len() == before {
            assert!(usize::from(variant) >= variants, "no sample of variant {variant}");
            break;
        }
    }
    found
}

#[test]
fn changed_messages_are_refused_or_mean_something() {
    let all = [
        samples::<MgrRequest>(51),
        samples::<MgrReply>(32),
        samples::<NsdRequest>(NsdRequest::NAMES.len()),
        samples::<NsdReply>(5),
        samples::<AdminRequest>(6),
        samples::<AdminReply>(2),
        samples::<NetRequest>(1),
        samples::<Welcome>(2),
        samples::<Introduction>(1),
        samples::<ClusterMap>(1),
    ];
    watching::forget();
    mutated(&all.concat(), 100_000, decode_all);
    watching::assert_little();
}
