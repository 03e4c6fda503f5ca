//! A file is replaced as a whole: whoever reads it sees the old text or the new one, also after a crash.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use crate::crash;

/// Writes a file, and makes its directory if there is none.
pub(crate) fn replace(path: &Path, text: &str, script: bool) -> io::Result<()> {
    let Some(dir) = path.parent() else { return Ok(()) };
    fs::create_dir_all(dir)?;
    let new = being_made(path);
    let made = make(&new, text, script).and_then(|()| fs::rename(&new, path));
    if made.is_err() {
        let _ = fs::remove_file(&new);
    }
    made?;
    File::open(dir)?.sync_all()?;
    crash::point();
    Ok(())
}

/// The file's name until it is whole. A crash may leave it.
pub(crate) fn being_made(path: &Path) -> PathBuf {
    path.with_extension("new")
}

fn make(new: &Path, text: &str, script: bool) -> io::Result<()> {
    let mut file = File::create(new)?;
    file.write_all(text.as_bytes())?;
    if script {
        // NetworkManager runs only what nobody but root can write to.
        file.set_permissions(fs::Permissions::from_mode(0o755))?;
    }
    file.sync_all()?;
    crash::point();
    Ok(())
}
