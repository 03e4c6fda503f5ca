//! `ropewalk pagepool`: what the memory of mounts and servers holds, and what share of reads it served.

use anyhow::Result;
use base::units::human_size;
use serde_json::{Value, json};
use wire::admin::AdminRequest;

use super::ask::{ask_all, size};
use crate::{
    args::Listing,
    output::{self, end_of},
};

/// Columns of a name.
const NAME_MAX: usize = 24;

/// `ropewalk pagepool`.
pub fn pagepool(listing: &Listing) -> Result<()> {
    let mut all = Vec::new();
    let mut silent = Vec::new();
    let asked = ask_all(listing, &AdminRequest::Status)?;
    for answer in asked.answers {
        match answer.answer {
            Some(status) => {
                let memory = &status["memory"];
                if memory["pagepool"].is_object() || memory["strip_cache"].is_object() {
                    all.push(json!({
                        "process": answer.process,
                        "pagepool": memory["pagepool"],
                        "strip_cache": memory["strip_cache"],
                        "memory": memory["process"],
                    }));
                }
            }
            None => silent.push(format!("{} does not answer at {}", answer.process, answer.address)),
        }
    }
    if listing.json {
        output::json(&all)?;
        return asked.all;
    }
    let rows = |part: &str, row: fn(&Value) -> Vec<String>| -> Vec<Vec<String>> {
        let with = all.iter().filter(|one| one[part].is_object());
        with.map(|one| [vec![name(one)], row(&one[part])].concat()).collect()
    };
    output::table(&["MOUNT", "PAGEPOOL", "USED", "DIRTY", "REUSED"], rows("pagepool", pool_row));
    let reads = ["MOUNT", "READ", "HIT", "AHEAD HIT", "MISS", "READ AHEAD", "UNUSED"];
    output::table(&reads, rows("pagepool", reads_row));
    let mounts = all.iter().filter(|one| one["pagepool"].is_object());
    output::table(
        &["MOUNT", "RESIDENT", "AT MOST", "PAGEPOOL", "FREE", "REST", "BLOCKS", "BOUND"],
        mounts.map(process_row).collect(),
    );
    output::table(&["SERVER", "CACHE", "USED", "STRIPS", "READ", "HIT"], rows("strip_cache", cache_row));
    silent.iter().for_each(output::line);
    asked.all
}

fn share(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.1} %", 100.0 * part as f64 / whole as f64) }
}

fn name(one: &Value) -> String {
    end_of(one["process"].as_str().unwrap_or_default(), NAME_MAX)
}

fn pool_row(pool: &Value) -> Vec<String> {
    ["max_bytes", "used_bytes", "dirty_bytes", "reused_bytes"].map(|field| size(&pool[field])).into()
}

/// What was read, and what share of it the pool had.
fn reads_row(pool: &Value) -> Vec<String> {
    let bytes = |field: &str| pool[field].as_u64().unwrap_or(0);
    let read = bytes("hit_bytes") + bytes("coming_bytes") + bytes("miss_bytes");
    vec![
        human_size(read),
        share(bytes("hit_bytes"), read),
        share(bytes("coming_bytes"), read),
        share(bytes("miss_bytes"), read),
        size(&pool["ahead_bytes"]),
        share(bytes("ahead_unused_bytes"), bytes("ahead_bytes")),
    ]
}

/// The process of a mount, as the system counts it, beside what the client counts.
fn process_row(one: &Value) -> Vec<String> {
    let (memory, pool) = (&one["memory"], &one["pagepool"]);
    let known = ["used_bytes", "idle_bytes"].map(|field| pool[field].as_u64().unwrap_or(0));
    let resident = memory["resident_bytes"].as_u64().unwrap_or(0);
    vec![
        name(one),
        human_size(resident),
        size(&memory["resident_most_bytes"]),
        human_size(known[0]),
        human_size(known[1]),
        human_size(resident.saturating_sub(known[0] + known[1])),
        pool["entries"].to_string(),
        size(&memory["max_bytes"]),
    ]
}

fn cache_row(cache: &Value) -> Vec<String> {
    let bytes = |field: &str| cache[field].as_u64().unwrap_or(0);
    let read = bytes("hit_bytes") + bytes("miss_bytes");
    vec![
        size(&cache["max_bytes"]),
        size(&cache["used_bytes"]),
        cache["strips"].to_string(),
        human_size(read),
        share(bytes("hit_bytes"), read),
    ]
}
