//! Story: a cluster is made, used, looked at, stopped and brought back; a server is lost and returns.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

mod common;
#[path = "common/prometheus.rs"]
mod prometheus;

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    time::Duration,
};

use common::{Cluster, Random, copy_tree, ports::Ports, same_tree, until, write_tree};

#[test]
fn data_is_there_again_after_down_and_up() {
    let mut random = Random(common::seed());
    let cluster = Cluster::up(&["--pdisk-size", "512m"]);
    let local = tempfile::tempdir().unwrap();
    let bytes = write_tree(local.path(), 120, &mut random);
    copy_tree(local.path(), &cluster.mnt().join("tree"));
    same_tree(local.path(), &cluster.mnt().join("tree"));

    let fs_list = cluster.json(&["fs", "list"]);
    assert_eq!((fs_list[0]["name"].as_str(), fs_list[0]["code"].as_str()), (Some("fs1"), Some("4+2p")));
    assert!(fs_list[0]["inodes"].as_u64().unwrap() > 120);
    let pools = cluster.json(&["pool", "list"]);
    assert_eq!((pools[0]["pdisks"].as_u64(), pools[0]["node_losses_survived"].as_u64()), (Some(8), Some(1)));
    assert_eq!(cluster.json(&["pdisk", "list"]).as_array().unwrap().len(), 8);

    cluster.down();
    assert!(cluster.processes().is_empty(), "{:?}", cluster.processes());
    cluster.start();
    same_tree(local.path(), &cluster.mnt().join("tree"));
    // The pdisks tell it once they have begun.
    until("what is used is told", || {
        cluster.json(&["fs", "df"])[0]["used_bytes"].as_u64().unwrap() >= bytes / 2
    });

    let mut status = serde_json::Value::Null;
    until("it is well, and every process answers", || {
        status = cluster.json(&["status"]);
        let mut all = status["processes"].as_array().unwrap().iter();
        status["well"] == true && all.all(|p| p["status"]["statistics"].is_object())
    });
    assert_eq!(status["processes"].as_array().unwrap().len(), 6, "manager, four nodes, one mount: {status}");
    connections_are_shown_and_follow_their_tunable(&cluster);
    cluster.down();
}

