//! Faults below a running pdisk, on both engines. Named by the story.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use pdisk::{EngineChoice, FaultPlan, FileKind, IoConfig, IoNode, Pdisk, PdiskError, Trace, TraceEvent};
use wire::strip::{ReadVersion, StripRefusal};

const ADOPTED: ReadVersion = ReadVersion::Adopted;
const ENGINES: [EngineChoice; 2] = [EngineChoice::Auto, EngineChoice::Psync];

fn plan(text: &str) -> FaultPlan {
    text.parse().unwrap()
}

fn faulty(engine: EngineChoice, plan: FaultPlan) -> IoNode {
    IoNode::start(IoConfig { engine, fault: Some(plan), ..IoConfig::default() }).unwrap()
}

#[tokio::test]
async fn an_error_on_write_or_flush_latches_the_pdisk_once() {
    for engine in ENGINES {
        for spoil in [
            "eio on=write file=data",
            "eio on=flush file=data",
            "eio on=write file=log",
            "eio on=flush file=log",
        ] {
            let dir = tempfile::tempdir().unwrap();
            create(dir.path(), 4 << 20);
            let trace = Trace::default();
            let node = faulty(engine, FaultPlan::default().traced(&trace));
            let (p, _) = open(dir.path(), &node);
            write(&p, strip(1), v(1, 1), &content(1, 40)).await;
            assert!(node.change_faults(&plan(spoil)));
            trace.take();
            let batch = (2..6).map(|i| whole(strip(i), v(1, 1), &content(i, 40))).collect();
            assert_eq!(p.prepare(batch).await, vec![Err(StripRefusal::Failed); 4], "{spoil}");
            let failed = p.stats().failed.unwrap();
            assert!(failed.contains(&spoil[7..12]), "{spoil}: {failed}");
            // Nothing is tried again, nothing is answered from then on.
            node.change_faults(&FaultPlan::default());
            let refused = Err(StripRefusal::Failed);
            assert_eq!(prepare(&p, whole(strip(9), v(1, 1), &content(9, 1))).await, refused);
            assert_eq!(p.adopt(vec![(strip(1), v(1, 1))]).await, [Err(StripRefusal::Failed)]);
            assert_eq!(read(&p, strip(1), ADOPTED).await, Err(StripRefusal::Failed));
            assert_eq!(p.stats().failed.unwrap(), failed, "the first reason stays");
            assert!(matches!(p.close().await, Err(PdiskError::Failed { .. })));
            let bad = |e: &&TraceEvent| matches!(e, TraceEvent::Done { ok: false, .. });
            let events = trace.take();
            let after = events.iter().position(|e| bad(&e)).unwrap();
            // The other file's flush is submitted beside, and may come after the failure of this one.
            let on_flush = spoil.contains("on=flush");
            let failed = if spoil.ends_with("log") { FileKind::Log } else { FileKind::Data };
            let late = events[after..]
                .iter()
                .any(|e| matches!(e, TraceEvent::Flush { file, .. } if !on_flush || *file == failed));
            assert!(!late, "{spoil}: no flush after what failed");
            let (p, _) = open(dir.path(), &node);
            assert_eq!(read(&p, strip(1), ADOPTED).await.unwrap(), content(1, 40));
        }
    }
}

#[tokio::test]
async fn an_error_on_read_costs_that_strip_only() {
    for engine in ENGINES {
        let dir = tempfile::tempdir().unwrap();
        create(dir.path(), 4 << 20);
        let node = faulty(engine, FaultPlan::default());
        let (p, _) = open(dir.path(), &node);
        for i in 1..4 {
            write(&p, strip(i), v(1, 1), &content(i, 40)).await;
        }
        node.change_faults(&plan("eio on=read file=data times=1"));
        assert_eq!(read(&p, strip(1), ADOPTED).await, Err(StripRefusal::Lost));
        for i in 1..4 {
            assert_eq!(read(&p, strip(i), ADOPTED).await.unwrap(), content(i, 40), "and it may pass");
        }
        assert_eq!(p.stats().failed, None);
        node.change_faults(&plan("eio on=read file=data"));
        assert_eq!(p.mark_lost(strip(2)).await, Ok(true));
        node.change_faults(&FaultPlan::default());
        assert_eq!(read(&p, strip(2), ADOPTED).await, Err(StripRefusal::Lost));
        assert_eq!(read(&p, strip(3), ADOPTED).await.unwrap(), content(3, 40));
    }
}

