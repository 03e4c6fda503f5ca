//! As much of XML as profiles are written in: elements and attributes. Text between them is left out, as are comments,
//! processing instructions and a document type without rules of its own. Bytes from outside: never panics, and what is
//! not understood is an error with its line.

use super::profile::UperfError;

/// One tag.
#[derive(PartialEq, Debug)]
pub struct Tag {
    /// Its line, from 1.
    pub line: u32,
    /// Its name.
    pub name: String,
    /// Whether it opens, closes, or both.
    pub kind: Kind,
    /// Attributes in their order.
    pub attributes: Vec<(String, String)>,
}

/// What a tag does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `<a>`
    Open,
    /// `</a>`
    Close,
    /// `<a/>`
    Whole,
}

/// All tags of a text.
pub fn tags(text: &str) -> Result<Vec<Tag>, UperfError> {
    let mut reader = Reader { rest: text, line: 1 };
    let mut tags = Vec::new();
    while reader.to("<").is_some() {
        let line = reader.line;
        if reader.takes("!--") {
            reader.to("-->").ok_or_else(|| bad(line, "this comment does not end: --> is missing"))?;
        } else if reader.takes("?") {
            reader.to("?>").ok_or_else(|| bad(line, "this instruction does not end: ?> is missing"))?;
        } else if reader.takes("!") {
            let inside = reader.to(">").ok_or_else(|| bad(line, "> is missing"))?;
            if inside.contains('[') {
                return Err(bad(line, "a document type with rules of its own is not read: remove it"));
            }
        } else {
            tags.push(reader.tag()?);
        }
    }
    Ok(tags)
}

pub fn bad(line: u32, why: impl Into<String>) -> UperfError {
    UperfError::Line { line, why: why.into() }
}

struct Reader<'a> {
    rest: &'a str,
    line: u32,
}

impl<'a> Reader<'a> {
    /// Goes behind the next `end`, and gives what stood before it; stays where there is none.
    fn to(&mut self, end: &str) -> Option<&'a str> {
        let (before, rest) = self.rest.split_once(end)?;
        self.line += before.matches('\n').count() as u32;
        self.rest = rest;
        Some(before)
    }
    fn takes(&mut self, word: &str) -> bool {
        match self.rest.strip_prefix(word) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }
    fn space(&mut self) {
        let rest = self.rest.trim_start();
        self.line += self.rest[..self.rest.len() - rest.len()].matches('\n').count() as u32;
        self.rest = rest;
    }
    fn name(&mut self) -> Result<String, UperfError> {
        let name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':');
        let end = self.rest.find(|c| !name(c)).unwrap_or(self.rest.len());
        let (found, rest) = self.rest.split_at(end);
        if found.is_empty() {
            return Err(bad(self.line, "a name is missing; write < as &lt; where it opens no tag"));
        }
        self.rest = rest;
        Ok(found.to_owned())
    }
    /// A tag whose `<` is taken.
    fn tag(&mut self) -> Result<Tag, UperfError> {
        let line = self.line;
        let closes = self.takes("/");
        let name = self.name()?;
        let mut attributes: Vec<(String, String)> = Vec::new();
        loop {
            self.space();
            if self.takes(">") {
                let kind = if closes { Kind::Close } else { Kind::Open };
                return Ok(Tag { line, name, kind, attributes });
            }
            if !closes && self.takes("/>") {
                return Ok(Tag { line, name, kind: Kind::Whole, attributes });
            }
            if closes || self.rest.is_empty() {
                return Err(bad(line, format!("the tag {name} does not end: > is missing")));
            }
            let key = self.name()?;
            self.space();
            let equals = self.takes("=");
            self.space();
            let quote = if self.takes("\"") { "\"" } else { "'" };
            if !equals || (quote == "'" && !self.takes("'")) {
                return Err(bad(self.line, format!("write {key}=\"VALUE\", with quotation marks")));
            }
            let at = self.line;
            let value = self.to(quote);
            let value = value.ok_or_else(|| bad(at, format!("the value of {key} does not end")))?;
            if attributes.iter().any(|(have, _)| *have == key) {
                return Err(bad(at, format!("{key} is given twice")));
            }
            attributes.push((key, plain(value, at)?));
        }
    }
}

/// A value with what stands for characters replaced by them.
fn plain(text: &str, line: u32) -> Result<String, UperfError> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('&') {
        out.push_str(before);
        let wrong = || bad(line, "& stands alone: write &amp;");
        let (name, behind) = behind.split_once(';').ok_or_else(wrong)?;
        out.push(match name {
            "lt" => '<',
            "gt" => '>',
            "amp" => '&',
            "quot" => '"',
            "apos" => '\'',
            _ => {
                let number = name.strip_prefix('#').ok_or_else(wrong)?;
                let number = match number.strip_prefix('x') {
                    Some(hex) => u32::from_str_radix(hex, 16),
                    None => number.parse(),
                };
                number.ok().and_then(char::from_u32).ok_or_else(wrong)?
            }
        });
        rest = behind;
    }
    Ok(out + rest)
}

/// A value as it is written between quotation marks.
pub fn quoted(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
