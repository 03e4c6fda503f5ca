//! No rule stands on its examples alone: on one of the recorded hosts at least each is found, of files and of what programs printed
//! there; and each fact that any of them looks at is read there.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use advisor::{Catalogue, Facts, Origin, Tree, Value, advise, assumed, counted, host_facts};

use super::{HOSTS, host};

/// What no file of a machine says: what is taken for granted, tunables of the cluster, what an echo finds out, and what several
/// machines say together.
const OF_NO_FILE: [&str; 4] = ["assume.", "ropewalk.", "probe.", "subnet."];
/// Rules of these: the way to another host (`links.rs` finds them on real links), and both ends of one (`ends.rs`).
const OF_OTHERS: [&str; 2] = ["net-path-", "ends-"];

/// What is told to the advisor in the second place, so that rules apply that go by it.
fn told() -> Vec<(&'static str, Value)> {
    vec![
        ("assume.socket_buffer", Value::Int(1 << 20)),
        ("ropewalk.num_io_queues", Value::Int(4096)),
        ("ropewalk.pagepool", Value::Int(240 << 30)),
        ("ropewalk.maxblocksize", Value::Int(1 << 40)),
    ]
}

/// Each number twice as large: a second reading of what counts.
fn doubled(text: &str, radix: u32) -> String {
    let word = |word: &str| {
        let (name, number) = word.rsplit_once('=').map_or(("", word), |(name, n)| (name, n));
        let sign = if name.is_empty() { "" } else { "=" };
        match u64::from_str_radix(number, radix) {
            Ok(n) if radix == 16 => format!("{:x}", n * 2),
            Ok(n) => format!("{name}{sign}{}", n * 2),
            Err(_) => word.to_owned(),
        }
    };
    let line = |line: &str| line.split(' ').map(word).collect::<Vec<_>>().join(" ");
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Doubles all that a host counts.
fn count_on(root: &Path) {
    let mut files: Vec<_> = ["snmp", "netstat", "softnet_stat"].map(|name| format!("proc/net/{name}")).into();
    files.extend(["cpu", "io", "memory"].map(|name| format!("proc/pressure/{name}")));
    files.extend(["proc/stat".to_owned(), "proc/vmstat".to_owned()]);
    let tree = Tree::below(root);
    files.extend(tree.names("sys/block").iter().map(|disk| format!("sys/block/{disk}/stat")));
    for port in tree.names("sys/class/net") {
        let dir = format!("sys/class/net/{port}");
        let counters = tree.names(&format!("{dir}/statistics"));
        files.extend(counters.iter().map(|counter| format!("{dir}/statistics/{counter}")));
        files.push(format!("{dir}/carrier_changes"));
    }
    for file in files {
        let path = root.join(&file);
        if let Ok(text) = fs::read_to_string(&path) {
            fs::write(path, doubled(&text, if file.ends_with("softnet_stat") { 16 } else { 10 })).unwrap();
        }
    }
}

/// The facts of a host, and its rates of ten seconds.
fn facts_of(name: &str) -> [Facts; 2] {
    let (root, _) = host(name);
    let root = root.path();
    let at = |uptime: &str| {
        fs::create_dir_all(root.join("proc")).unwrap();
        fs::write(root.join("proc/uptime"), uptime).unwrap();
        host_facts(&Tree::below(root))
    };
    let before = at("1000.00 1.00\n");
    count_on(root);
    let rates = counted::rates(&before, &at("1010.00 1.00\n")).unwrap();
    [before, rates]
}

#[test]
fn each_rule_is_found_on_a_recorded_host_and_its_facts_are_read_there() {
    let catalogue = Catalogue::load().unwrap();
    let facts: Vec<Facts> = HOSTS.into_iter().flat_map(facts_of).collect();
    let mut found: BTreeSet<String> = BTreeSet::new();
    for seen in &facts {
        let mut all = assumed(&catalogue);
        all.extend(seen.clone());
        found.extend(advise(&catalogue, &all, &[]).into_iter().map(|f| f.rule));
        told().into_iter().for_each(|(name, value)| all.insert(name, value, Origin::of("told")));
        found.extend(advise(&catalogue, &all, &[]).into_iter().map(|f| f.rule));
    }
    let rules = catalogue.rules.iter().map(|rule| rule.id.as_str());
    let rules = rules.filter(|id| !OF_OTHERS.iter().any(|begin| id.starts_with(begin)));
    let missing: Vec<&str> = rules.filter(|id| !found.contains(*id)).collect();
    assert!(missing.is_empty(), "found on no recorded host: {missing:?}");

    let mut looked_at: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for rule in &catalogue.rules {
        for pattern in rule.looks_at() {
            looked_at.entry(pattern).or_default().push(&rule.id);
        }
    }
    let is_read = |pattern: &str| {
        OF_NO_FILE.iter().any(|begin| pattern.starts_with(begin))
            || facts.iter().any(|facts| facts.matching(pattern).next().is_some())
    };
    looked_at.retain(|pattern, _| !is_read(pattern));
    assert!(looked_at.is_empty(), "no recorded host shows these facts, which rules look at: {looked_at:?}");
}
