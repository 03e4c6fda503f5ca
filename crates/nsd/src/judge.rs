//! What to do about one strip of a pdisk that is catching up, or of one that found it damaged: pure
//! decisions over the states of all strips of the stripe.
//!
//! The newest adopted parity (or copy) on an `ok` pdisk says what the strip should be. A strip is made
//! anew, adopted or deleted only to become that; while a version is on its way that this pdisk does not
//! hold as well, the stripe is looked at again later.

use base::{StripIndex, Version};
use stripe::{Geometry, StripeTarget};
use wire::strip::{StripState, VersionInfo};

/// Another strip of the stripe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seen {
    /// On an `ok` pdisk; `None` if it holds nothing.
    Ok(Option<StripState>),
    /// Not on an `ok` pdisk, or not to be asked: what it holds is not asked here.
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
    /// Not to be told yet.
    Later(Why),
}

/// Why a strip cannot be judged yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// A version is on its way that is not here.
    Prepared,
    /// No parity on an `ok` pdisk, and not all data either.
    NoReference,
    /// Only here, and not every other pdisk can say that it should not be.
    PerhapsDeleted,
    /// Newer than the others: they were asked too early.
    Newer,
}

fn adopted(state: &StripState) -> Option<&VersionInfo> {
    state.adopted.as_ref().filter(|_| !state.lost)
}

/// Judges strip `me`; `mine` is its state here, `others` those of all strips in order. A strip that moves and is
/// the only one of its stripe has the one it is made from beside it.
pub fn judge(geometry: Geometry, me: usize, mine: Option<&StripState>, others: &[Seen]) -> Verdict {
    let mine = mine.filter(|s| s.adopted.is_some() || s.prepared.is_some());
    let index = StripIndex(me as u8);
    if others.iter().all(|s| matches!(s, Seen::Mine)) {
        // One strip a stripe: a version that is prepared here is complete, and its writer, if it lives, has ceased to
        // adopt it when the pdisk ceased to count.
        let newest = mine.filter(|m| !m.lost).and_then(|m| m.prepared.as_ref()).map(|p| p.version);
        let have = mine.and_then(|m| m.adopted.as_ref()).map(|a| a.version);
        return newest.filter(|p| have < Some(*p)).map_or(Verdict::Fine, Verdict::Adopt);
    }
    let present = |s: &StripState| s.adopted.is_some() || s.prepared.is_some();
    let ok = |seen: &Seen| match seen {
        Seen::Ok(state) => state.clone().filter(present),
        _ => None,
    };
    let ok: Vec<Option<StripState>> = others.iter().map(ok).collect();

    // A version on its way that this strip is part of and does not hold.
    let holds = |v: Version| {
        mine.is_some_and(|m| {
            m.prepared.as_ref().is_some_and(|p| p.version == v)
                || m.adopted.as_ref().is_some_and(|a| a.version >= v)
        })
    };
    let on_its_way = ok.iter().flatten().filter_map(|s| s.prepared.as_ref());
    if on_its_way.clone().any(|p| p.touched.contains(index) && !holds(p.version)) {
        return Verdict::Later(Why::Prepared);
    }

    let Some(target) = target(geometry, me, others, &ok) else {
        return without_reference(geometry, mine, others, &ok);
    };
    let wanted = target.version_of(index);
    let have = mine.and_then(|m| m.adopted.as_ref()).map(|a| a.version);
    let lost = mine.is_some_and(|m| m.lost);
    let settled = || match mine.and_then(|m| m.prepared.as_ref()).map(|p| p.version) {
        // A stripe's versions come one after the other: what is older than the current one is left over.
        Some(p) if p < target.version && !on_its_way.clone().any(|o| o.version == p) => Verdict::Discard(p),
        _ => Verdict::Fine,
    };
    match wanted {
        None => match have {
            None => settled(),
            Some(v) if v > target.version => Verdict::Later(Why::Newer),
            Some(v) => Verdict::Delete(v),
        },
        Some(wanted) if have == Some(wanted) && !lost => settled(),
        Some(wanted) if mine.is_some_and(|m| m.prepared.as_ref().is_some_and(|p| p.version == wanted)) => {
            Verdict::Adopt(wanted)
        }
        Some(wanted) if have.is_some_and(|h| h > wanted) => Verdict::Later(Why::Newer),
        Some(_) => Verdict::Install(target),
    }
}

/// The current version of the stripe, as the `ok` pdisks know it.
fn target(geometry: Geometry, me: usize, others: &[Seen], ok: &[Option<StripState>]) -> Option<StripeTarget> {
    let k = geometry.k();
    let data_len = || ok[..k].iter().flatten().filter_map(adopted).map(|i| i.len).max().unwrap_or(0);
    let first = if geometry.replicated() { 0 } else { k };
    let reference = ok[first..].iter().flatten().filter_map(adopted).max_by_key(|i| i.version);
    if let Some(r) = reference {
        let (version, touched) = (r.version, r.touched);
        let len = r.len.max(if geometry.replicated() { 0 } else { data_len() });
        return Some(StripeTarget { version, covers: r.covers.clone(), touched, len });
    }
    // All other parity is away or gone: a parity strip follows from the data strips, if all of them are there.
    if geometry.replicated() || me < k {
        return None;
    }
    let all_data =
        others[..k].iter().all(|s| matches!(s, Seen::Ok(state) if !state.as_ref().is_some_and(|s| s.lost)));
    if !all_data {
        return None;
    }
    let newest = ok[..k].iter().flatten().filter_map(adopted).max_by_key(|i| i.version)?;
    let covers = ok[..k].iter().map(|s| s.as_ref().and_then(adopted).map(|i| i.version)).collect();
    Some(StripeTarget { version: newest.version, covers, touched: newest.touched, len: data_len() })
}

/// No `ok` pdisk has an adopted reference.
fn without_reference(
    geometry: Geometry,
    mine: Option<&StripState>,
    others: &[Seen],
    ok: &[Option<StripState>],
) -> Verdict {
    let have = mine.and_then(|m| m.adopted.as_ref()).map(|a| a.version);
    if ok.iter().any(Option::is_some) {
        // A prepared version that all have is a first write on its way; one of another age is judged when
        // there is something adopted to judge it by.
        let others =
            |p: Version| ok.iter().flatten().any(|s| s.prepared.as_ref().is_some_and(|o| o.version != p));
        let apart = mine.and_then(|m| m.prepared.as_ref()).is_some_and(|p| others(p.version));
        let known = apart || have.is_some() || ok.iter().flatten().any(|s| s.adopted.is_some());
        return if known { Verdict::Later(Why::NoReference) } else { Verdict::Fine };
    }
    // Only here. It was deleted meanwhile if everybody else says that it is not there; or if a strip that
    // every version writes is not on a pdisk that counts, and those away are too few to hold the stripe.
    let (k, away) = (geometry.k(), others.iter().filter(|s| matches!(s, Seen::Away)).count());
    let in_every_version = if geometry.replicated() { 0 } else { k };
    let proof = others[in_every_version..].iter().any(|s| matches!(s, Seen::Ok(_)));
    let gone = away == 0 || proof && away < k;
    match (have, mine.and_then(|m| m.prepared.as_ref())) {
        (Some(have), _) if gone => Verdict::Delete(have),
        (None, Some(p)) if gone => Verdict::DiscardLeftover(p.version),
        (None, _) => Verdict::Fine,
        // Every later version would replace a copy: at worst it takes up space.
        (Some(_), _) if geometry.replicated() => Verdict::Fine,
        (Some(_), _) => Verdict::Later(Why::PerhapsDeleted),
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
