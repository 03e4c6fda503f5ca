//! The seeded simulation: the shipped manager, memberships, gates, stripes and clients in one thread, over a simulated
//! network, clock and disks (`simulation/`). Programs on two or three clients use the same files, names and locks, while
//! messages are lost, late or carried out twice, ways are cut for shorter and longer than a lease, the manager, servers and
//! clients are killed, disks hang, and the machine sleeps with all that runs on it. Whatever was answered must hold, and nobody
//! may wait for ever.
//! `ROPEWALK_TEST_SEED=7` repeats a seed (with `RUST_LOG=info`: all that happens in it), `ROPEWALK_SIMULATION_SEEDS=1000..2000`
//! runs others, `ROPEWALK_SOAK=1` more.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;
#[path = "common/linear.rs"]
mod linear;
mod simulation {
    pub mod cluster;
    pub mod disk;
    pub mod programs;
    pub mod server;
    pub mod world;
}

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashSet, VecDeque},
    io::Write,
    ops::Range,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use client::Client;
use common::Random;
use simulation::{
    cluster::{Cluster, NODE, NODES, Who, Without},
    programs::{Ledger, Program},
    world,
};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

/// Steps of each program, and the longest that all of it may take by the simulated clock.
const STEPS: u64 = 25;
const PATIENCE: Duration = Duration::from_secs(600);

const RULES: [Without; 9] = [
    Without::Fence,
    Without::Durability,
    Without::ExactlyOnce,
    Without::Lease,
    Without::Recall,
    Without::Names,
    Without::Flush,
    Without::Written,
    Without::CatchUp,
];
/// Each of them is missed by a seed below this; the rarest, the fence, by one of some 250.
const BOUND: u64 = 2001;

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
}

impl Mishaps {
    fn cut_short(&mut self, cluster: &Cluster, who: Who, time: Duration) {
        let now = Instant::now();
        if self.spared.get(&who).is_none_or(|until| *until <= now) {
            cluster.note(format!("mishap: {who} is cut off for {time:?}"));
            cluster.cut_off(who, Some(time));
            self.spared.insert(who, now + time + Duration::from_secs(4));
        }
    }

    /// One server at a time: with two away everybody waits.
    fn kill_server(&mut self, cluster: &Arc<Cluster>) {
        let node = cluster.nodes[self.random.below(NODES.into()) as usize].clone();
        let down = Duration::from_millis(self.random.below(20_000));
        if cluster.all_serve() && cluster.kill_server(&node) {
            cluster.note(format!("mishap: the server {} is killed for {down:?}", node.id));
            let cluster = cluster.clone();
            tokio::spawn(async move {
                sleep(down).await;
                cluster.start_server(&node).await;
                cluster.note(format!("mishap: the server {} is back", node.id));
            });
        }
    }

    /// A disk hangs, for a moment, for longer than any deadline, or for ever.
    fn hang(&mut self, cluster: &Arc<Cluster>) {
        let node = &cluster.nodes[self.random.below(NODES.into()) as usize];
        let time = Some(self.random.below(120)).filter(|time| *time < 100).map(Duration::from_secs);
        // While another one catches up it is needed: everybody would wait for as long as it hangs.
        if cluster.all_serve() && cluster.all_ok() && !std::mem::replace(&mut self.long, true) {
            cluster.note(format!("mishap: the disk of {} hangs for {time:?}", node.id));
            node.hang(time);
        }
    }

    async fn next(&mut self, cluster: &Arc<Cluster>, killed: &mut Vec<Who>) {
        let mut time = |from: u64, to: u64| Duration::from_millis(from + self.random.below(to - from));
        sleep(time(100, 4000)).await;
        let (short, long, down) = (time(200, 5000), time(11_000, 40_000), time(0, 4000));
        let who = self.random.below(self.clients.into()) as Who;
        // A rule is looked for among what can show it missing.
        let what = match cluster.without {
            Without::Nothing => self.random.below(16),
            Without::Written | Without::CatchUp => self.random.below(13),
            Without::Fence => 7 + self.random.below(2),
            _ => self.random.below(10),
        };
        match what {
            0..4 => {
                cluster.note(format!("mishap: the manager is killed for {down:?}"));
                cluster.kill_manager();
                sleep(down).await;
                cluster.start_manager();
            }
            4..6 => self.cut_short(cluster, who, short),
            // A node still reaches the clients, but not the manager.
            6 => {
                let node = NODE + 1 + self.random.below(NODES.into()) as Who;
                self.cut_short(cluster, node, short);
            }
            10..13 => self.kill_server(cluster),
            13..15 => self.hang(cluster),
            // For longer than a lease: nobody was heard of, and nobody is to blame.
            15.. if !std::mem::replace(&mut self.long, true) => {
                let time = Duration::from_secs(11 + self.random.below(20));
                cluster.note(format!("mishap: the machine sleeps for {time:?}"));
                world::oversleep(time);
            }
            // One stays to the end.
            7..9 if who > 0 && self.doomed.insert(who) => {
                cluster.note(format!("mishap: client {who} is cut off for {long:?}"));
                cluster.cut_off(who, Some(long));
            }
            9 if who > 0 && self.doomed.insert(who) => {
                cluster.note(format!("mishap: client {who} is killed"));
                cluster.cut_off(who, None);
                killed.push(who);
            }
            _ => {}
        }
    }
}

