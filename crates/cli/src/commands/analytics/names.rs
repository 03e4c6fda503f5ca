//! What sessions, nodes and files are called: numbers are recorded, names are shown.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::{Duration, Instant},
};

use analytics::{Value, Want};
use anyhow::{Result, bail};
use base::{FsId, InodeNo};
use serde::{Deserialize, Serialize};
use wire::{
    map::PdiskEntry,
    mgr::{ClientReport, ClusterReport, MgrReply, MgrRequest, PATHS_MAX},
};

use super::{
    figures,
    printable::{is_meant, printable},
};
use crate::link::Link;

/// What stands behind the path of a file that has none any more.
const REMOVED: &str = " (removed)";
/// What a pdisk lies in that the map does not know, and a file without a path.
pub const UNKNOWN: &str = "(unknown)";
/// Paths kept, at most; then all are asked for anew.
const PATHS_KEPT_MAX: usize = 1 << 16;
/// For so long a manager that did not answer is asked for no paths: who looks every second must not wait for it each time.
const IN_VAIN: Duration = Duration::from_secs(30);
const AT_ONCE: Duration = Duration::from_secs(1);

/// The names of a cluster.
#[derive(Default)]
pub struct Names {
    sessions: BTreeMap<u64, String>,
    /// On which host each client is.
    hosts: BTreeMap<String, String>,
    /// On what each is mounted there.
    mounts: BTreeMap<String, String>,
    /// (as labels have it, as people do).
    nodes: Vec<(String, String)>,
    filesystems: HashMap<u32, String>,
    /// What each pdisk, as labels have it, lies in.
    pdisks: BTreeMap<String, Place>,
    /// A path below its file system's root. Of what has no name any more the last one, with `/` before it; empty: not known.
    paths: HashMap<(u32, u64), String>,
    /// When the manager did not tell any.
    in_vain: Option<Instant>,
}

/// What a pdisk lies in.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Place {
    /// Of several pools all, with `+` between them.
    pool: String,
    node: String,
}

impl Place {
    fn of(report: &ClusterReport, pdisk: &PdiskEntry) -> Place {
        let laid = |pool: &&wire::map::PoolEntry| pool.pdisks.iter().any(|of| of.id == pdisk.id);
        let pools: Vec<&str> = report.map.pools.iter().filter(laid).map(|pool| pool.name.as_str()).collect();
        let node = pdisk.nodes.first().and_then(|node| report.map.node(*node));
        Place { pool: pools.join("+"), node: node.map(|node| node.name.clone()).unwrap_or_default() }
    }

    fn called(&self, dimension: &str) -> &str {
        if dimension == "pool" { &self.pool } else { &self.node }
    }
}

/// The same in a recording.
#[derive(Serialize, Deserialize)]
struct Stored {
    sessions: Vec<(u64, String)>,
    #[serde(default)]
    hosts: BTreeMap<String, String>,
    #[serde(default)]
    mounts: BTreeMap<String, String>,
    nodes: Vec<(String, String)>,
    filesystems: Vec<(u32, String)>,
    #[serde(default)]
    pdisks: BTreeMap<String, Place>,
    paths: Vec<(u32, u64, String)>,
}

impl Names {
    /// As the manager knows them.
    pub fn of(report: &ClusterReport) -> Names {
        let alike = |client: &ClientReport, on_host: bool| {
            let same = |c: &&ClientReport| {
                c.mount == client.mount && (!on_host || c.process.host == client.process.host)
            };
            report.clients.iter().filter(same).count() > 1
        };
        let (mut hosts, mut mounts) = (BTreeMap::new(), BTreeMap::new());
        let clients = report.clients.iter().map(|client| {
            let (host, mount) = (&client.process.host, printable(client.mount.as_bytes()));
            let name = match (alike(client, false), alike(client, true)) {
                (false, _) => mount.clone(),
                (true, false) => format!("{host}:{mount}"),
                (true, true) => format!("{host}:{mount} of {}", client.process.pid),
            };
            hosts.insert(name.clone(), host.clone());
            mounts.insert(name.clone(), mount);
            (client.session.0, name)
        });
        let clients: Vec<(u64, String)> = clients.collect();
        let nodes = report.map.nodes.iter();
        let servers = nodes.clone().filter_map(|node| Some((node.session?.0, node.name.clone())));
        let nobody = [(0, "(no session)".to_owned())];
        Names {
            sessions: clients.into_iter().chain(servers).chain(nobody).collect(),
            hosts,
            mounts,
            nodes: nodes.map(|node| (node.id.to_string(), node.name.clone())).collect(),
            filesystems: report.map.filesystems.iter().map(|fs| (fs.id.0, fs.name.clone())).collect(),
            pdisks: report
                .map
                .pdisks
                .iter()
                .map(|pdisk| (pdisk.id.to_string(), Place::of(report, pdisk)))
                .collect(),
            paths: HashMap::new(),
            in_vain: None,
        }
    }

