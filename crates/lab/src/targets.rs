//! What a run may touch: devices and files to read, devices, files and directories to write, pairs of
//! addresses. Everything is checked before anything is changed. Nothing is ever written that was not named
//! as writable; the results directory counts as named.

use std::{
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use base::{ByteSize, ClusterId};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::plan::PlanTargets;

/// A block device or a file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Device {
    /// Its path.
    pub path: PathBuf,
    /// Whether it may be written.
    pub writable: bool,
    /// Bytes.
    pub size: u64,
    /// Devices of the same kind are expected to do the same: model, or major name, or the disk below a file.
    pub kind: String,
    /// The kernel's name of the device, or of the one below a file, such as `nvme0n1`.
    pub disk: String,
    /// Whether it is a file on a disk that others may share.
    pub file: bool,
}

/// One end of a pair.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Side {
    /// Network namespace, if not this one.
    pub namespace: Option<String>,
    /// Address.
    pub address: String,
}

/// Two ends with a link between them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pair {
    /// Where requests start.
    pub client: Side,
    /// Where they go.
    pub server: Side,
}

/// A client node that the run made, with a mount of its own.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClientNode {
    /// DATA, WORK, UTIL.
    pub dirs: Vec<PathBuf>,
    /// Its network namespace, if not this one.
    pub namespace: Option<String>,
    /// Its control groups, in which its mount runs, one for each hierarchy.
    pub groups: Vec<PathBuf>,
    /// Bytes of memory that all in them may take.
    pub memory: Option<u64>,
    /// What it has of its own, in words; may be empty.
    pub what: String,
}

/// What a run may touch.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Targets {
    /// In the order they were named.
    pub devices: Vec<Device>,
    /// NVMe devices whose interrupt coalescing may be set.
    #[serde(default)]
    pub changeable: Vec<PathBuf>,
    /// Directories to write in.
    pub dirs: Vec<PathBuf>,
    /// Client nodes that the run made for the workload; none where directories were named.
    #[serde(skip)]
    pub nodes: Vec<ClientNode>,
    /// Pairs of addresses.
    pub pairs: Vec<Pair>,
    /// Whether the pairs only stand in, as none was named.
    #[serde(default)]
    pub pairs_stand_in: bool,
    /// Links that connections should spread over.
    pub links: Vec<String>,
    /// Agents that take part.
    pub agents: Agents,
    /// What the mixed analytics workload works with.
    #[serde(default)]
    pub workload: Workload,
}

/// What the mixed analytics workload works with beside directories.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Workload {
    /// The environment of its engines; without one only the distribution's take part.
    pub env: Option<PathBuf>,
    /// A file with what each test must give: read, or written once that is computed.
    pub values: Option<PathBuf>,
}

/// Other nodes that take part, each as one client node.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Agents {
    /// Each as host:port.
    pub addrs: Vec<String>,
    /// The cluster that they serve; none for `ropewalk lab agent`.
    pub cluster: Option<ClusterId>,
    /// The file with that cluster's secret (its `cluster.toml`); none: the lab's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_in: Option<PathBuf>,
    /// Directories that may be written on each of them.
    pub writable: Vec<PathBuf>,
}

/// Why a target cannot be used.
#[derive(Debug, Error)]
#[error("{what}: {why}")]
pub struct TargetError {
    /// As named.
    pub what: String,
    /// What is wrong with it, and the remedy.
    pub why: String,
}

fn refuse<T>(what: impl Into<String>, why: impl Into<String>) -> Result<T, TargetError> {
    Err(TargetError { what: what.into(), why: why.into() })
}

impl Targets {
    /// Adds what a plan or a command line names.
    pub fn add(&mut self, named: &PlanTargets) -> Result<(), TargetError> {
        for (list, writable) in [(&named.devices, false), (&named.writable, true)] {
            for path in list {
                let path = Path::new(path);
                if path.is_dir() {
                    if !writable {
                        return refuse(
                            path.display().to_string(),
                            "a directory is only used to write in; name it as writable",
                        );
                    }
                    check_dir(path)?;
                    self.dirs.push(path.to_owned());
                    continue;
                }
                let device = device(path, writable)?;
                match self.devices.iter_mut().find(|have| have.path == device.path) {
                    Some(have) => have.writable |= writable,
                    None => self.devices.push(device),
                }
            }
        }
        for path in &named.changeable {
            let device = device(Path::new(path), false)?;
            if device.file || !device.disk.starts_with("nvme") {
                return refuse(path, "is no NVMe device; only those have settings that a plan changes");
            }
            self.changeable.push(device.path);
        }
        for pair in &named.pairs {
            self.pairs.push(parse_pair(pair)?);
        }
        self.links.extend(named.links.iter().cloned());
        Ok(())
    }
}

fn parse_pair(text: &str) -> Result<Pair, TargetError> {
    let side = |text: &str| {
        let (namespace, address) = match text.split_once('@') {
            Some((namespace, address)) => (Some(namespace.to_owned()), address),
            None => (None, text),
        };
        address.parse::<std::net::IpAddr>().ok()?;
        Some(Side { namespace, address: address.to_owned() })
    };
    let pair = text.split_once('=').and_then(|(a, b)| Some(Pair { client: side(a)?, server: side(b)? }));
    let Some(pair) = pair else {
        return refuse(
            text,
            "write CLIENT=SERVER with IP addresses, each with NAMESPACE@ before it or without",
        );
    };
    for side in [&pair.client, &pair.server] {
        if let Some(name) = &side.namespace
            && !Path::new("/run/netns").join(name).exists()
        {
            return refuse(text, format!("there is no network namespace {name} (`ip netns list`)"));
        }
    }
    Ok(pair)
}

