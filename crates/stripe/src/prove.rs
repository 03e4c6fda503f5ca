//! Proof of a stripe: everything of it is read, and every byte, version and parity strip compared.
//!
//! [`compare`] decides over the states of all strips; [`StripeIo::prove`] reads what they name, at exactly
//! those versions, and encodes. A stripe that is being written is looked at again.

use std::{fmt, time::Instant};

use base::{OpClass, PdiskId, PoolId, StripIndex, StripeId, Version};
use serde::Serialize;
use wire::{
    map::PdiskState,
    nsd::{NsdRefusal, NsdReply, NsdRequest},
    strip::{Range, ReadStrip, ReadVersion, StripRefusal, StripState, VersionInfo},
};

use crate::{Fault, Geometry, Pieces, StripeError, StripeIo, StripeTarget, read::read_one};

/// Looks at a stripe whose strips change while they are read.
const LOOKS_MAX: u32 = 20;

/// Something that is not as it should be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Finding {
    /// A strip that should be there is not, or its record says that it is damaged.
    Absent {
        /// Which.
        index: u8,
    },
    /// Bytes do not match their CRCs.
    Damaged {
        /// Which.
        index: u8,
    },
    /// A version is prepared and nobody completes it.
    Prepared {
        /// Where.
        index: u8,
        /// Which.
        version: String,
    },
    /// Another version than the rest of the stripe says.
    Version {
        /// Where.
        index: u8,
        /// Which is there.
        found: String,
        /// Which should be.
        wanted: String,
    },
    /// Parity, or a copy, is not what the data strips give, although every CRC matches.
    Parity {
        /// Which.
        index: u8,
    },
    /// A data strip that no parity covers.
    NotCovered {
        /// Which.
        index: u8,
    },
    /// Too few strips are left to read the block.
    Unreadable {
        /// Why, strip by strip.
        reason: String,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Absent { index } => write!(f, "strip {index} is not there"),
            Finding::Damaged { index } => write!(f, "strip {index}: bytes do not match their CRCs"),
            Finding::Prepared { index, version } => write!(f, "strip {index}: {version} is left prepared"),
            Finding::Version { index, found, wanted } => {
                write!(f, "strip {index} is at {found}, the stripe at {wanted}")
            }
            Finding::Parity { index } => write!(f, "strip {index} is not what the data strips give"),
            Finding::NotCovered { index } => write!(f, "strip {index} is covered by no parity"),
            Finding::Unreadable { reason } => write!(f, "cannot be read: {reason}"),
        }
    }
}

/// What became of a stripe.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Proof {
    /// What is wrong with it; empty if it is proved.
    pub findings: Vec<Finding>,
    /// Strips on pdisks that do not count, or do not answer: nothing is said of them.
    pub away: u32,
    /// How many of these should have answered.
    pub silent: u32,
    /// Bytes read.
    pub bytes: u64,
    /// It is (no longer) there.
    pub gone: bool,
}

/// What a stripe should be, by its newest parity (or copy), and what of its strips contradicts that. `None`
/// in `states` is a strip that is not to be asked.
pub fn compare(geometry: Geometry, states: &[Option<StripState>]) -> (Option<StripeTarget>, Vec<Finding>) {
    let k = geometry.k();
    let mut findings = Vec::new();
    let adopted = |i: usize| -> Option<&VersionInfo> { states.get(i)?.as_ref()?.adopted.as_ref() };
    for (i, state) in states.iter().enumerate() {
        if let Some(prepared) = state.as_ref().and_then(|s| s.prepared.as_ref()) {
            let version = prepared.version.to_string();
            findings.push(Finding::Prepared { index: i as u8, version });
        }
    }
    let first = if geometry.replicated() { 0 } else { k };
    let reference = (first..geometry.width()).filter_map(adopted).max_by_key(|info| info.version);
    let Some(reference) = reference else {
        let any_parity = (first..geometry.width()).any(|i| states.get(i).is_some_and(Option::is_some));
        let held = (0..k).filter(|&i| adopted(i).is_some());
        if any_parity && !geometry.replicated() {
            findings.extend(held.map(|i| Finding::NotCovered { index: i as u8 }));
        }
        return (None, findings);
    };
    let len = (0..geometry.width()).filter_map(adopted).map(|info| info.len).max().unwrap_or(0);
    let (version, covers, touched) = (reference.version, reference.covers.clone(), reference.touched);
    let target = StripeTarget { version, covers, touched, len };
    for (i, state) in states.iter().enumerate() {
        let (Some(state), index) = (state, i as u8) else { continue };
        let wanted = target.version_of(StripIndex(index));
        let found = state.adopted.as_ref().map(|info| info.version);
        let text = |v: Option<Version>| v.map_or("nothing".to_owned(), |v| v.to_string());
        match (found, wanted) {
            (None, Some(_)) => findings.push(Finding::Absent { index }),
            (Some(_), Some(_)) if state.lost => findings.push(Finding::Absent { index }),
            (found, wanted) if found != wanted => {
                findings.push(Finding::Version { index, found: text(found), wanted: text(wanted) });
            }
            _ => {}
        }
        let covers = state.adopted.as_ref().map(|info| &info.covers);
        if i >= first && found == Some(version) && covers != Some(&target.covers) {
            let (found, wanted) = (format!("{version} over other data"), version.to_string());
            findings.push(Finding::Version { index, found, wanted });
        }
    }
    (Some(target), findings)
}

