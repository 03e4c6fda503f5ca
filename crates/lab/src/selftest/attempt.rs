//! One staging, run and judged. Its answer is taken again where others used the machine and it is not right: that is what the lab's
//! own verdict advises then.

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use super::{
    child::Child,
    error::{SelfTestError, failed},
    first::First,
    others::Others,
    staged::Staged,
    stagings::Staging,
    trial::{Answer, Trial},
};
use crate::{
    draw::Draw,
    removal,
    report::build,
    results,
    verdict::{Limit, Verdict},
};

/// How often one is staged while others use the machine.
const TRIES: u32 = 3;
/// How long the lab may take for one of them.
const RUN_MAX: Duration = Duration::from_secs(300);
/// The share of the machine's CPUs that others may have.
const OTHERS_MAX: f64 = 0.15;
/// How long removing what one left may take.
const REMOVE_MAX: Duration = Duration::from_secs(60);

/// What is staged, and where.
pub(super) struct Attempt<'a> {
    /// The program ropewalk.
    pub program: &'a Path,
    /// Becomes true when it is to end.
    pub stop: &'a AtomicBool,
    pub first: &'a First,
    pub staging: &'a Staging,
    /// Whether the bottleneck is there.
    pub bottleneck: bool,
    pub seed: u64,
    /// A directory of its own.
    pub place: &'a Path,
}

impl Attempt<'_> {
    /// Stages it, and again if the answer is not right while others use the machine.
    pub(super) fn judged(&self) -> Trial {
        let mut stagings = 0;
        loop {
            stagings += 1;
            let before = Others::now(self.first);
            let trial = self.trial().unwrap_or_else(|e| self.not_staged(&because(&e)));
            let others = before.since(self.first);
            let mut trial = Trial { stagings, ..trial };
            if let Err(e) = removal::tree(self.place, REMOVE_MAX) {
                trial.said += &format!(" ({e})");
            }
            let stopped = self.stop.load(Relaxed);
            if trial.answer == Answer::Right || others < OTHERS_MAX || stopped {
                return trial;
            }
            if stagings == TRIES {
                trial.said += &format!(" (others had {:.0} % of the CPUs)", others * 100.0);
                if trial.answer == Answer::Wrong {
                    trial.answer = Answer::NotJudged;
                }
                return trial;
            }
        }
    }

    fn not_staged(&self, why: &str) -> Trial {
        Trial {
            staging: self.staging.name.to_owned(),
            bottleneck: self.bottleneck,
            answer: Answer::NotStaged,
            wanted: String::new(),
            said: format!("not staged, because {why}"),
            confidence: None,
            evidence: Vec::new(),
            stagings: 0,
        }
    }

    fn trial(&self) -> Result<Trial, SelfTestError> {
        fs::create_dir_all(self.place).map_err(failed(format!("make {}", self.place.display())))?;
        let staged = match (self.staging.stage)(&mut Draw::new(self.seed), self.bottleneck, self.place)? {
            Ok(staged) => staged,
            Err(why) => return Ok(self.not_staged(&why)),
        };
        let verdict = self.verdict(&staged)?;
        let (answer, wanted) = judge(self.staging, self.bottleneck, &staged, &verdict);
        let (said, confidence, evidence) = (verdict.text, Some(verdict.confidence), verdict.evidence);
        Ok(Trial { answer, wanted, said, confidence, evidence, ..self.not_staged("") })
    }

    /// What the lab says of it.
    fn verdict(&self, staged: &Staged) -> Result<Verdict, SelfTestError> {
        let (plan, out) = (self.place.join("plan.toml"), self.place.join("out"));
        fs::write(&plan, &staged.plan).map_err(failed(format!("write {}", plan.display())))?;
        let before = self.first.under().into_iter().chain(staged.under.iter().cloned());
        let words: Vec<PathBuf> = before.map(PathBuf::from).chain([self.program.to_owned()]).collect();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["lab", "run"]).arg(&plan).args(&staged.options);
        command.arg("--out").arg(&out);
        let bad = |said| SelfTestError::Run { said };
        let ended = Child::run(command, &self.place.join("errors"), RUN_MAX, self.stop);
        if let Err(said) = ended.map_err(failed(format!("run {}", words[0].display())))? {
            return Err(bad(said));
        }
        let (run, records) = results::read(&out)?;
        let verdict = build(&run, &records).plans.into_iter().next();
        let verdict = verdict.and_then(|plan| plan.series.into_iter().next()).and_then(|one| one.verdict);
        verdict.ok_or_else(|| bad("it gave no verdict".into()))
    }
}

/// An error with its causes.
fn because(error: &SelfTestError) -> String {
    let (mut said, mut cause) = (error.to_string(), error.source());
    while let Some(one) = cause {
        said += &format!(": {one}");
        cause = one.source();
    }
    said
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{selftest::stagings, verdict::Confidence};

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

    #[test]
    fn what_cannot_run_is_not_staged_and_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let stage = |_: &mut Draw, _: bool, _: &Path| Ok(Ok(Staged::default()));
        let staging = Staging { name: "none", limit: Limit::Cpu, without: None, stage };
        // It has no plan, and fails as a run without room does.
        let (first, stop) = (First::new(), AtomicBool::new(false));
        let place = dir.path().join("0");
        let attempt = Attempt {
            program: Path::new("/bin/false"),
            stop: &stop,
            first: &first,
            staging: &staging,
            bottleneck: true,
            seed: 7,
            place: &place,
        };
        let trial = attempt.judged();
        assert_eq!((trial.answer, trial.confidence), (Answer::NotStaged, None));
        assert!(trial.said.starts_with("not staged, because the run failed"), "{}", trial.said);
        assert!(!place.exists(), "what it left is gone");
    }
}
