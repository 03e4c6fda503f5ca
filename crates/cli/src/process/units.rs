//! The cluster's processes as units of systemd: which unit a process belongs to, and starting and ending them there. Units are
//! used where systemd runs and the package is installed whose program this is, each for the directory that it names. systemd
//! starts again what is killed: whoever ends such a process tells systemd, or it comes back.

use std::{
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::control;
use crate::{
    cluster_dir::{ClusterDir, PAGE, access},
    output,
};

/// The template of mounts; the instance is the mount point, in systemd's way of writing paths.
pub const MOUNT: &str = "ropewalk-mount@";
const MANAGER: &str = "ropewalk-manager.service";
const SERVER: &str = "ropewalk-server@";
const ANALYTICS: &str = "ropewalk-analytics.service";

/// Where units stand, as systemd looks for them.
const PLACES: [&str; 4] =
    ["/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];
/// What a mount's unit is to mount: a file for each, named like its instance.
const MOUNTS: &str = "/run/ropewalk/mounts";
/// Lines of the journal that are looked through for why a unit failed.
const LINES: &str = "50";
/// The program that units start.
const PROGRAM: &str = "/usr/bin/ropewalk";
/// What names the directory in a unit's environment.
const DIR_VARIABLE: &str = "ROPEWALK_DIR=";
/// What can say in the environment of the page's unit where that is to be.
const LISTEN_VARIABLE: &str = "LISTEN=";

/// Whether systemd runs here, has this template, which starts this program, and does what this user says.
pub fn are_here(template: &str) -> bool {
    let installed = |place: &str| Path::new(place).join(format!("{template}.service")).exists();
    rustix::process::geteuid().is_root()
        && Path::new("/run/systemd/system").is_dir()
        && PLACES.iter().any(|place| installed(place))
        && std::env::current_exe().is_ok_and(|program| program == Path::new(PROGRAM))
}

/// The unit of a process of the cluster in `dir`: the manager, a node or the page; none where it would not be that one's.
pub fn of_process(dir: &Path, name: &str) -> Option<String> {
    let unit = match name {
        "manager" => MANAGER.to_owned(),
        PAGE => ANALYTICS.to_owned(),
        // A further one on this machine, or a member of etcd: for trying only.
        name if name.contains('@') => return None,
        node => format!("{SERVER}{node}.service"),
    };
    let template = unit.split_inclusive('@').next().map(|start| start.trim_end_matches(".service"))?;
    if !are_here(template) {
        return None;
    }
    let environment = shown("Environment", &unit).ok()?;
    let named =
        |variable: &str| environment.split_whitespace().rev().find_map(|word| word.strip_prefix(variable));
    // A page for which that is set is there, whatever `cluster.toml` says.
    let is_elsewhere = name == PAGE && named(LISTEN_VARIABLE).is_some_and(|at| !at.is_empty());
    (Path::new(named(DIR_VARIABLE)?) == dir && !is_elsewhere).then_some(unit)
}

/// Whether its process runs.
pub fn is_active(unit: &str) -> bool {
    shown("ActiveState", unit).is_ok_and(|state| state.trim() == "active")
}

/// Has systemd start a unit, now and whenever the machine starts. Comes back before it serves.
pub fn begin(unit: &str) -> Result<()> {
    systemctl(&["enable", "--quiet"], unit)?;
    systemctl(&["start", "--no-block"], unit)
}

/// Takes [`begin`] back.
pub fn give_up(unit: &str) {
    let _ = systemctl(&["disable", "--quiet", "--now"], unit);
}

/// Why a unit's process ended since it was begun, if it has: by itself that does not come right.
pub fn ended(unit: &str) -> Option<String> {
    let again = shown("NRestarts", unit).is_ok_and(|count| count.trim() != "0");
    let failed = || shown("ActiveState", unit).is_ok_and(|state| state.trim() == "failed");
    (again || failed()).then(|| last_words(unit))
}

fn shown(property: &str, unit: &str) -> Result<String> {
    let output =
        Command::new("systemctl").args(["show", "--value", "--property", property, "--", unit]).output();
    Ok(String::from_utf8_lossy(&output.context("call systemctl")?.stdout).into_owned())
}

/// Asks a process to end: SIGTERM, from systemd if it is one of its services.
pub fn end(pid: u32) {
    let told = unit_of(pid).is_some_and(|unit| systemctl(&["stop", "--no-block"], &unit).is_ok());
    if !told {
        control::terminate(pid);
    }
}

/// Has systemd end a process and start it again; false if it is none of its services.
pub fn restart(pid: u32) -> bool {
    unit_of(pid).is_some_and(|unit| systemctl(&["restart", "--no-block"], &unit).is_ok())
}

/// The unit of ours that a process belongs to.
fn unit_of(pid: u32) -> Option<String> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    groups.lines().find_map(ours)
}

/// `HIERARCHY:CONTROLLERS:/system.slice/NAME.service`.
fn ours(group: &str) -> Option<String> {
    let unit = group.rsplit('/').next()?;
    let is = [MANAGER, ANALYTICS].contains(&unit)
        || [SERVER, MOUNT].iter().any(|template| unit.starts_with(template));
    (is && unit.ends_with(".service")).then(|| unit.to_owned())
}

/// Mounts by the unit of this mount point, and waits until the file system is there.
pub fn mount(dir: &ClusterDir, fs_name: &str, mountpoint: &Path, options: &[String]) -> Result<()> {
    let instance = escaped(mountpoint);
    access::make_dir(Path::new(MOUNTS)).with_context(|| format!("create {MOUNTS}"))?;
    let text = [
        assigned("DIR", dir.path.as_os_str().as_bytes())?,
        assigned("FS", fs_name.as_bytes())?,
        assigned("MOUNTPOINT", mountpoint.as_os_str().as_bytes())?,
        assigned("OPTIONS", options.join(" ").as_bytes())?,
    ]
    .concat();
    // systemd takes the name in EnvironmentFile= for a pattern, in which a backslash quotes what follows: the file has the name
    // that fits such a pattern, and its own for a systemd that does not.
    for name in [instance.replace('\\', ""), instance.clone()] {
        let file = PathBuf::from(MOUNTS).join(name);
        fs::write(&file, &text).with_context(|| format!("write {}", file.display()))?;
    }
    let unit = format!("{MOUNT}{instance}.service");
    if systemctl(&["start"], &unit).is_err() {
        let why = last_words(&unit);
        // systemd would try again; who was told that it failed does not want it later.
        let _ = systemctl(&["stop"], &unit);
        bail!("{fs_name} is not mounted on {}: {why}", mountpoint.display());
    }
    Ok(())
}

/// A line of a file of variables, as systemd reads it.
fn assigned(name: &str, value: &[u8]) -> Result<Vec<u8>> {
    let mut line = format!("{name}=\"").into_bytes();
    for &byte in value {
        if byte == b'\n' {
            bail!("{:?} has a line break in it", String::from_utf8_lossy(value));
        }
        if b"\"\\`$".contains(&byte) {
            line.push(b'\\');
        }
        line.push(byte);
    }
    line.extend_from_slice(b"\"\n");
    Ok(line)
}

/// A path as the instance of a unit, as `systemd-escape --path` writes it.
fn escaped(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let parts: Vec<&[u8]> = bytes.split(|&b| b == b'/').filter(|part| !part.is_empty()).collect();
    let joined = parts.join(&b'/');
    if joined.is_empty() {
        return "-".to_owned();
    }
    let each = |(at, &byte): (usize, &u8)| match byte {
        b'/' => "-".to_owned(),
        b'.' if at == 0 => format!("\\x{byte:02x}"),
        b'.' | b':' | b'_' => char::from(byte).to_string(),
        _ if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    };
    joined.iter().enumerate().map(each).collect()
}

/// What a unit said at last: its error, or where to look.
fn last_words(unit: &str) -> String {
    let said = Command::new("journalctl")
        .args(["--quiet", "--boot", "--output=cat", "--lines", LINES, "--unit", unit])
        .output();
    let said = said.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let error = said.lines().rev().find_map(|line| line.strip_prefix(output::SAYS));
    error.map_or_else(|| format!("journalctl --unit '{unit}' may say why"), str::to_owned)
}

fn systemctl(verb: &[&str], unit: &str) -> Result<()> {
    let output =
        Command::new("systemctl").args(verb).arg("--").arg(unit).output().context("call systemctl")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_instances_as_systemd_writes_them() {
        for (path, instance) in [
            ("/mnt/fs1", "mnt-fs1"),
            ("/", "-"),
            ("/data/my-rope", "data-my\\x2drope"),
            ("/.hidden/a b", "\\x2ehidden-a\\x20b"),
            ("//mnt//x.y_z/", "mnt-x.y_z"),
        ] {
            assert_eq!(escaped(Path::new(path)), instance);
        }
    }

    #[test]
    fn only_our_units_are_ours() {
        assert_eq!(ours("0::/system.slice/ropewalk-manager.service").as_deref(), Some(MANAGER));
        let server =
            "1:name=systemd:/system.slice/system-ropewalk\\x2dserver.slice/ropewalk-server@n-1.service";
        assert_eq!(ours(server).as_deref(), Some("ropewalk-server@n-1.service"));
        assert_eq!(ours("0::/system.slice/ropewalk-analytics.service").as_deref(), Some(ANALYTICS));
        assert_eq!(ours("0::/user.slice/user-0.slice/session-1.scope"), None);
        assert_eq!(ours("0::/system.slice/ropewalk-backup.service"), None);
        assert_eq!(unit_of(std::process::id()), None);
    }

    #[test]
    fn a_value_is_one_value_whatever_is_in_it() {
        let line = assigned("DIR", br#"/a "b"$c\d"#).unwrap();
        assert_eq!(String::from_utf8(line).unwrap(), "DIR=\"/a \\\"b\\\"\\$c\\\\d\"\n");
        assert!(assigned("DIR", b"a\nb").is_err());
    }
}
