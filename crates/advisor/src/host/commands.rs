//! What no file of the kernel says: outputs of programs, where they are there. Each runs for a few seconds at most; what
//! it printed is read as the same output in a dump is, and goes into an archive as it is.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

use super::{reader::Reader, shaper::shaper_of};
use crate::{
    dumps,
    facts::{Origin, Path, Value},
};

/// Interfaces and disks that are asked; further ones are not.
const DEVICES_MAX: usize = 64;

pub(super) fn read(r: &mut Reader<'_>) {
    let physical = r.facts.matching("net.*.physical").filter(|(_, fact)| fact.value.as_bool() == Some(true));
    let ports: Vec<String> = physical.filter_map(|(path, _)| path.names().nth(1)).map(named).collect();
    for port in ports.iter().take(DEVICES_MAX) {
        ["-g", "-k", "-c", "-l", "-a", "-x"].iter().for_each(|table| ethtool(r, table, port));
    }
    let disks: Vec<String> = r.facts.below("block");
    let disks = disks.iter().filter(|disk| disk.starts_with("sd") || disk.starts_with("nvme"));
    disks.take(DEVICES_MAX).for_each(|disk| health(r, disk));
    let controllers = r.facts.below("nvme");
    for controller in controllers.iter().filter(|name| name.starts_with("nvme")).take(DEVICES_MAX) {
        let device = format!("/dev/{controller}");
        said(r, &["nvme", "get-feature", &device, "-f", "8"]);
        said(r, &["nvme", "id-ctrl", &device]);
    }
    far_ends(r);
    disciplines(r);
    ways(r);
    clock(r);
}

/// How many routes have several ways: each stands in a line of its own below its route.
fn ways(r: &mut Reader<'_>) {
    let words = ["ip", "route", "show"];
    let Some(text) = r.tree.command(&words) else { return };
    let is_way = |line: &str| line.trim_start().starts_with("nexthop ");
    let lines: Vec<&str> = text.lines().collect();
    let number = lines.windows(2).filter(|pair| !is_way(pair[0]) && is_way(pair[1])).count();
    r.facts.insert("routes.multipath", number, Origin::of(words.join(" ")));
}

/// What the far end of a link says of itself: the end of lldpd's key, and the fact.
const FAR: [(&str, &str); 4] = [
    (".chassis.name", "far_name"),
    (".port.ifname", "far_port"),
    (".port.mfs", "far_frame"),
    (".port.aggregation", "far_aggregate"),
];

/// The far ends of links, as lldpd hears them. An interface that hears several has no far end.
fn far_ends(r: &mut Reader<'_>) {
    let words = ["lldpctl", "-f", "keyvalue"];
    let Some(text) = r.tree.command(&words) else { return };
    let mut heard: BTreeMap<(&str, &str), Vec<(usize, &str)>> = BTreeMap::new();
    for (at, line) in text.lines().enumerate() {
        let Some((key, value)) = line.split_once('=') else { continue };
        let Some(key) = key.trim().strip_prefix("lldp.") else { continue };
        // The interface's name may have points of its own.
        let of = |(end, fact): &(&str, &'static str)| Some((key.strip_suffix(end)?, *fact));
        if let Some(named) = FAR.iter().find_map(of) {
            heard.entry(named).or_default().push((at + 1, value.trim()));
        }
    }
    let known: BTreeSet<String> = r.facts.below("net").iter().map(|name| named(name)).collect();
    let several: BTreeSet<&str> =
        heard.iter().filter(|(_, said)| said.len() > 1).map(|((interface, _), _)| *interface).collect();
    for ((interface, fact), said) in &heard {
        if let [(line, value)] = said.as_slice()
            && known.contains(*interface)
            && !several.contains(interface)
        {
            r.facts.insert(["net", interface, fact], Value::parse(value), Origin::at(words.join(" "), *line));
        }
    }
}

/// What stands at the root of an interface's sending side, as tc tells: `qdisc tbf 8001: dev eth0 root refcnt 2 rate 1Gbit ...`.
fn disciplines(r: &mut Reader<'_>) {
    let words = ["tc", "qdisc", "show"];
    let Some(text) = r.tree.command(&words) else { return };
    let known: BTreeSet<String> = r.facts.below("net").iter().map(|name| named(name)).collect();
    for (at, line) in text.lines().enumerate() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let ["qdisc", kind, _, "dev", interface, "root", options @ ..] = fields.as_slice() else { continue };
        let options = match options {
            ["refcnt", _, options @ ..] => options,
            options => options,
        };
        if known.contains(*interface) {
            let origin = || Origin::at(words.join(" "), at + 1);
            r.facts.insert(["net", interface, "qdisc"], *kind, origin());
            r.facts.insert(["net", interface, "qdisc_options"], options.join(" "), origin());
            if let Some(shaper) = shaper_of(&text, interface) {
                r.facts.insert(["net", interface, "shaper"], shaper, origin());
            }
        }
    }
}

