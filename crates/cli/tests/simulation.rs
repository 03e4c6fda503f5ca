//! The seeded simulation: the shipped manager, memberships, gates, stripes and clients in one thread, over a simulated
//! network, clock and disks (`simulation/`). Programs on two or three clients use the same files, names and locks, while
//! messages are lost, late or carried out twice, ways are cut for shorter and longer than a lease, the manager, servers and
//! clients are killed or stopped, disks hang, logs lose their end, strips rot and move, and the machine sleeps with all that
//! runs on it. Whatever was answered must hold, all pdisks must count again in the end, and nobody may wait for ever.
//! `ROPEWALK_TEST_SEED=7` repeats a seed (with `RUST_LOG=info`: all that happens in it), `random` draws some, `ROPEWALK_SIMULATION_SEEDS=1000..2000`
//! runs others, `ROPEWALK_SOAK=1` more.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;
#[path = "common/concerned.rs"]
mod concerned;
#[path = "common/linear.rs"]
mod linear;
mod simulation {
    pub mod alone;
    pub mod asks;
    pub mod beside;
    pub mod cluster;
    pub mod disk;
    pub mod held;
    pub mod programs;
    pub mod server;
    pub mod tree;
    pub mod world;
}

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashSet, VecDeque},
    io::Write,
    ops::Range,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use base::{GroupId, PdiskId, PoolId, StripeId};
use client::Client;
use common::Random;
use simulation::{
    alone,
    asks::ASKED,
    beside,
    cluster::{Cluster, NODE, SMALL, Shape, WIDE, Who, Without},
    programs::{Ledger, Program},
    server::Node,
    world::{self, Process},
};
use stripe::Finding;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use wire::{
    mgr::{MgrReply, MgrRequest, PdiskWish},
    owned::Owner,
};

/// Steps of each program, and the longest that all of it may take by the simulated clock.
const STEPS: u64 = 25;
const PATIENCE: Duration = Duration::from_secs(600);

const RULES: [Without; 12] = [
    Without::Fence,
    Without::Durability,
    Without::ExactlyOnce,
    Without::Lease,
    Without::Recall,
    Without::Names,
    Without::Flush,
    Without::Written,
    Without::CatchUp,
    Without::Record,
    Without::LogDigest,
    Without::Passes,
];
/// Of names made ahead.
const RULES_ALONE: [Without; 6] = [
    Without::Durability,
    Without::ExactlyOnce,
    Without::Unheard,
    Without::Early,
    Without::Disorder,
    Without::Numbers,
];
/// Of names made ahead by two beside each other.
const RULES_BESIDE: [Without; 4] =
    [Without::Durability, Without::ExactlyOnce, Without::Recall, Without::Entered];
/// Of questions while names are not told: each is missed by a wrong answer, the rarest by one of some 50.
const RULES_ASKED: [Without; 5] =
    [Without::Waiting, Without::Directories, Without::Target, Without::Replaced, Without::Entry];
/// Each of them is missed by a seed below this; the rarest, the fence, by one of some 300.
const BOUND: u64 = 2001;
/// The seeds that are always run.
const SEEDS: Range<u64> = 1..121;
/// Where the search for the fence begins, so that it takes seconds: it was found near here. All others follow.
const FENCE_NEAR: u64 = 320;

/// What may happen to a cluster while programs run.
struct Mishaps {
    random: Random,
    clients: u32,
    /// Clients that were killed, or cut off for longer than their lease.
    doomed: HashSet<Who>,
    /// Until when others are left alone, so that they can renew their lease between two short cuts.
    spared: BTreeMap<Who, Instant>,
    /// A disk has hung, or the machine slept: both together may take longer than an operation's deadline.
    long: bool,
    gave_up: bool,
}

impl Mishaps {
    fn cut_short(&mut self, cluster: &Cluster, who: Who, time: Duration) {
        let now = Instant::now();
        if self.spared.get(&who).is_none_or(|until| *until <= now) {
            cluster.mishap(&format!("mishap: {who} is cut off for {time:?}"));
            cluster.cut_off(who, Some(time));
            self.spared.insert(who, now + time + Duration::from_secs(4));
        }
    }

