//! What this machine tells of its network ports (sysfs), for who looks at the cluster. What it does not tell is left out.

use std::{fs, path::Path};

use serde_json::{Value, json};

/// Ports that are told of.
const PORTS_MAX: usize = 64;

/// The machine's name, and its ports.
pub fn told() -> Value {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    json!({ "name": name.trim(), "ports": ports(Path::new("/sys/class/net")) })
}

fn ports(net: &Path) -> Vec<Value> {
    let entries = fs::read_dir(net).into_iter().flatten().flatten();
    // `bonding_masters` is a file.
    let mut ports: Vec<_> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    ports.sort();
    ports.iter().take(PORTS_MAX).map(|port| told_of(port)).collect()
}

fn told_of(port: &Path) -> Value {
    let text = |name: &str| Some(fs::read_to_string(port.join(name)).ok()?.trim().to_owned());
    let number = |name: &str| text(name)?.parse::<i64>().ok();
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
        "bond": end("master"),
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
        let ports = ports(net.path());
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
}
