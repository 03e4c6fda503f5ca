//! How connections are protected, in the words of Storage Scale's `cipherList`.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// What of a connection is protected how, after a handshake that proves both ends in any case. Its number is part of messages
/// (postcard): new ones are added at the end.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CipherList {
    /// Everything is encrypted, by what both ends like best.
    #[default]
    #[serde(rename = "DEFAULT")]
    Default,
    /// Nothing is, between processes that see each other without a relay: for loopback, and for networks that nobody else reaches.
    #[serde(rename = "EMPTY")]
    Empty,
    /// Bulk payloads go in the clear, each piece with a keyed tag; everything else is encrypted.
    #[serde(rename = "AUTHONLY")]
    AuthOnly,
    /// Everything is encrypted, by this.
    #[serde(rename = "AES128-GCM-SHA256")]
    Aes128,
    /// The same.
    #[serde(rename = "AES256-GCM-SHA384")]
    Aes256,
    /// The same, for CPUs without AES instructions.
    #[serde(rename = "CHACHA20-POLY1305-SHA256")]
    ChaCha20,
}

impl CipherList {
    /// All of them, with their names.
    pub const NAMES: [(&'static str, CipherList); 6] = [
        ("DEFAULT", CipherList::Default),
        ("EMPTY", CipherList::Empty),
        ("AUTHONLY", CipherList::AuthOnly),
        ("AES128-GCM-SHA256", CipherList::Aes128),
        ("AES256-GCM-SHA384", CipherList::Aes256),
        ("CHACHA20-POLY1305-SHA256", CipherList::ChaCha20),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, value)| *value == self).map_or("", |(name, _)| name)
    }
}

impl fmt::Display for CipherList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CipherList {
    type Err = String;

    /// In any spelling of the letters.
    fn from_str(text: &str) -> Result<CipherList, String> {
        let found = Self::NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
        found.map(|(_, value)| *value).ok_or_else(|| {
            format!("no cipherList; possible are {}", Self::NAMES.map(|(name, _)| name).join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for (name, value) in CipherList::NAMES {
            assert_eq!(name.to_lowercase().parse(), Ok(value));
            assert_eq!(value.to_string(), name);
            assert_eq!(serde_json::to_string(&value).unwrap(), format!("\"{name}\""));
        }
        let error = "AES128-SHA".parse::<CipherList>().unwrap_err();
        assert!(CipherList::NAMES.iter().all(|(name, _)| error.contains(name)), "{error}");
        // What was once a flag in messages: encrypted or not.
        assert_eq!(postcard::to_stdvec(&[CipherList::Default, CipherList::Empty]).unwrap(), [0, 1]);
    }
}
