//! Linux networking: files of ifcfg, NetworkManager and systemd-networkd, `ethtool`, `/proc/net/bonding`, `ip -d link`.

use super::{
    listing::{Parser, Reader, Taken, Title, Window},
    text::TYPOGRAPHIC_QUOTES,
};

pub(super) const PARSERS: [Parser; 6] = [
    Parser { kind: "ifcfg", title: Title::No, system: "Linux", starts: ifcfg_starts, line: ifcfg },
    Parser { kind: "network file", title: Title::No, system: "Linux", starts: ini_starts, line: ini },
    Parser {
        kind: "ethtool",
        title: Title::Often,
        system: "Linux",
        starts: |w| ethtool_head(w.first()).is_some() || rss_head(w.first()).is_some(),
        line: ethtool,
    },
    Parser {
        kind: "ethtool -i",
        title: Title::Often,
        system: "Linux",
        starts: |w| {
            w.first().starts_with("driver: ")
                && w.lines
                    .iter()
                    .take(4)
                    .any(|l| l.starts_with("firmware-version:") || l.starts_with("bus-info:"))
        },
        line: driver,
    },
    Parser {
        kind: "bonding",
        title: Title::Once,
        system: "Linux",
        starts: |w| w.first().starts_with("Ethernet Channel Bonding Driver"),
        line: bonding,
    },
    Parser {
        kind: "ip link",
        title: Title::No,
        system: "Linux",
        starts: |w| link_head(w.first()).is_some(),
        line: link,
    },
];

/// A line of an ifcfg file: an upper-case name, an equals sign, no spaces around it.
fn shell_words(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.trim().split_once('=')?;
    let named = key.starts_with(|c: char| c.is_ascii_uppercase())
        && key.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    named.then_some((key, value))
}

const IFCFG_KEYS: [&str; 9] =
    ["DEVICE", "BONDING_OPTS", "MTU", "BOOTPROTO", "ONBOOT", "IPADDR", "TYPE", "NAME", "ETHTOOL_OPTS"];

fn ifcfg_starts(w: &Window<'_>) -> bool {
    let known =
        |line: &str| shell_words(line).is_some_and(|(key, _)| IFCFG_KEYS.contains(&key) || key == "MASTER");
    let named = w.command.get(1).is_some_and(|file| file.contains("ifcfg-"));
    known(w.first()) && (named || w.among(4, known) >= 2)
}

fn ifcfg(r: &mut Reader, line: &str) -> Taken {
    let text = line.trim();
    if text.starts_with('#') && !text.trim_start_matches('#').trim().is_empty() {
        return Taken::Ignored("comment");
    }
    let Some((key, value)) = shell_words(text) else { return Taken::No };
    let file = r.subject().trim_start_matches("ifcfg-").to_owned();
    if value.contains(TYPOGRAPHIC_QUOTES) {
        r.odd("typographic-quotes", text);
    }
    let value = value.trim_matches(|c| c == '"' || c == '\'' || TYPOGRAPHIC_QUOTES.contains(&c));
    r.entry(&["linux", "ifcfg", &file, key], value);
    if key == "BONDING_OPTS" {
        for (option, value) in value.split_whitespace().filter_map(|pair| pair.split_once('=')) {
            bond_option(r, &file, option, value);
        }
    }
    Taken::Read
}

/// The name of a mode that `/proc/net/bonding` tells in words.
fn mode_of(text: &str) -> &str {
    const WORDS: [(&str, &str); 7] = [
        ("load balancing (round-robin)", "balance-rr"),
        ("fault-tolerance (active-backup)", "active-backup"),
        ("load balancing (xor)", "balance-xor"),
        ("fault-tolerance (broadcast)", "broadcast"),
        ("IEEE 802.3ad", "802.3ad"),
        ("transmit load balancing", "balance-tlb"),
        ("adaptive load balancing", "balance-alb"),
    ];
    WORDS.iter().find(|(words, _)| text.starts_with(words)).map_or(text, |(_, mode)| mode)
}

/// One option of a bond, by the kernel's names whatever file it stands in.
fn bond_option(r: &mut Reader, bond: &str, option: &str, value: &str) {
    const MODES: [&str; 7] =
        ["balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb"];
    let value = match option {
        "mode" => value.parse::<usize>().ok().and_then(|n| MODES.get(n)).copied().unwrap_or(value),
        _ => value,
    };
    r.entry(&["linux", "bond", bond, option], value);
}

const INI_SECTIONS: [&str; 18] = [
    "connection",
    "ethernet",
    "802-3-ethernet",
    "bond",
    "ipv4",
    "ipv6",
    "vlan",
    "infiniband",
    "ethtool",
    "proxy",
    "Match",
    "Link",
    "Network",
    "NetDev",
    "Bond",
    "Address",
    "Route",
    "DHCPv4",
];

