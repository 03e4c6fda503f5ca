//! One declustered array while its groups are being placed: who is in which group, and the counts that
//! keep it even (groups a pdisk is in, groups two pdisks share, strip positions a pdisk has).
//!
//! Hard: the pdisks of a group differ; no node holds more strips of a group than it must (nor an
//! enclosure, unless enclosures and nodes cross). Then, in this order: every pdisk is in its share of
//! groups; a group is spread over nodes as evenly as the shares allow; pairs meet equally often;
//! positions are taken equally often. All by integers and in a fixed order, so that equal inputs give
//! equal results everywhere.

use crate::{
    domains::Domains,
    hash::{fold, mix, scale},
    pick::{Pick, Schedule},
    table::PdiskDesc,
};

/// A strip that has no pdisk yet.
pub(crate) const HOLE: u16 = u16::MAX;

/// Scale of the inverse targets, by which the counts of large and small pdisks are compared.
const INVERSE_ONE: u64 = 16;
const INVERSE_MAX: u64 = 1024;

/// How long [`Array::refine`] tries: exchanges considered for every strip are their product.
const REFINE_PASSES: u64 = 4;
const REFINE_TRIES: u32 = 4;

pub(crate) struct Array {
    pub width: usize,
    pub domains: Domains,
    /// Groups × width local pdisk indices, or [`HOLE`].
    pub members: Vec<u16>,
    /// Groups each pdisk should be in, and is in.
    pub target: Vec<u32>,
    pub used: Vec<u32>,
    /// Groups two pdisks share: n × n.
    pair: Vec<u32>,
    /// Groups in which a pdisk holds position i: n × width.
    position: Vec<u32>,
    /// Groups in which a pdisk holds parity.
    parity: Vec<u32>,
    data: usize,
    /// The largest target over each pdisk's, × [`INVERSE_ONE`].
    pub inverse: Vec<u32>,
    /// A random number of each pdisk, to choose among equals.
    pub random: Vec<u64>,
    pub seed: u64,
    /// Work that a change has given to each pdisk so far, in strips × [`LOAD_ONE`].
    pub load: Vec<u64>,
    pick: Pick,
}

/// Scale of [`Array::load`].
pub(crate) const LOAD_ONE: u64 = 256;

/// What a move of a strip would cost; less is better.
type Cost = (i64, i64);

impl Array {
    /// `members` may have holes. `pdisks` are those of the array with a capacity; `data` is K.
    pub fn new(pdisks: &[PdiskDesc], data: u8, width: u8, members: Vec<u16>, seed: u64) -> Array {
        let (n, w) = (pdisks.len(), usize::from(width));
        let groups = (members.len() / w) as u32;
        let domains = Domains::new(pdisks, width.into(), (width - data).into());
        let target = domains.targets(pdisks, groups, width.into());
        let largest = target.iter().copied().max().unwrap_or(1).max(1);
        let inverse = target
            .iter()
            .map(|&t| (u64::from(largest) * INVERSE_ONE / u64::from(t.max(1))).min(INVERSE_MAX) as u32)
            .collect();
        let random = pdisks.iter().map(|p| fold(mix(seed), p.id.0.into())).collect();
        let mut array = Array {
            width: w,
            domains,
            members: vec![HOLE; members.len()],
            target,
            used: vec![0; n],
            pair: vec![0; n * n],
            position: vec![0; n * w],
            parity: vec![0; n],
            data: data.into(),
            inverse,
            random,
            seed,
            load: vec![0; n],
            pick: Pick::default(),
        };
        for (slot, &member) in members.iter().enumerate() {
            if member != HOLE {
                array.put(slot, member);
            }
        }
        array
    }

    pub fn pdisks(&self) -> usize {
        self.target.len()
    }

    pub fn groups(&self) -> usize {
        self.members.len() / self.width
    }

    pub fn group(&self, g: usize) -> &[u16] {
        &self.members[g * self.width..(g + 1) * self.width]
    }

    /// Groups shared with each other pdisk.
    pub fn pairs_of(&self, p: usize) -> &[u32] {
        let n = self.pdisks();
        &self.pair[p * n..(p + 1) * n]
    }

    pub fn put(&mut self, slot: usize, pdisk: u16) {
        self.count(slot, pdisk, 1);
        self.members[slot] = pdisk;
    }

