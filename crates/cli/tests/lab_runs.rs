//! Runs of the lab as a user sees them: what is refused changes nothing, a stopped run goes on where it was,
//! only what was named is written, and the report is one page that a real browser shows without a network.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

#[path = "common/browser.rs"]
mod browser;
mod common;
#[path = "common/laid_out.rs"]
mod laid_out;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use common::{ROPEWALK, ok, refused, until};
use serde_json::Value;

const PLAN: &str = "\
name = 'mine'
title = 'a small plan'
step = 'devices'
steps = [1, 2]
seconds = 0.5
repeats = 2
[[series]]
name = 'r'
engine = 'fio'
figure = 'operations'
set = { rw = 'randread', bs = '4k', ioengine = 'psync', direct = false }
matrix = { numjobs = [1, 2] }
[[series]]
name = 'w'
engine = 'fio'
figure = 'bytes'
set = { rw = 'randwrite', bs = '4k', ioengine = 'psync', direct = false }
[[reference]]
of = 'r'
at = 2
what = '<b>not bold</b>'
";

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::Builder::new().prefix("ropewalk-lab-").tempdir().unwrap();
        fs::write(dir.path().join("plan.toml"), PLAN).unwrap();
        for name in ["read-only", "writable"] {
            fs::write(dir.path().join(name), vec![9u8; 4 << 20]).unwrap();
        }
        Place { dir }
    }
    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }
    fn entries(&self) -> BTreeSet<PathBuf> {
        let all = fs::read_dir(self.dir.path()).unwrap();
        all.map(|entry| entry.unwrap().path()).collect()
    }
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let place = Place::new();
    let plan = place.path("plan.toml");
    let before = place.entries();
    let out = place.path("out");
    let run = |more: &[&str]| {
        let mut args = vec!["lab", "run", plan.as_str(), "--out", out.as_str()];
        args.extend(more);
        refused(&args)
    };
    assert!(run(&["--device", "/dev/nothing-there"]).contains("/dev/nothing-there"));
    assert!(run(&["--writable", "/proc"]).contains("/proc"));
    assert!(run(&["--pair", "10.0.0.1"]).contains("CLIENT=SERVER"));
    // What would be measured, on what; nothing is made for it.
    let listed = ok(&["lab", "run", &plan, "--dry-run", "--device", &place.path("read-only")]);
    for part in ["read-only", "nothing to step over", "cells, about"] {
        assert!(listed.contains(part), "{part}: {listed}");
    }
    assert_eq!(place.entries(), before);
    for (from, to, parts) in [
        ("rw = 'randread'", "rw = 'rand'", ["line 11", "\"rw\"", "randread"]),
        ("steps = [1, 2]", "steps = []", ["line 4", "\"steps\"", "1..n"]),
        ("engine = 'fio'", "engine = 'bonnie'", ["line 9", "\"engine\"", "fio"]),
        (
            "step = 'devices'\n",
            "step = 'devices'\n[targets]\ndevices = ['/dev/gone']\n[x]\n",
            ["line 6", "\"x\"", "possible are"],
        ),
    ] {
        fs::write(place.dir.path().join("plan.toml"), PLAN.replacen(from, to, 1)).unwrap();
        let error = run(&[]);
        assert!(parts.iter().all(|part| error.contains(part)), "{to}: {error}");
    }
    let named = format!("{PLAN}[targets]\nwritable = ['/dev/nothing-there']\n");
    fs::write(place.dir.path().join("plan.toml"), named).unwrap();
    assert!(run(&[]).contains("/dev/nothing-there"));
    assert!(refused(&["lab", "run", "no-such-plan"]).contains("no-such-plan"));
    // What has no end is not read into memory: as a hole of 64 GiB it would be the machine's.
    let endless = place.path("endless.toml");
    fs::File::create(&endless).unwrap().set_len(64 << 30).unwrap();
    assert!(refused(&["lab", "run", &endless, "--out", &out]).contains("more than 1m"));
    fs::remove_file(&endless).unwrap();
    assert!(refused(&["lab", "plan", "no-such-plan"]).contains("device-scaling"));
    assert_eq!(place.entries(), before);
    // A missing engine is named with its package.
    fs::write(place.dir.path().join("plan.toml"), PLAN).unwrap();
    let output = Command::new(ROPEWALK)
        .args(["lab", "run", &plan, "--out", &out])
        .env("PATH", "/nonexistent")
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("install the package fio"), "{error}");
    assert_eq!(place.entries(), before);
}

