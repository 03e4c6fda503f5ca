//! A store's journal goes from a file into etcd, or back. The table stays where it is: it takes all of the one journal, and
//! begins the other. Whatever ends it half way, it is begun again by the same command.

use std::{fs, io, path::Path};

use super::{
    super::{
        Changes, JournaledStore, RedbStore, StoreError,
        files::{journal_path, mark_path, refused},
        redb::Mark,
    },
    etcd::{Claim, Etcd},
    following::Following,
    holder::{Ask, Heard},
    place::Place,
    store::ReplicatedStore,
};

/// Into etcd. Refused, and nothing is changed, if etcd does not answer or has a journal at that place.
pub fn to_etcd(path: &Path, cache_bytes: usize, place: &Place, who: &str) -> Result<(), StoreError> {
    let failed =
        |reason: String| StoreError::Engine { action: "find a place for the journal of the", reason };
    let claim = Claim { who: who.to_owned(), ..Claim::default() };
    let etcd = Etcd::new(place, claim, Following::default()).map_err(failed)?;
    let there = match etcd.ask(&Ask::Read { from: 0 }) {
        Heard::Records { start, .. } => start.map(|start| start.journal),
        _ => return Err(failed(etcd.failure())),
    };
    let own = RedbStore::open(path, cache_bytes)?.mark()?.unwrap_or_default().journal;
    match there {
        Some(journal) if journal != own => {
            return Err(failed(format!("{place} has one already; name another place")));
        }
        // An earlier attempt got as far.
        Some(_) => {}
        None => {
            if journal_path(path).exists() {
                // The table takes all that the file has.
                drop(JournaledStore::open(path, cache_bytes)?);
            }
            unbind(path, cache_bytes)?;
        }
    }
    ReplicatedStore::open(path, cache_bytes, place, who, false).map(drop)
}

/// Back into a file, which the next start makes.
pub fn to_file(path: &Path, cache_bytes: usize, place: &Place, who: &str) -> Result<(), StoreError> {
    let own = RedbStore::open(path, cache_bytes)?.mark()?.unwrap_or_default().journal;
    if own != 0 {
        // The table takes all that etcd has.
        drop(ReplicatedStore::open(path, cache_bytes, place, who, false)?);
    }
    unbind(path, cache_bytes)
}

/// The table holds everything: it is one that never had a journal. In this order it is refused, or whole, or a new one's.
fn unbind(path: &Path, cache_bytes: usize) -> Result<(), StoreError> {
    RedbStore::open(path, cache_bytes)?.commit_marked(&Changes::new(), Mark::default(), true)?;
    for file in [mark_path(path), journal_path(path)] {
        match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(refused(&file, &error)),
            _ => {}
        }
    }
    Ok(())
}
