//! Story: POSIX calls and real programs on a mounted cluster. The scripts under tests/ do the work; they
//! compare with a local directory where behaviours can be compared.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

mod common;

use std::{
    path::Path,
    process::{Command, Stdio},
};

use common::Cluster;

fn run(cluster: &Cluster, script: &str, arguments: &[&str]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests").join(script);
    let fscall = std::env::current_exe().unwrap().parent().unwrap().with_file_name("examples").join("fscall");
    let mut command = Command::new(path);
    command.arg(cluster.mnt()).args(arguments).env("FSCALL", fscall).stdin(Stdio::null());
    let status = command.status().expect("run the script");
    assert!(status.success(), "{script}: {status}\n{}", cluster.logs());
}

#[test]
fn posix_calls() {
    let cluster = Cluster::up(&["--pdisk-size", "512m"]);
    run(&cluster, "posix-basics.sh", &[]);
    cluster.down();
}

#[test]
fn real_programs() {
    let cluster = Cluster::up(&["--pdisk-size", "1g"]);
    run(&cluster, "programs.sh", &[]);
    cluster.down();
}

#[test]
fn fio_verifies_what_it_wrote() {
    let cluster = Cluster::up(&["--pdisk-size", "1g"]);
    run(&cluster, "fio-verify.sh", &[]);
    cluster.down();
}
