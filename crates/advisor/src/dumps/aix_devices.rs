//! AIX devices: `lsattr -El` and `-R`, `lsdev`, `errpt`, `ifconfig`.
//! The description of an attribute holds spaces and is passed over; of `lsattr -El DEV -a NAME` three columns may be left.

use super::listing::{Parser, Reader, Taken, Title, Window};

pub(super) const PARSERS: [Parser; 5] = [
    Parser { kind: "lsattr -El", title: Title::No, system: "AIX", starts: attributes_start, line: attribute },
    Parser { kind: "lsattr -R", title: Title::No, system: "AIX", starts: range_starts, line: range },
    Parser {
        kind: "lsdev",
        title: Title::No,
        system: "AIX",
        starts: |w| device_words(w.first()).is_some(),
        line: device,
    },
    Parser {
        kind: "errpt",
        title: Title::No,
        system: "AIX",
        starts: |w| error_words(w.first()).is_some() || is_error_head(w.first()),
        line: error,
    },
    Parser {
        kind: "ifconfig",
        title: Title::Often,
        system: "AIX",
        starts: |w| interface_head(w.first()).is_some(),
        line: interface,
    },
];

/// Name, value (may be empty) and whether a user may set it.
fn attribute_words(line: &str) -> Option<(&str, &str, bool)> {
    let rest = line.trim_end();
    let (body, settable) = match rest.strip_suffix("True").or_else(|| rest.strip_suffix("true")) {
        Some(body) => (body, true),
        None => (rest.strip_suffix("False").or_else(|| rest.strip_suffix("false"))?, false),
    };
    if !body.ends_with([' ', '\t']) {
        return None;
    }
    let body = body.trim();
    let name = body.split_whitespace().next()?;
    let named = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let behind = &body[name.len()..];
    // A gap as wide as a column is an empty value.
    let gap = behind.len() - behind.trim_start().len();
    let value = if gap > 12 && behind.trim().contains(' ') && !behind.trim().contains("  ") {
        ""
    } else {
        behind.split_whitespace().next().unwrap_or("")
    };
    (named && !value.contains('=')).then_some((name, value, settable))
}

fn attributes_start(w: &Window<'_>) -> bool {
    attribute_words(w.first()).is_some()
        && (w.after("lsattr") || w.among(3, |line| attribute_words(line).is_some()) >= 2)
}

fn attribute(r: &mut Reader, line: &str) -> Taken {
    let Some((name, value, settable)) = attribute_words(line) else { return Taken::No };
    let device = r.subject().to_owned();
    if r.earlier(&format!("aix/device/{device}/{name}")).is_some() {
        r.odd("duplicate", name);
    }
    r.entry(&["aix", "device", &device, name], value);
    if !settable {
        r.entry(&["aix", "fixed", &device, name], value);
    }
    Taken::Read
}

/// `1...16 (+1)`, or a value of a list.
fn range_starts(w: &Window<'_>) -> bool {
    range_words(w.first()).is_some() || (w.after("lsattr") && w.command.iter().any(|word| word == "-R"))
}

fn range_words(line: &str) -> Option<(&str, &str, &str)> {
    let (low, rest) = line.trim().split_once("...")?;
    let (high, step) = rest.split_once('(').unwrap_or((rest, "+1)"));
    let numeric = |text: &str| text.parse::<u64>().is_ok();
    let (high, step) = (high.trim(), step.trim_start_matches('+').trim_end_matches(')'));
    (numeric(low) && numeric(high) && numeric(step)).then_some((low, high, step))
}

fn range(r: &mut Reader, line: &str) -> Taken {
    let device = r.subject().to_owned();
    let name = r.command.iter().position(|word| word == "-a").and_then(|at| r.command.get(at + 1)).cloned();
    let name = name.unwrap_or_else(|| "?".to_owned());
    if let Some((low, high, step)) = range_words(line) {
        for (what, value) in [("low", low), ("high", high), ("step", step)] {
            r.entry(&["aix", "range", &device, &name, what], value);
        }
        return Taken::Read;
    }
    let word = line.trim();
    if word.is_empty() || word.contains(char::is_whitespace) || word.starts_with('#') {
        return Taken::No;
    }
    r.entry(&["aix", "range", &device, &name, "value"], word);
    Taken::Read
}

