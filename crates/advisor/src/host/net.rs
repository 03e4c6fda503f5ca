//! Network interfaces, their queues and interrupts, and bonds.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
};

use super::{
    bridges,
    manager::Manager,
    pcie,
    reader::{Reader, count, cpu_list, flag, word},
};
use crate::facts::{Origin, Path, Value};

const NET: &str = "sys/class/net";

/// Ports from this speed on, in Mbit/s, are those that storage runs over.
const FAST_MBIT: u32 = 10_000;

/// Further routes and addresses are not looked at: a router has very many.
const SUBNETS_MAX: usize = 4096;

/// What an interface counts since it began, below its `statistics`.
pub(crate) const STATISTICS: [&str; 14] = [
    "rx_bytes",
    "tx_bytes",
    "rx_packets",
    "tx_packets",
    "rx_errors",
    "tx_errors",
    "rx_dropped",
    "tx_dropped",
    "rx_missed_errors",
    "rx_crc_errors",
    "rx_over_errors",
    "rx_fifo_errors",
    "tx_carrier_errors",
    "collisions",
];

/// Each mode of a bond: its name and what `/proc/net/bonding` calls it.
const MODES: [(&str, &str); 7] = [
    ("balance-rr", "load balancing (round-robin)"),
    ("active-backup", "fault-tolerance (active-backup)"),
    ("balance-xor", "load balancing (xor)"),
    ("broadcast", "fault-tolerance (broadcast)"),
    ("802.3ad", "IEEE 802.3ad Dynamic link aggregation"),
    ("balance-tlb", "transmit load balancing"),
    ("balance-alb", "adaptive load balancing"),
];

pub(super) fn read(r: &mut Reader<'_>) {
    let mut ports = Vec::new();
    for name in r.tree.names(NET) {
        // `bonding_masters` is a file; loopback is no link.
        if name != "lo" && name != "bonding_masters" {
            interface(r, &name, &mut ports);
        }
    }
    pcie::slots(r, &ports);
    bridges::read(r, &ports);
    subnets(r);
    for name in r.tree.names("proc/net/bonding") {
        bond(r, &name);
    }
}

fn interface(r: &mut Reader<'_>, name: &str, ports: &mut Vec<(String, String, u32)>) {
    let dir = format!("{NET}/{name}");
    let path = Path::of(&["net", name]);
    let physical = r.tree.has(&format!("{dir}/device"));
    r.put(path.join("physical"), physical, &dir);
    r.files(
        &path,
        &dir,
        &["mtu", "tx_queue_len", "duplex", "gro_flush_timeout", "napi_defer_hard_irqs", "carrier_changes"],
    );
    r.file(path.join("state"), &format!("{dir}/operstate"), word);
    r.file(path.join("carrier"), &format!("{dir}/carrier"), flag);
    r.file(path.join("threaded"), &format!("{dir}/threaded"), flag);
    // -1 and 0 are "not known".
    let speed = |t: &str| t.parse::<u32>().ok().filter(|speed| *speed > 0);
    let known = r.tree.text(&format!("{dir}/speed")).as_deref().and_then(speed);
    if let Some(speed) = known {
        r.put(path.join("speed"), speed, &format!("{dir}/speed"));
        // A bond reports the sum of its interfaces, but a connection uses one of them.
        if physical {
            r.put(path.join("port_speed"), speed, &format!("{dir}/speed"));
        }
        let up = r.facts.text(path.join("state").as_str()) == Some("up");
        if physical && up && speed >= FAST_MBIT {
            r.put(["fast_port", name, "speed"], speed, &format!("{dir}/speed"));
            r.file(["fast_port", name, "mtu"], &format!("{dir}/mtu"), count);
        }
    }
    for counter in STATISTICS {
        r.file(path.join(counter), &format!("{dir}/statistics/{counter}"), count);
    }
    if let Some(master) = r.tree.link(&format!("{dir}/master")) {
        r.put(path.join("master"), master, &format!("{dir}/master"));
    }
    match Manager::of(r.tree, name) {
        Manager::Nobody => {}
        Manager::NetworkManager => {
            r.put(path.join("managed_by"), "NetworkManager", "run/NetworkManager/devices")
        }
        Manager::Networkd(file) => {
            r.put(path.join("managed_by"), "systemd-networkd", "run/systemd/netif/links");
            r.put(path.join("network_file"), file, "run/systemd/netif/links");
        }
    }
    queues(r, name);
    if !physical {
        return;
    }
    r.file(path.join("numa_node"), &format!("{dir}/device/numa_node"), count);
    if let Some(driver) = r.tree.link(&format!("{dir}/device/driver")) {
        r.put(path.join("driver"), driver, &format!("{dir}/device/driver"));
    }
    if let Some(address) = r.tree.link(&format!("{dir}/device")) {
        if let Some(speed) = known {
            ports.push((name.to_owned(), address.clone(), speed));
        }
        r.put(path.join("pci"), address, &format!("{dir}/device"));
    }
    interrupts(r, name);
}

