//! Many nodes: agents take part in a run over our own transport, with a common start. An agent runs only engines
//! with the parameters of a cell, never a command it is sent, and touches only what was named when it was started.
//!
//! For each cell the leader lets every agent prepare, then tells all of them in how many milliseconds to start,
//! then asks until all are done. Clocks need not agree. Messages are JSON in requests of `Service::Lab`.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use base::ClusterId;
use net::{Call, Endpoint, EndpointConfig, Handler, Peer, Response, Service, Status, handler_fn};
use serde::{Deserialize, Serialize};

use crate::{
    cell::{Cell, Figures},
    engine::{Context, EngineError, EngineKind},
    environment::Environment,
    observe::{LoadGroups, Observer, Usage},
    plan::Figure,
    targets::Targets,
};

/// "labagent": the cluster number of agents that belong to no cluster.
pub const CLUSTER: ClusterId = ClusterId(0x006c_6162_6167_656e);
/// The port an agent listens on unless told otherwise.
pub const PORT: u16 = 6669;
/// The operation of an agent's requests; `netperf` has others of the same service.
const OP: u8 = 32;
/// How long an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How long preparing a cell may take, and a cell beyond its load.
const PATIENCE: Duration = Duration::from_secs(600);
/// From telling the agents to their common start.
const LEAD: Duration = Duration::from_millis(300);
/// Time between two questions.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// The longest delay of a start, and the longest load, that an agent takes on.
const DELAY_MS_MAX: u64 = 60_000;
const SECONDS_MAX: f64 = 86_400.0;

#[derive(Serialize, Deserialize)]
enum Request {
    Hello,
    Prepare { id: u64, engine: EngineKind, cell: Cell, seconds: f64, figure: Figure },
    Start { id: u64, delay_ms: u64 },
    Ask { id: u64 },
    Stop { id: u64 },
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Hello(Box<Environment>),
    /// It goes on: preparing, waiting or running.
    Busy,
    /// Prepared, waits for the start.
    Ready,
    Done(Box<Outcome>),
    Refused(String),
}

/// What an agent's part of a cell gave.
#[derive(Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// Its figures, or why there are none.
    pub figures: Result<Figures, String>,
    /// What was busy on its node.
    pub usage: Usage,
    /// Command lines as they were run.
    pub commands: Vec<String>,
}

enum State {
    Preparing,
    Ready,
    Started(Instant),
    Done(Box<Outcome>),
}

struct Job {
    id: u64,
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
}

