//! How the lab's report is laid out in a real browser: on a screen and on a phone, light and dark, and on paper. Nothing reaches
//! beyond its edge, and the first screen says in one sentence what the limit is.
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

use std::{path::Path, process::Command};

use serde_json::Value;

use super::browser::Browser;

/// What the browser found: how far the page is wider than what is shown; what sticks out of it though it is not within a box that
/// scrolls by itself; the first sentence, where it stands, and how its colour differs from what is behind it.
const LOOK: &str = "
    const wide = document.documentElement.clientWidth;
    const out = [...document.querySelectorAll('body *')].filter((one) => {
        const box = one.getBoundingClientRect();
        return box.width > 0 && (box.right > wide + 1 || box.left < -1) && !one.closest('.wide') && !one.closest('svg');
    }).map((one) => one.outerHTML.slice(0, 120));
    const first = document.querySelector('ul.found li');
    const box = first.getBoundingClientRect();
    const shade = (text) => text.match(/[0-9.]+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0) / 3;
    return { over: document.documentElement.scrollWidth - wide, out, text: first.innerText, top: box.top, bottom: box.bottom,
        high: innerHeight, wide, box: box.width, letters: parseFloat(getComputedStyle(first).fontSize),
        contrast: Math.abs(shade(getComputedStyle(first).color) - shade(getComputedStyle(document.body).backgroundColor)),
        paper: shade(getComputedStyle(document.body).backgroundColor) }";

/// Looks at a report. Pictures of what was seen stay in `target/lab-pages` under this name.
pub fn laid_out(page: &Path, name: &str) {
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lab-pages");
    std::fs::create_dir_all(&pictures).unwrap();
    let browser = Browser::start();
    for (scheme, device, width, height) in [
        ("light", "screen", 1280, 900),
        ("dark", "screen", 1280, 900),
        ("light", "phone", 390, 844),
        ("dark", "phone", 390, 844),
        ("light", "small-phone", 320, 640),
    ] {
        browser.size(width, height);
        browser.scheme(scheme, "screen");
        browser.open(&format!("file://{}", page.display()));
        let seen = browser.js(LOOK);
        let at = format!("{name}, {device}, {scheme}: {seen}");
        let number = |key: &str| seen[key].as_f64().unwrap();
        assert!(
            number("over") <= 0.0 && seen["out"].as_array().unwrap().is_empty(),
            "wider than it may be: {at}"
        );
        assert_eq!(number("wide"), f64::from(width), "{at}");
        assert!(seen["text"].as_str().unwrap().contains(": "), "no sentence: {at}");
        assert!(
            number("top") >= 0.0
                && number("bottom") <= number("high")
                && number("box") > f64::from(width) / 2.0,
            "the sentence is not on the first screen: {at}"
        );
        assert!(number("contrast") > 100.0 && number("letters") >= 12.0, "the sentence cannot be read: {at}");
        assert_eq!(number("paper") > 128.0, scheme == "light", "{at}");
        browser.picture(&pictures.join(format!("{name}-{device}-{scheme}.png")));
    }
    on_paper(&browser, &pictures.join(format!("{name}.pdf")));
    assert!(browser.errors().is_empty(), "{name}: {:?}", browser.errors());
}

/// Prints what is shown, though who looks at it has dark colours: nothing is cut off, and the sentence is on the first page.
fn on_paper(browser: &Browser, file: &Path) {
    browser.size(1280, 900);
    browser.scheme("dark", "print");
    let paper = browser.js("return getComputedStyle(document.body).backgroundColor");
    assert_eq!(paper, "rgb(255, 255, 255)", "{}: paper is white", file.display());
    browser.scheme("dark", "");
    let sentence = browser.js("return document.querySelector('ul.found li').innerText");
    let heads =
        browser.js("return [...document.querySelectorAll('h2, h3, th')].map((head) => head.textContent)");
    browser.print(file);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/pdf.py");
    let output = Command::new("python3").arg(script).arg(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let pages: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    // Letters that are one glyph.
    const LIGATURES: [(char, &str); 5] = [
        ('\u{fb00}', "ff"),
        ('\u{fb01}', "fi"),
        ('\u{fb02}', "fl"),
        ('\u{fb03}', "ffi"),
        ('\u{fb04}', "ffl"),
    ];
    let text = |page: &Value| {
        let all = page["text"].as_str().unwrap().to_owned();
        LIGATURES.iter().fold(all, |all, (one, letters)| all.replace(*one, letters))
    };
    let plain = |text: &Value| text.as_str().unwrap().split_whitespace().collect::<String>();
    assert!(
        text(&pages[0]).contains(&plain(&sentence)),
        "{sentence} is not on the first page: {}",
        text(&pages[0])
    );
    let all: String = pages.iter().map(text).collect();
    for (number, page) in pages.iter().enumerate() {
        assert_eq!(page["unseen"], serde_json::json!([]), "{}, page {number}: cut off", file.display());
    }
    // What would stand beyond the paper is not in the file at all: so every head is looked for.
    for head in heads.as_array().unwrap() {
        assert!(all.contains(&plain(head)), "{}: {head} is not printed: {all}", file.display());
    }
}
