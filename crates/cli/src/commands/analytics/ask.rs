//! A query put to every process that may know, and their answers as one.
//! Names in it (mounts, nodes, paths) become the numbers under which they were recorded, and back. A process that does
//! not answer is named; what it had recorded is missing from the sums.

use std::{net::SocketAddr, time::Duration};

use analytics::{Answer, AnswerRow, Query, Question, Want};
use anyhow::{Context, Result, anyhow, bail};
use base::stats::{Measure, STATISTICS, Set, Source};
use tokio::task::JoinSet;
use wire::admin::{AdminReply, AdminRequest};

use super::names::Names;
use crate::{
    cluster_dir::ClusterDir,
    commands::ask::{Census, parsed},
    link::Link,
};

/// How long a process may take for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same for one that did not answer the last time.
const SILENT_PATIENCE: Duration = Duration::from_secs(1);

/// Which time is asked about, seconds.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// From so long ago ...
    pub from_ago: u64,
    /// ... up to so long ago.
    pub to_ago: u64,
    /// A figure for each step of so long; 0: one for all.
    pub step: u64,
}

/// Who can be asked.
struct Member {
    name: String,
    role: &'static str,
    addrs: Vec<SocketAddr>,
    /// What it has mounted.
    fs: u32,
    /// It did not answer the last time.
    silent: bool,
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
    /// Who was asked, and how many seconds it had recorded of the time; none: it did not answer.
    pub processes: Vec<(String, Option<u32>)>,
    /// All that was counted of what was asked, whether it could be told apart or not.
    pub total: f64,
    /// The share of it that could be told apart, 0 to 1.
    pub coverage: f64,
}

impl Found {
    /// The rows as they are looked at: sizes and latencies by rising value, everything else by weight.
    pub fn in_order(&self) -> Vec<&(Vec<String>, AnswerRow)> {
        let mut rows: Vec<&(Vec<String>, AnswerRow)> = self.rows.iter().collect();
        if let Some(axis) = self.query.breakdowns.first().filter(|d| matches!(**d, "latency" | "size")) {
            rows.sort_by_key(|(values, _)| analytics::bucket(axis, &values[0]).map_or(u64::MAX, |n| n + 1));
        }
        rows
    }

    /// Fails if somebody did not answer.
    pub fn all_answered(&self) -> Result<()> {
        let silent: Vec<&str> =
            self.processes.iter().filter(|p| p.1.is_none()).map(|p| p.0.as_str()).collect();
        match silent.is_empty() {
            true => Ok(()),
            false => bail!("not in the sums, since they do not answer: {}", silent.join(", ")),
        }
    }
}

/// The processes of a cluster, to be asked again and again.
pub struct Watch {
    link: Link,
    members: Vec<Member>,
    names: Names,
}

impl Watch {
    /// Finds out who there is.
    pub async fn begin(dir: &ClusterDir) -> Result<Watch> {
        let link = Link::new(dir)?;
        let mut watch = Watch { link, members: Vec::new(), names: Names::default() };
        watch.look(dir).await?;
        Ok(watch)
    }

    /// Its end of the network.
    pub fn link(&self) -> Link {
        self.link.clone()
    }

    /// Finds out once more.
    pub async fn look(&mut self, dir: &ClusterDir) -> Result<()> {
        let census = Census::take(dir, &self.link).await;
        let report = census.report.context("the manager knows who there is, and what they are called")?;
        self.names = Names::of(&report);
        let mut clients = report.clients.iter();
        let silent: Vec<String> = self.members.drain(..).filter(|m| m.silent).map(|m| m.name).collect();
        self.members = census
            .processes
            .into_iter()
            .map(|process| {
                // Clients stand in the order of the report.
                let client = (process.role == "client").then(|| clients.next()).flatten();
                let name = client.map_or(process.name, |c| self.names.session(c.session.0));
                Member {
                    silent: silent.contains(&name),
                    name,
                    role: process.role,
                    addrs: parsed(&process.addresses),
                    fs: client.map_or(0, |c| c.fs.0),
                }
            })
            .collect();
        Ok(())
    }

    /// Asks a query; at most `rows_max` rows are kept apart.
    pub async fn ask(&mut self, text: &str, span: Span, rows_max: usize) -> Result<Found> {
        let query = Query::parse(text)?;
        let mut numbered = query.clone();
        self.number(&mut numbered, span).await?;
        let (answer, processes) = self.put(&numbered, span).await?;
        for (name, recorded) in &processes {
            let asked = self.members.iter_mut().find(|member| member.name == *name);
            asked.into_iter().for_each(|member| member.silent = recorded.is_none());
        }
        let mut answer = answer;
        let (total, coverage) = (answer.total() + answer.unfiltered, answer.coverage());
        answer.shorten(rows_max);
        let rows = std::mem::take(&mut answer.rows);
        self.names.learn(&self.link, rows.iter().flat_map(|(key, _)| key)).await;
        let shown = |(key, row): (Vec<analytics::Value>, AnswerRow)| {
            let values = query.breakdowns.iter().zip(&key);
            (values.map(|(dimension, value)| self.names.show(dimension, value)).collect(), row)
        };
        let rows = rows.into_iter().map(shown).collect();
        Ok(Found { query, span, now: base::stats::now(), rows, answer, processes, total, coverage })
    }

