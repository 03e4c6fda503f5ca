//! What a dump of Linux says, as the facts that a live host has: one rule serves both. Only what commands printed and files
//! hold counts, no sentence of an article and no command that would set something. A value that is none becomes no fact.

use std::collections::BTreeMap;

use super::split::Document;
use crate::{
    facts::{Facts, Origin, Path, Value},
    host::{bridges, pcie},
    topology,
};

/// A table of more rings is none.
const RINGS_MAX: usize = 4096;

/// The facts of the machine that a dump is of.
pub fn facts(doc: &Document) -> Facts {
    let mut facts = Facts::new();
    let listings = doc.listings.iter().filter(|l| ["Linux", "Power"].contains(&l.system));
    for entry in listings.flat_map(|listing| &listing.entries) {
        let origin = Origin::at(&doc.name, entry.line as usize);
        let words: Vec<&str> = entry.path.split('/').collect();
        for (path, value) in of(&words, &entry.value) {
            facts.insert(path, value, origin.clone());
        }
    }
    members(doc, &mut facts);
    rings(doc, &mut facts);
    switches(doc, &mut facts);
    whole(&mut facts);
    facts
}

/// The facts that one value gives.
fn of(words: &[&str], value: &str) -> Vec<(Path, Value)> {
    let fact = |path: Path, value: Option<Value>| value.map(|value| (path, value)).into_iter().collect();
    let number = || value.trim().parse::<u64>().ok().map(Value::from);
    let text = || (!value.is_empty()).then(|| Value::from(value));
    match *words {
        // sysctl's own way to write a point inside a name is a `/`, which the path has as `-` by now.
        ["linux", "sysctl", key] => {
            fact(Path::from(format!("sysctl.{key}")), Some(Value::parse_words(value)))
        }
        ["linux", "memory", key] => {
            let key = match key {
                "MemTotal" => "total",
                "MemAvailable" => "available",
                "SwapTotal" => "swap",
                "SwapFree" => "swap_free",
                "HugePages_Total" => "hugepages",
                "HugePages_Free" => "hugepages_free",
                "HardwareCorrupted" => "hardware_corrupted",
                _ => return Vec::new(),
            };
            let bytes = || match value.split_once(' ') {
                Some((number, "kB")) => number.trim().parse::<u64>().ok()?.checked_mul(1024),
                _ => value.parse().ok(),
            };
            fact(Path::of(&["memory", key]), bytes().map(Value::from))
        }
        ["linux", "ethtool", interface, table, key] => ethtool(interface, table, key, value),
        ["linux", "interface", interface, "mtu"] => fact(Path::of(&["net", interface, "mtu"]), number()),
        ["linux", "interface", interface, "state"] => {
            fact(Path::of(&["net", interface, "state"]), Some(Value::from(value.to_lowercase())))
        }
        ["linux", "interface", interface, "master"] => fact(Path::of(&["net", interface, "master"]), text()),
        ["linux", "ifcfg", interface, "MTU"] => fact(Path::of(&["net", interface, "mtu"]), number()),
        ["linux", "bond", bond, option] => {
            let name = match option {
                "mode" => "mode",
                "xmit_hash_policy" => "hash",
                "miimon" => "miimon",
                "lacp_rate" => "lacp_rate",
                "partner-mac-address" => "partner",
                _ => return Vec::new(),
            };
            fact(Path::of(&["bond", bond, name]), (!value.is_empty()).then(|| Value::parse(value)))
        }
        ["linux", "member", member, key] => {
            let (name, value) = match key {
                "mii-status" => ("bond_state", text()),
                "aggregator-id" => ("aggregator", number()),
                "link-failure-count" => ("link_failures", number()),
                "speed" => ("port_speed", mbit(value)),
                _ => return Vec::new(),
            };
            fact(Path::of(&["net", member, name]), value)
        }
        ["numa", "node", node, "cpus"] => {
            let cpus: Vec<u32> = value.split_whitespace().filter_map(|cpu| cpu.parse().ok()).collect();
            let path = Path::of(&["numa", node]);
            vec![
                (path.join("cpus"), Value::from(cpus.len())),
                (path.join("cpu_list"), Value::from(topology::ranges(&cpus))),
            ]
        }
        ["numa", "distance", node] => {
            let distances: Vec<u32> = value.split_whitespace().filter_map(|d| d.parse().ok()).collect();
            let path = Path::of(&["numa", node]);
            let farthest = distances.iter().max().map(|d| (path.join("distance"), Value::from(*d)));
            farthest.into_iter().chain([(path.join("distances"), Value::from(distances))]).collect()
        }
        ["numa", "node", node, key @ ("size" | "free")] => {
            let bytes = value
                .trim()
                .strip_suffix(" MB")
                .and_then(|n| n.trim().parse::<u64>().ok()?.checked_mul(1 << 20));
            let name = if key == "size" { "memory" } else { "free" };
            fact(Path::of(&["numa", node, name]), bytes.map(Value::from))
        }
        ["nvme", device, key] => nvme(device, key, value).into_iter().collect(),
        ["pci", address, key] => {
            let path = Path::of(&["pcie", address]);
            let width = || pcie::lanes(value.trim_start_matches('x'));
            let speed = || pcie::transfers(&format!("{value} GT/s"));
            match key {
                "is-speed" => fact(path.join("speed_mts"), speed().map(Value::from)),
                "can-speed" => fact(path.join("speed_mts_max"), speed().map(Value::from)),
                "is-width" => fact(path.join("width"), width().map(Value::from)),
                "can-width" => fact(path.join("width_max"), width().map(Value::from)),
                "numa" => fact(path.join("numa_node"), number()),
                "name" => fact(path.join("kind"), kind(value).map(Value::from)),
                _ => Vec::new(),
            }
        }
        _ => Vec::new(),
    }
}

