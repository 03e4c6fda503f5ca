//! Story: what a new user does first, and what the program says to it: the README's session, the help, the first mistakes,
//! Ctrl-C.
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

mod common;

use std::{
    fs,
    os::unix::fs::FileExt,
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use common::{Cluster, LET_GO, ROPEWALK, ok, processes::signal, refused, ropewalk, unheard, until};
use rustix::process::{Pid, Signal, kill_process};

/// Columns of a terminal.
const COLUMNS: usize = 100;

fn narrow(what: &str, text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= COLUMNS, "{what}: {} columns: {line}", line.chars().count());
    }
}

#[test]
fn the_readmes_session_and_the_first_mistakes() {
    let cluster = Cluster::up(&["--pdisk-size", "128m"]);
    let (dir, mnt) = (cluster.dir(), cluster.mnt());
    let (dir, mnt) = (dir.to_str().unwrap(), mnt.to_str().unwrap());
    let mut status = String::new();
    until("it is well", || {
        status = ok(&["status", "--dir", dir]);
        status.lines().next().unwrap().ends_with(": well")
    });
    for process in ["manager", "n1", "n2", "n3", "n4", mnt] {
        let line = status.lines().find(|l| l.split_whitespace().next() == Some(process));
        assert!(line.is_some_and(|l| l.ends_with("answers")), "{process}: {status}");
    }
    let file = fs::File::create(cluster.mnt().join("file")).unwrap();
    file.write_all_at(&vec![1; 4 << 20], 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert!(cluster.json(&["fs", "df"])[0]["free_bytes"].as_u64().unwrap() > 0);
    connections_are_named(&cluster);
    for command in
        [&["waiters"][..], &["pagepool"], &["cluster", "version"], &["node", "list"], &["node", "show", "n1"]]
    {
        narrow(&command.join(" "), &ok(&[command, &["--dir", dir]].concat()));
    }

    // Mounting what is not there, where nothing is, and what is mounted already.
    let other = cluster.mnt().with_file_name("other");
    let there = other.to_str().unwrap();
    let said = refused(&["mount", "--dir", dir, "fs1", there]);
    assert!(said.contains("does not exist") && said.contains(&format!("mkdir -p {there}")), "{said}");
    fs::create_dir(&other).unwrap();
    let said = refused(&["mount", "--dir", dir, "nosuch", there]);
    assert!(said.contains("there is no file system nosuch; there are fs1"), "{said}");
    assert!(!said.contains("errno") && !said.contains("os error"), "{said}");
    let said = refused(&["mount", "--dir", dir, "fs1", mnt]);
    assert!(
        said.contains("mount point already") && said.contains(&format!("ropewalk umount {mnt}")),
        "{said}"
    );
    let said = refused(&["umount", "--dir", dir, there]);
    assert!(said.contains("is not a ropewalk mount") && said.contains(mnt), "{said}");
    let said = refused(&["perf", "read", "seq", "f", "--direct-client", "--fs", "nosuch", "--dir", dir]);
    assert!(said.contains("there is no file system nosuch; there are fs1"), "{said}");

    // Wherever the siblings take it.
    assert!(ok(&["config", "explain", "--dir", dir, "pagepool"]).starts_with("pagepool"));
    ok(&["fs", "set-pool", "--dir", dir, mnt, "pool1"]);
    // Its status is that of the worst finding on this machine.
    let report = ropewalk(&["advise"]);
    assert!(
        report.status.code().is_some_and(|code| code < 3) && report.stdout.ends_with(b"\n"),
        "{report:?}"
    );
    ok(&["umount", "--dir", dir, mnt]);
    cluster.down();
    let said = unheard(&["status", "--dir", dir]);
    assert!(said.contains("is the cluster up?") && said.contains("ropewalk up"), "{said}");
}

/// `net status`: a line a peer, by name; commands have none.
fn connections_are_named(cluster: &Cluster) {
    let dir = cluster.dir();
    let mut table = String::new();
    until("every process answers", || {
        table = ok(&["net", "status", "--dir", dir.to_str().unwrap()]);
        !table.contains("does not answer")
    });
    narrow("net status", &table);
    assert!(!table.contains("process ") && !table.contains("node0"), "{table}");
    let lines: Vec<Vec<&str>> = table.lines().skip(1).map(|l| l.split_whitespace().collect()).collect();
    let has =
        |process: &str, peer: &str| lines.iter().any(|l| l[0].ends_with(process) && l[1].ends_with(peer));
    let nodes = ["n1", "n2", "n3", "n4"];
    assert!(nodes.iter().all(|n| has(n, "manager")) && has("mnt", "manager"), "{table}");
    // A whole stripe has six strips, two on a node at most.
    assert!(nodes.iter().filter(|n| has("mnt", n)).count() >= 3, "{table}");
    until("there is a line for each connection", || {
        let details = ok(&["net", "status", "--details", "--dir", dir.to_str().unwrap()]);
        details.lines().count() > table.lines().count() && details.contains("bulk")
    });
}

#[test]
fn every_command_has_help_with_an_example_that_fits() {
    let mut count = 0;
    help_of(&mut Vec::new(), &mut count);
    assert!(count > 50, "{count} commands");
    assert_eq!(ropewalk(&["no-such-command"]).status.code(), Some(2));
    assert!(ok(&["completion", "bash"]).contains("ropewalk"));
    let man = tempfile::tempdir().unwrap();
    ok(&["man", man.path().to_str().unwrap()]);
    assert!(fs::read_dir(man.path()).unwrap().count() > 50);
}

fn help_of(words: &mut Vec<String>, count: &mut u32) {
    let args: Vec<&str> = words.iter().map(String::as_str).chain(["--help"]).collect();
    let help = ok(&args);
    narrow(&format!("{args:?}"), &help);
    let commands: Vec<String> = (help.lines().skip_while(|l| *l != "Commands:").skip(1))
        .take_while(|l| !l.is_empty())
        .filter(|l| l.starts_with("  ") && !l.starts_with("   "))
        .filter_map(|l| l.split_whitespace().next().filter(|c| *c != "help").map(str::to_owned))
        .collect();
    assert!(!commands.is_empty() || help.contains("Example"), "{args:?}: {help}");
    *count += 1;
    for command in commands {
        words.push(command);
        help_of(words, count);
        words.pop();
    }
}

/// A shell script in process ids of its own, so that no cluster but its own is on "this machine".
fn alone(script: &str, dir: &Path) -> Output {
    Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-ec"])
        .arg(format!("{LET_GO}; {script}"))
        .env("R", ROPEWALK)
        .env("D", dir)
        .env_remove("ROPEWALK_DIR")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn without_dir_the_only_cluster_of_this_machine_is_meant() {
    let dir = tempfile::tempdir().unwrap();
    let output = alone(
        r#"
        UP="--nodes 1 --pdisks 3 --code 2+1p --pdisk-size 64m --detach"
        # A busy machine may be too slow for it once.
        status() { for _ in 1 2 3 4 5 6 7 8 9; do $R status && return; sleep 1; done; return 1; }
        ! $R status 2>$D/none
        $R up --dir $D/a $UP
        status
        $R up --dir $D/b $UP
        ! $R status 2>$D/two
        ROPEWALK_DIR=$D/b status
        $R down --dir $D/a
        $R down
        "#,
        dir.path(),
    );
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    let said = |name| fs::read_to_string(dir.path().join(name)).unwrap();
    assert!(said("none").contains("ROPEWALK_DIR") && said("none").contains("--dir DIR"), "{}", said("none"));
    for name in ["a", "b"] {
        let dir = dir.path().join(name);
        assert!(said("two").contains(&format!("--dir {}", dir.display())), "{}", said("two"));
        assert!(out.contains(&format!("cluster {name} (")), "{out}");
    }
    assert!(out.contains("cluster b is down"), "{out}");
}

/// Starts a command, its output in a file, interrupts it as soon as `at` holds, and waits for its end.
fn interrupted(args: &[&str], out: &Path, at: impl Fn() -> bool) -> Output {
    let mut child = Command::new(ROPEWALK)
        .args(args)
        .stdin(Stdio::null())
        .stdout(fs::File::create(out).unwrap())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_secs(120);
    while !at() && child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "{args:?} did not get so far");
        std::thread::sleep(Duration::from_millis(1));
    }
    let pid = Pid::from_raw(child.id() as i32).unwrap();
    // One that has ended already was waited for.
    if child.try_wait().unwrap().is_none() {
        kill_process(pid, Signal::INT).unwrap();
    }
    child.wait_with_output().unwrap()
}

