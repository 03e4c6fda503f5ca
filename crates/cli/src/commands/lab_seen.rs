//! What the clusters under test did during a run of the lab: a worksheet of analytics in the directory of each, with the run's
//! cells as marks on the time axis. The run's own file names it: so its report leads there, and a resumed run adds its cells.

use std::path::{Path, PathBuf};

use anyhow::Result;
use lab::{
    cell::Record,
    results::{self, Results, Seen},
};

use crate::{
    cluster_dir::ClusterDir,
    commands::analytics::worksheets::{MARKS_MAX, Mark, NAME_MAX, Worksheet},
};

/// What the worksheet shows.
const CHARTS: [&str; 4] =
    ["file.bytes[op]", "file.ops[latency]", "pdisk.ops[latency]", "net.sent_bytes[process]"];

/// Where that of a run will be; nowhere without a cluster under test.
pub fn place(clusters: &[ClusterDir], out: &Path) -> Result<Option<Seen>> {
    let places = clusters.iter().map(|cluster| std::path::absolute(&cluster.path));
    let mut places = places.collect::<std::io::Result<Vec<PathBuf>>>()?;
    // Several directories on the mounts of one cluster.
    places.sort();
    places.dedup();
    let seen = Seen { worksheet: name(&std::path::absolute(out)?), clusters: places };
    Ok(Some(seen).filter(|seen| !seen.clusters.is_empty()))
}

/// The name of a results directory, as far as a worksheet may have it.
fn name(out: &Path) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let name: String = out.file_name().unwrap_or_default().to_string_lossy().chars().map(plain).collect();
    // The end of a long one tells more.
    let end = name[name.len().saturating_sub(NAME_MAX)..].trim_start_matches('.');
    if end.is_empty() { "lab".to_owned() } else { end.to_owned() }
}

/// Keeps it, and says where. A run is not the worse without.
pub fn keep(results: &Results) -> Vec<String> {
    let Some(seen) = &results.run.seen else { return Vec::new() };
    let kept = |place: &PathBuf| -> Result<String> {
        let (_, cells) = results::read(results.dir())?;
        sheet(&seen.worksheet, &cells)?.save(&ClusterDir::open(place)?.path)?;
        Ok(format!(
            "seen: worksheet {} of `ropewalk analytics serve --dir {}`",
            seen.worksheet,
            place.display()
        ))
    };
    let all = seen.clusters.iter().map(|place| (place, kept(place)));
    let lines = all.filter_map(|(place, kept)| match kept {
        Ok(line) => Some(line),
        Err(error) => {
            tracing::warn!("no worksheet of the run in {}: {error:#}", place.display());
            None
        }
    });
    lines.collect()
}

/// The newest cells as marks, over the time of these.
fn sheet(name: &str, cells: &[Record]) -> Result<Worksheet> {
    let mark = |cell: &Record| {
        let (from, to) = cell.span_us();
        Mark { from_at_us: from, to_at_us: to, text: cell.id.clone() }
    };
    let mut sheet = Worksheet::of(name, &CHARTS.map(str::to_owned))?;
    sheet.marks = cells.iter().rev().take(MARKS_MAX).map(mark).collect();
    sheet.from_at_us = sheet.marks.iter().map(|mark| mark.from_at_us).min();
    sheet.to_at_us = sheet.marks.iter().map(|mark| mark.to_at_us).max();
    Ok(sheet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_results_directory_gives_a_name_that_a_worksheet_may_have() {
        let dir = tempfile::tempdir().unwrap();
        for (out, wanted) in [
            ("/a/out", "out".to_owned()),
            ("/a/.b c\u{e9}", "b-c-".to_owned()),
            ("/", "lab".to_owned()),
            ("/a/..", "lab".to_owned()),
            (&format!("/a/{}", "x".repeat(100)), "x".repeat(NAME_MAX)),
        ] {
            let name = name(Path::new(out));
            assert_eq!(name, wanted, "{out}");
            sheet(&name, &[]).unwrap().save(dir.path()).unwrap();
        }
    }
}
