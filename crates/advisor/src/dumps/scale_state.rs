//! What Storage Scale says of its cluster and file systems: `mmlsfs`, `mmlscluster`, `mmlsnsd`, `mmdf`; and `df`.

use super::listing::{Parser, Reader, Taken, Title, Window};

pub(super) const PARSERS: [Parser; 5] = [
    Parser {
        kind: "mmlsfs",
        title: Title::Often,
        system: "Scale",
        starts: |w| is_attribute_head(w.first()),
        line: attribute,
    },
    Parser {
        kind: "mmlscluster",
        title: Title::Once,
        system: "Scale",
        starts: |w| w.first().starts_with("GPFS cluster information"),
        line: cluster,
    },
    Parser {
        kind: "mmlsnsd",
        title: Title::Once,
        system: "Scale",
        starts: |w| is_nsd_head(w.first()),
        line: nsd,
    },
    Parser { kind: "mmdf", title: Title::Once, system: "Scale", starts: mmdf_starts, line: mmdf },
    Parser { kind: "df", title: Title::Once, system: "any", starts: df_starts, line: df },
];

fn is_ruler(text: &str) -> bool {
    text.len() > 3 && text.chars().all(|c| c == '-' || c == '=' || c == ' ')
}

fn is_attribute_head(line: &str) -> bool {
    line.split_whitespace().collect::<Vec<_>>() == ["flag", "value", "description"]
        || line.trim().starts_with("File system attributes for")
}

fn attribute(r: &mut Reader, line: &str) -> Taken {
    let text = line.trim();
    if let Some(rest) = text.strip_prefix("File system attributes for ") {
        r.listing.subject = Some(rest.trim_end_matches(':').trim_start_matches("/dev/").to_owned());
        return Taken::Ignored("title");
    }
    if is_attribute_head(text) || is_ruler(text) {
        return Taken::Ignored("table head");
    }
    let mut words = text.split_whitespace();
    let Some(flag) = words.next() else { return Taken::No };
    let fs = r.subject().to_owned();
    if !flag.starts_with('-') {
        // A value for another pool, or for the file system as it was made, on a line without a flag.
        let (true, Some(of)) = (!r.key.is_empty() && line.starts_with(' '), words.next()) else {
            return Taken::No;
        };
        let key = r.key.clone();
        r.entry(&["scale", "fs-more", &fs, &key], &format!("{flag} {of}"));
        return Taken::Read;
    }
    flag.clone_into(&mut r.key);
    let Some(mut value) = words.next().map(str::to_owned) else { return Taken::No };
    // `-V 22.00 (5.0.4.0) File system version`: what stands in parentheses belongs to the value.
    if let Some(more) = words.next().filter(|word| word.starts_with('(') && word.ends_with(')')) {
        value = format!("{value} {more}");
    }
    let description = text.rsplit("  ").next().unwrap_or("");
    r.entry(&["scale", "fs", &fs, flag], &value);
    if !description.is_empty() && flag == "-B" {
        r.entry(&["scale", "fs-says", &fs, flag], description.trim());
    }
    Taken::Read
}