/// What a script keeps in a file is all there when the command says that it has succeeded.
#[test]
fn a_full_disk_below_stdout_is_no_success() {
    let into = |args: &[&str], out: Stdio| {
        Command::new(ROPEWALK).args(args).stdout(out).stderr(Stdio::piped()).output().unwrap()
    };
    // What listens says first where that is; nobody would learn it.
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let told = into(&["netperf", "server", "--listen", "127.0.0.1:0"], full.into());
    let said = String::from_utf8_lossy(&told.stderr);
    assert!(!told.status.success() && said.contains("No space left"), "{told:?}");
    // A pdisk, without a cluster.
    let cluster = Cluster::up(&["--nodes", "1", "--pdisks", "1", "--code", "1way", "--pdisk-size", "64m"]);
    cluster.down();
    let pdisk = cluster.dir().join("nodes/n1/pdisk1");
    let pdisk = pdisk.to_str().unwrap();
    for args in [
        &["lab", "list"][..],
        &["config", "explain", "pagepool"],
        &["lab", "plan", "soak"],
        &["pdisk", "dump", pdisk],
        &["pdisk", "dump", pdisk, "--json"],
    ] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let told = into(args, full.into());
        let said = String::from_utf8_lossy(&told.stderr).into_owned();
        assert_eq!(told.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains("standard output") && said.contains("No space left"), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
        // Whoever reads may stop reading.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let told = into(args, writer.into());
        assert!(told.status.success() && told.stderr.is_empty(), "{args:?}: {told:?}");
    }
}

