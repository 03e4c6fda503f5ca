//! The world of the model: pdisks, writers, messages under way and the map; what may happen next in a state, by the
//! shipped decisions, and whether it is a loss.

mod disk;
mod judged;
mod loss;
mod map;
mod next;
mod writer;

use std::collections::BTreeSet;

use base::{GroupId, PoolId, Version};
use stripe::Geometry;
use wire::map::PdiskState;

use disk::{Disk, Stored};
use map::Map;
use writer::{Known, Prepare, Writer};

const K: usize = 2;
const WIDTH: usize = 3;
const DISKS: usize = 4;
const POOL: PoolId = PoolId(1);
const GROUP: GroupId = GroupId(0);

fn geometry() -> Geometry {
    Geometry::new("2+1p".parse().unwrap(), 256 << 10)
}

/// A rule that is taken out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Without {
    Nothing,
    Seal,
    Fence,
    BaseCheck,
    NextWhenComplete,
    AllTouchedAnswer,
    GroupEpoch,
    CatchUp,
    ReadOnlyWhatCaughtUp,
    MapInForceBeforeCatchUp,
    InstallOnlyOverOlder,
    ForwardWhenAdopted,
    WritesInNewPlace,
    AllThereBeforeSwitch,
    ResolveNewPlace,
    HeldWaits,
    AllNamed,
}

/// What may happen.
#[derive(Clone, Copy)]
pub struct Bounds {
    pub writes: usize,
    pub crashes: u8,
    pub deaths: u8,
    pub moves: bool,
    /// The first write may be of the first strip alone.
    pub short: bool,
    /// Strips that count are made anew, as if they were found damaged.
    pub repairs: bool,
    /// Sessions are fenced at the servers. Without, the seal alone must be enough.
    pub fence: bool,
    pub sealing: bool,
}

type Content = u64;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Phase {
    /// A session writes.
    Writing,
    /// Its writer is gone.
    Crashed,
    /// It is out of the map.
    Fencing,
    /// Everything is sealed for the next session.
    Sealed,
    /// Nothing more can be decided: a strip is out of reach that could tell.
    Stuck,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    disks: [Disk; DISKS],
    alive: [bool; DISKS],
    have: [u64; DISKS],
    /// All versions of the map: states of the disks, epoch of their change, table, move, session.
    maps: Vec<Map>,
    net: BTreeSet<Prepare>,
    writer: Option<Writer>,
    phase: Phase,
    grant: u64,
    /// What the block held after each write that was begun, by number: contents of the strips.
    history: Vec<[Content; WIDTH]>,
    /// And the version of each.
    versions: Vec<Version>,
    /// Which of them may be read.
    allowed: BTreeSet<usize>,
    filled: bool,
    /// What catch-up, or a move, is about to store.
    pending: Option<(usize, Stored)>,
    crashes: u8,
    deaths: u8,
    moved: bool,
}

impl State {
    pub fn new() -> State {
        let map = Map {
            epoch: 1,
            states: [PdiskState::Ok; DISKS],
            changed: [1; DISKS],
            table: [0, 1, 2],
            moving: None,
            table_changed: 1,
            session: Some(1),
        };
        State {
            disks: Default::default(),
            alive: [true; DISKS],
            have: [1; DISKS],
            maps: vec![map],
            net: BTreeSet::new(),
            writer: Some(Writer {
                session: 1,
                seq: 0,
                view: 1,
                known: Known::default(),
                complete: [None; WIDTH],
                write: None,
            }),
            phase: Phase::Writing,
            grant: 1,
            history: vec![[0; WIDTH]],
            versions: vec![Version::ZERO],
            allowed: BTreeSet::from([0]),
            filled: false,
            pending: None,
            crashes: 0,
            deaths: 0,
            moved: false,
        }
    }
    fn map(&self) -> &Map {
        self.maps.last().unwrap()
    }
    fn map_at(&self, epoch: u64) -> &Map {
        &self.maps[epoch as usize - 1]
    }
    fn change(&mut self, change: impl FnOnce(&mut Map)) {
        let mut map = self.map().clone();
        map.epoch += 1;
        change(&mut map);
        self.maps.push(map);
    }
    /// Everybody who serves has the newest map in force.
    fn in_force(&self) -> bool {
        self.map().places().iter().all(|&(_, d)| !self.alive[d] || self.have[d] == self.map().epoch)
    }
}
