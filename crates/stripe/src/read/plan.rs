//! What to read next, to have certain ranges of certain strips: pure decisions over what has arrived.
//!
//! Data strips answer for themselves. One that is lost, late or out of reach is decoded from K others; one
//! that says it has nothing is zeros if the parity covers nothing there, else it counts as lost. Decoding
//! uses only strips whose versions agree with what one version of the parity covers.

use base::{StripIndex, StripSet, Version};
use bytes::Bytes;
use wire::strip::{Range, ReadVersion, VersionInfo};

use crate::{
    Fault,
    geometry::{self, Geometry},
    meta::BlockMeta,
    pieces::Pieces,
};

/// How far one strip is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not asked.
    Idle,
    /// Asked, at least once answered, or not yet.
    Asked,
    /// Its pdisk says it has no such strip.
    Absent,
    /// Cannot be used.
    Erased(Fault),
}

/// One strip of the stripe.
#[derive(Clone, Debug)]
pub struct Strip {
    /// How far it is.
    pub phase: Phase,
    /// Requests under way.
    pub flying: u32,
    /// Whether its answer is late: it is replaced, but used if it comes first.
    pub late: bool,
    /// Which version is asked for.
    pub version: ReadVersion,
    /// Asked ranges, answered or not (normalised).
    asked: Vec<Range>,
    /// Version of what arrived.
    pub info: Option<VersionInfo>,
    /// What arrived, by offset in the strip.
    got: Vec<(u32, Bytes)>,
}

impl Strip {
    /// Everything that was asked has arrived.
    fn here(&self) -> bool {
        self.phase == Phase::Asked && self.flying == 0 && self.info.is_some()
    }
    fn usable(&self) -> bool {
        matches!(self.phase, Phase::Idle | Phase::Asked)
    }
    fn lacks(&self, rows: &[Range]) -> Vec<Range> {
        geometry::subtract(rows, &self.asked)
    }
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask these strips for these ranges (none: only for the version), then wait.
    Ask(Vec<(StripIndex, Vec<Range>)>),
    /// Wait for what is under way.
    Wait,
    /// Everything wanted is here or zeros.
    Done,
    /// Decode the strips `lost` from the strips `sources`, whose versions agree.
    Decode {
        /// What to compute.
        lost: StripSet,
        /// From these K.
        sources: StripSet,
    },
    /// Versions do not agree: a write or an adoption is under way; begin again.
    Disagree(Vec<(StripIndex, Fault)>),
    /// Not enough strips.
    TooFew,
}

/// A read under way.
#[derive(Clone, Debug)]
pub struct ReadPlan {
    geometry: Geometry,
    /// Per strip of the stripe, what is wanted of it.
    wanted: Vec<Vec<Range>>,
    /// The strips.
    pub strips: Vec<Strip>,
    /// What the reader knows of the block (its own write).
    known: Option<BlockMeta>,
    /// Strips that disagree count as lost, instead of beginning again.
    strict: bool,
}

impl ReadPlan {
    /// `wanted` has a place for every strip; `versions` says which version of each to read.
    pub fn new(
        geometry: Geometry,
        wanted: Vec<Vec<Range>>,
        versions: Vec<ReadVersion>,
        known: Option<BlockMeta>,
        strict: bool,
    ) -> ReadPlan {
        let strip = |version| Strip {
            phase: Phase::Idle,
            flying: 0,
            late: false,
            version,
            asked: Vec::new(),
            info: None,
            got: Vec::new(),
        };
        ReadPlan { geometry, wanted, strips: versions.into_iter().map(strip).collect(), known, strict }
    }

    /// What is wanted of a strip.
    pub fn wanted(&self, index: usize) -> &[Range] {
        &self.wanted[index]
    }

    /// A strip that need not be asked.
    pub fn erase(&mut self, index: usize, fault: Fault) {
        self.strips[index].phase = Phase::Erased(fault);
    }

