//! Runs a program of the system, for a bounded time. What it does not print in time is not waited for.

use std::{
    io::Read,
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// How long one that only reads may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longer outputs are cut.
const BYTES_MAX: u64 = 256 << 10;
/// Where programs of the system are; the caller's `PATH` does not count.
const PLACES: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// What a program of the system prints; nothing if it is not there, prints nothing, or does not end in time.
pub fn output(words: &[&str]) -> Option<String> {
    let (mut child, printed) = start(words, Stdio::null())?;
    let bytes = printed.recv_timeout(PATIENCE).ok().flatten();
    // It has closed its output, or is to be ended. One that waits for a disk ends when the disk answers: nobody waits for that.
    let _ = child.kill();
    thread::spawn(move || child.wait());
    let text = String::from_utf8_lossy(&bytes?).into_owned();
    (!text.trim().is_empty()).then_some(text)
}

/// Runs one that changes something to its end.
///
/// # Errors
/// What it said, if it is not there, fails, or takes longer; then it is ended.
pub(crate) fn run(words: &[&str], patience: Duration) -> Result<(), String> {
    let (mut child, printed) = start(words, Stdio::piped()).ok_or("it is not there, or does not start")?;
    let mut errors = child.stderr.take().map(|pipe| read_all(pipe.take(BYTES_MAX)));
    let until = Instant::now() + patience;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Ok(status),
            Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(20)),
            Ok(None) => break Err(format!("it took longer than {} s", patience.as_secs())),
            Err(error) => break Err(error.to_string()),
        }
    };
    if status.is_err() {
        let _ = child.kill();
        thread::spawn(move || child.wait());
    }
    if status?.success() {
        return Ok(());
    }
    // It has ended, so both are there, unless something that it started holds them.
    let said = [Some(printed), errors.take()].into_iter().flatten();
    let said =
        said.filter_map(|said| said.recv_timeout(PATIENCE).ok().flatten()).collect::<Vec<_>>().concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    Err(said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it failed").trim().to_owned())
}

/// What is printed, once all is.
type Printed = mpsc::Receiver<Option<Vec<u8>>>;

fn start(words: &[&str], errors: Stdio) -> Option<(Child, Printed)> {
    let (name, args) = words.split_first()?;
    let program = PLACES.iter().map(|place| Path::new(place).join(name)).find(|path| path.is_file())?;
    let mut child = Command::new(program)
        .args(args)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(errors)
        .spawn()
        .ok()?;
    let pipe = child.stdout.take()?.take(BYTES_MAX);
    Some((child, read_all(pipe)))
}

fn read_all(mut pipe: impl Read + Send + 'static) -> Printed {
    let (done, printed) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = pipe.read_to_end(&mut bytes);
        let _ = done.send(read.is_ok().then_some(bytes));
    });
    printed
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{output, run};

    #[test]
    fn what_is_printed_and_what_is_not_there() {
        assert_eq!(output(&["echo", "one", "two"]).as_deref(), Some("one two\n"));
        assert_eq!((output(&["true"]), output(&["no-such-program"]), output(&[])), (None, None, None));
        let many = output(&["yes"]).unwrap();
        assert_eq!(many.len(), super::BYTES_MAX as usize);
    }
    #[test]
    fn what_fails_or_takes_too_long_is_told() {
        let long = Duration::from_secs(60);
        assert_eq!(run(&["true"], long), Ok(()));
        assert!(run(&["ls", "/no/such"], long).unwrap_err().contains("/no/such"));
        assert!(run(&["no-such-program"], long).unwrap_err().contains("not there"));
        let started = Instant::now();
        assert!(run(&["sleep", "60"], Duration::from_millis(50)).unwrap_err().contains("longer"));
        assert!(started.elapsed() < Duration::from_secs(30));
    }
}
