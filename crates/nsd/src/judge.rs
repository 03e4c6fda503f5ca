//! What to do about one strip of a pdisk that is catching up, or of one that found it damaged: pure
//! decisions over the states of all strips of the stripe, and, where these do not say enough, over what the manager's
//! record says of the block.
//!
//! The newest adopted parity (or copy) on an `ok` pdisk says what the strip should be. A strip is made
//! anew, adopted or deleted only to become that; while a version is on its way that this pdisk does not
//! hold as well, the stripe is looked at again later.
//!
//! *What is prepared here and newer than what the `ok` pdisks have adopted.* The writer forgets what it was to adopt on a pdisk
//! that ceases to count. So such a version may be complete, acknowledged and forgotten here, while the others have not
//! adopted it yet: taken for settled, the strip would be read as what it was before. What decides is this. Of a complete
//! version every touched strip on an `ok` pdisk is adopted there, or prepared there and known to its writer (or to the resolution that is due):
//! it was stored on all that counted, and who began to count since did so by these verdicts. At least one touched strip is on an `ok` pdisk,
//! since no more than M are away and every version touches M+1.
//! - *An `ok` pdisk lacks a strip of it:* it is not complete. If it is still to be, its writer counts only what is answered in
//!   this life of the pdisk, and adopts it here. If no `ok` pdisk has it, it goes, unless this life began it.
//! - *Otherwise* the strip waits ([`Why::Held`]) until the `ok` pdisks have adopted or dropped it, which those who know it do in bounded
//!   time. A later version in its place need not be waited for: it came in this life, so its writer knows it.
//!
//! Where no `ok` pdisk knows, two things can have happened: the block was deleted, or more pdisks came back than the code
//! bears the loss of. The strips cannot tell these apart, the manager's record can. What is done then:
//! - *The inode does not exist.* Its number is never given again, so this stays true, and everything of it goes.
//! - *The record does not name the block, and a strip that the version here was stored with is gone from an `ok` pdisk.*
//!   Only a delete takes an adopted strip away, and it takes all of its block up to a version; what of the block is above
//!   that was begun after it and covers nothing from before. So the version here goes, and nothing newer.
//! - *Otherwise* nothing is taken for deleted. When every other strip answers, from `ok` or from returning pdisks, the newest
//!   of them is the last that was complete: a complete version was stored on every touched strip that counted, and
//!   what counted then is here or there now. A strip that cannot be that version, since fewer than K are left of it, is given up:
//!   it is absent, so that it is never read, and its pdisk need not wait for it.
//!
//! *Beyond M, one after the other.* Where no `ok` pdisk has a touched strip, nobody says whether what is only prepared is complete. When
//! everybody answers, and as many strips fit it as one that is complete has, it counts ([`Verdict::AdoptLeftover`]); the others wait
//! until it is adopted. With fewer it goes. While somebody is away, or what is damaged may tell once it is made anew, it is held. A pdisk
//! waits for its group's others as long as no `ok` one is sure to know of every block ([`vouched`]).

mod complete;

use base::{StripIndex, Version};
use complete::Fit;
use stripe::{Geometry, StripeTarget};
use thiserror::Error;
use wire::{
    map::PdiskState,
    owned::Owner,
    strip::{StripState, VersionInfo},
};

/// Another strip of the stripe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seen {
    /// On an `ok` pdisk; `None` if it holds nothing.
    Ok(Option<StripState>),
    /// On a pdisk that is catching up: what it holds is real, what it lacks proves nothing.
    Returning(Option<StripState>),
    /// Not to be asked: what it holds is not known here.
    Away,
    /// The strip that is judged.
    Mine,
}

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is what it should be.
    Fine,
    /// The current version is here, prepared.
    Adopt(Version),
    /// This prepared version is left over.
    Discard(Version),
    /// Make it anew from the others.
    Install(StripeTarget),
    /// It should not be: remove what is at most this version.
    Delete(Version),
    /// Only this prepared version is anywhere: it goes if an earlier life of the pdisk left it, and stays
    /// if it is the beginning of a write.
    DiscardLeftover(Version),
    /// This prepared version is proven complete by what everybody holds: it is adopted if an earlier life of the pdisk left
    /// it. What this life began its writer knows.
    AdoptLeftover(Version),
    /// What the manager's record says of the block decides.
    Ask,
    /// The current version cannot be made of the other strips: fewer than K of it are left anywhere. What is here of an older
    /// one can never count again. A strip that moves may still be had from where it comes from.
    Hopeless(Option<Version>, StripeTarget),
    /// Not to be told yet.
    Later(Why),
}

