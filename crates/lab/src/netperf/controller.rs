//! Prepares a test on its clients, starts it everywhere at one time, watches it, gathers what was measured.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use base::OpClass;
use net::{Call, Endpoint, Peer, Service};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::{
    endpoint::endpoint_config,
    error::NetperfError,
    message::{Answer, Control, Info, op},
    report::{Report, Side},
    result::{ClientResult, ServerResult},
    server::info,
    spec::Spec,
    tester::Client,
};

/// An answer to a control request; preparing has `PREPARE_MAX`.
const ANSWER_MAX: Duration = Duration::from_secs(10);
const PREPARE_MAX: Duration = Duration::from_secs(30);
/// From the order to start to the start, beyond the longest round trip.
const START_IN: Duration = Duration::from_millis(200);
/// Questions by which the round trip is measured.
const ROUND_TRIPS: usize = 3;
/// Time between looks at a running test.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Results are there this long after the end, or the test has failed: a last message may take its whole deadline.
const RESULT_WITHIN: Duration = Duration::from_secs(70);

/// How far a test is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Since its start.
    pub elapsed: Duration,
    /// Of this.
    pub ttime: Duration,
    /// Bytes of all clients' messages so far.
    pub bytes: u64,
    /// Messages that failed.
    pub errors: u64,
}

/// Runs tests between clients and servers.
pub struct Controller {
    // The peers' connections live as long as this.
    _endpoint: Endpoint,
    servers: Vec<Agent>,
    clients: Vec<ClientAt>,
    /// The test under way.
    test: Mutex<Option<u64>>,
}

/// Another process.
#[derive(Clone)]
struct Agent {
    addrs: Vec<SocketAddr>,
    peer: Peer,
    info: Info,
    /// The shortest seen.
    round_trip: Duration,
}

enum ClientAt {
    Agent(Agent),
    /// This process.
    Here(Info, Mutex<Option<Arc<Client>>>),
}

impl Controller {
    /// Finds all of them. A server or client is given by all its addresses; without clients this process is
    /// the one client. Must be called within a tokio runtime.
    pub async fn connect(
        servers: &[Vec<SocketAddr>],
        clients: &[Vec<SocketAddr>],
    ) -> Result<Controller, NetperfError> {
        if servers.is_empty() {
            return Err(NetperfError::NoServer);
        }
        let endpoint = Endpoint::start(endpoint_config()?)?;
        let mut found = JoinSet::new();
        for (i, addrs) in servers.iter().chain(clients).enumerate() {
            let (peer, addrs) = (endpoint.peer(addrs), addrs.clone());
            found.spawn(async move { Agent::find(peer, addrs).await.map(|agent| (i, agent)) });
        }
        let mut agents = Vec::new();
        while let Some(agent) = found.join_next().await {
            agents.push(agent.map_err(|_| NetperfError::Stopped)??);
        }
        agents.sort_by_key(|(i, _)| *i);
        let mut agents: Vec<Agent> = agents.into_iter().map(|(_, agent)| agent).collect();
        let mut clients: Vec<ClientAt> =
            agents.split_off(servers.len()).into_iter().map(ClientAt::Agent).collect();
        if clients.is_empty() {
            clients.push(ClientAt::Here(info(), Mutex::default()));
        }
        Ok(Controller { _endpoint: endpoint, servers: agents, clients, test: Mutex::default() })
    }

    /// Runs one test; `progress` is called about twice a second. Messages that failed are in the report. When
    /// the future is dropped before its end, [`stop`](Controller::stop) ends the test on all hosts.
    pub async fn run(&self, spec: &Spec, progress: impl FnMut(Progress)) -> Result<Report, NetperfError> {
        spec.check()?;
        let micros = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_micros();
        let test = u64::try_from(micros).unwrap_or(u64::MAX);
        *self.test.lock() = Some(test);
        let result = self.run_test(test, spec, progress).await;
        if result.is_err() {
            self.stop().await;
        }
        *self.test.lock() = None;
        result
    }

