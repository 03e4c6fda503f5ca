//! How a server opens its pdisks, and how their I/O queues keep to the tunables.

use std::mem;

use anyhow::{Context, Result};
use base::{
    ClusterId, PdiskId,
    tunables::{IoEngine, Tunables},
};
use parking_lot::Mutex;
use pdisk::{EngineChoice, FaultPlan, IoConfig, IoNode, OpenOptions};

/// The I/O queues of a node.
pub struct Queues {
    /// The queues, for those who open pdisks.
    pub io: IoNode,
    /// What of their tunables changes while they run, as it is in force.
    live: Mutex<[u32; 4]>,
}

impl Queues {
    /// Starts them. `ROPEWALK_PDISK_FAULT` holds a fault plan, or `@FILE` with one: for tests.
    pub fn start(tunables: &Tunables) -> Result<Queues> {
        let fault = match std::env::var("ROPEWALK_PDISK_FAULT") {
            Ok(plan) => Some(FaultPlan::load(&plan).context("read ROPEWALK_PDISK_FAULT")?),
            Err(_) => None,
        };
        let config = IoConfig { fault, ..io_config(tunables) };
        let live = Mutex::new(live(&config));
        Ok(Queues { io: IoNode::start(config).context("start the I/O queues")?, live })
    }

    /// Brings changed tunables to them.
    pub fn retune(&self, tunables: &Tunables) {
        let config = io_config(tunables);
        let new = live(&config);
        let mut in_force = self.live.lock();
        if mem::replace(&mut *in_force, new) == new {
            return;
        }
        let [count, us, depth, spin] = new;
        match self.io.reconfigure(&config) {
            Ok(()) => {
                tracing::info!("I/O queues: coalesce {count}/{us} us, depth {depth}, spin {spin} us");
            }
            Err(error) => tracing::error!("the I/O queues stay as they are: {error}"),
        }
    }
}

fn live(config: &IoConfig) -> [u32; 4] {
    [config.io_coalesce_count, config.io_coalesce_us, config.queue_depth, config.io_spin_us]
}

fn io_config(tunables: &Tunables) -> IoConfig {
    let t = tunables;
    IoConfig {
        num_io_queues: t.num_io_queues(),
        io_coalesce_count: t.io_coalesce_count(),
        io_coalesce_us: t.io_coalesce_us(),
        io_dma_mib: t.io_dma_mib(),
        queue_depth: t.queue_depth_max(),
        io_spin_us: t.io_spin_us(),
        engine: match t.io_engine() {
            IoEngine::Auto => EngineChoice::Auto,
            IoEngine::IoUring => EngineChoice::IoUring,
            IoEngine::Psync => EngineChoice::Psync,
        },
        fault: None,
    }
}

/// How a server opens a pdisk.
pub fn open_options(tunables: &Tunables, cluster: ClusterId, id: PdiskId) -> OpenOptions {
    OpenOptions {
        queues_per_pdisk: tunables.queues_per_pdisk(),
        // The table allows no more than the option takes.
        fast_write_limit: tunables.fast_write_limit().0 as u32,
        fast_write_memory: tunables.fast_write_memory().0,
        index_memory: Some(tunables.index_memory().0).filter(|bytes| *bytes > 0),
        marks_asked: true,
        // Until the server knows that every build of the cluster can recover that.
        flush_together: false,
        ..OpenOptions::new(cluster, id)
    }
}
