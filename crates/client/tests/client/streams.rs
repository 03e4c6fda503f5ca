//! What is read ahead, kept and given up: streams in both directions and with steps, hints, thresholds,
//! changes of tunables while the client runs.
use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use crate::support::{BLOCK, RW, Rng, World, small, until};
use base::InodeNo;
use client::{Access, Client, Handle, PoolUse, Tunables};
use wire::mgr::FileKind;

const FILE: u64 = 64 * BLOCK as u64;
const STEP: usize = 64 << 10;

fn roomy() -> Tunables {
    Tunables { pagepool: 64 << 20, ..small() }
}

/// A stored file of [`FILE`] bytes, and nothing of it in memory.
async fn stored(world: &mut World, tunables: Tunables) -> (Client, Handle) {
    let client = world.mount(tunables);
    let handle = store(&client, b"f").await;
    assert_eq!(client.pool_use().used, 0);
    (client, handle)
}

async fn store(client: &Client, name: &[u8]) -> Handle {
    let made = client.create(InodeNo::ROOT, name, FileKind::File, 0o644, 0, 0, 0, b"", false).await;
    let ino = made.unwrap().0.ino;
    let handle = client.open(ino, RW).await.unwrap();
    for at in (0..FILE).step_by(STEP) {
        client.write(handle, at, &[(at / STEP as u64) as u8; STEP]).await.unwrap();
    }
    client.fsync(ino, false).await.unwrap();
    client.uncache(ino);
    handle
}

async fn read_at(client: &Client, handle: Handle, at: u64) {
    let data = client.read(handle, at, STEP).await.unwrap().to_vec();
    assert!(data.len() == STEP && data.iter().all(|b| *b == (at / STEP as u64) as u8), "wrong bytes at {at}");
}

/// What reading at these places in this order made of a fresh client.
async fn after(offsets: impl IntoIterator<Item = u64>) -> PoolUse {
    let mut world = World::new(4, 7);
    let (client, handle) = stored(&mut world, roomy()).await;
    for at in offsets {
        read_at(&client, handle, at).await;
    }
    client.pool_use()
}

#[tokio::test]
async fn streams_forward_reverse_and_strided_are_read_ahead() {
    let steps = || (0..FILE).step_by(STEP);
    let forward = after(steps()).await;
    assert!(forward.ahead_bytes > FILE * 3 / 4, "{forward:?}");
    let reverse = after((1..=FILE / STEP as u64).map(|i| FILE - i * STEP as u64)).await;
    assert!(reverse.ahead_bytes > FILE * 3 / 4, "{reverse:?}");
    let strided = after((0..FILE).step_by(5 * STEP)).await;
    // All but the first ones, and nothing of what lies between.
    let wanted = (0..FILE).step_by(5 * STEP).count() as u64 * STEP as u64;
    assert!(strided.ahead_bytes > wanted / 2 && strided.ahead_bytes <= wanted, "{strided:?}");
    for streams in [forward, reverse, strided] {
        let read = streams.hit_bytes + streams.coming_bytes + streams.miss_bytes;
        assert!(streams.miss_bytes < read / 3, "{streams:?}");
    }
}

#[tokio::test]
async fn random_reads_load_what_was_asked_for_and_no_more() {
    let mut world = World::new(4, 7);
    let (client, handle) = stored(&mut world, roomy()).await;
    let mut rng = Rng(11);
    let mut units = std::collections::BTreeSet::new();
    for _ in 0..200 {
        let unit = rng.below(FILE / 4096);
        units.insert(unit);
        client.read(handle, unit * 4096, 4096).await.unwrap();
    }
    let pool = client.pool_use();
    assert_eq!((pool.ahead_bytes, pool.miss_bytes), (0, units.len() as u64 * 4096), "{pool:?}");
    assert!(pool.used - (pool.entries << 10) <= pool.miss_bytes);
}

#[tokio::test]
async fn hints_are_taken() {
    let mut world = World::new(4, 7);
    let (client, handle) = stored(&mut world, roomy()).await;
    client.advise(handle, Access::Random).unwrap();
    for at in (0..FILE / 4).step_by(STEP) {
        read_at(&client, handle, at).await;
    }
    assert_eq!(client.pool_use().ahead_bytes, 0);
    client.advise(handle, Access::Sequential).unwrap();
    read_at(&client, handle, FILE / 2).await;
    assert!(client.pool_use().ahead_bytes > 0);

    let reads = world.blocks.reads.load(SeqCst);
    let last = FILE - u64::from(BLOCK);
    client.will_need(handle, last, u64::MAX).await.unwrap();
    until("the block is loaded", || world.blocks.reads.load(SeqCst) > reads).await;
    let missed = client.pool_use().miss_bytes;
    read_at(&client, handle, last).await;
    assert_eq!(client.pool_use().miss_bytes, missed);
}

