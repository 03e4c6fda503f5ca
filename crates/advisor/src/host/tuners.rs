//! Programs that set values by a profile: tuned with what its active profile and those it includes set, and the tuners that the
//! start of Mellanox' drivers may run. Only plain values are facts; what a variable or a script decides is not seen.

use std::collections::BTreeMap;

use super::{reader::Reader, tree::Tree};
use crate::facts::{Origin, Path, Value};

/// Where profiles stand; the administrator's come first.
const PLACES: [&str; 4] = ["etc/tuned/profiles", "etc/tuned", "usr/lib/tuned/profiles", "usr/lib/tuned"];
/// Where the administrator's profiles stand: in newer releases of tuned, and in older ones.
pub(crate) const OWN_PLACES: [&str; 2] = ["etc/tuned/profiles", "etc/tuned"];

/// The place of the administrator's profiles here: where those of the distribution have a directory of their own, these have too.
pub(crate) fn own_place(tree: &Tree) -> &'static str {
    OWN_PLACES[usize::from(!tree.has("usr/lib/tuned/profiles"))]
}

/// The profile that `advise apply` makes: what it sets itself is no other program's.
pub(crate) const OURS: &str = "ropewalk-advise";
/// Further profiles are not followed: they would include each other.
const PROFILES_MAX: usize = 16;
/// What the start of the drivers runs: its key in openib.conf, and the fact.
const OPENIB: [(&str, &str); 3] =
    [("RUN_MLNX_TUNE", "mlnx_tune"), ("RUN_SYSCTL", "sysctl"), ("RUN_AFFINITY_TUNER", "affinity")];

pub(super) fn read(r: &mut Reader<'_>) {
    tuned(r);
    let file = "etc/infiniband/openib.conf";
    let text = r.tree.text(file).unwrap_or_default();
    for (at, line) in text.lines().enumerate() {
        let Some((key, value)) = line.trim().split_once('=') else { continue };
        if let Some((_, name)) = OPENIB.iter().find(|(known, _)| *known == key.trim()) {
            let on = value.trim().trim_matches('"').eq_ignore_ascii_case("yes");
            r.facts.insert(["openib", name], on, Origin::at(format!("/{file}"), at + 1));
        }
    }
}

fn tuned(r: &mut Reader<'_>) {
    let Some(active) = r.tree.text("etc/tuned/active_profile").filter(|active| !active.is_empty()) else {
        return;
    };
    r.put("tuned.profile", active.as_str(), "etc/tuned/active_profile");
    r.put("tuned.place", own_place(r.tree), "usr/lib/tuned");
    let main = r.tree.text("etc/tuned/tuned-main.conf").unwrap_or_default();
    let key = |line: &str| {
        Some(line.split_once('=').filter(|(key, _)| key.trim() == "reapply_sysctl")?.1.trim().to_owned())
    };
    if let Some(value) = main.lines().find_map(key) {
        let on = ["1", "true", "yes"].contains(&value.to_lowercase().as_str());
        r.put("tuned.reapply_sysctl", on, "etc/tuned/tuned-main.conf");
    }
    let mut set: BTreeMap<String, (String, Origin)> = BTreeMap::new();
    let mut seen = Vec::new();
    active.split_whitespace().for_each(|name| profile(r.tree, name, &mut seen, &mut set));
    for (path, (value, origin)) in set {
        r.facts.insert(Path::from(format!("tuned.sets.{path}")), Value::parse_words(&value), origin);
    }
}

