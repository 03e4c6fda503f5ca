//! Verify: reads everything a pdisk's files hold and names whatever does not fit together. Nothing is
//! changed. What a crash leaves (a torn group at the log's end, a checkpoint cut off) is no inconsistency:
//! it is noted. Both checkpoints are read, the log from the older one on is applied and must lead to the
//! newer one; no unit may have two owners; every unit of every version must match its CRC.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use base::{AlignedBuf, PdiskId, StripId, Version, units::UNIT};
use serde::Serialize;
use wire::crc::crc32c;

use super::offline::Offline;
use crate::{
    checkpoint::{self, Head, Slot},
    crcmap::{CrcMap, Salt},
    error::PdiskError,
    files::Label,
    index::Index,
    log::ReadAt,
    recover::{Image, Replay, read_crcs},
    strip::Strip,
};

/// One inconsistency.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// The file it is in.
    pub file: PathBuf,
    /// The strip it costs, where it can be told.
    pub strip: Option<StripId>,
    /// And the version.
    pub version: Option<Version>,
    /// What does not fit.
    pub what: String,
}

/// What a verification has found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verification {
    /// The cluster it belongs to; empty if the label cannot be read.
    pub cluster: String,
    /// Its number.
    pub pdisk: Option<PdiskId>,
    /// Strips, tombstones included.
    pub strips: u64,
    /// Strips that are a seal alone.
    pub tombstones: u64,
    /// Bytes of the data file in use, and all of them.
    pub used_bytes: u64,
    /// Bytes of the data file.
    pub data_bytes: u64,
    /// Bytes compared with their CRCs.
    pub compared_bytes: u64,
    /// Bytes of log behind the newest checkpoint.
    pub log_bytes: u64,
    /// Everything that is wrong; empty: the pdisk is consistent.
    pub findings: Vec<Finding>,
    /// What a crash left, and other things that are no fault.
    pub notes: Vec<String>,
    /// More findings than are listed.
    pub not_listed: u64,
}

/// Findings listed at most.
const FINDINGS_MAX: usize = 10_000;
/// Bytes read at once.
const READ_MAX: usize = 1 << 20;

impl Verification {
    /// Nothing is wrong.
    pub fn is_consistent(&self) -> bool {
        self.findings.is_empty()
    }

    fn add(&mut self, file: &Path, owner: Option<(StripId, Option<Version>)>, what: impl Into<String>) {
        if self.findings.len() == FINDINGS_MAX {
            self.not_listed += 1;
            return;
        }
        self.findings.push(Finding {
            file: file.into(),
            strip: owner.map(|o| o.0),
            version: owner.and_then(|o| o.1),
            what: what.into(),
        });
    }

    /// Damage of a whole file, as opening would report it.
    fn add_error(&mut self, error: PdiskError) -> Result<(), PdiskError> {
        match error {
            PdiskError::Damaged { path, what } => {
                self.add(&path, None, what);
                Ok(())
            }
            PdiskError::Format { ref path, .. } => {
                let path = path.clone();
                self.add(&path, None, error.to_string());
                Ok(())
            }
            PdiskError::Io { verb: "read", path, source } => {
                self.add(&path, None, format!("unreadable: {source}"));
                Ok(())
            }
            other => Err(other),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.file.display())?;
        if let Some(strip) = self.strip {
            write!(f, "{strip} ")?;
        }
        if let Some(version) = self.version {
            write!(f, "{version} ")?;
        }
        f.write_str(&self.what)
    }
}

