//! Every operation on a running pdisk, with both engines, and again after it was opened anew.
#![allow(clippy::unwrap_used)]

mod common;

use base::{BlockIndex, FsId, Grant, GroupId, InodeNo, PoolId, Version};
use common::*;
use pdisk::{CreateOptions, EngineChoice, IoNode, Pdisk, PdiskError};
use wire::strip::{DeleteStrips, Range, ReadStrip, ReadVersion, StripRefusal};

const ADOPTED: ReadVersion = ReadVersion::Adopted;

async fn with_engines<F: Future<Output = ()>>(test: impl Fn(tempfile::TempDir, IoNode) -> F) {
    for engine in [EngineChoice::Auto, EngineChoice::Psync] {
        let dir = tempfile::tempdir().unwrap();
        create(dir.path(), 32 << 20);
        test(dir, node(engine)).await;
    }
}

#[tokio::test]
async fn versions_side_by_side_survive_a_reopen() {
    with_engines(|dir, node| async move {
        let (big, small) = (content(1, 100), content(2, 2));
        {
            let (p, report) = open(dir.path(), &node);
            assert_eq!((report.incarnation.0, report.strips), (1, 0));
            write(&p, strip(1), v(1, 1), &big).await;
            write(&p, strip(2), v(1, 1), &small).await;
            prepare(&p, whole(strip(1), v(1, 2), &small)).await.unwrap();
            assert_eq!(prepare(&p, whole(strip(1), v(1, 2), &small)).await, Ok(()), "repeated");
            assert_eq!(read(&p, strip(1), ADOPTED).await.unwrap(), big);
            assert_eq!(read(&p, strip(1), ReadVersion::Exactly(v(1, 2))).await.unwrap(), small);
            assert_eq!(read(&p, strip(3), ADOPTED).await, Err(StripRefusal::Absent));
            p.close().await.unwrap();
        }
        for life in 2..4 {
            let (p, report) = open(dir.path(), &node);
            assert_eq!((report.incarnation.0, report.strips), (life, 2));
            assert!(report.damaged.is_none());
            assert_eq!(read(&p, strip(1), ADOPTED).await.unwrap(), big);
            assert_eq!(read(&p, strip(1), ReadVersion::Exactly(v(1, 2))).await.unwrap(), small);
            assert_eq!(read(&p, strip(2), ADOPTED).await.unwrap(), small);
            // Dropped without closing: the next life replays the log.
        }
        let (p, _) = open(dir.path(), &node);
        adopt(&p, strip(1), v(1, 2)).await;
        assert_eq!(read(&p, strip(1), ADOPTED).await.unwrap(), small);
        assert_eq!(p.verify().await.unwrap().damaged, []);
    })
    .await;
}

#[tokio::test]
async fn range_prepares_keep_the_rest_grow_and_shrink() {
    with_engines(|dir, node| async move {
        let (p, _) = open(dir.path(), &node);
        let mut model = content(1, 64);
        write(&p, strip(1), v(1, 1), &model).await;
        let mut last = v(1, 1);
        // Small ones (through the log), large ones (new units), growth with a gap, a shrink.
        let steps = [
            (3, 2, 64),
            (60, 4, 64),
            (10, 30, 64),
            (2, 3, 64),
            (100, 2, 102),
            (70, 1, 102),
            (0, 1, 20),
            (18, 1, 40),
        ];
        for (i, (first, units, len)) in steps.into_iter().enumerate() {
            let next = v(1, 2 + i as u64);
            let bytes = content(100 + i as u64, units);
            let (mut r, payload) = part(strip(1), next, last, first, &bytes, len);
            r.adopt = Some(last);
            let before = model.clone();
            assert_eq!(prepare(&p, (r, payload)).await, Ok(()), "step {i}");
            model.resize(len * UNIT, 0);
            model[first * UNIT..(first + units) * UNIT].copy_from_slice(&bytes);
            assert_eq!(read(&p, strip(1), ADOPTED).await.unwrap(), before, "step {i}");
            assert_eq!(read(&p, strip(1), ReadVersion::Exactly(next)).await.unwrap(), model, "step {i}");
            last = next;
        }
        adopt(&p, strip(1), last).await;
        drop(p);
        let (p, _) = open(dir.path(), &node);
        assert_eq!(read(&p, strip(1), ADOPTED).await.unwrap(), model);
        p.close().await.unwrap();
        let (p, _) = open(dir.path(), &node);
        assert_eq!(p.stats().pending_bytes, 0, "closing brings all to its place");
        assert_eq!(read(&p, strip(1), ADOPTED).await.unwrap(), model);
        let ranges = vec![Range { offset: 4096, len: 8192 }, Range { offset: 39 * 4096, len: 65536 }];
        let answer = p
            .read(vec![ReadStrip { strip: strip(1), version: ADOPTED, ranges }])
            .await
            .pop()
            .unwrap()
            .unwrap();
        assert_eq!(answer.0.ranges[1], Range { offset: 39 * 4096, len: 4096 }, "cut to the stored length");
        assert_eq!(answer.1, [&model[4096..12288], &model[39 * 4096..]].concat());
    })
    .await;
}

