//! What the cluster's tunable `cipherList` said last, in `DIR/cipher-list`: it must be known before anybody can be asked. While the
//! tunable is `auto` there is no file, and `cluster.toml` says it.
//!
//! Every process that follows the tunables writes it, all of them the same. A machine that was off has an older one, and learns the
//! new one over connections that are protected by the stricter of the two.

use std::{
    fs,
    io::{self, Write},
    path::Path,
};

use anyhow::{Context, Result};
use base::CipherList;

use super::access;

const NAME: &str = "cipher-list";

/// What was kept, if anything.
pub fn kept(dir: &Path) -> Result<Option<CipherList>> {
    let path = dir.join(NAME);
    match fs::read_to_string(&path) {
        Ok(text) => {
            let list = text.trim().parse().map_err(anyhow::Error::msg);
            list.map(Some).with_context(|| format!("{} is damaged; remove it", path.display()))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).with_context(|| format!("read {}", path.display())),
    }
}

/// Keeps what the tunable says now.
pub fn keep(dir: &Path, list: Option<CipherList>) -> Result<()> {
    if kept(dir).is_ok_and(|kept| kept == list) {
        return Ok(());
    }
    let path = dir.join(NAME);
    // Several processes of a machine may be at it.
    let temporary = dir.join(format!("{NAME}.{}", std::process::id()));
    let write = || match list {
        Some(list) => {
            let mut file = access::options().write(true).create(true).truncate(true).open(&temporary)?;
            writeln!(file, "{list}")?;
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            fs::File::open(dir)?.sync_all()
        }
        None => match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        },
    };
    write().with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_is_found_and_nothing_else_is_taken_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert_eq!(kept(dir).unwrap(), None);
        for list in [Some(CipherList::AuthOnly), Some(CipherList::Aes256), None, None] {
            keep(dir, list).unwrap();
            assert_eq!(kept(dir).unwrap(), list);
        }
        assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
        fs::write(dir.join(NAME), "NULL-NULL\n").unwrap();
        let error = format!("{:#}", kept(dir).unwrap_err());
        assert!(error.contains("remove it") && error.contains("AUTHONLY"), "{error}");
        keep(dir, Some(CipherList::Default)).unwrap();
        assert_eq!(kept(dir).unwrap(), Some(CipherList::Default));
    }
}
