//! Loop devices on files, each throttled for the processes of one cgroup; gone when dropped. Needs root.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use super::{
    error::{SelfTestError, failed},
    first::weigh,
};
use crate::draw::Draw;

/// Bytes of the file below a device.
const BYTES: usize = 32 << 20;
/// Keeps the cgroups of one process apart.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// What is throttled.
#[derive(Clone, Copy)]
pub enum Way {
    /// Reads.
    Read,
    /// Writes.
    Write,
}

/// Throttled devices.
pub struct Disks {
    /// `/dev/loopN`, in order.
    pub devices: Vec<String>,
    cgroup: PathBuf,
    version: u8,
}

impl Disks {
    /// A throttle without any device; why not, where this kernel has none.
    pub fn none() -> Result<Result<Disks, String>, SelfTestError> {
        let controllers = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
        let (root, version) = match () {
            () if Path::new("/sys/fs/cgroup/blkio/blkio.throttle.read_iops_device").exists() => {
                ("/sys/fs/cgroup/blkio", 1)
            }
            () if controllers.split_whitespace().any(|name| name == "io") => {
                // It may be on already, or refuse; the throttle itself tells.
                let _ = fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+io");
                ("/sys/fs/cgroup", 2)
            }
            () => return Ok(Err("no cgroup with a block-I/O throttle".into())),
        };
        let number = NUMBER.fetch_add(1, Relaxed);
        let name = format!("ropewalk-self-test-{}-{number}", std::process::id());
        let cgroup = Path::new(root).join(name);
        Ok(match fs::create_dir(&cgroup) {
            Ok(()) => {
                // Of version 2 a process is in one group only.
                if version == 2 {
                    let _ = weigh(&cgroup);
                }
                Ok(Disks { devices: Vec::new(), cgroup, version })
            }
            Err(e) => Err(format!("{}: {e}", cgroup.display())),
        })
    }

    /// One device for each rate, in reads a second, on files in a directory.
    pub fn new(dir: &Path, rates: &[u64]) -> Result<Result<Disks, String>, SelfTestError> {
        let mut disks = match Disks::none()? {
            Ok(disks) => disks,
            Err(why) => return Ok(Err(why)),
        };
        for (i, &rate) in rates.iter().enumerate() {
            let file = dir.join(format!("disk{i}"));
            // Bytes, not a hole: reading a hole reads nothing.
            let mut draw = Draw::new(i as u64);
            let bytes: Vec<u8> = (0..BYTES / 8).flat_map(|_| draw.word().to_le_bytes()).collect();
            fs::write(&file, &bytes).map_err(failed(format!("write {}", file.display())))?;
            let output =
                Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(&file).output();
            let Some(output) = output.ok().filter(|o| o.status.success()) else {
                return Ok(Err("losetup gives no loop device".into()));
            };
            let device = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            let sys = format!("/sys/block/{}/dev", device.trim_start_matches("/dev/"));
            disks.devices.push(device);
            let number = fs::read_to_string(&sys).map_err(failed(format!("read {sys}")))?;
            disks.throttle(number.trim(), Way::Read, rate).map_err(failed("set the throttle"))?;
        }
        Ok(Ok(disks))
    }

    /// Throttles the disk below a directory.
    pub fn throttle_below(&self, dir: &Path, way: Way, rate: u64) -> Result<(), SelfTestError> {
        let dev = fs::metadata(dir).map_err(failed(format!("look at {}", dir.display())))?.dev();
        let number = format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
        let throttled = self.throttle(&number, way, rate);
        throttled.map_err(failed(format!("throttle the disk below {}", dir.display())))
    }

    fn throttle(&self, number: &str, way: Way, rate: u64) -> io::Result<()> {
        let (file, line) = match (self.version, way) {
            (1, Way::Read) => ("blkio.throttle.read_iops_device", format!("{number} {rate}")),
            (1, Way::Write) => ("blkio.throttle.write_iops_device", format!("{number} {rate}")),
            (_, Way::Read) => ("io.max", format!("{number} riops={rate}")),
            (_, Way::Write) => ("io.max", format!("{number} wiops={rate}")),
        };
        fs::write(self.cgroup.join(file), line)
    }

    /// The words before a command of whose descendants only those are throttled whose command line holds a text.
    pub fn under_only(&self, text: &str) -> Vec<String> {
        // The brackets keep the pattern from finding the command line that it stands in.
        let (first, rest) = text.split_at(text.len().min(1));
        let pattern = format!("[{first}]{rest}");
        // It looks for them as long as the command runs.
        let watch = format!(
            "(while sleep 0.1 && kill -0 $$ 2>/dev/null; do for pid in $(pgrep -f -- \"$0\"); do \
             echo $pid > {}/cgroup.procs; done; done 2>/dev/null) & watch=$!; \"$@\"; status=$?; kill $watch; exit $status",
            self.cgroup.display()
        );
        ["sh", "-c", &watch, &pattern].map(str::to_owned).to_vec()
    }

    /// The words before a command whose process and children are throttled.
    pub fn under(&self) -> Vec<String> {
        let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.cgroup.display());
        ["sh", "-c", &enter, "sh"].map(str::to_owned).to_vec()
    }

    /// The options that name the devices.
    pub fn options(&self) -> Vec<String> {
        self.devices.iter().flat_map(|device| ["--device".to_owned(), device.clone()]).collect()
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        for device in &self.devices {
            let _ = Command::new("losetup").args(["-d", device]).status();
        }
        let _ = fs::remove_dir(&self.cgroup);
    }
}
