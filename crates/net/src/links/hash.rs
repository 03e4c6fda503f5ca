//! How a Linux bond spreads flows over its links: the hash formulas, and source ports chosen by them.
//!
//! Sources: `Documentation/networking/bonding.rst` and `drivers/net/bonding/bond_main.c` (bond_eth_hash,
//! bond_ip_hash, bond_xmit_hash, bond_vlan_srcmac_hash). The formulas before Linux 4.13, still found in
//! talks and manuals, give other links for the same flow, so a variant is always named.
//! The kernel reads network-order fields as its own integers: where the number of links is no power of two
//! the link depends on the byte order of the CPU, which is therefore named too.

use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

/// `xmit_hash_policy` of a bond.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Policy {
    /// Hardware addresses and packet type: one link for all connections of two nodes.
    #[serde(rename = "layer2")]
    Layer2,
    /// And IP addresses: still one link for all connections of two addresses.
    #[serde(rename = "layer2+3")]
    Layer23,
    /// IP addresses and ports (of what is neither TCP, UDP nor SCTP, or is fragmented: no ports).
    #[serde(rename = "layer3+4")]
    Layer34,
    /// VLAN and source hardware address.
    #[serde(rename = "vlan+srcmac")]
    VlanSrcMac,
}

impl Policy {
    /// From its name in `/proc/net/bonding`; the encap policies hash the inner headers, which for a flow that
    /// is not in a tunnel are its own.
    pub fn from_name(name: &str) -> Option<Policy> {
        match name {
            "layer2" => Some(Policy::Layer2),
            "layer2+3" | "encap2+3" => Some(Policy::Layer23),
            "layer3+4" | "encap3+4" => Some(Policy::Layer34),
            "vlan+srcmac" => Some(Policy::VlanSrcMac),
            _ => None,
        }
    }

    /// Whether the source port has a say in it: if not, several connections share one link.
    pub fn uses_ports(self) -> bool {
        self == Policy::Layer34
    }
}

/// Which kernel's formulas.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Formulas {
    /// Linux 4.13 and later; with the shift by one bit for layer3+4 only (5.19 and later).
    Current,
    /// As in the bonding manual before: the lower 16 bits of the addresses, folded by nothing.
    Old,
}

/// The byte order of the CPU that computes the hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// x86-64, arm64, ppc64le.
    Little,
    /// s390x, ppc64.
    Big,
}

impl Order {
    /// This machine's.
    pub const HERE: Order = if cfg!(target_endian = "big") { Order::Big } else { Order::Little };

    fn word(self, bytes: [u8; 4]) -> u32 {
        match self {
            Order::Little => u32::from_le_bytes(bytes),
            Order::Big => u32::from_be_bytes(bytes),
        }
    }
}

/// What a packet carries of what is hashed.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// From.
    pub source: SocketAddr,
    /// To.
    pub destination: SocketAddr,
    /// Hardware address of the sender.
    pub source_mac: [u8; 6],
    /// Hardware address of the next hop.
    pub destination_mac: [u8; 6],
    /// VLAN, 0 for none.
    pub vlan: u16,
}

impl Flow {
    /// The same connection in the other direction.
    pub fn reversed(&self) -> Flow {
        Flow {
            source: self.destination,
            destination: self.source,
            source_mac: self.destination_mac,
            destination_mac: self.source_mac,
            vlan: self.vlan,
        }
    }

    /// Its hash; the link is the remainder by the number of links.
    pub fn hash(&self, policy: Policy, formulas: Formulas, order: Order) -> u32 {
        match (policy, formulas) {
            (Policy::VlanSrcMac, _) => self.vlan_srcmac(),
            (Policy::Layer2, _) => self.layer2(),
            (Policy::Layer23, Formulas::Current) => fold(self.layer2() ^ self.addresses(order)),
            (Policy::Layer34, Formulas::Current) => fold(self.ports(order) ^ self.addresses(order)) >> 1,
            (Policy::Layer23, Formulas::Old) => (self.layer2() & 0xff) ^ self.low_addresses(),
            (Policy::Layer34, Formulas::Old) => {
                u32::from(self.source.port() ^ self.destination.port()) ^ self.low_addresses()
            }
        }
    }

    /// The index of its link in the bond's list of active links.
    pub fn link(&self, policy: Policy, formulas: Formulas, order: Order, links: u32) -> u32 {
        self.hash(policy, formulas, order) % links.max(1)
    }

