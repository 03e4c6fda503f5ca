//! Storage Scale's settings: `mmlsconfig`, and the dump of `mmdiag --config` with its marks.
//! Names are compared without case; a later section overrides for its nodes; lines may come twice.

use super::listing::{Parser, Reader, Taken, Title, Window};

pub(super) const PARSERS: [Parser; 2] = [
    Parser { kind: "mmdiag --config", title: Title::No, system: "Scale", starts: dump_starts, line: dump },
    Parser {
        kind: "mmlsconfig",
        title: Title::Once,
        system: "Scale",
        starts: |w| config_head(w.first()).is_some(),
        line: config,
    },
];

fn dump_starts(w: &Window<'_>) -> bool {
    w.first().starts_with("=== mmdiag: config")
        || (marked(w.first()).is_some() && w.among(3, |line| marked(line).is_some()) >= 2)
}

/// The mark and the rest of ` ! name value`.
fn marked(line: &str) -> Option<(char, &str)> {
    let text = line.trim();
    let mark = text.chars().next().filter(|c| matches!(c, '!' | '.' | '*'))?;
    let rest = text[1..].strip_prefix(' ')?.trim_start();
    let named = rest.starts_with(|c: char| c.is_ascii_alphabetic()) && rest.contains(' ');
    named.then_some((mark, rest))
}

fn dump(r: &mut Reader, line: &str) -> Taken {
    if line.starts_with("=== mmdiag") {
        r.scope = "titled".to_owned();
        return Taken::Ignored("title");
    }
    let (mark, rest) = match marked(line) {
        Some((mark, rest)) => (mark, rest),
        // A default has no mark, and stands below a title only.
        None if r.scope == "titled" && line.starts_with([' ', '\t']) => (' ', line.trim()),
        None => return Taken::No,
    };
    let Some((name, mut value)) = rest.split_once(char::is_whitespace) else { return Taken::No };
    if !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Taken::No;
    }
    value = value.trim();
    // A remark in parentheses behind the name, as in `nsdRAIDBufferPoolSizePct (% of PagePool) 80`.
    if let Some((remark, behind)) = value.strip_prefix('(').and_then(|v| v.split_once(')')) {
        r.odd("remark-in-name", &format!("{name} ({remark})"));
        value = behind.trim();
    }
    let path = format!("scale/config/{name}");
    if let Some(earlier) = r.earlier(&path) {
        let same = if earlier.value == value { "same value" } else { "another value" };
        r.odd("duplicate", &format!("{name}: {same}"));
    }
    if name.eq_ignore_ascii_case("envVar") {
        for pair in value.split_whitespace().collect::<Vec<_>>().chunks_exact(2) {
            r.entry(&["scale", "env", pair[0]], pair[1]);
        }
    }
    r.entry(&["scale", "config", name], value);
    let word = match mark {
        '!' => "changed",
        '.' => "autotuned",
        '*' => "not-in-effect",
        _ => "default",
    };
    r.entry(&["scale", "mark", name], word);
    Taken::Read
}

fn config_head(line: &str) -> Option<&str> {
    line.trim().strip_prefix("Configuration data for cluster ").map(|rest| rest.trim_end_matches(':'))
}

fn config(r: &mut Reader, line: &str) -> Taken {
    let text = line.trim();
    if let Some(cluster) = config_head(text) {
        r.listing.subject = Some(cluster.to_owned());
        r.scope = "common".to_owned();
        r.entry(&["scale", "cluster", "name"], cluster);
        return Taken::Read;
    }
    if text.starts_with("---") {
        return Taken::Ignored("ruler");
    }
    if text.starts_with("File systems in cluster ") {
        r.scope = "file systems".to_owned();
        return Taken::Ignored("title");
    }
    if text.is_empty() {
        return Taken::Ignored("empty");
    }
    if r.scope == "file systems" {
        if let Some(device) = text.strip_prefix("/dev/") {
            r.entry(&["scale", "filesystem", device], "listed");
            return Taken::Read;
        }
        return if text == "(none)" { Taken::Ignored("no file system") } else { Taken::No };
    }
    if let Some(nodes) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        nodes.clone_into(&mut r.scope);
        return Taken::Ignored("section");
    }
    let Some((name, value)) = text.split_once(char::is_whitespace) else { return Taken::No };
    if !name.chars().all(|c| c.is_ascii_alphanumeric()) {
        return Taken::No;
    }
    let scope = r.scope.clone();
    let path = if scope == "common" {
        vec!["scale", "config", name]
    } else {
        vec!["scale", "section", &scope, name]
    };
    let full = path.join("/");
    if r.earlier(&full).is_some() {
        r.odd("duplicate", name);
    }
    r.entry(&path, value.trim());
    Taken::Read
}
