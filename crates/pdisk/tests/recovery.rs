//! What an open makes of damaged or torn files. Named by the story.
#![allow(clippy::unwrap_used)]

mod common;

use std::{fs, os::unix::fs::FileExt, path::Path};

use base::events::Severity;
use common::*;
use pdisk::{EngineChoice, IoNode, Pdisk, PdiskError, tools};
use wire::strip::{ReadVersion, StripRefusal};

const ADOPTED: ReadVersion = ReadVersion::Adopted;

fn psync() -> IoNode {
    node(EngineChoice::Psync)
}

fn edit(path: &Path, offset: u64, change: impl Fn(u8) -> u8) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[change(byte[0])], offset).unwrap();
}

/// A pdisk with strips 1..=3 written one after the other (one small version in the log each), dropped
/// without a checkpoint. Returns where each group starts in the log, and the end.
async fn three_groups(dir: &Path) -> Vec<u64> {
    create(dir, 4 << 20);
    let (p, _) = open(dir, &psync());
    let mut ends = vec![p.stats().log_position];
    for i in 1..=3 {
        prepare(&p, whole(strip(i), v(1, 1), &content(i, 2))).await.unwrap();
        ends.push(p.stats().log_position);
    }
    ends
}

async fn prepared(p: &Pdisk, i: u64) -> Result<Vec<u8>, StripRefusal> {
    read(p, strip(i), ReadVersion::Exactly(v(1, 1))).await
}

#[tokio::test]
async fn a_torn_last_group_is_as_if_never_written() {
    for at in [0, 100, 4000, 4096, 8192, 11000] {
        let dir = tempfile::tempdir().unwrap();
        let ends = three_groups(dir.path()).await;
        assert_eq!(ends[3] - ends[2], 12288);
        edit(&dir.path().join("log"), 4096 + ends[2] + at, |b| !b);
        let (p, report) = open(dir.path(), &psync());
        if at == 4000 || at == 11000 {
            // The byte hit is the payload's or in the padding; zeros at the end carry nothing.
            continue;
        }
        assert_eq!(prepared(&p, 3).await, Err(StripRefusal::Absent), "byte {at}");
        assert_eq!(report.strips, 2);
        assert_eq!(prepared(&p, 2).await.unwrap(), content(2, 2));
        // The log goes on from there.
        prepare(&p, whole(strip(4), v(1, 1), &content(4, 2))).await.unwrap();
        drop(p);
        let (p, report) = open(dir.path(), &psync());
        assert_eq!((report.strips, report.damaged.is_none()), (3, true));
        assert_eq!(prepared(&p, 4).await.unwrap(), content(4, 2));
    }
}

#[tokio::test]
async fn a_flipped_bit_in_an_older_group_costs_at_most_its_strip() {
    let clean = tempfile::tempdir().unwrap();
    let ends = three_groups(clean.path()).await;
    let (mut lost, mut whole) = (0, 0);
    for at in (0..ends[3] - ends[2]).step_by(97) {
        let dir = tempfile::tempdir().unwrap();
        for file in fs::read_dir(clean.path()).unwrap().flatten() {
            fs::copy(file.path(), dir.path().join(file.file_name())).unwrap();
        }
        edit(&dir.path().join("log"), 4096 + ends[1] + at, |b| b ^ 0x10);
        let (p, report) = open(dir.path(), &psync());
        assert_eq!((report.strips, prepared(&p, 1).await.unwrap()), (3, content(1, 2)), "byte {at}");
        assert_eq!(prepared(&p, 3).await.unwrap(), content(3, 2));
        match prepared(&p, 2).await {
            Ok(bytes) => {
                assert_eq!(bytes, content(2, 2));
                whole += 1;
            }
            Err(e) => {
                assert_eq!((e, &report.damaged.strips), (StripRefusal::Lost, &vec![(strip(2), v(1, 1))]));
                lost += 1;
            }
        }
    }
    assert!(lost > 50 && whole > 10, "{lost} {whole}");
}

