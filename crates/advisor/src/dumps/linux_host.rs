//! The rest of Linux: `sysctl -a`, `lspci -vv`, `multipath -ll`, `free`, `/proc/meminfo`.

use super::listing::{Parser, Reader, Taken, Title, Window};

pub(super) const PARSERS: [Parser; 4] = [
    Parser { kind: "sysctl", title: Title::No, system: "Linux", starts: sysctl_starts, line: sysctl },
    Parser {
        kind: "lspci -vv",
        title: Title::Often,
        system: "Linux",
        starts: |w| {
            pci_head(w.first()).is_some()
                && w.lines.iter().skip(1).take(4).any(|l| l.starts_with(['\t', ' ']))
        },
        line: pci,
    },
    Parser {
        kind: "multipath -ll",
        title: Title::Often,
        system: "Linux",
        starts: |w| map_head(w.first()).is_some() && w.lines.get(1).is_some_and(|l| l.starts_with("size=")),
        line: multipath,
    },
    Parser {
        kind: "meminfo",
        title: Title::No,
        system: "Linux",
        starts: |w| w.first().starts_with("MemTotal:"),
        line: meminfo,
    },
];

/// `net.core.rmem_max = 212992`, also as a file has it, without spaces.
fn sysctl_words(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.trim().split_once('=')?;
    let key = key.trim();
    let families = ["net.", "vm.", "kernel.", "fs.", "dev.", "user.", "abi.", "sunrpc.", "crypto.", "debug."];
    (families.iter().any(|f| key.starts_with(f)) && !key.contains(' ')).then_some((key, value.trim()))
}

fn sysctl_starts(w: &Window<'_>) -> bool {
    sysctl_words(w.first()).is_some()
        && (w.after("sysctl") || w.among(3, |l| sysctl_words(l).is_some()) >= 2 || w.lines.len() <= 3)
}

fn sysctl(r: &mut Reader, line: &str) -> Taken {
    let text = line.trim();
    if text.starts_with(['#', ';']) {
        return Taken::Ignored("comment");
    }
    if text.starts_with("sysctl: ") {
        return Taken::Ignored("message of sysctl");
    }
    let Some((key, value)) = sysctl_words(text) else { return Taken::No };
    let path = format!("linux/sysctl/{key}");
    if r.earlier(&path).is_some_and(|entry| entry.value != value) {
        r.odd("duplicate", key);
    }
    r.entry(&["linux", "sysctl", key], value);
    Taken::Read
}

/// `01:00.0 Ethernet controller: ...`.
fn pci_head(line: &str) -> Option<(&str, &str)> {
    let (address, rest) = line.split_once(' ')?;
    let shaped = (7..=12).contains(&address.len())
        && address.contains(':')
        && address.contains('.')
        && address.chars().all(|c| c.is_ascii_hexdigit() || c == ':' || c == '.');
    shaped.then_some((address, rest))
}

fn pci(r: &mut Reader, line: &str) -> Taken {
    if let Some((address, what)) = pci_head(line) {
        address.clone_into(&mut r.scope);
        r.entry(&["pci", address, "name"], what);
        return Taken::Read;
    }
    let text = line.trim();
    if r.scope.is_empty() || !line.starts_with([' ', '\t']) {
        return Taken::No;
    }
    let address = r.scope.clone();
    let values = |text: &str, key: &str| -> Option<String> {
        let (_, rest) = text.split_once(key)?;
        Some(rest.trim_start().split([',', ' ', ';']).next()?.trim_end_matches("GT/s").to_owned())
    };
    for (head, what) in [("LnkCap:", "can"), ("LnkSta:", "is")] {
        if let Some(rest) = text.strip_prefix(head) {
            for (key, name) in [("Speed", "speed"), ("Width", "width")] {
                if let Some(value) = values(rest, key) {
                    r.entry(&["pci", &address, &format!("{what}-{name}")], &value);
                }
            }
            return Taken::Read;
        }
    }
    if text.starts_with("MaxPayload") && text.contains("MaxReadReq") {
        for (key, name) in [("MaxPayload", "max-payload"), ("MaxReadReq", "max-read")] {
            if let Some(value) = values(text, key) {
                r.entry(&["pci", &address, name], &value);
            }
        }
        return Taken::Read;
    }
    // Of a bridge: `Bus: primary=10, secondary=11, subordinate=14, sec-latency=0`.
    if let Some(secondary) = text.strip_prefix("Bus:").and_then(|rest| values(rest, "secondary=")) {
        r.entry(&["pci", &address, "secondary"], &secondary);
        return Taken::Read;
    }
    if let Some(node) = text.strip_prefix("NUMA node:") {
        r.entry(&["pci", &address, "numa"], node);
        return Taken::Read;
    }
    Taken::Ignored("other capability")
}

/// `mpatha (360...) dm-0 VENDOR,MODEL`.
fn map_head(line: &str) -> Option<(&str, &str)> {
    let at = line.find(" dm-")?;
    let name = line.split_whitespace().next()?;
    let device = line[at..].split_whitespace().nth(1).unwrap_or("");
    (!line.starts_with([' ', '|', '`'])).then_some((name, device))
}

fn multipath(r: &mut Reader, line: &str) -> Taken {
    if let Some((name, device)) = map_head(line) {
        name.clone_into(&mut r.scope);
        r.entry(&["multipath", name, "model"], device);
        return Taken::Read;
    }
    let map = r.scope.clone();
    if line.starts_with("size=") {
        for (key, value) in line.split_whitespace().filter_map(|pair| pair.split_once('=')) {
            r.entry(&["multipath", &map, key], value.trim_matches('\''));
        }
        return Taken::Read;
    }
    if let Some((_, policy)) = line.split_once("policy='") {
        r.entry(&["multipath", &map, "policy"], policy.split('\'').next().unwrap_or(""));
        return Taken::Read;
    }
    let words: Vec<&str> = line.split(['|', '`', ' ', '-']).filter(|w| !w.is_empty()).collect();
    if words.len() >= 5 && words[0].contains(':') {
        r.entry(&["multipath", &map, "path"], &words[1..].join(" "));
        return Taken::Read;
    }
    Taken::No
}

fn meminfo(r: &mut Reader, line: &str) -> Taken {
    let Some((key, value)) =
        line.split_once(':').filter(|(_, v)| v.trim().ends_with("kB") || v.trim().parse::<u64>().is_ok())
    else {
        return Taken::No;
    };
    r.entry(&["linux", "memory", key], value);
    Taken::Read
}
