//! What a round of the campaign does: which faults, when, on whom; and which loads run beside them. Pure and seeded: one
//! seed gives one plan.
//!
//! A plan stays within what is promised: bytes are damaged on at most M pdisks, those that can be declared
//! missing meanwhile included, unless the round is one beyond M. One process is in one fault at a time.

use std::{collections::BTreeSet, time::Duration};

use crate::common::Random;

/// Server nodes.
pub const SERVERS: u64 = 4;
/// Pdisks of a server.
pub const PDISKS: u64 = 2;
/// Mounts.
pub const MOUNTS: u64 = 3;
/// Strips that every pool of the campaign can lose (`4+2p` and `3way`).
const M: usize = 2;
/// Faults of one round, at most.
const FAULTS_MAX: u64 = 4;
/// How long a lease lasts in the campaign's clusters, milliseconds: longer than a busy machine stands still, or mounts that no fault
/// concerns lose theirs.
pub const LEASE: u64 = 10_000;
/// Rounds that a cluster lives.
pub const ROUNDS_OF_A_CLUSTER: u64 = 12;

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Kill,
    Stop,
    Manager,
    ManagerStop,
    Mount,
    MountStop,
    Power,
    Slow,
    Hang,
    ReadError,
    WriteError,
    FlipData,
    FlipCrc,
    FlipIndex,
    FlipLog,
    CutData,
    OldCopy,
    Full,
    Toml,
    Journal,
    Table,
    NetDelay,
    NetCut,
    NetFlip,
    InTurn,
    Clock,
    Deletes,
    Beyond,
}

/// One row of the table of faults.
pub struct Row {
    pub kind: Kind,
    /// As `ROPEWALK_CHAOS_FAULTS` names it.
    pub name: &'static str,
    /// What it does.
    pub what: &'static str,
    /// Whether it takes part when nothing is named. What stands off has a reason in docs/reliability.md.
    pub on: bool,
}

const fn row(kind: Kind, name: &'static str, on: bool, what: &'static str) -> Row {
    Row { kind, name, what, on }
}

/// Every kind.
pub const TABLE: &[Row] = &[
    row(Kind::Kill, "kill", true, "a server is killed and started again"),
    row(Kind::Stop, "stop", true, "a server is stopped (SIGSTOP) for less or more than its lease"),
    row(Kind::Manager, "manager", true, "the manager is killed and started again"),
    row(Kind::ManagerStop, "manager-stop", true, "the manager is stopped for less or more than the leases"),
    row(Kind::Mount, "mount", true, "a mount's process is killed"),
    row(Kind::MountStop, "mount-stop", true, "a mount is stopped for less or more than its lease"),
    row(Kind::Power, "power", true, "all servers are killed at once, with what their disks had not flushed"),
    row(Kind::Slow, "slow", true, "a server's disks are slow"),
    row(Kind::Hang, "hang", true, "one pdisk answers only after many seconds"),
    row(Kind::ReadError, "read-error", true, "reads of one pdisk fail now and then (EIO)"),
    row(Kind::WriteError, "write-error", true, "a write or flush of one pdisk fails (EIO)"),
    row(Kind::FlipData, "flip-data", true, "bits flip in a pdisk's data under its running server"),
    row(Kind::FlipCrc, "flip-crc", true, "bits flip in a pdisk's CRCs while its server is down"),
    row(Kind::FlipIndex, "flip-index", true, "bits flip in a pdisk's index while its server is down"),
    row(Kind::FlipLog, "flip-log", true, "bits flip in a pdisk's log while its server is down"),
    row(Kind::CutData, "cut-data", true, "a pdisk's data file is cut off while its server is down"),
    row(Kind::OldCopy, "old-copy", true, "a pdisk is replaced by a copy of some seconds before"),
    row(Kind::Full, "full", true, "the file system of all servers, logs and the manager becomes full"),
    row(Kind::Toml, "toml", true, "cluster.toml is damaged while servers start"),
    row(
        Kind::Journal,
        "journal",
        true,
        "the manager's journal is damaged; it refuses, or nothing is missing",
    ),
    row(Kind::Table, "table", true, "bits flip in the manager's table; it refuses, or nothing is missing"),
    row(Kind::NetDelay, "net-delay", true, "what a mount says and hears comes late"),
    row(Kind::NetCut, "net-cut", true, "connections of a mount are cut, and new ones for a while refused"),
    row(Kind::NetFlip, "net-flip", true, "bytes on a mount's connections are changed or swapped"),
    row(
        Kind::InTurn,
        "in-turn",
        true,
        "each server in turn is stopped, or killed and started again, one at a time",
    ),
    row(Kind::Clock, "clock", true, "the wall clock of a process jumps by seconds to days, and jumps back"),
    row(Kind::Deletes, "deletes", true, "files are removed and cut during the round's other faults"),
    row(
        Kind::Beyond,
        "beyond",
        true,
        "more pdisks than M lose their bytes; the cluster is given up afterwards",
    ),
];