#[tokio::test]
async fn a_torn_write_is_latched_and_leaves_nothing_wrong() {
    for engine in ENGINES {
        for file in ["data", "log", "index", "crc"] {
            let dir = tempfile::tempdir().unwrap();
            create(dir.path(), 4 << 20);
            let node = faulty(engine, FaultPlan::default());
            let (p, _) = open(dir.path(), &node);
            for i in 1..9 {
                write(&p, strip(i), v(1, 1), &content(i, 40)).await;
            }
            node.change_faults(&plan(&format!("seed 3; torn on=write file={file}")));
            let answer = prepare(&p, whole(strip(1), v(1, 2), &content(100, 40))).await;
            assert_eq!(answer.is_err(), file == "data" || file == "log");
            let closed = p.close().await;
            assert!(closed.is_err(), "{file}: {closed:?}");
            node.change_faults(&FaultPlan::default());
            let (p, report) = open(dir.path(), &node);
            assert!(report.damaged.is_none(), "{file}: {report:?}");
            for i in 1..9 {
                assert_eq!(read(&p, strip(i), ADOPTED).await.unwrap(), content(i, 40));
            }
            assert_eq!(p.verify().await.unwrap().damaged, []);
        }
    }
}

#[tokio::test]
async fn slow_disks_only_take_longer() {
    for engine in ENGINES {
        let dir = tempfile::tempdir().unwrap();
        create(dir.path(), 4 << 20);
        let node = faulty(engine, plan("delay 20ms on=any p=0.3"));
        let (p, _) = open(dir.path(), &node);
        let batch = (1..9).map(|i| whole(strip(i), v(1, 1), &content(i, 20))).collect();
        assert!(p.prepare(batch).await.iter().all(Result::is_ok));
        for i in 1..9 {
            assert_eq!(read(&p, strip(i), ReadVersion::Exactly(v(1, 1))).await.unwrap(), content(i, 20));
        }
        p.close().await.unwrap();
    }
}