/// A name as the kernel writes it.
fn named(name: &str) -> String {
    name.replace('/', ".")
}

fn ethtool(r: &mut Reader<'_>, table: &str, port: &str) {
    said(r, &["ethtool", table, port]);
}

/// What a program prints, read as the same output in a dump is.
fn said(r: &mut Reader<'_>, words: &[&str]) {
    let Some(text) = r.tree.command(words) else { return };
    r.facts.extend(dumps::facts(&dumps::output(words, text.as_bytes())));
}

/// What a disk says of itself: `smartctl`, which does not wake a disk that sleeps; without it nvme-cli.
fn health(r: &mut Reader<'_>, disk: &str) {
    let device = format!("/dev/{disk}");
    let words = ["smartctl", "-j", "-n", "standby", "-H", "-A", &device];
    let Some(text) = r.tree.command(&words) else {
        if disk.starts_with("nvme") {
            said(r, &["nvme", "smart-log", &device]);
        }
        return;
    };
    let Ok(said) = serde_json::from_str::<Json>(&text) else { return };
    let path = Path::of(&["block", disk]);
    let origin = || Origin::of(words.join(" "));
    if let Some(passed) = said["smart_status"]["passed"].as_bool() {
        r.facts.insert(path.join("smart_passed"), passed, origin());
    }
    let log = &said["nvme_smart_health_information_log"];
    for (name, key) in [
        ("smart_warning", "critical_warning"),
        ("spare", "available_spare"),
        ("spare_threshold", "available_spare_threshold"),
        ("used_percent", "percentage_used"),
        ("media_errors", "media_errors"),
    ] {
        if let Some(number) = log[key].as_u64() {
            r.facts.insert(path.join(name), number, origin());
        }
    }
    let controller = disk.rsplit_once('n').map_or(disk, |(controller, _)| controller);
    for (name, key) in [("temperature_c", "temperature"), ("hot_minutes", "warning_temp_time")] {
        if let Some(number) = log[key].as_u64() {
            r.facts.insert(["nvme", controller, name], number, origin());
        }
    }
    // By the numbers that makers agree on.
    for row in said["ata_smart_attributes"]["table"].as_array().into_iter().flatten() {
        let name = match row["id"].as_u64() {
            Some(5) => "sectors_reallocated",
            Some(197) => "sectors_pending",
            Some(199) => "cable_errors",
            _ => continue,
        };
        if let Some(number) = row["raw"]["value"].as_u64() {
            r.facts.insert(path.join(name), number, origin());
        }
    }
}

/// Whether the clock follows others, and how far it is off.
fn clock(r: &mut Reader<'_>) {
    let words = ["chronyc", "-c", "-n", "tracking"];
    if let Some(text) = r.tree.command(&words) {
        // Reference, name, stratum, time, offset of the system's clock in seconds, ..., leap status as the last.
        let fields: Vec<&str> = text.trim().split(',').collect();
        let origin = || Origin::of(words.join(" "));
        if let (14, Some(leap)) = (fields.len(), fields.last()) {
            r.facts.insert("clock.synchronised", *leap != "Not synchronised", origin());
            if let Some(seconds) = fields[4].parse::<f64>().ok().filter(|s| s.is_finite()) {
                r.facts.insert(
                    "clock.offset_us",
                    Value::from((seconds.abs() * 1e6).min(1e15) as i64),
                    origin(),
                );
            }
            return;
        }
    }
    let words = ["timedatectl", "show", "-p", "NTPSynchronized", "--value"];
    let synchronised = match r.tree.command(&words).as_deref().map(str::trim) {
        Some("yes") => true,
        Some("no") => false,
        _ => return,
    };
    r.facts.insert("clock.synchronised", synchronised, Origin::of(words.join(" ")));
}
