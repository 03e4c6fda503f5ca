//! Story: a cluster of several machines (hosts: network namespaces with addresses of their own), made by `init`, tokens and
//! `join`. What a token lets in and what it does not; all machines off and on again, in any order; a client that mounts.
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

#[path = "common/beds.rs"]
mod beds;
mod common;
#[path = "common/hosts.rs"]
mod hosts;

use std::{fs, os::unix::fs::PermissionsExt};

use beds::Bed;
use common::{Random, copy_tree, same_tree, seed, until, write_tree};
use hosts::{Down, Machine, states, well};

#[test]
fn machines_join_with_tokens_and_serve_together() {
    let bed = Bed::up("join", &["--hosts", "5"]);
    let base = tempfile::Builder::new().prefix("ropewalk-join-").tempdir().unwrap();
    let machines: Vec<Machine<'_>> = (1..=5).map(|host| Machine::new(&bed, base.path(), host)).collect();
    let [first, second, third, fourth, client] = &machines[..] else { unreachable!() };
    let _down = Down(machines.iter().collect());
    let disk = first.dir.with_extension("disk");
    let place = ["--pdisk", disk.to_str().unwrap(), "--pdisk-size", "192m"];
    let addr = bed.addr(0);
    let said =
        first.ok(&[&["init", "--name", "rope", "--node", "h1", "--address", &addr], &place[..]].concat());
    assert!(said.contains("node token"), "{said}");

    // Who has no token that holds gets nothing, and leaves nothing.
    let token = first.token(&[]);
    let (head, tail) = token.split_once('@').unwrap();
    let parts: Vec<&str> = head.split('.').collect();
    let with = |at: usize, part: String| {
        let mut parts: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
        parts[at] = part;
        format!("{}@{tail}", parts.join("."))
    };
    let addr = bed.addr(1);
    for (wrong, why) in [
        (with(4, "0".repeat(64)), "no such token"),
        (with(2, "0".repeat(16)), "no such token"),
        (with(5, "0".repeat(64)), "no manager of the token's cluster"),
        (token[..100].to_owned(), "no token"),
        (first.token(&["--lifetime", "1s"]), "expired"),
    ] {
        std::thread::sleep(std::time::Duration::from_millis(if why == "expired" { 1500 } else { 0 }));
        let error = second.refused(&["join", &wrong, "--address", &addr, "--name", "h2"]);
        assert!(error.contains(why), "{why}: {error}");
        assert!(!second.dir.exists(), "{why}");
    }
    // Its own server may be late for a moment.
    until("h1 serves, and nobody else is there", || {
        states(first) == [("h1".to_owned(), "serves".to_owned())]
    });

    // Its own key, readable by nobody else; the cluster's secret does not come with it.
    second.join(&token);
    let keys = second.dir.join("keys");
    for file in ["machine.key", "machine.crt", "authority.crt"] {
        assert_eq!(fs::metadata(keys.join(file)).unwrap().permissions().mode() & 0o777, 0o600, "{file}");
    }
    assert!(!fs::read_to_string(second.dir.join("cluster.toml")).unwrap().contains("secret"));
    let error = third.refused(&["join", &token, "--address", &bed.addr(2), "--name", "h3"]);
    assert!(error.contains("another machine") && !third.dir.exists(), "{error}");
    // Two at once by one token: one of them gets in.
    let token = first.token(&["--role", "client"]);
    let both = ["one", "other"].map(|name| Machine::at(&bed, base.path().join(name), 5));
    let let_in = std::thread::scope(|scope| {
        let joining = both
            .each_ref()
            .map(|m| scope.spawn(|| m.run(&["join", &token, "--name", "spare"]).status.success()));
        joining.map(|join| join.join().unwrap())
    });
    assert_eq!(let_in.iter().filter(|joined| **joined).count(), 1, "{let_in:?}");
    assert_eq!(both.map(|machine| machine.dir.exists()), let_in);
    first.ok(&["node", "revoke", "spare"]);
    // Two at once: each gets pdisks of its own.
    std::thread::scope(|scope| {
        let joining = [third, fourth].map(|machine| scope.spawn(|| machine.join(&first.token(&[]))));
        joining.into_iter().for_each(|join| drop(join.join().unwrap()));
    });
    until("all pdisks are ok", || well(first));
    let nodes: serde_json::Value = serde_json::from_str(&first.ok(&["node", "list", "--json"])).unwrap();
    assert!(nodes.as_array().unwrap().iter().all(|node| node["pdisks"] == 1), "{nodes}");
    let names: Vec<String> = states(fourth).into_iter().map(|(name, _)| name).collect();
    let mut names = names;
    names.sort();
    assert_eq!(names, ["h1", "h2", "h3", "h4"]);

    first.ok(&["pool", "create", "data", "--code", "2+1p", "--block-size", "1m"]);
    first.ok(&["fs", "create", "fs1", "--pool", "data"]);
    let said = client.ok(&["join", &first.token(&["--role", "client"]), "--name", "laptop"]);
    assert!(said.contains("ropewalk mount"), "{said}");
    let mnt = base.path().join("mnt");
    fs::create_dir(&mnt).unwrap();
    let mount = ["mount", "fs1", mnt.to_str().unwrap()];
    client.ok(&mount);
    let tree = base.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let mut random = Random(seed());
    write_tree(&tree, 120, &mut random);
    copy_tree(&tree, &mnt.join("in"));
    same_tree(&tree, &mnt.join("in"));
    // Whose certificate says client is no administrator.
    for words in [
        &["config", "set", "leaseDuration=7s"][..],
        &["fs", "delete", "fs1", "--yes"],
        &["node", "remove", "h2"],
        &["pdisk", "fail", "h2p1"],
    ] {
        let error = client.refused(words);
        assert!(error.contains("may not"), "{words:?}: {error}");
    }
    client.refused(&["node", "token"]);

    // An administrator's machine may; and it may mount.
    let desk = &Machine::at(&bed, base.path().join("desk"), 5);
    desk.ok(&["join", &first.token(&["--role", "admin"]), "--name", "desk"]);
    desk.ok(&["config", "set", "operationDeadline=50s"]);

    // All machines off, and on again in another order.
    common::ok(&["umount", mnt.to_str().unwrap()]);
    [third, first, fourth, second].iter().for_each(|machine| drop(machine.ok(&["down"])));
    std::thread::scope(|scope| {
        let starting: Vec<_> = [fourth, third, second, first]
            .iter()
            .map(|machine| scope.spawn(|| machine.ok(&["up", "--detach"])))
            .collect();
        starting.into_iter().for_each(|start| drop(start.join().unwrap()));
    });
    until("all nodes serve again", || well(first));
    client.ok(&mount);
    same_tree(&tree, &mnt.join("in"));

    // Who is shut out changes nothing any more, and does not come back; others go on.
    let members = || -> Vec<(String, String, String)> {
        let members: serde_json::Value =
            serde_json::from_str(&desk.ok(&["node", "members", "--json"])).unwrap();
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let row = |m: &serde_json::Value| (text(&m["name"]), text(&m["role"]), text(&m["state"]));
        let mut rows: Vec<_> = members.as_array().unwrap().iter().map(row).collect();
        rows.sort();
        rows
    };
    let row = |(name, role, state): (&str, &str, &str)| (name.to_owned(), role.to_owned(), state.to_owned());
    let all = [
        ("desk", "admin", "member"),
        ("h2", "server", "member"),
        ("h3", "server", "member"),
        ("h4", "server", "member"),
        ("laptop", "client", "member"),
        ("spare", "client", "revoked"),
    ];
    assert_eq!(members(), all.map(row));
    assert!(client.refused(&["node", "revoke", "desk"]).contains("may not"));
    assert!(desk.refused(&["node", "revoke", "nobody"]).contains("node members"));
    desk.ok(&["node", "revoke", "laptop"]);
    assert_eq!(members()[4], row(("laptop", "client", "revoked")));
    // In effect at every process: nobody has a connection with its machine, on which no other process runs.
    let its = format!("{}:", bed.addr(4));
    until("no process is connected with it", || {
        let all = first.json(&["net", "status"]);
        let peers = |process: &serde_json::Value| process["answer"].as_array().cloned();
        let all: Option<Vec<_>> = all.as_array().unwrap().iter().map(peers).collect();
        let remote = |c: &serde_json::Value| c["remote"].as_str().unwrap().starts_with(&its);
        let with_it = |peer: &serde_json::Value| peer["connections"].as_array().unwrap().iter().any(remote);
        all.is_some_and(|all| !all.concat().iter().any(with_it))
    });
    fs::write(mnt.join("after"), "after")
        .and_then(|()| fs::File::open(mnt.join("after"))?.sync_all())
        .unwrap_err();
    client.ok(&["umount", "--force", mnt.to_str().unwrap()]);
    for words in [&mount[..], &["status"]] {
        let error = client.refused(words);
        assert!(error.contains("revoked"), "{words:?}: {error}");
    }
    let again = &Machine::at(&bed, base.path().join("again"), 5);
    again.ok(&["join", &first.token(&["--role", "client"]), "--name", "laptop"]);
    for machine in [desk, again] {
        machine.ok(&mount);
        same_tree(&tree, &mnt.join("in"));
        assert!(!mnt.join("after").exists());
        common::ok(&["umount", mnt.to_str().unwrap()]);
    }
}
