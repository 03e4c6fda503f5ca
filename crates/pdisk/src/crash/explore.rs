//! Walks through a trace and, wherever the disk changes, tries recovery on states that a power cut could
//! leave there: what is durable, and of each write that is not, any sectors or none.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashSet},
    path::Path,
};

use bytes::Bytes;

use super::{
    image::{Disk, Patches, View},
    oracle::{Contents, Operations, Oracle},
    workload::Models,
};
use crate::{
    files::Label,
    io::{
        FileKind,
        fault::{SECTOR, TraceEvent},
    },
    random::Random,
    recover::{Image, Recovered, recover},
    tools::{Verification, check_image},
};

/// One state of so many is verified as well.
const VERIFY_EVERY: u64 = 100;

/// A write that no flush covers yet.
#[derive(Clone)]
struct Floating {
    id: u64,
    file: FileKind,
    offset: u64,
    bytes: Bytes,
    done: bool,
}

/// What part of a floating write reached the disk.
#[derive(Clone, Copy, Debug)]
enum Part {
    Nothing,
    All,
    First(u64),
    AllBut(u64),
    Only(u64),
    /// Each sector, so many times of a million.
    Some(u32),
}

pub(super) struct Explorer<'a> {
    pub label: &'a Label,
    pub operations: &'a Operations,
    /// Flushes of these files count as never issued.
    pub without_flush: &'a [FileKind],
    /// States tried at each place, at most.
    pub states_each: u32,
    pub disk: Disk,
    pub oracle: Oracle,
    floating: Vec<Floating>,
    /// Flushes under way, with the writes that each makes durable.
    flushes: BTreeMap<u64, Vec<u64>>,
    contents: RefCell<Contents>,
    random: Random,
    /// States tried.
    pub states: u64,
    /// The last one tried, as it was.
    pub last: Option<Disk>,
}

impl<'a> Explorer<'a> {
    pub fn new(label: &'a Label, operations: &'a Operations, disk: Disk, oracle: Oracle, seed: u64) -> Self {
        Explorer {
            label,
            operations,
            without_flush: &[],
            states_each: 8,
            disk,
            oracle,
            floating: Vec::new(),
            flushes: BTreeMap::new(),
            contents: RefCell::default(),
            random: Random::new(seed),
            states: 0,
            last: None,
        }
    }

    /// Goes on through `events`; the first state that violates the contract ends it.
    pub fn walk(&mut self, events: &[TraceEvent]) -> Result<(), String> {
        for (at, event) in events.iter().enumerate() {
            let changes = match event {
                TraceEvent::Write { .. } => true,
                TraceEvent::Done { id, .. } => self.flushes.contains_key(id),
                _ => false,
            };
            if changes {
                self.try_states().map_err(|e| format!("before event {at}: {e}"))?;
            }
            self.pass(event);
        }
        Ok(())
    }

    fn pass(&mut self, event: &TraceEvent) {
        match event {
            TraceEvent::Write { id, file, offset, bytes } => {
                let (offset, bytes) = (*offset, bytes.clone());
                self.floating.push(Floating { id: *id, file: *file, offset, bytes, done: false });
            }
            TraceEvent::Flush { id, file } if !self.without_flush.contains(file) => {
                let covered = self.floating.iter().filter(|w| w.done && w.file == *file).map(|w| w.id);
                self.flushes.insert(*id, covered.collect());
            }
            TraceEvent::Flush { .. } => {}
            TraceEvent::Done { id, .. } => {
                let Some(covered) = self.flushes.remove(id) else {
                    if let Some(w) = self.floating.iter_mut().find(|w| w.id == *id) {
                        w.done = true;
                    }
                    return;
                };
                for w in self.floating.iter().filter(|w| covered.contains(&w.id)) {
                    self.disk.apply(w.file, w.offset, &w.bytes);
                }
                self.floating.retain(|w| !covered.contains(&w.id));
            }
            TraceEvent::Mark(mark) => self.oracle.mark(*mark, self.operations),
        }
    }

