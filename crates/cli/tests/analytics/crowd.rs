//! More files than are kept apart.

use std::{
    fs,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Instant,
};

use super::{
    common::{Cluster, ok, until},
    mounts::Mounts,
    query, total, write_direct,
};

/// Files for each write of the heavy one. How much of it is told apart depends on this share and on no time: of six operations for each
/// file less than one falls between two of its writes into its set of the table, and eight would have to for it to lose its row.
const FOR_EACH_LOUD: usize = 10;

/// Thousands of files (with `ROPEWALK_SOAK` ten), each written once, while one is written again and again: the sum is exact, the heavy one
/// is told apart, and the rest is one row, which says how much any other may lack.
pub fn of_files(cluster: &Cluster, mounts: &Mounts) {
    let files = if std::env::var_os("ROPEWALK_SOAK").is_some() { 10_000 } else { 2_500 };
    let (directory, loud) = (mounts.at(0, "crowd"), mounts.at(0, "loud"));
    fs::create_dir(&directory).unwrap();
    write_direct(&loud, 1, 4096);
    until("the first is counted", || {
        let found = query(cluster, "file.ops[op=write][file]");
        let loud = |row: &serde_json::Value| row["key"]["file"] == "/loud" && row["total"] == 1.0;
        found["rows"].as_array().unwrap().iter().any(loud)
    });
    let before = total(cluster, "file.ops[op=write]");
    let (next, begun) = (AtomicUsize::new(0), Instant::now());
    let writer = || {
        while let Some(n) = Some(next.fetch_add(1, Relaxed)).filter(|n| *n < files) {
            fs::write(directory.join(n.to_string()), "x").unwrap();
            if n % FOR_EACH_LOUD == 0 {
                write_direct(&loud, 1, 4096);
            }
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(writer))));
    let of_loud = (files / FOR_EACH_LOUD) as f64;
    println!("{files} files in {:?}, beside {of_loud} writes of one", begun.elapsed());
    let written = before + files as f64 + of_loud;
    until("all writes are counted", || total(cluster, "file.ops[op=write]") >= written);
    let found = query(cluster, "file.ops[op=write][file]");
    let rows = found["rows"].as_array().unwrap();
    let sum = |of: &dyn Fn(&str) -> bool| -> f64 {
        let of = rows.iter().filter(|row| of(row["key"]["file"].as_str().unwrap()));
        of.map(|row| row["total"].as_f64().unwrap()).sum()
    };
    assert_eq!((found["total"].as_f64(), sum(&|_| true)), (Some(written), written));
    let (shown, others) = (sum(&|file| file == "/loud") - 1.0, sum(&|file| file == "(others)"));
    println!("of {of_loud} writes of one file {shown} are told apart, {others} are among the others");
    assert!(rows.len() <= 1001 && others > 0.0, "{} rows, {others} others", rows.len());
    assert!(shown <= of_loud && shown >= of_loud * 0.98, "{shown} of {of_loud}");
    assert!(found["told_apart_percent"].as_f64() < Some(100.0 - 90.0 * others / written), "{found}");
    let dir = cluster.dir();
    let asked =
        ["analytics", "query", "file.ops[op=write][file]", "--dir", dir.to_str().unwrap(), "--from", "-59m"];
    let table = ok(&asked);
    assert!(table.contains("no row lacks more than that"), "{table}");
    let mut history = serde_json::Value::Null;
    until("every process answers", || {
        history = cluster.json(&["analytics", "history"]);
        history.as_array().unwrap().iter().all(|process| process["history"].is_object())
    });
    for process in history.as_array().unwrap() {
        let of = |name: &str| process["history"][name].as_u64();
        assert!(of("used_bytes").is_some() && of("used_bytes") <= of("max_bytes"), "{process}");
    }
}
