//! Whose histories can be looked at: the processes of the cluster, those that have ended and left theirs on a disk, those in a
//! recording. A clock that is off is known, and asked in its time.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use analytics::{Ended, Origin, Question, Recording, Reply, Request, Source};
use anyhow::{Context, Result, anyhow, bail};
use tokio::task::JoinSet;
use wire::admin::{AdminReply, AdminRequest};

use super::{names::Names, printable::printable};
use crate::{
    cluster_dir::ClusterDir,
    commands::ask::{ASK_PATIENCE, Census, parsed},
    link::Link,
};

/// How long a process may take for an answer: it may have weeks to read.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same for one that did not answer the last time: who asks every second must not wait so long for it.
const SILENT_PATIENCE: Duration = Duration::from_secs(1);

/// Where a history is.
#[derive(Clone)]
enum Place {
    /// With a process: its own, or that of one that has ended beside it.
    Process(Link, Vec<SocketAddr>, Option<String>),
    /// On this machine, without a process.
    Files(PathBuf, String),
    /// In a recording, by number.
    Recorded(Arc<Recording>, usize),
}

/// A history that can be looked at.
#[derive(Clone)]
pub struct Member {
    /// Whose it is; the name is like nobody else's of its role.
    pub origin: Origin,
    /// Its process has ended.
    pub ended: bool,
    /// By how much its clock is ahead of ours, seconds.
    pub ahead: i64,
    /// It did not answer the last time; known to all copies.
    silent: Arc<AtomicBool>,
    place: Place,
}

impl Member {
    /// Asks, in its own time.
    pub async fn ask(&self, request: Request) -> Result<Reply> {
        let shifted = |at: u64| at.saturating_add_signed(self.ahead);
        let of = |ended: &Option<String>| match &self.place {
            Place::Process(_, _, Some(dir)) | Place::Files(_, dir) => Some(dir.clone()),
            _ => ended.clone(),
        };
        let request = match request {
            Request::Query(question) => Request::Query(Question {
                you: self.origin.name.clone(),
                fs: self.origin.fs,
                after: shifted(question.after),
                to: shifted(question.to),
                ended: of(&question.ended),
                ..question
            }),
            Request::Records { after, to, ended } => {
                Request::Records { after: shifted(after), to: shifted(to), ended: of(&ended) }
            }
            Request::Hello => Request::Hello,
        };
        let patience = if self.silent.load(Relaxed) { SILENT_PATIENCE } else { PATIENCE };
        let reply = self.place.ask(request, patience).await;
        self.silent.store(reply.is_err(), Relaxed);
        reply
    }
}

impl Place {
    async fn ask(&self, request: Request, patience: Duration) -> Result<Reply> {
        let text = serde_json::to_string(&request)?;
        match self.clone() {
            Place::Process(link, addrs, _) => {
                match link.admin(&addrs, &AdminRequest::Analytics { question: text }, patience).await? {
                    AdminReply::Json(text) => Ok(serde_json::from_str(&text)?),
                    AdminReply::Done => bail!("unexpected answer"),
                }
            }
            Place::Files(all, _) => {
                let read = move || analytics::answer(&text, None, Some(&all));
                Ok(serde_json::from_str(&tokio::task::spawn_blocking(read).await??)?)
            }
            Place::Recorded(recording, at) => {
                let Request::Query(question) = request else { bail!("a recording answers queries only") };
                let section = recording.sections.get(at).context("no such process in the recording")?;
                Ok(Reply::Answer(analytics::evaluate(&question, &Source::Recorded(section))?))
            }
        }
    }
}

/// Those in a recording.
pub fn of_recording(recording: &Arc<Recording>) -> Vec<Member> {
    let section = |(at, section): (usize, &analytics::Section)| Member {
        origin: section.origin.clone(),
        ended: false,
        ahead: 0,
        silent: Arc::default(),
        place: Place::Recorded(Arc::clone(recording), at),
    };
    recording.sections.iter().enumerate().map(section).collect()
}

