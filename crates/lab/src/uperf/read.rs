//! From a text to a profile. Variables may be written `$NAME` as uperf has them, `${NAME}` or `{NAME}` as people write them
//! in articles, with spaces; each must have a value. A time without a unit is seconds.

use std::time::Duration;

use super::{
    profile::{Flowop, Group, Profile, Transaction, Until, UperfError},
    xml::{self, Kind, Tag, bad},
};

/// Groups within groups, at most so deep.
const DEPTH_MAX: usize = 8;
/// Groups of a profile, at most.
const GROUPS_MAX: usize = 4096;

type Value<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Profile {
    /// Reads one; `value` knows the variables.
    pub fn read(text: &str, value: Value<'_>) -> Result<Profile, UperfError> {
        let mut tags = Vec::new();
        for tag in xml::tags(text)? {
            // A tag that is whole is one that opens and closes.
            let whole = tag.kind == Kind::Whole;
            let end =
                Tag { line: tag.line, name: tag.name.clone(), kind: Kind::Close, attributes: Vec::new() };
            tags.push(if whole { Tag { kind: Kind::Open, ..tag } } else { tag });
            tags.extend(whole.then_some(end));
        }
        let mut tags = Tags { tags: tags.into_iter(), line: 1, value };
        let head = tags.next()?.filter(|tag| tag.name == "profile" && tag.kind == Kind::Open);
        let head = head.ok_or_else(|| {
            bad(1, "this is no profile of uperf: it must begin with <profile name=\"...\">")
        })?;
        let name = tags.attribute(&head, "name")?.unwrap_or_default();
        let mut groups = Vec::new();
        while let Some(tag) = tags.child("profile")? {
            match tag.name.as_str() {
                "group" => tags.group(&tag, 1, 1, &mut groups)?,
                other => return Err(unknown(&tag, other, "group")),
            }
        }
        if let Some(more) = tags.next()? {
            return Err(bad(more.line, format!("{} stands behind the end of the profile", more.name)));
        }
        if groups.is_empty() {
            return Err(bad(head.line, "there is no group with transactions in it"));
        }
        Ok(Profile { name, groups })
    }
}

fn unknown(tag: &Tag, name: &str, wanted: &str) -> UperfError {
    bad(tag.line, format!("<{name}> is not known here; {wanted} is"))
}

struct Tags<'a> {
    tags: std::vec::IntoIter<Tag>,
    line: u32,
    value: Value<'a>,
}

