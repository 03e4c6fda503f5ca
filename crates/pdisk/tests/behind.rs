//! Acknowledged content that is gone is told: what was kept of a log's point is not found again. Named by the story.
#![allow(clippy::unwrap_used)]

mod common;

use std::{
    fs,
    os::unix::fs::FileExt,
    path::Path,
    time::{Duration, Instant},
};

use common::*;
use pdisk::{EngineChoice, IoNode, OpenOptions, Pdisk};
use wire::{
    mgr::LogMark,
    strip::{ReadVersion, StripRefusal},
};

const ADOPTED: ReadVersion = ReadVersion::Adopted;
/// Where the ring begins in the log file.
const RING: u64 = 4096;

fn psync() -> IoNode {
    node(EngineChoice::Psync)
}

/// As a server opens it.
fn open_asked(dir: &Path, node: &IoNode) -> Pdisk {
    Pdisk::open(dir, OpenOptions { marks_asked: true, ..options() }, node).unwrap().0
}

fn copy(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for file in fs::read_dir(from).unwrap().flatten() {
        fs::copy(file.path(), to.path().join(file.file_name())).unwrap();
    }
    to
}

fn flip(path: &Path, offset: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
}

fn zero(path: &Path, from: u64) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    let len = file.metadata().unwrap().len() - from;
    file.write_all_at(&vec![0; len as usize], from).unwrap();
}

/// The group that an open writes is as long as the one that was lost: a position says nothing.
#[tokio::test]
async fn a_lost_group_as_long_as_the_one_of_the_open_is_told() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), 4 << 20);
    let (p, report) = open(dir.path(), &psync());
    assert_eq!((report.recovered, report.log_position), (LogMark::default(), 8192));
    write(&p, strip(1), v(1, 1), &content(1, 40)).await;
    prepare(&p, whole(strip(1), v(1, 2), &content(2, 40))).await.unwrap();
    let before = p.mark();
    adopt(&p, strip(1), v(1, 2)).await;
    let told = p.mark();
    assert_eq!(told.position - before.position, 8192);
    drop(p);

    let whole = copy(dir.path());
    let (p, report) = open(whole.path(), &psync());
    assert_eq!((report.recovered, p.mark_at(told.position)), (told, Some(told)));
    assert_eq!(read(&p, strip(1), ADOPTED).await.unwrap(), content(2, 40));
    drop(p);

    flip(&dir.path().join("log"), RING + before.position + 70);
    let (p, report) = open(dir.path(), &psync());
    assert_eq!((report.recovered, report.log_position), (before, told.position), "as long as before");
    assert_eq!(read(&p, strip(1), ADOPTED).await.unwrap(), content(1, 40), "and yet old");
    assert_ne!(p.mark_at(told.position), Some(told));
    // Nor when it has told others where it is now.
    assert_ne!(p.mark(), told);
    assert_ne!(p.mark_at(told.position), Some(told));
    assert_eq!(p.mark_at(before.position), Some(before));
}

/// What is done to a pdisk while it is closed, and whether it may still prove what was told.
type Spoil<'a> = (&'a str, &'a dyn Fn(&Path));

