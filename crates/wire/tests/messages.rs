//! Every kind of request and reply, changed at random: nothing panics, nothing allocates by what a length only claims, and what is
//! accepted is what would be sent.
#![allow(clippy::unwrap_used)] // helpers of tests

#[path = "../../../fuzz/decode.rs"]
mod decode;
#[path = "../../../fuzz/mutate.rs"]
mod mutate;
#[path = "../../../fuzz/samples.rs"]
mod samples;
#[path = "../../../fuzz/watching.rs"]
mod watching;

use decode::decode_all;
use mutate::mutated;
use samples::samples;
use wire::{
    admin::{AdminReply, AdminRequest},
    hello::{Introduction, Meeting, NetRequest, Role, Welcome},
    map::ClusterMap,
    mgr::{MgrReply, MgrRequest},
    nsd::{NsdReply, NsdRequest},
};

/// Which roles may ask what of the manager: the table in docs/security.md is made of the code.
/// After a change: `ROPEWALK_UPDATE_DOCS=1 cargo test -p ropewalk-wire --test messages`.
#[test]
fn who_may_ask_what_stands_in_the_documents() {
    let mut rows = std::collections::BTreeMap::new();
    for bytes in samples::<MgrRequest>(64) {
        let request: MgrRequest = postcard::from_bytes(&bytes).unwrap();
        let name = format!("{request:?}");
        let name = name.split(|c: char| !c.is_alphanumeric()).next().unwrap().to_owned();
        assert_eq!(MgrRequest::name_of(bytes[0]).replace('_', ""), name.to_lowercase());
        let may = [Role::Server, Role::Client, Role::Admin, Role::Lab].map(|role| request.is_for(role));
        let before = rows.insert(name, may);
        assert!(before.is_none_or(|before| before == may), "{request:?}");
    }
    assert_eq!(rows.len(), MgrRequest::NAMES.len());
    let cell = |may: bool| if may { "yes" } else { "" };
    let row = |(name, [server, client, admin, lab]): (&String, &[bool; 4])| {
        assert!(!lab, "{name}: the lab has no business here");
        format!("| `{name}` | {} | {} | {} |\n", cell(*server), cell(*client), cell(*admin))
    };
    let table: String = rows.iter().map(row).collect();
    let table = format!("| request | server | client | admin |\n|---|---|---|---|\n{table}");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/security.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (head, rest) = text.split_once("<!-- requests -->\n").unwrap();
    let (_, tail) = rest.split_once("<!-- end -->").unwrap();
    let made = format!("{head}<!-- requests -->\n{table}<!-- end -->{tail}");
    if std::env::var_os("ROPEWALK_UPDATE_DOCS").is_some() {
        std::fs::write(path, &made).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), made, "run it with ROPEWALK_UPDATE_DOCS=1");
}

#[test]
fn changed_messages_are_refused_or_mean_something() {
    let all = [
        samples::<MgrRequest>(64),
        samples::<MgrReply>(36),
        samples::<NsdRequest>(NsdRequest::NAMES.len()),
        samples::<NsdReply>(5),
        samples::<AdminRequest>(8),
        samples::<AdminReply>(2),
        samples::<NetRequest>(1),
        samples::<Welcome>(2),
        samples::<Introduction>(1),
        samples::<Meeting>(1),
        samples::<ClusterMap>(1),
    ];
    watching::forget();
    mutated(&all.concat(), 100_000, decode_all);
    watching::assert_little();
}
