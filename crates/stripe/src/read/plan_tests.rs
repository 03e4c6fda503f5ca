//! Any reading of any stripe: what is in reach is read, and nothing is combined that does not belong together.

use base::Grant;
use proptest::prelude::*;

use super::*;

const K: usize = 4;
const WIDTH: usize = 6;

/// What a strip answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    /// What it should: its current version, or nothing if it was never written.
    Right,
    /// It has nothing, though it should.
    Nothing,
    /// It cannot be had.
    Fault,
    /// The version before.
    Old,
}

fn v(seq: u64) -> Version {
    Version { grant: Grant(1), seq }
}

/// A stripe: which data strips were written when, and what each strip answers.
#[derive(Clone, Debug)]
struct Stripe {
    written: [Option<u64>; K],
    holds: [Holds; WIDTH],
    wanted: [bool; K],
}

impl Stripe {
    const NOW: u64 = 10;

    fn answer(&self, i: usize) -> Result<VersionInfo, Option<Fault>> {
        let covers = |now: bool| self.written.map(|w| w.map(|w| v(if now { w } else { w - 1 }))).to_vec();
        let info = |version, covers| {
            let touched = [i, K, K + 1].into_iter().map(|s| StripIndex(s as u8)).collect();
            Ok(VersionInfo { version, touched, len: 4096, covers })
        };
        match (self.holds[i], self.written.get(i)) {
            (Holds::Fault, _) => Err(Some(Fault::Timeout)),
            (Holds::Nothing, _) | (_, Some(None)) => Err(None),
            (Holds::Right, Some(Some(written))) => info(v(*written), Vec::new()),
            (Holds::Old, Some(Some(written))) => info(v(*written - 1), Vec::new()),
            (Holds::Right, None) => info(v(Stripe::NOW), covers(true)),
            (Holds::Old, None) => info(v(Stripe::NOW - 1), covers(false)),
        }
    }

    /// Reads it; answers come in an order, and late, as `dice` fall.
    fn read(&self, dice: &[u8], strict: bool) -> (Step, ReadPlan) {
        let geometry = Geometry::new("4+2p".parse().expect("a code"), 256 << 10);
        let rows = |wanted: bool| if wanted { vec![Range { offset: 0, len: 4096 }] } else { Vec::new() };
        let wanted = self.wanted.map(rows).into_iter().chain([Vec::new(), Vec::new()]).collect();
        let mut plan = ReadPlan::new(geometry, wanted, vec![ReadVersion::Adopted; WIDTH], None, strict);
        let (mut flying, mut dice) = (Vec::new(), dice.iter().cycle());
        for _ in 0..200 {
            match plan.step() {
                Step::Ask(asks) => flying.extend(asks.into_iter().map(|(i, _)| usize::from(i.0))),
                Step::Wait => {
                    assert!(!flying.is_empty(), "it waits for nothing: {plan:?}");
                    let die = usize::from(*dice.next().expect("dice"));
                    let at = die % flying.len();
                    if die >= 200 {
                        plan.mark_late(flying[at]);
                        continue;
                    }
                    let i = flying.swap_remove(at);
                    match self.answer(i) {
                        Ok(info) => plan.answered(i, info, Vec::new()),
                        Err(fault) => plan.failed(i, fault),
                    }
                }
                step => return (step, plan),
            }
        }
        panic!("it does not come to an end: {plan:?}");
    }
}

fn stripe(bad: impl Strategy<Value = Holds> + Clone + 'static) -> impl Strategy<Value = Stripe> {
    let written = proptest::array::uniform4(proptest::option::weighted(0.7, 2..=Stripe::NOW));
    let holds = proptest::array::uniform6(prop_oneof![3 => Just(Holds::Right), 2 => bad]);
    (written, holds, proptest::array::uniform4(any::<bool>()))
        .prop_map(|(written, holds, wanted)| Stripe { written, holds, wanted })
        .prop_filter("something was written", |s| s.written.iter().any(Option::is_some))
}

/// A data strip that was never written helps to decode another one, but only parity tells that it is zeros:
/// when the first parity has nothing, the second is asked.
#[test]
fn what_was_never_written_helps_when_one_parity_is_left() {
    use Holds::{Fault, Nothing, Right};
    let stripe = Stripe {
        written: [None, Some(2), None, Some(2)],
        holds: [Fault, Right, Right, Right, Nothing, Right],
        wanted: [true, true, false, false],
    };
    for dice in [[221, 148, 121, 4, 1, 0], [0; 6]] {
        let (step, plan) = stripe.read(&dice, false);
        assert_eq!(step, Step::Done, "{plan:?}");
    }
}

