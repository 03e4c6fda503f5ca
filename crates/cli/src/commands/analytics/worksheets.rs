//! Worksheets: charts, the time they show and marks on it, by name. A file each in the cluster's directory of this machine:
//! the page only looks, so what is kept is kept by a command.

use std::{
    fs,
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use analytics::Query;
use anyhow::{Context, Result, bail};
use base::name::check_name;
use serde::{Deserialize, Serialize};

use super::params::Params;
use crate::{
    args::{Worksheet as Command, WorksheetSave},
    cluster_dir::{ClusterDir, access},
    output,
};

/// In the cluster's directory.
const PLACE: &str = "worksheets";
/// Charts of one.
const CHARTS_MAX: usize = 16;
/// Marks of one, at most.
pub const MARKS_MAX: usize = 1000;
/// Letters of a name, at most; a new one has one less (`base::name`).
const NAME_MAX: usize = 64;

/// A span of time with a name.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Mark {
    /// Its beginning, microseconds since 1970.
    pub from_at_us: i64,
    /// Its end.
    pub to_at_us: i64,
    /// What it is.
    pub text: String,
}

/// A set of charts.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Worksheet {
    /// Its name.
    pub name: String,
    /// Queries.
    pub charts: Vec<String>,
    /// The time it shows; none: the present.
    pub from_at_us: Option<i64>,
    /// Its end.
    pub to_at_us: Option<i64>,
    /// What happened when.
    pub marks: Vec<Mark>,
}

impl Worksheet {
    /// A name, and either queries or one link of the page.
    pub fn of(name: &str, charts: &[String]) -> Result<Worksheet> {
        let mut made = Worksheet { name: name.to_owned(), ..Worksheet::default() };
        match charts {
            [link] if link.contains("://") => {
                let (_, rest) =
                    link.split_once('#').context("the link has nothing behind #: it names no charts")?;
                let params = Params::read(rest);
                made.charts = params.all("q").map(str::to_owned).collect();
                let at = |name| {
                    let text: Option<String> = params.all(name).next().map(str::to_owned);
                    text.and_then(|text| text.parse::<i64>().ok()?.checked_mul(1_000_000))
                };
                (made.from_at_us, made.to_at_us) = (at("from"), at("to"));
            }
            queries => made.charts = queries.to_vec(),
        }
        for chart in &made.charts {
            Query::parse(chart).with_context(|| chart.clone())?;
        }
        if made.charts.is_empty() {
            bail!("it has no charts: give queries, or a link of the page with some");
        }
        Ok(made)
    }

    /// Keeps it; one of the same name is replaced.
    pub fn save(&self, dir: &Path) -> Result<()> {
        if self.charts.len() > CHARTS_MAX || self.marks.len() > MARKS_MAX {
            bail!("a worksheet has at most {CHARTS_MAX} charts and {MARKS_MAX} marks");
        }
        let path = path(dir, &self.name)?;
        if !path.exists() {
            check_name("worksheet", &self.name)?;
        }
        let new = path.with_extension("new");
        let write = || -> std::io::Result<()> {
            access::make_dir(&dir.join(PLACE))?;
            let mut file = access::options().write(true).create(true).truncate(true).open(&new)?;
            file.write_all(serde_json::to_string_pretty(self)?.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &path)
        };
        write().with_context(|| format!("write {}", path.display()))
    }
}

fn path(dir: &Path, name: &str) -> Result<PathBuf> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > NAME_MAX || name.starts_with('.') || !name.chars().all(fits) {
        bail!("{name:?} is no name of a worksheet: letters, digits, - _ and ., at most {NAME_MAX}");
    }
    Ok(dir.join(PLACE).join(format!("{name}.json")))
}

fn read(path: &Path) -> Result<Worksheet> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is damaged; remove it", path.display()))
}

/// All, by name. What cannot be read is left out and said in the log.
pub fn all(dir: &Path) -> Result<Vec<Worksheet>> {
    let place = dir.join(PLACE);
    let entries = match fs::read_dir(&place) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("read {}", place.display())),
    };
    let files = entries.flatten().map(|entry| entry.path());
    let mut all = Vec::new();
    for file in files.filter(|file| file.extension().is_some_and(|end| end == "json")) {
        match read(&file) {
            Ok(worksheet) => all.push(worksheet),
            Err(error) => tracing::warn!("{error:#}"),
        }
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

/// The file of one that must be there.
fn there(dir: &ClusterDir, name: &str) -> Result<PathBuf> {
    let path = path(&dir.path, name)?;
    if !path.exists() {
        let all = all(&dir.path)?;
        let names: Vec<&str> = all.iter().map(|worksheet| worksheet.name.as_str()).collect();
        bail!("there is no worksheet {name:?}; there are: {}", names.join(", "));
    }
    Ok(path)
}

/// One that must be there.
pub fn find(dir: &ClusterDir, name: &str) -> Result<Worksheet> {
    read(&there(dir, name)?)
}

/// `ropewalk analytics worksheet ...`, but for its export.
pub fn worksheet(command: &Command) -> Result<()> {
    match command {
        Command::Save(WorksheetSave { dir, name, charts }) => {
            Worksheet::of(name, charts)?.save(&dir.open()?.path)
        }
        Command::List(listing) => {
            let all = all(&listing.dir.open()?.path)?;
            if listing.json {
                return output::json(&all);
            }
            let row = |w: Worksheet| vec![w.name, w.charts.join("\n"), w.marks.len().to_string()];
            output::table(&["WORKSHEET", "CHARTS", "MARKS"], all.into_iter().map(row).collect());
            Ok(())
        }
        Command::Show(name) => output::json(&find(&name.dir.open()?, &name.name)?),
        Command::Export(_) => bail!("a worksheet is exported with what it shows"),
        Command::Remove(name) => {
            let path = there(&name.dir.open()?, &name.name)?;
            fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_found_again_and_names_stay_in_their_place() {
        let dir = tempfile::tempdir().unwrap();
        let link = "http://localhost:9470/#q=file.ops%5Bclient%5D&q=pdisk.ops&from=1000&to=1060";
        let saved = Worksheet::of("a-1", &[link.to_owned()]).unwrap();
        assert_eq!(saved.charts, ["file.ops[client]", "pdisk.ops"]);
        assert_eq!((saved.from_at_us, saved.to_at_us), (Some(1_000_000_000), Some(1_060_000_000)));
        saved.save(dir.path()).unwrap();
        Worksheet::of("0", &["net.calls".to_owned()]).unwrap().save(dir.path()).unwrap();
        fs::write(dir.path().join("worksheets/bad.json"), "{").unwrap();
        let all = all(dir.path()).unwrap();
        assert_eq!((all.len(), &all[1]), (2, &saved));
        for name in ["", "..", ".x", "a/b", "../a", "a b", "-x", "_x", &"a".repeat(64)] {
            assert!(
                Worksheet::of(name, &["net.calls".to_owned()]).unwrap().save(dir.path()).is_err(),
                "{name}"
            );
        }
        // One that has such a name from before keeps it, and is saved again.
        fs::rename(dir.path().join("worksheets/0.json"), dir.path().join("worksheets/-x.json")).unwrap();
        Worksheet::of("-x", &["net.calls".to_owned()]).unwrap().save(dir.path()).unwrap();
        assert!(Worksheet::of("a", &["nothing".to_owned()]).is_err());
        assert!(Worksheet::of("a", &["http://h/#x=1".to_owned()]).is_err());
    }
}
