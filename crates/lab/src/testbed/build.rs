//! Makes what a specification says: namespaces, devices, addresses, routes, settings.
//!
//! Direct: link `lN` of `h1` is the other end of link `lN` of `h2`. With a switch: the other end of `lN` of
//! `hK` is `hK-lN` in the namespace `switch`, which is a router (ECMP) or a bridge for each network (subnets).
//! Addresses of ECMP hosts are on their loopback, and routes name devices only: no link has an address.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
};

use super::{
    description::Testbed,
    error::TestbedError,
    host::{Host, within},
    run::{batch, run},
    spec::{BitRate, Join, Spec, netns},
};
use crate::draw::Draw;

const SWITCH: &str = "switch";
/// What a router asks its neighbours with; outside the range that hosts are drawn from.
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 255, 255, 1);
/// What a link lets pass at once, in milliseconds of its rate: a network card goes on sending what is queued while a
/// hypervisor holds the CPUs, a token bucket makes up for it afterwards. No more than waits at a link ([`QUEUE`]).
const BURST_MS: u64 = 4;
/// And always a whole segmented packet.
const BURST_BYTES_MIN: u64 = 128 << 10;
/// What waits at a link at most.
const QUEUE: &str = "5ms";

/// The device of link `n` (from 1) on its host.
pub(super) fn device(n: u8) -> String {
    format!("l{n}")
}

/// 1 to 254.
fn octet(draw: &mut Draw) -> u8 {
    (draw.below(254) + 1) as u8
}

/// Names and addresses, drawn from the seed: ECMP hosts anywhere in 10/8, subnets a /24 each.
pub(super) fn draw_hosts(spec: &Spec) -> Vec<Host> {
    let mut draw = Draw::new(spec.seed);
    let mut subnets = BTreeSet::new();
    let mut order = Vec::new();
    while order.len() < usize::from(spec.links) {
        let subnet = (octet(&mut draw), octet(&mut draw));
        if subnets.insert(subnet) {
            order.push(subnet);
        }
    }
    let mut taken = BTreeSet::new();
    let mut hosts = Vec::new();
    while hosts.len() < usize::from(spec.hosts) {
        let addrs: Vec<IpAddr> = match spec.join {
            Join::Ecmp { .. } => {
                vec![Ipv4Addr::new(10, octet(&mut draw), octet(&mut draw), octet(&mut draw)).into()]
            }
            Join::Subnets => {
                let last = octet(&mut draw);
                order.iter().map(|&(a, b)| Ipv4Addr::new(10, a, b, last).into()).collect()
            }
        };
        if taken.insert(addrs.clone()) {
            let name = format!("h{}", hosts.len() + 1);
            hosts.push(Host { netns: netns(&spec.name, &name), name, addrs });
        }
    }
    hosts
}

/// Namespace and device of the other end of a host's link.
pub(super) fn far_end(testbed: &Testbed, host: &Host, link: u8) -> (String, String) {
    if testbed.spec.has_switch() {
        return (testbed.netns(SWITCH), format!("{}-{}", host.name, device(link)));
    }
    let other = testbed.hosts.iter().find(|h| h.name != host.name).unwrap_or(host);
    (other.netns.clone(), device(link))
}

/// The rate of a device's sending direction; or everything it sends is dropped.
pub(super) fn shape(device: &str, rate: BitRate, passes: bool) -> String {
    if passes {
        let burst = (rate.0 / 8 * BURST_MS / 1000).max(BURST_BYTES_MIN);
        format!("qdisc replace dev {device} root tbf rate {}bit burst {burst} latency {QUEUE}", rate.0)
    } else {
        // A queue with room for one byte has room for no packet.
        format!("qdisc replace dev {device} root bfifo limit 1")
    }
}

