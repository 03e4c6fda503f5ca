//! The page of `analytics serve` in a real browser, while `perf` and fio work on two mounts: from client to file to
//! latency; the one pdisk that is slow, found by the page alone; what a server that is gone looks like; who may look.
//! Pictures of every view go to `target/page-pictures`, or where ROPEWALK_PAGE_PICTURES says: they are to be looked at.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails; what is measured is printed

#[path = "page/access.rs"]
mod access;
#[path = "page/attacks.rs"]
mod attacks;
#[path = "common/beds.rs"]
mod beds;
#[path = "common/browser.rs"]
mod browser;
mod common;
#[path = "page/counted.rs"]
mod counted;
#[path = "page/drawing.rs"]
mod drawing;
#[path = "common/fio.rs"]
mod fio;
#[path = "page/gone.rs"]
mod gone;
#[path = "common/hosts.rs"]
mod hosts;
#[path = "page/investigations.rs"]
mod investigations;
#[path = "page/machines.rs"]
mod machines;
#[path = "page/marks.rs"]
mod marks;
#[path = "common/mounts.rs"]
mod mounts;
#[path = "page/odd.rs"]
mod odd;
#[path = "page/print.rs"]
mod print;
#[path = "page/process.rs"]
mod process;
#[path = "page/sheets.rs"]
mod sheets;
#[path = "page/slow.rs"]
mod slow;

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use browser::Browser;
use common::{ROPEWALK, until};
use mounts::Mounts;

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
        println!("{name} {form}");
        // It draws anew a moment after its size has changed: nothing is wider than the window then.
        let (outer, light) = (size.0, form != "dark");
        browser.until(&format!("document.documentElement.scrollWidth <= {outer}"));
        // A filter's chip shows by what it is taken away.
        let crosses = "[...document.querySelectorAll('main:not([hidden]) .chip')].every((chip) => { const [a, b] = [chip, chip.querySelector('.cross')].map((of) => of.getBoundingClientRect()); return b.width > 0 && b.right <= a.right && a.right <= innerWidth; })";
        if media != "print" {
            browser.until(crosses);
        }
        browser.until(&format!(
            "(getComputedStyle(document.body).backgroundColor === 'rgb(255, 255, 255)') === {light}"
        ));
        std::thread::sleep(Duration::from_millis(250)); // for the picture alone
        browser.js(settle);
        browser.picture(&place.join(format!("{name}-{form}.png")));
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
    cluster.wait_all_ok(Duration::from_secs(120));
    let (_page, port) = serve(dir);
    access::who_may_look(port);

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
        "--runtime=3000", // longer than this test takes
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
    print::on_paper(
        &browser,
        "charts",
        4,
        &["file.ops[client]", "file.ops[latency]", "file.bytes[file]", "strip.ops[pdisk]"],
    );

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
    // Its figures are those of the command line. The mount may be late with its last seconds between the two questions.
    until("the page and the command line say the same", || {
        let told = cluster.json(&["analytics", "query", &drilled, "--from", "-30s", "--to", "-2s"]);
        let seconds = |name: &str| told[name].as_u64().unwrap() / 1_000_000;
        let (from, to) = (seconds("from_at_us"), seconds("to_at_us"));
        let shown = browser.js(&format!("return fetch('/api/query?step=0&from={from}&to={to}&q=' + encodeURIComponent({drilled:?})).then((answer) => answer.json())"));
        let told = told["total"].as_f64().unwrap();
        shown["total"].as_f64().is_some_and(|shown| (shown - told).abs() <= told * 0.2 + 20.0)
    });
    browser.key("\u{e003}"); // Backspace: out again
    browser.until("ropewalk.charts[0].query.endsWith('[op]')");
    browser.js("document.activeElement.blur()");
    pictured(&browser, "drilled");

    slow::pdisk(&browser, port);
    slow::busy_pdisk(&browser, port);
    drawing::draws_fast_and_does_not_grow(&browser);

    sheets::by_link(&browser, cluster, port, mounts.more.path());
    sheets::as_if_live(&browser, dir, mounts.more.path());

    drop(loads);
    let clients = cluster.json(&["clients", "list"]);
    let of_second = clients.as_array().unwrap().iter().find(|client| client["mount"] == second).unwrap();
    counted::as_by_fio(&browser, port, &mounts.at(1, "counted"), of_second["pid"].as_u64().unwrap());
    odd::names(&browser, port, &mounts.at(1, "odd"));

    gone::a_server(&browser, cluster, port);
    gone::the_manager(&browser, cluster, port);
}
