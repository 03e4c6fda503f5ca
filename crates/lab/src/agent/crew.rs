//! The leader of agents: lets all of them prepare a cell, starts them together, adds up what they gave.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};

use net::{Call, Endpoint, EndpointConfig, Identity, Peer, Role, Service};

use super::{Answer, CLUSTER, OP, Outcome, PATIENCE, PORT, Request, Work};
use crate::{
    cell::{Cell, Figures},
    engine::{self, EngineError, EngineKind},
    environment::Environment,
    key,
    observe::{NODE_CPUS, Usage, Who},
    plan::{Figure, Step},
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
        let secret = wanted.secret_in.as_deref().map_or_else(key::secret, key::read);
        let secret = secret.map_err(|e| failed("secret".into(), e.to_string()))?;
        let identity =
            Identity::from_secret(cluster, &secret).map_err(|e| failed("secret".into(), e.to_string()))?;
        let config = EndpointConfig {
            cluster,
            identity: Some(identity),
            role: Role::Lab,
            ..EndpointConfig::default()
        };
        let endpoint = Endpoint::start(config).map_err(|e| failed("endpoint".into(), e.to_string()))?;
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
            idempotent: !matches!(request, Request::Prepare(_) | Request::Start { .. }),
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
        // Writers are counted over all nodes, client nodes one by one.
        let (count, step) = match cell.of {
            Step::Writers => {
                let all = engine::per_client(cell) * self.peers.len();
                (self.peers.len(), cell.step.min(all as u32))
            }
            _ => ((cell.step as usize).min(self.peers.len()), 1),
        };
        let own = Cell { step, first: 0, ..cell.clone() };
        let work = Work { id, part: 0, engine, cell: own, seconds, figure, writable: self.writable.clone() };
        let outcome = self.lead(count, &work, stop);
        if outcome.is_err() {
            (0..count).for_each(|n| drop(self.call(n, &Request::Stop { id })));
        }
        let (mut usage, mut commands, mut nodes) = (Usage::default(), Vec::new(), Vec::new());
        for (n, one) in outcome?.into_iter().enumerate() {
            let name = &self.peers[n].0;
            let failed = |why| EngineError::Failed { program: format!("agent {name}"), why };
            nodes.push((name.clone(), one.figures.map_err(failed)?));
            commands.extend(one.commands.into_iter().map(|line| format!("{name}: {line}")));
            // Agents on one machine see the same CPUs, and in one network namespace the same links.
            let before = || self.peers[..n].iter().filter_map(|(name, _)| self.environments.get(name));
            let own = self.environments.get(name);
            let same = Same {
                machine: own.is_some_and(|own| before().any(|e| e.boot == own.boot)),
                network: own
                    .is_some_and(|own| before().any(|e| (&e.boot, &e.network) == (&own.boot, &own.network))),
            };
            add_usage(&mut usage, name, n, one.usage, same);
        }
        let figures = match cell.of {
            Step::Writers => engine::together(cell, seconds, &nodes),
            _ => sum(figure, nodes),
        };
        Ok((figures, usage, commands))
    }

    /// Lets all prepare, starts them together, waits until all are done.
    fn lead(&self, count: usize, work: &Work, stop: &AtomicBool) -> Result<Vec<Outcome>, EngineError> {
        let id = work.id;
        for n in 0..count {
            self.call(n, &Request::Prepare(Box::new(Work { part: n as u32, ..work.clone() })))?;
        }
        self.wait(count, id, PATIENCE, stop, |answers| {
            answers.iter().all(|answer| matches!(answer, Answer::Ready | Answer::Done(_)))
        })?;
        let start = Instant::now() + LEAD;
        for n in 0..count {
            let delay_ms = start.saturating_duration_since(Instant::now()).as_millis() as u64;
            self.call(n, &Request::Start { id, delay_ms })?;
        }
        let grows = work.cell.of == Step::Writers;
        let seconds = work.seconds * if grows { f64::from(work.cell.step) } else { 2.0 };
        let limit = Duration::from_secs_f64(seconds) + PATIENCE;
        let mut told = false;
        let answers = self.wait(count, id, limit, stop, |answers| {
            if grows && !told && engine::level(&rates(answers), engine::patience(&work.cell)) {
                told = true;
                // Who does not hear it ends at the last writer.
                (0..count).for_each(|n| drop(self.call(n, &Request::Enough { id })));
            }
            answers.iter().all(|answer| matches!(answer, Answer::Done(_)))
        })?;
        Ok(answers
            .into_iter()
            .filter_map(|a| if let Answer::Done(o) = a { Some(*o) } else { None })
            .collect())
    }

    /// Asks all again and again until `enough` says so.
    fn wait(
        &self,
        count: usize,
        id: u64,
        limit: Duration,
        stop: &AtomicBool,
        mut enough: impl FnMut(&[Answer]) -> bool,
    ) -> Result<Vec<Answer>, EngineError> {
        let end = Instant::now() + limit;
        let mut answers: Vec<Answer> = Vec::new();
        loop {
            if stop.load(Relaxed) {
                return Err(EngineError::Stopped);
            }
            for n in 0..count {
                match answers.get(n) {
                    Some(Answer::Done(_)) => {}
                    Some(_) => answers[n] = self.call(n, &Request::Ask { id })?,
                    None => answers.push(self.call(n, &Request::Ask { id })?),
                }
            }
            let failed = answers.iter().enumerate().find_map(|(n, answer)| match answer {
                Answer::Done(outcome) => Some((n, outcome.figures.as_ref().err()?)),
                _ => None,
            });
            if let Some((n, why)) = failed {
                let program = format!("agent {}", self.peers[n].0);
                return Err(EngineError::Failed { program, why: why.clone() });
            }
            if enough(&answers) {
                return Ok(answers);
            }
            let late = answers.iter().position(|answer| !matches!(answer, Answer::Done(_)));
            if let Some(n) = late.filter(|_| Instant::now() > end) {
                let program = format!("agent {}", self.peers[n].0);
                return Err(EngineError::Late { program, seconds: limit.as_secs_f64() });
            }
            std::thread::sleep(ASK_EVERY);
        }
    }
}

