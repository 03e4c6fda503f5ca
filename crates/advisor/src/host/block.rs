//! Block devices, NVMe controllers, arrays of `md`, mounted file systems.

use super::reader::{Reader, chosen, count, flag, word};
use crate::facts::{Origin, Path, Value};

/// What a queue's directory says, as it is.
const QUEUE: &[&str] = &[
    "nr_requests",
    "read_ahead_kb",
    "rq_affinity",
    "nomerges",
    "wbt_lat_usec",
    "max_sectors_kb",
    "max_hw_sectors_kb",
    "logical_block_size",
    "physical_block_size",
    "optimal_io_size",
    "minimum_io_size",
    "discard_granularity",
    "max_segments",
    "zoned",
    "io_timeout",
];

/// Volumes on volumes are followed so far.
const LAYERS_MAX: usize = 8;

pub(super) fn read(r: &mut Reader<'_>) {
    for name in r.tree.names("sys/block") {
        if !["loop", "ram", "zram", "sr", "fd", "nbd"].iter().any(|kind| is_numbered(&name, kind)) {
            device(r, &name);
        }
    }
    for name in r.tree.names("sys/class/nvme") {
        controller(r, &name);
    }
    for name in r.tree.names("sys/class/nvme-subsystem") {
        let dir = format!("sys/class/nvme-subsystem/{name}");
        r.file(["nvme_subsystem", &name, "iopolicy"], &format!("{dir}/iopolicy"), word);
        let paths = r.tree.names(&dir).iter().filter(|n| is_numbered(n, "nvme")).count();
        r.put(["nvme_subsystem", &name, "paths"], paths, &dir);
    }
    mounts(r);
}