    fn layer2(&self) -> u32 {
        let ethertype = if self.source.is_ipv4() { 0x0800 } else { 0x86dd };
        u32::from(self.source_mac[5] ^ self.destination_mac[5]) ^ ethertype
    }

    fn vlan_srcmac(&self) -> u32 {
        let m = self.source_mac.map(u32::from);
        u32::from(self.vlan) ^ (m[0] << 16 | m[1] << 8 | m[2]) ^ (m[3] << 16 | m[4] << 8 | m[5])
    }

    fn ports(&self, order: Order) -> u32 {
        let (s, d) = (self.source.port().to_be_bytes(), self.destination.port().to_be_bytes());
        order.word([s[0], s[1], d[0], d[1]])
    }

    fn addresses(&self, order: Order) -> u32 {
        let word = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => order.word(ip.octets()),
            // ipv6_addr_hash: the four words of the address, combined.
            IpAddr::V6(ip) => {
                ip.octets().chunks_exact(4).fold(0, |h, w| h ^ order.word([w[0], w[1], w[2], w[3]]))
            }
        };
        word(self.source.ip()) ^ word(self.destination.ip())
    }

    fn low_addresses(&self) -> u32 {
        self.addresses(Order::Big) & 0xffff
    }
}

fn fold(mut h: u32) -> u32 {
    h ^= h >> 16;
    h ^ (h >> 8)
}

/// A bond as its own node knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bond {
    /// How it spreads flows.
    pub policy: Policy,
    /// Active links.
    pub links: u32,
}

/// The links of a connection, out and back, where the formula is known.
type Pair = (Option<u32>, Option<u32>);

