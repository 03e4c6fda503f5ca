//! The rows. One tunable stands here and nowhere else.
//! `derived` gives the rule by which a value follows from others while it is not set itself; `default` is
//! then what the rule gives for the defaults (a test compares them).
//! Every row's getter is called outside this crate (a test looks).

use std::{ops::RangeInclusive, time::Duration};

use super::{
    attributes::{
        Change::{self, Live, Reopen, Restart},
        Scope::{self, Cluster, Mount, Node},
    },
    setting::{
        Allowed, CIPHER_LISTS, ConnCount, ConnCounts, IoEngine, LogLevel, Setting, TransferMode,
        TransportMode,
    },
};
use crate::{
    CipherList,
    units::{ByteSize, GIB, KIB, MIB},
};

const TIB: u64 = GIB << 10;

/// One tunable.
pub struct Row {
    /// As it is spelled in messages and documents.
    pub name: &'static str,
    /// The name of its getter.
    pub getter: &'static str,
    /// Other spellings that are understood.
    pub aliases: &'static [&'static str],
    /// The part of the table it stands in.
    pub section: &'static str,
    /// What it does, in one or a few sentences.
    pub meaning: &'static str,
    /// The unit of its value.
    pub unit: &'static str,
    /// Where it has one value.
    pub scope: Scope,
    /// When a change takes effect.
    pub change: Change,
    /// The rule by which its value follows from another tunable, unless it is set itself.
    pub derived: Option<&'static str>,
    /// Its place in the table.
    pub(super) index: usize,
    allowed_text: fn() -> String,
    pub(super) get_text: fn(&Values) -> String,
    pub(super) set_text: fn(&mut Values, &str) -> Result<(), String>,
    pub(super) copy: fn(&mut Values, &Values),
    pub(super) derive: Option<fn(&mut Values)>,
}

impl Row {
    /// The row of this name or alias, in any case.
    pub fn find(name: &str) -> Option<&'static Row> {
        ROWS.iter().find(|row| row.spellings().any(|s| s.eq_ignore_ascii_case(name)))
    }
    /// The default, as text.
    pub fn default_text(&self) -> String {
        (self.get_text)(&Values::default())
    }
    /// The allowed values, as text.
    pub fn allowed_text(&self) -> String {
        (self.allowed_text)()
    }
    pub(super) fn spellings(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }
}

impl std::fmt::Debug for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Row").field(&self.name).finish()
    }
}

