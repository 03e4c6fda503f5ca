//! `ropewalk config`: the table of tunables, with the cluster's values.

use anyhow::{Context, Result};
use base::tunables::{Change, Row, ShowRow, explain as explanation};
use wire::mgr::MgrRequest;

use crate::{
    args::{Dir, Listing},
    link::{self, Link},
    output,
    process::tunables,
};

/// `ropewalk config show`.
pub fn show(listing: &Listing) -> Result<()> {
    let dir = listing.dir.open()?;
    let tunables = link::run(async { tunables::read(&Link::new(&dir)?).await })?;
    let rows = tunables.show();
    if listing.json {
        return output::json(&rows);
    }
    let cells =
        |r: ShowRow| vec![r.mark.symbol().to_string(), r.name.to_owned(), r.value, r.default, r.allowed];
    output::table(&["", "TUNABLE", "VALUE", "DEFAULT", "ALLOWED"], rows.into_iter().map(cells).collect());
    Ok(())
}

/// `ropewalk config explain`.
pub fn explain(name: &str) -> Result<()> {
    output::line(explanation(name)?);
    Ok(())
}

/// `ropewalk config set`: all pairs or none.
pub fn set(dir: &Dir, pairs: &[String]) -> Result<()> {
    let dir = dir.open()?;
    let split = |pair: &String| -> Result<(String, String)> {
        let (name, value) = pair.split_once('=').with_context(|| format!("{pair:?} is not NAME=VALUE"))?;
        Ok((name.trim().to_owned(), value.trim().to_owned()))
    };
    let pairs: Vec<(String, String)> = pairs.iter().map(split).collect::<Result<_>>()?;
    link::run(async {
        let link = Link::new(&dir)?;
        // Checked here as well, for the better message; the manager checks for itself.
        let mut tunables = tunables::read(&link).await?;
        tunables.apply(pairs.iter().map(|(n, v)| (n.as_str(), v.as_str())))?;
        link.manager(&MgrRequest::ConfigSet { pairs: pairs.clone() }).await?;
        Ok(())
    })?;
    for (name, _) in &pairs {
        let when = match Row::find(name).map(|r| r.change) {
            Some(Change::Live) => "in force",
            Some(Change::Reopen) => "in force when the mount or pdisk is opened again",
            _ => "in force after the processes start again",
        };
        output::line(format!("{name}: {when}"));
    }
    Ok(())
}
