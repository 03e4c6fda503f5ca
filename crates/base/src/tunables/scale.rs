//! Names of Storage Scale that have no row of that name here, and what stands in their place.
//! Asked for by whoever comes from there: `config explain`, `config set`, `advise import-scale`.

/// What to know of each name, without case.
const ELSEWHERE: &[(&str, &str)] = &[
    ("adminMode", "commands ask the manager here; no machine logs in to another"),
    ("autoload", "services are started by the system here; see docs/admin.md"),
    ("ccrEnabled", "the manager keeps the configuration here, always as with yes"),
    ("clusterId", "it is of the cluster that the settings come from"),
    ("clusterName", "it is of the cluster that the settings come from"),
    ("deadlockDataCollectionDailyLimit", "there is no collection of debug data here"),
    ("deadlockDetectionThreshold", "every operation has operationDeadline instead"),
    ("dmapiFileHandleSize", "there is no DMAPI here"),
    ("envVar", "it sets variables of the adapter's RDMA driver; data travels over TCP here"),
    ("expelDataCollectionDailyLimit", "there is no collection of debug data here"),
    ("flushedDataTarget", "the page pool keeps free what dirty_limit_pct leaves"),
    ("flushedInodeTarget", "inodes are written by the manager here, in transactions"),
    ("ignorePrefetchLUNCount", "read-ahead always follows maxMBpS and prefetchPct here, as with yes"),
    (
        "ioHistorySize",
        "`ropewalk waiters` shows what is not answered yet; I/Os are counted and not kept one by one",
    ),
    ("logBufferCount", "there is no recovery log on the client here"),
    ("logWrapAmountPct", "there is no recovery log on the client here"),
    ("logWrapThreads", "there is no recovery log on the client here"),
    ("maxAllocRegionsPerNode", "each server allocates on its own pdisks; there are no regions to take"),
    ("maxBackgroundDeletionThreads", "servers delete strips in the background, bounded by their queues"),
    ("maxBufferDescs", "buffers are bounded by pagepool here"),
    ("maxGeneralThreads", "requests are tasks here, no threads; each queue has a bound of its own"),
    ("maxInodeDeallocPrefetch", "inodes are freed by the manager here, in transactions"),
    ("maxReceiverThreads", "connections are read by tasks here, on as many threads as there are CPUs"),
    ("maxStatCache", "attributes are kept with their inodes here; see maxFilesToCache"),
    ("minReleaseLevel", "processes agree on a protocol version when they connect; see FORMAT.md"),
    ("myNodeConfigNumber", "a node has its id from the manager"),
    (
        "nsdClientCksumTypeLocal",
        "every payload has a CRC, from the client to the disk and back; it cannot be turned off",
    ),
    (
        "nsdClientCksumTypeRemote",
        "every payload has a CRC, from the client to the disk and back; it cannot be turned off",
    ),
    ("nsdMaxWorkerThreads", "a server works on all that has come; a pdisk is bounded by queue_depth_max"),
    ("nsdMinWorkerThreads", "workers are not kept idle here"),
    ("nsdMultiQueue", "the rings of a node are num_io_queues here, those of one pdisk queues_per_pdisk"),
    ("nsdRAIDBlockDeviceMaxSectorsKB", "the kernel's setting of the disk stays; `advise` judges it"),
    ("nsdRAIDBlockDeviceNrRequests", "the kernel's setting of the disk stays; `advise` judges it"),
    (
        "nsdRAIDBlockDeviceQueueDepth",
        "a ring's bound is queue_depth_max here, shared by its pdisks: other numbers fit",
    ),
    ("nsdRAIDBlockDeviceScheduler", "the kernel's setting of the disk stays; `advise` judges it"),
    ("nsdRAIDBufferPoolSizePct", "a server's share of the page pool is nsdBufSpace here, 70 % at most"),
    ("nsdRAIDEventLogToConsole", "events are shown by `ropewalk events`"),
    ("nsdRAIDFastWriteFSDataLimit", "it is called fast_write_limit here"),
    (
        "nsdRAIDFastWriteFSMetadataLimit",
        "names and inodes are with the manager here, in transactions of their own",
    ),
    ("nsdRAIDFlusherBuffersLimitPct", "what waits to be applied is bounded by fast_write_memory"),
    (
        "nsdRAIDFlusherBuffersLowWatermarkPct",
        "what waits to be applied is bounded by fast_write_memory; a quarter of it is where flushing begins",
    ),
    ("nsdRAIDFlusherFWLogHighWatermarkMB", "a pdisk's log is checkpointed by its own rules"),
    ("nsdRAIDFlusherFWLogLimitMB", "a pdisk's log is checkpointed by its own rules"),
    ("nsdRAIDFlusherThreadsHighWatermark", "a pdisk applies its log by itself, within queue_depth_max"),
    ("nsdRAIDFlusherThreadsLowWatermark", "a pdisk applies its log by itself, within queue_depth_max"),
    ("nsdRAIDFlusherTracksLimitPct", "what waits to be applied is bounded by fast_write_memory"),
    ("nsdRAIDFlusherTracksLowWatermarkPct", "what waits to be applied is bounded by fast_write_memory"),
    ("nsdRAIDMaxTransientStale2FT", "a strip that was not written is stale at once here, and repaired"),
    ("nsdRAIDMaxTransientStale3FT", "a strip that was not written is stale at once here, and repaired"),
    (
        "nsdRAIDReconstructAggressiveness",
        "its counterpart is rebuild_aggressiveness, in % of time: other numbers fit",
    ),
    ("nsdRAIDSmallBufferSize", "small and large requests share the queues of a pdisk here"),
    ("nsdRAIDSmallThreadRatio", "small and large requests share the queues of a pdisk here"),
    ("nsdRAIDThreadsPerQueue", "a ring has one thread here; a pdisk is bounded by queue_depth_max"),
    ("nsdRAIDTracks", "the index of a pdisk is bounded by index_memory"),
    ("nsdSmallThreadRatio", "small and large requests share the queues of a pdisk here"),
    ("nsdThreadsPerDisk", "a pdisk is bounded by queue_depth_max here"),
    ("nsdThreadsPerQueue", "a ring has one thread here; a pdisk is bounded by queue_depth_max"),
    ("nspdQueues", "there is no helper process between a server and its disks here"),
    (
        "numaMemoryInterleave",
        "memory is placed by the kernel; start a process under numactl --interleave=all for the same",
    ),
    ("scatterBuffers", "the page pool is always made of pages here"),
    ("scatterBufferSize", "the page pool is always made of pages here"),
    ("socketMaxListenConnections", "the listen backlog is not a tunable here"),
    ("subnets", "a node is reached at all addresses it is given; see `node set`"),
    ("tiebreakerDisks", "there are no such disks here; the manager's store decides"),
    ("worker3Threads", "inodes are read by the manager's calls here, within workerThreads"),
];

/// What stands here in the place of a name of Storage Scale that has no row; compared without case.
pub fn elsewhere(name: &str) -> Option<&'static str> {
    ELSEWHERE.iter().find(|(scale, _)| scale.eq_ignore_ascii_case(name)).map(|(_, answer)| *answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunables::Row;

    #[test]
    fn elsewhere_is_elsewhere() {
        let mut seen = std::collections::BTreeSet::new();
        for (name, answer) in ELSEWHERE {
            assert!(seen.insert(name.to_ascii_lowercase()) && Row::find(name).is_none(), "{name} twice");
            assert!(answer.len() > 10 && elsewhere(&name.to_uppercase()) == Some(answer));
        }
    }
}
