//! A disk that is full, or fails, at any point of a commit: of the journal, of the table that follows it, of the two when
//! the journal begins anew. The manager stops; started again on a disk with room it has all that it acknowledged, and what it
//! refused can be asked for again, once.

use super::*;

/// A generator of coin tosses.
fn coins(seed: u64) -> impl FnMut() -> bool {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random.is_multiple_of(2)
    }
}

/// Creates names until the store fails; the number of the one that was refused, and whether it failed at all.
async fn until_it_fails(manager: &Manager, session: SessionId, from: u64) -> (u64, bool) {
    for seq in from..from + 60 {
        match manager.handle(caller(session), mutate(seq, create(&seq.to_string(), FileKind::File))).await {
            MgrReply::Created { new: true, .. } => {}
            MgrReply::Error(MgrError::Store(_)) => return (seq, true),
            other => panic!("{seq}: {other:?}"),
        }
    }
    (from + 60, false)
}

fn all_below(seq: u64) -> BTreeSet<String> {
    (1..seq).map(|seq| seq.to_string()).collect()
}

/// False if nothing failed. `power`: it is cut as well before the next start.
async fn story(fails: Fails, journal: bool, after: u64, power: bool) -> bool {
    let told = format!("{fails:?}, journal {journal}, after {after}, power cut {power}");
    let media = Media::new(true);
    let mut coin = coins(after);
    let manager = on_media(&media).await.unwrap();
    let (session, _) = open_session(&manager).await;
    (if journal { &media.journal } else { &media.table }).fail(fails, after);
    let (refused, failed) = until_it_fails(&manager, session, 1).await;
    if failed {
        let error = manager.failed().await.to_string();
        assert!(error.contains("commit") || error.contains("read"), "{told}: {error}");
        assert_eq!(names(&manager, session).await, all_below(refused), "{told}: what is shown");
    }
    manager.stop().await;
    if failed && !journal {
        // Who starts it while there is no room hears so, and nothing gets worse.
        let error = on_media(&media).await.err().map(|error| error.to_string());
        assert!(error.is_some(), "{told}: it starts although it cannot write");
    }
    media.table.mend();
    media.journal.mend();
    let media = if power { media.power_cut(&mut coin) } else { media };
    let manager = on_media(&media).await.unwrap_or_else(|error| panic!("{told}: {error}"));
    let found = names(&manager, session).await;
    assert!(found.is_superset(&all_below(refused)), "{told}: lost, {found:?}");
    assert!(found.is_subset(&all_below(refused + 1)), "{told}: {found:?}");
    // The one that was refused is asked for again, under its number, and others follow.
    let (last, failed_again) = until_it_fails(&manager, session, refused).await;
    assert!(!failed_again, "{told}");
    // The power is cut, whatever the disk lost when it failed.
    let left = media.power_cut(&mut coin);
    manager.stop().await;
    let manager = on_media(&left).await.unwrap_or_else(|error| panic!("{told}, in the end: {error}"));
    assert_eq!(names(&manager, session).await, all_below(last), "{told}: in the end");
    manager.stop().await;
    failed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_is_full_or_fails_loses_nothing_and_stops_the_manager() {
    for (fails, journal) in
        [(Fails::Writes, true), (Fails::Writes, false), (Fails::Flushes, true), (Fails::Flushes, false)]
    {
        let mut points = 0;
        for after in 0..200 {
            if !story(fails, journal, after, after % 2 == 0).await {
                break;
            }
            points += 1;
        }
        assert!(points > 8, "{fails:?}, journal {journal}: failed at {points} points only");
    }
}
