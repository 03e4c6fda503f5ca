//! What a source file names: enough of Rust's grammar to find paths and `use` trees, no more.

/// A word of the source; comments and literals are left out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Word {
    Name(String),
    /// `::`
    Colons,
    Other(char),
}

impl Word {
    pub fn words(text: &str) -> Vec<Word> {
        let (bytes, mut at, mut words) = (text.as_bytes(), 0, Vec::new());
        let is_name = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let find =
            |from: usize, what: &str| text[from..].find(what).map_or(text.len(), |n| from + n + what.len());
        while at < bytes.len() {
            let rest = &bytes[at..];
            if rest.starts_with(b"//") {
                at = find(at, "\n");
            } else if rest.starts_with(b"/*") {
                at = find(at, "*/");
            } else if rest.starts_with(b"r\"") || rest.starts_with(b"r#\"") || rest.starts_with(b"r##\"") {
                let marks = rest.iter().skip(1).take_while(|&&b| b == b'#').count();
                at = find(at + marks + 2, &format!("\"{}", "#".repeat(marks)));
            } else if rest[0] == b'"' {
                at += 1;
                while at < bytes.len() && bytes[at] != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
            } else if rest[0] == b'\'' {
                // A character, or a lifetime.
                at += match rest {
                    [_, b'\\', ..] => 3 + rest[3..].iter().position(|&b| b == b'\'').unwrap_or(0) + 1,
                    _ => {
                        let len = text[at + 1..].chars().next().map_or(1, char::len_utf8);
                        if rest.get(1 + len) == Some(&b'\'') { len + 2 } else { 1 }
                    }
                };
            } else if rest.starts_with(b"::") {
                words.push(Word::Colons);
                at += 2;
            } else if is_name(rest[0]) {
                let len = rest.iter().take_while(|&&b| is_name(b)).count();
                words.push(Word::Name(text[at..at + len].to_owned()));
                at += len;
            } else {
                if rest[0].is_ascii() && !rest[0].is_ascii_whitespace() {
                    words.push(Word::Other(rest[0] as char));
                }
                at += text[at..].chars().next().map_or(1, char::len_utf8);
            }
        }
        words
    }
}

/// A file.
pub struct Source {
    /// Child modules that are compiled for tests only.
    pub tests: Vec<String>,
    /// Of `use`: path and alias.
    pub uses: Vec<(Vec<String>, String)>,
    /// Every path that is named, those of `use` included.
    pub paths: Vec<Vec<String>>,
}

impl Source {
    pub fn read(text: &str) -> Source {
        let (words, tests) = without_tests(&Word::words(text));
        let mut source = Source { tests, uses: Vec::new(), paths: Vec::new() };
        let mut at = 0;
        while at < words.len() {
            let begins = at == 0 || words[at - 1] != Word::Colons;
            match &words[at] {
                Word::Name(name) if name == "use" => {
                    at += 1;
                    let mut leaves = Vec::new();
                    tree(&words, &mut at, &[], &mut leaves);
                    source.paths.extend(leaves.iter().map(|(path, _)| path.clone()));
                    source.uses.extend(leaves);
                }
                Word::Name(_) if begins && words.get(at + 1) == Some(&Word::Colons) => {
                    let mut path = Vec::new();
                    while let Some(Word::Name(name)) = words.get(at) {
                        path.push(name.clone());
                        at += 1;
                        if words.get(at) != Some(&Word::Colons) {
                            break;
                        }
                        at += 1;
                    }
                    source.paths.push(path);
                }
                _ => at += 1,
            }
        }
        source
    }
}

/// The leaves of a `use` tree.
fn tree(words: &[Word], at: &mut usize, before: &[String], leaves: &mut Vec<(Vec<String>, String)>) {
    let mut path = before.to_vec();
    while let Some(word) = words.get(*at) {
        *at += 1;
        match word {
            Word::Name(name) if name == "as" => {
                if let Some(Word::Name(alias)) = words.get(*at) {
                    leaves.push((path, alias.clone()));
                    *at += 1;
                }
                return;
            }
            Word::Name(name) if name == "self" && !before.is_empty() => {} // the path itself
            Word::Name(name) => path.push(name.clone()),
            Word::Colons => continue,
            Word::Other('{') => {
                while words.get(*at).is_some_and(|word| *word != Word::Other('}')) {
                    tree(words, at, &path, leaves);
                    *at += usize::from(words.get(*at) == Some(&Word::Other(',')));
                }
                *at += 1;
                return;
            }
            Word::Other('*') => {
                leaves.push((path, "*".to_owned()));
                return;
            }
            Word::Other(_) => {
                *at -= 1;
                break;
            }
        }
        if !matches!(words.get(*at), Some(Word::Colons | Word::Name(_))) {
            break;
        }
    }
    let alias = path.last().cloned().unwrap_or_default();
    leaves.push((path, alias));
}

/// Leaves out items under `#[cfg(test)]`; names the modules among them that have a file.
fn without_tests(words: &[Word]) -> (Vec<Word>, Vec<String>) {
    let name = |text: &str| Word::Name(text.to_owned());
    let mark =
        [Word::Other('['), name("cfg"), Word::Other('('), name("test"), Word::Other(')'), Word::Other(']')];
    let (mut kept, mut tests, mut at) = (Vec::new(), Vec::new(), 0);
    while at < words.len() {
        if !words[at..].starts_with(&mark) {
            kept.push(words[at].clone());
            at += 1;
            continue;
        }
        let from = at;
        let mut depth = 0_i32;
        while at < words.len() {
            match &words[at] {
                Word::Other('{' | '(' | '[') => depth += 1,
                Word::Other('}' | ')' | ']') => depth -= 1,
                _ => {}
            }
            at += 1;
            let ends = matches!(words[at - 1], Word::Other('}' | ';' | ','));
            if depth < 0 || depth == 0 && ends {
                break;
            }
        }
        let item = &words[from..at];
        if let [.., keyword, Word::Name(child), Word::Other(';')] = item
            && *keyword == name("mod")
        {
            tests.push(child.clone());
        }
    }
    (kept, tests)
}
