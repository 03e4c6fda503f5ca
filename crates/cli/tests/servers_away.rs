//! All servers are away for longer than an operation's deadline, and come back: a mount that reads, whose files another one wants
//! meanwhile, keeps its session, and gives up what is wanted.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use common::{ropewalk, until};
use mounts::Mounts;

/// Far beyond everything that is waited for here.
const PATIENCE: Duration = Duration::from_secs(240);
/// Each of a file of its own.
const READERS: usize = 60;
const FILE: usize = 2 << 20;
/// Longer than a session had for giving up what is wanted, which was as long as its reads have.
const AWAY: f64 = 75.0;
const SERVERS: [&str; 3] = ["n1", "n2", "n3"];

/// Pages of the kernel's that a program reads.
const RECORD: usize = 4096;
const BLOCK: usize = 1 << 20;

/// Of operations, where it is not the default.
const DEADLINE: Duration = Duration::from_secs(5);

fn row(mounts: &Mounts, path: &Path) -> serde_json::Value {
    let path = path.canonicalize().unwrap();
    let clients = mounts.cluster.json(&["clients", "list"]);
    let ours = |client: &&serde_json::Value| client["mount"] == path.to_str().unwrap();
    clients.as_array().unwrap().iter().find(ours).cloned().unwrap_or_default()
}

#[test]
fn a_mount_that_reads_keeps_its_session_while_servers_are_away() {
    let mounts = Mounts::in_memory(2);
    let name = |n: usize| format!("f{n}");
    for n in 0..READERS {
        fs::write(mounts.at(0, &name(n)), vec![n as u8; FILE]).unwrap();
        File::open(mounts.at(0, &name(n))).unwrap().sync_all().unwrap();
    }
    // The reader holds the right to read each of them, and has only a little of it in memory.
    for n in 0..READERS {
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(mounts.at(1, &name(n)));
        direct.unwrap().read_exact_at(&mut [0; 4096], 0).unwrap();
    }
    let reader = mounts.all[1].clone();
    let session = row(&mounts, &reader)["session"].clone();
    assert!(session.is_u64());

    mounts.cluster.kill(|name| SERVERS.contains(&name));
    let over = AtomicBool::new(false);
    let gone = Instant::now();
    let lasted = thread::scope(|scope| {
        let (mounts, over) = (&mounts, &over);
        // Two programs for each file: one reads it by one mount, one writes it by the other, each again and again.
        let readers: Vec<_> = (0..READERS)
            .map(|n| {
                scope.spawn(move || {
                    let mut tries = Vec::new();
                    loop {
                        let begun = Instant::now();
                        let read = fs::read(mounts.at(1, &name(n)));
                        tries.push((
                            begun.elapsed(),
                            read.as_ref().map(Vec::len).map_err(|e| e.raw_os_error()),
                        ));
                        let known = |byte: &u8| usize::from(*byte) % 100 == n;
                        let whole = |read: Vec<u8>| read.len() == FILE && read.iter().all(known);
                        assert!(read.map_or(true, whole), "bytes of nobody");
                        if over.load(SeqCst) {
                            return tries;
                        }
                        thread::sleep(Duration::from_millis(100));
                    }
                })
            })
            .collect();
        thread::sleep(Duration::from_secs(2)); // they are to be under way; one that comes later asks all the same
        let writers: Vec<_> = (0..READERS)
            .map(|n| {
                scope.spawn(move || {
                    let end = Instant::now() + PATIENCE;
                    let write = || {
                        let file = OpenOptions::new().write(true).open(mounts.at(0, &name(n)))?;
                        file.write_all_at(&vec![n as u8 + 100; FILE], 0)?;
                        file.sync_all()
                    };
                    while let Err(error) = write() {
                        assert!(Instant::now() < end, "{error}");
                        thread::sleep(Duration::from_millis(100));
                    }
                })
            })
            .collect();
        let mut wanted = 0.0f64;
        loop {
            let row = row(mounts, &reader);
            if row["session"] != session {
                break;
            }
            wanted = wanted.max(row["oldest_recall_s"].as_f64().unwrap());
            if wanted > AWAY {
                let dir = mounts.cluster.dir();
                let said = ropewalk(&["health", "--dir", dir.to_str().unwrap()]);
                let said = String::from_utf8(said.stdout).unwrap();
                assert!(said.contains("has not given up what others want for"), "{said}");
                break;
            }
            assert!(gone.elapsed() < PATIENCE, "what it holds is wanted since {wanted} s");
            thread::sleep(Duration::from_millis(500));
        }
        println!("wanted for {wanted} s, servers away for {:?}", gone.elapsed());
        SERVERS.iter().for_each(|name| mounts.cluster.start_server(name));
        mounts.cluster.wait_all_ok(PATIENCE);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        over.store(true, SeqCst);
        readers.into_iter().map(|reader| reader.join().unwrap()).collect::<Vec<_>>()
    });
    for (n, tries) in lasted.iter().enumerate() {
        let long = tries.iter().filter(|(lasted, _)| *lasted > Duration::from_secs(1));
        println!("{n}: {:?}", long.collect::<Vec<_>>());
    }
    assert_eq!(
        row(&mounts, &reader)["session"],
        session,
        "the mount that reads was fenced\n{}",
        mounts.cluster.logs()
    );
    until("the reader sees what was written", || {
        (0..READERS)
            .all(|n| fs::read(mounts.at(1, &name(n))).is_ok_and(|read| read == vec![n as u8 + 100; FILE]))
    });
}

