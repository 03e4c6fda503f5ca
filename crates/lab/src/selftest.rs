//! The lab held against what is known: bottlenecks staged for real, their place, degree and order drawn from a seed, and
//! each plan again without its bottleneck. Every staging is a run of the lab by a process of its own, on devices,
//! links and files that it made; they are gone afterwards, also where it fails.
//!
//! A machine that others use is another machine: what is wrong while they do is staged again, and not judged if it stays so.

mod child;
mod clusters;
mod disks;
mod error;
mod first;
mod staged;
mod stagings;

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use serde::Serialize;

use crate::{
    cpu_ticks,
    draw::Draw,
    report::build,
    results,
    verdict::{Confidence, Limit, Verdict},
};
use child::Child;
pub use error::SelfTestError;
use error::failed;
use first::First;
use staged::Staged;
use stagings::Staging;
pub use stagings::names;

/// How often one is staged while others use the machine.
const TRIES: u32 = 3;
/// How long the lab may take for one of them.
const RUN_MAX: Duration = Duration::from_secs(300);
/// The share of the machine's CPUs that others may have.
const OTHERS_MAX: f64 = 0.15;

/// How the lab's answer compares with what was staged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// It named the bottleneck and its place, or did not name one that was not there.
    Right,
    /// It said that it does not know.
    NotKnown,
    /// It named something else.
    Wrong,
    /// It named something else while others used the machine, each time.
    NotJudged,
    /// It cannot be staged here.
    NotStaged,
}

/// One staging and its answer.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Trial {
    /// What was staged.
    pub staging: String,
    /// Whether the bottleneck was there.
    pub bottleneck: bool,
    /// How the answer compares.
    pub answer: Answer,
    /// What was expected, and where.
    pub wanted: String,
    /// What the lab said, or why it was not staged.
    pub said: String,
    /// How sure it was.
    pub confidence: Option<Confidence>,
}

impl Trial {
    /// A wrong name with high confidence: a defect.
    pub fn defect(&self) -> bool {
        self.answer == Answer::Wrong && self.confidence == Some(Confidence::High)
    }
}

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
    /// `only` (all, if there is none), at most `most` trials. `note` hears of each before it begins.
    pub fn run(
        &self,
        draw: &mut Draw,
        only: &[String],
        most: usize,
        note: &mut dyn FnMut(&str),
    ) -> Result<Vec<Trial>, SelfTestError> {
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
            let trial = self.judged(staging, bottleneck, draw.word(), &place, &first);
            let _ = fs::remove_dir_all(&place);
            match trial {
                // Its run was stopped as well.
                Err(SelfTestError::Run { .. }) if self.stop.load(Relaxed) => break,
                trial => trials.push(trial?),
            }
        }
        Ok(trials)
    }

    /// Stages it, and again if the answer is wrong while others use the machine.
    fn judged(
        &self,
        staging: &Staging,
        with: bool,
        seed: u64,
        place: &Path,
        first: &First,
    ) -> Result<Trial, SelfTestError> {
        let mut last = None;
        for _ in 0..TRIES {
            let before = Others::now();
            let mut trial = self.trial(staging, with, seed, place, first)?;
            let others = before.since();
            if trial.answer != Answer::Wrong || others < OTHERS_MAX || self.stop.load(Relaxed) {
                return Ok(trial);
            }
            trial.answer = Answer::NotJudged;
            trial.said += &format!(" (others had {:.0} % of the CPUs)", others * 100.0);
            last = Some(trial);
        }
        last.ok_or_else(|| failed("stage anything")(io::Error::other("no try is allowed")))
    }

    fn trial(
        &self,
        staging: &Staging,
        with: bool,
        seed: u64,
        place: &Path,
        first: &First,
    ) -> Result<Trial, SelfTestError> {
        // What an earlier try left.
        let _ = fs::remove_dir_all(place);
        fs::create_dir_all(place).map_err(failed(format!("make {}", place.display())))?;
        let trial = |answer, wanted, said, confidence| Trial {
            staging: staging.name.to_owned(),
            bottleneck: with,
            answer,
            wanted,
            said,
            confidence,
        };
        let staged = match (staging.stage)(&mut Draw::new(seed), with, place)? {
            Ok(staged) => staged,
            Err(why) => return Ok(trial(Answer::NotStaged, String::new(), why, None)),
        };
        let verdict = self.verdict(staging, &staged, place, first)?;
        let (answer, wanted) = judge(staging, with, &staged, &verdict);
        Ok(trial(answer, wanted, verdict.text, Some(verdict.confidence)))
    }

    fn verdict(
        &self,
        staging: &Staging,
        staged: &Staged,
        place: &Path,
        first: &First,
    ) -> Result<Verdict, SelfTestError> {
        let (plan, out) = (place.join("plan.toml"), place.join("out"));
        fs::write(&plan, &staged.plan).map_err(failed(format!("write {}", plan.display())))?;
        let before = first.under().into_iter().chain(staged.under.iter().cloned());
        let words: Vec<PathBuf> = before.map(PathBuf::from).chain([self.program.to_owned()]).collect();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["lab", "run"]).arg(&plan).args(&staged.options);
        command.arg("--out").arg(&out);
        let bad = |said| SelfTestError::Run { staging: staging.name.to_owned(), said };
        let ended = Child::run(command, &place.join("errors"), RUN_MAX, self.stop);
        if let Err(said) = ended.map_err(failed(format!("run {}", words[0].display())))? {
            return Err(bad(said));
        }
        let (run, records) = results::read(&out)?;
        let verdict = build(&run, &records).plans.into_iter().next();
        let verdict = verdict.and_then(|plan| plan.series.into_iter().next()).and_then(|one| one.verdict);
        verdict.ok_or_else(|| bad("it gave no verdict".into()))
    }
}