macro_rules! tunables {
    ($( $section:literal { $(
        $(#[doc = $doc:literal])+
        $getter:ident = $name:literal $(or $alias:literal)*: $type:ty {
            default: $default:expr, range: $range:expr, unit: $unit:literal, scope: $scope:ident,
            change: $change:ident
            $(, derived: $rule:literal = $derive:expr)? $(,)?
        }
    )+ } )+) => {
        /// The value of every row.
        #[derive(Clone, PartialEq, Debug)]
        pub(super) struct Values { $($( $getter: $type, )+)+ }

        impl Default for Values {
            fn default() -> Values {
                Values { $($( $getter: $default, )+)+ }
            }
        }

        /// The places of the rows, by their getters' names.
        #[expect(non_camel_case_types, reason = "one name for a row: that of its getter")]
        enum Place { $($( $getter, )+)+ }

        /// The whole table, in the order of the documentation.
        pub static ROWS: &[Row] = &[$($( Row {
            name: $name,
            getter: stringify!($getter),
            aliases: &[$($alias),*],
            section: $section,
            meaning: concat!($($doc, "\n"),+),
            unit: $unit,
            scope: $scope,
            change: $change,
            derived: tunables!(@rule $($rule)?),
            index: Place::$getter as usize,
            allowed_text: || Allowed::<$type>::text(&$range),
            get_text: |values| Setting::show(&values.$getter),
            set_text: |values, text| {
                let value = <$type as Setting>::read(text.trim())?;
                if !Allowed::<$type>::allows(&$range, &value) {
                    return Err("out of range".to_owned());
                }
                values.$getter = value;
                Ok(())
            },
            copy: |to, from| to.$getter = from.$getter,
            derive: tunables!(@derive $getter $type $(, $derive)?),
        }, )+)+];

        /// The tunables of a node or mount: every value, and which of them were set. Shown and stored as a
        /// map of the values that were set.
        #[derive(Clone, PartialEq, Debug, Default)]
        pub struct Tunables {
            pub(super) values: Values,
            /// Bit i: row i was set.
            pub(super) set: u64,
        }

        impl Tunables {
            $($(
                #[doc = concat!("`", $name, "`, in ", $unit, ".")]
                ///
                $(#[doc = $doc])+
                pub fn $getter(&self) -> $type {
                    self.values.$getter
                }
            )+)+
        }
    };
    (@rule) => { None };
    (@rule $rule:literal) => { Some($rule) };
    (@derive $getter:ident $type:ty) => { None };
    (@derive $getter:ident $type:ty, $derive:expr) => {
        Some(|values| {
            const RULE: fn(&Values) -> $type = $derive;
            values.$getter = RULE(values);
        })
    };
}

// The bits of `Tunables::set`.
const _: () = assert!(ROWS.len() <= 64);

const fn sizes(low: u64, high: u64) -> RangeInclusive<ByteSize> {
    ByteSize(low)..=ByteSize(high)
}
const fn ms(low: u64, high: u64) -> RangeInclusive<Duration> {
    Duration::from_millis(low)..=Duration::from_millis(high)
}

tunables! {
"Client: page pool and streams" {
    /// The client's buffer memory: cached, prefetched and dirty file data; on a server its share
    /// `nsdBufSpace` caches strips. At least 4 blocks of `maxblocksize` must fit.
    pagepool = "pagepool": ByteSize {
        default: ByteSize(GIB), range: sizes(16 * MIB, 16 * TIB),
        unit: "bytes", scope: Node, change: Live
    }
    /// How much the client does at once: the master knob from which several below follow. A "thread"
    /// is one operation in progress, not a thread of the operating system.
    worker_threads = "workerThreads": u32 {
        default: 48, range: 1..=8192, unit: "operations", scope: Node, change: Live
    }
    /// Blocks that read-ahead and write-behind move at once, all files together.
    prefetch_threads = "prefetchThreads": u32 {
        default: 16, range: 2..=8192, unit: "blocks", scope: Node, change: Live,
        derived: "workerThreads / 3, at least 2" = |v| (v.worker_threads / 3).max(2)
    }
    /// Blocks that reads of applications load at once; further ones wait. What is read ahead does not count.
    worker1_threads = "worker1Threads": u32 {
        default: 48, range: 1..=8192, unit: "blocks", scope: Node, change: Live,
        derived: "workerThreads" = |v| v.worker_threads
    }
    /// Dirty blocks written at once to make room in the page pool.
    max_buffer_cleaners = "maxBufferCleaners": u32 {
        default: 48, range: 1..=8192, unit: "blocks", scope: Node, change: Live,
        derived: "workerThreads" = |v| v.worker_threads
    }
    /// Files written back at once because of their age or to make room; their blocks count in
    /// `maxBufferCleaners` as well.
    max_file_cleaners = "maxFileCleaners": u32 {
        default: 48, range: 1..=8192, unit: "files", scope: Node, change: Live,
        derived: "workerThreads" = |v| v.worker_threads
    }
    /// Files flushed at once by `sync`.
    sync_worker_threads = "syncWorkerThreads": u32 {
        default: 12, range: 1..=8192, unit: "files", scope: Node, change: Live,
        derived: "workerThreads / 4, at least 1" = |v| (v.worker_threads / 4).max(1)
    }
    /// The share of the page pool that read-ahead and write-behind may fill. 0 turns read-ahead off.
    prefetch_pct = "prefetchPct": u32 {
        default: 20, range: 0..=60, unit: "% of pagepool", scope: Node, change: Live
    }
    /// The rate one node is expected to move, in decimal MB/s; it sizes read-ahead and write-behind. Set
    /// it to twice the rate needed: a smaller value limits throughput, a larger one only costs page pool.
    max_mbps = "maxMBpS": u32 {
        default: 2048, range: 1..=1_000_000, unit: "MB/s", scope: Node, change: Live
    }
    /// The share of the page pool that may be dirty; a writer beyond it waits for write-behind.
    dirty_limit_pct = "dirty_limit_pct": u32 {
        default: 50, range: 5..=90, unit: "% of pagepool", scope: Node, change: Live
    }
    /// Blocks of a file above this size are the first to leave the page pool once they were read or written in
    /// sequence, and take a quarter of it at most. Raise it above the size of files that are read again and again.
    seq_discard_threshold = "seqDiscardThreshold" or "seqDiscardThreshhold": ByteSize {
        default: ByteSize(MIB), range: sizes(0, 1024 * TIB),
        unit: "bytes", scope: Node, change: Live
    }
    /// From this file size on, full blocks written in sequence are flushed at once; those of smaller files
    /// stay dirty for a while.
    writebehind_threshold = "writebehindThreshold": ByteSize {
        default: ByteSize(512 * KIB), range: sizes(0, 1024 * TIB),
        unit: "bytes", scope: Node, change: Live
    }
    /// The largest block size of a pool that a mount accepts: a file system on a pool of larger blocks is not mounted.
    maxblocksize = "maxblocksize": ByteSize {
        default: ByteSize(16 * MIB),
        range: [256 * KIB, 512 * KIB, MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB].map(ByteSize),
        unit: "bytes", scope: Cluster, change: Reopen
    }
    /// Inodes a client keeps with their tokens after the files were closed; open files are not limited.
    max_files_to_cache = "maxFilesToCache": u32 {
        default: 20_000, range: 1..=100_000_000, unit: "files", scope: Node, change: Reopen
    }
    /// Every operation fails after this time without progress.
    operation_deadline = "operationDeadline": Duration {
        default: Duration::from_secs(60), range: ms(1_000, 3_600_000),
        unit: "time", scope: Mount, change: Reopen
    }
    /// Files up to this size are kept inside their inode, with their CRC; larger ones in strips.
    inline_data_max = "inlineDataMax": ByteSize {
        default: ByteSize(4 * KIB), range: sizes(0, 16 * KIB),
        unit: "bytes", scope: Cluster, change: Reopen
    }
}
"Network" {
    /// What is encrypted of connections whose handshake has proven both ends. `DEFAULT` and the names of ciphers: everything.
    /// `AUTHONLY`: everything but bulk payloads, whose every piece has a keyed tag. `EMPTY`: nothing, for networks that nobody else
    /// reaches. Of two ends the stricter one decides. `auto`: as `cipher_list` in each machine's cluster.toml says.
    cipher_list = "cipherList": Option<CipherList> {
        default: None, range: CIPHER_LISTS, unit: "word", scope: Cluster, change: Live
    }
    /// Bulk TCP connections between two nodes, over all rails together; the lower value of the two nodes
    /// counts. One connection fills one link at most and about one core.
    /// `auto`: found by measuring, for each peer.
    max_tcp_conns_per_node_conn = "maxTcpConnsPerNodeConn": ConnCount {
        default: ConnCount::Count(2), range: ConnCounts { max: 16 }, unit: "connections", scope: Node,
        change: Live
    }
    /// Write payloads up to this size travel inside the request; larger ones as `netTransfer` says.
    nsd_inline_write_max = "nsdInlineWriteMax": ByteSize {
        default: ByteSize(32 * KIB), range: sizes(0, 8 * MIB),
        unit: "bytes", scope: Node, change: Live
    }
    /// How larger write payloads travel: pushed with the request, within the credit the server's window
    /// gives, or fetched by the server when it has room for them, which costs one more round trip.
    net_transfer = "netTransfer": TransferMode {
        default: TransferMode::Push, range: [TransferMode::Push, TransferMode::Fetch], unit: "word",
        scope: Node, change: Live
    }
    /// What bulk connections between two processes of one machine go by. `auto`: memory of both, where they can share it, else TCP.
    /// `tcp`: TCP always. `shm`: memory is tried with every peer, whatever the addresses say.
    transport = "transport": TransportMode {
        default: TransportMode::Auto, range: [TransportMode::Auto, TransportMode::Tcp, TransportMode::Shm],
        unit: "word", scope: Node, change: Live
    }
}
"NSD server" {
    /// The share of the page pool that an NSD server uses to cache strips that are read again.
    nsd_buf_space = "nsdBufSpace": u32 {
        default: 30, range: 10..=70, unit: "% of pagepool", scope: Node, change: Live
    }
    /// The share of time that rebuild works on a pdisk while clients use its server; it pauses for the
    /// rest. 100 gives rebuild and clients equal rights; without clients it never pauses.
    rebuild_aggressiveness = "rebuild_aggressiveness": u32 {
        default: 20, range: 1..=100,
        unit: "% of time", scope: Cluster, change: Live
    }
    /// The rate that rebuild, moves and scrub keep to on each pdisk, reads and writes together, with or
    /// without clients. 0 is no limit.
    rebuild_rate = "rebuild_rate": u32 {
        default: 0, range: 0..=1_000_000, unit: "MB/s", scope: Cluster, change: Live
    }
    /// Scrub reads and proves every stripe once in this time, and repairs what it finds. 0 turns it off.
    scrub_interval = "scrub_interval": Duration {
        default: Duration::from_secs(14 * 86_400), range: ms(0, 365 * 86_400_000),
        unit: "time", scope: Cluster, change: Live
    }
}
"Pdisk" {
    /// How pdisks do their I/O. `auto` takes io_uring where it is allowed, else psync (pread and pwrite).
    io_engine = "io_engine": IoEngine {
        default: IoEngine::Auto, range: [IoEngine::Auto, IoEngine::IoUring, IoEngine::Psync], unit: "word",
        scope: Node, change: Reopen
    }
    /// io_uring rings of a node, each with its thread. More than one helps only if several pdisks are busy
    /// or `queues_per_pdisk` is raised, and needs the memory of `io_dma_mib`.
    num_io_queues = "num_io_queues": u32 {
        default: 2, range: 1..=16, unit: "rings", scope: Node, change: Reopen
    }
    /// Rings that one pdisk uses, at most `num_io_queues`; a strip always uses the same one. Raise it for a
    /// fast NVMe.
    queues_per_pdisk = "queues_per_pdisk": u32 {
        default: 1, range: 1..=16, unit: "rings", scope: Node, change: Reopen
    }
    /// Registered I/O memory of a node, shared by its rings, each of which needs 8. If it is too small for
    /// the number of rings, the node runs with one ring and says so in an event.
    io_dma_mib = "io_dma_mib": u32 {
        default: 32, range: 8..=4096, unit: "MiB", scope: Node, change: Reopen
    }
    /// I/Os in flight on one ring, in equal shares for the pdisks that use it; more wait. The memory for payloads of
    /// requests (`inbound_bytes_max`, 512 MiB a server, no tunable) is shared by its pdisks in the same way.
    queue_depth_max = "queue_depth_max": u32 {
        default: 64, range: 1..=1024, unit: "I/Os", scope: Node, change: Live
    }
    /// A ring's thread is woken when this many I/Os are complete, or after `io_coalesce_us`. Higher values
    /// save CPU and cost latency; 1 wakes at every completion.
    io_coalesce_count = "io_coalesce_count": u32 {
        default: 1, range: 1..=256, unit: "I/Os", scope: Node, change: Live
    }
    /// The longest a complete I/O waits for others before the ring's thread is woken. 0 does not wait.
    io_coalesce_us = "io_coalesce_us": u32 {
        default: 0, range: 0..=25_500, unit: "µs", scope: Node, change: Live
    }
    /// The longest a ring's thread waits actively before it sleeps. It does so only while requests and
    /// completions come more often than that, on half of the CPUs at most, and not while completions are
    /// gathered. Higher values save the cost of being woken; 0 always sleeps.
    io_spin_us = "io_spin_us": u32 {
        default: 20, range: 0..=1000, unit: "µs", scope: Node, change: Live
    }
    /// Overwrites up to this size go through the pdisk's log and are applied later; larger ones to new
    /// space.
    fast_write_limit = "fast_write_limit": ByteSize {
        default: ByteSize(64 * KIB), range: sizes(0, MIB),
        unit: "bytes", scope: Node, change: Reopen
    }
    /// Memory of each pdisk for overwrites that are in its log and not at their place yet. From a quarter of
    /// it on they are brought there at once; from half of it on overwrites go to new space, however small.
    fast_write_memory = "fast_write_memory": ByteSize {
        default: ByteSize(64 * MIB), range: sizes(MIB, 4 * GIB),
        unit: "bytes", scope: Node, change: Reopen
    }
    /// Memory of each pdisk for its index. From 15/16 of it on new strips are refused as on a full disk; 0 takes
    /// 1/64 of the pdisk, at least 256 MiB. A strip takes some 700 bytes, an upper bound.
    index_memory = "index_memory": ByteSize {
        default: ByteSize(0), range: sizes(0, TIB),
        unit: "bytes", scope: Node, change: Reopen
    }
}
"Cluster" {
    /// How long a server or client may act after the manager last heard of it. A dead one delays others by
    /// at most this time.
    lease_duration = "leaseDuration": Duration {
        default: Duration::from_secs(10), range: ms(1_000, 300_000),
        unit: "time", scope: Cluster, change: Restart
    }
    /// How often servers and mounts renew their lease, and after a quarter of it where that is sooner: two renewals may be
    /// lost. At most a third of `leaseDuration`.
    lease_renew_interval = "leaseRenewInterval": Duration {
        default: Duration::from_secs(1), range: ms(100, 100_000),
        unit: "time", scope: Cluster, change: Restart
    }
    /// Several managers: for how long the active one leads after etcd last heard of it, in whole seconds, rounded up. One that is
    /// killed is followed by another at most this time, and about a second, later; one that etcd does not answer goes on
    /// answering what it knows nine tenths of it. Longer times bear a slow etcd. Below `leaseDuration` data goes on meanwhile.
    /// The manager that leads next has it (`manager promote`).
    manager_lease = "managerLease": Duration {
        default: Duration::from_secs(3), range: ms(2_000, 60_000),
        unit: "time", scope: Cluster, change: Restart
    }
    /// For how long the certificate of a machine that joins, or whose certificate is renewed, holds. It is renewed by itself when
    /// a third of that is left, by the key it is of; where that fails `health` warns. A machine that was off for longer has its
    /// own renewed when it comes back.
    certificate_life = "certificateLife": Duration {
        default: Duration::from_secs(365 * 86_400), range: ms(10_000, 3650 * 86_400_000),
        unit: "time", scope: Cluster, change: Live
    }
    /// A pdisk that has been missing for this long is rebuilt on the others. Short times move data for
    /// every restart of a node that takes longer; long ones leave groups degraded.
    missing_rebuild_delay = "missingRebuildDelay": Duration {
        default: Duration::from_secs(600), range: ms(0, 86_400_000),
        unit: "time", scope: Cluster, change: Live
    }
    /// What manager, servers and mounts say in their logs: lines of this level and graver ones. A process that was started with
    /// `ROPEWALK_LOG` keeps to that.
    log_level = "logLevel": LogLevel {
        default: LogLevel::Info, range: [LogLevel::Error, LogLevel::Warn, LogLevel::Info, LogLevel::Debug],
        unit: "word", scope: Cluster, change: Live
    }
    /// Whether mounts, servers and the manager count their operations one by one, by client, file, size and latency, for
    /// `ropewalk analytics`. The other statistics are kept in any case.
    analytics = "analytics": bool {
        default: true, range: [true, false], unit: "word", scope: Cluster, change: Live
    }
    /// Memory that each process takes for what every second held, an hour at most; beyond it the oldest seconds go.
    analytics_history = "analyticsHistory": ByteSize {
        default: ByteSize(32 * MIB), range: sizes(MIB, GIB), unit: "bytes", scope: Cluster, change: Live
    }
    /// Disk that each process takes for its history, in `analytics/` of the cluster's directory: a quarter for seconds, five
    /// eighths for minutes, the rest for hours. Those that ended keep as much together. 0: none is written.
    analytics_disk = "analyticsDisk": ByteSize {
        default: ByteSize(512 * MIB), range: sizes(0, TIB), unit: "bytes", scope: Cluster, change: Live
    }
}
}

impl Values {
    /// The rules between rows: (the row to name, what is wrong and what to do).
    pub(super) fn check_together(&self) -> Result<(), (&'static str, String)> {
        let block = self.maxblocksize.0;
        if self.pagepool.0 < 4 * block {
            let need = ByteSize(4 * block);
            let why = format!(
                "4 blocks of maxblocksize={} take {need}: raise pagepool or lower maxblocksize",
                self.maxblocksize
            );
            return Err(("pagepool", why));
        }
        let threads = u64::from(self.worker_threads) + u64::from(self.prefetch_threads);
        if threads > 8192 {
            let why = format!("workerThreads + prefetchThreads = {threads}, at most 8192: lower one");
            return Err(("workerThreads", why));
        }
        if self.queues_per_pdisk > self.num_io_queues {
            let why = format!(
                "a pdisk cannot use more than num_io_queues={} rings: raise num_io_queues first",
                self.num_io_queues
            );
            return Err(("queues_per_pdisk", why));
        }
        if self.lease_renew_interval * 3 > self.lease_duration {
            let why = format!(
                "at most a third of leaseDuration={}: lower it or raise leaseDuration",
                self.lease_duration.show()
            );
            return Err(("leaseRenewInterval", why));
        }
        Ok(())
    }
}
