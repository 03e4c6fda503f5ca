//! Random operations, among them closing, crashing and power cuts, against a model of a few lines: what each
//! answers, what strips and bytes there are after it. The model is written from DESIGN "Stripe versions",
//! not from the store's own rules; a failing sequence is made short.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;

use base::{BlockIndex, FsId, Grant, InodeNo, Version};
use common::*;
use pdisk::{EngineChoice, IoConfig, IoNode, OpenOptions, Pdisk};
use proptest::prelude::*;
use wire::strip::{DeleteStrips, ReadVersion, StripRefusal, StripState};

const STRIPS: u64 = 3;

#[derive(Clone, Debug)]
enum Op {
    /// Strip, version, units, and, if it carries one, the adoption of this version.
    Whole {
        strip: u64,
        version: Version,
        units: usize,
        adopt: bool,
    },
    /// First unit, units; over the adopted version.
    Part {
        strip: u64,
        version: Version,
        first: usize,
        units: usize,
        adopt: bool,
    },
    Install {
        strip: u64,
        version: Version,
        units: usize,
    },
    Adopt {
        strip: u64,
        version: Option<Version>,
    },
    Discard {
        strip: u64,
        version: Option<Version>,
    },
    Seal {
        strip: u64,
        below: u64,
    },
    Delete {
        first: u64,
        last: u64,
        highest: Version,
    },
    Close,
    /// The process dies.
    Crash,
    /// The power goes.
    PowerCut,
}

fn op() -> impl Strategy<Value = Op> {
    let version = || (1u64..4, 1u64..6).prop_map(|(grant, seq)| v(grant, seq));
    // Sizes on both sides of the log's limit.
    let units = || prop_oneof![Just(0usize), 1..4usize, 17..24usize];
    prop_oneof![
        5 => (0..STRIPS, version(), units(), any::<bool>())
            .prop_map(|(strip, version, units, adopt)| Op::Whole { strip, version, units, adopt }),
        5 => (0..STRIPS, version(), 0..20usize, 1..20usize, any::<bool>())
            .prop_map(|(strip, version, first, units, adopt)| Op::Part { strip, version, first, units, adopt }),
        2 => (0..STRIPS, version(), units()).prop_map(|(strip, version, units)| Op::Install { strip, version, units }),
        4 => (0..STRIPS, proptest::option::weighted(0.2, version()))
            .prop_map(|(strip, version)| Op::Adopt { strip, version }),
        2 => (0..STRIPS, proptest::option::weighted(0.2, version()))
            .prop_map(|(strip, version)| Op::Discard { strip, version }),
        1 => (0..STRIPS, 1..4u64).prop_map(|(strip, below)| Op::Seal { strip, below }),
        1 => (0..STRIPS, 0..STRIPS, version())
            .prop_map(|(first, last, highest)| Op::Delete { first, last, highest }),
        1 => Just(Op::Close),
        1 => Just(Op::Crash),
        1 => Just(Op::PowerCut),
    ]
}

type Stored = (Version, Vec<u8>);

#[derive(Clone, Default, PartialEq, Debug)]
struct Model {
    adopted: Option<Stored>,
    prepared: Option<Stored>,
    sealed: u64,
    /// Deleted up to here: it is not stored again. Of an earlier life of the pdisk it may be forgotten.
    deleted: Option<Version>,
    perhaps: Option<Version>,
}

fn at(stored: &Option<Stored>) -> Option<Version> {
    stored.as_ref().map(|s| s.0)
}

impl Model {
    /// What must not be stored, as far as that was deleted. `stored`: then it is forgotten.
    fn deleted(&self, stored: bool) -> Option<Version> {
        self.deleted.max(self.perhaps.filter(|_| !stored))
    }

    /// Whether a prepare is stored, is there already, or is refused.
    fn prepare(
        &mut self,
        version: Version,
        base: Option<Version>,
        adopt: Option<Version>,
        stored: bool,
        bytes: impl FnOnce(&[u8]) -> Vec<u8>,
    ) -> bool {
        if self.sealed > version.grant.0 {
            return false;
        }
        if adopt.is_some() && at(&self.prepared) == adopt {
            self.adopted = self.prepared.take();
        }
        let (adopted, prepared) = (at(&self.adopted), at(&self.prepared));
        if adopted == Some(version) || prepared == Some(version) {
            return true;
        }
        let newest = adopted.max(self.deleted(stored));
        if newest >= Some(version) || prepared.is_some() || base.is_some() && base != adopted {
            return false;
        }
        let base_bytes = if base.is_some() { self.adopted.as_ref().map_or(&[][..], |a| &a.1) } else { &[] };
        self.prepared = Some((version, bytes(base_bytes)));
        true
    }

