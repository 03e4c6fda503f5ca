//! Which facts can be set, by writing which file or by which program, and what makes that last: one line in a file of our own, in the
//! place that the distribution reads at boot. Other files are never written.

use std::io;

use crate::{
    ethtool::Knob,
    facts::{Path, Value},
    host::Manager,
    permanent::Keeper,
    shaping, shell,
};

/// A fact that can be set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settable {
    /// The file to write, below the root; of what a program sets, the one in which a copy of the machine has what it showed.
    pub file: String,
    kind: Kind,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Kind {
    Sysctl(String),
    Attribute { subsystem: &'static str, device: String, attribute: String },
    File,
    Parameter { module: String, parameter: String },
    Ethtool { device: String, knob: Knob },
    Shaping { device: String },
}

/// A program that reads and sets a value of an interface.
pub(crate) enum Program<'a> {
    /// ethtool, by this knob.
    Ethtool(&'a str, Knob),
    /// tc, what shapes its sending.
    Shaping(&'a str),
}

impl Program<'_> {
    /// The value in force; of a copy of a machine what the file says that the program printed.
    pub(crate) fn read(&self, root: &std::path::Path, file: &str) -> io::Result<String> {
        match self {
            Program::Ethtool(device, knob) => knob.read(root, file, device),
            Program::Shaping(device) => shaping::read(root, file, device),
        }
    }
    /// Sets it.
    pub(crate) fn write(&self, root: &std::path::Path, file: &str, value: &str) -> io::Result<()> {
        match self {
            Program::Ethtool(device, knob) => knob.write(root, file, device, value),
            Program::Shaping(device) => shaping::write(root, file, device, value),
        }
    }
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
            ["net", device, "shaper"] => Some(Settable {
                file: "ropewalk/command/tc_qdisc_show".to_owned(),
                kind: Kind::Shaping { device: device.to_owned() },
            }),
            ["net", device, name] => Knob::of(name).map(|knob| Settable {
                file: format!("ropewalk/command/ethtool_{}_{device}", knob.shows),
                kind: Kind::Ethtool { device: device.to_owned(), knob },
            }),
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
            Value::Bool(b) if matches!(self.kind, Kind::Ethtool { .. }) => {
                (if *b { "on" } else { "off" }).into()
            }
            Value::Bool(b) => (if *b { "1" } else { "0" }).to_owned(),
            other => other.to_string(),
        }
    }
    /// The command that sets it.
    pub fn command(&self, value: &str) -> String {
        // What it was stands in a file of somebody else's machine.
        let word = shell::word(value);
        match &self.kind {
            Kind::Sysctl(name) => format!("sysctl -w {name}={word}"),
            Kind::Ethtool { device, knob } => format!("ethtool {} {device} {} {word}", knob.sets, knob.word),
            Kind::Shaping { device } => shaping::command(device, value),
            _ => format!("echo {word} > /{}", self.file),
        }
    }
    /// The program that sets it, if one does.
    pub(crate) fn program(&self) -> Option<Program<'_>> {
        match &self.kind {
            Kind::Ethtool { device, knob } => Some(Program::Ethtool(device, *knob)),
            Kind::Shaping { device } => Some(Program::Shaping(device)),
            _ => None,
        }
    }
    /// The interface whose manager has a say in it.
    pub fn interface(&self) -> Option<&str> {
        match &self.kind {
            Kind::Attribute { subsystem: "net", device, .. } => Some(device),
            _ => None,
        }
    }
    /// What makes it last where the interface, if it is of one, is managed so, and where tuned makes the settings of profiles:
    /// the place of the administrator's. None where nothing is needed.
    pub fn keepers(&self, manager: &Manager, tuned: Option<&str>) -> Vec<Keeper> {
        let tuned = tuned.map(str::to_owned);
        let keeper = match (&self.kind, manager, tuned) {
            // tuned would read the other points of this name as directories.
            (Kind::Sysctl(name), _, Some(place)) if !name.contains('/') => Keeper::TunedSysctl(place),
            (Kind::Sysctl(_), ..) => Keeper::Sysctl,
            (Kind::File, _, Some(place)) => Keeper::TunedSysfs(place),
            (Kind::File, ..) => Keeper::Tmpfiles,
            (Kind::Parameter { .. }, ..) => Keeper::Modprobe,
            // A boot begins without one.
            (Kind::Shaping { .. }, ..) => return Vec::new(),
            // Its connection would set these again after udev has.
            (Kind::Attribute { attribute, .. }, Manager::NetworkManager, _)
                if attribute == "mtu" || attribute.starts_with("bonding/") =>
            {
                Keeper::Dispatcher
            }
            (Kind::Attribute { attribute, .. }, Manager::Networkd(file), _) if attribute == "mtu" => {
                Keeper::Networkd(file.clone())
            }
            // tuned sets disks after udev has; a disk that appears later is udev's.
            (Kind::Attribute { subsystem: "block", .. }, _, Some(place)) => {
                return vec![Keeper::TunedSysfs(place), Keeper::Udev];
            }
            (Kind::Attribute { .. } | Kind::Ethtool { .. }, ..) => Keeper::Udev,
        };
        vec![keeper]
    }
    /// The line that makes it last there, without the file.
    pub fn line(&self, value: &str, keeper: &Keeper) -> String {
        match (&self.kind, keeper) {
            (_, Keeper::Networkd(_)) => format!("MTUBytes={value}"),
            (Kind::Attribute { device, .. }, Keeper::Dispatcher) => {
                format!("[ \"$1\" = {device} ] && echo {value} > /{}", self.file)
            }
            (_, Keeper::TunedSysfs(_)) => format!("/{}={value}", self.file),
            (Kind::Sysctl(name), Keeper::TunedSysctl(_)) => format!("{name}={value}"),
            (Kind::Sysctl(name), _) => format!("{name} = {value}"),
            (Kind::Attribute { subsystem, device, attribute }, _) => format!(
                "ACTION==\"add|change\", SUBSYSTEM==\"{subsystem}\", KERNEL==\"{device}\", ATTR{{{attribute}}}=\"{value}\""
            ),
            (Kind::Ethtool { device, knob }, _) => format!(
                "ACTION==\"add\", SUBSYSTEM==\"net\", KERNEL==\"{device}\", RUN+=\"/usr/sbin/ethtool {} {device} {} {value}\"",
                knob.sets, knob.word
            ),
            (Kind::Shaping { .. }, _) => String::new(),
            (Kind::File, _) => format!("w /{} - - - - {value}", self.file),
            (Kind::Parameter { module, parameter }, _) => format!("options {module} {parameter}={value}"),
        }
    }
    /// What makes it last, for people.
    pub fn permanent(&self, value: &str, manager: &Manager, tuned: Option<&str>) -> String {
        if matches!(self.kind, Kind::Shaping { .. }) {
            return "Nothing is needed: a boot begins without it. If it is back, a program sets it."
                .to_owned();
        }
        let said = self.keepers(manager, tuned).into_iter().map(|keeper| {
            let section =
                keeper.head().lines().next().filter(|head| tuned.is_some() && head.starts_with('['));
            let section = section.map(|section| format!("{section} ")).unwrap_or_default();
            format!("/{}: {section}{}", keeper.file(), self.line(value, &keeper))
        });
        said.collect::<Vec<_>>().join("; ")
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
                "net.eth0.gro",
                "on",
                "ropewalk/command/ethtool_-k_eth0",
                "ethtool -K eth0 gro on",
                r#"ACTION=="add", SUBSYSTEM=="net", KERNEL=="eth0", RUN+="/usr/sbin/ethtool -K eth0 gro on""#,
            ),
            (
                "net.eth0.tx_checksum",
                "on",
                "ropewalk/command/ethtool_-k_eth0",
                "ethtool -K eth0 tx on",
                r#"ACTION=="add", SUBSYSTEM=="net", KERNEL=="eth0", RUN+="/usr/sbin/ethtool -K eth0 tx on""#,
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
                    settable.line(value, &settable.keepers(&Manager::Nobody, None)[0])
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
            assert_eq!(Settable::of(&Path::from(fact)).unwrap().permanent("9", manager, None), place);
        }
        let ours = "/etc/tuned/ropewalk-advise/tuned.conf";
        for (fact, value, place) in [
            ("sysctl.vm.x", "9", format!("{ours}: [sysctl] vm.x=9")),
            (
                "sysctl.net.ipv4.conf.e/5.rp_filter",
                "2",
                "/etc/sysctl.d/90-ropewalk-advise.conf: net.ipv4.conf.e/5.rp_filter = 2".to_owned(),
            ),
            (
                "memory.thp.enabled",
                "always",
                format!("{ours}: [ropewalk-advise] /sys/kernel/mm/transparent_hugepage/enabled=always"),
            ),
        ] {
            assert_eq!(
                Settable::of(&Path::from(fact)).unwrap().permanent(
                    value,
                    &Manager::Nobody,
                    Some("etc/tuned")
                ),
                place
            );
        }
        let disk = Settable::of(&Path::from("block.sda.scheduler")).unwrap();
        let said = disk.permanent("none", &Manager::Nobody, Some("etc/tuned/profiles"));
        assert!(said.contains("/sys/block/sda/queue/scheduler=none; /etc/udev/rules.d/"), "{said}");
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
