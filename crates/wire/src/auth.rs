//! How two processes prove to each other that they know their cluster's secret. No I/O: the proofs, and what
//! they are made over.
//!
//! A proof is HMAC-SHA256 under the secret over: which side proves, both sides' nonces, the cluster, both
//! addresses of the connection, and the bytes that it vouches for. So a proof is of no use on another
//! connection (nonces, addresses), in the other direction (side), or for other bytes. Who only listens learns nothing
//! that helps later. What is sent after the handshake is not covered: that takes TLS.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use base::ClusterId;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

/// Bytes of a nonce.
pub const NONCE_LEN: usize = 32;
/// Bytes of a proof.
pub const PROOF_LEN: usize = 32;
/// Bytes of a secret.
pub const SECRET_LEN: usize = 32;

/// Drawn by each side for one handshake.
pub type Nonce = [u8; NONCE_LEN];
/// See the module.
pub type Proof = [u8; PROOF_LEN];

/// What makes a process a member of its cluster: who knows it may do everything. Never shown: it has no
/// `Display` and no `Serialize`, and `Debug` says nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; SECRET_LEN]);

impl Secret {
    /// From random bytes.
    pub fn new(bytes: [u8; SECRET_LEN]) -> Secret {
        Secret(bytes)
    }

    /// From 64 hexadecimal digits; `None` for anything else.
    pub fn from_hex(text: &str) -> Option<Secret> {
        let digits = text.as_bytes();
        if digits.len() != 2 * SECRET_LEN {
            return None;
        }
        let mut bytes = [0; SECRET_LEN];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |d: u8| char::from(d).to_digit(16);
            *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
        }
        Some(Secret(bytes))
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
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(not shown)")
    }
}

/// Which end of a connection proves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The one that accepted it: before it was told anything.
    Accepting,
    /// The one that connected: for what it says of itself.
    Connecting,
    /// The one that accepted it, for its answer to that.
    Answering,
}

impl Side {
    fn label(self) -> &'static [u8] {
        match self {
            Side::Accepting => b"ropewalk handshake: accepting\0",
            Side::Connecting => b"ropewalk handshake: connecting\0",
            Side::Answering => b"ropewalk handshake: answering\0",
        }
    }
}

/// What both sides of one connection see alike.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exchange {
    /// The cluster that both belong to.
    pub cluster: ClusterId,
    /// Drawn by the side that connects.
    pub connecting: Nonce,
    /// Drawn by the side that accepts.
    pub accepting: Nonce,
    /// Address of the side that connects, and the one that it connected to. `None` where a relay or a
    /// translation of addresses lies between them, and the cluster allows that.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
}

impl Exchange {
    /// What proves to the other side that `side` knows the secret, and that `said` comes from it.
    pub fn proof(&self, secret: &Secret, side: Side, said: &[u8]) -> Proof {
        self.mac(secret, side, said).finalize().into_bytes().into()
    }

    /// Whether a proof is right; takes the same time whichever byte is wrong.
    pub fn holds(&self, secret: &Secret, side: Side, said: &[u8], proof: &Proof) -> bool {
        self.mac(secret, side, said).verify_slice(proof).is_ok()
    }

    fn mac(&self, secret: &Secret, side: Side, said: &[u8]) -> Hmac<Sha256> {
        // A key as long as SHA-256's block: HMAC fills a shorter one up with zeros.
        let mut key = [0; 64];
        key[..SECRET_LEN].copy_from_slice(&secret.0);
        let mut mac = Hmac::<Sha256>::new(&key.into());
        mac.update(side.label());
        mac.update(&self.cluster.0.to_le_bytes());
        mac.update(&self.connecting);
        mac.update(&self.accepting);
        let addresses = self.addresses.map(|(from, to)| [address(from), address(to)]);
        mac.update(&[u8::from(addresses.is_some())]);
        mac.update(&addresses.unwrap_or([[0; 18]; 2]).concat());
        mac.update(&(said.len() as u64).to_le_bytes());
        mac.update(said);
        mac
    }
}

/// 16 bytes of the address, as IPv6 (an IPv4 one mapped), and the port: what both sides see, whatever socket they have.
fn address(of: SocketAddr) -> [u8; 18] {
    let ip = match of.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut bytes = [0; 18];
    bytes[..16].copy_from_slice(&ip.octets());
    bytes[16..].copy_from_slice(&of.port().to_le_bytes());
    bytes
}

/// Encoded bytes with the proof of who says them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Proven {
    /// An encoded message. Not to be decoded before the proof is checked.
    pub said: Vec<u8>,
    /// For these bytes.
    pub proof: Proof,
}

