//! From expression and facts to a value, or to "not known".
//! Recursion is bounded by the parser's bounds.

use std::cell::RefCell;

use super::ast::{Expr, Function, Operator};
use crate::facts::{Facts, LIST_MAX, Path, Value};

/// Facts noted as read; more are not noted.
const READS_MAX: usize = 64;

/// What an expression is evaluated in.
pub struct Scope<'a> {
    facts: &'a Facts,
    subject: Option<&'a Path>,
    locals: Vec<(String, Option<Value>)>,
    reads: RefCell<Vec<Path>>,
}

impl<'a> Scope<'a> {
    /// For a rule about a device, or about the whole machine.
    pub fn new(facts: &'a Facts, subject: Option<&'a Path>) -> Scope<'a> {
        Scope { facts, subject, locals: Vec::new(), reads: RefCell::default() }
    }
    /// Gives a word its value.
    pub fn set(&mut self, name: &str, value: Option<Value>) {
        self.locals.push((name.to_owned(), value));
    }
    /// The facts read so far, in the order of reading.
    pub fn reads(&self) -> Vec<Path> {
        self.reads.borrow().clone()
    }
    /// Whether the expression is surely true.
    pub fn holds(&self, expr: &Expr) -> bool {
        self.eval(expr) == Some(Value::Bool(true))
    }

    /// The value; none if it is not known or makes no sense (a text times two).
    pub fn eval(&self, expr: &Expr) -> Option<Value> {
        match expr {
            Expr::Value(value) => Some(value.clone()),
            Expr::Fact(path) if path.contains('*') => Some(self.all(path)),
            Expr::Fact(path) => self.fact(&Path::from(path.as_str())),
            Expr::Own(path) if path.contains('*') => Some(self.all(&format!("{}.{path}", self.subject?))),
            Expr::Own(path) => self.fact(&Path::from(format!("{}.{path}", self.subject?))),
            Expr::Local(name) => self.local(name),
            Expr::List(all) => Some(Value::List(all.iter().map(|e| self.eval(e)).collect::<Option<_>>()?)),
            Expr::Index(list, index) => self.eval(list)?.as_list()?.get(*index).cloned(),
            Expr::Not(inner) => Some(Value::Bool(!self.eval(inner)?.as_bool()?)),
            Expr::Negative(inner) => Some(Value::Int(self.eval(inner)?.as_int()?.checked_neg()?)),
            Expr::Binary(operator, left, right) => self.binary(*operator, left, right),
            Expr::Call(function, arguments) => self.call(*function, arguments),
        }
    }

    fn read(&self, path: &Path, value: &Value) -> Value {
        let mut reads = self.reads.borrow_mut();
        if reads.len() < READS_MAX && !reads.contains(path) {
            reads.push(path.clone());
        }
        value.clone()
    }
    fn all(&self, pattern: &str) -> Value {
        Value::List(self.facts.matching(pattern).map(|(path, fact)| self.read(path, &fact.value)).collect())
    }
    fn fact(&self, path: &Path) -> Option<Value> {
        Some(self.read(path, self.facts.value(path.as_str())?))
    }
    fn local(&self, name: &str) -> Option<Value> {
        if let Some((_, value)) = self.locals.iter().rev().find(|(n, _)| n == name) {
            return value.clone();
        }
        (name == "name").then(|| self.subject.map(|s| Value::from(s.last())))?
    }

    fn binary(&self, operator: Operator, left: &Expr, right: &Expr) -> Option<Value> {
        use Operator as O;
        let truth = |expr| self.eval(expr).and_then(|v| v.as_bool());
        match operator {
            // One side decides if it can; else both must be known.
            O::And => match truth(left) {
                Some(false) => return Some(Value::Bool(false)),
                known => {
                    let right = truth(right);
                    return if right == Some(false) { right } else { known.and(right) }.map(Value::Bool);
                }
            },
            O::Or => match truth(left) {
                Some(true) => return Some(Value::Bool(true)),
                known => {
                    let right = truth(right);
                    return if right == Some(true) { right } else { known.and(right) }.map(Value::Bool);
                }
            },
            _ => {}
        }
        let (left, right) = (self.eval(left)?, self.eval(right)?);
        let ints = || Some((left.as_int()?, right.as_int()?));
        let compare = |so: fn(&i64, &i64) -> bool| ints().map(|(a, b)| Value::Bool(so(&a, &b)));
        let compute = |how: fn(i64, i64) -> Option<i64>| ints().and_then(|(a, b)| how(a, b)).map(Value::Int);
        match operator {
            O::Equal => Some(Value::Bool(left == right)),
            O::Differs => Some(Value::Bool(left != right)),
            O::In => Some(Value::Bool(right.as_list()?.contains(&left))),
            O::Less => compare(i64::lt),
            O::LessOrEqual => compare(i64::le),
            O::Greater => compare(i64::gt),
            O::GreaterOrEqual => compare(i64::ge),
            O::Plus => compute(i64::checked_add),
            O::Minus => compute(i64::checked_sub),
            O::Times => compute(i64::checked_mul),
            O::Over => compute(i64::checked_div),
            O::Modulo => compute(i64::checked_rem),
            O::And | O::Or => None,
        }
    }

    fn call(&self, function: Function, arguments: &[Expr]) -> Option<Value> {
        let first = || self.eval(arguments.first()?);
        let second = || self.eval(arguments.get(1)?);
        match function {
            Function::Min => self.numbers(arguments)?.into_iter().min().map(Value::Int),
            Function::Max => self.numbers(arguments)?.into_iter().max().map(Value::Int),
            Function::Sum => {
                Some(Value::from(self.numbers(arguments)?.into_iter().map(i128::from).sum::<i128>()))
            }
            Function::Count => Some(Value::from(first()?.as_list()?.len())),
            Function::Distinct => {
                let mut each: Vec<Value> = Vec::new();
                for value in first()?.as_list()? {
                    if !each.contains(value) {
                        each.push(value.clone());
                    }
                }
                Some(Value::List(each))
            }
            Function::Exists => Some(Value::Bool(first().is_some_and(|v| v != Value::List(Vec::new())))),
            Function::Default => first().or_else(second),
            Function::Contains => match (first()?, second()?) {
                (Value::Text(text), Value::Text(part)) => Some(Value::Bool(text.contains(&part))),
                (Value::List(list), value) => Some(Value::Bool(list.contains(&value))),
                _ => None,
            },
            Function::Starts => Some(Value::Bool(first()?.as_text()?.starts_with(second()?.as_text()?))),
            Function::Pow2 => {
                let n = u64::try_from(first()?.as_int()?).ok()?;
                Some(Value::from(n.checked_next_power_of_two()?))
            }
            Function::If => {
                let chosen = if first()?.as_bool()? { arguments.get(1)? } else { arguments.get(2)? };
                self.eval(chosen)
            }
            Function::Fact => {
                let names: Vec<Value> = arguments.iter().map(|a| self.eval(a)).collect::<Option<_>>()?;
                let of = |element: Option<&Value>| {
                    let text = |v: &Value| element.filter(|_| v.as_list().is_some()).unwrap_or(v).to_string();
                    self.fact(&Path::of(&names.iter().map(text).collect::<Vec<_>>()))
                };
                match names.iter().find_map(Value::as_list) {
                    None => of(None),
                    Some(list) => Some(Value::List(list.iter().filter_map(|e| of(Some(e))).collect())),
                }
            }
            Function::Version => {
                let text = first()?;
                let mut parts = text.as_text()?.split(|c: char| !c.is_ascii_digit());
                let mut part = || parts.next()?.parse::<i64>().ok().filter(|n| *n < 1000);
                Some(Value::Int(part()? * 1000 + part()?))
            }
        }
    }
    /// All numbers of the arguments and of the lists among them.
    fn numbers(&self, arguments: &[Expr]) -> Option<Vec<i64>> {
        let mut numbers = Vec::new();
        for argument in arguments {
            match self.eval(argument)? {
                Value::List(list) => numbers.extend(list.iter().take(LIST_MAX).filter_map(Value::as_int)),
                value => numbers.push(value.as_int()?),
            }
        }
        Some(numbers)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Origin, expr::parse};

    fn facts() -> Facts {
        let mut facts = Facts::new();
        for (path, value) in [
            ("net.eth0.mtu", Value::Int(9000)),
            ("net.eth1.mtu", Value::Int(1500)),
            ("net.eth0.state", Value::from("up")),
            ("bond.bond0.members", Value::from(vec!["eth0", "eth1", "eth2"])),
            ("sysctl.net.ipv4.tcp_rmem", Value::parse_words("4096 131072 6291456")),
            ("host.kernel", Value::from("6.18.2-generic")),
            ("cpu.smt", Value::Bool(true)),
            ("sysctl.fs.aio-nr", Value::Int(3)),
        ] {
            facts.insert(path, value, Origin::default());
        }
        facts
    }
    fn eval(text: &str) -> Option<Value> {
        let (facts, subject) = (facts(), Path::from("net.eth0"));
        let mut scope = Scope::new(&facts, Some(&subject));
        scope.set("need", Some(Value::Int(7)));
        scope.eval(&parse(text).unwrap_or_else(|e| panic!("{e}")))
    }

    #[test]
    fn values() {
        for (text, value) in [
            ("1 + 2 * 3 - 4 / 2", Value::Int(5)),
            ("-(2 + 3) % 3", Value::Int(-2)),
            ("2 * 4KiB + 1_000", Value::Int(9192)),
            ("25Gbit", Value::Int(25_000)),
            ("3ms", Value::Int(3000)),
            (".mtu", Value::Int(9000)),
            ("need * 2", Value::Int(14)),
            ("sysctl.fs.aio-nr - 1", Value::Int(2)),
            ("need -1", Value::Int(6)),
            ("name", Value::from("eth0")),
            ("max(net.*.mtu)", Value::Int(9000)),
            ("min(net.*.mtu, 100)", Value::Int(100)),
            ("sum(net.*.mtu)", Value::Int(10_500)),
            ("count(net.*.mtu)", Value::Int(2)),
            ("count(distinct([1, 1, 2]))", Value::Int(2)),
            ("sysctl.net.ipv4.tcp_rmem[2]", Value::Int(6_291_456)),
            ("pow2(5)", Value::Int(8)),
            ("version(host.kernel)", Value::Int(6018)),
            ("fact(\"net\", name, \"mtu\")", Value::Int(9000)),
            ("sum(fact(\"net\", bond.bond0.members, \"mtu\"))", Value::Int(10_500)),
            ("if(cpu.smt, 1, 2)", Value::Int(1)),
            ("default(net.eth9.mtu, 5)", Value::Int(5)),
        ] {
            assert_eq!(eval(text), Some(value), "{text}");
        }
    }

    #[test]
    fn conditions() {
        for (text, value) in [
            (".mtu >= 9000 and .state == \"up\"", Some(true)),
            ("not .mtu >= 9000", Some(false)),
            (".state in [\"up\", \"unknown\"]", Some(true)),
            ("contains(.state, \"p\") and starts(.state, \"u\")", Some(true)),
            ("contains(bond.bond0.members, \"eth1\")", Some(true)),
            ("exists(.mtu) and not exists(.speed)", Some(true)),
            ("exists(disk.*.size)", Some(false)),
            ("1 == 1 or x.y > 3", Some(true)),
            ("x.y > 3 or 1 == 1", Some(true)),
            ("x.y > 3 and 1 == 2", Some(false)),
            // Not known, or without sense.
            ("x.y > 3 and 1 == 1", None),
            ("not x.y", None),
            (".state > 3", None),
            ("1 / 0 == 1", None),
            ("9223372036854775807 + 1 > 0", None),
            ("unknown_word == 1", None),
            ("max(none.*.such) > 1", None),
        ] {
            assert_eq!(eval(text), value.map(Value::Bool), "{text}");
        }
    }

    #[test]
    fn errors_say_where_and_what() {
        for (text, at, what) in [
            ("1 +", 4, "ends where a value is wanted"),
            ("1 2", 3, "an operator is missing"),
            ("5parsec", 1, "no number with a known unit"),
            ("\"open", 1, "closing"),
            ("sqrt(4)", 5, "no function sqrt"),
            ("pow2(1, 2)", 10, "takes 1 to 1"),
            (". + 1", 1, "must be followed by a name"),
            ("a = 1", 3, "not understood"),
            ("x[y]", 3, "index"),
            ("(1", 3, "ends where `)` is wanted"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.what.contains(what) && error.at == at, "{text}: {error}");
        }
        assert!(parse(&"(".repeat(200)).unwrap_err().what.contains("deeper"));
        assert!(parse(&"not ".repeat(200)).unwrap_err().what.contains("deeper"));
        assert!(parse(&"1 + ".repeat(1000)).unwrap_err().what.contains("longer"));
        assert!(parse(&" ".repeat(5000)).unwrap_err().what.contains("longer"));
    }

    #[test]
    fn what_was_read_is_known() {
        let facts = facts();
        let scope = Scope::new(&facts, None);
        assert!(scope.holds(&parse("net.eth0.mtu > 1 and exists(cpu.smt)").unwrap()));
        assert_eq!(scope.reads().iter().map(Path::as_str).collect::<Vec<_>>(), ["net.eth0.mtu", "cpu.smt"]);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(?s).{0,60}") {
            if let Ok(expr) = parse(&text) {
                Scope::new(&facts(), None).eval(&expr);
            }
        }
        /// Words of the language in any order: many of these do parse.
        #[test]
        fn no_expression_panics(words in proptest::collection::vec(
            proptest::sample::select(vec![
                "1", "9223372036854775807", "\"a\"", ".mtu", "net.*.mtu", "need", "name", "[", "]", "[0]", "(", ")", ",", "+", "-",
                "*", "/", "%", "<", "==", "in", "and", "or", "not", "min(", "max(", "sum(", "count(", "distinct(",
                "exists(", "default(", "pow2(", "fact(", "if(", "version(", "contains(", "host.kernel",
            ]), 0..12)) {
            if let Ok(expr) = parse(&words.join(" ")) {
                let (facts, subject) = (facts(), Path::from("net.eth0"));
                Scope::new(&facts, Some(&subject)).eval(&expr);
            }
        }
    }
}
