//! What the sentences of an article state, as entries below `says/`: versions, counts, limits, ranges, modes by number.
//! Only forms that stand for themselves are read, word by word; a sentence of another form states nothing here.

use super::{
    listing::{Entry, segment},
    measures,
    says::Says,
    text::{count_word, number},
};

/// The statements in the lines `at` (indices); `system/` entries name the systems that are spoken of.
pub(super) fn statements(lines: &[String], at: &[usize]) -> Vec<Entry> {
    let mut says = Says::default();
    for at in at {
        says.line = u32::try_from(at + 1).unwrap_or(u32::MAX);
        // Markdown writes `xmit\_hash\_policy`.
        let line = lines[*at].replace("\\_", "_");
        let words = words(&line);
        systems(&mut says, &line);
        versions(&mut says, &line, &words);
        bonds(&mut says, &line, &words);
        tunables(&mut says, &line, &words);
        counts(&mut says, &line, &words);
        conditions(&mut says, &line, &words);
        measures::measures(&mut says, &line, &words);
    }
    says.entries
}

/// Words without the punctuation around them, but with what belongs to numbers.
fn words(line: &str) -> Vec<&str> {
    let punctuation = |c: char| !c.is_alphanumeric() && !matches!(c, '~' | '`' | '_' | '<' | '>');
    line.split_whitespace().map(|w| w.trim_matches(punctuation)).filter(|w| !w.is_empty()).collect()
}

/// Names of systems as texts write them, and what each is. The first that fits a name counts.
const SYSTEMS: &[(&str, &str)] = &[
    ("Elastic Storage Server", "storage system: IBM ESS"),
    ("Elastic Storage System", "storage system: IBM ESS"),
    ("IBM ESS", "storage system: IBM ESS"),
    ("Sun Storage 7410", "storage system: Sun Storage 7410"),
    ("FlashSystem 900", "storage system: IBM FlashSystem 900"),
    ("FlashSystem® 900", "storage system: IBM FlashSystem 900"),
    ("DCS3700", "enclosure: DCS3700"),
    ("Spectrum Scale", "file system: Storage Scale"),
    ("NFS/RDMA", "protocol: NFS over RDMA"),
    ("IPoIB", "network: IP over InfiniBand"),
    ("E880", "server: IBM Power E880 (POWER8)"),
    ("E870", "server: IBM Power E870 (POWER8)"),
    ("9080-M9S", "server: IBM Power E980 (POWER9)"),
    ("S822L", "server: IBM Power S822L (POWER8)"),
    ("AIX 7.2", "operating system: AIX 7.2"),
    ("VIOS", "operating system: VIOS"),
    ("MLNX-OS", "switch: MLNX-OS"),
    ("SX1710", "switch: Mellanox SX1710"),
    ("2498-B24", "switch: Brocade 2498-B24"),
    ("ConnectX-3", "adapter: Mellanox ConnectX-3"),
    ("EC66", "adapter: 100GbE, 2 ports (EC66)"),
    ("EN0A", "adapter: 16 Gb FC (EN0A)"),
    ("EN0H", "adapter: 10 Gb FCoE (EN0H)"),
    ("EC67", "adapter: 100GbE, 2 ports (EC67)"),
    ("2CF3", "adapter: 100GbE, 2 ports (2CF3)"),
    ("9206-16e", "adapter: LSI 9206-16e (SAS)"),
    ("DDR Dual Port Infiniband HCA", "adapter: Sun DDR InfiniBand, 2 ports"),
    ("594B", "disk: 3.2 TB NVMe (594B)"),
    ("59B4", "disk: 800 GB NVMe U.2 (59B4)"),
    ("S821L", "server: IBM Power S821L (POWER8)"),
    ("7042-CR8", "console: HMC 7042-CR8"),
    ("3x24 Infiniband", "switch: Sun Datacenter 3x24 InfiniBand"),
    ("Red Hat 7.1", "operating system: Red Hat 7.1"),
    ("Centos 5.2", "operating system: CentOS 5.2"),
    ("5.11 upstream kernel", "operating system: Linux 5.11"),
    ("PowerVM", "hypervisor: PowerVM"),
    ("SAS 9.4", "application: SAS 9.4"),
    ("SR-IOV", "network: SR-IOV"),
    ("100GbE", "network: 100GbE"),
];

