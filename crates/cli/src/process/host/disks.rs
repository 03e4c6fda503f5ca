//! The disk under a pdisk's directory: its name, model, serial number, firmware, size, and the slot of the enclosure that it is in.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::files::text;

/// Of each pdisk (its name, its directory).
pub fn told(sys: &Path, pdisks: &[(String, PathBuf)]) -> Vec<Value> {
    let of = |(name, dir): &(String, PathBuf)| {
        let number = fs::metadata(dir).ok().map(|dir| dir.dev());
        let number = number.map(|dev| format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev)));
        let mut told = number.map_or(json!({}), |number| disk(sys, &number));
        told["pdisk"] = name.as_str().into();
        told["directory"] = dir.display().to_string().into();
        told
    };
    pdisks.iter().map(of).collect()
}

/// Of the block device with this number; empty if a file system has none (tmpfs, overlay).
fn disk(sys: &Path, number: &str) -> Value {
    let Ok(block) = fs::canonicalize(sys.join("dev/block").join(number)) else { return json!({}) };
    // A partition lies in its disk's directory.
    let disk = if block.join("partition").exists() { block.parent().unwrap_or(&block) } else { &block };
    let of = |name: &str| text(&disk.join(name));
    let device = disk.join("device");
    let sectors = of("size").and_then(|sectors| sectors.parse::<u64>().ok());
    json!({
        "device": disk.file_name().map(|name| name.to_string_lossy()),
        "model": of("device/model"),
        "serial": of("device/serial").or_else(|| of("device/vpd_pg80").map(printable)),
        "firmware": of("device/firmware_rev").or_else(|| of("device/rev")),
        "state": of("device/state"),
        "rotational": of("queue/rotational").map(|is| is == "1"),
        "size_bytes": sectors.map(|sectors| sectors.saturating_mul(512)),
        "card": super::cards::told(&device),
        "enclosure": enclosure(sys, &device),
    })
}

/// `ENCLOSURE, slot SLOT`, as the kernel's enclosure class knows it.
fn enclosure(sys: &Path, device: &Path) -> Option<String> {
    let device = fs::canonicalize(device).ok()?;
    let enclosures = fs::read_dir(sys.join("class/enclosure")).ok()?.flatten();
    for enclosure in enclosures {
        for slot in fs::read_dir(enclosure.path()).ok()?.flatten() {
            if fs::canonicalize(slot.path().join("device")).is_ok_and(|there| there == device) {
                let (of, slot) = (enclosure.file_name(), slot.file_name());
                return Some(format!("{}, slot {}", of.to_string_lossy(), slot.to_string_lossy()));
            }
        }
    }
    None
}

fn printable(text: String) -> String {
    text.chars().filter(char::is_ascii_graphic).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_partitions_disk_is_found_in_its_enclosure() {
        let sys = tempfile::tempdir().unwrap();
        let at = |path: &str| sys.path().join(path);
        for dir in ["dev/block", "devices/target0/block/sdb/sdb1", "class/enclosure/0:0:1:0/Slot 07"] {
            fs::create_dir_all(at(dir)).unwrap();
        }
        let files = [
            ("devices/target0/model", "HUC101890\n"),
            ("devices/target0/rev", "A3B0\n"),
            ("devices/target0/block/sdb/size", "2048\n"),
            ("devices/target0/block/sdb/sdb1/partition", "1\n"),
        ];
        files.iter().for_each(|(path, text)| fs::write(at(path), text).unwrap());
        symlink(at("devices/target0/block/sdb/sdb1"), at("dev/block/8:17")).unwrap();
        symlink(at("devices/target0"), at("devices/target0/block/sdb/device")).unwrap();
        symlink(at("devices/target0"), at("class/enclosure/0:0:1:0/Slot 07/device")).unwrap();
        let told = disk(sys.path(), "8:17");
        assert_eq!((&told["device"], &told["model"]), (&"sdb".into(), &"HUC101890".into()));
        assert_eq!((&told["firmware"], &told["size_bytes"]), (&"A3B0".into(), &(1 << 20).into()));
        assert_eq!(told["enclosure"], "0:0:1:0, slot Slot 07");
        assert_eq!(disk(sys.path(), "0:55"), json!({}));
        let pdisks = [("n1p1".to_owned(), at("nowhere"))];
        assert_eq!(super::told(sys.path(), &pdisks)[0]["pdisk"], "n1p1");
    }
}
