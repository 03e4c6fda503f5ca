//! What proves the processes of this machine to others: the cluster's secret, where the cluster was made; else the machine's own
//! key and its certificate, in `keys/`.

use std::{fs, io::Write, path::Path};

use anyhow::{Context, Result, bail};
use base::ClusterId;
use net::{Identity, Secret};
use trust::pem;

use super::access;

const KEY: &str = "machine.key";
const CERTIFICATE: &str = "machine.crt";
const AUTHORITY: &str = "authority.crt";

/// Of a machine that has the secret (64 hexadecimal digits) or has joined.
pub fn identity(dir: &Path, cluster: ClusterId, secret: Option<&str>) -> Result<Identity> {
    let Some(digits) = secret else { return joined(dir) };
    // Not shown, whatever it is.
    let secret = Secret::from_hex(digits)
        .context("the secret in cluster.toml is not 64 hexadecimal digits; restore it from a copy")?;
    Identity::from_secret(cluster, &secret).context("make the process's identity")
}

/// What a machine that has joined keeps.
pub struct Own {
    /// Its private key, PKCS #8.
    pub key: Vec<u8>,
    /// The certificate of that.
    pub certificate: Vec<u8>,
    /// The cluster's authority's.
    pub authority: Vec<u8>,
}

impl Own {
    /// From its files.
    pub fn read(dir: &Path) -> Result<Own> {
        let place = dir.join("keys");
        let read = |name: &str, kind: &'static str| -> Result<Vec<u8>> {
            let path = place.join(name);
            let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            pem::read(&text, kind).with_context(|| {
                format!("{} is damaged; restore it from a copy, or join again", path.display())
            })
        };
        let key = read(KEY, pem::KEY)?;
        let (certificate, authority) =
            (read(CERTIFICATE, pem::CERTIFICATE)?, read(AUTHORITY, pem::CERTIFICATE)?);
        Ok(Own { key, certificate, authority })
    }
}

fn joined(dir: &Path) -> Result<Identity> {
    let place = dir.join("keys");
    if !place.join(KEY).exists() {
        bail!(
            "cluster.toml holds no secret, and there is no key in {}: where the cluster was made `ropewalk up` makes a \
             secret; another machine joins with a token (`ropewalk node token` there, `ropewalk join` here)",
            place.display()
        );
    }
    let Own { key, certificate, authority } = Own::read(dir)?;
    Identity::new(key, certificate.into(), vec![authority.into()])
        .with_context(|| format!("use the key in {}", place.display()))
}

/// Keeps another certificate in the place of the former: one of them is there at any time.
pub fn replace_certificate(dir: &Path, certificate: &[u8]) -> Result<()> {
    let place = dir.join("keys");
    let path = place.join(CERTIFICATE);
    let replace = || -> std::io::Result<()> {
        // Two processes of the machine may renew at once: each writes a file of its own.
        let new = place.join(format!("{CERTIFICATE}.new.{}", std::process::id()));
        let _ = fs::remove_file(&new);
        let mut file = access::options().write(true).create_new(true).open(&new)?;
        file.write_all(pem::write(certificate, pem::CERTIFICATE).as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        fs::File::open(&place)?.sync_all()
    };
    replace().with_context(|| format!("write {}", path.display()))
}

/// Keeps what a machine got when it joined.
pub fn save(dir: &Path, key: &[u8], certificate: &[u8], authority: &[u8]) -> Result<()> {
    let place = dir.join("keys");
    access::make_dir(&place).with_context(|| format!("create {}", place.display()))?;
    for (name, kind, bytes) in [
        (KEY, pem::KEY, key),
        (CERTIFICATE, pem::CERTIFICATE, certificate),
        (AUTHORITY, pem::CERTIFICATE, authority),
    ] {
        let path = place.join(name);
        let write = || -> std::io::Result<()> {
            let mut file = access::options().write(true).create_new(true).open(&path)?;
            file.write_all(pem::write(bytes, kind).as_bytes())?;
            file.sync_all()
        };
        write().with_context(|| format!("write {}", path.display()))?;
    }
    fs::File::open(&place)
        .and_then(|dir| dir.sync_all())
        .with_context(|| format!("write {}", place.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_found_again_and_damage_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let error = identity(dir.path(), ClusterId(7), None).unwrap_err().to_string();
        assert!(error.contains("ropewalk join"), "{error}");
        let authority = trust::Authority::from_secret(ClusterId(7), &Secret::new([7; 32])).unwrap();
        let roles = trust::Roles::of(&[net::Role::Server]);
        let member = trust::Member {
            cluster: ClusterId(7),
            id: base::MemberId(1),
            roles,
            nodes: trust::Nodes::These(vec![]),
        };
        let asked = trust::Request::new().unwrap();
        let certificate = authority.sign_request(&member, &asked.request, std::time::Duration::ZERO).unwrap();
        save(dir.path(), &asked.key, &certificate, authority.certificate()).unwrap();
        assert_eq!(*identity(dir.path(), ClusterId(7), None).unwrap().member(), member);
        let minute = std::time::Duration::from_secs(60);
        let (_, renewed) = authority.renew(&certificate, &asked.request, minute).unwrap();
        replace_certificate(dir.path(), &renewed).unwrap();
        let renewed = identity(dir.path(), ClusterId(7), None).unwrap();
        assert_eq!((renewed.member(), renewed.term().life()), (&member, 60));
        assert_eq!(fs::read_dir(dir.path().join("keys")).unwrap().count(), 3);
        for name in [KEY, CERTIFICATE, AUTHORITY] {
            let path = dir.path().join("keys").join(name);
            let whole = fs::read_to_string(&path).unwrap();
            for damaged in [&whole[..whole.len() / 2], "", &whole.replace('M', "N")] {
                fs::write(&path, damaged).unwrap();
                let error = format!("{:#}", identity(dir.path(), ClusterId(7), None).unwrap_err());
                assert!(!error.contains(&whole[40..60]), "{error}");
            }
            fs::write(&path, whole).unwrap();
        }
        assert!(save(dir.path(), b"", b"", b"").is_err(), "nothing is written over");
    }
}