/// Pages that a reader in sequence has gone through leave before those that were read here and there.
#[tokio::test]
async fn a_large_file_read_in_sequence_makes_room_by_itself() {
    for (threshold, stays) in [(1 << 20, true), (1 << 40, false)] {
        let mut world = World::new(4, 7);
        let tunables =
            Tunables { pagepool: 8 << 20, prefetch_pct: 0, seq_discard_threshold: threshold, ..small() };
        let (client, handle) = stored(&mut world, tunables).await;
        let here_and_there: Vec<u64> = [61, 3, 47, 21, 35].map(|block| block * u64::from(BLOCK)).to_vec();
        for &at in &here_and_there {
            read_at(&client, handle, at).await;
        }
        for at in (0..FILE / 2).step_by(STEP).filter(|at| !here_and_there.contains(at)) {
            read_at(&client, handle, at).await;
        }
        let missed = client.pool_use().miss_bytes;
        read_at(&client, handle, 61 * u64::from(BLOCK)).await;
        assert_eq!(client.pool_use().miss_bytes == missed, stays, "threshold {threshold}");
    }
}

/// Also where a block is gone through before all of it has come, and where several read it at once: a scan is not reuse.
#[tokio::test]
async fn what_a_scan_has_gone_through_takes_a_sixteenth_of_the_pool() {
    let block = u64::from(BLOCK);
    let in_turn: Vec<u64> = (0..FILE).step_by(STEP).collect();
    // 0 1 3 2 5 4 7 6 ...
    let in_pairs: Vec<u64> = (0..in_turn.len()).map(|i| in_turn[if i < 2 { i } else { i ^ 1 }]).collect();
    let of_four: Vec<u64> =
        (0..FILE / 4).step_by(STEP).flat_map(|at| [0, 1, 2, 3].map(|part| part * FILE / 4 + at)).collect();
    let whole: Vec<u64> = (0..FILE).step_by(BLOCK as usize).collect();
    for (reads, len, ahead) in
        [(&in_turn, STEP, 3), (&in_pairs, STEP, 3), (&of_four, STEP, 3), (&whole, BLOCK as usize, 0)]
    {
        let mut world = World::new(1, 7);
        let tunables = Tunables { seq_discard_threshold: 1 << 20, prefetch_pct: ahead, ..roomy() };
        let pool = tunables.pagepool;
        let (client, handle) = stored(&mut world, tunables).await;
        for &at in reads {
            assert_eq!(client.read(handle, at, len).await.unwrap().to_vec().len(), len);
        }
        let used = client.pool_use();
        // What was ahead when the last load made room, and the last block of each reader, which is not behind it.
        let most = pool / 16 + pool * u64::from(ahead) / 100 + 16 * block;
        assert!(
            used.used <= most,
            "{:?}, {len} bytes, {ahead} % ahead: {} of {most}: {used:?}",
            &reads[..8],
            used.used
        );
    }
}

/// Records that share units with others' records: what they need of these comes for several at once. Here and there it comes for each alone.
#[tokio::test]
async fn units_written_in_part_come_in_for_several_records_at_once() {
    let mut rng = Rng(5);
    let record = 5000;
    let in_turn: Vec<u64> = (0..FILE - record).step_by(2 * record as usize).collect();
    let anywhere: Vec<u64> = (0..400).map(|_| rng.below(FILE / 2 - record) * 2 + 1).collect();
    for (places, reads_most, units_each) in [(&in_turn, 0.5, 3), (&anywhere, 2.0, 2)] {
        let mut world = World::new(4, 7);
        let never = Duration::from_secs(3600);
        let tunables = Tunables { pagepool: 256 << 20, writeback_age: never, ..small() };
        let (client, handle) = stored(&mut world, tunables).await;
        let before = world.blocks.reads.load(SeqCst);
        for &at in places {
            client.write(handle, at, &vec![9; record as usize]).await.unwrap();
        }
        let reads = (world.blocks.reads.load(SeqCst) - before) as f64 / places.len() as f64;
        assert!(reads > 0.0 && reads <= reads_most, "{reads} reads a record");
        let units = client.pool_use().used / 4096 / places.len() as u64;
        assert!(units <= 3 + units_each, "{units} units in memory for a record: {:?}", client.pool_use());
        let data = client.read(handle, places[7] - 3, record as usize + 6).await.unwrap().to_vec();
        let own = |at: u64| (at / STEP as u64) as u8;
        let kept = |at: u64| places.iter().all(|&p| at < p || at >= p + record);
        for (i, &byte) in data.iter().enumerate() {
            let at = places[7] - 3 + i as u64;
            assert_eq!(byte, if kept(at) { own(at) } else { 9 }, "at {at}");
        }
    }
}

