//! What proves the processes of this machine to others: the cluster's secret, where the cluster was made; else the machine's own
//! key and its certificate, in `keys/`.

use std::{fs, io::Write, path::Path};

use anyhow::{Context, Result, bail};
use base::ClusterId;
use net::Identity;
use trust::{Authorities, pem};
use wire::join::Signed;

use super::access;

const KEY: &str = "machine.key";
const CERTIFICATE: &str = "machine.crt";
const AUTHORITY: &str = "authority.crt";

/// Of a machine that has the cluster's authorities or has joined.
pub fn identity(dir: &Path, cluster: ClusterId, authorities: Option<&Authorities>) -> Result<Identity> {
    match authorities {
        Some(authorities) => {
            Identity::from_authorities(cluster, authorities).context("make the process's identity")
        }
        None => joined(dir),
    }
}

/// What a machine that has joined keeps.
pub struct Own {
    /// Its private key, PKCS #8.
    pub key: Vec<u8>,
    /// What the manager has signed for it.
    pub signed: Signed,
}

impl Own {
    /// From its files.
    pub fn read(dir: &Path) -> Result<Own> {
        let place = dir.join("keys");
        let read = |name: &str, kind: &'static str| -> Result<Vec<Vec<u8>>> {
            let path = place.join(name);
            let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            pem::read_all(&text, kind).with_context(|| {
                format!("{} is damaged; restore it from a copy, or join again", path.display())
            })
        };
        let key = read(KEY, pem::KEY)?.swap_remove(0);
        let (mut chain, authorities) =
            (read(CERTIFICATE, pem::CERTIFICATE)?, read(AUTHORITY, pem::CERTIFICATE)?);
        let certificate = chain.remove(0);
        Ok(Own { key, signed: Signed { certificate, behind: chain, authorities } })
    }

    /// What it proves the machine by.
    pub fn identity(&self) -> Result<Identity> {
        let Signed { authorities, .. } = &self.signed;
        let chain = chain(&self.signed).into_iter().map(|one| one.to_vec().into()).collect();
        Ok(Identity::new(
            self.key.clone(),
            chain,
            authorities.iter().map(|one| one.clone().into()).collect(),
        )?)
    }
}

fn chain(signed: &Signed) -> Vec<&[u8]> {
    [&signed.certificate].into_iter().chain(&signed.behind).map(Vec::as_slice).collect()
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
    Own::read(dir)?.identity().with_context(|| format!("use the key in {}", place.display()))
}

/// Keeps another certificate in the place of the former. At any time one of them is there, with the authority that signed it.
pub fn replace(dir: &Path, signed: &Signed) -> Result<()> {
    let place = dir.join("keys");
    let mut all = signed.authorities.clone();
    all.extend(
        Own::read(dir)?.signed.authorities.into_iter().filter(|one| !signed.authorities.contains(one)),
    );
    write(&place, AUTHORITY, &pem::write_all(&all, pem::CERTIFICATE))?;
    write(&place, CERTIFICATE, &pem::write_all(&chain(signed), pem::CERTIFICATE))?;
    if all == signed.authorities {
        return Ok(());
    }
    write(&place, AUTHORITY, &pem::write_all(&signed.authorities, pem::CERTIFICATE))
}

/// Puts text in the place of a file, whole or not at all.
pub fn write(place: &Path, name: &str, text: &str) -> Result<()> {
    let write = || -> std::io::Result<()> {
        // Two processes of the machine may renew at once: each writes a file of its own.
        let new = place.join(format!("{name}.new.{}", std::process::id()));
        let _ = fs::remove_file(&new);
        let mut file = access::options().write(true).create_new(true).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, place.join(name))?;
        fs::File::open(place)?.sync_all()
    };
    write().with_context(|| format!("write {}", place.join(name).display()))
}

/// Keeps what a machine got when it joined; one that joins again gets all of it anew.
pub fn save(dir: &Path, key: &[u8], signed: &Signed) -> Result<()> {
    let place = dir.join("keys");
    access::make_dir(&place).with_context(|| format!("create {}", place.display()))?;
    // The key last: without the one that it certifies a certificate is none, and the machine joins once more.
    write(&place, AUTHORITY, &pem::write_all(&signed.authorities, pem::CERTIFICATE))?;
    write(&place, CERTIFICATE, &pem::write_all(&chain(signed), pem::CERTIFICATE))?;
    write(&place, KEY, &pem::write(key, pem::KEY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_found_again_and_damage_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let error = identity(dir.path(), ClusterId(7), None).unwrap_err().to_string();
        assert!(error.contains("ropewalk join"), "{error}");
        let secret = |byte| net::Secret::new([byte; 32]);
        let [before, during, after] = [(7, None), (8, Some(7)), (8, None)].map(|(newest, former)| {
            let former = former.map(secret);
            Authorities::from_secrets(ClusterId(7), &secret(newest), former.as_ref()).unwrap()
        });
        let roles = trust::Roles::of(&[net::Role::Server]);
        let member = trust::Member {
            cluster: ClusterId(7),
            id: base::MemberId(1),
            roles,
            nodes: trust::Nodes::These(vec![]),
        };
        let asked = trust::Request::new().unwrap();
        let minute = std::time::Duration::from_secs(60);
        let certificate = before.newest().sign_request(&member, &asked.request, minute).unwrap();
        let signed = |by: &Authorities, certificate: &[u8]| Signed {
            certificate: certificate.to_vec(),
            behind: by.behind().iter().map(|one| one.to_vec()).collect(),
            authorities: by.believed().iter().map(|one| one.to_vec()).collect(),
        };
        save(dir.path(), &asked.key, &signed(&before, &certificate)).unwrap();
        let now = || identity(dir.path(), ClusterId(7), None).unwrap();
        assert_eq!(*now().member(), member);
        let mut last = certificate;
        for (by, behind) in [(&before, 0), (&during, 1), (&after, 0)] {
            last = by.renew(&last, &asked.request, minute * 2).unwrap().certificate;
            replace(dir.path(), &signed(by, &last)).unwrap();
            let renewed = now();
            assert_eq!((renewed.member(), renewed.term().life()), (&member, 120));
            assert_eq!((renewed.signer(), renewed.believed().len()), (by.newest().fingerprint(), 1 + behind));
            assert_eq!(Own::read(dir.path()).unwrap().signed.behind.len(), behind);
        }
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
    }
}
