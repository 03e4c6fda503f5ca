//! What a fault plan says, and how it is written down:
//! ```text
//! statement ; statement ; ...      (or a line each; # starts a comment)
//! seed 7                           where random choices start
//! volatile [max=64m] [leak=0.1]    every write is held in memory until it is flushed; beyond `max` the
//!                                  oldest go out early; each 512 byte sector leaks to the disk with `leak`
//! noflush                          flushes are answered and not done
//! until FILE                       as soon as that FILE exists nothing is held up any more: a delay of an hour ends then
//! eio    on=read|write|flush|any [file=data|crc|log|index|any] [path=TEXT] [once=FILE] [p=0.01] [after=N] [times=N]
//! enospc on=write ...              the same: the host's file system is full
//! torn   on=write ...              some 512 byte sectors of the write reach the disk, then it fails
//! delay 5ms on=... ...             it waits first
//! ```
//! A rule counts the requests that fit it: the first `after` pass, then each is hit with probability
//! `p` (1), `times` at most. `path` must occur in the file's path. With `once`, requests count from the moment
//! that FILE exists: who injects the fault makes it when all is ready. All rules that fit apply.
//! What cannot be read is refused with the statement it is in.

use std::{
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use base::ByteSize;

use super::trace::Trace;
use crate::{error::PdiskError, io::file::FileKind};

/// What kind of request a rule is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum On {
    Read,
    Write,
    Flush,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    /// It ends with this error, and is not done.
    Error(i32),
    Torn,
    Delay(Duration),
}

/// One rule of a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Rule {
    pub action: Action,
    /// `None`: any.
    on: Option<On>,
    files: Option<&'static [FileKind]>,
    path: Option<String>,
    once: Option<PathBuf>,
    pub per_million: u32,
    pub after: u64,
    pub times: u64,
}

impl Rule {
    pub fn fits(&self, on: On, path: &Path) -> bool {
        self.on.is_none_or(|o| o == on)
            && self.files.is_none_or(|f| f.contains(&FileKind::of(path)))
            && self.path.as_ref().is_none_or(|text| path.to_string_lossy().contains(text.as_str()))
            && self.once.as_ref().is_none_or(|file| file.exists())
    }
}

/// Memory in place of the disk's cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Volatile {
    pub max: u64,
    pub leak_per_million: u32,
}

/// Faults to inject below the stores of a node. The default injects none.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    pub(super) seed: u64,
    pub(super) rules: Vec<Rule>,
    pub(super) volatile: Option<Volatile>,
    pub(super) noflush: bool,
    /// Delays end when this file exists.
    pub(super) until: Option<PathBuf>,
    pub(super) trace: Option<Trace>,
}

impl FaultPlan {
    /// Reads a plan from text, or, after `@`, from the file of that name.
    pub fn load(text: &str) -> Result<FaultPlan, PdiskError> {
        match text.trim().strip_prefix('@') {
            Some(path) => std::fs::read_to_string(path).map_err(PdiskError::io("read", path))?.parse(),
            None => text.parse(),
        }
    }

    /// Every write and flush goes into `trace` as well.
    pub fn traced(mut self, trace: &Trace) -> FaultPlan {
        self.trace = Some(trace.clone());
        self
    }
}

impl FromStr for FaultPlan {
    type Err = PdiskError;

    fn from_str(text: &str) -> Result<FaultPlan, PdiskError> {
        let mut plan = FaultPlan::default();
        let statements = text.lines().map(|l| l.split('#').next().unwrap_or_default());
        for statement in statements.flat_map(|l| l.split(';')).map(str::trim).filter(|s| !s.is_empty()) {
            add(&mut plan, statement)
                .map_err(|reason| PdiskError::BadFault { statement: statement.into(), reason })?;
        }
        Ok(plan)
    }
}

fn add(plan: &mut FaultPlan, statement: &str) -> Result<(), &'static str> {
    let mut words = statement.split_whitespace();
    match words.next().unwrap_or_default() {
        "seed" => {
            let seed = words.next().and_then(|w| w.parse().ok());
            plan.seed = seed.ok_or("a whole number must follow `seed`")?;
            end(words)
        }
        "noflush" => {
            plan.noflush = true;
            end(words)
        }
        "until" => {
            plan.until = Some(words.next().ok_or("a file must follow `until`")?.into());
            end(words)
        }
        "volatile" => {
            let mut volatile = Volatile { max: 64 << 20, leak_per_million: 0 };
            for word in words {
                match word.split_once('=') {
                    Some(("max", v)) => {
                        volatile.max = v.parse::<ByteSize>().map_err(|_| "max= wants a size such as 64m")?.0;
                    }
                    Some(("leak", v)) => volatile.leak_per_million = probability(v)?,
                    _ => return Err("`volatile` knows max= and leak="),
                }
            }
            plan.volatile = Some(volatile);
            Ok(())
        }
        "eio" => rule(plan, Action::Error(libc::EIO), words),
        "enospc" => rule(plan, Action::Error(libc::ENOSPC), words),
        "torn" => rule(plan, Action::Torn, words),
        "delay" => {
            let time = words.next().and_then(duration).ok_or("a time such as 5ms must follow `delay`")?;
            rule(plan, Action::Delay(time), words)
        }
        _ => Err("statements are seed, volatile, noflush, until, eio, enospc, torn, delay"),
    }
}

fn end<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<(), &'static str> {
    if words.next().is_none() { Ok(()) } else { Err("nothing may follow that") }
}