#[test]
fn ctrl_c_leaves_nothing_half_made() {
    let code = ["--nodes", "1", "--pdisks", "3", "--code", "2+1p", "--pdisk-size", "64m"];
    let cluster = Cluster::prepare(&code);
    let (dir, mnt) = (cluster.dir(), cluster.mnt());
    let (dir, mnt) = (dir.to_str().unwrap(), mnt.to_str().unwrap());
    let up = [["up", "--dir", dir].as_slice(), code.as_slice()].concat();
    let out = cluster.mnt().with_file_name("out");
    let is_up = || fs::read_to_string(&out).unwrap_or_default().contains("Ctrl-C stops it");
    // While the cluster is made, and while its processes start; or, if this test was held up meanwhile, later.
    for file in ["nodes", "run/manager.pid"] {
        let output = interrupted(&up, &out, || cluster.dir().join(file).exists());
        let said = String::from_utf8_lossy(&output.stderr);
        let left = if cluster.dir().exists() { "nothing of the cluster" } else { "no cluster was made" };
        match output.status.code() {
            Some(130) => assert!(said.contains("interrupted; ") && said.contains(left), "{left}: {said}"),
            code => assert!(code == Some(0) && is_up(), "{code:?} {said}{}", cluster.logs()),
        }
        until("nothing runs any more", || cluster.processes().is_empty());
    }
    cluster.start();
    ok(&["umount", mnt]);
    // While it mounts: the manager is held up, and with it the mount.
    let manager = cluster.processes().into_iter().find(|(name, _)| name == "manager").unwrap().1;
    let hold = |what| signal(Pid::from_raw(manager).unwrap(), what);
    let mounts = || cluster.processes().iter().any(|(name, _)| name.starts_with("mount"));
    hold(Signal::STOP);
    let output = interrupted(&["mount", "--dir", dir, "fs1", mnt], &out, mounts);
    hold(Signal::CONT);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("interrupted; fs1 is not mounted on"), "{said}");
    until("no mount is left", || !mounts());
    // Once it is up, Ctrl-C is how it is stopped.
    cluster.down();
    let output = interrupted(&up, &out, is_up);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    until("nothing runs any more", || cluster.processes().is_empty());
}

#[test]
fn a_returning_pdisk_says_what_it_waits_for() {
    let cluster = Cluster::three(&["--pdisk-size", "128m", "--block-size", "1m"]);
    cluster.kill(|name| name == "n1");
    let file = fs::File::create(cluster.mnt().join("missed")).unwrap();
    file.write_all_at(&vec![1; 4 << 20], 0).unwrap();
    file.sync_all().unwrap();
    // What n1 missed can only be made from both others.
    cluster.kill(|name| name == "n2");
    cluster.start_server("n1");
    let end = Instant::now() + Duration::from_secs(120);
    let dir = cluster.dir();
    let dir = dir.to_str().unwrap();
    loop {
        let list = cluster.json(&["pdisk", "list"]);
        let behind = list.as_array().unwrap().iter().find(|p| p["name"] == "n1p1").unwrap();
        let catch_up = &behind["catch_up"];
        if ["groups_waiting", "waiting"].iter().any(|what| catch_up[what].as_u64().is_some_and(|n| n > 0)) {
            assert!(catch_up["groups"].as_u64() > Some(0) && catch_up["last_reason"] != "", "{list}");
            break;
        }
        assert!(Instant::now() < end, "{list}{}", cluster.logs());
        std::thread::sleep(Duration::from_millis(100));
    }
    until("it is said in the table", || {
        let table = ok(&["pdisk", "list", "--dir", dir]);
        table.contains("n1p1 catches up: ") && table.contains(" wait: ")
    });
    // All is well when it is back.
    cluster.start_server("n2");
    cluster.wait_all_ok(Duration::from_secs(120));
    until("nobody catches up any more", || {
        let list = cluster.json(&["pdisk", "list"]);
        list.as_array().unwrap().iter().all(|p| p["catch_up"].is_null())
    });
}
