//! `ropewalk waiters`: who waits for whom, for what and how long.

use std::collections::HashMap;

use anyhow::Result;
use serde_json::Value;
use wire::admin::AdminRequest;

use super::ask::{Answer, Asked, ask_all, list, text};
use crate::{
    args::Listing,
    output::{self, begin_of, end_of},
};

/// Columns of a process and of whom it waits for.
const NAME_MAX: usize = 15;
/// Columns of what is waited for.
const WHAT_MAX: usize = 30;

/// `ropewalk waiters`: longest first. What a mount is asked by programs, what a process waits for, of others and in itself, what
/// it serves.
pub fn waiters(listing: &Listing) -> Result<()> {
    let Asked { answers, names, all } = ask_all(listing, &AdminRequest::Waiters)?;
    if listing.json {
        output::json(&answers)?;
        return all;
    }
    for a in answers.iter().filter(|a| a.answer.is_none()) {
        output::line(format!("{} does not answer at {}", a.process, a.address));
    }
    output::table(&HEAD, rows(&answers, &names));
    all
}

const HEAD: [&str; 7] = ["PROCESS", "", "PEER", "WHAT", "INODE", "SINCE", "LEFT"];

fn rows(answers: &[Answer], names: &HashMap<String, String>) -> Vec<Vec<String>> {
    let mut of_address = HashMap::new();
    for a in answers {
        of_address.extend(a.addresses.iter().map(|addr| (addr.as_str(), a.process.as_str())));
    }
    let mut rows: Vec<(f64, Vec<String>)> = Vec::new();
    for a in answers {
        let Some(answer) = &a.answer else { continue };
        let number = |value: &Value| value.as_u64().filter(|&n| n > 0);
        let seconds = |s: f64| if s < 10.0 { format!("{s:.3} s") } else { format!("{s:.1} s") };
        let row = |w: &Value, kind: &str, peer: String, what: String| {
            let age = w["age_s"].as_f64().unwrap_or(0.0);
            let cells = vec![
                end_of(&a.process, NAME_MAX),
                kind.to_owned(),
                end_of(&peer, NAME_MAX),
                begin_of(&what, WHAT_MAX),
                number(&w["inode"]).map_or("-".to_owned(), |ino| ino.to_string()),
                seconds(age),
                w["left_s"].as_f64().map_or("-".to_owned(), |left| format!("{left:.1} s")),
            ];
            (age, cells)
        };
        rows.extend(list(&answer["asked"]).iter().map(|w| {
            let by = number(&w["pid"]).map_or("kernel".to_owned(), |pid| format!("pid {pid}"));
            row(w, "asked", by, text(&w["operation"]))
        }));
        rows.extend(list(&answer["inside"]).iter().map(|w| {
            // Work in the background is no program's.
            let operation =
                w["operation"].as_str().map(|operation| format!("{operation}: ")).unwrap_or_default();
            row(w, "waits", "itself".to_owned(), operation + &text(&w["what"]))
        }));
        for (field, kind) in [("waiters", "waits"), ("serving", "serves")] {
            rows.extend(list(&answer[field]).iter().map(|w| {
                let service = text(&w["service"]).to_lowercase();
                let state = w["state"].as_str().map(|state| format!(": {state}")).unwrap_or_default();
                let what = format!("{service} {}{state}", text(&w["class"]));
                row(w, kind, peer_name(&text(&w["peer"]), &of_address, names), what)
            }));
        }
    }
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    rows.into_iter().map(|r| r.1).collect()
}

/// The name that the cluster has for a peer: a process calls those it connected to `NAME at ADDRESS`, the others
/// `NAME process NUMBER`, where the name of one that it does not know is `node3`.
fn peer_name(peer: &str, of_address: &HashMap<&str, &str>, names: &HashMap<String, String>) -> String {
    let named = |node: &str| names.get(node).map_or(node, String::as_str).to_owned();
    match (peer.split_once(" at "), peer.split_once(" process ")) {
        // Who connected from there may be no process that listens there.
        (Some((node, address)), _) => match of_address.get(address) {
            Some(name) => (*name).to_owned(),
            None => peer_name(node, of_address, names),
        },
        (None, Some((name, _))) => named(name),
        (None, None) => named(peer),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_table_fits_a_terminal_and_names_peers() {
        let all = json!({
            "asked": [{ "operation": "wait for a lock", "pid": 4194304, "inode": 12345678, "age_s": 9.9999 }],
            "inside": [
                { "operation": null, "what": "the lease to be renewed", "inode": null, "age_s": 59.99 },
                { "operation": "fallocate", "what": "dirty pages to be written", "inode": 7, "age_s": 0.001 },
            ],
            "waiters": [
                { "peer": "node3 at 127.0.0.1:31999", "service": "Manager", "class": "metadata",
                  "inode": 12345678, "state": "connection", "age_s": 0.25, "left_s": 59.75 },
                { "peer": "a mount on c process 0123456789abcdef", "service": "Callback", "class": "prefetch",
                  "inode": 0, "state": "abandoned", "age_s": 300.0, "left_s": 0.0 },
            ],
            "serving": [{ "peer": "node2 process 00000000000000ff at 10.0.0.2:50000", "service": "Nsd", "class": "write",
                          "inode": 7, "age_s": 1.0, "left_s": 9.0 }],
        });
        let answers = [
            Answer {
                process: "/mnt/a-long/mount-point/of-somebody".into(),
                address: "127.0.0.1:40000".into(),
                addresses: vec!["127.0.0.1:40000".into()],
                answer: Some(all),
            },
            Answer {
                process: "n3".into(),
                address: "10.0.0.3:31999".into(),
                addresses: vec!["10.0.0.3:31999".into(), "127.0.0.1:31999".into()],
                answer: None,
            },
        ];
        let names = [("node2".to_owned(), "n2".to_owned())].into();
        let rows = rows(&answers, &names);
        assert_eq!(rows.len(), 6);
        assert_eq!(rows[0][2..4], ["a mount on c", "callback prefetch: abandoned"]);
        assert!(rows.iter().any(|r| r[2] == "n3"), "{rows:?}");
        assert!(rows.iter().any(|r| r[2] == "n2"), "{rows:?}");
        let table = output::table_text(&HEAD, rows);
        assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    }
}
