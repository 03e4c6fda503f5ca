//! By what a process proves itself to others, and judges them: both ends of a TLS 1.3 handshake.

use std::{fmt, sync::Arc, time::Duration};

use base::{CipherList, ClusterId, MemberId};
use rcgen::{KeyPair, PKCS_ED25519};
use rustls::{
    ClientConfig, Error, RootCertStore, ServerConfig,
    client::{Resumption, UnbufferedClientConnection},
    pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName},
    server::{NoServerSessionStorage, UnbufferedServerConnection, WebPkiClientVerifier},
    version::TLS13,
};
use wire::version::{Build, Span};

use crate::{
    Authorities, Fingerprint, Member, Nodes, Page, Roles, Secret, Term, TrustError,
    authority::is_signed_by,
    judge::{Accepts, Judge},
    spoken::protocols,
    tls::{made, provider, suite, tls},
};

/// What a process is in its cluster, and what proves it. Clones share it.
#[derive(Clone)]
pub struct Identity {
    member: Arc<Member>,
    term: Term,
    /// What the configurations are made of.
    proof: Arc<Proof>,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    open: Arc<ServerConfig>,
}

/// A private key (PKCS #8), what says whose it is, and the authorities that its holder believes.
struct Proof {
    key: PrivatePkcs8KeyDer<'static>,
    /// The certificate, and behind it those that lead to an authority that others may believe.
    chain: Vec<CertificateDer<'static>>,
    /// The newest first.
    authorities: Vec<CertificateDer<'static>>,
    /// Theirs.
    known: Vec<Fingerprint>,
    /// The one that has signed the certificate.
    signer: Fingerprint,
}

impl Identity {
    /// Of a process that has the cluster's secret: any member, by a certificate that it signs itself.
    pub fn from_secret(cluster: ClusterId, secret: &Secret) -> Result<Identity, TrustError> {
        Identity::from_authorities(cluster, &Authorities::from_secrets(cluster, secret, None)?)
    }

    /// The same of one that has the cluster's authorities.
    pub fn from_authorities(cluster: ClusterId, authorities: &Authorities) -> Result<Identity, TrustError> {
        let member = Member { cluster, id: MemberId(0), roles: Roles::ALL, nodes: Nodes::Any };
        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(made("a new key"))?;
        let certificate = authorities.newest().sign(&member, &key, Duration::ZERO)?;
        let chain = [certificate].into_iter().chain(authorities.behind().iter().cloned()).collect();
        Identity::new(key.serialize_der(), chain, authorities.believed())
    }

    /// Of the holder of a private key (PKCS #8) and its certificate, who believes these authorities, the newest first. Behind the
    /// certificate may be others, which lead from its authority to one that others may believe.
    pub fn new(
        key: Vec<u8>,
        chain: Vec<CertificateDer<'static>>,
        authorities: Vec<CertificateDer<'static>>,
    ) -> Result<Identity, TrustError> {
        let certificate = chain.first().ok_or(TrustError::NoMember)?;
        let (member, term) = (Arc::new(Member::of(certificate)?), Term::of(certificate)?);
        let signer = authorities.iter().find(|authority| is_signed_by(certificate, authority));
        let signer = signer.map(|authority| Fingerprint::of(authority)).ok_or(TrustError::OtherAuthority)?;
        let known = authorities.iter().map(|one| Fingerprint::of(one)).collect();
        let proof = Arc::new(Proof { key: key.into(), chain, authorities, known, signer });
        Identity::made(member, term, proof, CipherList::Default)
    }

    /// The same with ciphers in the order that this asks for. A cipher by name goes before the other end's choice, unless that has
    /// a name as well: then the side that accepts decides.
    pub fn preferring(&self, list: CipherList) -> Result<Identity, TrustError> {
        let proof = Arc::clone(&self.proof);
        let mut new = Identity::made(Arc::clone(&self.member), self.term, proof, list)?;
        Arc::make_mut(&mut new.client).alpn_protocols.clone_from(&self.client.alpn_protocols);
        Arc::make_mut(&mut new.server).alpn_protocols.clone_from(&self.server.alpn_protocols);
        Arc::make_mut(&mut new.open).alpn_protocols.clone_from(&self.open.alpn_protocols);
        Ok(new)
    }

