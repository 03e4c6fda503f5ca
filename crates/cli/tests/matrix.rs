//! Every way to change a file against every way to read it (`matrix`, an example of the mount's crate): on one mount that is alone,
//! by each transport, on one of two, and from one mount to the other; and on a local directory, so that the judge is right.
//! Each run has a quarter of the pairs, chosen by its seed; with `ROPEWALK_MATRIX_TURN=1000` all of them, each for a second, with
//! `ROPEWALK_MATRIX_ONLY=aio-direct+direct,pread` these only.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use common::{ok, seed};
use mounts::Mounts;

fn matrix(what: &str, options: &[&str], dirs: &[&Path]) -> bool {
    let program =
        std::env::current_exe().unwrap().parent().unwrap().with_file_name("examples").join("matrix");
    let set = |name, default: &str| std::env::var(name).unwrap_or(default.to_owned());
    let (turn, only) = (set("ROPEWALK_MATRIX_TURN", "12"), set("ROPEWALK_MATRIX_ONLY", ","));
    let long =
        ["ROPEWALK_MATRIX_TURN", "ROPEWALK_MATRIX_ONLY"].iter().any(|name| std::env::var_os(name).is_some());
    let share = if long { "1" } else { "4" };
    let seed = seed().to_string();
    let mut command = Command::new(program);
    command
        .args(["--turn", &turn, "--only", &only, "--share", share, "--seed", &seed])
        .args(options)
        .args(dirs);
    let run = command.output().unwrap();
    println!("{what}, seed {seed}:\n{}", String::from_utf8_lossy(&run.stdout));
    print!("{}", String::from_utf8_lossy(&run.stderr));
    run.status.success()
}

fn with_mount(mounts: &mut Mounts, transport: &str) -> PathBuf {
    let path = mounts.more.path().join(transport);
    fs::create_dir(&path).unwrap();
    mounts.mount_by(&path, transport);
    mounts.all.push(path.clone());
    path
}

#[test]
fn what_was_written_in_any_way_is_read_in_every_way() {
    let local = tempfile::tempdir().unwrap();
    let mut right = matrix("a local directory", &["--local"], &[local.path()]);
    let mut mounts = Mounts::in_memory(1);
    let own = mounts.cluster.mnt();
    ok(&["umount", own.to_str().unwrap()]);
    let classic = with_mount(&mut mounts, "classic");
    right &= matrix("alone by /dev/fuse", &[], &[&classic]);
    ok(&["umount", classic.to_str().unwrap()]);
    let uring = with_mount(&mut mounts, "auto");
    right &= matrix("alone by io_uring", &[], &[&uring]);
    mounts.mount_by(&classic, "classic");
    right &= matrix("one of two", &[], &[&classic]);
    right &= matrix("from one to the other", &[], &[&classic, &uring]);
    assert!(right, "see above");
}
