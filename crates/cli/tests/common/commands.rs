//! Commands, and what they say. A command waits three seconds for a connection to the manager, and one that asks all processes two for
//! each of them; then it gives up, and says so. A busy machine stands still for so long, so each is given again until it is heard. One that
//! the manager did before its answer was lost is done twice: it is refused then, as it would be of anybody else.

use std::{
    process::{Command, Output},
    thread::sleep,
    time::{Duration, Instant},
};

/// The program under test.
pub const ROPEWALK: &str = env!("CARGO_BIN_EXE_ropewalk");

/// What says that nobody heard a command, or not all whom it asked.
const UNHEARD: [&str; 5] = [
    "is the cluster up?",
    "since they do not answer: ",
    "not in the recording: ",
    "the manager is still starting; ",
    "the manager had no answer in time; ",
];
/// What says that somebody heard it who will have nothing to do with it: that is an answer.
const DENIED: [&str; 2] = ["permission denied: ", " refused: "];
/// What says that a mount is used, or that a process has not ended in half a minute. Programs that other threads of a test begin have for
/// a moment all that the test has open; and who ends has something to write.
const NOT_YET: [&str; 2] = ["is in use; close what is open there", ") has not ended after "];
/// How long it is given again.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs ropewalk, once, and returns what it said.
pub fn ropewalk(args: &[&str]) -> Output {
    Command::new(ROPEWALK).args(args).output().expect("run ropewalk")
}

/// Gives a command as long as it is not heard; what it said at last, whatever that is.
pub fn heard(give: impl FnMut() -> Output) -> Output {
    given(give, &UNHEARD)
}

/// The same of one that must succeed: also as long as something is in its way that passes.
pub fn done(give: impl FnMut() -> Output) -> Output {
    given(give, &[&UNHEARD[..], &NOT_YET].concat())
}

/// Gives a command as long as it fails and says one of these.
fn given(mut give: impl FnMut() -> Output, again: &[&str]) -> Output {
    let end = Instant::now() + PATIENCE;
    loop {
        let output = give();
        let says = |text: &&str| String::from_utf8_lossy(&output.stderr).contains(text);
        let is_over = output.status.success() || DENIED.iter().any(says) || !again.iter().any(says);
        if is_over || Instant::now() > end {
            return output;
        }
        sleep(Duration::from_millis(100));
    }
}

/// What a command with `--json` says, parsed; it must succeed.
pub fn answer(words: &[&str], give: impl FnMut() -> Output) -> serde_json::Value {
    serde_json::from_str(&succeeded(words, heard(give))).expect("JSON")
}

/// Runs ropewalk, which must succeed; returns its stdout.
pub fn ok(args: &[&str]) -> String {
    succeeded(args, done(|| ropewalk(args)))
}

/// Runs ropewalk, which must be refused what it asks for; returns its stderr.
pub fn refused(args: &[&str]) -> String {
    failed(args, heard(|| ropewalk(args)))
}

/// Runs ropewalk, once, which must fail, as nobody is there to be asked; returns its stderr.
pub fn unheard(args: &[&str]) -> String {
    failed(args, ropewalk(args))
}

/// The stdout of a command that must have succeeded.
pub fn succeeded(words: &[&str], output: Output) -> String {
    assert!(
        output.status.success(),
        "ropewalk {words:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The stderr of a command that must have failed.
pub fn failed(words: &[&str], output: Output) -> String {
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(
        !output.status.success(),
        "ropewalk {words:?} succeeded: {}",
        String::from_utf8_lossy(&output.stdout)
    );
    assert!(!said.contains("panicked"), "{said}");
    said
}
