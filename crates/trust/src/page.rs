//! The certificate of the cluster's page for browsers. These take neither Ed25519 nor names of members: so it is one of P-256, of
//! names of machines, signed by itself, and known by its fingerprint. Who shows a certificate of the cluster is let in by that.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rcgen::{CertificateParams, DistinguishedName, DnType, IsCa, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::{
    Error, RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivatePkcs8KeyDer},
    server::WebPkiClientVerifier,
    version::TLS13,
};

use crate::{
    Fingerprint, Term, TrustError,
    tls::{made, provider, tls},
};

/// Browsers take none that holds longer than 825 days.
const LIFE: Duration = Duration::from_secs(800 * 24 * 3600);
/// Clocks of machines differ.
const EARLIER: Duration = Duration::from_secs(2 * 24 * 3600);
/// Made anew when less is left.
const LEFT: Duration = Duration::from_secs(30 * 24 * 3600);

/// The key of a page and its certificate.
pub struct Page {
    /// PKCS #8.
    pub key: Vec<u8>,
    /// Signed by that key.
    pub certificate: Vec<u8>,
}

impl Page {
    /// A new one for these names and addresses of its machine.
    pub fn new(names: Vec<String>) -> Result<Page, TrustError> {
        let what = "the page's certificate";
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(made("a new key"))?;
        let mut params = CertificateParams::new(names).map_err(made(what))?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "ropewalk analytics");
        params.is_ca = IsCa::ExplicitNoCa;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        (params.not_before, params.not_after) =
            ((UNIX_EPOCH + now.saturating_sub(EARLIER)).into(), (UNIX_EPOCH + now + LIFE).into());
        let certificate = params.self_signed(&key).map_err(made(what))?.der().to_vec();
        Ok(Page { key: key.serialize_der(), certificate })
    }

    /// Whether it is for this name or address, and holds for a while.
    pub fn is_good_for(&self, name: &str) -> bool {
        let certificate = CertificateDer::from(self.certificate.as_slice());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let holds = Term::of(&certificate).is_ok_and(|term| term.end > (now + LEFT).as_secs());
        let Ok(name) = rustls::pki_types::ServerName::try_from(name) else { return false };
        let parsed = rustls::server::ParsedCertificate::try_from(&certificate);
        holds && parsed.is_ok_and(|parsed| rustls::client::verify_server_name(&parsed, &name).is_ok())
    }

    /// By which it is known.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&CertificateDer::from(self.certificate.as_slice()))
    }

    /// What TLS is told. Who comes may show a certificate that one of `authorities` has signed, or none.
    pub(crate) fn config(
        &self,
        authorities: &[CertificateDer<'static>],
    ) -> Result<Arc<ServerConfig>, TrustError> {
        let provider = provider(base::CipherList::Default);
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(authority.clone()).map_err(tls("an authority's certificate"))?;
        }
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .map_err(|error| tls("the judging of others")(Error::General(error.to_string())))?;
        let key = PrivatePkcs8KeyDer::from(self.key.clone());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(tls("TLS"))?
            .with_client_cert_verifier(clients)
            .with_single_cert(vec![self.certificate.clone().into()], key.into())
            .map_err(tls("the page's certificate"))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_known_by_its_machines_names() {
        let page = Page::new(vec!["n1".to_owned(), "192.0.2.7".to_owned()]).unwrap();
        assert!(page.is_good_for("n1") && page.is_good_for("192.0.2.7"));
        assert!(!page.is_good_for("n2") && !page.is_good_for("192.0.2.8") && !page.is_good_for(""));
        let damaged = Page { key: page.key.clone(), certificate: page.certificate[..60].to_vec() };
        assert!(!damaged.is_good_for("n1"));
        assert!(page.config(&[]).is_err(), "a verifier without authorities would let nobody be known");
    }
}
