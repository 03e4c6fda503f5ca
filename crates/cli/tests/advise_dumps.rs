//! `advise` on dumps and `advise import-scale` as a user sees them: text, JSON, exit status.
#![allow(clippy::unwrap_used)] // a test that fails here is a test that fails

use std::{
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
};

fn dumps(name: &str) -> String {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../advisor/tests/dumps");
    dir.join(name).to_str().unwrap().to_owned()
}

fn fs_text(name: &str) -> String {
    std::fs::read_to_string(dumps(name)).unwrap()
}

fn advise(args: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ropewalk"))
        .arg("advise")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn files_directories_and_standard_input() {
    let all = advise(&[&dumps("")], b"");
    let said = text(&all);
    for part in [
        "aix_client.txt: ",
        "switch.txt: ",
        "(aix-fc-queues-memory)",
        "Run books",
        "chdev -l fcs0",
        "In order: ",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    assert_eq!(all.status.code(), Some(2), "something critical");
    assert!(said.lines().all(|line| line.chars().count() <= 160 || line.contains("  ")), "{said}");

    // What cannot be read is named, and all else is told; nothing is no report.
    let some = advise(&[&dumps("switch.txt"), "/proc/self/mem"], b"");
    let error = String::from_utf8(some.stderr.clone()).unwrap();
    assert!(
        text(&some).contains("switch.txt: ") && error.contains("1 of 2 not read: read /proc/self/mem"),
        "{error}"
    );
    assert_eq!(some.status.code(), Some(3));
    let packed = advise(&["-"], b"\x1f\x8b\x08\0\0\0");
    assert!(
        packed.status.code() == Some(3) && String::from_utf8_lossy(&packed.stderr).contains("gzip"),
        "{packed:?}"
    );
    let empty = tempfile::tempdir().unwrap();
    let none = advise(&[empty.path().to_str().unwrap()], b"");
    assert!(
        none.status.code() == Some(3) && String::from_utf8_lossy(&none.stderr).contains("no file"),
        "{none:?}"
    );

    let one = advise(&["-"], b"# lsattr -El en3\nthread  off  Enable/Disable thread attribute  True\n");
    assert!(text(&one).contains("aix-dog-threads") && one.status.code() == Some(0), "{}", text(&one));

    // A switch is told of the switch alone, and other roles of all but it.
    let both = format!(
        "{}\n# lsattr -El en3\nthread  off  Enable/Disable thread attribute  True\n",
        fs_text("switch.txt")
    );
    for (role, switch, aix) in [("switch", true, false), ("client", false, true)] {
        let said = text(&advise(&["--role", role, "-"], both.as_bytes()));
        assert_eq!(
            (said.contains("switch-drops"), said.contains("aix-dog-threads")),
            (switch, aix),
            "{role}: {said}"
        );
    }

    let odd = advise(&["--all", "-"], b"tcp_sendspace = 1\nsb_max = 2\nsack = 1\nwhat is this\n");
    assert!(text(&odd).contains("Not understood\n  4: what is this"), "{}", text(&odd));
}

#[test]
fn json_and_explain() {
    let json: serde_json::Value =
        serde_json::from_slice(&advise(&["--json", &dumps("linux_bond.txt")], b"").stdout).unwrap();
    let input = &json["inputs"][0];
    let rules: Vec<&str> =
        input["verdicts"].as_array().unwrap().iter().map(|v| v["rule"].as_str().unwrap()).collect();
    assert!(rules.contains(&"typographic-quotes"), "{rules:?}");
    assert_eq!(input["document"]["unknown"][0][1], "something that no parser knows");
    let said = text(&advise(&["explain", "typographic-quotes"], b""));
    assert!(said.contains("a rule for dumps") && said.contains("straight quotes"), "{said}");
}

#[test]
fn settings_of_scale() {
    let said = text(&advise(&["import-scale", &dumps("scale_cluster.txt")], b""));
    assert!(
        said.contains("ropewalk config set maxTcpConnsPerNodeConn=2 maxblocksize=16m maxMBpS=24000 pagepool=64g workerThreads=1024"),
        "{said}"
    );
    assert!(said.contains("nsdRAIDTracks 131072") && said.contains("index_memory"), "{said}");
    let refused = advise(&["import-scale", "-"], b"hello\n");
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("mmlsconfig"), "{refused:?}");
}

/// What `gpfs.snap` leaves, unpacked: the parts of one node are one setup, whatever their files are called.
#[test]
fn a_directory_of_gpfs_snap() {
    let snap = tempfile::tempdir().unwrap();
    let node = snap.path().join("gpfs.snap.io1_master_1126100000.out");
    let from =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../advisor/tests/snap").join(node.file_name().unwrap());
    for dir in ["", "linux"] {
        std::fs::create_dir_all(node.join(dir)).unwrap();
        for entry in std::fs::read_dir(from.join(dir)).unwrap().map(Result::unwrap) {
            if entry.path().is_file() {
                std::fs::copy(entry.path(), node.join(dir).join(entry.file_name())).unwrap();
            }
        }
    }
    // A part that is no text.
    std::fs::write(node.join("internaldump"), [0u8, 159, 146, 150, 10, 0, 255].repeat(99)).unwrap();
    let all = advise(&[snap.path().to_str().unwrap()], b"");
    let said = text(&all);
    assert_eq!(said.lines().filter(|line| line.contains(" lines: ")).count(), 1, "{said}");
    // Of two files each, with both their lines.
    for part in [
        "(scale-block-above-max)",
        "work: blocks of 8388608, maxblocksize 4194304 [lines mmlsconfig:6, mmlsfs.work:9]",
        "in the dump from line mmdiag.config:1 on",
        "1 connections with 5 nodes",
        "pcie-switch-shared",
        "nic-rss-leaves-rings-out",
        "tcp-no-sack",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    assert!(!said.contains("text-form"), "{said}");
    // Named by themselves they are judged by themselves.
    let [one, other] = ["mmlsconfig", "mmlsfs.work"].map(|name| node.join(name).to_str().unwrap().to_owned());
    let said = text(&advise(&[&one, &other], b""));
    assert!(!said.contains("scale-block-above-max"), "{said}");
}

#[test]
fn what_is_seen_before_any_rule() {
    let lpar = dumps("power_lpar.txt");
    let seen = |words: &[&str]| advise(&[words, &["--from", &lpar]].concat(), b"");
    let said = text(&seen(&["topology"]));
    assert!(said.starts_with("available: ") && said.contains("\nnode 0 cpus: 0 "), "{said}");
    assert!(said.contains("\nfragmentation: "), "{said}");
    let said = text(&seen(&["facts", "numa"]));
    assert!(said.contains("numa.0.cpus") && said.contains("power_lpar.txt:"), "{said}");
    assert!(!said.contains("dma_window."), "{said}");
    let json: serde_json::Value =
        serde_json::from_slice(&seen(&["facts", "numa.0.cpus", "--json"]).stdout).unwrap();
    assert_eq!((&json[0]["path"], json.as_array().unwrap().len()), (&"numa.0.cpus".into(), 1));
    let none = seen(&["facts", "no-such"]);
    assert_eq!((none.status.code(), none.stdout.len()), (Some(1), 0));
    let root = tempfile::tempdir().unwrap();
    let none = advise(&["topology", "--root", root.path().to_str().unwrap()], b"");
    assert_eq!(none.status.code(), Some(1));
}
