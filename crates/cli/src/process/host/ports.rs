//! Network ports: state, speed, errors, the card each is on.

use std::{fs, path::Path};

use serde_json::{Value, json};

use super::{cards, files};

/// Ports that are told of.
const PORTS_MAX: usize = 64;

/// All, by name.
pub fn told(net: &Path) -> Vec<Value> {
    let entries = fs::read_dir(net).into_iter().flatten().flatten();
    // `bonding_masters` is a file.
    let mut ports: Vec<_> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    ports.sort();
    ports.iter().take(PORTS_MAX).map(|port| told_of(port)).collect()
}

fn told_of(port: &Path) -> Value {
    let text = |name: &str| files::text(&port.join(name));
    let number = |name: &str| text(name)?.parse::<i64>().ok();
    // "802.3ad 4": a word, and its number.
    let first = |name: &str| Some(text(name)?.split_whitespace().next()?.to_owned());
    let end = |link: &str| {
        let target = fs::read_link(port.join(link)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    };
    json!({
        "name": port.file_name().map(|name| name.to_string_lossy()),
        "state": text("operstate"),
        // -1 and 0 are "not known".
        "mbit_per_second": number("speed").filter(|speed| *speed > 0),
        "mtu": number("mtu"),
        "address": text("address"),
        // A card of the machine; none: made by software.
        "card": end("device"),
        "driver": end("device/driver"),
        "hardware": cards::told(&port.join("device")),
        "firmware": if port.join("device").exists() { cards::firmware(port) } else { None },
        "duplex": text("duplex").filter(|duplex| duplex != "unknown"),
        "port": text("phys_port_name"),
        "bond": end("master"),
        // Of one that is made of others: what it is, and how it chooses among them.
        "kind": text("uevent").and_then(|all| Some(all.lines().find_map(|line| line.strip_prefix("DEVTYPE="))?.to_owned())),
        "mode": first("bonding/mode"),
        "hash": first("bonding/xmit_hash_policy"),
        "active": text("bonding/active_slave"),
        // Of a member: whether its bond sends by it, and has found its link to be there.
        "member_state": text("bonding_slave/state"),
        "member_link": text("bonding_slave/mii_status"),
        "carrier_changes": number("carrier_changes"),
        "receive_errors": number("statistics/rx_errors"),
        "send_errors": number("statistics/tx_errors"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_tell_what_they_know() {
        let net = tempfile::tempdir().unwrap();
        let port = net.path().join("eth0");
        fs::create_dir_all(port.join("statistics")).unwrap();
        for (name, text) in
            [("operstate", "up\n"), ("speed", "-1\n"), ("mtu", "9000\n"), ("statistics/rx_errors", "3\n")]
        {
            fs::write(port.join(name), text).unwrap();
        }
        std::os::unix::fs::symlink("../../0000:3b:00.0", port.join("device")).unwrap();
        fs::write(net.path().join("bonding_masters"), "").unwrap();
        let ports = told(net.path());
        assert_eq!(ports.len(), 1);
        let told = &ports[0];
        assert_eq!(
            (&told["name"], &told["state"], &told["card"]),
            (&"eth0".into(), &"up".into(), &"0000:3b:00.0".into())
        );
        assert_eq!(
            (&told["mbit_per_second"], &told["mtu"], &told["receive_errors"]),
            (&Value::Null, &9000.into(), &3.into())
        );
    }

    #[test]
    fn a_bond_tells_how_it_chooses_and_a_member_whether_it_is_used() {
        let net = tempfile::tempdir().unwrap();
        let (bond, member) = (net.path().join("bond0"), net.path().join("eth1"));
        for (port, name, text) in [
            (&bond, "uevent", "DEVTYPE=bond\nINTERFACE=bond0\n"),
            (&bond, "bonding/mode", "802.3ad 4\n"),
            (&bond, "bonding/xmit_hash_policy", "layer3+4 1\n"),
            (&bond, "bonding/active_slave", "\n"),
            (&member, "bonding_slave/state", "ACTIVE\n"),
            (&member, "bonding_slave/mii_status", "down\n"),
        ] {
            let path = port.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        std::os::unix::fs::symlink("../bond0", member.join("master")).unwrap();
        let ports = told(net.path());
        let of = |at: usize, names: [&str; 4]| names.map(|name| ports[at][name].clone());
        assert_eq!(
            of(0, ["kind", "mode", "hash", "active"]),
            ["bond".into(), "802.3ad".into(), "layer3+4".into(), Value::Null]
        );
        assert_eq!(
            of(1, ["bond", "member_state", "member_link", "mode"]),
            ["bond0".into(), "ACTIVE".into(), "down".into(), Value::Null]
        );
    }
}