/// A strip that answered once and is lost then (its second part is rotten) says nothing of how long the block is: a writer who
/// believes that it ends before that strip cuts it off.
#[test]
fn a_strip_that_is_lost_after_it_answered_does_not_shorten_the_block() {
    let geometry = Geometry::new("4+2p".parse().expect("a code"), 256 << 10);
    let part = |offset| vec![Range { offset, len: 8192 }];
    let wanted = vec![vec![], vec![], part(56 << 10), part(0), vec![], vec![]];
    let mut plan = ReadPlan::new(geometry, wanted, vec![ReadVersion::Adopted; WIDTH], None, false);
    plan.erase(2, Fault::Timeout);
    let (mut last, mut asked) = (0, Vec::new());
    let decoded = loop {
        match plan.step() {
            Step::Ask(asks) => asked.extend(asks.into_iter().map(|(i, ranges)| (usize::from(i.0), ranges))),
            Step::Wait => {
                let (i, ranges) = asked.remove(0);
                last += usize::from(i == 3);
                if (i, last) == (3, 2) {
                    plan.failed(3, Some(Fault::Timeout));
                    continue;
                }
                let touched = [i, K, K + 1].into_iter().map(|s| StripIndex(s as u8)).collect();
                let covers = if i < K { Vec::new() } else { vec![Some(v(2)); K] };
                let info = VersionInfo { version: v(2), touched, len: 64 << 10, covers };
                let zeros = |range: Range| (range.offset, Bytes::from(vec![0; range.len as usize]));
                plan.answered(i, info, ranges.into_iter().map(zeros).collect());
            }
            step => break step,
        }
    };
    assert!(matches!(decoded, Step::Decode { .. }) && last == 2, "{decoded:?} {plan:?}");
    assert_eq!((plan.learnt().data, plan.learnt().len), (vec![Some(v(2)); K], 256 << 10));
}

proptest! {
    #[test]
    fn up_to_m_strips_out_of_reach_are_got_round(
        mut stripe in stripe(prop_oneof![Just(Holds::Nothing), Just(Holds::Fault)]),
        dice in proptest::collection::vec(any::<u8>(), 8..40),
    ) {
        let mut bad = 0;
        for holds in &mut stripe.holds {
            bad += usize::from(*holds != Holds::Right);
            if bad > WIDTH - K {
                *holds = Holds::Right;
            }
        }
        let dice: Vec<u8> = dice.into_iter().chain([0]).collect(); // at last everything comes
        match stripe.read(&dice, false) {
            (Step::Done, plan) => {
                for i in (0..K).filter(|i| stripe.wanted[*i]) {
                    let here = plan.strips[i].info.as_ref().map(|info| info.version);
                    prop_assert_eq!(here, stripe.written[i].map(v), "strip {}", i);
                }
            }
            (Step::Decode { lost, sources }, plan) => {
                prop_assert_eq!(sources.count() as usize, K);
                prop_assert!(lost.iter().all(|i| !sources.contains(i) && stripe.wanted[usize::from(i.0)]));
                for i in sources.iter().map(|i| usize::from(i.0)) {
                    let empty = stripe.written.get(i) == Some(&None);
                    prop_assert!(plan.strips[i].here() || empty, "source {} is not there", i);
                }
            }
            (step, plan) => prop_assert!(false, "{step:?} of {plan:?}"),
        }
    }

    #[test]
    fn only_what_belongs_together_is_combined(
        stripe in stripe(prop_oneof![1 => Just(Holds::Nothing), 1 => Just(Holds::Fault), 2 => Just(Holds::Old)]),
        dice in proptest::collection::vec(0..200u8, 8..40),
        strict in any::<bool>(),
    ) {
        let (step, plan) = stripe.read(&dice, strict);
        if let Step::Decode { sources, .. } = step {
            let parity = sources.iter().filter(|i| usize::from(i.0) >= K);
            let reference = parity.filter_map(|i| plan.strips[usize::from(i.0)].info.clone()).max_by_key(|i| i.version);
            let reference = reference.expect("a data strip was lost: some parity is a source");
            for i in sources.iter().map(|i| usize::from(i.0)) {
                let wanted = if i < K { reference.covers[i] } else { Some(reference.version) };
                let found = plan.strips[i].info.as_ref().filter(|_| plan.strips[i].here()).map(|info| info.version);
                prop_assert_eq!(found, wanted, "source {}", i);
            }
        }
        let learnt = plan.learnt();
        if learnt.parity.is_some() && learnt.data.iter().all(Option::is_some) {
            let last = (0..K).rfind(|i| learnt.data[*i] != Some(Version::ZERO));
            let least = last.map_or(0, |i| plan.geometry.start(i) + 4096);
            prop_assert!(learnt.len >= least, "{:?}", learnt);
        }
    }
}
