//! Verdicts about a strip of a 4+2p stripe (strips 0..4 data, 4 and 5 parity), case by case.

use base::{Grant, StripSet};

use super::*;

/// Where the record is asked, it does not name the block.
fn judge(geometry: Geometry, me: usize, mine: Option<&StripState>, others: &[Seen]) -> Verdict {
    super::judge(geometry, me, mine, others, Some(Owner::Unrecorded))
}

fn v(seq: u64) -> Version {
    Version { grant: Grant(1), seq }
}

fn geometry() -> Geometry {
    Geometry::new("4+2p".parse().expect("a code"), 256 << 10)
}

fn info(version: Version) -> VersionInfo {
    VersionInfo { version, touched: StripSet(0b110001), len: 4096, covers: vec![] }
}

fn holds(adopted: Option<u64>, prepared: Option<u64>) -> Option<StripState> {
    let info = |seq: Option<u64>| seq.map(|s| info(v(s)));
    Some(StripState { adopted: info(adopted), prepared: info(prepared), ..StripState::default() })
}

/// Parity that holds `version` over strips with these versions.
fn parity(version: u64, covers: [Option<u64>; 4]) -> Seen {
    let covers = covers.map(|c| c.map(v)).to_vec();
    Seen::Ok(Some(StripState {
        adopted: Some(VersionInfo { covers, ..info(v(version)) }),
        ..StripState::default()
    }))
}

/// The stripe as strip `me` sees it: everybody else `ok` and empty, but for these.
fn seen(me: usize, others: &[(usize, Seen)]) -> Vec<Seen> {
    let mut all = vec![Seen::Ok(None); 6];
    all[me] = Seen::Mine;
    others.iter().for_each(|(i, s)| all[*i] = s.clone());
    all
}

#[test]
fn a_strip_becomes_what_the_parity_says() {
    let covers = [Some(3), None, Some(2), None];
    let stripe = |me| seen(me, &[(4, parity(3, covers)), (5, parity(3, covers))]);
    let judged =
        |me: usize, adopted, prepared| judge(geometry(), me, holds(adopted, prepared).as_ref(), &stripe(me));
    assert_eq!(judged(0, Some(3), None), Verdict::Fine);
    assert_eq!(judged(0, Some(1), Some(3)), Verdict::Adopt(v(3)));
    assert!(matches!(judged(0, Some(1), None), Verdict::Install(t) if t.version == v(3)));
    assert!(
        matches!(judged(2, None, None), Verdict::Install(t) if t.version_of(StripIndex(2)) == Some(v(2)))
    );
    assert_eq!(judged(2, Some(2), Some(1)), Verdict::Discard(v(1)));
    // Never written, as the parity knows: an old version of it is dropped, prepared or not.
    assert_eq!(judged(1, Some(2), None), Verdict::Delete(v(2)));
    assert_eq!(judged(1, None, Some(2)), Verdict::Discard(v(2)));
    assert_eq!(judged(1, None, None), Verdict::Fine);
    assert_eq!(judged(1, Some(4), None), Verdict::Later(Why::Newer));
    // Newer than all that is known, and the parity lacks it: left over, or the beginning of a write.
    assert_eq!(judged(1, None, Some(4)), Verdict::DiscardLeftover(v(4)));
}

