//! A file is replaced as a whole: whoever reads it sees the old text or the new one, also after a crash.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
};

use crate::crash;

/// Writes a file, and makes its directory if there is none.
pub(crate) fn replace(path: &Path, text: &str, script: bool) -> io::Result<()> {
    let Some(dir) = path.parent() else { return Ok(()) };
    fs::create_dir_all(dir)?;
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(text.as_bytes())?;
    if script {
        // NetworkManager runs only what nobody but root can write to.
        file.set_permissions(fs::Permissions::from_mode(0o755))?;
    }
    file.sync_all()?;
    crash::point();
    fs::rename(&new, path)?;
    File::open(dir)?.sync_all()?;
    crash::point();
    Ok(())
}
