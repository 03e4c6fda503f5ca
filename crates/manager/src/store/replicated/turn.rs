//! Which member of etcd is asked: the one that leads the others, because any other one has to pass a request on to it and to wait
//! for its word; after a failure the next one.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use etcd_client::{Client, ConnectOptions, Error, StatusResponse};
use parking_lot::Mutex;

/// So long after a failure nobody goes back to the one that leads: it may be the one that fails, and still say that it leads. Twice as long
/// after each one that comes soon, up to the other.
const RESTS: Duration = Duration::from_secs(10);
const RESTS_MAX: Duration = Duration::from_secs(80);
const DEADLINE: Duration = Duration::from_secs(2);

struct Failed {
    at: Instant,
    rests: Duration,
}

impl Failed {
    /// One that comes so long after another, which is past.
    fn after(past: Duration, rests: Duration) -> Duration {
        if past < rests * 2 { (rests * 2).min(RESTS_MAX) } else { RESTS }
    }
}

/// See the module.
pub struct Turn {
    endpoints: Vec<String>,
    options: ConnectOptions,
    /// One for each member, once it was reached.
    clients: Vec<Mutex<Option<Client>>>,
    /// Which one is asked, modulo their number.
    at: AtomicUsize,
    failed: Mutex<Option<Failed>>,
}

impl Turn {
    /// Members at these addresses, the first of which is asked first.
    pub fn new(endpoints: Vec<String>, options: ConnectOptions) -> Turn {
        Turn {
            clients: endpoints.iter().map(|_| Mutex::default()).collect(),
            endpoints,
            options,
            at: AtomicUsize::new(0),
            failed: Mutex::default(),
        }
    }

    /// How many there are.
    pub fn members(&self) -> usize {
        self.clients.len()
    }

    /// Whose turn it is.
    pub fn now(&self) -> usize {
        self.at.load(Ordering::Relaxed)
    }

    /// Where that member is, for people.
    pub fn place(&self, turn: usize) -> &str {
        let endpoint = &self.endpoints[turn % self.clients.len()];
        endpoint.split_once("://").map_or(endpoint, |(_, place)| place)
    }

    /// The client of a member.
    pub async fn client(&self, turn: usize) -> Result<Client, Error> {
        let index = turn % self.clients.len();
        if let Some(client) = &*self.clients[index].lock() {
            return Ok(client.clone());
        }
        let client = Client::connect([&self.endpoints[index]], Some(self.options.clone())).await?;
        *self.clients[index].lock() = Some(client.clone());
        Ok(client)
    }

    /// That member has failed: it is the next one's turn. Whoever fails at the same time moves it once.
    pub fn fails(&self, turn: usize) {
        let mut failed = self.failed.lock();
        let rests = failed.as_ref().map_or(RESTS, |last| Failed::after(last.at.elapsed(), last.rests));
        *failed = Some(Failed { at: Instant::now(), rests });
        drop(failed);
        self.move_on(turn, 1);
    }

    fn move_on(&self, turn: usize, by: usize) {
        let next = turn.wrapping_add(by);
        let _ = self.at.compare_exchange(turn, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    async fn status(&self, turn: usize) -> Option<StatusResponse> {
        let asked = async { self.client(turn).await?.status().await };
        tokio::time::timeout(DEADLINE, asked).await.ok()?.ok()
    }

    /// Gives the turn to the member that leads the others, if one does and none has failed of late.
    pub async fn to_leader(&self) {
        let turn = self.now();
        if self.failed.lock().as_ref().is_some_and(|last| last.at.elapsed() < last.rests) {
            return;
        }
        let Some(asked) = self.status(turn).await else { return };
        for by in 0..self.clients.len() {
            let status = if by == 0 { Some(asked.clone()) } else { self.status(turn.wrapping_add(by)).await };
            if status.is_some_and(|status| status.header().is_some_and(|of| of.member_id() == asked.leader()))
            {
                return self.move_on(turn, by);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::member::Member, *};

    #[test]
    fn one_that_fails_again_and_again_is_asked_ever_less() {
        let seconds = Duration::from_secs;
        let after = |past, rests| Failed::after(seconds(past), seconds(rests)).as_secs();
        assert_eq!([after(12, 10), after(22, 20), after(42, 40), after(82, 80)], [20, 40, 80, 80]);
        assert_eq!([after(20, 10), after(160, 80)], [10, 10]);
    }

    #[test]
    fn the_member_that_leads_is_asked_unless_one_has_just_failed() {
        let members = Member::three();
        let endpoints = members.iter().map(|member| format!("http://{}", member.address)).collect();
        let turn = Turn::new(endpoints, ConnectOptions::new());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let until = Instant::now() + Duration::from_secs(60);
            let status = async |member| loop {
                assert!(Instant::now() < until, "{member} says nothing");
                if let Some(status) = turn.status(member).await {
                    break status;
                }
            };
            for target in [2, 0, 1] {
                let id = status(target).await.header().unwrap().member_id();
                while turn.now() % 3 != target {
                    let leader = status(0).await.leader();
                    for member in 0..3 {
                        let own = status(member).await.header().unwrap().member_id();
                        if own == leader && leader != id {
                            let _ = turn.client(member).await.unwrap().move_leader(id).await;
                        }
                    }
                    turn.to_leader().await;
                    assert!(Instant::now() < until, "{target}");
                }
            }
            turn.fails(turn.now());
            turn.to_leader().await;
            assert_eq!(turn.now() % 3, 2, "{}", turn.place(turn.now()));
        });
    }
}