#[tokio::test]
async fn a_lost_group_in_the_middle_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let ends = three_groups(dir.path()).await;
    for at in (0..ends[2] - ends[1]).step_by(64) {
        edit(&dir.path().join("log"), 4096 + ends[1] + at, |b| !b);
        edit(&dir.path().join("log"), 4096 + ends[1] + at + 50, |b| !b);
    }
    let error = try_open(dir.path(), &psync()).unwrap_err();
    assert!(matches!(error, PdiskError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains("log"), "{error}");
}

#[tokio::test]
async fn a_damaged_checkpoint_falls_back_to_the_older_one() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), 4 << 20);
    for life in 0..4 {
        let (p, _) = open(dir.path(), &psync());
        write(&p, strip(life), v(1, 1), &content(life, 30)).await;
        p.close().await.unwrap();
    }
    // Five checkpoints: the newest is number 5, in slot 0.
    for offset in [60, 4096 + 40] {
        let copy = tempfile::tempdir().unwrap();
        for file in fs::read_dir(dir.path()).unwrap().flatten() {
            fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
        }
        edit(&copy.path().join("index.0"), offset, |b| b ^ 1);
        let (p, report) = open(copy.path(), &psync());
        assert!(report.log_bytes_replayed > 0);
        assert_eq!(report.damaged.checkpoint.is_some(), offset > 4096);
        // Told as an event, as a warning where something was damaged.
        let told = base::events::events().after(0);
        let path = copy.path().to_str().unwrap();
        let opened: Vec<_> =
            told.iter().filter(|e| e.name == "pdisk_opened" && e.text.contains(path)).collect();
        assert_eq!(opened.len(), 1, "{opened:?}");
        assert!(
            opened[0].text.contains("4 strips") && opened[0].text.contains("of log replayed, ready after")
        );
        let damaged = opened[0].text.contains("the older checkpoint was used");
        assert_eq!((damaged, opened[0].severity == Severity::Warning), (offset > 4096, offset > 4096));
        for i in 0..4 {
            assert_eq!(read(&p, strip(i), ADOPTED).await.unwrap(), content(i, 30));
        }
        drop(p);
        edit(&copy.path().join("index.1"), 60, |b| b ^ 1);
        assert!(matches!(try_open(copy.path(), &psync()), Err(PdiskError::Damaged { .. })));
    }
}

#[tokio::test]
async fn flipped_crcs_and_data_are_lost_never_wrong() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), 4 << 20);
    let (p, _) = open(dir.path(), &psync());
    for i in 0..4 {
        write(&p, strip(i), v(1, 1), &content(i, 40)).await;
    }
    p.close().await.unwrap();
    edit(&dir.path().join("crc"), 4 * 45, |b| b ^ 1);
    edit(&dir.path().join("data"), 4096 * 90 + 17, |b| b ^ 1);
    let (p, _) = open(dir.path(), &psync());
    let mut damaged: Vec<_> = p.verify().await.unwrap().damaged.iter().map(|d| d.0).collect();
    damaged.sort();
    assert_eq!(damaged, [strip(1), strip(2)]);
    for i in [0, 3] {
        assert_eq!(read(&p, strip(i), ADOPTED).await.unwrap(), content(i, 40));
    }
}

