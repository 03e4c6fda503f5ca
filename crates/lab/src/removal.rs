//! Removes directories, for so long at most: below them may be a file system that does not answer, and what a run leaves must not
//! hold up the run.

use std::{
    fs, io,
    path::Path,
    sync::mpsc::{RecvTimeoutError, channel},
    time::Duration,
};

/// How long it may take, unless it is said otherwise: many files on a slow file system take minutes.
pub(crate) const REMOVE_MAX: Duration = Duration::from_secs(300);

/// Removes a directory with all that is in it; one that is not there is removed.
pub(crate) fn tree(path: &Path, most: Duration) -> io::Result<()> {
    let own = path.to_owned();
    let remove = move || match fs::remove_dir_all(own) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    };
    bounded(path, most, remove)
}

/// Does something about a path on a thread of its own, and waits for so long at most; a call that does not return keeps only that thread.
pub(crate) fn bounded(
    path: &Path,
    most: Duration,
    what: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> io::Result<()> {
    let (done, outcome) = channel();
    // Who no longer waits does not want to know.
    let work = move || drop(done.send(what()));
    std::thread::Builder::new().name("lab-remove".into()).spawn(work)?;
    match outcome.recv_timeout(most) {
        Ok(outcome) => outcome,
        Err(RecvTimeoutError::Timeout) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!(
                "{} was not removed within {} s: a file system there may not answer",
                path.display(),
                most.as_secs()
            ),
        )),
        Err(RecvTimeoutError::Disconnected) => {
            Err(io::Error::other("the thread that removes it ended early"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_removed_whether_it_is_there_or_not() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("a");
        fs::create_dir_all(own.join("b")).unwrap();
        fs::write(own.join("b/c"), "x").unwrap();
        tree(&own, REMOVE_MAX).unwrap();
        assert!(!own.exists());
        tree(&own, REMOVE_MAX).unwrap();
        fs::write(&own, "a file").unwrap();
        assert!(tree(&own, REMOVE_MAX).is_err());
    }

    #[test]
    fn what_does_not_return_holds_up_nobody() {
        // It waits for a message that comes when the test is over.
        let (_over, hung) = channel::<()>();
        let stuck = move || hung.recv().map_err(io::Error::other);
        let error = bounded(Path::new("/hung"), Duration::ZERO, stuck).unwrap_err();
        assert!(error.kind() == io::ErrorKind::TimedOut && error.to_string().contains("/hung"), "{error}");
    }
}
