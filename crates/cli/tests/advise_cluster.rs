//! The advisor over a cluster of several machines (hosts: network namespaces with settings of their own): what one of them
//! has wrong is told of that one, and it is named as the odd one out; who does not answer is named. And the way between
//! two hosts, tried with echoes.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

#[path = "common/beds.rs"]
mod beds;
mod common;
#[path = "common/hosts.rs"]
mod hosts;

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Output, Stdio},
};

use beds::Bed;
use hosts::{Down, Machine};
use serde_json::Value;

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

/// The rules that the machine of this name breaks.
fn found(report: &Value, machine: &str) -> Vec<String> {
    let machines = report["machines"].as_array().unwrap();
    let machine = machines.iter().find(|m| m["name"] == machine).unwrap_or_else(|| panic!("{machine}"));
    let findings = machine["findings"].as_array().unwrap().iter();
    findings.map(|f| f["rule"].as_str().unwrap().to_owned()).collect()
}

/// What all machines are told, once all of them answer: a busy one may take a while to be connected to.
fn all_told(machine: &Machine<'_>) -> Value {
    let mut told = Value::Null;
    common::until("every process answers", || {
        let output = machine.run(&["advise", "--cluster", "--json"]);
        told = report(&output);
        // 3: the manager was not heard, or somebody is silent.
        output.status.code() != Some(3)
    });
    told
}