/// What `ethtool` says of an interface.
fn ethtool(interface: &str, table: &str, key: &str, value: &str) -> Vec<(Path, Value)> {
    let path = Path::of(&["net", interface]);
    let number = || value.trim().parse::<u64>().ok().map(Value::from);
    let switch = || match value.trim() {
        "on" => Some(Value::Bool(true)),
        "off" => Some(Value::Bool(false)),
        _ => None,
    };
    let (name, value) = match (table, key) {
        ("ring", "rx") => ("ring_rx", number()),
        ("ring", "tx") => ("ring_tx", number()),
        ("ring", "max-rx") => ("ring_rx_max", number()),
        ("ring", "max-tx") => ("ring_tx_max", number()),
        ("channels", "combined") => ("channels", number()),
        ("channels", "max-combined") => ("channels_max", number()),
        ("pause", "rx") => ("pause_rx", switch()),
        ("pause", "tx") => ("pause_tx", switch()),
        ("coalesce", "adaptive-rx") => ("adaptive_rx", switch()),
        ("coalesce", "rx-usecs") => ("rx_usecs", number()),
        ("coalesce", "rx-frames") => ("rx_frames", number()),
        ("offload", "tcp-segmentation-offload") => ("tso", switch()),
        ("offload", "generic-receive-offload") => ("gro", switch()),
        ("offload", "rx-checksumming") => ("rx_checksum", switch()),
        ("offload", "tx-checksumming") => ("tx_checksum", switch()),
        ("driver", "driver") => ("driver", Some(Value::from(value))),
        ("link", "duplex") => {
            let duplex = value.to_lowercase();
            ("duplex", ["half", "full"].contains(&duplex.as_str()).then(|| Value::from(duplex)))
        }
        ("link", "link-detected") => (
            "state",
            match value {
                "yes" => Some(Value::from("up")),
                "no" => Some(Value::from("down")),
                _ => None,
            },
        ),
        ("link", "speed") => {
            let speed = mbit(value);
            let both = [path.join("speed"), path.join("port_speed")];
            return both.into_iter().filter_map(|path| Some((path, speed.clone()?))).collect();
        }
        _ => return Vec::new(),
    };
    value.map(|value| (path.join(name), value)).into_iter().collect()
}

