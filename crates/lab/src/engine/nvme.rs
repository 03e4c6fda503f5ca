//! NVMe's feature 8, interrupt coalescing: encoded, decoded, set through nvme-cli for a cell and set back behind it. Only on
//! devices that were named as changeable; a run that is killed leaves what it set.
//!
//! ```text
//! bits  7:0  completions gathered, less one
//! bits 15:8  time they are gathered at most, in 100 us
//! bits 31:16 reserved
//! ```
//! With 0 in either nothing is gathered; it holds for the queues of I/O.

use std::{ffi::OsString, path::Path, process::Command};

use super::context::{Context, EngineError};
use crate::{plan::Params, targets::Targets};

const FEATURE: &str = "--feature-id=8";
/// Microseconds of one step of the time.
const STEP_US: u32 = 100;
/// The parameters of a cell that ask for it.
pub const KEYS: [&str; 2] = ["nvme_count", "nvme_us"];

/// What a device gathers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Coalescing {
    /// Completions, 1 to 256; 1 is none.
    pub count: u32,
    /// Microseconds, a multiple of 100 up to 25,500; 0 is none.
    pub us: u32,
}

impl Coalescing {
    /// The feature's value.
    pub fn encode(self) -> Result<u32, String> {
        if !(1..=256).contains(&self.count) {
            return Err(format!("{} completions: NVMe gathers 1 to 256", self.count));
        }
        if !self.us.is_multiple_of(STEP_US) || self.us > 255 * STEP_US {
            return Err(format!("{} us: NVMe gathers for a multiple of 100 us, up to 25,500", self.us));
        }
        Ok((self.us / STEP_US) << 8 | (self.count - 1))
    }
    /// What a value of the feature says; reserved bits are left out.
    pub fn decode(value: u32) -> Coalescing {
        Coalescing { count: (value & 0xff) + 1, us: (value >> 8 & 0xff) * STEP_US }
    }
    /// What a cell asks for; `None` if it leaves devices as they are.
    fn of(params: &Params) -> Result<Option<Coalescing>, String> {
        let [count, us] = KEYS.map(|key| params.get(key).map(|value| value.parse::<u32>()));
        if count.is_none() && us.is_none() {
            return Ok(None);
        }
        let [count, us] = [count, us].map(|value| value.unwrap_or(Ok(0)));
        match (count, us) {
            (Ok(count), Ok(us)) => Ok(Some(Coalescing { count: count.max(1), us })),
            _ => Err("nvme_count and nvme_us are whole numbers".into()),
        }
    }
}

/// Whether a cell's devices may be set to what it asks for, before anything is changed.
pub fn ready(params: &Params, targets: &Targets) -> Result<(), EngineError> {
    let Some(wanted) = Coalescing::of(params).map_err(EngineError::Target)? else { return Ok(()) };
    wanted.encode().map_err(EngineError::Target)?;
    if let Some(device) = targets.devices.iter().find(|device| !targets.changeable.contains(&device.path)) {
        let path = device.path.display();
        return Err(EngineError::Target(format!(
            "{path} is not named as changeable, and {} sets NVMe's feature 8: --changeable {path}",
            KEYS.join(" or ")
        )));
    }
    if super::find_program("nvme").is_none() {
        return Err(EngineError::Missing { program: "nvme".into(), package: "nvme-cli" });
    }
    Ok(())
}

/// Devices that are set back when this is dropped.
pub struct Changed(Vec<(OsString, u32)>);

/// Sets the devices of a cell to what it asks for.
pub fn set(params: &Params, context: &Context<'_>) -> Result<Changed, EngineError> {
    ready(params, context.targets)?;
    let mut changed = Changed(Vec::new());
    let Some(wanted) = Coalescing::of(params).map_err(EngineError::Target)? else { return Ok(changed) };
    let value = wanted.encode().map_err(EngineError::Target)?;
    for device in &context.targets.devices {
        let before = current(&run(get(&device.path), context)?)?;
        changed.0.push((device.path.clone().into_os_string(), before));
        run(put(&device.path, value), context)?;
    }
    Ok(changed)
}