    /// As they were recorded.
    pub fn recorded(text: &str) -> Result<Names> {
        let stored: Stored = serde_json::from_str(text)?;
        let paths = stored.paths.into_iter().map(|(fs, inode, path)| ((fs, inode), path));
        Ok(Names {
            sessions: stored.sessions.into_iter().collect(),
            hosts: stored.hosts,
            mounts: stored.mounts,
            nodes: stored.nodes,
            filesystems: stored.filesystems.into_iter().collect(),
            pdisks: stored.pdisks,
            paths: paths.collect(),
            in_vain: None,
        })
    }

    /// To be recorded.
    pub fn text(&self) -> Result<String> {
        let paths = self.paths.iter().map(|(&(fs, inode), path)| (fs, inode, path.clone()));
        Ok(serde_json::to_string(&Stored {
            sessions: self.sessions.clone().into_iter().collect(),
            hosts: self.hosts.clone(),
            mounts: self.mounts.clone(),
            nodes: self.nodes.clone(),
            filesystems: self.filesystems.clone().into_iter().collect(),
            pdisks: self.pdisks.clone(),
            paths: paths.collect(),
        })?)
    }

    /// The session of a client that has ended, what that was called, and where it was.
    pub fn had_session(&mut self, session: u64, name: &str, host: &str) {
        self.sessions.entry(session).or_insert_with(|| name.to_owned());
        self.mounts.entry(name.to_owned()).or_insert_with(|| name.to_owned());
        if !host.is_empty() {
            self.hosts.entry(name.to_owned()).or_insert_with(|| host.to_owned());
        }
    }

    /// By client: its host, or its mount point.
    fn of_clients(&self, dimension: &str) -> &BTreeMap<String, String> {
        if dimension == "host" { &self.hosts } else { &self.mounts }
    }

    /// The clients on a host, or of a mount point; there is one.
    pub fn clients_on(&self, dimension: &str, name: &str) -> Result<Vec<String>> {
        let all = self.of_clients(dimension);
        let found = all.iter().filter(|(_, of)| is_meant(of, name)).map(|(client, _)| client.clone());
        let found: Vec<String> = found.collect();
        if found.is_empty() {
            let known: BTreeSet<&str> = all.values().map(String::as_str).collect();
            bail!("there is no client on a {dimension} {name:?}; {}", possible(known))
        }
        Ok(found)
    }

    /// What a session is called.
    pub fn session(&self, session: u64) -> String {
        self.sessions.get(&session).cloned().unwrap_or_else(|| format!("session {session} (ended)"))
    }

    /// The sessions of that name, and whether there are any: one that has ended is named by its number.
    pub fn sessions_of(&self, name: &str) -> Result<(Vec<String>, bool)> {
        let found: Vec<String> = self
            .sessions
            .iter()
            .filter(|(_, shown)| is_meant(shown, name))
            .map(|(session, _)| session.to_string())
            .collect();
        let ended = name.strip_prefix("session ").map(|rest| rest.trim_end_matches(" (ended)"));
        match (found.is_empty(), ended.and_then(|number| number.parse::<u64>().ok())) {
            (false, _) => Ok((found, true)),
            (true, Some(session)) => Ok((vec![session.to_string()], false)),
            (true, None) => {
                let known: BTreeSet<&str> = self.sessions.values().map(String::as_str).collect();
                bail!("there is no client {name:?}; {}", possible(known))
            }
        }
    }

