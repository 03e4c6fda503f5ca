//! Runs of the lab over several nodes: agents of their own, and the nodes of a cluster. What was not named is not
//! touched, and a node that does not fit is named before anything is made.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod common;

use std::{
    collections::BTreeSet,
    fs,
    io::BufRead,
    path::Path,
    process::{Child, Command, Stdio},
};

use common::{Cluster, ROPEWALK, ok, refused, until};
use serde_json::Value;

/// A plan over client nodes.
fn plan(series: &str) -> String {
    format!(
        "name = 'mine'\ntitle = 'a small plan'\nstep = 'nodes'\nsteps = [1, 'n']\nseconds = 0.5\nrepeats = 2\n\
         [[series]]\nname = 'r'\n{series}"
    )
}

fn records(out: &str) -> Vec<Value> {
    let cells = fs::read_to_string(Path::new(out).join("cells.jsonl")).unwrap();
    cells.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Every agent gave its part, and the parts are the whole.
fn parts_are_the_whole(record: &Value, figure: &str, agents: &[&str]) {
    let parts = record["figures"]["parts"].as_object().unwrap_or_else(|| panic!("{record}"));
    let names: BTreeSet<&str> = parts.keys().map(String::as_str).collect();
    assert_eq!(names, agents.iter().copied().collect(), "{record}");
    let sum: f64 = parts.values().map(|v| v.as_f64().unwrap()).sum();
    assert!((sum / record["figures"][figure].as_f64().unwrap() - 1.0).abs() < 1e-9, "{record}");
    let commands = record["commands"].to_string();
    assert!(agents.iter().all(|agent| commands.contains(&format!("{agent}: "))), "{record}");
}

struct AgentProcess(Child, String);

impl AgentProcess {
    fn start(dir: &Path, device: &Path) -> AgentProcess {
        let mut child = Command::new(ROPEWALK)
            .args(["lab", "agent", "--listen", "127.0.0.1:0", "--writable", dir.to_str().unwrap()])
            .args(["--device", device.to_str().unwrap()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let addr = line.trim().rsplit(' ').next().unwrap().to_owned();
        AgentProcess(child, addr)
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn agents_take_part_and_what_they_were_not_given_is_refused() {
    let dir = tempfile::Builder::new().prefix("ropewalk-lab-").tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (plan_file, file) = (path("nodes.toml"), dir.path().join("read-only"));
    fs::write(&file, vec![9u8; 4 << 20]).unwrap();
    let series = "engine = 'fio'\nfigure = 'operations'\n\
                  set = { rw = 'randread', bs = '4k', ioengine = 'psync', direct = false }\n";
    fs::write(&plan_file, plan(series)).unwrap();
    let agents: Vec<AgentProcess> = (0..2).map(|_| AgentProcess::start(dir.path(), &file)).collect();
    let out = path("out");
    let (a, b) = (agents[0].1.as_str(), agents[1].1.as_str());
    ok(&["lab", "run", &plan_file, "--out", &out, "--agent", a, "--agent", b]);
    let records = records(&out);
    assert_eq!(records.len(), 4, "two steps, measured twice");
    for record in records.iter().filter(|record| record["cell"]["step"] == 2) {
        parts_are_the_whole(record, "operations", &[a, b]);
    }
    // A load that writes, on what the agent was given only to read.
    fs::write(&plan_file, plan(&series.replace("'randread'", "'randwrite'"))).unwrap();
    let refused_out = path("refused");
    let error = refused(&["lab", "run", &plan_file, "--out", &refused_out, "--agent", a]);
    assert!(
        error.contains("cells failed") && error.contains("not named as writable"),
        "the first reason: {error}"
    );
    let cells = fs::read_to_string(Path::new(&refused_out).join("cells.jsonl")).unwrap();
    assert!(cells.contains("not named as writable"), "{cells}");
    assert!(fs::read(&file).unwrap() == vec![9u8; 4 << 20], "it is as it was");
    // An agent that is not there: named, and nothing is made.
    let gone = path("gone");
    let error = refused(&["lab", "run", &plan_file, "--out", &gone, "--agent", "127.0.0.1:1"]);
    assert!(error.contains("127.0.0.1:1") && !Path::new(&gone).exists(), "{error}");
}

#[test]
fn every_node_that_serves_takes_part_on_mounts_only() {
    let cluster = Cluster::three(&["--pdisk-size", "256m", "--block-size", "256k"]);
    let (dir, mnt) = (cluster.dir(), cluster.mnt());
    let (dir, mnt) = (dir.to_str().unwrap(), mnt.to_str().unwrap());
    ok(&["config", "set", "--dir", dir, "io_coalesce_us=77"]);
    let place = tempfile::Builder::new().prefix("ropewalk-lab-").tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let (plan_file, out, elsewhere) = (path("nodes.toml"), path("out"), path("elsewhere"));
    let series = "engine = 'perf'\nfigure = 'operations'\n\
                  set = { operation = 'read', pattern = 'seq', record = '256k', amount = '2m' }\n";
    fs::write(&plan_file, plan(series)).unwrap();

    // Not on a mount, by its own name or through a link on the mount: refused by the nodes, nothing is made.
    fs::create_dir(&elsewhere).unwrap();
    let link = format!("{mnt}/link");
    std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
    for bad in [elsewhere.as_str(), &link] {
        let run = ["lab", "run", &plan_file, "--out", &out, "--cluster", dir, "--writable", bad];
        // A node may not be heard in time; nothing is made then either.
        until("a node refuses it", || {
            let error = refused(&run);
            error.contains(bad) && error.contains("not on a mount of this cluster")
        });
    }
    let error = refused(&["lab", "run", &plan_file, "--out", &out, "--cluster", dir, "--writable", "mnt"]);
    assert!(error.contains("absolute path"), "{error}");
    assert!(!Path::new(&out).exists() && fs::read_dir(&elsewhere).unwrap().next().is_none());

    ok(&["lab", "run", &plan_file, "--out", &out, "--cluster", dir, "--writable", mnt]);
    let run: Value =
        serde_json::from_str(&fs::read_to_string(Path::new(&out).join("run.json")).unwrap()).unwrap();
    let agents: Vec<&str> = run["agents"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(agents.len(), 3, "{run}");
    let tunables = run["environment"]["tunables"].as_object().unwrap();
    assert!(tunables["io_coalesce_us"].as_str().unwrap().starts_with("77 (default"), "{tunables:?}");
    let records = records(&out);
    assert_eq!(records.len(), 4, "two steps, measured twice");
    for record in records.iter().filter(|record| record["cell"]["step"] == 3) {
        parts_are_the_whole(record, "operations", &agents);
    }
    // What was seen meanwhile is a worksheet, with each cell as a mark on its time axis.
    let sheets = cluster.json(&["analytics", "worksheet", "list"]);
    let sheet = run["seen"]["worksheet"].as_str().unwrap();
    assert_eq!((&sheets[0]["name"], sheets[0]["marks"].as_array().map(Vec::len)), (&sheet.into(), Some(4)));
    let html = path("out.html");
    ok(&["analytics", "worksheet", "export", sheet, "--dir", dir, "--out", &html]);
    let cell = sheets[0]["marks"][0]["text"].as_str().unwrap();
    assert!(fs::read_to_string(html).unwrap().contains(cell), "{cell} is on the time axis");
    leads_to_what_was_seen(&out, &sheets[0]);
    failed_cells_lead_there_as_well(&cluster, &plan_file, &path("again"), mnt);
    step_load(&plan_file, &path("steps"), (dir, mnt), &agents);
    let left: Vec<_> = fs::read_dir(mnt).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["link"], "the files of the run are gone");
}

/// A run whose cells fail, in a directory of the same name: it has a worksheet of its own, and each failed cell leads there.
fn failed_cells_lead_there_as_well(cluster: &Cluster, plan_file: &str, place: &str, mnt: &str) {
    let before = cluster.json(&["analytics", "worksheet", "list"]);
    // More than there is room for.
    let series = "engine = 'perf'\nfigure = 'operations'\n\
                  set = { operation = 'create', pattern = 'seq', record = '256k', amount = '1t' }\n";
    let mut text = plan(series).replace("[1, 'n']", "[1]").replace("repeats = 2", "repeats = 1");
    text = text.replace("'mine'", "'too-much'");
    fs::write(plan_file, text).unwrap();
    let (dir, out) = (cluster.dir(), format!("{place}/out"));
    let dir = dir.to_str().unwrap();
    let error = refused(&["lab", "run", plan_file, "--out", &out, "--cluster", dir, "--writable", mnt]);
    assert!(error.contains("1 of 1 cells failed"), "{error}");
    let after = cluster.json(&["analytics", "worksheet", "list"]);
    let (before, after) = (before.as_array().unwrap(), after.as_array().unwrap());
    assert!(after.len() == before.len() + 1 && before.iter().all(|sheet| after.contains(sheet)), "{after:?}");
    let sheet = after.iter().find(|sheet| !before.contains(sheet)).unwrap();
    let report: Value = serde_json::from_str(&ok(&["lab", "report", &out, "--format", "json"])).unwrap();
    let missing = &report["plans"][0]["missing"][0];
    assert_eq!(missing["cell"], sheet["marks"][0]["text"], "{missing}");
    let address = missing["seen"].as_str().unwrap();
    assert!(address.contains(&format!("#worksheet={}&from=", sheet["name"].as_str().unwrap())), "{address}");
    let html = fs::read_to_string(Path::new(&out).join("report.html")).unwrap();
    let link = format!("<a href=\"{}\">What the cluster did then</a></li>", address.replace('&', "&amp;"));
    assert!(html.contains(&link), "{address}: {html}");
    let markdown = ok(&["lab", "report", &out, "--format", "md"]);
    assert!(markdown.contains(&format!("[What the cluster did then]({address})")), "{address}: {markdown}");
}

/// Verdict and steps of the report lead to the worksheet, each to the time of its cell, which is a mark there.
fn leads_to_what_was_seen(out: &str, sheet: &Value) {
    let report: Value = serde_json::from_str(&ok(&["lab", "report", out, "--format", "json"])).unwrap();
    let seen = report["plans"][0]["series"][0]["seen"].as_object().unwrap();
    assert_eq!(seen.len(), 2, "a cell for each step: {seen:?}");
    let html = fs::read_to_string(Path::new(out).join("report.html")).unwrap();
    let markdown = ok(&["lab", "report", out, "--format", "md"]);
    for (cell, address) in seen {
        let address = address.as_str().unwrap();
        let of = |name: &str| -> i64 {
            let (_, rest) = address.split_once(&format!("&{name}=")).unwrap();
            rest.split('&').next().unwrap().parse().unwrap()
        };
        let mark = sheet["marks"].as_array().unwrap().iter().find(|mark| mark["text"] == **cell).unwrap();
        let us = |name: &str| mark[name].as_i64().unwrap();
        assert!(
            of("from") * 1_000_000 < us("from_at_us") && us("to_at_us") < of("to") * 1_000_000,
            "{address} {mark}"
        );
        let named = format!("#worksheet={}&", sheet["name"].as_str().unwrap());
        assert!(address.contains(&named), "{address}");
        assert!(
            html.contains(&format!("<a href=\"{}\">", address.replace('&', "&amp;"))),
            "{address}: {html}"
        );
        assert!(markdown.contains(&format!("]({address})")), "{address}: {markdown}");
    }
    for text in [&html, &markdown] {
        assert!(text.to_lowercase().contains("what the cluster did then"), "{text}");
    }
}

/// One writer more each period, node after node, as one load; and the same run stopped on its way.
fn step_load(plan_file: &str, out: &str, (dir, mnt): (&str, &str), agents: &[&str]) {
    let text = |seconds: f64| {
        plan(
            "engine = 'writers'\nfigure = 'operations'\n\
              set = { bs = '4k', per_client = 2, patience = 50, file = '1m' }\n",
        )
        .replace("'nodes'", "'writers'")
        .replace("[1, 'n']", "[6]")
        .replace("repeats = 2", "repeats = 1")
        .replace("seconds = 0.5", &format!("seconds = {seconds}"))
    };
    fs::write(plan_file, text(0.4)).unwrap();
    ok(&["lab", "run", plan_file, "--out", out, "--cluster", dir, "--writable", mnt]);
    let records = records(out);
    assert_eq!(records.len(), 1);
    parts_are_the_whole(&records[0], "operations", agents);
    let timeline = records[0]["figures"]["timeline"].as_array().unwrap();
    let writers: Vec<u64> = timeline.iter().map(|second| second["parts"].as_u64().unwrap()).collect();
    assert_eq!(writers, [1, 2, 3, 4, 5, 6], "{}", records[0]);
    let done: u64 = timeline.iter().map(|second| second["operations"].as_u64().unwrap()).sum();
    assert!(done > 0, "{}", records[0]);
    // The three nodes are one machine: its CPUs count once.
    let cpus = records[0]["usage"]["cpus"].as_array().unwrap().len();
    assert!(cpus <= std::fs::read_to_string("/proc/stat").unwrap().matches("\ncpu").count(), "{cpus}");
    let report: Value = serde_json::from_str(&ok(&["lab", "report", out, "--format", "json"])).unwrap();
    let check = report["plans"][0]["series"][0]["cross_check"].to_string();
    // Other links of the machine may have moved more, by others: then those stand before it.
    assert!(check.contains(" moved ") && check.contains("times the payload"), "{check}");

    fs::write(plan_file, text(30.0)).unwrap();
    let stopped = format!("{out}-stopped");
    let mut child = Command::new(ROPEWALK)
        .args(["lab", "run", plan_file, "--out", &stopped, "--cluster", dir, "--writable", mnt])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let writes =
        || fs::read_dir(mnt).unwrap().any(|e| e.unwrap().file_name().to_string_lossy().contains("writer"));
    until("files of writers", &writes);
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(child.id() as i32).unwrap(),
        rustix::process::Signal::INT,
    )
    .unwrap();
    assert!(!child.wait().unwrap().success(), "a stopped run is not done");
    until("the nodes to have removed their files", || !writes());
}