    fn made(
        member: Arc<Member>,
        term: Term,
        proof: Arc<Proof>,
        list: CipherList,
    ) -> Result<Identity, TrustError> {
        let Proof { key, chain, authorities, .. } = &*proof;
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(authority.clone()).map_err(tls("an authority's certificate"))?;
        }
        let (roots, provider) = (Arc::new(roots), provider(list));
        let judge = Judge { accepts: Accepts::Members(Arc::clone(&roots)), provider: Arc::clone(&provider) };
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(tls("TLS"))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(judge))
            .with_client_auth_cert(chain.clone(), key.clone_key().into())
            .map_err(tls("the own certificate"))?;
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .build()
            .map_err(|error| tls("the judging of others")(Error::General(error.to_string())))?;
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(tls("TLS"))?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain.clone(), key.clone_key().into())
            .map_err(tls("the own certificate"))?;
        // Each connection proves everything anew: revoking must not wait for a ticket to expire.
        client.resumption = Resumption::disabled();
        (server.session_storage, server.send_tls13_tickets) = (Arc::new(NoServerSessionStorage {}), 0);
        (client.enable_sni, client.enable_secret_extraction) = (false, true);
        server.enable_secret_extraction = true;
        let spoken = protocols(Build::own().protocols);
        (client.alpn_protocols, server.alpn_protocols) = (spoken.clone(), spoken.clone());
        // The same for who has no certificate, and knows ours by the authority's behind it.
        let clients = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .map_err(|error| tls("the judging of others")(Error::General(error.to_string())))?;
        let mut open = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(tls("TLS"))?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain.iter().chain(authorities).cloned().collect(), key.clone_key().into())
            .map_err(tls("the own certificate"))?;
        (open.session_storage, open.send_tls13_tickets) = (Arc::new(NoServerSessionStorage {}), 0);
        (open.enable_secret_extraction, open.alpn_protocols) = (true, spoken);
        let named = suite(list).is_some();
        (server.ignore_client_order, open.ignore_client_order) = (named, named);
        Ok(Identity {
            member,
            term,
            proof: Arc::clone(&proof),
            client: Arc::new(client),
            server: Arc::new(server),
            open: Arc::new(open),
        })
    }

    /// The same in a process of a build that speaks these versions.
    pub fn speaking(mut self, versions: Span) -> Identity {
        Arc::make_mut(&mut self.client).alpn_protocols = protocols(versions);
        Arc::make_mut(&mut self.server).alpn_protocols = protocols(versions);
        Arc::make_mut(&mut self.open).alpn_protocols = protocols(versions);
        self
    }

    /// What TLS is told of a page for browsers: who shows a certificate of the cluster is known, nobody must.
    pub fn page(&self, page: &Page) -> Result<Arc<ServerConfig>, TrustError> {
        page.config(&self.proof.authorities)
    }

    /// What the own certificate says.
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// When the own certificate holds.
    pub fn term(&self) -> Term {
        self.term
    }

    /// The authority that has signed the own certificate.
    pub fn signer(&self) -> Fingerprint {
        self.proof.signer
    }

    /// The authorities that are believed, the newest first.
    pub fn believed(&self) -> &[Fingerprint] {
        &self.proof.known
    }

    /// Which of these has signed a certificate itself.
    pub fn signer_of(&self, certificate: &CertificateDer<'_>) -> Option<Fingerprint> {
        self.proof
            .authorities
            .iter()
            .find(|one| is_signed_by(certificate, one))
            .map(|one| Fingerprint::of(one))
    }

    /// A handshake from the side that connects.
    pub fn connect(&self) -> Result<UnbufferedClientConnection, Error> {
        // Members are known by what their certificates say, not by names of machines.
        let name = ServerName::try_from("ropewalk").map_err(|_| Error::General("the name".to_owned()))?;
        UnbufferedClientConnection::new(Arc::clone(&self.client), name)
    }

    /// A handshake from the side that accepts. `open`: also of who shows no certificate, a [`Visitor`](crate::Visitor).
    pub fn accept(&self, open: bool) -> Result<UnbufferedServerConnection, Error> {
        UnbufferedServerConnection::new(Arc::clone(if open { &self.open } else { &self.server }))
    }

    /// What TLS is told of the side that connects.
    pub fn client_config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.client)
    }

    /// The same of the side that accepts.
    pub fn server_config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.member)
    }
}

#[cfg(test)]
mod tests {
    use base::NodeId;
    use wire::hello::Role;

    use super::*;
    use crate::{Authority, Request, Visitor};

    const CLUSTER: ClusterId = ClusterId(7);

    fn secret(byte: u8) -> Secret {
        Secret::new([byte; 32])
    }

    fn server3() -> Member {
        let (roles, nodes) = (Roles::of(&[Role::Server]), Nodes::These(vec![NodeId(3)]));
        Member { cluster: CLUSTER, id: MemberId(9), roles, nodes }
    }

