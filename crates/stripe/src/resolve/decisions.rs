//! Resolution of one stripe after an unclean end of its writer: pure decisions.
//!
//! The states are taken after sealing, so that nothing of the dead writer can arrive any more. The newest
//! prepared version is decided first: forward if any strip holds it adopted, or if K strips fit it; back only
//! if a touched strip on an `ok` pdisk proves that it never had it (then it was never acknowledged);
//! otherwise the block is unavailable, and said to be. The same question is asked again until nothing is
//! prepared.
//!
//! With that proof, what only pdisks hold that are catching up goes back even if K strips fit it: while they were away
//! the writer's end was decided without them, and others have read the block as it was before.
//!
//! *What was acknowledged never goes back.* A write is acknowledged when each touched strip is stored on its pdisk, if that is `ok`
//! or catching up. There it stays, adopted or prepared, until a later version takes its place, which is adopted by then or
//! itself the newest that is prepared, or until the block is deleted. A pdisk that was away begins to count, and a group is
//! switched to where a strip moves, only when the strip is as the version has it: who judges that waits for a version that may be
//! complete, wherever it is held (`nsd::judge`). So where a touched strip on an `ok` pdisk lacks the version, that pdisk counted to
//! the write's end, or was catching up, and never stored it: the write was still waiting for it.

use std::fmt;

use base::{StripIndex, StripSet, Version};
use wire::{
    map::PdiskState,
    strip::{StripState, VersionInfo},
};

use crate::{geometry::Geometry, target::StripeTarget};

/// One strip as the resolver sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Member {
    /// On an `ok` pdisk.
    Ok(StripState),
    /// On a pdisk that is catching up: what it holds is real, what it lacks proves nothing.
    Returning(StripState),
    /// Not to be asked.
    Away(PdiskState),
}

impl Member {
    fn state(&self) -> Option<&StripState> {
        match self {
            Member::Ok(state) | Member::Returning(state) => Some(state),
            Member::Away(_) => None,
        }
    }
    fn is_ok(&self) -> bool {
        matches!(self, Member::Ok(_))
    }
    fn prepared(&self) -> Option<&VersionInfo> {
        self.state()?.prepared.as_ref()
    }
    /// What it holds adopted and undamaged.
    fn adopted(&self) -> Option<&VersionInfo> {
        self.state().filter(|s| !s.lost)?.adopted.as_ref()
    }
    fn adopted_version(&self) -> Option<Version> {
        self.state()?.adopted.as_ref().map(|i| i.version)
    }
    fn holds(&self, version: Version) -> bool {
        self.prepared().is_some_and(|i| i.version == version)
            || self.adopted().is_some_and(|i| i.version == version)
    }
}

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Nothing is left to decide.
    Clean,
    /// The version counts.
    Forward {
        /// The version.
        version: Version,
        /// Make these prepared versions the current ones.
        adopt: Vec<(StripIndex, Version)>,
        /// Then drop these.
        discard: Vec<(StripIndex, Version)>,
        /// Then make these strips anew, from `target`.
        install: Vec<StripIndex>,
        /// The whole stripe at that version, where it is known.
        target: Option<StripeTarget>,
    },
    /// The version never counted: drop it.
    Back {
        /// The version.
        version: Version,
        /// Where it is.
        discard: Vec<(StripIndex, Version)>,
    },
    /// It cannot be known.
    Unavailable {
        /// The version.
        version: Version,
        /// Why not.
        reason: Undecided,
    },
}

/// Why a version can be decided neither forward nor back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Undecided {
    /// Strips that fit the version.
    pub fit: StripSet,
    /// How many are needed.
    pub need: u8,
    /// Strips it touches that cannot be asked or are damaged.
    pub unknown: StripSet,
}

impl fmt::Display for Undecided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "strips {:?} fit it, {} are needed, and of the strips it touches {:?} are out of reach or damaged",
            self.fit, self.need, self.unknown
        )
    }
}

