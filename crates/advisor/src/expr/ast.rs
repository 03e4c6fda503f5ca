//! What an expression is made of, and what it names. Plain data: nothing here parses or computes.

use crate::facts::Value;

/// Why a text is not an expression.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{text}`, at character {at}: {what}")]
pub struct ExprError {
    /// The whole expression.
    pub text: String,
    /// Where, in characters from 1.
    pub at: usize,
    /// What is wrong and what would be right.
    pub what: String,
}

/// An expression.
#[derive(Clone, PartialEq, Debug)]
#[expect(missing_docs, reason = "the module says it")]
pub enum Expr {
    Value(Value),
    /// A fact by its full name, or several by a pattern.
    Fact(String),
    /// A fact below the rule's device, or several by a pattern.
    Own(String),
    /// A `let` of the rule, or `name`.
    Local(String),
    List(Vec<Expr>),
    Index(Box<Expr>, usize),
    Not(Box<Expr>),
    Negative(Box<Expr>),
    Binary(Operator, Box<Expr>, Box<Expr>),
    Call(Function, Vec<Expr>),
}

/// What stands between two values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Operator {
    Or,
    And,
    Equal,
    Differs,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    Plus,
    Minus,
    Times,
    Over,
    Modulo,
}

/// What can be called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Function {
    /// `min(a, b, ...)`, of numbers and lists of numbers.
    Min,
    /// `max(a, b, ...)`.
    Max,
    /// `sum(a, b, ...)`.
    Sum,
    /// `count(list)`: how many; of a pattern, how many such facts there are.
    Count,
    /// `distinct(list)`: each value once.
    Distinct,
    /// `exists(fact)`: whether it is known.
    Exists,
    /// `default(a, b)`: b if a is not known.
    Default,
    /// `contains(text, part)` or `contains(list, value)`.
    Contains,
    /// `starts(text, beginning)`.
    Starts,
    /// `pow2(n)`: the next power of two, n itself if it is one.
    Pow2,
    /// `fact(a, b, ...)`: the fact whose names these are; of a list among them, one for each.
    Fact,
    /// `if(condition, a, b)`.
    If,
    /// `version(text)`: `6.18.2-generic` as 6018, to be compared with 6018.
    Version,
}

impl Function {
    /// Every function with its name and the least and largest number of its arguments.
    pub const ALL: [(&'static str, Function, usize, usize); 13] = [
        ("min", Function::Min, 1, 8),
        ("max", Function::Max, 1, 8),
        ("sum", Function::Sum, 1, 8),
        ("count", Function::Count, 1, 1),
        ("distinct", Function::Distinct, 1, 1),
        ("exists", Function::Exists, 1, 1),
        ("default", Function::Default, 2, 2),
        ("contains", Function::Contains, 2, 2),
        ("starts", Function::Starts, 2, 2),
        ("pow2", Function::Pow2, 1, 1),
        ("fact", Function::Fact, 2, 6),
        ("if", Function::If, 3, 3),
        ("version", Function::Version, 1, 1),
    ];
}

impl Expr {
    /// The facts and patterns it looks at; those below the device begin with a point.
    pub fn looks_at(&self, seen: &mut Vec<String>) {
        let mut see = |text: String| {
            if !seen.contains(&text) {
                seen.push(text);
            }
        };
        match self {
            Expr::Fact(path) => see(path.clone()),
            Expr::Own(path) => see(format!(".{path}")),
            Expr::Value(_) | Expr::Local(_) => {}
            Expr::Index(inner, _) | Expr::Not(inner) | Expr::Negative(inner) => inner.looks_at(seen),
            Expr::Binary(_, a, b) => {
                a.looks_at(seen);
                b.looks_at(seen);
            }
            Expr::List(all) | Expr::Call(_, all) => all.iter().for_each(|e| e.looks_at(seen)),
        }
    }
    /// The single words in it that no fact gives: `let`s and `name`.
    pub fn locals(&self, seen: &mut Vec<String>) {
        match self {
            Expr::Local(name) => seen.push(name.clone()),
            Expr::Value(_) | Expr::Fact(_) | Expr::Own(_) => {}
            Expr::Index(inner, _) | Expr::Not(inner) | Expr::Negative(inner) => inner.locals(seen),
            Expr::Binary(_, a, b) => {
                a.locals(seen);
                b.locals(seen);
            }
            Expr::List(all) | Expr::Call(_, all) => all.iter().for_each(|e| e.locals(seen)),
        }
    }
}
