//! Makes settings last by what reads them at boot here: sysctl.d, udev, tmpfiles.d, modprobe.d; the MTU of an interface that
//! systemd-networkd manages by a drop-in of its network file, what NetworkManager manages by a script of its dispatcher; where
//! tuned runs, a profile of our own that includes the one in effect.
//! Every file is our own, holds what is in force and nothing else, and
//! goes away when that is nothing; no other file is written. A reader sees the old text or the new one, also after a crash.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    crash,
    host::{OUR_PROFILE, OWN_PLACES, Tree},
    replace,
    tuned::{self, Tuned},
};

const DISPATCHER: &str = "etc/NetworkManager/dispatcher.d/90-ropewalk-advise";
const NETWORKD: &str = "etc/systemd/network";
const DROP_IN: &str = "90-ropewalk-advise.conf";
const SAID: &str =
    "# Written by `ropewalk advise apply`; `ropewalk advise revert` takes it back. Changes here are lost.\n";

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
    /// Settings of the kernel in tuned's profile of our own, at this place: they replace those of the profile that it includes.
    TunedSysctl(String),
    /// Files below `/sys` in that profile, written after all that the included one sets.
    TunedSysfs(String),
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
            Keeper::TunedSysctl(place) | Keeper::TunedSysfs(place) => tuned::profile_file(place),
        }
    }
    /// What stands before the lines.
    pub fn head(&self) -> &'static str {
        match self {
            Keeper::TunedSysctl(_) => "[sysctl]\n",
            // tuned applies what has the largest number last.
            Keeper::TunedSysfs(_) => "[ropewalk-advise]\ntype=sysfs\npriority=1000\n",
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

/// Writes our own files so that they hold these lines, in this order, and removes those that have none. What is as it should
/// be is not touched. Says whether anything was.
///
/// # Errors
/// The file that could not be written, and why.
pub(crate) fn write(
    root: &Path,
    lines: Vec<(Keeper, String)>,
    tuned: Option<&Tuned>,
) -> Result<bool, (PathBuf, io::Error)> {
    let mut parts: BTreeMap<Keeper, String> = BTreeMap::new();
    for (keeper, line) in lines {
        parts.entry(keeper).or_default().push_str(&line);
    }
    let mut texts: BTreeMap<String, String> = BTreeMap::new();
    for (keeper, lines) in &parts {
        let text = texts.entry(keeper.file()).or_insert_with(|| {
            let script = if *keeper == Keeper::Dispatcher { "#!/bin/sh\n" } else { "" };
            let main = match (keeper, tuned) {
                (Keeper::TunedSysctl(_) | Keeper::TunedSysfs(_), Some(tuned)) => tuned.main(),
                _ => String::new(),
            };
            [script, SAID, &main].concat()
        });
        text.push_str(keeper.head());
        text.push_str(lines);
    }
    let mut changed = false;
    let ours = ours(root);
    // What a crash left unfinished: NetworkManager would run it.
    for file in &ours {
        let _ = fs::remove_file(replace::being_made(&root.join(file)));
    }
    for file in ours.iter().filter(|file| !texts.contains_key(*file)) {
        let path = root.join(file);
        changed |= remove(&path).map_err(|error| (path, error))?;
    }
    for (file, text) in texts {
        let path = root.join(&file);
        if fs::read_to_string(&path).is_ok_and(|there| there == text) {
            continue;
        }
        replace::replace(&path, &text, file == DISPATCHER).map_err(|error| (path, error))?;
        changed = true;
    }
    Ok(changed)
}

/// Files that may be there of us, below the root.
fn ours(root: &Path) -> Vec<String> {
    let dropped = Tree::below(root).glance_names(NETWORKD).into_iter().filter_map(|name| {
        let network = name.strip_suffix(".d").filter(|network| network.ends_with(".network"))?;
        Some(Keeper::Networkd(network.to_owned()))
    });
    let profiles = OWN_PLACES.into_iter().map(tuned::profile_file);
    Keeper::FIXED.into_iter().chain(dropped).map(|keeper| keeper.file()).chain(profiles).collect()
}

/// Whether there was one.
fn remove(path: &Path) -> io::Result<bool> {
    crash::point();
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other?,
    }
    // A directory that is for our file alone goes with it; others that are empty do no harm, and may be somebody's.
    if let Some(dir) = path.parent()
        && dir.file_name().is_some_and(|name| {
            name == OUR_PROFILE || path.ends_with(DROP_IN) && name.to_string_lossy().ends_with(".network.d")
        })
    {
        let _ = fs::remove_dir(dir);
    }
    Ok(true)
}