    /// The label of a node of that name, and whether there is one; what is no node's stays as it is.
    pub fn peer_of(&self, name: &str) -> (Vec<String>, bool) {
        let node = self.nodes.iter().find(|(_, called)| called == name);
        (vec![node.map_or(name, |(label, _)| label.as_str()).to_owned()], node.is_some())
    }

    /// Whether the map has a pdisk of that label.
    pub fn has_pdisk(&self, label: &str) -> bool {
        self.pdisks.contains_key(label)
    }

    /// The number of a file system of that name, or the number itself, and whether there is one.
    pub fn fs_of(&self, name: &str) -> Result<(Vec<String>, bool)> {
        let found = self.filesystems.iter().find(|(_, called)| *called == name).map(|(fs, _)| *fs);
        match found.or_else(|| name.parse::<u32>().ok()) {
            Some(fs) => Ok((vec![fs.to_string()], self.filesystems.contains_key(&fs))),
            None => {
                let known: BTreeSet<&str> = self.filesystems.values().map(String::as_str).collect();
                bail!("there is no file system {name:?}; {}", possible(known))
            }
        }
    }

    /// The pdisks of a pool or of a node, as labels have them.
    pub fn pdisks_of(&self, dimension: &str, name: &str) -> Result<Vec<String>> {
        let of = |place: &Place| match dimension {
            "pool" => place.pool.split('+').any(|pool| pool == name) || place.pool == name,
            _ => place.node == name,
        };
        let found: Vec<String> =
            self.pdisks.iter().filter(|(_, place)| of(place)).map(|(pdisk, _)| pdisk.clone()).collect();
        if found.is_empty() {
            let known: BTreeSet<&str> = self.pdisks.values().map(|place| place.called(dimension)).collect();
            bail!("there is no pdisk in a {dimension} {name:?}; {}", possible(known))
        }
        Ok(found)
    }

    /// All pdisks of which it is known what they lie in; at least one value.
    pub fn pdisks_with(&self, dimension: &str) -> Vec<Want> {
        let known = self.pdisks.iter().filter(|(_, place)| !place.called(dimension).is_empty());
        let known = known.map(|(pdisk, _)| Want { text: pdisk.clone(), bucket: 0 });
        known.chain([Want { text: String::new(), bucket: 0 }]).collect()
    }