    fn node(&mut self, cluster: &Cluster) -> Arc<Node> {
        cluster.nodes[self.random.below(cluster.nodes.len() as u64) as usize].clone()
    }

    /// No more at a time than the code bears the loss of: otherwise everybody waits.
    fn kill_server(&mut self, cluster: &Arc<Cluster>) {
        let (node, down) = (self.node(cluster), Duration::from_millis(self.random.below(20_000)));
        let damage = (self.random.below(3) == 0).then(|| self.random.below(3));
        if cluster.away() < cluster.shape.spare && cluster.kill_server(&node) {
            cluster.mishap(&format!("mishap: the server {} is killed for {down:?}", node.id));
            let cluster = cluster.clone();
            tokio::spawn(async move {
                sleep(down).await;
                // What nobody was told of could be a torn end.
                let told = cluster.log_mark(PdiskId(node.id.0)).position;
                if let Some(from) =
                    damage.and_then(|more| told.checked_sub(1 + more)).filter(|from| *from > 0)
                {
                    cluster.mishap(&format!(
                        "mishap: the log of {} is damaged from {from} of {told} on",
                        node.id
                    ));
                    node.strips.lock().lose_from(from);
                }
                cluster.start_server(&node).await;
                cluster.mishap(&format!("mishap: the server {} is back", node.id));
            });
        }
    }

    /// A server is stopped, and goes on where it was.
    fn stop_server(&mut self, cluster: &Arc<Cluster>) {
        let (node, time) = (self.node(cluster), Duration::from_millis(200 + self.random.below(25_000)));
        if cluster.away() < cluster.shape.spare
            && let Some(life) = node.serving()
        {
            cluster.mishap(&format!("mishap: the server {} is stopped for {time:?}", node.id));
            life.process.stop(time);
        }
    }

    /// Bytes of a strip change on a disk. One at a time, as with whole pdisks.
    fn rot(&mut self, cluster: &Arc<Cluster>) {
        let (node, nth) = (self.node(cluster), self.random.next());
        if cluster.away() < cluster.shape.spare && node.strips.lock().rot(nth) {
            cluster.mishap(&format!("mishap: a strip on {} rots", node.id));
        }
    }

    /// Somebody has a group proved, and repaired.
    fn scrub(&mut self, cluster: &Arc<Cluster>) {
        let (node, group) = (self.node(cluster), self.random.below(cluster.shape.groups.into()) as u32);
        if let Some(life) = node.serving() {
            cluster.mishap(&format!("mishap: {} proves group {group}", node.id));
            let scrub = life.scrub.clone();
            life.process.spawn(async move { scrub.page(PoolId(1), GroupId(group), None, 64, true).await });
        }
    }

    /// A pdisk is given up, or emptied: its strips are made elsewhere.
    async fn give_up(&mut self, cluster: &Arc<Cluster>) {
        let (node, fail) = (self.node(cluster), self.random.below(2) == 0);
        let room = cluster.shape.nodes as usize - 1 > cluster.shape.width();
        if cluster.away() == 0 && room && !std::mem::replace(&mut self.gave_up, true) {
            let wish = if fail { PdiskWish::Fail } else { PdiskWish::Drain };
            let done = cluster.wish(MgrRequest::PdiskSet { pdisk: PdiskId(node.id.0), wish }).await;
            cluster.mishap(&format!("mishap: {wish:?} for the pdisk of {}: {done:?}", node.id));
        }
    }

    /// A disk hangs, for a moment, for longer than any deadline, or for ever.
    fn hang(&mut self, cluster: &Arc<Cluster>) {
        let node = self.node(cluster);
        let time = Some(self.random.below(120)).filter(|time| *time < 100).map(Duration::from_secs);
        // While another one catches up it is needed: everybody would wait for as long as it hangs.
        if cluster.away() < cluster.shape.spare && !std::mem::replace(&mut self.long, true) {
            cluster.mishap(&format!("mishap: the disk of {} hangs for {time:?}", node.id));
            node.hang(time);
        }
    }

