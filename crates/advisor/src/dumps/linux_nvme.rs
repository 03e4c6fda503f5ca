//! What nvme-cli prints: `nvme list`, `get-feature`, `id-ctrl`, `smart-log`, in the forms of its releases. Serial numbers are
//! not kept.

use super::listing::{Parser, Reader, Taken, Title};

pub(super) const PARSERS: [Parser; 4] = [
    Parser {
        kind: "nvme list",
        title: Title::Often,
        system: "Linux",
        starts: |w| w.first().starts_with("Node ") && w.first().contains("Namespace"),
        line: nvme,
    },
    Parser {
        kind: "nvme get-feature",
        title: Title::No,
        system: "Linux",
        starts: |w| feature(w.first()).is_some(),
        line: nvme_feature,
    },
    Parser {
        kind: "nvme id-ctrl",
        title: Title::Once,
        system: "Linux",
        starts: |w| w.first().eq_ignore_ascii_case(CONTROLLER),
        line: controller,
    },
    Parser {
        kind: "nvme smart-log",
        title: Title::Once,
        system: "Linux",
        starts: |w| w.first().starts_with(SMART),
        line: smart,
    },
];

const CONTROLLER: &str = "NVME Identify Controller:";
const SMART: &str = "Smart Log for NVME device:";

/// The device that the command above names.
fn device(r: &Reader) -> String {
    r.command.iter().find_map(|word| word.strip_prefix("/dev/")).unwrap_or("nvme").to_owned()
}

fn nvme(r: &mut Reader, line: &str) -> Taken {
    let text = line.trim();
    if text.starts_with("Node ") || text.starts_with("---") {
        return Taken::Ignored("table head");
    }
    let Some(node) = text.split_whitespace().next().filter(|node| node.starts_with("/dev/nvme")) else {
        return Taken::No;
    };
    let name = node.trim_start_matches("/dev/");
    r.entry(&["nvme", name, "listed"], "yes");
    // `512   B +  0 B` is data and metadata of a sector; the firmware stands behind it.
    let words: Vec<&str> = text.split_whitespace().collect();
    if let Some(plus) = words.iter().position(|word| *word == "+").filter(|at| *at >= 2) {
        let size = if words[plus - 1] == "KiB" {
            format!("{}K", words[plus - 2])
        } else {
            words[plus - 2].to_owned()
        };
        r.entry(&["nvme", name, "block"], &size);
        if let Some(firmware) = words.get(plus + 3) {
            r.entry(&["nvme", name, "firmware"], firmware);
        }
    }
    Taken::Read
}

/// `get-feature:0x08 (Interrupt Coalescing), Current value:0x000001ff`.
fn feature(line: &str) -> Option<(&str, &str)> {
    let (id, rest) = line.trim().strip_prefix("get-feature:")?.split_once(' ')?;
    let (_, value) = rest.rsplit_once("value:")?;
    Some((id, value.trim()))
}

fn nvme_feature(r: &mut Reader, line: &str) -> Taken {
    let Some((id, value)) = feature(line) else { return Taken::No };
    let device = device(r);
    let number = u32::from_str_radix(id.trim_start_matches("0x"), 16).unwrap_or(0);
    r.entry(&["nvme", &device, &format!("feature-{number}")], value);
    if let (8, Ok(bits)) = (number, u32::from_str_radix(value.trim_start_matches("0x"), 16)) {
        r.entry(&["nvme", &device, "coalesce-count"], &(bits & 0xff).to_string());
        r.entry(&["nvme", &device, "coalesce-time"], &(bits >> 8 & 0xff).to_string());
    }
    Taken::Read
}

/// `name : value`; a value may have remarks behind it.
fn pair(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.split_once(':')?;
    let (key, value) = (key.trim(), value.trim());
    (!key.is_empty() && key.len() <= 40).then_some((key, value))
}

/// Fields of the controller that rules look at; the others are many.
const FIELDS: [&str; 7] = ["mn", "fr", "mdts", "wctemp", "cctemp", "vwc", "npss"];