    /// Asks for the paths of files that are not known yet. What cannot be had stays a number.
    pub async fn learn<'a>(&mut self, link: Option<&Link>, values: impl Iterator<Item = &'a Value>) {
        // A recording brings its own.
        let Some(link) = link else { return };
        if self.in_vain.is_some_and(|at| at.elapsed() < IN_VAIN) {
            return;
        }
        if self.paths.len() > PATHS_KEPT_MAX {
            self.paths.clear();
        }
        let mut unknown: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
        for value in values {
            if let Value::File(fs, inode) = value
                && *inode > InodeNo::ROOT.0
                && !self.paths.contains_key(&(*fs, *inode))
            {
                unknown.entry(*fs).or_default().insert(*inode);
            }
        }
        for (fs, inodes) in unknown {
            let inodes: Vec<u64> = inodes.into_iter().collect();
            for part in inodes.chunks(PATHS_MAX) {
                let files = part.iter().copied().map(InodeNo).collect();
                let request = MgrRequest::Paths { fs: FsId(fs), files };
                let begun = Instant::now();
                let Ok(MgrReply::Paths(paths)) = link.manager(&request).await else {
                    // One that refuses does so at once.
                    if begun.elapsed() > AT_ONCE {
                        self.in_vain = Some(Instant::now());
                        return;
                    }
                    continue;
                };
                for (inode, path) in part.iter().zip(paths) {
                    self.paths.insert((fs, *inode), printable(&path));
                }
            }
        }
    }

    /// A value for people. What is shown of a size or a latency is where its bucket begins.
    pub fn show(&self, dimension: &str, value: &Value) -> String {
        match (dimension, value) {
            (_, Value::Other) => "(others)".to_owned(),
            (_, Value::File(_, 0)) => "(no file)".to_owned(),
            ("directory", file @ Value::File(..)) => directory_of(&self.show("file", file)),
            (_, Value::File(fs, inode)) => {
                // With one file system its name says nothing.
                let of = match self.filesystems.len() {
                    0 | 1 => String::new(),
                    _ => self.filesystems.get(fs).map_or(format!("{fs}:"), |name| format!("{name}:")),
                };
                match self.paths.get(&(*fs, *inode)) {
                    _ if *inode == InodeNo::ROOT.0 => format!("{of}/"),
                    Some(path) if path.is_empty() => format!("removed ({fs}:{inode})"),
                    Some(path) if path.starts_with('/') => format!("{of}{path}{REMOVED}"),
                    Some(path) => format!("{of}/{path}"),
                    None => format!("{fs}:{inode}"),
                }
            }
            ("fs", Value::Number(fs)) => {
                let name = u32::try_from(*fs).ok().and_then(|fs| self.filesystems.get(&fs));
                name.cloned().unwrap_or_else(|| fs.to_string())
            }
            ("client", Value::Number(session)) => self.session(*session),
            ("host" | "mount", Value::Number(session)) => {
                let of = self.of_clients(dimension);
                let found = self.sessions.get(session).and_then(|client| of.get(client));
                found.map_or(UNKNOWN, String::as_str).to_owned()
            }
            // Of what is counted by host itself it is the host's name already.
            ("host" | "mount", Value::Text(client)) => {
                self.of_clients(dimension).get(client).unwrap_or(client).clone()
            }
            ("user", Value::Number(user)) => format!("uid {user}"),
            ("pool" | "node", Value::Text(pdisk)) => {
                let place = self.pdisks.get(pdisk).map(|place| place.called(dimension));
                place.filter(|name| !name.is_empty()).unwrap_or(UNKNOWN).to_owned()
            }
            (ordered, Value::Number(bucket)) if analytics::is_ordered(ordered) => {
                figures::begins(ordered, *bucket)
            }
            ("peer", Value::Text(label)) => {
                let node = self.nodes.iter().find(|(known, _)| known == label);
                node.map_or(label, |(_, name)| name).clone()
            }
            (_, Value::Number(n)) => n.to_string(),
            (_, Value::Text(text)) => text.clone(),
        }
    }
}

/// What may be given instead of a name that is not known.
pub fn possible<'a>(known: impl IntoIterator<Item = &'a str>) -> String {
    match known.into_iter().collect::<Vec<&str>>()[..] {
        [] => "none is known yet".to_owned(),
        ref known => format!("possible: {}", known.join(", ")),
    }
}

