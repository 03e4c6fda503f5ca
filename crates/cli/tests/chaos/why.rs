//! What a cluster says of itself, for a violation that is to be understood after the cluster is gone.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::usage::load;
use crate::common::{Cluster, ROPEWALK, ropewalk};

/// Last lines of each log.
const LINES: usize = 12;
/// An unmount that takes longer is looked at.
const UMOUNT_SLOW: Duration = Duration::from_secs(10);

fn says(cluster: &Cluster, words: &[&str]) -> String {
    let dir = cluster.dir();
    let output = ropewalk(&[words, &["--dir", dir.to_str().unwrap()]].concat());
    let text = [output.stdout, output.stderr].concat();
    format!("--- {}\n{}", words.join(" "), String::from_utf8_lossy(&text))
}

/// The pdisks' states, what catch-up and rebuild wait for, who waits for whom, and the last lines of all logs.
pub fn why(cluster: &Cluster) -> String {
    let asked: [&[&str]; 5] =
        [&["pdisk", "list"], &["health"], &["rebuild", "status", "--json"], &["waiters"], &["events"]];
    let answers: String = asked.iter().map(|words| says(cluster, words)).collect();
    format!("load {}\n{answers}{}", load(), logs(cluster))
}

fn logs(cluster: &Cluster) -> String {
    let entries = fs::read_dir(cluster.dir().join("log")).into_iter().flatten().flatten();
    let tail = |path: &Path| {
        let log = fs::read(path).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        format!("--- {}\n{}\n", path.display(), lines[lines.len().saturating_sub(LINES)..].join("\n"))
    };
    let mut tails: Vec<String> = entries.map(|entry| tail(&entry.path())).collect();
    tails.sort();
    tails.concat()
}

/// Unmounts. One that takes long is printed with what the cluster's processes, the mount's among them, wait for.
pub fn umount(cluster: &Cluster, options: &[&str], path: &Path) -> Result<(), String> {
    let begun = Instant::now();
    let mut child = Command::new(ROPEWALK)
        .arg("umount")
        .args(options)
        .arg(path)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| e.to_string())?;
    let mut look = UMOUNT_SLOW;
    while child.try_wait().map_err(|e| e.to_string())?.is_none() {
        if begun.elapsed() > look {
            println!("  note: umount of {} runs for {look:?} (load {})", path.display(), load());
            println!("{}{}", says(cluster, &["waiters"]), logs(cluster));
            look *= 2;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().map_err(|e| e.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}