/// What nvme-cli says of a controller, or of a namespace of it.
fn nvme(device: &str, key: &str, value: &str) -> Option<(Path, Value)> {
    // `nvme0n1` and its generic device `ng0n1` are of the controller `nvme0`.
    let (kind, number) = device.split_at(device.find(|c: char| c.is_ascii_digit())?);
    let number: String = number.chars().take_while(char::is_ascii_digit).collect();
    let controller = Path::of(&["nvme", &format!("nvme{number}")]);
    let disk = Path::of(&[
        "block",
        &if kind == "ng" { device.replacen("ng", "nvme", 1) } else { device.to_owned() },
    ]);
    let word = value.split([' ', '%', '°']).next().unwrap_or_default();
    let number = match word.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16).ok()?,
        None => word.replace(',', "").parse::<i64>().ok()?,
    };
    // A device that is not there for its sensor reads 0 K.
    let celsius = |kelvin: i64| (kelvin > 273).then_some(kelvin - 273);
    let (path, number) = match key {
        "coalesce-count" => (controller.join("coalesce_count"), number),
        "coalesce-time" => (controller.join("coalesce_time"), number),
        "id-wctemp" => (controller.join("warning_c"), celsius(number)?),
        "smart-temperature" if number > -273 => (controller.join("temperature_c"), number),
        "smart-warning-temperature-time" => (controller.join("hot_minutes"), number),
        "smart-critical-warning" => (disk.join("smart_warning"), number),
        "smart-available-spare" => (disk.join("spare"), number),
        "smart-available-spare-threshold" => (disk.join("spare_threshold"), number),
        "smart-percentage-used" => (disk.join("used_percent"), number),
        "smart-media-errors" => (disk.join("media_errors"), number),
        _ => return None,
    };
    Some((path, Value::Int(number)))
}

/// `100000Mb/s`, `100000 Mbps`.
fn mbit(text: &str) -> Option<Value> {
    let number = text.trim().strip_suffix("Mb/s").or_else(|| text.trim().strip_suffix("Mbps"))?;
    number.trim().parse::<u32>().ok().filter(|speed| *speed > 0).map(Value::from)
}

/// The class of a card, of those whose links count.
fn kind(name: &str) -> Option<&'static str> {
    let class = name.split(':').next().unwrap_or_default();
    match class {
        _ if class.contains("Ethernet") || class.contains("Network") || class.contains("Infiniband") => {
            Some("network")
        }
        _ if class.contains("Non-Volatile")
            || class.contains("RAID")
            || class.contains("SAS")
            || class.contains("SATA")
            || class.contains("Fibre Channel") =>
        {
            Some("storage")
        }
        _ => None,
    }
}

/// The interfaces of each bond.
fn members(doc: &Document, facts: &mut Facts) {
    let mut bonds: BTreeMap<&str, (Vec<&str>, u32)> = BTreeMap::new();
    let listings = doc.listings.iter().filter(|l| l.system == "Linux");
    for entry in listings.flat_map(|listing| &listing.entries) {
        let mut words = entry.path.split('/');
        if let (Some("linux"), Some("member"), Some(member), Some("bond"), None) =
            (words.next(), words.next(), words.next(), words.next(), words.next())
        {
            let (members, line) = bonds.entry(&entry.value).or_default();
            if !members.contains(&member) {
                members.push(member);
            }
            *line = entry.line;
        }
    }
    for (bond, (members, line)) in bonds {
        facts.insert(["bond", bond, "members"], members, Origin::at(&doc.name, line as usize));
    }
}

