//! Which parameters an engine knows, and what their values may be.

use base::ByteSize;

use crate::workload::catalogue;

/// What a value may be.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// A size, such as 4k; from and to, in bytes.
    Size(u64, u64),
    /// A whole number, from and to.
    Number(u64, u64),
    /// true or false.
    Bool,
    /// A number with a fraction, from and to.
    Real(f64, f64),
    /// Names of engines of the workload, joined by commas.
    Engines,
    /// One of these words.
    Word(&'static [&'static str]),
}

/// The parameters of an engine.
pub(super) type Known = &'static [(&'static str, Kind)];

/// fio; its options by their own names. `far`: what lies on NUMA node 1, the rest being on 0; `polled`: a kernel thread polls the
/// ring. `nvme_count` and `nvme_us` set NVMe's feature 8 of devices that are named as changeable.
pub(super) const FIO: Known = &[
    ("rw", Kind::Word(&["read", "write", "randread", "randwrite", "randrw", "rw"])),
    ("bs", Kind::Size(512, 64 << 20)),
    ("ioengine", Kind::Word(&["io_uring", "libaio", "psync", "sync", "mmap"])),
    ("iodepth", Kind::Number(1, 4096)),
    ("numjobs", Kind::Number(1, 1024)),
    ("direct", Kind::Bool),
    ("rwmixread", Kind::Number(0, 100)),
    ("fdatasync", Kind::Number(0, 1 << 20)),
    ("thinktime", Kind::Size(0, 1 << 40)),
    ("rate_iops", Kind::Number(1, 1 << 40)),
    ("far", Kind::Word(&["nothing", "threads", "buffers", "rings"])),
    ("polled", Kind::Bool),
    ("numa_cpu_nodes", Kind::Number(0, 1023)),
    ("numa_mem_policy", Kind::Word(&["bind:0", "bind:1", "local"])),
    ("size", Kind::Size(1 << 20, 1 << 50)),
    ("nvme_count", Kind::Number(1, 256)),
    ("nvme_us", Kind::Number(0, 25_500)),
];

/// iperf3. `links`, `speed` (Mbit/s) and `policy` say what testbed stands in where no pair is named.
pub(super) const IPERF3: Known = &[
    ("connections", Kind::Number(1, 128)),
    ("clients", Kind::Number(1, 64)),
    ("size", Kind::Size(1, 1 << 20)),
    ("mtu", Kind::Number(576, 9216)),
    ("links", Kind::Number(1, 8)),
    ("speed", Kind::Number(1, 100_000)),
    ("policy", Kind::Number(0, 1)),
    ("direction", Kind::Word(&["write", "read"])),
];

/// `ropewalk netperf`.
pub(super) const NETPERF: Known = &[
    ("test", Kind::Word(&["write", "read", "nwrite", "rw", "stream", "rr"])),
    ("connections", Kind::Number(1, 256)),
    ("clients", Kind::Number(1, 31)),
    ("threads", Kind::Number(1, 4096)),
    ("size", Kind::Size(1, 16 << 20)),
    ("placement", Kind::Word(&["on", "off"])),
    ("transport", Kind::Word(&["tcp", "shm"])),
    ("links", Kind::Number(1, 8)),
    ("speed", Kind::Number(1, 100_000)),
    ("policy", Kind::Number(0, 1)),
    ("mtu", Kind::Number(576, 9216)),
];

/// `ropewalk pdisk bench`.
pub(super) const PDISK: Known = &[
    ("load", Kind::Word(&["write", "read", "random-read", "sync-write"])),
    ("disks", Kind::Number(1, 64)),
    ("queues", Kind::Number(1, 16)),
    ("queues_per_pdisk", Kind::Number(1, 16)),
    ("dma_mib", Kind::Number(1, 4096)),
    ("depth", Kind::Number(1, 4096)),
    ("coalesce_count", Kind::Number(1, 1024)),
    ("coalesce_us", Kind::Number(0, 100_000)),
    ("size", Kind::Size(64 << 20, 1 << 44)),
];

