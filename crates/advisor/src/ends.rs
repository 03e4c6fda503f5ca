//! Both ends of a link: what the machines of one subnet have on their interfaces there, as facts of the subnet
//! (`subnet.NAME.mtu.MACHINE`), which rules compare as any others. Only subnets count over which the machines reach each other:
//! the bridge that each of them has for its containers is another network on each.

use std::{collections::BTreeMap, net::IpAddr};

use crate::facts::{Facts, Origin, Path, Value};

/// One machine.
pub struct End<'a> {
    /// What people call it.
    pub machine: &'a str,
    /// What it shows.
    pub facts: &'a Facts,
    /// Where the others reach it.
    pub addresses: &'a [IpAddr],
}

/// What is the same on both ends, or should be: of the interface, of its bond, and of a port of it.
const OF_INTERFACE: [&str; 2] = ["mtu", "speed"];
const OF_BOND: [(&str, &str); 2] = [("mode", "bond_mode"), ("hash", "bond_hash")];
const OF_PORT: [&str; 3] = ["duplex", "pause_rx", "pause_tx"];

/// The facts of the subnets that at least two of the machines stand in.
pub fn between(ends: &[End<'_>]) -> Facts {
    let mut of_subnet: BTreeMap<String, Vec<(&End<'_>, String)>> = BTreeMap::new();
    for end in ends {
        let mut own: Vec<(String, String)> =
            end.addresses.iter().filter_map(|a| stands_in(end.facts, *a)).collect();
        own.sort();
        own.dedup();
        for (subnet, interface) in own {
            of_subnet.entry(subnet).or_default().push((end, interface));
        }
    }
    let mut facts = Facts::new();
    for (subnet, members) in of_subnet.iter().filter(|(_, members)| members.len() > 1) {
        let path = Path::of(&["subnet", &subnet.replace('/', "-")]);
        facts.insert(path.join("subnet"), subnet.as_str(), Origin::of("addresses of the cluster"));
        for (end, interface) in members {
            // The first port of a bond stands for all: that they are alike is another rule's.
            let bond = Path::of(&["bond", interface]);
            let members = end.facts.list(bond.join("members").as_str()).unwrap_or_default();
            let port = members.first().and_then(Value::as_text).unwrap_or(interface.as_str());
            let net = |name: &str| Path::of(&["net", name]);
            let sources = (OF_INTERFACE.iter().map(|key| (net(interface).join(key), *key)))
                .chain(OF_BOND.iter().map(|(key, name)| (bond.join(key), *name)))
                .chain(OF_PORT.iter().map(|key| (net(port).join(key), *key)));
            for (source, key) in sources {
                if let Some(fact) = end.facts.get(source.as_str()) {
                    let origin = Origin::of(format!("{}: {}", end.machine, fact.origin));
                    facts.insert(path.join(key).join(end.machine), fact.value.clone(), origin);
                }
            }
        }
    }
    facts
}

/// The narrowest subnet of an interface that an address stands in, and the interface.
fn stands_in(facts: &Facts, address: IpAddr) -> Option<(String, String)> {
    let mut found: Option<(u32, String, String)> = None;
    for (path, fact) in facts.matching("net.*.subnets") {
        let interface = path.names().nth(1)?.replace('/', ".");
        for subnet in fact.value.as_list().unwrap_or_default().iter().filter_map(Value::as_text) {
            if let Some(length) = holds(subnet, address)
                && found.as_ref().is_none_or(|(narrowest, ..)| *narrowest < length)
            {
                found = Some((length, subnet.to_owned(), interface.clone()));
            }
        }
    }
    found.map(|(_, subnet, interface)| (subnet, interface))
}

/// The length of a subnet's prefix if the address stands in it.
fn holds(subnet: &str, address: IpAddr) -> Option<u32> {
    let (base, length) = subnet.split_once('/')?;
    let length: u32 = length.parse().ok()?;
    let (base, address, bits) = match (base.parse::<IpAddr>().ok()?, address) {
        (IpAddr::V4(base), IpAddr::V4(address)) => (u32::from(base).into(), u32::from(address).into(), 32u32),
        (IpAddr::V6(base), IpAddr::V6(address)) => (u128::from(base), u128::from(address), 128),
        _ => return None,
    };
    let kept = bits.checked_sub(length)?;
    (length > 0 && (base ^ address).checked_shr(kept).unwrap_or(0) == 0).then_some(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Catalogue, rank};

    fn host(mtu: i64, hash: &str) -> Facts {
        let mut facts = Facts::new();
        let mut put = |path: &str, value: Value| facts.insert(path, value, Origin::of("x"));
        put("net.bond0.mtu", mtu.into());
        put("net.bond0.subnets", vec!["10.0.0.0/16", "fd00::/64"].into());
        put("net.eth0.mtu", 1500i64.into());
        put("net.eth0.subnets", vec!["10.0.7.0/24"].into());
        put("net.docker0.mtu", mtu.into());
        put("net.docker0.subnets", vec!["172.17.0.0/16"].into());
        put("bond.bond0.members", vec!["p0", "p1"].into());
        put("bond.bond0.hash", hash.into());
        put("net.p0.pause_rx", (mtu == 9000).into());
        facts
    }

    #[test]
    fn machines_that_differ_on_one_subnet_are_told_of_it() {
        let (a, b) = (host(9000, "layer3+4"), host(1500, "layer2"));
        let address = |text: &str| vec![text.parse::<IpAddr>().unwrap()];
        let found = |first: &str, second: &str| {
            let (first, second) = (address(first), address(second));
            let ends = [
                End { machine: "h1.example", facts: &a, addresses: &first },
                End { machine: "h2", facts: &b, addresses: &second },
            ];
            let findings = rank::advise(&Catalogue::load().unwrap(), &between(&ends), &[]);
            findings.into_iter().map(|f| (f.rule, f.title, f.evidence)).collect::<Vec<_>>()
        };
        let told = found("10.0.1.1", "10.0.1.2");
        let rules: Vec<&str> = told.iter().map(|(rule, ..)| rule.as_str()).collect();
        assert_eq!(rules, ["ends-mtu-differ", "ends-bond-differ", "ends-pause-differ"]);
        assert!(told[0].1.starts_with("10.0.0.0/16: "), "{told:?}");
        assert!(
            told[0].2.iter().any(|e| e.origin.starts_with("h1.example: ") && e.value == "9000"),
            "{told:?}"
        );
        assert_eq!(found("fd00::1", "fd00::2").len(), 3);
        // The narrower subnet is another interface's, where both are alike; nobody is reached in the third; no link is shared.
        assert_eq!(found("10.0.7.1", "10.0.7.2"), []);
        assert_eq!(found("192.168.1.1", "192.168.1.2"), []);
        assert_eq!(found("10.0.1.1", "10.0.7.2"), []);
    }

    #[test]
    fn addresses_and_subnets() {
        let holds = |subnet: &str, address: &str| holds(subnet, address.parse().unwrap());
        assert_eq!(holds("10.1.0.0/16", "10.1.2.3"), Some(16));
        assert_eq!(holds("10.1.2.3/32", "10.1.2.3"), Some(32));
        for (subnet, address) in [
            ("0.0.0.0/0", "10.1.2.3"),
            ("10.1.0.0/33", "10.1.0.0"),
            ("10.1.0.0", "10.1.0.0"),
            ("fd00::/64", "10.1.2.3"),
        ] {
            assert_eq!(holds(subnet, address), None);
        }
    }
}