    async fn next(&mut self, cluster: &Arc<Cluster>, processes: &BTreeMap<Who, Process>) {
        let mut time = |from: u64, to: u64| Duration::from_millis(from + self.random.below(to - from));
        sleep(time(100, 4000)).await;
        let (short, long, down) = (time(200, 5000), time(11_000, 40_000), time(0, 4000));
        let who = self.random.below(self.clients.into()) as Who;
        // A rule is looked for among what can show it missing.
        let what = match cluster.without {
            Without::Nothing => self.random.below(26),
            Without::Written | Without::CatchUp => self.random.below(13),
            Without::Fence => 7 + self.random.below(2),
            Without::Record | Without::LogDigest => 10 + self.random.below(3),
            Without::Passes => 4 + self.random.below(18),
            _ => self.random.below(10),
        };
        match what {
            0..4 => {
                cluster.mishap(&format!("mishap: the manager is killed for {down:?}"));
                cluster.kill_manager();
                sleep(down).await;
                cluster.start_manager();
            }
            4..6 => self.cut_short(cluster, who, short),
            // A node still reaches the clients, but not the manager.
            6 => {
                let node = NODE + self.node(cluster).id.0;
                self.cut_short(cluster, node, short);
            }
            10..13 => self.kill_server(cluster),
            13..15 => self.hang(cluster),
            // For longer than a lease: nobody was heard of, and nobody is to blame.
            15 if !std::mem::replace(&mut self.long, true) => {
                let time = Duration::from_secs(11 + self.random.below(20));
                cluster.mishap(&format!("mishap: the machine sleeps for {time:?}"));
                world::oversleep(time);
            }
            16..18 => self.stop_server(cluster),
            18 if !std::mem::replace(&mut self.long, true) => {
                cluster.mishap(&format!("mishap: the manager is stopped for {long:?}"));
                cluster.stop_manager(long);
            }
            19 if self.spared.get(&who).is_none_or(|until| *until <= Instant::now()) => {
                cluster.mishap(&format!("mishap: client {who} is stopped for {short:?}"));
                processes[&who].stop(short);
                self.spared.insert(who, Instant::now() + short + Duration::from_secs(4));
            }
            20 if who > 0 && self.doomed.insert(who) => {
                cluster.mishap(&format!("mishap: client {who} is stopped for {long:?}"));
                processes[&who].stop(long);
            }
            21..23 => self.rot(cluster),
            23 => self.scrub(cluster),
            24..26 => self.give_up(cluster).await,
            // One stays to the end.
            7..9 if who > 0 && self.doomed.insert(who) => {
                cluster.mishap(&format!("mishap: client {who} is cut off for {long:?}"));
                cluster.cut_off(who, Some(long));
            }
            9 if who > 0 && self.doomed.insert(who) => {
                cluster.mishap(&format!("mishap: client {who} is killed"));
                cluster.cut_off(who, None);
                processes[&who].kill();
            }
            _ => {}
        }
    }
}

/// How long it may take until all pdisks count once nothing happens any more.
const BACK: Duration = Duration::from_secs(60);

/// Waits until all that was away is back and counts.
async fn all_back(cluster: &Arc<Cluster>) -> Result<(), String> {
    // What was killed or stopped comes back by itself.
    while cluster.nodes.iter().any(|node| !node.answers_now() && !node.hangs()) {
        sleep(Duration::from_millis(500)).await;
    }
    let until = Instant::now() + BACK;
    while !cluster.not_ok().is_empty() {
        if Instant::now() > until {
            let waits = cluster.nodes.iter().map(|node| node.waits()).filter(|waits| !waits.is_empty());
            let waits: Vec<String> = waits.collect();
            return Err(format!("not back in time: {}: {}", cluster.not_ok().join(", "), waits.join(", ")));
        }
        sleep(Duration::from_millis(500)).await;
    }
    Ok(())
}

