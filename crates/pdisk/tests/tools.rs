//! Verify names every inconsistency, and finds none where there is none; dump shows what is there.
#![allow(clippy::unwrap_used)]

mod common;

use std::{fs, os::unix::fs::FileExt, path::Path};

use common::*;
use pdisk::{
    CreateOptions, EngineChoice, Pdisk, PdiskError,
    tools::{self, DumpItem, Verification},
};
use wire::strip::ReadVersion;

fn verify(dir: &Path) -> Verification {
    tools::verify(dir, None, &mut |_, _| {}).unwrap()
}

fn flip(path: &Path, offset: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x20], offset).unwrap();
}

/// Strips 0..20, every third in the log only, some with a prepared version; two checkpoints and more log.
async fn used(dir: &Path) {
    let options = CreateOptions { log_size: Some(4 << 20), ..CreateOptions::new(CLUSTER, PDISK, 8 << 20) };
    Pdisk::create(dir, options).unwrap();
    let node = node(EngineChoice::Psync);
    for life in 0..3 {
        let (p, _) = open(dir, &node);
        for i in 0..20 {
            let bytes = content(i + life, if i % 3 == 0 { 2 } else { 20 });
            let mut next = whole(strip(i), v(life + 1, 1), &bytes);
            next.0.adopt = Some(v(life, 1));
            prepare(&p, next).await.unwrap();
            if i % 2 == 0 {
                adopt(&p, strip(i), v(life + 1, 1)).await;
            }
        }
        p.seal(vec![strip(50)], base::Grant(9)).await.unwrap();
        if life < 2 {
            p.close().await.unwrap();
        }
    }
}

fn copy(from: &Path) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in fs::read_dir(from).unwrap().flatten() {
        fs::copy(file.path(), dir.path().join(file.file_name())).unwrap();
    }
    dir
}

#[tokio::test]
async fn a_pdisk_in_order_has_no_findings() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), 4 << 20);
    assert!(verify(dir.path()).is_consistent(), "as it was made");
    let dir = tempfile::tempdir().unwrap();
    used(dir.path()).await;
    let before = fs::read(dir.path().join("log")).unwrap();
    let report = verify(dir.path());
    assert!(report.is_consistent(), "{report:?}");
    assert_eq!((report.strips, report.tombstones, report.pdisk), (21, 1, Some(PDISK)));
    assert!(report.compared_bytes > 20 * 4096 && report.used_bytes <= report.data_bytes);
    assert!(before == fs::read(dir.path().join("log")).unwrap(), "nothing is changed");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["strips"], 21);
}

#[tokio::test]
async fn every_inconsistency_is_named() {
    let good = tempfile::tempdir().unwrap();
    used(good.path()).await;
    let mut extents = Vec::new();
    tools::dump(good.path(), None, &mut |item| {
        if let DumpItem::Strip { strip, adopted: Some(v), .. } = item {
            extents.extend(v.extents.iter().filter(|_| v.pending_units.is_empty()).map(|e| (strip, e.0)));
        }
    })
    .unwrap();
    let (id, start) = extents[0];

    let damaged = |file: &str, offset: u64| {
        let dir = copy(good.path());
        flip(&dir.path().join(file), offset);
        let report = verify(dir.path());
        assert!(!report.is_consistent(), "{file} at {offset}: {report:?}");
        let named = report.findings.iter().all(|f| f.file.ends_with(file));
        assert!(named, "{file} at {offset}: {report:?}");
        report
    };
    let report = damaged("data", start as u64 * 4096 + 100);
    assert_eq!(report.findings.iter().map(|f| f.strip).collect::<Vec<_>>(), [Some(id)]);
    assert!(report.findings[0].to_string().contains(&format!("{id} v")), "{}", report.findings[0]);

    let dir = copy(good.path());
    flip(&dir.path().join("crc"), start as u64 * 4);
    let report = verify(dir.path());
    // What the log says again needs no entry of the file.
    assert!(report.findings.iter().all(|f| f.strip == Some(id)), "{report:?}");

    damaged("index.0", 4096 + 40);
    damaged("index.1", 4096 + 40);
    damaged("label", 60);
    damaged("log", 60);
    let mut log = Vec::new();
    tools::dump(good.path(), None, &mut |item| {
        if let DumpItem::Group { position, .. } = item {
            log.push(position);
        }
    })
    .unwrap();
    assert!(log.len() > 10);
    damaged("log", 4096 + log[3] + 20);
    damaged("log", 4096 + log[3] + 100);

    let dir = copy(good.path());
    let data = fs::OpenOptions::new().write(true).open(dir.path().join("data")).unwrap();
    data.set_len(1 << 20).unwrap();
    let report = verify(dir.path());
    assert!(report.findings.iter().any(|f| f.what.contains("it must have 8388608")), "{report:?}");
}

#[tokio::test]
async fn what_a_crash_leaves_is_no_inconsistency() {
    let dir = tempfile::tempdir().unwrap();
    used(dir.path()).await;
    // A torn last group.
    let mut last = 0;
    tools::dump(dir.path(), None, &mut |item| {
        if let DumpItem::Group { position, .. } = item {
            last = position;
        }
    })
    .unwrap();
    flip(&dir.path().join("log"), 4096 + last + 10);
    assert!(verify(dir.path()).is_consistent());
    // A checkpoint whose header was cut off.
    flip(&dir.path().join("index.0"), 60);
    let report = verify(dir.path());
    assert!(report.is_consistent() || report.findings.iter().all(|f| f.file.ends_with("log")), "{report:?}");
    assert_eq!(report.notes.len(), 1, "{report:?}");
}

#[tokio::test]
async fn a_pdisk_in_use_or_none_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), 4 << 20);
    let (p, _) = open(dir.path(), &node(EngineChoice::Psync));
    assert!(matches!(tools::verify(dir.path(), None, &mut |_, _| {}), Err(PdiskError::Locked { .. })));
    drop(p);
    assert!(verify(dir.path()).is_consistent());
    let none = tempfile::tempdir().unwrap();
    assert!(matches!(tools::verify(none.path(), None, &mut |_, _| {}), Err(PdiskError::NoPdisk { .. })));
}

#[tokio::test]
async fn dump_shows_strips_and_records() {
    let dir = tempfile::tempdir().unwrap();
    used(dir.path()).await;
    let mut lines = Vec::new();
    let mut strips = 0;
    tools::dump(dir.path(), None, &mut |item| {
        strips += u32::from(matches!(item, DumpItem::Strip { .. }));
        assert!(serde_json::to_value(&item).unwrap()["item"].is_string());
        lines.push(item.to_string());
    })
    .unwrap();
    assert_eq!(strips, 21);
    let text = lines.join("\n");
    for part in [
        "pdisk7 of cluster",
        "checkpoint 3",
        "Adopt",
        "inode10/block5/strip0",
        "sealed below 9",
        "prepared v3.1",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let (p, _) = open(dir.path(), &node(EngineChoice::Psync));
    assert_eq!(read(&p, strip(4), ReadVersion::Adopted).await.unwrap(), content(6, 20));
}
