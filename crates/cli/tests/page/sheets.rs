//! Worksheets: by their links, as files; and a recorded time as if it were live.

use std::{fs, path::Path, process::Command};

use serde_json::Value;

use super::{
    browser::{Browser, http},
    common::{Cluster, ok},
    pictured, print, serve_with,
};

/// A worksheet of what is shown: kept by its link, exported in every form, found again; and what the page does with a time.
pub fn by_link(browser: &Browser, cluster: &Cluster, port: u16, place: &Path) {
    let dir = cluster.dir();
    let dir = dir.to_str().unwrap();
    browser
        .open(&format!("http://127.0.0.1:{port}/#q=file.ops%5Bop%5D&q=pdisk.commits%5Blatency%5D&span=60"));
    browser.until("ropewalk.charts.length === 2 && ropewalk.charts.every((chart) => chart.rows.size > 0)");
    // A time that is over for all: on a busy machine a process may close its last seconds late, between two exports.
    let link =
        browser.js("const [from, to] = ropewalk.window(); ropewalk.pin(from, to - 10); return location.href");
    ok(&["analytics", "worksheet", "save", "--dir", dir, "two", link.as_str().unwrap()]);
    assert_eq!(cluster.json(&["analytics", "worksheet", "list"])[0]["charts"][1], "pdisk.commits[latency]");
    as_tables(dir, place);
    as_a_page(browser, dir, place);

    browser.open(&format!("http://127.0.0.1:{port}/?again#worksheet=two"));
    browser.until("ropewalk.sheet === 'two' && ropewalk.pinned && ropewalk.charts[1].rows.size > 0");
    by_keys(browser);
    // A page that is open follows a link to one that was kept since, and to a time in it; what is not there is said.
    ok(&["analytics", "worksheet", "save", "--dir", dir, "later", "file.ops[op]"]);
    browser.js("location.hash = '#worksheet=later&from=1000&to=1060'");
    browser.until("ropewalk.sheet === 'later' && ropewalk.pinned[0] === 1000 && ropewalk.pinned[1] === 1060 && ropewalk.charts.length === 1");
    browser.js("location.hash = '#worksheet=never'");
    browser.until("document.querySelector('#status.wrong')?.textContent === 'there is no worksheet never'");
    let bad = format!("http://127.0.0.1:{port}/?bad#q=file.opps&q=file.ops%5Bcolour%5D");
    browser.open(&bad);
    browser.until("document.querySelectorAll('.says.wrong').length === 2");
    assert!(browser.text().contains("possible: client, fs, file"), "{}", browser.text());
    assert!(browser.errors().iter().all(|error| error.contains("400")), "{:?}", browser.errors());
}

/// Exports `two`; the file's bytes.
fn export(dir: &str, out: &Path) -> Vec<u8> {
    ok(&["analytics", "worksheet", "export", "two", "--dir", dir, "--out", out.to_str().unwrap()]);
    fs::read(out).unwrap()
}

/// The same figures as CSV, JSON and Parquet.
fn as_tables(dir: &str, place: &Path) {
    const QUERY: &str = "file.ops[op]";
    let text = |name: &str| String::from_utf8(export(dir, &place.join(name))).unwrap();
    let told: Value = serde_json::from_str(&text("two.json")).unwrap();
    assert_eq!((&told["name"], &told["charts"][0]["query"]), (&"two".into(), &QUERY.into()), "{told}");
    let rows = told["charts"][0]["rows"].as_array().unwrap().iter();
    let sum: f64 = rows.map(|row| row["total"].as_f64().unwrap()).sum();
    assert!(sum > 0.0, "{told}");
    let csv = text("two.csv");
    assert!(csv.starts_with("query,end_s,"), "{csv}");
    let of_query = csv.lines().filter(|line| line.starts_with(&format!("{QUERY},")));
    let figures = of_query.filter_map(|line| line.rsplit_once(',')?.1.parse::<f64>().ok());
    assert_eq!(figures.sum::<f64>(), sum, "{csv}");
    let parquet = place.join("two.parquet");
    export(dir, &parquet);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/parquet.py");
    let read = Command::new("python3").arg(script).arg(&parquet).args(["query", "value"]).output().unwrap();
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    let read: Value = serde_json::from_slice(&read.stdout).unwrap();
    assert_eq!(read["the format's description"][QUERY].as_f64(), Some(sum), "{read}");
}

