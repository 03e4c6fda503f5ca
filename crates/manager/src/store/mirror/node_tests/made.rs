//! A copy is made on another machine: that one is killed at each message, and all that is said comes once more, late.

use std::sync::atomic::AtomicU64;

use super::*;

/// A copy is given up, and made anew, when the servers become these and then those.
const TURNS: [&[u8]; 2] = [&[0], &[0, 1, 2]];

/// At each message by which a copy is made: before it is carried out, and before it is answered.
#[test]
fn a_keeper_that_is_killed_while_a_copy_is_made_has_none_that_counts_before_it_is_whole() {
    let (cluster, mut model) = (Cluster::new(), Map::new());
    // A copy takes several messages.
    let own = JournaledStore::open(&cluster.own.join("store.redb"), 1 << 20).unwrap();
    for n in 0..3u8 {
        let large = Changes::from([(vec![n], Some(vec![n; 700_000]))]);
        own.commit(&large).unwrap();
        memory::apply(&mut model, large);
    }
    drop(own);
    let store = cluster.open().unwrap();
    let mut n = 0;
    let mut next = |model: &mut Map, acknowledged: &AtomicU64| {
        commit(&store, model, n..n + 1);
        n += 1;
        acknowledged.store(store.store.position().1, SeqCst);
    };
    let mut ids = TURNS.into_iter().cycle();
    type Is = fn(&Ask, u32) -> bool;
    let is: [(&str, Is); 7] = [
        ("Make", |ask, _| matches!(ask, Ask::Make { .. })),
        ("the first Records", |ask, _| matches!(ask, Ask::Records { .. })),
        ("the second Records", |ask, seen| matches!(ask, Ask::Records { .. }) && seen == 1),
        ("Made", |ask, _| matches!(ask, Ask::Made { .. })),
        ("Commit", |ask, _| matches!(ask, Ask::Commit { .. })),
        ("Count", |ask, _| matches!(ask, Ask::Count { .. })),
        ("Beat", |ask, _| matches!(ask, Ask::Beat { .. })),
    ];
    for (what, is) in is {
        for done in [false, true] {
            whole(&store);
            let acknowledged = Arc::new(AtomicU64::new(store.store.position().1));
            let found = Arc::new(Mutex::new(None));
            let (note, known) = (found.clone(), acknowledged.clone());
            let mut records = 0;
            let at = move |ask: &Ask| {
                let dies = is(ask, records);
                records += u32::from(matches!(ask, Ask::Records { .. }));
                dies
            };
            let sees = move |copy: &Path| {
                let counts = super::super::witness::number_of(copy).is_some();
                let has = Look::open(&copy.join("store.redb"), 1 << 20)
                    .and_then(|mut look| Ok((look.last, look.flaw()?)));
                *note.lock() = Some((counts, known.load(SeqCst), has.ok()));
            };
            *cluster.others.dies.lock() = Some(Dies { at: Box::new(at), done, sees: Box::new(sees) });
            // The copy is given up, and made anew.
            change_servers(&store, &mut model, ids.next().unwrap());
            wait_for(what, || {
                if what != "Beat" {
                    next(&mut model, &acknowledged);
                }
                found.lock().is_some()
            });
            let (counts, acknowledged, has) = found.lock().take().unwrap();
            let may_count = matches!(what, "Commit" | "Beat") || what == "Count" && done;
            assert!(may_count || !counts, "{what}, {done}");
            if counts {
                let (last, flaw) = has.unwrap();
                assert!(flaw.is_none() && last >= acknowledged, "{what}, {done}: {last} {flaw:?}");
            }
        }
    }
    whole(&store);
    drop(store);
    assert!(cluster.promote().unwrap() == model);
}

/// All by which a copy was made comes once more, late: before each message by which the next one is made, and to that one.
#[test]
fn what_made_a_copy_that_was_given_up_makes_none_that_counts_when_it_comes_late() {
    let (cluster, mut model) = (Cluster::new(), Map::new());
    let store = cluster.open().unwrap();
    whole(&store);
    commit(&store, &mut model, 0..20);
    let hear = |late: Vec<Ask>| {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (notes, others) = (heard.clone(), Arc::downgrade(&cluster.others));
        let mut given_up = false;
        let at = move |ask: &Ask| {
            let Some(others) = others.upgrade() else { return false };
            for late in &late {
                let keeper = others.keeper.lock();
                keeper.as_ref().unwrap().answer(&frame::encode(late));
                let counts = super::super::witness::number_of(&others.copy);
                let is_late = matches!(late, Ask::Count { id, .. } if counts == Some(*id));
                assert!(!(given_up && is_late), "{late:?}");
            }
            given_up |= matches!(ask, Ask::Make { .. });
            notes.lock().push(ask.clone());
            false
        };
        let dies = Dies { at: Box::new(at), done: false, sees: Box::new(|_| {}) };
        *cluster.others.dies.lock() = Some(dies);
        heard
    };
    let is_count = |ask: &Ask| matches!(ask, Ask::Count { .. });
    let mut late = Vec::new();
    // Each of these has the copy given up, and made anew.
    for ids in TURNS.into_iter().chain(TURNS) {
        let heard = hear(late);
        change_servers(&store, &mut model, ids);
        wait_for("another one is made", || heard.lock().iter().any(is_count) && store.remarks().is_empty());
        // That one is the only one that was made, and counts still.
        commit(&store, &mut model, 20..30);
        let mut heard = std::mem::take(&mut *heard.lock());
        let made = heard.iter().filter(|ask| matches!(ask, Ask::Make { .. })).count();
        assert!(made == 1 && store.remarks().is_empty(), "{heard:?}");
        heard.truncate(heard.iter().position(is_count).unwrap() + 1);
        late = heard;
    }
    *cluster.others.dies.lock() = None;
    drop(store);
    assert!(cluster.promote().unwrap() == model);
}
