//! The world of the model: pdisks, writers, messages under way and the map; what may happen next in a state, by the
//! shipped decisions, and whether it is a loss.

use std::collections::BTreeSet;

use base::{Epoch, Grant, GroupId, PdiskId, PoolId, SessionId, StripIndex, StripSet, Version};
use nsd::judge::{Seen, Verdict, Why, judge};
use pdisk::rules::{self, Action, PrepareAction};
use stripe::{
    Geometry,
    resolve::{Decision, Member, Moved, decide, decide_moved},
};
use wire::{
    map::{ClientEntry, ClusterMap, PdiskEntry, PdiskState, PoolEntry, StripMove},
    owned::Owner,
    strip::{PrepareStrip, StripState, VersionInfo},
};

const K: usize = 2;
const WIDTH: usize = 3;
const DISKS: usize = 4;
const POOL: PoolId = PoolId(1);
const GROUP: GroupId = GroupId(0);

fn geometry() -> Geometry {
    Geometry::new("2+1p".parse().unwrap(), 256 << 10)
}

/// A rule that is taken out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Without {
    Nothing,
    Seal,
    Fence,
    BaseCheck,
    NextWhenComplete,
    AllTouchedAnswer,
    GroupEpoch,
    CatchUp,
    ReadOnlyWhatCaughtUp,
    MapInForceBeforeCatchUp,
    InstallOnlyOverOlder,
    ForwardWhenAdopted,
    WritesInNewPlace,
    AllThereBeforeSwitch,
    ResolveNewPlace,
    HeldWaits,
}

/// What may happen.
#[derive(Clone, Copy)]
pub struct Bounds {
    pub writes: usize,
    pub crashes: u8,
    pub deaths: u8,
    pub moves: bool,
    /// Strips that count are made anew, as if they were found damaged.
    pub repairs: bool,
    /// Sessions are fenced at the servers. Without, the seal alone must be enough.
    pub fence: bool,
    pub sealing: bool,
}

type Content = u64;

/// One version of a strip, and what its bytes are.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Stored {
    version: Version,
    touched: u32,
    covers: Vec<Option<Version>>,
    content: Content,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Disk {
    adopted: Option<Stored>,
    prepared: Option<Stored>,
    sealed: u64,
    /// Something was stored in this life of it.
    touched: bool,
    /// What its catch-up waits for.
    held: Option<Version>,
}

impl Disk {
    fn state(&self) -> StripState {
        let info = |s: &Stored| VersionInfo {
            version: s.version,
            touched: StripSet(s.touched),
            len: 4096,
            covers: s.covers.clone(),
        };
        StripState {
            adopted: self.adopted.as_ref().map(info),
            prepared: self.prepared.as_ref().map(info),
            sealed_below: Grant(self.sealed),
            pool: POOL,
            group: GROUP,
            ..StripState::default()
        }
    }
    fn adopt(&mut self, version: Version) {
        if rules::adopt(&self.state(), version) == Ok(Action::Apply) {
            self.adopted = self.prepared.take();
        }
    }
    fn discard(&mut self, version: Version) {
        if rules::discard(&self.state(), version) == Ok(Action::Apply) {
            self.prepared = None;
        }
    }
    fn install(&mut self, stored: Stored, anything: bool) {
        if anything || rules::install(&self.state(), stored.version) == Ok(Action::Apply) {
            self.prepared.take_if(|p| p.version <= stored.version);
            self.adopted = Some(stored);
        }
    }
}

/// A prepare on the network; it may arrive at any time, any number of times.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Prepare {
    session: u64,
    epoch: u64,
    disk: usize,
    slot: usize,
    version: Version,
    touched: u32,
    covers: Vec<Option<Version>>,
    base: Option<Version>,
    adopt: Option<Version>,
    delta: Content,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Write {
    number: usize,
    version: Version,
    touched: u32,
    /// Disks that have answered.
    acked: BTreeSet<usize>,
    before: Known,
}

