//! Memory: totals, transparent huge pages, swap, KSM, errors that were corrected, pressure.

use super::reader::{Reader, chosen, count, meminfo};
use crate::facts::{Path, Value};

pub(super) fn read(r: &mut Reader<'_>) {
    for (name, key) in [
        ("total", "MemTotal"),
        ("available", "MemAvailable"),
        ("swap", "SwapTotal"),
        ("swap_free", "SwapFree"),
        ("dirty", "Dirty"),
        ("committed", "Committed_AS"),
        ("commit_limit", "CommitLimit"),
        ("hugepages", "HugePages_Total"),
        ("hugepages_free", "HugePages_Free"),
        ("hugepage_size", "Hugepagesize"),
        ("slab_unreclaimable", "SUnreclaim"),
        ("page_tables", "PageTables"),
        ("hardware_corrupted", "HardwareCorrupted"),
    ] {
        r.file(["memory", name], "proc/meminfo", |t| meminfo(t, key).map(Value::from));
    }
    let thp = "sys/kernel/mm/transparent_hugepage";
    r.file("memory.thp.enabled", &format!("{thp}/enabled"), chosen);
    r.file("memory.thp.defrag", &format!("{thp}/defrag"), chosen);
    r.file("memory.ksm", "sys/kernel/mm/ksm/run", count);
    let edac = "sys/devices/system/edac/mc";
    for controller in r.tree.names(edac).into_iter().filter(|n| n.starts_with("mc")) {
        let path = Path::of(&["edac", &controller]);
        r.file(path.join("corrected"), &format!("{edac}/{controller}/ce_count"), count);
        r.file(path.join("uncorrected"), &format!("{edac}/{controller}/ue_count"), count);
    }
    for resource in ["cpu", "io", "memory"] {
        let file = format!("proc/pressure/{resource}");
        // `some avg10=0.00 avg60=0.00 avg300=1.25 total=...`: percent of the last five minutes, in whole percent.
        r.file(["pressure", resource], &file, |t| {
            let line = t.lines().find(|line| line.starts_with("some"))?;
            let share = line.split_whitespace().find_map(|word| word.strip_prefix("avg300="))?;
            count(share.split('.').next()?)
        });
        r.file(["pressure", "total_us", resource], &file, |t| {
            let line = t.lines().find(|line| line.starts_with("some"))?;
            count(line.split_whitespace().find_map(|word| word.strip_prefix("total="))?)
        });
    }
    swaps(r);
}

/// What is swapped to: `Filename Type Size Used Priority` and a line for each.
fn swaps(r: &mut Reader<'_>) {
    let file = "proc/swaps";
    let Some(text) = r.tree.text(file) else { return };
    let devices: Vec<&str> = text.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    r.put("memory.swap_devices", devices, file);
}
