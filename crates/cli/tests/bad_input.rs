//! Story: wrong command lines and wrong surroundings. Each is a message that names the value and the
//! remedy, a non-zero exit, and nothing changed.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

mod common;

use std::{
    ffi::OsStr,
    fs,
    io::Write,
    net::TcpListener,
    os::unix::ffi::OsStrExt,
    path::Path,
    process::{Command, Stdio},
};

use common::{Cluster, copy_tree, heard, ok, refused, until};

/// `up` with these options must be refused, name all of `words`, and leave no directory behind.
fn up_refused(options: &[&str], words: &[&str]) {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("cluster");
    let args: Vec<&str> = ["up", "--detach", "--dir", dir.to_str().unwrap()]
        .into_iter()
        .chain(options.iter().copied())
        .collect();
    let error = refused(&args);
    for word in words {
        assert!(error.contains(word), "{options:?}: {word:?} is not in: {error}");
    }
    assert!(!dir.exists(), "{options:?} left {}", dir.display());
}

#[test]
fn options_are_checked_before_anything_is_made() {
    up_refused(&["--frobnicate"], &["--frobnicate"]);
    up_refused(&["--pdisk-size", "4x"], &["4x", "--pdisk-size"]);
    up_refused(&["--pdisk-size", "1"], &["--pdisk-size 1", "at least"]);
    up_refused(&["--pdisk-size", "4000p"], &["4000p", "free"]);
    up_refused(&["--code", "5+5p"], &["5+5p", "4+2p"]);
    up_refused(&["--code", "8+3p"], &["8+3p", "11"]);
    up_refused(&["--block-size", "3m"], &["--block-size 3m", "power of two"]);
    up_refused(&["--block-size", "32m"], &["--block-size 32m", "16m"]);
    up_refused(&["--nodes", "0"], &["0", "--nodes"]);
    up_refused(&["--port", "65535"], &["65535"]);
    up_refused(&["--mount", "/no/such/place"], &["/no/such/place", "mkdir -p"]);
    up_refused(&["--mount", "/etc/passwd"], &["/etc/passwd", "not a directory"]);
}

#[test]
fn a_taken_port_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    up_refused(&["--port", &port], &[&port, "taken", "--port"]);
}

#[test]
fn a_directory_with_other_things_stays_as_it_is() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("thesis.txt"), "years of work").unwrap();
    let error = refused(&["up", "--detach", "--dir", root.path().to_str().unwrap()]);
    assert!(error.contains("not empty"), "{error}");
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    let error = refused(&["status", "--dir", root.path().to_str().unwrap()]);
    assert!(error.contains("holds no cluster") && error.contains("ropewalk up"), "{error}");
}