/// Why a strip cannot be judged yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Why {
    /// A version is on its way that is not here.
    #[error("a version is on its way that is not here")]
    Prepared,
    /// This version is here, prepared, and may be complete.
    #[error("version {0} is here, prepared, and may be complete")]
    Held(Version),
    /// No parity on an `ok` pdisk, and not every other strip can be asked.
    #[error("not every other strip can be asked, and there is no parity that is up to date")]
    NoReference,
    /// Only here, and not every other pdisk can say that it should not be.
    #[error("it is only here, and not every other pdisk can say that it should not be")]
    PerhapsDeleted,
    /// Newer than the others: they were asked too early.
    #[error("the others were asked too early")]
    Newer,
    /// Nobody names it, and who would is away.
    #[error("those who know what there is are away")]
    Unnamed,
}

/// What is complete there. Of damaged bytes the version is known all the same.
fn adopted(state: &StripState) -> Option<&VersionInfo> {
    state.adopted.as_ref()
}

/// Whether this version is there, or a later one.
fn holds(state: &StripState, version: Version) -> bool {
    state.prepared.as_ref().is_some_and(|p| p.version == version)
        || adopted(state).is_some_and(|a| a.version >= version)
}

fn present(state: &StripState) -> bool {
    state.adopted.is_some() || state.prepared.is_some()
}

/// Judges strip `me`; `mine` is its state here, `others` those of all strips in order. A strip that moves and is
/// the only one of its stripe has the one it is made from beside it. `record` is what the manager said after these were asked;
/// `None`: it was not asked, which [`Verdict::Ask`] demands.
pub fn judge(
    geometry: Geometry,
    me: usize,
    mine: Option<&StripState>,
    others: &[Seen],
    record: Option<Owner>,
) -> Verdict {
    let mine = mine.filter(|s| present(s));
    if record == Some(Owner::Nobody) {
        return if mine.is_some() { Verdict::Delete(Version::MAX) } else { Verdict::Fine };
    }
    let begun = |seen: &Seen| matches!(seen, Seen::Ok(Some(state)) if state.prepared.is_some());
    let verdict = by_strips(geometry, me, mine, others, record);
    match (&verdict, record) {
        // Whoever knows that version settles it.
        (Verdict::Later(Why::Held(_)), None) if others.iter().any(begun) => verdict,
        // An inode that is gone settles whatever waits, and nothing is made of it.
        (
            Verdict::Install(_) | Verdict::AdoptLeftover(_) | Verdict::Later(_) | Verdict::Hopeless(..),
            None,
        ) => Verdict::Ask,
        _ => verdict,
    }
}

/// Whether `ok` pdisks other than that of strip `me` are sure to know of every block of a group: then what none of them names is
/// not there. Every version writes all parity, or all copies, and some data.
pub fn vouched(geometry: Geometry, me: usize, state: impl Fn(usize) -> PdiskState) -> bool {
    let ok = |i: usize| i != me && state(i) == PdiskState::Ok;
    let first = if geometry.replicated() { 0 } else { geometry.k() };
    (first..geometry.width()).any(ok) || first > 0 && (0..first).all(ok)
}

/// Whether those who can be asked name every block that has a strip `me`: only then is what none of them names not there, and
/// the group complete without it. `moves`: it is on its way to another place than its member's; `gone`: nothing of that
/// pdisk is to be waited for.
///
/// Others vouch for it ([`vouched`]), or there is nobody left who could know more: all who are not given up are written to, and
/// asked. A strip that moves has its member beside them. That holds blocks which perhaps no other pdisk was ever told of (they
/// were written while those were away), and loses them when the group is switched. So it has to be given up as well;
/// as long as it is not, others must vouch. The only strip of its stripe is made from the member itself, which is listed.
pub fn all_named(
    geometry: Geometry,
    me: usize,
    moves: bool,
    state: impl Fn(usize) -> PdiskState,
    gone: impl Fn(usize) -> bool,
) -> bool {
    if vouched(geometry, me, &state) {
        return true;
    }
    if moves && !gone(me) {
        return geometry.width() == 1 && state(me) == PdiskState::Ok;
    }
    (0..geometry.width()).filter(|i| *i != me).all(|i| state(i).written() || gone(i))
}