    /// An answer: version and what came, in strip offsets.
    pub fn answered(&mut self, index: usize, info: VersionInfo, got: Vec<(u32, Bytes)>) {
        let strip = &mut self.strips[index];
        strip.flying = strip.flying.saturating_sub(1);
        strip.late &= strip.flying > 0; // it came after all: it is as good as any
        if !strip.usable() {
            return;
        }
        if let Some(earlier) = &strip.info
            && earlier.version != info.version
        {
            let fault = Fault::OtherVersion { found: info.version, wanted: earlier.version };
            strip.phase = Phase::Erased(fault);
            return;
        }
        strip.info = Some(info);
        strip.got.extend(got);
        strip.got.sort_by_key(|(offset, _)| *offset);
    }

    /// No answer, or one that says it has nothing.
    pub fn failed(&mut self, index: usize, fault: Option<Fault>) {
        let strip = &mut self.strips[index];
        strip.flying = strip.flying.saturating_sub(1);
        if strip.usable() {
            strip.phase = fault.map_or(Phase::Absent, Phase::Erased);
        }
    }

    /// What is under way longer than the bound is late; whether it was not before.
    pub fn mark_late(&mut self, index: usize) -> bool {
        let strip = &mut self.strips[index];
        let newly = strip.flying > 0 && !strip.late;
        strip.late |= newly;
        newly
    }

    /// What arrived of a strip, as content.
    pub fn pieces(&self, index: usize) -> Pieces {
        Pieces::from_sorted(self.strips[index].got.clone())
    }

    /// Versions that the data strips should have, if it is known: from the newest parity, or the
    /// reader's own knowledge.
    pub fn covers(&self) -> Option<Vec<Option<Version>>> {
        if let Some(reference) = self.reference() {
            return Some(reference.covers.clone());
        }
        self.known.as_ref().filter(|k| k.is_complete(self.geometry.k())).map(BlockMeta::covers)
    }

    /// The newest parity that has arrived.
    pub fn reference(&self) -> Option<&VersionInfo> {
        if self.geometry.replicated() {
            return None;
        }
        let parity = self.strips[self.geometry.k()..].iter();
        parity.filter(|s| s.usable()).filter_map(|s| s.info.as_ref()).max_by_key(|i| i.version)
    }

    fn never_written(&self, covers: Option<&Vec<Option<Version>>>, i: usize) -> bool {
        i < self.geometry.k() && covers.is_some_and(|c| c.get(i).copied().flatten().is_none())
    }

    /// Notes that ranges are asked of a strip.
    fn ask(&mut self, i: usize, ranges: Vec<Range>) -> (StripIndex, Vec<Range>) {
        let strip = &mut self.strips[i];
        strip.phase = Phase::Asked;
        strip.flying += 1;
        strip.asked.extend(ranges.iter().copied());
        geometry::normalise(&mut strip.asked);
        (StripIndex(i as u8), ranges)
    }

    /// Decides. `Ask` is only returned for strips that are then marked as asked.
    pub fn step(&mut self) -> Step {
        if self.geometry.replicated() {
            return self.step_copies();
        }
        let width = self.geometry.width();
        let covers = self.covers();

        // Everything wanted is first asked directly.
        let mut asks = Vec::new();
        for i in 0..width {
            let untouched = self.strips[i].phase == Phase::Idle && !self.never_written(covers.as_ref(), i);
            if untouched && !self.wanted[i].is_empty() {
                let ranges = self.wanted[i].clone();
                asks.push(self.ask(i, ranges));
            }
        }
        if !asks.is_empty() {
            return Step::Ask(asks);
        }

        let open: Vec<usize> = (0..width)
            .filter(|&i| !self.wanted[i].is_empty())
            .filter(|&i| !self.strips[i].here() && !self.never_written(covers.as_ref(), i))
            .collect();
        if open.is_empty() {
            return Step::Done;
        }
        let waiting = |s: &Strip| s.usable() && s.flying > 0 && !s.late;
        let lost: Vec<usize> = open.iter().copied().filter(|&i| !waiting(&self.strips[i])).collect();
        if lost.is_empty() {
            return Step::Wait;
        }

        // "Nothing here", of what is lost or of what would help: does the parity cover something there?
        let absent = self.strips[..self.geometry.k()].iter().any(|s| s.phase == Phase::Absent);
        if absent && covers.is_none() {
            return self.ask_covers();
        }

        let rows = geometry::union(lost.iter().map(|&i| self.wanted[i].clone()).collect());
        match self.gather(covers, &lost, rows) {
            // Others that are wanted may still come, or be lost as well.
            Step::Decode { .. } if lost.len() < open.len() => Step::Wait,
            step => step,
        }
    }