/// `ropewalk perf`; gpfsperf's words. `cached`: what is read was read before, and caches stay as they are. `shared`: one file for
/// all client nodes. `speed` (Mbit/s), `block`, `pagepool`, `transport` and `pdisks` say what cluster stands in where no directory
/// is named.
pub(super) const PERF: Known = &[
    ("operation", Kind::Word(&["create", "read", "write", "mixrw"])),
    ("pattern", Kind::Word(&["seq", "rand", "strided"])),
    ("record", Kind::Size(512, 64 << 20)),
    ("amount", Kind::Size(4096, 1 << 50)),
    ("threads", Kind::Number(1, 1024)),
    ("readratio", Kind::Number(0, 100)),
    ("fsync", Kind::Bool),
    ("dio", Kind::Bool),
    ("cached", Kind::Bool),
    ("shared", Kind::Bool),
    ("clients", Kind::Number(1, 64)),
    ("speed", Kind::Number(1, 1_000_000)),
    ("block", Kind::Size(256 << 10, 16 << 20)),
    ("pagepool", Kind::Size(16 << 20, 16 << 40)),
    ("transport", Kind::Word(&["classic", "uring"])),
    ("pdisks", Kind::Word(&["3", "8"])),
];

/// Names. `bytes` of each file that is made; `shared`: one directory for all workers. The cluster as for `perf`.
pub(super) const METADATA: Known = &[
    ("operation", Kind::Word(&["create", "stat", "list", "read", "remove"])),
    ("files", Kind::Number(1, 1_000_000)),
    ("bytes", Kind::Size(0, 1 << 20)),
    ("shared", Kind::Bool),
    ("threads", Kind::Number(1, 1024)),
    ("clients", Kind::Number(1, 64)),
    ("speed", Kind::Number(1, 1_000_000)),
    ("block", Kind::Size(256 << 10, 16 << 20)),
    ("pagepool", Kind::Size(16 << 20, 16 << 40)),
    ("transport", Kind::Word(&["classic", "uring"])),
];

/// Writers. `speed` (Mbit/s): where no directory is named, mounts of a small cluster stand in.
pub(super) const WRITERS: Known = &[
    ("bs", Kind::Size(512, 1 << 20)),
    ("per_client", Kind::Number(1, 1024)),
    ("file", Kind::Size(1 << 20, 1 << 40)),
    ("patience", Kind::Number(2, 100)),
    ("speed", Kind::Number(1, 1_000_000)),
];

/// The mixed analytics workload. `speed` (Mbit/s): where no directory is named, mounts of a small cluster stand in.
pub(super) const ANALYTICS: Known = &[
    ("tests", Kind::Word(&["20", "30"])),
    ("scale", Kind::Real(0.0, 100.0)),
    ("seed", Kind::Number(0, u64::MAX)),
    ("rounds", Kind::Number(1, 1000)),
    ("share", Kind::Number(1, 16)),
    ("concurrency", Kind::Number(1, 1024)),
    ("engines", Kind::Engines),
    ("dirs", Kind::Word(&["1", "3"])),
    ("cpus", Kind::Number(1, 1024)),
    ("memory", Kind::Size(64 << 20, 1 << 50)),
    ("cpu_factor", Kind::Real(0.01, 10.0)),
    ("speed", Kind::Number(1, 1_000_000)),
];

/// Whether the parameter is known and the value allowed.
pub fn check(known: Known, key: &str, value: &str) -> Result<(), String> {
    let Some((_, kind)) = known.iter().find(|(name, _)| *name == key) else {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        return Err(format!("this engine has no parameter {key:?}; it knows {}", names.join(", ")));
    };
    match *kind {
        Kind::Size(from, to) => {
            let size: ByteSize = value.parse().map_err(|e: base::units::BadSize| e.to_string())?;
            if (from..=to).contains(&size.0) {
                return Ok(());
            }
            Err(format!("{value} is not within {} to {}", ByteSize(from), ByteSize(to)))
        }
        Kind::Number(from, to) => match value.parse::<u64>() {
            Ok(number) if (from..=to).contains(&number) => Ok(()),
            _ => Err(format!("{value:?} is not a whole number from {from} to {to}")),
        },
        Kind::Real(from, to) => match value.parse::<f64>() {
            Ok(number) if (from..=to).contains(&number) => Ok(()),
            _ => Err(format!("{value:?} is not a number from {from} to {to}")),
        },
        Kind::Engines => match value.split(',').find(|name| catalogue::engine(name).is_none()) {
            None => Ok(()),
            Some(name) => {
                let names: Vec<&str> = catalogue::ENGINES.iter().map(|engine| engine.name).collect();
                Err(format!("there is no engine {name:?}; there are {}", names.join(", ")))
            }
        },
        Kind::Bool => match value {
            "true" | "false" => Ok(()),
            _ => Err(format!("{value:?} is neither true nor false")),
        },
        Kind::Word(words) => {
            if words.contains(&value) {
                return Ok(());
            }
            Err(format!("{value:?} is none of {}", words.join(", ")))
        }
    }
}