/// Those of a cluster, and what they are called.
pub fn of_cluster(census: Census, link: &Link) -> Result<(Vec<Member>, Names)> {
    let report = census.report.context("the manager knows who there is, and what they are called")?;
    let names = Names::of(&report);
    let mut clients = report.clients.iter();
    let mut members = Vec::new();
    for process in census.processes {
        // Clients stand in the order of the report.
        let client = (process.role == "client").then(|| clients.next()).flatten();
        members.push(Member {
            origin: Origin {
                name: client.map_or(process.name, |client| names.session(client.session.0)),
                role: process.role.to_owned(),
                host: client.map(|client| client.process.host.clone()).unwrap_or_default(),
                fs: client.map_or(0, |client| client.fs.0),
                session: client.map_or(0, |client| client.session.0),
            },
            ended: false,
            ahead: 0,
            silent: Arc::default(),
            place: Place::Process(link.clone(), parsed(&process.addresses), None),
        });
    }
    Ok((members, names))
}

/// Puts those that have ended and left their histories beside those that have not: as they are now.
pub async fn find_ended(dir: &ClusterDir, members: &mut Vec<Member>, names: &mut Names) {
    members.retain(|member| !member.ended);
    let mut left = local(dir);
    left.extend(greet(members).await);
    let mut seen = BTreeSet::new();
    for (ended, place, ahead) in left {
        if seen.insert(ended.id) {
            let origin = distinct(ended.origin, members);
            if origin.session > 0 {
                names.had_session(origin.session, &origin.name, &origin.host);
            }
            members.push(Member { origin, ended: true, ahead, silent: Arc::default(), place });
        }
    }
}

type Left = (Ended, Place, i64);

/// The histories on this machine whose processes have ended. What cannot be read is not there.
fn local(dir: &ClusterDir) -> Vec<Left> {
    let all = dir.histories();
    let left = analytics::histories(&all).unwrap_or_default().into_iter();
    left.map(|ended| (ended.clone(), Place::Files(all.clone(), ended.dir), 0)).collect()
}

/// Finds out how far everyone's clock is ahead, and what lies beside them.
async fn greet(members: &mut [Member]) -> Vec<Left> {
    let mut asked = JoinSet::new();
    for (at, member) in members.iter().enumerate() {
        let place = member.place.clone();
        asked.spawn(async move {
            let begun = analytics::now_us();
            let reply = place.ask(Request::Hello, ASK_PATIENCE).await;
            (at, begun, reply)
        });
    }
    let mut left = Vec::new();
    while let Some(Ok((at, begun, reply))) = asked.join_next().await {
        members[at].silent.store(reply.is_err(), Relaxed);
        let Ok(Reply::Hello { now_us, ended }) = reply else { continue };
        // It looked at its clock half-way, as far as can be known.
        let ours = begun.midpoint(analytics::now_us());
        let ahead = ((now_us as f64 - ours as f64) / 1e6).round() as i64;
        members[at].ahead = ahead;
        if let Place::Process(link, addrs, _) = &members[at].place {
            let place = |dir: &String| Place::Process(link.clone(), addrs.clone(), Some(dir.clone()));
            left.extend(ended.into_iter().map(|ended| (ended.clone(), place(&ended.dir), ahead)));
        }
    }
    left
}

/// Two mounts of one path on two machines are told apart. A node that is away keeps its name.
fn distinct(origin: Origin, members: &[Member]) -> Origin {
    let name = printable(origin.name.as_bytes());
    let taken = members.iter().any(|m| m.origin.role == origin.role && m.origin.name == name);
    match origin.role == "client" && taken {
        true => Origin { name: format!("{}:{name}", origin.host), ..origin },
        false => Origin { name, ..origin },
    }
}

/// What members are called.
pub fn called(members: &[Member], role: Option<&str>) -> Vec<String> {
    let able = members.iter().filter(|member| role.is_none_or(|role| member.origin.role == role));
    let names: BTreeSet<&str> = able.map(|member| member.origin.name.as_str()).collect();
    names.into_iter().map(str::to_owned).collect()
}

/// The answer to a query.
pub fn answer(reply: Reply) -> Result<analytics::Answer> {
    match reply {
        Reply::Answer(answer) => Ok(answer),
        _ => Err(anyhow!("unexpected answer")),
    }
}
