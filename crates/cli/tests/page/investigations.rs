//! The pictures of docs/analytics.md.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use super::{browser::Browser, common::ok, mounts::Mounts, serve, slow};

/// The two investigations of docs/analytics.md, on a cluster of this machine, with their pictures:
/// `cargo test -p ropewalk-cli --test page investigations -- --ignored` puts them into docs/pictures.
#[test]
#[ignore = "makes the pictures of the documentation; a minute"]
fn both() {
    let mounts = Mounts::in_memory(1);
    let cluster = &mounts.cluster;
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures");
    fs::create_dir_all(&place).unwrap();
    let (_page, port) = serve(cluster.dir().to_str().unwrap());
    let browser = Browser::start();
    browser.size(1000, 560);
    let show = |of: &str, queries: &[&str], span: u32| {
        let queries: Vec<String> = queries
            .iter()
            .map(|q| format!("q={}", q.replace('[', "%5B").replace(']', "%5D").replace('=', "%3D")))
            .collect();
        browser.open(&format!("http://127.0.0.1:{port}/?{of}#{}&span={span}", queries.join("&")));
        // A page that has no charts yet must not be paused: it would forget which it was to show.
        let count = queries.len();
        browser.until(&format!(
            "ropewalk.charts.length === {count} && ropewalk.charts.every((chart) => chart.rows.size > 0)"
        ));
    };
    let picture = |name: &str| {
        let path = place.join(name);
        browser.picture(&path);
        let bytes = fs::metadata(&path).unwrap().len();
        println!("{name}: {bytes} bytes");
        assert!(bytes < 150_000, "{name} has {bytes} bytes");
    };

    // Sequential reads by block size.
    let file = mounts.at(0, "seq");
    let file = file.to_str().unwrap();
    ok(&["perf", "create", "seq", file, "-r", "1m", "-n", "64m", "-fsync"]);
    std::thread::sleep(Duration::from_secs(3)); // so that the time shown begins with the reads
    for record in ["16k", "64k", "256k", "1m"] {
        let end = std::time::Instant::now() + Duration::from_secs(8);
        while std::time::Instant::now() < end {
            ok(&["perf", "read", "seq", file, "-r", record, "-dio"]);
        }
    }
    show("sizes", &["file.bytes[op=read][size]", "process.cpu_us[process]"], 40);
    browser.size(840, 860);
    std::thread::sleep(Duration::from_millis(400)); // it draws anew a moment after its size has changed
    browser.key(" ");
    browser.until("ropewalk.pinned && ropewalk.charts.every((chart) => chart.rows.size > 1)");
    // Down to the names of the lines.
    let height = browser.js("return document.documentElement.scrollHeight").as_u64().unwrap();
    browser.size(840, u32::try_from(height).unwrap());
    std::thread::sleep(Duration::from_millis(400));
    picture("reads-by-size.png");
    browser.size(1000, 560);

    // Synchronous writes; on the way one pdisk becomes slow.
    let log = mounts.at(0, "log");
    let write = |seconds: u64| {
        let runtime = format!("--runtime={seconds}");
        let filename = format!("--filename={}", log.display());
        let fio = [
            "--name=log",
            "--rw=randwrite",
            "--bs=4k",
            "--size=4m",
            "--fdatasync=1",
            "--time_based",
            &runtime,
            &filename,
        ];
        assert!(Command::new("fio").args(fio).stdout(Stdio::null()).status().unwrap().success());
    };
    write(20);
    cluster.kill(|name| name == "n2");
    cluster.start_server_with("n2", &[("ROPEWALK_PDISK_FAULT", "delay 40ms on=write")]);
    cluster.wait_all_ok(Duration::from_secs(60));
    write(20);
    show("step", &["file.ops[op=fsync][latency]", "file.ops[op]"], 60);
    browser.key(" ");
    browser.until("ropewalk.pinned && ropewalk.charts.every((chart) => chart.rows.size > 1)");
    picture("latency-step.png");
    assert!(slow::pdisk_of(&browser, port, 40_000).is_some());
    browser.size(1000, 640);
    std::thread::sleep(Duration::from_millis(400)); // it draws anew a moment after its size has changed
    picture("compared.png");
}