fn is_numbered(name: &str, kind: &str) -> bool {
    name.strip_prefix(kind).is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

fn device(r: &mut Reader<'_>, name: &str) {
    let dir = format!("sys/block/{name}");
    let path = Path::of(&["block", name]);
    r.file(path.join("size"), &format!("{dir}/size"), |t| {
        Some(Value::from(t.parse::<u64>().ok()?.checked_mul(512)?))
    });
    r.file(path.join("read_only"), &format!("{dir}/ro"), flag);
    r.file(path.join("removable"), &format!("{dir}/removable"), flag);
    r.file(path.join("alignment_offset"), &format!("{dir}/alignment_offset"), word);
    r.files(&path, &format!("{dir}/queue"), QUEUE);
    for name in ["rotational", "add_random", "iostats", "fua", "dax", "io_poll"] {
        r.file(path.join(name), &format!("{dir}/queue/{name}"), flag);
    }
    r.file(path.join("scheduler"), &format!("{dir}/queue/scheduler"), chosen);
    r.file(path.join("schedulers"), &format!("{dir}/queue/scheduler"), |t| {
        Some(Value::from(t.split_whitespace().map(|w| w.trim_matches(['[', ']'])).collect::<Vec<_>>()))
    });
    r.file(path.join("write_cache"), &format!("{dir}/queue/write_cache"), |t| Some(Value::from(t)));
    r.file(path.join("queue_depth"), &format!("{dir}/device/queue_depth"), count);
    r.file(path.join("queue_type"), &format!("{dir}/device/queue_type"), word);
    r.file(path.join("timeout_seconds"), &format!("{dir}/device/timeout"), count);
    r.file(path.join("state"), &format!("{dir}/device/state"), word);
    r.file(path.join("model"), &format!("{dir}/device/model"), |t| Some(Value::from(t)));
    r.file(path.join("numa_node"), &format!("{dir}/device/numa_node"), count);
    let kind = match () {
        () if name.starts_with("nvme") => "nvme",
        () if name.starts_with("md") => "md",
        () if name.starts_with("dm-") => "dm",
        () if name.starts_with("vd") => "virtio",
        () if name.starts_with("xvd") => "xen",
        () if name.starts_with("sd") => "scsi",
        () if name.starts_with("dasd") => "dasd",
        () => "other",
    };
    r.put(path.join("kind"), kind, &dir);
    requests(r, &path, &format!("{dir}/stat"));
    let queues = r.tree.names(&format!("{dir}/mq")).len();
    if queues > 0 {
        r.put(path.join("hw_queues"), queues, &format!("{dir}/mq"));
    }
    for part in r.tree.names(&dir).into_iter().filter(|part| part.starts_with(name)) {
        let path = Path::of(&["partition", &part]);
        r.file(path.join("start"), &format!("{dir}/{part}/start"), |t| {
            Some(Value::from(t.parse::<u64>().ok()?.checked_mul(512)?))
        });
        r.put(path.join("disk"), name, &dir);
    }
    if name.starts_with("md") {
        for key in [
            "degraded",
            "raid_disks",
            "sync_action",
            "level",
            "stripe_cache_size",
            "mismatch_cnt",
            "array_state",
        ] {
            r.file(["md", name, key], &format!("{dir}/md/{key}"), word);
        }
        r.file(["md", name, "bitmap"], &format!("{dir}/md/bitmap/location"), word);
    }
}

/// Reads and writes that the device has finished, and how long they took all together: `reads merged sectors ms writes ...`.
fn requests(r: &mut Reader<'_>, path: &Path, file: &str) {
    let Some(text) = r.tree.text(file) else { return };
    let numbers: Vec<u64> = text.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let [reads, _, _, reads_ms, writes, _, _, writes_ms, ..] = numbers[..] else { return };
    r.put(path.join("requests"), reads.saturating_add(writes), file);
    r.put(path.join("requests_ms"), reads_ms.saturating_add(writes_ms), file);
}

fn controller(r: &mut Reader<'_>, name: &str) {
    let dir = format!("sys/class/nvme/{name}");
    let path = Path::of(&["nvme", name]);
    for key in ["model", "firmware_rev"] {
        r.file(path.join(key), &format!("{dir}/{key}"), |t| Some(Value::from(t)));
    }
    for key in ["state", "transport", "queue_count", "sqsize", "kato", "ctrl_loss_tmo"] {
        r.file(path.join(key), &format!("{dir}/{key}"), word);
    }
    r.file(path.join("numa_node"), &format!("{dir}/numa_node"), count);
    if let Some(address) = r.tree.link(&format!("{dir}/device")) {
        r.put(path.join("pci"), address, &format!("{dir}/device"));
    }
}

/// The array of `md` that a file system stands on, and its geometry: what it wants at least and best, in bytes.
fn stripes(r: &mut Reader<'_>, path: &Path, source: &str) {
    let Some(array) = source.strip_prefix("/dev/").and_then(|name| array_below(r, name, LAYERS_MAX)) else {
        return;
    };
    let of = |name: &str| r.facts.int(Path::of(&["block", &array, name]).as_str());
    let striped = r.facts.text(Path::of(&["md", &array, "level"]).as_str());
    let striped =
        striped.is_some_and(|level| ["raid0", "raid4", "raid5", "raid6", "raid10"].contains(&level));
    if let (true, Some(chunk), Some(stripe)) = (striped, of("minimum_io_size"), of("optimal_io_size")) {
        let queue = format!("sys/block/{array}/queue");
        r.put(path.join("array_chunk"), chunk, &format!("{queue}/minimum_io_size"));
        r.put(path.join("array_stripe"), stripe, &format!("{queue}/optimal_io_size"));
        r.put(path.join("array"), array, "sys/block");
    }
}

/// The array by this name below `/dev`, or below this partition or mapped volume. A volume over several devices has no single one.
fn array_below(r: &Reader<'_>, name: &str, layers: usize) -> Option<String> {
    if is_numbered(name, "md") {
        return Some(name.to_owned());
    }
    let layers = layers.checked_sub(1)?;
    let disks = r.facts.below("block");
    if let Some(volume) = name.strip_prefix("mapper/") {
        let is = |dm: &&String| r.tree.text(&format!("sys/block/{dm}/dm/name")).as_deref() == Some(volume);
        let dm = disks.iter().filter(|disk| is_numbered(disk, "dm-")).find(is)?;
        return array_below(r, dm, layers);
    }
    if is_numbered(name, "dm-") {
        let below = r.tree.names(&format!("sys/block/{name}/slaves"));
        let [one] = &below[..] else { return None };
        return array_below(r, one, layers);
    }
    let disk = r.facts.text(Path::of(&["partition", name, "disk"]).as_str())?;
    array_below(r, disk, layers)
}

/// Mounted file systems that stand on devices or come over a network: `source point type options 0 0`. They are
/// numbered, because their names may hold anything.
fn mounts(r: &mut Reader<'_>) {
    let file = if r.tree.has("proc/self/mounts") { "proc/self/mounts" } else { "proc/mounts" };
    let Some(text) = r.tree.text(file) else { return };
    let mut number = 0;
    for (line, [source, point, kind, options]) in text.lines().enumerate().filter_map(|(i, line)| {
        let mut words = line.split_whitespace();
        Some((i + 1, [words.next()?, words.next()?, words.next()?, words.next()?]))
    }) {
        let local = source.starts_with("/dev/");
        let network = ["nfs", "nfs4", "cifs", "ceph", "lustre", "gpfs", "beegfs"].contains(&kind)
            || kind.starts_with("fuse.");
        if !(local || network) || kind == "squashfs" || number == 1024 {
            continue;
        }
        number += 1;
        // Bind mounts show the same device several times; each has options of its own.
        let path = Path::of(&["fs", &number.to_string()]);
        let origin = Origin::at(format!("/{file}"), line);
        let point = point.replace("\\040", " ");
        r.facts.insert(path.join("device"), source, origin.clone());
        r.facts.insert(path.join("point"), point.as_str(), origin.clone());
        r.facts.insert(path.join("type"), kind, origin.clone());
        let options: Vec<&str> = options.split(',').collect();
        for (name, value) in options.iter().filter_map(|o| o.split_once('=')) {
            r.facts.insert(path.join("option").join(name), Value::parse(value), origin.clone());
        }
        r.facts.insert(path.join("options"), options, origin);
        stripes(r, &path, source);
        if local && let Some([size, free, inodes, free_inodes]) = r.tree.fill(&point) {
            r.facts.insert(path.join("size"), size, Origin::of("statvfs(2)"));
            for (name, all, free) in [("full_percent", size, free), ("inodes_percent", inodes, free_inodes)] {
                if all > 0 {
                    let used = all.saturating_sub(free);
                    let percent = (u128::from(used) * 100 / u128::from(all)) as u64;
                    r.facts.insert(path.join(name), percent, Origin::of("statvfs(2)"));
                }
            }
        }
    }
}