impl Proven {
    /// Seals encoded bytes.
    pub fn seal(exchange: &Exchange, secret: &Secret, side: Side, said: Vec<u8>) -> Proven {
        let proof = exchange.proof(secret, side, &said);
        Proven { said, proof }
    }

    /// The bytes, if the proof is right.
    pub fn open(&self, exchange: &Exchange, secret: &Secret, side: Side) -> Option<&[u8]> {
        exchange.holds(secret, side, &self.said, &self.proof).then_some(self.said.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange() -> Exchange {
        Exchange {
            cluster: ClusterId(7),
            connecting: [1; NONCE_LEN],
            accepting: [2; NONCE_LEN],
            addresses: Some(("10.0.0.1:1000".parse().unwrap(), "10.0.0.2:2000".parse().unwrap())),
        }
    }

    fn secret() -> Secret {
        Secret::new(std::array::from_fn(|i| i as u8))
    }

    #[test]
    fn golden_proofs() {
        // As another program (Python's hmac) has made them of what FORMAT.md says.
        let hex = |proof: Proof| proof.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let all = [Side::Accepting, Side::Connecting, Side::Answering];
        let made = all.map(|side| hex(exchange().proof(&secret(), side, b"said")));
        let without = hex(Exchange { addresses: None, ..exchange() }.proof(&secret(), Side::Accepting, b""));
        assert_eq!(
            made,
            [
                "a5da58b51f63635ae5afd7c0ef67e6ec593179690221e13f0510ea3a90364973",
                "02c36f22ff3864c04ac1ce50b06484624f8e68a34d04445db1aa5d6ca82011a7",
                "1938213310e2ef3a24d090dd7111c8706ac68f8e95e4e90291db137834ed1831"
            ]
        );
        assert_eq!(without, "fc22e9698dafdfd8b707dea0dd702ee85ee2edf578f6bf8715e20d204f2f7201");
    }

    #[test]
    fn a_proof_holds_for_one_connection_one_side_and_its_bytes() {
        let (ours, secret) = (exchange(), secret());
        let sealed = Proven::seal(&ours, &secret, Side::Connecting, b"said".to_vec());
        assert_eq!(sealed.open(&ours, &secret, Side::Connecting), Some(&b"said"[..]));
        // Reflected, or as another message of the handshake.
        for side in [Side::Accepting, Side::Answering] {
            assert_eq!(sealed.open(&ours, &secret, side), None, "{side:?}");
        }
        let (from, to) = ours.addresses.unwrap();
        let others = [
            Exchange { cluster: ClusterId(8), ..ours.clone() },
            Exchange { connecting: [3; NONCE_LEN], ..ours.clone() },
            Exchange { accepting: [3; NONCE_LEN], ..ours.clone() },
            Exchange { connecting: ours.accepting, accepting: ours.connecting, ..ours.clone() },
            Exchange { addresses: Some((to, from)), ..ours.clone() },
            Exchange { addresses: Some((from, "10.0.0.2:2001".parse().unwrap())), ..ours.clone() },
            Exchange { addresses: None, ..ours.clone() },
        ];
        for other in others {
            assert_eq!(sealed.open(&other, &secret, Side::Connecting), None, "{other:?}");
        }
        assert_eq!(sealed.open(&ours, &Secret::new([9; SECRET_LEN]), Side::Connecting), None);
        let changed = Proven { said: b"sAid".to_vec(), ..sealed.clone() };
        assert_eq!(changed.open(&ours, &secret, Side::Connecting), None);
        // The same addresses, seen by a socket of the other kind.
        let mapped = |of: SocketAddr| -> SocketAddr {
            let IpAddr::V4(ip) = of.ip() else { return of };
            (ip.to_ipv6_mapped(), of.port()).into()
        };
        let seen = Exchange { addresses: Some((mapped(from), mapped(to))), ..ours.clone() };
        assert!(sealed.open(&seen, &secret, Side::Connecting).is_some());
    }

    #[test]
    fn a_secret_is_read_and_never_shown() {
        let digits = secret().to_hex();
        assert_eq!(Secret::from_hex(&digits), Some(secret()));
        assert_eq!(Secret::in_text(&format!("{digits}\n")), Some(secret()));
        let file = format!("format = 1\nsecret = \"{digits}\"\n[[nodes]]\nname = \"n1\"\n");
        assert_eq!(Secret::in_text(&file), Some(secret()));
        for bad in ["", "secret = \"12\"", &digits[1..], &format!("{}g", &digits[1..]), "é"] {
            assert_eq!(Secret::in_text(bad), None, "{bad}");
        }
        assert!(!format!("{:?}", secret()).contains(&digits[..4]));
    }
}