pub(super) fn build(testbed: &Testbed) -> Result<(), TestbedError> {
    let spec = &testbed.spec;
    let mut spaces: Vec<String> = testbed.hosts.iter().map(|h| h.netns.clone()).collect();
    if spec.has_switch() {
        spaces.push(testbed.netns(SWITCH));
    }
    let mut draw = Draw::new(!spec.seed);
    for space in &spaces {
        run("make a namespace", "ip", &["netns", "add", space])?;
        settings(spec, space, (draw.word() as u32).max(1))?;
        batch("start loopback", "ip", space, &["link set lo up".to_owned()])?;
    }
    links(testbed)?;
    match spec.join {
        Join::Ecmp { .. } => {
            let mut owners: Vec<(String, IpAddr)> =
                testbed.hosts.iter().map(|h| (h.netns.clone(), h.addrs[0])).collect();
            if spec.has_switch() {
                owners.push((testbed.netns(SWITCH), ROUTER.into()));
            }
            for (space, addr) in owners {
                batch("give a host its address", "ip", &space, &[format!("addr add {addr}/32 dev lo")])?;
            }
            if spec.has_switch() {
                // It answers at once, instead of after a random pause of up to 0.8 seconds.
                let ports =
                    testbed.hosts.iter().flat_map(|h| (1..=spec.links).map(|n| far_end(testbed, h, n).1));
                let values: Vec<_> =
                    ports.map(|p| (format!("ipv4/neigh/{p}/proxy_delay"), "0".to_owned())).collect();
                write_settings(&testbed.netns(SWITCH), &values)?;
            }
            routes(testbed)
        }
        Join::Subnets => subnets(testbed),
    }
}

/// Kernel settings of a namespace.
fn settings(spec: &Spec, space: &str, hash_seed: u32) -> Result<(), TestbedError> {
    let policy = if let Join::Ecmp { policy } = spec.join { policy } else { 0 };
    let router = spec.join != Join::Subnets && space == netns(&spec.name, SWITCH);
    let values = [
        // No traffic of its own: link counters count what is tested.
        ("ipv6/conf/all/disable_ipv6", "1".to_owned()),
        ("ipv6/conf/default/disable_ipv6", "1".to_owned()),
        ("ipv4/ip_forward", "1".to_owned()),
        ("ipv4/conf/all/rp_filter", "0".to_owned()),
        ("ipv4/conf/default/rp_filter", "0".to_owned()),
        // Routes over a link without carrier are not used.
        ("ipv4/conf/all/ignore_routes_with_linkdown", "1".to_owned()),
        ("ipv4/conf/default/ignore_routes_with_linkdown", "1".to_owned()),
        ("ipv4/fib_multipath_hash_policy", policy.to_string()),
        ("ipv4/fib_multipath_hash_seed", hash_seed.to_string()),
        // A host answers for an address only on the network it belongs to, and asks with that address.
        ("ipv4/conf/all/arp_ignore", if spec.join == Join::Subnets { "1" } else { "0" }.to_owned()),
        ("ipv4/conf/all/arp_announce", if spec.join == Join::Subnets { "2" } else { "0" }.to_owned()),
        // A router answers for the hosts behind it.
        ("ipv4/conf/all/proxy_arp", if router { "1" } else { "0" }.to_owned()),
    ];
    write_settings(space, &values)
}

fn write_settings(space: &str, values: &[(impl AsRef<str> + Sync, String)]) -> Result<(), TestbedError> {
    within(space, || {
        for (name, value) in values {
            let name = name.as_ref();
            let path = format!("/proc/sys/net/{name}");
            match std::fs::write(&path, value) {
                Ok(()) => {}
                // IPv6 may be left out of a kernel; the key can be set from Linux 6.11 on, and is random before.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound && name.starts_with("ipv6") => {}
                Err(e) if e.kind() == std::io::ErrorKind::NotFound && name.ends_with("seed") => {}
                Err(source) => {
                    return Err(TestbedError::System { action: format!("write {value} to {path}"), source });
                }
            }
        }
        Ok(())
    })?
}

fn links(testbed: &Testbed) -> Result<(), TestbedError> {
    let spec = &testbed.spec;
    // Without a switch the second host's links are the other ends of the first's.
    let from = if spec.has_switch() { testbed.hosts.len() } else { 1 };
    for host in &testbed.hosts[..from] {
        for link in 1..=spec.links {
            let (near, (far_space, far)) = (device(link), far_end(testbed, host, link));
            let add = format!("link add {near} type veth peer name {far} netns {far_space}");
            batch("make a link", "ip", &host.netns, &[add, format!("link set {near} up")])?;
            batch("make a link", "ip", &far_space, &[format!("link set {far} up")])?;
            batch("limit a link", "tc", &host.netns, &[shape(&near, spec.rate, true)])?;
            batch("limit a link", "tc", &far_space, &[shape(&far, spec.rate, true)])?;
        }
    }
    Ok(())
}