    /// Both ends to the end of a handshake, with rustls' own connections; what each says of the other's certificate.
    fn shake(client: &Identity, server: &Identity) -> Result<(Member, Member), Error> {
        let (client, server) = shaken(client, server)?;
        let of = |certificates: Option<&[CertificateDer<'_>]>| Member::of(&certificates.unwrap()[0]).unwrap();
        Ok((of(server.peer_certificates()), of(client.peer_certificates())))
    }

    fn shaken(
        client: &Identity,
        server: &Identity,
    ) -> Result<(rustls::ClientConnection, rustls::ServerConnection), Error> {
        let name = ServerName::try_from("ropewalk").unwrap();
        let mut client = rustls::ClientConnection::new(client.client_config(), name)?;
        let mut server = rustls::ServerConnection::new(server.server_config())?;
        while client.is_handshaking() || server.is_handshaking() {
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).unwrap();
            server.read_tls(&mut &bytes[..]).unwrap();
            server.process_new_packets()?;
            bytes.clear();
            server.write_tls(&mut bytes).unwrap();
            client.read_tls(&mut &bytes[..]).unwrap();
            client.process_new_packets()?;
        }
        Ok((client, server))
    }

    /// A name goes before no name, on either side; of two names that of the side that accepts.
    #[test]
    fn a_cipher_is_used_where_it_is_asked_for() {
        use CipherList::{Aes128, Aes256, AuthOnly, ChaCha20, Default, Empty};
        let ours = Identity::from_secret(CLUSTER, &secret(1)).unwrap();
        for (client, server, used) in [
            (Default, Default, Aes128),
            (Empty, AuthOnly, Aes128),
            (Aes256, Default, Aes256),
            (Default, Aes256, Aes256),
            (ChaCha20, ChaCha20, ChaCha20),
            (ChaCha20, Aes256, Aes256),
            (Aes256, ChaCha20, ChaCha20),
        ] {
            let [client_end, server_end] = [client, server].map(|list| ours.preferring(list).unwrap());
            let suite = shaken(&client_end, &server_end).unwrap().0.negotiated_cipher_suite();
            assert_eq!(crate::cipher_of(suite.map(|s| s.suite())), Some(used), "{client} {server}");
        }
    }

    fn signed(by: &Authority, member: &Member, life: Duration) -> Identity {
        let Request { key, request } = Request::new().unwrap();
        let certificate = by.sign_request(member, &request, life).unwrap();
        Identity::new(key, vec![certificate], vec![by.certificate().clone()]).unwrap()
    }

    #[test]
    fn an_authority_is_the_same_wherever_it_is_made() {
        let [one, other] = [1, 1].map(|n| Authority::from_secret(CLUSTER, &secret(n)).unwrap());
        assert_eq!(one.fingerprint(), other.fingerprint());
        assert_eq!(one.certificate(), other.certificate());
        assert_ne!(one.fingerprint(), Authority::from_secret(CLUSTER, &secret(2)).unwrap().fingerprint());
    }

    #[test]
    fn members_of_one_authority_know_each_other() {
        let authority = Authority::from_secret(CLUSTER, &secret(1)).unwrap();
        let (with_secret, joined) = (
            Identity::from_secret(CLUSTER, &secret(1)).unwrap(),
            signed(&authority, &server3(), Duration::from_secs(60)),
        );
        assert_eq!(shake(&joined, &with_secret).unwrap(), (server3(), with_secret.member().clone()));
        assert_eq!(shake(&with_secret, &joined).unwrap(), (with_secret.member().clone(), server3()));
    }

    #[test]
    fn another_secret_and_an_end_of_life_are_refused_by_both_sides() {
        let ours = Identity::from_secret(CLUSTER, &secret(1)).unwrap();
        let stranger = Identity::from_secret(CLUSTER, &secret(2)).unwrap();
        let authority = Authority::from_secret(CLUSTER, &secret(1)).unwrap();
        // It was signed, and has ended.
        let ended = signed(&authority, &server3(), Duration::from_nanos(1));
        std::thread::sleep(Duration::from_millis(1100)); // dates have whole seconds
        for other in [stranger, ended] {
            assert!(shake(&ours, &other).is_err() && shake(&other, &ours).is_err(), "{other:?}");
        }
    }