fn rule<'a>(
    plan: &mut FaultPlan,
    action: Action,
    words: impl Iterator<Item = &'a str>,
) -> Result<(), &'static str> {
    let mut rule = Rule {
        action,
        on: None,
        files: None,
        path: None,
        once: None,
        per_million: 1_000_000,
        after: 0,
        times: u64::MAX,
    };
    let mut named = false;
    for word in words {
        let (key, value) = word.split_once('=').ok_or("write KEY=VALUE")?;
        let number = || value.parse::<u64>().map_err(|_| "after= and times= want whole numbers");
        match key {
            "on" => {
                named = true;
                rule.on = match value {
                    "read" => Some(On::Read),
                    "write" => Some(On::Write),
                    "flush" => Some(On::Flush),
                    "any" => None,
                    _ => return Err("on= wants read, write, flush or any"),
                };
            }
            "file" => {
                rule.files = match value {
                    "data" => Some(&[FileKind::Data]),
                    "crc" => Some(&[FileKind::Crc]),
                    "log" => Some(&[FileKind::Log]),
                    "index" => Some(&[FileKind::Index0, FileKind::Index1]),
                    "any" => None,
                    _ => return Err("file= wants data, crc, log, index or any"),
                };
            }
            "path" => rule.path = Some(value.into()),
            "once" => rule.once = Some(value.into()),
            "p" => rule.per_million = probability(value)?,
            "after" => rule.after = number()?,
            "times" => rule.times = number()?,
            _ => return Err("rules know on=, file=, path=, once=, p=, after= and times="),
        }
    }
    if !named {
        return Err("a rule needs on=read, write, flush or any");
    }
    if action == Action::Torn && rule.on != Some(On::Write) {
        return Err("only on=write can be torn");
    }
    plan.rules.push(rule);
    Ok(())
}

fn probability(text: &str) -> Result<u32, &'static str> {
    let p: f64 = text.parse().map_err(|_| "a probability is a number from 0 to 1")?;
    if (0.0..=1.0).contains(&p) { Ok((p * 1e6) as u32) } else { Err("a probability is a number from 0 to 1") }
}

fn duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let n: u64 = text[..digits].parse().ok()?;
    let us = match &text[digits..] {
        "us" => 1,
        "ms" => 1000,
        "s" => 1_000_000,
        _ => return None,
    };
    Some(Duration::from_micros(n.checked_mul(us)?)).filter(|d| *d <= Duration::from_secs(3600))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_read_as_written() {
        let text = "seed 7; volatile max=1m leak=0.25 # a cache\n noflush\n\
                    eio on=read file=data path=n2/ p=0.5 after=3 times=2; delay 5ms on=any";
        let plan: FaultPlan = text.parse().unwrap();
        assert_eq!((plan.seed, plan.noflush, plan.rules.len()), (7, true, 2));
        assert_eq!(plan.volatile, Some(Volatile { max: 1 << 20, leak_per_million: 250_000 }));
        let rule = &plan.rules[0];
        assert_eq!((rule.per_million, rule.after, rule.times), (500_000, 3, 2));
        assert!(rule.fits(On::Read, Path::new("/n2/p1/data")));
        assert!(!rule.fits(On::Write, Path::new("/n2/p1/data")));
        assert!(!rule.fits(On::Read, Path::new("/n1/p1/data")));
        assert!(!rule.fits(On::Read, Path::new("/n2/p1/index.0")));
        assert_eq!(plan.rules[1].action, Action::Delay(Duration::from_millis(5)));
        assert!(plan.rules[1].fits(On::Flush, Path::new("log")));
    }

    #[test]
    fn a_rule_waits_for_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let now = dir.path().join("now");
        let plan: FaultPlan = format!("eio on=any once={}", now.display()).parse().unwrap();
        assert!(!plan.rules[0].fits(On::Write, Path::new("log")));
        std::fs::write(&now, "").unwrap();
        assert!(plan.rules[0].fits(On::Write, Path::new("log")));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let bad = [
            "sed 7",
            "seed x",
            "noflush now",
            "eio",
            "eio file=data",
            "eio on=erase",
            "eio on=read p=2",
            "eio on=read file=label",
            "torn on=read",
            "delay on=read",
            "until",
            "until one two",
            "delay 5 on=read",
            "delay 99999999999999999999s on=read",
            "volatile max=lots",
            "eio on=read after=-1",
            "eio on=read sometimes",
        ];
        for statement in bad {
            let error = format!("seed 1; {statement}; noflush").parse::<FaultPlan>().unwrap_err();
            let PdiskError::BadFault { statement: named, .. } = &error else { panic!("{error}") };
            assert_eq!(named, statement);
            assert!(error.to_string().contains(statement), "{error}");
        }
        let missing = FaultPlan::load("@/nowhere/plan").unwrap_err().to_string();
        assert!(missing.contains("/nowhere/plan"), "{missing}");
    }

    #[test]
    fn changed_plans_are_refused_or_mean_something() {
        let text = "seed 7; volatile max=1m leak=0.25\nnoflush # x\neio on=read file=data path=n2/ p=0.5 after=3 times=2\n\
                    torn on=write; enospc on=write; delay 5ms on=any";
        crate::mutate::mutated(&[text.into()], 20_000, |bytes| {
            let _ = String::from_utf8_lossy(bytes).parse::<FaultPlan>();
        });
    }
}