#[test]
fn what_nobody_else_has_was_deleted() {
    for (adopted, prepared, verdict) in [
        (Some(2), None, Verdict::Delete(v(2))),
        (Some(2), Some(3), Verdict::Delete(v(2))),
        (None, Some(3), Verdict::DiscardLeftover(v(3))),
        (None, None, Verdict::Fine),
    ] {
        let mine = holds(adopted, prepared);
        // Alone in coming back, and with a second pdisk of the same node: the parity proves it.
        for others in [vec![], vec![(1, Seen::Away)], vec![(5, Seen::Away)]] {
            assert_eq!(judge(geometry(), 0, mine.as_ref(), &seen(0, &others)), verdict, "{others:?}");
        }
    }
    let mine = holds(Some(2), None);
    let later = Verdict::Later(Why::PerhapsDeleted);
    let parity_away = [(4, Seen::Away), (5, Seen::Away)];
    assert_eq!(judge(geometry(), 0, mine.as_ref(), &seen(0, &parity_away)), later);
    let many_away = [(1, Seen::Away), (2, Seen::Away), (3, Seen::Away), (5, Seen::Away)];
    // An `ok` parity strip is gone; whether the block was deleted with it only the record says.
    let judged = |record| super::judge(geometry(), 0, mine.as_ref(), &seen(0, &many_away), record);
    assert_eq!(judged(None), Verdict::Ask);
    assert_eq!(judged(Some(Owner::Unrecorded)), Verdict::Delete(v(2)));
    assert_eq!((judged(Some(Owner::Recorded)), judged(Some(Owner::Unknown))), (later.clone(), later));
    assert_eq!(judged(Some(Owner::Nobody)), Verdict::Delete(Version::MAX));
    // Somebody has some of it.
    let data = [(1, Seen::Ok(holds(Some(2), None))), (5, Seen::Away)];
    let no_reference = Verdict::Later(Why::NoReference);
    let judged = |record| super::judge(geometry(), 0, mine.as_ref(), &seen(0, &data), Some(record));
    assert_eq!(judged(Owner::Recorded), no_reference);
    assert_eq!(judged(Owner::Unrecorded), Verdict::Delete(v(2)));
    // A first write on its way; and one on its way over what an earlier life left here.
    let begun = |seq| [(4, Seen::Ok(holds(None, Some(seq)))), (5, Seen::Ok(holds(None, Some(seq))))];
    let mine = holds(None, Some(3));
    assert_eq!(judge(geometry(), 1, mine.as_ref(), &seen(1, &begun(3))), Verdict::Fine);
    assert_eq!(judge(geometry(), 1, mine.as_ref(), &seen(1, &begun(7))), no_reference);
}

/// Every state a strip can be in, beside every stripe that the others can tell: what is judged and done leads to
/// what the parity says, and then there is nothing more to do.
#[test]
fn whatever_a_strip_holds_it_becomes_what_the_parity_says() {
    let some = |range: std::ops::RangeInclusive<u64>| std::iter::once(None).chain(range.map(Some));
    let mut judged = 0;
    for (me, covered, away) in [0usize, 4, 5].into_iter().flat_map(|me| {
        some(1..=3).flat_map(move |covered| [None, Some(1), Some(5)].map(|away| (me, covered, away)))
    }) {
        let covers = [covered, Some(3), None, None];
        let wanted = if me < 4 { covered } else { Some(3) };
        let mut others = seen(me, &[(1, Seen::Ok(holds(Some(3), None)))]);
        for i in [4, 5].into_iter().filter(|i| *i != me) {
            others[i] = parity(3, covers);
        }
        if let Some(away) = away.filter(|away| *away != me && !(me == 4 && *away == 5)) {
            others[away] = Seen::Away;
        }
        for (adopted, prepared, lost) in some(1..=4).flat_map(|a| {
            some(1..=5).flat_map(move |p| {
                [false, true].map(|lost| (a, p.filter(|p| a.is_none_or(|a| *p > a)), lost))
            })
        }) {
            let mut mine = holds(adopted, prepared).unwrap_or_default();
            mine.lost = lost && adopted.is_some();
            let mut steps = 0;
            loop {
                match judge(geometry(), me, Some(&mine), &others) {
                    Verdict::Fine => break,
                    Verdict::Adopt(version) => {
                        (mine.adopted, mine.prepared, mine.lost) = (Some(info(version)), None, false);
                    }
                    Verdict::Install(target) => {
                        let version = target.version_of(StripIndex(me as u8)).expect("a version to install");
                        assert!(mine.lost || mine.adopted.as_ref().is_none_or(|a| a.version < version));
                        (mine.adopted, mine.lost) = (Some(info(version)), false);
                    }
                    Verdict::Discard(version) => {
                        assert!(version <= v(3), "what may be a write on its way stays");
                        mine.prepared = None;
                    }
                    Verdict::DiscardLeftover(version) => {
                        assert!(version > v(3), "what is older is dropped as well if this life touched it");
                        mine.prepared = None;
                    }
                    Verdict::Delete(highest) => {
                        assert!(mine.adopted.as_ref().is_some_and(|a| a.version <= highest));
                        (mine.adopted, mine.lost) = (None, false);
                    }
                    Verdict::Later(Why::Newer) => {
                        assert!(
                            adopted.is_some_and(|a| wanted.is_none_or(|w| a > w)),
                            "{adopted:?} {wanted:?}"
                        );
                        break;
                    }
                    verdict => panic!("{verdict:?} of {mine:?} beside {others:?}"),
                }
                steps += 1;
                assert!(steps < 5, "{mine:?} beside {others:?}");
            }
            let have = mine.adopted.as_ref().map(|a| a.version);
            let newer = adopted.is_some_and(|a| wanted.is_none_or(|w| a > w));
            assert!(have == wanted.map(v) || newer, "{me}: {have:?}, not {wanted:?}, beside {others:?}");
            judged += 1;
        }
    }
    assert!(judged > 500, "{judged}");
}

