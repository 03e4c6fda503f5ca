//! PowerVM and NUMA: `numactl -H`, the kernel's lines about DMA windows, `ppc64_cpu`, `lsslot`; and profiles of uperf.
//! The CPU list of a node may be broken over lines.

use super::listing::{Parser, Reader, Taken, Title, Window};

pub(super) const PARSERS: [Parser; 5] = [
    Parser {
        kind: "numactl -H",
        title: Title::Often,
        system: "Linux",
        starts: topology_starts,
        line: topology,
    },
    Parser {
        kind: "dmesg",
        title: Title::Often,
        system: "Linux",
        starts: |w| window_call(w.first()).is_some() || is_stamped(w.first()),
        line: message,
    },
    Parser {
        kind: "ppc64_cpu",
        title: Title::No,
        system: "Power",
        starts: |w| w.after("ppc64_cpu") && smt(w.first()).is_some(),
        line: threads,
    },
    Parser {
        kind: "lsslot",
        title: Title::No,
        system: "Power",
        starts: |w| w.first().starts_with("# Slot") || w.first().starts_with("# Name"),
        line: slot,
    },
    Parser {
        kind: "uperf profile",
        title: Title::Once,
        system: "any",
        starts: |w| w.first().starts_with("<?xml") && w.lines.iter().take(3).any(|l| l.contains("<profile")),
        line: profile,
    },
];

fn topology_starts(w: &Window<'_>) -> bool {
    let text = w.first();
    text.starts_with("available: ") && text.contains(" node")
        || text.starts_with("node ")
            && text.contains(" cpus:")
            && w.lines.get(1).is_some_and(|l| l.contains(" size:"))
}

fn numbers(text: &str) -> Option<Vec<u32>> {
    let all: Result<Vec<u32>, _> = text.split_whitespace().map(str::parse).collect();
    all.ok().filter(|list| !list.is_empty())
}

fn topology(r: &mut Reader, line: &str) -> Taken {
    let text = line.trim();
    if let Some(rest) = text.strip_prefix("available: ") {
        r.entry(&["numa", "available"], rest.split_whitespace().next().unwrap_or(""));
        if let Some((_, list)) = rest.split_once('(') {
            r.entry(&["numa", "list"], list.trim_end_matches(')'));
        }
        return Taken::Read;
    }
    if text.starts_with("node distances:") || text.starts_with("node   ") {
        "distances".clone_into(&mut r.scope);
        return Taken::Ignored("table head");
    }
    if let Some((node, what, value)) = text.strip_prefix("node ").and_then(|rest| {
        let (node, rest) = rest.split_once(' ')?;
        let (what, value) = rest.split_once(':')?;
        Some((node, what, value))
    }) {
        let name = match what {
            "cpus" => "cpus",
            "size" => "size",
            "free" => "free",
            _ => return Taken::No,
        };
        r.key = if name == "cpus" { node.to_owned() } else { String::new() };
        r.entry(&["numa", "node", node, name], value);
        return Taken::Read;
    }
    if r.scope == "distances" {
        let Some((node, row)) = text.split_once(':').filter(|(_, row)| numbers(row).is_some()) else {
            return Taken::No;
        };
        r.entry(&["numa", "distance", node], row);
        return Taken::Read;
    }
    // Numbers alone go on with the list of the node above.
    let Some(more) = numbers(text).filter(|_| !r.key.is_empty()) else { return Taken::No };
    if let Some(cpus) = r.listing.entries.iter_mut().rev().find(|entry| entry.path.ends_with("/cpus")) {
        cpus.value = format!("{} {}", cpus.value, text);
    }
    let note = format!("CPU list of node {} goes on with {}", r.key, more[0]);
    r.odd("broken-line", &note);
    Taken::Read
}

/// Device and words behind `ibm,create-pe-dma-window(N)`.
fn window_call(line: &str) -> Option<(&str, &str)> {
    let (before, rest) = line.split_once("ibm,create-pe-dma-window(")?;
    let device = before.trim_end().trim_end_matches(':').rsplit(' ').next()?;
    Some((device, rest.split_once(')')?.1))
}

