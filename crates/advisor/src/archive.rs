//! One archive of a host: what the reader reads, as a tar file (ustar) that any tar can list. [`collect`] makes one,
//! [`open`] reads one into a [`Tree`]. An archive comes from elsewhere: sizes, counts and names are bounded and checked,
//! and nothing of it is ever unpacked to disk.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::Path,
};

use crate::host::{Entries, Entry, Tree, host_facts};

const BLOCK: usize = 512;
/// Larger archives are refused, in bytes.
const ARCHIVE_BYTES_MAX: u64 = 256 << 20;
/// The entry by which an archive is known to be one of ours.
const MARK: &str = "ropewalk/collected";

/// Why an archive cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// It cannot be read at all.
    #[error("read the archive: {0}")]
    Io(#[from] io::Error),
    /// It is something else.
    #[error("this is no archive of `ropewalk advise collect`: {0}")]
    Other(&'static str),
}

/// Reads the host below a root and packs what was read. The text of the archive holds no values of words that look like
/// secrets.
pub fn collect(root: &Path) -> Vec<u8> {
    let tree = Tree::noting(root);
    host_facts(&tree);
    let mut entries = tree.noted();
    entries.insert(MARK.to_owned(), Entry::File(format!("ropewalk {}\n", env!("CARGO_PKG_VERSION"))));
    pack(&entries)
}

/// The files in an archive, or below a directory.
///
/// # Errors
/// It cannot be read, or is no archive of [`collect`].
pub fn open(path: &Path) -> Result<Tree, ArchiveError> {
    if fs::metadata(path)?.is_dir() {
        return Ok(Tree::below(path));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(ARCHIVE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(Tree::of(unpack(&bytes)?))
}

fn pack(entries: &Entries) -> Vec<u8> {
    let mut out = Vec::new();
    for (path, entry) in entries {
        let (kind, text, link) = match entry {
            Entry::Directory => (b'5', "", ""),
            Entry::File(text) => (b'0', text.as_str(), ""),
            Entry::Link(target) => (b'2', "", target.as_str()),
        };
        let Some(header) = header(path, kind, text.len(), link) else { continue };
        out.extend_from_slice(&header);
        out.extend_from_slice(text.as_bytes());
        out.resize(out.len().next_multiple_of(BLOCK), 0);
    }
    // Two empty blocks end a tar file.
    out.resize(out.len() + 2 * BLOCK, 0);
    out
}

/// A header of ustar; none for names that do not fit into it.
fn header(path: &str, kind: u8, size: usize, link: &str) -> Option<[u8; BLOCK]> {
    // A name of up to 100 bytes, and before it a prefix of up to 155 that ends at a `/`.
    let (prefix, name) = if path.len() <= 100 {
        ("", path)
    } else {
        let cut = path.char_indices().find(|(i, c)| *c == '/' && path.len() - i - 1 <= 100)?.0;
        (&path[..cut], &path[cut + 1..])
    };
    if prefix.len() > 155 || link.len() > 100 {
        return None;
    }
    let mut header = [0u8; BLOCK];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, if kind == b'5' { "0000755" } else { "0000644" });
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{size:011o}"));
    put(136, "00000000000");
    put(148, "        ");
    put(157, link);
    put(257, "ustar");
    put(263, "00");
    put(345, prefix);
    header[156] = kind;
    let sum: u32 = header.iter().map(|b| u32::from(*b)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Some(header)
}

fn unpack(bytes: &[u8]) -> Result<Entries, ArchiveError> {
    let other = ArchiveError::Other;
    if bytes.len() as u64 > ARCHIVE_BYTES_MAX {
        return Err(other("larger than 256 MiB"));
    }
    let mut entries = Entries::new();
    let mut at = 0;
    while let Some(header) = bytes.get(at..at + BLOCK) {
        if header.iter().all(|b| *b == 0) {
            break;
        }
        if &header[257..262] != b"ustar" {
            return Err(other("not a tar file"));
        }
        let field = |from: usize, length: usize| {
            let field = &header[from..from + length];
            let end = field.iter().position(|b| *b == 0).unwrap_or(length);
            String::from_utf8_lossy(&field[..end]).into_owned()
        };
        let size =
            usize::from_str_radix(field(124, 12).trim(), 8).map_err(|_| other("a size is no number"))?;
        let (prefix, name) = (field(345, 155), field(0, 100));
        let path = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        let from = at + BLOCK;
        let end = from.checked_add(size).ok_or(other("a size is too large"))?;
        let content = bytes.get(from..end).ok_or(other("it ends in the middle of a file"))?;
        let entry = match header[156] {
            b'0' | 0 => Entry::File(String::from_utf8_lossy(content).into_owned()),
            b'2' => Entry::Link(field(157, 100)),
            _ => Entry::Directory,
        };
        entries.insert(path.trim_matches('/').to_owned(), entry);
        at = end.next_multiple_of(BLOCK);
    }
    if !entries.contains_key(MARK) {
        return Err(other("its mark is missing; if dumps are in it, unpack it and give the directory"));
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entries() -> Entries {
        [
            (MARK.to_owned(), Entry::File("ropewalk\n".to_owned())),
            ("sys/class/net/eth0".to_owned(), Entry::Directory),
            ("sys/class/net/eth0/mtu".to_owned(), Entry::File("1500".to_owned())),
            ("sys/class/net/eth0/device".to_owned(), Entry::Link("0000:01:00.0".to_owned())),
            (format!("{}/{}", "d".repeat(120), "n".repeat(90)), Entry::File("long".repeat(1000))),
        ]
        .into()
    }

    #[test]
    fn what_is_packed_comes_out_again() {
        assert_eq!(unpack(&pack(&entries())).unwrap(), entries());
    }

    #[test]
    fn what_is_no_archive_is_refused() {
        let whole = pack(&entries());
        let no_mark: Entries = entries().into_iter().filter(|(path, _)| path != MARK).collect();
        for (bytes, what) in [
            (&b"hello"[..], "mark"),
            (&[b'x'; 1024][..], "not a tar"),
            (&whole[..whole.len() - 3 * BLOCK], "middle"),
            (&pack(&no_mark)[..], "mark"),
        ] {
            let error = unpack(bytes).unwrap_err().to_string();
            assert!(error.contains(what), "{what}: {error}");
        }
    }

    proptest! {
        /// Changed archives give other entries or an error.
        #[test]
        fn no_archive_panics(changes in proptest::collection::vec((0usize..6000, any::<u8>()), 0..20), end in 0usize..9000) {
            let mut bytes = pack(&entries());
            for (at, byte) in changes {
                if let Some(b) = bytes.get_mut(at) {
                    *b = byte;
                }
            }
            bytes.truncate(end);
            let _ = unpack(&bytes);
        }
    }
}
