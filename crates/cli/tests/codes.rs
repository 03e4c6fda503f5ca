//! Story: every redundancy code, with the smallest, the default and the largest blocks; and a full file
//! system.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

mod common;

use std::{fs, io::Write};

use common::{Cluster, Random, copy_tree, same_tree, write_tree};

fn works(nodes: u32, pdisks: u32, code: &str, block: &str) {
    println!("{code} on {nodes} x {pdisks}, blocks of {block}");
    let (nodes_text, pdisks_text) = (nodes.to_string(), pdisks.to_string());
    let cluster = Cluster::up(&[
        "--nodes",
        &nodes_text,
        "--pdisks",
        &pdisks_text,
        "--code",
        code,
        "--block-size",
        block,
        "--pdisk-size",
        "256m",
    ]);
    let mut random = Random(7);
    let local = tempfile::tempdir().unwrap();
    write_tree(local.path(), 15, &mut random);
    let tree = cluster.mnt().join("tree");
    copy_tree(local.path(), &tree);
    cluster.down();
    cluster.start();
    same_tree(local.path(), &tree);
    let survived = cluster.json(&["pool", "list"])[0]["node_losses_survived"].as_u64().unwrap();
    if survived > 0 {
        cluster.down();
        cluster.start();
        cluster.kill(|name| name == "n1");
        same_tree(local.path(), &tree);
    }
}

#[test]
fn replication() {
    works(1, 1, "1way", "256k");
    works(2, 1, "2way", "4m");
    works(3, 1, "3way", "16m");
    works(4, 1, "4way", "1m");
}

#[test]
fn small_erasure_codes() {
    works(3, 1, "2+1p", "256k");
    works(4, 2, "4+2p", "16m");
    works(7, 1, "4+3p", "1m");
}

#[test]
fn wide_erasure_codes() {
    works(5, 2, "8+2p", "8m");
    works(4, 3, "8+3p", "256k");
    works(6, 3, "16+2p", "4m");
    works(5, 4, "16+3p", "16m");
}

#[test]
fn a_full_file_system_says_so_and_stays_usable() {
    let cluster = Cluster::three(&["--pdisk-size", "256m", "--block-size", "1m"]);
    let mnt = cluster.mnt();
    fs::write(mnt.join("before"), vec![1; 3 << 20]).unwrap();
    let mut written = 0u64;
    let mut index = 0;
    let error = 'fill: loop {
        let mut file = fs::File::create(mnt.join(format!("fill{index}"))).unwrap();
        for _ in 0..16 {
            if let Err(error) = file.write_all(&vec![index as u8; 1 << 20]) {
                break 'fill error;
            }
            written += 1 << 20;
        }
        if let Err(error) = file.sync_all() {
            break error;
        }
        index += 1;
        assert!(written < 2 << 30, "a file system of 512 MiB took {written} bytes");
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    assert!(written > 200 << 20, "full after only {written} bytes");
    // Readable.
    assert_eq!(fs::read(mnt.join("before")).unwrap(), vec![1; 3 << 20]);
    assert_eq!(fs::read(mnt.join("fill0")).unwrap(), vec![0; 16 << 20]);
    // Deletable, and what was freed can be written again.
    for i in 0..=index {
        fs::remove_file(mnt.join(format!("fill{i}"))).unwrap();
    }
    let end = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while let Err(error) = fs::write(mnt.join("after"), vec![2; 32 << 20])
        .and_then(|()| fs::File::open(mnt.join("after"))?.sync_all())
    {
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
        assert!(std::time::Instant::now() < end, "no room after deleting everything");
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    assert_eq!(fs::read(mnt.join("after")).unwrap(), vec![2; 32 << 20]);
    cluster.down();
}
