//! tuned's profile of our own. Where tuned runs with a profile, what `advise apply` sets in the kernel and below `/sys` lasts by a
//! profile that includes the one in effect and is in effect instead of it; with its last line goes the profile, and the former one is
//! in effect again. Which one that was stands in our profile itself, which is on disk before it is chosen.
//! Of the running machine tuned's own program changes the profile, and has it in force when it ends; in a copy of one the files say
//! it. A profile that the administrator has chosen meanwhile is the one in effect.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    host::{OUR_PROFILE, OWN_PLACES, Tree, is_live, own_place, program, runs},
    replace,
};

const ACTIVE: &str = "etc/tuned/active_profile";
const MODE: &str = "etc/tuned/profile_mode";
/// What says in our profile that tuned had chosen the former one by itself.
const CHOSEN: &str = "# tuned had chosen it by itself\n";
/// What our profile says before the names of those that it is over.
const OVER: &str = "summary=What ropewalk advise apply has set, over ";
/// How long a change of profiles may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// Why tuned has not done what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum TunedError {
    /// A file of its cannot be written.
    #[error("write {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Its program failed.
    #[error("{command}: {said}")]
    Refused {
        /// What was run.
        command: String,
        /// What it said last.
        said: String,
    },
}

/// What tuned does beside what we ask of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Tuned {
    /// The profiles in effect, ours not among them; none where ours no longer says over which it is.
    profiles: Vec<String>,
    /// Whether tuned chose them by itself.
    chosen: bool,
    /// Whether ours is in effect.
    ours: bool,
    running: bool,
    /// Where profiles of the administrator stand.
    place: &'static str,
}

/// Our profile at a place of profiles.
pub(crate) fn profile_file(place: &str) -> String {
    format!("{place}/{OUR_PROFILE}/tuned.conf")
}

impl Tuned {
    /// What is in effect here; none without a profile, or with one of no plain name.
    pub(crate) fn of(root: &Path) -> Option<Tuned> {
        let tree = Tree::below(root);
        let active = tree.glance(ACTIVE)?;
        let (ours, mut profiles): (Vec<&str>, Vec<&str>) =
            active.split_whitespace().partition(|name| *name == OUR_PROFILE);
        let ours = !ours.is_empty();
        let mut chosen = tree.glance(MODE).is_some_and(|mode| mode == "auto");
        let text = OWN_PLACES.iter().find_map(|place| tree.glance(&profile_file(place))).unwrap_or_default();
        let plain = |name: &&str| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
        };
        if ours {
            chosen = text.contains(CHOSEN.trim());
            if profiles.is_empty() {
                // Somebody may have taken one of these lines out; without both tuned is to choose by itself.
                let said = |head: &str| text.lines().find_map(|line| line.strip_prefix(head));
                let over = said("include=").or_else(|| said(OVER)).unwrap_or_default();
                profiles = over.split([',', ' ']).map(str::trim).filter(plain).collect();
                chosen |= profiles.is_empty();
            }
        }
        let known = (ours || !profiles.is_empty()) && profiles.iter().all(plain);
        let profiles = profiles.into_iter().map(str::to_owned).collect();
        known.then(|| Tuned {
            profiles,
            chosen,
            ours,
            running: runs(&tree, "tuned"),
            place: own_place(&tree),
        })
    }

    /// Where our profile is to be; none where nobody makes the settings of profiles.
    pub(crate) fn place(&self) -> Option<&'static str> {
        self.running.then_some(self.place)
    }

    /// The head of our profile.
    pub(crate) fn main(&self) -> String {
        let chosen = if self.chosen { CHOSEN } else { "" };
        let include = match self.profiles.as_slice() {
            [] => String::new(),
            profiles => format!("include={}\n", profiles.join(",")),
        };
        format!("[main]\n{OVER}{}\n{chosen}{include}", self.profiles.join(" "))
    }

    /// Puts our profile, which is written, into effect; again if its text has changed.
    pub(crate) fn choose_ours(&self, root: &Path, changed: bool) -> Result<bool, TunedError> {
        if self.ours && !changed {
            return Ok(false);
        }
        choose(root, self.running, &[OUR_PROFILE], false)
    }

    /// Puts the former profile into effect again, before ours is removed.
    pub(crate) fn choose_former(&self, root: &Path) -> Result<bool, TunedError> {
        if !self.ours {
            return Ok(false);
        }
        let profiles: Vec<&str> = self.profiles.iter().map(String::as_str).collect();
        choose(root, self.running, &profiles, self.chosen)
    }
}

fn choose(root: &Path, running: bool, profiles: &[&str], by_itself: bool) -> Result<bool, TunedError> {
    if running && is_live(root) {
        let words: Vec<&str> = match by_itself {
            true => vec!["tuned-adm", "auto_profile"],
            false => ["tuned-adm", "profile"].iter().chain(profiles).copied().collect(),
        };
        let refused = |said| TunedError::Refused { command: words.join(" "), said };
        program::run(&words, PATIENCE).map_err(refused)?;
        return Ok(true);
    }
    // The profile says which of the two is in effect; with the former one all else is as it was.
    let mode = if by_itself { "auto" } else { "manual" };
    let mut files = [(ACTIVE, profiles.join(" ")), (MODE, mode.to_owned())];
    if profiles != [OUR_PROFILE] {
        files.reverse();
    }
    for (file, text) in files {
        let path = root.join(file);
        if file == MODE && !fs::exists(&path).unwrap_or(false) {
            continue;
        }
        replace::replace(&path, &format!("{text}\n"), false)
            .map_err(|source| TunedError::Io { path, source })?;
    }
    Ok(true)
}
