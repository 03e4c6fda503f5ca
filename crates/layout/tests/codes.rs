//! The codes against ISA-L's frozen output, against arithmetic written out in the field, and against
//! every loss they promise to survive.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

use base::{StripIndex, StripSet};
use layout::{Code, Codec};
use proptest::prelude::*;

const GOLDEN: &str = include_str!("isal/golden.txt");

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The generator of oracle.c.
fn isal_input(k: usize, len: usize) -> Vec<Vec<u8>> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        (state >> 24) as u8
    };
    (0..k).map(|_| (0..len).map(|_| next()).collect()).collect()
}

fn encode(codec: &Codec, data: &[Vec<u8>], len: usize) -> Vec<Vec<u8>> {
    let views: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut parity = vec![vec![0xee; len]; codec.code().parity().into()];
    let mut out: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    codec.encode(&views, &mut out);
    parity
}

/// Multiplication in GF(2^8) with polynomial 0x11d, bit by bit.
fn multiply(a: u8, b: u8) -> u8 {
    let (mut a, mut product) = (u16::from(a), 0u16);
    for bit in 0..8 {
        if b & (1 << bit) != 0 {
            product ^= a;
        }
        a <<= 1;
        if a & 0x100 != 0 {
            a ^= 0x11d;
        }
    }
    product as u8
}

fn inverse(a: u8) -> u8 {
    (1..=255).find(|&b| multiply(a, b) == 1).unwrap()
}

#[test]
fn matrix_and_parity_are_those_of_isal() {
    let mut ours = String::new();
    for code in Code::ALL.into_iter().filter(|code| !code.is_replicated()) {
        let codec = Codec::new(code);
        ours += &format!("{code} matrix {}\n", hex(&codec.parity_matrix()));
        for strip in encode(&codec, &isal_input(code.data().into(), 61), 61) {
            ours += &format!("{code} parity {}\n", hex(&strip));
        }
    }
    assert_eq!(ours, GOLDEN);
}

/// Where ISA-L is installed, the frozen file is still what it makes.
#[test]
fn frozen_vectors_are_what_the_installed_isal_makes() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/isal/check");
    let output = std::process::Command::new("sh").arg(script).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(77) => println!("{said}"),
        status => assert_eq!(status, Some(0), "{}{said}", String::from_utf8_lossy(&output.stdout)),
    }
}

#[test]
fn matrix_is_cauchy_in_the_field_0x11d() {
    for code in Code::ALL.into_iter().filter(|code| !code.is_replicated()) {
        let (k, m) = (code.data(), code.parity());
        let expected: Vec<u8> = (k..k + m).flat_map(|i| (0..k).map(move |j| inverse(i ^ j))).collect();
        assert_eq!(Codec::new(code).parity_matrix(), expected, "{code}");
    }
}

#[test]
fn every_loss_of_up_to_m_strips_is_recovered() {
    for code in Code::ALL {
        let (width, codec) = (code.width(), Codec::new(code));
        for len in [1, 31, 64, 4096 + 13] {
            let data = isal_input(code.data().into(), len);
            let stripe: Vec<Vec<u8>> = data.iter().cloned().chain(encode(&codec, &data, len)).collect();
            for lost in 0u32..1 << width {
                let lost = StripSet(lost);
                // All losses at one length, the largest ones at the others.
                if lost.count() > u32::from(code.parity())
                    || (len > 1 && lost.count() < u32::from(code.parity()))
                {
                    continue;
                }
                let present: Vec<Option<&[u8]>> = (0..width)
                    .map(|i| (!lost.contains(StripIndex(i))).then(|| stripe[usize::from(i)].as_slice()))
                    .collect();
                let wanted: Vec<StripIndex> = lost.iter().collect();
                let mut got = vec![vec![0u8; len]; wanted.len()];
                let mut out: Vec<&mut [u8]> = got.iter_mut().map(Vec::as_mut_slice).collect();
                codec.reconstruct(&present, &wanted, &mut out).unwrap();
                for (i, got) in wanted.iter().zip(&got) {
                    assert!(*got == stripe[usize::from(i.0)], "{code} length {len} lost {lost:?} {i}");
                }
            }
        }
    }
}

