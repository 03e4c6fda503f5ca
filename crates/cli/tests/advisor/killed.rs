//! `apply`, `revert` and a guarded change, killed (SIGKILL) between any two of their steps: what is half made is finished or undone by
//! the next command, or by the guard, and nothing is lost.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use super::common::{ROPEWALK, until};

const RULES: [&str; 3] = ["memory-zone-reclaim", "nvme-scheduler", "tcp-no-sack"];

/// A host with three faults; with tuned, one whose profile sets one of them.
fn host(tuned: bool) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let put = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    put("proc/sys/vm/zone_reclaim_mode", "1");
    put("proc/sys/net/ipv4/tcp_sack", "0");
    put("sys/block/nvme0n1/queue/scheduler", "[kyber]");
    put("etc/sysctl.d/10-admin.conf", "vm.swappiness = 5\n");
    if tuned {
        put("proc/77/comm", "tuned\n");
        put("etc/tuned/active_profile", "mine\n");
        put("etc/tuned/profile_mode", "auto\n");
        put("etc/tuned/mine/tuned.conf", "[sysctl]\nnet.ipv4.tcp_sack=0\n");
    }
    root
}

/// All files but the advisor's own state.
fn files(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut files = BTreeMap::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                dirs.push(entry.path());
            } else {
                // A guard may be at work: one that is gone by now is none.
                let Ok(text) = fs::read_to_string(entry.path()) else { continue };
                files.insert(entry.path(), text.trim_matches(['[', ']', '\n']).to_owned());
            }
        }
    }
    // One that was being made is nobody's; but among our own none is left, as some are run whatever their name.
    let is_left = |path: &Path| path.extension().is_some_and(|e| e == "new");
    files.retain(|path, _| {
        !path.starts_with(root.join("var")) && (!is_left(path) || path.to_string_lossy().contains("ropewalk"))
    });
    files
}

fn advise(root: &Path, words: &[&str], kill_at: Option<u32>) -> Output {
    let mut command = Command::new(ROPEWALK);
    command.arg("advise").args(words).args(["--root", root.to_str().unwrap()]);
    if let Some(step) = kill_at {
        command.env("ROPEWALK_ADVISE_KILL_AT", format!("{}:{step}", words[0]));
    }
    command.output().unwrap()
}

/// Whether a guard had the journal for longer than a command waits for it: nothing was done.
pub fn is_kept_waiting(output: &Output) -> bool {
    String::from_utf8_lossy(&output.stderr).contains("runs on this machine (lock ")
}

fn done(root: &Path, words: &[&str]) -> String {
    let mut output = advise(root, words, None);
    until("nobody else has the journal", || {
        let has_it = is_kept_waiting(&output);
        if has_it {
            output = advise(root, words, None);
        }
        !has_it
    });
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command killed at its first step, its second, and so on, until it comes to its end; each time on a new host.
fn at_each_step(words: &[&str], prepare: impl Fn() -> tempfile::TempDir, check: impl Fn(&Path, u32)) -> u32 {
    let mut step = 1;
    for _ in 1..400 {
        let root = prepare();
        let output = advise(root.path(), words, Some(step));
        // A machine that is busy: nothing was changed.
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("the time to confirm it was over") || is_kept_waiting(&output) {
            continue;
        }
        if output.status.signal() != Some(9) {
            assert!(output.status.success(), "{output:?}");
            return step - 1;
        }
        check(root.path(), step);
        step += 1;
    }
    panic!("{words:?} does not come to its end");
}

/// Whether anything that `apply` has set is in force, by its journal.
fn in_force(root: &Path) -> bool {
    advisor::journal::history(root).unwrap().iter().any(|run| run.in_force().next().is_some())
}

fn texts(root: &Path) -> Vec<String> {
    files(root).into_values().collect()
}

#[test]
fn apply_that_is_killed_anywhere_is_undone_or_whole() {
    let words = [&["apply", "--yes"], &RULES[..]].concat();
    let wanted = texts(host(true).path());
    let steps = at_each_step(
        &words,
        || host(true),
        |root, step| {
            // The next command, whatever it is about, undoes it, unless it had come to its end.
            let next = advise(root, &["revert", "another-rule"], None);
            if in_force(root) {
                assert_eq!(fs::read_to_string(root.join("proc/sys/net/ipv4/tcp_sack")).unwrap(), "1");
                done(root, &["revert"]);
            }
            assert_eq!(texts(root), wanted, "killed at {step}: {next:?}");
            if step % 8 == 0 {
                assert!(done(root, &words).contains("set"));
                done(root, &["revert"]);
                assert_eq!(texts(root), wanted, "killed at {step}, made again");
            }
        },
    );
    println!("apply: killed at each of {steps} steps");
    assert!(steps > 12, "{steps}");
}

#[test]
fn revert_that_is_killed_anywhere_is_finished_by_the_next() {
    let applied = || {
        let root = host(true);
        done(root.path(), &[&["apply", "--yes"], &RULES[..]].concat());
        root
    };
    let wanted = texts(host(true).path());
    let steps = at_each_step(&["revert"], applied, |root, step| {
        done(root, &["revert"]);
        assert_eq!((texts(root), in_force(root)), (wanted.clone(), false), "killed at {step}");
    });
    println!("revert: killed at each of {steps} steps");
    assert!(steps > 9, "{steps}");
}

/// The guard is another process, which outlives the one that made the change.
#[test]
fn a_guarded_change_goes_away_wherever_its_maker_was_killed() {
    let words = ["apply", "--yes", "--confirm-within", "1", "tcp-no-sack"];
    let sack = |root: &Path| fs::read_to_string(root.join("proc/sys/net/ipv4/tcp_sack")).unwrap();
    let steps = at_each_step(
        &words,
        || host(false),
        |root, step| {
            until("the guard takes it back", || sack(root) == "0" && !in_force(root));
            let left =
                files(root).into_keys().filter(|path| path.to_string_lossy().contains("ropewalk")).count();
            assert_eq!(left, 0, "killed at {step}");
        },
    );
    println!("a guarded change: killed at each of {steps} steps");
    // Killed while it is confirmed: kept or waiting, and taken back whole.
    let guarded = || {
        let root = host(false);
        done(root.path(), &["apply", "--yes", "--confirm-within", "600", "tcp-no-sack"]);
        root
    };
    let steps = at_each_step(&["confirm"], guarded, |root, step| {
        assert_eq!(sack(root), "1", "killed at {step}");
        done(root, &["revert"]);
        assert_eq!(
            (sack(root).as_str(), root.join("etc/sysctl.d/90-ropewalk-advise.conf").exists()),
            ("0", false)
        );
    });
    println!("confirm: killed at each of {steps} steps");
}
