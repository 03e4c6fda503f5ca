//! Which facts can be set, by writing which file, and what makes that last: one line in a file of our own, in the
//! place that the distribution reads at boot. Other files are never written.

use crate::{
    facts::{Path, Value},
    host::Manager,
    permanent::Keeper,
};

/// A fact that can be set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settable {
    /// The file to write, below the root.
    pub file: String,
    kind: Kind,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Kind {
    Sysctl(String),
    Attribute { subsystem: &'static str, device: String, attribute: String },
    File,
    Parameter { module: String, parameter: String },
}

/// Attributes of a block device's queue that can be set.
const QUEUE: [&str; 10] = [
    "scheduler",
    "nr_requests",
    "read_ahead_kb",
    "rq_affinity",
    "nomerges",
    "add_random",
    "wbt_lat_usec",
    "max_sectors_kb",
    "iostats",
    "rotational",
];

impl Settable {
    /// How to set this fact; none if that is not known to be safe, or if its name is no plain name.
    pub fn of(fact: &Path) -> Option<Settable> {
        let names: Vec<String> = fact.names().map(|name| name.replace('/', ".")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        // A name becomes a part of a file's name and of a rule's text.
        let plain = |name: &&str| {
            let mut chars = name.chars();
            !name.is_empty()
                && *name != "."
                && *name != ".."
                && chars.all(|c| c.is_ascii_alphanumeric() || "_-.:@".contains(c))
        };
        if !names.iter().all(plain) {
            return None;
        }
        let attribute = |subsystem, device: &str, place: &str, attribute: String| Settable {
            file: format!("sys/{place}/{device}/{attribute}"),
            kind: Kind::Attribute { subsystem, device: device.to_owned(), attribute },
        };
        match names[..] {
            ["sysctl", _, ..] => Some(Settable {
                file: format!("proc/sys/{}", names[1..].join("/")),
                // sysctl's own way to write a point inside a name.
                kind: Kind::Sysctl(fact.names().skip(1).collect::<Vec<_>>().join(".")),
            }),
            ["block", device, name] if QUEUE.contains(&name) => {
                Some(attribute("block", device, "block", format!("queue/{name}")))
            }
            [
                "net",
                device,
                name @ ("mtu" | "tx_queue_len" | "gro_flush_timeout" | "napi_defer_hard_irqs"),
            ] => Some(attribute("net", device, "class/net", name.to_owned())),
            ["bond", device, "hash"] => {
                Some(attribute("net", device, "class/net", "bonding/xmit_hash_policy".to_owned()))
            }
            ["bond", device, "miimon"] => {
                Some(attribute("net", device, "class/net", "bonding/miimon".to_owned()))
            }
            ["memory", "thp", name @ ("enabled" | "defrag")] => Some(Settable {
                file: format!("sys/kernel/mm/transparent_hugepage/{name}"),
                kind: Kind::File,
            }),
            ["module", module, parameter] => Some(Settable {
                file: format!("sys/module/{module}/parameters/{parameter}"),
                kind: Kind::Parameter { module: module.to_owned(), parameter: parameter.to_owned() },
            }),
            _ => None,
        }
    }
    /// A value as the file wants it.
    pub fn text_of(&self, value: &Value) -> String {
        match value {
            Value::Bool(b) if matches!(self.kind, Kind::Parameter { .. }) => {
                (if *b { "Y" } else { "N" }).into()
            }
            Value::Bool(b) => (if *b { "1" } else { "0" }).to_owned(),
            other => other.to_string(),
        }
    }
    /// The command that sets it.
    pub fn command(&self, value: &str) -> String {
        match &self.kind {
            Kind::Sysctl(name) if value.contains(' ') => format!("sysctl -w {name}='{value}'"),
            Kind::Sysctl(name) => format!("sysctl -w {name}={value}"),
            _ => format!("echo {value} > /{}", self.file),
        }
    }
    /// The interface whose manager has a say in it.
    pub fn interface(&self) -> Option<&str> {
        match &self.kind {
            Kind::Attribute { subsystem: "net", device, .. } => Some(device),
            _ => None,
        }
    }
    /// What makes it last where the interface, if it is of one, is managed so.
    pub fn keeper(&self, manager: &Manager) -> Keeper {
        match (&self.kind, manager) {
            (Kind::Sysctl(_), _) => Keeper::Sysctl,
            (Kind::File, _) => Keeper::Tmpfiles,
            (Kind::Parameter { .. }, _) => Keeper::Modprobe,
            // Its connection would set these again after udev has.
            (Kind::Attribute { attribute, .. }, Manager::NetworkManager)
                if attribute == "mtu" || attribute.starts_with("bonding/") =>
            {
                Keeper::Dispatcher
            }
            (Kind::Attribute { attribute, .. }, Manager::Networkd(file)) if attribute == "mtu" => {
                Keeper::Networkd(file.clone())
            }
            (Kind::Attribute { .. }, _) => Keeper::Udev,
        }
    }
    /// The line that makes it last there, without the file.
    pub fn line(&self, value: &str, keeper: &Keeper) -> String {
        match (&self.kind, keeper) {
            (_, Keeper::Networkd(_)) => format!("MTUBytes={value}"),
            (Kind::Attribute { device, .. }, Keeper::Dispatcher) => {
                format!("[ \"$1\" = {device} ] && echo {value} > /{}", self.file)
            }
            (Kind::Sysctl(name), _) => format!("{name} = {value}"),
            (Kind::Attribute { subsystem, device, attribute }, _) => format!(
                "ACTION==\"add|change\", SUBSYSTEM==\"{subsystem}\", KERNEL==\"{device}\", ATTR{{{attribute}}}=\"{value}\""
            ),
            (Kind::File, _) => format!("w /{} - - - - {value}", self.file),
            (Kind::Parameter { module, parameter }, _) => format!("options {module} {parameter}={value}"),
        }
    }
    /// What makes it last, for people.
    pub fn permanent(&self, value: &str, manager: &Manager) -> String {
        let keeper = self.keeper(manager);
        format!("/{}: {}", keeper.file(), self.line(value, &keeper))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_commands_and_lines() {
        for (fact, value, file, command, line) in [
            (
                "sysctl.net.ipv4.tcp_rmem",
                "1 2 3",
                "proc/sys/net/ipv4/tcp_rmem",
                "sysctl -w net.ipv4.tcp_rmem='1 2 3'",
                "net.ipv4.tcp_rmem = 1 2 3",
            ),
            (
                "sysctl.net.ipv4.conf.eth0/5.rp_filter",
                "2",
                "proc/sys/net/ipv4/conf/eth0.5/rp_filter",
                "sysctl -w net.ipv4.conf.eth0/5.rp_filter=2",
                "net.ipv4.conf.eth0/5.rp_filter = 2",
            ),
            (
                "block.nvme0n1.scheduler",
                "none",
                "sys/block/nvme0n1/queue/scheduler",
                "echo none > /sys/block/nvme0n1/queue/scheduler",
                r#"ACTION=="add|change", SUBSYSTEM=="block", KERNEL=="nvme0n1", ATTR{queue/scheduler}="none""#,
            ),
            (
                "module.fuse.enable_uring",
                "Y",
                "sys/module/fuse/parameters/enable_uring",
                "echo Y > /sys/module/fuse/parameters/enable_uring",
                "options fuse enable_uring=Y",
            ),
            (
                "memory.thp.enabled",
                "madvise",
                "sys/kernel/mm/transparent_hugepage/enabled",
                "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
                "w /sys/kernel/mm/transparent_hugepage/enabled - - - - madvise",
            ),
        ] {
            let settable = Settable::of(&Path::from(fact)).unwrap();
            assert_eq!(
                (
                    settable.file.as_str(),
                    settable.command(value),
                    settable.line(value, &settable.keeper(&Manager::Nobody))
                ),
                (file, command.to_owned(), line.to_owned())
            );
        }
    }

    #[test]
    fn what_makes_it_last_depends_on_who_manages_the_interface() {
        let networkd = Manager::Networkd("10-e.network".to_owned());
        for (fact, manager, place) in [
            (
                "net.e.mtu",
                &networkd,
                "/etc/systemd/network/10-e.network.d/90-ropewalk-advise.conf: MTUBytes=9",
            ),
            (
                "net.e.mtu",
                &Manager::NetworkManager,
                r#"/etc/NetworkManager/dispatcher.d/90-ropewalk-advise: [ "$1" = e ] && echo 9 > /sys/class/net/e/mtu"#,
            ),
            (
                "net.e.tx_queue_len",
                &networkd,
                r#"/etc/udev/rules.d/90-ropewalk-advise.rules: ACTION=="add|change", SUBSYSTEM=="net", KERNEL=="e", ATTR{tx_queue_len}="9""#,
            ),
            ("sysctl.vm.x", &Manager::NetworkManager, "/etc/sysctl.d/90-ropewalk-advise.conf: vm.x = 9"),
        ] {
            assert_eq!(Settable::of(&Path::from(fact)).unwrap().permanent("9", manager), place);
        }
    }

    #[test]
    fn a_name_never_leads_elsewhere() {
        for fact in
            ["sysctl.//.x", "block.a\"b.scheduler", "net.$(x).mtu", "sysctl.a b", "sysctl", "cpu.online", ""]
        {
            let settable = Settable::of(&Path::from(fact));
            assert!(
                settable.as_ref().is_none_or(|s| !s.file.contains("..") && !s.file.contains('"')),
                "{settable:?}"
            );
        }
        assert_eq!(Settable::of(&Path::from("block.a\"b.scheduler")), None);
        assert_eq!(Settable::of(&Path::of(&["block", "..", "scheduler"])), None);
        assert_eq!(Settable::of(&Path::from("block.sda.size")), None);
    }
}