/// How the cards spread what they receive over their rings, of the rows of `ethtool -x`.
fn rings(doc: &Document, facts: &mut Facts) {
    for listing in doc.listings.iter().filter(|l| l.kind == "ethtool") {
        let mut tables: BTreeMap<&str, (Vec<usize>, usize, u32)> = BTreeMap::new();
        for entry in &listing.entries {
            let words: Vec<&str> = entry.path.split('/').collect();
            let ["linux", "ethtool", interface, "rss", key] = words[..] else { continue };
            let (named, rings, line) = tables.entry(interface).or_default();
            if key == "rings" {
                *rings = entry.value.parse().ok().filter(|rings| *rings <= RINGS_MAX).unwrap_or(0);
                *line = entry.line;
            } else if key.starts_with("row-") {
                named.extend(entry.value.split_whitespace().filter_map(|ring| ring.parse::<usize>().ok()));
            }
        }
        for (interface, (named, rings, line)) in tables {
            let mut times = vec![0u32; rings];
            named.iter().for_each(|ring| times.get_mut(*ring).into_iter().for_each(|n| *n += 1));
            let (Some(least), Some(most)) = (times.iter().min(), times.iter().max()) else { continue };
            if named.is_empty() {
                continue;
            }
            let path = Path::of(&["net", interface]);
            let used = times.iter().filter(|n| **n > 0).count();
            let of = [
                ("rss_rings", Value::from(rings)),
                ("rss_used", Value::from(used)),
                ("rss_entries", Value::from(named.len())),
                ("rss_least", Value::from(*least)),
                ("rss_most", Value::from(*most)),
            ];
            for (name, value) in of {
                facts.insert(path.join(name), value, Origin::at(&doc.name, line as usize));
            }
        }
    }
}

/// What the links of cards carry, and switches above them: bridges of `lspci -vv` with the bus that begins below each.
fn switches(doc: &Document, facts: &mut Facts) {
    for path in facts.nodes("pcie.*") {
        let of = |name: &str| facts.get(path.join(name).as_str());
        if let (Some(speed), Some(width)) = (of("speed_mts"), of("width"))
            && let (Some(mts), Some(lanes)) = (speed.value.as_int(), width.value.as_int())
        {
            let origin = width.origin.clone();
            facts.insert(path.join("mbit"), pcie::mbit(mts, lanes), origin);
        }
    }
    let mut devices = bridges::cards(facts, &[]);
    let mut lines: BTreeMap<String, u32> = BTreeMap::new();
    for entry in doc.listings.iter().filter(|l| l.kind == "lspci -vv").flat_map(|l| &l.entries) {
        let words: Vec<&str> = entry.path.split('/').collect();
        let (["pci", address, "secondary"], Ok(secondary)) =
            (&words[..], u32::from_str_radix(&entry.value, 16))
        else {
            continue;
        };
        let mbit = facts.int(Path::of(&["pcie", address, "mbit"]).as_str());
        lines.insert((*address).to_owned(), entry.line);
        devices.push(bridges::Device { address: (*address).to_owned(), secondary: Some(secondary), mbit });
    }
    for switch in bridges::switches(&devices) {
        let path = Path::of(&["bridge", &switch.address]);
        let line = lines.get(&switch.address).copied().unwrap_or_default();
        let origin = || Origin::at(&doc.name, line as usize);
        facts.insert(path.join("mbit"), switch.mbit, origin());
        facts.insert(path.join("below"), switch.below, origin());
        facts.insert(path.join("below_mbit"), switch.below_mbit, origin());
    }
}

/// What a host's reader computes of several facts.
fn whole(facts: &mut Facts) {
    let nodes = facts.matching("numa.*.cpus").map(|(_, fact)| fact.origin.clone()).collect::<Vec<_>>();
    if let Some(origin) = nodes.first() {
        facts.insert("numa_nodes.count", nodes.len(), origin.clone());
        if let Some(score) = topology::scattered_percent(facts) {
            facts.insert("numa_nodes.scattered_percent", score, origin.clone());
        }
    }
    for port in facts.nodes("net.*") {
        let of = |name: &str| facts.get(port.join(name).as_str()).cloned();
        let (speed, state) = (of("port_speed"), of("state"));
        let up = state.is_some_and(|state| state.value.as_text() == Some("up"));
        let Some(speed) = speed.filter(|s| up && s.value.as_int() >= Some(10_000)) else { continue };
        let (name, mtu) = (port.last(), of("mtu"));
        facts.insert(["fast_port", &name, "speed"], speed.value, speed.origin);
        if let Some(mtu) = mtu {
            facts.insert(["fast_port", &name, "mtu"], mtu.value, mtu.origin);
        }
    }
}
