//! The listing of the cluster, for people and scripts.

use std::time::Duration;

use wire::mgr::{ClientReport, ClusterReport, PdiskUse};

use super::Cluster;

impl Cluster {
    pub(super) fn report(&self, now: Duration) -> ClusterReport {
        let age = |at: Duration| now.saturating_sub(at).as_millis() as u64;
        let pdisks = self.map.pdisks.iter().map(|pdisk| {
            let disk = self.disks.get(&pdisk.id);
            PdiskUse {
                id: pdisk.id,
                state: pdisk.state,
                capacity: disk.map(|d| d.record.capacity).unwrap_or_default(),
                free: disk.map(|d| d.record.free).unwrap_or_default(),
                age_ms: disk.and_then(|d| d.reported).map(age),
                served: disk.is_some_and(|d| d.server.is_some()),
                moved: disk.map(|d| d.moved).unwrap_or_default(),
                waits: disk.map(|d| d.waits.clone()).unwrap_or_default(),
                client_us: disk.map(|d| d.client_us).unwrap_or_default(),
            }
        });
        let clients = self.clients.iter().map(|(&session, client)| {
            let tokens = self.tokens.get(&client.record.fs);
            let held = tokens.map(|tokens| tokens.member(session)).unwrap_or_default();
            ClientReport {
                session,
                process: client.record.process.clone(),
                mount: client.record.mount.clone(),
                admin_addr: client.record.admin_addr.clone(),
                fs: client.record.fs,
                age_ms: age(client.renewed),
                whole: held.whole,
                tokens: held.tokens,
                recalls: (held.recalls.0, held.recalls.1.map(age).unwrap_or_default()),
            }
        });
        ClusterReport {
            map: self.map.clone(),
            pdisks: pdisks.collect(),
            clients: clients.collect(),
            moving: self.report_moves(now),
            ..ClusterReport::default()
        }
    }
}
