//! The page of `analytics serve` in a real browser, while `perf` and fio work on two mounts: from client to file to
//! latency; the one pdisk that is slow, found by the page alone; what a server that is gone looks like; who may look.
//! Pictures of every view go to `target/page-pictures`, or where ROPEWALK_PAGE_PICTURES says: they are to be looked at.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails; what is measured is printed

#[path = "page/attacks.rs"]
mod attacks;
#[path = "common/browser.rs"]
mod browser;
mod common;
#[path = "page/gone.rs"]
mod gone;
#[path = "common/mounts.rs"]
mod mounts;
#[path = "page/odd.rs"]
mod odd;

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use browser::{Browser, http};
use common::{ROPEWALK, ok, refused};
use mounts::Mounts;
use serde_json::Value;

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn begin(command: &mut Command) -> Running {
    Running(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

/// The page's process, and its port.
fn serve(dir: &str) -> (Running, u16) {
    serve_with(dir, &[])
}

fn serve_with(dir: &str, options: &[&str]) -> (Running, u16) {
    let mut page = begin(
        Command::new(ROPEWALK)
            .args(["analytics", "serve", "--dir", dir, "--listen", "127.0.0.1:0"])
            .args(options)
            .stdout(Stdio::piped()),
    );
    let mut line = String::new();
    BufReader::new(page.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let port = line.trim().trim_end_matches('/').rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    (page, port.unwrap_or_else(|| panic!("the page's address: {line:?}")))
}

fn pictures() -> PathBuf {
    let place = std::env::var_os("ROPEWALK_PAGE_PICTURES").map(PathBuf::from);
    let place = place.unwrap_or_else(|| Path::new(env!("CARGO_TARGET_TMPDIR")).join("../page-pictures"));
    fs::create_dir_all(&place).unwrap();
    place
}

/// The same in light, in dark, at phone width, and as it is printed by who looks at it in dark.
fn pictured(browser: &Browser, name: &str) {
    let place = pictures();
    let settle = "return new Promise((done) => { scrollTo(0, 0); requestAnimationFrame(() => requestAnimationFrame(done)); })";
    for (form, scheme, media, size) in [
        ("light", "light", "screen", (1280, 900)),
        ("dark", "dark", "screen", (1280, 900)),
        ("phone", "light", "screen", (390, 1400)),
        ("print", "dark", "print", (800, 1100)),
    ] {
        browser.scheme(scheme, media);
        browser.size(size.0, size.1);
        std::thread::sleep(Duration::from_millis(250)); // it draws anew a moment after its size has changed
        browser.js(settle);
        browser.picture(&place.join(format!("{name}-{form}.png")));
        let (inner, outer) = (browser.js("return document.documentElement.scrollWidth"), size.0);
        assert!(inner.as_u64() <= Some(outer.into()), "{name} {form} is {inner} wide, the window {outer}");
        // A filter's chip shows by what it is taken away.
        let crosses = "return [...document.querySelectorAll('main:not([hidden]) .chip')].every((chip) => { const [a, b] = [chip, chip.querySelector('.cross')].map((of) => of.getBoundingClientRect()); return b.width > 0 && b.right <= a.right && a.right <= innerWidth; })";
        assert!(media == "print" || browser.js(crosses) == true, "{name} {form}: a chip's cross is hidden");
        let paper = browser.js("return getComputedStyle(document.body).backgroundColor");
        assert_eq!(paper == "rgb(255, 255, 255)", form != "dark", "{name} {form}: {paper}");
    }
    browser.scheme("light", "screen");
    browser.size(1280, 900);
    std::thread::sleep(Duration::from_millis(400)); // what is clicked next must not move meanwhile
    browser.js(settle);
}

/// The button of a row of a chart's table.
fn row(chart: usize, text: &str) -> String {
    format!(
        "[...document.querySelectorAll('article')[{chart}].querySelectorAll('button.row')].find((row) => row.textContent === {text:?})"
    )
}

fn query(browser: &Browser, chart: usize) -> String {
    browser.js(&format!("return ropewalk.charts[{chart}].query")).as_str().unwrap().to_owned()
}

#[test]
fn from_the_load_to_its_cause_by_the_page_alone() {
    let mounts = Mounts::in_memory(2);
    let cluster = &mounts.cluster;
    let dir = cluster.dir();
    let dir = dir.to_str().unwrap();
    cluster.kill(|name| name == "n2");
    cluster.start_server_with("n2", &[("ROPEWALK_PDISK_FAULT", "delay 150ms on=write")]);
    cluster.wait_all_ok(Duration::from_secs(60));
    let (_page, port) = serve(dir);
    who_may_look(port);

    let perf = mounts.at(0, "perf.dat");
    let mut loads = vec![begin(Command::new("sh").stdout(Stdio::null()).args([
        "-c",
        "while :; do \"$0\" perf create seq \"$1\" -r 256k -n 4m -fsync; \"$0\" perf read seq \"$1\" -r 256k; done",
        ROPEWALK,
        perf.to_str().unwrap(),
    ]))];
    let second = mounts.all[1].to_str().unwrap();
    loads.push(begin(Command::new("fio").stdout(Stdio::null()).args([
        "--name=sync",
        "--rw=randwrite",
        "--bs=4k",
        "--size=4m",
        "--fsync=1",
        "--thread", // one process, which ends with the test
        "--time_based",
        "--runtime=300",
        &format!("--directory={second}"),
    ])));

    let browser = Browser::start();
    browser.open(&format!("http://127.0.0.1:{port}/"));
    browser.until(&row(0, second));
    browser.until("ropewalk.source && ropewalk.source.readyState === 1");
    browser.until(
        "ropewalk.charts.every((chart) => chart.rows.size > 0) && document.querySelector('canvas.heat')",
    );
    browser.until("ropewalk.charts[0].recorded.slice(-4).every((n) => n > 0)");
    browser.until("[...ropewalk.charts[0].rows.values()].every((row) => row.total > 20)");
    pictured(&browser, "charts");

    // From client to file to latency: what fio writes, and fsync.
    browser.click(&row(0, second));
    let file = row(0, "/sync.0.0");
    browser.until(&file);
    browser.click(&file);
    browser.until(&row(0, "fsync"));
    assert_eq!(query(&browser, 0), format!("file.ops[client={second}][file=/sync.0.0][op]"));
    browser.click(&row(0, "fsync"));
    browser.until("document.querySelectorAll('article')[0].querySelector('canvas.heat')");
    let drilled = format!("file.ops[client={second}][file=/sync.0.0][op=fsync][latency]");
    assert_eq!(query(&browser, 0), drilled);
    // Its figures are those of the command line.
    let told = cluster.json(&["analytics", "query", &drilled, "--from", "-30s", "--to", "-2s"]);
    let (from, to) =
        (told["from_at_us"].as_u64().unwrap() / 1_000_000, told["to_at_us"].as_u64().unwrap() / 1_000_000);
    let shown = browser.js(&format!("return fetch('/api/query?step=0&from={from}&to={to}&q=' + encodeURIComponent({drilled:?})).then((answer) => answer.json())"));
    assert!(
        (shown["total"].as_f64().unwrap() - told["total"].as_f64().unwrap()).abs()
            <= told["total"].as_f64().unwrap() * 0.2 + 20.0,
        "{shown} {told}"
    );
    browser.key("\u{e003}"); // Backspace: out again
    browser.until("ropewalk.charts[0].query.endsWith('[op]')");
    browser.js("document.activeElement.blur()");
    pictured(&browser, "drilled");

    the_slow_pdisk(&browser, port);
    the_busy_pdisk(&browser, port);
    draws_fast_and_does_not_grow(&browser);

    // A worksheet of what is shown, by its link.
    browser
        .open(&format!("http://127.0.0.1:{port}/#q=file.ops%5Bop%5D&q=pdisk.commits%5Blatency%5D&span=60"));
    browser.until("ropewalk.charts.length === 2 && ropewalk.charts.every((chart) => chart.rows.size > 0)");
    let link = browser.js("ropewalk.pin(...ropewalk.window()); return location.href");
    ok(&["analytics", "worksheet", "save", "--dir", dir, "two", link.as_str().unwrap()]);
    assert_eq!(cluster.json(&["analytics", "worksheet", "list"])[0]["charts"][1], "pdisk.commits[latency]");
    // As a file, from which nothing is asked.
    let file = mounts.more.path().join("two.html");
    ok(&["analytics", "worksheet", "export", "two", "--dir", dir, "--out", file.to_str().unwrap()]);
    browser.open(&format!("file://{}", file.display()));
    browser.until(
        "ropewalk.charts.length === 2 && document.querySelectorAll('canvas.heat, .uplot').length === 2",
    );
    assert!(browser.text().contains("pdisk.commits[latency]"), "{}", browser.text());
    let loaded = browser.js("return performance.getEntriesByType('resource').map((entry) => entry.name)");
    assert_eq!(loaded.as_array().map(Vec::len), Some(0), "{loaded}");
    browser.drag("document.querySelector('canvas.heat')", (0.3, 0.4), (0.6, 0.6));
    browser.until("!document.getElementById('whole').hidden && ropewalk.shown[0] > ropewalk.whole[0]");
    pictured(&browser, "exported");
    browser.open(&format!("http://127.0.0.1:{port}/?again#worksheet=two"));
    browser.until("ropewalk.sheet === 'two' && ropewalk.pinned && ropewalk.charts[1].rows.size > 0");
    let bad = format!("http://127.0.0.1:{port}/?bad#q=file.opps&q=file.ops%5Bcolour%5D");
    browser.open(&bad);
    browser.until("document.querySelectorAll('.says.wrong').length === 2");
    assert!(browser.text().contains("possible: client, fs, file"), "{}", browser.text());
    assert!(browser.errors().iter().all(|error| error.contains("400")), "{:?}", browser.errors());

    as_if_live(&browser, dir, mounts.more.path());

    drop(loads);
    counted_as_by_fio(&browser, port, &mounts.at(1, "counted"));
    odd::names(&browser, port, &mounts.at(1, "odd"));

    gone::a_server(&browser, cluster, port);
    gone::the_manager(&browser, cluster, port);
}

/// What was recorded passes on the page as it did, where there is no cluster; a worksheet of it as a file.
fn as_if_live(browser: &Browser, dir: &str, place: &Path) {
    let file = place.join("span.rwhist");
    let file = file.to_str().unwrap();
    ok(&["analytics", "record", "--dir", dir, "--from", "-25s", "--out", file]);
    let nowhere = place.join("nowhere");
    let (_page, port) = serve_with(nowhere.to_str().unwrap(), &["--recording", file, "--speed", "3"]);
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

/// The heat map of what servers stored has two bands; the upper one, boxed and compared, is one pdisk's.
fn the_slow_pdisk(browser: &Browser, port: u16) {
    let of_n2 = the_slow_pdisk_of(browser, port, 140_000);
    // On a busy machine others are that slow at times.
    let share = of_n2.trim_start_matches("n2").split(' ').next().and_then(|share| share.parse::<u32>().ok());
    assert!(share > Some(50), "most slow ones are n2's: {of_n2}");
    pictured(browser, "compared");
    browser.click("document.querySelector('.into')");
    browser.until("ropewalk.charts[0].query.includes('[latency>=')");
}

/// Boxes what took that long, and compares; what the page says of n2.
fn the_slow_pdisk_of(browser: &Browser, port: u16, from_us: u32) -> String {
    browser
        .open(&format!("http://127.0.0.1:{port}/?slow#q=strip.ops%5Bop%3Dprepare%5D%5Blatency%5D&span=60"));
    let slow = format!(
        "[...ropewalk.charts[0].rows.values()].filter((row) => row.p50_us >= {from_us}).map((row) => row.bucket)"
    );
    browser.until(&format!(
        "ropewalk.charts[0]?.found && document.querySelector('canvas.heat') && {slow}.length > 0"
    ));
    // Pauses, so that nothing moves under the hand.
    browser.key(" ");
    browser.until("ropewalk.pinned && ropewalk.charts[0].times.at(-1) <= ropewalk.pinned[1]");
    // Where they begin, as a person sees it at the axis.
    let share = browser.js(&format!(
        "const heat = ropewalk.charts[0].drawer; return (22 + (heat.high - Math.min(...{slow}) + 0.5) * heat.size.row) / heat.size.height"
    ));
    browser.drag("document.querySelector('canvas.heat')", (0.1, 0.1), (0.98, share.as_f64().unwrap()));
    browser.until("document.querySelector('.band:not([hidden]) .against')");
    browser.click("document.querySelector('.against')");
    browser.until("document.querySelector('.compared .verdict')");
    let verdict = browser.js("return document.querySelector('.compared .verdict').textContent");
    let verdict = verdict.as_str().unwrap();
    println!("the page says of the slow ones: {verdict}");
    assert!(verdict.contains("pdisk pdisk2,") || verdict.contains("process n2"), "{verdict}");
    let of_n2 = "return [...document.querySelectorAll('.compared tr')].map((row) => row.textContent).find((row) => row.startsWith('n2')) ?? ''";
    browser.js(of_n2).as_str().unwrap_or_default().to_owned()
}

/// The heat map of utilisation, by the keyboard alone: up to its highest band, and into it.
fn the_busy_pdisk(browser: &Browser, port: u16) {
    browser.open(&format!("http://127.0.0.1:{port}/?busy#q=pdisk.utilisation%5Butilisation%5D&q=host.cpu_utilisation%5Butilisation%5D&span=60"));
    browser.until("ropewalk.charts.length === 2 && ropewalk.charts.every((chart) => chart.drawer?.high === 19 && chart.drawer.low === 0)");
    browser.until("[...ropewalk.charts[0].rows.values()].some((row) => row.bucket === 19 && row.total > 0)");
    pictured(browser, "utilisation");
    browser.js("document.querySelector('canvas.heat').focus()");
    browser.key("\u{e013}"); // up: to the highest band there is
    browser.until(
        "document.querySelector('.band:not([hidden]) strong').textContent === 'utilisation 95% to 100%'",
    );
    browser.js("document.querySelector('.band .into').focus()");
    browser.key("\u{e007}"); // Enter
    browser.until("ropewalk.charts[0].query === 'pdisk.utilisation[utilisation>=95%][pdisk]'");
    browser.until(
        "[...ropewalk.charts[0].rows.values()].sort((a, b) => b.total - a.total)[0]?.name === 'pdisk2'",
    );
}

/// A run of fio that ends: the page shows as many operations, and its latencies within a bucket of the histogram.
fn counted_as_by_fio(browser: &Browser, port: u16, file: &Path) {
    let output = Command::new("fio")
        .args([
            "--name=counted",
            "--rw=write",
            "--bs=16k",
            "--size=640k",
            "--fsync=1",
            "--output-format=json",
        ])
        .arg(format!("--filename={}", file.display()))
        .output()
        .unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (told, name) = (&told["jobs"][0], file.file_name().unwrap().to_str().unwrap());
    browser.open(&format!("http://127.0.0.1:{port}/?fio#q=file.ops%5Bfile%3D/{name}%5D%5Bop%5D&span=300"));
    let row = |op: &str| {
        format!("[...(ropewalk.charts[0]?.rows.values() ?? [])].find((row) => row.name === '{op}')")
    };
    let (syncs, writes) =
        (told["sync"]["total_ios"].as_f64().unwrap(), told["write"]["total_ios"].as_f64().unwrap());
    browser.until(&format!("{}?.total >= {syncs}", row("fsync")));
    let shown = |op: &str, of: &str| browser.js(&format!("return {}.{of}", row(op))).as_f64().unwrap();
    assert_eq!((shown("fsync", "total"), shown("write", "total")), (syncs, writes));
    for (percentile, of) in [("50.000000", "p50_us"), ("99.000000", "p99_us")] {
        let fio = told["sync"]["lat_ns"]["percentile"][percentile].as_f64().unwrap() / 1e3;
        let ours = shown("fsync", of);
        println!("fsync {of}: fio {fio:.0}, the page below {ours:.0}; {syncs} of them");
        // The end of a bucket, each at most half as long again as the one before. A sync of ours is a part of fio's, which also
        // waits for a CPU: so no longer than fio saw.
        assert!(0.0 < ours && ours <= fio * 1.5, "{of}: fio says {fio} us, the page below {ours} us");
    }
    // Nobody uses the file any more: the time goes on, and nothing is wrong with that.
    browser.js("globalThis.begun = ropewalk.newest; globalThis.wrong = 0; \
        new MutationObserver(() => { wrong += document.querySelectorAll('.says.wrong').length }).observe(document.body, { subtree: true, childList: true, attributes: true })");
    browser.until("ropewalk.newest >= begun + 6 && ropewalk.charts[0].times.at(-1) >= ropewalk.newest - 1");
    assert_eq!(browser.js("return wrong"), 0, "{}", browser.text());
}

/// A minute of 16 processes, as lines and as a heat map; and a day, with a new name every ten seconds.
fn draws_fast_and_does_not_grow(browser: &Browser) {
    let made = "const chart = ropewalk.charts[0]; ropewalk.stream = () => {}; ropewalk.source?.close(); const now = Math.floor(ropewalk.now()); \
        const found = (rows, axis, by) => ({query: chart.query, unit: 'operations', from_at_us: (now - 60) * 1e6, told_apart_percent: 100, processes: [], \
          chart: {statistic: 'file.ops', filters: [], breakdowns: [by], dimensions: ['process', 'latency'], recorded: Array(60).fill(1), axis, \
            starts: Object.fromEntries(Array.from({length: 62}, (_, n) => [n, n + 'us']))}, \
          rows: Array.from({length: rows}, (_, n) => ({key: {[by]: axis ? n + 'us' : 'process ' + n}, bucket: n, total: 60, p50_us: 1, p99_us: 2, most_us: 3, \
            steps: Array.from({length: 60}, (_, at) => (n * at) % 17)}))});";
    for (what, rows, axis, by) in [("lines", 16, "null", "process"), ("heat map", 60, "'latency'", "latency")]
    {
        let best = browser.js(&format!(
            "{made} ropewalk.pinned = [now - 60, now]; let best = Infinity; for (let n = 0; n < 20; n++) {{ chart.take(found({rows}, {axis}, '{by}'), 1); \
             chart.place.getBoundingClientRect(); best = Math.min(best, +chart.card.dataset.drawMs); }} return best"
        ));
        println!("60 s of 16 processes drawn as {what}: {best} ms");
        assert!(best.as_f64().unwrap() < 100.0, "{what}: {best} ms");
    }
    browser.js(&format!(
        "{made} ropewalk.pinned = null; chart.shown = () => {{}}; ropewalk.newest = now; chart.take(found(16, null, 'process'), 1)"
    ));
    // Ten seconds at a time, an hour at a time.
    let hour = || {
        browser.js(&format!(
            "{made} const begun = ropewalk.newest; for (let second = begun + 10; second <= begun + 3600; second += 10) {{ ropewalk.newest = second; \
               const told = found(2, null, 'process'); told.from_at_us = (second - 10) * 1e6; told.chart.recorded = Array(10).fill(1); \
               told.rows.forEach((row, n) => {{ row.steps = Array(10).fill(n + 1); row.key.process = n ? 'p' + second : 'p'; }}); chart.live(told); }} gc(); \
               return performance.memory.usedJSHeapSize"
        ))
        .as_f64()
        .unwrap()
    };
    let after = |hours: u32| (1..hours).fold(hour(), |_, _| hour());
    let (first, last) = (after(2), after(22));
    println!("heap of the page after two hours {:.1} MB, after a day {:.1} MB", first / 1e6, last / 1e6);
    assert!(last < first + 2e6, "the page grew from {first} to {last} bytes");
    let kept = browser.js(&format!(
        "{made} delete chart.shown; return [chart.times.length, chart.recorded.length, chart.rows.size, Math.max(...[...chart.rows.values()].map((row) => row.steps.length))]"
    ));
    println!("after a day of seconds with ever new names: {kept} (times, recorded, rows, steps)");
    let numbers: Vec<u64> = kept.as_array().unwrap().iter().filter_map(Value::as_u64).collect();
    assert!(
        numbers.len() == 4
            && numbers[0] <= 62
            && numbers[1] == numbers[0]
            && numbers[2] <= 200
            && numbers[3] == numbers[0],
        "{kept}"
    );
}

/// Only by this machine's names, only GET, nothing from elsewhere; bounds are told.
fn who_may_look(port: u16) {
    let (status, head, text) = http(port, "GET", "/", &[], "");
    assert!(
        status == 200 && head.to_lowercase().contains("content-security-policy: default-src 'none'"),
        "{head}"
    );
    for outside in ["http://", "https://", "style=", "onclick"] {
        assert!(!text.contains(outside), "the page must need nothing else: {outside}");
    }
    let status = |method: &str, path: &str, headers: &[(&str, &str)]| http(port, method, path, headers, "").0;
    assert_eq!(status("GET", "/api/statistics", &[("Host", "rope.example")]), 403);
    assert_eq!(status("GET", "/api/statistics", &[("Origin", "http://rope.example")]), 403);
    assert_eq!(status("POST", "/api/query", &[]), 405);
    assert_eq!(status("GET", "/api/nothing", &[]), 404);
    assert_eq!(status("GET", "/api/query?q=file.ops&from=5&to=3", &[]), 400);
    assert_eq!(status("GET", &format!("/api/live?{}", "q=file.ops&".repeat(17)), &[]), 429);
}

#[test]
fn a_page_for_others_wants_a_password() {
    let cluster = common::Cluster::three(&["--pdisk-size", "256m", "--block-size", "1m"]);
    let dir = cluster.dir();
    let dir = dir.to_str().unwrap();
    let said = refused(&["analytics", "serve", "--dir", dir, "--listen", "0.0.0.0:0"]);
    assert!(said.contains("ropewalk analytics password"), "{said}");
    let (page, port) = serve(dir);
    attacks::hold(port, page.0.id());
    drop(page);
    let password = ok(&["analytics", "password", "--dir", dir]);
    assert_eq!(password.trim().len(), 32);
    let kept = fs::read_to_string(cluster.dir().join("analytics.password")).unwrap();
    assert!(!kept.contains(password.trim()));
    let (_page, port) = serve(dir);
    let with = |password: &str| {
        let plain =
            Command::new("sh").args(["-c", "printf %s \"me:$0\" | base64 -w0", password]).output().unwrap();
        let said = format!("Basic {}", String::from_utf8(plain.stdout).unwrap());
        http(port, "GET", "/api/statistics", &[("Authorization", &said), ("Host", "any.name")], "").0
    };
    assert_eq!(http(port, "GET", "/", &[], "").0, 401);
    assert_eq!(with("wrong"), 401);
    assert_eq!(with(password.trim()), 200);
    by_tls(&cluster, dir, password.trim());
}

/// A machine's key without the public half that stands behind it, which OpenSSL 3.0 does not read (docs/security.md).
const FOR_OPENSSL: &str = "{ printf '\\060\\056\\002\\001\\000\\060\\005\\006\\003\\053\\145\\160\\004\\042\\004\\040'; \
     grep -v -- '---' \"$0\" | base64 -d | tail -c +17 | head -c 32; } | openssl pkey -inform DER -out \"$1\"";

/// Encrypted, by a certificate that is the page's own; let in are who has the password, and who shows a certificate of the
/// cluster that may give commands, as long as it is not shut out.
fn by_tls(cluster: &common::Cluster, dir: &str, password: &str) {
    let (_page, port) = serve_with(dir, &["--tls"]);
    let authority = cluster.dir().join("keys/page.crt");
    let curl = |options: &[&str]| {
        let output = Command::new("curl")
            .args(["-s", "--max-time", "20", "-o", "/dev/null", "-w", "%{http_code}", "--cacert"])
            .arg(&authority)
            .args(options)
            .arg(format!("https://127.0.0.1:{port}/api/statistics"))
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(curl(&[]), "401");
    assert_eq!(curl(&["-u", &format!("me:{password}")]), "200");
    // Who speaks no TLS holds up nobody.
    let _silent = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    assert_eq!(curl(&["-u", &format!("me:{password}")]), "200");

    let joined = tempfile::Builder::new().prefix("ropewalk-page-").tempdir().unwrap();
    for (role, name, answer) in [("client", "mounts", "401"), ("admin", "looks", "200")] {
        let token = ok(&["node", "token", "--dir", dir, "--role", role]);
        let token = token.split_whitespace().find(|word| word.len() > 100).unwrap().to_owned();
        let place = joined.path().join(name);
        ok(&["join", &token, "--dir", place.to_str().unwrap(), "--name", name]);
        let key = |file: &str| place.join("keys").join(file).display().to_string();
        let own = key("openssl.key");
        let made = Command::new("sh").args(["-c", FOR_OPENSSL, &key("machine.key"), &own]).status().unwrap();
        assert!(made.success());
        let shows = ["--cert", &key("machine.crt"), "--key", &own];
        assert_eq!(curl(&shows), answer, "{role}");
        ok(&["node", "revoke", "--dir", dir, name]);
        assert_eq!(curl(&shows), "401", "{role}, shut out");
    }
    // The same certificate the next time.
    let before = fs::read(&authority).unwrap();
    let (_page, _) = serve_with(dir, &["--tls"]);
    assert_eq!(fs::read(&authority).unwrap(), before);
}

/// The two investigations of docs/analytics.md, on a cluster of this machine, with their pictures:
/// `cargo test -p ropewalk-cli --test page investigations -- --ignored` puts them into docs/pictures.
#[test]
#[ignore = "makes the pictures of the documentation; a minute"]
fn investigations() {
    let mounts = Mounts::in_memory(1);
    let cluster = &mounts.cluster;
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures");
    fs::create_dir_all(&place).unwrap();
    let (_page, port) = serve(cluster.dir().to_str().unwrap());
    let browser = Browser::start();
    browser.size(1000, 560);
    let show = |of: &str, queries: &[&str], span: u32| {
        let queries: Vec<String> = queries
            .iter()
            .map(|q| format!("q={}", q.replace('[', "%5B").replace(']', "%5D").replace('=', "%3D")))
            .collect();
        browser.open(&format!("http://127.0.0.1:{port}/?{of}#{}&span={span}", queries.join("&")));
        // A page that has no charts yet must not be paused: it would forget which it was to show.
        let count = queries.len();
        browser.until(&format!(
            "ropewalk.charts.length === {count} && ropewalk.charts.every((chart) => chart.rows.size > 0)"
        ));
    };
    let picture = |name: &str| {
        let path = place.join(name);
        browser.picture(&path);
        let bytes = fs::metadata(&path).unwrap().len();
        println!("{name}: {bytes} bytes");
        assert!(bytes < 150_000, "{name} has {bytes} bytes");
    };

    // Sequential reads by block size.
    let file = mounts.at(0, "seq");
    let file = file.to_str().unwrap();
    ok(&["perf", "create", "seq", file, "-r", "1m", "-n", "64m", "-fsync"]);
    std::thread::sleep(Duration::from_secs(3)); // so that the time shown begins with the reads
    for record in ["16k", "64k", "256k", "1m"] {
        let end = std::time::Instant::now() + Duration::from_secs(8);
        while std::time::Instant::now() < end {
            ok(&["perf", "read", "seq", file, "-r", record, "-dio"]);
        }
    }
    show("sizes", &["file.bytes[op=read][size]", "process.cpu_us[process]"], 40);
    browser.size(840, 860);
    std::thread::sleep(Duration::from_millis(400)); // it draws anew a moment after its size has changed
    browser.key(" ");
    browser.until("ropewalk.pinned && ropewalk.charts.every((chart) => chart.rows.size > 1)");
    // Down to the names of the lines.
    let height = browser.js("return document.documentElement.scrollHeight").as_u64().unwrap();
    browser.size(840, u32::try_from(height).unwrap());
    std::thread::sleep(Duration::from_millis(400));
    picture("reads-by-size.png");
    browser.size(1000, 560);

    // Synchronous writes; on the way one pdisk becomes slow.
    let log = mounts.at(0, "log");
    let write = |seconds: u64| {
        let runtime = format!("--runtime={seconds}");
        let filename = format!("--filename={}", log.display());
        let fio = [
            "--name=log",
            "--rw=randwrite",
            "--bs=4k",
            "--size=4m",
            "--fdatasync=1",
            "--time_based",
            &runtime,
            &filename,
        ];
        assert!(Command::new("fio").args(fio).stdout(Stdio::null()).status().unwrap().success());
    };
    write(20);
    cluster.kill(|name| name == "n2");
    cluster.start_server_with("n2", &[("ROPEWALK_PDISK_FAULT", "delay 40ms on=write")]);
    cluster.wait_all_ok(Duration::from_secs(60));
    write(20);
    show("step", &["file.ops[op=fsync][latency]", "file.ops[op]"], 60);
    browser.key(" ");
    browser.until("ropewalk.pinned && ropewalk.charts.every((chart) => chart.rows.size > 1)");
    picture("latency-step.png");
    the_slow_pdisk_of(&browser, port, 40_000);
    browser.size(1000, 640);
    std::thread::sleep(Duration::from_millis(400)); // it draws anew a moment after its size has changed
    picture("compared.png");
}