/// The name of a kind.
pub fn name(kind: Kind) -> &'static str {
    TABLE.iter().find(|row| row.kind == kind).map_or("?", |row| row.name)
}

/// The kinds of a list like `kill,stop`, or those of the table. A leading `-` takes one from the table's.
pub fn kinds(list: Option<&str>) -> Result<Vec<Kind>, String> {
    let of = |name: &str| {
        let found = TABLE.iter().find(|row| row.name == name);
        found.map(|row| row.kind).ok_or_else(|| {
            let all = TABLE.iter().map(|row| format!("\n  {}: {}", row.name, row.what));
            format!("there is no fault {name:?}; there are{}", all.collect::<String>())
        })
    };
    let words: Vec<&str> = list.unwrap_or("").split(',').map(str::trim).filter(|w| !w.is_empty()).collect();
    let (less, only): (Vec<&str>, Vec<&str>) = words.into_iter().partition(|word| word.starts_with('-'));
    let mut kinds: Vec<Kind> = match only.is_empty() {
        true => TABLE.iter().filter(|row| row.on).map(|row| row.kind).collect(),
        false => only.into_iter().map(of).collect::<Result<_, _>>()?,
    };
    for word in less {
        let gone = of(&word[1..])?;
        kinds.retain(|kind| *kind != gone);
    }
    Ok(kinds)
}

/// One thing that happens.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    pub kind: Kind,
    /// The server, pdisk (server * 2 + pdisk) or mount it happens to, by kind.
    pub target: u64,
    /// Milliseconds after the round's begin.
    pub at: u64,
    /// Milliseconds until it ends.
    pub lasts: u64,
    /// Where its own choices start.
    pub seed: u64,
}

/// Processes that a fault needs for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Process {
    Manager,
    Server(u64),
    Mount(u64),
}

impl Fault {
    /// Who is in it.
    pub fn processes(&self) -> Vec<Process> {
        match self.kind {
            Kind::Kill | Kind::Stop | Kind::Slow => vec![Process::Server(self.target)],
            Kind::Manager | Kind::ManagerStop | Kind::Journal | Kind::Table => vec![Process::Manager],
            Kind::Mount | Kind::MountStop | Kind::NetDelay | Kind::NetCut | Kind::NetFlip => {
                vec![Process::Mount(self.target)]
            }
            Kind::Power | Kind::InTurn | Kind::Beyond => (0..SERVERS).map(Process::Server).collect(),
            // Toml: whoever starts reads it.
            Kind::Full | Kind::Toml => (0..SERVERS).map(Process::Server).chain([Process::Manager]).collect(),
            // A wrong wall clock is no excuse for anything.
            Kind::Deletes | Kind::Clock => vec![],
            _ => vec![Process::Server(self.target / PDISKS)],
        }
    }

    /// Pdisks whose bytes it spoils.
    pub fn spoils(&self) -> Vec<u64> {
        match self.kind {
            Kind::FlipData | Kind::FlipCrc | Kind::FlipIndex | Kind::FlipLog => vec![self.target],
            Kind::CutData | Kind::OldCopy | Kind::WriteError | Kind::ReadError => vec![self.target],
            Kind::Beyond => (0..=M as u64).map(|node| node * PDISKS).collect(),
            _ => vec![],
        }
    }

