//! A run of the lab as a process of its own, with a deadline; a stop is handed on to it, so that it takes down what it made.

use std::{
    fs::{self, File},
    io,
    path::Path,
    process::{Command, ExitStatus, Stdio},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// How long it may take to take down what it made.
const GRACE: Duration = Duration::from_secs(30);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// The process; killed when dropped.
pub(super) struct Child(std::process::Child);

impl Child {
    /// Runs it to its end; what it said, if it failed or was ended. `errors` is a file for that.
    pub(super) fn run(
        mut command: Command,
        errors: &Path,
        most: Duration,
        stop: &AtomicBool,
    ) -> io::Result<Result<(), String>> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(errors)?);
        let mut child = Child(command.spawn()?);
        let mut status = child.wait(most, stop)?;
        let late = status.is_none() && !stop.load(Relaxed);
        if status.is_none() {
            let pid = Pid::from_raw(child.0.id() as i32);
            let _ = pid.map(|pid| kill_process(pid, Signal::TERM));
            status = child.wait(GRACE, &AtomicBool::new(false))?;
        }
        if status.is_some_and(|status| status.success()) {
            return Ok(Ok(()));
        }
        let said = String::from_utf8_lossy(&fs::read(errors)?).trim().to_owned();
        let late = if late { format!("it did not end within {} s; ", most.as_secs()) } else { String::new() };
        Ok(Err(format!("{late}{said}")))
    }

    fn wait(&mut self, most: Duration, stop: &AtomicBool) -> io::Result<Option<ExitStatus>> {
        let until = Instant::now() + most;
        loop {
            let status = self.0.try_wait()?;
            if status.is_some() || stop.load(Relaxed) || Instant::now() >= until {
                return Ok(status);
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(Some(_))) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}