#[test]
fn an_existing_cluster_is_not_bent_to_other_options() {
    let cluster = Cluster::three(&["--pdisk-size", "256m"]);
    let dir = cluster.dir();
    let dir = dir.to_str().unwrap();
    for (option, value) in [
        ("--nodes", "5"),
        ("--pdisks", "2"),
        ("--code", "3way"),
        ("--block-size", "1m"),
        ("--pdisk-size", "1g"),
    ] {
        let error = refused(&["up", "--detach", "--dir", dir, option, value]);
        assert!(
            error.contains(&format!("{option} {value}")) && error.contains("leave the option out"),
            "{error}"
        );
    }

    // A second process for the same place.
    let error = refused(&["serve", "--dir", dir, "--name", "n1"]);
    assert!(error.contains("n1 runs already"), "{error}");
    assert!(cluster.processes().iter().any(|(name, _)| name == "n1"), "the one that runs is still known");
    let error = refused(&["serve", "--dir", dir, "--name", "n9"]);
    assert!(error.contains("n9") && error.contains("n3"), "{error}");

    // Nodes.
    for command in [&["show"][..], &["remove"], &["rename"]] {
        let new: &[&str] = if command == ["rename"] { &["n10"] } else { &[] };
        let error = refused(&[&["node"], command, &["--dir", dir, "n9"], new].concat());
        assert!(error.contains("there is no node n9; there are n1, n2, n3"), "{error}");
    }
    let error = refused(&["node", "remove", "--dir", dir, "n2"]);
    assert!(error.contains("n2 has pdisks: n2p1") && error.contains("node drain"), "{error}");
    for name in ["a b", "_n", "manager", "n1"] {
        let error = refused(&["node", "rename", "--dir", dir, "n2", name]);
        assert!(error.contains(name), "{error}");
    }
    // One rule for the names of all that is new, which the command knows as well as the manager.
    let init = ["init", "--dir", "/nowhere", "--address", "127.0.0.1"];
    for name in ["", "..", "-x", "a/b", "\u{1b}[2J", &"n".repeat(64)] {
        let (rack, cluster, node) =
            (format!("--rack={name}"), format!("--name={name}"), format!("--node={name}"));
        for command in [
            &["fs", "create", "--dir", dir, "--pool", "pool1", "--", name][..],
            &["pool", "create", "--dir", dir, "--code", "1way", "--block-size", "1m", "--", name],
            &["node", "rename", "--dir", dir, "--", "n2", name],
            &["node", "set", "--dir", dir, "n2", &rack],
            &["manager", "add", "--dir", dir, "--", name],
            &["join", "--dir", "/nowhere", &cluster, "token"],
            &[&init[..], &[&cluster]].concat(),
            &[&init[..], &[&node]].concat(),
            &[&init[..], &[&rack]].concat(),
        ] {
            let error = refused(command);
            assert!(error.contains(&format!("{name:?} is no name of a ")), "{command:?}: {error}");
            assert!(error.contains("1 to 63 letters"), "{command:?}: {error}");
        }
    }
    assert_eq!(cluster.json(&["node", "list"])[1]["name"], "n2");

    // Mounting.
    let mnt = cluster.mnt();
    let error = refused(&["mount", "--dir", dir, "fs1", mnt.to_str().unwrap()]);
    assert!(error.contains("mount point already") && error.contains("umount"), "{error}");
    let other = tempfile::tempdir().unwrap();
    let error = refused(&["mount", "--dir", dir, "fs7", other.path().to_str().unwrap()]);
    assert!(error.contains("fs7"), "{error}");
    let error = refused(&["mount", "--dir", dir, "fs1", "/no/such/place"]);
    assert!(error.contains("/no/such/place") && error.contains("mkdir"), "{error}");

    // Unmounting what is in use, and what is not a mount.
    let open = fs::File::create(mnt.join("open")).unwrap();
    let error = refused(&["umount", mnt.to_str().unwrap()]);
    assert!(error.contains("in use") && error.contains("--force"), "{error}");
    drop(open);
    let error = refused(&["umount", other.path().to_str().unwrap()]);
    assert!(error.contains("not a ropewalk mount"), "{error}");

    // Configuration.
    let error = refused(&["config", "set", "--dir", dir, "pagepol=1g"]);
    assert!(error.contains("pagepol") && error.contains("pagepool"), "{error}");
    let error = refused(&["config", "set", "--dir", dir, "pagepool=huge"]);
    assert!(error.contains("pagepool") && error.contains("huge"), "{error}");
    cluster.down();
}

#[test]
fn a_pdisk_of_another_cluster_is_refused() {
    let options = ["--nodes", "1", "--pdisks", "1", "--code", "1way", "--pdisk-size", "256m"];
    let (a, b) = (Cluster::up(&options), Cluster::up(&options));
    a.down();
    b.down();
    let place = Path::new("nodes/n1/pdisk1");
    fs::rename(a.dir().join(place), a.dir().join("nodes/own")).unwrap();
    fs::rename(b.dir().join(place), a.dir().join(place)).unwrap();
    let error = refused(&["up", "--detach", "--dir", a.dir().to_str().unwrap()]);
    assert!(error.contains("cluster") && error.contains("pdisk1"), "{error}");
}

