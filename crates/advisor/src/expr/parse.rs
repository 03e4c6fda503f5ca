//! From text to expression, by descent. Bounded: texts of 4 KiB, 256 words, 48 levels.

use super::ast::{Expr, ExprError, Function, Operator};
use crate::facts::Value;

const TEXT_BYTES_MAX: usize = 4096;
const DEPTH_MAX: usize = 48;
/// Words and signs; they also bound how deep a chain such as `1 + 1 + ...` becomes.
const TOKENS_MAX: usize = 256;

/// Units and what they multiply by.
const UNITS: [(&str, i64); 12] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("k", 1000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("us", 1),
    ("ms", 1000),
    ("s", 1_000_000),
    ("Mbit", 1),
    ("Gbit", 1000),
];

/// Two characters first.
const SIGNS: [&str; 16] =
    ["==", "!=", "<=", ">=", "<", ">", "+", "-", "*", "/", "%", "(", ")", "[", "]", ","];

#[derive(Clone, PartialEq, Debug)]
enum Token {
    Number(i64),
    Text(String),
    /// A word or a path; one below the device begins with a point.
    Word(String),
    Sign(&'static str),
}

/// The expression in this text.
///
/// # Errors
/// What is wrong, and where.
pub fn parse(text: &str) -> Result<Expr, ExprError> {
    let fail =
        |at: usize, what: String| ExprError { text: text.chars().take(200).collect(), at: at + 1, what };
    if text.len() > TEXT_BYTES_MAX {
        return Err(fail(0, format!("longer than {TEXT_BYTES_MAX} bytes")));
    }
    let tokens = tokens(text).map_err(|(at, what)| fail(at, what))?;
    if tokens.len() > TOKENS_MAX {
        return Err(fail(0, format!("longer than {TOKENS_MAX} words and signs")));
    }
    let mut parser = Parser { tokens, next: 0, depth: 0 };
    let parsed = parser.or().and_then(|expr| match parser.take() {
        None => Ok(expr),
        Some(token) => Err(format!("{token:?} follows a whole expression: an operator is missing")),
    });
    // The last token that was looked at, or the end.
    let at = parser.tokens.get(parser.next.saturating_sub(1)).map_or(text.chars().count(), |(at, _)| *at);
    parsed.map_err(|what| fail(at, what))
}

fn tokens(text: &str) -> Result<Vec<(usize, Token)>, (usize, String)> {
    let chars: Vec<char> = text.chars().collect();
    let mut tokens = Vec::new();
    let mut i = 0;
    while let Some(&c) = chars.get(i) {
        let start = i;
        let while_so =
            |from: usize, so: fn(char) -> bool| from + chars[from..].iter().take_while(|c| so(**c)).count();
        let token = if c.is_whitespace() {
            i += 1;
            continue;
        } else if c == '"' {
            let end = while_so(i + 1, |c| c != '"');
            if end == chars.len() {
                return Err((start, "the text has no closing \"".to_owned()));
            }
            i = end + 1;
            Token::Text(chars[start + 1..end].iter().collect())
        } else if c.is_ascii_digit() {
            i = while_so(i, |c| c.is_ascii_alphanumeric() || c == '_');
            let word: String = chars[start..i].iter().filter(|c| **c != '_').collect();
            Token::Number(
                number(&word).ok_or_else(|| (start, format!("{word} is no number with a known unit")))?,
            )
        } else if c.is_ascii_alphabetic() || c == '_' || c == '.' {
            i = word_end(&chars, i);
            if i == start {
                return Err((start, "a point must be followed by a name".to_owned()));
            }
            Token::Word(chars[start..i].iter().collect())
        } else if let Some(sign) =
            SIGNS.iter().find(|s| chars[i..].iter().take(s.len()).copied().eq(s.chars()))
        {
            i += sign.len();
            Token::Sign(sign)
        } else {
            return Err((start, format!("{c:?} is not understood")));
        };
        tokens.push((start, token));
    }
    Ok(tokens)
}

fn number(word: &str) -> Option<i64> {
    let digits = word.chars().take_while(char::is_ascii_digit).count();
    let (number, unit) = word.split_at(digits);
    let factor = if unit.is_empty() { 1 } else { UNITS.iter().find(|u| u.0 == unit)?.1 };
    number.parse::<i64>().ok()?.checked_mul(factor)
}

/// Where a word or path that starts here ends: names of letters, digits, `_`, `/`, `:`, or `*`, with points between.
fn word_end(chars: &[char], start: usize) -> usize {
    let in_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '/' | ':');
    let mut i = start;
    loop {
        let name_from = if chars.get(i) == Some(&'.') { i + 1 } else { i };
        let mut end = name_from;
        if name_from > i && chars.get(end) == Some(&'*') {
            end += 1;
        } else {
            // A `-` is part of a fact's name where a letter follows it; minus has spaces around it.
            let dash = |i: usize| {
                name_from > start
                    && chars.get(i) == Some(&'-')
                    && chars.get(i + 1).is_some_and(char::is_ascii_alphabetic)
            };
            while chars.get(end).is_some_and(|c| in_name(*c)) || dash(end) {
                end += 1;
            }
        }
        if end == name_from {
            return i;
        }
        i = end;
        if chars.get(i) != Some(&'.') {
            return i;
        }
    }
}

struct Parser {
    tokens: Vec<(usize, Token)>,
    next: usize,
    depth: usize,
}