/// Operations of all nodes in each period that all have told of.
fn rates(answers: &[Answer]) -> Vec<f64> {
    let told = |answer: &Answer| match answer {
        Answer::Growing(operations) => operations.clone(),
        _ => Vec::new(),
    };
    let nodes: Vec<Vec<u64>> = answers.iter().map(told).collect();
    let periods = nodes.iter().map(Vec::len).min().unwrap_or(0);
    (0..periods).map(|i| nodes.iter().map(|node| node[i]).sum::<u64>() as f64).collect()
}

fn resolve(agent: &str) -> Option<SocketAddr> {
    use std::net::ToSocketAddrs;
    if let Ok(ip) = agent.parse::<std::net::IpAddr>() {
        return Some(SocketAddr::from((ip, PORT)));
    }
    let text = if agent.contains(':') { agent.to_owned() } else { format!("{agent}:{PORT}") };
    text.to_socket_addrs().ok()?.next()
}

/// What several nodes gave together.
fn sum(figure: Figure, nodes: Vec<(String, Figures)>) -> Figures {
    let mut all = Figures::default();
    for (name, figures) in nodes {
        all.parts.insert(name.clone(), figures.value(figure));
        all.operations += figures.operations;
        all.bytes += figures.bytes;
        all.notes.extend(figures.notes.into_iter().map(|note| format!("{name}: {note}")));
        // The slowest client's latency: an average would hide it.
        if let Some(latency) = figures.latency {
            let slower = all.latency.is_none_or(|have| latency.p99 > have.p99);
            all.latency = if slower { Some(latency) } else { all.latency };
        }
    }
    all
}

/// What a node shares with one that is counted already.
#[derive(Clone, Copy)]
struct Same {
    machine: bool,
    network: bool,
}

fn add_usage(usage: &mut Usage, name: &str, n: usize, mut one: Usage, same: Same) {
    usage.intervals = if n == 0 { one.intervals } else { usage.intervals.min(one.intervals) };
    usage.load_cpus += one.load_cpus;
    if same.machine {
        one.threads.retain(|thread| thread.who == Who::Load);
        one.cpus.clear();
        one.devices.clear();
        // Those of other namespaces were seen from the first.
        one.links.retain(|link| !link.name.contains('/'));
    } else {
        usage.served_cpus += one.served_cpus;
        usage.kernel_cpus += one.kernel_cpus;
        usage.foreign_cpus += one.foreign_cpus;
        usage.waited = if n == 0 { one.waited } else { usage.waited.zip(one.waited).map(|(a, b)| a + b) };
    }
    if same.network {
        one.links.clear();
    }
    one.cpus.iter_mut().for_each(|cpu| cpu.cpu += n as u32 * NODE_CPUS);
    one.threads.iter_mut().for_each(|thread| thread.name = format!("{name} {}", thread.name));
    one.links.iter_mut().for_each(|link| link.name = format!("{name} {}", link.name));
    one.devices.iter_mut().for_each(|device| device.name = format!("{name} {}", device.name));
    usage.cpus.extend(one.cpus);
    usage.threads.extend(one.threads);
    usage.threads.sort_by(|a, b| b.busy.total_cmp(&a.busy));
    usage.links.extend(one.links);
    usage.devices.extend(one.devices);
}
