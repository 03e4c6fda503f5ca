//! What is made of several of a kind, each with its members by name and state: pools of pdisks, groups that lack some of theirs,
//! bonds and bridges of ports, rails of connections.

use std::collections::HashMap;

use base::PdiskId;
use serde_json::{Value, json};
use wire::{
    map::{PdiskState, PoolEntry},
    mgr::{ClusterReport, PdiskUse},
};

use crate::commands::ask::{list, text};

/// Groups of a pool that are listed; more that lack something are counted.
const LACKING_MAX: usize = 8;

fn member(name: impl Into<String>, state: impl Into<String>, bad: bool) -> Value {
    json!({ "name": name.into(), "state": state.into(), "bad": bad })
}

fn group(kind: &str, of: String, how: String, members: Vec<Value>) -> Value {
    json!({ "kind": kind, "name": of, "how": how, "members": members })
}

/// A pdisk as a member: what the map says of it, and whether somebody serves it.
fn pdisk(report: &ClusterReport, of: &PdiskUse) -> Value {
    let name = report.map.pdisk(of.id).map_or_else(|| of.id.0.to_string(), |entry| entry.name.clone());
    match of.state {
        // The last copies stay `ok` in the map when their server is gone.
        PdiskState::Ok if !of.served => member(name, "not served", true),
        PdiskState::Ok => member(name, report.map.pdisk_word(of.id), false),
        state => member(name, state.name(), true),
    }
}

/// Pools, and after each its groups that lack pdisks.
pub fn of_pools(report: &ClusterReport) -> Vec<Value> {
    let known: HashMap<PdiskId, Value> = report.pdisks.iter().map(|of| (of.id, pdisk(report, of))).collect();
    let member =
        |id: &PdiskId| known.get(id).cloned().unwrap_or_else(|| member(id.0.to_string(), "unknown", true));
    let lacks = |id: &PdiskId| known.get(id).is_none_or(|member| member["bad"] == true);
    let of = |pool: &PoolEntry| {
        let of =
            |kind: &str, name: String, members: Vec<Value>| group(kind, name, pool.code.clone(), members);
        let mut groups =
            vec![of("pool", pool.name.clone(), pool.pdisks.iter().map(|p| member(&p.id)).collect())];
        let all = pool.table.chunks_exact(usize::from(pool.width.max(1))).enumerate();
        let mut lacking = all.filter(|(_, ids)| ids.iter().any(lacks));
        for (number, ids) in lacking.by_ref().take(LACKING_MAX) {
            groups.push(of("group", format!("{} {number}", pool.name), ids.iter().map(member).collect()));
        }
        let more = lacking.count();
        if more > 0 {
            groups.push(of(
                "group",
                format!("{}: {more} more groups that lack pdisks", pool.name),
                Vec::new(),
            ));
        }
        groups
    };
    report.map.pools.iter().flat_map(of).collect()
}

/// The bonds and bridges of a host.
pub fn of_ports(host: &str, ports: &Value) -> Vec<Value> {
    let up = |port: &Value| {
        // Software's own ports often do not know.
        let link = port["member_link"].as_str().unwrap_or("up") == "up";
        link && matches!(port["state"].as_str(), Some("up" | "unknown") | None)
    };
    let told = |port: &Value| {
        let words = [&port["state"], &port["member_state"]];
        let words: Vec<String> =
            words.iter().filter_map(|word| word.as_str()).map(str::to_lowercase).collect();
        member(text(&port["name"]), words.join(", "), !up(port))
    };
    let made = |master: &Value| {
        let its = list(ports).iter().filter(|port| !port["bond"].is_null() && port["bond"] == master["name"]);
        let members: Vec<Value> = its.map(told).collect();
        if members.is_empty() && master["mode"].is_null() {
            return None;
        }
        let kind = master["kind"].as_str().unwrap_or("bond");
        let active = master["active"].as_str().map(|port| format!("sends by {port}"));
        let how =
            [master["mode"].as_str().map(str::to_owned), master["hash"].as_str().map(str::to_owned), active];
        let how: Vec<String> = how.into_iter().flatten().collect();
        Some(group(kind, format!("{host} {}", text(&master["name"])), how.join(", "), members))
    };
    list(ports).iter().filter_map(made).collect()
}

