//! `ropewalk serve`: one server process of a cluster in the foreground.

use anyhow::{Result, bail};

use super::{endpoint, etcd, keeper, manager, metrics, node, presence::Presence, stop::Stop};
use crate::{args::Serve, cluster_dir::access};

/// `ropewalk serve`.
pub fn serve(args: &Serve) -> Result<()> {
    access::close_what_is_made();
    let dir = args.dir.open()?;
    endpoint::runtime()?.block_on(async {
        // From now on, whatever it waits for, and before its pid file is there: a signal that nobody listens for would leave that.
        let stop = Stop::listen()?;
        let presence = Presence::claim(&dir, &args.name)?;
        metrics::begin(&dir, &args.name, args.metrics).await?;
        if let Some(own) = dir.file.own_managers().into_iter().find(|own| own.local == args.name) {
            return match dir.file.keeps_copy {
                true => keeper::run(&dir, &own, presence, stop).await,
                false => manager::run(&dir, &own, presence, stop).await,
            };
        }
        if let Some(member) =
            dir.file.etcd.iter().flat_map(|etcd| &etcd.members).find(|m| m.name == args.name)
        {
            return Err(etcd::become_member(&dir, member, presence));
        }
        match dir.file.nodes.iter().find(|n| n.name == args.name) {
            Some(node) => node::run(&dir, node, presence, stop).await,
            None => bail!("--name {}: this machine has {}", args.name, dir.server_names().join(", ")),
        }
    })
}
