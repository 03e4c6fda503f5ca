//! What a cluster's directory keeps of the page of analytics beside its address: the hash of its password, and its certificate, which
//! is its own, with the key. What is damaged of a certificate is made anew, a damaged hash is an error.

use std::{fs, net::SocketAddr, path::Path};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use trust::{Fingerprint, Page, pem};

use super::{access, host::host_name, keys, make::random};

const PASSWORD: &str = "analytics.password";
const KEY: &str = "page.key";
const CERTIFICATE: &str = "page.crt";

/// Of a password.
pub type Hash = [u8; 32];

/// The hash of the password, if there is one.
pub fn password(dir: &Path) -> Result<Option<Hash>> {
    let path = dir.join(PASSWORD);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
    };
    let digits = text.trim();
    let byte = |at: usize| u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok();
    let hash: Option<Vec<u8>> = (0..32).map(byte).collect();
    match hash.and_then(|hash| Hash::try_from(hash).ok()).filter(|_| digits.len() == 64) {
        Some(hash) => Ok(Some(hash)),
        None => bail!("{} is damaged; make another: ropewalk analytics password", path.display()),
    }
}

/// Draws a password, to be shown once; its hash is kept.
pub fn draw_password(dir: &Path) -> Result<String> {
    let password = hex(&random::<16>()?);
    keys::write(dir, PASSWORD, &format!("{}\n", hex(&Sha256::digest(&password))))?;
    Ok(password)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The certificate of the last time, if it is whole.
pub fn certificate(dir: &Path) -> Option<Page> {
    let read = |name: &str, kind| pem::read(&fs::read_to_string(dir.join("keys").join(name)).ok()?, kind);
    Some(Page { key: read(KEY, pem::KEY)?, certificate: read(CERTIFICATE, pem::CERTIFICATE)? })
}

/// Keeps it for the next time.
pub fn keep_certificate(dir: &Path, page: &Page) -> Result<()> {
    let place = dir.join("keys");
    access::make_dir(&place).with_context(|| format!("create {}", place.display()))?;
    keys::write(&place, KEY, &pem::write(&page.key, pem::KEY))?;
    keys::write(&place, CERTIFICATE, &pem::write(&page.certificate, pem::CERTIFICATE))
}

/// Where the page is, for a browser: of one that listens at all addresses by the machine's name, for which its certificate is.
pub fn url(addr: SocketAddr, tls: bool) -> String {
    let place = match addr.ip().is_unspecified() {
        true => format!("{}:{}", host_name(), addr.port()),
        false => addr.to_string(),
    };
    format!("http{}://{place}/", if tls { "s" } else { "" })
}

/// By what its certificate is known, for people.
pub fn told(fingerprint: Fingerprint) -> String {
    format!("its certificate is its own: SHA-256 {fingerprint}, as the browser shows it")
}
