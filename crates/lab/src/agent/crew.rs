//! The leader of agents: lets all of them prepare a cell, starts them together, adds up what they gave.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};

use net::{Call, Endpoint, EndpointConfig, Peer, Service};

use super::{Answer, CLUSTER, OP, Outcome, PATIENCE, PORT, Request, Work};
use crate::{
    cell::{Cell, Figures},
    engine::{EngineError, EngineKind},
    environment::Environment,
    observe::Usage,
    plan::Figure,
    targets::Agents,
};

/// How long an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// From telling the agents to their common start.
const LEAD: Duration = Duration::from_millis(300);
/// Time between two questions.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// The leader's connections to all agents.
pub struct Crew {
    runtime: tokio::runtime::Runtime,
    peers: Vec<(String, Peer)>,
    writable: Vec<PathBuf>,
    /// Where each agent runs.
    pub environments: BTreeMap<String, Environment>,
    _endpoint: Endpoint,
}

impl Crew {
    /// Reaches every agent; the first that does not answer, or that does not offer what is wanted, is named.
    pub fn reach(wanted: &Agents) -> Result<Crew, EngineError> {
        let failed =
            |what: String, why: String| EngineError::Failed { program: format!("agent {what}"), why };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|e| failed("runtime".into(), e.to_string()))?;
        let _guard = runtime.enter();
        let cluster = wanted.cluster.unwrap_or(CLUSTER);
        let endpoint = Endpoint::start(EndpointConfig { cluster, ..EndpointConfig::default() })
            .map_err(|e| failed("endpoint".into(), e.to_string()))?;
        let mut peers = Vec::new();
        for agent in &wanted.addrs {
            let addr = resolve(agent).ok_or_else(|| failed(agent.clone(), "write HOST:PORT".into()))?;
            peers.push((agent.clone(), endpoint.peer(&[addr])));
        }
        drop(_guard);
        let writable = wanted.writable.clone();
        let mut crew = Crew { runtime, peers, writable, environments: BTreeMap::new(), _endpoint: endpoint };
        for n in 0..crew.peers.len() {
            let hello = Request::Hello { writable: crew.writable.clone() };
            if let Answer::Hello(environment) = crew.call(n, &hello)? {
                crew.environments.insert(crew.peers[n].0.clone(), *environment);
            }
        }
        Ok(crew)
    }

    fn call(&self, n: usize, request: &Request) -> Result<Answer, EngineError> {
        let (name, peer) = &self.peers[n];
        let failed = |why: String| EngineError::Failed { program: format!("agent {name}"), why };
        let body = serde_json::to_vec(request).map_err(|e| failed(e.to_string()))?;
        let call = Call {
            idempotent: matches!(request, Request::Hello { .. } | Request::Ask { .. } | Request::Stop { .. }),
            patience: Some(Duration::from_secs(3)),
            ..Call::new(Service::Lab, OP, body, Instant::now() + ANSWER_MAX)
        };
        let reply = self.runtime.block_on(peer.call(call)).map_err(|e| failed(e.to_string()))?;
        match serde_json::from_slice(&reply.body).map_err(|e| failed(e.to_string()))? {
            Answer::Refused(why) => Err(failed(why)),
            answer => Ok(answer),
        }
    }

    /// Runs one cell on as many agents as its step says, and adds up what they gave.
    pub fn run(
        &self,
        engine: EngineKind,
        cell: &Cell,
        seconds: f64,
        figure: Figure,
        stop: &AtomicBool,
    ) -> Result<(Figures, Usage, Vec<String>), EngineError> {
        // No two leaders, and no two cells of one, have the same.
        let id = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), cell.id());
        let count = (cell.step as usize).min(self.peers.len());
        let cell = Cell { step: 1, first: 0, ..cell.clone() };
        let work = Work { id, part: 0, engine, cell, seconds, figure, writable: self.writable.clone() };
        let outcome = self.lead(count, &work, stop);
        if outcome.is_err() {
            (0..count).for_each(|n| drop(self.call(n, &Request::Stop { id })));
        }
        let mut sum = (Figures::default(), Usage::default(), Vec::new());
        for (n, one) in outcome?.into_iter().enumerate() {
            let name = &self.peers[n].0;
            let failed = |why| EngineError::Failed { program: format!("agent {name}"), why };
            add(&mut sum, name, n, figure, one.figures.clone().map_err(failed)?, one);
        }
        Ok(sum)
    }

    fn lead(&self, count: usize, work: &Work, stop: &AtomicBool) -> Result<Vec<Outcome>, EngineError> {
        let id = work.id;
        for n in 0..count {
            self.call(n, &Request::Prepare(Box::new(Work { part: n as u32, ..work.clone() })))?;
        }
        let wait = |done: &dyn Fn(&Answer) -> bool, limit: Duration| -> Result<Vec<Answer>, EngineError> {
            let end = Instant::now() + limit;
            let mut answers = Vec::new();
            while answers.len() < count {
                if stop.load(Relaxed) {
                    return Err(EngineError::Stopped);
                }
                let answer = self.call(answers.len(), &Request::Ask { id })?;
                if done(&answer) {
                    answers.push(answer);
                } else if Instant::now() > end {
                    let program = format!("agent {}", self.peers[answers.len()].0);
                    return Err(EngineError::Late { program, seconds: limit.as_secs_f64() });
                } else {
                    std::thread::sleep(ASK_EVERY);
                }
            }
            Ok(answers)
        };
        wait(&|answer| matches!(answer, Answer::Ready | Answer::Done(_)), PATIENCE)?;
        let start = Instant::now() + LEAD;
        for n in 0..count {
            let delay_ms = start.saturating_duration_since(Instant::now()).as_millis() as u64;
            self.call(n, &Request::Start { id, delay_ms })?;
        }
        let limit = Duration::from_secs_f64(work.seconds * 2.0) + PATIENCE;
        let done = wait(&|answer| matches!(answer, Answer::Done(_)), limit)?;
        Ok(done.into_iter().filter_map(|a| if let Answer::Done(o) = a { Some(*o) } else { None }).collect())
    }
}

