//! Makes settings last by what reads them at boot here: sysctl.d, udev, tmpfiles.d, modprobe.d; the MTU of an interface that
//! systemd-networkd manages by a drop-in of its network file, what NetworkManager manages by a script of its dispatcher.
//! Every file is our own, holds what is in force and nothing else, and
//! goes away when that is nothing; no other file is written. A reader sees the old text or the new one, also after a crash.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use crate::host::Tree;

const DISPATCHER: &str = "etc/NetworkManager/dispatcher.d/90-ropewalk-advise";
const NETWORKD: &str = "etc/systemd/network";
const DROP_IN: &str = "90-ropewalk-advise.conf";

/// What makes settings last.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Keeper {
    /// `sysctl.d`.
    Sysctl,
    /// A rule of udev, which sets attributes when the device appears.
    Udev,
    /// `tmpfiles.d`, which writes to files below `/sys` at boot.
    Tmpfiles,
    /// Options of a module.
    Modprobe,
    /// A drop-in of this network file of systemd-networkd.
    Networkd(String),
    /// A script that NetworkManager runs when an interface is up, after all that its connection sets.
    Dispatcher,
}

impl Keeper {
    /// Those that have one file each.
    const FIXED: [Keeper; 5] =
        [Keeper::Sysctl, Keeper::Udev, Keeper::Tmpfiles, Keeper::Modprobe, Keeper::Dispatcher];
    /// Our file there, below the root.
    pub fn file(&self) -> String {
        match self {
            Keeper::Sysctl => "etc/sysctl.d/90-ropewalk-advise.conf".to_owned(),
            Keeper::Udev => "etc/udev/rules.d/90-ropewalk-advise.rules".to_owned(),
            Keeper::Tmpfiles => "etc/tmpfiles.d/ropewalk-advise.conf".to_owned(),
            Keeper::Modprobe => "etc/modprobe.d/ropewalk-advise.conf".to_owned(),
            Keeper::Networkd(network) => format!("{NETWORKD}/{network}.d/{DROP_IN}"),
            Keeper::Dispatcher => DISPATCHER.to_owned(),
        }
    }
    fn head(&self) -> &'static str {
        match self {
            Keeper::Networkd(_) => "[Link]\n",
            // Another interface's line is no failure, which NetworkManager would log.
            Keeper::Dispatcher => "trap 'exit 0' EXIT\n[ \"$2\" = up ] || exit 0\n",
            _ => "",
        }
    }
}

/// One line of comment, whatever the text holds: it has values that files of the kernel and the journal gave, and a second line
/// would be a command.
pub(crate) fn comment(text: &str) -> String {
    let mut line = "# ".to_owned();
    for c in text.chars() {
        if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line.push('\n');
    line
}

/// Writes our own files so that they hold these lines, in this order, and removes those that have none.
///
/// # Errors
/// The file that could not be written, and why.
pub(crate) fn write(root: &Path, lines: Vec<(Keeper, String)>) -> Result<(), (PathBuf, io::Error)> {
    let mut texts: BTreeMap<Keeper, String> = BTreeMap::new();
    for (keeper, line) in lines {
        texts.entry(keeper).or_default().push_str(&line);
    }
    let wanted: Vec<String> = texts.keys().map(Keeper::file).collect();
    for file in ours(root).iter().filter(|file| !wanted.contains(file)) {
        let path = root.join(file);
        remove(&path).map_err(|error| (path, error))?;
    }
    for (keeper, text) in texts {
        let path = root.join(keeper.file());
        replace(&path, &keeper, &text).map_err(|error| (path, error))?;
    }
    Ok(())
}

/// Files that may be there of us, below the root.
fn ours(root: &Path) -> Vec<String> {
    let dropped = Tree::below(root).glance_names(NETWORKD).into_iter().filter_map(|name| {
        let network = name.strip_suffix(".d").filter(|network| network.ends_with(".network"))?;
        Some(Keeper::Networkd(network.to_owned()))
    });
    Keeper::FIXED.into_iter().chain(dropped).map(|keeper| keeper.file()).collect()
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    }
    // The drop-ins' directory goes with its last file; others that are empty do no harm, and may be somebody's.
    if path.ends_with(DROP_IN)
        && let Some(dir) = path.parent().filter(|dir| dir.extension().is_some_and(|e| e == "d"))
        && dir.file_name().is_some_and(|name| name.to_string_lossy().ends_with(".network.d"))
    {
        let _ = fs::remove_dir(dir);
    }
    Ok(())
}

/// A reader sees the old text or the new one, also after a crash.
fn replace(path: &Path, keeper: &Keeper, text: &str) -> io::Result<()> {
    let Some(dir) = path.parent() else { return Ok(()) };
    fs::create_dir_all(dir)?;
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    let script = *keeper == Keeper::Dispatcher;
    let said = "# Written by `ropewalk advise apply`; `ropewalk advise revert` takes it back. Changes here are lost.\n";
    let head = [if script { "#!/bin/sh\n" } else { "" }, said, keeper.head()].concat();
    file.write_all(head.as_bytes())?;
    file.write_all(text.as_bytes())?;
    if script {
        // NetworkManager runs only what nobody but root can write to.
        file.set_permissions(fs::Permissions::from_mode(0o755))?;
    }
    file.sync_all()?;
    fs::rename(&new, path)?;
    File::open(dir)?.sync_all()
}
