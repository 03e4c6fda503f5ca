//! Who is a member of a cluster, and what proves it.
//!
//! A cluster has one [`Authority`]. It signs certificates; what one says of its holder is a [`Member`]. A process proves
//! itself by its [`Identity`]: a key, the certificate of that key, and the authorities that it believes. The authority's key
//! is made from the cluster's [`Secret`]: who has that is every member at once. While it is exchanged there are two
//! ([`Authorities`]). No I/O: who keeps what in which file is
//! somebody else's business.
//!
//! A machine joins with a [`Token`]: as a [`Visitor`] it asks the manager to have its own key signed ([`Request`]).

#![forbid(unsafe_code)]

mod authorities;
mod authority;
mod identity;
mod judge;
mod member;
mod page;
pub mod pem;
mod secret;
mod spoken;
mod tls;
mod token;
mod visitor;

pub use rustls::pki_types::CertificateDer;

pub use self::{
    authorities::{Authorities, Renewed},
    authority::{Authority, Fingerprint, Request, Term, key_of},
    identity::Identity,
    member::{Member, Nodes, Roles},
    page::Page,
    secret::{SECRET_LEN, Secret},
    spoken::Spoken,
    tls::cipher_of,
    token::{NoToken, Token},
    visitor::Visitor,
};

/// Why keys and certificates could not be made or used. None of these names a secret.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// A key or certificate could not be made, or is none.
    #[error("{what}: {source}")]
    Make {
        /// What was to be made or read.
        what: &'static str,
        /// What the library says.
        source: rcgen::Error,
    },
    /// TLS does not take the key or the certificate.
    #[error("{what}: {source}")]
    Tls {
        /// What it was for.
        what: &'static str,
        /// What the library says.
        source: rustls::Error,
    },
    /// A certificate is to be renewed for another key than its own.
    #[error("the request is not of the certificate's own key")]
    OtherKey,
    /// A certificate that none of the authorities has signed which its holder believes.
    #[error("the certificate was signed by another authority than those that are believed")]
    OtherAuthority,
    /// A certificate, whoever signed it, that does not say who its holder is.
    #[error("the certificate names no member of a cluster")]
    NoMember,
}
