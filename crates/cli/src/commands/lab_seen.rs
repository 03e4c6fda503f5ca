//! What the clusters under test did during a run of the lab: a worksheet of analytics in the directory of each, with the run's
//! cells as marks on the time axis. The run's own file names it: so its report leads there, and a resumed run adds its cells.

use std::{
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Result;
use base::{
    name::{NAME_MAX, name_like},
    when,
};
use lab::{
    cell::Record,
    results::{self, Results, Seen},
};

use crate::{
    cluster_dir::ClusterDir,
    commands::analytics::worksheets::{MARKS_MAX, Mark, Worksheet},
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
    let begun = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    let seen = Seen { worksheet: name(&std::path::absolute(out)?, begun), clusters: places };
    Ok(Some(seen).filter(|seen| !seen.clusters.is_empty()))
}

/// The name of a results directory, as far as a worksheet may have it, and when the run began (milliseconds since 1970):
/// another run in a directory that is called alike has a worksheet of its own.
fn name(out: &Path, begun: u64) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let name: String = out.file_name().unwrap_or_default().to_string_lossy().chars().map(plain).collect();
    let date = when::date_time(begun / 1000).replace(' ', "T").replace(['-', ':', 'Z'], "");
    let begun = format!("{date}.{:03}", begun % 1000);
    // The end of a long one tells more.
    let end = name_like(&name[name.len().saturating_sub(NAME_MAX - begun.len() - 1)..]);
    format!("{}-{begun}", end.as_deref().unwrap_or("lab"))
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
        let begun = 1_795_269_660_007;
        for (out, wanted) in [
            ("/a/out", "out".to_owned()),
            ("/a/.b c\u{e9}", "b-c-".to_owned()),
            ("/", "lab".to_owned()),
            ("/a/..", "lab".to_owned()),
            (&format!("/a/{}", "x".repeat(100)), "x".repeat(43)),
        ] {
            let name = name(Path::new(out), begun);
            assert_eq!(name, format!("{wanted}-20261121T140100.007"), "{out}");
            sheet(&name, &[]).unwrap().save(dir.path()).unwrap();
        }
    }

    #[test]
    fn runs_in_directories_that_are_called_alike_have_worksheets_of_their_own() {
        let names = [("/a/out", 5), ("/b/out", 6), ("/a/out", 1_795_269_660_007)];
        let names = names.map(|(out, begun)| name(Path::new(out), begun));
        assert_eq!(std::collections::BTreeSet::from(names.clone()).len(), names.len(), "{names:?}");
    }
}
