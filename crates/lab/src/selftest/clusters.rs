//! Bottlenecks inside a cluster, staged on one of the run's own.

use std::path::Path;

use super::{
    disks::{Disks, Way},
    staged::{Outcome, Staged, head, series},
};
use crate::draw::Draw;

/// A file read again and again by random through a mount of a cluster of its own, whose page pool holds a part of it or all.
pub(super) fn page_pool(draw: &mut Draw, with: bool, _: &Path) -> Outcome {
    // No page pool is smaller than four blocks of the largest size, 64 MiB.
    let amount = 256 + draw.below(128);
    let pool = if with { 64 + draw.below(amount / 4) } else { amount * 3 };
    let speed = 300 + draw.below(400);
    let set = format!(
        "operation = 'read', pattern = 'rand', record = '64k', amount = '{amount}m', dio = true, cached = true, \
         speed = {speed}, pagepool = '{pool}m'"
    );
    let plan = head("workers", "[1, 2, 4]") + &series("perf", "bytes", &set);
    Ok(Ok(Staged { plan, place: "page pool".into(), ..Staged::default() }))
}

/// Eight pdisks, of which one answers late.
pub(super) fn slow_pdisk(draw: &mut Draw, with: bool, _: &Path) -> Outcome {
    let (node, pdisk, late) = (1 + draw.below(4), 1 + draw.below(2), 60 + draw.below(90));
    let fault = format!("ROPEWALK_PDISK_FAULT=delay {late}ms on=any path=/n{node}/pdisk{pdisk}/");
    let under = if with { vec!["env".to_owned(), fault] } else { Vec::new() };
    // Where none is late it is done sooner: more, so that it lasts.
    let amount = if with { 48 } else { 192 };
    let set = format!(
        "operation = 'create', pattern = 'seq', record = '1m', amount = '{amount}m', pdisks = 8, speed = 4000"
    );
    let plan = head("workers", "[1, 2, 4]") + &series("perf", "bytes", &set);
    // Its number in the cluster, where two are on each node.
    let number = 2 * (node - 1) + pdisk;
    Ok(Ok(Staged { under, plan, place: format!("n{node}/pdisk{number}"), ..Staged::default() }))
}

/// Names that are made, by a manager whose disk takes few writes a second.
pub(super) fn slow_manager(draw: &mut Draw, with: bool, dir: &Path) -> Outcome {
    let disks = match Disks::none()? {
        Ok(disks) => disks,
        Err(why) => return Ok(Err(why)),
    };
    let rate = 15 + draw.below(25);
    if with {
        disks.throttle_below(dir, Way::Write, rate)?;
    }
    let manager = format!("serve --dir {}/out/work/cluster --name manager", dir.display());
    let set = "operation = 'create', files = 1000, bytes = 0, speed = 4000";
    Ok(Ok(Staged {
        under: if with { disks.under_only(&manager) } else { Vec::new() },
        plan: head("workers", "[1, 2, 4]") + &series("metadata", "operations", set),
        place: "manager".into(),
        disks: Some(disks),
        ..Staged::default()
    }))
}

/// Client nodes that all write one file, each block of which has one writer at a time; or each a file of its own.
pub(super) fn one_file(draw: &mut Draw, with: bool, _: &Path) -> Outcome {
    // Where nobody takes tokens away it is done sooner: more, so that it lasts.
    let (record, amount) = (64 << draw.below(2), if with { 32 } else { 128 });
    let set = format!(
        "operation = 'write', pattern = 'rand', record = '{record}k', amount = '{amount}m', shared = {with}, speed = 4000"
    );
    let plan = head("nodes", "[1, 2, 4]") + &series("perf", "bytes", &set);
    Ok(Ok(Staged { plan, place: "tokens".into(), ..Staged::default() }))
}