fn resolve(agent: &str) -> Option<SocketAddr> {
    use std::net::ToSocketAddrs;
    if let Ok(ip) = agent.parse::<std::net::IpAddr>() {
        return Some(SocketAddr::from((ip, PORT)));
    }
    let text = if agent.contains(':') { agent.to_owned() } else { format!("{agent}:{PORT}") };
    text.to_socket_addrs().ok()?.next()
}

type Sum = (Figures, Usage, Vec<String>);

fn add(sum: &mut Sum, name: &str, n: usize, figure: Figure, figures: Figures, one: Outcome) {
    let (all, usage, commands) = sum;
    all.parts.insert(name.to_owned(), figures.value(figure));
    all.operations += figures.operations;
    all.bytes += figures.bytes;
    all.notes.extend(figures.notes.into_iter().map(|note| format!("{name}: {note}")));
    // The slowest client's latency: an average would hide it.
    if let Some(latency) = figures.latency {
        let slower = all.latency.is_none_or(|have| latency.p99 > have.p99);
        all.latency = if slower { Some(latency) } else { all.latency };
    }
    usage.intervals = if n == 0 { one.usage.intervals } else { usage.intervals.min(one.usage.intervals) };
    usage.load_cpus += one.usage.load_cpus;
    usage.served_cpus += one.usage.served_cpus;
    usage.kernel_cpus += one.usage.kernel_cpus;
    usage.foreign_cpus += one.usage.foreign_cpus;
    let cpus = one.usage.cpus.into_iter().map(|mut cpu| {
        cpu.cpu += n as u32 * 1000;
        cpu
    });
    usage.cpus.extend(cpus);
    let mut threads = one.usage.threads;
    threads.iter_mut().for_each(|thread| thread.name = format!("{name} {}", thread.name));
    usage.threads.extend(threads);
    usage.threads.sort_by(|a, b| b.busy.total_cmp(&a.busy));
    let mut links = one.usage.links;
    links.iter_mut().for_each(|link| link.name = format!("{name} {}", link.name));
    usage.links.extend(links);
    let mut devices = one.usage.devices;
    devices.iter_mut().for_each(|device| device.name = format!("{name} {}", device.name));
    usage.devices.extend(devices);
    commands.extend(one.commands.into_iter().map(|line| format!("{name}: {line}")));
}