#[tokio::test]
async fn refusals() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), 32 << 20);
    let (p, _) = open(dir.path(), &node(EngineChoice::Auto));
    let bytes = content(1, 20);
    write(&p, strip(1), v(2, 1), &bytes).await;
    assert_eq!(
        prepare(&p, whole(strip(1), v(1, 9), &bytes)).await,
        Err(StripRefusal::NotNewer { present: v(2, 1) })
    );
    prepare(&p, whole(strip(1), v(2, 2), &bytes)).await.unwrap();
    let exists = Err(StripRefusal::PreparedExists { prepared: v(2, 2) });
    assert_eq!(prepare(&p, whole(strip(1), v(2, 3), &bytes)).await, exists);
    assert_eq!(p.discard(vec![(strip(1), v(2, 2)), (strip(9), v(1, 1))]).await, [Ok(()), Ok(())]);
    let wrong = Err(StripRefusal::WrongBase { present: Some(v(2, 1)) });
    assert_eq!(prepare(&p, part(strip(1), v(2, 3), v(2, 2), 0, &bytes, 20)).await, wrong);
    let mut bad = whole(strip(1), v(2, 3), &bytes);
    bad.0.crcs[7] ^= 1;
    assert_eq!(prepare(&p, bad).await, Err(StripRefusal::BadCrc { unit: 7 }));
    assert_eq!(p.adopt(vec![(strip(1), v(2, 2))]).await, [Err(StripRefusal::Absent)]);
    let free = p.stats().free;
    let (r, payload) = whole(strip(1), v(2, 1), &bytes);
    assert_eq!(p.install(r, payload).await, Err(StripRefusal::NotNewer { present: v(2, 1) }));
    assert_eq!(p.stats().free, free, "a refused operation gives its units back");
}

#[tokio::test]
async fn seals_hold_for_absent_strips_and_survive() {
    with_engines(|dir, node| async move {
        let bytes = content(1, 3);
        {
            let (p, _) = open(dir.path(), &node);
            prepare(&p, whole(strip(1), v(3, 1), &bytes)).await.unwrap();
            let states = p.seal(vec![strip(1), strip(2)], Grant(5)).await.unwrap();
            assert_eq!(states[0].prepared.as_ref().unwrap().version, v(3, 1));
            assert_eq!((states[1].sealed_below, states[1].adopted.clone()), (Grant(5), None));
        }
        let (p, _) = open(dir.path(), &node);
        let sealed = Err(StripRefusal::Sealed { below: Grant(5) });
        for s in [strip(1), strip(2)] {
            assert_eq!(prepare(&p, whole(s, v(4, 9), &bytes)).await, sealed);
        }
        adopt(&p, strip(1), v(3, 1)).await;
        prepare(&p, whole(strip(2), v(5, 1), &bytes)).await.unwrap();
        p.seal(vec![strip(3)], Grant(6)).await.unwrap();
        assert_eq!(p.stats().tombstones, 1);
        let all = |highest| DeleteStrips {
            fs: strip(1).stripe.fs,
            inode: strip(1).stripe.inode,
            first: base::BlockIndex(0),
            last: base::BlockIndex(u64::MAX),
            highest,
        };
        assert_eq!(p.delete(vec![all(v(3, 1))]).await, Ok(1));
        assert_eq!(p.stats().tombstones, 2, "both seals are above what was deleted");
        assert_eq!(p.delete(vec![all(Version::MAX)]).await, Ok(1));
        assert_eq!((p.stats().strips, p.stats().free), (0, p.stats().capacity));
    })
    .await;
}

