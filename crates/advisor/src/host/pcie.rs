//! PCIe: what each link runs at and could run at, and what the slots with network ports carry.

use std::collections::BTreeMap;

use super::reader::{Reader, count, flag, word};
use crate::facts::{Path, Value};

pub(super) const DEVICES: &str = "sys/bus/pci/devices";

pub(super) fn read(r: &mut Reader<'_>) {
    for address in r.tree.names(DEVICES) {
        let dir = format!("{DEVICES}/{address}");
        let path = Path::of(&["pcie", &address]);
        // Classes: 01 storage, 02 network, 03 display, 12 accelerator; others move little.
        let class = r.tree.glance(&format!("{dir}/class")).unwrap_or_default();
        let kind = match class.get(..4) {
            Some("0x01") => "storage",
            Some("0x02") => "network",
            Some("0x03") => "display",
            Some("0x12") => "accelerator",
            _ => continue,
        };
        r.file(path.join("kind"), &format!("{dir}/class"), |_| Some(Value::from(kind)));
        for (name, file) in [("speed_mts", "current_link_speed"), ("speed_mts_max", "max_link_speed")] {
            r.file(path.join(name), &format!("{dir}/{file}"), |t| transfers(t).map(Value::from));
        }
        for (name, file) in [("width", "current_link_width"), ("width_max", "max_link_width")] {
            r.file(path.join(name), &format!("{dir}/{file}"), |t| lanes(t).map(Value::from));
        }
        r.file(path.join("numa_node"), &format!("{dir}/numa_node"), count);
        r.file(path.join("power"), &format!("{dir}/power/control"), word);
        r.file(path.join("aspm_l1"), &format!("{dir}/link/l1_aspm"), flag);
        if let Some(driver) = r.tree.link(&format!("{dir}/driver")) {
            r.put(path.join("driver"), driver, &format!("{dir}/driver"));
        }
        for (name, file) in [
            ("corrected", "aer_dev_correctable"),
            ("fatal", "aer_dev_fatal"),
            ("nonfatal", "aer_dev_nonfatal"),
        ] {
            r.file(path.join(name), &format!("{dir}/{file}"), |t| {
                count(t.lines().find_map(|line| line.strip_prefix("TOTAL_ERR_"))?.split_once(' ')?.1)
            });
        }
        if let (Some(speed), Some(width)) = (int(r, &path, "speed_mts"), int(r, &path, "width")) {
            r.put(path.join("mbit"), mbit(speed, width), &dir);
        }
    }
}

/// The ports of one card share its slot: `slot.0000:01:00.mbit`, `.ports_mbit`, `.ports`.
pub(super) fn slots(r: &mut Reader<'_>, ports: &[(String, String, u32)]) {
    let mut slots: BTreeMap<String, (i64, Vec<&str>, u64)> = BTreeMap::new();
    for (port, address, speed) in ports {
        let Some(mbit) = int(r, &Path::of(&["pcie", address]), "mbit") else { continue };
        let Some((slot, _)) = address.rsplit_once('.') else { continue };
        let slot = slots.entry(slot.to_owned()).or_insert((mbit, Vec::new(), 0));
        slot.1.push(port);
        slot.2 += u64::from(*speed);
    }
    for (name, (mbit, ports, sum)) in slots {
        let path = Path::of(&["slot", &name]);
        r.put(path.join("mbit"), mbit, &format!("{DEVICES}/{name}.0"));
        r.put(path.join("ports"), ports, "sys/class/net");
        r.put(path.join("ports_mbit"), sum, "sys/class/net/*/speed");
    }
}

fn int(r: &Reader<'_>, path: &Path, name: &str) -> Option<i64> {
    r.facts.int(path.join(name).as_str())
}

/// `8.0 GT/s PCIe` in million transfers a second.
pub(crate) fn transfers(text: &str) -> Option<u32> {
    let (number, _) = text.split_once(" GT/s")?;
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    let (whole, tenths): (u32, u32) = (whole.parse().ok()?, tenths.get(..1)?.parse().ok()?);
    whole.checked_mul(1000)?.checked_add(tenths * 100).filter(|n| *n > 0)
}

/// How many lanes a link has; 0 and 255 are "not known".
pub(crate) fn lanes(text: &str) -> Option<u32> {
    text.parse().ok().filter(|n| (1..=32).contains(n))
}

/// What a link carries in Mbit/s, after its line code (8b/10b up to 5 GT/s, then 128b/130b) and before packet headers.
pub(crate) fn mbit(speed_mts: i64, width: i64) -> i64 {
    let raw = speed_mts.saturating_mul(width);
    if speed_mts <= 5000 { raw / 10 * 8 } else { raw.saturating_mul(128) / 130 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds() {
        for (text, value) in [
            ("8.0 GT/s PCIe", Some(8000)),
            ("2.5 GT/s", Some(2500)),
            ("16 GT/s", Some(16000)),
            ("Unknown", None),
            ("0 GT/s", None),
        ] {
            assert_eq!(transfers(text), value, "{text}");
        }
        // PCIe 3.0 x16 carries 126 Gbit/s, 2.0 x8 carries 32.
        assert_eq!((mbit(8000, 16), mbit(5000, 8)), (126_030, 32_000));
    }
}
