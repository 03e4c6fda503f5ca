//! CPUs and their placement: governor, SMT, NUMA nodes, isolation, frequency limits, time stolen by a hypervisor.

use super::reader::{Reader, count, cpu_list, flag, meminfo, word};
use crate::{
    facts::{Path, Value},
    topology,
};

const CPU: &str = "sys/devices/system/cpu";

pub(super) fn read(r: &mut Reader<'_>) {
    let number = |text: &str| cpu_list(text).map(|cpus| Value::from(cpus.len()));
    r.file("cpu.online", &format!("{CPU}/online"), number);
    r.file("cpu.present", &format!("{CPU}/present"), number);
    r.file("cpu.offline", &format!("{CPU}/offline"), number);
    r.file("cpu.isolated", &format!("{CPU}/isolated"), number);
    r.file("cpu.nohz_full", &format!("{CPU}/nohz_full"), number);
    r.file("cpu.smt.active", &format!("{CPU}/smt/active"), flag);
    r.file("cpu.smt.control", &format!("{CPU}/smt/control"), word);
    r.file("cpu.boost", &format!("{CPU}/cpufreq/boost"), flag);
    // The driver's own switch says the opposite.
    r.file("cpu.boost", &format!("{CPU}/intel_pstate/no_turbo"), |t| Some(Value::Bool(!flag(t)?.as_bool()?)));
    r.file("cpu.idle_driver", &format!("{CPU}/cpuidle/current_driver"), word);
    r.file("cpu.model", "proc/cpuinfo", |text| {
        let line = text.lines().find(|l| l.starts_with("model name") || l.starts_with("cpu\t"))?;
        Some(Value::from(line.split_once(':')?.1.trim()))
    });
    r.file("cpu.virtual", "proc/cpuinfo", |text| {
        let flags = text.lines().find(|l| l.starts_with("flags"))?;
        Some(Value::Bool(flags.split_whitespace().any(|flag| flag == "hypervisor")))
    });
    each_cpu(r);
    nodes(r);
    times(r);
}

/// What every CPU has of its own: distinct governors, the limits of the first, packages.
fn each_cpu(r: &mut Reader<'_>) {
    let mut governors: Vec<String> = Vec::new();
    let mut packages: Vec<String> = Vec::new();
    let online = r.tree.text(&format!("{CPU}/online")).and_then(|list| cpu_list(&list)).unwrap_or_default();
    for cpu in online.iter().take(2048) {
        let dir = format!("{CPU}/cpu{cpu}");
        for (file, seen) in
            [("cpufreq/scaling_governor", &mut governors), ("topology/physical_package_id", &mut packages)]
        {
            if let Some(text) = r.tree.text(&format!("{dir}/{file}"))
                && !seen.contains(&text)
            {
                seen.push(text);
            }
        }
    }
    if !governors.is_empty() {
        r.put("cpu.governors", governors, &format!("{CPU}/cpu*/cpufreq/scaling_governor"));
    }
    if !packages.is_empty() {
        r.put("cpu.sockets", packages.len(), &format!("{CPU}/cpu*/topology/physical_package_id"));
    }
    let Some(first) = online.first() else { return };
    let dir = format!("{CPU}/cpu{first}");
    r.file("cpu.freq.driver", &format!("{dir}/cpufreq/scaling_driver"), word);
    r.file("cpu.freq.energy_preference", &format!("{dir}/cpufreq/energy_performance_preference"), word);
    r.file("cpu.freq.max_khz", &format!("{dir}/cpufreq/cpuinfo_max_freq"), count);
    r.file("cpu.freq.limit_khz", &format!("{dir}/cpufreq/scaling_max_freq"), count);
    r.file("cpu.threads_per_core", &format!("{dir}/topology/thread_siblings_list"), |t| {
        cpu_list(t).map(|cpus| Value::from(cpus.len()))
    });
    for state in r.tree.names(&format!("{dir}/cpuidle")) {
        let path = Path::of(&["cpu", "idle", &state]);
        r.file(path.join("name"), &format!("{dir}/cpuidle/{state}/name"), word);
        r.file(path.join("latency_us"), &format!("{dir}/cpuidle/{state}/latency"), count);
        r.file(path.join("off"), &format!("{dir}/cpuidle/{state}/disable"), flag);
    }
}

/// Memory nodes: their CPUs, memory, and how far each other is (10 is local).
fn nodes(r: &mut Reader<'_>) {
    let dir = "sys/devices/system/node";
    let mut number = 0;
    for name in r.tree.names(dir) {
        let Some(id) = name.strip_prefix("node").and_then(|n| n.parse::<u32>().ok()) else { continue };
        number += 1;
        let path = Path::of(&["numa", &id.to_string()]);
        let node = format!("{dir}/{name}");
        r.file(path.join("cpus"), &format!("{node}/cpulist"), |t| Some(Value::from(cpu_list(t)?.len())));
        r.file(path.join("cpu_list"), &format!("{node}/cpulist"), |t| {
            Some(Value::from(topology::ranges(&cpu_list(t)?)))
        });
        r.file(path.join("memory"), &format!("{node}/meminfo"), |t| meminfo(t, "MemTotal").map(Value::from));
        r.file(path.join("free"), &format!("{node}/meminfo"), |t| meminfo(t, "MemFree").map(Value::from));
        r.file(path.join("distance"), &format!("{node}/distance"), |t| {
            distances(t).into_iter().max().map(Value::from)
        });
        r.file(path.join("distances"), &format!("{node}/distance"), |t| Some(Value::from(distances(t))));
        let counters = r.tree.text(&format!("{node}/numastat")).unwrap_or_default();
        for (key, value) in counters.lines().filter_map(|line| line.split_once(' ')) {
            if ["numa_hit", "numa_miss", "numa_foreign", "interleave_hit", "local_node", "other_node"]
                .contains(&key)
                && let Some(value) = count(value.trim())
            {
                r.put(path.join(key), value, &format!("{node}/numastat"));
            }
        }
    }
    if number > 0 {
        r.put("numa_nodes.count", number as u32, dir);
    }
    if let Some(score) = topology::scattered_percent(&r.facts) {
        r.put("numa_nodes.scattered_percent", score, dir);
    }
}

/// From a node to each, itself among them.
fn distances(text: &str) -> Vec<u32> {
    text.split_whitespace().filter_map(|d| d.parse().ok()).collect()
}

/// Shares of all CPU time since boot, in percent, and the ticks that they are of.
fn times(r: &mut Reader<'_>) {
    let file = "proc/stat";
    let Some(text) = r.tree.text(file) else { return };
    let Some(line) = text.lines().find(|line| line.starts_with("cpu ")) else { return };
    let ticks: Vec<u64> = line.split_whitespace().skip(1).take(8).filter_map(|n| n.parse().ok()).collect();
    let [user, nice, system, idle, iowait, irq, softirq, steal] = ticks[..] else { return };
    let all = [user, nice, system, idle, iowait, irq, softirq, steal]
        .iter()
        .fold(0u64, |a, n| a.saturating_add(*n));
    let parts = [("steal", steal), ("iowait", iowait), ("softirq", softirq), ("idle", idle)];
    for (name, ticks) in parts.into_iter().chain([("all", all)]) {
        r.put(["cpu", "ticks", name], ticks, file);
    }
    // Less than ten seconds of one CPU say nothing.
    if all < 1000 {
        return;
    }
    for (name, part) in parts {
        r.put(["cpu", "time", name], (u128::from(part) * 100 / u128::from(all)) as u64, file);
    }
}
