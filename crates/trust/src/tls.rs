//! What keys, certificates and handshakes are made with.

use std::sync::Arc;

use rustls::{
    Error,
    crypto::{CryptoProvider, aws_lc_rs},
};

use crate::TrustError;

pub(crate) fn tls(what: &'static str) -> impl FnOnce(Error) -> TrustError {
    move |source| TrustError::Tls { what, source }
}

/// The algorithms: AES-128-GCM first, which costs least on CPUs with AES instructions.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    let mut suites = aws_lc_rs::ALL_CIPHER_SUITES.to_vec();
    suites.sort_by_key(|suite| suite.suite() != rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
    Arc::new(CryptoProvider { cipher_suites: suites, ..aws_lc_rs::default_provider() })
}

pub(crate) fn made(what: &'static str) -> impl FnOnce(rcgen::Error) -> TrustError {
    move |source| TrustError::Make { what, source }
}
