//! What a process keeps of its seconds: in memory from its start on, and in `analytics/` of the cluster's directory as soon as it
//! is known what it is called. A directory that cannot be written is no reason not to serve: it is said, and memory has to do.

use std::{path::PathBuf, sync::OnceLock};

use analytics::{Origin, RequestError, Store};
use base::stats;

use super::{ident, usage};
use crate::cluster_dir::ClusterDir;

/// The history of this process.
#[derive(Default)]
pub struct History {
    /// Where the histories of this machine lie.
    all: OnceLock<PathBuf>,
    store: OnceLock<Store>,
    bytes_max: OnceLock<u64>,
}

impl History {
    /// Begins to write it. `local`: what the process's files are named by; `session`: of a client, with its file system.
    pub fn keep(
        &self,
        dir: &ClusterDir,
        local: &str,
        (name, role): (&str, &str),
        session: Option<(u32, u64)>,
    ) {
        let all = self.all.get_or_init(|| dir.histories());
        usage::begin(all.clone());
        let (fs, session) = session.unwrap_or_default();
        let host = ident::own_ident().host;
        let origin = Origin { name: name.to_owned(), role: role.to_owned(), host, fs, session };
        match Store::begin(&all.join(local), origin, self.bytes_max.get().copied().unwrap_or(0)) {
            Ok(store) => drop(self.store.set(store)), // once
            Err(error) => {
                tracing::warn!("its history is in memory only: {}: {error}", all.join(local).display())
            }
        }
    }

    /// Bytes of disk that it may take from now on.
    pub fn set_bytes(&self, bytes_max: u64) {
        let _ = self.bytes_max.set(bytes_max); // the first, if the store is to begin yet
        if let Some(store) = self.store.get() {
            store.set_bytes(bytes_max);
        }
    }

    /// Answers what `analytics` asks.
    pub fn answer(&self, request: &str) -> Result<String, RequestError> {
        analytics::answer(request, self.store.get().map(Store::dir), self.all.get().map(PathBuf::as_path))
    }

    /// What is kept, and what that takes.
    pub fn status(&self) -> serde_json::Value {
        let kept = stats::kept();
        let cost = stats::gauge("analytics_cost_millionths", &[]).get();
        serde_json::json!({
            "kept": kept.seconds,
            "max": stats::SECONDS_MAX,
            "used_bytes": kept.bytes,
            "max_bytes": kept.bytes_max,
            "disk_bytes": self.store.get().map(Store::bytes),
            "disk_max_bytes": self.store.get().map(Store::bytes_max),
            "from_at_us": self.store.get().and_then(Store::first).map(|at| at * 1_000_000),
            "cost_percent": cost as f64 / 1e4,
        })
    }
}