    pub fn take(&mut self, slot: usize) -> u16 {
        let pdisk = std::mem::replace(&mut self.members[slot], HOLE);
        self.count(slot, pdisk, u32::MAX);
        pdisk
    }

    /// Adds 1 (or, as wrapping `u32::MAX`, -1) to all counts that `pdisk` in `slot` touches.
    fn count(&mut self, slot: usize, pdisk: u16, one: u32) {
        let (n, p, i) = (self.pdisks(), usize::from(pdisk), slot % self.width);
        let add = |count: &mut u32| *count = count.wrapping_add(one);
        for other in 0..self.width {
            let q = self.members[slot - i + other];
            if q != HOLE && other != i {
                add(&mut self.pair[p * n + usize::from(q)]);
                add(&mut self.pair[usize::from(q) * n + p]);
            }
        }
        add(&mut self.used[p]);
        let w = self.width;
        add(&mut self.position[p * w + i]);
        if i >= self.data {
            add(&mut self.parity[p]);
        }
    }

    /// Chooses a pdisk for every hole of group `g`. Holes that no pdisk may fill stay.
    pub fn fill(&mut self, g: usize, schedule: Schedule) {
        let slots = g * self.width..(g + 1) * self.width;
        let holes: Vec<usize> = slots.filter(|&slot| self.members[slot] == HOLE).collect();
        if holes.is_empty() {
            return;
        }
        let mut pick = std::mem::take(&mut self.pick);
        pick.start(self, g, schedule);
        let chosen: Vec<u16> =
            (1..=holes.len()).map_while(|nth| pick.next(self, nth < holes.len())).collect();
        self.pick = pick;
        self.seat(&holes, &chosen);
    }

    /// Counts the work of getting the strips that group `g` lacks: each member that is left is read with
    /// the same probability, K of them in all.
    pub fn count_reads(&mut self, g: usize) {
        let left: Vec<u16> = self.group(g).iter().copied().filter(|&m| m != HOLE).collect();
        for &m in &left {
            self.load[usize::from(m)] += LOAD_ONE * (self.data as u64) / left.len() as u64;
        }
    }

    /// Counts a strip written by `pdisk`.
    pub fn count_write(&mut self, pdisk: u16) {
        self.load[usize::from(pdisk)] += LOAD_ONE;
    }

    /// Gives the chosen pdisks of one group their positions: cheapest first, then exchanges.
    fn seat(&mut self, holes: &[usize], chosen: &[u16]) {
        let cost = |pdisk: u16, slot: usize| -> u64 {
            let (p, i) = (usize::from(pdisk), slot % self.width);
            let parity = if i >= self.data { u64::from(self.parity[p]) * 2 } else { 0 };
            // Both terms are of the order of the pdisk's groups / width.
            (u64::from(self.position[p * self.width + i]) * 2 + parity + 1) * u64::from(self.inverse[p])
        };
        let mut seats: Vec<u16> = chosen.to_vec();
        for (first, &hole) in holes.iter().enumerate().take(chosen.len()) {
            let best = (first..seats.len()).min_by_key(|&at| (cost(seats[at], hole), at));
            seats.swap(first, best.unwrap_or(first));
        }
        for _ in 0..2 {
            for a in 0..seats.len() {
                for b in a + 1..seats.len() {
                    let now = cost(seats[a], holes[a]) + cost(seats[b], holes[b]);
                    let then = cost(seats[a], holes[b]) + cost(seats[b], holes[a]);
                    if then < now {
                        seats.swap(a, b);
                    }
                }
            }
        }
        for (&slot, pdisk) in holes.iter().zip(seats) {
            self.put(slot, pdisk);
        }
    }

    fn in_domain(&self, g: usize, domain: &[u16], of: usize) -> u32 {
        self.group(g).iter().filter(|&&m| m != HOLE && domain[usize::from(m)] == domain[of]).count() as u32
    }

    /// How far a group is above the caps at the domains of its member `p`.
    pub fn excess(&self, g: usize, p: usize) -> u32 {
        let d = &self.domains;
        let enclosure = self.in_domain(g, &d.enclosure, p).saturating_sub(d.enclosure_cap);
        self.in_domain(g, &d.node, p).saturating_sub(d.node_cap)
            + if d.enclosure_cap_holds() { enclosure } else { 0 }
    }