    #[test]
    fn a_certificate_is_renewed_for_its_own_key_also_after_its_end() {
        let [ours, other] = [1, 2].map(|n| Authorities::from_secrets(CLUSTER, &secret(n), None).unwrap());
        let authority = ours.newest();
        let Request { key, request } = Request::new().unwrap();
        let month = Duration::from_secs(30 * 24 * 3600);
        for life in [Duration::from_nanos(1), Duration::from_secs(60), Duration::ZERO] {
            let former = authority.sign_request(&server3(), &request, life).unwrap();
            let again = Request::of(&key).unwrap().request;
            let renewed = ours.renew(&former, &again, month).unwrap();
            let (term, was) = (Term::of(&renewed.certificate).unwrap(), Term::of(&former).unwrap());
            assert_eq!((renewed.member, term.life()), (server3(), month.as_secs()));
            assert!(was.renew_at() <= was.end && was.end <= term.end || life.is_zero(), "{was:?} {term:?}");
            let identity =
                Identity::new(key.clone(), vec![renewed.certificate], vec![authority.certificate().clone()]);
            shake(&identity.unwrap(), &Identity::from_secret(CLUSTER, &secret(1)).unwrap()).unwrap();
            // Another key, another authority, no certificate.
            let stranger = Request::new().unwrap().request;
            assert!(matches!(ours.renew(&former, &stranger, month), Err(TrustError::OtherKey)));
            assert!(other.renew(&former, &again, month).is_err());
            assert!(ours.renew(&former[..former.len() - 1].to_vec().into(), &again, month).is_err());
            assert!(ours.renew(&former, &again[1..], month).is_err());
        }
    }

    /// A joined machine and one with the secret at each stage of an exchange: before it, in it, after it.
    #[test]
    fn an_exchange_begins_and_ends_in_any_order_and_leaves_out_who_missed_it_whole() {
        let stages = [(1, None), (2, Some(1)), (2, None)].map(|(newest, former): (u8, Option<u8>)| {
            let former = former.map(secret);
            Authorities::from_secrets(CLUSTER, &secret(newest), former.as_ref()).unwrap()
        });
        let joined = |at: &Authorities| {
            let Request { key, request } = Request::new().unwrap();
            let certificate =
                at.newest().sign_request(&server3(), &request, Duration::from_secs(60)).unwrap();
            let chain = [certificate].into_iter().chain(at.behind().iter().cloned()).collect();
            Identity::new(key, chain, at.believed()).unwrap()
        };
        let all = stages.each_ref().map(|at| [joined(at), Identity::from_authorities(CLUSTER, at).unwrap()]);
        for (i, these) in all.iter().enumerate() {
            for (j, those) in all.iter().enumerate() {
                for (one, other) in these.iter().flat_map(|one| those.iter().map(move |other| (one, other))) {
                    assert_eq!(shake(one, other).is_ok(), i.abs_diff(j) < 2, "stages {i} and {j}");
                }
            }
        }
        // What was joined in the exchange and was off at its end still shows what the one before has signed: no harm.
        let [before, during, after] = &all;
        assert_eq!(after[1].signer_of(&joined_leaf(&stages[1])), Some(after[1].signer()));
        assert_eq!(after[1].signer_of(&joined_leaf(&stages[0])), None);
        assert_eq!(during[1].believed(), [after[1].signer(), before[1].signer()]);
        // Who has a token of the one before, or its certificate, knows the manager until the end.
        let known = |fingerprint, manager: &Identity| {
            let visitor = Visitor::new(vec![fingerprint]).unwrap();
            visit(&visitor, manager).is_ok()
        };
        let [first, second] = [before[1].signer(), after[1].signer()];
        assert!(known(first, &before[1]) && known(first, &during[1]) && known(second, &during[1]));
        assert!(known(second, &after[1]) && !known(first, &after[1]) && !known(second, &before[1]));
        assert!(!known(second, &joined(&stages[2])), "it is no manager");
    }

    fn joined_leaf(at: &Authorities) -> CertificateDer<'static> {
        at.newest().sign_request(&server3(), &Request::new().unwrap().request, Duration::ZERO).unwrap()
    }

    /// A visitor's handshake, up to where both know each other.
    fn visit(visitor: &Visitor, manager: &Identity) -> Result<(), Error> {
        let name = ServerName::try_from("ropewalk").unwrap();
        let mut client = rustls::ClientConnection::new(visitor.config(), name)?;
        let mut server = rustls::ServerConnection::new(Arc::clone(&manager.open))?;
        while client.is_handshaking() || server.is_handshaking() {
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).unwrap();
            server.read_tls(&mut &bytes[..]).unwrap();
            server.process_new_packets()?;
            bytes.clear();
            server.write_tls(&mut bytes).unwrap();
            client.read_tls(&mut &bytes[..]).unwrap();
            client.process_new_packets()?;
        }
        Ok(())
    }

    #[test]
    fn a_request_of_somebody_elses_key_is_not_signed() {
        let authority = Authority::from_secret(CLUSTER, &secret(1)).unwrap();
        let mut request = Request::new().unwrap().request;
        *request.last_mut().unwrap() ^= 1; // in its signature
        assert!(authority.sign_request(&server3(), &request, Duration::ZERO).is_err());
        assert!(authority.sign_request(&server3(), b"no request", Duration::ZERO).is_err());
    }
}