fn block(block: u64, highest: Version) -> DeleteStrips {
    let base::StripeId { fs, inode, .. } = strip(block).stripe;
    DeleteStrips { fs, inode, first: base::BlockIndex(block), last: base::BlockIndex(block), highest }
}

#[tokio::test]
async fn what_was_deleted_is_not_installed_again() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), 32 << 20);
    let (p, _) = open(dir.path(), &node(EngineChoice::Auto));
    let bytes = content(1, 30);
    // Deleted here before there was anything.
    let since = p.deletes_seen();
    assert_eq!(p.delete(vec![block(1, v(2, 5))]).await, Ok(0));
    for (version, answer) in [(v(2, 5), Err(StripRefusal::NotNewer { present: v(2, 5) })), (v(2, 6), Ok(()))]
    {
        for since in [Some(since), Some(p.deletes_seen()), None] {
            let (r, payload) = whole(strip(1), version, &bytes);
            let installed = match since {
                Some(since) => p.install_since(r, payload, since).await,
                None => p.install(r, payload).await,
            };
            // The first that is taken is all the others find.
            let here = p.state(vec![strip(1)]).await.unwrap()[0].adopted.is_some();
            assert_eq!(here, answer.is_ok());
            if installed.is_ok() || !here {
                assert_eq!(installed, answer);
            }
        }
    }
    assert_eq!(p.delete(vec![block(1, v(3, 0))]).await, Ok(1));
    assert_eq!(p.stats().free, p.stats().capacity);
}

/// A prepare that was delayed, or is asked for again, comes after the delete of its block. The adoption that comes with it
/// is done.
#[tokio::test]
async fn what_was_deleted_is_not_prepared_again() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), 32 << 20);
    let node = node(EngineChoice::Auto);
    let (mut p, _) = open(dir.path(), &node);
    // To the log, and to the data file.
    for (i, units) in [(1, 3), (2, 30)] {
        let (late, later) = (whole(strip(i), v(2, 5), &content(1, units)), v(2, 6));
        prepare(&p, late.clone()).await.unwrap();
        assert_eq!(p.delete(vec![block(i, v(2, 5))]).await, Ok(1));
        let refused = Err(StripRefusal::NotNewer { present: v(2, 5) });
        assert_eq!(prepare(&p, late.clone()).await, refused, "{units} units");
        // The process ends, and its writer asks once more.
        drop(p);
        (p, _) = open(dir.path(), &node);
        assert_eq!(prepare(&p, late.clone()).await, refused, "{units} units, after a restart");
        prepare(&p, whole(strip(i), later, &content(2, units))).await.unwrap();
        let mut adopting = late.clone();
        adopting.0.adopt = Some(later);
        assert!(prepare(&p, adopting).await.is_err());
        assert_eq!(read(&p, strip(i), ReadVersion::Adopted).await.unwrap(), content(2, units));
        // What was removed because it is elsewhere now was not deleted: it may come again.
        assert_eq!(p.remove_leftovers(vec![block(i, later)]).await, Ok(1));
        for again in [false, true] {
            if again {
                drop(p);
                (p, _) = open(dir.path(), &node);
            }
            prepare(&p, whole(strip(i), later, &content(2, units))).await.unwrap();
        }
        assert_eq!(p.delete(vec![block(i, Version::MAX)]).await, Ok(1));
    }
    assert_eq!((p.stats().strips, p.stats().free), (0, p.stats().capacity));
}

