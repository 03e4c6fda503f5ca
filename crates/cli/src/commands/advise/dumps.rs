//! `ropewalk advise FILE|DIR|-` and `advise import-scale`: dumps of other machines, judged and printed.
//! Reads only; bounded in files and bytes. A file that cannot be read is named at the end, which is then an error.

use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use advisor::{
    Severity,
    dumps::{
        Document, Imported, Outcome, ROWS, Row, RunBook, Verdict, document, has_scale_settings, import_scale,
        judge_for, run_books,
    },
};
use anyhow::{Context, Result, bail, ensure};

use super::{
    html::{self, Item, Section},
    text::{labelled, severity, speaks_of, sure, word},
};
use crate::{
    args::{Advise, ImportScale},
    input, output,
};

/// Further files of a directory are not read.
const FILES_MAX: usize = 4096;
/// Bytes of one file; the reader cuts there as well.
const FILE_BYTES_MAX: u64 = 17 << 20;
/// Compressed files, by how they begin.
const COMPRESSED: [(&str, &[u8]); 4] =
    [("gzip", b"\x1f\x8b"), ("xz", b"\xfd7zXZ\0"), ("zstd", b"\x28\xb5\x2f\xfd"), ("bzip2", b"BZh")];
/// Columns of the text.
const WIDTH: usize = 100;
/// Lines of evidence named without `--all`.
const LINES_SHOWN: usize = 6;
/// Findings told in full without `--all`; the others are a line each.
const IN_FULL: usize = 5;

/// One input with all that is said of it.
struct Judged {
    doc: Document,
    verdicts: Vec<Verdict>,
    books: Vec<RunBook>,
}

/// `ropewalk advise FILE...`.
///
/// Gives the severity of the worst finding.
pub fn advise(args: &Advise) -> Result<Option<Severity>> {
    let inputs = &args.machine.from;
    if let Some(host) = inputs.iter().find(|path| is_host(path)) {
        bail!("{} is of a whole machine: advise on it alone, and on dumps apart from it", host.display());
    }
    let (mut docs, mut unread) = (Vec::new(), Vec::new());
    for path in files(inputs)? {
        match bytes(&path) {
            Ok(bytes) => {
                let doc = document(&output::visible(&path.to_string_lossy()), &bytes);
                docs.push((path, doc));
            }
            Err(error) => unread.push(format!("{error:#}")),
        }
    }
    let judged: Vec<Judged> = of_one_machine(inputs, docs)
        .into_iter()
        .map(|doc| {
            let verdicts = judge_for(&doc, args.machine.context.role);
            let books = run_books(&doc, &verdicts);
            Judged { doc, verdicts, books }
        })
        .collect();
    ensure!(!judged.is_empty() || !unread.is_empty(), "there is no file in {}", named(inputs));
    if !judged.is_empty() {
        show(args, &judged)?;
    }
    ensure!(
        unread.is_empty(),
        "{} of {} not read: {}",
        unread.len(),
        unread.len() + judged.len(),
        unread.join("; ")
    );
    Ok(worst(&judged))
}

/// What a directory holds that `gpfs.snap` left is one input; all other files each by itself.
fn of_one_machine(inputs: &[PathBuf], docs: Vec<(PathBuf, Document)>) -> Vec<Document> {
    let mut dirs: BTreeMap<PathBuf, Vec<&Document>> = BTreeMap::new();
    for (path, doc) in &docs {
        // What was named by itself is judged by itself.
        if let Some(dir) = path.parent().filter(|_| !inputs.contains(path)) {
            dirs.entry(dir.to_owned()).or_default().push(doc);
        }
    }
    dirs.retain(|_, docs| Document::are_of_one_snap(docs));
    let snaps: Vec<PathBuf> = dirs.into_keys().collect();
    let mut all: Vec<(Option<&PathBuf>, Vec<Document>)> = Vec::new();
    for (path, doc) in docs {
        // Of a node in a node's directory the inner one.
        let of = |snap: &&PathBuf| !inputs.contains(&path) && path.starts_with(snap);
        let snap = snaps.iter().filter(of).max_by_key(|snap| snap.components().count());
        match all.iter_mut().find(|(other, _)| snap.is_some() && *other == snap) {
            Some((_, docs)) => docs.push(doc),
            None => all.push((snap, vec![doc])),
        }
    }
    let one = |(snap, docs): (Option<&PathBuf>, Vec<Document>)| match snap {
        Some(dir) => vec![Document::together(&output::visible(&dir.to_string_lossy()), docs)],
        None => docs,
    };
    all.into_iter().flat_map(one).collect()
}