/// The subnets that each interface stands in: its routes without a gateway, and its addresses of version 6; and those in which
/// several ports stand.
fn subnets(r: &mut Reader<'_>) {
    let mut of: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let routes = r.tree.text("proc/net/route").unwrap_or_default();
    for line in routes.lines().skip(1).take(SUBNETS_MAX) {
        let words: Vec<&str> = line.split_whitespace().collect();
        // Bytes of an address stand as the machine keeps them; every machine that we know keeps the lowest first here.
        let [interface, to, "00000000", _, _, _, _, mask, ..] = words[..] else { continue };
        let (Ok(to), Ok(mask)) = (u32::from_str_radix(to, 16), u32::from_str_radix(mask, 16)) else {
            continue;
        };
        if mask != 0 {
            let subnet = format!("{}/{}", Ipv4Addr::from(to.swap_bytes()), mask.count_ones());
            of.entry(interface.to_owned()).or_default().push(subnet);
        }
    }
    let addresses = r.tree.text("proc/net/if_inet6").unwrap_or_default();
    for line in addresses.lines().take(SUBNETS_MAX) {
        let words: Vec<&str> = line.split_whitespace().collect();
        // Of the whole world's scope, which `fd00::` are as well.
        let [address, _, length, "00", _, interface] = words[..] else { continue };
        let (Ok(address), Ok(length)) = (u128::from_str_radix(address, 16), u32::from_str_radix(length, 16))
        else {
            continue;
        };
        if let Some(mask) = 128u32.checked_sub(length).and_then(|kept| u128::MAX.checked_shl(kept)) {
            of.entry(interface.to_owned())
                .or_default()
                .push(format!("{}/{length}", Ipv6Addr::from(address & mask)));
        }
    }
    let mut ports: BTreeMap<String, u32> = BTreeMap::new();
    for (interface, mut subnets) in of.into_iter().filter(|(interface, _)| interface != "lo") {
        subnets.sort();
        subnets.dedup();
        if r.facts.bool(Path::of(&["net", &interface, "physical"]).as_str()) == Some(true) {
            subnets.iter().for_each(|subnet| *ports.entry(subnet.clone()).or_default() += 1);
        }
        r.put(["net", &interface, "subnets"], subnets, "proc/net/route");
    }
    ports.retain(|_, ports| *ports > 1);
    if !ports.is_empty() {
        r.put("routes.shared_subnets", ports.into_keys().collect::<Vec<_>>(), "proc/net/route");
    }
}

/// How many queues there are, and on how many of them packets are steered to CPUs (RPS, XPS).
fn queues(r: &mut Reader<'_>, name: &str) {
    let dir = format!("{NET}/{name}/queues");
    let path = Path::of(&["net", name]);
    let queues = r.tree.names(&dir);
    for (kind, steering, steered) in [("rx-", "rps_cpus", "rps_queues"), ("tx-", "xps_cpus", "xps_queues")] {
        let of_kind: Vec<&String> = queues.iter().filter(|queue| queue.starts_with(kind)).collect();
        if of_kind.is_empty() {
            continue;
        }
        r.put(path.join(&format!("{}queues", kind.replace('-', "_"))), of_kind.len(), &dir);
        let masks: Vec<String> =
            of_kind.iter().take(512).filter_map(|q| r.tree.text(&format!("{dir}/{q}/{steering}"))).collect();
        if !masks.is_empty() {
            let set =
                masks.iter().filter(|mask| mask.chars().any(|c| c.is_ascii_hexdigit() && c != '0')).count();
            r.put(path.join(steered), set, &format!("{dir}/*/{steering}"));
        }
    }
}

/// Which CPUs serve the device's interrupts, and how many of them belong to another node than the device.
fn interrupts(r: &mut Reader<'_>, name: &str) {
    let dir = format!("{NET}/{name}/device");
    let path = Path::of(&["net", name]);
    let numbers = r.tree.names(&format!("{dir}/msi_irqs"));
    let mut served: BTreeMap<u32, u32> = BTreeMap::new();
    let mut seen = 0u32;
    for number in numbers.iter().take(1024) {
        let file = format!("proc/irq/{number}/effective_affinity_list");
        if let Some(cpus) = r.tree.text(&file).and_then(|t| cpu_list(&t))
            && let Some(cpu) = cpus.first()
        {
            seen += 1;
            *served.entry(*cpu).or_default() += 1;
        }
    }
    if seen == 0 {
        return;
    }
    let source = "proc/irq/*/effective_affinity_list";
    r.put(path.join("irqs"), seen, source);
    r.put(path.join("irq_cpus"), served.len(), source);
    let local = r.tree.text(&format!("{dir}/local_cpulist")).and_then(|t| cpu_list(&t)).unwrap_or_default();
    if !local.is_empty() {
        r.put(path.join("local_cpus"), local.len(), &format!("{dir}/local_cpulist"));
        let remote: u32 = served.iter().filter(|(cpu, _)| !local.contains(cpu)).map(|(_, irqs)| irqs).sum();
        r.put(path.join("irqs_remote"), remote, source);
    }
}

