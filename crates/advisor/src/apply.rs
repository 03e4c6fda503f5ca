//! Makes the settings that findings ask for, and takes them back.
//! Before anything is written, the journal holds each value as it was, on disk. Then the setting is written and read
//! back; when all are in force, files of our own make them permanent. If one fails, all of the run are taken back; a run
//! that a crash cut off is taken back before anything else is done.
//! A fact that cannot be taken back never keeps the others from it: it stays ours, and the outcome says why.
//! A run that may have cut the connection is guarded: it is taken back at a given time unless it is confirmed, and is
//! made permanent only then. Whoever waits for that time is the caller's.
//! Only facts of the run are touched. A value that is no longer what we set it to belongs to somebody else and is left.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use serde::Serialize;

use crate::{
    crash,
    facts::Path as Fact,
    finding::Finding,
    host::{Manager, Tree, is_live},
    journal::{Changed, Journal, JournalError, Record, Run},
    permanent::{self, Keeper},
    replace,
    settable::Settable,
    tuned::{Tuned, TunedError},
};

const UNDONE: &str = "undone";
const REVERTED: &str = "reverted";
const OTHERS: &str = "changed by others";
const STUCK: &str = "not taken back";

/// Why a setting was not made.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each says it")]
pub enum ApplyError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("{fact} cannot be set by this program: use the finding's command")]
    NotSettable { fact: String },
    #[error("{fact}: `{value}` is no plain value")]
    NotPlain { fact: String, value: String },
    #[error("{fact}: {what} {path}: {source}")]
    Io { fact: String, what: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "{path}, which makes settings last, cannot be changed: {source}; mend that and run the command again (what is in force now: \
         ropewalk advise history)"
    )]
    Keep { path: PathBuf, source: io::Error },
    #[error("tuned's profile was not changed: {0}")]
    Tuned(#[from] TunedError),
    #[error("{fact}: was set to {wanted} and reads {found}; everything of this run is taken back")]
    NotInForce { fact: String, wanted: String, found: String },
    #[error(
        "of a run that did not come to its end these could not be taken back: {0}; mend that, then ropewalk advise revert"
    )]
    Left(String),
    #[error(
        "run {0} waits to be confirmed: ropewalk advise confirm keeps it, ropewalk advise revert takes it back"
    )]
    Waits(u64),
    #[error(
        "nothing is changed: the time to confirm it was over before it could be set; give it longer (--confirm-within)"
    )]
    TooLate,
    #[error("nothing waits to be confirmed: it may have been taken back (ropewalk advise history)")]
    NothingWaits,
}

/// What became of a value.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Outcome {
    /// The fact.
    pub fact: String,
    /// The value it had.
    pub from: String,
    /// The value it has, or would be given.
    pub to: String,
    /// In words: `set`, `would be set`, `reverted`, `changed by others`, `not taken back`, ...
    pub what: String,
    /// Why it was not taken back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Outcome {
    /// One that is as it was wanted.
    pub fn of(change: Changed, what: &str) -> Outcome {
        Outcome {
            fact: change.fact,
            from: change.before,
            to: change.after,
            what: what.to_owned(),
            error: None,
        }
    }
}

/// What applying these findings would change, without changing anything.
///
/// # Errors
/// A value cannot be read or is not settable.
pub fn plan(root: &Path, findings: &[&Finding]) -> Result<Vec<Changed>, ApplyError> {
    let mut changes: Vec<Changed> = Vec::new();
    for finding in findings {
        let Some(change) = &finding.change else { continue };
        let fact = change.fact.to_string();
        let settable = settable(&fact)?;
        plain(&fact, &change.value)?;
        let before = read(root, &fact, &settable)?;
        if !same(&before, &change.value) && !changes.iter().any(|c| c.fact == fact) {
            changes.push(Changed { rule: finding.rule.clone(), fact, before, after: change.value.clone() });
        }
    }
    Ok(changes)
}

