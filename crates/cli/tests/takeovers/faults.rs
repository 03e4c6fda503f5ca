//! The faults, each from its begin on; all are ended by [`Field::mend`].

use std::{
    sync::atomic::Ordering::SeqCst,
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::{
    clock::jump,
    common::{Random, until},
    field::{CLIENTS, Field, MANAGERS, SERVER},
    members,
    work::Load,
};

/// From whom the active manager is cut off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum From {
    Etcd,
    Standbys,
    Clients,
    Server,
}

/// Which way is lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Way {
    Both,
    /// What it sends.
    Mute,
    /// What is sent to it: it goes on sending.
    Deaf,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The active manager is killed.
    Kill,
    /// It is stopped, and woken when others have gone on.
    Stop,
    /// Its machine is off the network, its link down.
    Gone,
    /// The same, and the network does not show it.
    Unheard,
    /// It is cut off from some.
    Cut(From, Way),
    /// Another one is promoted.
    Promote,
    /// A manager that follows is killed, and its table is lost.
    Standby,
    /// A manager's clock jumps, by up to two days.
    Clock,
    /// A member of etcd is killed.
    Member,
    /// One after the other is.
    InTurn,
    /// Two members are stopped: no majority.
    NoEtcd,
    /// The disk of all members is full, until they end.
    Disk,
    /// etcd's quota is reached, by what others have there.
    Quota,
    /// A manager that follows is stopped while the journal moves on past it and etcd is compacted.
    Behind,
}

/// What is to be seen of the load while a fault lasts that is alone.
#[derive(Clone, Copy, PartialEq)]
pub enum Meanwhile {
    /// All goes on, with another manager.
    AnotherLeads,
    GoesOn,
    /// Some of it may wait until the end.
    Waits,
}

/// Records of 64 KiB that are more than the managers keep of the journal.
const MOVES_ON: u64 = 900;

fn ways(from: From) -> [Fault; 3] {
    [Way::Both, Way::Mute, Way::Deaf].map(|way| Fault::Cut(from, way))
}

impl Fault {
    /// One of all.
    pub fn draw(random: &mut Random) -> Fault {
        use Fault::*;
        let cuts = [From::Etcd, From::Standbys, From::Clients, From::Server].map(ways).concat();
        let all =
            [Kill, Stop, Gone, Unheard, Promote, Standby, Clock, Member, InTurn, NoEtcd, Disk, Quota, Behind];
        // Each way of cutting as often as half of another fault.
        match random.below(3) {
            0 => cuts[random.below(cuts.len() as u64) as usize],
            _ => all[random.below(all.len() as u64) as usize],
        }
    }

    pub fn meanwhile(self) -> Meanwhile {
        match self {
            Fault::Kill | Fault::Stop | Fault::Gone | Fault::Unheard | Fault::Cut(From::Etcd, _) => {
                Meanwhile::AnotherLeads
            }
            Fault::Cut(From::Clients, _) | Fault::NoEtcd | Fault::Disk | Fault::Quota => Meanwhile::Waits,
            Fault::Cut(From::Standbys | From::Server, _)
            | Fault::Promote
            | Fault::Standby
            | Fault::Clock
            | Fault::Member
            | Fault::InTurn
            | Fault::Behind => Meanwhile::GoesOn,
        }
    }

    /// Begins it; `alone`: no other fault is there, and what must go on with it does.
    pub fn begin(self, field: &mut Field<'_>, leader: usize, random: &mut Random, alone: Option<&Load>) {
        let follower = (leader + 1 + random.below(2) as usize) % MANAGERS.len();
        let member = random.below(members::COUNT as u64) as usize;
        match self {
            Fault::Kill => {
                if field.pid(leader).is_some() {
                    field.kill(leader);
                }
            }
            Fault::Stop => field.signal(leader, Signal::STOP),
            Fault::Gone => field.unplug(leader, "down"),
            Fault::Unheard => field.unplug(leader, "cut"),
            Fault::Cut(from, way) => {
                let its = [MANAGERS[leader]];
                let others = match from {
                    From::Etcd => Field::etcd_hosts().to_vec(),
                    From::Standbys => MANAGERS.into_iter().filter(|host| *host != its[0]).collect(),
                    From::Clients => CLIENTS.to_vec(),
                    From::Server => vec![SERVER],
                };
                if way != Way::Deaf {
                    field.lose(&its, &others);
                }
                if way != Way::Mute {
                    field.lose(&others, &its);
                }
            }
            Fault::Promote => {
                let made_way = field.promote(follower);
                assert!(made_way || alone.is_none(), "{} is not promoted", field.name(follower));
            }
            Fault::Standby => {
                if field.pid(follower).is_some() {
                    field.kill(follower);
                    field.lose_table(follower);
                }
            }
            Fault::Clock => {
                let (manager, seconds) = ([leader, follower][random.below(2) as usize], jump(random));
                println!("  the clock of {} is wrong by {seconds} s", field.name(manager));
                let set = field.pid(manager).zip(field.clocks.as_ref());
                let set = set.is_some_and(|(pid, clocks)| clocks.set(pid, seconds));
                assert!(set || alone.is_none() || field.clocks.is_none(), "the clock is not set");
            }
            Fault::Member => field.members.kill(member),
            Fault::InTurn => {
                for member in 0..members::COUNT {
                    field.members.kill(member);
                    match alone {
                        Some(load) => drop(load.went_on()),
                        None => thread::sleep(Duration::from_millis(random.below(3000))),
                    }
                    field.members.start_one(member);
                    if alone.is_some() {
                        until("the member is back", || field.members.is_healthy(member));
                    }
                }
            }
            Fault::NoEtcd => (0..2).for_each(|member| field.members.signal(member, Signal::STOP)),
            Fault::Disk => {
                field.members.fill_disk();
                let full = field.members.fill_database();
                println!(
                    "  no room: {} members have ended{}",
                    field.members.ended(),
                    if full { ", quota" } else { "" }
                );
            }
            Fault::Quota => {
                let full = field.members.fill_database();
                assert!(full || alone.is_none(), "etcd is not full");
            }
            Fault::Behind => {
                if field.pid(follower).is_some() {
                    field.signal(follower, Signal::STOP);
                }
                field.move_on(MOVES_ON);
                if alone.is_some() {
                    let begun = Instant::now();
                    until("the journal has moved on", || field.large.load(SeqCst) == 0);
                    assert!(field.members.compact(), "etcd is not compacted");
                    println!("  the journal moved on in {:.1?}", begun.elapsed());
                }
            }
        }
    }
}