/// Old copies of everything and of single files, damage in each file: it does not open, or it does not prove what
/// was told, or it holds everything that was answered, but for strips that say that they are lost.
#[tokio::test]
async fn old_copies_and_damaged_files_prove_nothing_or_are_whole() {
    const STRIPS: u64 = 6;
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), 4 << 20);
    let other = tempfile::tempdir().unwrap();
    create(other.path(), 4 << 20);
    for place in [dir.path(), other.path()] {
        let (p, _) = open(place, &psync());
        for i in 0..STRIPS {
            // Every other one in the log first.
            write(&p, strip(i), v(1, 1), &content(i, if i % 2 == 0 { 3 } else { 20 })).await;
        }
        p.close().await.unwrap();
    }
    let old_dir = copy(dir.path());
    let p = open_asked(dir.path(), &psync());
    for i in 0..STRIPS {
        write(&p, strip(i), v(1, 2), &content(100 + i, if i % 2 == 0 { 3 } else { 20 })).await;
    }
    let told = p.mark();
    drop(p);
    let end = RING + told.position;
    let from = |source: &Path, names: &[&str], to: &Path| {
        for name in names {
            fs::copy(source.join(name), to.join(name)).unwrap();
        }
    };
    let old = old_dir.path().to_owned();
    let all = ["data", "crc", "log", "index.0", "index.1"];
    let old_of = |names: &'static [&'static str]| {
        let old = old.clone();
        move |to: &Path| from(&old, names, to)
    };
    let everything = |to: &Path| from(&old, &all, to);
    // It is opened so often that its log is longer than the one that is gone.
    let opened_often = |to: &Path| {
        from(&old, &all, to);
        loop {
            let (p, report) = open(to, &psync());
            if report.log_position > told.position {
                break;
            }
            drop(p);
        }
    };
    let (log, crc) = (old_of(&["log"]), old_of(&["crc"]));
    let (data, index) = (old_of(&["data"]), old_of(&["index.0", "index.1"]));
    let (index0, index1) = (old_of(&["index.0"]), old_of(&["index.1"]));
    let (log_index, all_but_label) = (old_of(&["log", "index.0", "index.1"]), everything);
    let zeros = |name: &'static str, at: u64| move |to: &Path| zero(&to.join(name), at);
    let flipped = |name: &'static str, at: u64| move |to: &Path| flip(&to.join(name), at);
    let cut = |name: &'static str| {
        move |to: &Path| {
            let file = fs::OpenOptions::new().write(true).open(to.join(name)).unwrap();
            file.set_len(file.metadata().unwrap().len() / 2 / 4096 * 4096).unwrap();
        }
    };
    let others_ring = |to: &Path| {
        let ring = fs::read(other.path().join("log")).unwrap();
        let file = fs::OpenOptions::new().write(true).open(to.join("log")).unwrap();
        file.write_all_at(&ring[RING as usize..], RING).unwrap();
    };
    let others_log = |to: &Path| from(other.path(), &["log"], to);
    let others_index = |to: &Path| from(other.path(), &["index.0", "index.1"], to);
    let spoils: &[Spoil<'_>] = &[
        ("nothing", &|_| ()),
        ("an old copy of everything", &all_but_label),
        ("an old copy, opened often", &opened_often),
        ("old log", &log),
        ("old crc", &crc),
        ("old data", &data),
        ("old indexes", &index),
        ("old index.0", &index0),
        ("old index.1", &index1),
        ("old log and indexes", &log_index),
        ("another's ring", &others_ring),
        ("another's log", &others_log),
        ("another's indexes", &others_index),
        ("log zeroed", &zeros("log", 0)),
        ("ring zeroed", &zeros("log", RING)),
        ("end of the log zeroed", &zeros("log", end - 8192)),
        ("most of the log zeroed", &zeros("log", end - 5 * 8192)),
        ("the last group damaged", &flipped("log", end - 8192 + 30)),
        ("the last group's end damaged", &flipped("log", end - 30)),
        ("a group damaged", &flipped("log", end - 4 * 8192 + 30)),
        ("log cut", &cut("log")),
        ("crc zeroed", &zeros("crc", 0)),
        ("crc damaged", &flipped("crc", 9)),
        ("crc cut", &cut("crc")),
        ("data zeroed", &zeros("data", 0)),
        ("data damaged", &flipped("data", 9)),
        ("data cut", &cut("data")),
        ("index.0 zeroed", &zeros("index.0", 0)),
        ("index.1 zeroed", &zeros("index.1", 0)),
        ("index.0 damaged", &flipped("index.0", 50)),
        ("index.1 damaged", &flipped("index.1", 50)),
        ("index.0's page damaged", &flipped("index.0", 4096 + 50)),
        ("index.1's page damaged", &flipped("index.1", 4096 + 50)),
        ("index.0 cut", &cut("index.0")),
        ("label damaged", &flipped("label", 40)),
    ];
    let (mut refused, mut unproved, mut proved) = (0, 0, 0);
    for (what, spoil) in spoils {
        let place = copy(dir.path());
        spoil(place.path());
        let Ok((p, _)) = Pdisk::open(place.path(), OpenOptions { verify_reads: true, ..options() }, &psync())
        else {
            refused += 1;
            continue;
        };
        if p.mark_at(told.position) != Some(told) {
            assert_ne!(*what, "nothing");
            unproved += 1;
            continue;
        }
        proved += 1;
        assert!(!what.contains("copy") && !what.contains("end"), "{what} proves what was told");
        for i in 0..STRIPS {
            match read(&p, strip(i), ReadVersion::Exactly(v(1, 2))).await {
                Ok(bytes) => {
                    assert!(bytes == content(100 + i, if i % 2 == 0 { 3 } else { 20 }), "{what}: {i}")
                }
                Err(e) => assert_eq!(e, StripRefusal::Lost, "{what}: {i}"),
            }
        }
    }
    println!("{refused} do not open, {unproved} do not prove what was told, {proved} do");
    assert!(refused >= 6 && unproved >= 8 && proved >= 8, "{refused} {unproved} {proved}");
}

