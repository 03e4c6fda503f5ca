//! The lab held against what is known: bottlenecks staged for real, their place, degree and order drawn from a seed, and
//! each plan again without its bottleneck. Every staging is a run of the lab by a process of its own, on devices,
//! links and files that it made; they are gone afterwards, also where it fails.
//!
//! A machine that others use is another machine: what is wrong while they do is staged again, and not judged if it stays so.

mod attempt;
mod child;
mod clusters;
mod disks;
mod error;
mod first;
mod others;
mod staged;
mod stagings;
mod trial;

use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use crate::draw::Draw;
use attempt::Attempt;
pub use error::SelfTestError;
use first::First;
use stagings::Staging;
pub use stagings::names;
pub use trial::{Answer, Trial};

/// What a self-test works with.
pub struct SelfTest<'a> {
    /// The program ropewalk.
    pub program: &'a Path,
    /// A directory that it may fill, on a disk.
    pub dir: &'a Path,
    /// Becomes true when it is to end.
    pub stop: &'a AtomicBool,
}

impl SelfTest<'_> {
    /// Stages what is wanted, with and without its bottleneck, in an order that is drawn: all whose name holds one of
    /// `only` (all, if there is none), at most `most` trials. `note` hears of each before it begins. What cannot be staged is
    /// one of the answers; the others go on.
    pub fn run(
        &self,
        draw: &mut Draw,
        only: &[String],
        most: usize,
        note: &mut dyn FnMut(&str),
    ) -> Vec<Trial> {
        let wanted =
            |one: &&Staging| only.is_empty() || only.iter().any(|word| one.name.contains(word.as_str()));
        let chosen = stagings::ALL.iter().filter(wanted);
        let first = First::new();
        let mut order: Vec<(&Staging, bool)> = chosen.flat_map(|one| [(one, true), (one, false)]).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, draw.below(i as u64 + 1) as usize);
        }
        order.truncate(most);
        let mut trials = Vec::new();
        for (n, (staging, bottleneck)) in order.into_iter().enumerate() {
            if self.stop.load(Relaxed) {
                break;
            }
            note(&format!("{}{}", staging.name, if bottleneck { "" } else { ", without it" }));
            let place = self.dir.join(n.to_string());
            let seed = draw.word();
            let (program, stop) = (self.program, self.stop);
            let trial =
                Attempt { program, stop, first: &first, staging, bottleneck, seed, place: &place }.judged();
            // Its run was stopped as well.
            if trial.answer == Answer::NotStaged && self.stop.load(Relaxed) {
                break;
            }
            trials.push(trial);
        }
        trials
    }
}
