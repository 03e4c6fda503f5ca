//! The process on each host: answers data requests, is a client when a controller asks, counts its CPU time.
//!
//! It holds one prepared or running client test, and the CPU clocks of a bounded number of tests. Who has the
//! lab's secret ([`crate::key`]) can use and end it.

use std::{
    collections::{BTreeMap, hash_map::RandomState},
    hash::{BuildHasher, Hasher},
    net::SocketAddr,
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use net::{Endpoint, EndpointConfig, Handler, Request, Response, Service, Status, handler_fn};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    endpoint::endpoint_config,
    error::NetperfError,
    message::{Answer, Control, Data, Info, op},
    payload::{Message, Pattern, check},
    result::{ClientResult, ServerResult},
    spec::{PARALLEL_MAX, TTIME_MAX},
    tester::{Client, process_cpu_seconds},
};

/// Tests whose CPU clocks are kept.
const CLOCKS_MAX: usize = 16;
/// The answer to `Quit` has this long to leave.
const QUIT_AFTER: Duration = Duration::from_millis(200);
/// A start may lie this far ahead.
const START_WITHIN: Duration = Duration::from_secs(60);

/// A running server. Dropping it ends it.
pub struct Server {
    endpoint: Endpoint,
    quit: Arc<Notify>,
}

impl Server {
    /// Listens on the addresses, which clients use together as rails; `parallel` bounds the bulk connections of
    /// one client. Must be called within a tokio runtime.
    pub fn start(listen: Vec<SocketAddr>, parallel: u8) -> Result<Server, NetperfError> {
        let conns_max = parallel.min(PARALLEL_MAX);
        let config = EndpointConfig { conns_max, listen, ..endpoint_config()? };
        let endpoint = Endpoint::start(config)?;
        let quit = Arc::new(Notify::new());
        endpoint.serve(Service::Lab, handler(Arc::new(State::new()), Arc::clone(&quit)));
        Ok(Server { endpoint, quit })
    }

    /// The addresses listened on, with the ports that were chosen.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        self.endpoint.local_addrs()
    }

    /// Ends when a controller asks the process to end.
    pub async fn ended(&self) {
        self.quit.notified().await;
        tokio::time::sleep(QUIT_AFTER).await;
    }
}

/// What the requests of one process share.
struct State {
    info: Info,
    client: Mutex<Option<Test>>,
    clocks: Mutex<BTreeMap<u64, Option<ServerResult>>>,
    source: Mutex<Option<Pattern>>,
}

/// A client test of this process.
struct Test {
    id: u64,
    client: Arc<Client>,
    outcome: Outcome,
}

enum Outcome {
    Prepared,
    Running,
    /// `None`: stopped.
    Ended(Option<Box<ClientResult>>),
}

/// This process, for controllers. Its parts, a server and a client perhaps, have one id: its CPU time counts once.
pub(super) fn info() -> Info {
    static ID: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish());
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Info {
        id: *ID,
        host: host.trim().to_owned(),
        cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
    }
}

/// CPU time of this process in the counted part of a test that begins at `start`.
pub(super) async fn cpu_clock(start: Instant, ttime: Duration) -> ServerResult {
    tokio::time::sleep_until((start + ttime / 10).into()).await;
    let (cpu, begun) = (process_cpu_seconds(), Instant::now());
    tokio::time::sleep_until((start + ttime * 9 / 10).into()).await;
    ServerResult { cpu_seconds: process_cpu_seconds() - cpu, seconds: begun.elapsed().as_secs_f64() }
}

fn handler(state: Arc<State>, quit: Arc<Notify>) -> Arc<dyn Handler> {
    handler_fn(move |request| {
        let (state, quit) = (Arc::clone(&state), Arc::clone(&quit));
        async move {
            if request.header.op != op::CONTROL {
                return state.data(&request);
            }
            let answer = match wire::frame::decode(&request.body) {
                Ok(control) => state.control(control, &quit).await,
                Err(e) => return Response::error(Status::BadRequest, e),
            };
            Response::ok(wire::frame::encode(&answer))
        }
    })
}

impl State {
    fn new() -> State {
        State { info: info(), client: Mutex::default(), clocks: Mutex::default(), source: Mutex::default() }
    }

    fn data(&self, request: &Request) -> Response {
        let Some((data, inline)) = Data::decode(&request.body) else {
            return Response::error(Status::BadRequest, "a data request without a sound head");
        };
        let checked = |result: Result<(), String>| match result {
            Ok(()) => Response::ok(Vec::new()),
            Err(reason) => Response::error(Status::Internal, reason),
        };
        match request.header.op {
            op::WRITE => checked(check(data, inline, &request.payload)),
            op::READ => {
                let Message { body, payload } =
                    self.source(data.size).message(request.header.request_id, data.verify);
                Response::with_payload(body, payload)
            }
            op::ECHO => match check(data, inline, &request.payload) {
                Ok(()) => Response::with_payload(request.body.to_vec(), request.payload.clone()),
                refused => checked(refused),
            },
            other => Response::error(Status::BadRequest, format!("netperf has no operation {other}")),
        }
    }

