//! Story: wrong command lines and wrong surroundings. Each is a message that names the value and the
//! remedy, a non-zero exit, and nothing changed.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

mod common;

use std::{fs, net::TcpListener, path::Path};

use common::{Cluster, ok, refused};

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
    let cluster = Cluster::up(&["--nodes", "3", "--pdisks", "1", "--code", "2+1p", "--pdisk-size", "256m"]);
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

    // Mounting.
    let mnt = cluster.mnt();
    let error = refused(&["mount", "--dir", dir, "fs1", mnt.to_str().unwrap()]);
    assert!(error.contains("mount point already") && error.contains("umount"), "{error}");
    let other = tempfile::tempdir().unwrap();
    let error = refused(&["mount", "--dir", dir, "fs7", other.path().to_str().unwrap()]);
    assert!(error.contains("fs7"), "{error}");
    let error = refused(&["mount", "--dir", dir, "fs1", other.path().to_str().unwrap()]);
    assert!(error.contains(mnt.to_str().unwrap()), "the holder's mount point is named: {error}");
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
    fs::write(copy.path().join("cluster.toml"), toml.replace("nodes/n1/pdisk1", absolute.to_str().unwrap()))
        .unwrap();
    for sub in ["run", "log"] {
        fs::create_dir(copy.path().join(sub)).unwrap();
    }
    let error = refused(&["serve", "--dir", copy.path().to_str().unwrap(), "--name", "n1"]);
    assert!(error.contains("pdisk1") && error.contains("open in another process"), "{error}");
    cluster.down();
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