#[test]
fn only_named_things_are_written_and_a_stopped_run_goes_on() {
    let place = Place::new();
    let (out, plan) = (place.path("out"), place.path("plan.toml"));
    let (read_only, writable) = (place.path("read-only"), place.path("writable"));
    let mut child = Command::new(ROPEWALK)
        .args(["lab", "run", &plan, "--out", &out, "--device", &read_only, "--writable", &writable])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Stopped once a cell is there: eleven are to come, of half a second each.
    let cells = Path::new(&out).join("cells.jsonl");
    let lines = || fs::read_to_string(&cells).unwrap_or_default().lines().count();
    until("a cell is measured", || lines() > 0);
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert!(!child.wait().unwrap().success(), "a stopped run is not done");
    let stopped: Vec<String> = fs::read_to_string(&cells).unwrap().lines().map(str::to_owned).collect();
    // As if the power had gone while a line was written.
    let mut cut = fs::read(&cells).unwrap();
    cut.extend_from_slice(b"{\"id\":\"mine/r/st");
    fs::write(&cells, cut).unwrap();

    ok(&["lab", "resume", &out]);
    let all: Vec<String> = fs::read_to_string(&cells).unwrap().lines().map(str::to_owned).collect();
    assert_eq!(all[..stopped.len()], stopped[..], "what was measured stays");
    let records: Vec<Value> = all.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ids: BTreeSet<&str> = records.iter().map(|r| r["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), records.len(), "no cell twice");
    // r: 2 steps x 2 jobs x 2 repeats, and the second device alone twice. w: one writable device: 1 step x 2.
    assert_eq!(records.len(), 8 + 2 + 2, "{ids:?}");
    assert!(
        records.iter().all(|r| r["error"].is_null() && r["figures"]["operations"].as_f64().unwrap() > 0.0)
    );
    assert!(fs::read(&read_only).unwrap() == vec![9u8; 4 << 20], "what was only to be read is as it was");
    assert!(fs::read(&writable).unwrap() != vec![9u8; 4 << 20], "what was to be written was");
    let run: Value =
        serde_json::from_str(&fs::read_to_string(Path::new(&out).join("run.json")).unwrap()).unwrap();
    for key in ["kernel", "cpu", "memory", "version", "command", "links", "disks", "settings", "programs"] {
        assert!(!run["environment"][key].is_null(), "{key}");
    }
    assert!(run["machine"]["cpu_full"].as_f64().unwrap() > 0.0);

    // The same run again, doctored: slower by more than noise is a regression, for scripts too.
    let slower = place.path("slower");
    fs::create_dir(&slower).unwrap();
    fs::copy(Path::new(&out).join("run.json"), Path::new(&slower).join("run.json")).unwrap();
    let doctored = records.iter().map(|record| {
        let mut record = record.clone();
        for key in ["operations", "bytes"] {
            let value = record["figures"][key].as_f64().unwrap();
            record["figures"][key] = (value * 0.01).into();
        }
        record.to_string() + "\n"
    });
    fs::write(Path::new(&slower).join("cells.jsonl"), doctored.collect::<String>()).unwrap();
    ok(&["lab", "compare", &out, &out]);
    ok(&["lab", "compare", &slower, &out]);
    assert!(refused(&["lab", "compare", &out, &slower]).contains("became slower"));
    assert!(refused(&["lab", "compare", &out, &plan]).contains("run.json"));
    // A run is made once; another process cannot have it meanwhile.
    let again = refused(&["lab", "run", &plan, "--out", &out]);
    assert!(again.contains("not empty") && again.contains("resume"), "{again}");
}

#[test]
fn plans_can_be_printed_and_run_from_a_file() {
    let list: Value = serde_json::from_str(&ok(&["lab", "list", "--json"])).unwrap();
    let names: Vec<&str> =
        list.as_array().unwrap().iter().map(|plan| plan["name"].as_str().unwrap()).collect();
    assert!(names.len() >= 21, "{names:?}");
    for name in names {
        assert!(ok(&["lab", "plan", name]).contains(&format!("name = \"{name}\"")));
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("step.toml");
    let text =
        ok(&["lab", "plan", "step-load"]).replace("seconds = 0.5", "seconds = 0.2").replace("[32]", "[4]");
    fs::write(&file, text).unwrap();
    let out = dir.path().join("out");
    ok(&["lab", "run", file.to_str().unwrap(), "--short", "--out", out.to_str().unwrap()]);
    let csv = ok(&["lab", "report", out.to_str().unwrap(), "--format", "csv"]);
    assert_eq!(csv.lines().count(), 1 + 4, "{csv}");
    let markdown = ok(&["lab", "report", out.to_str().unwrap(), "--format", "md"]);
    assert!(markdown.contains("| writers | measured |"), "{markdown}");
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("class=\"chart heat\"") && page.contains("class=\"hot\""), "a heat map");
    shown_by_a_browser(&out.join("report.html"));
}

#[test]
fn what_a_killed_run_left_is_in_nobodys_way() {
    let place = Place::new();
    let (mine, plan, out) = (place.path("mine"), place.path("plan.toml"), place.path("out"));
    let left = Path::new(&mine).join(".ropewalk-lab-pdisk-0/pdisk-bench/0");
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join("data"), "cut off").unwrap();
    fs::write(Path::new(&mine).join("other"), "not the lab's").unwrap();
    let text = "name = 'q'\ntitle = 'q'\nstep = 'queues'\nsteps = [1, 2]\nseconds = 0.5\n[[series]]\nname = 'q'\n\
                engine = 'pdisk'\nfigure = 'operations'\nset = { disks = 2, dma_mib = 8, size = '64m' }\n";
    fs::write(&plan, text).unwrap();
    ok(&["lab", "run", &plan, "--out", &out, "--writable", &mine]);
    let names: Vec<_> = fs::read_dir(&mine).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["other"], "its own is gone, and nothing else");
    let cells = fs::read_to_string(Path::new(&out).join("cells.jsonl")).unwrap();
    assert!(cells.contains("2 I/O queues need io_dma_mib=16, there are 8"), "{cells}");
}

