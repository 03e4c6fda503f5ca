//! Many nodes: agents take part in a run over our own transport, with a common start. An agent runs only engines
//! with the parameters of a cell, never a command it is sent, and touches only what it [offers](Offer).
//!
//! For each cell the leader ([`Crew`]) lets every agent prepare, then tells all of them in how many milliseconds to
//! start, then asks until all are done. Clocks need not agree. Messages are JSON in requests of `Service::Lab`.
//! Every `ropewalk serve` of a cluster is an agent; `ropewalk lab agent` is one where there is no cluster.

mod crew;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use base::ClusterId;
use net::{Endpoint, EndpointConfig, Handler, Response, Role, Service, Status, handler_fn};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::{
    cell::{Cell, Figures},
    engine::{Context, EngineError, EngineKind, Led},
    environment::Environment,
    key,
    observe::{LoadGroups, Observer, Serving, Usage},
    plan::{Figure, Step},
    targets::{Targets, check_dir},
};
pub use crew::Crew;

/// "labagent": the cluster number of agents that belong to no cluster.
pub const CLUSTER: ClusterId = ClusterId(0x006c_6162_6167_656e);
/// The port an agent listens on unless told otherwise.
pub const PORT: u16 = 6669;
/// The operation of an agent's requests; `netperf` has others of the same service.
const OP: u8 = 32;
/// How long preparing a cell may take, and a cell beyond its load.
const PATIENCE: Duration = Duration::from_secs(600);
/// How long an agent that is to end waits for what it runs.
const END_MAX: Duration = Duration::from_secs(10);
/// The longest delay of a start, and the longest load, that an agent takes on.
const DELAY_MS_MAX: u64 = 60_000;
const SECONDS_MAX: f64 = 86_400.0;
/// Writers of all nodes at most, as in a plan.
const STEPS_MAX: u32 = 4096;

#[derive(Serialize, Deserialize)]
enum Request {
    /// Are these directories there, and offered?
    Hello {
        writable: Vec<PathBuf>,
    },
    Prepare(Box<Work>),
    Start {
        id: u64,
        delay_ms: u64,
    },
    Ask {
        id: u64,
    },
    /// A load that grows has been seen long enough; it ends with what it gave.
    Enough {
        id: u64,
    },
    Stop {
        id: u64,
    },
}

/// An agent's part of a cell.
#[derive(Clone, Serialize, Deserialize)]
struct Work {
    /// Drawn for the cell; the same on all agents.
    id: u64,
    /// Which of the agents this is: their files may lie in one directory that all share.
    part: u32,
    engine: EngineKind,
    cell: Cell,
    seconds: f64,
    figure: Figure,
    /// Directories that the leader's user named as writable on the nodes.
    writable: Vec<PathBuf>,
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Hello(Box<Environment>),
    /// It goes on: preparing, waiting or running.
    Busy,
    /// Prepared, waits for the start.
    Ready,
    /// A load that grows: operations of each period so far.
    Growing(Vec<u64>),
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
    led: Arc<Led>,
}

impl Default for Job {
    fn default() -> Job {
        let state = Arc::new(Mutex::new(State::Preparing));
        Job { id: 0, state, stop: Arc::default(), led: Arc::default() }
    }
}

impl Job {
    /// What the leader asks of the cell that is at work; `None`: nothing to a cell.
    fn answer(&self, request: &Request) -> Option<Answer> {
        let mut state = self.state.lock();
        match request {
            Request::Start { delay_ms, .. } if *delay_ms <= DELAY_MS_MAX => {
                if matches!(*state, State::Ready) {
                    *state = State::Started(Instant::now() + Duration::from_millis(*delay_ms));
                }
            }
            Request::Ask { .. } => {
                return Some(match &*state {
                    State::Preparing => Answer::Busy,
                    State::Ready => Answer::Ready,
                    State::Started(_) => match self.led.operations() {
                        none if none.is_empty() => Answer::Busy,
                        operations => Answer::Growing(operations),
                    },
                    State::Done(outcome) => Answer::Done(outcome.clone()),
                });
            }
            Request::Enough { .. } => self.led.enough(),
            Request::Stop { .. } => self.stop.store(true, Relaxed),
            _ => return None,
        }
        Some(Answer::Busy)
    }
}

/// What an agent may touch.
pub enum Offer {
    /// What was named when it was started.
    Named(Box<Targets>),
    /// Directories on these file systems, as far as the leader's user names them: the mounts of a node's own cluster.
    /// Devices never.
    Mounts(Box<dyn Fn() -> Vec<PathBuf> + Send + Sync>),
}

