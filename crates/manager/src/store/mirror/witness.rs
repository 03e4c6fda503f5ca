//! Where a copy of the embedded store is, and what is known of it where it is not: the *witness*, a file beside the cluster's own
//! (`cluster.toml`), says which copy has all that was acknowledged, or that none has. It is written before anything is acknowledged
//! that the copy lacks, so a copy that is not named there is never taken for whole.
//!
//! Of a copy on another machine the witness says to the manager itself which one may be promoted there. It stands in two places then
//! ([`Witness`]): a file that is lost, or comes from an older time, hides no copy that is to be given up.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    super::{
        Look, StoreError,
        files::{journal_path, mark_path, refused, write_durably},
    },
    room::Room,
};

/// Memory for the pages of a copy.
pub(super) const CACHE_BYTES: usize = 32 << 20;

/// Where a copy is.
#[derive(Debug, Clone)]
pub struct Mirror {
    /// Its directory, on another disk; nothing else is there.
    pub(super) dir: PathBuf,
    /// The witness: a file that survives what the copy is for.
    pub(super) witness: PathBuf,
    pub(super) room: Arc<Room>,
}

/// What the witness says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    /// The copy of this number has all that was acknowledged.
    Whole(u64),
    /// None has.
    Behind,
}

/// The number of the copy in a directory.
pub(super) fn number_of(dir: &Path) -> Option<u64> {
    number_in(&number_file(dir))
}

/// The number in such a file.
pub(super) fn number_in(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    u64::from_str_radix(text.trim(), 16).ok()
}

/// Where a copy has its number.
pub(super) fn number_file(dir: &Path) -> PathBuf {
    dir.join("store.mirror")
}

/// What a witness says.
fn said(witness: &Path) -> Result<Said, StoreError> {
    let text = match fs::read_to_string(witness) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Said::Behind),
        Err(error) => return Err(refused(witness, &error)),
    };
    let id = text.trim().strip_prefix("whole ").map(|id| u64::from_str_radix(id, 16));
    Ok(id.and_then(Result::ok).map_or(Said::Behind, Said::Whole))
}

/// Has it say something else, durably.
fn say(witness: &Path, what: Said) -> Result<(), StoreError> {
    let text = match what {
        Said::Whole(id) => format!("whole {id:016x}\n"),
        Said::Behind => "behind\n".to_owned(),
    };
    write_durably(witness, &text).map_err(|error| refused(witness, &error))
}

/// The witness of a copy on another machine: a file beside the cluster's own, and one beside the store's table.
#[derive(Debug, Clone)]
pub struct Witness {
    file: PathBuf,
    beside: PathBuf,
}

impl Witness {
    /// Of a copy of the store at `table`; `file` is beside the cluster's own.
    pub fn new(file: &Path, table: &Path) -> Witness {
        Witness { file: file.to_owned(), beside: table.with_extension("kept") }
    }

    /// From now on no copy counts, until one was made anew.
    pub fn reset(&self) -> Result<(), StoreError> {
        self.say(Said::Behind)
    }

    /// What both say. A former version had one file.
    pub(super) fn said(&self) -> Result<Said, StoreError> {
        let first = said(&self.file)?;
        let former = !self.beside.try_exists().map_err(|error| refused(&self.beside, &error))?;
        Ok(if former || said(&self.beside)? == first { first } else { Said::Behind })
    }

    /// Whether both name one that may count.
    pub fn names_one(&self) -> bool {
        matches!(self.said(), Ok(Said::Whole(_)))
    }

    /// Copies that one of them names: each may be promoted.
    pub(super) fn named(&self) -> Result<Vec<u64>, StoreError> {
        let mut named = Vec::new();
        for file in [&self.file, &self.beside] {
            match said(file)? {
                Said::Whole(id) if !named.contains(&id) => named.push(id),
                _ => {}
            }
        }
        Ok(named)
    }

    pub(super) fn say(&self, what: Said) -> Result<(), StoreError> {
        [&self.file, &self.beside].into_iter().try_for_each(|file| say(file, what))
    }
}