    fn try_states(&mut self) -> Result<(), String> {
        let mut seen = HashSet::new();
        for n in 0..self.states_each {
            let (parts, order) = self.choose(n);
            let patches = patches(&self.floating, &parts, &order, &mut self.random);
            if !seen.insert(patches.fingerprint()) {
                continue;
            }
            self.states += 1;
            if let Err(e) = self.check(&patches) {
                let mut disk = self.disk.clone();
                patches.apply(&mut disk);
                let floating: Vec<_> = self.floating.iter().zip(&parts).map(describe).collect();
                self.last = Some(disk);
                return Err(format!("state {n} ({}): {e}", floating.join(", ")));
            }
            if self.floating.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// What becomes of each floating write in the `n`-th state, and in which order they arrive.
    fn choose(&mut self, n: u32) -> (Vec<Part>, Vec<usize>) {
        let floating = &self.floating;
        let random = &mut self.random;
        let mut order: Vec<usize> = (0..floating.len()).collect();
        let mut parts = vec![if n == 0 { Part::Nothing } else { Part::All }; floating.len()];
        if n > 1 && !floating.is_empty() {
            for i in (1..order.len()).rev() {
                order.swap(i, random.below(i as u64 + 1) as usize);
            }
            if n.is_multiple_of(2) {
                parts.fill_with(|| if random.chance(500_000) { Part::All } else { Part::Nothing });
            }
            let torn = if n % 3 == 2 { floating.len() as u64 } else { 1 };
            for _ in 0..torn {
                let which = random.below(floating.len() as u64) as usize;
                let sectors = (floating[which].bytes.len() / SECTOR) as u64;
                parts[which] = match random.below(6) {
                    0 => Part::First(1 + random.below(sectors)),
                    1 => Part::AllBut(random.below(sectors)),
                    2 => Part::Only(random.below(sectors)),
                    3 => Part::Some(50_000),
                    4 => Part::Some(500_000),
                    _ => Part::Some(950_000),
                };
            }
        }
        (parts, order)
    }

    fn check(&self, patches: &Patches<'_>) -> Result<Models, String> {
        let found = open(self.label, &self.disk, patches)?;
        let data = View::new(&self.disk, patches, FileKind::Data);
        if self.states.is_multiple_of(VERIFY_EVERY) {
            self.verify(patches, &data)?;
        }
        self.oracle.check(&found, &data, &mut self.contents.borrow_mut())
    }

    /// The offline verification must see nothing wrong either.
    fn verify(&self, patches: &Patches<'_>, data: &View<'_>) -> Result<(), String> {
        let mut report = Verification::default();
        let checked = with_image(self.label, &self.disk, patches, |image| {
            check_image(image, (data, Path::new("data")), &mut report, &mut |_, _| {})
        });
        checked.map_err(|e| format!("verify: {e}"))?;
        if report.is_consistent() { Ok(()) } else { Err(format!("verify: {:?}", report.findings)) }
    }

    /// The power goes: a random state of now, and the strips as they are in it.
    pub fn power_cut(&mut self) -> Result<(Disk, Models), String> {
        let n = 2 + self.random.below(6) as u32;
        let (parts, order) = self.choose(n);
        let patches = patches(&self.floating, &parts, &order, &mut self.random);
        let models = self.check(&patches)?;
        let mut disk = self.disk.clone();
        patches.apply(&mut disk);
        self.floating.clear();
        self.disk = disk.clone();
        self.flushes.clear();
        Ok((disk, models))
    }

    /// The process dies and the power stays: what was written is in the disk's cache and still floats.
    pub fn kill(&mut self) -> Result<(Disk, Models), String> {
        let random = &mut self.random;
        self.floating.retain(|w| w.done || random.chance(500_000));
        for w in &mut self.floating {
            w.done = true;
        }
        self.flushes.clear();
        let order: Vec<usize> = (0..self.floating.len()).collect();
        let parts = vec![Part::All; order.len()];
        let patches = patches(&self.floating, &parts, &order, &mut self.random);
        let models = self.check(&patches)?;
        let mut disk = self.disk.clone();
        patches.apply(&mut disk);
        Ok((disk, models))
    }
}

/// Recovery from a state.
pub(super) fn open(label: &Label, disk: &Disk, patches: &Patches<'_>) -> Result<Recovered, String> {
    with_image(label, disk, patches, recover).map_err(|e| format!("it does not open: {e}"))
}

fn with_image<T>(label: &Label, disk: &Disk, patches: &Patches<'_>, run: impl FnOnce(&Image<'_>) -> T) -> T {
    let view = |file| View::new(disk, patches, file);
    run(&Image {
        label,
        log: (&view(FileKind::Log), Path::new("log")),
        data: &view(FileKind::Data),
        crc: (&view(FileKind::Crc), Path::new("crc")),
        index: [
            (&view(FileKind::Index0), Path::new("index.0")),
            (&view(FileKind::Index1), Path::new("index.1")),
        ],
    })
}

fn patches<'f>(
    floating: &'f [Floating],
    parts: &[Part],
    order: &[usize],
    random: &mut Random,
) -> Patches<'f> {
    let mut patches = Patches::default();
    for &i in order {
        let w = &floating[i];
        for (n, sector) in (0u64..).zip(w.bytes.chunks(SECTOR)) {
            let arrives = match parts[i] {
                Part::Nothing => false,
                Part::All => true,
                Part::First(count) => n < count,
                Part::AllBut(lost) => n != lost,
                Part::Only(one) => n == one,
                Part::Some(per_million) => random.chance(per_million),
            };
            if arrives {
                patches.add(w.file, w.offset / SECTOR as u64 + n, sector);
            }
        }
    }
    patches.settle();
    patches
}

fn describe((w, part): (&Floating, &Part)) -> String {
    format!("{:?} {}+{} {part:?}", w.file, w.offset, w.bytes.len())
}
