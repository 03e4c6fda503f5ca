//! `ropewalk config`: the table of tunables, with the cluster's values.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use base::tunables::{self, Tunables};
use wire::{
    map::ClusterMap,
    mgr::{MgrReply, MgrRequest},
};

use crate::{
    args::{Dir, Listing},
    cluster_dir::ClusterDir,
    link::{self, Link},
    output,
};

/// `ropewalk config show`.
pub fn show(listing: &Listing) -> Result<()> {
    let dir = listing.dir.open()?;
    let tunables = link::run(async { read(&Link::new(&dir)?).await })?;
    let rows = tunables.show();
    if listing.json {
        return output::json(&rows);
    }
    let cells = |r: tunables::ShowRow| {
        vec![r.mark.symbol().to_string(), r.name.to_owned(), r.value, r.default, r.allowed]
    };
    output::table(&["", "TUNABLE", "VALUE", "DEFAULT", "ALLOWED"], rows.into_iter().map(cells).collect());
    Ok(())
}

/// `ropewalk config explain`.
pub fn explain(name: &str) -> Result<()> {
    output::line(tunables::explain(name)?);
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
        let mut tunables = read(&link).await?;
        tunables.apply(pairs.iter().map(|(n, v)| (n.as_str(), v.as_str())))?;
        link.manager(&MgrRequest::ConfigSet { pairs: pairs.clone() }).await?;
        Ok(())
    })?;
    for (name, _) in &pairs {
        let when = match tunables::Row::find(name).map(|r| r.change) {
            Some(tunables::Change::Live) => "in force",
            Some(tunables::Change::Reopen) => "in force when the mount or pdisk is opened again",
            _ => "in force after the processes start again",
        };
        output::line(format!("{name}: {when}"));
    }
    Ok(())
}

/// The cluster's tunables and map, as soon as the manager answers: a server has nothing to do before.
pub async fn wait_for(dir: &ClusterDir) -> Result<(Tunables, ClusterMap)> {
    let link = Link::new(dir)?;
    let both = async || Ok((read(&link).await?, link.cluster().await?.map));
    loop {
        let found: Result<_> = both().await;
        match found {
            Ok(found) => return Ok(found),
            Err(error) => tracing::warn!("waiting for the tunables: {error:#}"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The cluster's tunables.
pub async fn read(link: &Link) -> Result<Tunables> {
    let MgrReply::Config(pairs) = link.manager(&MgrRequest::ConfigGet).await? else {
        bail!("unexpected answer from the manager to ConfigGet");
    };
    let mut tunables = Tunables::default();
    tunables
        .apply(pairs.iter().map(|(n, v)| (n.as_str(), v.as_str())))
        .context("the cluster's stored tunables")?;
    Ok(tunables)
}