#[tokio::test]
async fn full_blocks_of_small_files_wait_below_the_threshold() {
    let never = Duration::from_secs(3600);
    for (threshold, writes) in [(0, 1), (2 * u64::from(BLOCK), 0)] {
        let mut world = World::new(4, 1);
        let tunables = Tunables { writeback_age: never, writebehind_threshold: threshold, ..roomy() };
        let client = world.mount(tunables);
        let made = client.create(InodeNo::ROOT, b"f", FileKind::File, 0o644, 0, 0, 0, b"", false).await;
        let handle = client.open(made.unwrap().0.ino, RW).await.unwrap();
        client.write(handle, 0, &vec![1; BLOCK as usize]).await.unwrap();
        if writes > 0 {
            until("the block goes out", || world.blocks.writes.load(SeqCst) == writes).await;
        } else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(world.blocks.writes.load(SeqCst), 0);
            client.write(handle, u64::from(BLOCK), &vec![1; BLOCK as usize]).await.unwrap();
            until("the second block goes out", || world.blocks.writes.load(SeqCst) >= 1).await;
        }
    }
}

#[tokio::test]
async fn the_page_pool_changes_its_size_while_in_use() {
    let mut world = World::new(4, 7);
    let kept = Tunables { seq_discard_threshold: 1 << 40, ..roomy() };
    let (client, handle) = stored(&mut world, kept).await;
    for at in (0..FILE).step_by(STEP) {
        read_at(&client, handle, at).await;
    }
    let before = client.pool_use().used;
    assert!(before > FILE / 2);
    let mut tunables = base::tunables::Tunables::default();
    tunables
        .apply([
            ("maxblocksize", "4m"),
            ("pagepool", "16m"),
            ("prefetchThreads", "2"),
            ("seqDiscardThreshold", "1t"),
        ])
        .unwrap();
    client.retune(&tunables);
    // What was on its way may still come.
    until("clean pages are given up", || client.pool_use().used <= 16 << 20).await;
    assert_eq!(client.pool_use().bytes_max, 16 << 20);
    for at in (0..FILE).step_by(STEP) {
        read_at(&client, handle, at).await;
    }
    tunables.apply([("pagepool", "64m")]).unwrap();
    client.retune(&tunables);
    for at in (0..FILE).step_by(STEP) {
        read_at(&client, handle, at).await;
    }
    assert!(client.pool_use().used > FILE / 2);
}

#[tokio::test]
async fn streams_that_run_at_once_have_equal_shares() {
    const STREAMS: u64 = 4;
    let mut world = World::new(1, 11);
    let client = world.mount(Tunables { prefetch_pct: 60, ..small() });
    let mut handles = Vec::new();
    for name in [b"a", b"b", b"c", b"d"] {
        handles.push(store(&client, name).await);
    }
    let before = client.pool_use();
    for at in (0..FILE).step_by(STEP) {
        for handle in &handles {
            read_at(&client, *handle, at).await;
        }
    }
    // Each alone would fill the page pool, and push out what the others have ahead.
    let after = client.pool_use();
    let missed = after.miss_bytes - before.miss_bytes;
    assert!(missed <= STREAMS * 2 * u64::from(BLOCK), "{missed} bytes missed: {after:?}");
    assert_eq!(after.ahead_unused_bytes, before.ahead_unused_bytes);
}

#[tokio::test]
async fn no_more_blocks_are_loaded_at_once_than_allowed() {
    for (allowed, most) in [(2, 2), (64, 3)] {
        let mut world = World::new(1, 13);
        let (client, handle) = stored(&mut world, Tunables { loads_max: allowed, ..roomy() }).await;
        let blocks = [3, 17, 9, 31, 25, 50, 41, 60];
        let reads = blocks.map(|block| {
            let client = client.clone();
            tokio::spawn(async move { read_at(&client, handle, block * u64::from(BLOCK)).await })
        });
        for read in reads {
            read.await.unwrap();
        }
        let seen = world.blocks.reading_most.load(SeqCst);
        assert!(if allowed == 2 { seen <= most } else { seen >= most }, "{seen} at once, {allowed} allowed");
    }
}
