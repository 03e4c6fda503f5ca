//! Marks on the time axis: a cell of the lab, a node that is lost, a rebuild; read from the pixels of the charts.

use std::fs;

use serde_json::Value;

use super::{
    browser::{Browser, http},
    common::{Cluster, ok, until},
    pictured, serve,
};

/// Colours of the marks' colour in the uppermost rows of a chart, and how its times lie: `[columns, [x of each time of `at`], what the page has]`.
/// A mark is a triangle there, of seven columns and more. Paper is transparent there: what is faint has the same colour as the marks, and is none of
/// them (the time that a mark lasts is such a band).
const COLUMNS: &str = "
    const drawer = ropewalk.charts[chart].drawer, canvas = drawer.canvas ?? drawer.plot.ctx.canvas;
    const top = drawer.canvas ? 22 : Math.round(drawer.plot.bbox.top);
    const x = (at) => drawer.canvas ? drawer.x(at) : drawer.plot.valToPos(at, 'x', true);
    const wanted = getComputedStyle(document.documentElement).getPropertyValue('--mark').match(/[0-9a-f]{2}/gi).map((two) => parseInt(two, 16));
    const row = canvas.getContext('2d').getImageData(0, top + 1, canvas.width, 1).data;
    const columns = [];
    const solid = (n) => row[4 * n + 3] > 127;
    for (let n = 0; n < canvas.width; n++) if (solid(n) && wanted.every((value, of) => Math.abs(row[4 * n + of] - value) <= 3)) columns.push(n);
    return [columns, at.map(x), [canvas.width, drawer.plot?.width, ropewalk.window(), ropewalk.marks()]];";

/// Whether just these times (microseconds since 1970) are marked in a chart; else what is otherwise.
fn marked(browser: &Browser, chart: usize, marks: &[(i64, String)]) -> Result<(), String> {
    let at: Vec<f64> = marks.iter().map(|(us, _)| *us as f64 / 1e6).collect();
    let told = browser.js(&format!("const chart = {chart}, at = {at:?};{COLUMNS}"));
    let numbers = |of: &Value| of.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect::<Vec<_>>();
    let (columns, places) = (numbers(&told[0]), numbers(&told[1]));
    for (place, (_, text)) in places.iter().zip(marks) {
        let near = columns.iter().filter(|column| (*column + 0.5 - place).abs() < 3.0).count();
        if near < 4 {
            return Err(format!("chart {chart}: no mark at {place} for {text}: {columns:?}, {}", told[2]));
        }
    }
    match columns.iter().find(|column| places.iter().all(|place| (*column + 0.5 - place).abs() > 5.0)) {
        Some(odd) => Err(format!(
            "chart {chart}: a mark at {odd}, and they are at {places:?}: {columns:?}, {}",
            told[2]
        )),
        None => Ok(()),
    }
}

/// Under the mouse a mark of each kind of chart says what happened.
fn says_what_they_are(browser: &Browser, marks: &[(i64, String)]) {
    let (at, text) = marks.iter().find(|(_, text)| text.contains("server n4 ")).unwrap();
    for chart in [0, 1] {
        let place = browser.js(&format!(
            "const at = [{}], chart = {chart}; scrollTo(0, 0); const found = (() => {{ {COLUMNS} }})(); \
             const box = canvas_of(chart).getBoundingClientRect(); return [box.left + found[1][0], box.top + box.height / 2]; \
             function canvas_of(n) {{ const drawer = ropewalk.charts[n].drawer; return drawer.canvas ?? drawer.plot.ctx.canvas; }}",
            *at as f64 / 1e6
        ));
        let (x, y) = (place[0].as_f64().unwrap(), place[1].as_f64().unwrap());
        let tip = format!(
            "return [...document.querySelectorAll('.tip')].some((tip) => !tip.hidden && tip.textContent.includes({text:?}) && tip.getBoundingClientRect().right <= innerWidth)"
        );
        // What is drawn anew meanwhile hears only of a mouse that moves.
        until(text, || {
            browser.hover(x, y + 5.0);
            browser.hover(x, y);
            browser.js(&tip) == true
        });
    }
}