    /// Pdisks that may be declared missing, or serve nothing, while it lasts.
    pub fn takes_away(&self) -> Vec<u64> {
        match self.kind {
            Kind::Beyond => self.spoils(),
            _ => {
                let pdisks = |p: &Process| match p {
                    Process::Server(s) => (s * PDISKS..(s + 1) * PDISKS).collect(),
                    _ => Vec::new(),
                };
                // Under its running server.
                if self.kind == Kind::FlipData {
                    return self.spoils();
                }
                self.processes().iter().flat_map(pdisks).collect()
            }
        }
    }

    /// Whose clock jumps.
    pub fn clock_of(&self) -> Process {
        match self.target {
            n if n < SERVERS => Process::Server(n),
            SERVERS => Process::Manager,
            n => Process::Mount((n - SERVERS - 1) % MOUNTS),
        }
    }

    /// Which server is away, from when to when after the fault's begin, in milliseconds: each in turn, for about an equal
    /// part of the time, and never two at once.
    pub fn turns(&self) -> Vec<(u64, u64, u64)> {
        let (mut random, each) = (Random(self.seed), self.lasts / SERVERS);
        let first = random.below(SERVERS);
        let turn = |n: u64, random: &mut Random| {
            let begin = n * each + random.below(each / 8 + 1);
            ((first + n) % SERVERS, begin, (n + 1) * each - random.below(each / 4 + 1))
        };
        (0..SERVERS).map(|n| turn(n, &mut random)).collect()
    }

    /// One line that says it.
    pub fn say(&self) -> String {
        let who = match self.processes().as_slice() {
            _ if self.kind == Kind::Clock => match self.clock_of() {
                Process::Manager => " manager".to_owned(),
                Process::Server(s) => format!(" n{}", s + 1),
                Process::Mount(m) => format!(" mount {m}"),
            },
            [Process::Mount(m)] => format!(" mount {m}"),
            [Process::Server(_)] if !self.spoils().is_empty() || self.kind == Kind::Hang => {
                format!(" n{}p{}", self.target / PDISKS + 1, self.target % PDISKS + 1)
            }
            [Process::Server(s)] => format!(" n{}", s + 1),
            _ => String::new(),
        };
        format!("{}{who} at {} for {} ms", name(self.kind), self.at, self.lasts)
    }
}

/// One round.
#[derive(Clone, Debug, PartialEq)]
pub struct Round {
    pub number: u64,
    /// Where the loads' choices start.
    pub seed: u64,
    /// Milliseconds of load.
    pub lasts: u64,
    pub faults: Vec<Fault>,
}

impl Round {
    /// When the first fault on the mount itself begins.
    pub fn disturbed_from(&self, mount: u64) -> Option<Duration> {
        let of = self.faults.iter().filter(|f| f.processes().contains(&Process::Mount(mount)));
        of.map(|f| Duration::from_millis(f.at)).min()
    }
    pub fn has(&self, kind: Kind) -> bool {
        self.faults.iter().any(|f| f.kind == kind)
    }
    /// Whether everything must survive it.
    pub fn is_within(&self) -> bool {
        let spoilt: BTreeSet<u64> = self.faults.iter().flat_map(Fault::spoils).collect();
        let away: BTreeSet<u64> = self.faults.iter().flat_map(Fault::takes_away).collect();
        spoilt.is_empty() || spoilt.union(&away).count() <= M
    }
}

/// How a cluster of the campaign is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// A second pool with another code, for half of the files.
    pub two_pools: bool,
    /// The disks forget what was not flushed when their server, or the manager, ends.
    pub volatile: bool,
    /// What is missing is rebuilt after two seconds, and not only after minutes.
    pub rebuilds: bool,
    /// On a file system in memory.
    pub in_memory: bool,
    /// The processes' wall clocks can be set.
    pub clocks: bool,
    /// Of what the manager's disk forgets.
    pub seed: u64,
}

