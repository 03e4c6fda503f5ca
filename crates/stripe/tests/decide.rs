//! Properties of the resolver's decisions over any states a stripe could be found in, also ones that no
//! history leads to.
#![allow(clippy::unwrap_used)] // tests

use base::{Grant, StripIndex, StripSet, Version};
use proptest::prelude::*;
use stripe::{
    Geometry,
    resolve::{Decision, Member, decide},
};
use wire::{
    map::PdiskState,
    strip::{StripState, VersionInfo},
};

const VERSIONS: usize = 4;

/// What a strip is found with: kind of member, numbers of the adopted and the prepared version, damaged.
type Found = (u8, Option<usize>, Option<usize>, bool);

#[derive(Debug, Clone)]
struct Stage {
    geometry: Geometry,
    members: Vec<Member>,
}

/// The same version says the same everywhere; a strip holds only versions that touch it, the prepared one
/// newer than the adopted one.
fn stage() -> impl Strategy<Value = Stage> {
    let code = proptest::sample::select(vec!["2+1p", "4+2p", "3way"]);
    let versions = proptest::collection::vec((any::<u32>(), any::<[u8; 4]>()), VERSIONS);
    let held = || proptest::option::of(0..VERSIONS);
    let strip = (0..10u8, held(), held(), (0..8u8).prop_map(|n| n == 0));
    let strips = proptest::collection::vec(strip, 6);
    (code, versions, strips).prop_map(|(code, versions, strips)| {
        let geometry = Geometry::new(code.parse().unwrap(), 256 << 10);
        let of = |n: usize| version_info(geometry, n, versions[n]);
        let strips = strips.into_iter().take(geometry.width()).enumerate();
        Stage { geometry, members: strips.map(|(i, found)| member(i, found, &of)).collect() }
    })
}

fn version(n: usize) -> Version {
    Version { grant: Grant(1), seq: n as u64 + 1 }
}

fn version_info(geometry: Geometry, n: usize, (touched, covers): (u32, [u8; 4])) -> VersionInfo {
    // Parity, or every copy, is always touched.
    let all = StripSet::first(geometry.code.width()).0;
    let always = if geometry.replicated() { all } else { geometry.parity().0 };
    let touched = StripSet(always | all & touched);
    let mut info = VersionInfo { version: version(n), touched, len: 4096, ..VersionInfo::default() };
    if !geometry.replicated() {
        let covered = |i: usize| match touched.contains(StripIndex(i as u8)) {
            true => Some(version(n)),
            false => (usize::from(covers[i]) % (n + 1)).checked_sub(1).map(version),
        };
        info.covers = (0..geometry.k()).map(covered).collect();
    }
    info
}

fn member(i: usize, (kind, adopted, prepared, lost): Found, of: &dyn Fn(usize) -> VersionInfo) -> Member {
    let held = |n: Option<usize>| n.map(of).filter(|info| info.touched.contains(StripIndex(i as u8)));
    let adopted = held(adopted);
    let newer = |p: &VersionInfo| adopted.as_ref().is_none_or(|a| a.version < p.version);
    let prepared = held(prepared).filter(newer);
    let state = StripState { adopted, prepared, lost, ..StripState::default() };
    match kind {
        0 | 1 => Member::Away(PdiskState::Missing),
        2 => Member::Returning(state),
        _ => Member::Ok(state),
    }
}

fn state(member: &Member) -> Option<&StripState> {
    match member {
        Member::Ok(state) | Member::Returning(state) => Some(state),
        Member::Away(_) => None,
    }
}

fn state_mut(member: &mut Member) -> Option<&mut StripState> {
    match member {
        Member::Ok(state) | Member::Returning(state) => Some(state),
        Member::Away(_) => None,
    }
}

fn prepared(member: &Member) -> Option<Version> {
    Some(state(member)?.prepared.as_ref()?.version)
}

fn adopted(member: &Member) -> Option<Version> {
    Some(state(member)?.adopted.as_ref()?.version)
}

fn count(members: &[Member]) -> usize {
    members.iter().filter_map(prepared).count()
}

fn newest(members: &[Member]) -> Option<VersionInfo> {
    let infos = members.iter().filter_map(|m| state(m)?.prepared.clone());
    infos.max_by_key(|info| info.version)
}

/// Carries a decision out, as pdisks would; each strip named must have prepared what is said of it.
fn carry_out(members: &mut [Member], adopt: &[(StripIndex, Version)], discard: &[(StripIndex, Version)]) {
    for (i, v) in adopt.iter().chain(discard) {
        assert_eq!(prepared(&members[usize::from(i.0)]), Some(*v), "{i:?}");
    }
    for (i, _) in adopt {
        let state = state_mut(&mut members[usize::from(i.0)]).unwrap();
        state.adopted = state.prepared.take();
    }
    for (i, _) in discard {
        let taken = state_mut(&mut members[usize::from(i.0)]).unwrap().prepared.take();
        assert!(taken.is_some(), "{i:?} is adopted and dropped");
    }
}