fn judge(staging: &Staging, with: bool, staged: &Staged, verdict: &Verdict) -> (Answer, String) {
    let named = verdict.names.iter().any(|name| name.contains(&staged.place)) || staged.place.is_empty();
    let (right, wanted) = match (with, staging.without) {
        (true, _) => {
            (verdict.limit == staging.limit && named, format!("{:?} {}", staging.limit, staged.place))
        }
        (false, Some(limit)) => (verdict.limit == limit, format!("{limit:?}")),
        (false, None) => (verdict.limit != staging.limit, format!("anything but {:?}", staging.limit)),
    };
    let answer = match (right, verdict.limit) {
        (_, Limit::NotKnown) => Answer::NotKnown,
        (true, _) => Answer::Right,
        (false, _) => Answer::Wrong,
    };
    (answer, wanted.trim_end().to_owned())
}

/// CPU time of the machine, and what of it is this process's and its children's.
struct Others {
    all: f64,
    own_or_idle: f64,
}

impl Others {
    fn now() -> Others {
        let [user, nice, system, idle, io, irq, soft, steal] = cpu_ticks::read().0.unwrap_or_default();
        let all = user + nice + system + idle + io + irq + soft + steal;
        // Behind the name, which may hold spaces, and the state: proc(5) from field 4 on.
        let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace();
        let own: u64 = fields.skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum();
        Others { all: all as f64, own_or_idle: (idle + io + own) as f64 }
    }
    /// The share of the machine that others had since then.
    fn since(&self) -> f64 {
        let now = Others::now();
        let all = now.all - self.all;
        (all - (now.own_or_idle - self.own_or_idle)).max(0.0) / all.max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(limit: Limit, name: &str) -> Verdict {
        let (confidence, text) = (Confidence::High, String::new());
        Verdict {
            limit,
            names: vec![name.into()],
            confidence,
            step: 1,
            text,
            evidence: Vec::new(),
            doubtful: false,
        }
    }

    #[test]
    fn a_right_name_at_the_right_place_is_right() {
        let staging = stagings::ALL.iter().find(|one| one.limit == Limit::SlowDevice).unwrap();
        let staged = Staged { place: "/dev/loop7".into(), ..Staged::default() };
        let answer = |with, limit, name| judge(staging, with, &staged, &verdict(limit, name)).0;
        assert_eq!(answer(true, Limit::SlowDevice, "/dev/loop7"), Answer::Right);
        assert_eq!(answer(true, Limit::SlowDevice, "/dev/loop8"), Answer::Wrong);
        assert_eq!(answer(true, Limit::Cpu, "/dev/loop7"), Answer::Wrong);
        assert_eq!(answer(true, Limit::NotKnown, ""), Answer::NotKnown);
        assert_eq!(answer(false, Limit::None, ""), Answer::Right);
        assert_eq!(answer(false, Limit::SlowDevice, "/dev/loop7"), Answer::Wrong);
    }
}