/// Whether one of these changes can cut the connection over which it is asked for.
pub fn may_cut(changes: &[Changed]) -> bool {
    let cuts = ["net.", "bond.", "sysctl.net.ipv4.conf.", "sysctl.net.ipv6.conf."];
    changes.iter().any(|change| cuts.iter().any(|cut| change.fact.starts_with(cut)))
}

/// Makes the changes of a plan, all or none. With `until`, in seconds since 1970, they are permanent only once they are
/// confirmed, and whoever opens the journal after that time takes them back.
///
/// # Errors
/// As said by [`ApplyError`]; then nothing of the plan is in force.
pub fn apply(root: &Path, findings: &[&Finding], until: Option<u64>) -> Result<Vec<Outcome>, ApplyError> {
    let (mut journal, left) = open(root)?;
    nothing_left(&left)?;
    if let Some(run) = journal.runs().find(|run| run.waits(now())) {
        return Err(ApplyError::Waits(run.run));
    }
    // Who would take it back has looked already, found nothing, and is gone. Until then it waits for this lock.
    if until.is_some_and(|until| until <= now()) {
        return Err(ApplyError::TooLate);
    }
    let changes = plan(root, findings)?;
    if changes.is_empty() {
        return Ok(Vec::new());
    }
    let run = journal.next_run();
    journal.append(Record::Begin { run, time: now(), changes: changes.clone() })?;
    if let Some(until) = until {
        journal.append(Record::Guarded { run, until })?;
    }
    let made = changes.iter().try_for_each(|change| make(root, change));
    let made = made
        .and_then(|()| if until.is_some() { Ok(()) } else { keep(root, &journal, Some(run)).map(drop) })
        // What makes it last may set it as well.
        .and_then(|()| changes.iter().try_for_each(|change| in_force(root, change)));
    if let Err(error) = made {
        nothing_left(&undo_run(root, &mut journal, run)?)?;
        return Err(error);
    }
    let what = if until.is_some() { "set until confirmed" } else { "set" };
    if until.is_none() {
        journal.append(Record::Done { run })?;
    }
    Ok(changes.into_iter().map(|change| Outcome::of(change, what)).collect())
}

/// Keeps what waits to be confirmed, and makes it permanent.
///
/// # Errors
/// Nothing waits any more, or a file cannot be written; then it goes on waiting.
pub fn confirm(root: &Path) -> Result<Vec<Outcome>, ApplyError> {
    let (mut journal, _) = open(root)?;
    let waiting = journal.runs().find(|run| run.waits(now())).ok_or(ApplyError::NothingWaits)?;
    let (run, changes): (u64, Vec<Changed>) = (waiting.run, waiting.in_force().cloned().collect());
    keep(root, &journal, Some(run))?;
    changes.iter().try_for_each(|change| in_force(root, change))?;
    journal.append(Record::Done { run })?;
    Ok(changes.into_iter().map(|change| Outcome::of(change, "kept")).collect())
}

/// Takes back what nobody confirmed in time. Gives what could not be taken back.
///
/// # Errors
/// The journal or a file of our own cannot be written, or another command has the journal just now.
pub fn expire(root: &Path) -> Result<Vec<Outcome>, ApplyError> {
    open(root).map(|(_, left)| left)
}

/// Takes back what is still ours: all of it, or that of these rules and facts. The newest first.
///
/// # Errors
/// The journal or a file of our own cannot be written; what was taken back until then is recorded. A value that cannot
/// be written is no such error: its outcome has one.
pub fn revert(root: &Path, names: &[String]) -> Result<Vec<Outcome>, ApplyError> {
    let (mut journal, left) = open(root)?;
    let mut outcomes: Vec<Outcome> = Vec::new();
    let runs: Vec<u64> = journal.runs().rev().map(|run| run.run).collect();
    for run in runs {
        let wanted = |c: &Changed| names.is_empty() || names.contains(&c.fact) || names.contains(&c.rule);
        outcomes.extend(release(root, &mut journal, run, REVERTED, wanted)?);
    }
    stop_keeping(root, &journal, &outcomes)?;
    // What is left of a run that was cut off is told, whatever was asked for.
    let untold = |l: &Outcome| !outcomes.iter().any(|outcome| outcome.fact == l.fact);
    let left: Vec<Outcome> = left.into_iter().filter(untold).collect();
    outcomes.extend(left);
    Ok(outcomes)
}

