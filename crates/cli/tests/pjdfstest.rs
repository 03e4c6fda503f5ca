//! The pjdfstest suite (tests/pjdfstest.sh) on a real mount. Not among the default targets: the suite's program is built for it.
#![allow(clippy::unwrap_used)]

mod common;

use std::{
    path::Path,
    process::{Command, Stdio},
};

use common::Cluster;

#[test]
fn posix_as_an_outside_suite_has_it() {
    let cluster = Cluster::up(&["--pdisk-size", "512m"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/pjdfstest.sh");
    let status =
        Command::new(script).arg(cluster.mnt()).stdin(Stdio::null()).status().expect("run the script");
    assert!(status.success(), "pjdfstest.sh: {status}\n{}", cluster.logs());
    cluster.down();
}
