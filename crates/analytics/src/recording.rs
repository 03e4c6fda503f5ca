//! A recording: what several processes had in their histories of some time, in one file, to be looked at elsewhere. Times in it are
//! by the clock of who recorded it.

use std::{collections::HashSet, fs, io, path::Path};

use base::stats::Second;

use crate::{
    files::{
        reader::{self, Take},
        record::{self, Entry, MAGIC, Origin, Records},
    },
    legend::Legend,
};

/// Bytes of a recording, at most: it is held in memory.
const BYTES_MAX: u64 = 4 << 30;

/// Bytes of names in one record.
const NAMES_MAX: usize = 1 << 20;

/// The history of one process in a recording.
pub struct Section {
    /// Whose it is.
    pub origin: Origin,
    entries: Vec<Entry>,
}

impl Section {
    /// What ends after `after` and not after `to`.
    pub(crate) fn each(&self, after: u64, to: u64, take: Take<'_>) {
        let mut legend = Legend::default();
        for entry in &self.entries {
            if !matches!(entry, Entry::Second(second) if !(after + 1..=to).contains(&second.at)) {
                reader::learn(&mut legend, entry, take);
            }
        }
    }

    fn seconds(&self) -> impl Iterator<Item = &Second> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Second(second) => Some(second),
            _ => None,
        })
    }
}

/// A recording.
pub struct Recording {
    /// By process.
    pub sections: Vec<Section>,
    /// How numbers are shown.
    pub names: Option<String>,
    /// Where its first second begins, and where its last one ends, seconds since 1970.
    pub span: (u64, u64),
}

impl Recording {
    /// Reads one. A damaged one is refused: nobody else will cut it.
    pub fn read(path: &Path) -> io::Result<Recording> {
        let refuse = |text: String| Err(io::Error::new(io::ErrorKind::InvalidData, text));
        let bytes_max = fs::metadata(path)?.len();
        if bytes_max > BYTES_MAX {
            return refuse(format!("it has more than {} GiB: record a shorter time", BYTES_MAX >> 30));
        }
        let bytes = fs::read(path)?;
        if !bytes.starts_with(&MAGIC) {
            return refuse("it is no recording of `ropewalk analytics record`".to_owned());
        }
        let mut recording = Recording { sections: Vec::new(), names: None, span: (u64::MAX, 0) };
        let mut records = Records::of(&bytes);
        for entry in records.by_ref() {
            match entry {
                Entry::Origin(origin) => recording.sections.push(Section { origin, entries: Vec::new() }),
                Entry::Names(part) => recording.names.get_or_insert_default().push_str(&part),
                entry => {
                    if let Some(section) = recording.sections.last_mut() {
                        section.entries.push(entry);
                    }
                }
            }
        }
        if records.good() < bytes.len() {
            return refuse(format!("it is damaged or cut off at byte {}", records.good()));
        }
        if recording.names.is_none() {
            return refuse("it is cut off: the names that end a recording are missing".to_owned());
        }
        for second in recording.sections.iter().flat_map(Section::seconds) {
            let (begin, end) = recording.span;
            recording.span = (begin.min(second.at.saturating_sub(second.span.into())), end.max(second.at));
        }
        Ok(recording)
    }
}

/// Writes a recording, process by process.
pub struct Recorder {
    bytes: Vec<u8>,
}

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder { bytes: MAGIC.to_vec() }
    }
}

impl Recorder {
    /// Whose the following is.
    pub fn begin(&mut self, origin: Origin) {
        record::put(&mut self.bytes, &Entry::Origin(origin));
    }

    /// Adds what a process sent ([`super::Reply::Records`]), by a clock that is so many seconds ahead of its own. Gives the files that are in it.
    pub fn add(&mut self, page: &[u8], ahead: i64) -> Result<HashSet<(u32, u64)>, &'static str> {
        let mut files = HashSet::new();
        let mut records = Records::of(page);
        for mut entry in records.by_ref() {
            if let Entry::Second(second) = &mut entry {
                second.at = second.at.saturating_add_signed(ahead);
                let rows = second.operations.iter().flat_map(|operations| &operations.rows);
                files.extend(rows.map(|row| (row.key.fs, row.key.inode)));
            }
            record::put(&mut self.bytes, &entry);
        }
        if records.good() < page.len() { Err("what was sent is damaged") } else { Ok(files) }
    }

    /// The whole file. `names`: how numbers are shown. Those of many files are more than a record takes.
    pub fn finish(mut self, mut names: String) -> Vec<u8> {
        loop {
            let rest = names.split_off(names.floor_char_boundary(NAMES_MAX));
            record::put(&mut self.bytes, &Entry::Names(names));
            if rest.is_empty() {
                return self.bytes;
            }
            names = rest;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn cut_off_anywhere_it_is_refused_and_names_may_be_many() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.rwhist");
        let read = |bytes: &[u8]| {
            fs::write(&file, bytes).unwrap();
            Recording::read(&file)
        };
        let recorded = |names: &str| {
            let mut recorder = Recorder::default();
            for process in ["/mnt/a", "n1"] {
                recorder.begin(Origin { name: process.to_owned(), ..Origin::default() });
            }
            recorder.finish(names.to_owned())
        };
        let whole = recorded("{}");
        assert_eq!(read(&whole).unwrap().sections.len(), 2);
        for bytes in 0..whole.len() {
            assert!(read(&whole[..bytes]).is_err(), "the first {bytes} bytes");
        }
        let names = "\u{fc}".repeat(5 << 20);
        assert_eq!(read(&recorded(&names)).unwrap().names.unwrap(), names);
    }
}