/// The directory that a path as it is shown lies in; the root's is itself. What has no path has none.
fn directory_of(path: &str) -> String {
    let path = path.strip_suffix(REMOVED).unwrap_or(path);
    match path.rsplit_once('/') {
        None => UNKNOWN.to_owned(),
        Some((of, _)) if of.is_empty() || of.ends_with(':') => format!("{of}/"),
        Some((of, _)) => of.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use analytics::Query;

    use super::*;

    #[test]
    fn what_is_shown_can_be_asked_for() {
        let mut names = Names::default();
        assert!(names.sessions_of("n1").unwrap_err().to_string().ends_with("; none is known yet"));
        names.paths.insert((1, 7), "a/b".to_owned());
        names.paths.insert((1, 8), String::new());
        names.sessions.insert(5, "/mnt/a".to_owned());
        assert_eq!(names.show("file", &Value::File(1, 7)), "/a/b");
        assert_eq!(names.show("file", &Value::File(1, 8)), "removed (1:8)");
        assert_eq!(names.show("file", &Value::File(1, 9)), "1:9");
        names.paths.insert((1, 10), "/a/b".to_owned());
        assert_eq!(names.show("file", &Value::File(1, 10)), "/a/b (removed)");
        assert_eq!(names.show("directory", &Value::File(1, 10)), "/a");
        let place = |pool: &str, node: &str| Place { pool: pool.to_owned(), node: node.to_owned() };
        names.pdisks.insert("pdisk1".to_owned(), place("fast", "n1"));
        names.pdisks.insert("pdisk2".to_owned(), place("fast+slow", "n2"));
        let pdisk = Value::Text("pdisk2".to_owned());
        assert_eq!(
            (names.show("pool", &pdisk), names.show("node", &pdisk)),
            ("fast+slow".into(), "n2".into())
        );
        assert_eq!(names.pdisks_of("pool", "fast").unwrap(), ["pdisk1", "pdisk2"]);
        assert_eq!(names.pdisks_of("pool", "fast+slow").unwrap(), ["pdisk2"]);
        assert_eq!(names.pdisks_of("node", "n1").unwrap(), ["pdisk1"]);
        assert!(names.pdisks_of("node", "n3").unwrap_err().to_string().contains("n1, n2"));
        let directory = |inode| names.show("directory", &Value::File(1, inode));
        assert_eq!([directory(7), directory(8), directory(1)], ["/a", "(unknown)", "/"]);
        assert_eq!((directory_of("fs1:/a"), directory_of("fs1:/a/b")), ("fs1:/".into(), "fs1:/a".into()));
        assert_eq!(names.show("client", &Value::Number(5)), "/mnt/a");
        assert_eq!(names.sessions_of("/mnt/a").unwrap(), (vec!["5".to_owned()], true));
        assert_eq!(
            names.sessions_of(&names.show("client", &Value::Number(6))).unwrap(),
            (vec!["6".to_owned()], false)
        );
        assert!(names.sessions_of("/mnt/b").unwrap_err().to_string().contains("/mnt/a"));
        names.had_session(4, "/mnt/old", "h2");
        names.hosts.insert("/mnt/a".to_owned(), "h1".to_owned());
        let host = |of: Value| names.show("host", &of);
        assert_eq!([host(Value::Number(5)), host(Value::Number(4))], ["h1", "h2"]);
        assert_eq!([host(Value::Number(7)), host(Value::Text("/mnt/a".to_owned()))], [UNKNOWN, "h1"]);
        assert_eq!(names.clients_on("host", "h2").unwrap(), ["/mnt/old"]);
        assert!(names.clients_on("host", "h3").unwrap_err().to_string().contains("h1, h2"));
        // Two hosts have something on the same.
        names.sessions.insert(9, "h2:/mnt/a".to_owned());
        names.mounts.insert("h2:/mnt/a".to_owned(), "/mnt/a".to_owned());
        names.mounts.insert("/mnt/a".to_owned(), "/mnt/a".to_owned());
        let mount = |of: Value| names.show("mount", &of);
        assert_eq!([mount(Value::Number(9)), mount(Value::Number(4))], ["/mnt/a", "/mnt/old"]);
        assert_eq!(mount(Value::Text("h2:/mnt/a".to_owned())), "/mnt/a");
        assert_eq!(names.clients_on("mount", "/mnt/a").unwrap(), ["/mnt/a", "h2:/mnt/a"]);
        for bucket in 1..base::stats::LATENCY_BUCKETS as u64 {
            let shown = names.show("latency", &Value::Number(bucket));
            let query = Query::parse(&format!("file.ops[latency={shown}]")).unwrap();
            assert_eq!(query.filters[0].wanted[0].bucket, bucket, "{shown}");
        }
        for bucket in 0..base::stats::UTILISATION_BUCKETS {
            let shown = names.show("utilisation", &Value::Number(bucket));
            let query = Query::parse(&format!("pdisk.utilisation[utilisation={shown}]")).unwrap();
            assert_eq!(query.filters[0].wanted[0].bucket, bucket, "{shown}");
        }
        for octave in 0..60 {
            let shown = names.show("offset", &Value::Number(octave));
            let query = Query::parse(&format!("file.ops[offset={shown}]")).unwrap();
            assert_eq!(query.filters[0].wanted[0].bucket, octave, "{shown}");
        }
        for octave in 1..60 {
            let shown = names.show("size", &Value::Number(octave));
            let query = Query::parse(&format!("file.ops[size={shown}]")).unwrap();
            assert_eq!(query.filters[0].wanted[0].bucket, octave, "{shown}");
        }
    }
}