/// Whether the strips in reach are enough to read a block; bytes may be damaged all the same. Without parity in
/// reach nobody knows what the others should hold: then it is not.
pub fn readable(geometry: Geometry, states: &[Option<StripState>]) -> bool {
    let (Some(target), _) = compare(geometry, states) else { return false };
    let fits = |i: &usize| {
        let wanted = target.version_of(StripIndex(*i as u8));
        let held = states.get(*i).and_then(Option::as_ref).filter(|s| !s.lost);
        // What was never written is zeros, wherever its pdisk is.
        wanted.is_none() || held.and_then(|s| s.adopted.as_ref()).map(|info| info.version) == wanted
    };
    (0..geometry.width()).filter(fits).count() >= usize::from(geometry.code.data())
}

/// Strips whose content is not what the others give, of a stripe that is all there.
pub fn compare_content(geometry: Geometry, codec: &layout::Codec, strips: &[Vec<u8>]) -> Vec<Finding> {
    if geometry.replicated() {
        let differs = |i: &usize| strips[*i] != strips[0];
        return (1..strips.len()).filter(differs).map(|i| Finding::Parity { index: i as u8 }).collect();
    }
    let k = geometry.k();
    let data: Vec<&[u8]> = strips[..k].iter().map(Vec::as_slice).collect();
    let mut findings = Vec::new();
    for i in k..strips.len() {
        let mut present: Vec<Option<&[u8]>> = data.iter().map(|d| Some(*d)).collect();
        present.resize(strips.len(), None);
        let mut parity = vec![0; strips[i].len()];
        let made = codec.reconstruct(&present, &[StripIndex(i as u8)], &mut [&mut parity]);
        if made.is_err() || parity != strips[i] {
            findings.push(Finding::Parity { index: i as u8 });
        }
    }
    findings
}

impl StripeIo {
    /// Proves one stripe. An error is a stripe that cannot be asked about now.
    pub async fn prove(&self, stripe: StripeId, pool: PoolId, class: OpClass) -> Result<Proof, StripeError> {
        let until = Instant::now() + self.config().deadline;
        let mut look = 0;
        loop {
            let proof = self.look(stripe, pool, class, until).await?;
            look += 1;
            // What is on its way looks wrong for a moment.
            let passing =
                proof.silent > 0 || proof.findings.iter().any(|f| !matches!(f, Finding::Damaged { .. }));
            if !passing || look >= LOOKS_MAX || Instant::now() >= until {
                return Ok(proof);
            }
            tokio::time::sleep(self.config().retry_pause).await;
        }
    }

    /// Whether a block can be read from the strips in reach, as these say.
    pub async fn readable(
        &self,
        stripe: StripeId,
        pool: PoolId,
        class: OpClass,
    ) -> Result<bool, StripeError> {
        let geometry = self.shared.pool(&self.view(), pool)?.geometry;
        let until = Instant::now() + self.config().attempt;
        let answers = self.states(stripe, pool, class, |s| s == PdiskState::Ok, until).await?;
        let states: Vec<Option<StripState>> = answers.into_iter().map(|a| a.and_then(Result::ok)).collect();
        Ok(readable(geometry, &states))
    }