/// Every stripe is proved, by a server that counts; and nothing is left of what is deleted.
async fn prove(cluster: &Arc<Cluster>) -> Result<(), String> {
    let Some(life) = cluster.nodes.iter().filter(|node| node.answers_now()).find_map(|node| node.serving())
    else {
        return Ok(());
    };
    for group in 0..cluster.shape.groups {
        let scrub = life.scrub.clone();
        let page = async move { scrub.page(PoolId(1), GroupId(group), None, 1000, true).await };
        let page = life.process.spawn(page).await.map_err(|error| format!("the scrub ended: {error}"))?;
        // What a hung disk keeps from being read is not said.
        let Ok(page) = page else { continue };
        // A damaged strip that nobody came upon is found now, and half a write is resolved by who comes next.
        let bad = page.findings.into_iter().find(|found| {
            !matches!(
                found.finding,
                Finding::Damaged { .. } | Finding::Absent { .. } | Finding::Prepared { .. }
            ) || matches!(found.finding, Finding::Absent { .. }) && !cluster.rotted()
        });
        if let Some(found) = bad {
            return Err(format!("scrub: {}: {}", found.stripe, found.finding));
        }
    }
    Ok(())
}

/// Waits until nothing is left of inodes that do not exist.
async fn all_gone(cluster: &Arc<Cluster>) -> Result<(), String> {
    let until = Instant::now() + BACK;
    loop {
        let there: BTreeSet<StripeId> = cluster.counting().iter().flat_map(|node| node.stripes()).collect();
        let blocks: Vec<StripeId> = there.into_iter().collect();
        let Some(MgrReply::Owners(owners)) =
            cluster.wish(MgrRequest::Owners { blocks: blocks.clone() }).await
        else {
            return Err("the manager does not say which blocks exist".into());
        };
        let mut nobodys = blocks.iter().zip(&owners).filter(|(_, owner)| **owner == Owner::Nobody);
        match nobodys.next() {
            None => return Ok(()),
            Some((stripe, _)) if Instant::now() > until => {
                return Err(format!("{stripe} is there, and its inode is not"));
            }
            Some(_) => sleep(Duration::from_millis(500)).await,
        }
    }
}

/// What a client finds that was not there before.
async fn observe(
    cluster: &Arc<Cluster>,
    who: Who,
    ledger: &Arc<Ledger>,
    lost: &HashSet<Who>,
) -> Result<(), String> {
    let (observer, process) =
        cluster.mount(who).await.map_err(|error| format!("mount in the end: {error}"))?;
    let (ledger, lost) = (ledger.clone(), lost.clone());
    let checked = process.spawn(async move { ledger.check(&observer, &lost).await });
    checked.await.map_err(|error| format!("an observer ended: {error}"))?
}

async fn story_together(cluster: &Arc<Cluster>, seed: u64) -> Result<(), String> {
    let mut random = Random(!seed);
    let clients = 2 + random.below(2) as Who;
    let (mut mounted, mut processes) = (Vec::<Client>::new(), BTreeMap::new());
    for who in 0..clients {
        let (client, process) = cluster.mount(who).await.map_err(|error| format!("mount: {error}"))?;
        mounted.push(client);
        processes.insert(who, process);
    }
    let first = mounted[0].clone();
    let ledger = processes[&0].spawn(async move { Ledger::begin(&first).await }).await;
    let ledger = ledger.map_err(|error| error.to_string())?;
    let ledger = ledger.map_err(|error| format!("the first files: {error:?}"))?;
    let mut programs = JoinSet::new();
    for (who, number) in (0..clients).flat_map(|who| (0..2).map(move |number| (who, number))) {
        let (client, ledger) = (mounted[who as usize].clone(), ledger.clone());
        let program = Program { client, who, number, ledger, random: Random(random.next()) };
        programs.spawn_on(async move { (who, program.run(STEPS).await) }, processes[&who].handle());
    }
    drop(mounted);
    let mut mishaps = Mishaps {
        random,
        clients,
        doomed: HashSet::new(),
        spared: BTreeMap::new(),
        long: false,
        gave_up: false,
    };
    for _ in 0..mishaps.random.below(7) {
        mishaps.next(cluster, &processes).await;
    }
    let mut lost = HashSet::new();
    while let Some(ended) = programs.join_next().await {
        match ended {
            Ok((_, Ok(()))) => {}
            Ok((who, Err(_))) if mishaps.doomed.contains(&who) => drop(lost.insert(who)),
            Ok((who, Err((what, error)))) => {
                return Err(format!("{what} of a program of client {who}: {error:?}"));
            }
            Err(error) if error.is_cancelled() => {}
            Err(error) => return Err(format!("a program ended: {error}")),
        }
    }
    // Who was cut off for long may have lost its session after its last step.
    lost.extend(&mishaps.doomed);
    all_back(cluster).await?;
    observe(cluster, 50, &ledger, &lost).await?;
    all_gone(cluster).await?;
    prove(cluster).await?;
    all_back(cluster).await?;
    // What is there must be so without as many pdisks as the code bears the loss of.
    for _ in cluster.away()..cluster.shape.spare {
        let node = mishaps.node(cluster);
        cluster.mishap(&format!("mishap: the server {} is killed for good", node.id));
        cluster.kill_server(&node);
    }
    observe(cluster, 51, &ledger, &lost).await
}