#[tokio::test]
async fn only_what_an_earlier_life_left_is_a_leftover() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), 32 << 20);
    let node = node(EngineChoice::Auto);
    let bytes = content(1, 3);
    {
        let (p, _) = open(dir.path(), &node);
        for i in 0..3 {
            prepare(&p, whole(strip(i), v(1, 1), &bytes)).await.unwrap();
        }
        assert_eq!(p.discard_leftover(strip(0), v(1, 1)).await, Ok(false), "of this life");
    }
    let (p, _) = open(dir.path(), &node);
    prepare(&p, whole(strip(1), v(1, 1), &bytes)).await.unwrap(); // its writer still wants it
    assert_eq!(p.discard_leftover(strip(0), v(1, 2)).await, Ok(false), "another version");
    assert_eq!(p.discard_leftover(strip(0), v(1, 1)).await, Ok(true));
    assert_eq!(p.discard_leftover(strip(0), v(1, 1)).await, Ok(false));
    assert_eq!(p.discard_leftover(strip(1), v(1, 1)).await, Ok(false), "asked for in this life");
    adopt(&p, strip(1), v(1, 1)).await;
    drop(p);
    let (p, _) = open(dir.path(), &node);
    assert_eq!(p.discard_leftover(strip(1), v(1, 1)).await, Ok(false), "adopted");
    // A pdisk that was away and returns in the same process.
    for i in 3..5 {
        prepare(&p, whole(strip(i), v(1, 1), &bytes)).await.unwrap();
    }
    assert_eq!(p.adopt_leftover(strip(3), v(1, 1)).await, Ok(false), "of this life");
    p.begin_life();
    prepare(&p, whole(strip(4), v(1, 1), &bytes)).await.unwrap(); // its writer still wants it
    assert_eq!(p.adopt_leftover(strip(3), v(1, 1)).await, Ok(true));
    assert_eq!(p.adopt_leftover(strip(4), v(1, 1)).await, Ok(false), "asked for in this life");
    p.discard(vec![(strip(4), v(1, 1))]).await;
    assert_eq!(p.list_prepared(None, 9).await.unwrap().len(), 1);
    // A delete of what it is above asks for nothing.
    for i in 5..7 {
        prepare(&p, whole(strip(i), v(1, 1), &bytes)).await.unwrap();
        adopt(&p, strip(i), v(1, 1)).await;
        prepare(&p, whole(strip(i), v(1, 3), &bytes)).await.unwrap();
    }
    let delete = async |i: u64| p.delete(vec![block(i, v(1, 2))]).await.unwrap();
    delete(5).await;
    assert_eq!(p.discard_leftover(strip(5), v(1, 3)).await, Ok(false), "of this life");
    p.begin_life();
    for i in 5..7 {
        delete(i).await;
    }
    prepare(&p, whole(strip(6), v(1, 3), &bytes)).await.unwrap();
    assert_eq!(p.discard_leftover(strip(5), v(1, 3)).await, Ok(true));
    assert_eq!(p.discard_leftover(strip(6), v(1, 3)).await, Ok(false), "asked for in this life");
}

#[tokio::test]
async fn lists_by_group_and_of_prepared() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), 32 << 20);
    let (p, _) = open(dir.path(), &node(EngineChoice::Auto));
    let batch = (0..50).map(|i| {
        let mut w = whole(strip(i), v(1, 1), &content(i, 1));
        w.0.group = GroupId((i % 5) as u32);
        w
    });
    assert!(p.prepare(batch.collect()).await.iter().all(Result::is_ok));
    for i in (0..50).step_by(2) {
        adopt(&p, strip(i), v(1, 1)).await;
    }
    let mut found = Vec::new();
    loop {
        let page = p.list_group(PoolId(1), GroupId(3), found.last().copied(), 4).await.unwrap();
        if page.is_empty() {
            break;
        }
        found.extend(page.iter().map(|s| s.strip));
    }
    assert_eq!(found, (0..10).map(|i| strip(i * 5 + 3)).collect::<Vec<_>>());
    let prepared = p.list_prepared(Some(strip(7)), 3).await.unwrap();
    assert_eq!(prepared.iter().map(|s| s.strip).collect::<Vec<_>>(), [strip(9), strip(11), strip(13)]);
    assert!(p.list_group(PoolId(2), GroupId(3), None, 4).await.unwrap().is_empty());
}

