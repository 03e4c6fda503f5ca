//! Of an even number of servers half have recorded a promotion that was refused: nobody was promoted, and they cannot give the copy up.

use super::*;

#[test]
fn a_promotion_that_half_of_the_servers_recorded_ends_no_manager() {
    let (cluster, mut model) = (Cluster::new(), Map::new());
    let store = cluster.open().unwrap();
    whole(&store);
    change_servers(&store, &mut model, &[0, 1, 2, 3]);
    whole(&store);
    commit(&store, &mut model, 0..20);
    drop(store);
    let answer =
        |ids: [usize; 2], there| ids.iter().for_each(|&id| cluster.others.servers[id].lock().0 = there);
    answer([2, 3], false);
    let error = cluster.promote().unwrap_err();
    assert!(error.contains("3 of 4 servers have to say that it is not behind, and 2 did"), "{error}");

    // The manager's machine is back, and its keeper is not: the other two do not suffice to give the copy up.
    answer([2, 3], true);
    let (place, table) = (cluster.place(), cluster.own.join("store.redb"));
    let own = Arc::new(place.clone());
    let opens = thread::spawn(move || MirroredStore::open(&table, 1 << 20, own, None));
    let said = |text: &str| {
        wait_for(text, || {
            assert!(!opens.is_finished(), "it waits");
            place.waits_for().is_some_and(|waits| waits.contains(text))
        });
    };
    said(
        "3 of 4 servers have to record that; 2 have, 2 recorded a promotion instead, too few for one. Start m2;",
    );
    // It is the keeper that gives it up, and a new copy is whatever may be promoted.
    cluster.keeper(true);
    let store = opens.join().unwrap().unwrap();
    commit(&store, &mut model, 20..30);
    whole(&store);
    drop(store);
    assert!(cluster.promote().unwrap() == model);
}
