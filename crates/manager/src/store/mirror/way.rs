//! The way to the machine that keeps a copy, and to the servers. In tests it leads to what is in the same process.

use std::{
    fmt,
    net::SocketAddr,
    time::{Duration, Instant},
};

use net::{Call, Endpoint, Service};
use tokio::runtime::Handle;

use super::votes::Voter;

/// Carries questions. It blocks, and is not used by tasks.
pub trait Way: Send + Sync + 'static {
    /// Asks the machine that keeps the copy.
    fn keeper(&self, body: Vec<u8>, patience: Duration) -> Result<Vec<u8>, String>;
    /// Asks all of these at once.
    fn voters(&self, voters: &[Voter], body: &[u8], patience: Duration) -> Vec<Result<Vec<u8>, String>>;
}

/// Over a process's own end of the network.
pub struct NetWay {
    endpoint: Endpoint,
    runtime: Handle,
    keeper: Vec<SocketAddr>,
}

impl NetWay {
    /// To a keeper at these addresses. Must be called within a tokio runtime, one of several threads.
    pub fn new(endpoint: &Endpoint, keeper: Vec<SocketAddr>) -> NetWay {
        NetWay { endpoint: endpoint.clone(), runtime: Handle::current(), keeper }
    }
}

impl fmt::Debug for NetWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetWay").field("keeper", &self.keeper).finish_non_exhaustive()
    }
}

async fn ask(
    endpoint: Endpoint,
    addrs: Vec<SocketAddr>,
    body: Vec<u8>,
    patience: Duration,
) -> Result<Vec<u8>, String> {
    // All of them may be said twice: commits by their number, votes since the first one stands.
    if addrs.is_empty() {
        return Err("no address of it is known".to_owned());
    }
    let call = Call {
        idempotent: true,
        patience: Some(patience),
        ..Call::new(Service::Callback, 0, body, Instant::now() + patience)
    };
    let reply = endpoint.peer(&addrs).call(call).await.map_err(|error| error.to_string())?;
    Ok(reply.body.to_vec())
}

impl Way for NetWay {
    fn keeper(&self, body: Vec<u8>, patience: Duration) -> Result<Vec<u8>, String> {
        self.runtime.block_on(ask(self.endpoint.clone(), self.keeper.clone(), body, patience))
    }

    fn voters(&self, voters: &[Voter], body: &[u8], patience: Duration) -> Vec<Result<Vec<u8>, String>> {
        let start = |voter: &Voter| {
            self.runtime.spawn(ask(self.endpoint.clone(), voter.addrs.clone(), body.to_vec(), patience))
        };
        let asked: Vec<_> = voters.iter().map(start).collect();
        let heard = asked.into_iter().map(|one| self.runtime.block_on(one));
        heard.map(|one| one.unwrap_or_else(|error| Err(error.to_string()))).collect()
    }
}