type Parsed = Result<Expr, String>;

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.next).map(|(_, token)| token)
    }
    fn take(&mut self) -> Option<Token> {
        let token = self.peek().cloned();
        self.next += 1;
        token
    }
    fn takes_sign(&mut self, sign: &str) -> bool {
        let is = matches!(self.peek(), Some(Token::Sign(s)) if *s == sign);
        self.next += usize::from(is);
        is
    }
    fn takes_word(&mut self, word: &str) -> bool {
        let is = matches!(self.peek(), Some(Token::Word(w)) if w == word);
        self.next += usize::from(is);
        is
    }
    fn needs_sign(&mut self, sign: &str) -> Result<(), String> {
        if self.takes_sign(sign) {
            return Ok(());
        }
        match self.take() {
            Some(found) => Err(format!("`{sign}` is wanted, not {found:?}")),
            None => Err(format!("ends where `{sign}` is wanted")),
        }
    }
    fn deeper(&mut self, inner: fn(&mut Parser) -> Parsed) -> Parsed {
        if self.depth == DEPTH_MAX {
            return Err(format!("deeper than {DEPTH_MAX} levels"));
        }
        self.depth += 1;
        let parsed = inner(self);
        self.depth -= 1;
        parsed
    }

    fn or(&mut self) -> Parsed {
        let mut left = self.and()?;
        while self.takes_word("or") {
            left = binary(Operator::Or, left, self.and()?);
        }
        Ok(left)
    }
    fn and(&mut self) -> Parsed {
        let mut left = self.not()?;
        while self.takes_word("and") {
            left = binary(Operator::And, left, self.not()?);
        }
        Ok(left)
    }
    fn not(&mut self) -> Parsed {
        if self.takes_word("not") {
            return Ok(Expr::Not(Box::new(self.deeper(Parser::not)?)));
        }
        let left = self.sum()?;
        let operators = [
            ("==", Operator::Equal),
            ("!=", Operator::Differs),
            ("<=", Operator::LessOrEqual),
            (">=", Operator::GreaterOrEqual),
            ("<", Operator::Less),
            (">", Operator::Greater),
        ];
        for (sign, operator) in operators {
            if self.takes_sign(sign) {
                return Ok(binary(operator, left, self.sum()?));
            }
        }
        if self.takes_word("in") {
            return Ok(binary(Operator::In, left, self.sum()?));
        }
        Ok(left)
    }
    fn sum(&mut self) -> Parsed {
        let mut left = self.product()?;
        loop {
            let operator = match self.peek() {
                Some(Token::Sign("+")) => Operator::Plus,
                Some(Token::Sign("-")) => Operator::Minus,
                _ => return Ok(left),
            };
            self.next += 1;
            left = binary(operator, left, self.product()?);
        }
    }
    fn product(&mut self) -> Parsed {
        let mut left = self.unary()?;
        loop {
            let operator = match self.peek() {
                Some(Token::Sign("*")) => Operator::Times,
                Some(Token::Sign("/")) => Operator::Over,
                Some(Token::Sign("%")) => Operator::Modulo,
                _ => return Ok(left),
            };
            self.next += 1;
            left = binary(operator, left, self.unary()?);
        }
    }
    fn unary(&mut self) -> Parsed {
        if self.takes_sign("-") {
            return Ok(Expr::Negative(Box::new(self.deeper(Parser::unary)?)));
        }
        let mut inner = self.primary()?;
        while self.takes_sign("[") {
            let Some(Token::Number(index @ 0..)) = self.take() else {
                return Err("an index is a whole number, from 0".to_owned());
            };
            self.needs_sign("]")?;
            inner = Expr::Index(Box::new(inner), usize::try_from(index).unwrap_or(usize::MAX));
        }
        Ok(inner)
    }
    fn primary(&mut self) -> Parsed {
        match self.take() {
            Some(Token::Number(n)) => Ok(Expr::Value(Value::Int(n))),
            Some(Token::Text(text)) => Ok(Expr::Value(Value::from(text))),
            Some(Token::Sign("(")) => {
                let inner = self.deeper(Parser::or)?;
                self.needs_sign(")")?;
                Ok(inner)
            }
            Some(Token::Sign("[")) => Ok(Expr::List(self.arguments("]")?)),
            Some(Token::Word(word)) => self.word(word),
            Some(token) => Err(format!("{token:?} is no value")),
            None => Err("ends where a value is wanted".to_owned()),
        }
    }
    fn word(&mut self, word: String) -> Parsed {
        if self.takes_sign("(") {
            let Some((_, function, least, most)) = Function::ALL.iter().find(|f| f.0 == word) else {
                return Err(format!("there is no function {word}"));
            };
            let arguments = self.arguments(")")?;
            if !(*least..=*most).contains(&arguments.len()) {
                return Err(format!("{word} takes {least} to {most} values, not {}", arguments.len()));
            }
            return Ok(Expr::Call(*function, arguments));
        }
        Ok(match word.as_str() {
            "true" => Expr::Value(Value::Bool(true)),
            "false" => Expr::Value(Value::Bool(false)),
            "and" | "or" | "not" | "in" => return Err(format!("a value is wanted before `{word}`")),
            _ => match word.strip_prefix('.') {
                Some(own) => Expr::Own(own.to_owned()),
                None if word.contains('.') => Expr::Fact(word),
                None => Expr::Local(word),
            },
        })
    }
    /// Expressions with commas between, up to the closing sign.
    fn arguments(&mut self, close: &'static str) -> Result<Vec<Expr>, String> {
        let mut all = Vec::new();
        if self.takes_sign(close) {
            return Ok(all);
        }
        loop {
            all.push(self.deeper(Parser::or)?);
            if !self.takes_sign(",") {
                self.needs_sign(close)?;
                return Ok(all);
            }
        }
    }
}

fn binary(operator: Operator, left: Expr, right: Expr) -> Expr {
    Expr::Binary(operator, Box::new(left), Box::new(right))
}