/// What becomes of a client that made names ahead of the manager.
#[derive(Clone, Copy, Debug)]
enum End {
    Goes,
    Killed,
    /// Another comes while it goes on.
    Joined,
    /// It is cut off for longer than its lease, and another one comes.
    Fenced,
}

/// One client alone, whose names are made ahead of the manager.
async fn story_alone(cluster: &Arc<Cluster>, seed: u64) -> Result<(), String> {
    let mut random = Random(!seed);
    let programs = 1 + random.below(3) as usize;
    // In half of them what they begin with was there before.
    let before =
        if random.below(2) == 0 { Some(before_alone(cluster, programs, &mut random).await?) } else { None };
    let (client, process) = cluster.mount(0).await.map_err(|error| format!("mount: {error}"))?;
    let ledger = match before {
        Some(ledger) => ledger,
        None => {
            let first = client.clone();
            let ledger = process.spawn(async move { alone::Ledger::begin(&first, programs).await }).await;
            ledger.map_err(|error| error.to_string())?.map_err(|error| format!("begin: {error:?}"))?
        }
    };
    let mut running = JoinSet::new();
    for number in 0..programs {
        let program = alone::Program {
            client: client.clone(),
            number,
            ledger: ledger.clone(),
            random: Random(random.next()),
        };
        running.spawn_on(program.run(40 + random.below(100)), process.handle());
    }
    let end = [End::Goes, End::Killed, End::Joined, End::Fenced][random.below(4) as usize];
    let when = Duration::from_millis(random.below(3000));
    let mut mishaps = Mishaps {
        clients: 1,
        doomed: HashSet::new(),
        spared: BTreeMap::new(),
        long: true,
        gave_up: false,
        random,
    };
    let processes = BTreeMap::from([(0, process.clone())]);
    // What happens to it happens at any time, also while others are away.
    let (happens, at) = (cluster.clone(), process.clone());
    let (book, mounted) = (ledger.clone(), client.clone());
    let happens = async move {
        sleep(when).await;
        happens.mishap(&format!("mishap: the client that is alone {end:?}"));
        match end {
            End::Goes => Ok::<_, String>(None),
            End::Killed => {
                happens.cut_off(0, None);
                at.kill();
                Ok(None)
            }
            End::Fenced => {
                happens.cut_off(0, Some(Duration::from_secs(40)));
                Ok(None)
            }
            End::Joined => {
                let seen = book.answered();
                let (second, process) =
                    happens.mount(1).await.map_err(|error| format!("a second mount: {error}"))?;
                book.must_be_there(&seen);
                let (book, looks) = (book.clone(), second.clone());
                let checked = process.spawn(async move { book.check(&looks).await }).await;
                checked.map_err(|error| format!("an observer ended: {error}"))??;
                Ok(Some((second, process)))
            }
        }
    };
    let happened = tokio::spawn(happens);
    for _ in 0..mishaps.random.below(5) {
        if !happened.is_finished() || matches!(end, End::Goes | End::Joined) {
            mishaps.next(cluster, &processes).await;
        }
    }
    let second = happened.await.map_err(|error| error.to_string())??;
    if matches!(end, End::Killed | End::Fenced) {
        // Its session is ended for who comes now.
        observe_alone(cluster, 50, &ledger).await?;
    }
    let mut failed = None;
    while let Some(ended) = running.join_next().await {
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => failed = Some(error),
            Err(error) if error.is_cancelled() && matches!(end, End::Killed) => {}
            Err(error) => return Err(format!("a program ended: {error}")),
        }
    }
    match (end, failed) {
        (End::Goes | End::Joined, Some(error)) => return Err(format!("a program failed: {error:?}")),
        (End::Killed, _) => {}
        // What is lost is never silent.
        _ => {
            let answered = ledger.answered();
            let book = ledger.clone();
            let synced = process.spawn(async move {
                mounted.sync_all().await?;
                if matches!(end, End::Goes) { book.ask_attrs(&mounted).await } else { Ok(()) }
            });
            let synced = synced.await;
            match synced.map_err(|error| error.to_string())? {
                Ok(()) => ledger.must_be_there(&answered),
                Err(error) if !matches!(end, End::Fenced) => {
                    return Err(format!("sync in the end: {error:?}"));
                }
                Err(_) => {}
            }
        }
    }
    drop(second);
    all_back(cluster).await?;
    observe_alone(cluster, 51, &ledger).await?;
    all_gone(cluster).await?;
    prove(cluster).await
}

