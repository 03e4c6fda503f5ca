//! AIX tables: `no`, `vmo`, `ioo`, `schedo` with `-a` and `-L`, and stanzas of `odmget`.
//! A table is known by its head; the rulers between its rows may be missing.

use super::listing::{Parser, Reader, Taken, Title, Window};

pub(super) const PARSERS: [Parser; 3] = [
    Parser { kind: "no -L", title: Title::Once, system: "AIX", starts: |w| is_head(w.first()), line: row },
    Parser { kind: "no -a", title: Title::No, system: "AIX", starts: assignments_start, line: assignment },
    Parser { kind: "odmget", title: Title::No, system: "AIX", starts: stanza_starts, line: stanza },
];

/// Names, or beginnings of them, by which a table is known that no command stands above.
const OWN: [(&str, &[&str]); 3] = [
    (
        "vmo",
        &[
            "ame_",
            "lgpg_",
            "lru_",
            "max",
            "min",
            "npskill",
            "npswarn",
            "strict_max",
            "v_pinshm",
            "vmm_",
            "vtiol_",
        ],
    ),
    (
        "ioo",
        &[
            "aio_",
            "dk_",
            "j2_",
            "jfs_",
            "lvm_bufcnt",
            "maxpgahead",
            "maxrandwrt",
            "minpgahead",
            "num",
            "pd_npages",
            "pgahd_",
            "posix_aio_",
            "pv_min_pbuf",
            "spec_accessupdate",
            "sync_release_ilock",
        ],
    ),
    (
        "schedo",
        &[
            "affinity_lim",
            "big_tick_size",
            "maxspin",
            "pacefork",
            "sched_",
            "smt_",
            "timeslice",
            "v_exempt_secs",
            "v_min_process",
            "v_repage_",
            "v_sec_wait",
            "vpm_",
        ],
    ),
];

/// The tool that has `name` in its table: the one that the command names, else the one whose names fit it closest.
fn tool(r: &Reader, name: &str) -> &'static str {
    let said = |tool: &&str| r.command.first().is_some_and(|command| command == tool);
    if let Some(tool) = ["no", "vmo", "ioo", "schedo"].into_iter().find(said) {
        return tool;
    }
    let fits = OWN.iter().flat_map(|(tool, names)| names.iter().map(move |own| (*tool, *own)));
    let closest = fits.filter(|(_, own)| name.starts_with(own)).max_by_key(|(_, own)| own.len());
    closest.map_or("no", |(tool, _)| tool)
}

fn is_head(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    words.starts_with(&["NAME", "CUR", "DEF", "BOOT"])
}

/// `CUR DEF BOOT MIN MAX [UNIT...] TYPE [DEPENDENCY...]`: the five values, the unit, the type, and what follows.
fn columns<'a>(words: &'a [&'a str]) -> Option<([&'a str; 5], String, &'a str, &'a [&'a str])> {
    let (values, rest) = words.split_first_chunk::<5>()?;
    let kind = rest.iter().take(4).position(|word| word.len() == 1 && "SDBRCMI".contains(word))?;
    Some((*values, rest[..kind].join(" "), rest[kind], &rest[kind + 1..]))
}

fn row(r: &mut Reader, line: &str) -> Taken {
    let text = line.trim();
    if is_head(text) {
        if !r.above.trim().starts_with("---") {
            r.odd("ruler", "none above the head");
        }
        return Taken::Ignored("table head");
    }
    if text == "DEPENDENCIES" {
        return Taken::Ignored("table head");
    }
    if text.starts_with("---") {
        r.key.clear();
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
    if let [word] = words.as_slice() {
        // Below a ruler it is a name too long for its column, whose values come on the next line; below values it is what
        // these depend on.
        if r.key.is_empty() {
            (*word).clone_into(&mut r.key);
            "values".clone_into(&mut r.scope);
        } else {
            let (tool, key) = (tool(r, &r.key), r.key.clone());
            r.entry(&["aix", &format!("{tool}-depends"), &key], word);
        }
        return Taken::Read;
    }
    let (name, values) = match words.as_slice() {
        values if r.scope == "values" => (r.key.clone(), values),
        [name, values @ ..] => ((*name).to_owned(), values),
        [] => return Taken::No,
    };
    let Some(([cur, def, boot, min, max], unit, kind, depends)) = columns(values) else { return Taken::No };
    r.scope.clear();
    let tool = tool(r, &name);
    r.entry(&["aix", tool, &name], cur);
    for (column, value) in
        [("default", def), ("boot", boot), ("min", min), ("max", max), ("unit", &unit), ("type", kind)]
    {
        r.entry(&["aix", &format!("{tool}-{column}"), &name], value);
    }
    depends.iter().for_each(|on| r.entry(&["aix", &format!("{tool}-depends"), &name], on));
    r.key = name;
    Taken::Read
}

/// `tcp_recvspace = 876544`, also with a marker that AIX puts before restricted ones.
fn assignment_words(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.trim().split_once(" = ")?;
    let name = name.trim();
    // `minperm%` of vmo, `j2_maxPageReadAhead` of ioo.
    let named = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '%'));
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
    let tool = tool(r, name);
    if r.earlier(&format!("aix/{tool}/{name}")).is_some() {
        r.odd("duplicate", name);
    }
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
