//! Histories on disk: they outlive processes that are killed, machines' worth of restarts, torn ends and full disks; a time when
//! nobody recorded is a gap; what was recorded into a file says the same elsewhere.
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::{
    fs,
    io::Write,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::Command,
};

use analytics::{Question, Source};
use base::when::date_time;
use common::{Cluster, ok, refused, until};
use mounts::Mounts;
use serde_json::Value;

/// Writes so many times 4 KiB, each as one request of the kernel.
fn write_direct(path: &Path, times: u64) {
    let file = fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path);
    let (file, buffer) = (file.unwrap(), vec![7; 8192]);
    let aligned = buffer.as_ptr().align_offset(4096);
    for n in 0..times {
        file.write_all_at(&buffer[aligned..aligned + 4096], n * 4096).unwrap();
    }
    file.sync_all().unwrap();
}

/// What a history on disk says of a query, whoever writes it.
fn on_disk(dir: &Path, query: &str) -> f64 {
    let (query, you) = (query.to_owned(), "it".to_owned());
    let question = Question {
        query,
        you,
        fs: 1,
        after: 0,
        to: u64::from(u32::MAX),
        step: 0,
        resolution: 0,
        ended: None,
    };
    analytics::evaluate(&question, &Source::Ended(dir)).unwrap().total()
}

/// Where the histories of mounts lie.
fn of_mount(cluster: &Cluster, mount: &Path) -> PathBuf {
    let path = mount.canonicalize().unwrap();
    cluster.dir().join("analytics").join(format!("mount{}", path.to_str().unwrap().replace('/', "-")))
}

fn query(cluster: &Cluster, text: &str) -> Value {
    cluster.json(&["analytics", "query", text, "--from", "-59min", "--rows", "1000"])
}

/// Rows as (first value, total).
fn rows(found: &Value, dimension: &str) -> Vec<(String, f64)> {
    let rows = found["rows"].as_array().unwrap().iter();
    rows.map(|row| (row["key"][dimension].as_str().unwrap().to_owned(), row["total"].as_f64().unwrap()))
        .collect()
}

const WRITES: &str = "file.ops[op=write]";

