//! Runs a program that only reads, for a few seconds at most. What it does not print in time is not waited for.

use std::{
    io::Read,
    path::Path,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longer outputs are cut.
const BYTES_MAX: u64 = 256 << 10;
/// Where programs of the system are; the caller's `PATH` does not count.
const PLACES: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// What a program of the system prints; nothing if it is not there, prints nothing, or does not end in time.
pub fn output(words: &[&str]) -> Option<String> {
    let (name, args) = words.split_first()?;
    let program = PLACES.iter().map(|place| Path::new(place).join(name)).find(|path| path.is_file())?;
    let mut child = Command::new(program)
        .args(args)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut pipe = child.stdout.take()?.take(BYTES_MAX);
    let (done, wait) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = pipe.read_to_end(&mut bytes);
        let _ = done.send(read.is_ok().then_some(bytes));
    });
    let bytes = wait.recv_timeout(PATIENCE).ok().flatten();
    // It has closed its output, or is to be ended. One that waits for a disk ends when the disk answers: nobody waits for that.
    let _ = child.kill();
    thread::spawn(move || child.wait());
    let text = String::from_utf8_lossy(&bytes?).into_owned();
    (!text.trim().is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::output;

    #[test]
    fn what_is_printed_and_what_is_not_there() {
        assert_eq!(output(&["echo", "one", "two"]).as_deref(), Some("one two\n"));
        assert_eq!((output(&["true"]), output(&["no-such-program"]), output(&[])), (None, None, None));
        let many = output(&["yes"]).unwrap();
        assert_eq!(many.len(), super::BYTES_MAX as usize);
    }
}
