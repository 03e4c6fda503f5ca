//! Who writes: it begins writes, its prepares are delivered in any order, it completes when it may, and the next session
//! begins with what it reads.

use std::collections::BTreeSet;

use base::{Epoch, Grant, SessionId, StripSet, Version};
use pdisk::rules::{self, PrepareAction};
use wire::{
    map::PdiskState,
    strip::{PrepareStrip, StripState, VersionInfo},
};

use super::{Bounds, Content, GROUP, K, POOL, Phase, State, WIDTH, Without, disk::Stored, geometry};

/// A prepare on the network; it may arrive at any time, any number of times.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Prepare {
    session: u64,
    epoch: u64,
    pub(super) disk: usize,
    pub(super) slot: usize,
    pub(super) version: Version,
    touched: u32,
    covers: Vec<Option<Version>>,
    base: Option<Version>,
    adopt: Option<Version>,
    delta: Content,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Write {
    number: usize,
    version: Version,
    touched: u32,
    /// Disks that have answered.
    pub(super) acked: BTreeSet<usize>,
    before: Known,
}

/// What a writer knows of the block: the versions of its strips, parity last, and what the strips hold.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Known {
    pub(super) versions: [Option<Version>; WIDTH],
    contents: [Content; WIDTH],
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Writer {
    pub(super) session: u64,
    pub(super) seq: u64,
    pub(super) view: u64,
    pub(super) known: Known,
    /// Versions that are complete and perhaps not adopted, by slot.
    pub(super) complete: [Option<Version>; WIDTH],
    pub(super) write: Option<Write>,
}

fn mix(before: Content, delta: Content) -> Content {
    (before ^ delta.wrapping_mul(0x9E37_79B9_7F4A_7C15)).rotate_left(23).wrapping_mul(0xD134_2543_DE82_EF95)
}

impl State {
    pub(super) fn begin(&mut self, touched_data: u32) {
        let number = self.history.len();
        let writer = self.writer.as_mut().unwrap();
        if let Some(write) = writer.write.take() {
            // Only where the rule is taken out: the one before counts as complete.
            for slot in (0..WIDTH).filter(|s| write.touched >> s & 1 == 1) {
                writer.known.versions[slot] = Some(write.version);
                writer.complete[slot] = Some(write.version);
            }
            writer.known.contents = self.history[write.number];
        }
        writer.seq += 1;
        let version = Version { grant: Grant(writer.session), seq: writer.seq };
        let touched = touched_data | 1 << K;
        let mut contents = writer.known.contents;
        for slot in (0..WIDTH).filter(|s| touched >> s & 1 == 1) {
            contents[slot] = mix(contents[slot], number as u64);
        }
        writer.write =
            Some(Write { number, version, touched, acked: BTreeSet::new(), before: writer.known.clone() });
        self.history.push(contents);
        self.versions.push(version);
        self.allowed.insert(number);
    }

    /// The writer's prepares under the map it has.
    pub(super) fn send(&mut self, without: Without) {
        let Some(writer) = &self.writer else { return };
        let Some(write) = &writer.write else { return };
        let map = self.map_at(writer.view);
        let mut covers: Vec<Option<Version>> = write.before.versions[..K].to_vec();
        for (slot, covered) in covers.iter_mut().enumerate() {
            if write.touched >> slot & 1 == 1 {
                *covered = Some(write.version);
            }
        }
        let mut new = Vec::new();
        for (slot, disk) in map.places() {
            let joining = map.table[slot] != disk;
            if write.touched >> slot & 1 == 0
                || !map.states[disk].written()
                || write.acked.contains(&disk)
                || joining && without == Without::WritesInNewPlace
            {
                continue;
            }
            new.push(Prepare {
                session: writer.session,
                epoch: writer.view,
                disk,
                slot,
                version: write.version,
                touched: write.touched,
                covers: if slot >= K { covers.clone() } else { Vec::new() },
                base: write.before.versions[slot],
                adopt: writer.complete[slot],
                delta: write.number as u64,
            });
        }
        self.net.extend(new);
    }