/// A bond from `/proc/net/bonding`, completed by sysfs, which also has the policy of modes that do not use it.
fn bond(r: &mut Reader<'_>, name: &str) {
    let file = format!("proc/net/bonding/{name}");
    let path = Path::of(&["bond", name]);
    let Some(text) = r.tree.text(&file) else { return };
    let mut members: Vec<String> = Vec::new();
    for (i, (key, value)) in
        text.lines().enumerate().filter_map(|(i, line)| Some((i + 1, line.split_once(':')?)))
    {
        let (key, value) = (key.trim(), value.trim());
        let first = || Value::parse(value.split_whitespace().next().unwrap_or_default());
        if key == "Slave Interface" && !value.is_empty() {
            members.push(value.to_owned());
            continue;
        }
        let fact = match (key, members.last()) {
            ("Bonding Mode", None) => mode(value).map(|mode| (path.join("mode"), Value::from(mode))),
            ("Transmit Hash Policy", None) => Some((path.join("hash"), first())),
            ("MII Polling Interval (ms)", None) => Some((path.join("miimon"), first())),
            ("LACP rate", None) => Some((path.join("lacp_rate"), first())),
            ("MII Status", None) => Some((path.join("state"), first())),
            ("Currently Active Slave", None) => Some((path.join("active"), first())),
            ("Partner Mac Address", None) => Some((path.join("partner"), Value::from(value))),
            ("Number of ports", None) => Some((path.join("ports"), first())),
            ("Min links", None) => Some((path.join("min_links"), first())),
            ("MII Status", Some(member)) => Some((Path::of(&["net", member, "bond_state"]), first())),
            ("Aggregator ID", Some(member)) => Some((Path::of(&["net", member, "aggregator"]), first())),
            ("Link Failure Count", Some(member)) => {
                Some((Path::of(&["net", member, "link_failures"]), first()))
            }
            _ => None,
        };
        if let Some((path, value)) = fact.filter(|(_, value)| *value != Value::from("")) {
            r.facts.insert(path, value, Origin::at(format!("/{file}"), i));
        }
    }
    if !members.is_empty() {
        r.put(path.join("members"), members, &file);
    }
    let dir = format!("{NET}/{name}/bonding");
    r.file(path.join("mode"), &format!("{dir}/mode"), |t| mode(t).map(Value::from));
    r.file(path.join("hash"), &format!("{dir}/xmit_hash_policy"), |t| word(t.split_whitespace().next()?));
    r.file(path.join("miimon"), &format!("{dir}/miimon"), count);
    r.file(path.join("tlb_dynamic_lb"), &format!("{dir}/tlb_dynamic_lb"), flag);
    r.file(path.join("lacp_rate"), &format!("{dir}/lacp_rate"), |t| word(t.split_whitespace().next()?));
}

/// From sysfs (`802.3ad 4`) or `/proc/net/bonding` (the long name, perhaps with a remark behind).
fn mode(text: &str) -> Option<&'static str> {
    let first = text.split_whitespace().next()?;
    MODES.iter().find(|(name, long)| first == *name || text.trim().starts_with(long)).map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        facts::Facts,
        host::tree::{Entry, Tree},
    };

    #[test]
    fn subnets_of_interfaces() {
        let text = |text: &str| Entry::File(text.to_owned());
        let route = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
            eth0\t00000000\t0102000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
            eth0\t0002000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\nx\ty\n";
        let inet6 = "fd000000000000000000000000000007 02 40 00 80 eth0\n\
            fe800000000000000000000000000001 02 40 20 80 eth0\n00000000000000000000000000000001 01 80 10 80 lo\n";
        let tree = Tree::of(
            [("proc/net/route".to_owned(), text(route)), ("proc/net/if_inet6".to_owned(), text(inet6))]
                .into(),
        );
        let mut reader = Reader { tree: &tree, facts: Facts::new() };
        subnets(&mut reader);
        assert_eq!(
            reader.facts.value("net.eth0.subnets"),
            Some(&Value::from(vec!["10.0.2.0/24", "fd00::/64"]))
        );
        assert_eq!(reader.facts.len(), 1);
    }

    #[test]
    fn modes_by_both_spellings() {
        for (number, (name, long)) in MODES.into_iter().enumerate() {
            assert_eq!(mode(&format!("{name} {number}")), Some(name));
            assert_eq!(mode(&format!("{long} (fail_over_mac active)")), Some(name));
        }
        assert_eq!((mode(""), mode("unknown 9")), (None, None));
    }
}