#[test]
fn history_outlives_its_processes() {
    let mounts = Mounts::in_memory(2);
    let cluster = &mounts.cluster;
    let dir = cluster.dir();
    let dir = dir.to_str().unwrap();
    let begun = base::stats::now();
    write_direct(&mounts.at(0, "first"), 50);
    write_direct(&mounts.at(1, "second"), 30);
    let histories = [of_mount(cluster, &mounts.all[0]), of_mount(cluster, &mounts.all[1])];
    until("the seconds of the writes are on disk", || {
        histories.iter().map(|dir| on_disk(dir, WRITES)).sum::<f64>() == 80.0
    });
    let session_of = |name: &str| format!("strip.ops[client={name}][op=prepare][file]");
    let second = mounts.all[1].to_str().unwrap().to_owned();
    until("and those of the servers", || !rows(&query(cluster, &session_of(&second)), "file").is_empty());
    // They are counted before they are written.
    const PREPARES: &str = "strip.ops[op=prepare]";
    let counted = query(cluster, PREPARES)["total"].as_f64().unwrap();
    until("these are on disk as well", || {
        let servers = ["n1", "n2", "n3"].map(|server| cluster.dir().join("analytics").join(server));
        servers.iter().map(|dir| on_disk(dir, PREPARES)).sum::<f64>() >= counted
    });

    // Everything is killed; the end of a file is torn.
    cluster.kill(|_| true);
    let killed = base::stats::now();
    let newest = fs::read_dir(&histories[0]).unwrap().flatten().map(|entry| entry.path());
    let newest = newest.filter(|path| path.to_str().unwrap().contains("second-")).max().unwrap();
    let good = fs::metadata(&newest).unwrap().len();
    fs::OpenOptions::new().append(true).open(&newest).unwrap().write_all(&[9; 100]).unwrap();
    assert_eq!(on_disk(&histories[0], WRITES), 50.0);
    let _ = rustix::mount::unmount(&mounts.all[1], rustix::mount::UnmountFlags::DETACH);
    until("a whole second has passed without them", || base::stats::now() > killed + 1);
    cluster.start();
    until("the torn end is cut off", || fs::metadata(&newest).unwrap().len() == good);

    // The first mount is there again, the second is not: both are told of, by name.
    let clients = format!("{WRITES}[client]");
    let first = mounts.all[0].to_str().unwrap().to_owned();
    let expected = vec![(first.clone(), 50.0), (second.clone(), 30.0)];
    assert_eq!(rows(&query(cluster, &clients), "client"), expected);
    assert_eq!(
        rows(&query(cluster, &format!("{WRITES}[client={second}][file]")), "file"),
        [("/second".into(), 30.0)]
    );
    assert!(
        !rows(&query(cluster, &session_of(&second)), "file").is_empty(),
        "its session has its name still"
    );

    // What is done now is added; the time without processes is a gap; absolute times say the same.
    write_direct(&mounts.at(0, "first"), 7);
    until("it is counted", || rows(&query(cluster, &clients), "client")[0].1 == 57.0);
    let from = date_time(begun - 1).replace(' ', "T");
    let by_second = cluster.json(&["analytics", "query", WRITES, "--from", &from, "--step", "1s"]);
    let steps = by_second["rows"][0]["steps"].as_array().unwrap();
    assert_eq!(steps.iter().filter_map(Value::as_f64).sum::<f64>(), 87.0, "{by_second:#}");
    let last = steps.iter().rposition(|step| !step.is_null()).unwrap();
    let hole = steps[..last].iter().skip_while(|step| step.is_null()).any(Value::is_null);
    assert!(hole, "nobody recorded while nothing ran: {steps:?}");
    let history = cluster.json(&["analytics", "history"]);
    let of_first = history.as_array().unwrap().iter().find(|p| p["process"] == *first).unwrap();
    // Its first whole second at the latest.
    assert!(of_first["history"]["from_at_us"].as_u64().unwrap() / 1_000_000 <= begun + 1, "{history:#}");

    // A recording says the same, without the cluster.
    let out = mounts.more.path().join("recorded");
    let file = out.to_str().unwrap();
    ok(&["analytics", "record", "--dir", dir, "--from", &from, "--out", file]);
    cluster.down();
    let ask = |text: &str| {
        let said = ok(&["analytics", "query", text, "--recording", file, "--from", "-59min", "--json"]);
        serde_json::from_str::<Value>(&said).unwrap()
    };
    assert_eq!(rows(&ask(&clients), "client"), [(first, 57.0), (second.clone(), 30.0)]);
    assert_eq!(rows(&ask(&format!("{WRITES}[client={second}][file]")), "file"), [("/second".into(), 30.0)]);
    let prepares = rows(&ask(&session_of(&second)), "file");
    assert!(prepares.iter().any(|row| row.0 == "/second"), "{prepares:?}");
    let once = ok(&["analytics", "replay", file, "--over", "59m", "--view", "files", "--once"]);
    assert!(once.contains("/first") && once.contains("/second"), "{once}");
    let bytes = fs::read(&out).unwrap();
    fs::write(&out, &bytes[..bytes.len() - 1]).unwrap();
    let said = refused(&["analytics", "query", WRITES, "--recording", file]);
    assert!(said.contains("damaged or cut off"), "{said}");
}

/// A small disk, gone with the test.
struct Disk(PathBuf);

impl Disk {
    fn new(at: &Path) -> Disk {
        fs::create_dir_all(at).unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=16m", "histories"]).arg(at).status();
        assert!(mounted.unwrap().success());
        Disk(at.to_owned())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn a_full_disk_stops_the_recording_only() {
    let cluster = Mounts::memory();
    cluster.start();
    cluster.down();
    let disk = Disk::new(&cluster.dir().join("analytics"));
    fs::write(disk.0.join("filler"), vec![0; 16_000_000]).unwrap();
    cluster.start();
    let names = |cluster: &Cluster| -> Vec<String> {
        let events = cluster.json(&["pdisk", "events"]);
        let of_server = events.as_array().unwrap().iter().filter(|event| event["process"] == "n1");
        of_server.map(|event| event["name"].as_str().unwrap().to_owned()).collect()
    };
    until("it is said", || names(&cluster).contains(&"analytics_history_stopped".to_owned()));
    write_direct(&cluster.mnt().join("file"), 20);
    let writes = || rows(&query(&cluster, &format!("{WRITES}[file]")), "file");
    until("it is counted all the same", || writes() == [("/file".to_owned(), 20.0)]);
    let history = of_mount(&cluster, &cluster.mnt());
    assert_eq!(on_disk(&history, WRITES), 0.0);
    fs::remove_file(disk.0.join("filler")).unwrap();
    // What memory kept is written as well.
    until("it is recorded again", || on_disk(&history, WRITES) == 20.0);
    until("that is said too", || names(&cluster).contains(&"analytics_history_recorded".to_owned()));
    cluster.kill(|_| true);
}