fn named(inputs: &[PathBuf]) -> String {
    inputs.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Prints what is said of the inputs, or writes it into a page.
fn show(args: &Advise, judged: &[Judged]) -> Result<()> {
    if let Some(file) = &args.html {
        let sections: Vec<Section> = judged.iter().map(|j| section(j, args.all)).collect();
        return html::write(file, "dumps", &sections);
    }
    if args.json {
        let inputs: Vec<_> = judged
            .iter()
            .map(|j| serde_json::json!({ "document": j.doc, "verdicts": j.verdicts, "run_books": j.books }))
            .collect();
        return output::json(&serde_json::json!({ "inputs": inputs }));
    }
    for (at, input) in judged.iter().enumerate() {
        if at > 0 {
            output::line("");
        }
        print(input, args.all);
    }
    Ok(())
}

/// An input for the page.
fn section(input: &Judged, all: bool) -> Section {
    let (good, bad): (Vec<&Verdict>, Vec<&Verdict>) = input.verdicts.iter().partition(|v| v.judgement.good);
    let mut items: Vec<Item> = Vec::new();
    for verdict in bad {
        let seen = format!("{}{}", verdict.judgement.what, lines_of(&input.doc, verdict, all));
        if let Some(item) = items.iter_mut().find(|item| item.rule == verdict.judgement.rule) {
            item.seen.push(seen);
            continue;
        }
        let book = verdict.run_book.map(|name| format!(" Run book: {name}.")).unwrap_or_default();
        items.push(Item {
            severity: verdict.severity,
            title: verdict.title.to_string(),
            rule: verdict.judgement.rule.to_owned(),
            seen: vec![seen],
            says: vec![
                ("why", verdict.why.to_string()),
                ("should", format!("{}{book}", verdict.advice)),
                ("sure", sure(verdict.confidence, verdict.gain)),
                ("source", verdict.source.to_owned()),
            ],
        });
    }
    let good = good.iter().map(|v| format!("{}{}", v.judgement.what, lines_of(&input.doc, v, all))).collect();
    let (name, systems, books) = (input.doc.name.clone(), systems(&input.doc, all), input.books.clone());
    Section { name, systems, items, good, books }
}

fn worst(judged: &[Judged]) -> Option<Severity> {
    let bad = judged.iter().flat_map(|j| &j.verdicts).filter(|v| !v.judgement.good);
    bad.map(|verdict| verdict.severity).max()
}

/// Whether a path is an archive of a machine, or a copy of its /proc and /sys, and no dump.
pub fn is_host(path: &Path) -> bool {
    if path.is_dir() {
        return ["proc", "sys"].iter().any(|name| path.join(name).is_dir());
    }
    // What is read of a pipe is gone.
    if !path.is_file() {
        return false;
    }
    // The mark of a tar archive stands at byte 257.
    let mut head = [0; 262];
    let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut head));
    read.is_ok() && head.ends_with(b"ustar")
}

/// What a dump says of the machine that it is of.
pub fn facts(path: &Path) -> Result<advisor::Facts> {
    let doc = document(&output::visible(&path.to_string_lossy()), &bytes(path)?);
    Ok(advisor::dumps::facts(&doc))
}

