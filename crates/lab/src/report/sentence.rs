//! A plan in one sentence: what the limit is, how far it is from the expected maximum, what to change.

use super::{build::PlanReport, numbers::percent, words::limit_name};
use crate::{
    plan::Step,
    verdict::{Confidence, Limit},
};

/// What to change where that is the limit.
fn change(limit: Limit) -> &'static str {
    match limit {
        Limit::None => "nothing needs to be changed; more of them would show where it ends",
        Limit::Cpu => "more or faster CPUs, or less work for each byte",
        Limit::PinnedCpu => "let the load use the other CPUs as well (taskset, cpuset)",
        Limit::LoadThread => "more threads or processes that make load",
        Limit::Clients => "more clients, connections or writers",
        Limit::SlowDevice => "look at the slow part, and replace it or leave it out",
        Limit::Device => "spread the parts over more disks",
        Limit::Link => "a faster link, or more of them",
        Limit::HashPolicy => "a hash policy that looks at ports (layer3+4), or connections that are placed",
        Limit::Queue => "more disks for the queues, or more registered memory where that is named",
        Limit::PagePool => {
            "a larger page pool (`ropewalk config set pagepool=SIZE`, live), or a load that reads less again"
        }
        Limit::Manager => "a faster disk for the manager's journal, or fewer changes of names",
        Limit::Tokens => "let each client node write files or blocks of its own",
        Limit::Memory => "fewer copies of each byte, or memory with more channels",
        Limit::Neighbour => "give the load CPUs of its own, or measure when the others rest",
        Limit::Drift => "find what grows or slows down before it is trusted for longer",
        Limit::NotKnown => "measure again on a quiet machine, with one thing changed (`lab compare`)",
    }
}

/// The sentence. It speaks of what most of the series show, and of the surest of them.
pub fn sentence(report: &PlanReport) -> String {
    let mut limits: Vec<(Limit, Confidence, f64)> = Vec::new();
    for series in &report.series {
        let Some(verdict) = &series.verdict else { continue };
        let Some(point) = series.judged().or(series.analysis.points.last()) else { continue };
        let part = point.measured / point.expected.value.max(f64::MIN_POSITIVE);
        limits.push((verdict.limit, verdict.confidence, part));
    }
    let count = |limit: Limit| limits.iter().filter(|one| one.0 == limit).count();
    let sure = |limit: Limit| limits.iter().filter(|one| one.0 == limit).map(|one| one.1).max();
    // Of several that are equal, one that can be changed.
    let named = |limit: Limit| !matches!(limit, Limit::None | Limit::NotKnown | Limit::Neighbour);
    let surest = limits.iter().max_by_key(|one| (count(one.0), sure(one.0), named(one.0)));
    let Some(&(limit, ..)) = surest else {
        let why =
            report.missing.first().map_or("it has no series with a target".to_owned(), ToString::to_string);
        return format!("nothing was measured: {why}");
    };
    // One step is held against itself, if nothing else bounds it.
    let step = report.planned.plan.step;
    let alone = report
        .series
        .iter()
        .all(|one| matches!(one.analysis.points.as_slice(), [point] if point.expected.layer == step.layer()));
    let parts = || limits.iter().filter(|one| one.0 == limit).map(|one| one.2);
    let (low, high) = (parts().fold(f64::MAX, f64::min), parts().fold(0.0, f64::max));
    let reached = match percent(low) == percent(high) {
        _ if alone => "one step alone has no expected maximum".to_owned(),
        true => format!("it reaches {} of the expected maximum", percent(low)),
        false => format!("it reaches {} to {} of the expected maximum", percent(low), percent(high)),
    };
    let among = match limits.len() {
        1 => String::new(),
        all => format!(" in {} of {all} series", count(limit)),
    };
    let steady = step == Step::Periods;
    let what = match limit {
        Limit::None if steady => "no drift was found".to_owned(),
        Limit::None => "no limit was found".to_owned(),
        Limit::NotKnown => "the limit is not known".to_owned(),
        other => format!("the limit is: {}", limit_name(other)),
    };
    let (doubt, first) = match limit {
        _ if sure(limit) != Some(Confidence::Low) => ("", ""),
        Limit::NotKnown => ("", ""),
        Limit::None | Limit::Neighbour => (", with low confidence", ""),
        _ => (", with low confidence", "first measure on a quiet machine; then "),
    };
    format!(
        "{what}{among}{doubt}; {reached}; to change: {first}{}",
        if steady && limit == Limit::None {
            "nothing; longer runs show slower drifts"
        } else {
            change(limit)
        }
    )
}