/// Verifies the pdisk in `dir`, which nobody may have open. `log_dir`: where its log is, if not where it
/// was when the pdisk was made. `progress` hears bytes compared and bytes to compare. `Err`: it could not be
/// verified at all (no pdisk, in use, a file missing).
pub fn verify(
    dir: &Path,
    log_dir: Option<&Path>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Verification, PdiskError> {
    let mut report = Verification::default();
    let offline = match Offline::open(dir, log_dir) {
        Ok(offline) => offline,
        Err(e) => {
            report.add_error(e)?;
            return Ok(report);
        }
    };
    let label = &offline.label;
    (report.cluster, report.pdisk) = (label.cluster.to_string(), Some(label.pdisk));
    for (file, bytes) in offline.sizes() {
        let found = file.size().map_err(PdiskError::io("stat", &file.0.path))?;
        if found < bytes {
            report.add(&file.0.path, None, format!("it has {found} bytes, it must have {bytes}"));
        }
    }
    let mut first = AlignedBuf::zeroed(UNIT);
    let read = offline.log.read_at(&mut first, 0).map_err(PdiskError::io("read", &offline.log.0.path));
    match read.and_then(|()| Label::decode(&first, &offline.log.0.path)) {
        Ok(of_log) if of_log != *label => {
            report.add(&offline.log.0.path, None, "its label differs from the file `label`");
        }
        Ok(_) => {}
        Err(e) => report.add_error(e)?,
    }
    check_image(&offline.image(), (&offline.data, &offline.data.0.path), &mut report, progress)?;
    Ok(report)
}

/// The same for an image of the files, label and sizes aside.
pub(crate) fn check_image(
    image: &Image<'_>,
    data: (&dyn ReadAt, &Path),
    report: &mut Verification,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), PdiskError> {
    let Some((newest, mut index, older)) = checkpoints(image, report)? else { return Ok(()) };
    if let Some((older, index_then)) = older {
        older_leads_to(image, &older, index_then, &newest, &index, report)?;
    }
    let mut crcs = read_crcs(image)?;
    let mut replay = Replay::new(image, newest.rsn, u64::MAX);
    match replay.run(&newest, &mut index, &mut crcs, |_| {}) {
        Ok(end) => report.log_bytes = end.position - newest.log.position,
        Err(e) => return report.add_error(e),
    }
    for (strip, version) in &replay.damage.strips {
        report.add(
            image.log.1,
            Some((*strip, Some(*version))),
            "its bytes in the log do not match their CRCs",
        );
    }
    if replay.damage.log_groups > 0 {
        let what = format!("{} groups are damaged; their second copies serve", replay.damage.log_groups);
        report.add(image.log.1, None, what);
    }
    strips(&index, image.index[0].1, report);
    owners(&index, image, report);
    compare(&index, &crcs, image.label, data, report, progress)
}

type Older = Option<(Head, Index)>;

/// The newest whole checkpoint, and the other one if it is whole as well.
fn checkpoints(
    image: &Image<'_>,
    report: &mut Verification,
) -> Result<Option<(Head, Index, Older)>, PdiskError> {
    let mut whole = Vec::new();
    for (file, path) in &image.index {
        let head = match checkpoint::read_head(*file, path, &image.label.uuid)? {
            Slot::Head(head, _) => head,
            Slot::Empty => {
                if file.size().map_err(PdiskError::io("stat", *path))? > 0 {
                    let what =
                        "no readable header: a checkpoint was cut off there (or the header is damaged)";
                    report.notes.push(format!("{}: {what}", path.display()));
                }
                continue;
            }
        };
        match checkpoint::read_strips(*file, &head, image.label.units) {
            Ok(index) => whole.push((head, index)),
            Err(what) => report.add(path, None, format!("checkpoint {}: {what}", head.number)),
        }
    }
    whole.sort_by_key(|(head, _)| std::cmp::Reverse(head.number));
    let mut whole = whole.into_iter();
    let Some((head, index)) = whole.next() else {
        report.add(image.index[0].1, None, "neither checkpoint is whole");
        return Ok(None);
    };
    Ok(Some((head, index, whole.next())))
}

/// The log from the older checkpoint on must lead to the newer one.
fn older_leads_to(
    image: &Image<'_>,
    older: &Head,
    mut then: Index,
    newest: &Head,
    now: &Index,
    report: &mut Verification,
) -> Result<(), PdiskError> {
    let mut replay = Replay::new(image, older.rsn, newest.rsn);
    let mut unused = CrcMap::new(image.label.units);
    if let Err(e) = replay.run(older, &mut then, &mut unused, |_| {}) {
        return report.add_error(e);
    }
    if replay.rsn != newest.rsn {
        let what = format!(
            "it ends at record {}, checkpoint {} contains record {}",
            replay.rsn, newest.number, newest.rsn
        );
        report.add(image.log.1, None, what);
        return Ok(());
    }
    for (id, strip) in now.iter_after(None) {
        if !then.get(id).is_some_and(|s| same_strip(s, strip)) {
            let what = format!("checkpoint {} and the log do not say the same of it", newest.number);
            report.add(image.log.1, Some((id, None)), what);
        }
    }
    for (id, _) in then.iter_after(None).filter(|(id, _)| now.get(*id).is_none()) {
        let what = format!("the log says that it is here, checkpoint {} that it is not", newest.number);
        report.add(image.log.1, Some((id, None)), what);
    }
    Ok(())
}

/// The same but for what is not logged: which units have reached their place, what was found damaged.
fn same_strip(a: &Strip, b: &Strip) -> bool {
    let versions = |s: &Strip| {
        [&s.adopted, &s.prepared].map(|v| {
            v.as_ref()
                .map(|v| (v.version, v.touched, v.len, v.covers.clone(), v.map.clone(), v.rsn, v.derived))
        })
    };
    (a.pool, a.group, a.sealed_below, a.rsn) == (b.pool, b.group, b.sealed_below, b.rsn)
        && versions(a) == versions(b)
}

/// What must be true of each strip by itself.
fn strips(index: &Index, path: &Path, report: &mut Verification) {
    report.strips = index.len() as u64;
    report.tombstones = index.tombstones() as u64;
    for (id, strip) in index.iter_after(None) {
        if let (Some(a), Some(p)) = (&strip.adopted, &strip.prepared)
            && p.version <= a.version
        {
            report.add(path, Some((id, Some(p.version))), format!("is prepared and not above {}", a.version));
        }
        for v in strip.versions() {
            let owner = Some((id, Some(v.version)));
            if v.damaged {
                report.add(path, owner, "is marked damaged: it wants repair");
            }
            for p in v.pending.iter().filter(|p| crc32c(&p.bytes) != p.crc) {
                let what = format!("unit {}: the bytes kept in the index do not match their CRC", p.unit);
                report.add(path, owner, what);
            }
        }
    }
}

/// No unit may belong to two strips.
fn owners(index: &Index, image: &Image<'_>, report: &mut Verification) {
    let mut owned = Vec::with_capacity(index.len());
    for (id, strip) in index.iter_after(None) {
        owned.extend(strip.own_extents().into_iter().map(|e| (e.start(), e.end(), id)));
    }
    owned.sort_unstable();
    let unit = UNIT as u64;
    report.data_bytes = image.label.units * unit;
    report.used_bytes = owned.iter().map(|(start, end, _)| (end - start) * unit).sum();
    let mut last = (0, StripId::default());
    for (start, end, id) in owned {
        if start < last.0 {
            let what = format!("unit {start} of the data file belongs to it and to {}", last.1);
            report.add(image.index[0].1, Some((id, None)), what);
        }
        if end > last.0 {
            last = (end, id);
        }
    }
}

/// Units of one version, one after the other in the data file.
struct Run {
    place: u64,
    units: u32,
    id: StripId,
    version: Version,
    first: u32,
}

fn compare(
    index: &Index,
    crcs: &CrcMap,
    label: &Label,
    (data, path): (&dyn ReadAt, &Path),
    report: &mut Verification,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), PdiskError> {
    let mut runs = Vec::with_capacity(index.len());
    for (id, strip) in index.iter_after(None) {
        for v in strip.versions().filter(|v| !v.damaged) {
            let mut first = 0;
            for e in &v.map {
                if !e.is_hole() {
                    runs.push(Run { place: e.start(), units: e.count(), id, version: v.version, first });
                }
                first += e.count();
            }
        }
    }
    runs.sort_unstable_by_key(|r| r.place);
    let total: u64 = runs.iter().map(|r| u64::from(r.units) * UNIT as u64).sum();
    let mut buf = AlignedBuf::zeroed(READ_MAX);
    for run in &runs {
        let pending = index.get(run.id).and_then(|s| s.version(run.version)).map(|v| v.pending.as_slice());
        let pending = pending.unwrap_or_default();
        let salt = Salt::of(run.id);
        for at in (0..run.units).step_by(READ_MAX / UNIT) {
            let units = (run.units - at).min((READ_MAX / UNIT) as u32);
            let place = run.place + u64::from(at);
            if place + u64::from(units) > label.units {
                continue;
            }
            buf.set_len(units as usize * UNIT);
            let read = data.read_at(&mut buf, place * UNIT as u64);
            for (i, bytes) in (0..units).zip(buf.chunks_exact(UNIT)) {
                let unit = run.first + at + i;
                let here = place + u64::from(i);
                if pending.binary_search_by_key(&unit, |p| p.unit).is_ok() {
                    // Not at its place yet: what is there does not count.
                    continue;
                }
                let owner = Some((run.id, Some(run.version)));
                match &read {
                    Err(e) => report.add(path, owner, format!("unit {unit} (at {here}) is unreadable: {e}")),
                    Ok(()) if crc32c(bytes) != crcs.get(salt, unit, here) => {
                        report.add(path, owner, format!("unit {unit} (at {here}) does not match its CRC"));
                    }
                    Ok(()) => {}
                }
            }
            report.compared_bytes += buf.len() as u64;
            progress(report.compared_bytes, total);
        }
    }
    Ok(())
}