fn controller(r: &mut Reader, line: &str) -> Taken {
    if line.trim().eq_ignore_ascii_case(CONTROLLER) {
        return Taken::Ignored("heading");
    }
    let Some((key, value)) = pair(line) else {
        // Power states go on in a further line; `-H` explains bits.
        return if line.starts_with([' ', '\t']) { Taken::Ignored("details") } else { Taken::No };
    };
    if key.starts_with('[')
        || key.starts_with("ps ")
        || line.starts_with([' ', '\t']) && !FIELDS.contains(&key)
    {
        return Taken::Ignored("details");
    }
    if key.contains(' ') {
        return Taken::No;
    }
    if key == "sn" {
        return Taken::Ignored("details");
    }
    if !FIELDS.contains(&key) {
        return Taken::Ignored("details");
    }
    let device = device(r);
    r.entry(&["nvme", &device, &format!("id-{key}")], value);
    Taken::Read
}

fn smart(r: &mut Reader, line: &str) -> Taken {
    if let Some(rest) = line.trim().strip_prefix(SMART) {
        r.scope = rest.split_whitespace().next().unwrap_or("nvme").to_owned();
        return Taken::Ignored("heading");
    }
    let Some((key, value)) = pair(line) else { return Taken::No };
    // Releases differ in case and in the marks between words.
    let name = key.to_ascii_lowercase().replace(' ', "_");
    let name = match name.as_str() {
        "critical_warning"
        | "temperature"
        | "available_spare"
        | "available_spare_threshold"
        | "percentage_used"
        | "media_errors"
        | "warning_temperature_time" => name,
        _ if key.starts_with('[') => return Taken::Ignored("details"),
        _ => return Taken::Ignored("other counter"),
    };
    let device = r.scope.clone();
    r.entry(&["nvme", &device, &format!("smart-{}", name.replace('_', "-"))], value);
    Taken::Read
}

#[cfg(test)]
mod tests {
    use crate::dumps::{document, facts};

    #[test]
    fn forms_of_several_releases() {
        let old = "# nvme id-ctrl /dev/nvme1\nNVME Identify Controller:\nvid     : 0x1c5c\nsn      : SECRET1\nmn      : PC401 X\n\
            fr      : 80007E00\nmdts    : 5\nwctemp  : 352\ncctemp  : 354\nps    0 : mp:9.00W operational enlat:0\n\
            \x20         rwt:0 rwl:0 idle_power:- active_power:-\n\
            # nvme smart-log /dev/nvme1\nSmart Log for NVME device:nvme1 namespace-id:ffffffff\ncritical_warning   : 0x9\n\
            temperature                         : 80 C\navailable_spare                     : 3%\n\
            data_units_read                     : 27,415,274\nmedia_errors                        : 0\n";
        let new = "# nvme id-ctrl -H /dev/nvme1\nNVME Identify Controller:\nsn        : SECRET1\nwctemp    : 352 [79 \u{b0}C, 174 \u{b0}F]\n  [0:0] : 0x1\tA bit\n\
            # nvme smart-log /dev/nvme1n1\nSmart Log for NVME device:nvme1n1 namespace-id:ffffffff\ncritical_warning\t\t\t: 0\n\
            temperature\t\t\t\t: 80 \u{b0}C (353 K, 176 \u{b0}F)\navailable_spare\t\t\t\t: 100%\nWarning Temperature Time\t\t: 12\n\
            Temperature Sensor 1           : 32\u{b0}C (305 Kelvin)\n";
        for (text, spare, disk, hot) in [(old, 3, "nvme1", None), (new, 100, "nvme1n1", Some(12))] {
            let doc = document("x", text.as_bytes());
            assert!(doc.unknown.is_empty(), "{:?}", doc.unknown);
            assert!(doc.entries().all(|entry| !entry.value.contains("SECRET")));
            let facts = facts(&doc);
            assert_eq!(
                (facts.int("nvme.nvme1.temperature_c"), facts.int("nvme.nvme1.warning_c")),
                (Some(80), Some(79))
            );
            assert_eq!(facts.int(&format!("block.{disk}.spare")), Some(spare));
            assert_eq!(facts.int("nvme.nvme1.hot_minutes"), hot);
        }
        assert_eq!(facts(&document("x", old.as_bytes())).int("block.nvme1.smart_warning"), Some(9));
    }
}
