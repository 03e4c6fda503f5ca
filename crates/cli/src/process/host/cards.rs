//! A card on the PCI bus: slot, identifiers, how wide and fast it is linked and could be, and its firmware.

use std::{
    collections::HashMap,
    fs,
    path::Path,
    sync::LazyLock,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::files::text;

/// A card's firmware is asked for again after this.
const FIRMWARE_AGE: Duration = Duration::from_secs(3600);
/// Ports whose firmware is remembered.
const PORTS_MAX: usize = 64;

/// Of the device behind `device`, a link in sysfs; null if it is not on the PCI bus.
pub fn told(device: &Path) -> Value {
    let Ok(card) = fs::canonicalize(device) else { return Value::Null };
    // A port of a virtual machine is a device on a bus of its own, on a card.
    let on_pci =
        card.ancestors().find(|at| at.join("current_link_speed").exists() || at.join("class").exists());
    let Some(card) = on_pci.filter(|at| at.join("vendor").exists()) else { return Value::Null };
    let of = |name: &str| text(&card.join(name));
    let ids = |a: &str, b: &str| {
        Some(format!("{}:{}", of(a)?.trim_start_matches("0x"), of(b)?.trim_start_matches("0x")))
    };
    let link = |speed: &str, width: &str| {
        let lanes = of(width).filter(|lanes| lanes != "0")?;
        Some(format!("{} x{lanes}", of(speed)?.trim_end_matches(" PCIe")))
    };
    let (now, best) =
        (link("current_link_speed", "current_link_width"), link("max_link_speed", "max_link_width"));
    json!({
        "address": card.file_name().map(|name| name.to_string_lossy()),
        "slot": slot(card),
        "id": ids("vendor", "device"),
        "subsystem_id": ids("subsystem_vendor", "subsystem_device"),
        "numa_node": of("numa_node").and_then(|node| node.parse::<i64>().ok()).filter(|node| *node >= 0),
        "link": now,
        "best_link": best,
    })
}

/// The slot of the machine that it is in, as the machine calls it.
fn slot(card: &Path) -> Option<String> {
    let address = card.file_name()?.to_string_lossy().into_owned();
    let slots = fs::read_dir("/sys/bus/pci/slots").ok()?.flatten();
    // A slot's address has no function: 0000:3b:00.
    let of = |slot: &fs::DirEntry| {
        text(&slot.path().join("address")).is_some_and(|at| address.starts_with(&format!("{at}.")))
    };
    slots.filter(of).map(|slot| slot.file_name().to_string_lossy().into_owned()).next()
}

/// The firmware of a port's card, as `ethtool -i` or the card's RDMA device tells it.
pub fn firmware(port: &Path) -> Option<String> {
    /// What was told, and when, by name of the port.
    type Told = HashMap<String, (Instant, Option<String>)>;
    static KNOWN: LazyLock<Mutex<Told>> = LazyLock::new(Mutex::default);
    let rdma = fs::read_dir(port.join("device/infiniband")).into_iter().flatten().flatten();
    if let Some(told) = rdma.filter_map(|device| text(&device.path().join("fw_ver"))).next() {
        return Some(told);
    }
    let name = port.file_name()?.to_string_lossy().into_owned();
    if let Some((when, known)) = KNOWN.lock().get(&name)
        && when.elapsed() < FIRMWARE_AGE
    {
        return known.clone();
    }
    let told = advisor::program_output(&["ethtool", "-i", &name]).and_then(|said| read_firmware(&said));
    let mut known = KNOWN.lock();
    if known.len() >= PORTS_MAX {
        known.clear();
    }
    known.insert(name, (Instant::now(), told.clone()));
    told
}

fn read_firmware(text: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.strip_prefix("firmware-version:"))?.trim();
    (!matches!(line, "" | "N/A")).then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_tells_its_link_and_what_it_could_be() {
        let sys = tempfile::tempdir().unwrap();
        let card = sys.path().join("pci0000:3a/0000:3b:00.0");
        fs::create_dir_all(&card).unwrap();
        for (name, text) in [
            ("class", "0x020000"),
            ("vendor", "0x15b3"),
            ("device", "0x1017"),
            ("numa_node", "-1"),
            ("current_link_speed", "8.0 GT/s PCIe"),
            ("current_link_width", "8"),
            ("max_link_speed", "16.0 GT/s PCIe"),
            ("max_link_width", "16"),
        ] {
            fs::write(card.join(name), format!("{text}\n")).unwrap();
        }
        let told = told(&card);
        assert_eq!((&told["link"], &told["best_link"]), (&"8.0 GT/s x8".into(), &"16.0 GT/s x16".into()));
        assert_eq!((&told["id"], &told["numa_node"]), (&"15b3:1017".into(), &Value::Null));
        assert_eq!(told["address"], "0000:3b:00.0");
        assert_eq!(super::told(&sys.path().join("nothing")), Value::Null);
        let said = "driver: mlx5_core\nversion: 6.1\nfirmware-version: 16.35.2000 (MT_0000000012)\n";
        assert_eq!(read_firmware(said).unwrap(), "16.35.2000 (MT_0000000012)");
        assert_eq!(read_firmware("driver: virtio_net\nfirmware-version: \n"), None);
    }
}