fn cluster(r: &mut Reader, line: &str) -> Taken {
    let text = line.trim();
    if is_ruler(text) || text.is_empty() {
        return Taken::Ignored("ruler");
    }
    if text.starts_with("GPFS cluster information")
        || text.starts_with("Node  Daemon")
        || text.starts_with("Cluster configuration servers")
    {
        return Taken::Ignored("title");
    }
    if let Some((key, value)) = text.split_once(": ").filter(|(key, _)| key.contains(' ')) {
        r.entry(&["scale", "cluster", key.trim().to_lowercase().replace(' ', "-").as_str()], value.trim());
        return Taken::Read;
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    let [number, daemon, address, admin, roles @ ..] = words.as_slice() else { return Taken::No };
    if number.parse::<u32>().is_err() {
        return Taken::No;
    }
    r.entry(&["scale", "node", daemon, "address"], address);
    r.entry(&["scale", "node", daemon, "admin"], admin);
    r.entry(&["scale", "node", daemon, "role"], roles.first().unwrap_or(&"none"));
    Taken::Read
}

fn is_nsd_head(line: &str) -> bool {
    line.trim().starts_with("File system") && line.contains("Disk name")
}

fn nsd(r: &mut Reader, line: &str) -> Taken {
    let text = line.trim();
    if is_nsd_head(text) || is_ruler(text) {
        return Taken::Ignored("table head");
    }
    let (free, rest) = match text.strip_prefix("(free disk)") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let words: Vec<&str> = rest.split_whitespace().collect();
    let (fs, disk, servers) = match (free, words.as_slice()) {
        (true, [disk, servers @ ..]) => ("(free)", disk, servers),
        (false, [fs, disk, servers @ ..]) if !servers.is_empty() => (*fs, disk, servers),
        _ => return Taken::No,
    };
    r.entry(&["scale", "nsd", disk, "filesystem"], fs);
    r.entry(&["scale", "nsd", disk, "servers"], &servers.join(" "));
    Taken::Read
}

fn mmdf_starts(w: &Window<'_>) -> bool {
    w.first().starts_with("disk") && w.first().contains("failure holds")
}

fn mmdf(r: &mut Reader, line: &str) -> Taken {
    let text = line.trim();
    if is_ruler(text) || text.starts_with("disk ") || text.starts_with("name ") {
        return Taken::Ignored("table head");
    }
    if let Some((pool, _)) =
        text.strip_prefix("Disks in storage pool: ").map(|p| p.split_once(' ').unwrap_or((p, "")))
    {
        pool.clone_into(&mut r.scope);
        return Taken::Ignored("section");
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    let percent = |text: &str| {
        text.split_once('(').and_then(|(_, rest)| rest.split_once('%')).map(|(p, _)| p.trim().to_owned())
    };
    if let Some(inodes) = text.split_once(" inodes:").or_else(|| text.split_once(" number of inodes:")) {
        r.entry(&["scale", "inodes", &inodes.0.to_lowercase().replace(' ', "-")], inodes.1.trim());
        return Taken::Read;
    }
    let pool = if r.scope.is_empty() { "system".to_owned() } else { r.scope.clone() };
    match words.as_slice() {
        [what @ ("(total)" | "(pool"), ..] => {
            if let Some(free) = percent(text.get(what.len()..).unwrap_or("")) {
                r.entry(&["scale", "free", &pool], &free);
            }
            Taken::Read
        }
        [disk, size, group, meta @ ("yes" | "no" | "Yes" | "No"), data, ..] => {
            r.entry(&["scale", "disk", disk, "size"], size);
            r.entry(&["scale", "disk", disk, "failure-group"], group);
            r.entry(&["scale", "disk", disk, "holds"], &format!("metadata {meta}, data {data}"));
            if let Some(free) = percent(text) {
                r.entry(&["scale", "disk", disk, "free"], &free);
            }
            Taken::Read
        }
        ["Inode", "Information"] => Taken::Ignored("title"),
        _ => Taken::No,
    }
}

/// By its head; in another language by the percent sign there and a first line of the table below it.
fn df_starts(w: &Window<'_>) -> bool {
    is_df_head(w.first())
        && (w.first().starts_with("Filesystem") || w.lines.get(1).is_some_and(|l| df_row(l).is_some()))
}

fn is_df_head(line: &str) -> bool {
    let names =
        |word: &str| word.ends_with('%') && word.len() > 2 && !word.starts_with(|c: char| c.is_ascii_digit());
    !line.starts_with('/') && line.split_whitespace().count() >= 6 && line.split_whitespace().any(names)
}

/// Device, size, used, available, per cent and mount point.
fn df_row(line: &str) -> Option<[&str; 6]> {
    let row: [&str; 6] = line.split_whitespace().collect::<Vec<_>>().try_into().ok()?;
    let share = row[4].strip_suffix('%').filter(|share| share.parse::<u8>().is_ok())?;
    row[5].starts_with('/').then_some([row[0], row[1], row[2], row[3], share, row[5]])
}

fn df(r: &mut Reader, line: &str) -> Taken {
    if is_df_head(line) {
        return Taken::Ignored("table head");
    }
    let Some([device, size, used, free, share, mount]) = df_row(line) else { return Taken::No };
    let name = device.trim_start_matches("/dev/");
    // Pseudo file systems come several times under one name.
    let name = if device.starts_with('/') || device.contains(':') { name } else { mount };
    for (what, value) in
        [("size", size), ("used", used), ("available", free), ("percent", share), ("mount", mount)]
    {
        r.entry(&["df", name, what], value);
    }
    Taken::Read
}