#[test]
fn one_loss_more_is_an_error() {
    for code in Code::ALL {
        let strip = [7u8; 16];
        let have = usize::from(code.data()) - 1;
        let present: Vec<Option<&[u8]>> =
            (0..usize::from(code.width())).map(|i| (i < have).then_some(&strip[..])).collect();
        let mut out = [0u8; 16];
        let error = Codec::new(code).reconstruct(&present, &[StripIndex(0)], &mut [&mut out]).unwrap_err();
        assert_eq!((error.have, error.need), (have as u32, u32::from(code.data())));
        assert!(error.to_string().contains(&code.to_string()));
    }
}

fn any_code() -> impl Strategy<Value = Code> {
    proptest::sample::select(Code::ALL.to_vec())
}

fn strips(code: Code, lens: &[usize], seed: u64) -> Vec<Vec<u8>> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..usize::from(code.data())).map(|i| (0..lens[i]).map(|_| next()).collect()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Parity byte by byte is the matrix times the data, also where data strips are short.
    #[test]
    fn encode_is_the_matrix_product(
        code in any_code(), len in 1usize..400, cuts in proptest::collection::vec(0usize..400, 16), seed: u64,
    ) {
        let lens: Vec<usize> = cuts.iter().map(|c| (*c).min(len)).collect();
        let data = strips(code, &lens, seed);
        let codec = Codec::new(code);
        let (matrix, k) = (codec.parity_matrix(), usize::from(code.data()));
        for (row, parity) in encode(&codec, &data, len).iter().enumerate() {
            for (at, &byte) in parity.iter().enumerate() {
                let sum = (0..k).fold(0, |sum, j| {
                    sum ^ multiply(matrix[row * k + j], data[j].get(at).copied().unwrap_or(0))
                });
                prop_assert_eq!(byte, sum, "{} row {} byte {}", code, row, at);
            }
        }
    }

    /// A delta into parity gives what encoding the new data gives.
    #[test]
    fn update_equals_a_new_encode(
        code in any_code(), len in 1usize..5000, which: u8, offset in 0usize..5000, n in 1usize..5000, seed: u64,
    ) {
        let codec = Codec::new(code);
        let mut data = strips(code, &[len; 16], seed);
        let mut parity = encode(&codec, &data, len);
        let index = usize::from(which % code.data());
        let (start, end) = (offset % len, (offset % len + n).min(len));
        let new = strips(code, &[end - start; 16], !seed).remove(0);
        let delta: Vec<u8> = new.iter().zip(&data[index][start..end]).map(|(a, b)| a ^ b).collect();
        let mut ranges: Vec<&mut [u8]> = parity.iter_mut().map(|p| &mut p[start..end]).collect();
        codec.update(StripIndex(index as u8), &delta, &mut ranges);
        data[index][start..end].copy_from_slice(&new);
        let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let parity: Vec<&[u8]> = parity.iter().map(Vec::as_slice).collect();
        prop_assert!(codec.verify(&data, &parity));
    }

    /// Short data strips, present or lost, across the size in which absent ends are filled in.
    #[test]
    fn short_strips_come_back_with_zeros(
        code in any_code(), len in 1usize..200_000, cuts in proptest::collection::vec(0usize..200_000, 16),
        losses in proptest::collection::vec(0u8..19, 3), seed: u64,
    ) {
        let lens: Vec<usize> = cuts.iter().map(|c| (*c).min(len)).collect();
        let codec = Codec::new(code);
        let data = strips(code, &lens, seed);
        let stripe: Vec<Vec<u8>> = data.iter().cloned().chain(encode(&codec, &data, len)).collect();
        let lost: StripSet = losses.iter().take(code.parity().into()).map(|i| StripIndex(i % code.width())).collect();
        let present: Vec<Option<&[u8]>> = (0..code.width())
            .map(|i| (!lost.contains(StripIndex(i))).then(|| stripe[usize::from(i)].as_slice()))
            .collect();
        let wanted: Vec<StripIndex> = lost.iter().collect();
        let mut got = vec![vec![0xaau8; len]; wanted.len()];
        let mut out: Vec<&mut [u8]> = got.iter_mut().map(Vec::as_mut_slice).collect();
        codec.reconstruct(&present, &wanted, &mut out).unwrap();
        for (i, mut got) in wanted.iter().zip(got) {
            let tail = got.split_off(stripe[usize::from(i.0)].len());
            prop_assert!(got == stripe[usize::from(i.0)] && tail.iter().all(|b| *b == 0), "{} {}", code, i);
        }
    }
}
