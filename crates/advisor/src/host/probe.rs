//! The largest packet that passes to another host, by trying: ICMP echoes that may not be cut on the way. Asked for only,
//! since it sends. A few dozen packets at most, each tried twice; what comes back at once is not waited for as long as what takes its time.

use std::{
    io::{
        self,
        ErrorKind::{HostUnreachable, NetworkUnreachable},
    },
    net::{IpAddr, Ipv4Addr, SocketAddrV4, ToSocketAddrs},
    time::{Duration, Instant},
};

use rustix::{
    fd::OwnedFd,
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, ipproto, recv, send,
        socket_with,
        sockopt::{self, Ipv4PathMtuDiscovery, Timeout},
    },
};

use super::tree::Tree;
use crate::facts::{Facts, Origin};

/// How long the first answer may take, and any other at most.
const PATIENCE: Duration = Duration::from_millis(500);
/// How many times as long as the first answer took the others may take, and how long at least.
const TIMES_THE_FIRST: u32 = 20;
const PATIENCE_LEAST: Duration = Duration::from_millis(100);
/// Echoes of each size.
const TRIES: usize = 2;
/// Headers of IP and ICMP.
const HEADERS: u32 = 28;
/// The smallest packet that every path bears.
const LEAST: u32 = 576;
/// The largest packet that there is.
const MOST: u32 = 65_535;

/// What the way to a host bears, as facts `probe.HOST.*`: whether it answers, the largest packet that came back, and
/// the largest that the interface sends.
///
/// # Errors
/// The name has no IPv4 address, or this process may not send echoes.
pub fn probe(host: &str) -> io::Result<Facts> {
    let address = resolve(host)?;
    let mut facts = Facts::new();
    let origin = || Origin::of(format!("echoes to {address}"));
    let mut echo = match Echo::to(address) {
        Err(error) if [NetworkUnreachable, HostUnreachable].contains(&error.kind()) => {
            facts.insert(["probe", host, "answers"], false, origin());
            return Ok(facts);
        }
        echo => echo?,
    };
    let answers = echo.passes(LEAST)? == Fate::Passed;
    echo.be_patient(echo.took * TIMES_THE_FIRST)?;
    facts.insert(["probe", host, "answers"], answers, origin());
    if !answers {
        return Ok(facts);
    }
    // What the interface sends is one of this host's MTUs, the largest of those that it takes.
    let interface = mtus().into_iter().find_map(|mtu| match echo.passes(mtu) {
        Ok(Fate::NotSent) => None,
        fate => Some(fate.map(|fate| (mtu, fate))),
    });
    let (interface, fate) = interface.unwrap_or(Ok((LEAST, Fate::Passed)))?;
    let (mut passed, mut lost) = (LEAST, interface);
    if fate == Fate::Passed {
        passed = interface;
    }
    while passed + 1 < lost {
        let middle = passed + (lost - passed) / 2;
        match echo.passes(middle)? {
            Fate::Passed => passed = middle,
            Fate::Lost | Fate::NotSent => lost = middle,
        }
    }
    facts.insert(["probe", host, "mtu"], passed, origin());
    facts.insert(["probe", host, "interface_mtu"], interface, origin());
    Ok(facts)
}

fn resolve(host: &str) -> io::Result<Ipv4Addr> {
    let none = || io::Error::new(io::ErrorKind::NotFound, format!("{host} has no IPv4 address"));
    let v4 = |address: IpAddr| match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    };
    (host, 0).to_socket_addrs()?.find_map(|address| v4(address.ip())).ok_or_else(none)
}

/// The MTUs of this host's interfaces, the largest first.
fn mtus() -> Vec<u32> {
    let tree = Tree::below("/");
    let of = |name: String| tree.text(&format!("sys/class/net/{name}/mtu"))?.parse::<u32>().ok();
    // A name space may have no sysfs of its own.
    let common = [1500, 9000];
    let mut mtus: Vec<u32> = tree.names("sys/class/net").into_iter().filter_map(of).chain(common).collect();
    mtus.iter_mut().for_each(|mtu| *mtu = (*mtu).clamp(LEAST, MOST));
    mtus.sort_unstable_by(|a, b| b.cmp(a));
    mtus.dedup();
    mtus
}

/// What became of an echo.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// It came back.
    Passed,
    /// It did not.
    Lost,
    /// The interface does not send so much in one packet.
    NotSent,
}

struct Echo {
    socket: OwnedFd,
    id: u16,
    /// Of the next one.
    sequence: u16,
    patience: Duration,
    /// How long the last answer took.
    took: Duration,
}

