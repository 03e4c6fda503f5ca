//! What a query found, as a table and as JSON.

use std::collections::BTreeMap;

use analytics::{AnswerRow, quantile_ns};
use base::stats::Kind;
use serde_json::{Value, json};

use super::Found;
use crate::output::{self, end_of};

/// Columns of a value.
const VALUE_MAX: usize = 40;
/// Rows that a table over time has columns for.
const COLUMNS_MAX: usize = 4;

/// Nanoseconds for people, never shorter than they are: what is shown of a bucket's beginning lies in the bucket.
pub fn latency(ns: u64) -> String {
    let (unit, name) = match ns {
        0..1_000 => return format!("{ns}ns"),
        1_000..1_000_000 => (1_000, "us"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    let whole = ns / unit;
    let decimals = match whole {
        0..10 => 2,
        10..100 => 1,
        _ => 0,
    };
    let scale = 10u64.pow(decimals);
    let up = (u128::from(ns) * u128::from(scale)).div_ceil(u128::from(unit)) as f64 / scale as f64;
    format!("{up:.*}{name}", decimals as usize)
}

/// A figure of that unit for people.
fn amount(unit: &str, value: f64) -> String {
    figure(unit, value, value.fract() == 0.0)
}

/// The same; `whole`: without decimals, if it is small.
fn figure(unit: &str, value: f64, whole: bool) -> String {
    let (scale, name) = match value.abs() {
        v if v >= 1e12 => (1e12, " T"),
        v if v >= 1e9 => (1e9, " G"),
        v if v >= 1e6 => (1e6, " M"),
        v if v >= 1e4 => (1e3, " k"),
        _ => (1.0, ""),
    };
    let decimals = match value.abs() {
        _ if whole && scale == 1.0 => 0,
        v if v > 0.0 && v < 1.0 => 2,
        _ => 1,
    };
    let figure = format!("{:.decimals$}{name}", value / scale);
    if unit == "bytes" { format!("{figure}{}B", if name.is_empty() { " " } else { "" }) } else { figure }
}

/// A figure a second, for people.
pub fn rate(unit: &str, value: f64) -> String {
    format!("{}/s", figure(unit, value, false))
}

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
    if found.coverage < 1.0 {
        text += &format!(
            "\nTold apart: {:.1} % of the {}; the rest is in (others), or may not belong here and is left out.",
            found.coverage * 100.0,
            found.query.statistic.unit
        );
    }
    text
}

fn by_value(found: &Found) -> String {
    let statistic = found.query.statistic;
    let level = statistic.kind == Kind::Gauge;
    let mut head: Vec<String> = found.query.breakdowns.iter().map(|d| title(d)).collect();
    let unit = if level { "MEAN".to_owned() } else { statistic.unit.to_uppercase() };
    head.push(unit);
    if !level {
        head.extend(["A SECOND".to_owned(), "SHARE".to_owned()]);
    }
    let latencies = statistic.has_latency() && !found.query.breakdowns.contains(&"latency");
    if latencies {
        head.extend(["P50<".to_owned(), "P99<".to_owned(), "MAX<".to_owned()]);
    }
    let total: f64 = found.rows.iter().map(|(_, row)| row.total).sum();
    let row = |(values, row): &(Vec<String>, AnswerRow)| {
        let mut cells: Vec<String> = values.iter().map(|value| end_of(value, VALUE_MAX)).collect();
        cells.push(amount(statistic.unit, row.total));
        if !level {
            cells.push(rate(statistic.unit, per_second(found, row)));
            cells.push(format!("{:.1} %", if total > 0.0 { row.total / total * 100.0 } else { 0.0 }));
        }
        if latencies {
            let of = |q| quantile_ns(&row.latency, q).map_or("-".to_owned(), latency);
            cells.extend([of(0.5), of(0.99), of(1.0)]);
        }
        cells
    };
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    output::table_text(&head, found.in_order().into_iter().map(row).collect())
}

fn title(dimension: &str) -> String {
    let begins = if matches!(dimension, "size" | "latency") { ">=" } else { "" };
    format!("{}{begins}", dimension.to_uppercase())
}

/// The steps of a row: none where nothing was recorded.
pub fn steps(found: &Found, row: &AnswerRow) -> Vec<Option<f64>> {
    let points: BTreeMap<u32, f64> = row.points.iter().copied().collect();
    let recorded = found.answer.recorded.iter().enumerate();
    recorded.map(|(step, n)| (*n > 0).then(|| points.get(&(step as u32)).copied().unwrap_or(0.0))).collect()
}

fn by_time(found: &Found) -> String {
    let unit = found.query.statistic.unit;
    let begun = found.now - found.span.from_ago;
    let shown = &found.rows[..found.rows.len().min(COLUMNS_MAX)];
    let name = |values: &Vec<String>| if values.is_empty() { unit.to_uppercase() } else { values.join(" ") };
    let mut head = vec!["BEFORE".to_owned()];
    head.extend(shown.iter().map(|(values, _)| end_of(&name(values), 16)));
    let columns: Vec<Vec<Option<f64>>> = shown.iter().map(|(_, row)| steps(found, row)).collect();
    let row = |step: usize| {
        let end = begun + (step as u64 + 1) * found.span.step;
        let mut cells = vec![utc(end)];
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

/// A time of day, UTC.
fn utc(seconds: u64) -> String {
    let of_day = seconds % 86_400;
    format!("{:02}:{:02}:{:02}Z", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

/// The same for scripts.
pub fn json(found: &Found) -> Value {
    let statistic = found.query.statistic;
    let row = |(values, row): &(Vec<String>, AnswerRow)| {
        let key: BTreeMap<&str, &String> = found.query.breakdowns.iter().copied().zip(values).collect();
        let us = |q| quantile_ns(&row.latency, q).map(|ns| ns as f64 / 1e3);
        let level = statistic.kind == Kind::Gauge;
        json!({
            "key": key,
            "total": row.total,
            "per_second": (!level).then(|| per_second(found, row)),
            "p50_us": us(0.5),
            "p99_us": us(0.99),
            "most_us": us(1.0),
            "steps": (found.span.step > 0).then(|| steps(found, row)),
        })
    };
    let process = |(name, recorded): &(String, Option<u32>)| json!({ "process": name, "answers": recorded.is_some(), "recorded_s": recorded });
    json!({
        "query": found.query.to_string(),
        "unit": statistic.unit,
        "from_at_us": (found.now - found.span.from_ago) * 1_000_000,
        "to_at_us": (found.now - found.span.to_ago) * 1_000_000,
        "step_s": (found.span.step > 0).then_some(found.span.step),
        "total": found.total,
        "told_apart_percent": found.coverage * 100.0,
        "processes": found.processes.iter().map(process).collect::<Vec<_>>(),
        "rows": found.rows.iter().map(row).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_for_people() {
        assert_eq!(
            [900, 1_500, 99_949, 786_432, 1_048_576].map(latency),
            ["900ns", "1.50us", "100.0us", "787us", "1.05ms"]
        );
        assert_eq!(latency(3 << 30), "3.23s");
        assert_eq!(amount("operations", 1234.0), "1234");
        assert_eq!(amount("operations", 12_345.0), "12.3 k");
        assert_eq!(amount("bytes", 3.0 * 1024.0), "3072 B");
        assert_eq!(rate("bytes", 2.5e9), "2.5 GB/s");
        assert_eq!(rate("operations", 0.25), "0.25/s");
    }
}
