//! Names as they are shown everywhere, and looked for: in tables, on the page, as JSON, in files. One form, so that what is seen can
//! be pasted into a query.

/// A name's bytes as text: what is no UTF-8, and what would move a cursor or turn the direction of writing, is written `\xHH`, byte by
/// byte. A backslash that looks like the beginning of that is so as well: no two names are shown alike.
pub fn printable(name: &[u8]) -> String {
    let mut shown = String::with_capacity(name.len());
    for part in name.utf8_chunks() {
        let text = part.valid();
        for (at, c) in text.char_indices() {
            let escapes = match c {
                '\\' => text[at + 1..].starts_with('x'),
                '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
                c => c.is_control(),
            };
            if escapes { escape(&mut shown, &text.as_bytes()[at..at + c.len_utf8()]) } else { shown.push(c) }
        }
        escape(&mut shown, part.invalid());
    }
    shown
}

fn escape(into: &mut String, bytes: &[u8]) {
    bytes.iter().for_each(|byte| into.push_str(&format!("\\x{byte:02x}")));
}

/// Whether a name that is shown is the one that is meant. Tables show the end of a long one, behind `…`.
pub fn is_meant(shown: &str, meant: &str) -> bool {
    shown == meant || meant.strip_prefix('…').is_some_and(|end| !end.is_empty() && shown.ends_with(end))
}

#[cfg(test)]
mod tests {
    use analytics::Query;

    use super::*;

    #[test]
    fn no_byte_moves_a_cursor_and_no_two_names_are_shown_alike() {
        let mut seen = std::collections::BTreeSet::new();
        for a in 0..=u8::MAX {
            for b in 0..=u8::MAX {
                let shown = printable(&[b'/', a, b]);
                assert!(!shown.contains(|c: char| c.is_control()), "{shown:?}");
                assert!(seen.insert(shown), "{a} {b}");
            }
        }
        assert_eq!(printable("/é a\\b\n\u{1b}[2J\u{202e}".as_bytes()), "/é a\\b\\x0a\\x1b[2J\\xe2\\x80\\xae");
        assert_eq!(printable(b"\\xff\xff\\"), "\\x5cxff\\xff\\");
    }

    #[test]
    fn what_is_shown_is_read_again_by_a_query() {
        for a in 0..=u8::MAX {
            for b in b" \"\\]|=,;\n'<&\xff\xc3/x".iter().copied() {
                let shown = printable(&[b'/', b, a, b]);
                let filter = analytics::Filter {
                    dimension: "file",
                    comparison: analytics::Comparison::Is,
                    wanted: vec![analytics::Want { text: shown.clone(), bucket: 0 }],
                };
                let text = format!("file.ops{filter}[op]");
                let query = Query::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
                assert_eq!(query.filters[0].wanted[0].text, shown, "{text}");
            }
        }
        assert!(is_meant("/a/b", "/a/b") && is_meant("/long/name", "…g/name"));
        assert!(!is_meant("/a/b", "…c") && !is_meant("/a/b", "…") && !is_meant("/a/b", "b"));
    }
}