fn by_strips(
    geometry: Geometry,
    me: usize,
    mine: Option<&StripState>,
    others: &[Seen],
    record: Option<Owner>,
) -> Verdict {
    if others.iter().all(|s| matches!(s, Seen::Mine)) {
        // One strip a stripe: a version that is prepared here is complete, and its writer, if it lives, has ceased to
        // adopt it when the pdisk ceased to count.
        let newest = mine.filter(|m| !m.lost).and_then(|m| m.prepared.as_ref()).map(|p| p.version);
        let have = mine.and_then(|m| m.adopted.as_ref()).map(|a| a.version);
        return newest.filter(|p| have < Some(*p)).map_or(Verdict::Fine, Verdict::Adopt);
    }
    let stripe = Stripe::new(geometry, me, mine, others, record);

    // A version on its way that this strip is part of and does not hold.
    let index = StripIndex(me as u8);
    let held = |v: Version| mine.is_some_and(|m| holds(m, v));
    if stripe.on_its_way().any(|p| p.touched.contains(index) && !held(p.version)) {
        return Verdict::Later(Why::Prepared);
    }
    // A damaged strip of a version that is not adopted everywhere yet: what it covers cannot be told from what is.
    if mine.is_some_and(|m| m.lost) && stripe.on_its_way().any(|p| Some(p.version) <= stripe.have()) {
        return Verdict::Later(Why::Prepared);
    }
    let target = stripe.target();
    // A version on its way that begins the block anew, and covers nothing of what is here, or would be made here.
    let wanted = target.as_ref().is_none_or(|t| t.version_of(index).is_some());
    let anew = |p: &VersionInfo| {
        let newer = target.as_ref().is_none_or(|t| p.version > t.version);
        newer && !p.touched.contains(index) && p.covers.get(me) == Some(&None)
    };
    if wanted && stripe.on_its_way().any(anew) {
        return Verdict::Later(Why::Prepared);
    }
    let verdict = match target {
        Some(target) => stripe.settle(target),
        None => stripe.without_reference(record),
    };
    match (&verdict, stripe.have()) {
        (Verdict::Later(_), Some(have)) if record == Some(Owner::Unrecorded) && stripe.removed_since() => {
            Verdict::Delete(have)
        }
        // The block is not deleted, so that strip was given up. What is here is newer than all that is left, and stays.
        (Verdict::Later(Why::Newer), Some(_)) if record.is_some() && stripe.removed_since() => Verdict::Fine,
        _ => verdict,
    }
}

/// The stripe as its strip `me` sees it.
struct Stripe<'a> {
    geometry: Geometry,
    me: usize,
    mine: Option<&'a StripState>,
    others: &'a [Seen],
    /// What `ok` pdisks hold.
    ok: Vec<Option<&'a StripState>>,
    /// What is known to be held anywhere, here included.
    known: Vec<Option<&'a StripState>>,
    record: Option<Owner>,
}

