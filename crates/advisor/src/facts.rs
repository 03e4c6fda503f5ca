//! What a machine says about itself: named values, each with the place where it stood. One model for live hosts and
//! for dumps of others. What is not there was not to be seen; it never means "no".
//! Bounded: further entries are counted and left out, longer texts are cut. No input panics.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Deserializer, Serialize};

/// Facts beyond are left out, and counted.
pub const FACTS_MAX: usize = 65_536;
/// Longer texts are cut, in bytes; so are longer names.
pub const TEXT_BYTES_MAX: usize = 4096;
/// Longer lists are cut.
pub const LIST_MAX: usize = 4096;
const PATH_BYTES_MAX: usize = 256;

/// A text in one line, cut: what would move the cursor of whoever looks at it, or worse, is written out.
fn visible(text: &str) -> String {
    let mut line = String::new();
    for c in cut(text, TEXT_BYTES_MAX).chars() {
        match c {
            '\t' | '\n' | '\r' => line.push(' '),
            c if c.is_control() => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    cut(&line, TEXT_BYTES_MAX).to_owned()
}

/// The name of a fact: segments with points between, such as `net.eth0.mtu`. A point inside a name is written `/`, as
/// sysctl does (`net.eth0/100.mtu`); white space and control characters become `_`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(transparent)]
pub struct Path(String);

impl Path {
    /// A path of these names: a point inside one of them separates nothing.
    pub fn of<S: AsRef<str>>(names: &[S]) -> Path {
        let mut text = String::new();
        for name in names {
            if !text.is_empty() {
                text.push('.');
            }
            text.push_str(&name.as_ref().replace('.', "/"));
        }
        Path::from(text.as_str())
    }
    /// One name deeper.
    pub fn join(&self, name: &str) -> Path {
        Path::from(format!("{}.{}", self.0, name.replace('.', "/")).as_str())
    }
    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
    /// The names from the left, as they are written in the path.
    pub fn names(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('.')
    }
    /// The last name, its points as they were.
    pub fn last(&self) -> String {
        self.names().next_back().unwrap_or_default().replace('/', ".")
    }
    /// Whether the path has this pattern: `*` stands for any one name.
    pub fn matches(&self, pattern: &str) -> bool {
        let (mut path, mut pattern) = (self.0.split('.'), pattern.split('.'));
        loop {
            match (path.next(), pattern.next()) {
                (None, None) => return true,
                (Some(_), Some("*")) => {}
                (Some(name), Some(wanted)) if name == wanted => {}
                _ => return false,
            }
        }
    }
}

/// The points of the text separate names.
impl From<&str> for Path {
    fn from(text: &str) -> Path {
        let clean = |c: char| if c.is_whitespace() || c.is_control() { '_' } else { c };
        Path(cut(text, PATH_BYTES_MAX).chars().map(clean).collect())
    }
}
impl From<String> for Path {
    fn from(text: String) -> Path {
        Path::from(text.as_str())
    }
}
/// Each element is one name: [`Path::of`].
impl<const N: usize> From<[&str; N]> for Path {
    fn from(names: [&str; N]) -> Path {
        Path::of(&names)
    }
}
impl<'de> Deserialize<'de> for Path {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Path, D::Error> {
        Ok(Path::from(String::deserialize(deserializer)?))
    }
}
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A value, in base units: bytes, Mbit/s, microseconds, percent. The fact's path says which.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// `yes`, `on`, `Y`.
    Bool(bool),
    /// A number; what does not fit is the nearest that does.
    Int(i64),
    /// A word or a text.
    Text(String),
    /// Several of them.
    List(Vec<Value>),
}

impl Value {
    /// A number if the text is one (decimal, with or without sign), else the text.
    pub fn parse(text: &str) -> Value {
        let text = text.trim();
        match text.parse::<i128>() {
            Ok(number) => Value::from(number),
            Err(_) => Value::from(text),
        }
    }
    /// As [`Value::parse`], but of several words a list of them.
    pub fn parse_words(text: &str) -> Value {
        let words: Vec<&str> = text.split_whitespace().take(LIST_MAX).collect();
        match words[..] {
            [] => Value::from(""),
            [word] => Value::parse(word),
            _ => Value::List(words.into_iter().map(Value::parse).collect()),
        }
    }
    /// The number, if it is one.
    pub fn as_int(&self) -> Option<i64> {
        if let Value::Int(n) = self { Some(*n) } else { None }
    }
    /// The truth value, if it is one.
    pub fn as_bool(&self) -> Option<bool> {
        if let Value::Bool(b) = self { Some(*b) } else { None }
    }
    /// The text, if it is one.
    pub fn as_text(&self) -> Option<&str> {
        if let Value::Text(t) = self { Some(t) } else { None }
    }
    /// The list, if it is one.
    pub fn as_list(&self) -> Option<&[Value]> {
        if let Value::List(l) = self { Some(l) } else { None }
    }
    fn bounded(self) -> Value {
        match self {
            Value::Text(text) if text.len() > TEXT_BYTES_MAX || text.contains(char::is_control) => {
                Value::Text(visible(&text))
            }
            Value::List(list) => Value::List(list.into_iter().take(LIST_MAX).map(Value::bounded).collect()),
            other => other,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Bool(b) => f.write_str(if *b { "yes" } else { "no" }),
            Value::Int(n) => write!(f, "{n}"),
            Value::Text(t) => f.write_str(t),
            Value::List(list) => {
                for (i, value) in list.iter().enumerate() {
                    write!(f, "{}{value}", if i > 0 { " " } else { "" })?;
                }
                Ok(())
            }
        }
    }
}

impl From<bool> for Value {
    fn from(b: bool) -> Value {
        Value::Bool(b)
    }
}
impl From<i128> for Value {
    fn from(n: i128) -> Value {
        Value::Int(n.clamp(i64::MIN.into(), i64::MAX.into()) as i64)
    }
}
impl From<i64> for Value {
    fn from(n: i64) -> Value {
        Value::Int(n)
    }
}
impl From<u64> for Value {
    fn from(n: u64) -> Value {
        Value::from(i128::from(n))
    }
}
impl From<u32> for Value {
    fn from(n: u32) -> Value {
        Value::Int(n.into())
    }
}
impl From<usize> for Value {
    fn from(n: usize) -> Value {
        Value::from(n as i128)
    }
}
impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.to_owned()).bounded()
    }
}
impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text).bounded()
    }
}
impl<V: Into<Value>> From<Vec<V>> for Value {
    fn from(list: Vec<V>) -> Value {
        Value::List(list.into_iter().map(Into::into).collect()).bounded()
    }
}

