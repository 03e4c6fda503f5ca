//! The guard of a change that may cut the connection: a process of its own, which outlives the terminal and takes the
//! change back at its time, unless it was confirmed. It ends as soon as nothing waits.

use std::{
    io::Read,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use advisor::{apply, journal};
use anyhow::{Context as _, Result, ensure};

/// How often it looks whether something still waits.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long it waits for the run it was started for: a machine that is busy, or another command, can keep that waiting.
const AT_FIRST: Duration = Duration::from_secs(600);
/// How long it tries to take back what another command keeps it from.
const PERSISTS: Duration = Duration::from_secs(600);
/// What it says once it stands.
const READY: &[u8] = b"ready";

/// Starts the guard, and comes back once it stands.
///
/// # Errors
/// It does not: then nothing may be changed.
pub(super) fn start(root: &Path, until: u64) -> Result<()> {
    let program = std::env::current_exe().context("find this program")?;
    let mut guard = Command::new(program)
        .args(["advise", "guard", "--until", &until.to_string(), "--root"])
        .arg(root)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("start the guard that would take the change back")?;
    let mut said = Vec::new();
    if let Some(mut out) = guard.stdout.take() {
        out.read_to_end(&mut said).context("wait for the guard")?;
    }
    ensure!(said == READY, "the guard that would take the change back did not start; nothing is changed");
    Ok(())
}

/// The guard itself.
///
/// # Errors
/// It cannot stand on its own, or what nobody confirmed cannot be taken back.
pub(super) fn wait(root: &Path, until: u64) -> Result<()> {
    // The end of the terminal is not its end.
    rustix::process::setsid().context("leave the session")?;
    // Whoever started it waits for the end of what it says.
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null").context("open /dev/null")?;
    rustix::io::write(rustix::stdio::stdout(), READY).context("say that the guard stands")?;
    rustix::stdio::dup2_stdout(&null).context("let go of the starter")?;
    let (started, mut seen) = (Instant::now(), false);
    while apply::now() < until {
        thread::sleep(LOOK_EVERY);
        // What cannot be read may be waiting: the change itself can be why.
        let Ok(runs) = journal::history(root) else { continue };
        // One whose time is over just now is not gone: it is to be taken back.
        let waits = runs.iter().any(journal::Run::is_unconfirmed);
        seen |= waits;
        if !waits && (seen || started.elapsed() > AT_FIRST) {
            return Ok(());
        }
    }
    let expired = Instant::now();
    loop {
        let error = match apply::expire(root) {
            Ok(left) if left.is_empty() => return Ok(()),
            Ok(left) => anyhow::anyhow!("not taken back: {}", left.len()),
            Err(error) => error.into(),
        };
        if expired.elapsed() > PERSISTS {
            return Err(error);
        }
        thread::sleep(LOOK_EVERY);
    }
}
