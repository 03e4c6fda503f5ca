//! A program that makes durable files one after the other while something happens to the cluster, and the check that all are there.
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

use std::{
    fs::{self, File},
    io::Write as _,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    thread,
};

use crate::common::until;

/// Makes file `n`: durable, then under its name.
pub fn make(mnt: &Path, n: u64) {
    let mut file = File::create_new(mnt.join(format!("new{n}"))).unwrap();
    file.write_all(n.to_string().as_bytes()).unwrap();
    file.sync_all().unwrap();
    fs::rename(mnt.join(format!("new{n}")), mnt.join(format!("name{n}"))).unwrap();
}

/// Files 0 to `made` are there, and nothing else.
pub fn check(mnt: &Path, made: u64) {
    assert_eq!(fs::read_dir(mnt).unwrap().count() as u64, made);
    for n in 0..made {
        assert_eq!(fs::read_to_string(mnt.join(format!("name{n}"))).unwrap(), n.to_string());
    }
}

/// Makes files until `trouble` is over; how many. `trouble` is told how to wait until `between` more are made, and how many there are.
pub fn making(mnt: &Path, between: u64, trouble: impl FnOnce(&dyn Fn(&str), &AtomicU64)) -> u64 {
    /// Ends the load, also of a test that fails.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, SeqCst);
        }
    }
    let (made, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let end = Stop(&stop);
        let maker = scope.spawn(|| {
            while !stop.load(SeqCst) {
                make(mnt, made.load(SeqCst));
                made.fetch_add(1, SeqCst);
            }
        });
        let goes_on = |what: &str| {
            let before = made.load(SeqCst);
            until(what, || made.load(SeqCst) >= before + between || maker.is_finished());
        };
        trouble(&goes_on, &made);
        drop(end);
        maker.join().unwrap();
    });
    made.into_inner()
}