impl Tags<'_> {
    fn next(&mut self) -> Result<Option<Tag>, UperfError> {
        let tag = self.tags.next();
        self.line = tag.as_ref().map_or(self.line, |tag| tag.line);
        Ok(tag)
    }

    /// The next tag that opens within `of`; `None` at its end.
    fn child(&mut self, of: &str) -> Result<Option<Tag>, UperfError> {
        let end = || format!("</{of}> is missing");
        let tag = self.next()?.ok_or_else(|| bad(self.line, end()))?;
        match tag.kind {
            Kind::Close if tag.name == of => Ok(None),
            Kind::Close => Err(bad(tag.line, format!("</{}> ends nothing; {}", tag.name, end()))),
            _ => Ok(Some(tag)),
        }
    }

    fn attribute(&self, tag: &Tag, name: &str) -> Result<Option<String>, UperfError> {
        let found = tag.attributes.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| replaced(value, tag.line, self.value)).transpose()
    }

    fn number<N: std::str::FromStr>(&self, tag: &Tag, name: &str) -> Result<Option<N>, UperfError> {
        let Some(text) = self.attribute(tag, name)? else { return Ok(None) };
        let wrong = |_| bad(tag.line, format!("{name} {text:?} is not a number that is allowed"));
        text.trim().parse().map(Some).map_err(wrong)
    }

    fn group(
        &mut self,
        tag: &Tag,
        times: u32,
        depth: usize,
        groups: &mut Vec<Group>,
    ) -> Result<(), UperfError> {
        if depth > DEPTH_MAX || groups.len() >= GROUPS_MAX {
            return Err(bad(tag.line, format!("more than {GROUPS_MAX} groups, or deeper than {DEPTH_MAX}")));
        }
        let threads = self.number::<u32>(tag, "nthreads")?;
        let strands = threads.or(self.number(tag, "nprocs")?);
        let strands = strands.ok_or_else(|| bad(tag.line, "a group needs nthreads or nprocs"))?;
        let strands = strands.checked_mul(times).filter(|n| *n > 0);
        let strands =
            strands.ok_or_else(|| bad(tag.line, "a group needs at least one strand, and not billions"))?;
        let at = groups.len();
        groups.push(Group { strands, threads: threads.is_some(), transactions: Vec::new() });
        while let Some(child) = self.child("group")? {
            match child.name.as_str() {
                "group" => self.group(&child, strands, depth + 1, groups)?,
                "transaction" => {
                    let transaction = self.transaction(&child)?;
                    groups[at].transactions.push(transaction);
                }
                other => return Err(unknown(&child, other, "transaction")),
            }
        }
        if groups[at].transactions.is_empty() {
            // It only held others.
            groups.remove(at);
        }
        Ok(())
    }

    fn transaction(&mut self, tag: &Tag) -> Result<Transaction, UperfError> {
        let duration = self.attribute(tag, "duration")?;
        let until = match duration {
            Some(text) => Until::Duration(time(&text).map_err(|why| bad(tag.line, why))?),
            None => Until::Iterations(self.number(tag, "iterations")?.unwrap_or(1)),
        };
        let rate = self.attribute(tag, "rate")?;
        let mut flowops = Vec::new();
        while let Some(child) = self.child("transaction")? {
            if child.name != "flowop" {
                return Err(unknown(&child, &child.name, "flowop"));
            }
            flowops.push(self.flowop(&child)?);
            if let Some(inner) = self.child("flowop")? {
                return Err(bad(inner.line, "a flowop holds nothing"));
            }
        }
        Ok(Transaction { until, rate, flowops })
    }

    fn flowop(&self, tag: &Tag) -> Result<Flowop, UperfError> {
        let kind = self.attribute(tag, "type")?.unwrap_or_default().to_ascii_lowercase();
        if kind.is_empty() {
            return Err(bad(tag.line, "a flowop needs a type, such as write"));
        }
        let options = self.attribute(tag, "options")?.unwrap_or_default();
        let options = options.split_whitespace().map(|word| match word.split_once('=') {
            Some((key, value)) => (key.to_ascii_lowercase(), Some(value.to_owned())),
            None => (word.to_ascii_lowercase(), None),
        });
        Ok(Flowop { kind, options: options.collect() })
    }
}

/// A value with its variables replaced, each once: what a variable holds is not looked at again.
fn replaced(text: &str, line: u32, value: Value<'_>) -> Result<String, UperfError> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['$', '{']) {
        out.push_str(&rest[..at]);
        let form = &rest[at..];
        let braced = form.strip_prefix("${").or(form.strip_prefix('{'));
        let (name, behind) = match braced {
            Some(inside) => {
                let end =
                    inside.find('}').ok_or_else(|| bad(line, format!("}} is missing behind {form:?}")))?;
                (inside[..end].trim(), &inside[end + 1..])
            }
            None => {
                let inside = &form[1..];
                let end =
                    inside.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(inside.len());
                inside.split_at(end)
            }
        };
        let unset = || {
            bad(
                line,
                format!(
                    "the variable {name:?} has no value: give it by --set '{name}=VALUE', or in the environment"
                ),
            )
        };
        out.push_str(&value(name).filter(|_| !name.is_empty()).ok_or_else(unset)?);
        rest = behind;
    }
    Ok(out + rest)
}

/// A time: a number and ns, us, ms, s, m, h or nothing, which means seconds.
fn time(text: &str) -> Result<Duration, String> {
    let text = text.trim().to_ascii_lowercase();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let seconds = match unit.trim() {
        "" | "s" | "sec" | "seconds" => 1.0,
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("{text:?} is no time: write 120, 120s, 500ms, 2m or 1h")),
    };
    let number: f64 =
        number.parse().map_err(|_| format!("{text:?} is no time: write 120, 120s, 500ms, 2m or 1h"))?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| format!("{text:?} is too long a time"))
}