fn systems(says: &mut Says, line: &str) {
    for (name, what) in SYSTEMS.iter().filter(|(name, _)| line.contains(name)) {
        let known = format!("system/{}", segment(what));
        if !says.entries.iter().any(|entry| entry.path == known) {
            says.entries.push(Entry { path: known, value: (*name).to_owned(), line: says.line });
        }
    }
}

/// `NAME [Version] 1.2.3` alone on a line.
fn versions(says: &mut Says, line: &str, words: &[&str]) {
    let [name @ .., version] = words else { return };
    let numeric =
        version.split('.').count() >= 3 && version.split('.').all(|part| part.parse::<u32>().is_ok());
    if numeric && (1..=6).contains(&name.len()) && !line.contains(':') {
        let plain: Vec<&str> = name.iter().copied().filter(|w| !w.eq_ignore_ascii_case("version")).collect();
        says.say(&["version", &plain.join(" ")], version);
    }
}

/// Bond modes named with a number, hash policies, and formulas for the choice of a link.
fn bonds(says: &mut Says, line: &str, words: &[&str]) {
    const NAMES: [(&str, &str); 6] = [
        ("round robin", "balance-rr"),
        ("round-robin", "balance-rr"),
        ("active-backup", "active-backup"),
        ("802.3ad", "802.3ad"),
        ("balance-alb", "balance-alb"),
        ("balance-xor", "balance-xor"),
    ];
    let lower = line.to_lowercase();
    for (name, mode) in NAMES {
        // `round robin (mode=1)`: the number directly behind the name.
        let behind = lower.split_once(name).map_or("", |(_, rest)| rest.trim_start_matches([' ', '(', ',']));
        if let Some(digits) = behind.strip_prefix("mode=").or_else(|| behind.strip_prefix("mode ")) {
            let digits: String = digits.chars().take_while(char::is_ascii_digit).collect();
            if !digits.is_empty() {
                says.say(&["bond-mode", mode], &digits);
            }
        }
    }
    for word in words {
        if let Some(policy) = word.strip_prefix("xmit_hash_policy=") {
            says.say(&["hash-policy"], policy);
        }
    }
    if line.contains("XOR") && line.contains("MODULO") {
        let count = |c: char| line.chars().filter(|x| *x == c).count();
        says.say(&["hash-formula"], &format!("{} opened, {} closed", count('('), count(')')));
    }
}

/// Ranges and defaults of tunables: `` `name` ... Valid values are 1-8, with the default being 2``, and
/// `default value of the NAME attribute is set to 8`, `NAME is set to 64`.
fn tunables(says: &mut Says, line: &str, words: &[&str]) {
    if let Some((before, rest)) = line.split_once("Valid values are ") {
        let name =
            before.split('`').nth(1).unwrap_or_else(|| before.split_whitespace().next().unwrap_or("?"));
        let range = rest.split([',', ' ', '.']).next().unwrap_or("");
        says.say(&["range", name], range);
        if let Some((_, default)) = rest.split_once("default being ") {
            says.say(&["default", name], default.split(['.', ' ', ',']).next().unwrap_or(""));
        }
    }
    for (at, pair) in words.windows(4).enumerate() {
        let ["is", "set" | "increased" | "raised", "to", value] = pair else { continue };
        let named = words[..at].iter().rev().take(2).find(|w| w.contains('_'));
        if let (Some(name), Some(_)) = (named, number(value)) {
            let defaults = line.contains("default value");
            says.say(&[if defaults { "default" } else { "setting" }, name], value);
        }
    }
    // A card's bus, and the speed a port may be set to: what bounds what.
    if let Some(at) =
        words.iter().position(|w| w.starts_with("Gen") && w[3..].starts_with(|c: char| c.is_ascii_digit()))
        && let Some(width) = words.get(at + 1).filter(|w| w.starts_with('x'))
    {
        says.say(&["pcie", "bus"], &format!("{} {width}", &words[at][..4]));
    }
    if line.contains("dual-port") || line.contains("dual port") {
        says.say(&["pcie", "ports"], "2");
    }
    for word in words {
        if let Some(speed) = word.strip_suffix("GbE").filter(|s| s.parse::<u32>().is_ok()) {
            says.say(&["port-speed", "gbit"], speed);
        }
    }
    if line.contains("multiplying it by 32") {
        says.say(&["block-rule"], "application block × 32");
    }
}

