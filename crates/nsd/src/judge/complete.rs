//! What of a stripe is complete, or may be: versions that are only prepared, by the strips that fit them, and the last
//! complete version where no `ok` pdisk has a reference.

use super::*;

/// What is complete there when this version is adopted somewhere: it was begun when those before it were complete, or dropped.
fn complete_by<'a>(state: &Option<&'a StripState>, last: Version) -> Option<&'a VersionInfo> {
    let state = (*state)?;
    let prepared = state.prepared.as_ref().filter(|p| p.version <= last);
    prepared.into_iter().chain(&state.adopted).max_by_key(|i| i.version)
}

/// Whether a version that is only prepared may be complete: that many strips fit it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    Enough,
    /// Not without what is not known yet.
    Unknown,
    TooFew,
}

impl<'a> Stripe<'a> {
    /// Whether an `ok` pdisk lacks a strip of this version: it is not complete.
    pub(super) fn lacked(&self, info: &VersionInfo) -> bool {
        let lacks = |i: StripIndex| match self.others.get(usize::from(i.0)) {
            // Of a damaged strip the version is known.
            Some(Seen::Ok(state)) => state.as_ref().is_none_or(|s| !holds(s, info.version)),
            _ => false,
        };
        info.touched.iter().any(lacks)
    }

