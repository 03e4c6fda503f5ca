//! TLS of the page: its certificate is kept in `keys/` of the cluster's directory, made when it is not there, does not name the
//! address, ends soon, or is not of the key that is there (a crash came between the two).

use std::{net::SocketAddr, path::Path, sync::Arc};

use anyhow::{Context, Result};
use tokio_rustls::TlsAcceptor;
use trust::{Fingerprint, Identity, Page};

use crate::cluster_dir::{host::host_name, page};

/// What connections are accepted with, and by what the page is known.
pub fn acceptor(dir: &Path, listen: SocketAddr, identity: &Identity) -> Result<(TlsAcceptor, Fingerprint)> {
    let address = match listen.ip() {
        ip if ip.is_unspecified() => host_name(),
        ip => ip.to_string(),
    };
    let is_good = |page: &Page| page.is_good_for(&address) && identity.page(page).is_ok();
    let page = match page::certificate(dir).filter(is_good) {
        Some(page) => page,
        None => {
            let mut names = vec![address, host_name(), "localhost".to_owned(), "127.0.0.1".to_owned()];
            names.sort();
            names.dedup();
            let page = Page::new(names)?;
            page::keep_certificate(dir, &page)?;
            page
        }
    };
    let config = identity.page(&page).context("use the page's certificate")?;
    Ok((TlsAcceptor::from(Arc::clone(&config)), page.fingerprint()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use base::ClusterId;
    use trust::{Authorities, pem};

    use super::*;

    #[test]
    fn a_certificate_beside_another_key_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let authorities = Authorities::from_secrets(ClusterId(7), &net::Secret::new([7; 32]), None).unwrap();
        let identity = Identity::from_authorities(ClusterId(7), &authorities).unwrap();
        let made = || acceptor(dir.path(), "127.0.0.1:1".parse().unwrap(), &identity).unwrap().1;
        let first = made();
        assert_eq!(made(), first, "it is kept");
        let other = Page::new(vec!["localhost".to_owned()]).unwrap();
        fs::write(dir.path().join("keys/page.key"), pem::write(&other.key, pem::KEY)).unwrap();
        let second = made();
        assert_ne!(second, first);
        assert_eq!(made(), second, "it is kept");
    }
}
