//! `cipherList` and `transport` of a whole cluster: changed while programs work, kept for the next start, said by `net status`; and a server
//! killed while its connections go by memory. Needs root.
#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::{
    fs,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use common::{Cluster, ok, refused, until};

/// The connections that take requests between processes of the cluster.
fn connections(cluster: &Cluster) -> Vec<serde_json::Value> {
    let answers = cluster.json(&["net", "status"]);
    let peers =
        answers.as_array().unwrap().iter().flat_map(|a| a["answer"].as_array().cloned().unwrap_or_default());
    peers
        // Commands come and go.
        .filter(|peer| peer["role"] != "admin")
        .flat_map(|peer| peer["connections"].as_array().unwrap().clone())
        .filter(|c| c["state"] == "active")
        .collect()
}

/// Whether all of these, of which there are some, go by this where they carry payloads.
fn all_go_by(cluster: &Cluster, transport: &str) -> bool {
    let mut bulk = connections(cluster);
    bulk.retain(|c| c["lane"] == "bulk");
    !bulk.is_empty() && bulk.iter().all(|c| c["transport"] == transport)
}

/// Whether all of these, of which there are some, are protected so.
fn all_are(cluster: &Cluster, protection: &str, cipher: Option<&str>) -> bool {
    let connections = connections(cluster);
    let is = |c: &serde_json::Value| c["protection"] == protection && c["cipher"].as_str() == cipher;
    connections.iter().any(|c| c["lane"] == "bulk") && connections.iter().all(is)
}

/// Ends the load of a test, also of one that fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn it_changes_while_the_cluster_works_and_stays() {
    let cluster = Cluster::three(&["--pdisk-size", "96m"]);
    let dir = cluster.dir();
    let dir = dir.to_str().unwrap();
    let set = |list: &str| ok(&["config", "set", "--dir", dir, &format!("cipherList={list}")]);
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _end = Stop(&stop);
        let worker = scope.spawn(|| {
            let whole: Vec<u8> =
                (0..3_000_001u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            let file = cluster.mnt().join("file");
            while !stop.load(Ordering::Relaxed) {
                fs::write(&file, &whole).unwrap();
                fs::File::open(&file).unwrap().sync_all().unwrap();
                assert!(fs::read(&file).unwrap() == whole);
                written.fetch_add(1, Ordering::Relaxed);
            }
        });
        for (list, protection, cipher) in [
            ("authonly", "AUTHONLY", Some("AES128-GCM-SHA256")),
            ("AES256-GCM-SHA384", "ENCRYPTED", Some("AES256-GCM-SHA384")),
            ("EMPTY", "EMPTY", None),
            ("AUTHONLY", "AUTHONLY", Some("AES128-GCM-SHA256")),
        ] {
            set(list);
            let before = written.load(Ordering::Relaxed);
            until(list, || {
                all_are(&cluster, protection, cipher) && written.load(Ordering::Relaxed) > before + 1
                    || worker.is_finished()
            });
        }
        for (transport, by) in [("auto", "shm"), ("tcp", "tcp"), ("auto", "shm")] {
            ok(&["config", "set", "--dir", dir, &format!("transport={transport}")]);
            let before = written.load(Ordering::Relaxed);
            until(transport, || {
                all_go_by(&cluster, by) && written.load(Ordering::Relaxed) > before + 1
                    || worker.is_finished()
            });
        }
        until("it is shown", || ok(&["net", "status", "--dir", dir]).contains("shm"));
        // The code bears it: the mount goes on, without the server and with it.
        let goes_on = |what: &str| {
            let before = written.load(Ordering::Relaxed);
            until(what, || written.load(Ordering::Relaxed) > before + 1 || worker.is_finished());
        };
        cluster.kill(|name| name == "n2");
        goes_on("a server is dead");
        cluster.start_server("n2");
        goes_on("it is back");
        until("by memory again", || all_go_by(&cluster, "shm") || worker.is_finished());
    });
    // It is known before anybody is asked, and then is not that of `cluster.toml`.
    cluster.down();
    cluster.start();
    assert_eq!(fs::read_to_string(cluster.dir().join("cipher-list")).unwrap(), "AUTHONLY\n");
    let bytes = fs::read(cluster.mnt().join("file")).unwrap();
    assert_eq!(bytes.len(), 3_000_001);
    until("kept", || all_are(&cluster, "AUTHONLY", Some("AES128-GCM-SHA256")));
    let error = refused(&["config", "set", "--dir", dir, "cipherList=AES128-SHA"]);
    assert!(error.contains("AES128-GCM-SHA256, AES256-GCM-SHA384, CHACHA20-POLY1305-SHA256"), "{error}");
    let error = refused(&["up", "--dir", dir, "--cipher-list", "DEFAULT", "--detach"]);
    assert!(error.contains("ropewalk config set cipherList=DEFAULT"), "{error}");
    set("auto");
    until("as cluster.toml says", || all_are(&cluster, "EMPTY", None));
    until("nothing else is kept", || !cluster.dir().join("cipher-list").exists());
    cluster.down();
}