/// What a writer knows of the block: the versions of its strips, parity last, and what the strips hold.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Known {
    versions: [Option<Version>; WIDTH],
    contents: [Content; WIDTH],
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Writer {
    session: u64,
    seq: u64,
    view: u64,
    known: Known,
    /// Versions that are complete and perhaps not adopted, by slot.
    complete: [Option<Version>; WIDTH],
    write: Option<Write>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Phase {
    /// A session writes.
    Writing,
    /// Its writer is gone.
    Crashed,
    /// It is out of the map.
    Fencing,
    /// Everything is sealed for the next session.
    Sealed,
    /// Nothing more can be decided: a strip is out of reach that could tell.
    Stuck,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    disks: [Disk; DISKS],
    alive: [bool; DISKS],
    have: [u64; DISKS],
    /// All versions of the map: states of the disks, epoch of their change, table, move, session.
    maps: Vec<Map>,
    net: BTreeSet<Prepare>,
    writer: Option<Writer>,
    phase: Phase,
    grant: u64,
    /// What the block held after each write that was begun, by number: contents of the strips.
    history: Vec<[Content; WIDTH]>,
    /// And the version of each.
    versions: Vec<Version>,
    /// Which of them may be read.
    allowed: BTreeSet<usize>,
    filled: bool,
    /// What catch-up, or a move, is about to store.
    pending: Option<(usize, Stored)>,
    crashes: u8,
    deaths: u8,
    moved: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Map {
    epoch: u64,
    states: [PdiskState; DISKS],
    changed: [u64; DISKS],
    table: [usize; WIDTH],
    moving: Option<(usize, usize, u64)>,
    table_changed: u64,
    session: Option<u64>,
}

impl Map {
    /// As the servers' gates see it.
    fn real(&self) -> ClusterMap {
        ClusterMap {
            epoch: Epoch(self.epoch),
            pdisks: (0..DISKS)
                .map(|d| PdiskEntry {
                    id: PdiskId(d as u32),
                    state: self.states[d],
                    changed: Epoch(self.changed[d]),
                    ..PdiskEntry::default()
                })
                .collect(),
            pools: vec![PoolEntry {
                id: POOL,
                code: "2+1p".into(),
                width: WIDTH as u8,
                table: self.table.iter().map(|d| PdiskId(*d as u32)).collect(),
                moves: (self.moving.iter())
                    .map(|&(slot, to, since)| StripMove {
                        group: GROUP,
                        strip: StripIndex(slot as u8),
                        to: PdiskId(to as u32),
                        since: Epoch(since),
                    })
                    .collect(),
                changed: Epoch(self.table_changed),
                ..PoolEntry::default()
            }],
            clients: (self.session.iter())
                .map(|s| ClientEntry { session: SessionId(*s), ..ClientEntry::default() })
                .collect(),
            ..ClusterMap::default()
        }
    }
    /// (slot, disk) of every place a write goes to.
    fn places(&self) -> Vec<(usize, usize)> {
        let mut places: Vec<_> = self.table.iter().copied().enumerate().collect();
        places.extend(self.moving.map(|(slot, to, _)| (slot, to)));
        places
    }
}

fn mix(before: Content, delta: Content) -> Content {
    (before ^ delta.wrapping_mul(0x9E37_79B9_7F4A_7C15)).rotate_left(23).wrapping_mul(0xD134_2543_DE82_EF95)
}

impl State {
    pub fn new() -> State {
        let map = Map {
            epoch: 1,
            states: [PdiskState::Ok; DISKS],
            changed: [1; DISKS],
            table: [0, 1, 2],
            moving: None,
            table_changed: 1,
            session: Some(1),
        };
        State {
            disks: Default::default(),
            alive: [true; DISKS],
            have: [1; DISKS],
            maps: vec![map],
            net: BTreeSet::new(),
            writer: Some(Writer {
                session: 1,
                seq: 0,
                view: 1,
                known: Known::default(),
                complete: [None; WIDTH],
                write: None,
            }),
            phase: Phase::Writing,
            grant: 1,
            history: vec![[0; WIDTH]],
            versions: vec![Version::ZERO],
            allowed: BTreeSet::from([0]),
            filled: false,
            pending: None,
            crashes: 0,
            deaths: 0,
            moved: false,
        }
    }
    fn map(&self) -> &Map {
        self.maps.last().unwrap()
    }
    fn map_at(&self, epoch: u64) -> &Map {
        &self.maps[epoch as usize - 1]
    }
    fn change(&mut self, change: impl FnOnce(&mut Map)) {
        let mut map = self.map().clone();
        map.epoch += 1;
        change(&mut map);
        self.maps.push(map);
    }
    /// Everybody who serves has the newest map in force.
    fn in_force(&self) -> bool {
        self.map().places().iter().all(|&(_, d)| !self.alive[d] || self.have[d] == self.map().epoch)
    }

    fn begin(&mut self, touched_data: u32) {
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
    fn send(&mut self, without: Without) {
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
    fn deliver(&mut self, message: &Prepare, without: Without, bounds: Bounds) {
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
    fn complete(&self, without: Without) -> Option<State> {
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

    /// The members as catch-up, moves and resolution see them.
    fn seen(&self, me: usize) -> Vec<Seen> {
        let map = self.map();
        (0..WIDTH)
            .map(|slot| match map.table[slot] {
                _ if slot == me => Seen::Mine,
                d if map.states[d] == PdiskState::Ok => Seen::Ok(Some(self.disks[d].state())),
                d if map.states[d].written() && self.alive[d] => Seen::Returning(Some(self.disks[d].state())),
                _ => Seen::Away,
            })
            .collect()
    }

    /// What strip `slot` holds at the versions of `target`, from the other members (or its own).
    fn rebuilt(&self, slot: usize, target: &stripe::StripeTarget) -> Option<Stored> {
        let map = self.map();
        let version = target.version_of(StripIndex(slot as u8))?;
        let holds = |s: usize, version: Version| {
            let d = map.table[s];
            let found = self.disks[d].adopted.iter().chain(&self.disks[d].prepared);
            let mut found = found.filter(|x| x.version == version);
            (map.states[d].written() && self.alive[d]).then(|| found.next()).flatten()
        };
        let mut right = 0;
        for other in (0..WIDTH).filter(|s| *s != slot) {
            let wanted =
                if other < K { target.covers.get(other).copied().flatten() } else { Some(target.version) };
            match wanted {
                None => right += 1,
                Some(wanted) if holds(other, wanted).is_some() => right += 1,
                Some(_) => {}
            }
        }
        if right < K {
            return None;
        }
        // The content: what the history says that version of the strip was, if the sources are sound.
        let content = self.content_of(slot, version)?;
        let covers = if slot >= K { target.covers.clone() } else { Vec::new() };
        Some(Stored { version, touched: target.touched.0 | 1 << slot, covers, content })
    }

    /// What a version of a strip should be.
    fn content_of(&self, slot: usize, version: Version) -> Option<Content> {
        self.history_of(version).map(|number| self.history[number][slot])
    }
    fn history_of(&self, version: Version) -> Option<usize> {
        self.versions.iter().position(|v| *v == version)
    }

    /// A disk that counts looks at its strip as at one whose bytes are damaged.
    fn repair(&mut self, me: usize, disk: usize) {
        let mine = StripState { lost: true, ..self.disks[disk].state() };
        let verdict = judge(geometry(), me, Some(&mine), &self.seen(me), Some(Owner::Recorded));
        if let Verdict::Install(target) = verdict {
            self.pending = self.rebuilt(me, &target).map(|stored| (disk, stored));
        }
    }

    /// One look of a disk at its strip; true if it is what it should be.
    fn settle(&mut self, me: usize, disk: usize, without: Without) -> bool {
        match judge(geometry(), me, Some(&self.disks[disk].state()), &self.seen(me), Some(Owner::Recorded)) {
            Verdict::Fine => return true,
            Verdict::Adopt(version) => self.disks[disk].adopt(version),
            Verdict::Discard(version) => self.disks[disk].discard(version),
            Verdict::Install(target) => {
                // What was asked for is stored later: writes may come in between.
                self.pending = self.rebuilt(me, &target).map(|stored| (disk, stored));
            }
            Verdict::Delete(version) => {
                self.disks[disk].adopted.take_if(|a| a.version <= version);
                self.disks[disk].prepared.take_if(|a| a.version <= version);
            }
            // What moves is copied from where it comes from, once that is there.
            Verdict::Hopeless(_, target) if self.map().table[me] != disk => {
                self.pending = self.rebuilt(me, &target).map(|stored| (disk, stored));
            }
            Verdict::Hopeless(older, _) => {
                self.disks[disk].adopted.take_if(|a| older.is_some_and(|older| a.version <= older));
                return true;
            }
            // The beginning of a write, over what it should be.
            Verdict::DiscardLeftover(_) if self.disks[disk].touched => {
                let beneath = StripState { prepared: None, ..self.disks[disk].state() };
                let verdict = judge(geometry(), me, Some(&beneath), &self.seen(me), Some(Owner::Recorded));
                return verdict == Verdict::Fine;
            }
            Verdict::AdoptLeftover(_) if self.disks[disk].touched => {}
            Verdict::AdoptLeftover(version) => self.disks[disk].adopt(version),
            Verdict::DiscardLeftover(version) => self.disks[disk].discard(version),
            Verdict::Later(Why::Held(_)) if without == Without::HeldWaits => return true,
            Verdict::Later(Why::Held(now)) => {
                let first = *self.disks[disk].held.get_or_insert(now);
                return first < now;
            }
            Verdict::Ask | Verdict::Later(_) => {}
        }
        false
    }

    /// One round of resolution. `None`: nothing is left to do.
    fn resolve(&mut self, without: Without) -> Option<bool> {
        let map = self.map().clone();
        let members: Vec<Member> = (map.table.iter())
            .map(|&d| match map.states[d] {
                PdiskState::Ok => Member::Ok(self.disks[d].state()),
                PdiskState::Returning if self.alive[d] => Member::Returning(self.disks[d].state()),
                state => Member::Away(state),
            })
            .collect();
        let mut decision = decide(geometry(), &members);
        if without == Without::ForwardWhenAdopted
            && let Decision::Forward { version, .. } = &decision
            && members.iter().any(
                |m| matches!(m, Member::Ok(s) if s.adopted.as_ref().is_some_and(|a| a.version == *version)),
            )
        {
            let version = *version;
            let discard = (0..WIDTH as u8).map(|i| (StripIndex(i), version)).collect();
            decision = Decision::Back { version, discard };
        }
        match decision {
            Decision::Clean => {
                if let (Some((slot, to, _)), true) = (map.moving, without != Without::ResolveNewPlace) {
                    match decide_moved(geometry(), &members, StripIndex(slot as u8), &self.disks[to].state())
                    {
                        Some(Moved::Adopt(version)) => self.disks[to].adopt(version),
                        Some(Moved::Discard(version)) => self.disks[to].discard(version),
                        None => {}
                    }
                }
                None
            }
            Decision::Unavailable { .. } => Some(false),
            Decision::Back { discard, .. } => {
                for (index, version) in discard {
                    self.disks[map.table[usize::from(index.0)]].discard(version);
                }
                Some(true)
            }
            Decision::Forward { adopt, discard, install, target, .. } => {
                for (index, version) in adopt {
                    self.disks[map.table[usize::from(index.0)]].adopt(version);
                }
                for (index, version) in discard {
                    self.disks[map.table[usize::from(index.0)]].discard(version);
                }
                for index in install {
                    let slot = usize::from(index.0);
                    if let Some(stored) = target.as_ref().and_then(|t| self.rebuilt(slot, t)) {
                        self.disks[map.table[slot]].install(stored, false);
                    }
                }
                Some(true)
            }
        }
    }

    /// What a reader gets with disk `lost` gone as well; `None` if it cannot be read.
    fn read(&self, lost: Option<usize>, without: Without) -> Option<[Content; K]> {
        let map = self.map();
        let complete = self.writer.as_ref().map(|w| w.complete).unwrap_or_default();
        let current = |slot: usize| {
            let d = map.table[slot];
            let counts = map.states[d] == PdiskState::Ok
                || without == Without::ReadOnlyWhatCaughtUp && map.states[d] == PdiskState::Returning;
            if !counts || lost == Some(d) {
                return None;
            }
            let disk = &self.disks[d];
            let own = disk.prepared.as_ref().filter(|p| complete[slot] == Some(p.version));
            Some(own.or(disk.adopted.as_ref()))
        };
        let parity = current(K);
        let mut out = [0; K];
        for (slot, content) in out.iter_mut().enumerate() {
            *content = match current(slot) {
                Some(stored) => stored.map_or(0, |s| s.content),
                None => {
                    let Some(parity) = parity? else {
                        *content = 0;
                        continue;
                    };
                    let other = 1 - slot;
                    let held = current(other)?;
                    let agrees = held.map(|h| h.version) == parity.covers[other];
                    let sound = Some(parity.content) == self.content_of(K, parity.version)
                        && held.is_none_or(|h| Some(h.content) == self.content_of(other, h.version));
                    match (agrees, sound) {
                        (true, true) => parity.covers[slot].map_or(Some(0), |v| self.content_of(slot, v))?,
                        (false, _) => return None,
                        _ => 1, // bytes that never were
                    }
                }
            };
        }
        Some(out)
    }

    /// What is wrong now, if something is.
    pub fn loss(&self, without: Without) -> Option<String> {
        if self.phase != Phase::Writing {
            return None;
        }
        // While a write is under way a read may have to be repeated; what it gives counts all the same.
        let quiet = self.writer.as_ref().is_some_and(|w| w.write.is_none());
        let map = self.map();
        let gone: Vec<usize> =
            map.table.iter().copied().filter(|d| map.states[*d] != PdiskState::Ok).collect();
        let mut cases = vec![None];
        if gone.is_empty() {
            cases.extend(map.table.iter().map(|d| Some(*d)));
        }
        for lost in cases {
            match self.read(lost, without) {
                Some(found) => {
                    let fits = self.allowed.iter().any(|n| self.history[*n][..K] == found);
                    if !fits {
                        return Some(format!("read with {lost:?} lost gives what may not be: {found:?}"));
                    }
                }
                None if quiet => return Some(format!("cannot be read with {lost:?} lost")),
                None => {}
            }
        }
        None
    }

    pub fn next(&self, bounds: Bounds, without: Without) -> Vec<(String, State)> {
        let mut all = Vec::new();
        let mut step = |label: String, change: &dyn Fn(&mut State)| {
            let mut next = self.clone();
            change(&mut next);
            next.send(without);
            if next != *self {
                all.push((label, next));
            }
        };
        // Messages.
        for message in &self.net {
            let label =
                format!("deliver {:?} to disk {} slot {}", message.version, message.disk, message.slot);
            step(label, &|s| s.deliver(message, without, bounds));
        }
        // The writer.
        if let Some(writer) = &self.writer {
            let free = writer.write.is_none() || without == Without::NextWhenComplete;
            if free && self.history.len() <= bounds.writes {
                for touched in [1, 2, 3] {
                    if writer.known.versions[0].is_some() || touched == 3 {
                        step(format!("write {touched:#b}"), &|s| s.begin(touched));
                    }
                }
            }
            if let Some(next) = self.complete(without) {
                step("complete".into(), &|s| *s = next.clone());
            }
            if writer.view < self.map().epoch {
                step("writer gets the map".into(), &|s| {
                    let epoch = s.map().epoch;
                    if let Some(w) = &mut s.writer {
                        let before = std::mem::replace(&mut w.view, epoch);
                        let map = s.maps.last().unwrap();
                        if let Some(write) = &mut w.write {
                            // Who was away meanwhile is asked again.
                            write.acked.retain(|d| map.states[*d].written() && map.changed[*d] <= before);
                        }
                    }
                });
            }
            let view = self.map_at(writer.view);
            for slot in 0..WIDTH {
                // What is on its way to another place stays known there.
                let written = view.places().iter().any(|&(s, d)| s == slot && view.states[d].written());
                if writer.complete[slot].is_some() && !written {
                    step(format!("the writer forgets slot {slot}"), &|s| {
                        s.writer.iter_mut().for_each(|w| w.complete[slot] = None);
                    });
                }
            }
            for (slot, disk) in view.places() {
                if let Some(version) = writer.complete[slot]
                    && self.alive[disk]
                {
                    step(format!("adopt slot {slot} on disk {disk}"), &|s| s.disks[disk].adopt(version));
                }
            }
            if self.crashes < bounds.crashes {
                step("the writer crashes".into(), &|s| {
                    s.crashes += 1;
                    s.writer = None;
                    s.phase = Phase::Crashed;
                });
            }
        }
        // The next session.
        match self.phase {
            Phase::Crashed => step("fence".into(), &|s| {
                s.change(|m| m.session = None);
                s.phase = Phase::Fencing;
            }),
            Phase::Fencing => {
                let map = self.map();
                let reach = map.table.iter().all(|d| map.states[*d] != PdiskState::Ok || self.alive[*d]);
                if (self.in_force() || without == Without::Fence || !bounds.fence) && reach {
                    step("seal".into(), &|s| {
                        let grant = s.grant + 1;
                        let places = s.map().places();
                        for (_, d) in places {
                            if s.alive[d] && s.map().states[d].written() && bounds.sealing {
                                s.disks[d].sealed = s.disks[d].sealed.max(grant);
                            }
                        }
                        s.phase = Phase::Sealed;
                    });
                }
            }
            Phase::Sealed => step("resolve".into(), &|s| match s.resolve(without) {
                Some(true) => {}
                Some(false) => s.phase = Phase::Stuck,
                None => s.succeed(without),
            }),
            Phase::Writing | Phase::Stuck => {}
        }
        // Servers and pdisks.
        let map = self.map();
        for d in 0..DISKS {
            let used = map.places().iter().any(|(_, p)| *p == d);
            if !used {
                continue;
            }
            if self.alive[d] && self.have[d] < map.epoch {
                step(format!("server {d} gets the map"), &|s| s.have[d] = s.map().epoch);
            }
            if self.alive[d] && self.deaths < bounds.deaths && map.table.contains(&d) {
                step(format!("disk {d} dies"), &|s| {
                    s.alive[d] = false;
                    s.deaths += 1;
                });
            }
            let ok = map.table.iter().filter(|o| **o != d && map.states[**o] == PdiskState::Ok).count();
            if !self.alive[d] && map.states[d] == PdiskState::Ok && ok >= K {
                step(format!("disk {d} is missing"), &|s| {
                    s.change(|m| {
                        m.states[d] = PdiskState::Missing;
                        m.changed[d] = m.epoch;
                    });
                });
            }
            if !self.alive[d] {
                step(format!("disk {d} is back"), &|s| {
                    s.alive[d] = true;
                    (s.disks[d].touched, s.disks[d].held) = (false, None);
                    if s.map().states[d] == PdiskState::Missing {
                        s.change(|m| {
                            m.states[d] = match without {
                                Without::CatchUp => PdiskState::Ok,
                                _ => PdiskState::Returning,
                            };
                            m.changed[d] = m.epoch;
                        });
                    }
                    s.have[d] = s.map().epoch;
                });
            }
            let may = self.in_force() || without == Without::MapInForceBeforeCatchUp;
            if map.states[d] == PdiskState::Returning && self.alive[d] && may && self.pending.is_none() {
                let slot = map.table.iter().position(|t| *t == d);
                step(format!("disk {d} catches up"), &|s| {
                    if slot.is_none_or(|slot| s.settle(slot, d, without)) {
                        s.change(|m| {
                            m.states[d] = PdiskState::Ok;
                            m.changed[d] = m.epoch;
                        });
                    }
                });
            }
        }
        for (slot, d) in map.table.iter().copied().enumerate() {
            let may = bounds.repairs && self.in_force() && self.pending.is_none() && self.alive[d];
            if may && map.states[d] == PdiskState::Ok && self.disks[d].adopted.is_some() {
                step(format!("disk {d} makes its strip anew"), &|s| s.repair(slot, d));
            }
        }
        if let Some((d, stored)) = &self.pending {
            step(format!("what was asked for is stored on disk {d}"), &|s| {
                s.disks[*d].install(stored.clone(), without == Without::InstallOnlyOverOlder);
                s.pending = None;
            });
        }
        // A move of strip 0, or of the parity, to the fourth disk.
        if bounds.moves && !self.moved {
            for slot in [0, K] {
                step(format!("strip {slot} is to move"), &|s| {
                    s.moved = true;
                    s.change(|m| {
                        m.moving = Some((slot, 3, m.epoch));
                        m.table_changed = m.epoch;
                    });
                });
            }
        }
        if let Some((slot, to, _)) = map.moving {
            let may = self.in_force() || without == Without::MapInForceBeforeCatchUp;
            if !self.filled && may && self.alive[to] && self.pending.is_none() {
                step("the new place looks".into(), &|s| s.filled = s.settle(slot, to, without));
            }
            if self.filled || without == Without::AllThereBeforeSwitch {
                step("switch".into(), &|s| {
                    s.change(|m| {
                        m.table[slot] = to;
                        m.moving = None;
                        m.table_changed = m.epoch;
                    });
                });
            }
        }
        all
    }

    /// The next session begins: it reads what there is.
    fn succeed(&mut self, without: Without) {
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
