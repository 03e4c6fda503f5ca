//! What `pool verify` says when nothing is wrong.
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

use std::process::Output;

use serde_json::Value;

use crate::common::until;

/// Gives the command, with `--json`, until every group is proved: those of a server that is late are not at first. Nothing else passes by
/// itself, and what the command mends would not be found the next time.
pub fn proved(mut verify: impl FnMut() -> Output) -> Value {
    let mut said = Value::Null;
    until("all is proved", || {
        let output = verify();
        said = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let wrong = ["found", "absent", "unowned"].iter().any(|of| said[of].as_u64() > Some(0));
        assert!(!wrong, "{said:#}");
        output.status.success()
    });
    said
}
