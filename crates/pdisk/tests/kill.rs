//! kill -9 while versions are written: what was acknowledged is there, every strip is whole.
#![allow(clippy::unwrap_used)]

mod common;

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

use common::*;
use pdisk::EngineChoice;
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
