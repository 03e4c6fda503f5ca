//! Keys and certificates as text (RFC 7468), which other tools read as well.

use pem::{EncodeConfig, LineEnding, Pem};

/// A private key, PKCS #8.
pub const KEY: &str = "PRIVATE KEY";
/// A certificate.
pub const CERTIFICATE: &str = "CERTIFICATE";

/// As text.
pub fn write(bytes: &[u8], kind: &str) -> String {
    pem::encode_config(&Pem::new(kind, bytes), EncodeConfig::new().set_line_ending(LineEnding::LF))
}

/// From text; `None` if it is none of that kind. Nothing of it is shown.
pub fn read(text: &str, kind: &str) -> Option<Vec<u8>> {
    pem::parse(text).ok().filter(|read| read.tag() == kind).map(|read| read.into_contents())
}

/// Several of one kind, one below the other.
pub fn write_all<B: AsRef<[u8]>>(all: &[B], kind: &str) -> String {
    all.iter().map(|bytes| write(bytes.as_ref(), kind)).collect()
}

/// From text; `None` if it is not one or more of that kind and nothing else.
pub fn read_all(text: &str, kind: &str) -> Option<Vec<Vec<u8>>> {
    let all = pem::parse_many(text).ok().filter(|all| !all.is_empty())?;
    all.into_iter().map(|read| (read.tag() == kind).then(|| read.into_contents())).collect()
}
