//! A query put to every process that may know, and their answers as one.
//! Names in it (mounts, nodes, paths) become the numbers under which they were recorded, and back. A process that does
//! not answer is named; of what it had recorded only the history that it left is in the sums.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Instant};

use analytics::{Answer, AnswerRow, Comparison, Filter, Query, Question, Recording, Request, Value};
use anyhow::{Context, Result, bail};
use base::{
    stats::{Set, Source, Statistic},
    when::date_time,
};
use tokio::{task::JoinSet, time::timeout};

use super::{
    members::{self, Member},
    names::Names,
};
use crate::{
    args::{Time, When},
    cluster_dir::ClusterDir,
    commands::ask::{ASK_PATIENCE, Census},
    input,
    link::Link,
};

/// Which time is asked about, seconds.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// From so long ago ...
    pub from_ago: u64,
    /// ... up to so long ago.
    pub to_ago: u64,
    /// A figure for each step of so long; 0: one for all.
    pub step: u64,
    /// Whether a filter may name what nobody used in that time. It is a mistake where one asks once; where each new second is asked
    /// for, it is idle.
    pub idle: bool,
}

impl Span {
    /// What a command line means.
    pub fn of(time: &Time, now: u64, step: u64) -> Result<Span> {
        let ago = |option: &str, when: When| {
            when.ago(now).with_context(|| format!("{option} is yet to come: it is {}", date_time(now)))
        };
        let (from, to) = (ago("--from", time.from)?, ago("--to", time.to)?);
        if from <= to {
            bail!(
                "--from {} is not before --to {}: give the earlier time as --from, as in --from -5m --to now",
                date_time(now.saturating_sub(from)),
                date_time(now.saturating_sub(to))
            );
        }
        Ok(Span { from_ago: from, to_ago: to, step, idle: false })
    }

    /// The same from a whole unit on, in steps of whole units.
    fn widened(self, now: u64, unit: u64) -> Span {
        let begin = now.saturating_sub(self.from_ago) / unit * unit;
        let end = now.saturating_sub(self.to_ago).div_ceil(unit) * unit;
        Span {
            from_ago: now - begin,
            to_ago: now.saturating_sub(end),
            step: self.step.div_ceil(unit) * unit,
            ..self
        }
    }
}

/// What a query found.
pub struct Found {
    /// As it was asked, with names.
    pub query: Query,
    /// The time it is about.
    pub span: Span,
    /// When it was asked, seconds since 1970.
    pub now: u64,
    /// By the values of the breakdowns, as they are shown; the heaviest first.
    pub rows: Vec<(Vec<String>, AnswerRow)>,
    /// The same without the rows.
    pub answer: Answer,
    /// Who was asked.
    pub processes: Vec<Process>,
    /// Of each of them by name, the seconds of each step that it recorded: in the others it has a gap.
    pub recorded: BTreeMap<String, Vec<u32>>,
    /// All that was counted of what was asked, whether it could be told apart or not.
    pub total: f64,
    /// The share of it that could be told apart, 0 to 1.
    pub coverage: f64,
}

/// One that may know.
pub struct Process {
    /// As it is shown.
    pub name: String,
    /// It answered, or has ended in order, or left a history of the whole time.
    pub answers: bool,
    /// How many seconds of the time it recorded; none: not known, so it is not in the sums.
    pub recorded: Option<u32>,
}

impl Found {
    /// Who is not in the sums, since it does not answer and left nothing.
    pub fn silent(&self) -> impl Iterator<Item = &str> {
        self.processes
            .iter()
            .filter(|process| process.recorded.is_none())
            .map(|process| process.name.as_str())
    }

    /// The breakdown whose values are processes, if there is one: by its place.
    pub fn by_process(&self) -> Option<usize> {
        let of_mounts = matches!(self.query.statistic.source, Source::Operations(Set::File, _));
        self.query.breakdowns.iter().position(|d| *d == "process" || of_mounts && *d == "client")
    }

