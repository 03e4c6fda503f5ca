//! The lines of a view, as wide as the screen and no wider.

use super::view::{Line, Sort, View};
use crate::{
    commands::analytics::{latency, rate},
    output::{begin_of, end_of},
};

/// Columns of all figures, with a space before each.
const FIGURES: usize = 55;
/// Columns of a name, at least.
const NAME_MIN: usize = 10;

fn head(view: &View, width: usize) -> String {
    let mark = |sort: Sort, name: &str| format!("{name}{}", if view.sort == sort { "v" } else { " " });
    if view.is_axis() {
        let name = format!("{}>=", view.dimension.to_uppercase());
        return format!("{:<width$} {:>11} {:>6}", begin_of(&name, width), "OPS ", "SHARE");
    }
    format!(
        "{:<width$} {:>11} {:>12} {:>6} {:>7} {:>7} {:>7}",
        begin_of(&mark(Sort::Name, &view.dimension.to_uppercase()), width),
        mark(Sort::Operations, "OPS"),
        mark(Sort::Bytes, "BYTES"),
        "SHARE",
        "P50<",
        mark(Sort::Latency, "P99<"),
        "MAX<",
    )
}

fn row(view: &View, line: &Line, width: usize) -> String {
    let name = end_of(&line.name, width);
    let operations = rate("operations", line.operations_per_second);
    let share = format!("{:.0} %", line.share * 100.0);
    if view.is_axis() {
        let bar = "#".repeat((line.share * (FIGURES - 21) as f64).round() as usize);
        return format!("{name:<width$} {operations:>11} {share:>6} {bar}");
    }
    let bytes = line.bytes_per_second.map_or("-".to_owned(), |b| rate("bytes", b));
    let [p50, p99, most] = line.latency.map(|ns| ns.map_or("-".to_owned(), latency));
    format!("{name:<width$} {operations:>11} {bytes:>12} {share:>6} {p50:>7} {p99:>7} {most:>7}")
}

fn name_width(columns: usize) -> usize {
    columns.saturating_sub(FIGURES + 1).max(NAME_MIN)
}

fn nothing(over: u64) -> String {
    format!("nothing in the last {over} s")
}

/// The view as a table.
pub fn plain(view: &View, lines: &[Line], over: u64, columns: usize) -> Vec<String> {
    let width = name_width(columns);
    let mut text = vec![format!("{over} s: {}", view.title()), head(view, width)];
    text.extend(view.shown(lines).into_iter().map(|line| row(view, line, width)));
    if lines.is_empty() {
        text.push(nothing(over));
    }
    text.iter().map(|line| line.trim_end().to_owned()).collect()
}

/// The view as a screen of so many columns and lines.
pub fn screen(
    view: &View,
    lines: &[Line],
    over: u64,
    note: &str,
    (columns, height): (usize, usize),
) -> Vec<String> {
    let cut = |text: &str| begin_of(text, columns.max(2));
    let width = name_width(columns);
    let room = height.saturating_sub(4).max(1);
    let shown = view.shown(lines);
    let selected = view.selected.min(shown.len().saturating_sub(1));
    let first = (selected + 1).saturating_sub(room);
    let mut text = vec![cut(&format!("ropewalk top, {over} s: {}", view.title()))];
    text.push(format!("\x1b[7m{:<columns$}\x1b[0m", cut(&head(view, width))));
    for (at, line) in shown.iter().enumerate().skip(first).take(room) {
        let line = cut(&row(view, line, width));
        text.push(if at == selected { format!("\x1b[1m{line:<columns$}\x1b[0m") } else { line });
    }
    if shown.is_empty() && note.is_empty() {
        text.push(cut(&nothing(over)));
    }
    while text.len() < height.saturating_sub(1) {
        text.push(String::new());
    }
    text.truncate(height.saturating_sub(2).max(2));
    let searched = match (view.searching, view.search.is_empty()) {
        (true, _) => format!("/{}_", view.search),
        (false, false) => format!("/{} ", view.search),
        (false, true) => String::new(),
    };
    text.push(cut(&format!("{searched}{note}")));
    text.push(cut("1-5 views  Enter in  Bksp out  c f u o s l p n by  <- -> sort  / filter  q end"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::TopView;

    fn lines() -> Vec<Line> {
        let line = |n: u32| Line {
            name: format!("/a/rather/long/path/to/some/file-{n}"),
            operations: 1e6,
            share: 1.0,
            operations_per_second: 123_456.7,
            bytes_per_second: Some(12_345_678_901.0),
            latency: [Some(999_999), Some(9_999_999), Some(1_000_000_000_000)],
        };
        (0..40).map(line).collect()
    }

    /// Columns that a line takes, escapes aside.
    fn columns(line: &str) -> usize {
        ["\x1b[7m", "\x1b[1m", "\x1b[0m"]
            .iter()
            .fold(line.to_owned(), |l, e| l.replace(e, ""))
            .chars()
            .count()
    }

    #[test]
    fn nothing_is_wider_or_longer_than_the_screen() {
        for size in [(80, 24), (40, 8), (200, 60), (2, 3)] {
            for view in [TopView::Clients, TopView::Files, TopView::Nodes] {
                let mut view = View::new(view);
                view.selected = 35;
                let text = screen(&view, &lines(), 5, &"note ".repeat(40), size);
                assert!(text.len() <= size.1.max(4), "{size:?}: {}", text.len());
                let widest = text.iter().map(|line| columns(line)).max();
                assert!(widest <= Some(size.0), "{size:?}: {text:#?}");
            }
        }
        let mut view = View::new(TopView::Files);
        view.selected = 35;
        let text = screen(&view, &lines(), 5, "", (80, 24));
        assert!(text.iter().any(|line| line.contains("\x1b[1m")), "the selected line is in sight: {text:#?}");
        let table = plain(&View::new(TopView::Files), &lines(), 5, 80);
        assert!(table.iter().all(|line| line.chars().count() <= 80), "{table:#?}");
    }
}
