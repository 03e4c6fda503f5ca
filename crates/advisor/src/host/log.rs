//! Lines of the kernel's log that matter: how many of each kind, and the last of them.

use super::{reader::Reader, tree::LOG_FILE};

/// Kinds of lines, each with words of which one must stand in the line.
const KINDS: &[(&str, &[&str])] = &[
    ("io_error", &["I/O error, dev", "blk_update_request: I/O error", "Buffer I/O error"]),
    ("nvme_timeout", &["nvme nvme", "timeout, "]),
    ("nvme_reset", &["resetting controller", "controller is down; will reset"]),
    ("medium_error", &["Medium Error", "critical medium error"]),
    ("fs_error", &["EXT4-fs error", "XFS (", "BTRFS error", "BTRFS: error"]),
    (
        "fs_shutdown",
        &["metadata I/O error", "Filesystem has been shut down", "Remounting filesystem read-only"],
    ),
    ("oom", &["Out of memory: Killed process", "oom-kill:"]),
    ("hung_task", &["blocked for more than"]),
    ("soft_lockup", &["soft lockup"]),
    ("rcu_stall", &["rcu_sched self-detected stall", "rcu: INFO: rcu_sched", "rcu_preempt detected stalls"]),
    ("mce", &["[Hardware Error]", "Machine check events logged"]),
    ("aer", &["AER: ", "PCIe Bus Error"]),
    ("link_down", &["Link is Down", "link is down", "Link down", "link down"]),
    ("tx_timeout", &["transmit queue", "NETDEV WATCHDOG"]),
    ("tsc_unstable", &["Marking clocksource 'tsc' as unstable", "clocksource: timekeeping watchdog"]),
    ("throttled", &["clock throttled", "temperature above threshold"]),
    ("pcie_bandwidth", &["available PCIe bandwidth, limited by"]),
    ("swiotlb_full", &["swiotlb buffer is full"]),
    ("conntrack_full", &["nf_conntrack: table full"]),
    ("neighbour_full", &["neighbour: arp_cache: neighbor table overflow", "neighbour table overflow"]),
    ("syn_flood", &["Possible SYN flooding"]),
    ("tcp_memory", &["TCP: out of memory"]),
    ("dma_window", &["create-pe-dma-window"]),
    ("taint", &["module verification failed", "loading out-of-tree module"]),
];

/// Whether a line is of this kind. Some kinds need all their words, or more than them.
fn is(kind: &str, words: &[&str], line: &str) -> bool {
    match kind {
        "nvme_timeout" => words.iter().all(|word| line.contains(word)),
        "fs_error" => {
            words.iter().any(|word| line.contains(word))
                && (!line.contains("XFS (") || line.contains("orruption"))
        }
        // A port of a disk controller without a disk says so at each boot.
        "link_down" => !line.contains("SATA link") && words.iter().any(|word| line.contains(word)),
        "tx_timeout" => line.contains("timed out") && words.iter().any(|word| line.contains(word)),
        _ => words.iter().any(|word| line.contains(word)),
    }
}

pub(super) fn read(r: &mut Reader<'_>) {
    let matters = |line: &str| KINDS.iter().any(|(kind, words)| is(kind, words, line));
    let lines = r.tree.kernel_log(matters);
    for (kind, words) in KINDS {
        let mut of_kind = lines.iter().filter(|line| is(kind, words, line));
        let count = of_kind.clone().count();
        if let Some(last) = of_kind.next_back() {
            r.put(["log", kind, "count"], count, LOG_FILE);
            r.put(["log", kind, "last"], last.trim(), LOG_FILE);
        }
    }
    let windows: Vec<&String> = lines.iter().filter(|line| line.contains("create-pe-dma-window(")).collect();
    for line in windows {
        dma_window(r, line);
    }
}

/// `DRIVER DEVICE: ibm,create-pe-dma-window(54) CFG HI LO PAGESHIFT WINSHIFT returned RC (...)`, hexadecimal.
fn dma_window(r: &mut Reader<'_>, line: &str) {
    let Some((before, after)) = line.split_once(": ibm,create-pe-dma-window(") else { return };
    let Some(device) = before.split_whitespace().next_back() else { return };
    let words: Vec<&str> = after.split_whitespace().collect();
    let [_, _, _, _, page, window, "returned", code, ..] = words[..] else { return };
    let shift = |text| u32::from_str_radix(text, 16).ok().filter(|shift| *shift < 63);
    let (Some(page), Some(window), Ok(code)) = (shift(page), shift(window), code.parse::<i64>()) else {
        return;
    };
    r.put(["dma_window", device, "page"], 1i64 << page, LOG_FILE);
    r.put(["dma_window", device, "size"], 1i64 << window, LOG_FILE);
    r.put(["dma_window", device, "code"], code, LOG_FILE);
}

#[cfg(test)]
mod tests {
    use crate::host::{Entry, Tree, host_facts};

    #[test]
    fn lines_that_matter_are_counted() {
        let log = "[1.0] nvme nvme0: I/O 12 QID 3 timeout, aborting\n[1.1] nvme nvme0: Identify failed\n\
            [2.0] XFS (sda1): Mounting V5 Filesystem\n[3.0] XFS (sda1): Corruption detected. Unmount and run xfs_repair\n\
            [3.1] mlx5_core 0000:81:00.0 ens1f0: Link down\n[3.2] ata3: SATA link down (SStatus 0 SControl 300)\n\
            [4.0] eth0: transmit queue 3 timed out 5000 ms\n\
            [5.0] nvme 0011:01:00.0: ibm,create-pe-dma-window(54) 10000 8000000 20000011 10 2a returned 0 (liobn = 0x70000011 starting addr = 8000000 0)\n\
            [6.0] nvme 0012:01:00.0: ibm,create-pe-dma-window(54) 10000 zz\n";
        let facts = host_facts(&Tree::of([("var/log/dmesg".to_owned(), Entry::File(log.to_owned()))].into()));
        let count = |kind: &str| facts.int(&format!("log.{kind}.count"));
        assert_eq!(
            (count("nvme_timeout"), count("fs_error"), count("tx_timeout"), count("oom")),
            (Some(1), Some(1), Some(1), None)
        );
        assert_eq!(count("link_down"), Some(1));
        let window = |name: &str| facts.int(&format!("dma_window.0011:01:00/0.{name}"));
        assert_eq!((window("page"), window("size"), window("code")), (Some(65_536), Some(1 << 42), Some(0)));
        assert_eq!(facts.below("dma_window"), ["0011:01:00.0"]);
    }
}