/// What a client makes that then leaves, all told.
async fn before_alone(
    cluster: &Arc<Cluster>,
    programs: usize,
    random: &mut Random,
) -> Result<Arc<alone::Ledger>, String> {
    let (client, process) = cluster.mount(40).await.map_err(|error| format!("mount before: {error}"))?;
    let seeds: Vec<u64> = (0..programs).map(|_| random.next()).collect();
    let makes = async move {
        let ledger = alone::Ledger::begin(&client, programs).await?;
        for (number, seed) in seeds.into_iter().enumerate() {
            let (client, ledger) = (client.clone(), ledger.clone());
            alone::Program { client, number, ledger, random: Random(seed) }.run(40).await?;
        }
        client.shutdown(std::time::Instant::now() + PATIENCE).await?;
        ledger.must_be_there(&ledger.answered());
        Ok::<_, client::Errno>(ledger)
    };
    let made = process.spawn(makes).await.map_err(|error| error.to_string())?;
    made.map_err(|error| format!("what was there before: {error:?}"))
}

async fn observe_alone(cluster: &Arc<Cluster>, who: Who, ledger: &Arc<alone::Ledger>) -> Result<(), String> {
    let (observer, process) =
        cluster.mount(who).await.map_err(|error| format!("mount in the end: {error}"))?;
    let ledger = ledger.clone();
    let checked = process.spawn(async move { ledger.check(&observer).await });
    checked.await.map_err(|error| format!("an observer ended: {error}"))?
}

/// Which story is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Story {
    Together,
    Alone,
    Beside,
}

thread_local! {
    /// A panic of some task in this thread's world.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// One seed, in a thread that does nothing else: what was broken, if anything, and all that happened.
fn live(seed: u64, story: Story, without: Without, whole: bool) -> (Option<String>, Vec<String>) {
    let other = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANIC.set(Some(panic.to_string()));
        other(panic);
    }));
    world::enter(seed, Duration::from_secs(1200));
    let (told, trace) = world::run(async move {
        let ahead = story != Story::Together;
        let cluster = Cluster::start(seed, without, shape(seed, without), ahead, whole).await;
        let told = match story {
            Story::Together => timeout(PATIENCE, story_together(&cluster, seed)).await,
            Story::Alone => timeout(PATIENCE, story_alone(&cluster, seed)).await,
            Story::Beside => timeout(PATIENCE, beside::story(&cluster, seed)).await,
        };
        (told, std::mem::take(&mut *cluster.trace.lock().unwrap()))
    });
    let told = told.unwrap_or_else(|_| Err("somebody waits for ever".into()));
    let told = told.and_then(|()| PANIC.take().map_or(Ok(()), Err));
    (told.err(), trace)
}

