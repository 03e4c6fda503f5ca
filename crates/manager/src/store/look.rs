//! A store that is looked at and not changed: for `manager check` and `dump`, for giving up what is lost, and for
//! rewriting a store of an earlier version.

use std::{
    fs::{self, File},
    io,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use super::{
    Changes, Read, RedbStore, Snapshot, Store as _, StoreError, blocks,
    files::{invalid, journal_path, mark_path, needed, refused},
    journal::{self, Scanned},
    mark,
    recent::Recent,
};

/// Bytes of one commit while copying.
const COMMIT_BYTES: usize = 16 << 20;

/// A store as its files have it.
pub struct Look {
    table: RedbStore,
    recent: Recent,
    /// What is wrong with the files: acknowledged changes are missing. Each with the file's name.
    pub problems: Vec<String>,
    /// Number of the last commit there is.
    pub last: u64,
    /// Which journal it has; 0: none yet.
    pub journal: u64,
    /// Whether the files are those of an earlier version.
    pub former: bool,
}

impl Look {
    /// Opens the table at `path` with as much of its journal as is whole. Fails only if there is no table that the engine
    /// can open.
    pub fn open(path: &Path, cache_bytes: usize) -> Result<Look, StoreError> {
        let former = blocks::kind_of(path).map_err(|error| refused(path, &error))? == blocks::Kind::Former;
        let table = RedbStore::look(path, cache_bytes)?;
        let mut look =
            Look { recent: Recent::default(), problems: Vec::new(), last: 0, journal: 0, former, table };
        let of = look.table.mark()?;
        look.journal = of.map_or(0, |of| of.journal);
        let named = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
        let (journal_file, mark_file) = (journal_path(path), mark_path(path));
        let acked = match needed(&mark_file).and_then(|file| mark::read(&file)) {
            Ok(acked) => acked,
            Err(_) if former => None,
            Err(_) if of.is_some_and(|of| of.journal == 0) => None,
            Err(error) => {
                look.problems.push(named(&mark_file, error));
                None
            }
        };
        let Some(of) = of.filter(|of| of.journal != 0) else {
            if !former
                && (of.is_none() || acked.is_some_and(|acked| acked.number > of.unwrap_or_default().applied))
            {
                let error = invalid("is older than its journal, or does not know it");
                look.problems.push(named(path, error));
            }
            look.last = of.unwrap_or_default().applied;
            return Ok(look);
        };
        look.last = of.applied;
        let known = acked.filter(|acked| acked.journal == of.journal);
        if known.is_none() && !former && look.problems.is_empty() {
            let error = invalid("does not say which commit of this store was acknowledged last");
            look.problems.push(named(&mark_file, error));
        }
        if of.etcd.is_some() {
            // Its journal is in etcd, and not looked at.
            let ahead = known.map_or(0, |acked| acked.number.saturating_sub(of.applied));
            if ahead > 0 {
                let error = invalid(format!(
                    "{ahead} records behind {} stand only in etcd: start the manager, and stop it in good order once it is not behind \
                     (`ropewalk manager list`)",
                    of.applied
                ));
                look.problems.push(named(path, error));
            }
            return Ok(look);
        }
        let scanned =
            needed(&journal_file).and_then(|file| journal::scan(&file, of.journal, of.applied, known));
        match scanned {
            Ok(Scanned { changes, last, problem }) => {
                changes.into_iter().for_each(|changes| look.recent.push(changes));
                look.last = last;
                look.problems.extend(problem.map(|text| named(&journal_file, invalid(text))));
            }
            Err(error) => look.problems.push(named(&journal_file, error)),
        }
        Ok(look)
    }

    /// What it holds.
    pub fn snapshot(&self) -> Result<Snapshot, StoreError> {
        Ok(self.recent.above(self.table.snapshot()?))
    }

    /// Has the engine verify all its pages; false if they are not as they should be. No snapshot may be held.
    pub fn verify(&mut self) -> Result<bool, StoreError> {
        self.table.verify()
    }

    /// What is wrong with it, if anything is: all of the table is read. No snapshot may be held.
    pub fn flaw(&mut self) -> Result<Option<String>, StoreError> {
        if let Some(problem) = self.problems.first() {
            return Ok(Some(problem.clone()));
        }
        let gaps = salvage(&*self.snapshot()?, &mut |_, _| ControlFlow::Continue(()))?;
        if let Some(gap) = gaps.first() {
            return Ok(Some(format!("the table cannot be read: {gap}")));
        }
        let whole = match self.verify() {
            // What is damaged the engine may refuse to go over.
            Err(_) if !self.damage().is_empty() => false,
            verified => verified?,
        };
        Ok((!whole).then(|| "pages of the table are damaged".to_owned()))
    }

    /// Blocks of the table found damaged so far.
    pub fn damage(&self) -> Vec<u64> {
        self.table.damage()
    }
}

/// Keys are compared as numbers of so many bytes when a readable one is looked for.
const WIDTH: usize = 40;
const END: [u8; 16] = [u8::MAX; 16];

/// Calls `visit` for everything that can be read, rising; says what cannot, for people.
pub fn salvage(from: &dyn Read, visit: super::Visit<'_>) -> Result<Vec<String>, StoreError> {
    let (mut start, mut gaps) = (Vec::new(), Vec::new());
    loop {
        let (mut last, mut ended) = (start.clone(), false);
        let outcome = from.scan(&start, &END, &mut |key, value| {
            last = [key, &[0]].concat();
            let flow = visit(key, value);
            ended = flow.is_break();
            flow
        });
        match outcome {
            Ok(()) => return Ok(gaps),
            Err(_) if ended => return Ok(gaps),
            Err(StoreError::Damaged { .. }) => {}
            Err(error) => return Err(error),
        }
        let next = next_readable(from, &last)?;
        let text = |key: &[u8]| super::KeyText(key.to_vec()).to_string();
        let end = next.as_deref().map_or("the end".to_owned(), text);
        gaps.push(format!("all from {} to before {end}", text(&last)));
        let Some(next) = next else { return Ok(gaps) };
        start = next;
    }
}

/// The lowest key above `from_key` (within the page behind it) from which on something can be read.
fn next_readable(from: &dyn Read, from_key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
    let readable = |key: &[u8]| match from.scan(key, &END, &mut |_, _| ControlFlow::Break(())) {
        Ok(()) => Ok(true),
        Err(StoreError::Damaged { .. }) => Ok(false),
        Err(error) => Err(error),
    };
    let mut low = from_key.to_vec();
    low.resize(WIDTH, 0);
    let mut bit = 0;
    let mut high = loop {
        let Some(probe) = plus(&low, bit) else { return Ok(None) };
        if readable(&probe)? {
            break probe;
        }
        bit += 1;
    };
    // The one before is not readable, and half as far.
    low = bit.checked_sub(1).and_then(|bit| plus(&low, bit)).unwrap_or(low);
    for bit in (0..bit.saturating_sub(1)).rev() {
        let Some(probe) = plus(&low, bit) else { break };
        if readable(&probe)? {
            high = probe;
        } else {
            low = probe;
        }
    }
    Ok(Some(high))
}

/// A key of [`WIDTH`] bytes plus 2 to the power `bit`; none if that is too much.
fn plus(key: &[u8], bit: usize) -> Option<Vec<u8>> {
    let mut sum = key.to_vec();
    let mut at = WIDTH.checked_sub(1 + bit / 8)?;
    let mut carry = 1u16 << (bit % 8);
    loop {
        let byte = sum.get_mut(at)?;
        let added = u16::from(*byte) + carry;
        *byte = added as u8;
        carry = added >> 8;
        if carry == 0 {
            return Some(sum);
        }
        at = at.checked_sub(1)?;
    }
}

/// Writes all of `from` that can be read into `to`; the number of keys, and what cannot be read, for people.
pub fn copy(from: &dyn Read, to: &RedbStore) -> Result<(u64, Vec<String>), StoreError> {
    let (mut changes, mut bytes, mut count, mut outcome) = (Changes::new(), 0, 0, Ok(()));
    let gaps = salvage(from, &mut |key, value| {
        bytes += key.len() + value.len();
        count += 1;
        changes.insert(key.to_vec(), Some(value.to_vec()));
        if bytes > COMMIT_BYTES {
            bytes = 0;
            outcome = to.commit(&std::mem::take(&mut changes));
        }
        if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    outcome?;
    to.commit(&changes)?;
    Ok((count, gaps))
}

/// A new table beside the one at `path`, in place of one that an attempt left there.
pub fn beside(path: &Path, cache_bytes: usize) -> Result<(PathBuf, RedbStore), StoreError> {
    let new = path.with_extension("redb.new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(refused(&new, &error)),
        _ => {}
    }
    let store = RedbStore::create(&new, cache_bytes)?;
    Ok((new, store))
}

/// Rewrites a store of an earlier version, of which every page is verified first. The former files stay as they are until
/// the new one is whole and takes their place.
pub(super) fn renew(path: &Path, cache_bytes: usize) -> Result<(), StoreError> {
    let mut look = Look::open(path, cache_bytes)?;
    if let Some(problem) = look.problems.first() {
        return Err(refused(path, &invalid(problem)));
    }
    if !look.verify()? {
        return Err(refused(path, &invalid("pages of the table are damaged")));
    }
    let (new, store) = beside(path, cache_bytes)?;
    let failed = |error: io::Error| refused(&new, &error);
    let (count, gaps) = copy(&*look.snapshot()?, &store)?;
    if let Some(gap) = gaps.first() {
        return Err(refused(path, &invalid(format!("pages of the table are damaged: {gap}"))));
    }
    drop(store);
    // Let go before the name is another's.
    drop(look);
    fs::rename(&new, path).map_err(failed)?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new("."))).and_then(|dir| dir.sync_all()).map_err(failed)?;
    tracing::info!(records = count, "the manager's store was rewritten: its blocks have CRCs now");
    Ok(())
}