/// Nobody else can say that a version is complete, and nobody need: the writer forgets what is prepared on a pdisk
/// that does not count any more, and leaves it to its catch-up.
#[test]
fn the_only_strip_of_a_stripe_is_complete_when_it_is_prepared() {
    let alone = Geometry::new("1way".parse().expect("a code"), 256 << 10);
    let judged = |adopted, prepared| judge(alone, 0, holds(adopted, prepared).as_ref(), &[Seen::Mine]);
    assert_eq!(judged(None, Some(3)), Verdict::Adopt(v(3)));
    assert_eq!(judged(Some(2), Some(3)), Verdict::Adopt(v(3)));
    assert_eq!(judged(Some(3), Some(2)), Verdict::Fine);
    assert_eq!((judged(Some(3), None), judged(None, None)), (Verdict::Fine, Verdict::Fine));
    let lost = holds(Some(2), Some(3)).map(|state| StripState { lost: true, ..state });
    assert_eq!(judge(alone, 0, lost.as_ref(), &[Seen::Mine]), Verdict::Fine);
}

/// The writer forgets what is prepared on a pdisk that ceases to count. What `ok` pdisks say decides whether it may be complete.
#[test]
fn what_may_be_complete_is_waited_for() {
    let covers = [Some(2), None, None, None].map(|c| c.map(v)).to_vec();
    // 3 touches strip 0 and the parity.
    let holds_both = |adopted: u64, prepared: Option<u64>| {
        let mut state = holds(Some(adopted), prepared).unwrap_or_default();
        state.adopted.iter_mut().chain(&mut state.prepared).for_each(|i| i.covers.clone_from(&covers));
        state
    };
    let ok = |prepared| Seen::Ok(Some(holds_both(2, prepared)));
    let returning = |prepared| Seen::Returning(Some(holds_both(2, prepared)));
    let judged = |four: Seen, five: Seen| {
        let mine = holds(Some(2), Some(3));
        super::judge(geometry(), 0, mine.as_ref(), &seen(0, &[(4, four), (5, five)]), None)
    };
    let held = Verdict::Later(Why::Held(v(3)));
    assert_eq!(judged(ok(Some(3)), ok(Some(3))), held);
    assert_eq!(judged(ok(Some(3)), Seen::Away), held);
    assert_eq!(judged(ok(Some(3)), returning(None)), held, "what it lacks proves nothing");
    // A strip that counts lacks it: not complete, and of nobody's concern here.
    assert_eq!(judged(ok(Some(3)), ok(None)), Verdict::Fine);
    assert_eq!(judged(ok(None), ok(None)), Verdict::DiscardLeftover(v(3)));
    assert_eq!(judged(ok(None), returning(Some(3))), Verdict::DiscardLeftover(v(3)));
    assert_eq!(judged(parity(3, [Some(3), None, None, None]), ok(Some(3))), Verdict::Adopt(v(3)));
    // A first write.
    let first = |four: Seen| {
        let five = Seen::Ok(holds(None, Some(3)));
        let mine = holds(None, Some(3));
        super::judge(geometry(), 0, mine.as_ref(), &seen(0, &[(4, four), (5, five)]), None)
    };
    assert_eq!(first(Seen::Ok(holds(None, Some(3)))), held);
    assert_eq!(first(Seen::Ok(None)), Verdict::Fine);
}

/// A file was cut and written again while this pdisk was away: what is on its way there covers nothing of what is here.
#[test]
fn a_block_begun_anew_is_waited_for() {
    let anew = |adopted: Option<VersionInfo>| {
        let prepared = VersionInfo { covers: vec![Some(v(7)), None, None, None], ..info(v(7)) };
        Seen::Ok(Some(StripState { adopted, prepared: Some(prepared), ..StripState::default() }))
    };
    let old = VersionInfo { covers: vec![Some(v(2)); 4], ..info(v(2)) };
    let back = Seen::Returning(Some(StripState { adopted: Some(old.clone()), ..StripState::default() }));
    for parity in [None, Some(old)] {
        let others = [(0, Seen::Ok(holds(None, Some(7)))), (4, anew(parity)), (5, back.clone())];
        for mine in [holds(None, Some(2)), holds(Some(2), None)] {
            let judged = super::judge(geometry(), 3, mine.as_ref(), &seen(3, &others), Some(Owner::Recorded));
            assert_eq!(judged, Verdict::Later(Why::Prepared), "{mine:?} beside {others:?}");
        }
    }
}

