//! One listing: what a command printed or a file holds, read into paths and values.
//! Every line has a fate: read, ignored for a reason that is named, or not understood.

use std::collections::HashMap;

use serde::Serialize;

use super::text::is_prose;

/// Lines that are not understood are borne inside a listing up to this many in a row.
const STRANGE_LINES_MAX: usize = 3;
/// Further entries of one listing are not kept.
const ENTRIES_MAX: usize = 16_384;

/// One value that a text gives. A path's words are separated by `/`.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Entry {
    /// Such as `aix/device/ent3/jumbo_size`.
    pub path: String,
    /// As written.
    pub value: String,
    /// Its line in the input, from 1.
    pub line: u32,
}

/// What became of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// It gave values.
    Read,
    /// It says nothing that is looked at; the reason.
    Ignored(&'static str),
    /// Not understood.
    Unknown,
}

/// One listing inside an input.
#[derive(Clone, Debug, Serialize)]
pub struct Listing {
    /// Such as `lsattr -El`.
    pub kind: &'static str,
    /// The system it comes from: `AIX`, `Scale`, `switch`, `Power`, `Linux`.
    pub system: &'static str,
    /// The device, file or table it is of, where that is said.
    pub subject: Option<String>,
    /// Its first line.
    pub first: u32,
    /// Its last line.
    pub last: u32,
    /// What it says.
    pub entries: Vec<Entry>,
}

/// What a parser did with the line it was given.
pub(crate) enum Taken {
    Read,
    Ignored(&'static str),
    No,
}

/// Whether the first line of a listing is unmistakable, so that it ends whatever stands above.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Title {
    /// It could be something else.
    No,
    /// It is, and further such lines are parts of the same listing.
    Often,
    /// It is, and a further such line begins another listing.
    Once,
}

/// One parser: where a listing of its kind begins, and what a line of it says.
pub(crate) struct Parser {
    pub kind: &'static str,
    /// What its first line is like.
    pub title: Title,
    pub system: &'static str,
    /// Whether a listing begins at the first of these lines.
    pub starts: fn(&Window<'_>) -> bool,
    /// Takes one line, or says that it is none of this listing.
    pub line: fn(&mut Reader, &str) -> Taken,
}

/// The lines from where a listing may begin, and the command above them.
pub(crate) struct Window<'a> {
    pub lines: &'a [String],
    /// The command whose output this may be, by words.
    pub command: &'a [String],
}

impl Window<'_> {
    pub fn first(&self) -> &str {
        self.lines.first().map_or("", |line| line.trim())
    }
    /// Whether the command above is this one.
    pub fn after(&self, program: &str) -> bool {
        self.command.first().is_some_and(|word| word == program)
    }
    /// How many of the next `n` lines that are not empty do as asked.
    pub fn among(&self, n: usize, check: impl Fn(&str) -> bool) -> usize {
        let full = self.lines.iter().map(|line| line.trim()).filter(|line| !line.is_empty());
        full.take(n).filter(|line| check(line)).count()
    }
}

/// What a parser writes into while it is given lines.
#[derive(Debug)]
pub(crate) struct Reader {
    pub listing: Listing,
    /// The command above the listing, by words.
    pub command: Vec<String>,
    /// The part of the listing that lines belong to (an interface, a stanza), as its parser uses it.
    pub scope: String,
    /// A second such word.
    pub key: String,
    /// The line above the listing.
    pub above: String,
    line: u32,
    /// Where each path has its first entry.
    first: HashMap<String, usize>,
}

impl Reader {
    /// Gives a value to a path made of these words.
    pub fn entry(&mut self, path: &[&str], value: &str) {
        if self.listing.entries.len() < ENTRIES_MAX {
            let path = path.iter().map(|word| segment(word)).collect::<Vec<_>>().join("/");
            self.first.entry(path.clone()).or_insert(self.listing.entries.len());
            self.listing.entries.push(Entry { path, value: value.trim().to_owned(), line: self.line });
        }
    }
    /// The first entry of a path in this listing.
    pub fn earlier(&self, path: &str) -> Option<&Entry> {
        self.listing.entries.get(*self.first.get(path)?)
    }
    /// What is odd about the text itself, for the rules that tell of it.
    pub fn odd(&mut self, what: &str, value: &str) {
        self.entry(&["text", what], value);
    }
    pub fn subject(&self) -> &str {
        self.listing.subject.as_deref().unwrap_or("?")
    }
}

/// A word of a path: without the separator, which port names, devices and mount points have.
pub(crate) fn segment(word: &str) -> String {
    word.trim().trim_matches('/').replace('/', "-")
}

/// Reads the listing that begins at `lines[at]`. Gives it, the fates of its lines, and where the rest begins;
/// nothing where the parser finds no value.
pub(crate) fn read(
    parser: &Parser,
    lines: &[String],
    at: usize,
    command: &[String],
    subject: Option<&str>,
    ends: impl Fn(usize) -> bool,
) -> Option<(Listing, Vec<Fate>)> {
    let number = |at: usize| u32::try_from(at + 1).unwrap_or(u32::MAX);
    let mut reader = Reader {
        listing: Listing {
            kind: parser.kind,
            system: parser.system,
            subject: subject.map(str::to_owned),
            first: number(at),
            last: number(at),
            entries: Vec::new(),
        },
        command: command.to_vec(),
        scope: String::new(),
        key: String::new(),
        above: at.checked_sub(1).and_then(|at| lines.get(at)).cloned().unwrap_or_default(),
        line: 0,
        first: HashMap::new(),
    };
    let mut fates = Vec::new();
    // The lines up to here are the listing's; those behind may turn out to be something else.
    let mut sure = 0;
    let mut strange = 0;
    for (i, line) in lines[at..].iter().enumerate() {
        if i > 0 && ends(at + i) {
            break;
        }
        reader.line = number(at + i);
        let taken = (parser.line)(&mut reader, line);
        strange = if matches!(taken, Taken::No) { strange + 1 } else { 0 };
        // A sentence ends what a command printed.
        if strange > STRANGE_LINES_MAX || strange > 0 && is_prose(line) {
            break;
        }
        fates.push(match taken {
            Taken::Read => Fate::Read,
            Taken::Ignored(reason) => Fate::Ignored(reason),
            Taken::No if line.trim().is_empty() => Fate::Ignored("empty"),
            Taken::No => Fate::Unknown,
        });
        // A legend, a ruler or details at the end belong to it; headings between listings do not.
        let ends_it = |fate: &Fate| {
            matches!(
                fate,
                Fate::Ignored("legend" | "ruler" | "table head" | "comment" | "details" | "other counter")
            )
        };
        let next = fates.len() == sure + 1;
        if fates.last() == Some(&Fate::Read) || next && sure > 0 && fates.last().is_some_and(ends_it) {
            sure = fates.len();
        }
    }
    fates.truncate(sure);
    reader.listing.last = number(at + sure.max(1) - 1);
    let valued = reader.listing.entries.iter().any(|entry| !entry.path.starts_with("text/"));
    (sure > 0 && valued).then_some((reader.listing, fates))
}