/// Decides about the newest prepared version of a stripe.
pub fn decide(geometry: Geometry, members: &[Member]) -> Decision {
    let Some(newest) = members.iter().filter_map(Member::prepared).max_by_key(|i| i.version) else {
        return Decision::Clean;
    };
    let version = newest.version;
    let touched = newest.touched;
    match members.iter().filter_map(Member::adopted_version).max() {
        Some(adopted) if adopted > version => return settle_older(geometry, members, adopted),
        _ => {}
    }

    let covers = covers_of(geometry, members, version).cloned();
    let fit = fitting(geometry, members, version, touched, covers.as_ref());
    let covers = covers.or_else(|| derived_covers(geometry, members, version, touched, fit));
    let adopted_somewhere = members.iter().any(|m| m.adopted_version() == Some(version));
    let proves = |i: StripIndex| match &members[usize::from(i.0)] {
        Member::Ok(state) => {
            // Of damaged bytes the version is known.
            let has = state.prepared.as_ref().is_some_and(|p| p.version == version)
                || state.adopted.as_ref().is_some_and(|a| a.version >= version);
            !has
        }
        _ => false,
    };
    let touched_here = || touched.iter().filter(|i| usize::from(i.0) < members.len());
    let lacked = touched_here().any(proves);
    let counts = !lacked || members.iter().any(|m| m.is_ok() && m.holds(version));
    if adopted_somewhere || counts && fit.count() >= u32::from(geometry.code.data()) {
        return forward(geometry, members, newest.clone(), covers);
    }
    if lacked {
        return Decision::Back { version, discard: holders(members, version) };
    }
    let unknown = touched_here().filter(|i| !members[usize::from(i.0)].holds(version)).collect();
    Decision::Unavailable { version, reason: Undecided { fit, need: geometry.code.data(), unknown } }
}

/// What to do with a version prepared where a strip is on its way to, when nothing is left to decide
/// among the members: it is made current if it is what the member's strip is, and dropped otherwise.
/// The new place is no member: it was needed for every acknowledgement, so the members know better.
/// `None` if the members do not tell (then nothing is done, and the move does not end).
pub fn decide_moved(
    geometry: Geometry,
    members: &[Member],
    index: StripIndex,
    moved: &StripState,
) -> Option<Moved> {
    let prepared = moved.prepared.as_ref()?.version;
    let at = usize::from(index.0);
    let parity = geometry.replicated() || at >= geometry.k();
    let own = members.get(at).filter(|m| m.is_ok()).and_then(|m| m.adopted().map(|a| a.version));
    let first = if geometry.replicated() { 0 } else { geometry.k() };
    let reference = || members.get(first..)?.iter().filter_map(Member::adopted).max_by_key(|i| i.version);
    let current = own.or_else(|| match reference() {
        Some(r) if parity => Some(r.version),
        Some(r) => r.covers.get(at).copied().flatten(),
        None => None,
    });
    match current {
        Some(current) if current == prepared => Some(Moved::Adopt(prepared)),
        Some(_) => Some(Moved::Discard(prepared)),
        // Every `ok` member says that there is nothing: the version was never complete.
        None if members.iter().all(|m| matches!(m, Member::Ok(s) if !s.lost)) => {
            Some(Moved::Discard(prepared))
        }
        None => None,
    }
}

/// See [`decide_moved`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moved {
    /// Make it the current version there.
    Adopt(Version),
    /// Drop it there.
    Discard(Version),
}

fn holders(members: &[Member], version: Version) -> Vec<(StripIndex, Version)> {
    let holder = |(i, m): (usize, &Member)| {
        m.prepared().filter(|p| p.version == version).map(|_| (StripIndex(i as u8), version))
    };
    members.iter().enumerate().filter_map(holder).collect()
}

/// What the parity of `version` covers, if any parity in reach holds it.
fn covers_of(geometry: Geometry, members: &[Member], version: Version) -> Option<&Vec<Option<Version>>> {
    if geometry.replicated() {
        return None;
    }
    let infos = members[geometry.k()..].iter().flat_map(|m| [m.prepared(), m.adopted()]).flatten();
    infos.filter(|i| i.version == version).map(|i| &i.covers).next()
}