/// What an agent works with.
pub struct Agent {
    /// What it may touch.
    pub targets: Targets,
    /// A directory for its own files.
    pub work: PathBuf,
    /// The program `ropewalk`.
    pub ropewalk: Option<PathBuf>,
    job: Mutex<Option<Job>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Agent {
    /// An agent that touches only these.
    pub fn new(targets: Targets, work: PathBuf, ropewalk: Option<PathBuf>) -> Arc<Agent> {
        Arc::new(Agent { targets, work, ropewalk, job: Mutex::new(None) })
    }

    /// Its side of [`Service::Lab`].
    pub fn handler(self: &Arc<Agent>) -> Arc<dyn Handler> {
        let agent = Arc::clone(self);
        handler_fn(move |request| {
            let agent = Arc::clone(&agent);
            async move {
                if request.header.op != OP {
                    return Response::error(Status::BadRequest, "no request to a lab agent");
                }
                match serde_json::from_slice(&request.body) {
                    Ok(wanted) => match serde_json::to_vec(&agent.answer(wanted)) {
                        Ok(body) => Response::ok(body),
                        Err(e) => Response::error(Status::Internal, e),
                    },
                    Err(e) => Response::error(Status::BadRequest, e),
                }
            }
        })
    }

    /// Listens on the addresses. Must be called within a runtime.
    pub fn listen(self: &Arc<Agent>, addrs: Vec<SocketAddr>) -> Result<Endpoint, net::NetError> {
        let endpoint =
            Endpoint::start(EndpointConfig { cluster: CLUSTER, listen: addrs, ..EndpointConfig::default() })?;
        endpoint.serve(Service::Lab, self.handler());
        Ok(endpoint)
    }

    fn answer(self: &Arc<Agent>, request: Request) -> Answer {
        let mut job = lock(&self.job);
        let current = |job: &Option<Job>, id: u64| {
            job.as_ref().filter(|job| job.id == id).map(|job| (Arc::clone(&job.state), Arc::clone(&job.stop)))
        };
        let unknown = || Answer::Refused("this agent has another cell, or none".into());
        match request {
            Request::Hello => Answer::Hello(Box::new(Environment::read())),
            Request::Prepare { id, engine, cell, seconds, figure } => {
                let busy = job.as_ref().is_some_and(|job| !matches!(*lock(&job.state), State::Done(_)));
                if busy {
                    return Answer::Refused("this agent is at work for another run".into());
                }
                if !(0.1..=SECONDS_MAX).contains(&seconds) || cell.step != 1 {
                    return Answer::Refused("a cell of one part and up to a day is wanted".into());
                }
                for (key, value) in &cell.params {
                    if let Err(why) = engine.check(key, value) {
                        return Answer::Refused(why);
                    }
                }
                let state = Arc::new(Mutex::new(State::Preparing));
                let stop = Arc::new(AtomicBool::new(false));
                *job = Some(Job { id, state: Arc::clone(&state), stop: Arc::clone(&stop) });
                let agent = Arc::clone(self);
                let work = move || agent.work_on(engine, &cell, seconds, figure, &state, &stop);
                match std::thread::Builder::new().name("lab-agent".into()).spawn(work) {
                    Ok(_) => Answer::Busy,
                    Err(e) => {
                        *job = None;
                        Answer::Refused(e.to_string())
                    }
                }
            }
            Request::Start { id, delay_ms } => match current(&job, id) {
                Some((state, _)) if delay_ms <= DELAY_MS_MAX => {
                    let mut state = lock(&state);
                    if matches!(*state, State::Ready) {
                        *state = State::Started(Instant::now() + Duration::from_millis(delay_ms));
                    }
                    Answer::Busy
                }
                _ => unknown(),
            },
            Request::Ask { id } => match current(&job, id) {
                Some((state, _)) => match &*lock(&state) {
                    State::Preparing | State::Started(_) => Answer::Busy,
                    State::Ready => Answer::Ready,
                    State::Done(outcome) => Answer::Done(outcome.clone()),
                },
                None => unknown(),
            },
            Request::Stop { id } => match current(&job, id) {
                Some((_, stop)) => {
                    stop.store(true, Relaxed);
                    Answer::Busy
                }
                None => unknown(),
            },
        }
    }

    /// The thread of one cell.
    fn work_on(
        &self,
        engine: EngineKind,
        cell: &Cell,
        seconds: f64,
        figure: Figure,
        state: &Mutex<State>,
        stop: &AtomicBool,
    ) {
        let groups = LoadGroups::default();
        let commands = Arc::default();
        let context = Context {
            targets: &self.targets,
            work: &self.work,
            seconds,
            figure,
            stop,
            groups: &groups,
            ropewalk: self.ropewalk.as_deref(),
            commands: Arc::clone(&commands),
            began: Arc::default(),
        };
        let ready = engine.present().and_then(|()| engine.prepare(cell, &context));
        let (figures, usage) = match ready {
            Err(error) => (Err(error.to_string()), Usage::default()),
            Ok(()) => {
                *lock(state) = State::Ready;
                match wait_for_start(state, stop).and_then(|()| Observer::start(groups.clone()).ok()) {
                    None => (Err(EngineError::Stopped.to_string()), Usage::default()),
                    Some(observer) => {
                        let figures = engine.run(cell, &context).map_err(|e| e.to_string());
                        let began = lock(&context.began).take();
                        (figures, observer.stop(began))
                    }
                }
            }
        };
        engine.clean(&context);
        let commands = lock(&commands).clone();
        *lock(state) = State::Done(Box::new(Outcome { figures, usage, commands }));
    }
}

/// `None`: stopped, or nobody started it.
fn wait_for_start(state: &Mutex<State>, stop: &AtomicBool) -> Option<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        let at = if let State::Started(at) = &*lock(state) { Some(*at) } else { None };
        let now = Instant::now();
        match at {
            Some(at) if now >= at => return Some(()),
            Some(at) => std::thread::sleep((at - now).min(Duration::from_millis(5))),
            None => std::thread::sleep(Duration::from_millis(5)),
        }
        if stop.load(Relaxed) || now > end {
            return None;
        }
    }
}

/// The leader's connections to all agents.
pub struct Crew {
    runtime: tokio::runtime::Runtime,
    peers: Vec<(String, Peer)>,
    _endpoint: Endpoint,
}

impl Crew {
    /// Reaches every agent, each named HOST:PORT; the first that does not answer is named.
    pub fn reach(agents: &[String]) -> Result<Crew, EngineError> {
        let failed =
            |what: String, why: String| EngineError::Failed { program: format!("agent {what}"), why };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|e| failed("runtime".into(), e.to_string()))?;
        let _guard = runtime.enter();
        let endpoint = Endpoint::start(EndpointConfig { cluster: CLUSTER, ..EndpointConfig::default() })
            .map_err(|e| failed("endpoint".into(), e.to_string()))?;
        let mut peers = Vec::new();
        for agent in agents {
            let addr = resolve(agent).ok_or_else(|| failed(agent.clone(), "write HOST:PORT".into()))?;
            peers.push((agent.clone(), endpoint.peer(&[addr])));
        }
        drop(_guard);
        let crew = Crew { runtime, peers, _endpoint: endpoint };
        for n in 0..crew.peers.len() {
            crew.call(n, &Request::Hello)?;
        }
        Ok(crew)
    }

    fn call(&self, n: usize, request: &Request) -> Result<Answer, EngineError> {
        let (name, peer) = &self.peers[n];
        let failed = |why: String| EngineError::Failed { program: format!("agent {name}"), why };
        let body = serde_json::to_vec(request).map_err(|e| failed(e.to_string()))?;
        let call = Call {
            idempotent: matches!(request, Request::Hello | Request::Ask { .. } | Request::Stop { .. }),
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
        let part = Cell { step: 1, first: 0, ..cell.clone() };
        let outcome = self.lead(id, count, engine, &part, seconds, figure, stop);
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

    #[expect(clippy::too_many_arguments, reason = "one call, of everything that a cell is")]
    fn lead(
        &self,
        id: u64,
        count: usize,
        engine: EngineKind,
        cell: &Cell,
        seconds: f64,
        figure: Figure,
        stop: &AtomicBool,
    ) -> Result<Vec<Outcome>, EngineError> {
        for n in 0..count {
            self.call(n, &Request::Prepare { id, engine, cell: cell.clone(), seconds, figure })?;
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
        let limit = Duration::from_secs_f64(seconds * 2.0) + PATIENCE;
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