    fn is_gone(&self) -> bool {
        self.adopted.is_none() && self.prepared.is_none() && self.sealed == 0
    }
}

struct Life {
    plan: &'static str,
    dir: tempfile::TempDir,
    node: IoNode,
    pdisk: Option<Pdisk>,
    strips: BTreeMap<u64, Model>,
    content: u64,
}

/// Writes reach the disk when they are flushed, and one sector in ten before.
const HONEST: &str = "volatile leak=0.1";
/// The same disk, and flushes are answered without being done.
const NO_FLUSH: &str = "volatile leak=0.1; noflush";

fn volatile_node(plan: &str) -> IoNode {
    let fault = Some(plan.parse().unwrap());
    let engine = EngineChoice::Psync;
    IoNode::start(IoConfig { engine, num_io_queues: 1, fault, ..IoConfig::default() }).unwrap()
}

fn open_small(dir: &std::path::Path, node: &IoNode) -> Pdisk {
    let options = OpenOptions { fast_write_memory: 256 << 10, ..options() };
    let (pdisk, report) = Pdisk::open(dir, options, node).unwrap();
    assert!(report.damaged.is_none(), "{report:?}");
    pdisk
}

impl Life {
    fn new(plan: &'static str) -> Life {
        let dir = tempfile::tempdir().unwrap();
        let create = pdisk::CreateOptions {
            log_size: Some(512 << 10),
            ..pdisk::CreateOptions::new(CLUSTER, PDISK, 4 << 20)
        };
        Pdisk::create(dir.path(), create).unwrap();
        let node = volatile_node(plan);
        let pdisk = Some(open_small(dir.path(), &node));
        Life { plan, dir, node, pdisk, strips: BTreeMap::new(), content: 0 }
    }

    fn bytes(&mut self, units: usize) -> Vec<u8> {
        self.content += 1;
        content(self.content, units)
    }

    async fn run(&mut self, op: Op) {
        let p = self.pdisk.clone().unwrap();
        match op {
            Op::Whole { strip: s, version, units, adopt } => {
                let bytes = self.bytes(units);
                let model = self.strips.entry(s).or_default();
                let mut request = whole(strip(s), version, &bytes);
                request.0.adopt = at(&model.prepared).filter(|_| adopt);
                let (adopt, stored) = (request.0.adopt, prepare(&p, request).await.is_ok());
                assert_eq!(stored, model.prepare(version, None, adopt, stored, |_| bytes));
            }
            Op::Part { strip: s, version, first, units, adopt } => {
                let written = self.bytes(units);
                let model = self.strips.entry(s).or_default();
                let adopt = at(&model.prepared).filter(|_| adopt);
                let newest = if adopt.is_some() { &model.prepared } else { &model.adopted };
                // Some of them name a base that is not there.
                let base = at(newest).unwrap_or(v(9, 9));
                let len = newest.as_ref().map_or(0, |n| n.1.len() / UNIT).max(first + units);
                let mut request = part(strip(s), version, base, first, &written, len);
                request.0.adopt = adopt;
                let stored = prepare(&p, request).await.is_ok();
                let expected = model.prepare(version, Some(base), adopt, stored, |base| {
                    let mut bytes = base.to_vec();
                    bytes.resize(len * UNIT, 0);
                    bytes[first * UNIT..(first + units) * UNIT].copy_from_slice(&written);
                    bytes
                });
                assert_eq!(stored, expected);
            }
            Op::Install { strip: s, version, units } => {
                let bytes = self.bytes(units);
                let model = self.strips.entry(s).or_default();
                let (request, payload) = whole(strip(s), version, &bytes);
                let stored = p.install(request, payload).await.is_ok();
                let newest = at(&model.adopted).max(at(&model.prepared)).max(model.deleted(stored));
                let newer = newest < Some(version);
                assert_eq!(stored, newer);
                if newer {
                    (model.adopted, model.prepared) = (Some((version, bytes)), None);
                }
            }
            Op::Adopt { strip: s, version } => {
                let model = self.strips.entry(s).or_default();
                let version = version.or(at(&model.prepared)).unwrap_or(v(1, 1));
                let now = at(&model.prepared) == Some(version);
                let expected = now || at(&model.adopted) == Some(version);
                assert_eq!(p.adopt(vec![(strip(s), version)]).await[0].is_ok(), expected);
                if now && at(&model.adopted) != Some(version) {
                    model.adopted = model.prepared.take();
                }
            }
            Op::Discard { strip: s, version } => {
                let model = self.strips.entry(s).or_default();
                let version = version.or(at(&model.prepared)).unwrap_or(v(1, 1));
                let expected = at(&model.adopted) != Some(version);
                assert_eq!(p.discard(vec![(strip(s), version)]).await[0].is_ok(), expected);
                model.prepared.take_if(|m| expected && m.0 == version);
            }
            Op::Seal { strip: s, below } => {
                let model = self.strips.entry(s).or_default();
                model.sealed = model.sealed.max(below);
                let states = p.seal(vec![strip(s)], Grant(below)).await.unwrap();
                assert_eq!(states[0].sealed_below, Grant(model.sealed));
            }
            Op::Delete { first, last, highest } => {
                let mut expected = 0;
                for s in first..=last {
                    let model = self.strips.entry(s).or_default();
                    model.deleted = model.deleted.max(Some(highest));
                    let gone = [
                        model.adopted.take_if(|m| m.0 <= highest),
                        model.prepared.take_if(|m| m.0 <= highest),
                    ];
                    expected += u64::from(gone.iter().any(Option::is_some));
                    let empty = model.adopted.is_none() && model.prepared.is_none();
                    if empty && model.sealed <= highest.grant.0 {
                        model.sealed = 0;
                    }
                }
                let (fs, inode) = (FsId(1), InodeNo(10));
                let (first, last) = (BlockIndex(first), BlockIndex(last));
                let delete = DeleteStrips { fs, inode, first, last, highest };
                assert_eq!(p.delete(vec![delete]).await, Ok(expected));
            }
            Op::Close | Op::Crash | Op::PowerCut => {
                self.pdisk = None;
                if matches!(op, Op::Close) {
                    p.close().await.unwrap();
                } else {
                    drop(p);
                }
                if matches!(op, Op::PowerCut) {
                    // With the node goes what was never flushed.
                    self.node = volatile_node(self.plan);
                }
                self.pdisk = Some(open_small(self.dir.path(), &self.node));
                self.strips.values_mut().for_each(|m| m.perhaps = m.deleted.take().max(m.perhaps));
            }
        }
        self.compare().await;
    }