/// Whether files can be made there.
pub fn check_dir(path: &Path) -> Result<(), TargetError> {
    let name = path.display().to_string();
    match fs::metadata(path) {
        Err(e) => refuse(name, format!("cannot be used: {e}")),
        Ok(meta) if !meta.is_dir() => refuse(name, "is not a directory"),
        Ok(_) => match writable(path) {
            Ok(()) => Ok(()),
            Err(e) => refuse(name, format!("cannot be written: {e}; name a directory that can")),
        },
    }
}

/// The kernel's word on it, without making a name: root passes permission checks everywhere.
fn writable(dir: &Path) -> rustix::io::Result<()> {
    use rustix::fs::{Access, Mode, OFlags};
    rustix::fs::access(dir, Access::WRITE_OK | Access::EXEC_OK)?;
    match rustix::fs::open(dir, OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR) {
        // Not every file system makes nameless files; those of the kernel's own tables take no files at all.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR) => {
            const TABLES: [u64; 2] = [0x9fa0, 0x6265_6572]; // PROC_SUPER_MAGIC, SYSFS_MAGIC
            let kind = rustix::fs::statfs(dir)?.f_type as u64;
            if TABLES.contains(&kind) { Err(rustix::io::Errno::ROFS) } else { Ok(()) }
        }
        other => other.map(drop),
    }
}

/// Looks at a device or file without changing it.
pub fn device(path: &Path, writable: bool) -> Result<Device, TargetError> {
    let name = path.display().to_string();
    let meta = match fs::metadata(path) {
        Ok(meta) => meta,
        Err(e) => return refuse(name, format!("cannot be used: {e}")),
    };
    let block = meta.file_type().is_block_device();
    if !block && !meta.is_file() {
        return refuse(name, "is neither a block device nor a file");
    }
    let opened = fs::OpenOptions::new().read(true).write(writable).open(path);
    let Ok(file) = opened.as_ref() else {
        let how = if writable { "read and written" } else { "read" };
        let why = opened.err().map(|e| e.to_string()).unwrap_or_default();
        return refuse(name, format!("cannot be {how}: {why}"));
    };
    if block && writable && mounted(path) {
        return refuse(name, "is mounted; a device that is in use is not written");
    }
    let size = rustix::fs::seek(file, rustix::fs::SeekFrom::End(0)).unwrap_or(meta.len());
    if size < 1 << 20 {
        return refuse(name, format!("has only {}; at least 1m is needed", ByteSize(size)));
    }
    let number = if block { meta.rdev() } else { meta.dev() };
    let disk = disk_name(number).unwrap_or_else(|| "unknown".into());
    let kind = if block { kind_of(&disk) } else { format!("file on {disk}") };
    Ok(Device { path: path.to_owned(), writable, size, kind, disk, file: !block })
}

/// The kernel's name of a block device, by number.
pub fn disk_name(device: u64) -> Option<String> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let link = fs::read_link(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    Some(link.file_name()?.to_string_lossy().into_owned())
}

fn kind_of(disk: &str) -> String {
    let model = fs::read_to_string(format!("/sys/block/{disk}/device/model")).unwrap_or_default();
    match model.trim() {
        "" => disk.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned(),
        model => model.to_owned(),
    }
}

fn mounted(path: &Path) -> bool {
    let Ok(real) = fs::canonicalize(path) else { return false };
    let real = real.to_string_lossy().into_owned();
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    // A partition of it counts as well.
    table.lines().filter_map(|line| line.split(' ').next()).any(|source| source.starts_with(&real))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_unwritable_and_bad_targets_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("nvme9").display().to_string();
        let small = dir.path().join("small");
        fs::write(&small, "x").unwrap();
        let named = |devices: &[&str], writable: &[&str], pairs: &[&str]| {
            let owned = |list: &[&str]| list.iter().map(|s| s.to_string()).collect();
            let named = PlanTargets {
                devices: owned(devices),
                writable: owned(writable),
                pairs: owned(pairs),
                ..Default::default()
            };
            Targets::default().add(&named).unwrap_err().to_string()
        };
        assert!(named(&[&missing], &[], &[]).contains("nvme9"));
        assert!(named(&[], &[&missing], &[]).contains("nvme9"));
        assert!(named(&[dir.path().to_str().unwrap()], &[], &[]).contains("name it as writable"));
        assert!(named(&[small.to_str().unwrap()], &[], &[]).contains("at least 1m"));
        assert!(named(&[], &["/proc"], &[]).contains("/proc"), "/proc cannot be written");
        let file = dir.path().join("file");
        fs::write(&file, vec![0; 1 << 20]).unwrap();
        let changeable = PlanTargets { changeable: vec![file.display().to_string()], ..Default::default() };
        let refused = Targets::default().add(&changeable).unwrap_err().to_string();
        assert!(refused.contains("no NVMe device"), "{refused}");
        assert!(named(&[], &[], &["127.0.0.1"]).contains("CLIENT=SERVER"));
        assert!(named(&[], &[], &["nowhere-ns@127.0.0.1=127.0.0.2"]).contains("no network namespace"));
    }

    #[test]
    fn a_file_is_only_read_unless_named_writable() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("disk");
        fs::write(&file, vec![1; 2 << 20]).unwrap();
        let path = file.to_str().unwrap().to_owned();
        let mut targets = Targets::default();
        targets.add(&PlanTargets { devices: vec![path.clone()], ..Default::default() }).unwrap();
        assert!(!targets.devices[0].writable && targets.devices[0].size == 2 << 20);
        targets.add(&PlanTargets { writable: vec![path], ..Default::default() }).unwrap();
        assert!(targets.devices.len() == 1 && targets.devices[0].writable);
    }
}