/// A write that its dead writer stored on one strip, whose pdisk was away when the writer's end was decided: others have read the
/// block without it since.
#[test]
fn what_only_a_pdisk_that_is_back_holds_goes_back() {
    for code in ["2+1p", "4+2p", "2way", "3way"] {
        let geometry = Geometry::new(code.parse().unwrap(), 256 << 10);
        let before = version_info(geometry, 2, (u32::MAX, [0; 4]));
        let begun = VersionInfo { covers: Vec::new(), ..version_info(geometry, 3, (1, [3; 4])) };
        let with = |prepared| StripState { adopted: Some(before.clone()), prepared, ..StripState::default() };
        let mut members = vec![Member::Ok(with(None)); geometry.width()];
        members[0] = Member::Returning(with(Some(begun.clone())));
        let back = Decision::Back { version: version(3), discard: vec![(StripIndex(0), version(3))] };
        assert_eq!(decide(geometry, &members), back, "{code}");

        // Nobody says that it was not stored where it had to be: it may have been acknowledged.
        let stored = Member::Ok(with(Some(begun.clone())));
        let mut acknowledged = members.clone();
        for i in begun.touched.iter().skip(1) {
            acknowledged[usize::from(i.0)] = stored.clone();
        }
        let decision = decide(geometry, &acknowledged);
        assert!(matches!(decision, Decision::Forward { .. }), "{code}: {decision:?}");
        for i in begun.touched.iter().skip(1) {
            members[usize::from(i.0)] = Member::Away(PdiskState::Missing);
        }
        let decision = decide(geometry, &members);
        assert!(!matches!(decision, Decision::Back { .. }), "{code}: {decision:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Every decision takes something prepared away, so that asking again comes to an end.
    #[test]
    fn asking_again_ends(stage in stage()) {
        let Stage { geometry, mut members } = stage;
        for _ in 0..=geometry.width() {
            let before = count(&members);
            match decide(geometry, &members) {
                Decision::Clean | Decision::Unavailable { .. } => return Ok(()),
                Decision::Forward { adopt, discard, .. } => carry_out(&mut members, &adopt, &discard),
                Decision::Back { discard, .. } => carry_out(&mut members, &[], &discard),
            }
            prop_assert!(count(&members) < before);
        }
        prop_assert!(false, "no end");
    }

    /// Back only with proof: a touched strip on an `ok` pdisk that never had the version, damaged or not, and
    /// nobody who made it current. So what was acknowledged never goes back.
    #[test]
    fn back_needs_proof(stage in stage()) {
        let Stage { geometry, members } = stage;
        let Some(info) = newest(&members) else { return Ok(()) };
        if let Decision::Back { version, discard } = decide(geometry, &members) {
            prop_assert_eq!(version, info.version);
            prop_assert!(discard.iter().all(|(_, v)| *v == version));
            prop_assert!(members.iter().all(|m| adopted(m) != Some(version)));
            let proof = |(i, m): (usize, &Member)| {
                matches!(m, Member::Ok(_)) && info.touched.contains(StripIndex(i as u8))
                    && prepared(m) != Some(version) && adopted(m) < Some(version)
            };
            prop_assert!(members.iter().enumerate().any(proof));
        }
    }

    /// Forward only what a pdisk that counts holds, or what none of these says it never had, or what somebody made current.
    #[test]
    fn forward_needs_a_pdisk_that_counts(stage in stage()) {
        let Stage { geometry, members } = stage;
        let Some(info) = newest(&members) else { return Ok(()) };
        if let Decision::Forward { version, .. } = decide(geometry, &members)
            && version == info.version
            && members.iter().all(|m| adopted(m) != Some(version))
        {
            let counts = |m: &Member| matches!(m, Member::Ok(_));
            let lacks = |(i, m): (usize, &Member)| {
                counts(m) && info.touched.contains(StripIndex(i as u8)) && prepared(m) != Some(version)
            };
            let held = members.iter().any(|m| counts(m) && prepared(m) == Some(version));
            prop_assert!(held || !members.iter().enumerate().any(lacks));
        }
    }

    /// A version that is everywhere where it has to be for an acknowledgement is never dropped anywhere.
    #[test]
    fn what_was_acknowledged_stays(stage in stage()) {
        let Stage { geometry, mut members } = stage;
        let Some(info) = newest(&members) else { return Ok(()) };
        prop_assume!(members.iter().filter_map(adopted).all(|a| a <= info.version));
        for (i, member) in members.iter_mut().enumerate() {
            if let (true, Member::Ok(state)) = (info.touched.contains(StripIndex(i as u8)), member)
                && state.adopted.as_ref().is_none_or(|a| a.version < info.version)
            {
                (state.prepared, state.lost) = (Some(info.clone()), false);
            }
        }
        let dropped = match decide(geometry, &members) {
            Decision::Back { .. } => true,
            Decision::Forward { discard, .. } => discard.iter().any(|(_, v)| *v == info.version),
            Decision::Clean | Decision::Unavailable { .. } => false,
        };
        prop_assert!(!dropped);
    }

    /// Forward stays forward when a pdisk that was away turns out to hold the version.
    #[test]
    fn more_evidence_turns_nothing_back(stage in stage(), which in 0usize..6) {
        let Stage { geometry, mut members } = stage;
        let (Some(info), Decision::Forward { version, .. }) = (newest(&members), decide(geometry, &members))
        else {
            return Ok(());
        };
        let at = which % geometry.width();
        let away = matches!(members[at], Member::Away(_)) && info.touched.contains(StripIndex(at as u8));
        // Without parity in reach the resolver takes an untouched strip for what the version covers: it was
        // prepared only when the one before was complete. So only states in which that is true.
        let covered = |(i, m): (usize, &Member)| match m {
            Member::Ok(state) if !state.lost && !info.touched.contains(StripIndex(i as u8)) => {
                let wanted = info.covers.get(i).copied().flatten();
                wanted.is_none() || [prepared(m), adopted(m)].contains(&wanted)
            }
            _ => true,
        };
        if version != info.version || !away || !members.iter().enumerate().all(covered) {
            return Ok(());
        }
        members[at] = Member::Ok(StripState { prepared: Some(info), ..StripState::default() });
        let decision = decide(geometry, &members);
        prop_assert!(
            matches!(&decision, Decision::Forward { version: v, .. } if *v == version), "{decision:?}"
        );
    }
}
