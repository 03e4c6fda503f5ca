//! The tiers of a history on disk, and the files of each: named by tier and by where their first record begins, so that their
//! names in order are their order in time.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Files of a tier, at most.
const FILES_MAX: usize = 1024;
/// Bytes of one file, at most.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// What the names of the files end in.
const ENDING: &str = ".history";

/// How fine a part of the history is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Tier {
    /// Every second.
    Second,
    /// 60 of them put together.
    Minute,
    /// 60 minutes.
    Hour,
}

impl Tier {
    /// All, the finest first.
    pub const ALL: [Tier; 3] = [Tier::Second, Tier::Minute, Tier::Hour];

    /// Seconds of one record.
    pub fn resolution(self) -> u64 {
        match self {
            Tier::Second => 1,
            Tier::Minute => 60,
            Tier::Hour => 3600,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Tier::Second => "second",
            Tier::Minute => "minute",
            Tier::Hour => "hour",
        }
    }

    /// What of `all` bytes belongs to it: seconds for an hour or more at their fullest, minutes for weeks, hours for years.
    pub fn share(self, all: u64) -> u64 {
        match self {
            Tier::Second => all / 4,
            Tier::Minute => all / 8 * 5,
            Tier::Hour => all / 8,
        }
    }

    /// When a file gives way to the next: bytes.
    pub fn file_bytes(self, all: u64) -> u64 {
        (self.share(all) / 8).min(FILE_BYTES_MAX)
    }

    /// Seconds that a file covers, at most.
    pub fn file_seconds(self) -> u64 {
        match self {
            Tier::Second => 900,
            Tier::Minute => 2 * 86_400,
            Tier::Hour => 90 * 86_400,
        }
    }
}

/// One file of a tier.
#[derive(Clone, Debug)]
pub struct File {
    /// Where its first record begins, seconds since 1970.
    pub begin: u64,
    /// Where it lies.
    pub path: PathBuf,
    /// Its bytes.
    pub bytes: u64,
}

/// The files of a tier in order of time; none if the directory is not there.
pub fn files(dir: &Path, tier: Tier) -> io::Result<Vec<File>> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let begin = name.to_str().and_then(|name| {
            let rest = name.strip_prefix(tier.word())?.strip_prefix('-')?.strip_suffix(ENDING)?;
            rest.split('.').next()?.parse().ok()
        });
        // One that went meanwhile is none.
        if let (Some(begin), Ok(meta)) = (begin, entry.metadata()) {
            found.push(File { begin, path: entry.path(), bytes: meta.len() });
        }
    }
    found.sort_by(|a, b| a.begin.cmp(&b.begin).then_with(|| a.path.cmp(&b.path)));
    Ok(found)
}

/// A new file of a tier; `nth`: of those that begin alike.
pub fn path(dir: &Path, tier: Tier, begin: u64, nth: u32) -> PathBuf {
    dir.join(format!("{}-{begin:012}.{nth}{ENDING}", tier.word()))
}

/// Removes files until a tier has room for `more` bytes within its share of `all`, for a file that begins at `begin`: the oldest,
/// but first those that begin after it. They were written while the clock was ahead; as the newest they would stay for ever, in
/// the place of what is recorded now.
pub fn make_room(dir: &Path, tier: Tier, all: u64, more: u64, begin: u64) -> io::Result<()> {
    let mut there = files(dir, tier)?;
    there.sort_by_key(|file| file.begin <= begin);
    let mut bytes: u64 = there.iter().map(|file| file.bytes).sum();
    let share = tier.share(all);
    while !there.is_empty() && (bytes + more > share || there.len() >= FILES_MAX) {
        let oldest = there.remove(0);
        fs::remove_file(&oldest.path)?;
        bytes -= oldest.bytes;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the files of a tier begin.
    fn begins(dir: &Path, tier: Tier) -> Vec<u64> {
        files(dir, tier).unwrap().iter().map(|file| file.begin).collect()
    }

    #[test]
    fn the_oldest_of_its_own_tier_give_way_and_no_more_than_must() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        make_room(&dir.join("nothing"), Tier::Second, 0, 1, 900).unwrap();
        for begin in [900, 100, 500] {
            fs::write(path(dir, Tier::Second, begin, 0), [0; 100]).unwrap();
            fs::write(path(dir, Tier::Minute, begin, 0), [0; 100]).unwrap();
        }
        fs::write(path(dir, Tier::Second, 100, 1), [0; 10]).unwrap();
        fs::write(dir.join("origin"), [0; 1000]).unwrap();

        // Seconds have a quarter: 400 bytes, 310 of them taken.
        make_room(dir, Tier::Second, 1600, 90, 900).unwrap();
        assert_eq!(begins(dir, Tier::Second), [100, 100, 500, 900]);
        make_room(dir, Tier::Second, 1600, 91, 900).unwrap();
        assert_eq!(begins(dir, Tier::Second), [100, 500, 900], "the first of two that begin alike");
        make_room(dir, Tier::Second, 1600, 200, 900).unwrap();
        assert_eq!(begins(dir, Tier::Second), [500, 900]);
        // What can never fit takes all, and ends.
        make_room(dir, Tier::Second, 0, 1, 900).unwrap();
        assert!(begins(dir, Tier::Second).is_empty());
        assert_eq!(begins(dir, Tier::Minute), [100, 500, 900], "another tier's stay");
        assert!(dir.join("origin").exists());
    }

    #[test]
    fn what_was_written_while_the_clock_was_ahead_goes_first() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        for begin in [100, 500, 31_000_500, 31_000_100] {
            fs::write(path(dir, Tier::Second, begin, 0), [0; 100]).unwrap();
        }
        make_room(dir, Tier::Second, 1600, 100, 900).unwrap();
        assert_eq!(begins(dir, Tier::Second), [100, 500, 31_000_500]);
        make_room(dir, Tier::Second, 1600, 300, 900).unwrap();
        assert_eq!(begins(dir, Tier::Second), [500], "and then the oldest, as ever");
    }

    #[test]
    fn there_are_never_too_many_files() {
        let dir = tempfile::tempdir().unwrap();
        for begin in 0..FILES_MAX as u64 {
            fs::write(path(dir.path(), Tier::Hour, begin, 0), []).unwrap();
        }
        make_room(dir.path(), Tier::Hour, 1 << 30, 1, 9999).unwrap();
        let left = begins(dir.path(), Tier::Hour);
        assert_eq!((left.len(), left[0]), (FILES_MAX - 1, 1));
    }
}
