//! The network links of this node: what the kernel counts on each, the bond or the routing policy that
//! spreads flows over them. Read from `/proc`, as the process's own network namespace shows it.

pub(crate) mod choose;
pub mod hash;
pub(crate) mod probe;
pub(crate) mod tcp_info;
pub(crate) mod verify;

use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
};

use wire::hello::{BondInfo, LinkCount, Links};

use crate::links::hash::{Bond, Policy};

/// Links looked at; more are left out.
const LINKS_MAX: usize = 64;

/// The counters of all links but the loopback, and the bond that leads to `towards`, if one does.
///
/// `/proc/thread-self/net/dev` has the same numbers as `/sys/class/net/*/statistics`, in one read, and for
/// the right network namespace also where `/sys` was not mounted anew.
pub(crate) fn read(towards: IpAddr) -> Links {
    let text = fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let layer3_only = fs::read_to_string("/proc/sys/net/ipv4/fib_multipath_hash_policy")
        .is_ok_and(|policy| policy.trim() == "0");
    Links {
        links: parse_counters(&text),
        bond: device_towards(towards).and_then(|device| bond(&device)),
        layer3_only,
    }
}

fn parse_counters(text: &str) -> Vec<LinkCount> {
    let line = |line: &str| {
        let (name, numbers) = line.split_once(':')?;
        let numbers: Vec<u64> = numbers.split_ascii_whitespace().map_while(|n| n.parse().ok()).collect();
        let (received, sent) = (*numbers.first()?, *numbers.get(8)?);
        let name = name.trim();
        (name != "lo").then(|| LinkCount { name: name.to_owned(), received, sent })
    };
    text.lines().filter_map(line).take(LINKS_MAX).collect()
}

/// The interface of the most exact IPv4 route to `to`, if a bond can be behind it at all.
fn device_towards(to: IpAddr) -> Option<String> {
    let IpAddr::V4(to) = to else { return None };
    fs::metadata("/proc/net/bonding").ok()?;
    route(&fs::read_to_string("/proc/thread-self/net/route").ok()?, to)
}

fn route(table: &str, to: Ipv4Addr) -> Option<String> {
    let to = u32::from_le_bytes(to.octets());
    let line = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let hex = |i: usize| u32::from_str_radix(fields.get(i)?, 16).ok();
        let (destination, mask) = (hex(1)?, hex(7)?);
        (to & mask == destination).then(|| (mask.count_ones(), fields[0].to_owned()))
    };
    table.lines().skip(1).filter_map(line).max_by_key(|(bits, _)| *bits).map(|(_, device)| device)
}

fn bond(device: &str) -> Option<BondInfo> {
    parse_bond(&fs::read_to_string(format!("/proc/net/bonding/{device}")).ok()?)
}

fn parse_bond(text: &str) -> Option<BondInfo> {
    let value = |key: &str| text.lines().find_map(|l| l.strip_prefix(key)).map(str::trim);
    let mode = value("Bonding Mode:")?;
    // Only these modes hash.
    if !(mode.contains("xor") || mode.contains("802.3ad")) {
        return None;
    }
    let policy = value("Transmit Hash Policy:")?.split(' ').next()?.to_owned();
    let mut lines = text.lines();
    let mut links = 0;
    while lines.any(|l| l.starts_with("Slave Interface:")) {
        links += u32::from(lines.next().is_some_and(|l| l == "MII Status: up"));
    }
    Some(BondInfo { policy, links })
}

/// A bond whose formula is known.
pub(crate) fn known(bond: Option<&BondInfo>) -> Option<Bond> {
    let bond = bond?;
    Some(Bond { policy: Policy::from_name(&bond.policy)?, links: bond.links })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_all_but_the_loopback() {
        let text = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 100 1 0 0 0 0 0 0 100 1 0 0 0 0 0 0
  eth0: 1234 5 0 0 0 0 0 0 987654321012 6 0 0 0 0 0 0
 bond0:77 5 0 0 0 0 0 0 88 6 0 0 0 0 0 0
  bad: x
";
        let links = parse_counters(text);
        let link = |name: &str, received, sent| LinkCount { name: name.to_owned(), received, sent };
        assert_eq!(links, [link("eth0", 1234, 987_654_321_012), link("bond0", 77, 88)]);
    }

    #[test]
    fn the_most_exact_route_leads() {
        let table = "\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
bond0\t000AA8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
";
        assert_eq!(route(table, "192.168.10.21".parse().unwrap()).as_deref(), Some("bond0"));
        assert_eq!(route(table, "8.8.8.8".parse().unwrap()).as_deref(), Some("eth0"));
    }

    #[test]
    fn a_bond_says_policy_and_active_links() {
        let text = "\
Ethernet Channel Bonding Driver: v6.1

Bonding Mode: IEEE 802.3ad Dynamic link aggregation
Transmit Hash Policy: layer3+4 (1)
MII Status: up

Slave Interface: eth0
MII Status: up
Speed: 25000 Mbps

Slave Interface: eth1
MII Status: down

Slave Interface: eth2
MII Status: up
";
        let bond = parse_bond(text).unwrap();
        assert_eq!(bond, BondInfo { policy: "layer3+4".to_owned(), links: 2 });
        assert_eq!(known(Some(&bond)), Some(Bond { policy: Policy::Layer34, links: 2 }));
        let backup = text.replace("IEEE 802.3ad Dynamic link aggregation", "fault-tolerance (active-backup)");
        assert_eq!(parse_bond(&backup), None);
    }
}