impl<'a> Stripe<'a> {
    fn new(
        geometry: Geometry,
        me: usize,
        mine: Option<&'a StripState>,
        others: &'a [Seen],
        record: Option<Owner>,
    ) -> Stripe<'a> {
        let held = |state: &'a Option<StripState>| state.as_ref().filter(|s| present(s));
        let ok = |seen: &'a Seen| match seen {
            Seen::Ok(state) => held(state),
            _ => None,
        };
        let known = |seen: &'a Seen| match seen {
            Seen::Ok(state) | Seen::Returning(state) => held(state),
            Seen::Mine => mine,
            Seen::Away => None,
        };
        let (ok, known) = (others.iter().map(ok).collect(), others.iter().map(known).collect());
        Stripe { geometry, me, mine, others, ok, known, record }
    }

    fn have(&self) -> Option<Version> {
        Some(self.mine?.adopted.as_ref()?.version)
    }
    fn prepared(&self) -> Option<Version> {
        Some(self.mine_prepared()?.version)
    }
    fn mine_prepared(&self) -> Option<&'a VersionInfo> {
        self.mine?.prepared.as_ref()
    }
    /// The first strip that every version writes.
    fn first_parity(&self) -> usize {
        if self.geometry.replicated() { 0 } else { self.geometry.k() }
    }
    /// Versions that `ok` pdisks hold prepared.
    fn on_its_way(&self) -> impl Iterator<Item = &'a VersionInfo> + Clone {
        self.ok.clone().into_iter().flatten().filter_map(|s| s.prepared.as_ref())
    }

    /// The current version of the stripe, as the `ok` pdisks know it.
    fn target(&self) -> Option<StripeTarget> {
        let (k, ok) = (self.geometry.k(), &self.ok);
        let data_len =
            || ok[..k].iter().flatten().filter_map(|s| adopted(s)).map(|i| i.len).max().unwrap_or(0);
        let all_parity = ok[self.first_parity()..].iter().flatten().filter_map(|s| adopted(s));
        if let Some(r) = all_parity.filter(|i| self.says_all(i)).max_by_key(|i| i.version) {
            let (version, touched) = (r.version, r.touched);
            let len = r.len.max(if self.geometry.replicated() { 0 } else { data_len() });
            return Some(StripeTarget { version, covers: r.covers.clone(), touched, len });
        }
        // All other parity is away or gone: a parity strip follows from the data strips, if all of them are there.
        if self.geometry.replicated() || self.me < k {
            return None;
        }
        let known =
            |s: &Seen| matches!(s, Seen::Ok(s) if s.as_ref().is_none_or(|s| !s.lost || s.adopted.is_some()));
        if !self.others[..k].iter().all(known) {
            return None;
        }
        let newest = ok[..k].iter().flatten().filter_map(|s| adopted(s)).max_by_key(|i| i.version)?;
        // Parity that is newer than all data on `ok` pdisks: a strip of its version was given up.
        if self.known[k..].iter().flatten().filter_map(|s| adopted(s)).any(|p| p.version > newest.version) {
            return None;
        }
        let covers = self.data_of(newest);
        Some(StripeTarget { version: newest.version, covers, touched: newest.touched, len: data_len() })
    }

    /// Whether parity (or a copy) says what all strips should be; of a damaged record that may be lost.
    fn says_all(&self, info: &VersionInfo) -> bool {
        self.geometry.replicated() || info.covers.len() == self.geometry.k()
    }

    /// What makes the strip what it is in `target`.
    fn settle(&self, target: StripeTarget) -> Verdict {
        let (have, prepared) = (self.have(), self.prepared());
        let lost = self.mine.is_some_and(|m| m.lost);
        let settled = || match self.mine_prepared() {
            Some(p) if p.version > target.version => self.newer(p),
            // A stripe's versions come one after the other: what is older than the current one is left over.
            Some(p) if p.version <= target.version && !self.on_its_way().any(|o| o.version == p.version) => {
                Verdict::Discard(p.version)
            }
            _ => Verdict::Fine,
        };
        match target.version_of(StripIndex(self.me as u8)) {
            None => match have {
                None => settled(),
                Some(v) if v > target.version => Verdict::Later(Why::Newer),
                Some(v) => Verdict::Delete(v),
            },
            Some(wanted) if have == Some(wanted) && !lost => settled(),
            Some(wanted) if prepared == Some(wanted) => Verdict::Adopt(wanted),
            Some(wanted) if have.is_some_and(|h| h > wanted) => Verdict::Later(Why::Newer),
            // Nothing is made beneath what is prepared here.
            Some(wanted) if prepared > Some(wanted) && have != Some(wanted) => match settled() {
                Verdict::Fine => Verdict::Later(Why::Prepared),
                verdict => verdict,
            },
            Some(wanted) if self.hopeless(&target) => match settled() {
                Verdict::Fine => Verdict::Hopeless(have.filter(|h| *h < wanted), target),
                verdict => verdict,
            },
            Some(_) => Verdict::Install(target),
        }
    }

    /// What to do about a version that is prepared here, and newer than all that `ok` pdisks have adopted.
    fn newer(&self, info: &VersionInfo) -> Verdict {
        let version = info.version;
        let on_its_way = self.on_its_way().any(|o| o.version == version);
        if self.lacked(info) {
            return if on_its_way { Verdict::Fine } else { Verdict::DiscardLeftover(version) };
        }
        match self.fit(info) {
            _ if on_its_way => Verdict::Later(Why::Held(version)),
            Fit::Unknown => Verdict::Later(Why::Held(version)),
            // A version is begun when the one before is complete, or is not to be.
            Fit::Enough if self.complete_elsewhere(Some(version)) => Verdict::Later(Why::Prepared),
            Fit::Enough => Verdict::AdoptLeftover(version),
            Fit::TooFew => Verdict::DiscardLeftover(version),
        }
    }

    /// Strips that it takes to read the stripe.
    fn needs(&self) -> usize {
        usize::from(self.geometry.code.data())
    }

    /// Whether too few strips of `target` are left, everybody else asked. While anything newer is anywhere it is not the last.
    fn hopeless(&self, target: &StripeTarget) -> bool {
        let others = || (0..self.geometry.width()).filter(|i| *i != self.me).filter_map(|i| self.known[i]);
        let newer = |s: &StripState| s.adopted.iter().chain(&s.prepared).any(|i| i.version > target.version);
        if self.others.contains(&Seen::Away) || others().any(newer) {
            return false;
        }
        let mine = usize::from(self.fits(target, self.me));
        self.left(target) - mine < self.needs()
    }

    /// Whether strip `i` of `target` can be read, wherever it is.
    fn fits(&self, target: &StripeTarget, i: usize) -> bool {
        let Some(wanted) = target.version_of(StripIndex(i as u8)) else { return true };
        let held = |s: &StripState| {
            adopted(s).is_some_and(|a| a.version == wanted && !s.lost)
                || s.prepared.as_ref().is_some_and(|p| p.version == wanted)
        };
        self.known[i].is_some_and(held)
    }

    /// How many strips of `target` can be read.
    fn left(&self, target: &StripeTarget) -> usize {
        (0..self.geometry.width()).filter(|i| self.fits(target, *i)).count()
    }

    /// No `ok` pdisk has an adopted reference.
    fn without_reference(&self, record: Option<Owner>) -> Verdict {
        let (have, prepared) = (self.have(), self.mine_prepared());
        let nowhere = self.ok.iter().all(Option::is_none);
        if nowhere && have.is_none() && prepared.is_some() && record.is_none() {
            // Nobody else knows of it who could ask whether its inode exists.
            return Verdict::Ask;
        }
        if self.known.iter().flatten().all(|s| s.adopted.is_none()) {
            // A prepared version that all have is a first write on its way; one of another age is judged when
            // there is something adopted to judge it by.
            match prepared {
                Some(p) if self.on_its_way().all(|o| o.version == p.version) => return self.newer(p),
                None if self.complete_elsewhere(None) => return Verdict::Later(Why::Prepared),
                None => return Verdict::Fine,
                Some(_) => {}
            }
        } else if self.mine.is_none() && self.parity_absent() {
            return Verdict::Fine;
        }
        match (have, record) {
            (_, None) => Verdict::Ask,
            (Some(have), Some(Owner::Unrecorded)) if self.removed_since() => Verdict::Delete(have),
            _ if self.others.contains(&Seen::Away) => {
                Verdict::Later(if nowhere { Why::PerhapsDeleted } else { Why::NoReference })
            }
            _ => match self.newest_known() {
                Some(target) if self.complete_elsewhere(Some(target.version)) => match prepared {
                    Some(p) if p.version > target.version => self.newer(p),
                    _ => Verdict::Later(Why::Prepared),
                },
                Some(target) => self.settle(target),
                None if nowhere => Verdict::Fine,
                None => Verdict::Later(Why::NoReference),
            },
        }
    }

    /// Whether a strip that every version writes is absent from an `ok` pdisk.
    fn parity_absent(&self) -> bool {
        let absent = |i: usize| matches!(self.others[i], Seen::Ok(_)) && self.ok[i].is_none();
        (self.first_parity()..self.geometry.width()).any(absent)
    }

    /// Whether an `ok` pdisk lacks a strip that was there when the version here was complete.
    fn removed_since(&self) -> bool {
        let lacks = |i: usize| matches!(self.others.get(i), Some(Seen::Ok(_))) && self.ok[i].is_none();
        let k = self.geometry.k();
        if self.parity_absent() {
            return true;
        }
        // Parity names the data strips of its version: that of this strip here, or one that covers it.
        let with_mine = |i: &usize| {
            let info = self.known.get(*i).copied().flatten().and_then(adopted)?;
            let mine = *i == self.me || info.covers.get(self.me).copied().flatten() == self.have();
            mine.then_some(&info.covers)
        };
        let parity: Vec<usize> =
            if self.me < k { (k..self.geometry.width()).collect() } else { vec![self.me] };
        parity
            .iter()
            .filter_map(with_mine)
            .any(|c| c.iter().enumerate().any(|(i, v)| v.is_some() && lacks(i)))
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "judge_model.rs"]
mod model;
