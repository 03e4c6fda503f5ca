//! The inputs of the workload, made from a seed on the file system under test. The same seed and scale give the same bytes
//! anywhere. A manifest beside them says what they are; it is written last, so data that was half made is made anew. Data that is
//! there is not read to be trusted: the jobs' results are what finds a wrong byte.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use wire::crc::crc32c;

use super::catalogue::Input;
use crate::draw::Draw;

/// Version of the manifest, and of how the bytes come from the seed.
const FORMAT: u32 = 1;
/// Bytes written at a time, about.
const PIECE: u64 = 1 << 20;
/// The manifest.
const MANIFEST: &str = "ropewalk-workload.json";

/// What was made.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    format: u32,
    /// The seed.
    pub seed: u64,
    /// The scale.
    pub scale: f64,
    /// Each file.
    pub inputs: Vec<Made>,
}

/// One file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Made {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// CRC-32C over the CRC-32Cs of its pieces, as they were written.
    pub digest: String,
}

/// Why there is no data.
#[derive(Debug, Error)]
pub enum DataError {
    /// A file could not be made.
    #[error("cannot make {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The run was stopped meanwhile.
    #[error("stopped")]
    Stopped,
}

/// Makes the inputs in a directory, unless its manifest says that they are there.
pub fn make<'a>(
    dir: &Path,
    inputs: impl Iterator<Item = &'a Input>,
    (seed, scale): (u64, f64),
    stop: &AtomicBool,
) -> Result<Manifest, DataError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| DataError::Io { path, source }
    };
    let inputs: Vec<&Input> = inputs.collect();
    if let Some(there) = there(dir, &inputs, seed, scale) {
        return Ok(there);
    }
    fs::create_dir_all(dir).map_err(failed(dir))?;
    let manifest = dir.join(MANIFEST);
    match fs::remove_file(&manifest) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(&manifest)(e)),
        _ => {}
    }
    let mut made = Manifest { format: FORMAT, seed, scale, inputs: Vec::new() };
    for input in inputs {
        let (path, bytes) = (dir.join(&input.name), input.bytes(scale));
        let digest = fill(&path, input, bytes, seed, stop).map_err(failed(&path))?;
        let Some(digest) = digest else { return Err(DataError::Stopped) };
        made.inputs.push(Made { name: input.name.clone(), bytes, digest: format!("{digest:08x}") });
    }
    let write = |path: &Path| {
        let mut file = File::create(path)?;
        file.write_all(&serde_json::to_vec_pretty(&made)?)?;
        file.sync_all()
    };
    let new = dir.join(format!("{MANIFEST}.new"));
    write(&new).and_then(|()| fs::rename(&new, &manifest)).map_err(failed(&manifest))?;
    Ok(made)
}

/// The manifest, if it is of this seed and scale, and all files have their sizes.
fn there(dir: &Path, inputs: &[&Input], seed: u64, scale: f64) -> Option<Manifest> {
    let found: Manifest = serde_json::from_slice(&fs::read(dir.join(MANIFEST)).ok()?).ok()?;
    let has = |input: &&Input| {
        let bytes = input.bytes(scale);
        found.inputs.iter().any(|made| made.name == input.name && made.bytes == bytes)
            && fs::metadata(dir.join(&input.name)).is_ok_and(|meta| meta.len() == bytes)
    };
    let same = found.format == FORMAT && found.seed == seed && found.scale == scale;
    (same && inputs.iter().all(has)).then_some(found)
}