/// The page in a real browser, light and dark: something is drawn, nothing is complained of, nothing is loaded.
fn shown_by_a_browser(page: &Path) {
    let names = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"];
    let found = names
        .iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success()));
    let Some(browser) = found else {
        println!("SKIPPED: no browser here ({}); scripts/setup.sh installs one", names.join(", "));
        return;
    };
    let text = fs::read_to_string(page).unwrap();
    for outside in ["http://", "https://", "<script", "@import", "url("] {
        assert!(!text.contains(outside), "the page must need nothing else: {outside}");
    }
    let dir = tempfile::tempdir().unwrap();
    let mut shots = Vec::new();
    for (theme, flags) in [
        ("light", &["--blink-settings=preferredColorScheme=1"][..]),
        ("dark", &["--blink-settings=preferredColorScheme=0"]),
    ] {
        let shot = dir.path().join(format!("{theme}.png"));
        let output = Command::new(browser)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--enable-logging=stderr",
            ])
            // Whatever it asked for over a network would fail, and be logged.
            .args(["--proxy-server=127.0.0.1:9", "--window-size=1200,2400", "--virtual-time-budget=2000"])
            .args(flags)
            .arg(format!("--user-data-dir={}", dir.path().join(theme).display()))
            .arg(format!("--screenshot={}", shot.display()))
            .arg(format!("file://{}", page.display()))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && shot.exists(), "{said}");
        assert!(!said.contains("CONSOLE"), "the console is not quiet: {said}");
        shots.push(fs::read(&shot).unwrap());
    }
    for shot in &shots {
        // A blank page of this size packs to a few kB.
        assert!(shot.starts_with(b"\x89PNG") && shot.len() > 30_000, "{} bytes: blank", shot.len());
    }
    assert!(shots[0] != shots[1], "light and dark are the same");
    let dom = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
        .arg(format!("--user-data-dir={}", dir.path().join("dom").display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    let dom = String::from_utf8_lossy(&dom.stdout).into_owned();
    assert!(dom.contains("What was found") && dom.matches("<polyline").count() >= 2, "{dom}");
    laid_out::laid_out(page, "run");
}
