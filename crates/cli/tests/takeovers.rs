//! Three managers over three members of etcd and three mounts at work, each on a host of its own (network namespaces of this test): the
//! active manager is killed, stopped, taken off the network, cut off one way and both ways from etcd, from the other managers, from the
//! mounts, from the server; clocks jump; members of etcd are killed one after the other, have no majority, no disk, no quota; the journal
//! moves on, and is compacted, past a manager that is stopped. Work goes on by itself, nothing that was acknowledged is lost, nothing is
//! done twice, and histories of names that all replace are linearizable.
//!
//! Here in its short form, some faults one by one; `make takeovers` is the long one: rounds of one to three faults that overlap, on some
//! clusters side by side ([`lanes`]): `ROPEWALK_TAKEOVERS_AT_ONCE=N` says on how many.
//! `ROPEWALK_TAKEOVERS=N` how many rounds, `ROPEWALK_TAKEOVERS=Disk,Cut` each kind of fault whose name
//! begins so once, alone (`all`: each); `ROPEWALK_TEST_SEED=N` repeats the
//! faults, `ROPEWALK_TAKEOVERS_FIRST=N` begins with that round. How long the work stood still is printed, and bounds nothing: the machine
//! may be busy. `ROPEWALK_TAKEOVERS_SECONDS=N` begins no round after this time.
//!
//! The clocks are CLOCK_REALTIME of a manager's process (`chaos/clock.c`, preloaded): that nothing of a lease or a fence hangs on the
//! time of day. Clocks that run at another speed are not shown by it.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

mod common;

#[path = "common/beds.rs"]
mod beds;
#[allow(dead_code)] // all processes of a cluster
#[path = "chaos/clock.rs"]
mod clock;
#[path = "takeovers/faults.rs"]
mod faults;
#[path = "takeovers/field.rs"]
mod field;
#[path = "common/hosts.rs"]
mod hosts;
#[path = "common/interrupt.rs"]
mod interrupt;
#[path = "takeovers/lanes.rs"]
mod lanes;
#[path = "common/linear.rs"]
mod linear;
#[path = "takeovers/members.rs"]
mod members;
#[path = "common/registers.rs"]
mod registers;
#[path = "common/work.rs"]
mod work;