/// Up to `n` source ports out of `free` for connections from `local` to `remote`, such that they take the
/// links of both bonds in turn: connection i link i of ours, and as far as ports allow link i of the peer's.
/// Empty if neither bond looks at ports. Hardware addresses do not matter then.
pub fn ports(
    local: IpAddr,
    remote: SocketAddr,
    ours: Option<Bond>,
    theirs: Option<Bond>,
    free: impl IntoIterator<Item = u16>,
    n: usize,
) -> Vec<u16> {
    let usable = |b: &Bond| b.policy.uses_ports() && b.links > 1;
    let (ours, theirs) = (ours.filter(usable), theirs.filter(usable));
    if ours.is_none() && theirs.is_none() {
        return Vec::new();
    }
    let links = |port: u16| {
        let source = SocketAddr::new(local, port);
        let flow = Flow { source, destination: remote, source_mac: [0; 6], destination_mac: [0; 6], vlan: 0 };
        let link =
            |f: &Flow, b: Option<Bond>| b.map(|b| f.link(b.policy, Formulas::Current, Order::HERE, b.links));
        (link(&flow, ours), link(&flow.reversed(), theirs))
    };
    let free: Vec<(u16, Pair)> = free.into_iter().map(|p| (p, links(p))).collect();
    let mut chosen: Vec<(u16, Pair)> = Vec::new();
    while chosen.len() < n {
        // The port whose two links have had the fewest so far.
        let uses = |(out, back): Pair| {
            chosen.iter().filter(|c| c.1.0 == out && out.is_some()).count()
                + chosen.iter().filter(|c| c.1.1 == back && back.is_some()).count()
        };
        let rest = free.iter().filter(|f| !chosen.iter().any(|c| c.0 == f.0));
        match rest.min_by_key(|f| uses(f.1)) {
            Some(&best) => chosen.push(best),
            None => break,
        }
    }
    chosen.into_iter().map(|c| c.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(port: u16) -> Flow {
        Flow {
            source: format!("192.168.10.11:{port}").parse().unwrap(),
            destination: "192.168.10.21:1191".parse().unwrap(),
            source_mac: [0xe4, 0x1d, 0x2d, 0x11, 0x22, 0x33],
            destination_mac: [0xe4, 0x1d, 0x2d, 0x44, 0x55, 0x66],
            vlan: 100,
        }
    }

    fn links(f: &Flow, policy: Policy, formulas: Formulas, order: Order) -> [u32; 3] {
        [2, 3, 4].map(|n| f.link(policy, formulas, order, n))
    }

    #[test]
    fn layer34_of_the_current_kernel() {
        let vectors = [
            (0x5cde_feb0, [0, 0, 0]),
            (0x5cde_fe30, [0, 1, 0]),
            (0x5cde_ffb1, [1, 2, 1]),
            (0x5cde_ff31, [1, 0, 1]),
            (0x5cde_fcb2, [0, 0, 2]),
            (0x5cde_fc32, [0, 1, 2]),
            (0x5cde_fdb3, [1, 2, 3]),
            (0x5cde_fd33, [1, 0, 3]),
        ];
        for (port, (hash, indices)) in (40000..).zip(vectors) {
            let f = flow(port);
            assert_eq!(f.hash(Policy::Layer34, Formulas::Current, Order::Little), hash, "{port}");
            assert_eq!(links(&f, Policy::Layer34, Formulas::Current, Order::Little), indices, "{port}");
            // Powers of two do not depend on the byte order, nor on the direction.
            let big = links(&f, Policy::Layer34, Formulas::Current, Order::Big);
            assert_eq!([big[0], big[2]], [indices[0], indices[2]], "{port}");
            assert_eq!(
                links(&f.reversed(), Policy::Layer34, Formulas::Current, Order::Little)[2],
                indices[2]
            );
        }
        let big = (40000..40008).map(|p| flow(p).link(Policy::Layer34, Formulas::Current, Order::Big, 3));
        assert_eq!(big.collect::<Vec<_>>(), [2, 0, 2, 0, 1, 2, 1, 2]);
    }

    #[test]
    fn policies_without_ports() {
        let all = |policy| links(&flow(40000), policy, Formulas::Current, Order::Little);
        assert_eq!(all(Policy::Layer2), [1, 0, 1]);
        assert_eq!(flow(40000).hash(Policy::Layer23, Formulas::Current, Order::Little), 505_288_259);
        assert_eq!(all(Policy::Layer23), [1, 2, 3]);
        assert_eq!(flow(40000).hash(Policy::VlanSrcMac, Formulas::Current, Order::Little), 0xf5_3f7a);
        assert_eq!(all(Policy::VlanSrcMac), [0, 1, 2]);
        for policy in [Policy::Layer2, Policy::Layer23, Policy::VlanSrcMac] {
            assert!(!policy.uses_ports());
            assert_eq!(
                flow(1).hash(policy, Formulas::Current, Order::HERE),
                flow(60000).hash(policy, Formulas::Current, Order::HERE)
            );
        }
    }

    #[test]
    fn the_old_formulas_say_otherwise() {
        let old = |port, policy| links(&flow(port), policy, Formulas::Old, Order::Little);
        assert_eq!(flow(1).low_addresses(), 0x1e);
        assert_eq!(old(40000, Policy::Layer23), [1, 0, 3]);
        let expected =
            [[1, 2, 1], [0, 1, 0], [1, 1, 3], [0, 0, 2], [1, 0, 1], [0, 2, 0], [1, 2, 3], [0, 1, 2]];
        for (port, indices) in (40000..).zip(expected) {
            assert_eq!(old(port, Policy::Layer34), indices, "{port}");
        }
    }

    #[test]
    fn neighbouring_ports_share_a_link() {
        for port in (32768..60000).step_by(2) {
            let link = |p| flow(p).link(Policy::Layer34, Formulas::Current, Order::Little, 4);
            assert_eq!(link(port), link(port + 1));
        }
    }

    #[test]
    fn chosen_ports_take_all_links_in_both_directions() {
        let (local, remote) = ("10.1.0.5".parse().unwrap(), "10.1.0.9:7000".parse().unwrap());
        let bond = |links| Some(Bond { policy: Policy::Layer34, links });
        for (ours, theirs, n) in [(2, 2, 2), (4, 4, 4), (3, 2, 6), (4, 4, 8), (2, 3, 6)] {
            let chosen = ports(local, remote, bond(ours), bond(theirs), 40000..41000, n);
            assert_eq!(chosen.len(), n);
            let count = |links: u32, out: bool| {
                let mut counts = vec![0; links as usize];
                for &port in &chosen {
                    let f = Flow {
                        source: SocketAddr::new(local, port),
                        destination: remote,
                        source_mac: [0; 6],
                        destination_mac: [0; 6],
                        vlan: 0,
                    };
                    let f = if out { f } else { f.reversed() };
                    counts[f.link(Policy::Layer34, Formulas::Current, Order::HERE, links) as usize] += 1;
                }
                counts
            };
            assert_eq!(count(ours, true), vec![n / ours as usize; ours as usize], "ours of {ours}/{theirs}");
            assert_eq!(count(theirs, false), vec![n / theirs as usize; theirs as usize], "{ours}/{theirs}");
        }
        let layer23 = Some(Bond { policy: Policy::Layer23, links: 2 });
        assert!(ports(local, remote, layer23, None, 40000..41000, 4).is_empty());
    }
}
