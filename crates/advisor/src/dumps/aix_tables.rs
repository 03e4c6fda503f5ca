//! AIX tables: `no`, `vmo`, `ioo`, `schedo` with `-a` and `-L`, and stanzas of `odmget`.
//! A table is known by its head; the rulers between its rows may be missing.

use super::listing::{Parser, Reader, Taken, Title, Window};

pub(super) const PARSERS: [Parser; 3] = [
    Parser { kind: "no -L", title: Title::Once, system: "AIX", starts: |w| is_head(w.first()), line: row },
    Parser { kind: "no -a", title: Title::No, system: "AIX", starts: assignments_start, line: assignment },
    Parser { kind: "odmget", title: Title::No, system: "AIX", starts: stanza_starts, line: stanza },
];

/// The tool whose table this is.
fn tool(r: &Reader) -> &'static str {
    ["vmo", "ioo", "schedo"].into_iter().find(|t| r.command.first().is_some_and(|c| c == t)).unwrap_or("no")
}

fn is_head(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    words.starts_with(&["NAME", "CUR", "DEF", "BOOT"])
}

fn row(r: &mut Reader, line: &str) -> Taken {
    let text = line.trim();
    if is_head(text) {
        if !r.above.trim().starts_with("---") {
            r.odd("ruler", "none above the head");
        }
        return Taken::Ignored("table head");
    }
    if text.starts_with("---") {
        return Taken::Ignored("ruler");
    }
    if text.starts_with("##") {
        return Taken::Ignored("section");
    }
    // The legend below the tables.
    let legend = text.split_once(" = ").is_some_and(|(letter, _)| letter.len() == 1);
    if legend || text.starts_with("n/a means") || text == "Parameter types:" || text == "Value conventions:" {
        return Taken::Ignored("legend");
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    let [name, cur, def, boot, min, max, unit, kind, rest @ ..] = words.as_slice() else {
        // A dependency on a line of its own.
        if let ([word], false) = (words.as_slice(), r.key.is_empty()) {
            let (tool, key) = (tool(r), r.key.clone());
            r.entry(&["aix", &format!("{tool}-depends"), &key], word);
            return Taken::Read;
        }
        return Taken::No;
    };
    if kind.len() != 1 || !"SDBRCMI".contains(kind) {
        return Taken::No;
    }
    let tool = tool(r);
    r.entry(&["aix", tool, name], cur);
    for (column, value) in
        [("default", def), ("boot", boot), ("min", min), ("max", max), ("unit", unit), ("type", kind)]
    {
        r.entry(&["aix", &format!("{tool}-{column}"), name], value);
    }
    rest.iter().for_each(|on| r.entry(&["aix", &format!("{tool}-depends"), name], on));
    r.key = (*name).to_owned();
    Taken::Read
}

/// `tcp_recvspace = 876544`, also with a marker that AIX puts before restricted ones.
fn assignment_words(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.trim().split_once(" = ")?;
    let name = name.trim();
    let named =
        !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    (named && name.len() > 1 && !value.trim().contains(' ') && !value.contains('"'))
        .then_some((name, value.trim()))
}

fn assignments_start(w: &Window<'_>) -> bool {
    let tools = ["no", "vmo", "ioo", "schedo"];
    assignment_words(w.first()).is_some()
        && (tools.iter().any(|t| w.after(t)) || w.among(4, |line| assignment_words(line).is_some()) >= 3)
}

fn assignment(r: &mut Reader, line: &str) -> Taken {
    let Some((name, value)) = assignment_words(line) else { return Taken::No };
    let path = format!("aix/{}/{name}", tool(r));
    if r.earlier(&path).is_some() {
        r.odd("duplicate", name);
    }
    let tool = tool(r);
    r.entry(&["aix", tool, name], value);
    Taken::Read
}

/// `CuDv:` with `name = ...` below it.
fn stanza_starts(w: &Window<'_>) -> bool {
    stanza_class(w.first()).is_some() && w.lines.get(1).is_some_and(|line| field(line).is_some())
}

fn stanza_class(line: &str) -> Option<&str> {
    let class = line.trim_end().strip_suffix(':')?;
    let shaped = class.len() <= 20 && class.starts_with(|c: char| c.is_ascii_uppercase());
    (shaped && class.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')).then_some(class)
}

fn field(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.split_once(" = ")?;
    let key = key.trim();
    let indented = line.starts_with([' ', '\t']);
    (indented && !key.is_empty() && !key.contains(' ')).then_some((key, value.trim().trim_matches('"')))
}

/// The fields of a stanza stand below its name: `CuDv` is known by `name`, `PdAt` and `CuAt` by `attribute`.
fn stanza(r: &mut Reader, line: &str) -> Taken {
    if let Some(class) = stanza_class(line) {
        class.clone_into(&mut r.scope);
        r.key.clear();
        return Taken::Read;
    }
    if line.trim() == "#" {
        return Taken::Ignored("prompt");
    }
    let Some((key, value)) = field(line).filter(|_| !r.scope.is_empty()) else { return Taken::No };
    if matches!(key, "name" | "attribute") || (r.key.is_empty() && key == "uniquetype") {
        value.clone_into(&mut r.key);
    }
    let (scope, of) = (r.scope.clone(), r.key.clone());
    r.entry(&["aix", "odm", &scope, &of, key], value);
    Taken::Read
}
