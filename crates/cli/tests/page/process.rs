//! The page as one of the cluster's processes: `up` begins it and remembers it, `status` lists it, `down` ends it; `init` draws its
//! password.

use std::{
    fs,
    net::{TcpListener, TcpStream},
};

use serde_json::Value;

use super::{
    access::by_curl,
    browser::http,
    common::{Cluster, ok, ports::Ports, refused, until},
};

/// What its files are named by.
const PAGE: &str = "analytics@page";

/// What `status` says of the page, and of the cluster.
fn listed(cluster: &Cluster) -> (Option<Value>, Value) {
    let status = cluster.json(&["status"]);
    let all = status["processes"].as_array().unwrap();
    (all.iter().find(|process| process["role"] == "page").cloned(), status)
}

fn pid(cluster: &Cluster) -> Option<i32> {
    cluster.processes().into_iter().find(|(name, _)| name == PAGE).map(|(_, pid)| pid)
}

fn answers(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok() && http(port, "GET", "/api/statistics", &[], "").0 == 200
}

#[test]
fn up_begins_it_and_begins_it_again_and_down_ends_it() {
    let cluster = Cluster::up(&["--nodes", "1", "--pdisks", "1", "--code", "1way", "--pdisk-size", "256m"]);
    let dir = cluster.dir();
    let file = || fs::read_to_string(dir.join("cluster.toml")).unwrap();
    let up = |options: &[&'static str], at: &str| {
        let at = (!at.is_empty()).then_some(at);
        let words = ["up", "--detach", "--dir", dir.to_str().unwrap()];
        words.into_iter().chain(options.iter().copied()).chain(at).map(str::to_owned).collect::<Vec<_>>()
    };
    let words = |all: &[String]| ok(&all.iter().map(String::as_str).collect::<Vec<_>>());
    let not = |all: &[String]| refused(&all.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(listed(&cluster).0, None, "nobody asked for it");

    // What cannot be is said, and nothing is changed.
    let (before, ran) = (file(), cluster.processes());
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = other.local_addr().unwrap().to_string();
    let (_, status) = listed(&cluster);
    let n1 = status["processes"].as_array().unwrap().iter().find(|p| p["name"] == "n1").unwrap();
    for (at, says) in [
        (&*taken, "stop the program that has this port"),
        ("127.0.0.1:0", "name a port"),
        (n1["address"].as_str().unwrap(), "that is the port of n1"),
        ("0.0.0.0:9470", "--analytics-password"),
        ("nowhere", "on loopback"),
    ] {
        let said = not(&up(&["--analytics"], at));
        assert!(said.contains(says), "{at}: {said}");
        assert_eq!((file(), cluster.processes()), (before.clone(), ran.clone()), "{at}");
    }

    // It is there, is listed, and is begun again by the next one.
    let ports = Ports::take();
    let [first, second] = [ports.first, ports.first + 1];
    let said = words(&up(&["--analytics"], &first.to_string()));
    assert!(said.contains(&format!("analytics: http://127.0.0.1:{first}/\n")), "{said}");
    let is_listed = |port: u16| {
        let (page, status) = listed(&cluster);
        let page = page.unwrap_or_else(|| panic!("{status}"));
        let at = format!("127.0.0.1:{port}");
        assert_eq!((&page["name"], &page["address"]), (&"analytics".into(), &at.clone().into()));
        page["status"]["listens"] == at && page["pid"].as_i64() == pid(&cluster).map(i64::from)
    };
    until("it answers", || answers(first));
    until("it is listed", || is_listed(first));
    let before_set = file();
    let port = first.to_string();
    let set =
        ["node", "set", "n1", "--dir", dir.to_str().unwrap(), "--address", "127.0.0.1", "--port", &port];
    let said = refused(&set);
    assert!(said.contains("is for the page of analytics") && file() == before_set, "{said}");
    let begun = pid(&cluster);
    words(&up(&[], ""));
    assert_eq!(pid(&cluster), begun, "it ran");
    cluster.kill(|name| name == PAGE);
    let (page, status) = listed(&cluster);
    assert_eq!((&page.unwrap()["status"], &status["well"]), (&Value::Null, &false.into()));
    let remarks = status["remarks"].as_array().unwrap();
    assert!(
        remarks.iter().any(|remark| remark.as_str().unwrap().contains("the page of analytics")),
        "{status}"
    );
    let said = words(&up(&[], ""));
    assert!(said.contains("analytics: http://"), "{said}");
    until("it answers again", || answers(first));
    assert!(pid(&cluster).is_some() && pid(&cluster) != begun);

    // Elsewhere from now on, also after `down`.
    words(&up(&["--analytics"], &format!("127.0.0.1:{second}")));
    until("it answers there", || answers(second));
    assert!(TcpStream::connect(("127.0.0.1", first)).is_err());
    cluster.down();
    assert_eq!((cluster.processes(), answers(second)), (Vec::new(), false));
    // Its port is another's meanwhile: all else comes up.
    let other = TcpListener::bind(("127.0.0.1", second)).unwrap();
    let said = not(&up(&[], ""));
    assert!(said.contains("all else runs, but not the page"), "{said}");
    assert!(cluster.processes().iter().any(|(name, _)| name == "manager") && pid(&cluster).is_none());
    drop(other);
    // A program that another test has just begun has for a moment all that was open here.
    until("it is there when its port is free", || {
        let up = up(&[], "");
        super::common::ropewalk(&up.iter().map(String::as_str).collect::<Vec<_>>()).status.success()
    });
    until("it is listed", || is_listed(second));

    // And then no longer.
    words(&up(&["--analytics", "off"], ""));
    assert_eq!((pid(&cluster), listed(&cluster).0), (None, None));
    words(&up(&[], ""));
    assert_eq!((pid(&cluster), answers(second), file()), (None, false, before));
    cluster.down();
}

#[test]
fn init_draws_its_password_when_it_is_asked_to() {
    let cluster = Cluster::prepare(&[]);
    let (dir, disk) = (cluster.dir(), cluster.mnt().with_file_name("disk"));
    let ports = Ports::take();
    let (port, page) = (ports.first.to_string(), ports.first + 2);
    let at = format!("0.0.0.0:{page}");
    let init = [
        &["init", "--dir", dir.to_str().unwrap(), "--address", "127.0.0.1", "--node", "n1", "--port", &port]
            [..],
        &["--pdisk", disk.to_str().unwrap(), "--pdisk-size", "192m", "--analytics", &at],
    ]
    .concat();
    let said = refused(&init);
    assert!(said.contains("add --analytics-password") && !dir.exists() && !disk.exists(), "{said}");
    let drawn = |said: &str| {
        let line = said.lines().find(|line| line.starts_with("password of the page")).unwrap();
        let password = line.rsplit(' ').next().unwrap().to_owned();
        assert_eq!(password.len(), 32, "{line}");
        assert!(!fs::read_to_string(dir.join("analytics.password")).unwrap().contains(&password));
        password
    };
    let own = (ports.first + 1).to_string();
    let said = refused(&[&init[..init.len() - 1], &[&own]].concat());
    assert!(said.contains("is for the page of analytics") && !dir.exists(), "{said}");
    let said = ok(&[&init[..], &["--analytics-password"]].concat());
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let url = format!("analytics: https://{}:{page}/\n", name.split('.').next().unwrap());
    assert!(said.contains(&url), "{said}");
    let first = drawn(&said);
    let curl = |password: Option<&str>| {
        let with = password.map(|password| format!("me:{password}"));
        let options: Vec<&str> = with.iter().flat_map(|with| ["-u", with]).collect();
        by_curl(&dir.join("keys/page.crt"), page, &options)
    };
    assert_eq!([curl(None), curl(Some("wrong")), curl(Some(&first))], ["401", "401", "200"]);
    until("it is listed", || listed(&cluster).0.is_some_and(|page| page["status"]["listens"] == at));

    // Another one: that before is worth nothing.
    let up = ["up", "--detach", "--dir", dir.to_str().unwrap(), "--analytics", &at, "--analytics-password"];
    let second = drawn(&ok(&up));
    assert_eq!([curl(Some(&first)), curl(Some(&second))], ["401", "200"]);
    // It stays when nobody asks for another.
    ok(&["down", "--dir", dir.to_str().unwrap()]);
    let said = ok(&up[..4]);
    assert!(!said.contains("password") && said.contains(&url), "{said}");
    assert_eq!([curl(None), curl(Some(&second))], ["401", "200"]);
    cluster.down();
}
