//! kill -9 while versions are written: what was acknowledged is there, every strip is whole. And what the killed process has left
//! in the kernel keeps the pdisk from being opened until it has ended.
#![allow(clippy::unwrap_used)]

mod common;

use std::{
    collections::HashMap,
    fs,
    io::{BufRead, BufReader},
    os::fd::BorrowedFd,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use common::*;
use pdisk::{EngineChoice, OpenOptions, Pdisk, PdiskError};
use wire::strip::{ReadVersion, StripRefusal};

const STRIPS: u64 = 8;

/// Sizes alternate between the log (small) and new units (large).
fn bytes_of(strip: u64, seq: u64) -> Vec<u8> {
    content(strip * 1_000_000 + seq, if (strip + seq).is_multiple_of(2) { 3 } else { 40 })
}

/// Not a test by itself: the process that is killed. Prints each acknowledged version.
#[test]
#[ignore = "run by kill_9_loses_nothing_acknowledged"]
fn writer() {
    let Some(dir) = std::env::var_os("PDISK_KILL_DIR") else { return };
    let engine =
        if std::env::var_os("PDISK_KILL_PSYNC").is_some() { EngineChoice::Psync } else { EngineChoice::Auto };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (p, _) = open(dir.as_ref(), &node(engine));
        for s in 0..STRIPS {
            let p = p.clone();
            tokio::spawn(async move {
                let now = p.state(vec![strip(s)]).await.unwrap().pop().unwrap();
                let mut seq = now.prepared.or(now.adopted).map_or(0, |i| i.version.seq);
                loop {
                    let mut next = whole(strip(s), v(1, seq + 1), &bytes_of(s, seq + 1));
                    next.0.adopt = Some(v(1, seq));
                    prepare(&p, next).await.unwrap();
                    seq += 1;
                    println!("ack {s} {seq}");
                }
            });
        }
        // They run until the process is killed.
        std::future::pending::<()>().await;
    });
}

#[test]
fn kill_9_loses_nothing_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), 16 << 20);
    let mut acknowledged = [0u64; STRIPS as usize];
    for life in 0..6u64 {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "writer", "--ignored", "--nocapture"]).env("PDISK_KILL_DIR", dir.path());
        if life % 2 == 1 {
            command.env("PDISK_KILL_PSYNC", "1");
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut left = 40 + 30 * life;
        let mut killed = false;
        // After the kill the lines that were written before it are still in the pipe.
        while let Some(Ok(line)) = lines.next() {
            let words: Vec<&str> = line.split(' ').collect();
            if let ["ack", s, seq] = words[..]
                && let (Ok(s), Ok(seq)) = (s.parse::<usize>(), seq.parse::<u64>())
            {
                acknowledged[s] = acknowledged[s].max(seq);
                left -= 1;
                if left == 0 && !killed {
                    child.kill().unwrap();
                    killed = true;
                }
                left = left.max(1);
            }
        }
        assert!(killed, "the writer ended by itself");
        child.wait().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(check(dir.path(), &acknowledged));
    }
}

async fn check(dir: &std::path::Path, acknowledged: &[u64]) {
    let (p, report) = open(dir, &node(EngineChoice::Auto));
    assert!(report.damaged.is_none(), "{report:?}");
    assert_eq!(p.verify().await.unwrap().damaged, []);
    for (s, acknowledged) in (0..STRIPS).zip(acknowledged) {
        let state = p.state(vec![strip(s)]).await.unwrap().pop().unwrap();
        let newest = state.prepared.as_ref().or(state.adopted.as_ref()).map_or(0, |i| i.version.seq);
        assert!(newest >= *acknowledged, "strip {s}: {newest} is here, {acknowledged} was acknowledged");
        for info in state.prepared.iter().chain(&state.adopted) {
            let read = read(&p, strip(s), ReadVersion::Exactly(info.version)).await;
            assert_eq!(read, Ok::<_, StripRefusal>(bytes_of(s, info.version.seq)), "strip {s}");
        }
    }
}

/// What is written to while a pdisk is open.
const WRITTEN: [&str; 5] = ["data", "log", "crc", "index.0", "index.1"];

/// A program that has an open file of a process as its own, as a request of a ring has that is under way in the kernel. Ends
/// when it is dropped.
struct Holder(String);

impl Drop for Holder {
    fn drop(&mut self) {
        Command::new("sh").args(["-c", &format!("kill -9 {}", self.0)]).status().unwrap();
    }
}

/// Not a test by itself: the process that is killed. Gives every file of its pdisk that it writes to a holder, and prints both.
#[test]
#[ignore = "run by what_a_killed_process_has_under_way_keeps_the_pdisk_closed"]
fn opener() {
    let Some(dir) = std::env::var_os("PDISK_KILL_DIR") else { return };
    let dir: &Path = dir.as_ref();
    let _pdisk = open(dir, &node(EngineChoice::Auto));
    for entry in fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let Ok(path) = fs::read_link(entry.path()) else { continue };
        let name = path.strip_prefix(dir).ok().and_then(Path::to_str);
        let Some(name) = name.filter(|name| WRITTEN.contains(name)) else { continue };
        let number = entry.file_name().to_str().unwrap().parse().unwrap();
        // SAFETY: it is open as long as the pdisk is.
        let file = unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned().unwrap();
        let mut program = Command::new("sleep");
        program.arg("600").stdin(file).stdout(Stdio::null()).stderr(Stdio::null());
        println!("\nheld {name} {}", program.spawn().unwrap().id());
    }
    loop {
        std::thread::park(); // until it is killed
    }
}

#[test]
fn what_a_killed_process_has_under_way_keeps_the_pdisk_closed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    create(&dir, 16 << 20);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "opener", "--ignored", "--nocapture"]).env("PDISK_KILL_DIR", &dir);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut holders = HashMap::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        if let ["held", name, process] = line.unwrap().split(' ').collect::<Vec<_>>()[..] {
            holders.insert(name.to_owned(), Holder(process.into()));
        }
        if holders.len() == WRITTEN.len() {
            break;
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(holders.len(), WRITTEN.len());
    let node = node(EngineChoice::Auto);
    let end = Instant::now() + Duration::from_secs(60);
    while !holders.is_empty() {
        let at_once = OpenOptions { left_wait: Duration::ZERO, ..options() };
        match Pdisk::open(&dir, at_once, &node) {
            // One that was ended just now may have it for another moment.
            Err(PdiskError::LeftUnderWay { file }) => {
                drop(holders.remove(file.file_name().unwrap().to_str().unwrap()))
            }
            other => panic!("opened, or not, while {:?} are held: {other:?}", holders.keys()),
        }
        assert!(Instant::now() < end);
    }
    // What ends in time is waited for.
    open(&dir, &node);
}