/// Takes back the newest run that has something in force, and nothing that others have set.
///
/// # Errors
/// As [`revert`]; and [`ApplyError::Left`] where a value could not be taken back.
pub fn revert_newest(root: &Path) -> Result<Vec<Outcome>, ApplyError> {
    let (mut journal, left) = open(root)?;
    nothing_left(&left)?;
    let newest = journal.runs().rev().find(|run| run.in_force().next().is_some()).map(|run| run.run);
    let Some(run) = newest else { return Ok(Vec::new()) };
    let outcomes = release(root, &mut journal, run, REVERTED, |_| true)?;
    stop_keeping(root, &journal, &outcomes)?;
    nothing_left(&outcomes)?;
    Ok(outcomes)
}

/// Opens the journal and takes back what a crash left half made. Gives what of that could not be taken back.
fn open(root: &Path) -> Result<(Journal, Vec<Outcome>), ApplyError> {
    let mut journal = Journal::open(root)?;
    let cut_off: Vec<u64> = journal
        .runs()
        .filter(|run| !run.done && run.in_force().next().is_some() && !run.waits(now()))
        .map(|run| run.run)
        .collect();
    let mut left = Vec::new();
    for run in cut_off.into_iter().rev() {
        left.extend(undo_run(root, &mut journal, run)?);
    }
    // A crash may also have come between the end of a run and our files.
    keep(root, &journal, None)?;
    Ok((journal, left))
}

/// Takes back a run that did not come to its end; gives what could not be taken back.
fn undo_run(root: &Path, journal: &mut Journal, run: u64) -> Result<Vec<Outcome>, ApplyError> {
    let mut outcomes = release(root, journal, run, UNDONE, |_| true)?;
    stop_keeping(root, journal, &outcomes)?;
    outcomes.retain(|outcome| outcome.error.is_some());
    Ok(outcomes)
}

fn nothing_left(left: &[Outcome]) -> Result<(), ApplyError> {
    let errors: Vec<&str> = left.iter().filter_map(|outcome| outcome.error.as_deref()).collect();
    if errors.is_empty() { Ok(()) } else { Err(ApplyError::Left(errors.join("; "))) }
}

/// Gives the facts of a run their values from before, unless others have changed them since.
fn release(
    root: &Path,
    journal: &mut Journal,
    run: u64,
    why: &str,
    wanted: impl Fn(&Changed) -> bool,
) -> Result<Vec<Outcome>, ApplyError> {
    let of_run = journal.runs().find(|r| r.run == run);
    let changes: Vec<Changed> =
        of_run.into_iter().flat_map(Run::in_force).filter(|c| wanted(c)).cloned().collect();
    let mut outcomes = Vec::new();
    for change in changes.into_iter().rev() {
        let (current, what) = match give_back(root, &change) {
            Ok((current, ours)) => (current, if ours { why } else { OTHERS }),
            Err(error) => {
                let (fact, from, to) = (change.fact, change.after.clone(), change.after);
                outcomes.push(Outcome {
                    fact,
                    from,
                    to,
                    what: STUCK.to_owned(),
                    error: Some(error.to_string()),
                });
                continue;
            }
        };
        let facts = vec![change.fact.clone()];
        journal.append(Record::Released { run, time: now(), facts, why: what.to_owned() })?;
        let to = if what == OTHERS { current } else { change.before };
        outcomes.push(Outcome {
            fact: change.fact,
            from: change.after,
            to,
            what: what.to_owned(),
            error: None,
        });
    }
    Ok(outcomes)
}

