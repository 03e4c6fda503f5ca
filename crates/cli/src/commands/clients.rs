//! `ropewalk clients` and `tokens`: who shares a file system, who holds what, who waits for whom.

use anyhow::{Result, bail};
use base::{InodeNo, SessionId, units::seconds_of_ms};
use serde::Serialize;
use wire::{
    map::FsEntry,
    mgr::{ClientReport, MgrReply, MgrRequest, TokenReport},
    token::{Run, Token, Use},
};

use crate::{
    args::{Dir, Listing},
    link::{self, Link},
    output::{self, end_of},
};

#[derive(Serialize)]
struct ClientRow {
    session: u64,
    fs: String,
    mount: String,
    host: String,
    pid: u32,
    /// Since its lease was renewed.
    renewed_s: f64,
    /// All tokens of the file system are its own.
    whole: bool,
    tokens: u64,
    /// Tokens it is asked to give back, and since when the oldest.
    recalls: u64,
    oldest_recall_s: f64,
}

/// `ropewalk clients list`.
pub fn clients(listing: &Listing) -> Result<()> {
    let dir = listing.dir.open()?;
    link::run(async {
        let report = Link::new(&dir)?.cluster().await?;
        let name = |id| report.map.filesystems.iter().find(|fs| fs.id == id).map(|fs| fs.name.clone());
        let rows: Vec<ClientRow> = report
            .clients
            .iter()
            .map(|client| ClientRow {
                session: client.session.0,
                fs: name(client.fs).unwrap_or_default(),
                mount: client.mount.clone(),
                host: client.process.host.clone(),
                pid: client.process.pid,
                renewed_s: seconds_of_ms(client.age_ms),
                whole: client.whole,
                tokens: client.tokens,
                recalls: client.recalls.0,
                oldest_recall_s: seconds_of_ms(client.recalls.1),
            })
            .collect();
        if listing.json {
            return output::json(&rows);
        }
        let cells = |row: ClientRow| {
            let tokens = if row.whole { "all".to_owned() } else { row.tokens.to_string() };
            let recalls = match row.recalls {
                0 => "-".to_owned(),
                n => format!("{n} for {:.3} s", row.oldest_recall_s),
            };
            vec![
                row.session.to_string(),
                row.fs,
                row.mount,
                row.host,
                row.pid.to_string(),
                format!("{:.1} s ago", row.renewed_s),
                tokens,
                recalls,
            ]
        };
        output::table(
            &["SESSION", "FS", "MOUNT", "HOST", "PID", "RENEWED", "TOKENS", "RECALLED"],
            rows.into_iter().map(cells).collect(),
        );
        Ok(())
    })
}

/// `ropewalk clients detach`.
pub fn detach(dir: &Dir, session: u64) -> Result<()> {
    let dir = dir.open()?;
    link::run(async {
        let link = Link::new(&dir)?;
        if !link.cluster().await?.clients.iter().any(|client| client.session.0 == session) {
            bail!("no client has session {session}; `ropewalk clients list` shows those that are there");
        }
        link.manager(&MgrRequest::Detach { session: SessionId(session) }).await?;
        output::line(format!(
            "session {session} is ended; what it had not written is lost to its programs, and its tokens move on when the servers know"
        ));
        Ok(())
    })
}

/// Runs of blocks of one token in the table; of more only the number. JSON has all.
const RUNS_SHOWN: usize = 6;
/// Columns of a client: its host and mount point.
const CLIENT_MAX: usize = 24;

#[derive(Serialize)]
struct TokenRow {
    fs: String,
    inode: u64,
    session: u64,
    /// Where that mount is; empty: it has just ended.
    host: String,
    mount: String,
    mode: &'static str,
    /// Which blocks, of a token for a part: `r` to read, `w` to write.
    blocks: String,
    /// Number of the grant; none for one that waits.
    serial: Option<u64>,
    /// How long it has been waited for; none for one that is held.
    waits_s: Option<f64>,
}

/// Such as "0-4w 5-r": the last run has no end.
fn runs_of(token: &Token) -> String {
    let run = |run: &Run| {
        let last = if run.span.end == u64::MAX { String::new() } else { (run.span.end - 1).to_string() };
        format!("{}-{last}{}", run.span.first, if run.what == Use::Write { "w" } else { "r" })
    };
    token.blocks.runs().iter().map(run).collect::<Vec<_>>().join(" ")
}

fn rows_of(fs: &FsEntry, clients: &[ClientReport], report: TokenReport) -> Vec<TokenRow> {
    let client = |session| clients.iter().find(|client| client.session == session);
    let row = |session: SessionId, mode: &'static str| TokenRow {
        host: client(session).map(|c| c.process.host.clone()).unwrap_or_default(),
        mount: client(session).map(|c| c.mount.clone()).unwrap_or_default(),
        fs: fs.name.clone(),
        inode: report.ino.0,
        session: session.0,
        mode,
        blocks: String::new(),
        serial: None,
        waits_s: None,
    };
    let held = report.holders.iter().map(|(session, token)| TokenRow {
        serial: Some(token.serial.0),
        blocks: runs_of(token),
        ..row(*session, token.mode.name())
    });
    let waiting = report.waiting.iter().map(|(session, need, since)| TokenRow {
        waits_s: Some(seconds_of_ms(*since)),
        ..row(*session, need.name())
    });
    held.chain(waiting).collect()
}

/// `ropewalk tokens`, with `waiting` only of inodes that somebody waits for.
pub fn tokens(listing: &Listing, waiting: bool) -> Result<()> {
    let dir = listing.dir.open()?;
    link::run(async {
        let link = Link::new(&dir)?;
        let mut rows = Vec::new();
        let report = link.cluster().await?;
        for fs in &report.map.filesystems {
            let mut after = InodeNo(0);
            loop {
                let MgrReply::Tokens { inodes, more } =
                    link.manager(&MgrRequest::Tokens { fs: fs.id, after }).await?
                else {
                    bail!("unexpected answer from the manager to Tokens");
                };
                after = inodes.last().map_or(after, |report| report.ino);
                let wanted = inodes.into_iter().filter(|report| !waiting || !report.waiting.is_empty());
                rows.extend(wanted.flat_map(|inode| rows_of(fs, &report.clients, inode)));
                if !more {
                    break;
                }
            }
        }
        if listing.json {
            return output::json(&rows);
        }
        let cells = |row: TokenRow| {
            let state = match row.waits_s {
                Some(s) => format!("waits for {s:.3} s"),
                None => "held".to_owned(),
            };
            let blocks = match row.blocks.split(' ').count() {
                runs if runs > RUNS_SHOWN => format!("{runs} runs"),
                _ => row.blocks,
            };
            let client = format!("{}:{}", row.host, row.mount);
            vec![
                row.fs,
                row.inode.to_string(),
                row.session.to_string(),
                end_of(&client, CLIENT_MAX),
                row.mode.to_owned(),
                blocks,
                state,
            ]
        };
        let head = ["FS", "INODE", "SESSION", "CLIENT", "TOKEN", "BLOCKS", "STATE"];
        output::table(&head, rows.into_iter().map(cells).collect());
        Ok(())
    })
}
