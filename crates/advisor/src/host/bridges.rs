//! PCIe switches: all cards below one share the link above it, its uplink. `bridge.0000:11:00/0.mbit` is what the uplink carries,
//! `.below` the cards, `.below_mbit` what they can do together.
//! A bridge is known by the bus that begins below it, and a card stands on a bus: so the tree is known without following links.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    pcie::{self, DEVICES},
    reader::Reader,
};
use crate::facts::{Facts, Path};

/// Something on a bus.
pub(crate) struct Device {
    /// `0000:11:00.0`; without the domain where the machine has one only.
    pub address: String,
    /// The bus below it, if it is a bridge.
    pub secondary: Option<u32>,
    /// What its link carries.
    pub mbit: Option<i64>,
}

/// A switch with cards below.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Switch {
    /// Its upstream port.
    pub address: String,
    /// What the link above it carries.
    pub mbit: i64,
    /// The cards below, without their functions.
    pub below: Vec<String>,
    /// What they can do together, each bounded by the links on its way up to here.
    pub below_mbit: i64,
}

/// Bridges below `sys`, with the cards that have facts already.
pub(super) fn read(r: &mut Reader<'_>, ports: &[(String, String, u32)]) {
    let mut devices = cards(&r.facts, ports);
    for address in r.tree.glance_names(DEVICES) {
        let dir = format!("{DEVICES}/{address}");
        if !r.tree.glance(&format!("{dir}/class")).is_some_and(|class| class.starts_with("0x0604")) {
            continue;
        }
        let of = |file: &str| r.tree.text(&format!("{dir}/{file}"));
        let Some(secondary) = of("secondary_bus_number").and_then(|text| text.parse().ok()) else { continue };
        of("class");
        let speed = of("current_link_speed").and_then(|text| pcie::transfers(&text));
        let width = of("current_link_width").and_then(|text| pcie::lanes(&text));
        let mbit = speed.zip(width).map(|(speed, width)| pcie::mbit(speed.into(), width.into()));
        devices.push(Device { address, secondary: Some(secondary), mbit });
    }
    for switch in switches(&devices) {
        let path = Path::of(&["bridge", &switch.address]);
        let dir = format!("{DEVICES}/{}", switch.address);
        r.put(path.join("mbit"), switch.mbit, &format!("{dir}/current_link_width"));
        r.put(path.join("below"), switch.below, &format!("{dir}/secondary_bus_number"));
        r.put(path.join("below_mbit"), switch.below_mbit, &format!("{DEVICES}/*/current_link_width"));
    }
}

/// The cards that move data: what the link of each carries, or its ports do if that is less.
pub(crate) fn cards(facts: &Facts, ports: &[(String, String, u32)]) -> Vec<Device> {
    let mut cards: BTreeMap<String, i64> = BTreeMap::new();
    for path in facts.nodes("pcie.*") {
        let kind = facts.text(path.join("kind").as_str());
        if let (Some("network" | "storage"), Some(mbit)) = (kind, facts.int(path.join("mbit").as_str())) {
            let address = path.last();
            let slot = address.rsplit_once('.').map_or(address.as_str(), |(slot, _)| slot);
            cards.entry(slot.to_owned()).or_insert(mbit);
        }
    }
    let device = |(address, mbit): (String, i64)| {
        let function = |of: &str| of.rsplit_once('.').is_some_and(|(slot, _)| slot == address);
        let speeds: i64 =
            ports.iter().filter(|(_, of, _)| function(of)).map(|(.., mbit)| i64::from(*mbit)).sum();
        let mbit = if speeds > 0 { mbit.min(speeds) } else { mbit };
        Device { address, secondary: None, mbit: Some(mbit) }
    };
    cards.into_iter().map(device).collect()
}

/// `0000:11` of `0000:11:00.0`: the domain, and the bus as a number.
fn bus(address: &str) -> Option<(&str, u32)> {
    let (bus, _) = address.rsplit_once(':')?;
    let (domain, bus) = bus.rsplit_once(':').unwrap_or(("", bus));
    Some((domain, u8::from_str_radix(bus, 16).ok()?.into()))
}

