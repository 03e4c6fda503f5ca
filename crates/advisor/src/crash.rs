//! Ends the program by SIGKILL where a test wants it, between any two steps that change something. Only builds with debug
//! assertions know `ROPEWALK_ADVISE_KILL_AT=COMMAND:N`: the process whose arguments are `advise COMMAND ...` ends at its Nth step.

/// Stands before and after each step that changes something.
pub(crate) fn point() {
    #[cfg(debug_assertions)]
    tests_only();
}

#[cfg(debug_assertions)]
fn tests_only() {
    use std::sync::atomic::{AtomicU32, Ordering};
    static STEPS: AtomicU32 = AtomicU32::new(0);
    let Ok(wanted) = std::env::var("ROPEWALK_ADVISE_KILL_AT") else { return };
    let Some((command, at)) = wanted.split_once(':') else { return };
    let is_this = std::env::args().nth(2).is_some_and(|argument| argument == command);
    if is_this && at.parse() == Ok(STEPS.fetch_add(1, Ordering::Relaxed) + 1) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}
