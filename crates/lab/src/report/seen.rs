//! Addresses of the page of analytics that show what the clusters under test did meanwhile: the run's worksheet, at the time of
//! a cell. Whoever reads the report starts the page where the cluster is; until then they lead nowhere.

use std::path::PathBuf;

use crate::{cell::Record, results::Seen};

/// Where `ropewalk analytics serve` is unless it is told otherwise.
const PAGE: &str = "http://127.0.0.1:9470/";
/// What is shown before and after a cell, seconds: that it begins and ends is seen.
const AROUND: i64 = 5;

/// The whole run.
pub fn all(seen: &Seen) -> String {
    // A name that somebody has written into the file is still one.
    let plain = |byte: u8| match byte {
        b'-' | b'_' | b'.' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    format!("{PAGE}#worksheet={}", seen.worksheet.bytes().map(plain).collect::<String>())
}

/// The time of a cell.
pub fn at(seen: &Seen, cell: &Record) -> String {
    let (from, to) = cell.span_us();
    let (from, to) = (from.div_euclid(1_000_000) - AROUND, to.div_euclid(1_000_000) + 1 + AROUND);
    format!("{}&from={}&to={to}", all(seen), from.max(0))
}

/// How one gets there, for people.
pub fn how(seen: &Seen) -> String {
    let serve = |place: &PathBuf| format!("`ropewalk analytics serve --dir {}`", place.display());
    format!(
        "What the cluster did meanwhile is in its analytics, worksheet {}. While {} runs, verdicts and steps here lead to the time \
         of their cells.",
        seen.worksheet,
        seen.clusters.iter().map(serve).collect::<Vec<_>>().join(" or ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cell::{Cell, Role},
        plan::Step,
    };

    #[test]
    fn a_cell_is_shown_with_what_lies_around_it_whatever_its_worksheet_is_called() {
        let (plan, series) = ("p".into(), "s".into());
        let (role, of, params) = (Role::Point, Step::Connections, Default::default());
        let cell = Cell { plan, series, role, of, step: 1, first: 0, params, repeat: 0 };
        let mut record = Record {
            id: cell.id(),
            cell,
            started_ms: 1_795_269_660_999,
            wall_seconds: 2.5,
            figures: None,
            error: None,
            usage: Default::default(),
            commands: Vec::new(),
            bundle: Vec::new(),
        };
        let seen = |name: &str| Seen { worksheet: name.into(), clusters: vec!["/c".into()] };
        assert_eq!(
            at(&seen("run-1.a"), &record),
            "http://127.0.0.1:9470/#worksheet=run-1.a&from=1795269655&to=1795269669"
        );
        assert_eq!(all(&seen("\"&q=x")), "http://127.0.0.1:9470/#worksheet=%22%26q%3Dx");
        // What a damaged file says.
        for (started_ms, wall_seconds) in [(0, -1.0), (u64::MAX, f64::MAX), (3, f64::NAN)] {
            (record.started_ms, record.wall_seconds) = (started_ms, wall_seconds);
            assert!(at(&seen("x"), &record).contains("&from="));
        }
    }
}