/// The switches that have cards below. An upstream port is a bridge below another one, with several bridges below itself.
pub(crate) fn switches(devices: &[Device]) -> Vec<Switch> {
    let mut on: BTreeMap<(&str, u32), Vec<&Device>> = BTreeMap::new();
    let mut begun: BTreeMap<(&str, u32), usize> = BTreeMap::new();
    for device in devices {
        let Some((domain, bus)) = bus(&device.address) else { continue };
        on.entry((domain, bus)).or_default().push(device);
        // A bus below has a larger number: so nothing stands below itself.
        if let Some(secondary) = device.secondary.filter(|secondary| *secondary > bus) {
            *begun.entry((domain, secondary)).or_default() += 1;
        }
    }
    let mut found = Vec::new();
    for device in devices {
        let (Some(mbit), Some(secondary), Some((domain, bus))) =
            (device.mbit, device.secondary, bus(&device.address))
        else {
            continue;
        };
        let downstream = on.get(&(domain, secondary)).map_or(&[][..], Vec::as_slice);
        let bridges = downstream.iter().filter(|below| below.secondary.is_some()).count();
        if !begun.contains_key(&(domain, bus)) || bridges < 2 || secondary <= bus {
            continue;
        }
        let mut below = Vec::new();
        let below_mbit = carried(&on, (domain, secondary), &mut below, &mut BTreeSet::new());
        if !below.is_empty() {
            found.push(Switch { address: device.address.clone(), mbit, below, below_mbit });
        }
    }
    found
}

/// What the cards on a bus and below it can send up together. A bus that is said to begin twice counts once.
fn carried(
    on: &BTreeMap<(&str, u32), Vec<&Device>>,
    at: (&str, u32),
    cards: &mut Vec<String>,
    seen: &mut BTreeSet<u32>,
) -> i64 {
    if !seen.insert(at.1) {
        return 0;
    }
    let mut sum = 0i64;
    for device in on.get(&at).map_or(&[][..], Vec::as_slice) {
        let mbit = match device.secondary {
            Some(secondary) if secondary > at.1 => {
                let below = carried(on, (at.0, secondary), cards, seen);
                device.mbit.map_or(below, |mbit| mbit.min(below))
            }
            Some(_) => 0,
            None => {
                cards.push(device.address.clone());
                device.mbit.unwrap_or(0)
            }
        };
        sum = sum.saturating_add(mbit);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bridge(address: &str, secondary: u32, mbit: i64) -> Device {
        Device { address: address.to_owned(), secondary: Some(secondary), mbit: Some(mbit) }
    }
    fn card(address: &str, mbit: i64) -> Device {
        Device { address: address.to_owned(), secondary: None, mbit: Some(mbit) }
    }

    /// A root port, a switch of three ports below it, at one of them a switch of two with a narrow uplink.
    #[test]
    fn switches_and_what_stands_below() {
        let devices = [
            bridge("0000:10:01.0", 0x11, 200),
            bridge("0000:11:00.0", 0x12, 200),
            bridge("0000:12:00.0", 0x13, 100),
            bridge("0000:12:01.0", 0x14, 100),
            bridge("0000:12:02.0", 0x15, 100),
            card("0000:13:00", 100),
            card("0000:14:00", 90),
            bridge("0000:15:00.0", 0x16, 50),
            bridge("0000:16:00.0", 0x17, 100),
            bridge("0000:16:01.0", 0x18, 100),
            card("0000:17:00", 100),
            card("0000:18:00", 100),
            // At a port of its own, and on the same bus of another domain.
            bridge("0000:10:02.0", 0x20, 100),
            card("0000:20:00", 100),
            card("0001:13:00", 100),
        ];
        let of = |address: &str, mbit, below: &[&str], below_mbit| Switch {
            address: address.to_owned(),
            mbit,
            below: below.iter().map(|card| (*card).to_owned()).collect(),
            below_mbit,
        };
        let (outer, inner) =
            (["0000:13:00", "0000:14:00", "0000:17:00", "0000:18:00"], ["0000:17:00", "0000:18:00"]);
        assert_eq!(
            switches(&devices),
            [of("0000:11:00.0", 200, &outer, 240), of("0000:15:00.0", 50, &inner, 200)]
        );
    }

    #[test]
    fn bridges_in_a_circle_are_no_switch() {
        let devices = [
            bridge("0:5:00.0", 5, 1),
            bridge("0:5:01.0", 4, 1),
            bridge("0:4:00.0", 5, 1),
            bridge("x", 7, 1),
            card("0:5:00", 1),
        ];
        assert_eq!(switches(&devices), []);
        // Each bus begins twice: what is below is counted once all the same.
        let mut many: Vec<Device> = (1..255)
            .flat_map(|bus| [0, 1].map(|n| bridge(&format!("0:{bus:02x}:0{n}.0"), bus + 1, 1)))
            .collect();
        many.push(card("0:ff:00", 1));
        assert!(switches(&many).iter().all(|switch| switch.below.len() == 1));
    }
}