    /// Seconds of each step that a row's process recorded; of a row of several, by the one that recorded most of it.
    pub fn recorded_of(&self, values: &[String]) -> &[u32] {
        let process = self.by_process().and_then(|at| values.get(at));
        process.and_then(|process| self.recorded.get(process)).unwrap_or(&self.answer.recorded)
    }

    /// The rows as they are looked at: sizes and latencies by rising value, everything else by weight.
    pub fn in_order(&self) -> Vec<&(Vec<String>, AnswerRow)> {
        let mut rows: Vec<&(Vec<String>, AnswerRow)> = self.rows.iter().collect();
        if let Some(axis) = self.query.breakdowns.first().filter(|d| analytics::is_ordered(d)) {
            rows.sort_by_key(|(values, _)| analytics::bucket(axis, &values[0]).map_or(u64::MAX, |n| n + 1));
        }
        rows
    }

    /// Fails if somebody is not in the sums.
    pub fn all_answered(&self) -> Result<()> {
        let silent: Vec<&str> = self.silent().collect();
        match silent.is_empty() {
            true => Ok(()),
            false => bail!("not in the sums, since they do not answer: {}", silent.join(", ")),
        }
    }
}

/// Histories, to be asked again and again.
pub struct Watch {
    pub(super) link: Option<Link>,
    pub(super) members: Vec<Member>,
    pub(super) names: Names,
    /// The present of a recording.
    clock: Option<Clock>,
}

/// The time in a recording as it passes.
struct Clock {
    begun: Instant,
    span: (u64, u64),
    /// Seconds of it in a second; 0: it stands at the end.
    speed: f64,
}

impl Watch {
    /// Finds out who there is.
    pub async fn begin(dir: &ClusterDir) -> Result<Watch> {
        let link = Link::new(dir)?;
        let (mut members, mut names) = members::of_cluster(Census::take(dir, &link).await, &link)?;
        members::find_ended(dir, &mut members, &mut names).await;
        Ok(Watch { link: Some(link), members, names, clock: None })
    }

    /// Of a recording instead. `speed`: how many of its seconds pass in one, from its beginning, that was `begun`; 0: its end is
    /// the present.
    pub fn replay(recording: &Arc<Recording>, speed: f64, begun: Instant) -> Result<Watch> {
        let names = recording.names.as_deref().map(Names::recorded).transpose();
        let names = names.context("the names in the recording")?.unwrap_or_default();
        let clock = Clock { begun, span: recording.span, speed };
        Ok(Watch { link: None, members: members::of_recording(recording), names, clock: Some(clock) })
    }

    /// The whole of a recording, at its end.
    pub fn recorded(file: &Path) -> Result<Watch> {
        Watch::replay(&read(file)?, 0.0, Instant::now())
    }

    /// When what is recorded begins; none: it is a cluster that is looked at.
    pub fn begins(&self) -> Option<u64> {
        self.clock.as_ref().map(|clock| clock.span.0)
    }

    /// Its end of the network; a recording has none.
    pub fn link(&self) -> Option<Link> {
        self.link.clone()
    }

    /// Finds out once more. Without the manager those that were known stay, and of those that have ended since what they left is
    /// found: of the manager itself too.
    pub async fn look(&mut self, dir: &ClusterDir) -> Result<()> {
        let Some(link) = &self.link else { return Ok(()) };
        // Somebody waits for the next second: not as long as a command would.
        let census =
            timeout(ASK_PATIENCE, Census::take(dir, link)).await.context("the manager does not answer");
        let found = census.and_then(|census| members::of_cluster(census, link));
        let failed = match found {
            Ok((members, names)) => {
                (self.members, self.names) = (members, names);
                Ok(())
            }
            Err(error) => Err(error),
        };
        members::find_ended(dir, &mut self.members, &mut self.names).await;
        failed
    }

    /// The present, seconds since 1970.
    pub fn now(&self) -> u64 {
        let Some(clock) = &self.clock else { return base::stats::now() };
        let (begin, end) = clock.span;
        match clock.speed > 0.0 {
            true => (begin + (clock.begun.elapsed().as_secs_f64() * clock.speed) as u64).min(end),
            false => end,
        }
    }

