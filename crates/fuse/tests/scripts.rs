//! The scripts under tests/ on the model: the mount alone, without a cluster.

#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

mod common;

use std::{
    path::Path,
    process::{Command, Stdio},
};

use common::mount_with;
use fuse::Caching;

fn run(script: &str, arguments: &[&str], caching: Caching) {
    let Some(m) = mount_with(|o| o.caching = caching) else { return };
    let fscall = std::env::current_exe().unwrap().parent().unwrap().with_file_name("examples").join("fscall");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests").join(script);
    let mut command = Command::new(path);
    command.arg(&m.dir).args(arguments).env("FSCALL", fscall).stdin(Stdio::null());
    assert!(command.status().unwrap().success(), "{script}");
    m.end();
}

#[test]
fn posix_basics() {
    run("posix-basics.sh", &[], Caching::EXCLUSIVE);
}

#[test]
fn posix_basics_without_caching() {
    run("posix-basics.sh", &[], Caching::UNCACHED);
}