/// Every second cluster is a wide one, and where a rule is looked for that only these can show, every one.
fn shape(seed: u64, without: Without) -> Shape {
    match without {
        Without::Nothing if seed.is_multiple_of(2) => WIDE,
        Without::Record | Without::LogDigest | Without::Passes => WIDE,
        _ => SMALL,
    }
}

/// What the process of a seed tells.
struct Told {
    broken: Option<String>,
    /// All that happened, if that was wished; otherwise the mishaps.
    trace: Vec<String>,
}

/// Steps of a seed that failed which are shown.
const LAST: usize = 40;
const SEED: &str = "ROPEWALK_SIMULATED_SEED";
const BROKEN: &str = "broken:\n";
const TRACE: &str = "trace:\n";

/// Starts the process of a seed. It shares nothing with others, not even a counter somewhere in a library.
fn start(seed: u64, story: Story, without: Without, whole: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "one_seed", "--ignored", "--nocapture"]);
    command.env(SEED, format!("{seed} {story:?} {without:?} {whole}")).stdout(Stdio::piped());
    if std::env::var_os("RUST_LOG").is_none() {
        command.stderr(Stdio::null()); // what clients say that were cut off
    }
    command.spawn().unwrap()
}

fn ended(child: Child) -> Told {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let told = text.split_once(BROKEN).and_then(|(_, told)| told.split_once(TRACE));
    let (broken, trace) = told.unwrap_or(("its process died", ""));
    let broken = (!broken.is_empty()).then(|| broken.trim_end().to_owned());
    Told { broken, trace: trace.lines().map(str::to_owned).collect() }
}

#[test]
#[ignore = "the process of one seed, started by the other tests"]
fn one_seed() {
    let Ok(wish) = std::env::var(SEED) else { return };
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let wish: Vec<&str> = wish.split(' ').collect();
    let seed = wish[0].parse().unwrap();
    let stories = [Story::Together, Story::Alone, Story::Beside];
    let story = stories.into_iter().find(|story| format!("{story:?}") == wish[1]).unwrap();
    let mut rules =
        RULES.into_iter().chain(RULES_ALONE).chain(RULES_BESIDE).chain(RULES_ASKED).chain([Without::Told]);
    let without = rules.find(|rule| format!("{rule:?}") == wish[2]).unwrap_or(Without::Nothing);
    let whole = wish[3] == "true";
    let lived = std::thread::spawn(move || live(seed, story, without, whole)).join();
    let (broken, trace) = lived.unwrap_or_else(|_| (Some("a panic".into()), Vec::new()));
    print!("{BROKEN}{}{TRACE}{}", broken.map(|b| b + "\n").unwrap_or_default(), trace.join("\n"));
    std::io::stdout().flush().unwrap();
    std::process::exit(0);
}

/// Runs seeds, as many at a time as there are CPUs.
fn all(
    seeds: impl Iterator<Item = u64>,
    story: Story,
    without: Without,
) -> impl Iterator<Item = (u64, Told)> {
    let ahead = std::thread::available_parallelism().map_or(1, usize::from);
    let mut left = seeds.map(move |seed| (seed, start(seed, story, without, false)));
    let mut running: VecDeque<_> = left.by_ref().take(ahead).collect();
    std::iter::from_fn(move || {
        let (seed, child) = running.pop_front()?;
        let told = ended(child);
        running.extend(left.next());
        Some((seed, told))
    })
}

