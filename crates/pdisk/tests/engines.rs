//! The queues below the store: which engine, how many, what changes live, what is let go. By the story.
#![allow(clippy::unwrap_used)]

mod common;

use std::{
    fs,
    os::fd::AsRawFd,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use common::*;
use pdisk::{Engine, EngineChoice, IoConfig, IoNode, OpenOptions, Pdisk, PdiskError};
use wire::strip::{Range, ReadStrip, ReadVersion};

const ADOPTED: ReadVersion = ReadVersion::Adopted;

fn start(config: IoConfig) -> IoNode {
    IoNode::start(config).unwrap()
}

/// From now on io_uring_setup fails with `errno` in this thread and its children, as under a container's
/// seccomp profile (EPERM) or on an old kernel (ENOSYS).
fn forbid_io_uring(errno: i32) {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let op = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        op(LOAD, 0, 0, 0),
        op(JUMP_IF, 0, 1, libc::SYS_io_uring_setup as u32),
        op(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        op(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: plain numbers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the program and its filter live during the call, which copies them.
    let done = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// Not a test by itself: the process without io_uring.
#[test]
#[ignore = "run by without_io_uring_everything_works"]
fn without_io_uring_child() {
    let Ok(errno) = std::env::var("PDISK_TEST_ERRNO") else { return };
    forbid_io_uring(errno.parse().unwrap());
    let refused = IoNode::start(IoConfig { engine: EngineChoice::IoUring, ..IoConfig::default() });
    assert!(matches!(refused, Err(PdiskError::Engine { engine: "io_uring", .. })), "{refused:?}");
    let node = start(IoConfig::default());
    assert_eq!((node.engine(), node.queues()), (Engine::Psync, 2));
    assert!(node.why_psync().is_some());
    let told = base::events::events().after(0);
    assert!(told.iter().any(|e| e.name == "io_psync"), "{told:?}");
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), 16 << 20);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        for life in 0..3u64 {
            let (p, _) = open(dir.path(), &node);
            for i in 0..20 {
                let bytes = content(100 * life + i, if i % 2 == 0 { 3 } else { 60 });
                let mut next = whole(strip(i), v(1, life + 1), &bytes);
                next.0.adopt = Some(v(1, life));
                prepare(&p, next).await.unwrap();
                adopt(&p, strip(i), v(1, life + 1)).await;
                assert_eq!(read(&p, strip(i), ADOPTED).await.unwrap(), bytes);
            }
            assert_eq!(p.verify().await.unwrap().damaged, []);
            if life == 1 {
                p.close().await.unwrap();
            }
        }
    });
    println!("worked without io_uring");
}

#[test]
fn without_io_uring_everything_works() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "without_io_uring_child", "--ignored", "--nocapture"])
            .env("PDISK_TEST_ERRNO", errno.to_string())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let worked = output.status.success() && said.contains("worked without io_uring");
        assert!(worked, "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn too_little_registered_memory_leaves_one_queue() {
    let node = start(IoConfig { num_io_queues: 8, io_dma_mib: 63, ..IoConfig::default() });
    if node.engine() == Engine::Psync {
        assert_eq!(node.queues(), 8, "psync registers nothing");
        return;
    }
    assert_eq!(node.queues(), 1);
    let why = node.why_one_queue().unwrap();
    assert!(why.contains("8 I/O queues need io_dma_mib=64, there are 63"), "{why}");
    let told = base::events::events().after(0);
    assert!(told.iter().any(|e| e.name == "io_one_queue" && e.text == why), "{told:?}");
    let node = start(IoConfig { num_io_queues: 8, io_dma_mib: 64, ..IoConfig::default() });
    assert_eq!((node.queues(), node.why_one_queue()), (8, None));
}

/// Strips 0..64 of one unit each.
async fn filled(dir: &Path, node: &IoNode) -> Pdisk {
    create(dir, 16 << 20);
    let options = OpenOptions { fast_write_limit: 0, ..OpenOptions::new(CLUSTER, PDISK) };
    let p = Pdisk::open(dir, options, node).unwrap().0;
    let batch = (0..64).map(|i| whole(strip(i), v(1, 1), &content(i, 1))).collect();
    assert!(p.prepare(batch).await.iter().all(Result::is_ok));
    p
}

async fn read_all(p: &Pdisk) {
    let one = |i| ReadStrip {
        strip: strip(i),
        version: ReadVersion::Exactly(v(1, 1)),
        ranges: vec![Range { offset: 0, len: 4096 }],
    };
    for (i, answer) in p.read((0..64).map(one).collect()).await.into_iter().enumerate() {
        assert_eq!(answer.unwrap().1, content(i as u64, 1));
    }
}