/// Points stay known over laps of the log, checkpoints, clean and unclean ends; and until the manager has said
/// which one it has, all that were told.
#[tokio::test]
async fn points_are_found_again_whatever_came_between() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), 4 << 20);
    let p = open_asked(dir.path(), &psync());
    p.confirm_marks();
    let mut told = Vec::new();
    for n in 0..500 {
        write(&p, strip(n % 4), v(1, n + 1), &content(n, 2)).await;
        told.push(p.mark());
    }
    assert!(p.stats().checkpoints > 3 && p.stats().log_position > 4 << 20);
    let known = |p: &Pdisk, marks: &[LogMark]| marks.iter().all(|m| p.mark_at(m.position) == Some(*m));
    assert!(known(&p, &told[400..]) && p.mark_at(told[0].position).is_none());
    p.close().await.unwrap();
    let p = open_asked(dir.path(), &psync());
    assert!(known(&p, &told[400..]));
    drop(p);
    // The manager is away: lives that nobody asks anything of.
    for life in 0..6 {
        let p = open_asked(dir.path(), &psync());
        assert!(known(&p, &told[400..]), "life {life}");
        if life % 2 == 0 { p.close().await.unwrap() } else { drop(p) }
    }
    let p = open_asked(dir.path(), &psync());
    for n in 0..40 {
        write(&p, strip(n % 4), v(2, n + 1), &content(n, 2)).await;
        told.push(p.mark());
    }
    assert!(known(&p, &told[400..]));
    p.confirm_marks();
    assert!(known(&p, &told[420..]));
}

/// More groups than a checkpoint remembers, and a life that nobody has asked: it ends without a checkpoint.
#[tokio::test]
async fn a_point_among_many_groups_is_not_forgotten_before_it_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let create = pdisk::CreateOptions {
        log_size: Some(16 << 20),
        ..pdisk::CreateOptions::new(CLUSTER, PDISK, 4 << 20)
    };
    Pdisk::create(dir.path(), create).unwrap();
    let p = open_asked(dir.path(), &psync());
    write(&p, strip(1), v(1, 1), &content(1, 1)).await;
    let told = p.mark();
    for n in 2..160 {
        write(&p, strip(1), v(1, n), &content(n, 1)).await;
    }
    drop(p);
    for _ in 0..3 {
        let p = open_asked(dir.path(), &psync());
        assert_eq!(p.mark_at(told.position), Some(told));
        p.close().await.unwrap();
    }
    let p = open_asked(dir.path(), &psync());
    p.confirm_marks();
    p.close().await.unwrap();
    assert_eq!(open(dir.path(), &psync()).1.log_bytes_replayed, 0, "asked, it makes its checkpoint");
}

/// A moment after the last answer damage in its group is damage: the other copy serves, or the strip says that it is
/// lost. It is not as if it had never happened.
#[tokio::test]
async fn after_a_moment_the_last_group_is_known_to_be_whole() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), 4 << 20);
    let at_once = OpenOptions { prove_after: Some(Duration::from_millis(1)), ..options() };
    let (p, _) = Pdisk::open(dir.path(), at_once, &psync()).unwrap();
    let proved = |p: &Pdisk, beyond: u64| {
        let end = Instant::now() + Duration::from_secs(60);
        while p.stats().log_position <= beyond {
            assert!(Instant::now() < end, "nothing proves the last group");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    proved(&p, 8192);
    let before = p.stats().log_position;
    assert_eq!(before, 16384, "one for the open, one behind it, and then it rests");
    prepare(&p, whole(strip(1), v(1, 1), &content(1, 2))).await.unwrap();
    proved(&p, before + 12288);
    drop(p);
    let (mut lost, mut whole) = (0, 0);
    for at in (0..12288).step_by(509) {
        let place = copy(dir.path());
        flip(&place.path().join("log"), RING + before + at);
        let (p, _) = open(place.path(), &psync());
        match read(&p, strip(1), ReadVersion::Exactly(v(1, 1))).await {
            Ok(bytes) => {
                assert_eq!(bytes, content(1, 2));
                whole += 1;
            }
            Err(e) => {
                assert_eq!(e, StripRefusal::Lost, "byte {at}");
                lost += 1;
            }
        }
    }
    assert!(whole > 3 && lost > 10, "{whole} {lost}");
    // Damage in the one behind it costs nothing.
    flip(&dir.path().join("log"), RING + before + 12288 + 30);
    let (p, report) = open(dir.path(), &psync());
    assert!(report.damaged.is_none());
    assert_eq!(read(&p, strip(1), ReadVersion::Exactly(v(1, 1))).await.unwrap(), content(1, 2));
}