/// The seeds to run, if they are not the usual ones.
fn wanted_seeds() -> Option<Range<u64>> {
    let var = |name| std::env::var(name).ok();
    match var("ROPEWALK_TEST_SEED").as_deref() {
        Some("random") => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            let first = now.as_micros() as u64;
            return Some(first..first + 120);
        }
        Some(seed) => {
            let seed = seed.parse().expect("ROPEWALK_TEST_SEED is a number, or random");
            return Some(seed..seed + 1);
        }
        None => {}
    }
    if let Some(seeds) = var("ROPEWALK_SIMULATION_SEEDS") {
        let range = seeds.split_once("..").and_then(|(a, b)| Some(a.parse().ok()?..b.parse().ok()?));
        return Some(range.expect("ROPEWALK_SIMULATION_SEEDS is like 1000..2000"));
    }
    var("ROPEWALK_SOAK").map(|_| 1..5001)
}

fn hold(story: Story, seeds: Range<u64>, test: &str) {
    for (seed, told) in all(seeds.clone(), story, Without::Nothing) {
        if let Some(broken) = told.broken {
            let whole = ended(start(seed, story, Without::Nothing, true)).trace;
            let last = whole[whole.len().saturating_sub(LAST)..].join("\n");
            let mishaps = told.trace.join("\n");
            let again = format!("cargo test -p ropewalk-cli --test simulation {test}");
            panic!("seed {seed}: {broken}\n{mishaps}\nat last:\n{last}\nROPEWALK_TEST_SEED={seed} {again}");
        }
    }
    println!("seeds {seeds:?} hold");
}

#[test]
fn what_was_answered_holds() {
    hold(Story::Together, wanted_seeds().unwrap_or(SEEDS), "what_was_answered");
}

#[test]
fn names_made_ahead_hold() {
    hold(Story::Alone, wanted_seeds().unwrap_or(SEEDS), "names_made_ahead");
}

#[test]
fn names_made_ahead_beside_each_other_hold() {
    hold(Story::Beside, wanted_seeds().unwrap_or(SEEDS), "names_made_ahead_beside");
}

#[test]
fn a_seed_repeats() {
    let seeds = wanted_seeds().unwrap_or(1..1000).take(10);
    for seed in seeds {
        let story = [Story::Together, Story::Alone, Story::Beside][seed as usize % 3];
        let [once, again] = [0, 1].map(|_| start(seed, story, Without::Nothing, true));
        let (once, again) = (ended(once).trace, ended(again).trace);
        if let Some(at) = once.iter().zip(&again).position(|(one, other)| one != other) {
            let before = &once[at.saturating_sub(5)..at];
            panic!("seed {seed}, event {at}: {before:#?}, then {:#?} or {:#?}", once[at], again[at]);
        }
        assert_eq!(once.len(), again.len(), "seed {seed}");
        assert!(once.len() > 500, "seed {seed}: {} events", once.len());
    }
}

#[test]
fn a_rule_taken_out_is_missed() {
    let together = RULES.map(|rule| (Story::Together, rule)).into_iter();
    let all_rules = together
        .chain(RULES_ALONE.map(|rule| (Story::Alone, rule)))
        .chain(RULES_BESIDE.map(|rule| (Story::Beside, rule)));
    for (story, without) in all_rules {
        let first = if without == Without::Fence { FENCE_NEAR } else { 1 };
        let mut all = all((first..BOUND).chain(1..first), story, without);
        let found = all.find_map(|(seed, told)| told.broken.map(|broken| (seed, broken)));
        let (seed, broken) = found.unwrap_or_else(|| panic!("{story:?}, {without:?} is not missed"));
        println!("{story:?}, {without:?}: seed {seed}: {}", broken.lines().next().unwrap_or_default());
    }
}

#[test]
fn a_question_that_does_not_wait_is_missed() {
    for without in RULES_ASKED {
        let mut all = all(1..BOUND, Story::Alone, without);
        let found = all.find_map(|(seed, told)| {
            let broken = told.broken.filter(|broken| broken.contains(ASKED))?;
            // Not because it is told late.
            let late = ended(start(seed, Story::Alone, Without::Told, false));
            late.broken.is_none().then_some((seed, broken))
        });
        let (seed, broken) = found.unwrap_or_else(|| panic!("{without:?} is not missed"));
        println!("{without:?}: seed {seed}: {}", broken.lines().next().unwrap_or_default());
    }
}
