//! Which version of the protocol two processes speak, as their handshake agrees on it (ALPN).

use wire::version::Span;

/// What two processes speak that have no version in common: they tell each other why, and part.
const PARTING: &[u8] = b"ropewalk/parting";

/// What is spoken, as TLS names it (ALPN): the newest first.
pub(crate) fn protocols(span: Span) -> Vec<Vec<u8>> {
    let versions =
        (span.least..=span.greatest).rev().map(|version| format!("ropewalk/{version}").into_bytes());
    versions.chain([PARTING.to_vec()]).collect()
}

/// What two processes speak with each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spoken {
    /// This version of the protocol.
    Version(u16),
    /// None: both say which versions they have, and part.
    Parting,
}

impl Spoken {
    /// What a handshake has agreed on; none: a program before version 8.
    pub fn of(alpn: Option<&[u8]>) -> Option<Spoken> {
        match alpn? {
            PARTING => Some(Spoken::Parting),
            name => {
                let version = str::from_utf8(name).ok()?.strip_prefix("ropewalk/")?.parse().ok()?;
                Some(Spoken::Version(version))
            }
        }
    }
}
