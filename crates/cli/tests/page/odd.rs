//! Names of any bytes on the page.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt, path::Path};

use serde_json::Value;

use super::{browser::Browser, common::until, pictured};

/// Names that look like something else, or like nothing: text on the page, and each finds itself again.
pub fn names(browser: &Browser, port: u16, directory: &Path) {
    fs::create_dir(directory).unwrap();
    let long = [b'l'; 255];
    let names: [&[u8]; 8] = [
        b"a\nb]",
        b"[op=read]",
        b"=,;|\"",
        b"\\x0a",
        b"\xff\xfe\x1b[2J",
        b"<img src=x onerror=alert(1)>",
        b" a ",
        &long,
    ];
    for name in names {
        fs::write(directory.join(OsStr::from_bytes(name)), "x").unwrap();
    }
    browser.open(&format!(
        "http://127.0.0.1:{port}/?odd#q=file.ops%5Bop%3Dwrite%5D%5Bdirectory%3D/odd%5D%5Bfile%5D&span=300"
    ));
    // What there was before is of a page whose process has ended.
    browser.errors();
    let count = names.len();
    browser.until(&format!("ropewalk.charts[0].rows.size === {count} && document.querySelectorAll('article button.row').length === {count}"));
    let shown = browser.js("return [...ropewalk.charts[0].rows.values()].map((row) => row.name)");
    let shown: Vec<&str> = shown.as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert!(shown.iter().all(|name| !name.contains(char::is_control)), "{shown:?}");
    assert_eq!(browser.js("return document.querySelectorAll('article img').length"), 0, "{shown:?}");
    // Who does not answer in time is not in it.
    until("each name finds its own file", || {
        let found = browser.js(
            "return import('/words.js').then(({ quoted }) => Promise.all([...ropewalk.charts[0].rows.values()].map((row) => \
             fetch(`/api/query?step=0&from=${Math.floor(ropewalk.now()) - 300}&q=` + encodeURIComponent(`file.ops[op=write][file=${quoted(row.key.file)}]`)) \
             .then((answer) => answer.json()).then((answer) => answer.total))))",
        );
        found == Value::from(vec![1; count])
    });
    for of in ["llllllll", "a\\x0ab]"] {
        browser.click(&format!(
            "[...document.querySelectorAll('button.row')].find((row) => row.title.includes({of:?}))"
        ));
        browser.until("ropewalk.charts[0].query.includes('[file=') && ropewalk.charts[0].found.chart.breakdowns[0] !== 'file' && ropewalk.charts[0].rows.size > 0");
        pictured(browser, "odd");
        // By the chip out again. Pictures have moved what is on the page: it may move once more.
        browser.js("[...document.querySelectorAll('.chip')].at(-1).click()");
        browser.until("!ropewalk.charts[0].query.includes('[file=')");
        browser.js("return ropewalk.charts[0].set('file.ops[op=write][directory=/odd][file]')");
        browser.until(&format!("ropewalk.charts[0].rows.size === {count} && ropewalk.charts[0].found.chart.breakdowns[0] === 'file'"));
    }
    let errors = browser.errors();
    assert!(errors.iter().all(|error| error.contains("400")), "{errors:?}");
}
