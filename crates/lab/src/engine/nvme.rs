//! NVMe's feature 8, interrupt coalescing: encoded, decoded, set through nvme-cli for a cell and set back behind it, also where the
//! cell fails or is stopped. Only on devices that were named as changeable; a run that is killed leaves what it set. The feature is a
//! controller's: all its namespaces have it in common.
//!
//! ```text
//! bits  7:0  completions gathered, less one
//! bits 15:8  time they are gathered at most, in 100 us
//! bits 31:16 reserved
//! ```
//! With 0 in either nothing is gathered; it holds for the queues of I/O.

use std::{
    io::Read,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::{
    context::{Context, EngineError},
    process::{find_program, line},
};
use crate::{
    plan::Params,
    targets::{Device, Targets},
};

const PROGRAM: &str = "nvme";
const FEATURE: &str = "--feature-id=8";
/// The feature is the controller's. A controller may refuse it for the one namespace that nvme-cli would take from the device's name.
const CONTROLLER: &str = "--namespace-id=0";
/// Microseconds of one step of the time.
const STEP_US: u32 = 100;
/// How long one command may take.
const CALL_MAX: Duration = Duration::from_secs(20);
/// The parameters of a cell that ask for it, both or none.
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
        match (count, us) {
            (None, None) => Ok(None),
            (Some(Ok(count)), Some(Ok(us))) => Ok(Some(Coalescing { count, us })),
            (Some(_), Some(_)) => Err("nvme_count and nvme_us are whole numbers".into()),
            _ => Err("nvme_count and nvme_us go together: without one of them nothing is gathered".into()),
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
    if find_program(PROGRAM).is_none() {
        return Err(EngineError::Missing { program: PROGRAM.into(), package: "nvme-cli" });
    }
    Ok(())
}

/// Devices that were set, each with its value from before; set back at the latest when this is dropped.
pub struct Changed {
    program: &'static str,
    before: Vec<(PathBuf, u32)>,
}

/// Sets the devices of a cell to what it asks for.
pub fn set(params: &Params, devices: &[Device], context: &Context<'_>) -> Result<Changed, EngineError> {
    ready(params, context.targets)?;
    let mut changed = Changed { program: PROGRAM, before: Vec::new() };
    if let Some(wanted) = Coalescing::of(params).map_err(EngineError::Target)? {
        changed.set(wanted, devices, &|line| context.note_command(line))?;
    }
    Ok(changed)
}

impl Changed {
    /// Sets all or none.
    fn set(
        &mut self,
        wanted: Coalescing,
        devices: &[Device],
        note: &dyn Fn(String),
    ) -> Result<(), EngineError> {
        let value = wanted.encode().map_err(EngineError::Target)?;
        for device in devices {
            if let Err(error) = self.one(&device.path, value, note) {
                self.back()?;
                return Err(error);
            }
        }
        Ok(())
    }

    fn one(&mut self, device: &Path, value: u32, note: &dyn Fn(String)) -> Result<(), EngineError> {
        let (get, put) = (get(self.program, device), put(self.program, device, value));
        note(line(&get));
        let before = current(&call(get)?)?;
        let Coalescing { count, us } = Coalescing::decode(before);
        note(format!("# before: {count} completions, {us} us"));
        self.before.push((device.to_owned(), before));
        note(line(&put));
        call(put).map(drop)
    }

    /// Sets all of them back: the last first, as several may be one controller. The first that cannot be is told with the remedy.
    pub fn back(&mut self) -> Result<(), EngineError> {
        let mut first = Ok(());
        while let Some((device, value)) = self.before.pop() {
            let command = put(self.program, &device, value);
            let remedy = line(&command);
            if let Err(error) = call(command) {
                let why = format!("{} could not be set back ({error}); run `{remedy}`", device.display());
                first = first.and(Err(EngineError::Failed { program: PROGRAM.into(), why }));
            }
        }
        first
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        // Only a panic leaves something for here, and then there is nobody to tell.
        let _ = self.back();
    }
}

fn get(program: &str, device: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg("get-feature").arg(device).args([FEATURE, CONTROLLER]);
    command
}

fn put(program: &str, device: &Path, value: u32) -> Command {
    let mut command = Command::new(program);
    command.arg("set-feature").arg(device).args([FEATURE, CONTROLLER]).arg(format!("--value={value:#x}"));
    command
}

/// Runs one to its end, in a group of its own: Ctrl-C ends the load, not what sets a device back.
fn call(mut command: Command) -> Result<String, EngineError> {
    let failed = |why: String| EngineError::Failed { program: PROGRAM.into(), why };
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    let deadline = Instant::now() + CALL_MAX;
    // What it prints is a line, which a pipe holds.
    let status = loop {
        match child.try_wait().map_err(|error| failed(error.to_string()))? {
            Some(status) => break status,
            None if Instant::now() > deadline => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(EngineError::Late { program: PROGRAM.into(), seconds: CALL_MAX.as_secs_f64() });
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let (mut out, mut said) = (Vec::new(), Vec::new());
    let read = child.stdout.take().map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut out));
    let read = read.and_then(|_| child.stderr.take().map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut said)));
    read.map_err(|error| failed(error.to_string()))?;
    match status.success() {
        true => Ok(String::from_utf8_lossy(&out).into_owned()),
        false => Err(failed(format!("{status}: {}", String::from_utf8_lossy(&said).trim()))),
    }
}