/// Why a copy is not taken of which not all can be read.
pub(super) fn damaged_as_well(flaw: &str) -> String {
    format!(
        "the copy is damaged as well: {flaw}. What can be read of it is a store when its files (store.redb, store.journal, store.mark) are \
         copied in place of the store's, and after `ropewalk manager mirror --off` and `ropewalk manager accept-loss`"
    )
}

/// Makes the files of a copy with this table the store in `dir`, whose former files are moved away.
pub(super) fn take_files(table: &Path, dir: &Path) -> Result<(), StoreError> {
    let own = dir.join("store.redb");
    let moved = (|| -> io::Result<()> {
        if fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()) {
            let lost = (1..).map(|n| dir.with_extension(format!("lost.{n}")));
            let lost = lost.take(1000).find(|lost| !lost.exists());
            fs::rename(dir, lost.ok_or_else(|| io::Error::other("too many former stores beside it"))?)?;
        }
        fs::create_dir_all(dir)?;
        let new = dir.join("new.redb");
        let files = [
            (journal_path(table), journal_path(&own)),
            (mark_path(table), mark_path(&own)),
            (table.to_owned(), new.clone()),
        ];
        for (from, to) in files {
            fs::copy(&from, &to)?;
            fs::File::open(&to)?.sync_all()?;
        }
        // With its name it is a store.
        fs::rename(&new, &own)?;
        fs::File::open(dir)?.sync_all()?;
        fs::File::open(dir.parent().unwrap_or(Path::new("/")))?.sync_all()
    })();
    moved.map_err(|error| refused(dir, &error))
}

impl Mirror {
    /// In this directory, of which that file is the witness.
    pub fn new(dir: &Path, witness: &Path) -> Mirror {
        Mirror { dir: dir.to_owned(), witness: witness.to_owned(), room: Arc::new(Room::of(dir)) }
    }

    pub(super) fn table(&self) -> PathBuf {
        self.dir.join("store.redb")
    }

    pub(super) fn said(&self) -> Result<Said, StoreError> {
        said(&self.witness)
    }

    pub(super) fn say(&self, what: Said) -> Result<(), StoreError> {
        say(&self.witness, what)
    }

    /// Whether the copy has all that was acknowledged; else why not.
    pub(super) fn has_all(&self) -> Result<(), String> {
        match (self.said().map_err(|error| error.to_string())?, number_of(&self.dir)) {
            (Said::Whole(said), Some(id)) if said == id => Ok(()),
            (Said::Whole(_), _) => Err("it is not the copy that was kept last".into()),
            (Said::Behind, _) => Err("it lacks what was committed last".into()),
        }
    }

    /// Makes the copy the manager's store in `dir`, whose former files are moved away; how many commits it has. Refused, and nothing is
    /// changed, if it may lack one that was acknowledged.
    pub fn promote(&self, dir: &Path) -> Result<u64, StoreError> {
        let refuse = |why: String| StoreError::Open {
            path: self.dir.clone(),
            reason: format!(
                "{why} (as {} has it); nothing was changed. Bring back the store's own disk, or restore a dump (`ropewalk manager restore`)",
                self.witness.display()
            ),
        };
        self.has_all().map_err(refuse)?;
        let mut copy = Look::open(&self.table(), CACHE_BYTES)?;
        let own = match Look::open(&dir.join("store.redb"), CACHE_BYTES) {
            Err(error @ StoreError::InUse { .. }) => return Err(error),
            own => own,
        };
        if let Ok(mut own) = own
            && own.journal == copy.journal
            && own.last >= copy.last
            && matches!(own.flaw(), Ok(None))
        {
            return Err(refuse(format!(
                "the store in {} is whole, and has all that the copy has: start it",
                dir.display()
            )));
        }
        if let Some(flaw) = copy.flaw()? {
            return Err(refuse(damaged_as_well(&flaw)));
        }
        let last = copy.last;
        drop(copy);
        take_files(&self.table(), dir)?;
        Ok(last)
    }
}