#[tokio::test]
async fn lost_strips_are_installed_again() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), 32 << 20);
    let node = node(EngineChoice::Auto);
    let bytes = content(5, 40);
    let (p, _) = open(dir.path(), &node);
    write(&p, strip(1), v(1, 1), &bytes).await;
    assert_eq!(p.mark_lost(strip(1)).await, Ok(false), "nothing is wrong with it");
    p.close().await.unwrap();
    let data = std::fs::OpenOptions::new().read(true).write(true).open(dir.path().join("data")).unwrap();
    let mut byte = [0];
    data.read_exact_at(&mut byte, 5000).unwrap();
    data.write_all_at(&[byte[0] ^ 4], 5000).unwrap();
    let (p, _) = open(dir.path(), &node);
    assert_eq!(p.verify().await.unwrap().damaged, [(strip(1), v(1, 1))]);
    assert_eq!(p.mark_lost(strip(1)).await, Ok(true));
    assert_eq!(read(&p, strip(1), ADOPTED).await, Err(StripRefusal::Lost));
    drop(p);
    let (p, _) = open(dir.path(), &node);
    assert!(p.state(vec![strip(1)]).await.unwrap()[0].lost);
    let lost = Err(StripRefusal::Lost);
    assert_eq!(prepare(&p, part(strip(1), v(1, 2), v(1, 1), 0, &content(6, 1), 40)).await, lost);
    let (r, payload) = whole(strip(1), v(1, 1), &bytes);
    assert_eq!(p.install(r, payload).await, Ok(()));
    assert_eq!(read(&p, strip(1), ADOPTED).await.unwrap(), bytes);
    assert_eq!(p.stats().free, p.stats().capacity - 40 * 4096);
}

#[tokio::test]
async fn a_full_pdisk_still_takes_new_versions_of_what_it_has() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), 4 << 20);
    let (p, _) = open(dir.path(), &node(EngineChoice::Auto));
    let units = 20;
    let mut stored = 0;
    loop {
        match prepare(&p, whole(strip(stored), v(1, 1), &content(stored, units))).await {
            Ok(()) => adopt(&p, strip(stored), v(1, 1)).await,
            Err(e) => {
                assert_eq!(e, StripRefusal::NoSpace);
                break;
            }
        }
        stored += 1;
    }
    assert!(p.stats().free >= p.stats().reserved);
    // Told once, however long it stays so.
    let place = dir.path().display().to_string();
    let told = || {
        let events = base::events::events().after(0);
        events.into_iter().filter(|e| e.name == "pdisk_full" && e.text.contains(&place)).count()
    };
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while told() == 0 {
        assert!(std::time::Instant::now() < end, "nobody says that it is full");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    for round in 2..6 {
        for i in 0..stored {
            let mut next = whole(strip(i), v(1, round), &content(round * 1000 + i, units));
            next.0.adopt = Some(v(1, round - 1));
            assert_eq!(prepare(&p, next).await, Ok(()), "round {round}, strip {i}");
            adopt(&p, strip(i), v(1, round)).await;
        }
    }
    for i in 0..stored {
        assert_eq!(read(&p, strip(i), ADOPTED).await.unwrap(), content(5000 + i, units));
    }
    assert_eq!(told(), 1);
}

#[tokio::test]
async fn what_is_made_again_may_take_half_of_what_is_reserved() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), 16 << 20);
    let (p, _) = open(dir.path(), &node(EngineChoice::Auto));
    let units = 8;
    let mut stored = 0;
    while let Ok(()) = prepare(&p, whole(strip(stored), v(1, 1), &content(stored, units))).await {
        adopt(&p, strip(stored), v(1, 1)).await;
        stored += 1;
    }
    let reserved = p.stats().reserved;
    let mut made = stored;
    let refused = loop {
        let (request, payload) = whole(strip(made), v(1, 1), &content(made, units));
        match p.install(request, payload).await {
            Ok(()) => made += 1,
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused, StripRefusal::NoSpace);
    let strip_bytes = units as u64 * 4096;
    let left = p.stats().free;
    assert!(reserved / 2 <= left && left < reserved / 2 + strip_bytes, "{left} of {reserved}");
    // Nothing else that is new is let in, and what exists takes new versions still, the one as the other.
    let new = prepare(&p, whole(strip(made), v(1, 1), &content(made, units))).await;
    assert_eq!(new, Err(StripRefusal::NoSpace));
    for i in 0..made {
        let mut next = whole(strip(i), v(1, 2), &content(1000 + i, units));
        next.0.adopt = Some(v(1, 1));
        assert_eq!(prepare(&p, next).await, Ok(()), "strip {i}");
        adopt(&p, strip(i), v(1, 2)).await;
    }
}