/// Fills a file; `None` if the run was stopped.
fn fill(path: &Path, input: &Input, bytes: u64, seed: u64, stop: &AtomicBool) -> io::Result<Option<u32>> {
    let mut file = File::create(path)?;
    let (row, rows) = (input.row(), bytes / input.row());
    let name = crc32c(input.name.as_bytes());
    let mut draw = Draw::new(seed ^ (u64::from(name) << 32));
    let (mut piece, mut crcs) = (Vec::new(), Vec::new());
    let each = (PIECE / row).max(1);
    for first in (0..rows).step_by(each as usize) {
        if stop.load(Relaxed) {
            return Ok(None);
        }
        piece.clear();
        for number in first..rows.min(first + each) {
            match input.columns {
                Some(columns) => numbers(&mut piece, &mut draw, columns),
                None => text(&mut piece, &mut draw, number, rows, row as usize),
            }
        }
        file.write_all(&piece)?;
        crcs.extend_from_slice(&crc32c(&piece).to_le_bytes());
    }
    file.sync_all()?;
    Ok(Some(crc32c(&crcs)))
}

/// Id 12, key 8, group 4, quantity 6, price 8 digits, a word as long as the row allows, a newline.
fn text(piece: &mut Vec<u8>, draw: &mut Draw, number: u64, rows: u64, width: usize) {
    let end = piece.len() + width;
    let mut digits = |value: u64, count: u32| {
        piece.extend((0..count).rev().map(|place| b'0' + (value / 10u64.pow(place) % 10) as u8));
        piece.push(b',');
    };
    let keys = (rows / 4).clamp(1, 100_000_000);
    for (value, count) in [
        (number, 12),
        (draw.word() % keys, 8),
        (draw.word() % 1000, 4),
        (draw.word() % 1_000_000, 6),
        (draw.word() % 100_000_000, 8),
    ] {
        digits(value, count);
    }
    while piece.len() + 1 < end {
        let word = draw.word();
        let left = (end - 1 - piece.len()).min(16);
        piece.extend((0..left).map(|i| b"0123456789abcdef"[(word >> (4 * i) & 15) as usize]));
    }
    piece.push(b'\n');
}

/// Numbers from -1 to 1; the last is what the others explain in part.
fn numbers(piece: &mut Vec<u8>, draw: &mut Draw, columns: u64) {
    let mut explained = 0.0;
    for column in 0..columns.saturating_sub(1) {
        let x = draw.number();
        explained += match column {
            0 => x * (1.5 - 0.5 * x * x),
            1..=9 => 0.6 * x / column as f64,
            _ => 0.0,
        };
        piece.extend_from_slice(&x.to_le_bytes());
    }
    piece.extend_from_slice(&(explained + 0.2 * draw.number()).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::catalogue::catalogue;

    #[test]
    fn the_same_seed_gives_the_same_bytes_and_half_made_data_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let go = AtomicBool::new(false);
        let inputs = || catalogue().input.iter().filter(|input| ["skinny", "comp"].contains(&&*input.name));
        let data = |name: &str, seed| make(&dir.path().join(name), inputs(), (seed, 0.0), &go).unwrap();
        let (a, b, other) = (data("a", 1), data("b", 1), data("other", 2));
        assert_eq!(a, b);
        assert!(a.inputs.iter().zip(&other.inputs).all(|(a, b)| a.digest != b.digest && a.bytes == b.bytes));
        let read = |name: &str| fs::read(dir.path().join(name)).unwrap();
        assert_eq!(read("a/skinny"), read("b/skinny"));
        let text = String::from_utf8(read("a/skinny")).unwrap();
        assert!(text.lines().all(|line| line.len() == 63 && line.split(',').count() == 6));
        assert!(text.lines().nth(7).unwrap().starts_with("000000000007,"));
        // What is there is left as it is; a file of another size is not.
        fs::write(dir.path().join("a/mark"), "x").unwrap();
        let path = dir.path().join("a/skinny");
        let mut bytes = read("a/skinny");
        bytes[100] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert_eq!(data("a", 1), a);
        assert_eq!(read("a/skinny"), bytes);
        fs::write(&path, &bytes[..100]).unwrap();
        data("a", 1);
        assert_eq!(read("a/skinny"), read("b/skinny"));
        let stopped = make(&dir.path().join("c"), inputs(), (1, 0.0), &AtomicBool::new(true));
        assert!(matches!(stopped, Err(DataError::Stopped)));
        assert!(!dir.path().join("c").join(MANIFEST).exists());
    }
}