impl Drop for Changed {
    fn drop(&mut self) {
        for (device, value) in &self.0 {
            // There is nobody left to tell; the command line stands in the record.
            let _ = put(Path::new(device), *value).output();
        }
    }
}

fn get(device: &Path) -> Command {
    let mut command = Command::new("nvme");
    command.arg("get-feature").arg(device).arg(FEATURE);
    command
}

fn put(device: &Path, value: u32) -> Command {
    let mut command = Command::new("nvme");
    command.arg("set-feature").arg(device).arg(FEATURE).arg(format!("--value={value:#x}"));
    command
}

fn run(mut command: Command, context: &Context<'_>) -> Result<String, EngineError> {
    let failed = |why: String| EngineError::Failed { program: "nvme".into(), why };
    context.note_command(format!("{command:?}").replace('"', ""));
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

/// The value that nvme-cli prints: `get-feature:0x08 (Interrupt Coalescing), Current value:0x0001ff`, in some versions with a
/// space behind the colon.
fn current(text: &str) -> Result<u32, EngineError> {
    let bad =
        || EngineError::Output { program: "nvme".into(), why: format!("no value in {:?}", text.trim()) };
    let rest = text.rsplit_once("value:").ok_or_else(bad)?.1.trim_start();
    let digits = rest.strip_prefix("0x").ok_or_else(bad)?;
    let end = digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len());
    u32::from_str_radix(&digits[..end], 16).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sources_values_are_encoded_and_decoded() {
        // Threshold 0xFF with times 1, 2, 5.
        for (us, value) in [(100, 0x1ff), (200, 0x2ff), (500, 0x5ff)] {
            let coalescing = Coalescing { count: 256, us };
            assert_eq!((coalescing.encode(), Coalescing::decode(value)), (Ok(value), coalescing));
        }
        assert_eq!(Coalescing { count: 1, us: 0 }.encode(), Ok(0));
        assert_eq!(Coalescing::decode(0xffff_0000), Coalescing { count: 1, us: 0 });
        for (count, us) in [(0, 0), (257, 0), (1, 150), (1, 25_600)] {
            assert!(Coalescing { count, us }.encode().is_err(), "{count} {us}");
        }
    }

    #[test]
    fn what_nvme_prints_is_read_and_what_it_is_told_is_right() {
        let text = "get-feature:0x08 (Interrupt Coalescing), Current value:0x000001ff\n";
        assert_eq!(current(text).unwrap(), 0x1ff);
        assert_eq!(current("get-feature:0x8 (Interrupt Coalescing), Current value: 0x0").unwrap(), 0);
        for text in ["", "value:", "value:0x", "value:12", "value:0xfffffffff"] {
            assert!(current(text).is_err(), "{text}");
        }
        let shown = |command: Command| format!("{command:?}").replace('"', "");
        let device = Path::new("/dev/nvme0n1");
        assert_eq!(shown(get(device)), "nvme get-feature /dev/nvme0n1 --feature-id=8");
        assert_eq!(shown(put(device, 0x1ff)), "nvme set-feature /dev/nvme0n1 --feature-id=8 --value=0x1ff");
    }

    #[test]
    fn a_device_that_was_not_named_as_changeable_is_left_alone() {
        let device = crate::targets::Device {
            path: "/dev/nvme0n1".into(),
            writable: true,
            size: 1 << 30,
            kind: "a".into(),
            disk: "nvme0n1".into(),
            file: false,
        };
        let targets = Targets { devices: vec![device], ..Targets::default() };
        let params = |key: &str, value: &str| Params::from([(key.to_owned(), value.to_owned())]);
        let refused = ready(&params("nvme_us", "100"), &targets).unwrap_err().to_string();
        assert!(refused.contains("/dev/nvme0n1 is not named as changeable"), "{refused}");
        assert!(ready(&params("rw", "read"), &targets).is_ok());
        let refused = ready(&params("nvme_us", "150"), &targets).unwrap_err().to_string();
        assert!(refused.contains("multiple of 100"), "{refused}");
    }
}
