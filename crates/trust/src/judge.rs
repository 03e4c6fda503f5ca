//! How the side that connects judges who accepts: by an authority, whatever the name of the machine.

use std::sync::Arc;

use rustls::{
    CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{CryptoProvider, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
};
use wire::hello::Role;

use crate::{Fingerprint, Member};

/// Whose certificates are accepted.
#[derive(Debug)]
pub(crate) enum Accepts {
    /// Of every member that these authorities have signed.
    Members(Arc<RootCertStore>),
    /// Of managers whose authority has one of these fingerprints: they show its certificate behind their own, and the next one's
    /// that it has signed if it is being exchanged.
    ManagerOf(Vec<Fingerprint>),
}

/// A judge for rustls.
#[derive(Debug)]
pub(crate) struct Judge {
    pub accepts: Accepts,
    pub provider: Arc<CryptoProvider>,
}

impl Judge {
    fn signed(
        &self,
        certificate: &CertificateDer<'_>,
        roots: &RootCertStore,
        behind: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let algorithms = self.provider.signature_verification_algorithms.all;
        let parsed = ParsedCertificate::try_from(certificate)?;
        verify_server_cert_signed_by_trust_anchor(&parsed, roots, behind, now, algorithms)
    }
}

impl ServerCertVerifier for Judge {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        behind: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let refused = |why| Error::InvalidCertificate(why);
        match &self.accepts {
            Accepts::Members(roots) => self.signed(certificate, roots, behind, now)?,
            Accepts::ManagerOf(known) => {
                let authority = behind.iter().find(|one| known.contains(&Fingerprint::of(one)));
                let authority = authority.ok_or(refused(CertificateError::UnknownIssuer))?;
                let mut roots = RootCertStore::empty();
                roots.add(authority.clone().into_owned())?;
                self.signed(certificate, &roots, behind, now)?;
                if !Member::of(certificate).is_ok_and(|member| member.roles.contains(Role::Manager)) {
                    return Err(refused(CertificateError::ApplicationVerificationFailure));
                }
            }
        }
        Ok(ServerCertVerified::assertion())
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