#[test]
fn a_cell_of_the_lab_a_lost_node_and_a_rebuild_stand_on_the_time_axis() {
    let cluster = Cluster::up(&[
        "--nodes",
        "4",
        "--pdisks",
        "1",
        "--code",
        "2+1p",
        "--pdisk-size",
        "256m",
        "--block-size",
        "256k",
    ]);
    let (dir, mnt) = (cluster.dir(), cluster.mnt());
    let (dir, mnt) = (dir.to_str().unwrap(), mnt.to_str().unwrap());
    ok(&["config", "set", "--dir", dir, "missingRebuildDelay=1s"]);
    let place = tempfile::Builder::new().prefix("ropewalk-marks-").tempdir().unwrap();
    let (plan, out) = (place.path().join("marks.toml"), place.path().join("out"));
    fs::write(
        &plan,
        "name = 'marks'\ntitle = 'a small plan'\nstep = 'nodes'\nsteps = [1]\nseconds = 0.5\nrepeats = 1\n\
         [[series]]\nname = 'w'\nengine = 'perf'\nfigure = 'operations'\n\
         set = { operation = 'create', pattern = 'seq', record = '256k', amount = '8m' }\n",
    )
    .unwrap();
    let (plan, out) = (plan.to_str().unwrap(), out.to_str().unwrap());
    ok(&["lab", "run", plan, "--out", out, "--cluster", dir, "--writable", mnt]);
    fs::write(cluster.mnt().join("kept"), vec![7; 4 << 20]).unwrap();

    // The cell, on its worksheet; the time shown goes on into the future, and nothing is loaded anew meanwhile.
    let (_page, port) = serve(dir);
    let report: Value = serde_json::from_str(&ok(&["lab", "report", out, "--format", "json"])).unwrap();
    let seen = report["plans"][0]["series"][0]["seen"].as_object().unwrap();
    let address = seen.values().next().unwrap().as_str().unwrap();
    let (_, worksheet) = address.split_once('#').unwrap();
    let (worksheet, _) = worksheet.split_once("&from=").unwrap();
    let sheet = &cluster.json(&["analytics", "worksheet", "list"])[0];
    let cell = &sheet["marks"][0];
    let begun = cell["from_at_us"].as_i64().unwrap();
    // One measured again has another mark.
    let cells = sheet["marks"].as_array().unwrap().iter();
    let cells: Vec<_> = cells
        .map(|of| (of["from_at_us"].as_i64().unwrap(), of["text"].as_str().unwrap().to_owned()))
        .collect();
    let (from, to) = (begun / 1_000_000 - 20, begun / 1_000_000 + 280);
    let browser = Browser::start();
    browser.open(&format!("http://127.0.0.1:{port}/#{worksheet}&from={from}&to={to}"));
    browser.until("ropewalk.charts.length === 4");
    // Who does not answer in time is in no chart, and where the time is fixed no chart is loaded anew by itself.
    until("all charts have something to show", || {
        let loaded = "return Promise.all(ropewalk.charts.filter((chart) => chart.rows.size === 0).map((chart) => chart.load())) \
                      .then(() => ropewalk.charts.every((chart) => chart.rows.size > 0))";
        browser.js(loaded) == true
    });
    // What the manager tells, asked for beside the page, and the cell.
    let marks = || {
        let mut events = Value::Null;
        until("the manager is heard", || {
            events = serde_json::from_str(&http(port, "GET", "/api/events", &[], "").2).unwrap();
            events.is_array()
        });
        let mut marks = cells.clone();
        for event in events.as_array().unwrap() {
            let at = event["at_us"].as_i64().unwrap();
            if at > from * 1_000_000 && at < to * 1_000_000 {
                marks.push((at, event["text"].as_str().unwrap().to_owned()));
            }
        }
        marks
    };
    let drawn = || {
        // Events may be told between the two questions: then the page learns of them next time.
        until("the charts have just the marks that there are", || {
            browser.js("return ropewalk.refreshEvents()");
            let marks = marks();
            let wrong = (0..4).find_map(|chart| marked(&browser, chart, &marks).err());
            wrong.inspect(|wrong| println!("{wrong}")).is_none()
        });
    };
    drawn();
    // A busy machine takes long for a cell: its time is a band then, and no mark but where it begins.
    let long = |seconds: u32| {
        browser.js(&format!(
            "ropewalk.given.forEach((mark) => {{ mark.to = mark.from + {seconds} }}); ropewalk.redraw()"
        ));
        drawn();
    };
    [2, 5, 60].into_iter().for_each(long);

    cluster.kill(|name| name == "n4");
    let told = |what: &str| marks().iter().any(|(_, text)| text.contains(what));
    until("the node is lost", || told("server n4 "));
    until("the rebuild has begun", || told("strips of groups are to move"));
    until("the rebuild has ended", || told("strips of groups have moved"));
    drawn();
    says_what_they_are(&browser, &marks());
    // It tells of the newest three, cells after events: a cell that was measured again, or what happened since, comes before a rebuild.
    browser.until(
        "ropewalk.marks().some((mark) => mark.text.includes('strips of groups have moved')) && \
         ropewalk.marks().slice(-3).every((mark) => document.getElementById('status').textContent.includes(mark.text))",
    );
    pictured(&browser, "marks");
}
