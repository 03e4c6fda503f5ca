//! Random overwriting for a long time: no unit leaks, strips do not fall into ever smaller pieces, and what is
//! read is what was written. Sequential reading before and after is shown, not judged: `ropewalk pdisk bench
//! --aging` measures it.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;

use std::time::Instant;

use common::*;
use pdisk::{CreateOptions, EngineChoice, Pdisk, tools, tools::DumpItem};
use wire::strip::ReadVersion;

const STRIPS: u64 = 16;
const UNITS: usize = 256;
/// Overwrites of half a strip's mean length: each strip is written over some ten times.
const OVERWRITES: u64 = 1200;
/// Pieces a strip of 1 MiB may lie in on average. Overwrites above 64 KiB take new space in one or a few
/// pieces, smaller ones are written in place: what is left between them cannot be cut for ever.
const PIECES_MAX: f64 = 40.0;

async fn read_through(p: &Pdisk, model: &[Vec<u8>]) -> f64 {
    let start = Instant::now();
    for (i, bytes) in (0u64..).zip(model) {
        assert!(read(p, strip(i), ReadVersion::Adopted).await.unwrap() == *bytes, "strip {i}");
    }
    (model.len() * UNITS * UNIT) as f64 / 1e6 / start.elapsed().as_secs_f64()
}

#[tokio::test]
async fn a_pdisk_ages_without_falling_to_pieces() {
    let dir = tempfile::tempdir().unwrap();
    // Four fifths full, as disks are.
    let create = CreateOptions { log_size: Some(2 << 20), ..CreateOptions::new(CLUSTER, PDISK, 20 << 20) };
    Pdisk::create(dir.path(), create).unwrap();
    let node = node(EngineChoice::Auto);
    let (p, _) = open(dir.path(), &node);
    let mut model: Vec<Vec<u8>> = (0..STRIPS).map(|i| content(i, UNITS)).collect();
    for (i, bytes) in (0..).zip(&model) {
        write(&p, strip(i), v(1, 1), bytes).await;
    }
    let before = read_through(&p, &model).await;
    let mut seqs = [1u64; STRIPS as usize];
    let mut number = 1u64;
    let mut below = |n: u64| {
        // Lehmer's generator: any will do.
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (number >> 33) % n
    };
    for round in 0..OVERWRITES {
        let s = below(STRIPS);
        let units = 1 + below(64) as usize;
        let first = below((UNITS - units) as u64) as usize;
        let bytes = content(1000 + round, units);
        let seq = &mut seqs[s as usize];
        prepare(&p, part(strip(s), v(1, *seq + 1), v(1, *seq), first, &bytes, UNITS)).await.unwrap();
        *seq += 1;
        adopt(&p, strip(s), v(1, *seq)).await;
        model[s as usize][first * UNIT..(first + units) * UNIT].copy_from_slice(&bytes);
    }
    let after = read_through(&p, &model).await;
    println!("sequential read {before:.0} MB/s before, {after:.0} MB/s after (checked here, CRCs included)");
    assert_eq!(p.verify().await.unwrap().damaged, []);
    assert_eq!(p.stats().free, (20 << 20) - STRIPS * (UNITS * UNIT) as u64, "space leaks");
    p.close().await.unwrap();
    let (mut strips, mut pieces) = (0u32, 0);
    tools::dump(dir.path(), None, &mut |item| {
        if let DumpItem::Strip { adopted: Some(v), .. } = item {
            strips += 1;
            pieces += v.extents.len();
        }
    })
    .unwrap();
    let mean = pieces as f64 / f64::from(strips);
    println!("{mean:.1} pieces a strip");
    assert!(strips == STRIPS as u32 && mean < PIECES_MAX, "{mean} pieces a strip");
    assert!(tools::verify(dir.path(), None, &mut |_, _| {}).unwrap().is_consistent());
}