    /// Finds out what the parity covers, or, with no parity in reach, what the data strips tell.
    fn ask_covers(&mut self) -> Step {
        let k = self.geometry.k();
        for i in k..self.geometry.width() {
            if self.strips[i].phase == Phase::Idle {
                return Step::Ask(vec![self.ask(i, Vec::new())]);
            }
            if self.strips[i].usable() && self.strips[i].flying > 0 && !self.strips[i].late {
                return Step::Wait;
            }
        }
        // All parity is out of reach: then every data strip must be here, or have proved to be empty.
        let asks: Vec<usize> = (0..k).filter(|&i| self.strips[i].phase == Phase::Idle).collect();
        if !asks.is_empty() {
            return Step::Ask(asks.into_iter().map(|i| self.ask(i, Vec::new())).collect());
        }
        if self.strips.iter().any(|s| s.usable() && s.flying > 0) {
            return Step::Wait;
        }
        let data = &self.strips[..k];
        let mut touched = StripSet::default();
        for info in data.iter().filter_map(|s| s.info.as_ref()) {
            touched.0 |= info.touched.0;
        }
        let any = data.iter().any(|s| s.info.is_some());
        let erased = data.iter().any(|s| matches!(s.phase, Phase::Erased(_)));
        let claimed = (0..k).any(|i| data[i].phase == Phase::Absent && touched.contains(StripIndex(i as u8)));
        if !any || erased || claimed {
            return Step::TooFew;
        }
        let version = |s: &Strip| Some(s.info.as_ref().map_or(Version::ZERO, |i| i.version));
        let data = self.strips[..k].iter().map(version).collect();
        self.known = Some(BlockMeta { data, parity: Some(Version::ZERO), len: 0 });
        self.step()
    }

    /// Collects K strips with `rows` and decides whether they agree.
    fn gather(&mut self, covers: Option<Vec<Option<Version>>>, lost: &[usize], rows: Vec<Range>) -> Step {
        let (k, width) = (self.geometry.k(), self.geometry.width());
        // Enough is under way or here, counting what is not late; data first, then parity as needed.
        let mut expected = 0;
        let mut asks = Vec::new();
        for i in 0..width {
            if lost.contains(&i) {
                continue;
            }
            if self.never_written(covers.as_ref(), i) {
                expected += 1;
                continue;
            }
            let strip = &self.strips[i];
            if !strip.usable() || strip.late {
                continue;
            }
            if i >= k && expected >= k {
                break;
            }
            let lacks = strip.lacks(&rows);
            if !lacks.is_empty() || strip.phase == Phase::Idle {
                asks.push((i, lacks));
            }
            expected += 1;
        }
        if !asks.is_empty() && expected + self.late_count() >= k {
            return Step::Ask(asks.into_iter().map(|(i, ranges)| self.ask(i, ranges)).collect());
        }
        let ready: Vec<usize> = (0..width)
            .filter(|&i| !lost.contains(&i))
            .filter(|&i| {
                self.never_written(covers.as_ref(), i)
                    || self.strips[i].here() && self.strips[i].lacks(&rows).is_empty()
            })
            .collect();
        let flying = self.strips.iter().any(|s| s.usable() && s.flying > 0);
        if ready.len() < k {
            return if flying { Step::Wait } else { Step::TooFew };
        }
        let disagree = self.disagreeing(&ready);
        let agree: StripSet = ready
            .iter()
            .copied()
            .filter(|i| disagree.iter().all(|(d, _)| usize::from(d.0) != *i))
            .map(|i| StripIndex(i as u8))
            .collect();
        let lost_set: StripSet = lost.iter().map(|&i| StripIndex(i as u8)).collect();
        let sources: StripSet = agree.iter().take(k).collect();
        if sources.count() as usize == k {
            return Step::Decode { lost: lost_set, sources };
        }
        if !self.strict {
            return Step::Disagree(disagree);
        }
        for (i, fault) in disagree {
            self.erase(i.0.into(), fault);
        }
        self.step()
    }

