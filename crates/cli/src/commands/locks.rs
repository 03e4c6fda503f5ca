//! `ropewalk locks`: which programs hold locks, and which wait for them.

use std::collections::HashSet;

use anyhow::{Result, bail};
use base::{InodeNo, units::seconds_of_ms};
use serde::Serialize;
use wire::{
    lock::{END, LockReport},
    mgr::{ClusterReport, MgrReply, MgrRequest},
};

use crate::{
    args::Listing,
    link::{self, Link},
    output,
};

#[derive(Serialize)]
struct Row {
    fs: String,
    inode: u64,
    /// Below the file system's root; empty if it has no name any more.
    path: String,
    session: u64,
    host: String,
    mount: String,
    /// On that host.
    pid: u32,
    kind: &'static str,
    mode: &'static str,
    /// First byte.
    start: u64,
    /// Last byte; none is the end of the file, wherever that is.
    end: Option<u64>,
    /// Not held but waited for.
    waits: bool,
    /// Since it was given or asked for; since the manager's start if that was later.
    age_s: f64,
}

fn row(fs: &str, cluster: &ClusterReport, report: &LockReport) -> Row {
    let client = cluster.clients.iter().find(|client| client.session == report.session);
    Row {
        fs: fs.to_owned(),
        inode: report.ino.0,
        path: String::from_utf8_lossy(&report.path).into_owned(),
        session: report.session.0,
        host: client.map(|c| c.process.host.clone()).unwrap_or_default(),
        mount: client.map(|c| c.mount.clone()).unwrap_or_default(),
        pid: report.lock.pid,
        kind: report.lock.kind.name(),
        mode: report.lock.mode.name(),
        start: report.lock.start,
        end: Some(report.lock.end).filter(|end| *end < END),
        waits: report.waits,
        age_s: seconds_of_ms(report.age_ms),
    }
}

fn cells(row: Row) -> Vec<String> {
    let end = row.end.map_or("end".to_owned(), |end| end.to_string());
    vec![
        row.fs,
        if row.path.is_empty() { format!("inode {}", row.inode) } else { row.path },
        row.host,
        row.mount,
        row.pid.to_string(),
        row.kind.to_owned(),
        row.mode.to_owned(),
        format!("{}-{end}", row.start),
        format!("{} for {:.3} s", if row.waits { "waits" } else { "held" }, row.age_s),
    ]
}

/// `ropewalk locks`, with `waiting` only of inodes that somebody waits at.
pub fn locks(listing: &Listing, waiting: bool) -> Result<()> {
    let dir = listing.dir.open()?;
    link::run(async {
        let link = Link::new(&dir)?;
        let cluster = link.cluster().await?;
        let mut rows = Vec::new();
        for fs in &cluster.map.filesystems {
            let mut after = InodeNo(0);
            loop {
                let MgrReply::Locks { locks, more } =
                    link.manager(&MgrRequest::Locks { fs: fs.id, after }).await?
                else {
                    bail!("unexpected answer from the manager to Locks");
                };
                after = locks.last().map_or(after, |lock| lock.ino);
                let busy: HashSet<InodeNo> =
                    locks.iter().filter(|lock| lock.waits).map(|lock| lock.ino).collect();
                let wanted = locks.iter().filter(|lock| !waiting || busy.contains(&lock.ino));
                rows.extend(wanted.map(|lock| row(&fs.name, &cluster, lock)));
                if !more {
                    break;
                }
            }
        }
        if listing.json {
            return output::json(&rows);
        }
        output::table(
            &["FS", "FILE", "HOST", "MOUNT", "PID", "KIND", "MODE", "BYTES", "STATE"],
            rows.into_iter().map(cells).collect(),
        );
        Ok(())
    })
}
