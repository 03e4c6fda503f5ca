//! Stories: what no other pdisk has is gone for good, and is given up. What is lost is said, before and afterwards; it is an error to
//! read it, never zeros; everything else goes on, and when the files that have lost something are gone all is well again.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

mod common;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::PathBuf,
    time::Duration,
};

use common::{Cluster, Random, heard, ok, refused, ropewalk, seed, until};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(120);
const BLOCK: usize = 256 << 10;

/// Files by their names in the mount.
type Files = BTreeMap<String, Vec<u8>>;

/// Files of which none fits an inode, of some blocks each; `full`: the last of these as well is as long as it can be.
fn write(cluster: &Cluster, count: u64, full: bool, random: &mut Random) -> Files {
    let mut files = Files::new();
    for i in 0..count {
        let len = 100_000 + random.below(1_000_000) as usize;
        let mut bytes = vec![0; if full { len.next_multiple_of(BLOCK) } else { len }];
        random.fill(&mut bytes);
        let name = format!("f{i}");
        let file = File::create(cluster.mnt().join(&name)).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        file.sync_all().unwrap();
        files.insert(name, bytes);
    }
    files
}

/// The files that `pool lost` names, with how many blocks each.
fn named(cluster: &Cluster) -> BTreeMap<String, u64> {
    let dir = cluster.dir();
    let said = heard(|| ropewalk(&["pool", "lost", "--json", "--dir", dir.to_str().unwrap()]));
    let rows: Value = serde_json::from_slice(&said.stdout).unwrap();
    let row = |row: &Value| (row["path"].as_str().unwrap().to_owned(), row["lost_blocks"].as_u64().unwrap());
    let rows: BTreeMap<String, u64> = rows.as_array().unwrap().iter().map(row).collect();
    assert_eq!(said.status.success(), rows.is_empty(), "{said:?}");
    rows
}

/// The blocks that cannot be read. All others are as they were written.
fn lost_blocks(cluster: &Cluster, files: &Files) -> Vec<(String, usize)> {
    let mut lost = Vec::new();
    for (name, bytes) in files {
        let file = File::open(cluster.mnt().join(name)).unwrap();
        for (block, wanted) in bytes.chunks(BLOCK).enumerate() {
            let mut found = vec![0; wanted.len()];
            match file.read_exact_at(&mut found, (block * BLOCK) as u64) {
                Ok(()) => assert!(found == wanted, "block {block} of {name} is not what was written"),
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{name}: {error}");
                    lost.push((name.clone(), block));
                }
            }
        }
    }
    lost
}

/// The files of which blocks cannot be read, with how many each.
fn unreadable(cluster: &Cluster, files: &Files) -> BTreeMap<String, u64> {
    let mut lost = BTreeMap::new();
    for (name, _) in lost_blocks(cluster, files) {
        *lost.entry(name).or_default() += 1;
    }
    lost
}

fn health(cluster: &Cluster) -> (bool, Value) {
    let dir = cluster.dir();
    let said = heard(|| ropewalk(&["health", "--json", "--dir", dir.to_str().unwrap()]));
    (said.status.success(), serde_json::from_slice(&said.stdout).unwrap())
}

fn command(cluster: &Cluster, words: &[&str]) -> String {
    let dir = cluster.dir();
    ok(&[words, &["--dir", dir.to_str().unwrap()]].concat())
}

fn is_refused(cluster: &Cluster, words: &[&str]) -> String {
    let dir = cluster.dir();
    refused(&[words, &["--dir", dir.to_str().unwrap()]].concat())
}

/// Gives up the last copies, as soon as the manager knows that their server is gone; what the command says.
fn given_up(cluster: &Cluster, pdisk: &str) -> String {
    let dir = cluster.dir();
    let mut said = String::new();
    until("it is given up", || {
        let give = || ropewalk(&["pdisk", "fail", pdisk, "--accept-loss", "--dir", dir.to_str().unwrap()]);
        let output = heard(give);
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() || why.contains("this manager has just started"), "{why}");
        said = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success()
    });
    said
}