impl Echo {
    fn to(address: Ipv4Addr) -> io::Result<Echo> {
        let open = |kind| socket_with(AddressFamily::INET, kind, SocketFlags::CLOEXEC, Some(ipproto::ICMP));
        // Without privileges where net.ipv4.ping_group_range allows it, else as root.
        let socket = open(SocketType::DGRAM).or_else(|_| open(SocketType::RAW)).map_err(|e| {
            io::Error::new(
                io::Error::from(e).kind(),
                "this process may not send echoes: run it as root, or set net.ipv4.ping_group_range",
            )
        })?;
        connect(&socket, &SocketAddrV4::new(address, 0))?;
        // Never cut, and whatever was learned of the path before does not count.
        sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE)?;
        let id = (std::process::id() & 0xffff) as u16;
        let mut echo = Echo { socket, id, sequence: 0, patience: PATIENCE, took: PATIENCE };
        echo.be_patient(PATIENCE)?;
        Ok(echo)
    }

    fn be_patient(&mut self, patience: Duration) -> io::Result<()> {
        self.patience = patience.clamp(PATIENCE_LEAST, PATIENCE);
        sockopt::set_socket_timeout(&self.socket, Timeout::Recv, Some(self.patience))?;
        Ok(())
    }

    /// Whether a packet of so many bytes, headers and all, comes back.
    fn passes(&mut self, bytes: u32) -> io::Result<Fate> {
        let mut fate = Fate::Lost;
        for _ in 0..TRIES {
            self.sequence = self.sequence.wrapping_add(1);
            let packet = request(self.id, self.sequence, (bytes - HEADERS) as usize);
            fate = match send(&self.socket, &packet, SendFlags::empty()) {
                Ok(_) if self.comes_back() => return Ok(Fate::Passed),
                Ok(_) => Fate::Lost,
                // Also what a router said of the one before: the second try tells.
                Err(Errno::MSGSIZE) => Fate::NotSent,
                Err(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::CONNREFUSED) => Fate::Lost,
                Err(error) => return Err(error.into()),
            };
        }
        Ok(fate)
    }

    /// Whether the answer to the last request arrives in time.
    fn comes_back(&mut self) -> bool {
        let sent = Instant::now();
        let mut buffer = vec![0u8; MOST as usize];
        while sent.elapsed() < self.patience {
            // An error is what a router says, or the end of patience.
            let Ok((_, length)) = recv(&self.socket, buffer.as_mut_slice(), RecvFlags::empty()) else {
                return false;
            };
            if is_answer(&buffer[..length], self.sequence) {
                self.took = sent.elapsed();
                return true;
            }
        }
        false
    }
}

/// An echo request with its checksum; a datagram socket puts its own id in.
fn request(id: u16, sequence: u16, payload: usize) -> Vec<u8> {
    let mut packet = vec![0u8; 8 + payload];
    packet[0] = 8;
    packet[4..6].copy_from_slice(&id.to_be_bytes());
    packet[6..8].copy_from_slice(&sequence.to_be_bytes());
    let sum: u64 =
        packet.chunks(2).map(|two| u64::from(two[0]) << 8 | two.get(1).map_or(0, |b| u64::from(*b))).sum();
    let mut folded = sum;
    while folded > 0xffff {
        folded = (folded & 0xffff) + (folded >> 16);
    }
    packet[2..4].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    packet
}

/// Whether these bytes are an echo reply of this number: with the header of IP before it, as a raw socket gives it, or
/// without. On loopback a raw socket sees the request as well, which is none.
fn is_answer(bytes: &[u8], sequence: u16) -> bool {
    let header = match bytes.first() {
        Some(first) if first >> 4 == 4 => usize::from(first & 0xf) * 4,
        _ => 0,
    };
    let reply = bytes.get(header..header + 8);
    reply.is_some_and(|reply| reply[0] == 0 && reply[1] == 0 && reply[6..8] == sequence.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn requests_and_answers() {
        let packet = request(7, 258, 3);
        assert_eq!((packet.len(), packet[0], &packet[4..8]), (11, 8, &[0, 7, 1, 2][..]));
        // The sum over all of it, checksum and all, is all ones.
        let sum: u32 =
            packet.chunks(2).map(|t| u32::from(t[0]) << 8 | t.get(1).map_or(0, |b| u32::from(*b))).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        assert!(!is_answer(&packet, 258));
        let mut answer = packet;
        answer[0] = 0;
        assert!(is_answer(&answer, 258) && !is_answer(&answer, 259));
        let mut raw = vec![0x45; 20];
        raw.extend(answer);
        assert!(is_answer(&raw, 258));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..64), sequence: u16) {
            let _ = is_answer(&bytes, sequence);
        }
    }
}
