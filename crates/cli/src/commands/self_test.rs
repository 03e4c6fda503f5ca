//! `ropewalk lab self-test`: the lab's verdicts held against bottlenecks that are staged.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail};
use lab::{
    draw::Draw,
    selftest::{Answer, SelfTest, Trial, names},
};
use serde::Serialize;

use crate::{args, output, process::stop::stop_signal};

/// Of the answers so many must be right.
const RIGHT: f64 = 0.95;

/// Set by Ctrl-C and SIGTERM.
static STOP: AtomicBool = AtomicBool::new(false);

#[derive(Serialize)]
struct Shown {
    seed: u64,
    trials: Vec<Trial>,
    right: usize,
    not_known: usize,
    wrong: usize,
    defects: usize,
    not_judged: usize,
    not_staged: usize,
}

/// `ropewalk lab self-test`; fails if an answer is a defect, or too few are right.
pub fn self_test(args: &args::SelfTest) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("loop devices, throttles and network namespaces need root");
    }
    for (program, package) in
        [("fio", "fio"), ("iperf3", "iperf3"), ("losetup", "util-linux"), ("taskset", "util-linux")]
    {
        let found = std::process::Command::new(program).arg("--version").output();
        found.with_context(|| format!("{program} is not here; install the package {package}"))?;
    }
    if let Some(word) = args.only.iter().find(|word| !names().any(|name| name.contains(word.as_str()))) {
        let all: Vec<&str> = names().collect();
        bail!("no staging has {word:?} in its name; there are {}", all.join(", "));
    }
    let clock =
        || SystemTime::now().duration_since(UNIX_EPOCH).map(|d| d.as_nanos() as u64).unwrap_or_default();
    let seed = args.seed.unwrap_or_else(clock);
    let dir = args.dir.join(format!("ropewalk-self-test-{}", std::process::id()));
    fs::create_dir(&dir).with_context(|| format!("make {}", dir.display()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.spawn(async {
        if stop_signal().await.is_ok() {
            STOP.store(true, Relaxed);
        }
    });
    let program = std::env::current_exe().context("find this program")?;
    output::note(&format!("seed {seed}"));
    let mut note = |what: &str| output::note(what);
    let test = SelfTest { program: &program, dir: &dir, stop: &STOP };
    let trials = test.run(&mut Draw::new(seed), &args.only, args.trials, &mut note);
    // Each removed what it left; what could not be removed it has said.
    if let Err(e) = fs::remove_dir(&dir) {
        output::note(&format!("{} stays: {e}", dir.display()));
    }
    let count = |answer| trials.iter().filter(|trial| trial.answer == answer).count();
    let shown = Shown {
        seed,
        right: count(Answer::Right),
        not_known: count(Answer::NotKnown),
        wrong: count(Answer::Wrong),
        not_judged: count(Answer::NotJudged),
        not_staged: count(Answer::NotStaged),
        defects: trials.iter().filter(|trial| trial.defect()).count(),
        trials,
    };
    show(&shown, args.json)?;
    let answers = shown.right + shown.not_known + shown.wrong;
    if STOP.load(Relaxed) {
        bail!("stopped after {} trials; --seed {seed} repeats them", shown.trials.len());
    }
    if answers == 0 {
        bail!("nothing could be judged: {} not staged, {} not judged", shown.not_staged, shown.not_judged);
    }
    if shown.defects > 0 || (shown.right as f64) < RIGHT * answers as f64 {
        bail!("{} of {answers} answers are right, {} wrong with high confidence", shown.right, shown.defects);
    }
    Ok(())
}

fn show(shown: &Shown, json: bool) -> Result<()> {
    if json {
        return output::json(shown);
    }
    let row = |trial: &Trial| {
        let answer = match trial.answer {
            Answer::Right => "right",
            Answer::NotKnown => "not known",
            Answer::Wrong if trial.defect() => "WRONG",
            Answer::Wrong => "wrong",
            Answer::NotJudged => "not judged",
            Answer::NotStaged => "not staged",
        };
        let sure = trial.confidence.map_or(String::new(), |c| format!("{c:?}").to_lowercase());
        let with = if trial.bottleneck { "with" } else { "without" };
        vec![
            trial.staging.clone(),
            with.into(),
            answer.into(),
            sure,
            trial.wanted.clone(),
            trial.said.clone(),
        ]
    };
    let head = ["STAGED", "BOTTLENECK", "ANSWER", "CONFIDENCE", "WANTED", "SAID"];
    output::table(&head, shown.trials.iter().map(row).collect());
    for trial in shown.trials.iter().filter(|trial| trial.answer != Answer::Right) {
        for line in &trial.evidence {
            output::line(format!("{}: {line}", trial.staging));
        }
    }
    output::line(format!(
        "{} right, {} not known, {} wrong; besides {} not judged, {} not staged; seed {}",
        shown.right, shown.not_known, shown.wrong, shown.not_judged, shown.not_staged, shown.seed
    ));
    Ok(())
}
