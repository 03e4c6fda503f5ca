//! The rules of DESIGN "Stripe versions" that concern one strip: state and request in, decision out.
//! Pure: the store and the protocol model call the same functions.
//!
//! A strip has at most one adopted and one prepared version. Versions only grow. A seal refuses what
//! is below it, but does not stop the resolver from adopting or discarding what was prepared before.

use base::{Grant, Version, units::UNIT};
use wire::strip::{PrepareStrip, STRIP_LEN_MAX, StripRefusal, StripState};

/// What a prepare does. The adoption the request carries is done even if the rest is refused: the
/// writer has said that the version is complete, and that stays true.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PrepareDecision {
    /// First adopt this prepared version.
    pub adopt: Option<Version>,
    /// Then do this.
    pub then: Result<PrepareAction, StripRefusal>,
}

/// What to do with a prepare that is not refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PrepareAction {
    /// Store it as the prepared version.
    Store,
    /// It is here already (a repeated request): answer when that is durable.
    AlreadyHere,
}

/// What an adopt, discard or install does when it is not refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Change the strip.
    Apply,
    /// Nothing is left to do: answer when the present state is durable.
    AlreadyDone,
}

/// Whether a request agrees with itself: ranges, lengths, counts of CRCs.
pub fn well_formed(request: &PrepareStrip, payload_len: usize) -> Result<(), StripRefusal> {
    let unit = UNIT as u32;
    let len = request.info.len;
    if len > STRIP_LEN_MAX || !len.is_multiple_of(unit) || request.info.covers.len() > 32 {
        return Err(StripRefusal::Malformed);
    }
    if request.info.version == Version::ZERO || request.strip.index.0 >= 32 {
        return Err(StripRefusal::Malformed);
    }
    let mut end = 0u32;
    let mut total = 0usize;
    for range in &request.ranges {
        let aligned = range.offset.is_multiple_of(unit) && range.len.is_multiple_of(unit) && range.len > 0;
        let range_end = range.offset.checked_add(range.len).ok_or(StripRefusal::Malformed)?;
        if !aligned || range.offset < end || range_end > len {
            return Err(StripRefusal::Malformed);
        }
        end = range_end;
        total += range.len as usize;
    }
    let whole = request.base.is_some() || total == len as usize;
    if !whole || payload_len != total || request.crcs.len() != total / UNIT {
        return Err(StripRefusal::Malformed);
    }
    Ok(())
}

/// A writer stores a new version beside the adopted one.
pub fn prepare(state: &StripState, request: &PrepareStrip) -> PrepareDecision {
    let v = request.info.version;
    if state.sealed_below > v.grant {
        return PrepareDecision {
            adopt: None,
            then: Err(StripRefusal::Sealed { below: state.sealed_below }),
        };
    }
    let mut adopted = state.adopted.as_ref().map(|i| i.version);
    let mut prepared = state.prepared.as_ref().map(|i| i.version);
    let mut lost = state.lost;
    let adopt = request.adopt.filter(|a| prepared == Some(*a));
    if adopt.is_some() {
        adopted = prepared.take();
        // Whether the newly adopted bytes are damaged is not in the state; reading them tells.
        lost = false;
    }
    let then = if adopted == Some(v) || prepared == Some(v) {
        Ok(PrepareAction::AlreadyHere)
    } else if let Some(present) = adopted.filter(|a| v < *a) {
        Err(StripRefusal::NotNewer { present })
    } else if let Some(p) = prepared {
        Err(if v < p {
            StripRefusal::NotNewer { present: p }
        } else {
            StripRefusal::PreparedExists { prepared: p }
        })
    } else if request.base.is_some() && request.base != adopted {
        Err(StripRefusal::WrongBase { present: adopted })
    } else if request.base.is_some() && lost {
        Err(StripRefusal::Lost)
    } else {
        Ok(PrepareAction::Store)
    };
    PrepareDecision { adopt, then }
}

/// The writer or the resolver makes a prepared version the current one.
pub fn adopt(state: &StripState, version: Version) -> Result<Action, StripRefusal> {
    match (&state.adopted, &state.prepared) {
        (Some(a), _) if a.version == version => Ok(Action::AlreadyDone),
        (_, Some(p)) if p.version == version => Ok(Action::Apply),
        (Some(a), _) if a.version > version => Err(StripRefusal::NotNewer { present: a.version }),
        _ => Err(StripRefusal::Absent),
    }
}

/// The writer or the resolver drops a prepared version. An adopted one is never dropped so.
pub fn discard(state: &StripState, version: Version) -> Result<Action, StripRefusal> {
    match (&state.adopted, &state.prepared) {
        (Some(a), _) if a.version == version => Err(StripRefusal::NotNewer { present: a.version }),
        (_, Some(p)) if p.version == version => Ok(Action::Apply),
        _ => Ok(Action::AlreadyDone),
    }
}

/// The resolver refuses everything below its grant. A seal never falls.
pub fn seal(state: &StripState, below: Grant) -> Action {
    if below > state.sealed_below { Action::Apply } else { Action::AlreadyDone }
}

