//! Limits that only the processes of a cluster can tell: a pdisk that is slower than the others, tokens that client nodes take from
//! each other, a manager that is slow to commit.

use super::{Evidence, Finding, Limit, percent};
use crate::observe::{Inside, PdiskUse, median};

/// A pdisk that holds the others up has something to do for this part of the time at least,
const BUSY: f64 = 0.6;
/// and takes so many times as long as the others for a batch.
const SLOWER: f64 = 2.5;
/// Batches a second that say something.
const BATCHES: f64 = 2.0;
/// Part of what programs wait for that is the reason.
const MOST: f64 = 0.5;
/// Commits that take so many times as long as the disk for a flush are slow: a commit is one flush, and waits for another at most.
const COMMIT: f64 = 5.0;
/// Programs that wait at a time, below which nobody is held up.
const WAITING: f64 = 0.5;

/// One pdisk, or a few, to which all others wait.
pub(super) fn slow_pdisk(e: &Evidence) -> Option<Finding> {
    let pdisks: Vec<&PdiskUse> =
        e.inside.as_ref()?.pdisks.iter().filter(|pdisk| pdisk.batches >= BATCHES).collect();
    let usual = median(&pdisks.iter().map(|pdisk| pdisk.mean_ms).collect::<Vec<_>>());
    let slow: Vec<&&PdiskUse> =
        pdisks.iter().filter(|pdisk| pdisk.busy >= BUSY && pdisk.mean_ms >= SLOWER * usual).collect();
    // Of three or more, else none is usual.
    if pdisks.len() < 3 || slow.is_empty() {
        return None;
    }
    let each: Vec<String> = slow
        .iter()
        .map(|pdisk| {
            format!(
                "{} takes {:.1} ms for a batch, where {usual:.1} ms are usual among {}, and is busy {} of the time",
                pdisk.name,
                pdisk.mean_ms,
                pdisks.len(),
                percent(pdisk.busy)
            )
        })
        .collect();
    let names = slow.iter().map(|pdisk| format!("pdisk {}", pdisk.name)).collect();
    Some((Limit::SlowDevice, names, format!("slow pdisks: {}", each.join("; "))))
}

/// Client nodes that write the same blocks: most of the waiting is for a token that another one has.
pub(super) fn tokens(e: &Evidence) -> Option<Finding> {
    let inside = e.inside.as_ref()?;
    let part = inside.tokens / inside.waiting.max(WAITING);
    (part >= MOST).then(|| {
        let text = format!(
            "write tokens: {} of the time that programs wait, their mounts wait for tokens that another client node has",
            percent(part.min(1.0))
        );
        (Limit::Tokens, vec!["tokens".into()], text)
    })
}

/// A manager that is in a commit nearly all the time, for much longer than its disk takes for a flush.
pub(super) fn commits(e: &Evidence) -> Option<Finding> {
    let inside = e.inside.as_ref()?;
    let slow = inside.commit_ms >= COMMIT * inside.flush_ms && inside.flush_ms > 0.0;
    (slow && inside.commits >= BUSY && inside.waiting >= WAITING).then(|| {
        let text = format!(
            "the manager: it is in a commit {} of the time, for {:.0} ms each, where the disk below the run makes 4 KiB durable in {:.1} ms",
            percent(inside.commits),
            inside.commit_ms,
            inside.flush_ms
        );
        (Limit::Manager, vec!["manager".into()], text)
    })
}

/// What the processes said, for people.
pub(super) fn said(inside: &Inside) -> String {
    let slowest = inside.pdisks.iter().max_by(|a, b| a.busy.total_cmp(&b.busy));
    let slowest = slowest.map_or(String::new(), |pdisk| {
        format!("; busiest pdisk: {} {}, {:.1} ms a batch", pdisk.name, percent(pdisk.busy), pdisk.mean_ms)
    });
    format!(
        "in the cluster: {:.1} operations of programs wait at a time, {:.1} of that for tokens; the manager is in a commit {} of the \
         time, {:.1} ms each (a flush of its disk: {:.1} ms){slowest}",
        inside.waiting,
        inside.tokens,
        percent(inside.commits),
        inside.commit_ms,
        inside.flush_ms
    )
}