/// The value that nvme-cli prints: `get-feature:0x08 (Interrupt Coalescing), Current value:0x0001ff`, in some versions with a
/// space behind the colon; 0 as `00000000`.
fn current(text: &str) -> Result<u32, EngineError> {
    let bad =
        || EngineError::Output { program: PROGRAM.into(), why: format!("no value in {:?}", text.trim()) };
    let rest = text.rsplit_once("value:").ok_or_else(bad)?.1.trim_start();
    let (digits, any) = rest.strip_prefix("0x").map_or((rest, false), |digits| (digits, true));
    let end = digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len());
    let value = u32::from_str_radix(&digits[..end], 16).map_err(|_| bad())?;
    if any || value == 0 { Ok(value) } else { Err(bad()) }
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
        assert_eq!(current("get-feature:0x8 (Interrupt Coalescing), Current value:00000000\n").unwrap(), 0);
        for text in ["", "value:", "value:0x", "value:12", "value:0xfffffffff"] {
            assert!(current(text).is_err(), "{text}");
        }
        let device = Path::new("/dev/nvme0n1");
        assert_eq!(
            line(&get(PROGRAM, device)),
            "nvme get-feature /dev/nvme0n1 --feature-id=8 --namespace-id=0"
        );
        assert_eq!(
            line(&put(PROGRAM, device, 0x1ff)),
            "nvme set-feature /dev/nvme0n1 --feature-id=8 --namespace-id=0 --value=0x1ff"
        );
    }

    fn device(path: &str) -> Device {
        Device {
            path: path.into(),
            writable: true,
            size: 1 << 30,
            kind: "a".into(),
            disk: "nvme0n1".into(),
            file: false,
        }
    }

    #[test]
    fn one_controller_under_two_names_is_set_back_also_where_a_device_fails() {
        let dir = tempfile::tempdir().unwrap();
        let (program, value) = (dir.path().join("nvme"), dir.path().join("value"));
        let (shown, read) = (value.display(), || std::fs::read_to_string(&value).unwrap());
        std::fs::write(&value, "0x203\n").unwrap();
        // A device named bad gives its value and cannot be set.
        let script = format!(
            "#!/bin/sh\ncase $1 in\nget-feature) echo \"get-feature:0x08 (x), Current value:$(cat {shown})\";;\n\
             *) case $2 in */bad) echo no >&2; exit 1;; esac; echo ${{5#--value=}} > {shown};;\nesac\n"
        );
        // Written by another process: none that this one starts meanwhile holds it open.
        let write = "printf %s \"$1\" > \"$0\" && chmod 700 \"$0\"";
        let written = Command::new("sh").args(["-c", write]).arg(&program).arg(script).status().unwrap();
        assert!(written.success());
        let program: &'static str = program.display().to_string().leak();
        let wanted = Coalescing { count: 256, us: 100 };
        let changed = || Changed { program, before: Vec::new() };
        let both = [device("/dev/nvme0n1"), device("/dev/nvme0n2")];
        let mut set = changed();
        set.set(wanted, &both, &|_| {}).unwrap();
        assert_eq!(read(), "0x1ff\n");
        set.back().unwrap();
        assert_eq!(read(), "0x203\n");
        let mut dropped = changed();
        dropped.set(wanted, &both, &|_| {}).unwrap();
        drop(dropped);
        assert_eq!(read(), "0x203\n");
        let failed = changed().set(wanted, &[device("/dev/nvme0n1"), device("/dev/bad")], &|_| {});
        assert!(failed.unwrap_err().to_string().contains("/dev/bad could not be set back"));
        assert_eq!(read(), "0x203\n");
    }

    #[test]
    fn a_device_that_was_not_named_as_changeable_is_left_alone() {
        let targets = Targets { devices: vec![device("/dev/nvme0n1")], ..Targets::default() };
        let params = |list: &[(&str, &str)]| -> Params {
            list.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        assert!(ready(&params(&[("rw", "read")]), &targets).is_ok());
        for (us, said) in
            [("100", "/dev/nvme0n1 is not named as changeable"), ("150", "multiple of 100"), ("x", "whole")]
        {
            let wanted = params(&[("nvme_count", "256"), ("nvme_us", us)]);
            let refused = ready(&wanted, &targets).unwrap_err().to_string();
            assert!(refused.contains(said), "{refused}");
        }
        let refused = ready(&params(&[("nvme_us", "100")]), &targets).unwrap_err().to_string();
        assert!(refused.contains("go together"), "{refused}");
    }
}
