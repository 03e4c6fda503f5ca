//! The system: kernel, command line, maker, hypervisor, sysctls, module parameters, clock, daemons, limits, cgroup.

use super::{
    reader::{Reader, chosen, count, flag, word, words},
    tree::Tree,
};
use crate::facts::{Origin, Path, Value};

/// The sysctls that rules look at.
const SYSCTLS: &[&str] = &[
    "fs.aio-max-nr",
    "fs.aio-nr",
    "fs.file-max",
    "fs.nr_open",
    "fs.fuse.max_pages_limit",
    "fs.inotify.max_user_watches",
    "kernel.hung_task_timeout_secs",
    "kernel.io_uring_disabled",
    "kernel.nmi_watchdog",
    "kernel.numa_balancing",
    "kernel.panic",
    "kernel.panic_on_oops",
    "kernel.pid_max",
    "kernel.randomize_va_space",
    "kernel.sched_autogroup_enabled",
    "kernel.sched_energy_aware",
    "kernel.tainted",
    "kernel.task_delayacct",
    "kernel.threads-max",
    "kernel.timer_migration",
    "kernel.watchdog",
    "kernel.sysrq",
    "net.core.busy_poll",
    "net.core.busy_read",
    "net.core.default_qdisc",
    "net.core.dev_weight",
    "net.core.netdev_budget",
    "net.core.netdev_budget_usecs",
    "net.core.netdev_max_backlog",
    "net.core.optmem_max",
    "net.core.rmem_default",
    "net.core.rmem_max",
    "net.core.rps_sock_flow_entries",
    "net.core.somaxconn",
    "net.core.wmem_default",
    "net.core.wmem_max",
    "net.core.bpf_jit_enable",
    "net.ipv4.conf.all.arp_announce",
    "net.ipv4.conf.all.arp_ignore",
    "net.ipv4.conf.all.arp_filter",
    "net.ipv4.conf.all.rp_filter",
    "net.ipv4.fib_multipath_hash_policy",
    "net.ipv4.fib_multipath_use_neigh",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_no_pmtu_disc",
    "net.ipv4.neigh.default.gc_thresh1",
    "net.ipv4.neigh.default.gc_thresh3",
    "net.ipv4.tcp_abort_on_overflow",
    "net.ipv4.tcp_adv_win_scale",
    "net.ipv4.tcp_autocorking",
    "net.ipv4.tcp_available_congestion_control",
    "net.ipv4.tcp_base_mss",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_dsack",
    "net.ipv4.tcp_ecn",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_limit_output_bytes",
    "net.ipv4.tcp_low_latency",
    "net.ipv4.tcp_max_syn_backlog",
    "net.ipv4.tcp_max_tw_buckets",
    "net.ipv4.tcp_mem",
    "net.ipv4.tcp_moderate_rcvbuf",
    "net.ipv4.tcp_mtu_probing",
    "net.ipv4.tcp_no_metrics_save",
    "net.ipv4.tcp_notsent_lowat",
    "net.ipv4.tcp_orphan_retries",
    "net.ipv4.tcp_plb_enabled",
    "net.ipv4.tcp_retries2",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_sack",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_timestamps",
    "net.ipv4.tcp_tw_reuse",
    "net.ipv4.tcp_window_scaling",
    "net.ipv4.tcp_wmem",
    "net.ipv4.udp_mem",
    "net.netfilter.nf_conntrack_count",
    "net.netfilter.nf_conntrack_max",
    "vm.compaction_proactiveness",
    "vm.dirty_background_bytes",
    "vm.dirty_background_ratio",
    "vm.dirty_bytes",
    "vm.dirty_expire_centisecs",
    "vm.dirty_ratio",
    "vm.dirty_writeback_centisecs",
    "vm.max_map_count",
    "vm.min_free_kbytes",
    "vm.nr_hugepages",
    "vm.overcommit_memory",
    "vm.overcommit_ratio",
    "vm.page-cluster",
    "vm.panic_on_oom",
    "vm.stat_interval",
    "vm.swappiness",
    "vm.vfs_cache_pressure",
    "vm.watermark_scale_factor",
    "vm.zone_reclaim_mode",
];