    async fn run_test(
        &self,
        test: u64,
        spec: &Spec,
        mut progress: impl FnMut(Progress),
    ) -> Result<Report, NetperfError> {
        let servers: Vec<Vec<SocketAddr>> = self.servers.iter().map(|s| s.addrs.clone()).collect();
        self.prepare(test, spec, &servers).await?;
        let (start, here) = self.start(test, spec).await?;
        let end = start + spec.ttime;
        loop {
            let now = Instant::now();
            if now >= end {
                break;
            }
            tokio::time::sleep(LOOK_EVERY.min(end - now)).await;
            let (bytes, errors) = self.look(test).await?;
            let elapsed = start.elapsed().min(spec.ttime);
            progress(Progress { elapsed, ttime: spec.ttime, bytes, errors });
        }
        let deadline = end + RESULT_WITHIN;
        let mut clients = Vec::new();
        let mut here = here.map(|task| async move { task.await.ok().flatten().ok_or(NetperfError::Stopped) });
        for client in &self.clients {
            let (info, result) = match client {
                ClientAt::Agent(agent) => (&agent.info, agent.client_result(test, deadline).await?),
                ClientAt::Here(info, client) => {
                    let result = match here.take() {
                        Some(result) => result.await?,
                        None => return Err(NetperfError::Stopped),
                    };
                    client.lock().take();
                    (info, result)
                }
            };
            clients.push(Side { name: client.name(), info: info.clone(), result });
        }
        let mut results = Vec::new();
        for agent in &self.servers {
            let result = agent.server_result(test, deadline).await?;
            results.push(Side { name: agent.name(), info: agent.info.clone(), result });
        }
        Ok(Report::new(spec, clients, results))
    }

    async fn prepare(&self, test: u64, spec: &Spec, servers: &[Vec<SocketAddr>]) -> Result<(), NetperfError> {
        let mut prepared = JoinSet::new();
        for client in &self.clients {
            match client {
                ClientAt::Agent(agent) => {
                    let servers = servers.iter().map(|s| s.iter().map(|a| a.to_string()).collect()).collect();
                    let control = Control::Prepare { test, spec: spec.clone(), servers };
                    let agent = agent.clone();
                    prepared.spawn(async move { agent.ready(control, PREPARE_MAX).await });
                }
                ClientAt::Here(_, place) => {
                    let client = Client::connect(spec.clone(), servers).await?;
                    *place.lock() = Some(Arc::new(client));
                }
            }
        }
        all(prepared).await
    }

    /// The common start, and the local client's task.
    async fn start(
        &self,
        test: u64,
        spec: &Spec,
    ) -> Result<(Instant, Option<tokio::task::JoinHandle<Option<ClientResult>>>), NetperfError> {
        let agents: Vec<&Agent> =
            self.servers.iter().chain(self.clients.iter().filter_map(ClientAt::agent)).collect();
        let longest = agents.iter().map(|a| a.round_trip).max().unwrap_or_default();
        let start = Instant::now() + START_IN + longest * 2;
        let mut started = JoinSet::new();
        for agent in agents {
            // It arrives half a round trip from now.
            let wait = start.saturating_duration_since(Instant::now()).saturating_sub(agent.round_trip / 2);
            let (in_us, ttime_ms) = (wait.as_micros() as u64, spec.ttime.as_millis() as u64);
            let agent = agent.clone();
            started.spawn(
                async move { agent.ready(Control::Start { test, in_us, ttime_ms }, ANSWER_MAX).await },
            );
        }
        let here = self.clients.iter().find_map(|c| match c {
            ClientAt::Here(_, client) => client.lock().clone().map(|c| tokio::spawn(c.run(start))),
            ClientAt::Agent(_) => None,
        });
        all(started).await?;
        Ok((start, here))
    }

    /// Bytes and errors of all clients so far.
    async fn look(&self, test: u64) -> Result<(u64, u64), NetperfError> {
        let mut sum = (0, 0);
        for client in &self.clients {
            let (bytes, errors) = match client {
                ClientAt::Agent(agent) => agent.progress(test).await?,
                ClientAt::Here(_, client) => {
                    client.lock().as_ref().map(|c| c.progress()).map(|(b, _, e)| (b, e)).unwrap_or_default()
                }
            };
            sum = (sum.0 + bytes, sum.1 + errors);
        }
        Ok(sum)
    }

    /// Ends the test under way on all hosts, as far as they answer.
    pub async fn stop(&self) {
        let Some(test) = self.test.lock().take() else { return };
        let mut told = JoinSet::new();
        for client in &self.clients {
            match client {
                ClientAt::Agent(agent) => {
                    let agent = agent.clone();
                    told.spawn(async move { agent.ready(Control::Stop { test }, ANSWER_MAX).await });
                }
                ClientAt::Here(_, client) => {
                    if let Some(client) = client.lock().take() {
                        client.stop();
                    }
                }
            }
        }
        // One that does not answer ends its test by itself.
        let _ = all(told).await;
    }

