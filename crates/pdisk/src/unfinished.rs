//! What a run that was interrupted while it made a pdisk has left: removed, so that it can be made again.
//! What that run did not make stays, and so does a pdisk that is whole.

use std::{fs, io, path::Path};

use base::{ClusterId, PdiskId};

use crate::{
    error::PdiskError,
    files::{LABEL_NEW, Label, read_label, refuse_used, sync_dir},
    lock::take_lock,
};

/// Whether a pdisk can be made in `dir`: it is empty or absent.
pub(crate) fn is_free(dir: &Path) -> Result<(), PdiskError> {
    if is_absent(dir)? { Ok(()) } else { refuse_used(dir) }
}

fn is_absent(dir: &Path) -> Result<bool, PdiskError> {
    dir.try_exists().map(|there| !there).map_err(PdiskError::io("look for", dir))
}

/// Removes what is left of this pdisk in `dir`, and its log; true if it is there as a whole.
pub(crate) fn clear(dir: &Path, cluster: ClusterId, pdisk: PdiskId) -> Result<bool, PdiskError> {
    if is_absent(dir)? {
        return Ok(false);
    }
    let _lock = take_lock(dir)?;
    let of_another = |label: &Label| (label.cluster, label.pdisk) != (cluster, pdisk);
    let refused =
        |label: Label| PdiskError::InUse { dir: dir.into(), pdisk: label.pdisk, cluster: label.cluster };
    match read_label(dir) {
        Ok(label) if of_another(&label) => return Err(refused(label)),
        Ok(_) => return Ok(true),
        Err(PdiskError::NoPdisk { .. }) => {}
        Err(error) => return Err(error),
    }
    let new = dir.join(LABEL_NEW);
    let bytes = match fs::read(&new) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(PdiskError::io("read", &new)(error)),
    };
    // Where it is torn it is all that there is.
    if let Ok(label) = Label::decode(&bytes, &new) {
        if of_another(&label) {
            return Err(refused(label));
        }
        let files = ["data", "crc", "index.0", "index.1"].map(|name| dir.join(name));
        for path in [label.log_path(dir, None)].iter().chain(&files) {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(PdiskError::io("remove", path)(error));
                }
                _ => {}
            }
        }
        sync_dir(dir)?; // the label goes last: by it they are found
    }
    fs::remove_file(&new).map_err(PdiskError::io("remove", &new))?;
    sync_dir(dir)?;
    Ok(false)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests
mod tests {
    use super::*;
    use crate::{CreateOptions, Pdisk};

    const CLUSTER: ClusterId = ClusterId(7);
    const PDISK: PdiskId = PdiskId(3);

    /// Whatever of it is there when it is interrupted, it can be made again, and no log of it is left.
    #[test]
    fn what_is_half_made_is_made_anew() {
        let root = tempfile::tempdir().unwrap();
        let (dir, logs) = (root.path().join("p"), root.path().join("logs"));
        let options =
            || CreateOptions { log_dir: Some(logs.clone()), ..CreateOptions::new(CLUSTER, PDISK, 192 << 20) };
        let log_files = || fs::read_dir(&logs).unwrap().count();
        let made = ["data", "crc", "index.0", "index.1"];
        for there in 0..=made.len() {
            assert!(!clear(&dir, CLUSTER, PDISK).unwrap());
            is_free(&dir).unwrap();
            Pdisk::create(&dir, options()).unwrap();
            assert!(clear(&dir, CLUSTER, PDISK).unwrap(), "it is whole");
            assert!(clear(&dir, CLUSTER, PdiskId(4)).is_err(), "it is another");
            fs::rename(dir.join("label"), dir.join(LABEL_NEW)).unwrap();
            made[there..].iter().for_each(|name| fs::remove_file(dir.join(name)).unwrap());
            assert!(Pdisk::create(&dir, options()).is_err());
            assert!(clear(&dir, CLUSTER, PdiskId(4)).is_err(), "it is another");
            assert_eq!(log_files(), 1);
            assert!(!clear(&dir, CLUSTER, PDISK).unwrap());
            assert_eq!(log_files(), 0);
        }
        fs::write(dir.join(LABEL_NEW), "torn").unwrap();
        assert!(!clear(&dir, CLUSTER, PDISK).unwrap());
        fs::write(dir.join("data"), "of somebody else").unwrap();
        assert!(!clear(&dir, CLUSTER, PDISK).unwrap());
        assert!(is_free(&dir).is_err() && Pdisk::create(&dir, options()).is_err());
    }
}