/// Flushes of the log for 8 writers of 16 strips each, every one waiting for its answer.
async fn flushes_of_eight_writers(millis: u64) -> usize {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), 16 << 20);
    let trace = Trace::default();
    let node =
        faulty(EngineChoice::Psync, plan(&format!("delay {millis}ms on=flush file=log")).traced(&trace));
    let (p, _) = open(dir.path(), &node);
    trace.take();
    let writers = (0..8).map(|w| {
        let p = p.clone();
        tokio::spawn(async move {
            for i in 16 * w..16 * (w + 1) {
                prepare(&p, whole(strip(i), v(1, 1), &content(i, 1))).await.unwrap();
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let of_log = |e: &&TraceEvent| matches!(e, TraceEvent::Flush { file: FileKind::Log, .. });
    trace.take().iter().filter(of_log).count()
}

/// All share a flush, instead of two halves in turn that wait for each other's: 16 flushes, not 32. Another
/// try with a slower disk where the machine was too busy for them to come in time.
#[tokio::test]
async fn writers_that_come_again_share_a_flush() {
    let mut flushes = Vec::new();
    while flushes.len() < 7 && flushes.last().is_none_or(|n| *n > 22) {
        flushes.push(flushes_of_eight_writers(12 << flushes.len()).await);
    }
    assert!(flushes.last().is_some_and(|n| (16..=22).contains(n)), "{flushes:?}");
}

/// Strips written and answered before the power goes, and what is there after it.
async fn power_cut(plan_text: &str, engine: EngineChoice) -> Vec<bool> {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), 16 << 20);
    let mut whole_after = Vec::new();
    {
        let node = faulty(engine, plan(plan_text));
        let (p, _) = open(dir.path(), &node);
        for i in 0..20 {
            prepare(&p, whole(strip(i), v(1, 1), &content(i, if i % 2 == 0 { 3 } else { 40 })))
                .await
                .unwrap();
        }
        // A reader sees what is held.
        for i in 0..20 {
            assert!(read(&p, strip(i), ReadVersion::Exactly(v(1, 1))).await.is_ok());
        }
        drop(p);
        // The process alone dies: what the disk's cache holds is still there.
        let (p, report) = open(dir.path(), &node);
        assert_eq!((report.strips, report.damaged.is_none()), (20, true));
        drop(p);
        // With the node the cache goes.
    }
    let Ok((p, _)) = try_open(dir.path(), &node(engine)) else { return vec![false; 20] };
    for i in 0..20 {
        let read = read(&p, strip(i), ReadVersion::Exactly(v(1, 1))).await;
        whole_after.push(read == Ok(content(i, if i % 2 == 0 { 3 } else { 40 })));
    }
    whole_after
}

#[tokio::test]
async fn a_power_cut_takes_only_what_was_not_answered() {
    for engine in ENGINES {
        for plan in ["volatile", "volatile leak=0.4", "volatile max=64k leak=0.1"] {
            assert_eq!(power_cut(plan, engine).await, [true; 20], "{plan}");
        }
    }
}

#[tokio::test]
async fn without_flushes_a_power_cut_shows() {
    for plan in ["volatile; noflush", "volatile leak=0.5; noflush"] {
        let there = power_cut(plan, EngineChoice::Auto).await;
        assert!(there.contains(&false), "{plan}");
    }
}

#[tokio::test]
async fn an_unreadable_log_or_index_is_an_error_that_names_it() {
    for file in ["log", "index"] {
        let dir = tempfile::tempdir().unwrap();
        create(dir.path(), 4 << 20);
        let node = faulty(EngineChoice::Auto, plan(&format!("eio on=read file={file}")));
        let error = try_open(dir.path(), &node).unwrap_err().to_string();
        assert!(error.contains(file), "{error}");
    }
}

fn until(what: &str, done: impl Fn() -> bool) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !done() {
        assert!(std::time::Instant::now() < end, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// The file system that the pdisk lies on is full for a while, wherever that hits: what needs room is refused, nothing
/// is latched, and it goes on by itself.
#[tokio::test]
async fn a_full_file_system_is_waited_for() {
    for engine in ENGINES {
        for file in ["index", "crc", "data"] {
            let dir = tempfile::tempdir().unwrap();
            create(dir.path(), 4 << 20);
            let node = faulty(engine, FaultPlan::default());
            let (p, _) = open(dir.path(), &node);
            write(&p, strip(0), v(1, 1), &content(0, 20)).await;
            node.change_faults(&plan(&format!("enospc on=write file={file}")));
            // Until the log has no room left that only a checkpoint could make, or at once.
            let mut stored = 0;
            let refusal = loop {
                let units = if file == "data" { 20 } else { 4 };
                match prepare(&p, whole(strip(1 + stored % 4), v(2 + stored, 1), &content(stored, units)))
                    .await
                {
                    Ok(()) => adopt(&p, strip(1 + stored % 4), v(2 + stored, 1)).await,
                    Err(refusal) => break refusal,
                }
                stored += 1;
                assert!(stored < 1000, "{file}: the log has no end");
            };
            assert_eq!((refusal, p.stats().failed), (StripRefusal::NoSpace, None), "{file}");
            if file == "data" {
                assert_eq!((stored, p.stats().short), (0, None));
            } else {
                assert!(stored > 5 && p.stats().short.unwrap().contains("checkpoint"), "{file}");
            }
            assert_eq!(read(&p, strip(0), ADOPTED).await.unwrap(), content(0, 20));
            let last = 1 + (stored + 3) % 4;
            let same = async |p: &Pdisk| {
                file == "data" || read(p, strip(last), ADOPTED).await.unwrap() == content(stored - 1, 4)
            };
            assert!(same(&p).await);
            // Dead in that state, it is what it was.
            if file == "index" {
                drop(p);
                let (q, report) = open(dir.path(), &node);
                assert!(report.damaged.is_none() && same(&q).await);
                node.change_faults(&FaultPlan::default());
                until("room again", || q.stats().short.is_none());
                assert_eq!(q.verify().await.unwrap().damaged, []);
                continue;
            }
            node.change_faults(&FaultPlan::default());
            until("room again", || p.stats().short.is_none());
            write(&p, strip(9), v(9000, 1), &content(9, 20)).await;
            p.close().await.unwrap();
            let (p, report) = open(dir.path(), &node);
            assert!(report.damaged.is_none() && report.log_bytes_replayed == 0);
            assert_eq!(read(&p, strip(9), ADOPTED).await.unwrap(), content(9, 20));
            assert!(same(&p).await);
            assert_eq!(p.verify().await.unwrap().damaged, [], "{file}");
        }
    }
}

/// The same for the log itself: who waits for an answer has it when there is room; others are refused meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_without_room_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), 4 << 20);
    let node = faulty(EngineChoice::Psync, FaultPlan::default());
    let (p, _) = open(dir.path(), &node);
    node.change_faults(&plan("enospc on=write file=log"));
    let waits = {
        let p = p.clone();
        tokio::spawn(async move { prepare(&p, whole(strip(1), v(1, 1), &content(1, 3))).await })
    };
    until("the log has no room", || p.stats().short.is_some());
    assert_eq!(prepare(&p, whole(strip(2), v(1, 1), &content(2, 3))).await, Err(StripRefusal::NoSpace));
    assert!(!waits.is_finished());
    node.change_faults(&FaultPlan::default());
    assert_eq!(waits.await.unwrap(), Ok(()));
    until("room again", || p.stats().short.is_none());
    prepare(&p, whole(strip(2), v(1, 1), &content(2, 3))).await.unwrap();
    drop(p);
    let (p, _) = open(dir.path(), &node);
    assert_eq!(read(&p, strip(1), ReadVersion::Exactly(v(1, 1))).await.unwrap(), content(1, 3));
}

/// A flush that fails is another matter, whatever it says: what was written may be gone.
#[tokio::test]
async fn a_flush_without_room_is_latched() {
    for (file, close) in [("log", false), ("data", false), ("index", true), ("crc", true)] {
        let dir = tempfile::tempdir().unwrap();
        create(dir.path(), 4 << 20);
        let node = faulty(EngineChoice::Psync, FaultPlan::default());
        let (p, _) = open(dir.path(), &node);
        node.change_faults(&plan(&format!("enospc on=flush file={file}")));
        let answer = prepare(&p, whole(strip(1), v(1, 1), &content(1, 40))).await;
        assert_eq!(answer.is_ok(), close, "{file}");
        assert!(close || p.stats().failed.is_some(), "{file}");
        assert!(p.close().await.is_err(), "{file}");
    }
}

/// Two that wait for units which a reader still uses do not wake each other until both give up.
#[tokio::test(flavor = "multi_thread")]
async fn units_on_their_way_back_are_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), 1 << 20);
    let node = faulty(EngineChoice::Psync, FaultPlan::default());
    let options = pdisk::OpenOptions { reserve: Some(0), fast_write_limit: 0, ..options() };
    let (p, _) = Pdisk::open(dir.path(), options, &node).unwrap();
    write(&p, strip(1), v(1, 1), &content(1, 120)).await;
    node.change_faults(&plan("delay 700ms on=read file=data"));
    let of = p.clone();
    let mut reads = Box::pin(async move { read(&of, strip(1), ReadVersion::Exactly(v(1, 1))).await });
    // Looked at once it has begun: its units are not free though nothing will refer to them.
    tokio::select! {
        biased;
        read = &mut reads => panic!("it does not wait: {read:?}"),
        () = std::future::ready(()) => {}
    }
    write(&p, strip(1), v(1, 2), &content(2, 120)).await;
    let more = [2, 3, 4].map(|i| {
        let p = p.clone();
        tokio::spawn(async move { prepare(&p, whole(strip(i), v(1, 1), &content(i, 40))).await })
    });
    for one in more {
        assert_eq!(one.await.unwrap(), Ok(()));
    }
    assert_eq!(reads.await.unwrap(), content(1, 120));
}

