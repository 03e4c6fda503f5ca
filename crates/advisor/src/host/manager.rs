//! Who manages an interface while the system runs: systemd-networkd by which file, or NetworkManager. It decides what makes a
//! setting of the interface last. Read from what they keep below `/run`; what cannot be seen is nobody.

use super::tree::Tree;
use crate::facts::{Facts, Path};

const LINKS: &str = "run/systemd/netif/links";
/// Further interfaces are not asked whether they share a network file.
const LINKS_MAX: usize = 1024;

/// Who manages an interface.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(clippy::enum_variant_names, reason = "it is called so")]
pub enum Manager {
    /// Nobody who would say so.
    Nobody,
    /// systemd-networkd, by this network file.
    Networkd(String),
    /// NetworkManager.
    NetworkManager,
}

impl Manager {
    /// From what systemd-networkd and NetworkManager keep of the interface while they run.
    pub fn of(tree: &Tree, interface: &str) -> Manager {
        let Some(index) = tree.text(&format!("sys/class/net/{interface}/ifindex")) else {
            return Manager::Nobody;
        };
        if index.parse::<u32>().is_err() {
            return Manager::Nobody;
        }
        let network = |index: &str| {
            let text = tree.text(&format!("{LINKS}/{index}"))?;
            let file = text.lines().find_map(|line| line.strip_prefix("NETWORK_FILE="))?;
            let name = file.rsplit('/').next()?;
            let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.:@".contains(c));
            (plain && name.ends_with(".network")).then(|| name.to_owned())
        };
        if let Some(file) = network(&index) {
            // A drop-in would be for all interfaces of the file.
            let others = tree.names(LINKS).into_iter().filter(|other| *other != index).take(LINKS_MAX);
            let alone = others.filter_map(|other| network(&other)).all(|other| other != file);
            return if alone { Manager::Networkd(file) } else { Manager::Nobody };
        }
        let state = tree.text(&format!("run/NetworkManager/devices/{index}")).unwrap_or_default();
        let connected =
            state.lines().filter_map(|l| l.strip_prefix("connection-uuid=")).any(|id| !id.is_empty());
        if connected { Manager::NetworkManager } else { Manager::Nobody }
    }
    /// From the facts that a host's reader made of it.
    pub fn of_facts(facts: &Facts, interface: &str) -> Manager {
        let of = |name: &str| facts.text(Path::of(&["net", interface, name]).as_str());
        match of("managed_by") {
            Some("NetworkManager") => Manager::NetworkManager,
            Some("systemd-networkd") => {
                of("network_file").map_or(Manager::Nobody, |f| Manager::Networkd(f.into()))
            }
            _ => Manager::Nobody,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree::Entry;
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Tree {
        let entry = |(path, text): &(&str, &str)| ((*path).to_owned(), Entry::File((*text).to_owned()));
        Tree::of(files.iter().map(entry).collect())
    }

    #[test]
    fn who_manages_an_interface() {
        let index = ("sys/class/net/eth0/ifindex", "2");
        let link = "ADMIN_STATE=configured\nNETWORK_FILE=/run/systemd/network/10-netplan-eth0.network";
        let networkd = Manager::Networkd("10-netplan-eth0.network".into());
        for (files, expected) in [
            (vec![index], Manager::Nobody),
            (vec![index, ("run/systemd/netif/links/2", link)], networkd),
            (vec![index, ("run/systemd/netif/links/2", "ADMIN_STATE=unmanaged")], Manager::Nobody),
            // The file is of two interfaces: a drop-in would change both.
            (
                vec![index, ("run/systemd/netif/links/2", link), ("run/systemd/netif/links/3", link)],
                Manager::Nobody,
            ),
            (
                vec![
                    index,
                    ("run/NetworkManager/devices/2", "[device]\nmanaged=true\nconnection-uuid=5-6\n"),
                ],
                Manager::NetworkManager,
            ),
            (vec![index, ("run/NetworkManager/devices/2", "[device]\nmanaged=false\n")], Manager::Nobody),
            (
                vec![index, ("run/systemd/netif/links/2", "NETWORK_FILE=/etc/systemd/network/a b\"")],
                Manager::Nobody,
            ),
        ] {
            assert_eq!(Manager::of(&tree(&files), "eth0"), expected, "{files:?}");
        }
    }
}
