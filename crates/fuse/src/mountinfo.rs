//! What is mounted where, from `/proc/self/mountinfo`: it answers without touching any file system, so
//! a dead mount cannot hang it.

use std::{
    collections::HashSet,
    ffi::OsString,
    fs, io,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// Its directory.
    pub path: PathBuf,
    /// File system type, such as `ext4` or `fuse.ropewalk`.
    pub kind: String,
    /// Source as given at mount.
    pub source: String,
    /// Device number, as `st_dev` shows it.
    pub device: (u32, u32),
}

/// All mounts that this process sees, in the order in which they cover one another.
pub fn mounts() -> io::Result<Vec<Mounted>> {
    Ok(parse(&fs::read("/proc/self/mountinfo")?).collect())
}

/// The topmost mount at exactly `path`.
pub fn mounted_at(path: &Path) -> io::Result<Option<Mounted>> {
    Ok(mounts()?.into_iter().rfind(|m| m.path == path))
}

/// The same as another process sees it, in its mount namespace and under its root directory.
pub fn mounted_for(pid: u32, path: &Path) -> io::Result<Option<Mounted>> {
    let table = fs::read(format!("/proc/{pid}/mountinfo"))?;
    Ok(parse(&table).filter(|m| m.path == path).last())
}

/// Whether a process has the FUSE connection of the mount with this device number open. `None` where that is not to be seen:
/// an older kernel does not say it, nor any of another user's process. A connection whose mount is gone keeps its number,
/// which another mount may have by then.
pub fn has_connection(pid: u32, device: (u32, u32)) -> Option<bool> {
    let files = fs::read_dir(format!("/proc/{pid}/fdinfo")).ok()?.flatten();
    let said: Vec<String> = files.filter_map(|file| fs::read_to_string(file.path()).ok()).collect();
    connections(said.iter().map(String::as_str), device)
}

fn connections<'a>(said: impl Iterator<Item = &'a str>, device: (u32, u32)) -> Option<bool> {
    let number =
        |info: &str| info.lines().find_map(|l| l.strip_prefix("fuse_connection:"))?.trim().parse().ok();
    let found: Vec<u32> = said.filter_map(number).collect();
    // Such mounts have no device of their own: the major number is 0.
    (!found.is_empty()).then(|| device.0 == 0 && found.contains(&device.1))
}

/// A process in another mount namespace (a container, most often) that still sees a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its process id, as it is called here.
    pub pid: u32,
    /// What it is called.
    pub name: String,
    /// Where the mount is for it.
    pub path: PathBuf,
}

/// Who else sees the mount with this device number, one process of each other mount namespace: a mount is gone for the kernel
/// only when it is unmounted in all. A namespace without a process, or in other process ids' hands, is not found.
pub fn held_elsewhere(device: (u32, u32)) -> Vec<Holder> {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let mut known: HashSet<PathBuf> = namespace("self").into_iter().collect();
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let holds = |pid: u32| {
        let namespace = namespace(&pid.to_string())?;
        if known.contains(&namespace) {
            return None;
        }
        // Who has another root directory does not see all that is mounted in its namespace.
        let table = fs::read(format!("/proc/{pid}/mountinfo")).ok()?;
        let path = parse(&table).find(|mount| mount.device == device)?.path;
        known.insert(namespace);
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        Some(Holder { pid, name: name.trim_end().to_owned(), path })
    };
    pids.filter_map(holds).collect()
}

fn parse(table: &[u8]) -> impl Iterator<Item = Mounted> + '_ {
    table.split(|b| *b == b'\n').filter_map(parse_line)
}