impl Shape {
    /// Those of the faults that a cluster of this shape is made for; all, if there are no others.
    pub fn takes(&self, kinds: &[Kind]) -> Vec<Kind> {
        let fits = |kind: &Kind| match kind {
            Kind::Full => self.in_memory,
            Kind::Clock => self.clocks,
            _ => true,
        };
        let fitting: Vec<Kind> = kinds.iter().copied().filter(fits).collect();
        if fitting.is_empty() { kinds.to_vec() } else { fitting }
    }
}

/// Where the numbers of a round start. Mixed (SplitMix64) twice: the sums of seeds and numbers would let neighbours
/// draw the same numbers, one later.
fn mixed(seed: u64, number: u64) -> u64 {
    Random(Random(seed).next() ^ number).next()
}

/// The shape of the cluster in which round `number` takes place: the same for all rounds of one cluster.
pub fn shape(seed: u64, number: u64) -> Shape {
    let mut random = Random(!mixed(seed, number - number % ROUNDS_OF_A_CLUSTER));
    Shape {
        two_pools: random.below(4) == 0,
        volatile: random.below(2) == 0,
        rebuilds: random.below(3) == 0,
        in_memory: random.below(2) == 0,
        clocks: random.below(2) == 0,
        seed: random.next(),
    }
}

/// The plan of round `number`.
pub fn round(seed: u64, number: u64, kinds: &[Kind]) -> Round {
    let mut random = Random(mixed(seed, number));
    let mut round =
        Round { number, seed: random.next(), lasts: 5000 + random.below(3000), faults: Vec::new() };
    let wanted = 1 + random.below(FAULTS_MAX);
    for _ in 0..8 * wanted {
        if round.faults.len() as u64 == wanted || kinds.is_empty() {
            break;
        }
        let kind = kinds[random.below(kinds.len() as u64) as usize];
        let fault = fault(kind, round.lasts, &mut random);
        // A round beyond M is one of its own, and rare: the cluster is given up after it.
        if kind == Kind::Beyond && (kinds.len() > 1 && random.below(4) > 0 || !round.faults.is_empty()) {
            continue;
        }
        if round.has(Kind::Beyond) || kind == Kind::Deletes && round.has(kind) {
            continue;
        }
        let busy: Vec<Process> = round.faults.iter().flat_map(Fault::processes).collect();
        if fault.processes().iter().any(|p| busy.contains(p)) {
            continue;
        }
        round.faults.push(fault);
        if kind != Kind::Beyond && !round.is_within() {
            round.faults.pop();
        }
    }
    round
}