/// Writes the value from before if the one in force is ours. Gives the value that was in force, and whether the fact
/// has its value from before now.
fn give_back(root: &Path, change: &Changed) -> Result<(String, bool), ApplyError> {
    let settable = settable(&change.fact)?;
    let current = match read(root, &change.fact, &settable) {
        // A device that is gone has no value to give back.
        Err(ApplyError::Io { source, .. }) if is_gone(&source) => return Ok(("gone".to_owned(), false)),
        current => current?,
    };
    if same(&current, &change.before) {
        return Ok((current, true));
    }
    let ours = same(&current, &change.after);
    if ours {
        write(root, &change.fact, &settable, &change.before)?;
    }
    Ok((current, ours))
}

fn is_gone(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let number = error.raw_os_error();
    [Errno::NOENT, Errno::NODEV, Errno::NXIO].iter().any(|gone| number == Some(gone.raw_os_error()))
}

fn make(root: &Path, change: &Changed) -> Result<(), ApplyError> {
    let settable = settable(&change.fact)?;
    write(root, &change.fact, &settable, &change.after)?;
    let made = in_force(root, change);
    if made.is_err() {
        // The kernel took another value, which is not ours to take back later.
        write(root, &change.fact, &settable, &change.before)?;
    }
    made
}

fn in_force(root: &Path, change: &Changed) -> Result<(), ApplyError> {
    let found = read(root, &change.fact, &settable(&change.fact)?)?;
    if same(&found, &change.after) {
        return Ok(());
    }
    Err(ApplyError::NotInForce { fact: change.fact.clone(), wanted: change.after.clone(), found })
}

/// Writes our files again after these were taken back. tuned gives a value back that it found when it began with ours, and that
/// may be ours: it is taken back once more. A value that the former profile sets otherwise by now is none of ours.
fn stop_keeping(root: &Path, journal: &Journal, outcomes: &[Outcome]) -> Result<(), ApplyError> {
    if !keep(root, journal, None)? {
        return Ok(());
    }
    let mut ours: BTreeMap<&str, Vec<&Outcome>> = BTreeMap::new();
    for outcome in outcomes.iter().filter(|o| o.what == REVERTED || o.what == UNDONE) {
        ours.entry(&outcome.fact).or_default().push(outcome);
    }
    for (fact, ours) in ours {
        let (settable, Some(last)) = (settable(fact)?, ours.last()) else { continue };
        match read(root, fact, &settable) {
            Ok(found) if !same(&found, &last.to) => {
                if ours.iter().any(|outcome| same(&found, &outcome.from)) {
                    write(root, fact, &settable, &last.to)?;
                }
            }
            Err(ApplyError::Io { source, .. }) if is_gone(&source) => {}
            other => drop(other?),
        }
    }
    Ok(())
}

/// Writes our own files so that they hold what is in force, and nothing else; removes those that hold nothing. A run that
/// has no end yet is not made permanent, but for this one. Says whether tuned has changed its profile, and so may have set values.
fn keep(root: &Path, journal: &Journal, ending: Option<u64>) -> Result<bool, ApplyError> {
    // Of several changes of one fact the last counts.
    let mut in_force: BTreeMap<&str, &Changed> = BTreeMap::new();
    let lasting = journal.runs().filter(|run| run.done || Some(run.run) == ending);
    for change in lasting.flat_map(Run::in_force) {
        in_force.insert(&change.fact, change);
    }
    let (tree, tuned) = (Tree::below(root), Tuned::of(root));
    let place = tuned.as_ref().and_then(Tuned::place);
    let (mut lines, mut profile) = (Vec::new(), false);
    for change in in_force.values() {
        let settable = settable(&change.fact)?;
        let manager = settable.interface().map_or(Manager::Nobody, |name| Manager::of(&tree, name));
        // The journal is a file: what of it goes into a script or a rule is looked at again.
        plain(&change.fact, &change.after)?;
        let said = permanent::comment(&format!("{} (was: {})", change.rule, change.before));
        for keeper in settable.keepers(&manager, place) {
            let line = settable.line(&change.after, &keeper);
            profile |= matches!(keeper, Keeper::TunedSysctl(_) | Keeper::TunedSysfs(_));
            lines.push((keeper, format!("{said}{line}\n")));
        }
    }
    let written = |lines| {
        permanent::write(root, lines, tuned.as_ref())
            .map_err(|(path, source)| ApplyError::Keep { path, source })
    };
    let Some(tuned) = &tuned else { return written(lines).map(|_| false) };
    // Our profile is there as long as it is in effect.
    if profile {
        let changed = written(lines)?;
        return Ok(tuned.choose_ours(root, changed)?);
    }
    let chosen = tuned.choose_former(root)?;
    written(lines)?;
    Ok(chosen)
}

