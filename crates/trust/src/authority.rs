//! The authority of a cluster: its key signs who is a member.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base::ClusterId;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ED25519, PublicKeyData, SanType,
    SerialNumber, string::Ia5String,
};
use rustls::{
    RootCertStore,
    client::verify_server_cert_signed_by_trust_anchor,
    pki_types::{CertificateDer, CertificateSigningRequestDer, PrivatePkcs8KeyDer, UnixTime},
    server::ParsedCertificate,
};
use sha2::{Digest, Sha256};

use crate::{
    Member, Secret, TrustError,
    tls::{made, provider, tls},
};

/// What stands before the 32 bytes of an Ed25519 key in its PKCS #8 form (RFC 8410, section 7).
const PKCS8_ED25519: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
/// A certificate that ends holds from this long before its signing on: clocks of machines differ.
const EARLIER: Duration = Duration::from_secs(30 * 24 * 3600);
/// From 1970 to the last second that a certificate can name, which means that it does not end (RFC 5280, section 4.1.2.5).
const NEVER: Duration = Duration::from_secs(253_402_300_799);

/// SHA-256 of an authority's certificate: by it a new machine knows the authority.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// That of a certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> Fingerprint {
        Fingerprint(Sha256::digest(certificate).into())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Signs who is a member of its cluster.
pub struct Authority {
    cluster: ClusterId,
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    fingerprint: Fingerprint,
}

impl Authority {
    /// That of the cluster with this secret. Whoever makes it anew makes the same.
    pub fn from_secret(cluster: ClusterId, secret: &Secret) -> Result<Authority, TrustError> {
        let seed = secret.derive("ropewalk authority");
        let key = [&PKCS8_ED25519[..], &seed[..]].concat();
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&PrivatePkcs8KeyDer::from(key), &PKCS_ED25519)
            .map_err(made("the authority's key"))?;
        let params = params(cluster);
        let certificate =
            params.self_signed(&key).map_err(made("the authority's certificate"))?.der().clone();
        let fingerprint = Fingerprint::of(&certificate);
        Ok(Authority { cluster, issuer: Issuer::new(params, key), certificate, fingerprint })
    }

    /// A certificate for the one that comes after it: who believes this one believes that one, too.
    pub(crate) fn certify(&self, newest: &Authority) -> Result<CertificateDer<'static>, TrustError> {
        let signed = params(self.cluster).signed_by(newest.issuer.key(), &self.issuer);
        Ok(signed.map_err(made("the new authority's certificate"))?.der().clone())
    }

    /// What others need to believe it.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// By which it is known.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The certificate of a key that says that its holder is `member`. It holds for `life` from now on; 0, or more than there
    /// are years with four digits: always, whatever the clock says.
    pub fn sign(
        &self,
        member: &Member,
        key: &impl PublicKeyData,
        life: Duration,
    ) -> Result<CertificateDer<'static>, TrustError> {
        let what = "a member's certificate";
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let name = Ia5String::try_from(member.to_string()).map_err(made(what))?;
        params.subject_alt_names = vec![SanType::URI(name)];
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let end = now.checked_add(life).filter(|end| !life.is_zero() && *end < NEVER);
        let begin = end.map_or(Duration::ZERO, |_| now.saturating_sub(EARLIER));
        (params.not_before, params.not_after) =
            ((UNIX_EPOCH + begin).into(), (UNIX_EPOCH + end.unwrap_or(NEVER)).into());
        Ok(params.signed_by(key, &self.issuer).map_err(made(what))?.der().clone())
    }

    /// Another certificate, from now on for `life`, for the holder of one that `signer`, this authority or the one before it, has
    /// signed, whether that one has ended or not. The request is of the same key, which proves that it comes from the holder:
    /// for anybody else the new certificate is worth nothing.
    pub(crate) fn renew(
        &self,
        certificate: &CertificateDer<'_>,
        signer: &Authority,
        request: &[u8],
        life: Duration,
    ) -> Result<(Member, CertificateDer<'static>), TrustError> {
        check_signed_by(certificate, &signer.certificate)?;
        let asked = CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(request))
            .map_err(made("a request to sign"))?;
        let (_, former) =
            x509_parser::parse_x509_certificate(certificate).map_err(|_| TrustError::NoMember)?;
        if former.public_key().raw != asked.public_key.subject_public_key_info() {
            return Err(TrustError::OtherKey);
        }
        let member = Member::of(certificate)?;
        let certificate = self.sign(&member, &asked.public_key, life)?;
        Ok((member, certificate))
    }

    /// The same for a [`Request`]'s key. What else it asks for is not looked at; that who sent it has the key is checked.
    pub fn sign_request(
        &self,
        member: &Member,
        request: &[u8],
        life: Duration,
    ) -> Result<CertificateDer<'static>, TrustError> {
        let request = CertificateSigningRequestDer::from(request);
        let asked = CertificateSigningRequestParams::from_der(&request).map_err(made("a request to sign"))?;
        self.sign(member, &asked.public_key, life)
    }
}

/// Of the certificates of all authorities of a cluster.
fn params(cluster: ClusterId) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("ropewalk cluster {:032x}", cluster.0));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    // The same whenever it is made. It ends with its cluster, not by a date, and holds where a clock was never set.
    params.serial_number = Some(SerialNumber::from(vec![1]));
    (params.not_before, params.not_after) = (UNIX_EPOCH.into(), (UNIX_EPOCH + NEVER).into());
    params
}

