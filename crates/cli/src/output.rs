//! What commands print: tables for people, JSON for scripts. The only module that writes to stdout.

use std::{
    fs,
    io::{self, ErrorKind, Write},
    path::Path,
    sync::Mutex,
    time::Duration,
};

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::logging;

/// Prints rows under a header.
pub fn table(header: &[&str], rows: Vec<Vec<String>>) {
    line(table_text(header, rows));
}

/// Rows under a header; columns whose every cell starts with a digit are set to the right.
pub fn table_text(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let numeric: Vec<bool> = (0..header.len())
        .map(|c| {
            rows.iter().filter_map(|r| r.get(c)).all(|cell| cell.starts_with(|ch: char| ch.is_ascii_digit()))
                && !rows.is_empty()
        })
        .collect();
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header).add_rows(rows);
    for (i, right) in numeric.into_iter().enumerate() {
        if let Some(column) = table.column_mut(i).filter(|_| right) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// A name as it is shown: what would move the cursor, or worse, of whoever looks at it is written out.
pub fn visible(name: &str) -> String {
    name.chars().fold(String::with_capacity(name.len()), |mut shown, c| {
        match c.is_control() {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
        shown
    })
}

/// The end of a name that is longer than `max` columns, to be shown.
pub fn end_of(name: &str, max: usize) -> String {
    let name = visible(name);
    match name.chars().count().checked_sub(max) {
        None | Some(0) => name,
        Some(over) => std::iter::once('…').chain(name.chars().skip(over + 1)).collect(),
    }
}

/// The beginning of a text that is longer than `max` columns.
pub fn begin_of(text: &str, max: usize) -> String {
    match text.chars().count() > max {
        false => text.to_owned(),
        true => text.chars().take(max - 1).chain(['…']).collect(),
    }
}

/// Prints a value as JSON.
pub fn json(value: &impl Serialize) -> Result<()> {
    line(serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Why stdout took no more, once it did not. Nothing is written to it after that: a file with a gap in it would pass for whole.
static REFUSED: Mutex<Option<io::Error>> = Mutex::new(None);

/// Prints a line. Whoever reads may stop reading (`| head -1`): what was asked is done all the same. Any other refusal, such as that
/// of a full disk, is what [`finish`] returns.
pub fn line(text: impl AsRef<str>) {
    let mut refused = REFUSED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if refused.is_none() {
        *refused = writeln!(io::stdout().lock(), "{}", text.as_ref()).err();
    }
}

/// What is still to be written to stdout is written.
///
/// # Errors
/// Not all that was printed is where it was to go, and nobody has just stopped reading.
pub fn finish() -> io::Result<()> {
    let Ok(mut refused) = REFUSED.try_lock() else { return Ok(()) }; // a thread still waits for a reader: nobody waits for that
    not_a_reader(refused.take().map_or_else(|| io::stdout().lock().flush(), Err))
}

/// Writes what is longer than lines by itself, until stdout takes no more; why it does not is what [`finish`] returns.
pub fn written_by(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
    let mut refused = REFUSED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if refused.is_none() {
        *refused = write(&mut io::stdout().lock()).err();
    }
}

/// Prints a line before something that has no end, such as listening: false if stdout does not take it, and nobody has just stopped
/// reading. [`finish`] says why.
#[must_use]
pub fn announce(text: impl AsRef<str>) -> bool {
    line(text);
    let mut refused = REFUSED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if refused.is_none() {
        *refused = io::stdout().lock().flush().err();
    }
    refused.as_ref().is_none_or(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// Writes bytes as they are; who reads may stop reading.
pub fn bytes(bytes: &[u8]) {
    written_by(|out| out.write_all(bytes));
}

/// Writes a file as a whole, opened by `options`. What cannot be written as a whole leaves none: a part would pass for all of it.
///
/// # Errors
/// What opening or writing says.
pub fn file(options: &fs::OpenOptions, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = options.clone().write(true).create(true).truncate(true).open(path)?;
    let written = file.write_all(bytes);
    if written.is_err() && file.metadata().is_ok_and(|about| about.is_file()) {
        let _ = fs::remove_file(path); // what hinders that is said already
    }
    written
}

/// Whoever reads may stop reading.
pub fn not_a_reader(written: io::Result<()>) -> io::Result<()> {
    written.or_else(|error| if error.kind() == ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })
}

/// A bar for work with a known end; shown only on a terminal.
pub fn progress(what: &'static str, total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}");
    let bar = ProgressBar::new(total).with_message(what);
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar
}

/// The same for bytes, with their rate.
pub fn byte_progress(what: &'static str, total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}");
    let bar = ProgressBar::new(total).with_message(what);
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar
}

/// A sign of life for work without a known end; shown only on a terminal.
pub fn spinner(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(what);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// Says on stderr how far long work is, where no bar is shown.
pub fn note(text: &str) {
    logging::say(text);
}

/// Prints an error with its causes on stderr.
pub fn error(error: &anyhow::Error) {
    logging::say(&format!("{SAYS}{}", words(error)));
}

/// How an error's line begins.
pub const SAYS: &str = "ropewalk: ";

/// An error with its causes; many say the next one themselves, and then it is not said again.
fn words(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.ends_with(&cause) {
            let between = if text.is_empty() { "" } else { ": " };
            text = format!("{text}{between}{cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_name_moves_the_cursor() {
        assert_eq!(super::end_of("/a\x1b[2J\nb\u{9b}é", 40), "/a\\u{1b}[2J\\nb\\u{9b}é");
        assert_eq!(super::end_of("/long/name", 5), "…name");
    }

    #[test]
    fn a_cause_is_said_once() {
        let cause = || anyhow::anyhow!("no room");
        assert_eq!(super::words(&cause().context("write it")), "write it: no room");
        assert_eq!(
            super::words(&cause().context("write it: no room").context("do it")),
            "do it: write it: no room"
        );
    }
}
