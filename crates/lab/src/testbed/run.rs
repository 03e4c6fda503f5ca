//! Runs `ip` and `tc`, each with a deadline; what they say on failure goes into the error.

use std::{
    io::{self, Read, Write},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::TestbedError;

/// These commands take milliseconds; a kernel that takes longer than this for one has another problem.
const DEADLINE: Duration = Duration::from_secs(20);

/// Runs a program; its standard output.
pub(super) fn run(action: &str, program: &str, args: &[&str]) -> Result<String, TestbedError> {
    run_with(action, program, args, "")
}

/// Runs many commands of `ip` or `tc` in a namespace at once; it stops at the first that fails.
pub(super) fn batch(
    action: &str,
    program: &str,
    netns: &str,
    commands: &[String],
) -> Result<(), TestbedError> {
    if commands.is_empty() {
        return Ok(());
    }
    let script = commands.join("\n") + "\n";
    run_with(action, program, &["-n", netns, "-batch", "-"], &script).map(drop).map_err(|e| match e {
        TestbedError::Command { action, command, message, missing } => {
            // "Command failed -:3" names the line.
            let line = message.rsplit("-:").next().and_then(|n| n.trim().parse::<usize>().ok());
            let failed = line.and_then(|n| commands.get(n.saturating_sub(1)));
            let command = failed.map_or(command, |c| format!("{program} -n {netns} {c}"));
            TestbedError::Command { action, command, message, missing }
        }
        other => other,
    })
}

fn run_with(action: &str, program: &str, args: &[&str], input: &str) -> Result<String, TestbedError> {
    let failed = |message: String, missing| TestbedError::Command {
        action: action.to_owned(),
        command: format!("{program} {}", args.join(" ")),
        message,
        missing,
    };
    let ran = output(program, args, input)
        .map_err(|error| failed(error.to_string(), error.kind() == io::ErrorKind::NotFound))?;
    ran.map_err(|message| failed(message, false))
}

/// `Ok(Err(text))`: it ran and failed.
fn output(program: &str, args: &[&str], input: &str) -> io::Result<Result<String, String>> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    // Both are far below what a pipe holds, and closing the input ends the batch.
    let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(input.as_bytes()));
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let reader = std::thread::spawn(move || text_of(stdout));
    let begun = Instant::now();
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if begun.elapsed() > DEADLINE => {
                child.kill()?;
                child.wait()?;
                return Ok(Err(format!("no end within {DEADLINE:?}")));
            }
            None => std::thread::sleep(Duration::from_micros(500)),
        }
    };
    let text = reader.join().unwrap_or_default();
    if status.success() {
        written?;
        return Ok(Ok(text));
    }
    let said = text_of(stderr);
    Ok(Err(if said.trim().is_empty() { status.to_string() } else { said.trim().replace('\n', "; ") }))
}

fn text_of(pipe: Option<impl Read>) -> String {
    let mut text = String::new();
    if let Some(mut pipe) = pipe {
        // What was read up to an error is still worth showing.
        let _ = pipe.read_to_string(&mut text);
    }
    text
}