fn connections_are_shown_and_follow_their_tunable(cluster: &Cluster) {
    let dir = cluster.dir();
    let set = |value: &str| {
        let pair = format!("maxTcpConnsPerNodeConn={value}");
        common::ok(&["config", "set", "--dir", dir.to_str().unwrap(), &pair]);
    };
    // The mount's bulk connections to its servers, where they are in use.
    let bulk = |cluster: &Cluster| -> Vec<usize> {
        let all = cluster.json(&["net", "status"]);
        let mount = all.as_array().unwrap().iter().find(|p| p["process"] == cluster.mnt().to_str().unwrap());
        // None: it does not answer in time.
        let peers = mount.unwrap()["answer"].as_array().cloned().unwrap_or_default();
        let active = |c: &&serde_json::Value| c["lane"] == "bulk" && c["state"] == "active";
        let count =
            |p: &serde_json::Value| p["connections"].as_array().unwrap().iter().filter(active).count();
        peers.iter().map(count).filter(|&n| n > 0).collect()
    };
    for (value, wanted) in [("5", 5), ("1", 1)] {
        set(value);
        let began = std::time::Instant::now();
        loop {
            fs::write(cluster.mnt().join("some"), vec![7; 4 << 20]).unwrap();
            let now = bulk(cluster);
            if now.len() == 4 && now.iter().all(|&n| n == wanted) {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(120), "{value}: {now:?}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    until("everybody says who waits", || {
        let waiters = cluster.json(&["waiters"]);
        waiters.as_array().unwrap().iter().all(|p| p["answer"]["waiters"].is_array())
    });
    common::refused(&["config", "set", "--dir", dir.to_str().unwrap(), "maxTcpConnsPerNodeConn=17"]);
}

#[test]
fn a_server_dies_and_returns_under_load() {
    let mut random = Random(common::seed());
    let cluster = Cluster::up(&["--pdisk-size", "512m"]);
    let local = tempfile::tempdir().unwrap();
    write_tree(local.path(), 60, &mut random);
    let tree = cluster.mnt().join("tree");
    let copy = |to: &str| copy_tree(local.path(), &cluster.mnt().join(to));
    copy("tree");
    for victim in ["n2", "n4"] {
        cluster.kill(|name| name == victim);
        // Reading goes on at once, by parity; writing goes on when the lease of the dead server has run out.
        same_tree(local.path(), &tree);
        copy(&format!("without-{victim}"));
        same_tree(local.path(), &cluster.mnt().join(format!("without-{victim}")));
        let status = cluster.json(&["status"]);
        assert_eq!(status["well"], false, "{status}");
        cluster.start_server(victim);
        // It is back: nobody may have noticed yet that it was gone.
        cluster.wait_reported(Duration::from_secs(120));
        cluster.wait_all_ok(Duration::from_secs(120));
    }
    // What was written while they were away must be whole without the other servers.
    cluster.down();
    cluster.start();
    cluster.kill(|name| name == "n1");
    for to in ["tree", "without-n2", "without-n4"] {
        same_tree(local.path(), &cluster.mnt().join(to));
    }
}

/// Disks die while the cluster is down: their nodes serve what they have left, and it is said which are gone.
#[test]
fn pdisks_that_cannot_be_opened_are_left_out() {
    let cluster = Cluster::up(&["--pdisk-size", "256m", "--block-size", "1m"]);
    let local = tempfile::tempdir().unwrap();
    write_tree(local.path(), 20, &mut Random(3));
    let tree = cluster.mnt().join("tree");
    copy_tree(local.path(), &tree);
    cluster.down();
    let place = |pdisk: &str| cluster.dir().join("nodes").join(pdisk);
    let data = fs::OpenOptions::new().write(true).open(place("n1/pdisk1/data")).unwrap();
    data.set_len(data.metadata().unwrap().len() / 2).unwrap();
    fs::remove_dir_all(place("n3/pdisk2")).unwrap();
    cluster.start();
    same_tree(local.path(), &tree);
    fs::write(tree.join("more"), vec![7; 3 << 20]).unwrap();
    fs::File::open(tree.join("more")).unwrap().sync_all().unwrap();
    let missing = || {
        let list = cluster.json(&["pdisk", "list"]);
        let gone = list.as_array().unwrap().iter().filter(|p| p["state"] == "missing");
        gone.map(|p| p["id"].to_string()).collect::<Vec<_>>()
    };
    // Another one may be late for a moment.
    until("those two are missing", || missing().len() == 2);
    assert_eq!(fs::read(tree.join("more")).unwrap(), vec![7; 3 << 20]);
    cluster.down();
}

#[test]
fn the_manager_dies_and_returns_under_load() {
    let cluster = Cluster::up(&["--pdisk-size", "256m"]);
    let path = cluster.mnt().join("log");
    let mut file = fs::File::create(&path).unwrap();
    for round in 0..3u8 {
        file.write_all(&vec![round + 1; 300_000]).unwrap();
        file.sync_all().unwrap();
        cluster.kill(|name| name == "manager");
        cluster.start_server("manager");
        fs::write(cluster.mnt().join(format!("made-{round}")), "x").unwrap();
    }
    let bytes = fs::read(&path).unwrap();
    assert_eq!(bytes.len(), 900_000);
    assert!(bytes.chunks(300_000).enumerate().all(|(i, c)| c.iter().all(|&b| b == i as u8 + 1)));
    drop(file);
    cluster.down();
}

const SMALL: [&str; 8] = ["--nodes", "1", "--pdisks", "1", "--code", "1way", "--pdisk-size", "256m"];

/// What is shown at a port to who asks for metrics.
/// The processes get it from the command that starts them, and would refuse it when all is made.
#[test]
fn a_count_of_threads_that_is_none_is_refused_before_anything_is_made() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("cluster");
    let dir = dir.to_str().unwrap();
    let up = [&["up", "--detach", "--dir", dir][..], &SMALL].concat();
    let join = ["join", "--dir", dir, "a-token"];
    for words in [&up[..], &["init", "--dir", dir, "--address", "127.0.0.1"], &join] {
        let mut command = Command::new(common::ROPEWALK);
        let ended = command.args(words).env("ROPEWALK_RUNTIME_THREADS", "many").output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(
            said.contains("ROPEWALK_RUNTIME_THREADS=many") && said.contains("1 to 1024"),
            "{words:?}: {said}"
        );
        assert_eq!(
            (ended.status.code(), fs::read_dir(place.path()).unwrap().count()),
            (Some(1), 0),
            "{words:?}"
        );
    }
}