/// Parameters of modules that rules look at, and whether they are yes or no.
const PARAMETERS: &[(&str, &str, bool)] = &[
    ("fuse", "enable_uring", true),
    ("fuse", "max_user_bgreq", false),
    ("fuse", "max_user_congthresh", false),
    ("nvme", "poll_queues", false),
    ("nvme", "write_queues", false),
    ("nvme_core", "io_timeout", false),
    ("nvme_core", "multipath", true),
    ("nvme_core", "default_ps_max_latency_us", false),
    ("pcie_aspm", "policy", false),
    ("intel_idle", "max_cstate", false),
    ("workqueue", "power_efficient", true),
    ("scsi_mod", "use_blk_mq", true),
    ("zswap", "enabled", true),
];

/// Daemons that rules ask for, as the kernel cuts their names (15 bytes).
const DAEMONS: &[&str] = &[
    "irqbalance",
    "ropewalk",
    "chronyd",
    "ntpd",
    "systemd-timesyn",
    "ptp4l",
    "phc2sys",
    "tuned",
    "numad",
    "ksmtuned",
    "multipathd",
    "earlyoom",
    "systemd-oomd",
    "mmfsd",
    "lldpd",
    "firewalld",
    "power-profiles-",
    "thermald",
    "smartd",
    "mcelog",
    "rasdaemon",
    "ntpd-rs",
    "openntpd",
];

pub(super) fn read(r: &mut Reader<'_>) {
    r.file("host.kernel", "proc/sys/kernel/osrelease", |t| Some(Value::from(t)));
    r.file("host.name", "proc/sys/kernel/hostname", word);
    r.file("host.arch", "proc/sys/kernel/arch", word);
    r.file("host.os", "etc/os-release", |t| {
        let name = t.lines().find_map(|l| l.strip_prefix("PRETTY_NAME="))?;
        Some(Value::from(name.trim_matches('"')))
    });
    r.file("host.cmdline", "proc/cmdline", |t| Some(Value::from(t.split_whitespace().collect::<Vec<_>>())));
    r.file("host.uptime_seconds", "proc/uptime", |t| count(t.split('.').next()?));
    // Hundredths of a second stand behind the point.
    r.file("host.uptime_ms", "proc/uptime", |t| {
        let (seconds, hundredths) = t.split_whitespace().next()?.split_once('.')?;
        let hundredths: u64 = hundredths.parse().ok().filter(|n| *n < 100)?;
        Some(Value::from(seconds.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(hundredths * 10)?))
    });
    r.file("host.vendor", "sys/class/dmi/id/sys_vendor", |t| Some(Value::from(t)));
    r.file("host.product", "sys/class/dmi/id/product_name", |t| Some(Value::from(t)));
    r.file("host.hypervisor", "sys/hypervisor/type", word);
    for name in SYSCTLS {
        let file = format!("proc/sys/{}", name.replace('.', "/"));
        let path = format!("sysctl.{name}");
        r.file(path.as_str(), &file, words);
    }
    for (module, parameter, truth) in PARAMETERS {
        let file = format!("sys/module/{module}/parameters/{parameter}");
        r.file(["module", module, parameter], &file, if *truth { flag } else { chosen });
    }
    r.file("clock.source", "sys/devices/system/clocksource/clocksource0/current_clocksource", word);
    r.file("clock.available", "sys/devices/system/clocksource/clocksource0/available_clocksource", |t| {
        Some(Value::from(t.split_whitespace().collect::<Vec<_>>()))
    });
    if r.tree.has("run/systemd/timesync/synchronized") {
        r.put("clock.timesyncd_synchronized", true, "run/systemd/timesync/synchronized");
    }
    iommu(r);
    daemons(r);
    limits(r);
    cgroup(r);
}

