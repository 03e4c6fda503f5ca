//! The manager's files are cut, older, or damaged while the cluster is down: `up` says so and serves nothing, `manager check`
//! says what is wrong, and `manager accept-loss` goes on without it. A manager that runs says what it finds.
#![allow(clippy::unwrap_used, clippy::ptr_arg)] // one kind of function cuts and changes

mod common;

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use common::{Cluster, ok, refused, until};

fn make(mnt: &Path, names: std::ops::Range<u32>) {
    for n in names {
        let mut file = fs::File::create(mnt.join(format!("name{n}"))).unwrap();
        file.write_all(n.to_string().as_bytes()).unwrap();
        file.sync_all().unwrap();
    }
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Kills everything, so that what was acknowledged last stands only in the journal.
fn kill_all(cluster: &Cluster) {
    cluster.kill(|_| true);
    let _ = rustix::mount::unmount(cluster.mnt(), rustix::mount::UnmountFlags::DETACH);
}

fn up_refused(dir: &Path, words: &[&str]) {
    let error = refused(&["up", "--detach", "--dir", dir.to_str().unwrap()]);
    assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
}

/// Puts `bytes` in the place of a file.
type Tamper = (&'static str, fn(&mut Vec<u8>), &'static [&'static str]);

#[test]
fn what_was_acknowledged_and_is_not_there_is_said_before_anything_is_served() {
    let options = ["--nodes", "1", "--pdisks", "1", "--code", "1way", "--pdisk-size", "64m"];
    let cluster = Cluster::up(&options);
    let (dir, mnt) = (cluster.dir(), cluster.mnt());
    let name = dir.to_str().unwrap();
    let (store, kept) = (dir.join("manager"), dir.with_file_name("kept"));
    make(&mnt, 0..60);
    kill_all(&cluster);
    let older: PathBuf = dir.join("older");
    copy_all(&store, &older);
    cluster.start();
    make(&mnt, 60..120);
    kill_all(&cluster);
    copy_all(&store, &kept);

    fn cut(bytes: &mut Vec<u8>) {
        bytes.truncate(20 * 4096);
    }
    fn zeros(bytes: &mut Vec<u8>) {
        bytes.fill(0);
    }
    // Behind it stand records of the round before.
    fn last_record(bytes: &mut Vec<u8>) {
        let number = |at: usize, len: usize| {
            bytes[at..at + len].iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte))
        };
        let (mut at, mut last) = (4096, (0, 0));
        while number(at, 4) == 0x4a57_5252 && (last.1 == 0 || number(at + 8, 8) == last.1 + 1) {
            last = (at, number(at + 8, 8));
            at += (number(at + 4, 4) as usize + 20).next_multiple_of(4096);
        }
        bytes[last.0 + 24] ^= 1;
    }
    fn head(bytes: &mut Vec<u8>) {
        bytes[3] ^= 1;
    }
    let tampers: [Tamper; 6] = [
        ("store.journal", cut, &["store.journal", "are lost", "accept-loss"]),
        ("store.journal", |bytes| bytes.truncate(4096), &["store.journal", "are lost"]),
        ("store.journal", zeros, &["store.journal", "accept-loss"]),
        ("store.journal", last_record, &["store.journal", "1 are lost"]),
        ("store.mark", zeros, &["store.mark", "accept-loss"]),
        ("store.redb", head, &["store.redb", "accept-loss"]),
    ];
    for (file, tamper, words) in tampers {
        let mut bytes = fs::read(kept.join(file)).unwrap();
        tamper(&mut bytes);
        fs::write(store.join(file), &bytes).unwrap();
        up_refused(&dir, words);
        until("nothing runs", || cluster.processes().is_empty());
        refused(&["manager", "check", "--dir", name]);
        copy_all(&kept, &store);
    }
    // Older copies: of the journal, and of the table with its journal.
    fs::copy(older.join("store.journal"), store.join("store.journal")).unwrap();
    up_refused(&dir, &["store.journal", "accept-loss"]);
    fs::copy(older.join("store.redb"), store.join("store.redb")).unwrap();
    up_refused(&dir, &["store.journal", "are lost"]);
    copy_all(&kept, &store);
    // As it was it is whole.
    ok(&["manager", "check", "--dir", name]);
    cluster.start();
    assert!((0..120).all(|n| fs::read_to_string(mnt.join(format!("name{n}"))).unwrap() == n.to_string()));
    make(&mnt, 120..150);
    kill_all(&cluster);

    // Given up.
    let journal = fs::OpenOptions::new().write(true).open(store.join("store.journal")).unwrap();
    journal.set_len(8 * 4096).unwrap();
    let unsure = refused(&["manager", "accept-loss", "--dir", name]);
    assert!(unsure.contains("--yes") && unsure.contains("manager restore"), "{unsure}");
    let told = ok(&["manager", "accept-loss", "--dir", name, "--yes"]);
    assert!(told.contains("are lost"), "{told}");
    ok(&["manager", "check", "--dir", name]);
    cluster.start();
    assert!((0..120).all(|n| fs::read_to_string(mnt.join(format!("name{n}"))).unwrap() == n.to_string()));
    make(&mnt, 200..210);
    assert_eq!(fs::read_to_string(mnt.join("name205")).unwrap(), "205");
    cluster.down();
    ok(&["manager", "check", "--dir", name]);
}

#[test]
fn an_older_store_ends_when_a_server_has_seen_more() {
    let options = ["--nodes", "1", "--pdisks", "1", "--code", "1way", "--pdisk-size", "64m"];
    let cluster = Cluster::up(&options);
    let dir = cluster.dir();
    let (store, older) = (dir.join("manager"), dir.join("older"));
    cluster.kill(|name| name == "manager");
    copy_all(&store, &older);
    cluster.start_server("manager");
    // A session more is a map more.
    let again = dir.with_file_name("again");
    fs::create_dir(&again).unwrap();
    let name = dir.to_str().unwrap();
    ok(&["mount", "--dir", name, "fs1", again.to_str().unwrap()]);
    // What it writes the server takes once it knows the session, and so has that map.
    fs::write(again.join("later"), vec![1; 1 << 20]).unwrap();
    ok(&["umount", again.to_str().unwrap()]);
    cluster.kill(|name| name == "manager");
    copy_all(&older, &store);
    cluster.start_server("manager");
    let says = |log: fs::DirEntry| {
        fs::read_to_string(log.path()).is_ok_and(|text| text.contains("is an older copy"))
    };
    until("it is told", || fs::read_dir(dir.join("log")).unwrap().flatten().any(says));
    until("the manager ends", || !cluster.processes().iter().any(|(name, _)| name == "manager"));
    kill_all(&cluster);
}