#[test]
fn a_pdisk_that_another_process_has_open_is_refused() {
    let cluster = Cluster::up(&["--nodes", "1", "--pdisks", "1", "--code", "1way", "--pdisk-size", "256m"]);
    // The same pdisk under another name in another directory, as a copied cluster.toml would do.
    let copy = tempfile::tempdir().unwrap();
    let toml = fs::read_to_string(cluster.dir().join("cluster.toml")).unwrap();
    let absolute = cluster.dir().join("nodes/n1/pdisk1");
    // Who edits it takes the first line away, which holds its sum.
    let edited = toml.split_once('\n').unwrap().1.replace("nodes/n1/pdisk1", absolute.to_str().unwrap());
    fs::write(copy.path().join("cluster.toml"), edited).unwrap();
    for sub in ["run", "log"] {
        fs::create_dir(copy.path().join(sub)).unwrap();
    }
    let error = refused(&["serve", "--dir", copy.path().to_str().unwrap(), "--name", "n1"]);
    assert!(error.contains("pdisk1") && error.contains("open in another process"), "{error}");
    cluster.down();
}

#[test]
fn a_directory_where_another_up_is_at_work_is_left_to_it() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("nodes")).unwrap();
    let marker = fs::File::create(root.path().join(".making-cluster")).unwrap();
    marker.lock().unwrap();
    let error = refused(&["up", "--detach", "--dir", root.path().to_str().unwrap()]);
    assert!(
        error.contains(root.path().to_str().unwrap()) && error.contains("another `ropewalk up`"),
        "{error}"
    );
    assert!(root.path().join("nodes").exists());
}

#[test]
fn a_cluster_file_that_cannot_be_used_is_named() {
    let root = tempfile::tempdir().unwrap();
    let toml = root.path().join("cluster.toml");
    for (text, words) in [
        ("nonsense", ["damaged", "restore"]),
        (
            "format = 99\nname = \"x\"\nid = \"00\"\ncode = \"1way\"\nblock_size = \"4m\"\nmanager = \"127.0.0.1:1\"\nnodes = []\n",
            ["99", "version"],
        ),
    ] {
        fs::write(&toml, text).unwrap();
        for command in ["up", "status", "down"] {
            let error = refused(&[command, "--dir", root.path().to_str().unwrap()]);
            assert!(error.contains(toml.to_str().unwrap()), "{command}: {error}");
            assert!(words.iter().all(|word| error.contains(word)), "{command}: {error}");
        }
        assert_eq!(fs::read_to_string(&toml).unwrap(), text);
    }
    let error = refused(&["up", "--detach", "--dir", toml.to_str().unwrap()]);
    assert!(error.contains(toml.to_str().unwrap()) && error.contains("directory"), "{error}");
}