#[tokio::test]
async fn the_log_goes_round_many_times() {
    with_engines(|dir, node| async move {
        let (p, _) = open(dir.path(), &node);
        let mut model = content(0, 16);
        write(&p, strip(1), v(1, 1), &model).await;
        // 1 MiB of log, 8 KiB and more for each of these.
        for i in 2..600u64 {
            let unit = (i * 7 % 16) as usize;
            let bytes = content(i, 1);
            let mut r = part(strip(1), v(1, i), v(1, i - 1), unit, &bytes, 16);
            r.0.adopt = Some(v(1, i - 1));
            prepare(&p, r).await.unwrap();
            model[unit * UNIT..(unit + 1) * UNIT].copy_from_slice(&bytes);
        }
        let stats = p.stats();
        assert!(stats.log_position > 4 * stats.log_capacity && stats.checkpoints > 4, "{stats:?}");
        drop(p);
        let (p, report) = open(dir.path(), &node);
        assert!(report.log_bytes_replayed < stats.log_capacity);
        assert_eq!(read(&p, strip(1), ReadVersion::Exactly(v(1, 599))).await.unwrap(), model);
    })
    .await;
}

#[tokio::test]
async fn one_directory_one_owner() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), 4 << 20);
    let node = node(EngineChoice::Auto);
    let again = Pdisk::create(dir.path(), CreateOptions::new(base::ClusterId(1), base::PdiskId(2), 4 << 20));
    assert!(matches!(again, Err(PdiskError::InUse { pdisk: PDISK, cluster: CLUSTER, .. })), "{again:?}");
    let (p, _) = open(dir.path(), &node);
    assert!(matches!(try_open(dir.path(), &node), Err(PdiskError::Locked { .. })));
    let clone = p.clone();
    p.close().await.unwrap();
    assert_eq!(clone.adopt(vec![(strip(1), v(1, 1))]).await, [Err(StripRefusal::Failed)]);
    drop(open(dir.path(), &node));
    let other = pdisk::OpenOptions { pdisk: base::PdiskId(9), ..options() };
    assert!(matches!(
        Pdisk::open(dir.path(), other, &node),
        Err(PdiskError::WrongPdisk { found: PDISK, .. })
    ));
    let used = tempfile::tempdir().unwrap();
    std::fs::write(used.path().join("precious"), b"x").unwrap();
    let refused = Pdisk::create(used.path(), CreateOptions::new(CLUSTER, PDISK, 4 << 20));
    assert!(matches!(refused, Err(PdiskError::NotEmpty { .. })));
}

