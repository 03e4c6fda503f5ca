//! Which facts can be set, by writing which file, and what makes that last: one line in a file of our own, in the
//! place that the distribution reads at boot. Other files are never written.

use crate::facts::{Path, Value};

/// What makes settings last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Keeper {
    /// `sysctl.d`.
    Sysctl,
    /// A rule of udev, which sets attributes when the device appears.
    Udev,
    /// `tmpfiles.d`, which writes to files below `/sys` at boot.
    Tmpfiles,
    /// Options of a module.
    Modprobe,
}

impl Keeper {
    /// All of them.
    pub const ALL: [Keeper; 4] = [Keeper::Sysctl, Keeper::Udev, Keeper::Tmpfiles, Keeper::Modprobe];
    /// Our file there, below the root.
    pub fn file(self) -> &'static str {
        match self {
            Keeper::Sysctl => "etc/sysctl.d/90-ropewalk-advise.conf",
            Keeper::Udev => "etc/udev/rules.d/90-ropewalk-advise.rules",
            Keeper::Tmpfiles => "etc/tmpfiles.d/ropewalk-advise.conf",
            Keeper::Modprobe => "etc/modprobe.d/ropewalk-advise.conf",
        }
    }
}

/// A fact that can be set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settable {
    /// The file to write, below the root.
    pub file: String,
    /// What makes it last.
    pub keeper: Keeper,
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
            keeper: Keeper::Udev,
            kind: Kind::Attribute { subsystem, device: device.to_owned(), attribute },
        };
        match names[..] {
            ["sysctl", _, ..] => Some(Settable {
                file: format!("proc/sys/{}", names[1..].join("/")),
                keeper: Keeper::Sysctl,
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
                keeper: Keeper::Tmpfiles,
                kind: Kind::File,
            }),
            ["module", module, parameter] => Some(Settable {
                file: format!("sys/module/{module}/parameters/{parameter}"),
                keeper: Keeper::Modprobe,
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
    /// The line that makes it last, without the file.
    pub fn line(&self, value: &str) -> String {
        match &self.kind {
            Kind::Sysctl(name) => format!("{name} = {value}"),
            Kind::Attribute { subsystem, device, attribute } => format!(
                "ACTION==\"add|change\", SUBSYSTEM==\"{subsystem}\", KERNEL==\"{device}\", ATTR{{{attribute}}}=\"{value}\""
            ),
            Kind::File => format!("w /{} - - - - {value}", self.file),
            Kind::Parameter { module, parameter } => format!("options {module} {parameter}={value}"),
        }
    }
    /// What makes it last, for people.
    pub fn permanent(&self, value: &str) -> String {
        format!("/{}: {}", self.keeper.file(), self.line(value))
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
                (settable.file.as_str(), settable.command(value), settable.line(value)),
                (file, command.to_owned(), line.to_owned())
            );
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