fn word(cluster: &Cluster, pdisk: &str) -> String {
    let list = cluster.json(&["pdisk", "list"]);
    let its = list.as_array().unwrap().iter().find(|p| p["name"] == pdisk).map(|p| p["state"].clone());
    its.and_then(|state| state.as_str().map(str::to_owned)).unwrap_or_default()
}

/// The command line, `health` and `rebuild status` say how many blocks are lost.
fn counted(cluster: &Cluster, blocks: u64) {
    until("the lost blocks are counted", || health(cluster).1["lost_blocks"] == blocks);
    let status = cluster.json(&["rebuild", "status"]);
    assert_eq!(status[0]["lost_blocks"], blocks, "{status:#}");
    let (well, said) = health(cluster);
    let remark = format!("{blocks} blocks of ");
    let told = said["remarks"].as_array().unwrap().iter().any(|r| r.as_str().unwrap().contains(&remark));
    assert!(!well && told, "{said:#}");
    let status = command(cluster, &["rebuild", "status"]);
    assert!(status.contains(&remark), "{status}");
}

/// Another start, of what there is by now.
fn again(cluster: &Cluster) {
    cluster.down();
    let mnt = cluster.mnt();
    command(cluster, &["up", "--detach", "--mount", mnt.to_str().unwrap()]);
}

/// Of a pool without redundancy a machine burns. Nothing of it comes back, and nothing waits for it for ever.
#[test]
fn a_machine_with_the_only_copies_burns() {
    let options = ["--nodes", "3", "--pdisks", "1", "--code", "1way", "--pdisk-size", "128m"];
    let cluster = Cluster::prepare(&[&options[..], &["--block-size", "256k"]].concat());
    cluster.set_up(&["leaseDuration=3s", "leaseRenewInterval=500ms", "operationDeadline=5s"]);
    cluster.start();
    let files = write(&cluster, 24, false, &mut Random(seed()));
    assert!(named(&cluster).is_empty());
    cluster.kill(|name| name == "n2");
    fs::remove_dir_all(cluster.dir().join("nodes/n2")).unwrap();
    // While it may be there, or without being told so, it is not given up.
    let said = is_refused(&cluster, &["pdisk", "fail", "n2p1"]);
    assert!(said.contains("n2p1 holds the last copies of"), "{said}");
    until("n2p1 is out of reach", || cluster.json(&["pool", "status"])[0]["unreadable"] != 0);
    assert_eq!(word(&cluster, "n2p1"), "ok", "the last copies count");
    let (_, said) = health(&cluster);
    assert!(said["remarks"].to_string().contains("ropewalk pdisk fail n2p1 --accept-loss"), "{said:#}");
    let said = is_refused(&cluster, &["pdisk", "fail", "n2p1"]);
    assert!(said.contains("--accept-loss"), "{said}");
    let lost = named(&cluster);
    println!("{} of {} files are lost", lost.len(), files.len());
    assert!(!lost.is_empty() && lost.len() < files.len());

    let said = given_up(&cluster, "n2p1");
    assert!(said.contains("`ropewalk pool lost` names the files"), "{said}");
    command(&cluster, &["rebuild", "status", "--watch"]);
    until("n2p1 holds nothing any more", || word(&cluster, "n2p1") == "replace");
    assert_eq!(named(&cluster), lost);
    let blocks = lost.values().sum();
    counted(&cluster, blocks);
    let events = command(&cluster, &["events"]);
    assert!(events.contains("groups have lost more strips than 1way bears"), "{events}");
    command(&cluster, &["node", "remove", "n2"]);

    // Nothing of it is in memory now.
    again(&cluster);
    assert_eq!(unreadable(&cluster, &files), lost);
    assert_eq!(named(&cluster), lost);
    counted(&cluster, blocks);
    // What is lost of a block is not zeros when a part of it is written, and is whole again when all of it is. One with which its file
    // ends is cut off before.
    let mut left = lost.clone();
    for at_end in [false, true] {
        let of_kind = lost_blocks(&cluster, &files)
            .into_iter()
            .find(|(name, block)| ((block + 1) * BLOCK > files[name].len()) == at_end);
        let (name, block) = of_kind.unwrap();
        let file = File::options().write(true).open(cluster.mnt().join(&name)).unwrap();
        let (at, bytes) = (block * BLOCK, &files[&name]);
        let outcome = file.write_all_at(&[7; 4096], at as u64).and_then(|()| file.sync_all());
        assert_eq!(outcome.map_err(|error| error.raw_os_error()), Err(Some(libc::EIO)));
        drop(file);
        // What could not be stored is dropped: an orderly end would try for long.
        drop(ropewalk(&["umount", "--force", cluster.mnt().to_str().unwrap()]));
        again(&cluster);
        assert_eq!(unreadable(&cluster, &files), left, "a part of a lost block was written");
        let file = File::options().write(true).open(cluster.mnt().join(&name)).unwrap();
        if at_end {
            file.set_len(at as u64).unwrap();
        }
        file.write_all_at(&bytes[at..bytes.len().min(at + BLOCK)], at as u64).unwrap();
        file.sync_all().unwrap();
        drop(file);
        left.entry(name).and_modify(|blocks| *blocks -= 1);
        left.retain(|_, blocks| *blocks > 0);
        until("the block is whole again", || named(&cluster) == left);
    }
    again(&cluster);
    assert_eq!(unreadable(&cluster, &files), left);
    all_is_well_without(&cluster, &files, left.keys());
}