/// Things counted: links, ports of a bond, servers, processors, memory.
fn counts(says: &mut Says, line: &str, words: &[&str]) {
    for (at, word) in words.iter().enumerate() {
        let count = count_word(word);
        let next = |n: usize| words.get(at + n).copied().unwrap_or("");
        match (count, next(1), next(2)) {
            (Some(n), "links", "from") => {
                let of = words[at + 3..].iter().find(|w| **w != "the").copied().unwrap_or("?");
                says.say(&["links-from", of], &n.to_string());
            }
            (Some(n), "dedicated" | "Dedicated", "processors") if next(4) == "CPUs" => {
                says.say(&["threads"], &format!("{n} processors, {} CPUs", next(3)));
            }
            (Some(n), _, _) if at == 0 && line.trim_end().ends_with("servers") && !line.contains("per ") => {
                says.say(&["servers"], &n.to_string());
            }
            (Some(n), _, _)
                if words[at..].iter().take(5).any(|w| *w == "ports") && at > 0 && words[at - 1] == "of" =>
            {
                let bonding = words[..at].iter().any(|w| w.eq_ignore_ascii_case("bonding"));
                if bonding && words[at..].contains(&"per") {
                    says.say(&["bond-ports"], &n.to_string());
                }
            }
            _ => {}
        }
        if next(1) == "GB" && next(2) == "of" && next(3) == "memory" {
            says.say(&["memory-gb"], word);
        }
    }
    // The steps of a list: `Two ports - ...`, `Six pairs of ports - ...`.
    if let ([first, rest @ ..], true) = (words, line.contains(" - "))
        && count_word(first).is_some()
    {
        match rest {
            ["port" | "ports", ..] => says.say(&["step-unit"], "ports"),
            ["pair" | "pairs", "of", "ports", ..] => says.say(&["step-unit"], "pairs of ports"),
            _ => {}
        }
    }
    if let Some(number) =
        line.trim().strip_prefix("Figure ").and_then(|rest| rest.split_once('.')).map(|(n, _)| n)
        && number.parse::<u32>().is_ok()
    {
        says.say(&["figure"], number);
    }
}

/// `when X is enabled`: a thing that was switched in what is told.
fn conditions(says: &mut Says, line: &str, words: &[&str]) {
    for group in words.windows(4) {
        if let ["when" | "with", what, "is", "enabled" | "disabled"] = group {
            says.say(&["when-enabled"], what);
        }
    }
    // How often a thing is spoken of shows whether it belongs to the text.
    for word in ["compression", "encryption", "deduplication", "replication"] {
        if line.to_lowercase().contains(word) {
            says.say(&["spoken-of", word], "yes");
        }
    }
    // A dump whose own text says which marks it has.
    if line.contains("\".\"") && line.contains("first column") {
        says.say(&["marks"], "a period marks what was tuned by itself");
    }
    let stamp = line.contains("first column") && line.contains('.');
    if stamp && !line.contains("\".\"") {
        says.say(&["marks"], "a period marks what was tuned by itself");
    }
}
