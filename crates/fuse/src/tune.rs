//! Knobs of the kernel outside the mount itself. Each is turned where we may, and left where not: a
//! mount is right without them, only slower.

use std::{fs, path::Path};

use crate::mountinfo::Mounted;

const ENABLE_URING: &str = "/sys/module/fuse/parameters/enable_uring";
const MAX_PAGES_LIMIT: &str = "/proc/sys/fs/fuse/max_pages_limit";
/// What kernels without the knob allow, pages a request.
const MAX_PAGES_DEFAULT: u32 = 256;

/// Pages that `bytes` of a program's memory touch at most: memory need not begin on a page. With fewer a direct read or
/// write of so many bytes would be two requests, the second of a few bytes.
pub fn pages_for(bytes: u32) -> u32 {
    bytes.div_ceil(4096) + 1
}

/// Raises the system's limit of a request to what `bytes` take if it is below, and returns how many bytes one may have
/// then.
pub fn raise_request_limit(bytes: u32) -> u32 {
    let Some(limit) = read_number(MAX_PAGES_LIMIT) else { return MAX_PAGES_DEFAULT * 4096 };
    let wanted = u64::from(pages_for(bytes));
    let limit = match limit < wanted && fs::write(MAX_PAGES_LIMIT, wanted.to_string()).is_ok() {
        true => wanted,
        false => limit,
    };
    (limit * 4096).min(u64::from(u32::MAX)) as u32
}

/// Whether the kernel lets FUSE requests come by io_uring; where it only was not switched on and we may,
/// it is.
pub fn allow_uring() -> bool {
    let is_on = || fs::read_to_string(ENABLE_URING).is_ok_and(|value| value.trim() == "Y");
    is_on() || fs::write(ENABLE_URING, "Y").is_ok() && is_on()
}

/// CPUs that this machine can have, present or not: as many queues the kernel wants.
pub fn possible_cpus() -> Option<usize> {
    let list = fs::read_to_string("/sys/devices/system/cpu/possible").ok()?;
    // "0-3" or "0,2-7": the queues are numbered up to the highest.
    let last = list.trim().rsplit([',', '-']).next()?;
    last.parse::<usize>().ok().map(|highest| highest + 1)
}

/// Sets how far the kernel reads ahead on the mount; by default it asks for 128 KiB at a time.
pub fn set_read_ahead(mounted: &Mounted, bytes: u32) {
    let (major, minor) = mounted.device;
    let knob = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(error) = fs::write(&knob, (bytes / 1024).to_string()) {
        tracing::warn!(%knob, %error, "read-ahead of the mount stays at the kernel's default: sequential reads are slower");
    }
}

fn read_number(path: impl AsRef<Path>) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}
