//! TLS of the page: its certificate is kept in `keys/` of the cluster's directory, made when it is not there, does not name the
//! address, or ends soon.

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
    let page = match page::certificate(dir).filter(|page| page.is_good_for(&address)) {
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
