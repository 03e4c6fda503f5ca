//! Who may look into a cluster: its owner alone. Directories are made 0700 and files 0600, whatever the umask; what an
//! older version made open is closed by `up`, before anything is started and before the secret is written.

use std::{
    fs::{self, DirBuilder, OpenOptions, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

use anyhow::{Context, Result};

/// What group and others may do.
const OTHERS: u32 = 0o077;

/// Options for a file that only its owner may open, if it is made.
pub fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// Makes a directory for its owner only, and what is above it likewise.
pub fn make_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Makes the directories above a cluster's own: as everywhere, but nobody else may rename what is in them.
pub fn make_parents(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// Everything that this process makes from now on is its owner's only, wherever it is made.
pub fn close_what_is_made() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(OTHERS));
}

/// Takes a file or directory away from group and others; whether that was needed.
pub fn close(path: &Path) -> Result<bool> {
    let mode = fs::symlink_metadata(path)
        .with_context(|| format!("look at {}", path.display()))?
        .permissions()
        .mode();
    if mode & OTHERS == 0 || mode & libc::S_IFMT == libc::S_IFLNK {
        return Ok(false);
    }
    fs::set_permissions(path, Permissions::from_mode(mode & 0o7777 & !OTHERS))
        .with_context(|| format!("take {} away from other users (chmod go=)", path.display()))?;
    Ok(true)
}

/// The same of everything below a directory, links not followed; the directory first, which closes the way. How
/// many were open.
pub fn close_all(path: &Path) -> Result<u64> {
    let mut count = u64::from(close(path)?);
    if fs::symlink_metadata(path)?.is_dir() {
        for entry in fs::read_dir(path).with_context(|| format!("read {}", path.display()))? {
            match close_all(&entry?.path()) {
                Ok(n) => count += n,
                // Files come and go while processes run.
                Err(error) if gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(count)
}

fn gone(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_open_is_closed_and_links_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (inside, outside) = (dir.path().join("in"), dir.path().join("out"));
        fs::create_dir_all(inside.join("sub")).unwrap();
        fs::write(inside.join("sub/file"), "x").unwrap();
        fs::write(&outside, "not ours").unwrap();
        std::os::unix::fs::symlink(&outside, inside.join("link")).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        for (path, open) in
            [(&inside, 0o755), (&inside.join("sub"), 0o777), (&inside.join("sub/file"), 0o666)]
        {
            fs::set_permissions(path, Permissions::from_mode(open)).unwrap();
        }
        fs::set_permissions(&outside, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(close_all(&inside).unwrap(), 3);
        assert_eq!(close_all(&inside).unwrap(), 0);
        assert_eq!(
            (mode(&inside), mode(&inside.join("sub")), mode(&inside.join("sub/file"))),
            (0o700, 0o700, 0o600)
        );
        assert_eq!(mode(&outside), 0o644);
    }
}