    /// What reads are answered from; kept for the size last asked for.
    fn source(&self, size: u32) -> Pattern {
        let mut source = self.source.lock();
        match &*source {
            Some(pattern) if pattern.size() == size => pattern.clone(),
            _ => source.insert(Pattern::new(size)).clone(),
        }
    }

    async fn control(self: &Arc<Self>, control: Control, quit: &Notify) -> Answer {
        match control {
            Control::Info => Answer::Info(self.info.clone()),
            Control::Prepare { test, spec, servers } => match self.prepare(test, spec, servers).await {
                Ok(()) => Answer::Ready,
                Err(reason) => Answer::No(reason),
            },
            Control::Start { test, in_us, ttime_ms } => self.start(test, in_us, ttime_ms),
            Control::Progress { test } => self.with_client(test, |t| {
                let (bytes, messages, errors) = t.client.progress();
                Answer::Progress { bytes, messages, errors }
            }),
            Control::ClientResult { test } => self.with_client(test, |t| match &t.outcome {
                Outcome::Prepared | Outcome::Running => Answer::NotYet,
                Outcome::Ended(Some(result)) => Answer::Client(result.clone()),
                Outcome::Ended(None) => Answer::No("the test was stopped".to_owned()),
            }),
            Control::ServerResult { test } => match self.clocks.lock().get(&test) {
                Some(Some(result)) => Answer::Server(*result),
                Some(None) => Answer::NotYet,
                None => Answer::No(format!("test {test:016x} is not known here")),
            },
            Control::Stop { test } => self.with_client(test, |t| {
                t.client.stop();
                Answer::Ready
            }),
            Control::Quit => {
                quit.notify_one();
                Answer::Ready
            }
        }
    }

    async fn prepare(&self, test: u64, spec: super::Spec, servers: Vec<Vec<String>>) -> Result<(), String> {
        let addrs =
            |server: &Vec<String>| server.iter().map(|a| a.parse()).collect::<Result<Vec<SocketAddr>, _>>();
        let servers: Vec<_> = servers
            .iter()
            .map(addrs)
            .collect::<Result<_, _>>()
            .map_err(|e| format!("a server's address: {e}"))?;
        let busy = |held: &Option<Test>| held.as_ref().is_some_and(|t| matches!(t.outcome, Outcome::Running));
        if busy(&self.client.lock()) {
            return Err("another test runs here; wait for its end".to_owned());
        }
        let client = Client::connect(spec, &servers).await.map_err(|e| super::error::with_causes(&e))?;
        let mut held = self.client.lock();
        if busy(&held) {
            return Err("another test has begun here; wait for its end".to_owned());
        }
        *held = Some(Test { id: test, client: Arc::new(client), outcome: Outcome::Prepared });
        Ok(())
    }

    fn start(self: &Arc<Self>, test: u64, in_us: u64, ttime_ms: u64) -> Answer {
        let (wait, ttime) = (Duration::from_micros(in_us), Duration::from_millis(ttime_ms));
        if wait > START_WITHIN || ttime > TTIME_MAX {
            return Answer::No(format!("a start in {wait:?} for {ttime:?} is out of bounds"));
        }
        let start = Instant::now() + wait;
        {
            let mut clocks = self.clocks.lock();
            if clocks.len() >= CLOCKS_MAX && !clocks.contains_key(&test) {
                // Test numbers rise with time.
                clocks.pop_first();
            }
            clocks.insert(test, None);
        }
        let state = Arc::clone(self);
        tokio::spawn(async move {
            let result = cpu_clock(start, ttime).await;
            if let Some(clock) = state.clocks.lock().get_mut(&test) {
                *clock = Some(result);
            }
        });
        let mut held = self.client.lock();
        if let Some(t) = held.as_mut().filter(|t| t.id == test && matches!(t.outcome, Outcome::Prepared)) {
            t.outcome = Outcome::Running;
            let (client, state) = (Arc::clone(&t.client), Arc::clone(self));
            tokio::spawn(async move {
                let result = client.run(start).await.map(Box::new);
                if let Some(t) = state.client.lock().as_mut().filter(|t| t.id == test) {
                    t.outcome = Outcome::Ended(result);
                }
            });
        }
        Answer::Ready
    }

    fn with_client(&self, test: u64, f: impl FnOnce(&Test) -> Answer) -> Answer {
        match self.client.lock().as_ref().filter(|t| t.id == test) {
            Some(t) => f(t),
            None => Answer::No(format!("test {test:016x} is not known here")),
        }
    }
}