fn section(line: &str) -> Option<&str> {
    line.trim().strip_prefix('[')?.strip_suffix(']')
}

fn ini_starts(w: &Window<'_>) -> bool {
    section(w.first()).is_some_and(|name| INI_SECTIONS.contains(&name))
        && w.lines.iter().skip(1).take(3).any(|l| l.contains('='))
}

fn ini(r: &mut Reader, line: &str) -> Taken {
    let text = line.trim();
    if text.starts_with(['#', ';']) {
        return Taken::Ignored("comment");
    }
    if let Some(name) = section(text) {
        name.clone_into(&mut r.scope);
        return Taken::Read;
    }
    let Some((key, value)) = text.split_once('=').filter(|_| !r.scope.is_empty()) else { return Taken::No };
    let (key, value) = (key.trim(), value.trim());
    if value.contains(TYPOGRAPHIC_QUOTES) {
        r.odd("typographic-quotes", text);
    }
    // What is set for one interface stands below its name as soon as the file says it.
    if matches!((r.scope.as_str(), key), ("connection", "interface-name") | ("Match" | "NetDev", "Name")) {
        r.listing.subject = Some(value.to_owned());
    }
    let (file, scope) = (r.subject().to_owned(), r.scope.clone());
    r.entry(&["linux", "network", &file, &scope, key], value);
    let bond = match (scope.as_str(), key) {
        ("bond", key) => Some(key.to_owned()),
        ("Bond", "Mode") => Some("mode".to_owned()),
        ("Bond", "TransmitHashPolicy") => Some("xmit_hash_policy".to_owned()),
        ("Bond", "MIIMonitorSec") => Some("miimon".to_owned()),
        ("Bond", "LACPTransmitRate") => Some("lacp_rate".to_owned()),
        _ => None,
    };
    if let Some(option) = bond {
        bond_option(r, &file, &option, value);
    }
    if matches!(
        (scope.as_str(), key),
        ("ethernet" | "802-3-ethernet", "mtu") | ("Link" | "NetDev", "MTUBytes")
    ) {
        r.entry(&["linux", "interface", &file, "mtu"], value);
    }
    Taken::Read
}

/// What `ethtool` prints about an interface, and which table it is.
fn ethtool_head(line: &str) -> Option<(&'static str, String)> {
    let heads = [
        ("Ring parameters for ", "ring"),
        ("Features for ", "offload"),
        ("Coalesce parameters for ", "coalesce"),
        ("Channel parameters for ", "channels"),
        ("Pause parameters for ", "pause"),
        ("Settings for ", "link"),
        ("FEC parameters for ", "fec"),
    ];
    heads.iter().find_map(|(head, table)| {
        let name = line.trim().strip_prefix(head)?.strip_suffix(':')?;
        (!name.contains(' ')).then(|| (*table, name.to_owned()))
    })
}

/// `RX flow hash indirection table for eth0 with 8 RX ring(s):`: the interface and the rings.
fn rss_head(line: &str) -> Option<(&str, &str)> {
    let rest = line.trim().strip_prefix("RX flow hash indirection table for ")?;
    let (name, rings) = rest.split_once(" with ")?;
    Some((name, rings.strip_suffix(" RX ring(s):")?)).filter(|(name, _)| !name.contains(' '))
}

/// `ethtool -x`: rows of rings behind their first place, then the key and the function of the hash.
fn rss(r: &mut Reader, text: &str) -> Taken {
    let interface = r.subject().to_owned();
    if ["RSS hash key:", "RSS hash function:"].contains(&text) {
        text.clone_into(&mut r.key);
        return Taken::Ignored("section");
    }
    match text.split_once(':') {
        _ if r.key == "RSS hash key:" => return Taken::Ignored("hash key"),
        Some((place, rings)) if place.trim().parse::<u32>().is_ok() => {
            r.entry(&["linux", "ethtool", &interface, "rss", &format!("row-{}", place.trim())], rings);
        }
        Some((function, on)) if r.key == "RSS hash function:" => {
            if on.trim() == "on" {
                r.entry(&["linux", "ethtool", &interface, "rss", "hash"], function);
            }
        }
        _ => return Taken::No,
    }
    Taken::Read
}