    /// Those whose histories can be looked at.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// What everyone and these files are called, to be recorded.
    pub async fn names_of(&mut self, files: &[Value]) -> Result<String> {
        self.names.learn(self.link.as_ref(), files.iter()).await;
        self.names.text()
    }

    /// Asks a query; at most `rows_max` rows are kept apart. Where minutes or hours are all that is left of the time, it is
    /// widened to whole ones, and so are the steps.
    pub async fn ask(&mut self, text: &str, span: Span, rows_max: usize) -> Result<Found> {
        let query = Query::parse(text)?;
        let (now, mut span) = (self.now(), span);
        let mut numbered = query.clone();
        let doubts = self.number(&mut numbered, now, span).await?;
        numbered.breakdowns = recorded(query.statistic, &query.breakdowns);
        // Names become shorter, but a directory becomes its files, and a pool its pdisks.
        Query::parse(&numbered.to_string())
            .context("more files than can be asked about at a time: ask for less")?;
        let (mut answer, mut processes, mut recorded_by) = self.put(&numbered, now, span, 1).await?;
        let unit = u64::from(answer.resolution);
        if unit > 1 {
            span = span.widened(now, unit);
            (answer, processes, recorded_by) = self.put(&numbered, now, span, unit).await?;
        }
        if !span.idle {
            self.all_known(&doubts, &answer, now, span)?;
        }
        let (total, coverage) = (answer.total() + answer.unfiltered, answer.coverage());
        let is_derived = |dimension: &str| query.statistic.derived_from(dimension).is_some();
        if query.breakdowns.iter().any(|dimension| is_derived(dimension)) {
            self.names.learn(self.link.as_ref(), answer.rows.iter().flat_map(|(key, _)| key)).await;
            self.derive(&query, &numbered.breakdowns, &mut answer);
        }
        answer.shorten(rows_max);
        let rows = std::mem::take(&mut answer.rows);
        self.names.learn(self.link.as_ref(), rows.iter().flat_map(|(key, _)| key)).await;
        let shown = |(key, row): (Vec<Value>, AnswerRow)| {
            let values = query.breakdowns.iter().zip(&key);
            let value = |(dimension, value): (&&'static str, &Value)| match value {
                // It was derived, and is as it is shown.
                Value::Text(text) if is_derived(dimension) => text.clone(),
                value => self.names.show(dimension, value),
            };
            (values.map(value).collect(), row)
        };
        let rows = rows.into_iter().map(shown).collect();
        Ok(Found { query, span, now, rows, answer, processes, recorded: recorded_by, total, coverage })
    }

