//! `ropewalk analytics record`: what every process has kept of a time, gathered into one file. A process that does not answer is
//! left out, and named.

use std::collections::HashSet;

use analytics::{Recorder, Reply, Request, Value};
use anyhow::{Context, Result, bail};

use super::{
    ask::{Span, Watch},
    members::Member,
};
use crate::{args::AnalyticsRecord, cluster_dir::access, link, output};

/// Seconds that are asked for at once, at first. As many as fit into a reply, later.
const SLICE: u64 = 60;
const SLICE_MAX: u64 = 7 * 86_400;

/// `ropewalk analytics record`.
pub fn record(args: &AnalyticsRecord) -> Result<()> {
    let dir = args.dir.open()?;
    let (bytes, silent) = link::run(async {
        let mut watch = Watch::begin(&dir).await?;
        let span = Span::of(&args.time, watch.now(), 0)?;
        let (after, to) = (watch.now() - span.from_ago, watch.now() - span.to_ago);
        let (mut recorder, mut files, mut silent) = (Recorder::default(), HashSet::new(), Vec::new());
        for member in watch.members().to_vec() {
            match gather(&member, after, to, &mut recorder).await {
                Ok(found) => files.extend(found),
                Err(error) => silent.push(format!("{} ({error:#})", member.origin.name)),
            }
        }
        let files: Vec<Value> = files.into_iter().map(|(fs, inode)| Value::File(fs, inode)).collect();
        Ok((recorder.finish(watch.names_of(&files).await?), silent))
    })?;
    // Who did what to which file is its owner's affair.
    output::file(&access::options(), &args.out, &bytes)
        .with_context(|| format!("--out: write {}", args.out.display()))?;
    output::line(format!("{}: {} bytes", args.out.display(), bytes.len()));
    match silent.is_empty() {
        true => Ok(()),
        false => bail!("not in the recording: {}", silent.join(", ")),
    }
}

/// All that a process has of a time; the files in it.
async fn gather(
    member: &Member,
    after: u64,
    to: u64,
    recorder: &mut Recorder,
) -> Result<HashSet<(u32, u64)>> {
    let (mut at, mut slice, mut files, mut begun) = (after, SLICE, HashSet::new(), false);
    while at < to {
        let until = (at + slice).min(to);
        let reply = member.ask(Request::Records { after: at, to: until, ended: None }).await?;
        let Reply::Records { hex, whole } = reply else { bail!("unexpected answer") };
        if !whole && slice > 1 {
            slice /= 2;
            continue;
        }
        let page = analytics::unhex(&hex).context("what was sent is damaged")?;
        if !begun {
            recorder.begin(member.origin.clone());
            begun = true;
        }
        let found = recorder.add(&page, -member.ahead).map_err(anyhow::Error::msg)?;
        // Of a mount the file system is known, not recorded.
        files.extend(
            found.into_iter().map(|(fs, inode)| (if fs == 0 { member.origin.fs } else { fs }, inode)),
        );
        at = until;
        slice = (slice * 2).min(SLICE_MAX);
    }
    Ok(files)
}