/// Prints what a rule for dumps says; false if there is none of this name.
pub fn explain(name: &str) -> bool {
    let Some(row) = ROWS.iter().find(|row| row.id == name) else { return false };
    output::line(format!("{} (a rule for dumps)", row.id));
    labelled("is", &format!("{}, gain {}: {}", word(&row.severity), word(&row.gain()), row.title));
    if let (Some(look), Some(condition)) = (&row.look, &row.bad_if) {
        labelled("when", &format!("{look} {condition}"));
    }
    for (label, text) in [("should", &row.advice), ("why", &row.why), ("source", &row.source)] {
        labelled(label, text);
    }
    if let Some(book) = &row.run_book {
        labelled("steps", &format!("run book {book}, with the finding"));
    }
    output::line(format!("   such as\n{}", row.bad.trim_end()));
    true
}

/// The rules for dumps that speak of this.
pub fn about(name: &str) -> Vec<(&'static str, &'static str)> {
    let speaks = |row: &&'static Row| {
        [Some(&row.id), Some(&row.title), row.look.as_ref()]
            .into_iter()
            .flatten()
            .any(|text| speaks_of(text, name))
    };
    ROWS.iter().filter(speaks).map(|row| (row.id.as_str(), row.title.as_str())).collect()
}

/// Files as they are, directories as the files in them, by name.
fn files(inputs: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut left: Vec<PathBuf> = inputs.iter().rev().cloned().collect();
    while let Some(path) = left.pop() {
        if path.is_dir() {
            let entries =
                fs::read_dir(&path).with_context(|| format!("read directory {}", path.display()))?;
            // Neither a link, which may lead anywhere, nor a pipe, which may never answer.
            let is_read = |p: &PathBuf| !p.is_symlink() && (p.is_dir() || p.is_file());
            let mut inside: Vec<PathBuf> =
                entries.flatten().map(|entry| entry.path()).filter(is_read).collect();
            inside.sort_by(|a, b| b.cmp(a));
            left.extend(inside);
        } else {
            files.push(path);
        }
        if files.len() > FILES_MAX {
            bail!("more than {FILES_MAX} files: name fewer, or a directory with fewer");
        }
    }
    Ok(files)
}

fn bytes(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let reading = || format!("read {}", path.display());
    if path == Path::new("-") {
        std::io::stdin().lock().take(FILE_BYTES_MAX).read_to_end(&mut bytes).with_context(reading)?;
    } else {
        input::open(path)
            .with_context(reading)?
            .take(FILE_BYTES_MAX)
            .read_to_end(&mut bytes)
            .with_context(reading)?;
    }
    let kind = COMPRESSED.iter().find(|(_, mark)| bytes.starts_with(mark));
    if let Some((kind, _)) = kind {
        bail!("read {}: it is compressed ({kind}): unpack it, and give what was in it", path.display());
    }
    Ok(bytes)
}

fn print(input: &Judged, all: bool) {
    let doc = &input.doc;
    let passed: usize = doc.ignored.values().sum();
    output::line(format!(
        "{}: {} lines: {} read, {passed} passed over, {} not understood",
        doc.name,
        doc.lines,
        doc.read,
        doc.unknown.len()
    ));
    output::line("\nSystems");
    let systems = systems(doc, all);
    systems.iter().for_each(|system| paragraph(2, 4, system));
    if systems.is_empty() {
        output::line("  none that is known here");
    }
    let (good, bad): (Vec<&Verdict>, Vec<&Verdict>) = input.verdicts.iter().partition(|v| v.judgement.good);
    let mut rules: Vec<&str> = Vec::new();
    for rule in bad.iter().map(|verdict| verdict.judgement.rule) {
        if !rules.contains(&rule) {
            rules.push(rule);
        }
    }
    output::line(format!("\nTo change or to know: {}", rules.len()));
    let of_rule =
        |rule: &str| bad.iter().copied().filter(|v| v.judgement.rule == rule).collect::<Vec<&Verdict>>();
    let in_full = if all { rules.len() } else { IN_FULL };
    rules.iter().take(in_full).for_each(|rule| findings_of_rule(doc, &of_rule(rule), all));
    if let Some(rest) = rules.get(in_full..).filter(|rest| !rest.is_empty()) {
        output::line(format!("  {} more, with reason and advice by --all:", rest.len()));
        rest.iter().for_each(|rule| in_a_line(doc, &of_rule(rule)));
    }
    if bad.is_empty() {
        output::line("  no rule applies");
    }
    output::line(format!("\nIn order: {}", good.len()));
    for verdict in good {
        paragraph(2, 4, &format!("{}{}", verdict.judgement.what, lines_of(&input.doc, verdict, all)));
    }
    run_book_text(&input.books, all);
    if all && !doc.unknown.is_empty() {
        output::line("\nNot understood");
        doc.unknown.iter().for_each(|(line, text)| output::line(format!("  {}: {text}", doc.at(*line))));
    }
    if all {
        output::line("\nPassed over");
        doc.ignored.iter().for_each(|(reason, count)| output::line(format!("  {reason}: {count}")));
    }
}