impl Offer {
    /// What may be touched when the leader's user names these directories.
    fn targets(&self, writable: &[PathBuf]) -> Result<Targets, String> {
        match self {
            Offer::Named(targets) if writable.is_empty() => Ok(Targets::clone(targets)),
            Offer::Named(_) => Err("this agent was told at its start what it may write".into()),
            Offer::Mounts(_) if writable.is_empty() => {
                Err("name as writable a directory on a mount of this cluster".into())
            }
            Offer::Mounts(mounts) => {
                let mounts = mounts();
                let dirs = writable.iter().map(|dir| on_mount(dir, &mounts)).collect::<Result<_, _>>()?;
                Ok(Targets { dirs, ..Targets::default() })
            }
        }
    }
}

/// The directory as it is, without links, if it lies on one of the mounts.
fn on_mount(dir: &Path, mounts: &[PathBuf]) -> Result<PathBuf, String> {
    let name = dir.display();
    let real = dir.canonicalize().map_err(|e| format!("{name} cannot be used: {e}"))?;
    if !mounts.iter().any(|mount| real.starts_with(mount)) {
        return Err(format!("{name} is not on a mount of this cluster on this node"));
    }
    check_dir(&real).map_err(|e| e.to_string())?;
    Ok(real)
}

/// Takes part in runs.
pub struct Agent {
    offer: Offer,
    /// A directory for its own files.
    work: PathBuf,
    /// The program `ropewalk`.
    ropewalk: Option<PathBuf>,
    job: Mutex<Option<Job>>,
}

impl Agent {
    /// An agent that touches only what it offers; `work` is for the files of what needs no directory.
    pub fn new(offer: Offer, work: PathBuf, ropewalk: Option<PathBuf>) -> Arc<Agent> {
        Arc::new(Agent { offer, work, ropewalk, job: Mutex::new(None) })
    }

