//! A token: what a machine needs to join a cluster, as one line of text.
//!
//! `rw1.ROLE.ID.EXPIRES.SECRET.AUTHORITY@MANAGER,...`: its number and the time of its end (seconds since 1970), 32 secret bytes, of
//! which the manager keeps a hash, the authority's fingerprint, by which the machine knows the manager before it says the
//! secret, and the manager's addresses. All but times and addresses in hexadecimal.

use std::{fmt, net::SocketAddr};

use sha2::{Digest, Sha256};
use wire::hello::Role;

use crate::{Fingerprint, secret::bytes_of_hex};

const BEGIN: &str = "rw1.";
/// Most addresses of managers.
const MANAGERS_MAX: usize = 16;

/// A token. It is shown in full: whoever prints one means to.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// What who joins with it will be: server, client, admin or manager.
    pub role: Role,
    /// Its number.
    pub id: u64,
    /// Seconds since 1970.
    pub expires: u64,
    /// What is to be shown to the manager.
    pub secret: [u8; 32],
    /// The manager is known by it.
    pub authority: Fingerprint,
    /// Where the manager is.
    pub managers: Vec<SocketAddr>,
}

/// Why a text is no token. The text itself is not repeated: it may be one, but for a letter.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("that is no token, {0}; copy the whole line that `ropewalk node token` printed")]
pub struct NoToken(&'static str);

impl Token {
    /// What the manager keeps of a secret.
    pub fn hash(secret: &[u8; 32]) -> [u8; 32] {
        Sha256::digest(secret).into()
    }

    /// From its text.
    pub fn parse(text: &str) -> Result<Token, NoToken> {
        let rest = text.trim().strip_prefix(BEGIN).ok_or(NoToken("it does not begin with rw1."))?;
        let (rest, managers) = rest.split_once('@').ok_or(NoToken("it names no manager"))?;
        let mut parts = rest.split('.');
        let [role, id, expires, secret, authority] = std::array::from_fn(|_| parts.next().unwrap_or(""));
        if parts.next().is_some() {
            return Err(NoToken("it has too many parts"));
        }
        let managers: Option<Vec<SocketAddr>> =
            managers.split(',').take(MANAGERS_MAX).map(|addr| addr.parse().ok()).collect();
        Ok(Token {
            role: match role {
                "server" => Role::Server,
                "client" => Role::Client,
                "admin" => Role::Admin,
                "manager" => Role::Manager,
                _ => return Err(NoToken("its role is not server, client, admin or manager")),
            },
            id: u64::from_str_radix(id, 16).map_err(|_| NoToken("its number is damaged"))?,
            expires: expires.parse().map_err(|_| NoToken("its time is damaged"))?,
            secret: bytes_of_hex(secret).ok_or(NoToken("its secret is damaged"))?,
            authority: Fingerprint(bytes_of_hex(authority).ok_or(NoToken("its authority is damaged"))?),
            managers: managers.ok_or(NoToken("the manager's address is damaged"))?,
        })
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = match self.role {
            Role::Server => "server",
            Role::Admin => "admin",
            Role::Manager => "manager",
            _ => "client",
        };
        let managers: Vec<String> = self.managers.iter().map(SocketAddr::to_string).collect();
        let secret = Fingerprint(self.secret);
        write!(
            f,
            "{BEGIN}{role}.{:016x}.{}.{secret}.{}@{}",
            self.id,
            self.expires,
            self.authority,
            managers.join(",")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read_and_what_is_cut_is_not() {
        for role in [Role::Server, Role::Client, Role::Admin, Role::Manager] {
            let token = Token {
                role,
                id: 0x1234,
                expires: 1_900_000_000,
                secret: [0xab; 32],
                authority: Fingerprint([0xcd; 32]),
                managers: vec!["10.0.0.1:7450".parse().unwrap(), "[::1]:7450".parse().unwrap()],
            };
            let text = token.to_string();
            assert!(Token::parse(&format!(" {text}\n")).is_ok_and(|read| read == token), "{text}");
            let secret = "ab".repeat(32);
            for cut in 0..text.len() {
                match Token::parse(&text[..cut]) {
                    // The end of an address may be one as well.
                    Ok(read) => assert!(cut > text.find('@').unwrap() && read.secret == token.secret),
                    Err(error) => assert!(!error.to_string().contains(&secret[..8])),
                }
            }
            assert!(Token::parse(&text.replace("rw1.", "rw2.")).is_err());
            assert!(Token::parse(&text.replace('@', ".00@")).is_err());
        }
    }
}
