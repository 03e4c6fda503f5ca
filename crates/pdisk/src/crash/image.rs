//! Images: what the files of a pdisk hold on the disk, and states between: an image with some sectors of
//! writes that were under way when the power went.

use std::{io, path::Path};

use crate::{
    checkpoint::{Slot, read_head},
    files::Label,
    io::{FileKind, fault::SECTOR},
    log::ReadAt,
};

pub(super) const FILES: [(FileKind, &str); 5] = [
    (FileKind::Data, "data"),
    (FileKind::Crc, "crc"),
    (FileKind::Log, "log"),
    (FileKind::Index0, "index.0"),
    (FileKind::Index1, "index.1"),
];

/// The bytes of each file.
#[derive(Clone, Default)]
pub(super) struct Disk([Vec<u8>; 5]);

impl Disk {
    pub fn read(dir: &Path) -> io::Result<Disk> {
        let mut disk = Disk::default();
        for (kind, name) in FILES {
            disk.0[kind as usize] = std::fs::read(dir.join(name))?;
        }
        Ok(disk)
    }

    pub fn write(&self, dir: &Path) -> io::Result<()> {
        FILES.iter().try_for_each(|(kind, name)| std::fs::write(dir.join(name), &self.0[*kind as usize]))
    }

    pub fn apply(&mut self, file: FileKind, offset: u64, bytes: &[u8]) {
        let content = &mut self.0[file as usize];
        let end = offset as usize + bytes.len();
        if content.len() < end {
            content.resize(end, 0);
        }
        content[offset as usize..end].copy_from_slice(bytes);
    }

    /// A flipped bit.
    pub fn flip(&mut self, file: FileKind, bit: usize) {
        self.0[file as usize][bit / 8] ^= 1 << (bit % 8);
    }

    /// Whether the headers of both checkpoints match.
    pub fn both_checkpoints(&self, label: &Label) -> bool {
        let patches = Patches::default();
        [FileKind::Index0, FileKind::Index1].into_iter().all(|file| {
            let slot = read_head(&View::new(self, &patches, file), Path::new("index"), &label.uuid);
            matches!(slot, Ok(Slot::Head(..)))
        })
    }

    pub fn len(&self, file: FileKind) -> usize {
        self.0[file as usize].len()
    }
}

/// Sectors over a disk, by file: number of the sector, its bytes.
#[derive(Default)]
pub(super) struct Patches<'a>([Vec<(u64, &'a [u8])>; 5]);

impl<'a> Patches<'a> {
    /// Later ones win.
    pub fn add(&mut self, file: FileKind, sector: u64, bytes: &'a [u8]) {
        self.0[file as usize].push((sector, bytes));
    }

    pub fn settle(&mut self) {
        for list in &mut self.0 {
            // Stable: the last one of a sector stays the last.
            list.sort_by_key(|(sector, _)| *sector);
            list.dedup_by(|later, earlier| {
                let same = later.0 == earlier.0;
                if same {
                    earlier.1 = later.1;
                }
                same
            });
        }
    }

    pub fn apply(&self, disk: &mut Disk) {
        for (kind, _) in FILES {
            for (sector, bytes) in &self.0[kind as usize] {
                disk.apply(kind, sector * SECTOR as u64, bytes);
            }
        }
    }

    /// Tells states of the same disk apart.
    pub fn fingerprint(&self) -> u64 {
        use std::hash::{Hash, Hasher};
        let mut hasher = std::hash::DefaultHasher::new();
        for list in &self.0 {
            for (sector, bytes) in list {
                (sector, bytes.as_ptr() as usize).hash(&mut hasher);
            }
            u64::MAX.hash(&mut hasher);
        }
        hasher.finish()
    }
}

/// One file of a state.
pub(super) struct View<'a> {
    base: &'a [u8],
    patches: &'a [(u64, &'a [u8])],
}

impl<'a> View<'a> {
    pub fn new(disk: &'a Disk, patches: &'a Patches<'a>, file: FileKind) -> View<'a> {
        View { base: &disk.0[file as usize], patches: &patches.0[file as usize] }
    }
}

impl ReadAt for View<'_> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset + buf.len() as u64;
        if end > self.size()? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let from = (offset as usize).min(self.base.len());
        let to = (end as usize).min(self.base.len());
        buf[..to - from].copy_from_slice(&self.base[from..to]);
        buf[to - from..].fill(0);
        let first = self.patches.partition_point(|(s, _)| (s + 1) * SECTOR as u64 <= offset);
        for (sector, bytes) in &self.patches[first..] {
            let at = sector * SECTOR as u64;
            if at >= end {
                break;
            }
            let (from, to) = (at.max(offset), (at + bytes.len() as u64).min(end));
            buf[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&bytes[(from - at) as usize..(to - at) as usize]);
        }
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        let patched = self.patches.last().map_or(0, |(s, b)| s * SECTOR as u64 + b.len() as u64);
        Ok(patched.max(self.base.len() as u64))
    }
}