/// Where a fact stood.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Origin {
    /// A file, or a command whose output was read.
    pub source: String,
    /// The line there, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

impl Origin {
    /// A file or a command as a whole.
    pub fn of(source: impl Into<String>) -> Origin {
        Origin { source: source.into(), line: None }
    }
    /// One line of it, from 1.
    pub fn at(source: impl Into<String>, line: usize) -> Origin {
        Origin { source: source.into(), line: u32::try_from(line).ok() }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)?;
        self.line.map_or(Ok(()), |line| write!(f, ":{line}"))
    }
}

/// One fact.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Fact {
    /// What it is, in base units.
    pub value: Value,
    /// As it was written, where that differs from the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written: Option<String>,
    /// Where it stood.
    pub origin: Origin,
}

/// The facts of one machine, in the order of their names.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Facts {
    entries: BTreeMap<Path, Fact>,
    /// Facts that found no room.
    #[serde(default)]
    left_out: u64,
}

impl Facts {
    /// None yet.
    pub fn new() -> Facts {
        Facts::default()
    }
    /// Adds a fact; one of the same name is replaced, as a later line replaces an earlier one.
    pub fn insert(&mut self, path: impl Into<Path>, value: impl Into<Value>, origin: Origin) {
        self.put(path.into(), Fact { value: value.into(), written: None, origin });
    }
    /// Adds a fact whose text differs from its value (`32G`, `8E-1`, `100Gb/s`).
    pub fn insert_written(
        &mut self,
        path: impl Into<Path>,
        value: impl Into<Value>,
        written: &str,
        origin: Origin,
    ) {
        self.put(path.into(), Fact { value: value.into(), written: Some(written.to_owned()), origin });
    }
    /// Adds a fact, bounded, and in characters that can be shown.
    pub(crate) fn put(&mut self, path: Path, fact: Fact) {
        let Fact { value, written, origin } = fact;
        let written = written.map(|text| visible(&text));
        let origin = Origin { source: visible(&origin.source), ..origin };
        let fact = Fact { value: value.bounded(), written, origin };
        if self.entries.len() >= FACTS_MAX && !self.entries.contains_key(&path) {
            self.left_out += 1;
        } else {
            self.entries.insert(path, fact);
        }
    }
    /// Adds all facts of another set; those of the same name are replaced.
    pub fn extend(&mut self, other: Facts) {
        self.left_out += other.left_out;
        other.entries.into_iter().for_each(|(path, fact)| self.put(path, fact));
    }
    /// The fact of this name.
    pub fn get(&self, path: &str) -> Option<&Fact> {
        self.entries.get(&Path::from(path))
    }
    /// Its value.
    pub fn value(&self, path: &str) -> Option<&Value> {
        Some(&self.get(path)?.value)
    }
    /// Its number.
    pub fn int(&self, path: &str) -> Option<i64> {
        self.value(path)?.as_int()
    }
    /// Its truth value.
    pub fn bool(&self, path: &str) -> Option<bool> {
        self.value(path)?.as_bool()
    }
    /// Its text.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.value(path)?.as_text()
    }
    /// Its list.
    pub fn list(&self, path: &str) -> Option<&[Value]> {
        self.value(path)?.as_list()
    }
    /// The facts whose names have this pattern, `*` for any one name: `net.*.mtu`.
    pub fn matching<'a>(&'a self, pattern: &'a str) -> impl Iterator<Item = (&'a Path, &'a Fact)> {
        // Only names that begin as the pattern does are looked at.
        let fixed = pattern.split('*').next().unwrap_or_default().to_owned();
        let from = self.entries.range(Path(fixed.clone())..);
        from.take_while(move |(path, _)| path.0.starts_with(&fixed)).filter(|(path, _)| path.matches(pattern))
    }
    /// What stands where the pattern ends, each once: `nodes("net.*")` gives `net.eth0`, `net.eth1`, whatever facts
    /// they have below.
    pub fn nodes(&self, pattern: &str) -> Vec<Path> {
        let depth = pattern.split('.').count();
        let fixed = pattern.split('*').next().unwrap_or_default();
        let mut nodes: Vec<Path> = Vec::new();
        for (path, _) in
            self.entries.range(Path(fixed.to_owned())..).take_while(|(p, _)| p.0.starts_with(fixed))
        {
            let mut names = path.names();
            let node = Path(names.by_ref().take(depth).collect::<Vec<_>>().join("."));
            if node.matches(pattern) && nodes.last() != Some(&node) && !nodes.contains(&node) {
                nodes.push(node);
            }
        }
        nodes
    }
    /// The names below a path, each once: `below("net")` gives `eth0`, `eth1`.
    pub fn below(&self, path: &str) -> Vec<String> {
        self.nodes(&format!("{path}.*")).iter().map(Path::last).collect()
    }
    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Path, &Fact)> {
        self.entries.iter()
    }
    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
    /// How many found no room.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}