/// Its programs try again and again, and have pages locked in the kernel nearly all the time.
#[test]
fn readers_that_try_again_keep_nobody_from_a_file_for_ever() {
    let cluster = Mounts::memory();
    cluster.set_up(&[&format!("operationDeadline={}s", DEADLINE.as_secs())]);
    let mounts = Mounts::over(cluster, 2);
    fs::write(mounts.at(0, "f"), vec![1; 32 * BLOCK]).unwrap();
    File::open(mounts.at(0, "f")).unwrap().sync_all().unwrap();
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(mounts.at(1, "f"));
    direct.unwrap().read_exact_at(&mut [0; RECORD], 0).unwrap();
    let session = row(&mounts, &mounts.all[1])["session"].clone();
    // The kernel reads ahead for none of them.
    let open = || {
        let file = File::open(mounts.at(1, "f")).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
        file
    };
    let files: Vec<File> = (0..32).map(|_| open()).collect();
    let writer = OpenOptions::new().write(true).open(mounts.at(0, "f")).unwrap();

    mounts.cluster.kill(|name| SERVERS.contains(&name));
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (mounts, over, files) = (&mounts, &over, &files);
        for (n, file) in files.iter().enumerate() {
            scope.spawn(move || {
                // One after the other: when one fails, others have pages locked.
                thread::sleep(DEADLINE * n as u32 / 32);
                for at in (0..BLOCK / RECORD).cycle().skip(1).take_while(|_| !over.load(SeqCst)) {
                    let _ = file.read_exact_at(&mut [0; RECORD], (n * BLOCK + at * RECORD) as u64);
                }
            });
        }
        thread::sleep(DEADLINE);
        let begun = Instant::now();
        let mut tries = 0;
        let end = Instant::now() + PATIENCE / 2;
        let got = loop {
            tries += 1;
            if writer.write_all_at(&vec![2; BLOCK], 0).is_ok() {
                break true;
            }
            if Instant::now() > end {
                break false;
            }
        };
        println!("written at the try {tries}, after {:?}", begun.elapsed());
        over.store(true, SeqCst);
        assert!(got, "others have it still\n{}", mounts.cluster.logs());
    });
    SERVERS.iter().for_each(|name| mounts.cluster.start_server(name));
    mounts.cluster.wait_all_ok(PATIENCE);
    assert_eq!(row(&mounts, &mounts.all[1])["session"], session, "{}", mounts.cluster.logs());
    until("what was written is stored", || File::open(mounts.at(0, "f")).unwrap().sync_all().is_ok());
    until("the reader sees it", || {
        fs::read(mounts.at(1, "f"))
            .is_ok_and(|read| read[..BLOCK] == vec![2; BLOCK] && read[BLOCK..] == vec![1; 31 * BLOCK])
    });
}
