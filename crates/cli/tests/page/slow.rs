//! The one pdisk that is slow, found by the page alone.

use super::{browser::Browser, pictured};

/// The heat map of what servers stored has two bands; the upper one, boxed and compared, is one pdisk's.
pub fn pdisk(browser: &Browser, port: u16) {
    // On a busy machine others are that slow at times, and who answers late is not in the sums. A page that compared wrongly would do so
    // each time.
    let is_found = (0..3).any(|_| pdisk_of(browser, port, 140_000) > Some(50));
    assert!(is_found, "most slow ones are n2's: {}", browser.text());
    pictured(browser, "compared");
    browser.click("document.querySelector('.into')");
    browser.until("ropewalk.charts[0].query.includes('[latency>=')");
}

/// Boxes what took that long, and compares; what share of it the page says to be n2's, if it names that as what they have in common.
pub fn pdisk_of(browser: &Browser, port: u16, from_us: u32) -> Option<u32> {
    browser.open("about:blank"); // a page that is there already would only be turned to another time
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
    // What was asked for then is drawn.
    browser.js("return ropewalk.charts[0].load()");
    // Where they begin, as a person sees it at the axis.
    let share = browser.js(&format!(
        "const heat = ropewalk.charts[0].drawer; return (22 + (heat.high - Math.min(...{slow}) + 0.5) * heat.size.row) / heat.size.height"
    ));
    browser.drag("document.querySelector('canvas.heat')", (0.1, 0.1), (0.98, share.as_f64().unwrap()));
    browser.until("document.querySelector('.band:not([hidden]) .against')");
    browser.click("document.querySelector('.against')");
    // The verdict, or why there is none.
    browser.until("document.querySelector('.compared .verdict, .compared .wrong')");
    let verdict =
        browser.js("return document.querySelector('.compared .verdict, .compared .wrong').textContent");
    let verdict = verdict.as_str().unwrap();
    let of_n2 = "return [...document.querySelectorAll('.compared tr')].map((row) => row.textContent).find((row) => row.startsWith('n2')) ?? ''";
    let of_n2 = browser.js(of_n2);
    let of_n2 = of_n2.as_str().unwrap_or_default();
    println!("the page says of the slow ones: {verdict} {of_n2}");
    if !verdict.contains("pdisk pdisk2,") && !verdict.contains("process n2") {
        return None;
    }
    of_n2.trim_start_matches("n2").split(' ').next()?.parse().ok()
}

/// The heat map of utilisation, by the keyboard alone: up to its highest band, and into it.
pub fn busy_pdisk(browser: &Browser, port: u16) {
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