    /// Stops what runs and waits until it has cleaned up, some seconds at most.
    pub async fn end(&self) {
        let state = self.job.lock().as_ref().map(|job| {
            job.stop.store(true, Relaxed);
            Arc::clone(&job.state)
        });
        let end = Instant::now() + END_MAX;
        while state.as_ref().is_some_and(|state| !matches!(*state.lock(), State::Done(_)))
            && Instant::now() < end
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Its side of [`Service::Lab`].
    pub fn handler(self: &Arc<Agent>) -> Arc<dyn Handler> {
        let agent = Arc::clone(self);
        handler_fn(move |request| {
            let agent = Arc::clone(&agent);
            async move {
                // A client of the cluster gives no work to its servers.
                if !matches!(request.peer.role, Role::Lab | Role::Admin | Role::Manager) {
                    return Response::error(Status::BadRequest, "this is for administrators and the lab");
                }
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
    pub fn listen(self: &Arc<Agent>, addrs: Vec<SocketAddr>) -> anyhow::Result<Endpoint> {
        let endpoint = Endpoint::start(EndpointConfig {
            cluster: CLUSTER,
            identity: Some(key::identity(CLUSTER)?),
            role: Role::Lab,
            listen: addrs,
            ..EndpointConfig::default()
        })?;
        endpoint.serve(Service::Lab, self.handler());
        Ok(endpoint)
    }

    fn answer(self: &Arc<Agent>, request: Request) -> Answer {
        let mut job = self.job.lock();
        let unknown = || Answer::Refused("this agent has another cell, or none".into());
        match request {
            Request::Hello { writable } => match self.offer.targets(&writable) {
                Ok(_) => Answer::Hello(Box::new(Environment::read())),
                Err(why) => Answer::Refused(why),
            },
            Request::Prepare(work) => {
                let busy = job.as_ref().is_some_and(|job| !matches!(*job.state.lock(), State::Done(_)));
                if busy {
                    return Answer::Refused("this agent is at work for another run".into());
                }
                // Only writers are counted over all nodes.
                let most = if work.cell.of == Step::Writers { STEPS_MAX } else { 1 };
                if !(0.1..=SECONDS_MAX).contains(&work.seconds) || !(1..=most).contains(&work.cell.step) {
                    return Answer::Refused("a cell of one part and up to a day is wanted".into());
                }
                let bad =
                    work.cell.params.iter().find_map(|(key, value)| work.engine.check(key, value).err());
                let targets = match (bad, self.offer.targets(&work.writable)) {
                    (None, Ok(targets)) => targets,
                    (Some(why), _) | (_, Err(why)) => return Answer::Refused(why),
                };
                let new = Job { id: work.id, ..Job::default() };
                let (state, stop, led) = (new.state.clone(), new.stop.clone(), new.led.clone());
                *job = Some(new);
                let agent = Arc::clone(self);
                let run = move || agent.work_on(&work, &targets, &state, &stop, &led);
                match std::thread::Builder::new().name("lab-agent".into()).spawn(run) {
                    Ok(_) => Answer::Busy,
                    Err(e) => {
                        *job = None;
                        Answer::Refused(e.to_string())
                    }
                }
            }
            Request::Start { id, .. }
            | Request::Ask { id }
            | Request::Enough { id }
            | Request::Stop { id } => match job.as_ref().filter(|job| job.id == id) {
                Some(job) => job.answer(&request).unwrap_or_else(unknown),
                None => unknown(),
            },
        }
    }

    /// The thread of one cell.
    fn work_on(&self, work: &Work, targets: &Targets, state: &Mutex<State>, stop: &AtomicBool, led: &Led) {
        let Work { engine, cell, .. } = work;
        let groups = LoadGroups::default();
        let commands = Arc::default();
        let context = Context {
            targets,
            work: &self.work,
            part: work.part,
            seconds: work.seconds,
            figure: work.figure,
            stop,
            groups: &groups,
            ropewalk: self.ropewalk.as_deref(),
            commands: Arc::clone(&commands),
            began: Arc::default(),
            led: Some(led),
        };
        let ready = engine.present().and_then(|()| engine.prepare(cell, &context));
        let (figures, usage) = match ready {
            Err(error) => (Err(error.to_string()), Usage::default()),
            Ok(()) => {
                *state.lock() = State::Ready;
                let observer = || Observer::start(groups.clone(), Serving::Any).ok();
                match wait_for_start(state, stop).and_then(|()| observer()) {
                    None => (Err(EngineError::Stopped.to_string()), Usage::default()),
                    Some(observer) => {
                        let figures = engine.run(cell, &context).map_err(|e| e.to_string());
                        let began = context.began.lock().take();
                        (figures, observer.stop(began))
                    }
                }
            }
        };
        engine.clean(&context);
        let commands = commands.lock().clone();
        *state.lock() = State::Done(Box::new(Outcome { figures, usage, commands }));
    }
}

/// `None`: stopped, or nobody started it.
fn wait_for_start(state: &Mutex<State>, stop: &AtomicBool) -> Option<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        let at = if let State::Started(at) = &*state.lock() { Some(*at) } else { None };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_offers_what_lies_on_its_mounts_and_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (mount, outside) = (dir.path().join("mnt"), dir.path().join("mnt-not"));
        for path in [&mount.join("sub"), &outside] {
            std::fs::create_dir_all(path).unwrap();
        }
        std::os::unix::fs::symlink(&outside, mount.join("link")).unwrap();
        let mounts = vec![mount.clone()];
        let offer = Offer::Mounts(Box::new(move || mounts.clone()));
        let sub = mount.join("sub");
        let own = std::slice::from_ref(&sub);
        assert_eq!(offer.targets(own).unwrap().dirs, own);
        for bad in [outside, mount.join("link"), mount.join("sub/../../mnt-not"), mount.join("none")] {
            let why = offer.targets(&[sub.clone(), bad.clone()]).unwrap_err();
            assert!(why.contains(&bad.display().to_string()), "{why}");
        }
        assert!(offer.targets(&[]).is_err(), "nothing is written that was not named");
        let named = Offer::Named(Box::default());
        assert!(named.targets(&[]).is_ok() && named.targets(&[sub]).is_err());
    }

    #[test]
    fn changed_messages_are_refused_or_mean_something() {
        let cell = Cell {
            plan: "p".into(),
            series: "s".into(),
            role: crate::cell::Role::Point,
            of: Step::Writers,
            step: 1,
            first: 0,
            params: [("bs".to_owned(), "4k".to_owned())].into(),
            repeat: 0,
        };
        let (engine, figure) = (EngineKind::Writers, Figure::Operations);
        let work = Work { id: 1, part: 0, engine, cell, seconds: 1.0, figure, writable: vec!["/mnt".into()] };
        let outcome =
            Outcome { figures: Ok(Figures::default()), usage: Usage::default(), commands: vec!["x".into()] };
        let samples = [
            serde_json::to_vec(&Request::Prepare(Box::new(work))).unwrap(),
            serde_json::to_vec(&Request::Start { id: 1, delay_ms: 10 }).unwrap(),
            serde_json::to_vec(&Answer::Growing(vec![1, 2])).unwrap(),
            serde_json::to_vec(&Answer::Done(Box::new(outcome))).unwrap(),
        ];
        crate::mutate::mutated(&samples, 20_000, |bytes| {
            let _ = (serde_json::from_slice::<Request>(bytes), serde_json::from_slice::<Answer>(bytes));
        });
    }
}
