//! The secret of the lab's own processes: netperf's servers and controllers, agents and who leads them. They belong to
//! no cluster that holds data, but an agent writes where it was told that it may, so it does not do that for anybody.
//!
//! It stands in a file that only its owner reads: `$ROPEWALK_LAB_KEY`, or `.ropewalk-lab.key` in the home directory. The
//! first process that needs it makes it; other hosts get a copy of it.

use std::{
    env, fs,
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use base::ClusterId;
use net::{Identity, Secret};
use thiserror::Error;

/// Names the file.
pub const VARIABLE: &str = "ROPEWALK_LAB_KEY";
const NAME: &str = ".ropewalk-lab.key";
/// Longest file that is read.
const LEN_MAX: u64 = 1 << 20;

/// Why there is no secret.
#[derive(Debug, Error)]
pub enum KeyError {
    /// Neither a file is named nor is there a home directory.
    #[error(
        "no secret for the lab's processes: set {VARIABLE} to a file of your own (it is made if it is not there)"
    )]
    NoPlace,
    /// No key or certificate can be made of it.
    #[error("make an identity from the lab's secret")]
    Identity(#[source] net::TrustError),
    /// The file cannot be used.
    #[error(
        "the lab's secret {}: {source}; it must be a file of your own that nobody else can read, the same on all \
         hosts (another one is named by {VARIABLE})", path.display()
    )]
    Io {
        /// The file.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
}

/// The secret of this user's lab.
pub fn secret() -> Result<Secret, KeyError> {
    let named = env::var_os(VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from);
    let home = || env::var_os("HOME").filter(|home| !home.is_empty()).map(|home| Path::new(&home).join(NAME));
    let path = named.or_else(home).ok_or(KeyError::NoPlace)?;
    match read(&path) {
        Err(KeyError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            make(&path).map_err(|source| KeyError::Io { path: path.clone(), source })?;
            read(&path)
        }
        outcome => outcome,
    }
}

/// What proves a process of this user's lab to the others, in `cluster`.
pub fn identity(cluster: ClusterId) -> Result<Identity, KeyError> {
    Identity::from_secret(cluster, &secret()?).map_err(KeyError::Identity)
}

/// The secret in a file: 64 hexadecimal digits, or a line of a `cluster.toml`.
pub fn read(path: &Path) -> Result<Secret, KeyError> {
    let failed = |source| KeyError::Io { path: path.to_owned(), source };
    // Opening a pipe waits for who writes to it.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(failed(io::Error::other("it is no file")));
    }
    let file = fs::File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.mode() & 0o077 != 0 {
        return Err(failed(io::Error::other("others can read it (chmod 600)")));
    }
    let mut text = String::new();
    file.take(LEN_MAX).read_to_string(&mut text).map_err(failed)?;
    Secret::in_text(&text).ok_or_else(|| failed(io::Error::other("holds no secret of 64 hexadecimal digits")))
}

/// Whoever is first makes it; it is there as a whole or not at all.
fn make(path: &Path) -> io::Result<()> {
    let mut bytes = [0; net::SECRET_LEN];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}-{}", std::process::id(), bytes[0]));
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let made =
        writeln!(file, "{}", Secret::new(bytes).to_hex()).and_then(|()| fs::hard_link(&temporary, path));
    let _ = fs::remove_file(&temporary);
    match made {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_first_makes_it_and_nobody_else_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        assert!(read(&path).is_err());
        make(&path).unwrap();
        let first = read(&path).unwrap();
        make(&path).unwrap();
        assert!(read(&path).unwrap() == first);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("chmod 600") && !error.contains(&first.to_hex()), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "short").unwrap();
        assert!(read(&path).is_err());
    }
}