/// The multipath routes of hosts and router over the links that are up, made or made again.
pub(super) fn routes(testbed: &Testbed) -> Result<(), TestbedError> {
    let links = 1..=testbed.spec.links;
    for host in &testbed.hosts {
        let up = up_devices(&host.netns)?;
        let via = hops(&up, links.clone().map(device));
        let others = testbed.hosts.iter().filter(|h| h.name != host.name && !via.is_empty());
        let routes: Vec<String> =
            others.map(|to| format!("route replace {}/32 src {}{via}", to.addrs[0], host.addrs[0])).collect();
        batch("route over the links", "ip", &host.netns, &routes)?;
    }
    if testbed.spec.has_switch() {
        let up = up_devices(&testbed.netns(SWITCH))?;
        let to = |host: &Host| {
            let via = hops(&up, links.clone().map(|n| far_end(testbed, host, n).1));
            (!via.is_empty()).then(|| format!("route replace {}/32{via}", host.addrs[0]))
        };
        let routes: Vec<String> = testbed.hosts.iter().filter_map(to).collect();
        batch("route over the links", "ip", &testbed.netns(SWITCH), &routes)?;
    }
    Ok(())
}

fn hops(up: &BTreeSet<String>, devices: impl Iterator<Item = String>) -> String {
    devices.filter(|d| up.contains(d)).map(|d| format!(" nexthop dev {d}")).collect()
}

fn up_devices(space: &str) -> Result<BTreeSet<String>, TestbedError> {
    let text = run("list links", "ip", &["-n", space, "-o", "link", "show", "up"])?;
    // "2: l1@if3: <BROADCAST,..."
    let name = |line: &str| line.split_whitespace().nth(1)?.split(['@', ':']).next().map(str::to_owned);
    Ok(text.lines().filter_map(name).collect())
}

fn subnets(testbed: &Testbed) -> Result<(), TestbedError> {
    for host in &testbed.hosts {
        let devices = (1..=testbed.spec.links).map(device);
        let own: Vec<String> = (host.addrs.iter().zip(devices))
            .map(|(addr, device)| format!("addr add {addr}/24 dev {device}"))
            .collect();
        batch("give a host its addresses", "ip", &host.netns, &own)?;
    }
    if testbed.spec.has_switch() {
        let mut commands = Vec::new();
        for link in 1..=testbed.spec.links {
            commands.push(format!("link add net{link} type bridge forward_delay 0"));
            commands.push(format!("link set net{link} up"));
            for host in &testbed.hosts {
                commands.push(format!("link set {} master net{link}", far_end(testbed, host, link).1));
            }
        }
        batch("join the links of a subnet", "ip", &testbed.netns(SWITCH), &commands)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_drawn_from_the_seed_and_differ() {
        for seed in 0..200 {
            let ecmp = Spec { seed, hosts: 32, ..Spec::default() };
            let hosts = draw_hosts(&ecmp);
            let distinct: BTreeSet<IpAddr> = hosts.iter().flat_map(|h| h.addrs.clone()).collect();
            assert_eq!((hosts.len(), distinct.len()), (32, 32));
            assert_eq!(
                format!("{hosts:?}"),
                format!("{:?}", draw_hosts(&ecmp)),
                "the same seed, the same hosts"
            );
            let subnets = Spec { seed, hosts: 32, links: 8, join: Join::Subnets, ..Spec::default() };
            let hosts = draw_hosts(&subnets);
            let distinct: BTreeSet<IpAddr> = hosts.iter().flat_map(|h| h.addrs.clone()).collect();
            assert_eq!(distinct.len(), 32 * 8);
        }
        let of = |seed| draw_hosts(&Spec { seed, ..Spec::default() })[0].addrs.clone();
        assert_ne!(of(1), of(2));
    }
}