    fn late_count(&self) -> usize {
        self.strips.iter().filter(|s| s.usable() && s.late && s.flying > 0).count()
    }

    /// Strips among `ready` that do not belong to the same version of the stripe as the newest parity.
    /// With no parity there are only data strips, and each is the current one.
    fn disagreeing(&self, ready: &[usize]) -> Vec<(StripIndex, Fault)> {
        let k = self.geometry.k();
        let newest = ready.iter().filter(|&&i| i >= k).filter_map(|&i| self.strips[i].info.as_ref());
        let Some(reference) = newest.max_by_key(|i| i.version) else { return Vec::new() };
        let wrong = |&i: &usize| {
            let found = self.strips[i].info.as_ref()?.version;
            let wanted =
                if i < k { reference.covers.get(i).copied().flatten() } else { Some(reference.version) };
            let fault = Fault::OtherVersion { found, wanted: wanted.unwrap_or_default() };
            (wanted != Some(found)).then_some((StripIndex(i as u8), fault))
        };
        ready.iter().filter_map(wrong).collect()
    }

    /// Replication: the copies one after the other, the next when one is lost or late.
    fn step_copies(&mut self) -> Step {
        let ranges = self.wanted.iter().find(|w| !w.is_empty()).cloned().unwrap_or_default();
        if ranges.is_empty() || self.strips.iter().any(Strip::here) {
            return Step::Done;
        }
        if self.strips.iter().any(|s| s.usable() && s.flying > 0 && !s.late) {
            return Step::Wait;
        }
        if let Some(i) = self.strips.iter().position(|s| s.phase == Phase::Idle) {
            return Step::Ask(vec![self.ask(i, ranges)]);
        }
        if self.strips.iter().any(|s| s.usable() && s.flying > 0) { Step::Wait } else { Step::TooFew }
    }

    /// The copy that has arrived (replicated pools).
    pub fn copy(&self) -> Option<usize> {
        self.strips.iter().position(Strip::here)
    }

    /// What has been learnt of the block.
    pub fn learnt(&self) -> BlockMeta {
        let k = self.geometry.k();
        let mut meta = BlockMeta::unknown(k);
        if self.geometry.replicated() {
            if let Some(info) = self.copy().and_then(|i| self.strips[i].info.as_ref()) {
                meta =
                    BlockMeta { data: vec![Some(info.version)], parity: Some(info.version), len: info.len };
            }
            return meta;
        }
        for i in 0..k {
            if let Some(info) = self.strips[i].info.as_ref().filter(|_| self.strips[i].usable()) {
                meta.data[i] = Some(info.version);
                meta.len = meta.len.max(self.geometry.start(i) + info.len);
            }
        }
        if let Some(covers) = self.covers() {
            for (i, version) in covers.iter().enumerate().take(k) {
                meta.data[i] = Some(version.unwrap_or(Version::ZERO));
                // A strip that answered and is lost since, or has another version, says nothing of the block's length: parity is as long as any.
                let here = self.strips[i].info.as_ref().filter(|_| self.strips[i].usable());
                let seen = version.is_none() || here.map(|info| info.version) == *version;
                if let Some(reference) = self.reference().filter(|_| !seen) {
                    meta.len = meta.len.max(self.geometry.start(i) + reference.len);
                }
            }
        }
        meta.parity = self.reference().map(|r| r.version);
        if let Some(known) = &self.known {
            meta.merge(known);
            if known.parity == Some(Version::ZERO) && self.reference().is_none() {
                meta.parity = None;
            }
        }
        meta
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
