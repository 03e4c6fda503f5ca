//! Facts on their way from a tree, and how the kernel writes values. What is not written so is no fact.

use super::tree::Tree;
use crate::facts::{Facts, Origin, Path, Value};

/// Facts on their way from a tree.
pub(super) struct Reader<'a> {
    pub tree: &'a Tree,
    pub facts: Facts,
}

impl Reader<'_> {
    /// A file's text as a fact, if `value` makes one of it.
    pub fn file(&mut self, path: impl Into<Path>, file: &str, value: impl FnOnce(&str) -> Option<Value>) {
        if let Some(text) = self.tree.text(file)
            && let Some(value) = value(&text)
        {
            self.facts.insert(path, value, Origin::of(format!("/{file}")));
        }
    }
    /// A fact computed from a file.
    pub fn put(&mut self, path: impl Into<Path>, value: impl Into<Value>, file: &str) {
        self.facts.insert(path, value, Origin::of(format!("/{file}")));
    }
    /// Files of one directory that hold a number or a word each, under names of the same spelling.
    pub fn files(&mut self, path: &Path, dir: &str, names: &[&str]) {
        for name in names {
            self.file(path.join(name), &format!("{dir}/{name}"), word);
        }
    }
}

/// A number, or one word. -1 is how sysfs says "not known" where numbers cannot be below zero.
pub(super) fn word(text: &str) -> Option<Value> {
    (!text.is_empty()).then(|| Value::parse(text))
}
/// Several words or numbers.
pub(super) fn words(text: &str) -> Option<Value> {
    (!text.is_empty()).then(|| Value::parse_words(text))
}
/// A number that cannot be below zero.
pub(super) fn count(text: &str) -> Option<Value> {
    text.parse::<u64>().ok().map(Value::from)
}
/// `Y`, `N`, `1`, `0`.
pub(super) fn flag(text: &str) -> Option<Value> {
    match text {
        "Y" | "1" => Some(Value::Bool(true)),
        "N" | "0" => Some(Value::Bool(false)),
        _ => None,
    }
}
/// The chosen word of `always [madvise] never`; a line without brackets as it is.
pub(super) fn chosen(text: &str) -> Option<Value> {
    let inner = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(inner, _)| inner);
    word(inner.unwrap_or(text))
}

/// The CPUs of a list such as `0-3,8`; none if it is no such list. At most 65,536 of them.
pub(crate) fn cpu_list(list: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for range in list.split(',').map(str::trim).filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last >= 65_536 {
            return None;
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

/// The number before the unit in a line of `/proc/meminfo` (`MemTotal: 16 kB`), in bytes where the unit is kB.
pub(super) fn meminfo(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| {
        line.split_once(key).filter(|(before, _)| before.is_empty() || before.ends_with(' '))
    })?;
    let mut words = line.1.strip_prefix(':')?.split_whitespace();
    let number: u64 = words.next()?.parse().ok()?;
    if words.next() == Some("kB") { number.checked_mul(1024) } else { Some(number) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn cpu_lists() {
        for (list, cpus) in [
            ("0-3,8", Some(vec![0, 1, 2, 3, 8])),
            ("0", Some(vec![0])),
            ("", Some(vec![])),
            ("3-1", None),
            ("x", None),
            ("0-4294967295", None),
        ] {
            assert_eq!(cpu_list(list), cpus, "{list}");
        }
    }

    #[test]
    fn lines_of_meminfo() {
        let text = "MemTotal:       16 kB\nHugePages_Total:   3\nNode 0 MemFree: 2 kB";
        assert_eq!(meminfo(text, "MemTotal"), Some(16384));
        assert_eq!((meminfo(text, "HugePages_Total"), meminfo(text, "MemFree")), (Some(3), Some(2048)));
        assert_eq!((meminfo(text, "Total"), meminfo("MemTotal: lots", "MemTotal")), (None, None));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(?s)(MemTotal:|[0-9,-]|\\[|\\]|.){0,40}") {
            let _ = (cpu_list(&text), meminfo(&text, "MemTotal"), chosen(&text), words(&text), flag(&text), count(&text));
        }
    }
}