#[test]
fn a_full_disk_is_said_and_nothing_is_left_on_it() {
    let root = tempfile::tempdir().unwrap();
    let small = root.path().join("small");
    fs::create_dir(&small).unwrap();
    rustix::mount::mount("tmpfs", &small, "tmpfs", rustix::mount::MountFlags::empty(), c"size=100m").unwrap();
    let dir = small.join("cluster");
    let arguments = ["up", "--detach", "--nodes", "1", "--pdisks", "1", "--code", "1way"];
    // The data fits, the log beside it does not.
    let arguments = arguments.into_iter().chain(["--pdisk-size", "98m", "--dir", dir.to_str().unwrap()]);
    let error = refused(&arguments.collect::<Vec<_>>());
    let left = dir.exists();
    rustix::mount::unmount(&small, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert!(error.contains("pdisk1") && error.contains("No space left"), "{error}");
    assert!(!left, "the directory is left: {error}");
}

#[test]
fn what_is_wrong_with_a_cluster_that_was_stopped_is_named() {
    let options = ["--nodes", "1", "--pdisks", "1", "--code", "1way", "--pdisk-size", "64m"];
    let cluster = Cluster::up(&options);
    let (dir, mnt) = (cluster.dir(), cluster.mnt());
    let (dir, mnt) = (dir.to_str().unwrap(), mnt.to_str().unwrap());
    fs::write(cluster.mnt().join("kept"), "as it was").unwrap();
    cluster.down();

    // Its port is taken by somebody else.
    let toml = fs::read_to_string(cluster.dir().join("cluster.toml")).unwrap();
    let manager =
        toml.lines().find_map(|l| l.strip_prefix("manager = ")).unwrap().trim_matches('"').to_owned();
    let taken = TcpListener::bind(&manager).unwrap();
    let error = refused(&["up", "--detach", "--dir", dir]);
    assert!(error.contains(&manager) && error.contains("ss -ltnp"), "{error}");
    drop(taken);

    // A disk is not plugged in. What other tests begin has the socket for a moment more.
    let (place, away) = (cluster.dir().join("nodes/n1/pdisk1"), cluster.dir().join("nodes/away"));
    fs::rename(&place, &away).unwrap();
    until("the disk is missed", || {
        let error = refused(&["up", "--detach", "--dir", dir]);
        println!("{error}");
        error.contains("pdisk1")
    });
    fs::rename(&away, &place).unwrap();

    // Something lies in the mount point: it would be hidden.
    fs::write(cluster.mnt().join("hidden"), "x").unwrap();
    let error = refused(&["up", "--detach", "--dir", dir]);
    assert!(error.contains(mnt) && error.contains("not empty"), "{error}");
    fs::remove_file(cluster.mnt().join("hidden")).unwrap();
    until("a refused up leaves nothing running", || cluster.processes().is_empty());

    // Nobody may use FUSE.
    cluster.start();
    ok(&["umount", mnt]);
    let open_to_all = "chmod a+rx \"$0\"/.. && chmod -R a+rwX \"$0\"";
    assert!(Command::new("sh").args(["-c", open_to_all, dir]).status().unwrap().success());
    let program = cluster.dir().with_file_name("ropewalk"); // where everybody may run it
    // By another program: nobody has it open for writing when it runs, not even what other tests begin.
    copy_tree(Path::new(common::ROPEWALK), &program);
    let mut nobody = Command::new("setpriv");
    nobody.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(program);
    nobody.args(["mount", "--dir", dir, "fs1", mnt]);
    let mount = heard(|| nobody.output().unwrap());
    let error = String::from_utf8_lossy(&mount.stderr);
    assert!(!mount.status.success() && error.contains(mnt) && error.contains("ermission"), "{error}");

    ok(&["mount", "--dir", dir, "fs1", mnt]);
    assert_eq!(fs::read_to_string(cluster.mnt().join("kept")).unwrap(), "as it was");
    cluster.down();
}

/// Opening a FIFO waits for who writes to it, and a device has no end: neither is waited for.
#[test]
fn what_is_no_file_is_refused_and_not_waited_for() {
    let root = tempfile::tempdir().unwrap();
    let fifo = root.path().join("fifo");
    let toml = root.path().join("cluster.toml");
    for path in [&fifo, &toml] {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    }
    let (fifo, dir) = (fifo.to_str().unwrap(), root.path().to_str().unwrap());
    let new = root.path().join("new");
    let init = ["init", "--dir", new.to_str().unwrap(), "--address", "127.0.0.1", "--port", "1"];
    let etcd = ["--store", "etcds://127.0.0.1:1/x", "--etcd-ca", fifo];
    let run = |command: &[&str], input: Stdio| {
        let words = ["60", common::ROPEWALK].iter().chain(command);
        let ended = Command::new("timeout").args(words).stdin(input).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!ended.status.success() && ended.status.code() != Some(124), "{command:?}: {ended:?}");
        said
    };
    for command in [
        &["lab", "run", fifo, "--dry-run"][..],
        &["lab", "workload", "analytics-20", "--values", fifo],
        &["netperf", "uperf", "run", fifo],
        &["analytics", "replay", fifo, "--once"],
        &["analytics", "query", "file.ops", "--recording", fifo],
        &["advise", fifo],
        &["advise", "diff", fifo, fifo],
        &["advise", "facts", "--from", fifo],
        &["status", "--dir", dir],
        &[&init[..], &etcd].concat(),
    ] {
        let said = run(command, Stdio::null());
        assert!(said.contains("it is no file but a FIFO"), "{command:?}: {said}");
    }
    let said = run(&["analytics", "replay", "/dev/zero", "--once"], Stdio::null());
    assert!(said.contains("/dev/zero: it is no file but a device"), "{said}");
    assert!(!new.exists());

    // What somebody holds the other end of is read.
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"name = 5").unwrap();
    drop(writer);
    let said = run(&["lab", "run", "/dev/stdin", "--dry-run"], reader.into());
    assert!(said.contains("/dev/stdin, line 1, key \"name\": it is 5; write a text in quotes"), "{said}");
}

