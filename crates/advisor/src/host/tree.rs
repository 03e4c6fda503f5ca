//! The files of a machine: those below a root directory (`/`, or a copy of another's), or those of an archive.
//! Reads only, bounded in bytes and entries; what is missing or unreadable is no fact. A directory can keep note of all
//! that was read from it: that is what `advise collect` puts into its archive, and nothing else.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
};

use super::program;

/// Longer files are cut.
pub const FILE_BYTES_MAX: u64 = 256 << 10;
/// Further directory entries are not looked at.
pub const ENTRIES_MAX: usize = 4096;
/// The kernel's log is read up to here.
const LOG_BYTES_MAX: usize = 4 << 20;
/// Where an archive keeps how full file systems are, and the kernel's log.
const FILL_DIR: &str = "ropewalk/statvfs";
/// Where it keeps what programs printed.
const COMMAND_DIR: &str = "ropewalk/command";
pub(super) const LOG_FILE: &str = "var/log/dmesg";

/// One entry of an archive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A directory, or something else whose being there was asked for.
    Directory,
    /// A file's text.
    File(String),
    /// Where a link leads.
    Link(String),
}

/// Entries by their path below the root, without a leading `/`.
pub type Entries = BTreeMap<String, Entry>;

/// The files of a machine.
pub struct Tree {
    from: From,
    noted: Option<RefCell<Entries>>,
}

enum From {
    Root(PathBuf),
    Entries(Entries),
}

/// Whether what is below this root is the running machine; any other is a copy of one.
pub(crate) fn is_live(root: &Path) -> bool {
    root.as_os_str() == "/"
}

impl Tree {
    /// The files below a root.
    pub fn below(root: impl Into<PathBuf>) -> Tree {
        Tree { from: From::Root(root.into()), noted: None }
    }
    /// The files below a root, and note is kept of what is read.
    pub fn noting(root: impl Into<PathBuf>) -> Tree {
        Tree { from: From::Root(root.into()), noted: Some(RefCell::default()) }
    }
    /// The files of an archive.
    pub fn of(entries: Entries) -> Tree {
        Tree { from: From::Entries(entries), noted: None }
    }
    /// What was read.
    pub fn noted(self) -> Entries {
        self.noted.map(RefCell::into_inner).unwrap_or_default()
    }
    /// Whether this is the running machine, not a copy.
    pub fn is_live(&self) -> bool {
        matches!(&self.from, From::Root(root) if is_live(root))
    }

    fn note(&self, path: &str, entry: impl FnOnce() -> Entry) {
        if let Some(noted) = &self.noted {
            let mut noted = noted.borrow_mut();
            // A text or a link says more than that something is there.
            if matches!(noted.get(path), None | Some(Entry::Directory)) {
                noted.insert(path.to_owned(), entry());
            }
        }
    }

    /// A file's text without the white space around it.
    pub fn text(&self, path: &str) -> Option<String> {
        let text = self.glance(path)?;
        self.note(path, || Entry::File(without_secrets(&text)));
        Some(text)
    }
    /// As [`Tree::text`], but no note is kept.
    pub fn glance(&self, path: &str) -> Option<String> {
        let text = match &self.from {
            From::Root(root) => {
                let path = root.join(path);
                // A pipe or a device could keep us waiting.
                if !fs::metadata(&path).ok()?.is_file() {
                    return None;
                }
                let mut bytes = Vec::new();
                File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
                String::from_utf8_lossy(&bytes).into_owned()
            }
            From::Entries(entries) => match entries.get(path)? {
                Entry::File(text) => text.clone(),
                Entry::Directory | Entry::Link(_) => return None,
            },
        };
        Some(text.trim().to_owned())
    }
    /// The names in a directory, sorted; none if it is not there.
    pub fn names(&self, dir: &str) -> Vec<String> {
        let names = self.glance_names(dir);
        for name in &names {
            self.note(&format!("{dir}/{name}"), || Entry::Directory);
        }
        names
    }
    /// As [`Tree::names`], but no note is kept.
    pub fn glance_names(&self, dir: &str) -> Vec<String> {
        let mut names: Vec<String> = match &self.from {
            From::Root(root) => {
                let Ok(entries) = fs::read_dir(root.join(dir)) else { return Vec::new() };
                entries.take(ENTRIES_MAX).flatten().filter_map(|e| e.file_name().into_string().ok()).collect()
            }
            From::Entries(entries) => {
                let prefix = format!("{dir}/");
                let below = entries.range(prefix.clone()..).take_while(|(path, _)| path.starts_with(&prefix));
                let first = |path: &String| Some(path[prefix.len()..].split('/').next()?.to_owned());
                below.filter_map(|(path, _)| first(path)).collect()
            }
        };
        names.sort();
        names.dedup();
        names.truncate(ENTRIES_MAX);
        names
    }
    /// Whether something is there.
    pub fn has(&self, path: &str) -> bool {
        let there = match &self.from {
            From::Root(root) => root.join(path).exists(),
            From::Entries(entries) => entries.contains_key(path) || !self.glance_names(path).is_empty(),
        };
        if there {
            self.note(path, || Entry::Directory);
        }
        there
    }
    /// The last name of what a link leads to.
    pub fn link(&self, path: &str) -> Option<String> {
        let target = match &self.from {
            From::Root(root) => fs::read_link(root.join(path)).ok()?.to_str()?.to_owned(),
            From::Entries(entries) => match entries.get(path)? {
                Entry::Link(target) => target.clone(),
                Entry::Directory | Entry::File(_) => return None,
            },
        };
        let name = target.rsplit('/').next()?.to_owned();
        self.note(path, || Entry::Link(name.clone()));
        Some(name)
    }
    /// What a program prints here; of a copy or an archive what it printed there.
    pub fn command(&self, words: &[&str]) -> Option<String> {
        let file = format!("{COMMAND_DIR}/{}", words.join("_").replace('/', "\\"));
        if !self.is_live() {
            return self.text(&file);
        }
        let text = program::output(words)?;
        self.note(&file, || Entry::File(without_secrets(&text)));
        Some(text)
    }
    /// Bytes, free bytes, inodes and free inodes of the file system mounted here. Only for file systems on local
    /// devices: others may not answer.
    pub fn fill(&self, point: &str) -> Option<[u64; 4]> {
        let file = format!("{FILL_DIR}/{}", point.replace('/', "\\"));
        if !self.is_live() {
            let mut numbers =
                self.text(&file)?.split_whitespace().map(|n| n.parse().ok()).collect::<Vec<_>>().into_iter();
            let mut next = || numbers.next().flatten();
            return Some([next()?, next()?, next()?, next()?]);
        }
        let stat = rustix::fs::statvfs(point).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        // What is kept for root is no room for others: as df counts.
        let usable = stat.f_blocks.saturating_sub(stat.f_bfree.saturating_sub(stat.f_bavail));
        let fill = [bytes(usable), bytes(stat.f_bavail), stat.f_files, stat.f_ffree];
        self.note(&file, || Entry::File(fill.map(|n| n.to_string()).join(" ")));
        Some(fill)
    }
    /// The lines of the kernel's log that are wanted, oldest first.
    pub fn kernel_log(&self, wanted: impl Fn(&str) -> bool) -> Vec<String> {
        let text = if self.is_live() { live_log() } else { self.glance(LOG_FILE) };
        let lines: Vec<String> =
            text.as_deref().unwrap_or_default().lines().filter(|l| wanted(l)).map(str::to_owned).collect();
        if text.is_some() {
            self.note(LOG_FILE, || Entry::File(lines.join("\n")));
        }
        lines
    }
}

