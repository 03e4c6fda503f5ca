//! The page's figures beside fio's.

use std::path::Path;

use serde_json::Value;

use super::{browser::Browser, fio};

/// A run of fio that ends, on the mount of that process: the page shows as many operations, and its latencies within a bucket of the
/// histogram, but for what lies between fio and the mount.
pub fn as_by_fio(browser: &Browser, port: u16, file: &Path, mount_pid: u64) {
    let told = fio::run(file, mount_pid, &["--rw=write", "--bs=16k", "--size=640k", "--fsync=1"]);
    let name = file.file_name().unwrap().to_str().unwrap();
    browser.open(&format!("http://127.0.0.1:{port}/?fio#q=file.ops%5Bfile%3D/{name}%5D%5Bop%5D&span=300"));
    let row = |op: &str| {
        format!("[...(ropewalk.charts[0]?.rows.values() ?? [])].find((row) => row.name === '{op}')")
    };
    let (syncs, writes) = (told.figure("sync", "total_ios"), told.figure("write", "total_ios"));
    browser.until(&format!("{}?.total >= {syncs}", row("fsync")));
    let shown = |op: &str, of: &str| browser.js(&format!("return {}.{of}", row(op))).as_f64().unwrap();
    assert_eq!((shown("fsync", "total"), shown("write", "total")), (syncs, writes));
    told.fsyncs_took(|of| shown("fsync", of));
    // Nobody uses the file any more: the time goes on, and nothing is wrong with that. Who does not answer in time, on a busy machine, is
    // another matter.
    browser.until("ropewalk.newest");
    browser.js("globalThis.begun = ropewalk.newest; globalThis.wrong = new Set(); \
        new MutationObserver(() => { for (const { textContent } of document.querySelectorAll('.says.wrong')) if (!textContent.startsWith('does not answer')) wrong.add(textContent) }) \
        .observe(document.body, { subtree: true, childList: true, attributes: true })");
    browser.until("ropewalk.newest >= begun + 6 && ropewalk.charts[0].times.at(-1) >= ropewalk.newest - 1");
    assert_eq!(browser.js("return [...wrong]"), Value::Array(Vec::new()), "{}", browser.text());
}