    /// A prepare arrives. Where the base is not there the writer sends the strip whole.
    pub(super) fn deliver(&mut self, message: &Prepare, without: Without, bounds: Bounds) {
        let d = message.disk;
        let map = self.map_at(self.have[d]).real();
        if !self.alive[d] || message.epoch > self.have[d] {
            return;
        }
        let known = map.clients.iter().any(|c| c.session == SessionId(message.session));
        if !known && bounds.fence && without != Without::Fence {
            return;
        }
        if Epoch(message.epoch) < map.group_changed(POOL, GROUP) && without != Without::GroupEpoch {
            return;
        }
        let mut request = PrepareStrip {
            strip: base::StripId::default(),
            pool: POOL,
            group: GROUP,
            info: VersionInfo {
                version: message.version,
                touched: StripSet(message.touched),
                len: 4096,
                covers: message.covers.clone(),
            },
            base: message.base,
            adopt: message.adopt,
            ranges: Vec::new(),
            crcs: Vec::new(),
        };
        if without == Without::BaseCheck {
            request.base = self.disks[d].adopted.as_ref().map(|a| a.version);
            if message.adopt.is_some_and(|a| self.disks[d].prepared.as_ref().is_some_and(|p| p.version == a))
            {
                request.base = message.adopt;
            }
        }
        let mut state = self.disks[d].state();
        if without == Without::Seal {
            state.sealed_below = Grant(0);
        }
        let mut decision = rules::prepare(&state, &request);
        // Without a base the strip is sent whole.
        let mut whole = message.base.is_none().then(|| self.history[message.delta as usize][message.slot]);
        let writing = self
            .writer
            .as_ref()
            .is_some_and(|w| w.write.as_ref().is_some_and(|write| write.version == message.version));
        if matches!(decision.then, Err(wire::strip::StripRefusal::WrongBase { .. })) && writing {
            // The writer reads what is missing and sends the strip whole.
            request.base = None;
            decision = rules::prepare(&state, &request);
            whole = Some(self.history[message.delta as usize][message.slot]);
        }
        if let Some(version) = decision.adopt {
            self.disks[d].adopt(version);
        }
        match decision.then {
            Ok(PrepareAction::Store) => {
                let before = self.disks[d].adopted.as_ref().map_or(0, |a| a.content);
                let content = whole.unwrap_or_else(|| mix(before, message.delta));
                self.disks[d].touched = true;
                self.disks[d].prepared = Some(Stored {
                    version: message.version,
                    touched: message.touched,
                    covers: message.covers.clone(),
                    content,
                });
            }
            Ok(PrepareAction::AlreadyHere) => self.disks[d].touched = true,
            Err(wire::strip::StripRefusal::PreparedExists { prepared }) if writing => {
                // Left over from another writer: the writer knows what is complete.
                self.disks[d].discard(prepared);
                return;
            }
            Err(_) => return,
        }
        if let Some(write) = self.writer.as_mut().and_then(|w| w.write.as_mut())
            && write.version == message.version
        {
            write.acked.insert(d);
        }
    }

    /// The writer completes when it may.
    pub(super) fn complete(&self, without: Without) -> Option<State> {
        let writer = self.writer.as_ref()?;
        let write = writer.write.as_ref()?;
        let map = self.map_at(writer.view);
        let mut fit = 0;
        for (slot, disk) in map.places() {
            let (member, written) = (map.table[slot] == disk, map.states[disk].written());
            let touched = write.touched >> slot & 1 == 1;
            let acked = write.acked.contains(&disk);
            let skipped = !member && without == Without::WritesInNewPlace;
            if touched && written && !acked && without != Without::AllTouchedAnswer && !skipped {
                return None;
            }
            let untouched =
                !touched && (map.states[disk] == PdiskState::Ok || write.before.versions[slot].is_none());
            if member && (touched && written && acked || untouched) {
                fit += 1;
            }
        }
        if fit < K {
            return None;
        }
        let mut next = self.clone();
        next.allowed = BTreeSet::from([write.number]);
        let contents = next.history[write.number];
        let writer = next.writer.as_mut()?;
        let write = writer.write.take()?;
        for slot in (0..WIDTH).filter(|s| write.touched >> s & 1 == 1) {
            writer.known.versions[slot] = Some(write.version);
            writer.complete[slot] = Some(write.version);
        }
        writer.known.contents = contents;
        // Late copies of older prepares matter; those of this one have done what they can or are refused.
        Some(next)
    }

    /// The next session begins: it reads what there is.
    pub(super) fn succeed(&mut self, without: Without) {
        let map = self.map().clone();
        let states: Vec<Option<StripState>> = (map.table.iter())
            .map(|&d| (map.states[d] == PdiskState::Ok).then(|| self.disks[d].state()))
            .collect();
        let meta = stripe::BlockMeta::from_states(geometry(), &states, |_| None);
        let found = self.read(None, without);
        self.grant += 1;
        let grant = self.grant;
        self.change(|m| m.session = Some(grant));
        let known = |v: Option<Version>| v.filter(|v| *v != Version::ZERO);
        let mut versions = [None; WIDTH];
        for (slot, version) in versions.iter_mut().enumerate() {
            *version = known(if slot < K { meta.data[slot] } else { meta.parity });
        }
        let mut contents = [0; WIDTH];
        if let Some(found) = found {
            contents[..K].copy_from_slice(&found);
            // From now on it is this and nothing else.
            let fits: BTreeSet<usize> =
                self.allowed.iter().copied().filter(|n| self.history[*n][..K] == found).collect();
            if let Some(n) = fits.first() {
                contents[K] = self.history[*n][K];
                self.allowed = fits;
            }
        }
        self.writer = Some(Writer {
            session: grant,
            seq: 0,
            view: self.map().epoch,
            known: Known { versions, contents },
            complete: [None; WIDTH],
            write: None,
        });
        self.phase = Phase::Writing;
    }
}
