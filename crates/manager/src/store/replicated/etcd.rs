//! Asks etcd. Every request has a deadline; an answer that does not come in time is unknown, and the next request goes to the
//! next member. Has threads of its own, so that the lease is renewed whatever else waits.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use base::presence::boot_time;
use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, Error, GetOptions, Identity, KeyValue,
    PutOptions, TlsOptions, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use parking_lot::Mutex;
use tokio::{
    runtime::{Builder, Runtime},
    sync::Notify,
};
use wire::map::ManagerEntry;

use super::{
    super::Confirmed,
    following::Following,
    holder::{Ask, Entry, Heard, Revision, Start},
    part::PART_BYTES,
    place::Place,
    turn::Turn,
    upkeep::{self, Upkeep},
};

/// How long a member has for an answer.
const REQUEST_DEADLINE: Duration = Duration::from_secs(2);
/// How often it is looked which member leads.
const LOOK_FOR_LEADER: Duration = Duration::from_secs(1);
/// In a lease it is renewed so often.
const RENEWALS: u32 = 4;
/// This part of a lease before it runs out nothing is answered any more: for clocks of different pace.
const MARGIN_PART: u32 = 10;
/// For how long only the heir can lead, seconds. etcd takes no less than about 2.
const HEIR_SECONDS: i64 = 3;
/// Records in one answer.
const READ_MAX: i64 = 64;

/// Who this manager is, in the leader's key.
#[derive(Debug, Clone, Default)]
pub struct Claim {
    /// Its directory.
    pub member: u64,
    /// Its life.
    pub life: u64,
    /// The same for people: machine and process.
    pub who: String,
    /// Its name and addresses, for those who look for it; of one that stands alone empty.
    pub entry: ManagerEntry,
}

/// In the place of a name.
const NOBODY: &str = "-";

impl Claim {
    fn text(&self) -> String {
        let Claim { member, life, who, entry } = self;
        let name = if entry.name.is_empty() { NOBODY } else { &entry.name };
        format!("{member:016x} {life:016x} {name} {} {who}", entry.addrs.join(","))
    }

    fn read(text: &str) -> Option<Claim> {
        let mut parts = text.splitn(5, ' ');
        let mut number = || u64::from_str_radix(parts.next()?, 16).ok();
        let (member, life) = (number()?, number()?);
        let name = Some(parts.next()?).filter(|name| *name != NOBODY).unwrap_or_default().to_owned();
        let addrs = parts.next()?.split(',').filter(|addr| !addr.is_empty()).map(str::to_owned).collect();
        Some(Claim { member, life, entry: ManagerEntry { name, addrs }, who: parts.next()?.to_owned() })
    }
}

/// A journal's place in etcd, and how it is reached.
pub struct Etcd {
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
    claim: Claim,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Held {
    lease: i64,
    leader: Revision,
}

struct Shared {
    place: Place,
    turn: Turn,
    /// The leader's key that this manager made, and its lease, which is renewed; none before, and after the end.
    held: Mutex<Option<Held>>,
    /// It was made.
    won: Notify,
    confirmed: Confirmed,
    following: Following,
    /// The shortest lease that was asked for, seconds: a key that stands there may be under any of them.
    lease: AtomicU64,
    upkeep: Upkeep,
    /// Why the last request failed.
    failure: Mutex<String>,
}

impl Etcd {
    /// Prepares to ask; asks nothing yet.
    pub fn new(place: &Place, claim: Claim, following: Following) -> Result<Etcd, String> {
        let options = options(place)?;
        let scheme = if place.tls { "https" } else { "http" };
        let endpoint = |at: &String| format!("{scheme}://{at}");
        let mut runtime = Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).thread_name("manager-etcd").enable_all().build();
        let runtime = runtime.map_err(|error| format!("start the threads for etcd: {error}"))?;
        let shared = Arc::new(Shared {
            turn: Turn::new(place.endpoints.iter().map(endpoint).collect(), options),
            held: Mutex::default(),
            won: Notify::new(),
            confirmed: Confirmed::default(),
            following,
            lease: AtomicU64::new(u64::MAX),
            upkeep: Upkeep::default(),
            failure: Mutex::default(),
            place: place.clone(),
        });
        runtime.spawn(renew(shared.clone()));
        runtime.spawn(ask_leader(shared.clone()));
        Ok(Etcd { shared, runtime: Some(runtime), claim })
    }

    /// Asks, and waits for the answer.
    pub fn ask(&self, ask: &Ask) -> Heard {
        let (shared, ask, claim) = (self.shared.clone(), ask.clone(), self.claim.clone());
        self.wait(async move { shared.ask(ask, &claim).await }).unwrap_or(Heard::Unknown)
    }