use std::{
    ops::Range,
    path::Path,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use beds::Bed;
use common::{Random, seed};
use faults::{Fault, From, Meanwhile, Way};
use field::{Field, Part};
use registers::Registers;
use work::{Ends, Load, check};

/// One by one; the others are in the long form, and on one machine in `managers`.
const SHORT: [Fault; 3] = [Fault::Cut(From::Etcd, Way::Mute), Fault::Unheard, Fault::Clock];
/// Each kind once.
const ALL: [Fault; 19] = [
    Fault::Kill,
    Fault::Stop,
    Fault::Gone,
    Fault::Unheard,
    Fault::Cut(From::Etcd, Way::Both),
    Fault::Cut(From::Etcd, Way::Deaf),
    Fault::Cut(From::Standbys, Way::Both),
    Fault::Cut(From::Clients, Way::Both),
    Fault::Cut(From::Clients, Way::Deaf),
    Fault::Cut(From::Server, Way::Both),
    Fault::Promote,
    Fault::Standby,
    Fault::Clock,
    Fault::Member,
    Fault::InTurn,
    Fault::NoEtcd,
    Fault::Quota,
    Fault::Disk,
    Fault::Behind,
];
/// How long a fault lasts with which nothing goes on: past a manager's lease at etcd.
const LASTS: Duration = Duration::from_secs(5);

/// Between two steps of each worker in rounds of faults that are drawn: clusters stand side by side, and none is to be late for want of CPU.
const PACE: Duration = Duration::from_millis(100);

/// Which rounds there are.
enum Rounds {
    OneByOne(Vec<Fault>),
    Drawn(u64),
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

impl Rounds {
    fn asked() -> Rounds {
        match std::env::var("ROPEWALK_TAKEOVERS").as_deref() {
            Err(_) => Rounds::OneByOne(SHORT.to_vec()),
            Ok("all") => Rounds::OneByOne(ALL.to_vec()),
            Ok(asked) => match asked.parse() {
                Ok(count) => Rounds::Drawn(count),
                Err(_) => {
                    let named = |fault: &Fault| {
                        let name = format!("{fault:?}");
                        asked.split(',').any(|asked| name.starts_with(asked))
                    };
                    let faults: Vec<Fault> = ALL.into_iter().filter(named).collect();
                    assert!(!faults.is_empty(), "ROPEWALK_TAKEOVERS={asked}: a number, or of {ALL:?}");
                    Rounds::OneByOne(faults)
                }
            },
        }
    }

    /// Their numbers.
    fn all(&self) -> Range<u64> {
        let first = number("ROPEWALK_TAKEOVERS_FIRST").unwrap_or(0);
        match self {
            Rounds::OneByOne(faults) => first..first.max(faults.len() as u64),
            Rounds::Drawn(count) => first..first + count,
        }
    }

    fn faults(&self, round: u64, random: &mut Random) -> Vec<Fault> {
        match self {
            Rounds::OneByOne(faults) => vec![faults[round as usize]],
            Rounds::Drawn(_) => (0..1 + random.below(3)).map(|_| Fault::draw(random)).collect(),
        }
    }
}

/// One fault, until what is to be seen with it was seen.
fn alone(fault: Fault, field: &mut Field<'_>, load: &Load, random: &mut Random) {
    let leader = field.leads();
    let begun = Instant::now();
    fault.begin(field, leader, random, Some(load));
    match fault.meanwhile() {
        Meanwhile::AnotherLeads => {
            load.went_on();
            let all = begun.elapsed();
            let by = field.another_leads(leader);
            println!("  {}: all went on {all:.1?} later, {} leads", field.name(leader), field.name(by));
        }
        Meanwhile::GoesOn => drop(load.went_on()),
        Meanwhile::Waits => thread::sleep(LASTS),
    }
}

/// Some that begin one after the other, each while those before it last.
fn overlapping(faults: &[Fault], field: &mut Field<'_>, random: &mut Random) {
    let pause = |random: &mut Random| thread::sleep(Duration::from_millis(random.below(4000)));
    for fault in faults {
        // With another fault there may be none to be seen: then it is done to any.
        let leader = field.leader().unwrap_or(random.below(3) as usize);
        fault.begin(field, leader, random, None);
        pause(random);
    }
    pause(random);
    pause(random);
}

/// All is mended, part by part, and stands.
fn mend(field: &mut Field<'_>, load: &Load, random: &mut Random) {
    let mut parts = vec![Part::Network, Part::Managers, Part::Etcd];
    while !parts.is_empty() {
        let part = parts.swap_remove(random.below(parts.len() as u64) as usize);
        // What etcd is asked for goes by no link that is cut.
        field.mend(part);
    }
    let mended = Instant::now();
    let all = load.went_on();
    field.all_stand();
    println!("  mended: all went on {all:.1?} later, all stood {:.1?} later", mended.elapsed());
}

/// Makes the large records that are asked for.
fn large(mount: &Path, asked: &AtomicU64, load: &Load) {
    let file = std::ffi::CString::new(mount.join("large").to_str().unwrap()).unwrap();
    work::rw(&mount.join("large"));
    let mut value = vec![0; 64 << 10];
    for i in 0u64.. {
        while asked.load(SeqCst) == 0 {
            if load.stop.load(SeqCst) {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        value[..8].copy_from_slice(&i.to_le_bytes());
        work::with_room(|| {
            let set = rustix::fs::setxattr(&*file, "user.large", &value, rustix::fs::XattrFlags::empty());
            set.map_err(std::io::Error::from)
        });
        let _ = asked.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
    }
}

/// These rounds, on a cluster in `dir`.
fn on_a_cluster(rounds: &Rounds, numbers: Range<u64>, seed: u64, end: Option<Instant>, dir: &Path) {
    let bed = Bed::up(lanes::BED, &["--hosts", "11", "--links", "1", "--join", "ecmp"]);
    let (mut field, mounts) = Field::new(&bed, dir);
    let field = &mut field;
    let mut load = Load::prepare(&mounts);
    if matches!(rounds, Rounds::Drawn(_)) {
        load.pace = PACE;
    }
    let (load, registers) = (load, Registers::new(&mounts, seed));
    let asked = field.large.clone();
    let histories = thread::scope(|scope| {
        let _ends = Ends(&load, &mounts);
        load.begin(scope, &mounts);
        let readers = registers.begin(scope, &load);
        scope.spawn(|| large(&mounts[0], &asked, &load));
        load.went_on();
        for round in numbers {
            if end.is_some_and(|end| Instant::now() > end) {
                println!("the time is over");
                break;
            }
            let begun = Instant::now();
            let mut random = Random(seed ^ round.wrapping_mul(0x9e37_79b9));
            let faults = rounds.faults(round, &mut random);
            println!("round {round} of seed {seed}: {faults:?}");
            match &faults[..] {
                [fault] => alone(*fault, field, &load, &mut random),
                faults => overlapping(faults, field, &mut random),
            }
            mend(field, &load, &mut random);
            println!("round {round} done in {:.1?}", begun.elapsed());
        }
        load.stop.store(true, SeqCst);
        readers.into_iter().map(|reader| reader.join().unwrap()).collect::<Vec<_>>()
    });
    registers.check(&histories);
    check(&mounts, &load.done());
    println!("{:?} rounds of work", load.done());
}

#[test]
fn another_manager_takes_over_whatever_happens_on_the_network_and_to_etcd() {
    const SELF: &str = "another_manager_takes_over_whatever_happens_on_the_network_and_to_etcd";
    let (seed, rounds) = (seed(), Rounds::asked());
    let end = number("ROPEWALK_TAKEOVERS_SECONDS").map(|s| Instant::now() + Duration::from_secs(s));
    match lanes::own() {
        Some((numbers, dir)) => on_a_cluster(&rounds, numbers, seed, end, &dir),
        None => lanes::run(SELF, seed, rounds.all(), end),
    }
}
