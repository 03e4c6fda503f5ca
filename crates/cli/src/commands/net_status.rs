//! `ropewalk net status`: who is connected to whom, a line a peer; each connection with `--details`.
//!
//! A peer is named here by its other end: the process that says it has the same connection, seen from its side; one that does
//! not answer is called what it has said itself. Commands come and go and are left out.

use std::collections::{BTreeSet, HashMap};

use anyhow::Result;
use base::units::human_size;
use serde_json::Value;
use wire::admin::AdminRequest;

use crate::{
    args::NetStatus,
    commands::ask::{Answer, Asked, ask_all, list, size, text},
    link::COMMAND,
    output::{self, end_of},
};

/// Columns of a name; of a longer one its end is shown.
const NAME_MAX: usize = 24;

/// Does it.
pub fn status(args: &NetStatus) -> Result<()> {
    let Asked { mut answers, names, all } = ask_all(&args.listing, &AdminRequest::Net)?;
    name_peers(&mut answers, &names);
    if args.listing.json {
        output::json(&answers)?;
        return all;
    }
    let mut rows = Vec::new();
    let mut remarks = Vec::new();
    for a in &answers {
        let Some(peers) = &a.answer else {
            remarks.push(format!("{} does not answer at {}", a.process, a.address));
            continue;
        };
        for peer in list(peers) {
            remarks.extend(peer_remarks(&a.process, peer));
            if args.details {
                rows.extend(list(&peer["connections"]).iter().map(|c| connection_row(&a.process, peer, c)));
            } else if shown(&answers, peer) {
                rows.push(peer_row(&a.process, peer));
            }
        }
    }
    let head: &[&str] = match args.details {
        true => &[
            "PROCESS",
            "PEER",
            "LANE",
            "RAIL",
            "LOCAL",
            "REMOTE",
            "STATE",
            "BY",
            "PROTECTED",
            "LINK OUT",
            "BACK",
            "SENT",
            "RECEIVED",
            "FRAMES",
            "MB/s",
            "RTT us",
            "RETR",
            "UNANSWERED",
            "BYTES",
        ],
        false => &["PROCESS", "PEER", "CONNS", "BY", "PROTECTED", "SENT", "RECEIVED", "RTT us", "WAITING"],
    };
    output::table(head, rows);
    remarks.iter().for_each(output::line);
    all
}

/// Gives each peer the name that the cluster has for it.
pub fn name_peers(answers: &mut [Answer], names: &HashMap<String, String>) {
    let mut of_address = HashMap::new();
    let mut of_ends = HashMap::new();
    for a in answers.iter() {
        of_address.extend(a.addresses.iter().map(|addr| (addr.clone(), a.process.clone())));
        for c in a.answer.iter().flat_map(list).flat_map(|peer| list(&peer["connections"])) {
            of_ends.insert((text(&c["remote"]), text(&c["local"])), a.process.clone());
        }
    }
    for peer in answers.iter_mut().filter_map(|a| a.answer.as_mut()?.as_array_mut()).flatten() {
        let dialed = list(&peer["addrs"]).iter().find_map(|addr| of_address.get(&text(addr)));
        let met = || {
            let ends = list(&peer["connections"]).iter().map(|c| (text(&c["local"]), text(&c["remote"])));
            ends.into_iter().find_map(|ends| of_ends.get(&ends))
        };
        if let Some(name) = dialed.or_else(met) {
            peer["name"] = name.clone().into();
        } else if let Some((node, rest)) = text(&peer["name"]).split_once(' ')
            && let Some(name) = names.get(node)
        {
            peer["name"] = format!("{name} {rest}").into();
        }
    }
}

/// A peer has a line at the process that connected to the other, or, if that does not answer, at the other. Commands and
/// those who have gone have none.
fn shown(answers: &[Answer], peer: &Value) -> bool {
    let answers_itself = || answers.iter().any(|a| a.answer.is_some() && peer["name"] == a.process);
    match list(&peer["addrs"]).is_empty() {
        false => true,
        true => {
            !text(&peer["name"]).starts_with(COMMAND)
                && !list(&peer["connections"]).is_empty()
                && !answers_itself()
        }
    }
}

fn peer_row(process: &str, peer: &Value) -> Vec<String> {
    let connections = list(&peer["connections"]);
    let sum = |field: &str| connections.iter().filter_map(|c| c[field].as_u64()).sum::<u64>();
    let slowest = connections.iter().filter_map(|c| c["tcp"]["rtt_us"].as_u64()).max();
    let all = |of: fn(&Value) -> String| {
        let all: BTreeSet<String> = connections.iter().map(of).collect();
        all.into_iter().collect::<Vec<_>>().join(", ")
    };
    let not_active = connections.iter().filter(|c| c["state"] != "active").count();
    let count = match not_active {
        0 => connections.len().to_string(),
        n => format!("{} ({n} not in use)", connections.len()),
    };
    vec![
        end_of(process, NAME_MAX),
        end_of(text(&peer["name"]).split(" process ").next().unwrap_or_default(), NAME_MAX),
        count,
        all(transport),
        all(protection),
        human_size(sum("sent_bytes")),
        human_size(sum("received_bytes")),
        slowest.map_or("-".to_owned(), |us| us.to_string()),
        sum("requests_unanswered").to_string(),
    ]
}

