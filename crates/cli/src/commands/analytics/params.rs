//! Parameters as they stand in an address behind `?` or `#`.

use anyhow::{Context, Result};
use axum::http::Uri;

/// The parameters of a request, in their order.
pub struct Params(Vec<(String, String)>);

impl Params {
    /// As they stand behind `?`.
    pub fn of(uri: &Uri) -> Params {
        Params::read(uri.query().unwrap_or_default())
    }

    /// Of a text.
    pub fn read(text: &str) -> Params {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), decoded(value))
        };
        Params(pairs.map(pair).collect())
    }

    /// All of one name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// A number, if it is given.
    pub fn number(&self, name: &str) -> Result<Option<u64>> {
        let read = |text: &str| text.parse().with_context(|| format!("{name}={text:?} is no whole number"));
        self.all(name).next().map(read).transpose()
    }
}

/// `%41` and `+` as what they stand for.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let (byte, used) = match (first, escaped) {
            (b'%', Some(byte)) => (byte, 3),
            (b'+', _) => (b' ', 1),
            (other, _) => (*other, 1),
        };
        bytes.push(byte);
        rest = &rest[used..];
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read_as_they_were_meant() {
        let uri: Uri =
            "/api/query?q=file.ops%5Bfile%3D%2Fa+b%25%5D&q=%zz%C3%A9&from=12&to=x&".parse().unwrap();
        let params = Params::of(&uri);
        assert_eq!(params.all("q").collect::<Vec<_>>(), ["file.ops[file=/a b%]", "%zz\u{e9}"]);
        assert_eq!(params.number("from").unwrap(), Some(12));
        assert_eq!(params.number("step").unwrap(), None);
        assert!(params.number("to").unwrap_err().to_string().contains("\"x\""));
    }
}