/// What the document is of: systems named in sentences, and listings by system.
fn systems(doc: &Document, all: bool) -> Vec<String> {
    let mut lines = Vec::new();
    let mut named: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for entry in doc.statements.iter().filter(|e| e.path.starts_with("system/")) {
        let (kind, name) =
            entry.path.trim_start_matches("system/").split_once(": ").unwrap_or(("system", &entry.path));
        named.entry(kind).or_default().push(format!("{name} (line {})", entry.line));
    }
    for (kind, names) in &named {
        lines.push(format!("{kind}: {}", names.join(", ")));
    }
    let mut listings: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for listing in doc.listings.iter().filter(|l| l.system != "any" || all || l.kind != "commands") {
        let of = listing.subject.as_deref().filter(|s| !listing.kind.ends_with(s));
        let of = of.map(|s| format!(" of {s}")).unwrap_or_default();
        let (first, last) = (doc.at(listing.first), doc.place(listing.last).1);
        let lines = if listing.first == listing.last {
            format!("line {first}")
        } else {
            format!("lines {first}-{last}")
        };
        listings.entry(listing.system).or_default().push(format!(
            "{}{of} ({lines}, {} values)",
            listing.kind,
            listing.entries.len()
        ));
    }
    for (system, found) in &listings {
        let system =
            if *system == "any" { "other listings".to_owned() } else { format!("listings of {system}") };
        lines.push(format!("{system}: {}", found.join(", ")));
    }
    lines
}

/// Findings of one rule in short: what was seen first, and how often.
fn in_a_line(doc: &Document, of_rule: &[&Verdict]) {
    let Some(first) = of_rule.first() else { return };
    let times = if of_rule.len() > 1 { format!("; {} times in all", of_rule.len()) } else { String::new() };
    // A bare value does not say what is wrong with it.
    let bare = first.judgement.what.split_once(" = ").is_some_and(|(_, value)| !value.contains(' '));
    let title = if bare { format!("{}: ", first.title) } else { String::new() };
    let what = format!("{title}{}{}{times}", first.judgement.what, lines_of(doc, first, false));
    paragraph(4, 6, &format!("{}: {what} ({})", severity(first.severity), first.judgement.rule));
}

/// Findings of one rule: what it means once, what was seen each time.
fn findings_of_rule(doc: &Document, of_rule: &[&Verdict], all: bool) {
    let Some(first) = of_rule.first() else { return };
    paragraph(2, 4, &format!("{}: {} ({})", severity(first.severity), first.title, first.judgement.rule));
    for verdict in of_rule {
        paragraph(6, 8, &format!("{}{}", verdict.judgement.what, lines_of(doc, verdict, all)));
        if all {
            let evidence = verdict.judgement.evidence.iter();
            evidence.for_each(|(line, text)| output::line(format!("        line {}: {text}", doc.at(*line))));
        }
    }
    paragraph(6, 11, &format!("why: {}", first.why));
    let book = first.run_book.map(|name| format!(" Run book: {name}.")).unwrap_or_default();
    paragraph(6, 11, &format!("do:  {}{book}", first.advice));
    if all {
        paragraph(6, 12, &format!("sure: {}", sure(first.confidence, first.gain)));
        paragraph(6, 12, &format!("from: {}", first.source));
    }
}

