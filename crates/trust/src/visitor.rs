//! Who has no certificate yet: it knows the manager by the authority's fingerprint, and nobody knows it.

use std::sync::Arc;

use base::CipherList;
use rustls::{
    ClientConfig, Error, client::UnbufferedClientConnection, pki_types::ServerName, version::TLS13,
};
use wire::version::Build;

use crate::{
    Fingerprint, TrustError,
    judge::{Accepts, Judge},
    spoken::protocols,
    tls::{provider, tls},
};

/// The side that connects to a manager in order to join.
pub struct Visitor(Arc<ClientConfig>);

impl Visitor {
    /// Of the cluster one of whose authorities this is.
    pub fn new(authorities: Vec<Fingerprint>) -> Result<Visitor, TrustError> {
        let provider = provider(CipherList::Default);
        let judge = Judge { accepts: Accepts::ManagerOf(authorities), provider: Arc::clone(&provider) };
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

    #[cfg(test)]
    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.0)
    }

    /// A handshake.
    pub fn connect(&self) -> Result<UnbufferedClientConnection, Error> {
        let name = ServerName::try_from("ropewalk").map_err(|_| Error::General("the name".to_owned()))?;
        UnbufferedClientConnection::new(Arc::clone(&self.0), name)
    }
}