    /// What may be the data strips of this version as far as it does not write them: by parity of its own, or by what is left of
    /// the one before.
    pub(super) fn covers_of(&self, info: &VersionInfo) -> Vec<&'a VersionInfo> {
        let parity = || self.known[self.first_parity()..].iter().flatten();
        let own =
            parity().flat_map(|s| s.adopted.iter().chain(&s.prepared)).find(|i| i.version == info.version);
        if let Some(own) = own {
            return vec![own];
        }
        let last = parity().filter_map(|s| adopted(s)).max_by_key(|i| i.version);
        let begun = parity().filter_map(|s| s.prepared.as_ref());
        let between =
            |p: &&VersionInfo| p.version < info.version && last.is_none_or(|l| p.version > l.version);
        last.into_iter().chain(begun.filter(between)).collect()
    }

    /// What the data strips are in a complete version that no parity is known of. What is prepared is of it if it was written since
    /// the last parity that is known, or if that covers it.
    pub(super) fn data_of(&self, last: &VersionInfo) -> Vec<Option<Version>> {
        if self.geometry.replicated() {
            return Vec::new();
        }
        let (data, parity) = self.known.split_at(self.geometry.k());
        let stored = |p: &&VersionInfo| {
            let held = |(i, s): (usize, &Option<&StripState>)| {
                !p.touched.contains(StripIndex(i as u8)) || s.is_some_and(|s| holds(s, p.version))
            };
            p.version <= last.version && data.iter().enumerate().all(held)
        };
        let begun = parity.iter().flatten().filter_map(|s| s.prepared.as_ref()).filter(stored);
        let before = parity.iter().filter_map(|s| s.and_then(adopted)).chain(begun).max_by_key(|i| i.version);
        let covers = |i: usize| before.and_then(|b| b.covers.get(i).copied().flatten());
        let of = |(i, state): (usize, &Option<&'a StripState>)| {
            if last.touched.contains(StripIndex(i as u8)) {
                return Some(last.version);
            }
            let of_it = |v: &Version| {
                *v <= last.version && (before.is_none_or(|b| *v > b.version) || covers(i) == Some(*v))
            };
            let mut held =
                state.iter().flat_map(|s| s.prepared.iter().chain(&s.adopted)).map(|info| info.version);
            // What counts is what it should be, and what is not there was cut off.
            let counts = matches!(self.others[i], Seen::Ok(_)) || state.and_then(adopted).is_none();
            let otherwise = || if counts { state.and_then(adopted).map(|a| a.version) } else { covers(i) };
            held.find(of_it).or_else(otherwise)
        };
        data.iter().enumerate().map(of).collect()
    }

    /// Whether as many strips fit this version as one that is complete has, by what everybody holds.
    pub(super) fn fit(&self, info: &VersionInfo) -> Fit {
        let covers = self.covers_of(info);
        let unrecorded = self.record == Some(Owner::Unrecorded);
        let own = covers.iter().any(|c| c.version == info.version);
        let between =
            |p: &VersionInfo| p.version < info.version && covers.iter().all(|c| p.version > c.version);
        let (mut fit, mut perhaps, mut away) = (0, 0, 0);
        for (i, seen) in self.others.iter().enumerate() {
            let (known, touched) = (self.known[i], info.touched.contains(StripIndex(i as u8)));
            let has = |wanted: Option<Version>| match (wanted, known) {
                (None, _) => true, // never written: zeros
                (Some(v), Some(s)) => {
                    s.prepared.as_ref().is_some_and(|p| p.version == v)
                        || adopted(s).is_some_and(|a| a.version >= v && !s.lost)
                }
                (Some(_), None) => false,
            };
            let mut fits = covers.iter().map(|c| c.covers.get(i).copied().is_some_and(has));
            match known {
                _ if !touched && !covers.is_empty() && fits.clone().all(|fits| fits) => fit += 1,
                _ if *seen == Seen::Away => away += 1,
                Some(s) if touched => fit += usize::from(holds(s, info.version)),
                None if touched => {}
                Some(s) if s.lost => perhaps += 1,
                // The one before is complete: what counts is what it should be.
                _ if matches!(seen, Seen::Ok(_)) => fit += 1,
                _ if covers.is_empty() => fit += 1,
                // Written between the last parity that is known and this.
                Some(s) if !own && s.prepared.as_ref().is_some_and(between) => fit += 1,
                // What is not there may have been cut off before.
                _ => {
                    perhaps += usize::from(known.and_then(adopted).is_none() && !own || fits.any(|fits| fits))
                }
            }
        }
        let older = |p: &VersionInfo| p.version < info.version;
        let alone = || !self.known.iter().flatten().filter_map(|s| s.prepared.as_ref()).any(older);
        let unreadable = || alone() && self.newest_known().is_none_or(|t| self.left(&t) < self.needs());
        match self.needs() {
            needs if fit >= needs && away == 0 => Fit::Enough,
            // Nothing can be made anew, or nobody names the block: it is not waited for.
            needs if fit + perhaps >= needs && away == 0 && (unrecorded || unreadable()) => Fit::Enough,
            // Who is away may say so, and what is damaged once it is made anew.
            needs if fit + perhaps + away >= needs => Fit::Unknown,
            _ => Fit::TooFew,
        }
    }

    /// Whether a version above this one that is only prepared may be complete.
    pub(super) fn complete_elsewhere(&self, above: Option<Version>) -> bool {
        let lost = self.mine.is_some_and(|m| m.lost);
        let complete = |p: &VersionInfo| {
            // What is damaged is made anew beside a version that leaves it as it is.
            let same = |c: &&VersionInfo| c.covers.get(self.me) == Some(&self.have());
            let untouched =
                || !p.touched.contains(StripIndex(self.me as u8)) && self.covers_of(p).iter().all(same);
            let aside = lost && above <= self.have() && untouched();
            !aside && Some(p.version) > above && !self.lacked(p) && self.fit(p) != Fit::TooFew
        };
        self.known.iter().flatten().filter_map(|s| s.prepared.as_ref()).any(complete)
    }

    /// The last complete version when everybody is asked and no `ok` pdisk has a reference. A version that no parity has
    /// was written when all parity was away; then all data strips counted, and are those of that version.
    pub(super) fn newest_known(&self) -> Option<StripeTarget> {
        let info = |s: &Option<&'a StripState>| s.and_then(adopted);
        let parity = &self.known[self.first_parity()..];
        let last = self.known.iter().filter_map(info).max_by_key(|i| i.version)?;
        let complete = |s: &Option<&'a StripState>| complete_by(s, last.version);
        let len = self.known.iter().filter_map(complete).map(|i| i.len).max().unwrap_or(0);
        let reference = parity.iter().filter_map(complete).max_by_key(|i| i.version);
        let (r, covers) = match reference.filter(|r| r.version == last.version && self.says_all(r)) {
            Some(r) => (r, r.covers.clone()),
            None => (last, self.data_of(last)),
        };
        Some(StripeTarget { version: r.version, covers, touched: r.touched, len })
    }
}