    /// Puts a query without names to all who may know.
    async fn put(&self, query: &Query, span: Span) -> Result<(Answer, Vec<(String, Option<u32>)>)> {
        let role = match query.statistic.source {
            Source::Operations(Set::File, _) => Some("client"),
            Source::Operations(Set::Strip, _) => Some("nsd"),
            Source::Operations(Set::Manager, _) => Some("manager"),
            Source::Family => None,
        };
        let mut asked = JoinSet::new();
        let able = self.members.iter().filter(|m| role.is_none_or(|role| m.role == role));
        let able: Vec<&Member> = able.collect();
        for (at, member) in able.iter().enumerate() {
            let question = Question {
                query: query.to_string(),
                you: member.name.clone(),
                fs: member.fs,
                from_ago: span.from_ago,
                to_ago: span.to_ago,
                step: span.step,
            };
            let request = AdminRequest::Analytics { question: serde_json::to_string(&question)? };
            let (link, addrs) = (self.link.clone(), member.addrs.clone());
            let patience = if member.silent { SILENT_PATIENCE } else { PATIENCE };
            asked.spawn(async move { (at, one(&link, &addrs, &request, patience).await) });
        }
        let mut processes: Vec<(String, Option<u32>)> = able.iter().map(|m| (m.name.clone(), None)).collect();
        let mut all = Answer::default();
        while let Some(Ok((at, answer))) = asked.join_next().await {
            match answer {
                Ok(answer) => {
                    processes[at].1 = Some(answer.recorded.iter().sum());
                    all.merge(answer);
                }
                Err(error) => tracing::debug!("{}: {error:#}", processes[at].0),
            }
        }
        Ok((all, processes))
    }

    /// Puts numbers in the place of names.
    async fn number(&mut self, query: &mut Query, span: Span) -> Result<()> {
        let statistic = query.statistic;
        for at in 0..query.filters.len() {
            let of_mounts = matches!(statistic.source, Source::Operations(Set::File, _));
            let dimension = query.filters[at].dimension;
            let mut numbered = Vec::new();
            for want in query.filters[at].wanted.clone() {
                let found: Vec<String> = match dimension {
                    "client" if !of_mounts => self.names.sessions_of(&want.text)?,
                    "client" | "process" => vec![self.member(dimension, &want.text, of_mounts)?],
                    "peer" => vec![self.names.peer_of(&want.text)],
                    "file" => self.files_of(query, &want.text, span).await?,
                    _ => vec![want.text.clone()],
                };
                let bucket = want.bucket;
                numbered.extend(found.into_iter().map(|text| Want { text, bucket }));
            }
            query.filters[at].wanted = numbered;
        }
        Ok(())
    }

    fn member(&self, dimension: &str, name: &str, of_mounts: bool) -> Result<String> {
        let able: Vec<&str> = self
            .members
            .iter()
            .filter(|member| !of_mounts || member.role == "client")
            .map(|member| member.name.as_str())
            .collect();
        match able.contains(&name) {
            true => Ok(name.to_owned()),
            false => Err(anyhow!("there is no {dimension} {name:?}; possible: {}", able.join(", "))),
        }
    }

    /// The files of a path: of those that were used in the time asked about.
    async fn files_of(&mut self, query: &Query, path: &str, span: Span) -> Result<Vec<String>> {
        let number = |text: &str| text.parse::<u64>().is_ok();
        // As files without a name are shown.
        let bare = path.strip_prefix("removed (").and_then(|rest| rest.strip_suffix(')')).unwrap_or(path);
        if bare.split_once(':').is_some_and(|(fs, inode)| number(fs) && number(inode)) {
            return Ok(vec![bare.to_owned()]);
        }
        // A file that was used is one, even if no byte of it was.
        let of_operations = |set| Source::Operations(set, Measure::Operations);
        let statistic = match query.statistic.source {
            Source::Operations(set, _) => STATISTICS.iter().find(|s| s.source == of_operations(set)),
            Source::Family => None,
        };
        let statistic = statistic.unwrap_or(query.statistic);
        let all = Query { statistic, filters: Vec::new(), breakdowns: vec!["file"] };
        let (answer, _) = self.put(&all, Span { step: 0, ..span }).await?;
        self.names.learn(&self.link, answer.rows.iter().flat_map(|(key, _)| key)).await;
        let found = answer.rows.iter().filter_map(|(key, _)| match key.first() {
            Some(value @ analytics::Value::File(fs, inode)) if self.names.show("file", value) == path => {
                Some(format!("{fs}:{inode}"))
            }
            _ => None,
        });
        let found: Vec<String> = found.collect();
        if found.is_empty() {
            let known = answer.rows.iter().take(8).map(|(key, _)| self.names.show("file", &key[0]));
            let known: Vec<String> = known.collect();
            bail!(
                "no file {path:?} was used in that time; the first of those that were: {}",
                known.join(", ")
            );
        }
        Ok(found)
    }
}

async fn one(
    link: &Link,
    addrs: &[SocketAddr],
    request: &AdminRequest,
    patience: Duration,
) -> Result<Answer> {
    match link.admin(addrs, request, patience).await? {
        AdminReply::Json(text) => Ok(serde_json::from_str(&text)?),
        AdminReply::Done => bail!("unexpected answer"),
    }
}
