//! fsx (tests/fsx.sh) on real mounts: 10,000 operations buffered and mapped, with O_DIRECT, and while the file is open on a
//! second mount where somebody looks at it twice a second. `ROPEWALK_SOAK=1`: 1,000,000 each, each run others.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::{
    path::Path,
    process::{Command, Stdio},
};

use mounts::Mounts;

fn fsx(mounts: &Mounts, variables: &[(&str, &str)]) {
    let soak = std::env::var("ROPEWALK_SOAK").is_ok_and(|soak| soak == "1");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fsx.sh");
    let mut command = Command::new(script);
    command.arg(&mounts.all[0]).arg(if soak { "1000000" } else { "10000" });
    command.arg(common::seed().to_string()).envs(variables.iter().copied());
    let status = command.stdin(Stdio::null()).status().expect("run the script");
    assert!(status.success(), "fsx.sh: {status}\n{}", mounts.cluster.logs());
}

#[test]
fn buffered_and_mapped() {
    fsx(&Mounts::in_memory(1), &[]);
}

#[test]
fn by_direct_io() {
    fsx(&Mounts::in_memory(1), &[("DIRECT", "1"), ("MSYNC", "0")]);
}

#[test]
fn open_on_a_second_mount() {
    let mounts = Mounts::in_memory(2);
    fsx(&mounts, &[("OTHER", mounts.all[1].to_str().unwrap()), ("PAUSE", "0.5"), ("MSYNC", "0")]);
}