    async fn compare(&self) {
        let p = self.pdisk.as_ref().unwrap();
        let listed = p.list(None, 100).await.unwrap();
        let expected: Vec<u64> = self.strips.iter().filter(|(_, m)| !m.is_gone()).map(|(s, _)| *s).collect();
        assert_eq!(listed.iter().map(|s| s.strip.stripe.block.0).collect::<Vec<_>>(), expected);
        for StripState { strip: id, adopted, prepared, sealed_below, lost, .. } in listed {
            let model = &self.strips[&id.stripe.block.0];
            let versions = (adopted.map(|i| i.version), prepared.map(|i| i.version));
            assert_eq!(versions, (at(&model.adopted), at(&model.prepared)), "{id}");
            assert_eq!((sealed_below.0, lost), (model.sealed, false), "{id}");
            for (version, bytes) in model.adopted.iter().chain(&model.prepared) {
                assert!(
                    read(p, id, ReadVersion::Exactly(*version)).await.unwrap() == *bytes,
                    "{id} {version}"
                );
            }
            let current = read(p, id, ReadVersion::Adopted).await;
            let same = match &model.adopted {
                Some((_, bytes)) => current.as_ref() == Ok(bytes),
                None => current == Err(StripRefusal::Absent),
            };
            assert!(same, "{id}: what is current");
        }
        let stats = p.stats();
        assert_eq!(stats.prepared, self.strips.values().filter(|m| m.prepared.is_some()).count() as u64);
        if self.strips.values().all(|m| m.adopted.is_none() && m.prepared.is_none()) {
            assert_eq!(stats.free, stats.capacity, "space leaks");
        }
    }
}

fn live(plan: &'static str, ops: Vec<Op>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut life = Life::new(plan);
        for op in ops {
            life.run(op).await;
        }
    });
}

/// The comparison is worth something: with the flushes taken out the same operations fail it.
#[test]
fn without_its_flushes_the_store_is_not_the_model() {
    for units in [2, 20] {
        let whole = |seq, adopt| Op::Whole { strip: 0, version: v(1, seq), units, adopt };
        let ops = vec![whole(1, false), whole(2, true), Op::PowerCut];
        live(HONEST, ops.clone());
        assert!(std::panic::catch_unwind(|| live(NO_FLUSH, ops)).is_err(), "nobody misses the flushes");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, max_shrink_iters: 500, ..ProptestConfig::default() })]

    #[test]
    fn the_store_is_the_model(ops in proptest::collection::vec(op(), 1..60)) {
        live(HONEST, ops);
    }
}