fn on(bed: &Bed, host: usize, script: &str) -> String {
    let output = bed.exec(&format!("h{host}"), &["sh", "-c", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_odd_machine_is_named_and_so_is_a_silent_one() {
    let bed = Bed::up("adv", &["--hosts", "3", "--join", "subnets"]);
    let base = tempfile::Builder::new().prefix("ropewalk-adv-").tempdir().unwrap();
    let machines: Vec<Machine<'_>> =
        (1..=3).map(|host| Machine::new(&bed, base.path(), host).with_sys()).collect();
    let [first, second, third] = &machines[..] else { unreachable!() };
    let _down = Down(machines.iter().collect());
    first.begin(&["init", "--name", "rope", "--node", "h1"]);
    second.join(&first.token(&[]));
    third.join(&first.token(&[]));

    let before = all_told(first);
    assert_eq!(before["machines"].as_array().unwrap().len(), 3, "{before}");
    assert!((1..=3).all(|n| !found(&before, &format!("h{n}")).contains(&"tcp-no-sack".to_owned())));
    on(&bed, 2, "echo 0 > /proc/sys/net/ipv4/tcp_sack");
    on(&bed, 3, "ip link set dev l1 mtu 1400");
    let after = all_told(first);
    let broken = |name: &str| found(&after, name).contains(&"tcp-no-sack".to_owned());
    assert_eq!((broken("h1"), broken("h2"), broken("h3")), (false, true, false));
    let differences = after["differences"].as_array().unwrap();
    let odd = differences.iter().find(|d| d["path"] == "sysctl.net.ipv4.tcp_sack").unwrap();
    assert_eq!((&odd["usual"], &odd["odd"]), (&"1".into(), &serde_json::json!([["h2", "0"]])), "{odd}");

    // Both ends of a link: the network that the machines reach each other by.
    let between = &after["between"][0];
    assert_eq!(between["rule"], "ends-mtu-differ", "{between}");
    let of = |machine: &str| {
        let evidence = between["evidence"].as_array().unwrap();
        let end = format!(".mtu.{machine}");
        evidence.iter().find(|e| e["fact"].as_str().unwrap().ends_with(&end)).unwrap()["value"].clone()
    };
    assert_eq!((of("h1") == of("h2"), of("h3")), (true, "1400".into()), "{between}");

    common::until("the odd one is named in the text", || {
        let text = String::from_utf8(first.run(&["advise", "--cluster"]).stdout).unwrap();
        assert!(text.lines().all(|line| line.chars().count() <= 110), "{text}");
        text.contains("warning: selective acknowledgement is off [tcp-no-sack]")
            && text.contains("tcp_sack: h2 has 0; the others have 1")
            && text.contains("[ends-mtu-differ]")
            && text.contains("h3 mtu 1400")
    });

    // What they count at the moment: a cluster is never silent for long.
    common::until("all count what they send in a second", || {
        let output = first.run(&["advise", "--cluster", "--over", "1s", "--json"]);
        let counted = report(&output);
        let machines = counted["machines"].as_array().unwrap();
        let sends = |machine: &Value| {
            let facts = &machine["facts"]["entries"];
            let sent = &facts["stat.Tcp.OutSegs_rate"];
            assert!(sent["written"].as_str().unwrap().contains("/s ("), "{sent}");
            assert!(facts["stat.Tcp.OutSegs"].is_null(), "{facts}");
            sent["value"].as_i64().unwrap() > 0
        };
        output.status.code() != Some(3) && machines.len() == 3 && machines.iter().all(sends)
    });

    third.kill();
    // The others are told what they have all the same.
    common::until("the silent one is named", || {
        let output = first.run(&["advise", "--cluster"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{said}");
        said.contains("h3 at ") && String::from_utf8_lossy(&output.stdout).contains("h2: h2")
    });
}

/// A socket that nobody reads, and one that sends to it; says so once its buffer is full. Ends with who reads that.
const FULL: &str = r#"
import select, socket, sys
full = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
full.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
full.bind(("127.0.0.1", 0))
send = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sent = 0
gone = select.poll()
gone.register(sys.stdout, select.POLLERR)
while not gone.poll(0):
    send.sendto(b"x" * 512, full.getsockname())
    sent += 1
    if sent == 5000:
        print("full", flush=True)
"#;

#[test]
fn what_is_dropped_at_the_moment_is_named_as_a_rate() {
    let bed = Bed::up("now", &["--hosts", "2"]);
    on(&bed, 1, "ip link set lo up");
    let advise = |more: &[&str]| -> Vec<(String, String)> {
        let words = [&[common::ROPEWALK, "advise", "--json"], more].concat();
        let report = report(&bed.exec("h1", &words).output().unwrap());
        let text = |of: &Value, name: &str| of[name].as_str().unwrap().to_owned();
        report["findings"].as_array().unwrap().iter().map(|f| (text(f, "rule"), text(f, "title"))).collect()
    };
    let of = |found: &[(String, String)], rule: &str| {
        found.iter().find(|(name, _)| name == rule).map(|(_, title)| title.clone())
    };
    let mut sender = bed.exec("h1", &["python3", "-c", FULL]).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let mut lines = BufReader::new(sender.stdout.take().unwrap());
    lines.read_line(&mut said).unwrap();
    let during = advise(&["--over", "1s"]);
    drop(lines);
    sender.wait().unwrap();
    assert_eq!(said, "full\n");
    let title = of(&during, "now-udp-drops").unwrap_or_else(|| panic!("{during:?}"));
    let rate = title.strip_prefix("UDP packets find their socket's buffer full: ").unwrap();
    assert!(rate.strip_suffix("/s").unwrap().parse::<u64>().unwrap() >= 10, "{title}");
    // It is over: of the moment nothing is said, since boot it is.
    let after = advise(&["--over", "1s"]);
    assert_eq!((of(&after, "now-udp-drops"), of(&after, "tcp-udp-errors")), (None, None));
    let since_boot = of(&advise(&[]), "tcp-udp-errors");
    assert_eq!(since_boot.as_deref(), Some("UDP packets were dropped for want of buffers"));
}

#[test]
fn packets_that_are_lost_on_the_way_are_found_by_trying() {
    let bed = Bed::up("mtu", &["--hosts", "2"]);
    let (there, nowhere) = (bed.addr(1), "192.0.2.1");
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("proc/sys/vm")).unwrap();
    fs::write(root.path().join("proc/sys/vm/swappiness"), "10\n").unwrap();
    let probe = |host: &str| {
        let advise = [common::ROPEWALK, "advise", "--json", "--root", root.path().to_str().unwrap()];
        let output = bed.exec("h1", &[&advise[..], &["--probe", host]].concat()).output().unwrap();
        let rules = report(&output)["findings"].as_array().unwrap().clone();
        let rules: Vec<(String, String)> = rules
            .iter()
            .map(|f| (f["rule"].as_str().unwrap().to_owned(), f["title"].as_str().unwrap().to_owned()))
            .collect();
        rules
    };
    // Of two echoes of a size that come back late on a busy machine it is thought that none passes.
    common::until("nothing is lost on the way", || probe(&there).is_empty());
    // What the far end of its link does not bear is dropped there, without a word.
    on(&bed, 1, "for link in l1 l2; do ip link set dev $link mtu 9000; done");
    common::until("the largest packet that passes is found", || {
        let found = probe(&there);
        println!("{found:?}");
        // A virtual link bears four bytes more, for a tag.
        let told = |title: &str, mtu: u32| {
            title.contains(&format!("packets of {mtu} bytes pass, the interface sends 9000"))
        };
        matches!(&found[..], [(rule, title)] if rule == "net-path-mtu-small" && (told(title, 1500) || told(title, 1504)))
    });
    assert_eq!(probe(nowhere)[0].0, "net-path-silent");
}
