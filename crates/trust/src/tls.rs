//! What keys, certificates and handshakes are made with.

use std::sync::Arc;

use base::CipherList;
use rustls::{
    CipherSuite, Error,
    crypto::{CryptoProvider, aws_lc_rs},
};

use crate::TrustError;

pub(crate) fn tls(what: &'static str) -> impl FnOnce(Error) -> TrustError {
    move |source| TrustError::Tls { what, source }
}

/// The algorithms, the one that is asked for first, else AES-128-GCM, which costs least on CPUs with AES instructions. The others
/// stay: a machine that has not heard of a new choice must still be able to ask for it.
pub(crate) fn provider(list: CipherList) -> Arc<CryptoProvider> {
    let first = suite(list).unwrap_or(CipherSuite::TLS13_AES_128_GCM_SHA256);
    let mut suites = aws_lc_rs::ALL_CIPHER_SUITES.to_vec();
    suites.sort_by_key(|suite| suite.suite() != first);
    Arc::new(CryptoProvider { cipher_suites: suites, ..aws_lc_rs::default_provider() })
}

/// What TLS calls the cipher that is asked for by name.
pub(crate) fn suite(list: CipherList) -> Option<CipherSuite> {
    match list {
        CipherList::Default | CipherList::Empty | CipherList::AuthOnly => None,
        CipherList::Aes128 => Some(CipherSuite::TLS13_AES_128_GCM_SHA256),
        CipherList::Aes256 => Some(CipherSuite::TLS13_AES_256_GCM_SHA384),
        CipherList::ChaCha20 => Some(CipherSuite::TLS13_CHACHA20_POLY1305_SHA256),
    }
}

/// The cipher that a handshake has agreed on, as `cipherList` names it.
pub fn cipher_of(suite: Option<CipherSuite>) -> Option<CipherList> {
    [CipherList::Aes128, CipherList::Aes256, CipherList::ChaCha20]
        .into_iter()
        .find(|list| self::suite(*list) == suite)
}

pub(crate) fn made(what: &'static str) -> impl FnOnce(rcgen::Error) -> TrustError {
    move |source| TrustError::Make { what, source }
}
