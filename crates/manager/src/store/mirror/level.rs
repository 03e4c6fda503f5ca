//! What a crash in the middle of a commit left of the two.

use super::{
    super::{Changes, JournaledStore, Store as _},
    place::Held,
};

/// Which of the two is not what it should be, and why.
pub(super) enum Apart {
    Copy(String),
    Store(String),
}

/// The store gets the commit that only the copy has; or the commit that only the store has, for the copy. An error if that is not all
/// that differs. A copy that counted has never more than one commit that the store lacks: where it has, the store is an older one.
pub(super) fn level(
    store: &JournaledStore,
    ((of, copied), copied_tail): Held,
) -> Result<Option<Changes>, Apart> {
    let (journal, last) = store.position();
    if journal != of {
        // A person decides which of the two goes on.
        let why = "the copy that counts is of another store than what is here, which was restored from a dump, or made of what was left";
        return Err(Apart::Store(why.into()));
    }
    match (store.take_tail(), copied_tail) {
        (Some(one), Some(other)) if last == copied && one.0 == other.0 && one.1 != other.1 => {
            Err(Apart::Store(format!("commit {last} is another one in the copy that counts")))
        }
        _ if last == copied => Ok(None),
        (Some((number, changes)), _) if number == last && last == copied + 1 => Ok(Some(changes)),
        (_, Some((number, changes))) if number == copied && copied == last + 1 => {
            let outcome = store.commit(&changes).map(|()| None);
            outcome.map_err(|error| {
                Apart::Store(format!("it does not take commit {number} from the copy: {error}"))
            })
        }
        _ if copied > last => {
            let more = copied - last;
            Err(Apart::Store(format!("the copy that counts has {more} commits that it lacks")))
        }
        _ => Err(Apart::Copy(format!("it has {copied} commits, and the store {last}"))),
    }
}
