//! More files than are kept apart.

use std::{
    fs,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    time::{Duration, Instant},
};

use super::{
    common::{Cluster, ok, until},
    mounts::Mounts,
    query, total, write_direct,
};

/// Thousands of files (with ROPEWALK_SOAK ten), each written once, while one is written all the time: the sum is exact, the heavy one is told
/// apart, and the rest is one row, which says how much any other may lack.
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
    let (done, next) = (AtomicBool::new(false), AtomicUsize::new(0));
    let begun = Instant::now();
    let of_loud = std::thread::scope(|scope| {
        let loud = scope.spawn(|| {
            let mut times = 0;
            while !done.load(Relaxed) {
                write_direct(&loud, 1, 4096);
                times += 1;
                // Enough to be far above the rest.
                std::thread::sleep(Duration::from_millis(5));
            }
            times
        });
        let writers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    while let Some(n) = Some(next.fetch_add(1, Relaxed)).filter(|n| *n < files) {
                        fs::write(directory.join(n.to_string()), "x").unwrap();
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        done.store(true, Relaxed);
        loud.join().unwrap()
    });
    println!("{files} files in {:?}, beside {of_loud} writes of one", begun.elapsed());
    let written = before + files as f64 + f64::from(of_loud);
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
    assert!(shown <= f64::from(of_loud) && shown >= f64::from(of_loud) * 0.98, "{shown} of {of_loud}");
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
