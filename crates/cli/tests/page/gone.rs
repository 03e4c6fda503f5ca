//! What the page shows of a server and of the manager when they are gone: a gap, and no zero.

use serde_json::Value;

use super::{
    browser::Browser,
    common::{Cluster, until},
    pictured, print,
};

/// The figures of a row of the first chart.
fn steps(of: &str) -> String {
    format!("[...ropewalk.charts[0].rows.values()].find((row) => row.name === '{of}').steps")
}

/// A server that is gone: named in the charts, red with what to do in the view of the hardware.
pub fn a_server(browser: &Browser, cluster: &Cluster, port: u16) {
    cluster.kill(|name| name == "n2");
    // What it did before has to be in the time shown for as long as this takes, on a busy machine more than a minute.
    browser.open(&format!("http://127.0.0.1:{port}/?gone#q=pdisk.ops%5Bprocess%5D&q=pdisk.ops%5Bprocess%3Dn2%5D%5Blatency%5D&span=300"));
    browser.until("document.querySelector('.says.wrong')?.textContent.includes('n2')");
    // Its line ends there, while the others' go on: a gap, and no zero.
    browser.until(&format!("{}.slice(-5).every((n) => n === null)", steps("n2")));
    browser.until(&format!("{}.slice(-8, -4).every((n) => n !== null)", steps("n1")));
    browser.until("ropewalk.charts[1].recorded.slice(-5).every((n) => n === 0) && ropewalk.charts[1].recorded.some((n) => n > 0)");
    pictured(browser, "gap");
    browser.click("document.getElementById('view-hardware')");
    browser.until("[...document.querySelectorAll('#hardware td.bad')].some((cell) => cell.textContent === 'does not answer')");
    browser.until("[...document.querySelectorAll('#hardware li button')].some((button) => button.textContent.includes('ropewalk serve --name n2'))");
    pictured(browser, "hardware");
    print::on_paper(
        browser,
        "hardware",
        0,
        &["What is wrong, and what to do", "Groups and their members", "does not answer"],
    );
}

/// A manager that is gone: the page goes on without it, every second of the others is there, and its own line has a gap until it is
/// back; the command line says the same.
pub fn the_manager(browser: &Browser, cluster: &Cluster, port: u16) {
    browser.open(&format!("http://127.0.0.1:{port}/?manager#q=process.cpu_us%5Bprocess%5D&span=300"));
    browser.until(&format!("{}.slice(-4).every((n) => n !== null)", steps("manager")));
    cluster.kill(|name| name == "manager");
    browser.until("document.querySelector('.says.wrong')?.textContent.includes('manager')");
    browser.until(&format!("{}.slice(-5).every((n) => n === null)", steps("manager")));
    // Asked for anew it is the same: what it had recorded is there.
    browser.js("return ropewalk.charts[0].load()");
    let gone =
        format!("{0}.slice(-5).every((n) => n === null) && {0}.some((n) => n !== null)", steps("manager"));
    browser.until(&gone);
    let going_on = format!("{}.slice(-25, -3).every((n) => n !== null)", steps("n1"));
    browser.until(&going_on);
    browser.js("return ropewalk.refreshEvents()");
    browser.until("document.getElementById('status').textContent.includes('ask the manager')");
    browser.until("document.querySelector('.says.wrong').textContent.includes('in the sums is what it had recorded: manager')");
    pictured(browser, "manager");
    cluster.start_server("manager");
    let back = |steps: &str| {
        format!(
            "(() => {{ const known = {steps}; const gap = known.lastIndexOf(null); return gap > 0 && gap < known.length - 3 && known.slice(0, gap).some((n) => n !== null); }})()"
        )
    };
    browser.until(&back(&steps("manager")));
    browser.js("return ropewalk.refreshEvents()");
    browser.until("!document.getElementById('status').classList.contains('wrong')");
    // What is wrong for another reason stays. A manager that is late with its answer is said in its place.
    until("what is wrong for another reason stays", || {
        browser.js(
            "ropewalk.says('something else', true); return ropewalk.refreshEvents().then(() => document.getElementById('status').textContent)",
        ) == "something else"
    });
    // Pictures may take a while.
    let query = ["analytics", "query", "process.cpu_us[process=manager]", "--from", "-290s", "--step", "1s"];
    until("recorded, then not, then again", || {
        let told = cluster.json(&query);
        let steps = told["rows"][0]["steps"].as_array().cloned().unwrap_or_default();
        let steps: Vec<bool> = steps.iter().map(Value::is_null).collect();
        steps.iter().skip_while(|gap| **gap).skip_while(|gap| !**gap).any(|gap| !*gap)
    });
}