async fn story(cluster: &Arc<Cluster>, seed: u64) -> Result<(), String> {
    let mut random = Random(!seed);
    let clients = 2 + random.below(2) as Who;
    let mut mounted: Vec<Client> = Vec::new();
    for who in 0..clients {
        mounted.push(cluster.mount(who).await.map_err(|error| format!("mount: {error}"))?);
    }
    let ledger = Ledger::begin(&mounted[0]).await.map_err(|error| format!("the first files: {error:?}"))?;
    let (mut programs, mut handles) = (JoinSet::new(), BTreeMap::<Who, Vec<_>>::new());
    for (who, number) in (0..clients).flat_map(|who| (0..2).map(move |number| (who, number))) {
        let (client, ledger) = (mounted[who as usize].clone(), ledger.clone());
        let program = Program { client, who, number, ledger, random: Random(random.next()) };
        let handle = programs.spawn(async move { (who, program.run(STEPS).await) });
        handles.entry(who).or_default().push(handle);
    }
    let mut mishaps =
        Mishaps { random, clients, doomed: HashSet::new(), spared: BTreeMap::new(), long: false };
    for _ in 0..mishaps.random.below(7) {
        let mut killed = Vec::new();
        mishaps.next(cluster, &mut killed).await;
        killed.iter().flat_map(|who| &handles[who]).for_each(|handle| handle.abort());
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
    let observer = cluster.mount(50).await.map_err(|error| format!("mount in the end: {error}"))?;
    ledger.check(&observer, &lost).await
}

thread_local! {
    /// A panic of some task in this thread's world.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// One seed, in a thread that does nothing else: what was broken, if anything, and all that happened.
fn live(seed: u64, without: Without) -> (Option<String>, Vec<String>) {
    let other = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANIC.set(Some(panic.to_string()));
        other(panic);
    }));
    world::enter(seed, Duration::from_secs(300));
    let threads = Arc::new(AtomicU64::new(0));
    let more = threads.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .on_thread_start(move || _ = more.fetch_add(1, SeqCst))
        .build()
        .unwrap();
    let (told, trace) = runtime.block_on(async {
        let cluster = Cluster::start(seed, without).await;
        let told = timeout(PATIENCE, story(&cluster, seed)).await;
        (told, std::mem::take(&mut *cluster.trace.lock().unwrap()))
    });
    let told = told.unwrap_or_else(|_| Err("somebody waits for ever".into()));
    let told = told.and_then(|()| match PANIC.take() {
        None if threads.load(SeqCst) == 0 => Ok(()),
        None => Err("something ran in another thread, at a time of its own".into()),
        Some(panic) => Err(panic),
    });
    (told.err(), trace)
}

/// What the process of a seed tells.
struct Told {
    broken: Option<String>,
    /// All that happened, if that was wished; otherwise the mishaps.
    trace: Vec<String>,
}

const SEED: &str = "ROPEWALK_SIMULATED_SEED";
const BROKEN: &str = "broken:\n";
const TRACE: &str = "trace:\n";

/// Starts the process of a seed. It shares nothing with others, not even a counter somewhere in a library.
fn start(seed: u64, without: Without, whole: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "one_seed", "--ignored", "--nocapture"]);
    command.env(SEED, format!("{seed} {without:?} {whole}")).stdout(Stdio::piped());
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
    let without = RULES.into_iter().find(|rule| format!("{rule:?}") == wish[1]).unwrap_or(Without::Nothing);
    let lived = std::thread::spawn(move || live(seed, without)).join();
    let (broken, trace) = lived.unwrap_or_else(|_| (Some("a panic".into()), Vec::new()));
    let shown = trace.into_iter().filter(|line| wish[2] == "true" || line.contains(" mishap: "));
    let shown: Vec<String> = shown.collect();
    print!("{BROKEN}{}{TRACE}{}", broken.map(|b| b + "\n").unwrap_or_default(), shown.join("\n"));
    std::io::stdout().flush().unwrap();
    std::process::exit(0);
}

/// Runs seeds, as many at a time as there are CPUs.
fn all(seeds: Range<u64>, without: Without, whole: bool) -> impl Iterator<Item = (u64, Told)> {
    let ahead = std::thread::available_parallelism().map_or(1, usize::from);
    let mut left = seeds.map(move |seed| (seed, start(seed, without, whole)));
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
    if let Some(seed) = var("ROPEWALK_TEST_SEED") {
        let seed = seed.parse().expect("ROPEWALK_TEST_SEED is a number");
        return Some(seed..seed + 1);
    }
    if let Some(seeds) = var("ROPEWALK_SIMULATION_SEEDS") {
        let range = seeds.split_once("..").and_then(|(a, b)| Some(a.parse().ok()?..b.parse().ok()?));
        return Some(range.expect("ROPEWALK_SIMULATION_SEEDS is like 1000..2000"));
    }
    var("ROPEWALK_SOAK").map(|_| 1..5001)
}

#[test]
fn what_was_answered_holds() {
    let seeds = wanted_seeds().unwrap_or(1..301);
    for (seed, told) in all(seeds.clone(), Without::Nothing, false) {
        let again = "cargo test -p ropewalk-cli --test simulation what_was_answered";
        if let Some(broken) = told.broken {
            panic!("seed {seed}: {broken}\n{}\nROPEWALK_TEST_SEED={seed} {again}", told.trace.join("\n"));
        }
    }
    println!("seeds {seeds:?} hold");
}

#[test]
fn a_seed_repeats() {
    let seeds = wanted_seeds().unwrap_or(1..1000).take(10);
    for seed in seeds {
        let (once, again) = (start(seed, Without::Nothing, true), start(seed, Without::Nothing, true));
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
    for without in RULES {
        let mut all = all(1..BOUND, without, false);
        let found = all.find_map(|(seed, told)| told.broken.map(|broken| (seed, broken)));
        let (seed, broken) = found.unwrap_or_else(|| panic!("{without:?} is not missed"));
        println!("{without:?}: seed {seed}: {}", broken.lines().next().unwrap_or_default());
    }
}