/// As a file, from which nothing is asked.
fn as_a_page(browser: &Browser, dir: &str, place: &Path) {
    let file = place.join("two.html");
    export(dir, &file);
    browser.open(&format!("file://{}", file.display()));
    browser.until(
        "ropewalk.charts.length === 2 && document.querySelectorAll('canvas.heat, .uplot').length === 2",
    );
    assert!(browser.text().contains("pdisk.commits[latency]"), "{}", browser.text());
    let loaded = browser.js("return performance.getEntriesByType('resource').map((entry) => entry.name)");
    assert_eq!(loaded.as_array().map(Vec::len), Some(0), "{loaded}");
    browser.drag("document.querySelector('canvas.heat')", (0.3, 0.4), (0.6, 0.6));
    browser.until("!document.getElementById('whole').hidden && ropewalk.shown[0] > ropewalk.whole[0]");
    pictured(browser, "exported");
    print::on_paper(browser, "exported", 2, &["file.ops[op]", "pdisk.commits[latency]"]);
}

/// A time is scrolled, zoomed and left by keys alone.
fn by_keys(browser: &Browser) {
    let time = || {
        let time = browser.js("return ropewalk.pinned");
        (time[0].as_i64().unwrap(), time[1].as_i64().unwrap())
    };
    let (from, to) = time();
    browser.key("\u{e012}"); // left
    assert_eq!(time(), (from - (to - from) / 2, to - (to - from) / 2));
    browser.key("\u{e014}"); // right
    assert_eq!(time(), (from, to));
    browser.key("+");
    let near = time();
    assert!(near.1 - near.0 < to - from && from < near.0 && near.1 < to, "{near:?} of {from} to {to}");
    browser.key("-");
    assert!(time().1 - time().0 > near.1 - near.0, "{:?}", time());
    browser.key(" ");
    browser.until("!ropewalk.pinned && ropewalk.source?.readyState === 1");
}

/// What was recorded passes on the page as it did, where there is no cluster; a worksheet of it as a file.
pub fn as_if_live(browser: &Browser, dir: &str, place: &Path) {
    let file = place.join("span.rwhist");
    let file = file.to_str().unwrap();
    ok(&["analytics", "record", "--dir", dir, "--from", "-120s", "--out", file]);
    let nowhere = place.join("nowhere");
    // It ends after a minute, and stands then: before that the page has to be there.
    let (_page, port) = serve_with(nowhere.to_str().unwrap(), &["--recording", file, "--speed", "2"]);
    browser.open(&format!("http://127.0.0.1:{port}/?recorded#q=file.ops%5Bclient%5D&span=30"));
    browser.until("!document.getElementById('recorded').hidden && ropewalk.charts[0]?.rows.size === 2");
    let begun = browser.js("return ropewalk.newest ?? ropewalk.window()[1]").as_f64().unwrap();
    browser.until(&format!("ropewalk.newest >= {begun} + 6"));
    let said = browser.js("return document.getElementById('span').selectedOptions[0].textContent");
    assert_eq!(said, "30 s", "a time that is not in the list");
    // No second of it is passed over.
    browser.until("ropewalk.charts[0].recorded.slice(-5).every((n) => n > 0)");
    assert_eq!(http(port, "GET", "/api/hardware", &[], "").0, 400);
    let out = place.join("span.html");
    ok(&[
        "analytics",
        "worksheet",
        "export",
        "two",
        "--dir",
        dir,
        "--recording",
        file,
        "--out",
        out.to_str().unwrap(),
    ]);
    assert!(fs::read_to_string(out).unwrap().contains("pdisk.commits[latency]"));
}