/// Refuses a certificate that this authority has not signed itself; whether it has ended is not looked at.
fn check_signed_by(certificate: &CertificateDer<'_>, by: &CertificateDer<'_>) -> Result<(), TrustError> {
    let what = "the certificate";
    let mut roots = RootCertStore::empty();
    roots.add(by.clone().into_owned()).map_err(tls("the authority's certificate"))?;
    let parsed = ParsedCertificate::try_from(certificate).map_err(tls(what))?;
    let (algorithms, when) = (
        provider(base::CipherList::Default).signature_verification_algorithms.all,
        UnixTime::since_unix_epoch(Duration::from_secs(Term::of(certificate)?.end)),
    );
    verify_server_cert_signed_by_trust_anchor(&parsed, &roots, &[], when, algorithms).map_err(tls(what))
}

/// Whether this authority has signed a certificate itself.
pub(crate) fn is_signed_by(certificate: &CertificateDer<'_>, by: &CertificateDer<'_>) -> bool {
    check_signed_by(certificate, by).is_ok()
}

/// SHA-256 of the public key of a certificate: it stays the same when that is renewed.
pub fn key_of(certificate: &CertificateDer<'_>) -> Result<[u8; 32], TrustError> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).map_err(|_| TrustError::NoMember)?;
    Ok(Sha256::digest(parsed.public_key().raw).into())
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({})", self.fingerprint)
    }
}

/// When a certificate holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Term {
    /// From when on it holds, seconds since 1970: long before it was signed, since clocks differ.
    pub begin: u64,
    /// When it was signed, seconds since 1970; 0 of one that holds always.
    pub signed: u64,
    /// When it ends, seconds since 1970.
    pub end: u64,
}

impl Term {
    /// Of a certificate, whoever signed it.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Term, TrustError> {
        let (_, parsed) =
            x509_parser::parse_x509_certificate(certificate).map_err(|_| TrustError::NoMember)?;
        let seconds = |time: x509_parser::time::ASN1Time| u64::try_from(time.timestamp()).unwrap_or(0);
        let (begin, end) = (seconds(parsed.validity().not_before), seconds(parsed.validity().not_after));
        let signed = if begin == 0 { 0 } else { begin + EARLIER.as_secs() };
        Ok(Term { begin, signed, end })
    }

    /// Whether it holds at a time, seconds since 1970.
    pub fn holds(&self, now: u64) -> bool {
        (self.begin..self.end).contains(&now)
    }

    /// For how long it holds, seconds.
    pub fn life(&self) -> u64 {
        self.end.saturating_sub(self.signed)
    }

    /// When another one is to be asked for: a third of its life before its end.
    pub fn renew_at(&self) -> u64 {
        self.end - self.life() / 3
    }
}

/// A new key of a machine, and its request to have it signed. The key itself goes nowhere.
pub struct Request {
    /// The private key, PKCS #8.
    pub key: Vec<u8>,
    /// For [`Authority::sign_request`], PKCS #10.
    pub request: Vec<u8>,
}

impl Request {
    /// Draws a key.
    pub fn new() -> Result<Request, TrustError> {
        Request::with(KeyPair::generate_for(&PKCS_ED25519).map_err(made("a new key"))?)
    }

    /// Of a key that is there (PKCS #8), for another certificate.
    pub fn of(key: &[u8]) -> Result<Request, TrustError> {
        let key = PrivatePkcs8KeyDer::from(key);
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ED25519);
        Request::with(key.map_err(made("the machine's key"))?)
    }

    fn with(key: KeyPair) -> Result<Request, TrustError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&key).map_err(made("a request to sign"))?;
        Ok(Request { key: key.serialize_der(), request: request.der().to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use base::NodeId;
    use rustls::{Error, crypto::aws_lc_rs::default_provider};
    use wire::hello::Role;

    use super::*;
    use crate::{Nodes, Roles};

    const DAY: Duration = Duration::from_secs(24 * 3600);

    /// Whether a certificate for `life` holds so long after 1970.
    fn holds(life: Duration, at: Duration) -> Result<(), Error> {
        let authority = Authority::from_secret(ClusterId(7), &Secret::new([1; 32])).unwrap();
        let (roles, nodes) = (Roles::of(&[Role::Server]), Nodes::These(vec![NodeId(3)]));
        let member = Member { cluster: ClusterId(7), id: base::MemberId(9), roles, nodes };
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let certificate = authority.sign(&member, &key, life).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(authority.certificate().clone()).unwrap();
        let parsed = ParsedCertificate::try_from(&certificate).unwrap();
        let algorithms = default_provider().signature_verification_algorithms.all;
        let at = UnixTime::since_unix_epoch(at);
        verify_server_cert_signed_by_trust_anchor(&parsed, &roots, &[], at, algorithms)
    }

    #[test]
    fn what_has_no_end_holds_whatever_the_clock_says() {
        for life in [Duration::ZERO, Duration::MAX, NEVER] {
            for at in [Duration::ZERO, DAY, NEVER] {
                holds(life, at).unwrap_or_else(|error| panic!("{life:?} {at:?}: {error}"));
            }
        }
    }

    #[test]
    fn what_ends_holds_for_its_time_and_a_month_before() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        for at in [now - DAY * 29, now, now + DAY] {
            holds(DAY * 2, at).unwrap();
        }
        for at in [Duration::ZERO, now - DAY * 31, now + DAY * 3] {
            assert!(holds(DAY * 2, at).is_err(), "{at:?}");
        }
    }
}