/// The disk says that it wrote, and did not, or wrote elsewhere: what is there is whole, but not what belongs
/// there. Old bytes and another strip's bytes (with its CRCs) are found alike.
#[tokio::test]
async fn lost_and_misplaced_writes_are_found() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), 4 << 20);
    let path = |name: &str| dir.path().join(name);
    let (p, _) = open(dir.path(), &psync());
    for i in 0..4 {
        write(&p, strip(i), v(1, 1), &content(i, 20)).await;
    }
    p.close().await.unwrap();
    let old = fs::read(path("data")).unwrap();
    // In place, after the log: the same unit has newer bytes.
    let (p, _) = open(dir.path(), &psync());
    prepare(&p, part(strip(0), v(1, 2), v(1, 1), 3, &content(9, 1), 20)).await.unwrap();
    adopt(&p, strip(0), v(1, 2)).await;
    p.close().await.unwrap();
    let new = fs::read(path("data")).unwrap();
    let changed: Vec<usize> =
        (0..new.len() / UNIT).filter(|u| old[u * UNIT..][..UNIT] != new[u * UNIT..][..UNIT]).collect();
    assert_eq!(changed.len(), 1, "written in place");
    let lost = |spoil: &dyn Fn(&mut [u8], &mut [u8])| {
        let (mut data, mut crc) = (new.clone(), fs::read(path("crc")).unwrap());
        let good = crc.clone();
        spoil(&mut data, &mut crc);
        fs::write(path("data"), data).unwrap();
        fs::write(path("crc"), crc).unwrap();
        let report = tools::verify(dir.path(), None, &mut |_, _| {}).unwrap();
        fs::write(path("data"), &new).unwrap();
        fs::write(path("crc"), good).unwrap();
        let mut strips: Vec<_> = report.findings.iter().filter_map(|f| f.strip).collect();
        strips.sort();
        strips.dedup();
        strips
    };
    assert_eq!(lost(&|_, _| ()), []);
    assert_eq!(lost(&|data, _| data.copy_from_slice(&old)), [strip(0)]);
    // Strips 1 and 2 lie one after the other: their units change places, and then their CRCs as well.
    let first = (0..new.len() / UNIT).find(|u| new[u * UNIT..][..UNIT] == content(1, 20)[..UNIT]).unwrap();
    let swap = |bytes: &mut [u8], size: usize| {
        let (a, b) = bytes.split_at_mut((first + 20) * size);
        a[first * size..].swap_with_slice(&mut b[..20 * size]);
    };
    assert_eq!(lost(&|data, _| swap(data, UNIT)), [strip(1), strip(2)]);
    assert_eq!(lost(&|data, crc| (swap(data, UNIT), swap(crc, 4)).1), [strip(1), strip(2)]);
}

/// Either checkpoint cut short: the other one serves. Both: an error that names them.
#[tokio::test]
async fn truncated_checkpoints_are_survived_or_named() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), 4 << 20);
    for life in 0..2 {
        let (p, _) = open(dir.path(), &psync());
        write(&p, strip(life), v(1, 1), &content(life, 30)).await;
        p.close().await.unwrap();
    }
    for len in [0, 100, 4096, 5000] {
        for names in [&["index.0"][..], &["index.1"], &["index.0", "index.1"]] {
            let copy = tempfile::tempdir().unwrap();
            for file in fs::read_dir(dir.path()).unwrap().flatten() {
                fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
            }
            for name in names {
                fs::OpenOptions::new()
                    .write(true)
                    .open(copy.path().join(name))
                    .unwrap()
                    .set_len(len)
                    .unwrap();
            }
            match try_open(copy.path(), &psync()) {
                Ok((p, _)) => {
                    assert_eq!(names.len(), 1);
                    for i in 0..2 {
                        assert_eq!(read(&p, strip(i), ADOPTED).await.unwrap(), content(i, 30));
                    }
                }
                Err(e) => {
                    assert!(names.len() == 2 && e.to_string().contains("index"), "{names:?} {len}: {e}")
                }
            }
        }
    }
}

#[tokio::test]
async fn truncated_files_and_other_formats_are_named() {
    for name in ["data", "crc", "log", "label"] {
        let dir = tempfile::tempdir().unwrap();
        create(dir.path(), 4 << 20);
        let path = dir.path().join(name);
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(file.metadata().unwrap().len() - 1).unwrap();
        let error = try_open(dir.path(), &psync()).unwrap_err();
        assert!(matches!(error, PdiskError::Damaged { .. }) && error.to_string().contains(name), "{error}");
    }
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), 4 << 20);
    let path = dir.path().join("label");
    let mut label = fs::read(&path).unwrap();
    label[8] = 9;
    let crc = wire::crc::crc32c(&label[..4092]);
    label[4092..].copy_from_slice(&crc.to_le_bytes());
    fs::write(&path, label).unwrap();
    assert!(matches!(try_open(dir.path(), &psync()), Err(PdiskError::Format { found: 9, supported: 1, .. })));
    fs::remove_file(&path).unwrap();
    assert!(matches!(try_open(dir.path(), &psync()), Err(PdiskError::NoPdisk { .. })));
}