/// `[   12.345678] text`, or with a date.
fn is_stamped(line: &str) -> bool {
    line.strip_prefix('[').and_then(|rest| rest.split_once("] ")).is_some_and(|(stamp, _)| {
        let stamp = stamp.trim();
        stamp.contains('.') && stamp.chars().all(|c| c.is_ascii_digit() || c == '.')
            || stamp.len() == 24 && stamp.contains(':')
    })
}

/// Words in kernel messages that say something is wrong, and what it is.
const COMPLAINTS: [(&str, &str); 10] = [
    ("soft lockup", "lockup"),
    ("I/O error", "io-error"),
    ("blocked for more than", "hung-task"),
    ("Out of memory", "out-of-memory"),
    ("NETDEV WATCHDOG", "transmit-timeout"),
    ("AER:", "pcie-error"),
    ("available PCIe bandwidth, limited by", "pcie-limited"),
    ("timeout, completion polled", "missed-interrupt"),
    ("swiotlb buffer is full", "swiotlb-full"),
    ("page allocation failure", "allocation-failure"),
];

fn message(r: &mut Reader, line: &str) -> Taken {
    if let Some((device, rest)) = window_call(line) {
        let words: Vec<&str> = rest.split_whitespace().collect();
        let hex = |at: usize| words.get(at).and_then(|w| u32::from_str_radix(w, 16).ok());
        for (name, at) in [("page-shift", 3), ("window-shift", 4)] {
            if let Some(value) = hex(at) {
                r.entry(&["dma", device, name], &value.to_string());
            }
        }
        let rc = words.iter().position(|w| *w == "returned").and_then(|at| words.get(at + 1));
        r.entry(&["dma", device, "rc"], rc.unwrap_or(&"?"));
        return Taken::Read;
    }
    if !is_stamped(line) {
        return Taken::No;
    }
    let text = line.split_once("] ").map_or("", |(_, text)| text);
    if let Some((_, what)) = COMPLAINTS.iter().find(|(words, _)| text.contains(words)) {
        r.entry(&["kernel", "message", what], text);
        return Taken::Read;
    }
    if text.contains("ibm,query-pe-dma-windows") {
        r.entry(&["kernel", "message", "dma-query"], text);
        return Taken::Read;
    }
    // A log without complaints is a log all the same.
    if r.listing.entries.is_empty() {
        r.entry(&["kernel", "log"], "read");
        return Taken::Read;
    }
    Taken::Ignored("kernel message")
}

fn smt(line: &str) -> Option<(&str, &str)> {
    line.trim()
        .split_once([':', '='])
        .map(|(key, value)| (key.trim(), value.trim()))
        .filter(|(_, v)| !v.is_empty())
}

/// `SMT=4`, `SMT: 4`, `Number of cores present = 20`.
fn threads(r: &mut Reader, line: &str) -> Taken {
    let Some((key, value)) = smt(line) else { return Taken::No };
    r.entry(&["power", &key.to_lowercase().replace(' ', "-")], value);
    Taken::Read
}

fn slot(r: &mut Reader, line: &str) -> Taken {
    if line.starts_with('#') {
        return Taken::Ignored("table head");
    }
    let Some((location, rest)) = line.split_once(char::is_whitespace).filter(|(l, _)| l.starts_with('U'))
    else {
        return Taken::No;
    };
    r.entry(&["power", "slot", location], rest.trim());
    Taken::Read
}

/// The parts of a profile that decide what it measures.
fn profile(r: &mut Reader, line: &str) -> Taken {
    let text = line.trim();
    if text.starts_with("<?xml") || text.starts_with("</") || text == "..." {
        return Taken::Ignored("markup");
    }
    let Some(tag) = text.strip_prefix('<').and_then(|t| t.split([' ', '>']).next()) else { return Taken::No };
    for (key, value) in attributes(text) {
        if value.contains("${") {
            r.entry(&["uperf", "placeholder", "dollar"], value);
        } else if value.contains('{') {
            r.entry(&["uperf", "placeholder", "plain"], value);
        }
        r.entry(&["uperf", tag, key], value);
    }
    Taken::Read
}

fn attributes(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (before, after) = rest.split_once("=\"")?;
        let (value, behind) = after.split_once('"')?;
        rest = behind;
        Some((before.rsplit([' ', '<']).next().unwrap_or(before), value))
    })
}