/// What a profile sets, over what those that it includes set.
fn profile(tree: &Tree, name: &str, seen: &mut Vec<String>, set: &mut BTreeMap<String, (String, Origin)>) {
    let plain =
        name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c)) && !name.starts_with('.');
    if !plain || seen.len() == PROFILES_MAX || seen.iter().any(|other| other == name) {
        return;
    }
    seen.push(name.to_owned());
    let files = PLACES.iter().map(|place| format!("{place}/{name}/tuned.conf"));
    let Some((file, text)) = files.into_iter().find_map(|file| Some((file.clone(), tree.text(&file)?)))
    else {
        return;
    };
    let lines = || text.lines().map(str::trim).enumerate();
    for (_, line) in lines() {
        if let Some((_, names)) = line.split_once('=').filter(|(key, _)| key.trim() == "include") {
            names.split([',', ';', ' ']).for_each(|name| profile(tree, name.trim(), seen, set));
        }
    }
    if name == OURS {
        // What ours sets is no longer what the others say.
        let keys = lines().filter_map(|(_, line)| line.split_once('=')).map(|(key, _)| key.trim());
        keys.for_each(|key| drop(set.remove(&format!("sysctl.{key}"))));
        return;
    }
    let mut section = "";
    for (at, line) in lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']');
            continue;
        }
        let Some((key, value)) = line.split_once('=').filter(|_| !line.starts_with(['#', ';'])) else {
            continue;
        };
        // `>4096` means that at least; then it is no plain value.
        let (key, value) = (key.trim(), value.split('#').next().unwrap_or_default().trim());
        let path = match (section, key) {
            ("sysctl", _) => format!("sysctl.{key}"),
            ("vm", "transparent_hugepages" | "transparent_hugepage") => "memory.thp.enabled".to_owned(),
            ("vm", "transparent_hugepage.defrag") => "memory.thp.defrag".to_owned(),
            ("disk", "elevator") => "block.scheduler".to_owned(),
            ("disk", "readahead") => "block.read_ahead_kb".to_owned(),
            _ => continue,
        };
        let value = value.trim_start_matches('>').trim();
        if !value.contains("${") && !value.is_empty() {
            set.insert(path, (value.to_owned(), Origin::at(format!("/{file}"), at + 1)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{facts::Facts, host::tree::Entry};

    fn facts(files: &[(&str, &str)]) -> Facts {
        let entry = |(path, text): &(&str, &str)| ((*path).to_owned(), Entry::File((*text).to_owned()));
        let tree = Tree::of(files.iter().map(entry).collect());
        let mut reader = Reader { tree: &tree, facts: Facts::new() };
        read(&mut reader);
        reader.facts
    }

    #[test]
    fn a_profile_wins_over_what_it_includes() {
        let seen = facts(&[
            ("etc/tuned/active_profile", "mine"),
            ("etc/tuned/mine/tuned.conf", "[main]\ninclude=base\n[sysctl]\nvm.swappiness = 5 # low\n"),
            (
                "usr/lib/tuned/base/tuned.conf",
                "[main]\ninclude=mine\n[vm]\ntransparent_hugepages=never\n[sysctl]\nvm.swappiness=10\n\
                 net.core.somaxconn=>2048\nkernel.x=${value}\n[disk]\nreadahead=>4096\n[script]\nscript=${i:PROFILE_DIR}/s.sh\n",
            ),
            ("etc/tuned/tuned-main.conf", "daemon = 1\nreapply_sysctl = 0\n"),
        ]);
        assert_eq!(seen.int("tuned.sets.sysctl.vm.swappiness"), Some(5));
        assert_eq!(seen.int("tuned.sets.sysctl.net.core.somaxconn"), Some(2048));
        assert_eq!(seen.text("tuned.sets.memory.thp.enabled"), Some("never"));
        assert_eq!(seen.int("tuned.sets.block.read_ahead_kb"), Some(4096));
        assert_eq!(
            (seen.value("tuned.sets.sysctl.kernel.x"), seen.bool("tuned.reapply_sysctl")),
            (None, Some(false))
        );
        let origin = seen.get("tuned.sets.sysctl.vm.swappiness").map(|fact| fact.origin.to_string());
        assert_eq!(origin.as_deref(), Some("/etc/tuned/mine/tuned.conf:4"));
    }

    #[test]
    fn what_leads_elsewhere_or_is_not_there_is_nothing() {
        for name in ["../../secret", "", "no-such", ".", "a b c"] {
            let seen = facts(&[("etc/tuned/active_profile", name), ("etc/tuned/x/tuned.conf", "[vm]\n")]);
            assert!(seen.matching("tuned.sets.**").next().is_none() && seen.len() <= 2, "{name}");
        }
        let seen = facts(&[("etc/infiniband/openib.conf", "ONBOOT=yes\nRUN_MLNX_TUNE=yes\nRUN_SYSCTL=no\n")]);
        assert_eq!((seen.bool("openib.mlnx_tune"), seen.bool("openib.sysctl")), (Some(true), Some(false)));
    }
}
