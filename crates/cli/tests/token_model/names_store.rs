//! What the manager of [`crate::names`] is asked, and has stored: of each client its names, and the numbers that it may use; how often it
//! changed an inode stands for all that its attributes tell.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use base::InodeNo;
use wire::mgr::Change;

/// One of the two directories; the other is the root.
const OTHER: InodeNo = InodeNo(1000);

/// The names of one client.
pub type Tree = BTreeMap<char, u64>;

/// How often each inode was changed.
pub type Touched = BTreeMap<InodeNo, u8>;

/// What a client did.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Make(char, u64),
    Remove(char),
    Move(char, char),
}

/// In which directory a name is.
pub fn home(name: char) -> InodeNo {
    if name == 'a' { InodeNo::ROOT } else { OTHER }
}

/// What a step changes, each once.
pub fn changed(tree: &Tree, step: Step) -> BTreeSet<InodeNo> {
    let at = |name: char| tree.get(&name).map(|ino| InodeNo(*ino));
    match step {
        Step::Make(name, ino) => BTreeSet::from([home(name), InodeNo(ino)]),
        Step::Remove(name) => [Some(home(name)), at(name)].into_iter().flatten().collect(),
        Step::Move(from, to) => {
            [Some(home(from)), Some(home(to)), at(from), at(to)].into_iter().flatten().collect()
        }
    }
}

/// Does it in a tree, and counts it.
pub fn change(tree: &mut Tree, touched: &mut Touched, step: Step) {
    changed(tree, step).into_iter().for_each(|ino| *touched.entry(ino).or_default() += 1);
    apply(tree, step);
}

/// Does it in a tree.
fn apply(tree: &mut Tree, step: Step) {
    match step {
        Step::Make(name, ino) => drop(tree.insert(name, ino)),
        Step::Remove(name) => drop(tree.remove(&name)),
        Step::Move(from, to) => drop(tree.remove(&from).map(|ino| tree.insert(to, ino))),
    }
}

/// The name of a client's own.
pub fn full(node: usize, name: char) -> Vec<u8> {
    format!("{node}{name}").into_bytes()
}

fn name_of(name: &[u8]) -> char {
    char::from(name[1])
}

/// What the manager is asked.
#[derive(Clone, Debug)]
pub enum Asked {
    Many(Vec<Change>),
    Numbers,
    Claim,
    Attr(InodeNo),
}

/// What it says.
#[derive(Clone, Debug)]
pub enum Answer {
    Done,
    Numbers(InodeNo),
    /// How often the inode was changed.
    Attr(u8),
    NoSession,
    Refused,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Store {
    pub trees: Vec<Tree>,
    /// By each client.
    pub touched: Vec<Touched>,
    numbers: Vec<Range<u64>>,
    last: u64,
    /// Every number that was ever used.
    used: BTreeSet<u64>,
}

impl Store {
    pub fn new(clients: usize) -> Store {
        let (trees, numbers) = (vec![Tree::new(); clients], vec![0..0; clients]);
        let touched = vec![Touched::new(); clients];
        Store { trees, touched, numbers, last: 1, used: BTreeSet::new() }
    }

    /// Grants numbers to a client; the first of them.
    pub fn grant(&mut self, i: usize, count: u32) -> InodeNo {
        let first = self.last + 1;
        self.last += u64::from(count);
        self.numbers[i] = first..self.last + 1;
        InodeNo(first)
    }

    /// What was granted is not stored: it is what is used that is known.
    pub fn forget_grants(&mut self) {
        self.last = self.trees.iter().flat_map(Tree::values).copied().max().unwrap_or(1);
    }

    /// Carries out a change of a client. False: it is refused.
    pub fn carry_out(&mut self, i: usize, told: &Change) -> Result<bool, String> {
        let (tree, touched) = (&mut self.trees[i], &mut self.touched[i]);
        let at = |tree: &Tree, name: &[u8]| InodeNo(tree.get(&name_of(name)).copied().unwrap_or_default());
        match told {
            Change::CreateAs { ino, name, .. } => {
                let granted = self.numbers[i].contains(&ino.0);
                if !granted || at(tree, name).0 > 0 {
                    return Ok(false);
                }
                if !self.used.insert(ino.0) {
                    return Err(format!("number {ino} is used twice"));
                }
                self.numbers[i].start = ino.0 + 1;
                change(tree, touched, Step::Make(name_of(name), ino.0));
            }
            Change::Unlink { name, expect, .. } => {
                if *expect != Some(at(tree, name)) {
                    return Ok(false);
                }
                change(tree, touched, Step::Remove(name_of(name)));
            }
            Change::Rename { name, new_name, expect, .. } => {
                if *expect != Some((at(tree, name), at(tree, new_name))) {
                    return Ok(false);
                }
                change(tree, touched, Step::Move(name_of(name), name_of(new_name)));
            }
            other => return Err(format!("not made ahead: {other:?}")),
        }
        Ok(true)
    }

    /// Whether what is there of a client is a beginning of what it did, with all that is certain.
    pub fn is_beginning(&self, i: usize, steps: &[Step], durable: usize) -> Result<(), String> {
        let (certain, rest) = steps.split_at(durable);
        let mut tree = Tree::new();
        certain.iter().for_each(|step| apply(&mut tree, *step));
        let mut rest = rest.iter();
        while tree != self.trees[i] {
            let Some(step) = rest.next() else {
                return Err(format!(
                    "{:?} is no beginning of {:?}, of which {} are certain",
                    self.trees[i], steps, durable
                ));
            };
            apply(&mut tree, *step);
        }
        Ok(())
    }
}
