//! What comes out of the browser's printer: PDF files, read by a few lines of Python that follow the format's description.

use std::{path::Path, process::Command};

use serde_json::Value;

use super::{browser::Browser, pictures};

/// A4, in points, and how much a page's edge may differ from it.
const PAPER: (f64, f64, f64) = (595.3, 841.9, 1.0);

/// How high a chart is, in points.
const CHART: (f64, f64) = (80.0, 400.0);
/// A4 between its margins, in pixels of the page.
const WIDE: u64 = 718;
/// Notes how it was laid out for the printer, behind what the page itself does then.
const WATCH: &str = "addEventListener('beforeprint', () => { globalThis.printed = { paper: getComputedStyle(document.body).backgroundColor, \
    wide: [...document.querySelectorAll('main:not([hidden]) canvas')].map((canvas) => canvas.clientWidth) } }, { once: true })";

/// The heads of all columns.
const COLUMNS: &str =
    "return [...document.querySelectorAll('main:not([hidden]) th')].map((head) => head.textContent)";

fn pages(file: &Path) -> Vec<Value> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/pdf.py");
    let output = Command::new("python3").arg(script).arg(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Prints what is shown: these texts stand on it, so many charts, and nothing reaches over the edge of the paper.
pub fn on_paper(browser: &Browser, name: &str, charts: usize, texts: &[&str]) {
    let file = pictures().join(format!("{name}.pdf"));
    // Who looks at it in dark; what the printer gets is light, and drawn for paper.
    browser.scheme("dark", "");
    browser.js(WATCH);
    browser.print(&file);
    let seen = browser.js("return globalThis.printed");
    assert_eq!(seen["paper"], "rgb(255, 255, 255)", "{name}: {seen}");
    let wide: Vec<u64> = seen["wide"].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
    assert!(wide.len() == charts && wide.iter().all(|wide| (1..=WIDE).contains(wide)), "{name}: {seen}");
    browser.scheme("light", "screen");
    let pages = pages(&file);
    let all: String = pages.iter().map(|page| page["text"].as_str().unwrap()).collect();
    let mut drawn = 0;
    for (number, page) in pages.iter().enumerate() {
        let size = (page["width"].as_f64().unwrap(), page["height"].as_f64().unwrap());
        assert!((size.0 - PAPER.0).abs() < PAPER.2 && (size.1 - PAPER.1).abs() < PAPER.2, "{name}: {size:?}");
        assert_eq!(page["unseen"], serde_json::json!([]), "{name}, page {number}: cut off");
        let is_chart = |drawing: &&Value| {
            let [left, bottom, right, top] = [0, 1, 2, 3].map(|at| drawing[at].as_f64().unwrap());
            assert!(
                left >= 0.0 && bottom >= 0.0 && right <= size.0 && top <= size.1,
                "{name}, page {number}: {drawing}"
            );
            right - left > size.0 / 2.0 && (CHART.0..CHART.1).contains(&(top - bottom))
        };
        drawn += page["drawings"].as_array().unwrap().iter().filter(is_chart).count();
    }
    assert!(
        !pages.is_empty() && drawn >= charts,
        "{name}: {} pages, {drawn} charts of {charts}",
        pages.len()
    );
    // Two letters that are one glyph.
    let all = all.replace('\u{fb01}', "fi").replace('\u{fb02}', "fl");
    // What would stand beyond the paper is not in the file at all: so every column is looked for.
    let columns = browser.js(COLUMNS);
    let columns = columns.as_array().unwrap().iter().map(|text| text.as_str().unwrap());
    for text in texts.iter().copied().chain(columns) {
        let plain: String = text.split_whitespace().collect();
        assert!(all.contains(&plain), "{name}: {text} does not stand in: {all}");
    }
    // It is as it was.
    browser.until("!document.documentElement.classList.contains('paper')");
}
