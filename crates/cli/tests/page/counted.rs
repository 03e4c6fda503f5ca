//! The page's figures beside fio's.

use std::{path::Path, process::Command};

use serde_json::Value;

use super::browser::Browser;

/// A run of fio that ends: the page shows as many operations, and its latencies within a bucket of the histogram.
pub fn as_by_fio(browser: &Browser, port: u16, file: &Path) {
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
    // Nobody uses the file any more: the time goes on, and nothing is wrong with that. Who does not answer in time, on a busy machine, is
    // another matter.
    browser.until("ropewalk.newest");
    browser.js("globalThis.begun = ropewalk.newest; globalThis.wrong = new Set(); \
        new MutationObserver(() => { for (const { textContent } of document.querySelectorAll('.says.wrong')) if (!textContent.startsWith('does not answer')) wrong.add(textContent) }) \
        .observe(document.body, { subtree: true, childList: true, attributes: true })");
    browser.until("ropewalk.newest >= begun + 6 && ropewalk.charts[0].times.at(-1) >= ropewalk.newest - 1");
    assert_eq!(browser.js("return [...wrong]"), Value::Array(Vec::new()), "{}", browser.text());
}
