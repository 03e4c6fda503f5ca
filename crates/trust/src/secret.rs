//! A cluster's secret.

use std::fmt;

use sha2::{Digest, Sha256};

/// Bytes of a secret.
pub const SECRET_LEN: usize = 32;

/// 32 bytes from 64 hexadecimal digits; `None` for anything else.
pub(crate) fn bytes_of_hex(text: &str) -> Option<[u8; SECRET_LEN]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * SECRET_LEN {
        return None;
    }
    let mut bytes = [0; SECRET_LEN];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |d: u8| char::from(d).to_digit(16);
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(bytes)
}

/// What the authority's key of a cluster is made from: who knows it may do everything. Never shown: it has no `Display` and
/// no `Serialize`, and `Debug` says nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; SECRET_LEN]);

impl Secret {
    /// From random bytes.
    pub fn new(bytes: [u8; SECRET_LEN]) -> Secret {
        Secret(bytes)
    }

    /// From 64 hexadecimal digits; `None` for anything else.
    pub fn from_hex(text: &str) -> Option<Secret> {
        bytes_of_hex(text).map(Secret)
    }

    /// For the one file that keeps it.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// From the text of a file that keeps one: the digits alone, or a line `secret = "DIGITS"` as in `cluster.toml`.
    pub fn in_text(text: &str) -> Option<Secret> {
        let of_line = |line: &str| {
            let (name, value) = line.split_once('=')?;
            (name.trim() == "secret").then(|| Secret::from_hex(value.trim().trim_matches('"')))?
        };
        Secret::from_hex(text.trim()).or_else(|| text.lines().find_map(of_line))
    }

    /// 32 bytes for one purpose, from which neither the secret nor those for another purpose can be found.
    pub(crate) fn derive(&self, purpose: &str) -> [u8; 32] {
        Sha256::new().chain_update(self.0).chain_update(purpose).finalize().into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(not shown)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_and_never_shown() {
        let secret = Secret::new(std::array::from_fn(|i| i as u8));
        let digits = secret.to_hex();
        assert_eq!(Secret::from_hex(&digits), Some(secret.clone()));
        assert_eq!(Secret::in_text(&format!("{digits}\n")), Some(secret.clone()));
        let file = format!("format = 1\nsecret = \"{digits}\"\n[[nodes]]\nname = \"n1\"\n");
        assert_eq!(Secret::in_text(&file), Some(secret.clone()));
        for bad in ["", "secret = \"12\"", &digits[1..], &format!("{}g", &digits[1..]), "é"] {
            assert_eq!(Secret::in_text(bad), None, "{bad}");
        }
        assert!(!format!("{secret:?}").contains(&digits[..4]));
    }
}