    /// Rows of files become rows of the directories that they are in, those of pdisks rows of pools or nodes, those of clients rows of
    /// hosts, where those are asked for.
    fn derive(&self, query: &Query, recorded: &[&str], answer: &mut Answer) {
        let mut rows: BTreeMap<Vec<Value>, AnswerRow> = BTreeMap::new();
        for (key, row) in answer.rows.drain(..) {
            let value = |dimension: &&'static str| {
                let from = query.statistic.derived_from(dimension);
                let at = recorded.iter().position(|name| *name == from.unwrap_or(*dimension));
                match at.and_then(|at| key.get(at)) {
                    Some(value) if from.is_some() && *value != Value::Other => {
                        Value::Text(self.names.show(dimension, value))
                    }
                    Some(value) => value.clone(),
                    None => Value::Other,
                }
            };
            rows.entry(query.breakdowns.iter().map(value).collect()).or_default().merge(&row);
        }
        answer.rows = rows.into_iter().collect();
    }

    /// Puts a query without names to all who may know.
    pub(super) async fn put(
        &self,
        query: &Query,
        now: u64,
        span: Span,
        resolution: u64,
    ) -> Result<(Answer, Vec<Process>, BTreeMap<String, Vec<u32>>)> {
        let role = match query.statistic.source {
            Source::Operations(Set::File, _) => Some("client"),
            Source::Operations(Set::Strip, _) => Some("nsd"),
            Source::Operations(Set::Manager, _) => Some("manager"),
            Source::Family => None,
        };
        let mut asked = JoinSet::new();
        // Who is left out by a filter has nothing to say, not even of the seconds that were recorded.
        let of_mounts = role == Some("client");
        let meant = |member: &&Member| {
            let of_member = |f: &&Filter| f.dimension == "process" || of_mounts && f.dimension == "client";
            query.filters.iter().filter(of_member).all(|filter| {
                let named = filter.wanted.iter().any(|want| want.text == member.origin.name);
                named == (filter.comparison == Comparison::Is)
            })
        };
        let able = self.members.iter().filter(|m| role.is_none_or(|role| m.origin.role == role));
        let able: Vec<&Member> = able.filter(meant).collect();
        for (at, member) in able.iter().enumerate() {
            let question = Question {
                query: query.to_string(),
                you: member.origin.name.clone(),
                fs: member.origin.fs,
                after: now.saturating_sub(span.from_ago),
                to: now.saturating_sub(span.to_ago),
                step: span.step,
                resolution,
                ended: None,
            };
            let member = Member::clone(member);
            asked.spawn(async move {
                let reply = member.ask(Request::Query(question)).await;
                (at, reply.and_then(members::answer))
            });
        }
        let mut recorded: Vec<Option<u32>> = vec![None; able.len()];
        let (mut all, mut by_name) = (None::<Answer>, BTreeMap::<String, Vec<u32>>::new());
        while let Some(Ok((at, answer))) = asked.join_next().await {
            match answer {
                Ok(answer) => {
                    recorded[at] = Some(answer.recorded.iter().sum());
                    // A process that was started anew has two histories of one name.
                    let name = able[at].origin.name.clone();
                    let own = by_name.entry(name).or_insert_with(|| vec![0; answer.recorded.len()]);
                    own.iter_mut().zip(&answer.recorded).for_each(|(own, n)| *own = (*own).max(*n));
                    match &mut all {
                        Some(all) => all.merge(answer),
                        None => all = Some(answer),
                    }
                }
                Err(error) => tracing::debug!("{}: {error:#}", able[at].origin.name),
            }
        }
        // One that was killed may have left its history: that is in the sums, and says nothing of the time after it.
        let whole = (span.from_ago - span.to_ago) as u32;
        let told = |ended: bool| able.iter().zip(&recorded).filter(move |(member, _)| member.ended == ended);
        let mut processes: Vec<Process> = Vec::new();
        for (member, recorded) in told(false) {
            let name = member.origin.name.clone();
            processes.push(Process { name, answers: recorded.is_some(), recorded: *recorded });
        }
        for (member, recorded) in told(true).filter(|(_, recorded)| recorded.unwrap_or(0) > 0) {
            let name = &member.origin.name;
            match processes.iter_mut().find(|process| process.name == *name) {
                Some(process) => {
                    process.answers |= *recorded >= Some(whole);
                    process.recorded = process.recorded.max(*recorded);
                }
                None => processes.push(Process { name: name.clone(), answers: true, recorded: *recorded }),
            }
        }
        Ok((all.unwrap_or_default(), processes, by_name))
    }
}

/// Reads a recording.
pub fn read(file: &Path) -> Result<Arc<Recording>> {
    let read = input::check(file).and_then(|()| Recording::read(file));
    Ok(Arc::new(read.with_context(|| format!("read {}", file.display()))?))
}

/// What is recorded of what is asked for.
fn recorded(statistic: &Statistic, breakdowns: &[&'static str]) -> Vec<&'static str> {
    let mut all = Vec::new();
    for breakdown in breakdowns.iter().map(|name| statistic.derived_from(name).unwrap_or(*name)) {
        if !all.contains(&breakdown) {
            all.push(breakdown);
        }
    }
    all
}