fn ethtool(r: &mut Reader, line: &str) -> Taken {
    let text = line.trim();
    if let Some((name, rings)) = rss_head(text) {
        "rss".clone_into(&mut r.scope);
        r.listing.subject = Some(name.to_owned());
        r.key.clear();
        r.entry(&["linux", "ethtool", name, "rss", "rings"], rings);
        return Taken::Read;
    }
    if let Some((table, name)) = ethtool_head(text) {
        table.clone_into(&mut r.scope);
        r.listing.subject = Some(name);
        r.key.clear();
        return Taken::Read;
    }
    if r.scope == "rss" {
        return rss(r, text);
    }
    match text {
        "Pre-set maximums:" => "max-".clone_into(&mut r.key),
        "Current hardware settings:" => r.key.clear(),
        _ => {
            let Some((key, value)) = text.split_once(':') else {
                // The modes of a card go on over lines without a name.
                let more = r.scope == "link" && line.starts_with([' ', '\t']);
                return if more { Taken::Ignored("list goes on") } else { Taken::No };
            };
            let (table, interface) = (r.scope.clone(), r.subject().to_owned());
            let name = format!("{}{}", r.key, key.trim().to_lowercase().replace(' ', "-"));
            let value = value.trim();
            if value.contains("[fixed]") {
                r.entry(&["linux", "ethtool-fixed", &interface, &name], value);
            }
            let value = value.split(" [").next().unwrap_or(value);
            if key.trim() == "Adaptive RX" {
                r.entry(
                    &["linux", "ethtool", &interface, &table, "adaptive-rx"],
                    value.split_whitespace().next().unwrap_or(""),
                );
            } else {
                r.entry(&["linux", "ethtool", &interface, &table, &name], value);
            }
            return Taken::Read;
        }
    }
    Taken::Ignored("section")
}

fn driver(r: &mut Reader, line: &str) -> Taken {
    let Some((key, value)) = line.split_once(':').filter(|(key, _)| !key.contains(' ') && !key.is_empty())
    else {
        return Taken::No;
    };
    let interface = r.subject().to_owned();
    r.entry(&["linux", "ethtool", &interface, "driver", key], value);
    Taken::Read
}

fn bonding(r: &mut Reader, line: &str) -> Taken {
    let text = line.trim();
    if text.starts_with("Ethernet Channel Bonding Driver") {
        return Taken::Ignored("title");
    }
    if text.is_empty() || text.ends_with(" info") || text.ends_with("info:") {
        return Taken::Ignored("section");
    }
    let bond = match r.listing.subject.as_deref() {
        Some(name) => name.to_owned(),
        None => "bond".to_owned(),
    };
    let Some((key, value)) = text.split_once(':') else { return Taken::No };
    let (key, value) = (key.trim(), value.trim());
    match key {
        "Bonding Mode" => {
            let mode = mode_of(value);
            bond_option(r, &bond, "mode", mode);
        }
        "Transmit Hash Policy" => {
            bond_option(r, &bond, "xmit_hash_policy", value.split_whitespace().next().unwrap_or(""));
        }
        "MII Polling Interval (ms)" => bond_option(r, &bond, "miimon", value),
        "LACP rate" => bond_option(r, &bond, "lacp_rate", value),
        "Slave Interface" => {
            value.clone_into(&mut r.scope);
            r.entry(&["linux", "member", value, "bond"], &bond);
        }
        _ => {
            let name = key.to_lowercase().replace(' ', "-");
            let scope = r.scope.clone();
            if scope.is_empty() {
                r.entry(&["linux", "bond", &bond, &name], value);
            } else {
                r.entry(&["linux", "member", &scope, &name], value);
            }
        }
    }
    Taken::Read
}

/// `2: eth0: <BROADCAST,UP> mtu 9000 ...`.
fn link_head(line: &str) -> Option<(&str, &str)> {
    let (number, rest) = line.split_once(": ")?;
    let (name, rest) = rest.split_once(": <")?;
    (number.trim().parse::<u32>().is_ok() && !name.contains(' ')).then_some((name.split('@').next()?, rest))
}

fn link(r: &mut Reader, line: &str) -> Taken {
    let rest = match link_head(line) {
        Some((name, rest)) => {
            name.clone_into(&mut r.scope);
            let flags = rest.split('>').next().unwrap_or("");
            r.entry(&["linux", "interface", name, "flags"], flags);
            rest.split_once('>').map_or("", |(_, rest)| rest)
        }
        None if line.starts_with([' ', '\t']) && !r.scope.is_empty() => line.trim(),
        None => return Taken::No,
    };
    let name = r.scope.clone();
    let words: Vec<&str> = rest.split_whitespace().collect();
    for pair in words.windows(2) {
        match pair[0] {
            key @ ("mtu" | "state" | "qdisc" | "qlen" | "numtxqueues" | "numrxqueues" | "maxmtu"
            | "master" | "gso_max_size") => {
                r.entry(&["linux", "interface", &name, key], pair[1]);
            }
            key @ ("mode" | "xmit_hash_policy" | "miimon" | "lacp_rate")
                if words.first() == Some(&"bond") =>
            {
                bond_option(r, &name, key, pair[1]);
            }
            _ => {}
        }
    }
    Taken::Read
}