/// The connections of a rail.
pub fn connections(all: &[&Value]) -> Vec<Value> {
    let told = |c: &&Value| {
        // Of builds that do not tell it yet the lane.
        let name = c["connection"].as_str().map_or_else(|| text(&c["lane"]), str::to_owned);
        let mut member = member(name, text(&c["state"]), c["state"] != "active");
        member["about"] = format!("{} to {}", text(&c["local"]), text(&c["remote"])).into();
        member
    };
    all.iter().map(told).collect()
}

#[cfg(test)]
mod tests {
    use wire::map::{PdiskEntry, PoolPdisk};

    use super::*;

    #[test]
    fn a_pool_names_its_pdisks_and_the_groups_that_lack_some() {
        let mut report = ClusterReport::default();
        for (id, served, state) in [
            (1, true, PdiskState::Ok),
            (2, false, PdiskState::Ok),
            (3, true, PdiskState::Missing),
            (4, true, PdiskState::Ok),
        ] {
            let id = PdiskId(id);
            report.map.pdisks.push(PdiskEntry {
                id,
                name: format!("d{}", id.0),
                state,
                ..PdiskEntry::default()
            });
            report.pdisks.push(PdiskUse { id, served, state, ..PdiskUse::default() });
        }
        let pdisks = [1, 2, 3, 4, 9].map(|id| PoolPdisk { id: PdiskId(id), ..PoolPdisk::default() }).to_vec();
        let table = [[1, 4], [1, 2], [4, 1]].into_iter().chain([[3, 9]; 40]).flatten().map(PdiskId).collect();
        let (name, code) = ("data".to_owned(), "1+1p".to_owned());
        report.map.pools.push(PoolEntry { name, code, width: 2, table, pdisks, ..PoolEntry::default() });
        let found = of_pools(&report);
        let said = |group: &Value| -> Vec<String> {
            list(&group["members"])
                .iter()
                .map(|m| format!("{} {} {}", text(&m["name"]), text(&m["state"]), m["bad"]))
                .collect()
        };
        assert_eq!(
            said(&found[0]),
            ["d1 ok false", "d2 not served true", "d3 missing true", "d4 ok false", "9 unknown true"]
        );
        assert_eq!(
            (text(&found[1]["name"]), said(&found[1])),
            ("data 1".into(), vec!["d1 ok false".into(), "d2 not served true".into()])
        );
        assert_eq!(said(&found[2]), ["d3 missing true", "9 unknown true"]);
        assert_eq!(
            (found.len(), text(&found[9]["name"])),
            (10, "data: 33 more groups that lack pdisks".into())
        );
    }

    #[test]
    fn a_bond_names_its_ports_and_which_of_them_is_down() {
        let ports = json!([
            { "name": "bond0", "kind": "bond", "state": "up", "mode": "active-backup", "active": "eth1" },
            { "name": "br0", "kind": "bridge", "state": "up" },
            { "name": "eth1", "state": "up", "bond": "bond0", "member_state": "active", "member_link": "up" },
            { "name": "eth2", "state": "down", "bond": "bond0", "member_state": "backup", "member_link": "down" },
            { "name": "eth3", "state": "up" },
            { "name": "tap0", "state": "unknown", "bond": "br0" },
        ]);
        let found = of_ports("h1", &ports);
        let names: Vec<_> = found.iter().map(|group| (&group["kind"], text(&group["name"]))).collect();
        assert_eq!(names, [(&"bond".into(), "h1 bond0".to_owned()), (&"bridge".into(), "h1 br0".to_owned())]);
        assert_eq!(found[0]["how"], "active-backup, sends by eth1");
        let state = |port: &Value| (text(&port["name"]), text(&port["state"]), port["bad"] == true);
        let members: Vec<_> = list(&found[0]["members"]).iter().map(state).collect();
        let wanted = [("eth1", "up, active", false), ("eth2", "down, backup", true)];
        assert_eq!(members, wanted.map(|(name, state, bad)| (name.to_owned(), state.to_owned(), bad)));
        assert_eq!(found[1]["members"][0]["bad"], false);
        // What a host says that has none, or makes no sense.
        for odd in [Value::Null, json!({}), json!([1, { "bond": 3 }, { "name": null, "bond": null }])] {
            assert!(of_ports("h", &odd).is_empty(), "{odd}");
        }
    }
}