fn fault(kind: Kind, length: u64, random: &mut Random) -> Fault {
    let target = match kind {
        Kind::Kill | Kind::Stop | Kind::Slow => random.below(SERVERS),
        Kind::Mount | Kind::MountStop => random.below(MOUNTS),
        // The one mount behind the proxy.
        Kind::NetDelay | Kind::NetCut | Kind::NetFlip => MOUNTS - 1,
        Kind::Manager | Kind::ManagerStop | Kind::Journal | Kind::Table => 0,
        Kind::Power | Kind::Full | Kind::Toml | Kind::InTurn | Kind::Deletes | Kind::Beyond => 0,
        Kind::Clock => random.below(SERVERS + 1 + MOUNTS),
        _ => random.below(SERVERS * PDISKS),
    };
    let at = random.below(length * 2 / 3);
    // Some end well within a lease, some well beyond it, some beside its end.
    let lasts = match random.below(4) {
        // Each server has its turn, for less than a lease or more.
        _ if kind == Kind::InTurn => SERVERS * (1000 + random.below(LEASE + 1500)),
        0 => random.below(1000),
        1 => LEASE - 1000 + random.below(2000),
        2 => LEASE + random.below(LEASE),
        _ => random.below(LEASE),
    };
    Fault { kind, target, at, lasts, seed: random.next() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Kind> {
        TABLE.iter().map(|row| row.kind).collect()
    }

    #[test]
    fn a_seed_gives_one_plan_and_another_seed_another() {
        for number in 0..50 {
            assert_eq!(round(7, number, &all()), round(7, number, &all()));
        }
        assert_ne!(round(7, 1, &all()).faults, round(8, 1, &all()).faults);
        assert_ne!(round(7, 1, &all()).faults, round(7, 2, &all()).faults);
    }

    #[test]
    fn neighbours_share_no_number() {
        let mut drawn = BTreeSet::new();
        for seed in 0..20 {
            for number in 0..100 {
                let mut random = Random(mixed(seed, number));
                assert!((0..50).all(|_| drawn.insert(random.next())), "seed {seed} round {number}");
            }
        }
    }

    #[test]
    fn every_plan_keeps_within_what_is_promised_and_every_kind_comes() {
        let mut seen = BTreeSet::new();
        for number in 0..3000 {
            let round = round(11, number, &all());
            assert!((1..=FAULTS_MAX as usize).contains(&round.faults.len()), "{round:?}");
            if round.has(Kind::Beyond) {
                assert!(round.faults.len() == 1 && !round.is_within());
            } else {
                assert!(round.is_within(), "{round:?}");
            }
            let mut busy: Vec<Process> = round.faults.iter().flat_map(Fault::processes).collect();
            let count = busy.len();
            busy.sort();
            busy.dedup();
            assert_eq!(busy.len(), count, "a process in two faults: {round:?}");
            seen.extend(round.faults.iter().map(|f| f.kind));
        }
        assert_eq!(seen, all().into_iter().collect());
    }

    #[test]
    fn one_server_is_away_at_a_time_and_each_has_its_turn() {
        for seed in 0..200 {
            let fault = Fault { kind: Kind::InTurn, target: 0, at: 0, lasts: 4 * (1000 + 27 * seed), seed };
            let turns = fault.turns();
            assert_eq!(turns.iter().map(|turn| turn.0).collect::<BTreeSet<_>>().len() as u64, SERVERS);
            assert!(turns.iter().all(|turn| turn.1 < turn.2) && turns.is_sorted_by_key(|turn| turn.1));
            assert!(turns.windows(2).all(|two| two[0].2 <= two[1].1), "{turns:?}");
            assert!(turns[turns.len() - 1].2 <= fault.lasts);
        }
    }

    #[test]
    fn a_round_that_is_run_again_alone_has_the_shape_of_its_cluster() {
        for number in 0..100 {
            assert_eq!(shape(5, number), shape(5, number / ROUNDS_OF_A_CLUSTER * ROUNDS_OF_A_CLUSTER));
        }
        let shapes: Vec<Shape> = (0..20).map(|n| shape(5, n * ROUNDS_OF_A_CLUSTER)).collect();
        assert!(shapes.iter().any(|shape| *shape != shapes[0]));
    }

    #[test]
    fn a_cluster_gets_the_faults_that_it_is_made_for() {
        let mut shape = shape(1, 0);
        (shape.in_memory, shape.clocks) = (false, true);
        assert_eq!(shape.takes(&[Kind::Full, Kind::Kill, Kind::Clock]), [Kind::Kill, Kind::Clock]);
        assert_eq!(shape.takes(&[Kind::Full]), [Kind::Full], "what alone is asked for is done");
    }

    #[test]
    fn damage_beside_a_server_that_is_away_is_beyond() {
        let fault = |kind, target| Fault { kind, target, at: 0, lasts: 1, seed: 0 };
        let round = |faults| Round { number: 0, seed: 0, lasts: 1, faults };
        assert!(round(vec![fault(Kind::Kill, 0), fault(Kind::Kill, 1)]).is_within(), "all come back");
        assert!(!round(vec![fault(Kind::Kill, 0), fault(Kind::FlipData, 3)]).is_within());
        assert!(round(vec![fault(Kind::FlipData, 0), fault(Kind::FlipData, 3)]).is_within());
        assert!(!round(vec![fault(Kind::Beyond, 0)]).is_within());
    }

    #[test]
    fn kinds_are_named_taken_away_and_refused() {
        assert_eq!(kinds(Some("kill,stop")).unwrap(), [Kind::Kill, Kind::Stop]);
        let less = kinds(Some("-kill")).unwrap();
        assert!(!less.contains(&Kind::Kill) && less.contains(&Kind::Stop));
        assert!(kinds(Some("kil")).unwrap_err().contains("kill: a server is killed"));
        assert_eq!(kinds(None).unwrap().len(), TABLE.iter().filter(|row| row.on).count());
    }
}