/// How a connection is protected, in the words of `cipherList`: by the name of its cipher where everything is encrypted.
fn protection(c: &Value) -> String {
    if c["encrypted"] == true { text(&c["cipher"]) } else { text(&c["protection"]) }
}

/// What a connection goes by: of builds from before there was a choice it is TCP.
fn transport(c: &Value) -> String {
    c["transport"].as_str().unwrap_or("tcp").to_owned()
}

fn connection_row(process: &str, peer: &Value, c: &Value) -> Vec<String> {
    let tcp = |field: &str| c["tcp"][field].as_u64().map_or("-".to_owned(), |n| n.to_string());
    let path = |side: &str| c["path"][side].as_str().filter(|s| !s.is_empty()).unwrap_or("-").to_owned();
    let frames = c["frames_sent"].as_u64().unwrap_or(0) + c["frames_received"].as_u64().unwrap_or(0);
    let rate = c["bytes_per_second"].as_f64().unwrap_or(0.0) / 1e6;
    vec![
        process.to_owned(),
        text(&peer["name"]),
        text(&c["lane"]),
        text(&c["rail"]),
        text(&c["local"]),
        text(&c["remote"]),
        text(&c["state"]),
        transport(c),
        protection(c),
        path("out"),
        path("back"),
        size(&c["sent_bytes"]),
        size(&c["received_bytes"]),
        frames.to_string(),
        if rate > 0.0 { format!("{rate:.0}") } else { "-".to_owned() },
        tcp("rtt_us"),
        tcp("retransmits"),
        text(&c["requests_unanswered"]),
        size(&c["unanswered_bytes"]),
    ]
}

fn peer_remarks(process: &str, peer: &Value) -> Vec<String> {
    let name = text(&peer["name"]);
    let mut remarks = Vec::new();
    for rail in list(&peer["rails"]) {
        let addr = text(&rail["addr"]);
        if rail["up"] == false {
            remarks.push(format!("{process}: {name}: rail {addr} is left: {}", text(&rail["last_error"])));
        }
        if let Some(reason) = rail["placement"]["reason"].as_str() {
            let verified = match rail["placement"]["verified"].as_bool() {
                Some(true) => " (the counters agree)",
                Some(false) => " (the counters do not agree)",
                None => "",
            };
            remarks.push(format!("{process}: {name}: rail {addr}: {reason}{verified}"));
        }
    }
    if peer["replaced"].as_u64().is_some_and(|n| n > 0) {
        remarks.push(format!("{process}: {name}: {} connections replaced", peer["replaced"]));
    }
    remarks
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn peers_are_named_by_their_other_end_and_commands_and_who_has_gone_are_left_out() {
        let ends =
            |local: &str, remote: &str| json!([{ "local": local, "remote": remote, "state": "active" }]);
        let answer = |process: &str, address: &str, peers: Value| Answer {
            process: process.into(),
            address: address.into(),
            addresses: vec![address.into()],
            answer: Some(peers),
        };
        let mut all = [
            answer(
                "manager",
                "m:1",
                json!([
                    { "name": "node1 process 7", "role": "server", "addrs": [], "connections": ends("m:1", "n:9") },
                    { "name": "a command on m process 8", "role": "admin", "addrs": [], "connections": ends("m:1", "c:3") },
                    { "name": "a client on c process 9", "role": "client", "addrs": [], "connections": ends("m:1", "c:4") },
                    { "name": "node0 process 10", "role": "client", "addrs": [], "connections": [] },
                ]),
            ),
            answer(
                "n1",
                "n:1",
                json!([{ "name": "node0 at m:1", "role": "manager", "addrs": ["m:1"], "connections": ends("n:9", "m:1") }]),
            ),
        ];
        name_peers(&mut all, &HashMap::new());
        let names = |a: &Answer| -> Vec<(String, bool)> {
            list(a.answer.as_ref().unwrap()).iter().map(|p| (text(&p["name"]), shown(&all, p))).collect()
        };
        let of_manager = [
            ("n1", false),
            ("a command on m process 8", false),
            ("a client on c process 9", true),
            ("node0 process 10", false),
        ];
        assert_eq!(names(&all[0]), of_manager.map(|(name, shown)| (name.to_owned(), shown)));
        assert_eq!(names(&all[1]), [("manager".to_owned(), true)]);
        assert_eq!(end_of(&format!("/tmp/{}", "x".repeat(40)), NAME_MAX).chars().count(), NAME_MAX);
    }
}
