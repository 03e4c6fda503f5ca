#![allow(clippy::single_range_in_vec_init)] // one range of units is one range

use std::sync::{Arc, Weak};

use base::units::UNIT;
use bytes::Bytes;
use proptest::prelude::*;
use wire::strip::Range;

use super::*;
use crate::pages::{
    piece::{Content, OwnBuf, State},
    pool::Pool,
    queues::{PageOwner, Tag},
};

struct Nobody;
impl PageOwner for Nobody {
    fn evict(&self, _: u64, _: &Arc<Tag>) {}
}

fn tag(units: std::ops::Range<u32>, bytes: u64) -> Arc<Tag> {
    Tag::new(Weak::<Nobody>::new(), 0, units, bytes, false)
}

const UNITS: u32 = 32;
const STRIP: u32 = 8;

struct Bench {
    pool: Pool,
    block: Block,
    seq: u64,
}

impl Bench {
    fn new() -> Bench {
        Bench { pool: Pool::new(64 << 20, 90), block: Block::new(STRIP), seq: 0 }
    }

    fn write(&mut self, offset: u32, data: &[u8], grow: u32) {
        self.seq += 1;
        let pool = self.pool.clone();
        self.block.write(offset, data, self.seq, grow, &mut |_, wanted| {
            let buf = pool.buffer(wanted as usize * UNIT);
            let charge = pool.charge_now(buf.capacity() as u64).unwrap();
            OwnBuf { buf, charge }
        });
    }

    fn share(&mut self, offset: u32, data: Bytes) {
        self.seq += 1;
        let mut charge = self.pool.charge_now(data.len() as u64).unwrap();
        self.block.write_shared(offset, data, self.seq, &mut charge);
    }

    fn read(&mut self, from: u32, to: u32) -> Vec<u8> {
        let mut out = Vec::new();
        assert!(self.block.collect(from, to, true, &mut out));
        out.concat()
    }
}

#[test]
fn a_sequential_writer_fills_one_piece_a_strip() {
    let mut b = Bench::new();
    for i in 0..STRIP * 2 {
        b.write(i * 4096, &[i as u8; 4096], STRIP);
    }
    let frozen = b.block.freeze();
    let sizes: Vec<_> = frozen.pieces.iter().map(|(o, p)| (*o, p.len())).collect();
    assert_eq!(sizes, [(0, 8 * 4096), (8 * 4096, 8 * 4096)]);
    assert_eq!(frozen.dirty, [Range { offset: 0, len: 16 * 4096 }]);
}

#[test]
fn what_was_written_during_a_load_is_not_replaced_by_it() {
    let mut b = Bench::new();
    let (id, _) = b.block.begin_load(vec![0..4]);
    b.write(4096, &[1; 4096], 1);
    b.block.freeze();
    b.block.written(b.seq, &mut tag);
    // Stored and given up again before the (older) load arrives.
    b.block.drop_units(1, 2);
    b.block.loaded(id, Some(vec![(0, Bytes::from(vec![9; 4 * 4096]))]), &mut tag);
    assert_eq!(b.block.missing(0, 4), [1..2]);
    assert_eq!(b.read(0, 4096), [9; 4096]);
}

#[test]
fn a_failed_version_is_dirty_again_with_newer_bytes_kept() {
    let mut b = Bench::new();
    b.write(0, &[1; 8192], 2);
    b.block.freeze();
    b.write(100, &[2; 50], 1);
    b.block.not_written();
    let mut expect = vec![1u8; 8192];
    expect[100..150].fill(2);
    assert_eq!(b.read(0, 8192), expect);
    assert_eq!(b.block.freeze().dirty, [Range { offset: 0, len: 8192 }]);
}

#[test]
fn frozen_bytes_never_change() {
    let mut b = Bench::new();
    b.write(0, &[1; 3 * 4096], 8);
    let frozen = b.block.freeze();
    b.write(10, &[2; 4096], 1);
    assert!(frozen.pieces.iter().all(|(_, p)| p.iter().all(|&x| x == 1)));
}

#[test]
fn shared_bytes_become_pages_as_they_are() {
    let mut b = Bench::new();
    let data = Bytes::from(vec![3; 10 * 4096]);
    b.share(4 * 4096, data.clone());
    let frozen = b.block.freeze();
    let seen: Vec<_> = frozen.pieces.iter().map(|(o, p)| (*o, p.as_ptr(), p.len())).collect();
    let strip = 4 * 4096;
    assert_eq!(
        seen,
        [(strip, data.as_ptr(), 4 * 4096), (8 * 4096, data[strip as usize..].as_ptr(), 6 * 4096)]
    );
    let part = Content::shared(&data).part(4096..8192);
    assert_eq!(part.keep(8192).map(|kept| kept.as_ptr()), Some(data[4096..].as_ptr()));
    assert!(part.keep(1).is_none() && part.part(0..5).keep(0).is_none());
    assert!(Content::from(&data[..4096]).keep(0).is_none(), "bytes that were only lent are copied");
}

#[derive(Clone, Debug)]
enum Op {
    Write(u32, u32, u32),
    Share(u32, u32),
    Zero(u32, u32),
    Freeze,
    Settle(bool),
    Evict,
}