/// `36 35 98:0 /root /mnt rw,noatime master:1 - ext3 /dev/root rw`: optional fields end with "-".
fn parse_line(line: &[u8]) -> Option<Mounted> {
    let mut fields = line.split(|b| *b == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let path = unescape(fields.nth(1)?);
    fields.find(|field| *field == b"-")?;
    let kind = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = OsString::from_vec(unescape(fields.next()?)).to_string_lossy().into_owned();
    Some(Mounted {
        path: PathBuf::from(OsString::from_vec(path)),
        kind,
        source,
        device: (major.parse().ok()?, minor.parse().ok()?),
    })
}

/// Blank, tab, newline and backslash stand as three octal digits after a backslash.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|d| first == b'\\' && d.iter().all(|b| (b'0'..=b'7').contains(b)));
        match octal {
            Some(d) => {
                let digit = |b: u8| u32::from(b - b'0');
                out.push((digit(d[0]) * 64 + digit(d[1]) * 8 + digit(d[2])) as u8);
                rest = &tail[3..];
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    out
}

/// Processes that use something under `path`, as "name (pid)", at most `max`: for messages. Only what
/// this process may see.
pub fn users_of(path: &Path, max: usize) -> Vec<String> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let is_pid = |entry: &fs::DirEntry| entry.file_name().as_bytes().iter().all(u8::is_ascii_digit);
    processes
        .flatten()
        .filter(is_pid)
        .filter(|entry| uses(&entry.path(), path))
        .take(max)
        .map(|entry| {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            format!("{} ({})", name.trim(), entry.file_name().to_string_lossy())
        })
        .collect()
}

fn uses(process: &Path, path: &Path) -> bool {
    let leads_there = |link: PathBuf| fs::read_link(link).is_ok_and(|target| target.starts_with(path));
    let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    ["cwd", "root", "exe"].iter().any(|link| leads_there(process.join(link)))
        || files.into_iter().any(|file| leads_there(file.path()))
        || maps(process, path)
}

fn maps(process: &Path, path: &Path) -> bool {
    fs::read(process.join("maps")).is_ok_and(|maps| {
        maps.split(|b| *b == b'\n')
            .filter_map(|line| line.iter().position(|b| *b == b'/').map(|at| &line[at..]))
            .any(|file| Path::new(std::ffi::OsStr::from_bytes(file)).starts_with(path))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_and_without_optional_fields() {
        let table = b"36 35 98:0 / /mnt\\040a rw,noatime master:1 shared:2 - fuse.ropewalk fs1 rw\n\
                      37 35 0:5 / /mnt\\040a rw - ext4 /dev/x\\134y rw\n\nnonsense\n1 2 3\n";
        let mounts: Vec<_> = parse(table).collect();
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].path, Path::new("/mnt a"));
        assert_eq!((mounts[0].kind.as_str(), mounts[0].source.as_str()), ("fuse.ropewalk", "fs1"));
        assert_eq!((mounts[1].source.as_str(), mounts[1].device), ("/dev/x\\y", (0, 5)));
    }

    #[test]
    fn connections_are_told_by_what_is_said_of_files() {
        let (plain, fuse) = ("pos:\t0\nino:\t90\n", "pos:\t0\nino:\t90\nfuse_connection:\t41\n");
        assert_eq!(connections([plain].into_iter(), (0, 41)), None, "an older kernel");
        assert_eq!(connections([plain, fuse].into_iter(), (0, 41)), Some(true));
        assert_eq!(connections([fuse, plain].into_iter(), (0, 42)), Some(false));
        assert_eq!(connections([fuse].into_iter(), (8, 41)), Some(false));
        assert_eq!(connections(["fuse_connection:\tx\n"].into_iter(), (0, 41)), None);
    }

    #[test]
    fn this_process_uses_its_own_directory() {
        let cwd = std::env::current_dir().unwrap();
        let users = users_of(&cwd, usize::MAX);
        let me = format!("({})", std::process::id());
        assert!(users.iter().any(|u| u.ends_with(&me)), "{users:?}");
    }

    #[test]
    fn changed_tables_give_what_can_be_read() {
        let table = b"36 35 98:0 / /mnt\\040a rw,noatime master:1 - fuse.ropewalk fs1 rw\n37 35 0:5 / /x\\1 rw - ext4 y rw\n";
        crate::mutate::mutated(&[table.to_vec()], 50_000, |bytes| {
            let lines = bytes.split(|b| *b == b'\n').count();
            assert!(parse(bytes).count() <= lines);
        });
    }
}
