//! Runs a load generator in a process group of its own, with a deadline; nothing of it is left behind.

use std::{
    io::Read,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::context::{Context, EngineError};
use crate::targets::Side;

/// What a program may print; the rest is cut off.
const OUTPUT_MAX: u64 = 64 << 20;
/// The grace of a run.
const GRACE: Duration = Duration::from_secs(10);

/// A running program.
pub struct Running {
    child: Child,
    program: String,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
    deadline: Instant,
    seconds: f64,
    /// How long what has ended or was killed may still be about to go.
    grace: Duration,
}

/// A command, inside a network namespace if the side has one.
pub fn command(side: Option<&Side>, program: &str) -> Command {
    match side.and_then(|side| side.namespace.as_ref()) {
        Some(namespace) => {
            // Not `ip netns exec`: that gives a mount namespace of its own as well.
            let mut command = Command::new("nsenter");
            command.arg(format!("--net=/run/netns/{namespace}")).arg(program);
            command
        }
        None => Command::new(program),
    }
}

/// A program on the search path.
pub(super) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// The command as one would type it.
pub(super) fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let quote = |word: &std::ffi::OsStr| {
        let word = word.to_string_lossy();
        if word.contains([' ', '$', '*', '"', '\'']) { format!("'{word}'") } else { word.into_owned() }
    };
    words.map(quote).collect::<Vec<_>>().join(" ")
}

impl Running {
    /// Starts it. `package` is named if the program is missing.
    pub fn start(
        mut command: Command,
        package: &'static str,
        seconds: f64,
        context: &Context<'_>,
    ) -> Result<Running, EngineError> {
        let program = command.get_program().to_string_lossy().into_owned();
        context.note_command(line(&command));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => EngineError::Missing { program: program.clone(), package },
            _ => EngineError::Failed { program: program.clone(), why: e.to_string() },
        })?;
        context.groups.add(child.id() as i32);
        let stdout = child.stdout.take().map(drain);
        let stderr = child.stderr.take().map(drain);
        let deadline = Instant::now() + Duration::from_secs_f64(seconds);
        Ok(Running { child, program, stdout, stderr, deadline, seconds, grace: GRACE })
    }

    /// Waits for its end, and gives its standard output. Ends it when the run stops or the time is over.
    pub fn output(mut self, context: &Context<'_>) -> Result<String, EngineError> {
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if context.stopped() => return Err(EngineError::Stopped),
                Ok(None) if Instant::now() > self.deadline => {
                    return Err(EngineError::Late { program: self.program.clone(), seconds: self.seconds });
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(10)),
                Err(e) => {
                    return Err(EngineError::Failed { program: self.program.clone(), why: e.to_string() });
                }
            }
        };
        // What it started may live on and hold its pipes open: it had its time.
        let until = Instant::now() + self.grace;
        let whole = wait_for(until, || {
            [&self.stdout, &self.stderr].into_iter().flatten().all(JoinHandle::is_finished)
        });
        if !whole {
            self.kill();
            return Err(EngineError::Failed {
                program: self.program.clone(),
                why: format!("{status}, but what it started holds its output open"),
            });
        }
        let text = |part: Option<JoinHandle<Vec<u8>>>| {
            let bytes = part.and_then(|thread| thread.join().ok()).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let (stdout, stderr) = (text(self.stdout.take()), text(self.stderr.take()));
        if !status.success() {
            let said = if stderr.trim().is_empty() { &stdout } else { &stderr };
            let tail: Vec<&str> = said.lines().filter(|l| !l.trim().is_empty()).rev().take(4).collect();
            let said: Vec<&str> = tail.into_iter().rev().collect();
            return Err(EngineError::Failed {
                program: self.program.clone(),
                why: format!("{status}: {}", said.join("; ")),
            });
        }
        Ok(stdout)
    }
}

impl Running {
    fn kill(&self) {
        if let Some(group) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.kill();
        }
        // One that a file system does not let go of cannot be killed, and must not hold up the run.
        wait_for(Instant::now() + self.grace, || !matches!(self.child.try_wait(), Ok(None)));
    }
}

/// Looks until something is so, or the time is over; whether it is.
fn wait_for(until: Instant, mut so: impl FnMut() -> bool) -> bool {
    while !so() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

fn drain(pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.take(OUTPUT_MAX).read_to_end(&mut bytes);
        bytes
    })
}

#[cfg(test)]
mod tests {
    use std::{
        path::Path,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering::Relaxed},
        },
    };

    use super::*;
    use crate::{observe::LoadGroups, plan::Figure, targets::Targets};

    /// Ends a test that would otherwise hang, as a failure.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Runs a shell with that script to its end, and gives what it comes to, within that grace.
    fn outcome(script: &str, stop: &AtomicBool, grace: Duration) -> Result<String, EngineError> {
        let (targets, groups) = (Targets::default(), LoadGroups::default());
        let context = Context {
            targets: &targets,
            work: Path::new("/"),
            part: 0,
            seconds: 60.0,
            figure: Figure::Operations,
            stop,
            groups: &groups,
            ropewalk: None,
            commands: Arc::default(),
            began: Arc::default(),
            led: None,
        };
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        let mut running = Running::start(shell, "dash", context.seconds, &context)?;
        running.grace = grace;
        running.output(&context)
    }

    /// Whether a process lives: one that is dead and not yet waited for has no program.
    fn lives(pid: &str) -> bool {
        Path::new("/proc").join(pid.trim()).join("exe").read_link().is_ok()
    }

    #[test]
    fn one_that_ignores_sigterm_is_ended_with_the_run() {
        let dir = tempfile::tempdir().unwrap();
        let (file, stop) = (dir.path().join("pid"), AtomicBool::new(false));
        let script = format!("trap '' TERM INT HUP; echo $$ > {}; while :; do sleep 9; done", file.display());
        let mut pid = String::new();
        let ended = std::thread::scope(|scope| {
            scope.spawn(|| {
                wait_for(Instant::now() + PATIENCE, || {
                    pid = std::fs::read_to_string(&file).unwrap_or_default();
                    pid.ends_with('\n')
                });
                stop.store(true, Relaxed);
            });
            outcome(&script, &stop, GRACE)
        });
        assert!(matches!(ended, Err(EngineError::Stopped)), "{ended:?}");
        assert!(!pid.is_empty() && !lives(&pid), "{pid} lives");
    }

    #[test]
    fn what_a_program_leaves_may_not_hold_its_output_open_longer_than_the_grace() {
        let dir = tempfile::tempdir().unwrap();
        let (file, stop) = (dir.path().join("pid"), AtomicBool::new(false));
        let own = file.display();
        // It begins no group of its own, ignores SIGTERM, and has the shell's output.
        let left = format!("sh -c \"trap '' TERM; echo \\$\\$ > {own}; exec sleep 600\"");
        let script = format!("{left} & while [ ! -s {own} ]; do sleep 0.01; done; echo done");
        let error = outcome(&script, &stop, Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("holds its output open"), "{error}");
        let pid = std::fs::read_to_string(&file).unwrap();
        assert!(!pid.is_empty() && wait_for(Instant::now() + PATIENCE, || !lives(&pid)), "{pid} lives");
        // What ends in time gives what it said.
        assert_eq!(outcome("echo done", &stop, PATIENCE).unwrap(), "done\n");
    }
}