    async fn look(
        &self,
        stripe: StripeId,
        pool: PoolId,
        class: OpClass,
        until: Instant,
    ) -> Result<Proof, StripeError> {
        let view = self.view();
        let pool_view = self.shared.pool(&view, pool)?;
        let geometry = pool_view.geometry;
        let members = view.members(pool, pool_view.group_of(stripe)).to_vec();
        let attempt = until.min(Instant::now() + self.config().attempt);
        let answers = self.states(stripe, pool, class, |s| s == PdiskState::Ok, attempt).await?;
        let silent = answers.iter().filter(|a| matches!(a, Some(Err(_)))).count() as u32;
        let mut proof = Proof { silent, ..Proof::default() };
        let states: Vec<Option<StripState>> = answers.into_iter().map(|a| a.and_then(Result::ok)).collect();
        proof.away = states.iter().filter(|s| s.is_none()).count() as u32;
        let (target, findings) = compare(geometry, &states);
        proof.findings = findings;
        let Some(target) = target else {
            // Without parity in reach nothing is proved of what data strips are there; they are there all the same.
            proof.gone = proof.findings.is_empty() && !states.iter().flatten().any(|s| s.adopted.is_some());
            return Ok(proof);
        };
        let mut strips: Vec<Option<Vec<u8>>> = Vec::with_capacity(states.len());
        for (i, state) in states.iter().enumerate() {
            let index = StripIndex(i as u8);
            let held = state.as_ref().filter(|s| !s.lost).and_then(|s| s.adopted.as_ref());
            let wanted = target.version_of(index);
            let (Some(info), Some(&pdisk)) = (held.filter(|h| Some(h.version) == wanted), members.get(i))
            else {
                // What was never written is zeros, wherever its pdisk is.
                let empty = wanted.is_none() && held.is_none();
                strips.push(empty.then(|| vec![0; target.len as usize]));
                continue;
            };
            match self.whole(&view, stripe, index, pdisk, info, class, attempt).await {
                Ok(pieces) => {
                    let mut bytes = vec![0; target.len as usize];
                    for (offset, piece) in pieces.list() {
                        bytes[*offset as usize..*offset as usize + piece.len()].copy_from_slice(piece);
                        proof.bytes += piece.len() as u64;
                    }
                    strips.push(Some(bytes));
                }
                Err(fault) => {
                    let damaged = matches!(fault, Fault::BadCrc { .. })
                        || fault.strip_refusal() == Some(&StripRefusal::Lost);
                    match damaged {
                        true => proof.findings.push(Finding::Damaged { index: index.0 }),
                        false if fault.strip_refusal().is_some() => {
                            proof.findings.push(Finding::Absent { index: index.0 });
                        }
                        false => (proof.silent, proof.away) = (proof.silent + 1, proof.away + 1),
                    }
                    strips.push(None);
                }
            }
        }
        if let Some(all) = strips.iter().cloned().collect::<Option<Vec<_>>>() {
            proof.findings.extend(compare_content(geometry, &pool_view.codec, &all));
        } else if strips.iter().flatten().count() + (proof.silent as usize) < geometry.k() {
            let states = members.iter().map(|m| format!("{m} {}", view.state(*m).name()));
            let reason = format!(
                "{} of {} strips: {}",
                strips.iter().flatten().count(),
                geometry.k(),
                states.collect::<Vec<_>>().join(", ")
            );
            proof.findings.push(Finding::Unreadable { reason });
        }
        Ok(proof)
    }

    #[expect(clippy::too_many_arguments, reason = "what to read, and how")]
    async fn whole(
        &self,
        view: &crate::ClusterView,
        stripe: StripeId,
        index: StripIndex,
        pdisk: PdiskId,
        info: &VersionInfo,
        class: OpClass,
        until: Instant,
    ) -> Result<Pieces, Fault> {
        if info.len == 0 {
            return Ok(Pieces::default());
        }
        let ranges = vec![Range { offset: 0, len: info.len }];
        let read =
            ReadStrip { strip: stripe.strip(index), version: ReadVersion::Exactly(info.version), ranges };
        let (_, pieces) = read_one(&self.shared, view, pdisk, read, class, until).await?;
        Ok(Pieces::from_sorted(pieces))
    }

    /// Has what was found made anew where that is possible; the number of strips that are, or will be soon.
    pub async fn repair(
        &self,
        stripe: StripeId,
        pool: PoolId,
        proof: &Proof,
        class: OpClass,
    ) -> Result<u32, StripeError> {
        let view = self.view();
        let pool_view = self.shared.pool(&view, pool)?;
        let group = pool_view.group_of(stripe);
        let members = view.members(pool, group).to_vec();
        let until = Instant::now() + self.config().attempt;
        let mut repaired = 0;
        for finding in &proof.findings {
            let (Finding::Damaged { index } | Finding::Absent { index } | Finding::Version { index, .. }) =
                finding
            else {
                continue;
            };
            let (index, Some(&pdisk)) = (StripIndex(*index), members.get(usize::from(*index))) else {
                continue;
            };
            if matches!(finding, Finding::Damaged { .. }) {
                let request = NsdRequest::Suspect { pdisk, strip: stripe.strip(index) };
                let told = self.call(pdisk, request, Vec::new(), class, until).await;
                repaired += u32::from(told.is_ok());
                continue;
            }
            let answers = self.states(stripe, pool, class, |s| s == PdiskState::Ok, until).await?;
            let states: Vec<_> = answers.into_iter().map(|a| a.and_then(Result::ok)).collect();
            let (Some(target), _) = compare(pool_view.geometry, &states) else { continue };
            if target.version_of(index).is_none() {
                continue;
            }
            let made = self.rebuild_strip(stripe, pool, group, index, &target, true, class).await;
            let Ok((strip, payload)) = made else { continue };
            let request = NsdRequest::Install { pdisk, strip };
            match self.call(pdisk, request, payload, class, until).await {
                Ok((NsdReply::Done, _)) => repaired += 1,
                Ok(_) | Err(Fault::Refused(NsdRefusal::Strip(_))) => {} // somebody was faster
                Err(fault) => tracing::debug!(%stripe, %fault, "not repaired"),
            }
        }
        Ok(repaired)
    }
}