/// Rebuild, catch-up or repair stores a version that exists elsewhere and adopts it at once: only where
/// nothing equal or newer is, or over a lost copy of the same version.
pub fn install(state: &StripState, version: Version) -> Result<Action, StripRefusal> {
    if let Some(a) = &state.adopted {
        if a.version > version || a.version == version && !state.lost {
            return Err(StripRefusal::NotNewer { present: a.version });
        }
        if a.version == version {
            return Ok(Action::Apply);
        }
    }
    match &state.prepared {
        Some(p) if p.version >= version => Err(StripRefusal::NotNewer { present: p.version }),
        _ => Ok(Action::Apply),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::StripSet;
    use wire::strip::{Range, VersionInfo};

    fn v(grant: u64, seq: u64) -> Version {
        Version { grant: Grant(grant), seq }
    }
    fn info(version: Version) -> VersionInfo {
        VersionInfo { version, touched: StripSet(1), len: 8192, covers: vec![] }
    }
    fn state(adopted: Option<Version>, prepared: Option<Version>) -> StripState {
        StripState { adopted: adopted.map(info), prepared: prepared.map(info), ..StripState::default() }
    }
    fn request(version: Version, base: Option<Version>, adopt: Option<Version>) -> PrepareStrip {
        PrepareStrip {
            strip: Default::default(),
            pool: Default::default(),
            group: Default::default(),
            info: info(version),
            base,
            adopt,
            ranges: vec![Range { offset: 0, len: 8192 }],
            crcs: vec![0; 2],
        }
    }

    #[test]
    fn prepare_table() {
        use PrepareAction::*;
        use StripRefusal::*;
        let (v1, v2, v3) = (v(1, 1), v(1, 2), v(2, 1));
        let cases = [
            // adopted, prepared, version, base, adopt => adopt, then
            (None, None, v1, None, None, None, Ok(Store)),
            (None, None, v1, Some(v1), None, None, Err(WrongBase { present: None })),
            (Some(v1), None, v1, None, None, None, Ok(AlreadyHere)),
            (None, Some(v1), v1, None, None, None, Ok(AlreadyHere)),
            (Some(v2), None, v1, None, None, None, Err(NotNewer { present: v2 })),
            (Some(v1), Some(v2), v3, None, None, None, Err(PreparedExists { prepared: v2 })),
            (Some(v1), Some(v3), v2, None, None, None, Err(NotNewer { present: v3 })),
            (Some(v1), Some(v2), v3, Some(v2), Some(v2), Some(v2), Ok(Store)),
            (Some(v1), Some(v2), v3, Some(v1), Some(v2), Some(v2), Err(WrongBase { present: Some(v2) })),
            (Some(v1), None, v3, Some(v1), Some(v2), None, Ok(Store)),
            (Some(v1), Some(v2), v2, None, Some(v2), Some(v2), Ok(AlreadyHere)),
        ];
        for (a, p, version, base, adopt, adopted, then) in cases {
            let got = prepare(&state(a, p), &request(version, base, adopt));
            assert_eq!(
                got,
                PrepareDecision { adopt: adopted, then },
                "{a:?} {p:?} {version} {base:?} {adopt:?}"
            );
        }
    }

    #[test]
    fn a_seal_refuses_prepares_only() {
        let mut s = state(Some(v(1, 1)), Some(v(1, 2)));
        s.sealed_below = Grant(5);
        let sealed = Err(StripRefusal::Sealed { below: Grant(5) });
        assert_eq!(prepare(&s, &request(v(4, 9), None, Some(v(1, 2)))).then, sealed);
        assert_eq!(prepare(&s, &request(v(1, 2), None, None)).then, sealed);
        assert_eq!(adopt(&s, v(1, 2)), Ok(Action::Apply));
        assert_eq!(discard(&s, v(1, 2)), Ok(Action::Apply));
        assert_eq!(prepare(&s, &request(v(5, 1), None, Some(v(1, 2)))).then, Ok(PrepareAction::Store));
        assert_eq!((seal(&s, Grant(5)), seal(&s, Grant(6))), (Action::AlreadyDone, Action::Apply));
    }

    #[test]
    fn adopt_discard_install_table() {
        let (v1, v2, v3) = (v(1, 1), v(1, 2), v(2, 1));
        let s = state(Some(v2), Some(v3));
        assert_eq!(adopt(&s, v1), Err(StripRefusal::NotNewer { present: v2 }));
        assert_eq!(adopt(&s, v2), Ok(Action::AlreadyDone));
        assert_eq!(adopt(&s, v(9, 9)), Err(StripRefusal::Absent));
        assert_eq!(discard(&s, v2), Err(StripRefusal::NotNewer { present: v2 }));
        assert_eq!(discard(&s, v1), Ok(Action::AlreadyDone));
        assert_eq!(install(&s, v1), Err(StripRefusal::NotNewer { present: v2 }));
        assert_eq!(install(&s, v2), Err(StripRefusal::NotNewer { present: v2 }));
        assert_eq!(install(&s, v3), Err(StripRefusal::NotNewer { present: v3 }));
        assert_eq!(install(&s, v(9, 9)), Ok(Action::Apply));
        let lost = StripState { lost: true, ..s };
        assert_eq!(install(&lost, v2), Ok(Action::Apply));
        assert_eq!(install(&lost, v1), Err(StripRefusal::NotNewer { present: v2 }));
    }

    #[test]
    fn malformed_requests() {
        let good = request(v(1, 1), None, None);
        assert_eq!(well_formed(&good, 8192), Ok(()));
        let bad: [&dyn Fn(&mut PrepareStrip); 7] = [
            &|r| r.info.len = 4096,
            &|r| r.info.len = 8193,
            &|r| r.ranges[0].offset = 4096,
            &|r| r.ranges[0].len = 4096,
            &|r| r.crcs.push(0),
            &|r| r.info.version = Version::ZERO,
            &|r| r.ranges = vec![Range { offset: 4096, len: 4096 }, Range { offset: 0, len: 4096 }],
        ];
        for (i, change) in bad.iter().enumerate() {
            let mut r = good.clone();
            change(&mut r);
            assert_eq!(well_formed(&r, 8192), Err(StripRefusal::Malformed), "case {i}");
        }
        assert_eq!(well_formed(&good, 4096), Err(StripRefusal::Malformed));
    }
}