/// The beginning of a text, at most so many bytes, in whole characters.
fn cut(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Facts {
        let mut facts = Facts::new();
        facts.insert(["net", "eth0", "mtu"], 9000i64, Origin::of("/sys/class/net/eth0/mtu"));
        facts.insert(["net", "eth0.100", "mtu"], 1500i64, Origin::of("/sys/class/net/eth0.100/mtu"));
        facts.insert(["net", "eth1", "state"], "up", Origin::of("/sys/class/net/eth1/operstate"));
        facts.insert(["network"], true, Origin::at("note", 3));
        facts.insert_written("scale.common.pagepool", 32i64 << 30, "32G", Origin::at("mmlsconfig", 7));
        facts.insert("sysctl.net.ipv4.tcp_rmem", Value::parse_words("4096 131072 6291456"), Origin::of("x"));
        facts
    }

    #[test]
    fn facts_are_found_by_name_and_by_pattern() {
        let facts = sample();
        assert_eq!((facts.int("net.eth0.mtu"), facts.int("net.eth0/100.mtu")), (Some(9000), Some(1500)));
        assert_eq!((facts.text("net.eth1.state"), facts.bool("network")), (Some("up"), Some(true)));
        assert_eq!((facts.int("net.eth1.state"), facts.int("net.eth2.mtu")), (None, None));
        let rmem = facts.list("sysctl.net.ipv4.tcp_rmem").unwrap();
        assert_eq!(rmem, [Value::Int(4096), Value::Int(131_072), Value::Int(6_291_456)]);
        let mtus: Vec<_> = facts.matching("net.*.mtu").map(|(path, _)| path.as_str()).collect();
        assert_eq!(mtus, ["net.eth0.mtu", "net.eth0/100.mtu"]);
        assert_eq!(facts.below("net"), ["eth0", "eth0.100", "eth1"]);
        assert_eq!(facts.nodes("scale.*").iter().map(Path::as_str).collect::<Vec<_>>(), ["scale.common"]);
        let pagepool = facts.get("scale.common.pagepool").unwrap();
        assert_eq!(
            (pagepool.written.as_deref(), pagepool.origin.to_string()),
            (Some("32G"), "mmlsconfig:7".into())
        );
    }

    #[test]
    fn a_later_fact_replaces_an_earlier_one() {
        let mut facts = sample();
        let mut later = Facts::new();
        later.insert(["net", "eth0", "mtu"], 1500i64, Origin::of("later"));
        facts.extend(later);
        assert_eq!((facts.int("net.eth0.mtu"), facts.len()), (Some(1500), 6));
    }

    #[test]
    fn bounds() {
        let mut facts = Facts::new();
        for i in 0..FACTS_MAX + 3 {
            facts.insert(["x", &i.to_string()], i, Origin::default());
        }
        assert_eq!((facts.len(), facts.left_out()), (FACTS_MAX, 3));
        facts.insert(["x", "0"], "ä".repeat(TEXT_BYTES_MAX), Origin::default());
        assert_eq!(facts.text("x.0").unwrap().len(), TEXT_BYTES_MAX);
        facts.insert(["x", "1"], "\u{1b}".repeat(TEXT_BYTES_MAX), Origin::default());
        assert!(facts.text("x.1").unwrap().len() <= TEXT_BYTES_MAX);
        assert_eq!(Value::parse("18446744073709551615"), Value::Int(i64::MAX));
        assert_eq!((Value::parse(" -1 "), Value::parse("0x10")), (Value::Int(-1), Value::from("0x10")));
    }

    #[test]
    fn as_json_and_back() {
        let facts = sample();
        let json = serde_json::to_string(&facts).unwrap();
        assert!(
            json.contains(r#""net.eth0.mtu":{"value":9000,"origin":{"source":"/sys/class/net/eth0/mtu"}}"#)
        );
        assert_eq!(serde_json::from_str::<Facts>(&json).unwrap(), facts);
    }

    proptest! {
        #[test]
        fn any_name_and_text_can_be_a_fact(name in "(?s).{0,300}", text in "(?s).{0,50}") {
            let mut facts = Facts::new();
            let path = Path::of(&["net", &name, "mtu"]);
            facts.insert(path.clone(), Value::parse_words(&text), Origin::of(text.as_str()));
            prop_assert!(facts.get(path.as_str()).is_some());
            let _ = (facts.below("net"), facts.matching("net.*.mtu").count(), facts.nodes(&name));
        }
    }
}
