//! A real Prometheus, from packages: it takes what a process shows, and the rules and the dashboard of `packaging/prometheus`
//! name nothing that is not shown, and every panel of the dashboard has something to draw.
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use base::stats::STATISTICS;
use serde_json::Value;

use super::common::until;

/// Ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn place() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/prometheus")
}

/// Runs `promtool`; it must find nothing wrong.
fn promtool(arguments: &[&str], given: &str) {
    let mut tool = Command::new("promtool")
        .args(arguments)
        .current_dir(place())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("promtool: {error}; scripts/setup.sh, or apt-get install prometheus"));
    tool.stdin.take().unwrap().write_all(given.as_bytes()).unwrap();
    let output = tool.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&said));
}

/// The metrics that an expression names.
fn named(expression: &str) -> impl Iterator<Item = &str> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    expression.split(move |c| !word(c)).filter(|word| word.starts_with("ropewalk_"))
}

/// What is shown at the addresses is taken, all rules can be asked for, and each panel of the dashboard has something to draw; by one that
/// listens on `port`.
pub fn takes(text: &str, addresses: &[String], port: u16) {
    promtool(&["check", "metrics"], text);
    promtool(&["check", "config", "prometheus.yml"], "");
    promtool(&["test", "rules", "ropewalk-alerts-test.yml"], "");

    let data = tempfile::tempdir().unwrap();
    let rules = place().join("ropewalk-alerts.yml").canonicalize().unwrap();
    let config = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [{:?}]\n\
         scrape_configs: [{{ job_name: ropewalk, static_configs: [{{ targets: {addresses:?} }}] }}]\n",
        rules.to_str().unwrap()
    );
    let file = data.path().join("prometheus.yml");
    fs::write(&file, config).unwrap();
    let own = format!("127.0.0.1:{port}");
    let _prometheus = Running(
        Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", data.path().join("data").display()))
            .arg(format!("--web.listen-address={own}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let get = |path: &str, parameters: &[(&str, &str)]| -> Value {
        let mut curl = Command::new("curl");
        curl.args(["-s", "--noproxy", "*", "-G", &format!("http://{own}{path}")]);
        for (name, value) in parameters {
            curl.args(["--data-urlencode", &format!("{name}={value}")]);
        }
        serde_json::from_slice(&curl.output().unwrap().stdout).unwrap_or_default()
    };
    let found = |query: &str| get("/api/v1/query", &[("query", query)])["data"]["result"].clone();
    until("it has what a program did", || {
        let found = found("sum(ropewalk_file_op_bytes_total{job=\"ropewalk\",op=\"write\"})");
        found[0]["value"][1].as_str().and_then(|n| n.parse::<f64>().ok()) >= Some(f64::from(1 << 20))
    });
    // It asks for OpenMetrics, every second; on a machine that stands still for so long once in vain.
    until("all are up, and nothing is wrong", || {
        let targets = get("/api/v1/targets", &[])["data"]["activeTargets"].clone();
        found("sum(up{job=\"ropewalk\"})")[0]["value"][1] == addresses.len().to_string().as_str()
            && targets.as_array().is_some_and(|all| all.iter().all(|target| target["lastError"] == ""))
    });

    // Every rule is evaluated without an error, every panel can be asked for, and none names what is not there.
    let rules = || get("/api/v1/rules", &[])["data"]["groups"][0]["rules"].clone();
    until("the rules are evaluated", || {
        rules().as_array().is_some_and(|all| all.iter().all(|rule| rule["health"] == "ok"))
    });
    let dashboard: Value =
        serde_json::from_str(&fs::read_to_string(place().join("ropewalk-dashboard.json")).unwrap()).unwrap();
    let targets =
        dashboard["panels"].as_array().unwrap().iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let mut expressions: Vec<String> =
        targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect();
    assert!(expressions.len() > 20, "{expressions:?}");
    for expression in &expressions {
        let asked = expression.replace("$__rate_interval", "1m").replace("$instance", ".*");
        assert_eq!(get("/api/v1/query", &[("query", &asked)])["status"], "success", "{asked}");
        // A rate is there when it was looked twice. Of what never happened there is a line at 0, and no percentile but its place.
        until(&format!("a panel has something to draw: {asked}"), || {
            found(&asked).as_array().is_some_and(|series| !series.is_empty())
        });
    }
    expressions
        .extend(rules().as_array().unwrap().iter().map(|rule| rule["query"].as_str().unwrap().to_owned()));
    let document = include_str!("../../../../docs/statistics.md");
    let shown: BTreeSet<&str> = document.split('`').filter(|word| word.starts_with("ropewalk_")).collect();
    assert!(shown.len() > STATISTICS.len() / 2);
    for name in expressions.iter().flat_map(|expression| named(expression)) {
        let stem =
            ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        assert!(shown.contains(stem), "{name} is shown by nobody");
    }
}