/// ` [lines 3, 17]`, or ` [lines mmlsconfig:3, mmlsfs:17]`.
fn lines_of(doc: &Document, verdict: &Verdict, all: bool) -> String {
    let mut lines: Vec<u32> = verdict.judgement.evidence.iter().map(|(line, _)| *line).collect();
    lines.dedup();
    let shown = if all { lines.len() } else { lines.len().min(LINES_SHOWN) };
    let text: Vec<String> = lines[..shown].iter().map(|line| doc.at(*line)).collect();
    let more = if shown < lines.len() { format!(" and {} more", lines.len() - shown) } else { String::new() };
    match lines.len() {
        0 => String::new(),
        1 => format!(" [line {}]", text[0]),
        _ => format!(" [lines {}{more}]", text.join(", ")),
    }
}

fn run_book_text(books: &[RunBook], all: bool) {
    if books.is_empty() {
        return;
    }
    output::line("\nRun books: what cannot be changed from here, in order");
    for book in books {
        output::line(format!("  {}", book.name));
        paragraph(4, 6, &format!("disrupts: {}", book.disrupts));
        for (at, step) in book.steps.iter().enumerate() {
            if all {
                paragraph(4, 7, &format!("{}. {}", at + 1, step.what));
                output::line(format!("         {}", step.command));
            } else {
                output::line(format!("    {}. {}", at + 1, step.command));
            }
        }
    }
}

/// Prints a text in lines of `WIDTH` columns, the first one set in by `first`, the others by `other`.
fn paragraph(first: usize, other: usize, text: &str) {
    let mut line = " ".repeat(first);
    let mut empty = true;
    for word in text.split_whitespace() {
        if !empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            output::line(&line);
            line = " ".repeat(other);
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    output::line(line);
}

/// `ropewalk advise import-scale`: lines for a shell that set what Scale had, and what becomes of the rest.
pub fn import(args: &ImportScale) -> Result<()> {
    let doc = document(&output::visible(&args.input.to_string_lossy()), &bytes(&args.input)?);
    ensure!(
        has_scale_settings(&doc),
        "{}: no settings of Storage Scale in it: give the output of mmlsconfig or mmdiag --config",
        doc.name
    );
    let all = import_scale(&doc);
    if args.json {
        return output::json(&all);
    }
    let mut scopes: Vec<&str> = Vec::new();
    for one in &all {
        if !scopes.contains(&one.scope.as_str()) {
            scopes.push(&one.scope);
        }
    }
    for scope in scopes {
        let of_scope: Vec<&Imported> = all.iter().filter(|one| one.scope == scope).collect();
        output::line(format!("# {scope}: {} settings of {}", of_scope.len(), doc.name));
        let set: Vec<String> = of_scope
            .iter()
            .filter_map(|one| match &one.outcome {
                Outcome::Set { name, value } => Some(format!("{name}={value}")),
                _ => None,
            })
            .collect();
        if !set.is_empty() {
            output::line(format!("ropewalk config set {}", set.join(" ")));
        }
        for one in of_scope {
            let said = match &one.outcome {
                Outcome::Set { name, .. } if name.eq_ignore_ascii_case(&one.name) => continue,
                Outcome::Set { name, .. } => format!("is {name} here"),
                Outcome::Follows { rule } => format!("follows by itself: {rule}"),
                Outcome::Explained { why } => format!("not taken over: {why}"),
                Outcome::Refused { why } => format!("not taken over: {why}"),
                Outcome::Unknown => "not taken over: no name that is known here".to_owned(),
            };
            output::line(format!("#   {} {} (line {}): {said}", one.name, one.value, one.line));
        }
    }
    Ok(())
}