/// Nothing is there of a strip any more, and that it is so may still be lost: no answer says it.
#[tokio::test]
async fn what_is_gone_is_said_to_be_gone_when_that_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), 4 << 20);
    let node = faulty(EngineChoice::Auto, FaultPlan::default());
    let (p, _) = open(dir.path(), &node);
    let gone = (strip(1), v(1, 1));
    prepare(&p, whole(strip(1), v(1, 1), &content(1, 40))).await.unwrap();
    write(&p, strip(2), v(1, 1), &content(2, 40)).await;
    assert!(node.change_faults(&plan("delay 600s on=flush file=log times=1")));
    let first = tokio::spawn({
        let p = p.clone();
        async move { p.discard(vec![gone]).await }
    });
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while node.held_up() == 0 {
        assert!(std::time::Instant::now() < end, "nothing gets to the disk");
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    let again = p.discard(vec![gone]);
    let state = p.state(vec![strip(1)]);
    let group = p.list_group(base::PoolId(1), base::GroupId(2), None, 9);
    let prepared = p.list_prepared(None, 9);
    tokio::pin!(again, state, group, prepared);
    // Each is asked once: what needs no disk is answered by that.
    let early = tokio::select! {
        biased;
        _ = &mut again => "a repeated discard",
        _ = &mut state => "its state",
        _ = &mut group => "its group",
        _ = &mut prepared => "what is prepared",
        _ = std::future::ready(()) => "",
    };
    // Of what is there and durable it is said at once.
    let there = p.state(vec![strip(2)]).await.unwrap()[0].adopted.is_some();
    node.let_go();
    assert_eq!((early, there), ("", true), "what was answered before it was durable, and what is there");
    assert_eq!((first.await.unwrap(), again.await), (vec![Ok(())], vec![Ok(())]));
    assert!(state.await.unwrap()[0].prepared.is_none());
    assert_eq!((group.await.unwrap().len(), prepared.await.unwrap().len()), (1, 0));
}