/// Removes files that have lost something.
fn all_is_well_without<'a>(cluster: &Cluster, files: &Files, lost: impl Iterator<Item = &'a String>) {
    let mut kept = files.clone();
    for name in lost {
        fs::remove_file(cluster.mnt().join(name)).unwrap();
        kept.remove(name);
    }
    until("all is well again", || health(cluster).0);
    let (_, said) = health(cluster);
    assert_eq!(said["lost_blocks"], 0, "{said:#}");
    assert!(named(cluster).is_empty());
    again(cluster);
    cluster.wait_all_ok(PATIENCE);
    until("all is well after another start", || health(cluster).0);
    assert!(unreadable(cluster, &kept).is_empty());
}

/// More pdisks of `4+2p` are gone for good than it bears. What can be made anew is; when the files that have lost something are gone
/// nothing holds the lost pdisks up any more.
#[test]
fn more_pdisks_are_given_up_than_the_code_bears() {
    let options = ["--nodes", "3", "--pdisks", "3", "--code", "4+2p", "--pdisk-size", "128m"];
    let cluster = Cluster::prepare(&[&options[..], &["--block-size", "256k"]].concat());
    cluster.set_up(&["leaseDuration=3s", "leaseRenewInterval=500ms", "operationDeadline=5s"]);
    cluster.start();
    let files = write(&cluster, 40, true, &mut Random(seed()));
    cluster.down();
    let gone = ["n1p1", "n2p1", "n3p1"];
    for node in 1..=3 {
        let place: PathBuf = cluster.dir().join(format!("nodes/n{node}/pdisk1"));
        fs::remove_dir_all(place).unwrap();
    }
    cluster.start();
    until("some groups cannot be read", || cluster.json(&["pool", "status"])[0]["unreadable"] != 0);
    let lost = named(&cluster);
    println!("{} of {} files are lost", lost.len(), files.len());
    assert!(!lost.is_empty() && lost.len() < files.len());
    for pdisk in &gone[..2] {
        command(&cluster, &["pdisk", "fail", pdisk]);
    }
    let said = is_refused(&cluster, &["pdisk", "fail", gone[2]]);
    assert!(said.contains("--accept-loss"), "{said}");
    given_up(&cluster, gone[2]);
    // Groups that lack one or two are made anew; of those that lack three what is lost is waited for, and not by who watches.
    let blocks = lost.values().sum();
    counted(&cluster, blocks);
    let said = command(&cluster, &["rebuild", "status", "--watch"]);
    assert!(said.contains("lost for good"), "{said}");
    assert_eq!(named(&cluster), lost);
    assert_eq!(unreadable(&cluster, &files), lost);
    let mut kept = files.clone();
    for name in lost.keys() {
        fs::remove_file(cluster.mnt().join(name)).unwrap();
        kept.remove(name);
    }
    for pdisk in gone {
        until("what is left of it is elsewhere", || word(&cluster, pdisk) == "replace");
        command(&cluster, &["pdisk", "remove", pdisk]);
    }
    all_is_well_without(&cluster, &kept, std::iter::empty());
}
