//! A store's journal goes from a file into etcd, or back. The table stays where it is: it takes all of the one journal, then
//! lets it go, then begins the other.
//!
//! Each step leaves a state that the same command goes on from, and that a manager either opens whole or refuses by name:
//! a table that has let go has all that was acknowledged, and says up to which number. etcd's journal is ended there, durably,
//! before the table lets it go: no manager elsewhere goes on with it.

use std::{fs, io, path::Path, time::Duration};

use super::{
    super::{
        Changes, JournaledStore, Look, RedbStore, StoreError,
        files::{invalid, journal_path, mark_path, refused},
        redb::Mark,
    },
    etcd::{Claim, Etcd},
    following::Following,
    holder::Start,
    place::Place,
    store::{ReplicatedStore, start_of},
};

/// How long an etcd is waited for whose members were started just now, and elect their leader.
const ELECTION: Duration = Duration::from_secs(10);

/// Called after each step; tests end there.
type Reached<'a> = &'a mut dyn FnMut(Step) -> Result<(), StoreError>;

/// Steps, in the order of each way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The table has all of the journal.
    Taken,
    /// etcd's journal has ended.
    Ended,
    /// The table belongs to no journal.
    LetGo,
    /// The mark is gone.
    Unmarked,
    /// The files are.
    Gone,
    /// It is in etcd.
    There,
}

fn failed(reason: String) -> StoreError {
    StoreError::Engine { action: "find a place for the journal of the", reason }
}

fn start_at(place: &Place, who: &str, patience: Duration) -> Result<Option<Start>, StoreError> {
    let claim = Claim { who: who.to_owned(), ..Claim::default() };
    let etcd = Etcd::new(place, claim, Following::default()).map_err(failed)?;
    start_of(&etcd, patience)
}

fn mark_of(path: &Path, cache_bytes: usize) -> Result<Mark, StoreError> {
    Ok(RedbStore::open(path, cache_bytes)?.mark()?.unwrap_or_default())
}

/// Whether etcd has no journal at that place, so that a table which is to begin one there can. An error: it does not answer.
pub fn is_free(place: &Place, who: &str) -> Result<bool, StoreError> {
    Ok(start_at(place, who, ELECTION)?.is_none())
}

/// Into etcd. Refused, and nothing is changed, if etcd does not answer or has a journal at that place.
pub fn to_etcd(path: &Path, cache_bytes: usize, place: &Place, who: &str) -> Result<(), StoreError> {
    into_etcd(path, cache_bytes, place, who, &mut |_| Ok(()))
}

pub(super) fn into_etcd(
    path: &Path,
    cache_bytes: usize,
    place: &Place,
    who: &str,
    reached: Reached<'_>,
) -> Result<(), StoreError> {
    let of = mark_of(path, cache_bytes)?;
    match (start_at(place, who, Duration::ZERO)?, of.etcd) {
        // An earlier attempt got as far.
        (Some(Start { journal, ended: None, .. }), Some(_)) if journal == of.journal => {}
        (Some(Start { ended: Some(_), .. }), _) => {
            return Err(failed(format!(
                "{place} held one that was taken into a file; name another place, or, once no manager that followed it is left: etcdctl \
                 del --prefix {}/",
                place.prefix
            )));
        }
        (Some(_), _) => return Err(failed(format!("{place} has one already; name another place"))),
        // It has let its file go, and begins there.
        (None, Some(_)) => {}
        (None, None) => {
            if of.journal != 0 {
                // The table takes all that the file has.
                drop(JournaledStore::open(path, cache_bytes)?);
                reached(Step::Taken)?;
            } else if let Some(problem) = Look::open(path, cache_bytes)?.problems.first() {
                return Err(refused(path, &invalid(problem)));
            }
            let_go(path, cache_bytes, reached)?;
        }
    }
    ReplicatedStore::open(path, cache_bytes, place, who, false).map(drop)?;
    reached(Step::There)
}

/// Back into a file, which the next start makes. Refused, and nothing is changed, if etcd does not answer.
pub fn to_file(path: &Path, cache_bytes: usize, place: &Place, who: &str) -> Result<(), StoreError> {
    into_file(path, cache_bytes, place, who, &mut |_| Ok(()))
}

pub(super) fn into_file(
    path: &Path,
    cache_bytes: usize,
    place: &Place,
    who: &str,
    reached: Reached<'_>,
) -> Result<(), StoreError> {
    let of = mark_of(path, cache_bytes)?;
    match (start_at(place, who, Duration::ZERO)?, of.etcd) {
        (Some(Start { journal, ended: Some(last), .. }), Some(_)) if journal == of.journal => {
            // An earlier attempt got as far, with the table that has all.
            if of.applied != last {
                return Err(failed(format!(
                    "{place} ended with record {last}, and this table has those up to {}: it is not the one that went on",
                    of.applied
                )));
            }
        }
        (_, Some(_)) => {
            let store = ReplicatedStore::open(path, cache_bytes, place, who, false)?;
            reached(Step::Taken)?;
            store.end()?;
            drop(store);
            reached(Step::Ended)?;
        }
        // It has let it go.
        (None | Some(Start { ended: Some(_), .. }), None) => {}
        (Some(_), None) => {
            return Err(failed(format!(
                "{place} holds the journal of another store, with which a manager may go on; if none is to: etcdctl del --prefix {}/",
                place.prefix
            )));
        }
    }
    match of {
        Mark { journal, etcd: None, .. } if journal != 0 => Ok(()), // a file's
        _ => let_go(path, cache_bytes, reached),
    }
}

/// The table holds everything: it is one without a journal, which says up to which number it has been acknowledged.
fn let_go(path: &Path, cache_bytes: usize, reached: Reached<'_>) -> Result<(), StoreError> {
    let applied = mark_of(path, cache_bytes)?.applied;
    let none = Mark { journal: 0, applied, etcd: None };
    RedbStore::open(path, cache_bytes)?.commit_marked(&Changes::new(), none, true)?;
    reached(Step::LetGo)?;
    for (file, step) in [(mark_path(path), Step::Unmarked), (journal_path(path), Step::Gone)] {
        match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(refused(&file, &error)),
            _ => reached(step)?,
        }
    }
    Ok(())
}