/// How devices' addresses are translated: the type of each group, each once.
fn iommu(r: &mut Reader<'_>) {
    let dir = "sys/kernel/iommu_groups";
    let groups = r.tree.names(dir);
    let mut types: Vec<String> = Vec::new();
    for kind in groups.iter().take(256).filter_map(|group| r.tree.text(&format!("{dir}/{group}/type"))) {
        if !types.contains(&kind) {
            types.push(kind);
        }
    }
    if r.tree.has(dir) {
        r.put("iommu.groups", groups.len(), dir);
    }
    if !types.is_empty() {
        r.put("iommu.types", types, dir);
    }
}

/// Which of the daemons run. Only where processes can be seen is one that was not found known not to run.
fn daemons(r: &mut Reader<'_>) {
    let mut running: Vec<(String, String)> = Vec::new();
    for pid in r.tree.glance_names("proc").into_iter().filter(|n| n.bytes().all(|b| b.is_ascii_digit())) {
        let file = format!("proc/{pid}/comm");
        if let Some(name) = r.tree.glance(&file)
            && (DAEMONS.contains(&name.as_str()) || pid == "1")
        {
            r.tree.text(&file);
            running.push((name, file));
        }
    }
    // Inside a container the first process is the container's.
    let sees_all =
        running.iter().any(|(name, file)| file == "proc/1/comm" && (name == "systemd" || name == "init"));
    for daemon in DAEMONS {
        match running.iter().find(|(name, _)| name == daemon) {
            Some((_, file)) => r.put(["daemon", short(daemon)], true, file),
            None if sees_all => r.put(["daemon", short(daemon)], false, "proc"),
            None => {}
        }
    }
}

/// Whether this daemon runs, as far as processes can be seen.
pub(crate) fn runs(tree: &Tree, daemon: &str) -> bool {
    let pids = tree.glance_names("proc").into_iter().filter(|n| n.bytes().all(|b| b.is_ascii_digit()));
    pids.filter_map(|pid| tree.glance(&format!("proc/{pid}/comm"))).any(|name| name == daemon)
}

/// Where the kernel cut a name just behind a `-`, without it.
fn short(daemon: &str) -> &str {
    daemon.trim_end_matches('-')
}

/// Limits of this process, which are those of whoever asks.
fn limits(r: &mut Reader<'_>) {
    let file = "proc/self/limits";
    let Some(text) = r.tree.text(file) else { return };
    for (line, key) in
        [("Max open files", "nofile"), ("Max locked memory", "memlock"), ("Max processes", "nproc")]
    {
        let Some((at, rest)) =
            text.lines().enumerate().find_map(|(i, l)| Some((i + 1, l.strip_prefix(line)?)))
        else {
            continue;
        };
        for (name, value) in ["soft", "hard"].into_iter().zip(rest.split_whitespace()) {
            let number = if value == "unlimited" { Some(i64::MAX) } else { value.parse().ok() };
            if let Some(number) = number {
                r.facts.insert_written(
                    ["limits", key, name],
                    number,
                    value,
                    Origin::at(format!("/{file}"), at),
                );
            }
        }
    }
}

/// The control group of this process, in version 2.
fn cgroup(r: &mut Reader<'_>) {
    let Some(text) = r.tree.text("proc/self/cgroup") else { return };
    let Some(group) = text.lines().find_map(|line| line.strip_prefix("0::")) else { return };
    if group.split('/').any(|name| name == "..") {
        return;
    }
    let dir = format!("sys/fs/cgroup{}", if group == "/" { "" } else { group });
    let path = Path::from("cgroup");
    // `max` is no limit.
    for name in ["memory.max", "memory.high", "pids.max"] {
        r.file(path.join(&name.replace('.', "_")), &format!("{dir}/{name}"), count);
    }
    let cpu_max = format!("{dir}/cpu.max");
    r.file("cgroup.cpu_percent", &cpu_max, |t| {
        let (quota, period) = t.split_once(' ')?;
        let (quota, period): (u64, u64) = (quota.parse().ok()?, period.trim().parse().ok()?);
        Some(Value::from(quota.checked_mul(100)?.checked_div(period)?))
    });
    let cpu_stat = format!("{dir}/cpu.stat");
    r.file("cgroup.throttled", &cpu_stat, |t| {
        count(t.lines().find_map(|l| l.strip_prefix("nr_throttled "))?)
    });
}
