//! MLNX-OS: configuration lines and `show interfaces`.
//! A line of an article may hold a placeholder for the port (`1/n`), and words behind the command (`, where n = ...`).

use super::listing::{Parser, Reader, Taken, Title, Window};

pub(super) const PARSERS: [Parser; 3] = [
    Parser {
        kind: "MLNX-OS configuration",
        title: Title::Often,
        system: "switch",
        starts: config_starts,
        line: config,
    },
    Parser {
        kind: "show interfaces",
        title: Title::Often,
        system: "switch",
        starts: |w| shown_port(w.first()).is_some(),
        line: shown,
    },
    Parser {
        kind: "show version",
        title: Title::No,
        system: "switch",
        starts: |w| {
            w.first().starts_with("Product name:") && w.lines.iter().take(4).any(|l| l.contains("MLNX-OS"))
        },
        line: version,
    },
];

/// A configuration line, by words, without prompt and remark.
fn words(line: &str) -> Vec<&str> {
    let text = line
        .trim()
        .rsplit_once("(config")
        .map_or(line.trim(), |(_, rest)| rest.split_once('#').map_or("", |(_, r)| r));
    let text = text.split(", where").next().unwrap_or("");
    text.split_whitespace().collect()
}

fn is_port(words: &[&str]) -> bool {
    matches!(words, [first, kind, _, ..] if first.eq_ignore_ascii_case("interface")
        && ["ethernet", "port-channel", "mlag-port-channel", "mgmt0", "vlan"].contains(kind))
}

fn config_starts(w: &Window<'_>) -> bool {
    let words = words(w.first());
    is_port(&words)
        || matches!(words.as_slice(), ["port-channel", "load-balance", ..] | ["lacp", ..])
        || w.first().starts_with("## Running database")
}

fn config(r: &mut Reader, line: &str) -> Taken {
    let text = line.trim();
    if text.starts_with("##") {
        if let Some(name) = text.strip_prefix("## Hostname:") {
            r.listing.subject = Some(name.trim().to_owned());
        }
        return Taken::Ignored("comment");
    }
    let bullet = text.starts_with('•') || text.starts_with("* ");
    let words = words(line);
    if is_port(&words) {
        r.scope = format!("{} {}", words[1], words[2]);
        return setting(r, &words[3..]);
    }
    match words.as_slice() {
        // In an article the headings between the lines.
        _ if bullet && words.len() <= 8 => Taken::Ignored("heading"),
        ["exit"] => {
            r.scope.clear();
            Taken::Ignored("end of a block")
        }
        ["port-channel", "load-balance", "ethernet", fields @ ..] => {
            r.entry(&["switch", "load-balance"], &fields.join(" "));
            Taken::Read
        }
        ["lacp", rest @ ..] if r.scope.is_empty() => {
            r.entry(&["switch", "global", "lacp"], if rest.is_empty() { "on" } else { rest[0] });
            Taken::Read
        }
        // Inside `interface ethernet 1/1` ... `exit`.
        inner @ [
            "flowcontrol" | "speed" | "mtu" | "channel-group" | "switchport" | "shutdown" | "no"
            | "description" | "lacp" | "spanning-tree" | "dcb" | "qos",
            ..,
        ] if !r.scope.is_empty() && line.starts_with([' ', '\t']) => setting(r, inner),
        [
            first @ ("hostname" | "clock" | "ntp" | "username" | "snmp-server" | "logging" | "ip" | "vlan"
            | "spanning-tree" | "dcb" | "no" | "configuration" | "web" | "ssh" | "lldp" | "protocol"
            | "mlag" | "lag" | "aaa" | "banner" | "crypto" | "cli" | "qos" | "traffic" | "vrf"
            | "ldap" | "email" | "interface" | "storm-control"),
            rest @ ..,
        ] if !rest.is_empty() && !text.ends_with('.') => {
            // What has no bearing on speed is read by its first word, without its value: it may be a secret.
            let value = if matches!(*first, "dcb" | "lldp" | "spanning-tree" | "no" | "mlag") {
                rest.join(" ")
            } else {
                "set".to_owned()
            };
            r.entry(&["switch", "global", first], &value);
            Taken::Read
        }
        _ => Taken::No,
    }
}

/// What a line says of the port in scope.
fn setting(r: &mut Reader, words: &[&str]) -> Taken {
    let port = r.scope.clone();
    let forced = if words.last() == Some(&"force") { "force" } else { "plain" };
    match words {
        [] => return Taken::Read,
        ["flowcontrol", direction @ ("receive" | "send"), state, ..] => {
            r.entry(&["switch", "port", &port, &format!("flowcontrol-{direction}")], state);
        }
        [name @ ("speed" | "mtu"), value, ..] => {
            r.entry(&["switch", "port", &port, name], value);
            r.entry(&["switch", "port-how", &port, name], forced);
        }
        ["no", rest @ ..] => r.entry(&["switch", "port", &port, &rest.join("-")], "no"),
        ["channel-group", number, "mode", mode, ..] => {
            r.entry(&["switch", "port", &port, "channel-group"], number);
            r.entry(&["switch", "port", &port, "channel-mode"], mode);
        }
        [name, rest @ ..] => {
            r.entry(&["switch", "port", &port, name], if rest.is_empty() { "set" } else { rest[0] })
        }
    }
    Taken::Read
}

/// `Eth1/1` or `Eth1/1:` or `Po1` alone on a line.
fn shown_port(line: &str) -> Option<&str> {
    let name = line.trim().trim_end_matches(':');
    let number = name
        .strip_prefix("Eth")
        .or_else(|| name.strip_prefix("Po"))
        .or_else(|| name.strip_prefix("Ethernet "))?;
    (!number.is_empty() && number.chars().all(|c| c.is_ascii_digit() || c == '/')).then_some(name)
}

fn shown(r: &mut Reader, line: &str) -> Taken {
    if let Some(port) = shown_port(line) {
        port.clone_into(&mut r.scope);
        r.entry(&["switch", "shown", port, "port"], "shown");
        return Taken::Read;
    }
    let text = line.trim();
    let scope = r.scope.clone();
    if matches!(text, "Rx" | "Tx" | "Rx:" | "Tx:") {
        text.trim_end_matches(':').clone_into(&mut r.key);
        return Taken::Ignored("section");
    }
    if let Some((key, value)) = text.split_once(": ") {
        r.entry(&["switch", "shown", &scope, &key.trim().to_lowercase().replace(' ', "-")], value.trim());
        return Taken::Read;
    }
    // `123  discard packets`, below Rx or Tx.
    match text.split_once(char::is_whitespace) {
        Some((count, what)) if count.parse::<u64>().is_ok() => {
            let name = format!("{}-{}", r.key.to_lowercase(), what.trim().replace(' ', "-"));
            r.entry(&["switch", "shown", &scope, &name], count);
            Taken::Read
        }
        _ => Taken::No,
    }
}

fn version(r: &mut Reader, line: &str) -> Taken {
    match line.split_once(':') {
        Some((key, value)) if !key.starts_with(' ') => {
            r.entry(&["switch", "version", &key.trim().to_lowercase().replace(' ', "-")], value.trim());
            Taken::Read
        }
        _ => Taken::No,
    }
}