#[test]
fn what_is_no_text_is_no_end_of_a_command() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join(OsStr::from_bytes(b"a\xff"));
    let mut create = Command::new(common::ROPEWALK);
    create.args(["perf", "create", "seq"]).arg(&file).args(["-r", "4k", "-n", "8k", "--json"]);
    // It is in no cluster, wherever that is.
    let made = create.env("ROPEWALK_DIR", root.path().join("gone")).output().unwrap();
    let said = common::succeeded(&["perf"], made);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["runs"][0]["bytes"], 8192);
    assert_eq!(fs::metadata(&file).unwrap().len(), 8192);
}

/// A script tells a measurement that was stopped from one that failed.
#[test]
fn a_job_that_is_stopped_says_so() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("f");
    let path = file.to_str().unwrap();
    fs::write(&file, vec![0; 1 << 20]).unwrap();
    let words = ["perf", "mixrw", "rand", path, "-r", "4k", "-n", "1000000000R", "-readratio", "50"];
    let mut job = Command::new(common::ROPEWALK).args(words).stdout(Stdio::null()).spawn().unwrap();
    // It begins with the file open.
    common::until("it has the file", || {
        let open = fs::read_dir(format!("/proc/{}/fd", job.id())).unwrap().flatten();
        open.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|path| path == file)
    });
    let pid = rustix::process::Pid::from_child(&job);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(job.wait().unwrap().code(), Some(130));
}

#[test]
fn help_shows_examples() {
    for command in
        [vec!["up"], vec!["down"], vec!["serve"], vec!["mount"], vec!["umount"], vec!["status"], vec![]]
    {
        let mut args = command.clone();
        args.push("--help");
        assert!(ok(&args).contains("Example"), "{command:?}");
    }
    assert!(ok(&["completion", "bash"]).contains("ropewalk"));
}

#[test]
fn a_measurement_is_refused_beside_anothers_files_and_an_interrupted_one_leaves_none() {
    let root = tempfile::tempdir().unwrap();
    let (dir, left) = (root.path().to_str().unwrap(), root.path().join("pdisk-bench"));
    fs::create_dir(&left).unwrap();
    fs::write(left.join("thesis.txt"), "years of work").unwrap();
    let error = refused(&["pdisk", "bench", dir, "--no-fio"]);
    assert!(error.contains(left.to_str().unwrap()) && error.contains("rm -r"), "{error}");
    assert_eq!(fs::read_to_string(left.join("thesis.txt")).unwrap(), "years of work");
    fs::remove_dir_all(&left).unwrap();

    let program = env!("CARGO_BIN_EXE_ropewalk");
    let options = ["pdisk", "bench", dir, "--no-fio", "--size", "64m", "--seconds", "60"];
    let mut measuring = Command::new(program).args(options).spawn().unwrap();
    common::until("it begins", || left.join("0/log").exists());
    let pid = rustix::process::Pid::from_child(&measuring);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(measuring.wait().unwrap().code(), Some(130));
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0, "nothing is left");
}

/// A token is in the list of processes for a moment, not for as long as joining takes.
#[test]
fn the_list_of_processes_shows_no_token() {
    let root = tempfile::tempdir().unwrap();
    // Nobody answers there.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let secret = "5e".repeat(32);
    let token = format!(
        "rw1.client.00000000000000aa.9999999999.{secret}.{}@{}",
        "11".repeat(32),
        silent.local_addr().unwrap()
    );
    let dir = root.path().join("joined");
    let mut join = Command::new(common::ROPEWALK)
        .args(["join", &token, "--dir", dir.to_str().unwrap()])
        .spawn()
        .unwrap();
    let shown = format!("/proc/{}/cmdline", join.id());
    common::until("the token is out of sight", || {
        let words = fs::read_to_string(&shown).unwrap();
        words.contains("join\0-\0") && !words.contains(&secret)
    });
    silent.accept().unwrap();
    assert!(join.try_wait().unwrap().is_none(), "it goes on");
    join.kill().unwrap();
    join.wait().unwrap();
}
