//! A cluster's directory on one machine: `cluster.toml` says which cluster it is and what of it this machine runs; `run/`
//! holds process ids, `log/` what the processes say, `manager/` (on the machine that has it) and `nodes/` the data.
//!
//! Who else belongs to the cluster only the manager knows (`commands::ask::Census`).
//!
//! `cluster.toml` is written last when a cluster is made: a directory without it is not a cluster, and
//! what an interrupted `up` left there (it is marked) is removed by the next one.

use std::{
    fs,
    io::{self, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use base::{ByteSize, CipherList, ClusterId, NodeId, PdiskId};
use net::Secret;
use serde::{Deserialize, Serialize};
use stripe::Managers;
use trust::Authorities;
use wire::map::ManagerEntry;

use crate::{
    cluster_dir::{access, addrs::Addrs, cipher, etcd::EtcdFile, manager_file::ManagerFile, renewal},
    input,
};

/// Where a machine of a cluster of several keeps what it runs, unless told otherwise.
pub const DEFAULT_DIR: &str = "/var/lib/ropewalk";
/// What the files of the page of analytics are named by: no node can be called so.
pub const PAGE: &str = "analytics@page";
const FORMAT: u32 = 1;
/// Stands in a directory while a cluster is made there (`claim.rs`).
pub(super) const MARKER: &str = ".making-cluster";

/// `cluster.toml`.
#[derive(Serialize, Deserialize, Clone)]
pub struct ClusterFile {
    /// Version of this file.
    pub format: u32,
    /// The cluster's name.
    pub name: String,
    /// The cluster's identity, 32 hexadecimal digits.
    pub id: String,
    /// Redundancy code of the pool that it was made with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Block size of that pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<ByteSize>,
    /// What the authority's key is made from: 64 hexadecimal digits. Whoever has it owns the data. A machine that has joined
    /// has none, but a key of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// The one before, while it is exchanged: its authority is believed as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former_secret: Option<String>,
    /// How often they were changed; where several machines have managers each comes to the greatest.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub secret_changes: u64,
    /// How what the cluster's processes send each other is protected, where the cluster's tunable says nothing.
    #[serde(default)]
    pub cipher_list: CipherList,
    /// Addresses of the manager; where there are several, of this machine's first, or of another one.
    pub manager: Addrs,
    /// Whether this machine runs one.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub manager_here: bool,
    /// Where `up` mounts fs1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount: Option<PathBuf>,
    /// Where a copy of the manager's store is kept: a directory on another disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<PathBuf>,
    /// The same on another machine: what the cluster calls the manager that keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror_on: Option<String>,
    /// This machine's manager keeps such a copy, and is none until that is promoted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keeps_copy: bool,
    /// Where the first of this machine's processes shows its metrics (`process/metrics.rs`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<SocketAddr>,
    /// Where this machine serves the page of analytics, if it does (`commands/page.rs`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub analytics: Option<SocketAddr>,
    /// Where the manager's journal is, if not in a file: only on the machine that runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdFile>,
    /// All managers, where there can be several (`managers.rs`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub managers: Vec<ManagerFile>,
    /// The nodes of this machine.
    pub nodes: Vec<NodeFile>,
}

fn yes() -> bool {
    true
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// One node of this machine in `cluster.toml`.
#[derive(Serialize, Deserialize, Clone)]
pub struct NodeFile {
    /// Its id: what it is known by in the cluster.
    pub id: NodeId,
    /// What its files here are named by (`run/`, `log/`) and `serve --name` takes: the name that it had when it was made. What
    /// the cluster calls it stands in the map, and may be another since (`node rename`): no file moves then.
    pub name: String,
    /// Where it listens.
    pub addr: Addrs,
    /// Its pdisks.
    pub pdisks: Vec<PdiskFile>,
}

/// One pdisk in `cluster.toml`.
#[derive(Serialize, Deserialize, Clone)]
pub struct PdiskFile {
    /// Its id.
    pub id: PdiskId,
    /// Its directory; relative to the cluster's directory, or absolute (another disk).
    pub dir: PathBuf,
    /// Its size.
    pub size: ByteSize,
    /// The pdisk whose place it takes, until `pdisk replace` has ended: one that was interrupted goes on with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<PdiskId>,
    /// `pdisk add` has begun it and not ended: the same command goes on with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adding: bool,
    /// What it was called, once `pdisk remove` has begun: the same command goes on with it when the cluster has it no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removing: Option<String>,
}

impl NodeFile {
    /// Those of its pdisks that are more than begun.
    pub fn made(&self) -> impl Iterator<Item = &PdiskFile> {
        self.pdisks.iter().filter(|pdisk| !pdisk.adding)
    }
}

impl ClusterFile {
    /// The identity as a number.
    pub fn cluster_id(&self) -> Result<ClusterId> {
        u128::from_str_radix(&self.id, 16)
            .map(ClusterId)
            .with_context(|| format!("cluster id {:?} in cluster.toml is not 32 hexadecimal digits", self.id))
    }

    /// The cluster's authorities, where it was made; none on other machines.
    pub fn authorities(&self) -> Result<Option<Authorities>> {
        let Some(secret) = &self.secret else { return Ok(None) };
        let read = |digits: &String| {
            // Not shown, whatever it is.
            Secret::from_hex(digits)
                .context("the secret in cluster.toml is not 64 hexadecimal digits; restore it from a copy")
        };
        let former = self.former_secret.as_ref().map(read).transpose()?;
        let made = Authorities::from_secrets(self.cluster_id()?, &read(secret)?, former.as_ref());
        Ok(Some(made.context("make the cluster's authority")?))
    }

    /// The node with this id, if this machine runs it.
    pub fn node(&self, id: NodeId) -> Option<&NodeFile> {
        self.nodes.iter().find(|node| node.id == id)
    }
}

/// An opened cluster directory.
pub struct ClusterDir {
    /// The directory, absolute.
    pub path: PathBuf,
    /// Its `cluster.toml`.
    pub file: ClusterFile,
    /// By which all of this process that has opened it find the active manager.
    pub managers: Managers,
}

impl ClusterDir {
    /// This machine, as its certificate is renewed.
    pub fn machine(&self) -> Result<renewal::Machine> {
        Ok(renewal::Machine {
            path: self.path.clone(),
            cluster: self.file.cluster_id()?,
            authorities: self.file.authorities()?,
            managers: self.managers.known().iter().flat_map(ManagerEntry::sockets).collect(),
        })
    }

    /// How a process of the cluster speaks to the others.
    pub fn endpoint(&self, role: net::Role) -> Result<net::EndpointConfig> {
        Ok(net::EndpointConfig { role, ..self.endpoint_as(&[role])? })
    }

    /// The same of a command: as the first of these roles that this machine may have.
    pub fn endpoint_as(&self, roles: &[net::Role]) -> Result<net::EndpointConfig> {
        let cluster = self.file.cluster_id()?;
        let identity = renewal::identity(&self.machine()?)?;
        let role = roles.iter().copied().find(|role| identity.member().roles.contains(*role));
        let node = match &identity.member().nodes {
            trust::Nodes::These(nodes) => nodes.first().copied().unwrap_or_default(),
            trust::Nodes::Any => NodeId(0),
        };
        Ok(net::EndpointConfig {
            cluster,
            node,
            cipher_list: self.cipher_list()?,
            role: role.or(roles.first().copied()).unwrap_or(net::Role::Admin),
            identity: Some(identity),
            ..net::EndpointConfig::default()
        })
    }

    /// How connections of this machine are protected, as far as it knows.
    pub fn cipher_list(&self) -> Result<CipherList> {
        Ok(cipher::kept(&self.path)?.unwrap_or(self.file.cipher_list))
    }

    /// Opens the directory of an existing cluster.
    pub fn open(path: &Path) -> Result<ClusterDir> {
        let Some(dir) = ClusterDir::open_if_made(path)? else {
            bail!(
                "{} holds no cluster (no cluster.toml); make one with `ropewalk up --dir {}`",
                path.display(),
                path.display()
            );
        };
        Ok(dir)
    }

    /// Opens the directory if a cluster was made there.
    pub fn open_if_made(path: &Path) -> Result<Option<ClusterDir>> {
        let file = path.join("cluster.toml");
        let text = match input::check(&file).and_then(|()| fs::read_to_string(&file)) {
            Ok(text) => text,
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                bail!(
                    "read {}: permission denied; a cluster belongs to the user who made it: run this as that user, \
                     or as root (sudo)",
                    file.display()
                );
            }
            Err(e) => return Err(e).with_context(|| format!("read {}", file.display())),
        };
        check_sum(&text).with_context(|| format!("{} is damaged; restore it from a copy", file.display()))?;
        // Where it is damaged is said without the text there: it may be the secret.
        let parsed: ClusterFile = toml::from_str(&text).map_err(|e: toml::de::Error| {
            let line = e.span().map_or(0, |at| text[..at.start.min(text.len())].lines().count());
            anyhow::anyhow!(
                "{} is damaged near line {line}: {}; restore it from a copy",
                file.display(),
                e.message()
            )
        })?;
        if parsed.format != FORMAT {
            bail!(
                "{} has format {}, this program knows {FORMAT}; use the matching version of ropewalk",
                file.display(),
                parsed.format
            );
        }
        let path = path.canonicalize().with_context(|| format!("resolve {}", path.display()))?;
        // An `up` that ended just before it would have taken it away. While it is there, a cluster that loses its
        // cluster.toml would be taken for a half made one.
        let _ = fs::remove_file(path.join(MARKER)); // where nothing may be removed, nothing is made either
        Ok(Some(ClusterDir { path, managers: parsed.known_managers(), file: parsed }))
    }

    /// Writes the `cluster.toml` of a new cluster, durably, and thereby makes it one. Of one that is there parts are changed
    /// (`change.rs`).
    pub fn save(path: &Path, file: &ClusterFile) -> Result<()> {
        let _lock = lock(path)?;
        if path.join("cluster.toml").exists() {
            bail!("{} holds a cluster already", path.display());
        }
        ClusterDir::write(path, file)
    }

    pub(super) fn write(path: &Path, file: &ClusterFile) -> Result<()> {
        let text = with_sum(&toml::to_string(file).context("write cluster.toml")?);
        let temporary = path.join("cluster.toml.new");
        let target = path.join("cluster.toml");
        let write = || -> io::Result<()> {
            // One that an older version left may be anybody's to read.
            match fs::remove_file(&temporary) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            let mut new = access::options().write(true).create_new(true).open(&temporary)?;
            new.write_all(text.as_bytes())?;
            new.sync_all()?;
            fs::rename(&temporary, &target)?;
            fs::File::open(path)?.sync_all()?;
            match fs::remove_file(path.join(MARKER)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
                Err(_) => Ok(()),
                // It must not come back with the next loss of power.
                Ok(()) => fs::File::open(path)?.sync_all(),
            }
        };
        write().with_context(|| format!("write {}", target.display()))
    }

    /// Takes what this machine has of the cluster away from other users: its directory, and pdisks and logs elsewhere. A disk that is away is left out. How many files
    /// and directories were open to others.
    pub fn close_to_others(&self) -> Result<u64> {
        let mut count = u64::from(access::close(&self.path)?)
            + u64::from(access::close(&self.path.join("cluster.toml"))?);
        let own = self.servers().into_iter().map(|(name, _)| name);
        let parts = ["run", "log", "manager", "nodes", "keys", "analytics", "worksheets", "etcd"]
            .map(str::to_owned)
            .into_iter()
            .chain(own);
        for part in parts.map(|part| self.path.join(part)) {
            if part.exists() {
                count += access::close_all(&part)?;
            }
        }
        for pdisk in self.file.nodes.iter().flat_map(|node| &node.pdisks) {
            // It may be a link to another disk: what it leads to.
            let Ok(path) = self.path.join(&pdisk.dir).canonicalize() else { continue };
            count += access::close_all(&path)?;
            if let Some(log) = pdisk::Pdisk::log_path(&path).ok().filter(|log| log.exists()) {
                count += u64::from(access::close(&log)?);
            }
        }
        Ok(count)
    }

    /// The format number for a new `cluster.toml`.
    pub fn format() -> u32 {
        FORMAT
    }

    /// Where a process keeps its id.
    pub fn pid_file(&self, name: &str) -> PathBuf {
        self.path.join("run").join(format!("{name}.pid"))
    }

    /// Exists while a process serves.
    pub fn ready_file(&self, name: &str) -> PathBuf {
        self.path.join("run").join(format!("{name}.ready"))
    }

    /// Where a process's output goes.
    pub fn log_file(&self, name: &str) -> PathBuf {
        self.path.join("log").join(format!("{name}.log"))
    }

    /// Where the processes of this machine keep their histories.
    pub fn histories(&self) -> PathBuf {
        self.path.join("analytics")
    }

    /// The copy of the manager's store, if there is one. What says whether it counts stands beside `cluster.toml`.
    pub fn mirror(&self) -> Option<manager::store::Mirror> {
        self.file.mirror.as_deref().map(|dir| self.mirror_in(dir))
    }

    /// The same in a directory.
    pub fn mirror_in(&self, dir: &Path) -> manager::store::Mirror {
        manager::store::Mirror::new(dir, &self.witness())
    }

    /// Where this machine keeps the copy of another one's store.
    pub fn kept_copy(&self) -> PathBuf {
        self.path.join("copy")
    }

    /// What says whether a copy of this machine's manager's store counts, which is in that directory.
    pub fn witness_of(&self, store: &Path) -> manager::store::Witness {
        manager::store::Witness::new(&self.witness(), &manager::format::store_path(store))
    }

    /// What of it is beside `cluster.toml`.
    pub fn witness(&self) -> PathBuf {
        self.path.join("mirror")
    }

    /// The server processes of this machine with their addresses, managers first, members of etcd last.
    pub fn servers(&self) -> Vec<(String, Addrs)> {
        let managers = self.file.own_managers().into_iter().map(|own| (own.local, own.entry.addr));
        let nodes = self.file.nodes.iter().map(|n| (n.name.clone(), n.addr.clone()));
        let etcd = self.file.etcd.iter().flat_map(|etcd| &etcd.members);
        managers.chain(nodes).chain(etcd.map(|member| (member.name.clone(), member.addr.into()))).collect()
    }

    /// Their names, and before them that of the page: all processes of this machine but mounts, in the order in which they end.
    pub fn process_names(&self) -> Vec<String> {
        [PAGE.to_owned()].into_iter().chain(self.server_names()).collect()
    }

    /// Their names.
    pub fn server_names(&self) -> Vec<String> {
        self.servers().into_iter().map(|(name, _)| name).collect()
    }
}

/// Held while `cluster.toml` is read, changed and written.
pub(super) fn lock(path: &Path) -> Result<fs::File> {
    let lock = || {
        let dir = fs::File::open(path)?;
        dir.lock()?;
        Ok::<_, io::Error>(dir)
    };
    lock().with_context(|| format!("lock {}", path.display()))
}

/// How the first line of `cluster.toml` begins; the CRC-32C of all that follows it comes next, in hexadecimal.
const SUM: &str = "# Take this line away when you edit the file. Sum: ";

fn with_sum(text: &str) -> String {
    format!("{SUM}{:08x}\n{text}", wire::crc::crc32c(text.as_bytes()))
}

/// Refuses a file that was cut or changed by something else than an editor. One without a sum is taken as it is.
fn check_sum(text: &str) -> Result<()> {
    let Some((sum, rest)) = text.strip_prefix(SUM).and_then(|rest| rest.split_once('\n')) else {
        return Ok(());
    };
    let is = format!("{:08x}", wire::crc::crc32c(rest.as_bytes()));
    if sum != is {
        bail!(
            "its content has the sum {is}, and the first line says {sum:?}: take that line away if you edited it yourself"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_file_that_was_cut_or_changed_is_refused() {
        let text = with_sum("a = 1\nb = 2\n");
        check_sum(&text).unwrap();
        check_sum("a = 1\n").unwrap();
        let first = text.find('\n').unwrap() + 1;
        for len in first..text.len() {
            assert!(check_sum(&text[..len]).is_err(), "cut at {len}");
        }
        assert!(check_sum(&text.replace("b = 2", "b = 3")).is_err());
    }

    /// Edited by hand, by mistake: an error, or a cluster.
    #[test]
    fn a_changed_cluster_file_is_refused_or_means_something() {
        let dir = tempfile::tempdir().unwrap();
        let file = ClusterFile {
            format: FORMAT,
            name: "c".into(),
            id: "0123456789abcdef0123456789abcdef".into(),
            code: Some("4+2p".into()),
            block_size: Some(ByteSize(1 << 20)),
            manager: "127.0.0.1:1".parse::<std::net::SocketAddr>().unwrap().into(),
            manager_here: false,
            mirror: None,
            mirror_on: None,
            keeps_copy: false,
            metrics: None,
            analytics: Some("127.0.0.1:3".parse().unwrap()),
            etcd: None,
            managers: Vec::new(),
            mount: Some("/mnt/c".into()),
            nodes: vec![NodeFile {
                id: NodeId(1),
                name: "n1".into(),
                addr: "127.0.0.1:2".parse::<std::net::SocketAddr>().unwrap().into(),
                pdisks: vec![PdiskFile {
                    id: PdiskId(1),
                    dir: "d".into(),
                    size: ByteSize(1 << 30),
                    replaces: None,
                    adding: false,
                    removing: None,
                }],
            }],
            secret: Some("01".repeat(32)),
            former_secret: Some("02".repeat(32)),
            secret_changes: 1,
            cipher_list: CipherList::Empty,
        };
        let text = toml::to_string(&file).unwrap().into_bytes();
        crate::mutate::mutated(&[text], 2_000, |bytes| {
            fs::write(dir.path().join("cluster.toml"), bytes).unwrap();
            if let Ok(Some(opened)) = ClusterDir::open_if_made(dir.path()) {
                let _ = opened.endpoint(net::Role::Manager);
            }
        });
    }
}
