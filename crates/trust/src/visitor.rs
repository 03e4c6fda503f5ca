//! Who has no certificate yet: it knows the manager by the authority's fingerprint, and nobody knows it.

use std::sync::Arc;

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        UnbufferedClientConnection,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{CryptoProvider, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
    version::TLS13,
};
use wire::{hello::Role, version::Build};

use crate::{
    Fingerprint, Member, TrustError,
    identity::{protocols, provider, tls},
};

/// The side that connects to a manager in order to join.
pub struct Visitor(Arc<ClientConfig>);

impl Visitor {
    /// Of the cluster whose authority this is.
    pub fn new(authority: Fingerprint) -> Result<Visitor, TrustError> {
        let provider = provider();
        let judge = ManagerOf { authority, provider: Arc::clone(&provider) };
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(tls("TLS"))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(judge))
            .with_no_client_auth();
        (client.enable_sni, client.enable_secret_extraction) = (false, true);
        client.alpn_protocols = protocols(Build::own().protocols);
        Ok(Visitor(Arc::new(client)))
    }

    /// A handshake.
    pub fn connect(&self) -> Result<UnbufferedClientConnection, Error> {
        let name = ServerName::try_from("ropewalk").map_err(|_| Error::General("the name".to_owned()))?;
        UnbufferedClientConnection::new(Arc::clone(&self.0), name)
    }
}

/// Accepts managers whose authority has that fingerprint: they show its certificate behind their own.
#[derive(Debug)]
struct ManagerOf {
    authority: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for ManagerOf {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        behind: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let refused = |why| Error::InvalidCertificate(why);
        let authority = behind.iter().find(|one| Fingerprint::of(one) == self.authority);
        let mut roots = RootCertStore::empty();
        roots.add(authority.ok_or(refused(CertificateError::UnknownIssuer))?.clone().into_owned())?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        let parsed = ParsedCertificate::try_from(certificate)?;
        verify_server_cert_signed_by_trust_anchor(&parsed, &roots, &[], now, algorithms)?;
        match Member::of(certificate) {
            Ok(member) if member.roles.contains(Role::Manager) => Ok(ServerCertVerified::assertion()),
            _ => Err(refused(CertificateError::ApplicationVerificationFailure)),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        // Never asked: only TLS 1.3 is spoken.
        Err(Error::InvalidCertificate(CertificateError::BadSignature))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