fn shown(port: u16) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

#[test]
fn ports_that_metrics_cannot_have_are_refused_and_nothing_is_changed() {
    let ports = Ports::take();
    let port = |n: u16| (ports.first + n).to_string();
    let cluster = Cluster::prepare(&[]);
    let (dir, mnt) = (cluster.dir(), cluster.mnt());
    let common = ["up", "--detach", "--dir", dir.to_str().unwrap()];
    let up = |options: &[&str]| common::ok(&[&common[..], options].concat());
    let not = |options: &[&str]| common::refused(&[&common[..], options].concat());
    let other = TcpListener::bind(("127.0.0.1", ports.first + 1)).unwrap();
    let said = not(&[&SMALL[..], &["--metrics", &port(0)]].concat());
    assert!(
        said.contains(&format!(":{}", port(1))) && said.contains("stop the program") && !dir.exists(),
        "{said}"
    );

    for option in ["--analytics", "--metrics"] {
        let said = not(&[&SMALL[..], &["--port", &port(4), option, &port(5)]].concat());
        assert!(said.contains(option) && !said.contains("stop the program") && !dir.exists(), "{said}");
    }

    // Manager, server, mount: the first two are at these ports and the next.
    up(&[&SMALL[..], &["--port", &port(4), "--mount", mnt.to_str().unwrap()]].concat());
    let file = || fs::read_to_string(dir.join("cluster.toml")).unwrap();
    let (before, ran) = (file(), cluster.processes());
    for (options, says) in [
        (&["--metrics", &port(0)][..], "stop the program"),
        (&["--metrics", "127.0.0.1:0"], "name a port"),
        (&["--metrics", "127.0.0.1:65534"], "beyond 65535"),
        (&["--metrics", "here"], "on loopback"),
        (&["--metrics", &port(3)], "is that of manager"),
        (&["--metrics", &port(8), "--analytics", &port(10)], "the page of analytics"),
    ] {
        let said = not(options);
        assert!(said.contains(says), "{options:?}: {said}");
        assert_eq!((file(), cluster.processes()), (before.clone(), ran.clone()), "{options:?}");
    }

    drop(other);
    // A program that another test has just begun has for a moment all that was open here.
    until("its ports are free", || {
        common::ropewalk(&[&common[..], &["--metrics", &port(0)]].concat()).status.success()
    });
    let said = not(&["--analytics", &port(2)]);
    assert!(said.contains("the page of analytics") && said.contains("--metrics"), "{said}");
    cluster.down();
    up(&[]);
    let are_shown = |n: u16| shown(ports.first + n).is_ok_and(|said| said.starts_with("HTTP/1.0 200"));
    until("metrics are shown", || (0..3).all(are_shown));
    // Whose a port is that the cluster has already is said all the same.
    let said = not(&["--analytics", &port(2)]);
    assert!(said.contains("the page of analytics") && !said.contains("stop the program"), "{said}");
    // Somebody else has one of them: the cluster is up all the same, and takes it when it is free.
    cluster.down();
    let other = std::cell::OnceCell::new();
    until("its port is free", || {
        TcpListener::bind(("127.0.0.1", ports.first + 1)).is_ok_and(|own| other.set(own).is_ok())
    });
    let up_says = || {
        let said = common::done(|| common::ropewalk(&common));
        assert!(said.status.success());
        String::from_utf8(said.stderr).unwrap()
    };
    let said = up_says();
    let port_and_remedies = [&*format!("127.0.0.1:{}, ", port(1)), "`ss -ltnp`", "--metrics off"];
    assert!(port_and_remedies.iter().all(|words| said.contains(words)), "{said}");
    until("the others show theirs", || are_shown(0) && are_shown(2));
    drop(other);
    until("they are shown there", || are_shown(1));
    // What its own processes have is no stranger's.
    let said = up_says();
    assert!(!said.contains("metrics"), "{said}");
    let remembered = file();
    up(&["--metrics", &port(0)]);
    assert_eq!(file(), remembered);
    up(&["--metrics", &port(1)]);
    assert_ne!(file(), remembered);
    up(&["--metrics", "off"]);
    assert_eq!(file(), before);
    cluster.down();
    up(&[]);
    assert!(shown(ports.first).is_err());
    cluster.down();
}

