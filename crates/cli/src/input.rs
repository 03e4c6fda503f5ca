//! Files that a command is given by name: what is none is refused, and not waited for.
//!
//! Opening a FIFO that nobody writes to waits without end, and a device may answer never. What the shell has opened for the command,
//! `/dev/stdin` and `<(...)`, is read whatever it is: somebody is at the other end.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::FileTypeExt,
    path::Path,
};

/// What the shell opened before.
fn is_open_already(path: &Path) -> bool {
    path == Path::new("/dev/stdin")
        || ["/dev/fd", "/proc/self/fd"].iter().any(|place| path.parent() == Some(Path::new(place)))
}

/// Refuses what opening or reading could wait for without end.
///
/// # Errors
/// There is nothing, or no regular file; the error says what it is instead.
pub fn check(path: &Path) -> io::Result<()> {
    if is_open_already(path) {
        return Ok(());
    }
    let kind = fs::metadata(path)?.file_type();
    let what = match kind {
        _ if kind.is_file() => return Ok(()),
        _ if kind.is_dir() => "a directory",
        _ if kind.is_fifo() => "a FIFO (write its content to a file, or give it as /dev/stdin)",
        _ if kind.is_socket() => "a socket",
        _ => "a device",
    };
    Err(io::Error::other(format!("it is no file but {what}")))
}

/// Opens a file to be read.
///
/// # Errors
/// As [`check`], and what opening says.
pub fn open(path: &Path) -> io::Result<File> {
    check(path)?;
    File::open(path)
}

/// Its text, of so many bytes at most.
///
/// # Errors
/// As [`open`], and what reading says: it is longer, or no text.
pub fn text(path: &Path, bytes_max: u64) -> io::Result<String> {
    let mut text = String::new();
    let read = open(path)?.take(bytes_max.saturating_add(1)).read_to_string(&mut text)?;
    if read as u64 > bytes_max {
        return Err(io::Error::other(format!("it has more than {}", base::ByteSize(bytes_max))));
    }
    Ok(text)
}