#[tokio::test]
async fn the_log_on_another_device() {
    let (dir, log_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let create = CreateOptions {
        log_dir: Some(log_dir.path().into()),
        log_size: Some(1 << 20),
        ..CreateOptions::new(CLUSTER, PDISK, 4 << 20)
    };
    Pdisk::create(dir.path(), create).unwrap();
    let node = node(EngineChoice::Auto);
    let (p, _) = open(dir.path(), &node);
    write(&p, strip(1), v(1, 1), &content(1, 2)).await;
    drop(p);
    let (p, _) = open(dir.path(), &node);
    assert_eq!(read(&p, strip(1), ADOPTED).await.unwrap(), content(1, 2));
    drop(p);
    let moved = log_dir.path().join("moved");
    std::fs::create_dir(&moved).unwrap();
    for entry in std::fs::read_dir(log_dir.path()).unwrap().flatten().filter(|e| e.path().is_file()) {
        std::fs::rename(entry.path(), moved.join(entry.file_name())).unwrap();
    }
    let error = try_open(dir.path(), &node).unwrap_err().to_string();
    assert!(error.contains(log_dir.path().to_str().unwrap()), "{error}");
    let there = pdisk::OpenOptions { log_dir: Some(moved), ..options() };
    assert_eq!(Pdisk::open(dir.path(), there, &node).unwrap().1.strips, 1);
}

/// Reads of files in memory are lent where they lie.
#[tokio::test]
async fn lent_bytes_stay_while_their_strip_is_replaced_and_their_room_comes_back() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    create(dir.path(), 24 << 20);
    let (p, _) = open(dir.path(), &node(EngineChoice::Psync));
    let first = content(1, 256);
    write(&p, strip(0), v(1, 1), &first).await;
    let ranges = vec![Range { offset: 0, len: 1 << 20 }];
    let ask = ReadStrip { strip: strip(0), version: ReadVersion::Adopted, ranges };
    let (_, lent) = p.read(vec![ask]).await.pop().unwrap().unwrap();
    let replace = async |seqs: std::ops::Range<u64>| {
        for seq in seqs {
            write(&p, strip(0), v(1, seq), &content(seq, 256)).await;
        }
    };
    replace(2..20).await;
    assert!(lent == first, "it was written over while somebody had it");
    drop(lent);
    replace(20..80).await;
    assert_eq!(read(&p, strip(0), ReadVersion::Adopted).await.unwrap(), content(79, 256));
    p.close().await.unwrap();
}

/// The index has its bound: new strips are refused at it, what exists can be written again, and what is deleted makes
/// room.
#[tokio::test]
async fn an_index_at_its_bound_refuses_new_strips_only() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), 4 << 20);
    let node = node(EngineChoice::Auto);
    let bounded = |bytes| pdisk::OpenOptions { index_memory: Some(bytes), ..options() };
    let (p, _) = Pdisk::open(dir.path(), bounded(64 << 10), &node).unwrap();
    assert_eq!(p.stats().room(), p.stats().free - p.stats().reserved, "far from it, it counts for nothing");
    let mut stored = 0;
    while prepare(&p, whole(strip(stored), v(1, 1), &content(stored, 1))).await.is_ok() {
        adopt(&p, strip(stored), v(1, 1)).await;
        stored += 1;
    }
    let refused = prepare(&p, whole(strip(stored), v(1, 1), &content(stored, 1))).await;
    assert_eq!(refused, Err(StripRefusal::NoSpace));
    let stats = p.stats();
    assert!((50..500).contains(&stored) && stats.free > 1 << 20, "{stored} {stats:?}");
    assert!(stats.index_bytes <= stats.index_max && stats.room() == 0, "{stats:?}");
    prepare(&p, whole(strip(3), v(1, 2), &content(1000, 1))).await.unwrap();
    adopt(&p, strip(3), v(1, 2)).await;
    p.close().await.unwrap();
    let (p, _) = Pdisk::open(dir.path(), bounded(64 << 10), &node).unwrap();
    let now = p.stats().index_bytes;
    assert!(now <= stats.index_bytes && now > stats.index_bytes / 2, "counted anew: {now} {stats:?}");
    while prepare(&p, whole(strip(stored), v(1, 1), &content(stored, 1))).await.is_ok() {
        adopt(&p, strip(stored), v(1, 1)).await;
        stored += 1;
    }
    // Smaller than what is there: it opens, and takes nothing new.
    p.close().await.unwrap();
    let (p, _) = Pdisk::open(dir.path(), bounded(1 << 10), &node).unwrap();
    assert_eq!(prepare(&p, whole(strip(stored), v(1, 1), &content(0, 1))).await, refused);
    assert_eq!(read(&p, strip(3), ADOPTED).await.unwrap(), content(1000, 1));
    p.close().await.unwrap();
    let (p, _) = Pdisk::open(dir.path(), bounded(64 << 10), &node).unwrap();
    let (first, last) = (BlockIndex(0), BlockIndex(9));
    let delete = DeleteStrips { fs: FsId(1), inode: InodeNo(10), first, last, highest: v(9, 9) };
    assert_eq!(p.delete(vec![delete]).await, Ok(10));
    write(&p, strip(stored), v(1, 1), &content(stored, 1)).await;
}