    /// Removes records below a number, if the leader's key is as it was made, and etcd's history of them. Failing loses
    /// nothing: the next one removes more.
    pub fn trim(&self, leader: Revision, below: u64) {
        let shared = self.shared.clone();
        let trimmed = self.wait(async move { shared.trim(leader, below).await });
        if trimmed.is_none() {
            tracing::debug!("records in etcd are removed later: {}", self.failure());
        }
    }

    /// How full etcd is.
    pub fn upkeep(&self) -> &Upkeep {
        &self.shared.upkeep
    }

    /// Looks after etcd's database, if it is time. May take as long as defragmentations do.
    pub fn look_after(&self) {
        if self.shared.upkeep.due() {
            let shared = self.shared.clone();
            self.wait(async move { shared.look_after().await });
        }
    }

    /// Until when this manager led for sure.
    pub fn confirmed(&self) -> Confirmed {
        self.shared.confirmed.clone()
    }

    /// Why the last request failed, for people.
    pub fn failure(&self) -> String {
        self.shared.failure.lock().clone()
    }

    /// Stops renewing the lease, and removes the leader's key if it is as it was made. For some seconds only the heir, if one is
    /// named, can make it anew.
    pub fn resign(&self, leader: Revision, heir: Option<String>) {
        *self.shared.held.lock() = None;
        self.shared.confirmed.end();
        let left = heir.and_then(|heir| {
            let shared = self.shared.clone();
            self.wait(async move { shared.leave_to(leader, heir).await })
        });
        if left.is_none() {
            self.ask(&Ask::Depose { leader });
        }
    }

    /// On the threads for etcd, whoever asks: within a runtime nobody may block on another.
    fn wait<T: Send + 'static>(&self, work: impl Future<Output = Option<T>> + Send + 'static) -> Option<T> {
        let (told, heard) = std::sync::mpsc::channel();
        self.runtime.as_ref()?.spawn(async move {
            let _ = told.send(work.await);
        });
        heard.recv().ok().flatten()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn options(place: &Place) -> Result<ConnectOptions, String> {
    let mut options =
        ConnectOptions::new().with_connect_timeout(REQUEST_DEADLINE / 2).with_require_leader(true);
    if let Some((name, password)) = &place.user {
        options = options.with_user(name, password).with_auto_token_refresh(true);
    }
    if place.tls {
        let pem = |path: &Path| fs::read(path).map_err(|error| format!("read {}: {error}", path.display()));
        let Some(ca) = &place.ca else {
            return Err("TLS to etcd needs the certificate of its authority".into());
        };
        let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(pem(ca)?));
        if let Some((certificate, key)) = &place.client {
            tls = tls.identity(Identity::from_pem(pem(certificate)?, pem(key)?));
        }
        options = options.with_tls(tls);
    }
    Ok(options)
}

/// Renews the lease until its runtime ends.
async fn renew(shared: Arc<Shared>) {
    loop {
        let every = shared.following.lease() / RENEWALS;
        let _ = tokio::time::timeout(every, shared.won.notified()).await;
        let held = *shared.held.lock();
        if let Some(held) = held {
            // One member may be gone, or hang: others are asked before the lease is over. Failing is met with the next commit, or
            // the next look.
            for _ in 0..shared.turn.members() {
                let turn = shared.turn.now();
                match tokio::time::timeout(every, shared.renew(held)).await {
                    Ok(Some(())) => break,
                    Ok(None) => {}
                    Err(_) => shared.turn.fails(turn),
                }
            }
        }
    }
}

/// Whoever commits does so at the member that leads, until its runtime ends.
async fn ask_leader(shared: Arc<Shared>) {
    loop {
        tokio::time::sleep(LOOK_FOR_LEADER).await;
        let commits = shared.held.lock().is_some();
        if commits {
            shared.turn.to_leader().await;
        }
    }
}

fn entry(kv: &KeyValue) -> Option<Entry> {
    let number = kv.key().last_chunk::<16>().and_then(|hex| std::str::from_utf8(hex).ok());
    let number = number.and_then(|hex| u64::from_str_radix(hex, 16).ok())?;
    Some(Entry { number, created: kv.create_revision(), bytes: kv.value().to_vec() })
}

/// What the start's text says. Journal 0 is nobody's: it is another's, or of a newer version.
fn read_start(text: &str, created: Revision) -> Start {
    let mut words = text.split(' ');
    let kind = words.next();
    let mut number = || words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
    let (journal, base, ended) = (number(), number(), number());
    match (kind, journal, base, ended) {
        (Some("1"), Some(journal), Some(base), None) => Start { journal, base, ended: None, created },
        (Some("2"), Some(journal), Some(base), ended @ Some(_)) => Start { journal, base, ended, created },
        _ => Start { journal: 0, base: 0, ended: None, created },
    }
}

fn created(key: String, revision: Revision) -> Compare {
    Compare::create_revision(key, CompareOp::Equal, revision)
}