/// Refuses a value that could be more than a value where it is written.
fn plain(fact: &str, value: &str) -> Result<(), ApplyError> {
    if !value.is_empty() && value.chars().all(|c| c.is_ascii_alphanumeric() || " +-_.,:/".contains(c)) {
        return Ok(());
    }
    Err(ApplyError::NotPlain { fact: fact.to_owned(), value: value.to_owned() })
}

fn settable(fact: &str) -> Result<Settable, ApplyError> {
    Settable::of(&Fact::from(fact)).ok_or_else(|| ApplyError::NotSettable { fact: fact.to_owned() })
}

/// The value in force: of a file with choices the chosen one, of a policy with its number the name.
fn read(root: &Path, fact: &str, settable: &Settable) -> Result<String, ApplyError> {
    let path = root.join(&settable.file);
    let text = match settable.program() {
        Some(program) => program.read(root, &settable.file),
        None => fs::read_to_string(&path),
    };
    let text = text.map_err(|source| io_error(fact, "read", path, source))?;
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(inner, _)| inner);
    let text = chosen.unwrap_or(&text);
    // `layer2+3 2`
    let named = settable.file.contains("/bonding/").then(|| text.split_whitespace().next()).flatten();
    Ok(named.unwrap_or(&text.split_whitespace().collect::<Vec<_>>().join(" ")).to_owned())
}

fn write(root: &Path, fact: &str, settable: &Settable, value: &str) -> Result<(), ApplyError> {
    let path = root.join(&settable.file);
    crash::point();
    let written = match settable.program() {
        Some(program) => program.write(root, &settable.file, value),
        None if is_live(root) || is_kernels(&path) => fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|mut file| file.write_all(value.as_bytes())),
        // In a copy of a machine it is a file, whose value must not be half there. It is never made.
        None => fs::canonicalize(&path).and_then(|path| replace::replace(&path, value, false)),
    };
    written.map_err(|source| io_error(fact, "write", path, source))
}

/// Whether a file is one of procfs or sysfs.
fn is_kernels(path: &Path) -> bool {
    const SYSFS: u64 = 0x6265_6572;
    let kind = rustix::fs::statfs(path).map(|stat| stat.f_type as u64);
    kind.is_ok_and(|kind| kind == SYSFS || kind == rustix::fs::PROC_SUPER_MAGIC as u64)
}

fn io_error(fact: &str, what: &'static str, path: PathBuf, source: io::Error) -> ApplyError {
    ApplyError::Io { fact: fact.to_owned(), what, path, source }
}

/// Whether two texts are one value: white space does not count, and the kernel shows yes and no as it likes.
fn same(a: &str, b: &str) -> bool {
    let plain = |text: &str| match text {
        "Y" => "1".to_owned(),
        "N" => "0".to_owned(),
        other => other.split_whitespace().collect::<Vec<_>>().join(" "),
    };
    plain(a) == plain(b)
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