    /// What it costs to give strip `slot` of pdisk `p` to `q`; `None` if `q` may not have it.
    pub fn cost(&self, slot: usize, p: usize, q: usize) -> Option<Cost> {
        let (n, g) = (self.pdisks(), slot / self.width);
        let d = &self.domains;
        let (mut from_node, mut to_node, mut from_enclosure, mut to_enclosure) = (0, 0, 0, 0);
        let (mut from_pairs, mut to_pairs) = (0u64, 0u64);
        for &m in self.group(g) {
            let m = usize::from(m);
            if m == q || m == usize::from(HOLE) {
                return None;
            }
            if m != p {
                from_node += u32::from(d.node[m] == d.node[p]);
                to_node += u32::from(d.node[m] == d.node[q]);
                from_enclosure += u32::from(d.enclosure[m] == d.enclosure[p]);
                to_enclosure += u32::from(d.enclosure[m] == d.enclosure[q]);
                from_pairs += u64::from(self.pair[p * n + m]) * u64::from(self.inverse[m]);
                to_pairs += u64::from(self.pair[q * n + m]) * u64::from(self.inverse[m]);
            }
        }
        let enclosure_fits = to_enclosure < d.enclosure_cap || to_enclosure <= from_enclosure;
        if to_node >= d.node_cap || !enclosure_fits {
            return None;
        }
        let spread = i64::from(to_node * 64 + to_enclosure) - i64::from(from_node * 64 + from_enclosure);
        let pairs =
            (to_pairs * u64::from(self.inverse[q])) as i64 - (from_pairs * u64::from(self.inverse[p])) as i64;
        Some((spread, pairs))
    }

    /// How much more often than it should `p` has the position and the role (data, parity) of `slot`,
    /// in the units of [`Array::cost`].
    fn role(&self, slot: usize, p: usize) -> i64 {
        let (i, w, used) = (slot % self.width, self.width as i64, i64::from(self.used[p]));
        let position = i64::from(self.position[p * self.width + i]) * w - used;
        let parity = i64::from(self.parity[p]) * w - used * (w - self.data as i64);
        let role = if i >= self.data { parity } else { -parity };
        (position + role) * (INVERSE_ONE * INVERSE_ONE) as i64 / w
    }

    /// [`Array::cost`] with the evenness of roles beside that of pairs: for moves that keep the position.
    pub fn cost_in_place(&self, slot: usize, p: usize, q: usize) -> Option<Cost> {
        let (spread, pairs) = self.cost(slot, p, q)?;
        Some((spread, pairs + 2 * (self.role(slot, q) - self.role(slot, p))))
    }

    /// Lets pdisks of groups that are near each other exchange places where that makes pairs more even.
    /// Roles are given anew afterwards: for arrays that hold no data yet.
    pub fn refine(&mut self) {
        let (groups, w) = (self.groups() as u64, self.width as u64);
        if w < 2 || groups < 2 || self.pdisks() == self.width {
            return;
        }
        // Near: within about two rounds over all pdisks, so that runs of groups stay even.
        let near = (2 * self.pdisks() as u64 / w + 2).min(groups - 1);
        let gain_min = 2 * (w - 1) * INVERSE_ONE * INVERSE_ONE;
        for pass in 0..REFINE_PASSES {
            for slot in 0..self.members.len() {
                let mut h = fold(self.seed ^ pass, slot as u64);
                for _ in 0..REFINE_TRIES {
                    let g = (slot as u64 / w + 1 + u64::from(scale(h, near as u32))) % groups;
                    h = mix(h);
                    let other = (g * w + u64::from(scale(h, w as u32))) as usize;
                    h = mix(h);
                    self.exchange(slot, other, gain_min as i64);
                }
            }
        }
        let members = self.members.clone();
        (0..members.len()).for_each(|slot| {
            self.take(slot);
        });
        let slots: Vec<usize> = (0..members.len()).collect();
        for (slots, members) in slots.chunks_exact(self.width).zip(members.chunks_exact(self.width)) {
            self.seat(slots, members);
        }
    }

    fn exchange(&mut self, a: usize, b: usize, gain_min: i64) {
        let (p, q) = (usize::from(self.members[a]), usize::from(self.members[b]));
        let Some(there) = self.cost(a, p, q) else { return };
        let Some(back) = self.cost(b, q, p) else { return };
        let spread = there.0 + back.0;
        if spread < 0 || (spread == 0 && there.1 + back.1 + gain_min < 0) {
            self.take(a);
            self.take(b);
            self.put(a, q as u16);
            self.put(b, p as u16);
        }
    }
}