    /// Ends the processes of all servers and clients but this one.
    pub async fn quit(&self) -> Result<(), NetperfError> {
        let mut told = JoinSet::new();
        for agent in self.servers.iter().chain(self.clients.iter().filter_map(ClientAt::agent)) {
            let agent = agent.clone();
            told.spawn(async move { agent.ready(Control::Quit, ANSWER_MAX).await });
        }
        all(told).await
    }
}

/// All of them have succeeded, or the first error.
async fn all(mut tasks: JoinSet<Result<(), NetperfError>>) -> Result<(), NetperfError> {
    while let Some(result) = tasks.join_next().await {
        result.map_err(|_| NetperfError::Stopped)??;
    }
    Ok(())
}

impl ClientAt {
    fn agent(&self) -> Option<&Agent> {
        match self {
            ClientAt::Agent(agent) => Some(agent),
            ClientAt::Here(..) => None,
        }
    }

    fn name(&self) -> String {
        match self {
            ClientAt::Agent(agent) => agent.name(),
            ClientAt::Here(info, _) => info.host.clone(),
        }
    }
}

impl Agent {
    async fn find(peer: Peer, addrs: Vec<SocketAddr>) -> Result<Agent, NetperfError> {
        let info = Info { id: 0, host: String::new(), cpus: 1 };
        let mut agent = Agent { addrs, peer, info, round_trip: Duration::MAX };
        // The first one makes the connection.
        for i in 0..=ROUND_TRIPS {
            let asked = Instant::now();
            match agent.ask(Control::Info, ANSWER_MAX).await? {
                Answer::Info(info) => agent.info = info,
                other => return Err(agent.unexpected(other)),
            }
            if i > 0 {
                agent.round_trip = agent.round_trip.min(asked.elapsed());
            }
        }
        Ok(agent)
    }

    fn name(&self) -> String {
        self.addrs.iter().map(|a| a.to_string()).collect::<Vec<_>>().join(",")
    }

    fn unexpected(&self, answer: Answer) -> NetperfError {
        match answer {
            Answer::No(reason) => NetperfError::Refused { server: self.name(), reason },
            _ => NetperfError::BadAnswer { server: self.name() },
        }
    }

    async fn ask(&self, control: Control, within: Duration) -> Result<Answer, NetperfError> {
        let idempotent = !matches!(control, Control::Start { .. });
        let body = wire::frame::encode(&control);
        let call = Call::new(Service::Lab, op::CONTROL, body, Instant::now() + within);
        let reply = self.peer.call(Call { class: OpClass::Lab, idempotent, ..call }).await;
        let reply = reply.map_err(|source| NetperfError::Server { server: self.name(), source })?;
        wire::frame::decode(&reply.body).map_err(|_| NetperfError::BadAnswer { server: self.name() })
    }

    async fn ready(&self, control: Control, within: Duration) -> Result<(), NetperfError> {
        match self.ask(control, within).await? {
            Answer::Ready => Ok(()),
            other => Err(self.unexpected(other)),
        }
    }

    async fn progress(&self, test: u64) -> Result<(u64, u64), NetperfError> {
        match self.ask(Control::Progress { test }, ANSWER_MAX).await? {
            Answer::Progress { bytes, errors, .. } => Ok((bytes, errors)),
            other => Err(self.unexpected(other)),
        }
    }

    async fn client_result(&self, test: u64, deadline: Instant) -> Result<ClientResult, NetperfError> {
        match self.wait(Control::ClientResult { test }, deadline).await? {
            Answer::Client(result) => Ok(*result),
            other => Err(self.unexpected(other)),
        }
    }

    async fn server_result(&self, test: u64, deadline: Instant) -> Result<ServerResult, NetperfError> {
        match self.wait(Control::ServerResult { test }, deadline).await? {
            Answer::Server(result) => Ok(result),
            other => Err(self.unexpected(other)),
        }
    }

    /// Asks until the answer is there.
    async fn wait(&self, control: Control, deadline: Instant) -> Result<Answer, NetperfError> {
        loop {
            match self.ask(control.clone(), ANSWER_MAX).await? {
                Answer::NotYet if Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Answer::NotYet => {
                    let reason = "its part of the test does not end".to_owned();
                    return Err(NetperfError::Refused { server: self.name(), reason });
                }
                answer => return Ok(answer),
            }
        }
    }
}