#[test]
fn metrics_are_served_over_http() {
    let ports = Ports::take();
    // Manager, server, mount.
    let addresses = [0, 1, 2].map(|n| format!("127.0.0.1:{}", ports.first + n));
    let cluster = Cluster::up(&[&SMALL[..], &["--metrics", &addresses[0]]].concat());
    let mnt = cluster.mnt();
    common::ok(&["umount", mnt.to_str().unwrap()]);
    let address = &addresses[2];
    common::ok(&[
        "mount",
        "--dir",
        cluster.dir().to_str().unwrap(),
        "fs1",
        mnt.to_str().unwrap(),
        "--metrics",
        address,
    ]);
    fs::write(mnt.join("f"), vec![7; 1 << 20]).unwrap();
    // What the dashboard draws by kinds that are made when they are met: an error of an operation, a lock.
    assert!(fs::remove_dir(mnt.join("f")).is_err());
    assert!(Command::new("flock").arg(mnt.join("f")).arg("true").status().unwrap().success());
    let text = shown(ports.first + 2).unwrap();
    assert!(text.starts_with("HTTP/1.0 200") && text.contains("# TYPE ropewalk_"), "{text}");
    prometheus::takes(text.split_once("\r\n\r\n").unwrap().1, &addresses, ports.first + 3);
    cluster.down();
}

#[test]
fn who_was_just_ending_when_it_was_looked_for_is_started_all_the_same() {
    let cluster = Cluster::up(&["--nodes", "1", "--pdisks", "1", "--pdisk-size", "256m", "--code", "1way"]);
    cluster.kill(|name| name == "manager");
    // A process that still lives at the first look, as one that was killed does while its threads end.
    let mut ending = Command::new("sleep").arg("2").spawn().unwrap();
    let stat = fs::read_to_string(format!("/proc/{}/stat", ending.id())).unwrap();
    let ticks = base::proc_stat::start_ticks(&stat).unwrap();
    fs::write(cluster.dir().join("run/manager.pid"), format!("{}\n{ticks}\n", ending.id())).unwrap();
    cluster.start();
    ending.wait().unwrap();
    assert!(cluster.processes().iter().any(|(name, _)| name == "manager"));
}

#[test]
fn unmounted_and_mounted_at_once_without_an_error_in_the_log() {
    let cluster = Cluster::up(&["--nodes", "1", "--pdisks", "1", "--pdisk-size", "256m", "--code", "1way"]);
    let (dir, mnt) = (cluster.dir(), cluster.mnt());
    for round in 0..15 {
        // The mount's process has something to write when the kernel has let it go.
        fs::write(mnt.join(format!("f{round}")), vec![round; 3 << 20]).unwrap();
        // A program that another test has just begun has for a moment all that was open here.
        until("it is unmounted", || {
            match rustix::mount::unmount(&mnt, rustix::mount::UnmountFlags::empty()) {
                Err(rustix::io::Errno::BUSY) => false,
                done => done.map(|()| true).unwrap(),
            }
        });
        common::ok(&["mount", "--dir", dir.to_str().unwrap(), "fs1", mnt.to_str().unwrap()]);
        assert_eq!(fs::read(mnt.join(format!("f{round}"))).unwrap(), vec![round; 3 << 20]);
    }
    common::ok(&["umount", mnt.to_str().unwrap()]);
    for entry in fs::read_dir(dir.join("log")).unwrap() {
        let path = entry.unwrap().path();
        let log = fs::read_to_string(&path).unwrap();
        let errors: Vec<&str> = log.lines().filter(|line| line.contains(" ERROR ")).collect();
        assert!(errors.is_empty(), "{}: {errors:#?}", path.display());
    }
    cluster.down();
}

