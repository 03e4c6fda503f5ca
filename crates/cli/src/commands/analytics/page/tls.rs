//! TLS of the page: its certificate is kept in `keys/` of the cluster's directory, made when it is not there, does not name the
//! address, or ends soon.

use std::{fs, net::SocketAddr, path::Path, sync::Arc};

use anyhow::{Context, Result};
use tokio_rustls::TlsAcceptor;
use trust::{Fingerprint, Identity, Page, pem};

use crate::cluster_dir::{access, host::host_name, keys};

const KEY: &str = "page.key";
const CERTIFICATE: &str = "page.crt";

/// What connections are accepted with, and by what the page is known.
pub fn acceptor(dir: &Path, listen: SocketAddr, identity: &Identity) -> Result<(TlsAcceptor, Fingerprint)> {
    let address = match listen.ip() {
        ip if ip.is_unspecified() => host_name(),
        ip => ip.to_string(),
    };
    let page = match kept(dir).filter(|page| page.is_good_for(&address)) {
        Some(page) => page,
        None => {
            let mut names = vec![address, host_name(), "localhost".to_owned(), "127.0.0.1".to_owned()];
            names.sort();
            names.dedup();
            let page = Page::new(names)?;
            let place = dir.join("keys");
            access::make_dir(&place).with_context(|| format!("create {}", place.display()))?;
            keys::write(&place, KEY, &pem::write(&page.key, pem::KEY))?;
            keys::write(&place, CERTIFICATE, &pem::write(&page.certificate, pem::CERTIFICATE))?;
            page
        }
    };
    let config = identity.page(&page).context("use the page's certificate")?;
    Ok((TlsAcceptor::from(Arc::clone(&config)), page.fingerprint()))
}

/// That of the last time, if it is whole.
fn kept(dir: &Path) -> Option<Page> {
    let read = |name: &str, kind| pem::read(&fs::read_to_string(dir.join("keys").join(name)).ok()?, kind);
    Some(Page { key: read(KEY, pem::KEY)?, certificate: read(CERTIFICATE, pem::CERTIFICATE)? })
}