/// What the transaction's requests for keys brought, in their order.
fn got(answer: &TxnResponse) -> Vec<Vec<KeyValue>> {
    let mut all = answer.op_responses();
    all.iter_mut()
        .filter_map(|response| match response {
            TxnOpResponse::Get(get) => Some(get.take_kvs()),
            _ => None,
        })
        .collect()
}

impl Shared {
    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.place.prefix)
    }

    fn record(&self, number: u64) -> String {
        format!("{}/j/{number:016x}", self.place.prefix)
    }

    /// One request, to one member; none if it failed or was not answered in time.
    async fn request<T>(&self, work: impl AsyncFnOnce(Client) -> Result<T, Error>) -> Option<T> {
        let turn = self.turn.now();
        let exchange = async { work(self.turn.client(turn).await?).await };
        let failure = match tokio::time::timeout(REQUEST_DEADLINE, exchange).await {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(error)) => {
                if upkeep::is_full(&error) {
                    self.upkeep.refused();
                }
                upkeep::explain(&error, self.place.tls)
            }
            Err(_) => format!("no answer within {} s", REQUEST_DEADLINE.as_secs()),
        };
        *self.failure.lock() = format!("etcd at {}: {failure}", self.turn.place(turn));
        self.turn.fails(turn);
        None
    }

    /// Asks each member for itself.
    async fn look_after(&self) -> Option<()> {
        let mut clients = Vec::new();
        for index in 0..self.turn.members() {
            let connected = tokio::time::timeout(REQUEST_DEADLINE, self.turn.client(index)).await;
            clients.extend(connected.ok().and_then(Result::ok));
        }
        self.upkeep.look(clients, self.place.quota).await
    }

    /// Renews the lease. That this was done counts only if the leader's key is there afterwards: then nobody else can have it
    /// for as long as the lease lasts, counted from before it was asked for.
    async fn renew(&self, held: Held) -> Option<()> {
        let asked = boot_time();
        self.request(async |mut client| client.lease_keep_alive(held.lease).await.map(drop)).await?;
        let get = [TxnOp::get(self.key("leader"), None)];
        let answer =
            self.txn(Txn::new().when([created(self.key("leader"), held.leader)]).and_then(get)).await?;
        let still = self.held.lock();
        if answer.succeeded() && *still == Some(held) {
            let lease = Duration::from_secs(self.lease.load(Ordering::Relaxed));
            self.confirmed.until(asked + lease - lease / MARGIN_PART);
        }
        Some(())
    }

    async fn txn(&self, txn: Txn) -> Option<TxnResponse> {
        let limit = 2 * READ_MAX as usize * PART_BYTES;
        self.request(async |client| client.kv_client().max_decoding_message_size(limit).txn(txn).await).await
    }

    async fn ask(&self, ask: Ask, claim: &Claim) -> Option<Heard> {
        match ask {
            Ask::Win => self.win(claim).await,
            Ask::Depose { leader } => {
                let key = self.key("leader");
                let remove = [TxnOp::delete(key.clone(), None)];
                self.txn(Txn::new().when([created(key, leader)]).and_then(remove)).await?;
                Some(Heard::Done)
            }
            Ask::Begin { leader, journal, base } => {
                let key = self.key("start");
                let guards = [created(self.key("leader"), leader), created(key.clone(), 0)];
                let put = [TxnOp::put(key, format!("1 {journal:016x} {base:016x}"), None)];
                self.txn(Txn::new().when(guards).and_then(put)).await?;
                Some(Heard::Done)
            }
            Ask::End { leader, journal, base, last, before } => {
                let known = if last == base { self.key("start") } else { self.record(last) };
                let guards = [
                    created(self.key("leader"), leader),
                    created(known, before),
                    created(self.record(last + 1), 0),
                ];
                let text = format!("2 {journal:016x} {base:016x} {last:016x}");
                let put = [TxnOp::put(self.key("start"), text, None)];
                self.txn(Txn::new().when(guards).and_then(put)).await?;
                Some(Heard::Done)
            }
            Ask::Read { from } => self.read(from).await,
            Ask::Append { leader, last, first, before, bytes } => {
                self.append(leader, last, (first, before), &bytes).await
            }
        }
    }

    /// Removes the leader's key and names who is to make it anew, for some seconds.
    async fn leave_to(&self, leader: Revision, heir: String) -> Option<()> {
        let granted = self.request(async |mut client| client.lease_grant(HEIR_SECONDS, None).await).await?;
        let key = self.key("leader");
        let options = PutOptions::new().with_lease(granted.id());
        let leave = [TxnOp::delete(key.clone(), None), TxnOp::put(self.key("heir"), heir, Some(options))];
        self.txn(Txn::new().when([created(key, leader)]).and_then(leave)).await.map(drop)
    }

    async fn win(&self, claim: &Claim) -> Option<Heard> {
        let seconds = self.following.lease().as_secs();
        self.lease.fetch_min(seconds, Ordering::Relaxed);
        let granted = self.request(async |mut client| client.lease_grant(seconds as i64, None).await).await?;
        let (key, heir) = (self.key("leader"), self.key("heir"));
        let options = PutOptions::new().with_lease(granted.id());
        let put = TxnOp::put(key.clone(), claim.text(), Some(options));
        let get = TxnOp::get(key.clone(), None);
        let looks = [get.clone(), TxnOp::get(heir.clone(), None)];
        let free = [created(key.clone(), 0), created(heir.clone(), 0)];
        let txn = Txn::new().when(free).and_then([put.clone(), get.clone()]).or_else(looks);
        let mut found = got(&self.txn(txn).await?);
        let named = found.get(1).and_then(|heirs| heirs.first()).map(|heir| heir.value().to_vec());
        if let Some(named) = named.filter(|_| found[0].is_empty()) {
            if named != claim.entry.name.as_bytes() {
                return None; // it is another one's turn
            }
            let own = [created(key, 0), Compare::value(heir.clone(), CompareOp::Equal, named)];
            let txn =
                Txn::new().when(own).and_then([put, TxnOp::delete(heir, None), get.clone()]).or_else([get]);
            found = got(&self.txn(txn).await?);
        }
        let there = found.into_iter().flatten().next()?;
        let found = Claim::read(&String::from_utf8_lossy(there.value()))
            .unwrap_or(Claim { who: "an unknown holder of the leader's key".into(), ..Claim::default() });
        self.following.set_leader(Some(found.entry.clone()));
        if (found.member, found.life) == (claim.member, claim.life) {
            let held = Held { lease: there.lease(), leader: there.create_revision() };
            *self.held.lock() = Some(held);
            self.won.notify_one();
        }
        let Claim { member, life, who, .. } = found;
        Some(Heard::Leader { created: there.create_revision(), member, life, who })
    }

    async fn read(&self, from: u64) -> Option<Heard> {
        let end = self.record(u64::MAX);
        let first = GetOptions::new().with_range(end.clone()).with_limit(1).with_keys_only();
        let page = GetOptions::new().with_range(end).with_limit(READ_MAX);
        let gets = [
            TxnOp::get(self.key("leader"), None),
            TxnOp::get(self.key("start"), None),
            TxnOp::get(self.record(0), Some(first)),
            TxnOp::get(self.record(from), Some(page)),
        ];
        let answer = self.txn(Txn::new().and_then(gets)).await?;
        let [leader, start, first, records] = got(&answer).try_into().ok()?;
        let leads = leader.first().and_then(|kv| Claim::read(&String::from_utf8_lossy(kv.value())));
        self.following.set_leader(leads.map(|claim| claim.entry));
        let start =
            start.first().map(|kv| read_start(&String::from_utf8_lossy(kv.value()), kv.create_revision()));
        Some(Heard::Records {
            leader: leader.first().map(KeyValue::create_revision),
            start,
            first: first.first().and_then(entry).map(|entry| entry.number),
            more: records.len() == READ_MAX as usize,
            records: records.iter().filter_map(entry).collect(),
        })
    }

    async fn append(
        &self,
        leader: Revision,
        last: u64,
        (first, before): (bool, Revision),
        bytes: &[u8],
    ) -> Option<Heard> {
        let (key, known) = (self.record(last + 1), if first { self.key("start") } else { self.record(last) });
        let guards = [created(self.key("leader"), leader), created(key.clone(), 0), created(known, before)];
        let txn = Txn::new()
            .when(guards)
            .and_then([TxnOp::put(key.clone(), bytes, None)])
            .or_else([TxnOp::get(self.key("leader"), None), TxnOp::get(key, None)]);
        let answer = self.txn(txn).await?;
        if answer.succeeded() {
            return Some(Heard::Appended(answer.header()?.revision()));
        }
        let [leader, there] = got(&answer).try_into().ok()?;
        Some(Heard::Refused {
            leader: leader.first().map(KeyValue::create_revision),
            there: there.first().and_then(entry),
        })
    }

    async fn trim(&self, leader: Revision, below: u64) -> Option<()> {
        let range = etcd_client::DeleteOptions::new().with_range(self.record(below));
        let remove = [TxnOp::delete(self.record(0), Some(range))];
        // That one stays: where no record is at all the journal would seem to begin.
        let stays = Compare::create_revision(self.record(below), CompareOp::Greater, 0);
        let guards = [created(self.key("leader"), leader), stays];
        let answer = self.txn(Txn::new().when(guards).and_then(remove)).await?;
        if answer.succeeded() {
            let revision = answer.header()?.revision();
            self.request(async |mut client| client.compact(revision, None).await.map(drop)).await?;
        }
        Some(())
    }
}
