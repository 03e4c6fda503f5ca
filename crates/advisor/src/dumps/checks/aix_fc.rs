//! Fibre Channel on AIX: queues need DMA memory, a range bounds them, a default differs between releases.

use std::collections::BTreeMap;

use super::super::view::{Hit, Report, View};

/// Below this an adapter with more than one queue is configured with one.
const IO_DMA_FOR_QUEUES: f64 = 256.0;

pub(super) fn check(v: &View<'_>, r: &mut Report) {
    queues_need_memory(v, r);
    range(v, r);
    defaults(v, r);
    several_values(v, r);
    changes(v, r);
    stanzas(v, r);
    for error in v.all("aix/errpt/29FA8C20/*") {
        r.bad(
            "aix-fc-single-queue",
            &[error],
            format!("{} logged 29FA8C20: it was configured with a single queue", error.word(3)),
        );
    }
}

/// Queues against the memory in the same listing.
fn queues_need_memory(v: &View<'_>, r: &mut Report) {
    for listing in v.doc.listings.iter().filter(|l| l.kind == "lsattr -El") {
        let find = |name: &str| {
            listing
                .entries
                .iter()
                .find(|e| e.path.starts_with("aix/device/") && e.path.ends_with(name))
                .map(|entry| Hit { entry })
        };
        let (Some(queues), Some(dma)) = (find("/num_io_queues"), find("/io_dma")) else { continue };
        let (Some(count), Some(mib)) = (queues.number(), dma.number()) else { continue };
        let what = format!("{}: num_io_queues {count} with io_dma {mib}", queues.word(2));
        r.verdict("aix-fc-queues-memory", count <= 1.0 || mib >= IO_DMA_FOR_QUEUES, &[queues, dma], what);
    }
    for queues in v.all("aix/device/*/num_io_queues").iter().filter(|q| q.number().is_some_and(|n| n > 1.0)) {
        r.bad(
            "aix-fc-one-disk-one-queue",
            &[*queues],
            format!(
                "{}: {} queues; all requests of one hdisk use one of them",
                queues.word(2),
                queues.value()
            ),
        );
    }
}

/// The allowed range, from `lsattr -R` or from the stanza of PdAt (`1-16,1`).
fn range(v: &View<'_>, r: &mut Report) {
    let stated = v.first("aix/odm/PdAt/num_io_queues/values");
    let bounds = stated.and_then(|hit| {
        let (low, high) = hit.value().split(',').next()?.split_once('-')?;
        Some((hit, low.parse::<f64>().ok()?, high.parse::<f64>().ok()?))
    });
    let shown = v.first("aix/range/*/num_io_queues/low").zip(v.first("aix/range/*/num_io_queues/high"));
    if let (Some((hit, low, high)), Some((shown_low, shown_high))) = (bounds, shown) {
        let same = shown_low.number() == Some(low) && shown_high.number() == Some(high);
        r.verdict(
            "aix-range-contradiction",
            same,
            &[hit, shown_low, shown_high],
            format!(
                "num_io_queues: {} in the ODM, {} to {} by lsattr -R",
                hit.value(),
                shown_low.value(),
                shown_high.value()
            ),
        );
    }
    let bounds = bounds.or_else(|| {
        let (low, high) = shown?;
        Some((high, low.number()?, high.number()?))
    });
    let Some((hit, low, high)) = bounds else { return };
    let mut set = v.all("aix/device/*/num_io_queues");
    set.extend(v.all("aix/chdev/*/num_io_queues"));
    for value in set {
        if let Some(n) = value.number() {
            let order = (low..=high).contains(&n);
            if !order {
                r.bad(
                    "aix-fc-queues-range",
                    &[value, hit],
                    format!("num_io_queues {n} is outside {low} to {high}"),
                );
            }
        }
    }
}

/// A default in the ODM against what a document calls the default elsewhere.
fn defaults(v: &View<'_>, r: &mut Report) {
    let mut by_name: BTreeMap<&str, Vec<Hit<'_>>> = BTreeMap::new();
    for hit in v.all("says/default/*") {
        by_name.entry(hit.word(2)).or_default().push(hit);
    }
    for hit in v.all("aix/odm/PdAt/*/deflt") {
        by_name.entry(hit.word(3)).or_default().push(hit);
    }
    for (name, hits) in by_name {
        let mut values: Vec<&str> = hits.iter().map(Hit::value).collect();
        values.sort_unstable();
        values.dedup();
        if values.len() > 1 {
            r.bad(
                "default-of-which-release",
                &hits,
                format!("{name} has several defaults here: {}; each is of other releases", values.join(", ")),
            );
        }
    }
}

/// One attribute of one device with several values in one document.
fn several_values(v: &View<'_>, r: &mut Report) {
    let mut by_path: BTreeMap<&str, Vec<Hit<'_>>> = BTreeMap::new();
    for hit in v.all("aix/device/*/*") {
        by_path.entry(&hit.entry.path).or_default().push(hit);
    }
    for (path, hits) in by_path {
        let mut values: Vec<&str> = Vec::new();
        for hit in &hits {
            if !values.contains(&hit.value()) {
                values.push(hit.value());
            }
        }
        if values.len() > 1 {
            let name = path.trim_start_matches("aix/device/").replace('/', " ");
            r.bad(
                "several-values",
                &hits,
                format!(
                    "{name}: {} in one document; say which system and time each is of",
                    values.join(", ")
                ),
            );
        }
    }
}

/// Commands that are given as a procedure.
fn changes(v: &View<'_>, r: &mut Report) {
    for change in v.all("aix/chdev/*/num_io_queues") {
        let device = change.word(2);
        let dma = v.first(&format!("aix/chdev/{device}/io_dma"));
        let enough = dma.and_then(|h| h.number()).is_some_and(|n| n >= IO_DMA_FOR_QUEUES);
        let hits: Vec<Hit<'_>> = [Some(change), dma].into_iter().flatten().collect();
        r.verdict(
            "aix-fc-change-without-memory",
            enough,
            &hits,
            format!(
                "{device}: the change sets num_io_queues {} and {}",
                change.value(),
                if enough {
                    "io_dma as well"
                } else {
                    "leaves io_dma as it is; on releases whose default is 64 one queue remains"
                }
            ),
        );
    }
    for removed in v.all("aix/rmdev/*").iter().filter(|h| h.value().starts_with("-R")) {
        r.bad(
            "aix-rmdev-recursive",
            &[*removed],
            format!(
                "rmdev {} {}: its disks and paths go away while it lasts",
                removed.value(),
                removed.word(2)
            ),
        );
    }
}

fn stanzas(v: &View<'_>, r: &mut Report) {
    for kind in v.all("aix/odm/PdAt/*/type").iter().filter(|h| h.value() == "R") {
        r.bad(
            "aix-odm-type-r",
            &[*kind],
            format!("{}: type \"R\" is a regular attribute, not one that needs a reboot", kind.word(3)),
        );
    }
}