/// A pdisk uses as many queues as it may, a strip always the same one.
#[tokio::test]
async fn a_strip_keeps_its_queue() {
    for engine in [EngineChoice::Auto, EngineChoice::Psync] {
        let dir = tempfile::tempdir().unwrap();
        let node = start(IoConfig { engine, num_io_queues: 4, ..IoConfig::default() });
        filled(dir.path(), &node).await.close().await.unwrap();
        for queues_per_pdisk in [1, 3, 4] {
            let options = OpenOptions { queues_per_pdisk, ..OpenOptions::new(CLUSTER, PDISK) };
            let p = Pdisk::open(dir.path(), options, &node).unwrap().0;
            let done = || node.queue_stats().iter().map(|q| q.requests).collect::<Vec<_>>();
            let used = |before: Vec<u64>| done().iter().zip(before).filter(|(now, b)| **now > *b).count();
            let before = done();
            read_all(&p).await;
            assert_eq!(used(before), queues_per_pdisk as usize);
            for i in 0..8 {
                let before = done();
                for _ in 0..5 {
                    assert!(read(&p, strip(i), ReadVersion::Exactly(v(1, 1))).await.is_ok());
                }
                assert_eq!(used(before), 1, "strip {i} of {queues_per_pdisk} queues");
            }
            p.close().await.unwrap();
        }
    }
}

#[tokio::test]
async fn the_depth_changes_live() {
    for engine in [EngineChoice::Auto, EngineChoice::Psync] {
        let dir = tempfile::tempdir().unwrap();
        let mut config = IoConfig { engine, num_io_queues: 1, ..IoConfig::default() };
        let node = start(config.clone());
        let p = filled(dir.path(), &node).await;
        for depth in [1, 3, 64, 2] {
            config.queue_depth = depth;
            node.reconfigure(&config).unwrap();
            let before = node.queue_stats()[0].requests;
            // While it is under way as well.
            let (more, other) = (node.clone(), IoConfig { queue_depth: depth, ..config.clone() });
            let changing = tokio::task::spawn_blocking(move || more.reconfigure(&other));
            read_all(&p).await;
            changing.await.unwrap().unwrap();
            let stats = node.queue_stats()[0];
            assert!(
                stats.requests >= before + 64 && stats.deepest <= depth.into(),
                "depth {depth}: {stats:?}"
            );
        }
        config.queue_depth = 1025;
        assert!(matches!(node.reconfigure(&config), Err(PdiskError::BadOption { name: "queue_depth", .. })));
    }
}

#[tokio::test]
async fn completions_are_gathered_by_count_and_by_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = IoConfig { num_io_queues: 1, ..IoConfig::default() };
    let node = start(config.clone());
    if node.engine() == Engine::Psync {
        return;
    }
    let p = filled(dir.path(), &node).await;
    // By count: a batch of 64 ends in few rounds, however they come in.
    (config.io_coalesce_count, config.io_coalesce_us) = (64, 100_000);
    node.reconfigure(&config).unwrap();
    let (before, begun) = (node.queue_stats()[0], Instant::now());
    for _ in 0..20 {
        read_all(&p).await;
    }
    let after = node.queue_stats()[0];
    let (requests, rounds) = (after.requests - before.requests, after.rounds - before.rounds);
    assert_eq!(requests, 20 * 64);
    // And one more whenever so much time has passed: a busy disk may take longer for a batch.
    let by_time = begun.elapsed().as_millis() as u64 / 100;
    assert!(rounds <= 20 * 4 + by_time, "{rounds} rounds, {by_time} by time");
    // By time: what is fewer than the count is answered all the same.
    config.io_coalesce_us = 1000;
    node.reconfigure(&config).unwrap();
    for i in 0..20 {
        assert_eq!(read(&p, strip(i), ReadVersion::Exactly(v(1, 1))).await.unwrap(), content(i, 1));
    }
    config.io_coalesce_count = 0;
    assert!(node.reconfigure(&config).is_err(), "a value out of range is refused");
}

/// A closed pdisk's files leave the rings' tables: the file system below can be unmounted.
#[tokio::test]
async fn closed_files_are_let_go() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(IoConfig::default());
    let p = filled(dir.path(), &node).await;
    read_all(&p).await;
    let data = fs::OpenOptions::new().read(true).write(true).open(dir.path().join("data")).unwrap();
    // A write lease is given only to who alone has the file open.
    let alone = || {
        // SAFETY: fcntl takes no pointers here.
        let lease = |kind: i32| unsafe { libc::fcntl(data.as_raw_fd(), libc::F_SETLEASE, kind) == 0 };
        lease(libc::F_WRLCK) && lease(libc::F_UNLCK)
    };
    assert!(!alone());
    p.close().await.unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while !alone() {
        assert!(Instant::now() < end, "the rings keep the file open");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (p, _) = open(dir.path(), &node);
    read_all(&p).await;
}
