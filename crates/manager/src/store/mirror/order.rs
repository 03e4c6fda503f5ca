//! In which order the store and its copy take a commit that changes which servers there are.
//!
//! A crash in its middle leaves it in one of the two, and each counts its own servers then ([`super::votes`]). Still no manager may give
//! up by some servers what is promoted by others.

use super::votes::{Voter, to_give_up, to_promote};

/// Who has a commit first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Either.
    Any,
    Store,
    Copy,
    /// Neither may: the copy is given up before.
    Alone,
}

/// From these servers to those.
pub(super) fn order(before: &[Voter], after: &[Voter]) -> Order {
    match (meet(after, before), meet(before, after)) {
        (true, true) => Order::Any,
        (true, false) => Order::Store,
        (false, true) => Order::Copy,
        (false, false) => Order::Alone,
    }
}

/// Whether of the store's servers and the copy's one is always among those that give the copy up and those that promote it.
fn meet(store: &[Voter], copy: &[Voter]) -> bool {
    let common = store.iter().filter(|one| copy.iter().any(|other| other.id == one.id)).count();
    let gives_up = to_give_up(store.len());
    // As few as can be are the copy's.
    let taken = gives_up.saturating_sub(store.len() - common);
    gives_up > store.len() || copy.len() - taken < to_promote(copy.len())
}

#[cfg(test)]
mod tests {
    use base::NodeId;

    use super::*;

    const MOST: u32 = 6;

    fn servers(set: u32) -> Vec<Voter> {
        let voter = |n| Voter { id: NodeId(n), name: format!("n{n}"), addrs: Vec::new() };
        (0..MOST).filter(|n| set >> n & 1 == 1).map(voter).collect()
    }

    /// By all that can be drawn of both.
    fn apart(store: u32, copy: u32) -> bool {
        let enough = |set: u32, of: u32, need: usize| set & !of == 0 && set.count_ones() as usize >= need;
        let (gives_up, promotes) =
            (to_give_up(store.count_ones() as usize), to_promote(copy.count_ones() as usize));
        (0..1 << MOST)
            .filter(|set| enough(*set, store, gives_up))
            .any(|set| enough(copy & !set, copy, promotes))
    }

    #[test]
    fn whatever_a_crash_leaves_who_gives_up_and_who_promotes_have_a_server_in_common() {
        for (before, after) in
            (0..1 << MOST).flat_map(|before| (0..1 << MOST).map(move |after| (before, after)))
        {
            let (store, copy) = (!apart(after, before), !apart(before, after));
            let expected = match order(&servers(before), &servers(after)) {
                Order::Any => (true, true),
                Order::Store => (true, false),
                Order::Copy => (false, true),
                Order::Alone => (false, false),
            };
            assert_eq!((store, copy), expected, "{before:06b} to {after:06b}");
            // One that comes or goes costs no copy.
            assert!((before ^ after).count_ones() > 1 || store || copy, "{before:06b} to {after:06b}");
        }
    }
}
