//! Which cells a series needs, given what has been measured. Pure: a resumed run comes to the same cells.
//!
//! First every combination at the first step; then each other part alone, with the combination that was best,
//! which is what the expected maximum is summed from; then every combination at the other steps.

use crate::{
    cell::{Cell, Record, Role},
    plan::{Params, Plan, Series, Step},
};

/// How many parts there are for a plan to step over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parts {
    /// Of those that are stepped.
    pub count: u32,
    /// Whether each can be measured alone: devices and pairs have names, connections have not.
    pub named: bool,
}

/// The cells of one series that are known so far, in order; more follow once the first step is measured.
pub fn cells(plan: &Plan, series: &Series, parts: Parts, records: &[Record]) -> Vec<Cell> {
    let steps = plan.steps.resolve(parts.count);
    let combinations = series.combinations();
    let cell = |role, step, first, params: &Params, repeat| Cell {
        plan: plan.name.clone(),
        series: series.name.clone(),
        role,
        of: plan.step,
        step,
        first,
        params: params.clone(),
        repeat,
    };
    let points = |step: u32| {
        let cells = combinations.iter().flat_map(move |params| {
            (0..plan.repeats).map(move |repeat| cell(Role::Point, step, 0, params, repeat))
        });
        cells.collect::<Vec<_>>()
    };
    let Some(&first) = steps.first() else { return Vec::new() };
    let mut all = points(first);
    let measured = |cell: &Cell| records.iter().any(|record| record.cell == *cell);
    if parts.named && steps.len() > 1 {
        if !all.iter().all(measured) {
            return all;
        }
        if let Some(best) = best(series, records, first) {
            // Part 0 alone is the first step already, if that step is one.
            let alone = if first == 1 { 1 } else { 0 };
            let last = steps.last().copied().unwrap_or(1);
            for part in alone..last {
                all.extend((0..plan.repeats).map(|repeat| cell(Role::Part, 1, part, &best, repeat)));
            }
        }
    }
    for &step in &steps[1..] {
        all.extend(points(step));
    }
    all
}

/// How many cells the series will have in all.
pub fn count(plan: &Plan, series: &Series, parts: Parts) -> usize {
    let steps = plan.steps.resolve(parts.count);
    let points = steps.len() * series.combinations().len() * plan.repeats as usize;
    let alone = match (steps.first(), steps.last()) {
        (Some(1), Some(&last)) if parts.named && steps.len() > 1 => last - 1,
        (Some(_), Some(&last)) if parts.named && steps.len() > 1 => last,
        _ => 0,
    };
    points + alone as usize * plan.repeats as usize
}

/// The parameters that gave most at a step.
pub fn best(series: &Series, records: &[Record], step: u32) -> Option<Params> {
    let here = records
        .iter()
        .filter(|r| r.cell.series == series.name && r.cell.role == Role::Point && r.cell.step == step);
    let value = |record: &&Record| record.value(series.figure).unwrap_or(f64::MIN);
    here.filter(|r| r.figures.is_some())
        .max_by(|a, b| value(a).total_cmp(&value(b)))
        .map(|record| record.cell.params.clone())
}

/// How many of what is stepped there are.
pub fn parts(plan: &Plan, targets: &crate::targets::Targets) -> Parts {
    let many = 4096;
    match plan.step {
        Step::Devices => Parts { count: targets.devices.len() as u32, named: true },
        Step::Pairs => Parts { count: targets.pairs.len() as u32, named: true },
        Step::Nodes if !targets.agents.addrs.is_empty() => {
            Parts { count: targets.agents.addrs.len() as u32, named: false }
        }
        Step::Nodes | Step::Connections | Step::Queues | Step::Writers | Step::Workers | Step::Periods => {
            Parts { count: many, named: false }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::Figures;

    fn plan() -> Plan {
        Plan::parse(
            "t",
            "name='t'\ntitle='t'\nstep='devices'\nsteps=[1,2,'n']\nseconds=1\n[[series]]\nname='r'\n\
             engine='fio'\nfigure='operations'\nset={rw='randread'}\nmatrix={iodepth=[1,8]}\n",
            false,
        )
        .unwrap()
    }

    fn record(cell: &Cell, value: f64) -> Record {
        Record {
            id: cell.id(),
            cell: cell.clone(),
            started_ms: 0,
            wall_seconds: 1.0,
            figures: Some(Figures { operations: value, ..Figures::default() }),
            error: None,
            usage: Default::default(),
            commands: Vec::new(),
            bundle: Vec::new(),
        }
    }

    #[test]
    fn parts_are_measured_alone_with_the_best_of_the_first_step() {
        let plan = plan();
        let series = &plan.series[0];
        let parts = Parts { count: 4, named: true };
        let first = cells(&plan, series, parts, &[]);
        assert_eq!(first.len(), 2, "the first step only");
        let mut records: Vec<Record> =
            first.iter().enumerate().map(|(i, cell)| record(cell, i as f64 + 1.0)).collect();
        let all = cells(&plan, series, parts, &records);
        assert_eq!(all.len(), count(&plan, series, parts));
        assert_eq!(all.len(), 2 + 3 + 4);
        let alone: Vec<&Cell> = all.iter().filter(|c| c.role == Role::Part).collect();
        assert_eq!(alone.iter().map(|c| c.first).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(alone.iter().all(|c| c.params["iodepth"] == "8" && c.step == 1));
        // Whatever is measured next, the list stays the same.
        for cell in &all[2..] {
            records.push(record(cell, 100.0));
            assert_eq!(cells(&plan, series, parts, &records), all);
        }
        let ids: std::collections::BTreeSet<String> = all.iter().map(Cell::id).collect();
        assert_eq!(ids.len(), all.len(), "names are unique");
    }

    #[test]
    fn steps_beyond_what_there_is_are_left_out() {
        let plan = plan();
        let cells = cells(&plan, &plan.series[0], Parts { count: 1, named: true }, &[]);
        assert!(cells.iter().all(|c| c.step == 1) && cells.len() == 2);
        assert!(super::cells(&plan, &plan.series[0], Parts { count: 0, named: true }, &[]).is_empty());
    }
}
