//! What a query found, as a table and as JSON.

use std::collections::BTreeMap;

use analytics::{AnswerRow, quantile_bucket, quantile_ns};
use base::{
    stats::{Kind, UTILISATION_BUCKETS},
    when::{date_time, time_of_day},
};
use serde_json::{Value, json};

use super::{
    ask::{Found, Process},
    figures::{amount, quantile, rate},
};
use crate::output::{self, end_of};

/// Columns of a value.
const VALUE_MAX: usize = 40;
/// Rows that a table over time has columns for.
const COLUMNS_MAX: usize = 4;

/// What a row is a second, over the time that was recorded.
fn per_second(found: &Found, row: &AnswerRow) -> f64 {
    let recorded: u32 = found.answer.recorded.iter().sum();
    row.total / f64::from(recorded.max(1))
}

/// A table: a row for each value, or with steps a line for each of them.
pub fn text(found: &Found) -> String {
    let mut text = if found.span.step == 0 { by_value(found) } else { by_time(found) };
    let recorded: u32 = found.answer.recorded.iter().sum();
    let asked = found.span.from_ago - found.span.to_ago;
    if u64::from(recorded) < asked {
        text += &format!("\nRecorded: {recorded} of the {asked} seconds asked for.");
    }
    let unit = match found.answer.resolution {
        60 => "minute",
        3600 => "hour",
        _ => "",
    };
    if !unit.is_empty() {
        text += &format!("\nKept by the {unit} so long ago: the time begins with a whole one.");
    }
    if found.coverage < 1.0 {
        let unit = found.query.statistic.unit;
        text += &format!(
            "\nTold apart: {:.1} % of the {unit}; the other {} are in (others), or may not belong here and are left out: no row \
             lacks more than that.",
            found.coverage * 100.0,
            amount(unit, found.total * (1.0 - found.coverage)),
        );
    }
    text
}

fn by_value(found: &Found) -> String {
    let statistic = found.query.statistic;
    let level = statistic.is_level();
    let mut head: Vec<String> = found.query.breakdowns.iter().map(|d| title(d)).collect();
    head.push(match statistic.kind {
        Kind::Gauge => "MEAN".to_owned(),
        Kind::Utilisation => format!("MEAN {}", statistic.unit.to_uppercase()),
        Kind::Counter | Kind::Histogram => statistic.unit.to_uppercase(),
    });
    if !level {
        head.extend(["A SECOND".to_owned(), "SHARE".to_owned()]);
    }
    let distribution = statistic.distribution().filter(|of| !found.query.breakdowns.contains(of));
    if distribution.is_some() {
        head.extend(["P50<".to_owned(), "P99<".to_owned(), "MAX<".to_owned()]);
    }
    let total: f64 = found.rows.iter().map(|(_, row)| row.total).sum();
    let row = |(values, row): &(Vec<String>, AnswerRow)| {
        let mut cells: Vec<String> = values.iter().map(|value| shown(value)).collect();
        cells.push(amount(statistic.unit, row.total));
        if !level {
            cells.push(rate(statistic.unit, per_second(found, row)));
            cells.push(format!("{:.1} %", if total > 0.0 { row.total / total * 100.0 } else { 0.0 }));
        }
        if let Some(of) = distribution {
            cells.extend([0.5, 0.99, 1.0].map(|q| quantile(of, &row.latency, q)));
        }
        cells
    };
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    output::table_text(&head, found.in_order().into_iter().map(row).collect())
}

/// A value as it can stand in a filter.
fn shown(value: &str) -> String {
    analytics::quoted(&end_of(value, VALUE_MAX))
}

fn title(dimension: &str) -> String {
    let begins = if analytics::is_ordered(dimension) { ">=" } else { "" };
    format!("{}{begins}", dimension.to_uppercase())
}

/// The steps of a row: none where nothing was recorded, or nothing by the process that the row is about.
pub fn steps(found: &Found, values: &[String], row: &AnswerRow) -> Vec<Option<f64>> {
    let points: BTreeMap<u32, f64> = row.points.iter().copied().collect();
    let recorded = found.recorded_of(values).iter().enumerate();
    recorded.map(|(step, n)| (*n > 0).then(|| points.get(&(step as u32)).copied().unwrap_or(0.0))).collect()
}

fn by_time(found: &Found) -> String {
    let unit = found.query.statistic.unit;
    let begun = found.now - found.span.from_ago;
    let of_one_day = begun / 86_400 == found.now / 86_400;
    let when = |at| if of_one_day { time_of_day(at) } else { date_time(at) };
    let shown = &found.rows[..found.rows.len().min(COLUMNS_MAX)];
    let name = |values: &Vec<String>| if values.is_empty() { unit.to_uppercase() } else { values.join(" ") };
    let mut head = vec!["BEFORE".to_owned()];
    head.extend(shown.iter().map(|(values, _)| end_of(&name(values), 16)));
    let columns: Vec<Vec<Option<f64>>> =
        shown.iter().map(|(values, row)| steps(found, values, row)).collect();
    let row = |step: usize| {
        let end = begun + (step as u64 + 1) * found.span.step;
        let mut cells = vec![when(end)];
        let cell = |column: &Vec<Option<f64>>| column[step].map_or("-".to_owned(), |v| amount(unit, v));
        cells.extend(columns.iter().map(cell));
        cells
    };
    let rows = (0..found.answer.recorded.len()).map(row).collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let mut text = output::table_text(&head, rows);
    if let Some(more) = found.rows.len().checked_sub(COLUMNS_MAX).filter(|more| *more > 0) {
        text += &format!("\n{more} more values; --json has all");
    }
    text
}

/// The same for scripts.
pub fn json(found: &Found) -> Value {
    let statistic = found.query.statistic;
    let row = |(values, row): &(Vec<String>, AnswerRow)| {
        let key: BTreeMap<&str, &String> = found.query.breakdowns.iter().copied().zip(values).collect();
        let shares = statistic.kind == Kind::Utilisation;
        let us = |q| quantile_ns(&row.latency, q).filter(|_| !shares).map(|ns| ns as f64 / 1e3);
        let mut value = json!({
            "key": key,
            "total": row.total,
            "per_second": (!statistic.is_level()).then(|| per_second(found, row)),
            "p50_us": us(0.5),
            "p99_us": us(0.99),
            "most_us": us(1.0),
            "steps": (found.span.step > 0).then(|| steps(found, values, row)),
        });
        if shares {
            for (name, q) in [("p50_percent", 0.5), ("p99_percent", 0.99), ("most_percent", 1.0)] {
                let end = |bucket| (u64::from(bucket) + 1) * (100 / UTILISATION_BUCKETS);
                value[name] = quantile_bucket(&row.latency, q).map(end).into();
            }
        }
        value
    };
    let process = |p: &Process| json!({ "process": p.name, "answers": p.answers, "recorded_s": p.recorded });
    json!({
        "query": found.query.to_string(),
        "unit": statistic.unit,
        "from_at_us": (found.now - found.span.from_ago) * 1_000_000,
        "to_at_us": (found.now - found.span.to_ago) * 1_000_000,
        "resolution_s": found.answer.resolution.max(1),
        "step_s": (found.span.step > 0).then_some(found.span.step),
        "total": found.total,
        "told_apart_percent": found.coverage * 100.0,
        "processes": found.processes.iter().map(process).collect::<Vec<_>>(),
        "rows": found.rows.iter().map(row).collect::<Vec<_>>(),
    })
}
