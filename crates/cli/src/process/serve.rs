//! `ropewalk serve`: one server process of a cluster in the foreground.

use anyhow::{Result, bail};

use super::{endpoint, manager, metrics, node, presence::Presence, stop::Stop};
use crate::{args::Serve, cluster_dir::access};

/// `ropewalk serve`.
pub fn serve(args: &Serve) -> Result<()> {
    access::close_what_is_made();
    let dir = args.dir.open()?;
    endpoint::runtime()?.block_on(async {
        // From now on, whatever it waits for, and before its pid file is there: a signal that nobody listens for would leave that.
        let stop = Stop::listen()?;
        let presence = Presence::claim(&dir, &args.name)?;
        if let Some(addr) = args.metrics {
            metrics::serve(addr).await?;
        }
        if args.name == "manager" && dir.file.manager_here {
            return manager::run(&dir, presence, stop, args.standby).await;
        }
        if args.standby {
            bail!("--standby is for --name manager");
        }
        match dir.file.nodes.iter().find(|n| n.name == args.name) {
            Some(node) => node::run(&dir, node, presence, stop).await,
            None => bail!("--name {}: this machine has {}", args.name, dir.server_names().join(", ")),
        }
    })
}