/// `fcs0  Available 00-00  Description`.
fn device_words(line: &str) -> Option<[&str; 4]> {
    let line = line.trim();
    let mut words = line.split_whitespace();
    let (name, state) = (words.next()?, words.next()?);
    if !matches!(state, "Available" | "Defined" | "Stopped" | "Unknown") {
        return None;
    }
    let third = words.next().unwrap_or("");
    let placed = third.contains('-') && third.starts_with(|c: char| c.is_ascii_digit() || c == 'U');
    let location = if placed { third } else { "" };
    let from = if placed { location } else { state };
    let description = line.split_once(from).map_or("", |(_, rest)| rest.trim());
    Some([name, state, location, description])
}

fn device(r: &mut Reader, line: &str) -> Taken {
    let Some([name, state, location, description]) = device_words(line) else { return Taken::No };
    r.entry(&["aix", "lsdev", name, "state"], state);
    r.entry(&["aix", "lsdev", name, "location"], location);
    r.entry(&["aix", "lsdev", name, "description"], description);
    Taken::Read
}

fn is_error_head(line: &str) -> bool {
    line.starts_with("IDENTIFIER") && line.contains("RESOURCE_NAME")
}

/// `29FA8C20   0629173616 I O fcs0  Description`.
fn error_words(line: &str) -> Option<[&str; 6]> {
    let mut words = line.split_whitespace();
    let (id, time) = (words.next()?, words.next()?);
    let (kind, class, resource) = (words.next()?, words.next()?, words.next()?);
    let shaped = id.len() == 8
        && id.chars().all(|c| c.is_ascii_hexdigit())
        && time.len() == 10
        && time.chars().all(|c| c.is_ascii_digit())
        && kind.len() == 1
        && class.len() == 1;
    let description = line.trim().rsplit_once(&format!(" {resource} ")).map_or("", |(_, text)| text.trim());
    shaped.then_some([id, time, kind, class, resource, description])
}

fn error(r: &mut Reader, line: &str) -> Taken {
    if is_error_head(line) {
        return Taken::Ignored("table head");
    }
    let Some([id, time, kind, class, resource, description]) = error_words(line) else { return Taken::No };
    r.entry(&["aix", "errpt", id, resource], description);
    r.entry(&["aix", "errpt-time", id, resource], time);
    r.entry(&["aix", "errpt-type", id, resource], &format!("{kind} {class}"));
    Taken::Read
}

/// `en3: flags=...<UP,...>`.
fn interface_head(line: &str) -> Option<(&str, &str)> {
    let (name, rest) = line.split_once(": flags=")?;
    (!name.contains(' ') && !name.is_empty()).then_some((name, rest))
}

fn interface(r: &mut Reader, line: &str) -> Taken {
    if let Some((name, flags)) = interface_head(line) {
        r.scope = name.to_owned();
        let set = flags.split_once('<').and_then(|(_, rest)| rest.split_once('>')).map_or("", |(set, _)| set);
        r.entry(&["aix", "interface", name, "flags"], set);
        // Linux prints the mtu on the same line.
        if let Some((_, mtu)) = flags.split_once("mtu ") {
            r.entry(&["aix", "interface", name, "mtu"], mtu);
        }
        return Taken::Read;
    }
    if !line.starts_with([' ', '\t']) || line.trim().is_empty() {
        return Taken::No;
    }
    let (scope, words) = (r.scope.clone(), line.split_whitespace().collect::<Vec<_>>());
    for pair in words.chunks_exact(2) {
        r.entry(&["aix", "interface", &scope, pair[0]], pair[1]);
    }
    Taken::Read
}
