//! `ropewalk waiters`: who waits for whom, for what and how long.

use anyhow::Result;
use serde_json::Value;
use wire::admin::AdminRequest;

use super::ask::{ask_all, list, text};
use crate::{args::Listing, output};

/// `ropewalk waiters`: oldest first. What a mount is asked by programs, what a process waits for, of others and in itself, what it
/// serves.
pub fn waiters(listing: &Listing) -> Result<()> {
    let answers = ask_all(listing, &AdminRequest::Waiters)?;
    if listing.json {
        return output::json(&answers);
    }
    let mut rows: Vec<(f64, Vec<String>)> = Vec::new();
    for a in &answers {
        let Some(answer) = &a.answer else {
            output::line(format!("{} does not answer at {}", a.process, a.address));
            continue;
        };
        let dash = || "-".to_owned();
        let number = |value: &Value| value.as_u64().filter(|&n| n > 0);
        let inode = |w: &Value| number(&w["inode"]).map_or_else(dash, |ino| ino.to_string());
        rows.extend(list(&answer["asked"]).iter().map(|w| {
            let age = w["age_s"].as_f64().unwrap_or(0.0);
            let by = number(&w["pid"]).map_or("kernel".to_owned(), |pid| format!("pid {pid}"));
            let (process, operation) = (a.process.clone(), text(&w["operation"]));
            let is = ["asked".to_owned(), by, "mount".to_owned(), operation, inode(w), dash()];
            (age, [vec![process], is.into(), vec![format!("{age:.3} s"), dash()]].concat())
        }));
        rows.extend(list(&answer["inside"]).iter().map(|w| {
            let age = w["age_s"].as_f64().unwrap_or(0.0);
            let by = w["operation"].as_str().unwrap_or("background").to_owned();
            let is = ["waits".to_owned(), "itself".to_owned(), by, dash(), inode(w), text(&w["what"])];
            (age, [vec![a.process.clone()], is.into(), vec![format!("{age:.3} s"), dash()]].concat())
        }));
        for (what, kind) in [("waiters", "waits"), ("serving", "serves")] {
            rows.extend(list(&answer[what]).iter().map(|w| {
                let age = w["age_s"].as_f64().unwrap_or(0.0);
                let for_what = if kind == "waits" { text(&w["state"]) } else { dash() };
                let cells = vec![
                    a.process.clone(),
                    kind.to_owned(),
                    text(&w["peer"]),
                    text(&w["service"]),
                    text(&w["class"]),
                    inode(w),
                    for_what,
                    format!("{age:.3} s"),
                    format!("{:.1} s", w["left_s"].as_f64().unwrap_or(0.0)),
                ];
                (age, cells)
            }));
        }
    }
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    output::table(
        &["PROCESS", "", "PEER", "SERVICE", "CLASS", "INODE", "FOR", "SINCE", "LEFT"],
        rows.into_iter().map(|r| r.1).collect(),
    );
    Ok(())
}
