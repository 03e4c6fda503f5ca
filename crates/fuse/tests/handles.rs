//! What one handle writes, others see: page cache, direct handles, appends, mappings.

#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

mod common;

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::{FileExt, OpenOptionsExt},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use common::{mount, mount_with};
use fuse::Caching;

/// One appends, others read what is there through the page cache, at the end of the file as it grows:
/// never a zero in place of what was appended.
#[test]
fn readers_at_the_end_of_a_growing_file_see_no_zeros() {
    let Some(m) = mount() else { return };
    let path = m.path("log");
    let mut log = File::options().append(true).create(true).open(&path).unwrap();
    let (len, done) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                let file = File::open(&path).unwrap();
                let mut buf = vec![0; 10_000];
                while !done.load(Ordering::Acquire) {
                    // All before this was written and answered before the read begins.
                    let end = len.load(Ordering::Acquire);
                    let from = end.saturating_sub(5000);
                    let n = file.read_at(&mut buf, from).unwrap();
                    assert!(n as u64 >= end - from, "{n} bytes at {from} of a file of {end}");
                    let zero = buf[..n].iter().position(|b| *b == 0);
                    assert_eq!(
                        zero,
                        None,
                        "zero at {} of {n} bytes at {from}, {end} appended",
                        zero.unwrap_or(0)
                    );
                }
            });
        }
        for i in 0..6000usize {
            let record = vec![b'a' + (i % 26) as u8; 1 + i % 900];
            log.write_all(&record).unwrap();
            len.fetch_add(record.len() as u64, Ordering::Release);
        }
        done.store(true, Ordering::Release);
    });
    drop(log);
    let all = fs::read(&path).unwrap();
    assert_eq!(all.len() as u64, len.into_inner());
    assert!(!all.contains(&0));
    m.end();
}

/// Durable writes that make a file longer, and readers that open it meanwhile: the same.
#[test]
fn readers_behind_a_durable_writer_see_no_zeros() {
    let Some(m) = mount() else { return };
    let path = m.path("journal");
    let options =
        || File::options().write(true).create(true).truncate(false).custom_flags(libc::O_DSYNC).clone();
    let journal = options().open(&path).unwrap();
    let (len, done) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                let mut buf = vec![0; 10_000];
                while !done.load(Ordering::Acquire) {
                    let file = File::open(&path).unwrap();
                    for _ in 0..20 {
                        let end = len.load(Ordering::Acquire);
                        let from = end.saturating_sub(5000);
                        let n = file.read_at(&mut buf, from).unwrap();
                        assert!(n as u64 >= end - from, "{n} bytes at {from} of a file of {end}");
                        assert!(!buf[..n].contains(&0), "zeros in {n} bytes at {from}, {end} written");
                    }
                }
            });
        }
        for i in 0..3000usize {
            let record = vec![b'a' + (i % 26) as u8; 1 + i % 900];
            journal.write_all_at(&record, len.load(Ordering::Acquire)).unwrap();
            len.fetch_add(record.len() as u64, Ordering::Release);
        }
        done.store(true, Ordering::Release);
    });
    drop(journal);
    assert_eq!(fs::read(&path).unwrap().len() as u64, len.into_inner());
    m.end();
}

#[test]
fn appends_by_several_handles_are_whole_and_all_there() {
    appends_by_several_handles(Caching::EXCLUSIVE);
    appends_by_several_handles(Caching::UNCACHED);
}

fn appends_by_several_handles(caching: Caching) {
    let Some(m) = mount_with(|o| o.caching = caching) else { return };
    let path = m.path("log");
    thread::scope(|s| {
        for writer in 0..4u8 {
            let path = &path;
            s.spawn(move || {
                let mut log = File::options().append(true).create(true).open(path).unwrap();
                (0..300).for_each(|_| log.write_all(&[b'0' + writer; 777]).unwrap());
            });
        }
    });
    let all = fs::read(&path).unwrap();
    assert_eq!(all.len(), 4 * 300 * 777);
    assert!(all.chunks(777).all(|record| record.iter().all(|b| *b == record[0])));
    m.end();
}

/// A mapping of a handle that appends has its place in the file.
#[test]
fn pages_of_a_mapping_stay_in_place_whatever_handle_the_kernel_sends_them_by() {
    mapping_of_an_appending_handle(Caching::EXCLUSIVE);
    mapping_of_an_appending_handle(Caching::UNCACHED);
}

fn mapping_of_an_appending_handle(caching: Caching) {
    let Some(m) = mount_with(|o| o.caching = caching) else { return };
    let path = m.path("x");
    fs::write(&path, vec![b'.'; 10_000]).unwrap();
    let fscall = std::env::current_exe().unwrap().parent().unwrap().with_file_name("examples").join("fscall");
    let output = std::process::Command::new(fscall).arg("mmap-append").arg(&path).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "file has \"mapped\"\n");
    let text = fs::read(&path).unwrap();
    assert_eq!((text.len(), &text[..8]), (10_000, &b"mapped.."[..]));
    m.end();
}
