//! Messages of every kind, found by trying.

use serde::de::DeserializeOwned;

use crate::mutate::Random;

/// Bytes that decode as a message, of every variant, found by trying: a new variant needs no line here.
pub fn samples<T: DeserializeOwned>(variants: usize) -> Vec<Vec<u8>> {
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
