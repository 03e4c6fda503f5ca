//! Texts with values in them: `raise it to {need|bytes}`. In braces stands an expression; `|bytes` makes a size for
//! people of it, `|mbit` a link's speed, `|us` a time, `|rate` of thousandths a second a rate. A value that is not known is written `?`.

use base::units::human_size;

use super::{
    ast::{Expr, ExprError},
    eval::Scope,
    parse::parse,
};
use crate::{facts::Value, shell};

/// A text with values.
#[derive(Clone, PartialEq, Debug)]
pub struct Template {
    written: String,
    pieces: Vec<Piece>,
}

#[derive(Clone, PartialEq, Debug)]
enum Piece {
    Text(String),
    Value(Expr, Form),
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Form {
    Plain,
    Bytes,
    Mbit,
    Microseconds,
    Rate,
}

impl Template {
    /// The template in this text.
    ///
    /// # Errors
    /// An expression in it is none, a brace is not closed, or a form is not known.
    pub fn parse(text: &str) -> Result<Template, ExprError> {
        let fail = |what: String| ExprError { text: text.chars().take(200).collect(), at: 1, what };
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let Some((inner, after)) = after.split_once('}') else {
                return Err(fail("a brace is not closed".to_owned()));
            };
            let (expr, form) = inner.rsplit_once('|').unwrap_or((inner, ""));
            let form = match form {
                "" => Form::Plain,
                "bytes" => Form::Bytes,
                "mbit" => Form::Mbit,
                "us" => Form::Microseconds,
                "rate" => Form::Rate,
                other => return Err(fail(format!("there is no form {other}: bytes, mbit, us or rate"))),
            };
            pieces.push(Piece::Text(before.to_owned()));
            pieces.push(Piece::Value(parse(expr)?, form));
            rest = after;
        }
        pieces.push(Piece::Text(rest.to_owned()));
        Ok(Template { written: text.to_owned(), pieces })
    }
    /// The text with the values of this scope, and whether all of them were known.
    pub fn fill(&self, scope: &Scope<'_>) -> (String, bool) {
        self.filled(scope, |value| value)
    }
    /// As [`Template::fill`], of a command: each value is a word of a shell, or a part of one.
    pub fn fill_command(&self, scope: &Scope<'_>) -> String {
        self.filled(scope, |value| shell::word(&value)).0
    }
    fn filled(&self, scope: &Scope<'_>, written: impl Fn(String) -> String) -> (String, bool) {
        let mut whole = true;
        let fill = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Value(expr, form) => match scope.eval(expr) {
                Some(value) => written(formed(&value, *form)),
                None => {
                    whole = false;
                    "?".to_owned()
                }
            },
        };
        let text = self.pieces.iter().map(fill).collect();
        (text, whole)
    }
    /// As it stands in the catalogue.
    pub fn as_written(&self) -> &str {
        &self.written
    }
    /// The expressions in it.
    pub fn exprs(&self) -> impl Iterator<Item = &Expr> {
        self.pieces
            .iter()
            .filter_map(|piece| if let Piece::Value(expr, _) = piece { Some(expr) } else { None })
    }
}

/// A rate for people: `1200/s`, `0.3/s`.
pub(crate) fn rate_text(rate: i64) -> String {
    match rate {
        10_000.. => format!("{}/s", rate / 1000),
        1000.. => format!("{}.{}/s", rate / 1000, rate % 1000 / 100),
        ..=0 => "0/s".to_owned(),
        _ => format!("{}/s", format!("0.{rate:03}").trim_end_matches('0')),
    }
}

fn formed(value: &Value, form: Form) -> String {
    let Value::Int(n) = value else { return value.to_string() };
    match form {
        Form::Plain => value.to_string(),
        Form::Bytes => u64::try_from(*n).map_or_else(|_| n.to_string(), human_size),
        Form::Rate => rate_text(*n),
        Form::Mbit if n % 1000 == 0 => format!("{} Gbit/s", n / 1000),
        Form::Mbit => format!("{n} Mbit/s"),
        Form::Microseconds if n % 1000 == 0 => format!("{} ms", n / 1000),
        Form::Microseconds => format!("{n} µs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Facts, Origin, Path};

    #[test]
    fn values_in_texts() {
        let mut facts = Facts::new();
        facts.insert("net.eth0.speed", 100_000i64, Origin::default());
        let subject = Path::from("net.eth0");
        let scope = Scope::new(&facts, Some(&subject));
        for (text, filled) in [
            ("plain", ("plain", true)),
            ("{name}: {.speed|mbit}, {3 * 512|bytes}", ("eth0: 100 Gbit/s, 1.50 KiB", true)),
            ("{1500|us} or {2500|mbit}", ("1500 µs or 2500 Mbit/s", true)),
            ("{300|rate}", ("0.3/s", true)),
            ("mtu {.mtu}", ("mtu ?", false)),
        ] {
            let template = Template::parse(text).unwrap();
            assert_eq!(template.fill(&scope), (filled.0.to_owned(), filled.1));
        }
        for (rate, said) in
            [(0, "0/s"), (1, "0.001/s"), (300, "0.3/s"), (1000, "1.0/s"), (1250, "1.2/s"), (12_000, "12/s")]
        {
            assert_eq!(rate_text(rate), said);
        }
        for text in ["{", "{1 +}", "{1|parsec}"] {
            assert!(Template::parse(text).is_err(), "{text}");
        }
    }
}