/// Strips that fit `version`: touched ones that hold it, and untouched ones that hold what it covers.
fn fitting(
    geometry: Geometry,
    members: &[Member],
    version: Version,
    touched: StripSet,
    covers: Option<&Vec<Option<Version>>>,
) -> StripSet {
    let fits = |i: &StripIndex| {
        let at = usize::from(i.0);
        let Some(member) = members.get(at) else { return false };
        if touched.contains(*i) {
            return member.holds(version);
        }
        match covers.and_then(|c| c.get(at)) {
            Some(None) => true, // never written: zeros
            Some(Some(covered)) => member.holds(*covered),
            // No parity says it. The version was prepared only when the one before was complete, so an
            // untouched strip on an `ok` pdisk is what it should be.
            None => matches!(member, Member::Ok(state) if !state.lost),
        }
    };
    geometry.all().filter(fits).collect()
}

/// What parity of `version` would cover, if no parity holds it but all data strips fit it.
fn derived_covers(
    geometry: Geometry,
    members: &[Member],
    version: Version,
    touched: StripSet,
    fit: StripSet,
) -> Option<Vec<Option<Version>>> {
    if geometry.replicated() || !fit.contains_all(geometry.data()) {
        return None;
    }
    let current = |i: StripIndex| {
        if touched.contains(i) {
            return Some(version);
        }
        let member = &members[usize::from(i.0)];
        member.prepared().or(member.adopted()).map(|info| info.version)
    };
    Some(geometry.data().iter().map(current).collect())
}

fn forward(
    geometry: Geometry,
    members: &[Member],
    newest: VersionInfo,
    covers: Option<Vec<Option<Version>>>,
) -> Decision {
    let version = newest.version;
    let mut adopt = holders(members, version);
    let mut discard = Vec::new();
    let mut install = Vec::new();
    let mut longest = newest.len;
    for (i, member) in members.iter().enumerate() {
        let index = StripIndex(i as u8);
        longest = longest.max(member.prepared().map_or(0, |p| p.len));
        longest = longest.max(member.adopted().map_or(0, |a| a.len));
        let older = member.prepared().map(|p| p.version).filter(|p| *p < version);
        if newest.touched.contains(index) {
            if member.is_ok() && !member.holds(version) {
                discard.extend(older.map(|p| (index, p)));
                install.push(index);
            }
            continue;
        }
        // An untouched strip with an older prepared version: complete if the parity covers it.
        match (older, covers.as_ref().and_then(|c| c.get(i))) {
            (Some(p), Some(Some(covered))) if *covered == p => adopt.push((index, p)),
            (Some(p), Some(_)) => discard.push((index, p)),
            _ => {}
        }
    }
    let target = match (&covers, geometry.replicated()) {
        (_, true) => Some(Vec::new()),
        (Some(covers), _) => Some(covers.clone()),
        (None, _) => None,
    }
    .map(|covers| StripeTarget { version, covers, touched: newest.touched, len: longest });
    if target.is_none() {
        install.clear();
    }
    Decision::Forward { version, adopt, discard, install, target }
}

/// A version newer than all prepared ones is adopted somewhere: it is complete, and so was, or dropped,
/// everything before it. What is still prepared is current on its strip, or left over.
fn settle_older(geometry: Geometry, members: &[Member], newest: Version) -> Decision {
    let reference = members
        .get(geometry.k()..)
        .unwrap_or_default()
        .iter()
        .filter_map(Member::adopted)
        .filter(|_| !geometry.replicated())
        .max_by_key(|i| i.version);
    let (mut adopt, mut discard) = (Vec::new(), Vec::new());
    for (i, member) in members.iter().enumerate() {
        let Some(prepared) = member.prepared().map(|p| p.version) else { continue };
        let index = StripIndex(i as u8);
        let parity = geometry.replicated() || i >= geometry.k();
        match reference {
            _ if parity => discard.push((index, prepared)),
            Some(r) if r.version > prepared => {
                let current = r.covers.get(i).copied().flatten() == Some(prepared);
                if current { adopt.push((index, prepared)) } else { discard.push((index, prepared)) }
            }
            _ if member.is_ok() => adopt.push((index, prepared)),
            _ => {}
        }
    }
    if adopt.is_empty() && discard.is_empty() {
        return Decision::Clean;
    }
    Decision::Forward { version: newest, adopt, discard, install: Vec::new(), target: None }
}