/// What is prepared on a returning pdisk and nowhere else is asked about: nobody else would ask whether its inode exists.
#[test]
fn what_only_a_returning_pdisk_has_is_asked_about() {
    let mine = holds(None, Some(3));
    for others in [seen(0, &[]), vec![Seen::Mine, Seen::Away, Seen::Away, Seen::Away, Seen::Away, Seen::Away]]
    {
        let judged = |record| super::judge(geometry(), 0, mine.as_ref(), &others, record);
        assert_eq!(judged(None), Verdict::Ask);
        assert_eq!(judged(Some(Owner::Nobody)), Verdict::Delete(Version::MAX));
        assert_ne!(judged(Some(Owner::Unrecorded)), Verdict::Ask);
        assert_eq!(super::judge(geometry(), 0, None, &others, None), Verdict::Fine);
    }
}

/// Nobody who counts can say; everybody answers.
#[test]
fn what_fits_enough_strips_is_adopted_where_nobody_who_counts_knows() {
    let two = Geometry::new("2way".parse().expect("a code"), 256 << 10);
    let both = |prepared| {
        holds(Some(2), prepared).map(|mut state| {
            state.adopted.iter_mut().chain(&mut state.prepared).for_each(|i| i.touched = StripSet(0b11));
            state
        })
    };
    let judged = |other: Seen, record| judge_with(two, both(Some(3)), other, record);
    assert_eq!(judged(Seen::Away, Some(Owner::Recorded)), Verdict::Later(Why::PerhapsDeleted));
    let returning = || Seen::Returning(both(None));
    assert_eq!(judged(returning(), None), Verdict::Ask);
    assert_eq!(judged(returning(), Some(Owner::Recorded)), Verdict::AdoptLeftover(v(3)));
    assert_eq!(judged(returning(), Some(Owner::Nobody)), Verdict::Delete(Version::MAX));
    assert_eq!(judged(Seen::Ok(both(None)), None), Verdict::DiscardLeftover(v(3)));
}

fn judge_with(geometry: Geometry, mine: Option<StripState>, other: Seen, record: Option<Owner>) -> Verdict {
    super::judge(geometry, 0, mine.as_ref(), &[Seen::Mine, other], record)
}

/// The data strips do not say yet what a damaged parity strip covers.
#[test]
fn damaged_parity_is_not_made_over_what_is_half_adopted() {
    let pool = Geometry::new("2+1p".parse().expect("a code"), 256 << 10);
    let mine = holds(Some(2), None).map(|state| StripState { lost: true, ..state });
    let others = |first| [Seen::Ok(first), Seen::Ok(holds(Some(2), None)), Seen::Mine];
    let judged = |first| super::judge(pool, 2, mine.as_ref(), &others(first), Some(Owner::Recorded));
    assert_eq!(judged(holds(Some(1), Some(2))), Verdict::Later(Why::Prepared));
    assert!(matches!(judged(holds(Some(2), None)), Verdict::Install(t) if t.covers == [Some(v(2)); 2]));
}

/// All three copies had it prepared; two were away while the block was cut. Both are back.
#[test]
fn what_was_cut_goes_where_it_is_only_prepared() {
    let copies = Geometry::new("3way".parse().expect("a code"), 256 << 10);
    let all = VersionInfo { touched: StripSet(0b111), ..info(v(1)) };
    let left = Some(StripState { prepared: Some(all), ..StripState::default() });
    let others = |second: fn(Option<StripState>) -> Seen| [Seen::Mine, Seen::Ok(None), second(left.clone())];
    assert_eq!(judge(copies, 0, left.as_ref(), &others(Seen::Returning)), Verdict::DiscardLeftover(v(1)));
    assert_eq!(judge(copies, 0, left.as_ref(), &others(|_| Seen::Away)), Verdict::DiscardLeftover(v(1)));
    // By the listing, before the record is asked.
    let listed = super::judge(copies, 0, left.as_ref(), &others(Seen::Returning), None);
    assert!(matches!(listed, Verdict::Ask | Verdict::DiscardLeftover(_)), "{listed:?}");
}