#[test]
fn a_pdisk_is_named_in_the_file_before_the_manager_hears_of_it() {
    let cluster = Cluster::up(&["--nodes", "1", "--pdisks", "1", "--pdisk-size", "256m", "--code", "1way"]);
    let (dir, file) = (cluster.dir(), cluster.dir().join("cluster.toml"));
    let d = dir.to_str().unwrap();
    // The file cannot be written: nothing moves to a pdisk that no server would ever open.
    fs::create_dir(dir.join("cluster.toml.new")).unwrap();
    let before = fs::read_to_string(&file).unwrap();
    let said = common::refused(&["pdisk", "add", "--dir", d, "n1"]);
    assert!(said.contains("cluster.toml"), "{said}");
    assert_eq!(cluster.json(&["pdisk", "list"]).as_array().unwrap().len(), 1);
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
    fs::remove_dir(dir.join("cluster.toml.new")).unwrap();
    // Interrupted between the two: the node serves what the cluster knows.
    let more = "[[nodes.pdisks]]\nid = 7\ndir = \"nodes/n1/pdisk-7\"\nsize = \"256m\"\n";
    // Who edits it takes the first line away, which holds its sum.
    fs::write(&file, format!("{}\n{more}", before.split_once('\n').unwrap().1)).unwrap();
    cluster.kill(|name| name == "n1");
    cluster.start_server("n1");
    fs::write(cluster.mnt().join("f"), "written").unwrap();
    // It is back: nobody may have noticed yet that it was gone.
    cluster.wait_reported(Duration::from_secs(60));
    cluster.wait_all_ok(Duration::from_secs(60));
    // And then it is added as any other.
    common::ok(&["pdisk", "add", "--dir", d, "n1"]);
    assert_eq!(cluster.json(&["pdisk", "list"]).as_array().unwrap().len(), 2);
    cluster.down();
}

/// `pdisk add` has read the file when somebody else changes another part of it: that stays.
#[test]
fn what_is_changed_in_the_file_while_a_pdisk_is_added_is_kept() {
    let cluster = Cluster::up(&SMALL);
    let (dir, file) = (cluster.dir(), cluster.dir().join("cluster.toml"));
    let held = fs::File::open(&dir).unwrap();
    held.lock().unwrap();
    let words = ["pdisk", "add", "--dir", dir.to_str().unwrap(), "n1"];
    let mut adding = None;
    until("it waits for the lock, which is held by who changes the file", || {
        let child: &mut Child =
            adding.get_or_insert_with(|| Command::new(common::ROPEWALK).args(words).spawn().unwrap());
        if common::processes::waits_for_lock(child.id()) {
            return true;
        }
        // The manager was not heard in time.
        if child.try_wait().unwrap().is_some() {
            adding = None;
        }
        false
    });
    let before = fs::read_to_string(&file).unwrap();
    // Who edits it takes the first line away, which holds its sum.
    let changed = format!("analytics = \"127.0.0.1:9\"\n{}", before.split_once('\n').unwrap().1);
    fs::write(&file, changed).unwrap();
    held.unlock().unwrap();
    // The manager may not be heard after that either.
    let is_added = adding.unwrap().wait().unwrap().success();
    let now = fs::read_to_string(&file).unwrap();
    assert!(now.contains("127.0.0.1:9"), "{now}");
    assert!(!is_added || now.matches("[[nodes.pdisks]]").count() == 2, "{now}");
    cluster.down();
}

/// `node set` was killed when it had changed the file: the same command restarts the server.
#[test]
fn an_address_that_only_the_file_has_is_taken_by_the_same_command() {
    let (cluster, ports) = (Cluster::up(&SMALL), Ports::take());
    let (dir, port) = (cluster.dir(), ports.first.to_string());
    let at = || cluster.json(&["node", "list"])[0]["addresses"][0].as_str().unwrap().to_owned();
    let (file, before, wanted) = (dir.join("cluster.toml"), at(), format!("127.0.0.1:{port}"));
    let text = fs::read_to_string(&file).unwrap();
    // Who edits it takes the first line away, which holds its sum.
    fs::write(&file, text.split_once('\n').unwrap().1.replace(&before, &wanted)).unwrap();
    let d = dir.to_str().unwrap();
    common::ok(&["node", "set", "--dir", d, "n1", "--address", "127.0.0.1", "--port", &port]);
    assert_eq!(at(), wanted);
    cluster.down();
}