fn op() -> impl Strategy<Value = Op> {
    let size = UNITS * 4096;
    prop_oneof![
        6 => (0..size, 1..40_000u32, 1..12u32).prop_map(move |(o, l, g)| Op::Write(o, l.min(size - o), g)),
        2 => (0..UNITS, 1..12u32).prop_map(|(o, l)| Op::Share(o, (o + l).min(UNITS))),
        1 => (0..UNITS, 1..6u32).prop_map(|(o, l)| Op::Zero(o, (o + l).min(UNITS))),
        2 => Just(Op::Freeze),
        2 => any::<bool>().prop_map(Op::Settle),
        1 => Just(Op::Evict),
    ]
}

proptest! {
    /// A block with a fake pdisk behind it always reads as a plain array does.
    #[test]
    fn reads_as_a_plain_array(ops in prop::collection::vec(op(), 1..50)) {
        let mut b = Bench::new();
        let mut model = vec![0u8; (UNITS * 4096) as usize];
        let mut disk = model.clone();
        let mut flight: Option<Frozen> = None;
        let mut tags = Vec::new();
        for (n, op) in ops.into_iter().enumerate() {
            match op {
                Op::Write(offset, len, grow) => {
                    // Load the edges first, as the client does.
                    for unit in [offset / 4096, (offset + len - 1) / 4096] {
                        if !b.block.missing(unit, unit + 1).is_empty() {
                            let (id, _) = b.block.begin_load(vec![unit..unit + 1]);
                            let at = unit as usize * 4096;
                            let bytes = Bytes::copy_from_slice(&disk[at..at + 4096]);
                            b.block.loaded(id, Some(vec![(unit * 4096, bytes)]), &mut tag);
                        }
                    }
                    let data = vec![n as u8 + 1; len as usize];
                    b.write(offset, &data, grow);
                    model[offset as usize..(offset + len) as usize].copy_from_slice(&data);
                }
                Op::Share(from, to) => {
                    let data = vec![n as u8 + 1; (to - from) as usize * 4096];
                    model[from as usize * 4096..to as usize * 4096].copy_from_slice(&data);
                    b.share(from * 4096, data.into());
                }
                Op::Zero(from, to) => {
                    b.seq += 1;
                    b.block.zero_units(from, to, b.seq);
                    model[from as usize * 4096..to as usize * 4096].fill(0);
                }
                Op::Freeze if flight.is_none() && b.block.has_dirty() => flight = Some(b.block.freeze()),
                Op::Settle(good) => {
                    let Some(frozen) = flight.take() else { continue };
                    if good {
                        for (offset, bytes) in &frozen.pieces {
                            prop_assert!(offset / (STRIP * 4096) == (offset + bytes.len() as u32 - 1) / (STRIP * 4096));
                            disk[*offset as usize..*offset as usize + bytes.len()].copy_from_slice(bytes);
                        }
                        b.block.written(frozen.seq, &mut |u, n| {
                            let t = tag(u, n);
                            tags.push(t.clone());
                            t
                        });
                    } else {
                        b.block.not_written();
                    }
                }
                Op::Evict => tags.drain(..).for_each(|t| b.block.evict(&t)),
                Op::Freeze => {}
            }
            for gap in b.block.missing(0, UNITS) {
                let (id, _) = b.block.begin_load(vec![gap.clone()]);
                if n % 3 == 0 {
                    let at = gap.start as usize * 4096..gap.end as usize * 4096;
                    let bytes = Bytes::copy_from_slice(&disk[at]);
                    b.block.loaded(id, Some(vec![(gap.start * 4096, bytes)]), &mut tag);
                } else {
                    b.block.loaded(id, None, &mut tag);
                    let at = gap.start as usize * 4096..gap.end as usize * 4096;
                    prop_assert_eq!(&model[at.clone()], &disk[at], "an absent unit differs from the pdisk");
                }
            }
            if b.block.missing(0, UNITS).is_empty() {
                prop_assert_eq!(&b.read(0, UNITS * 4096), &model);
            }
        }
        let dirty: u64 = b.block.pieces.values().map(|p| u64::from(p.dirty_units())).sum();
        prop_assert_eq!(b.block.dirty_units, dirty);
        prop_assert_eq!(b.block.dirty_pieces, b.block.pieces.values().filter(|p| p.state == State::Dirty).count());
        drop(b.block);
        drop(flight);
        prop_assert_eq!(b.pool.usage().used, 0);
    }
}

#[test]
fn edges_come_alone_until_their_writer_has_gone_forward() {
    let mut block = Block::new(1024);
    // Records 46 units apart.
    let alone = |unit: u32| unit..unit + 1;
    for unit in [10, 21, 56] {
        assert_eq!(block.edge(unit, 256, 1024), alone(unit));
    }
    assert_eq!(block.edge(67, 256, 1024), 67..323);
    // The next one that is not here is believed at once.
    assert_eq!(block.edge(332, 256, 1024), 332..588);
    assert_eq!(block.edge(600, 256, 1024), 600..856);
    assert_eq!(block.edge(860, 256, 1024), 860..1024, "not beyond what counts");
    // Asked for again, further back, or far ahead: alone.
    for unit in [860, 900, 902, 20, 700] {
        assert_eq!(block.edge(unit, 256, 1024), alone(unit));
    }
    // With a small page pool.
    for unit in [701, 702, 703, 704] {
        assert_eq!(block.edge(unit, 0, 1024), alone(unit));
    }
}