/// The kernel's ring buffer: each read gives one message, as `priority,sequence,time,flags;text`.
fn live_log() -> Option<String> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let mut log = fs::OpenOptions::new().read(true).custom_flags(flags).open("/dev/kmsg").ok()?;
    let (mut text, mut message) = (String::new(), vec![0; 8192]);
    // Ends with an error when there is no further message; one that was overwritten meanwhile is an error too.
    for _ in 0..65_536 {
        match log.read(&mut message) {
            Ok(0) => break,
            Ok(n) => {
                let message = String::from_utf8_lossy(&message[..n]);
                let said = message.split_once(';').map_or("", |(_, said)| said);
                text.push_str(said.lines().next().unwrap_or_default());
                text.push('\n');
            }
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => {}
            Err(_) => break,
        }
        if text.len() > LOG_BYTES_MAX {
            break;
        }
    }
    Some(text)
}

/// Values of words such as `rd.iscsi.password=...` do not go into an archive.
fn without_secrets(text: &str) -> String {
    let hide = |word: &str| {
        let secret = |key: &str| {
            let key = key.to_ascii_lowercase();
            ["password", "passwd", "passphrase", "secret", "token", "key"].iter().any(|s| key.ends_with(s))
        };
        match word.split_once('=') {
            Some((key, _)) if secret(key) => format!("{key}=..."),
            _ => word.to_owned(),
        }
    };
    text.split('\n')
        .map(|line| line.split(' ').map(hide).collect::<Vec<_>>().join(" "))
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_reads_as_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("sys/class/net/eth0/mtu", "1500\n");
        put("proc/cmdline", "quiet rd.iscsi.password=abc nvme_core.io_timeout=30 x.token=1\n");
        put("etc/shadow", "root:hash");
        fs::create_dir_all(dir.path().join("sys/class/net/eth1")).unwrap();
        std::os::unix::fs::symlink("../../drivers/mlx5_core", dir.path().join("sys/class/net/eth0/driver"))
            .unwrap();
        let read = |tree: &Tree| {
            (
                tree.names("sys/class/net"),
                tree.text("sys/class/net/eth0/mtu"),
                tree.link("sys/class/net/eth0/driver"),
                tree.has("sys/class/net/eth1"),
                tree.has("sys/class/net/eth2"),
                tree.text("sys/class/net"),
            )
        };
        let tree = Tree::noting(dir.path());
        assert!(tree.has("sys/class/net/eth0/mtu"));
        let there = read(&tree);
        assert_eq!(there.0, ["eth0", "eth1"]);
        assert_eq!(
            (there.1.as_deref(), there.2.as_deref(), there.5.as_deref()),
            (Some("1500"), Some("mlx5_core"), None)
        );
        tree.text("proc/cmdline");
        let noted = tree.noted();
        assert!(!noted.contains_key("etc/shadow"));
        let line = "quiet rd.iscsi.password=... nvme_core.io_timeout=30 x.token=...".to_owned();
        assert_eq!(noted.get("proc/cmdline"), Some(&Entry::File(line)));
        assert_eq!(read(&Tree::of(noted)), there);
    }
}
