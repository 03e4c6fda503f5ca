//! Which members are shut out, beside the manager's store, in `keys/revoked` of its machine: a line of 16 hexadecimal digits for each.
//! The store has them as well. This is for the store that `manager restore` makes from an older dump: who was shut out since stays
//! so. Written whole or not at all.

use std::{fs, io, path::Path};

use anyhow::{Context, Result};
use base::MemberId;

use super::{access, keys};

const NAME: &str = "revoked";

/// Those in the file; none if there is none yet.
pub fn read(dir: &Path) -> Result<Vec<MemberId>> {
    let path = dir.join("keys").join(NAME);
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.with_context(|| format!("read {}", path.display()))?,
    };
    let member = |line: &str| u64::from_str_radix(line, 16).ok().filter(|_| line.len() == 16).map(MemberId);
    let members: Option<_> = text.lines().map(member).collect();
    members
        .with_context(|| format!("{} is damaged: a line of it is not 16 hexadecimal digits", path.display()))
}

/// Keeps them.
pub fn write(dir: &Path, members: &[MemberId]) -> Result<()> {
    let place = dir.join("keys");
    access::make_dir(&place).with_context(|| format!("create {}", place.display()))?;
    let lines: String = members.iter().map(|member| format!("{:016x}\n", member.0)).collect();
    keys::write(&place, NAME, &lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_and_damage_is_said() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), []);
        let members = [MemberId(7), MemberId(u64::MAX)];
        write(dir.path(), &members).unwrap();
        assert_eq!(read(dir.path()).unwrap(), members);
        let path = dir.path().join("keys").join(NAME);
        let whole = fs::read_to_string(&path).unwrap();
        for damaged in [&whole[..20], &whole.replace('7', "g"), &whole.replace('\n', "")] {
            fs::write(&path, damaged).unwrap();
            assert!(read(dir.path()).unwrap_err().to_string().contains("damaged"), "{damaged:?}");
        }
    }
}
