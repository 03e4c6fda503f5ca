//! Bottlenecks staged for real, drawn at random, and the same plans without them: the lab's verdict must name each, or say
//! that it does not know. `ROPEWALK_LAB_STAGINGS=all` stages every one, a word those whose name holds it; else a few are drawn.
//!
//! A machine that others use is another machine: what is wrong while they do is not judged.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod common;

use common::{ropewalk, seed};
use serde_json::Value;

/// How many are drawn in a short run.
const DRAWN: &str = "4";

#[test]
fn staged_bottlenecks_are_named_and_absent_ones_are_not() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: loop devices, throttles and network namespaces need root");
        return;
    }
    let (seed, wanted) = (seed().to_string(), std::env::var("ROPEWALK_LAB_STAGINGS").unwrap_or_default());
    let dir = tempfile::Builder::new().prefix("ropewalk-lab-").tempdir_in("/var/tmp").unwrap();
    let below = dir.path().to_str().unwrap();
    let mut words = vec!["lab", "self-test", "--json", "--seed", &seed, "--dir", below];
    match wanted.as_str() {
        "all" => {}
        "" => words.extend(["--trials", DRAWN]),
        word => words.push(word),
    }
    // It fails where too few are right: of four that is one that is not known, which is no fault.
    let output = ropewalk(&words);
    let said = String::from_utf8_lossy(&output.stderr);
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
    let trials = shown["trials"].as_array().unwrap();
    assert!(!trials.is_empty(), "{said}");
    trials.iter().for_each(|trial| println!("{trial}"));
    assert_eq!(shown["wrong"], 0, "{said}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "its files are gone");
}
