//! Another user of the host: he uses the mounts as the file system's permissions say, and nothing else of the cluster is
//! his to read, to ask or to change. A cluster of an older version, open to all and without a secret, is mended by `up`.

#![allow(clippy::unwrap_used)] // tests

mod common;

use std::{
    fs::{self, Permissions},
    io::{Read, Write},
    net::TcpStream,
    os::unix::{
        fs::{MetadataExt, PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use common::{Cluster, ROPEWALK, free_ports, heard, ok};

const NOBODY: u32 = 65534;

/// What below a directory group or others may do anything with.
fn open_to_others(path: &Path, found: &mut Vec<PathBuf>) {
    let meta = match fs::symlink_metadata(path) {
        // The cluster runs: a file that takes another one's place is not there any more.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
        meta => meta.unwrap(),
    };
    if meta.mode() & 0o077 != 0 {
        found.push(path.to_owned());
    }
    if meta.is_dir() {
        // As above.
        fs::read_dir(path)
            .into_iter()
            .flatten()
            .flatten()
            .for_each(|entry| open_to_others(&entry.path(), found));
    }
}

fn assert_private(paths: &[&Path]) {
    let mut found = Vec::new();
    paths.iter().for_each(|path| open_to_others(path, &mut found));
    assert!(found.is_empty(), "open to others: {found:?}");
}

fn open_up(path: &Path) {
    let meta = fs::metadata(path).unwrap();
    fs::set_permissions(path, Permissions::from_mode(if meta.is_dir() { 0o755 } else { 0o644 })).unwrap();
    if meta.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| open_up(&entry.unwrap().path()));
    }
}

fn as_nobody(program: &Path, args: &[&str]) -> Output {
    Command::new(program).args(args).uid(NOBODY).gid(NOBODY).current_dir("/").output().unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn another_user_reads_changes_and_asks_nothing() {
    let cluster = Cluster::prepare(&[]);
    let (dir, mnt) = (cluster.dir(), cluster.mnt());
    let root = dir.parent().unwrap();
    // The way there is open: what protects the cluster is the cluster's own.
    fs::set_permissions(root, Permissions::from_mode(0o755)).unwrap();
    let program = root.join("ropewalk");
    fs::hard_link(ROPEWALK, &program).or_else(|_| fs::copy(ROPEWALK, &program).map(drop)).unwrap();
    let logs = root.join("logs");
    let (d, m) = (dir.to_str().unwrap(), mnt.to_str().unwrap());
    let up = |more: &[&str]| {
        let args =
            ["-c", "umask 000; exec \"$0\" \"$@\"", ROPEWALK, "up", "--detach", "--dir", d, "--mount", m];
        let output = Command::new("sh").args(args).args(more).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        text(&output)
    };
    // Nobody else's while it is down.
    let port = free_ports().to_string();
    let shape = ["--nodes", "1", "--pdisks", "1", "--code", "1way", "--pdisk-size", "256m", "--port", &port];
    up(&[&shape[..], &["--log-dir", logs.to_str().unwrap()]].concat());
    fs::write(mnt.join("secret-plans"), "for root").unwrap();
    assert_private(&[&dir, &logs]);
    // Without the first line, which holds the sum of the rest.
    let file = fs::read_to_string(dir.join("cluster.toml")).unwrap().split_once('\n').unwrap().1.to_owned();
    let secret =
        file.lines().find_map(|l| l.strip_prefix("secret = \"")).unwrap().trim_end_matches('"').to_owned();
    assert_eq!(secret.len(), 64);

    // The commands of an administrator, by nobody.
    let commands: &[&[&str]] = &[
        &["config", "set", "--dir", d, "pagepool=64m"],
        &["clients", "detach", "--dir", d, "2"],
        &["pdisk", "fail", "--dir", d, "n1p1"],
        &["fs", "delete", "--dir", d, "fs1", "--yes"],
        &["status", "--dir", d],
        &["mount", "--dir", d, "fs1", "/mnt"],
        &["manager", "dump", "--dir", d, "/tmp/never-made"],
        &["down", "--dir", d],
    ];
    for command in commands {
        let output = as_nobody(&program, command);
        let said = text(&output);
        assert!(!output.status.success(), "{command:?}: {said}");
        assert!(said.contains("permission denied") && said.contains("sudo"), "{command:?}: {said}");
    }
    // Nor is anything there his to read.
    let script = format!(
        "cat {d}/cluster.toml {d}/nodes/n1/pdisk1/data {d}/manager/* {d}/log/* {d}/run/* 2>/dev/null"
    );
    assert!(as_nobody(Path::new("sh"), &["-c", &script]).stdout.is_empty());
    // The mount is his as far as its modes say.
    fs::create_dir(mnt.join("pub")).unwrap();
    fs::set_permissions(mnt.join("pub"), Permissions::from_mode(0o1777)).unwrap();
    fs::set_permissions(mnt.join("secret-plans"), Permissions::from_mode(0o600)).unwrap();
    let used =
        as_nobody(Path::new("sh"), &["-c", &format!("cd {m}/pub && echo mine > f && cat f && ls -la ..")]);
    assert!(used.status.success() && text(&used).contains("mine"), "{}", text(&used));
    let denied = as_nobody(Path::new("cat"), &[&format!("{m}/secret-plans")]);
    assert!(!denied.status.success());

    // By his supplementary groups as well, as the kernel sees them.
    fs::write(mnt.join("teams"), "team").unwrap();
    fs::create_dir(mnt.join("team")).unwrap();
    for (name, mode) in [("teams", 0o640), ("team", 0o2770)] {
        chown(mnt.join(name), Some(0), Some(24)).unwrap();
        fs::set_permissions(mnt.join(name), Permissions::from_mode(mode)).unwrap();
    }
    for (groups, may) in [("4", false), ("4,24", true)] {
        let ids = ["--reuid=65534", "--regid=65534"].map(str::to_owned);
        let script = format!("cd {m} && cat teams && cd team && echo his > f && cat f && rm f");
        let mut run = Command::new("setpriv");
        let run =
            run.args(ids).arg(format!("--groups={groups}")).args(["sh", "-c", &script]).output().unwrap();
        assert_eq!(run.status.success(), may, "{groups}: {}", text(&run));
        assert_eq!(text(&run).contains("team") && text(&run).contains("his"), may);
    }
    // The key of a machine that has joined is its root's.
    let token = ok(&["node", "token", "--dir", d, "--role", "admin"]);
    let joined = root.join("joined");
    ok(&["join", token.trim(), "--dir", joined.to_str().unwrap(), "--name", "desk"]);
    assert_private(&[&joined]);
    for command in ["status", "down"] {
        let output = as_nobody(&program, &[command, "--dir", joined.to_str().unwrap()]);
        assert!(!output.status.success() && text(&output).contains("permission denied"), "{}", text(&output));
    }

    // He knows the addresses and the cluster's number, perhaps from before, and makes himself a cluster.toml.
    let forged = root.join("forged");
    fs::create_dir(&forged).unwrap();
    chown(&forged, Some(NOBODY), Some(NOBODY)).unwrap();
    let without: String =
        file.lines().filter(|l| !l.starts_with("secret")).map(|l| format!("{l}\n")).collect();
    for (content, wanted) in [
        (file.replace(&secret, &"5".repeat(64)), "permission denied"),
        (without.clone(), "holds no secret"),
        (file.replace(&secret, "not hexadecimal"), "64 hexadecimal"),
        (file.replace("secret = \"", "secret = "), "is damaged"),
    ] {
        fs::write(forged.join("cluster.toml"), content).unwrap();
        chown(forged.join("cluster.toml"), Some(NOBODY), Some(NOBODY)).unwrap();
        let f = forged.to_str().unwrap();
        for command in [
            vec!["status", "--dir", f],
            vec!["config", "set", "--dir", f, "pagepool=64m"],
            vec!["fs", "delete", "--dir", f, "fs1", "--yes"],
        ] {
            let output = heard(|| as_nobody(&program, &command));
            let said = text(&output);
            assert!(!output.status.success() && said.contains(wanted), "{command:?}: {said}");
            assert!(!said.contains(&secret), "{said}");
        }
    }
    // What says nothing, speaks the version before, or something else, is told nothing of the cluster.
    let manager = cluster.json(&["status"])["processes"][0]["address"].as_str().unwrap().to_owned();
    let id = file.lines().find_map(|l| l.strip_prefix("id = \"")).unwrap().trim_end_matches('"').to_owned();
    let mut old = vec![0; 200];
    old[..6].copy_from_slice(b"RWLK\x06\0");
    let half_open = TcpStream::connect(&manager).unwrap();
    for said in [old, b"GET /metrics HTTP/1.0\r\n\r\n".repeat(8)] {
        let mut stream = TcpStream::connect(&manager).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(&said).unwrap();
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard);
        let heard = String::from_utf8_lossy(&heard);
        assert!(!heard.contains(&id) && !heard.contains(&secret), "{heard}");
    }
    let status = ok(&["status", "--dir", d, "--json"]);
    assert!(status.contains("net_refused_handshakes") && status.contains("net_refused"), "{status}");
    drop(half_open);
    assert_eq!(fs::read_to_string(mnt.join("secret-plans")).unwrap(), "for root");

    // The secret stands in one file, and nowhere else.
    assert!(!status.contains(&secret));
    for (_, pid) in cluster.processes() {
        for of in ["cmdline", "environ"] {
            let bytes = fs::read(format!("/proc/{pid}/{of}")).unwrap();
            assert!(!String::from_utf8_lossy(&bytes).contains(&secret), "{of} of {pid}");
        }
    }
    assert!(!cluster.logs().contains(&secret));

    // A reader that goes away is no reason to panic.
    for what in [format!("status --dir {d}"), "completion bash".to_owned(), "config show --help".to_owned()] {
        let pipe =
            format!("set -o pipefail; exec 2>&1; {} {what} | (sleep 0.3; head -c 1)", program.display());
        let output = Command::new("bash").args(["-c", &pipe]).output().unwrap();
        assert!(!text(&output).contains("panicked"), "{}", text(&output));
    }

    // As the version before would have left it.
    cluster.down();
    open_up(&dir);
    open_up(&logs);
    fs::write(dir.join("cluster.toml"), without).unwrap();
    let said = up(&[]);
    assert!(said.contains("were open to other users") && said.contains("has a secret now"), "{said}");
    assert_private(&[&dir]);
    let mut log = Vec::new();
    open_to_others(&logs, &mut log);
    // The directories above the log file are the administrator's own.
    assert!(log.iter().all(|path| path.is_dir()), "{log:?}");
    let new = fs::read_to_string(dir.join("cluster.toml")).unwrap();
    assert!(new.lines().any(|l| l.starts_with("secret = ")) && !new.contains(&secret));
    assert_eq!(fs::read_to_string(mnt.join("secret-plans")).unwrap(), "for root");
    let before = up(&[]);
    assert!(!before.contains("secret") && !before.contains("open to other"), "{before}");
    cluster.down();
}
