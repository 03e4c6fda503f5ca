//! Making the first machine of a cluster of several: the manager and one node. Pools and file systems come when more machines
//! have joined.

use std::path::{self, Path};

use anyhow::{Context, Result, bail};
use base::{CipherList, NodeId, PdiskId};

use super::{
    ClusterDir, ClusterFile, DEFAULT_DIR, EtcdFile, NodeFile, PdiskFile,
    host::host_name,
    make::{self, Plan},
};
use crate::{
    args::{Init, StoreAt},
    process::tcp_ports::Beside,
};

/// Makes it.
pub fn init(args: &Init) -> Result<ClusterDir> {
    let dir = args.dir.dir.clone().unwrap_or_else(|| DEFAULT_DIR.into());
    make::finish(&dir, plan(&dir, args)?)
}

fn plan(dir: &Path, args: &Init) -> Result<Plan> {
    let second = args
        .port
        .checked_add(1)
        .with_context(|| format!("--port {}: the node needs the next one", args.port))?;
    let kept = Beside::new(args.page.addr(), None, 0);
    let (manager, mut listeners) = make::listen_at(&args.address, args.port, &kept)?;
    let (node, others) = make::listen_at(&args.address, second, &kept)?;
    listeners.extend(others);
    let name = match &args.name {
        Some(name) => name.clone(),
        None => make::cluster_name(dir),
    };
    let node_name = args.node.clone().unwrap_or_else(host_name);
    manager::check_node_name(&node_name).with_context(|| format!("--node {node_name:?}"))?;
    if let Some(rack) = &args.rack {
        manager::check_rack(rack).context("--rack")?;
    }
    let count = args.pdisk.len() as u32;
    let pdisks = args.pdisk.iter().zip(1..).map(|(place, number)| {
        let size = make::pdisk_size(place, args.pdisk_size, count)?;
        let dir = path::absolute(place).with_context(|| format!("find {}", place.display()))?;
        Ok(PdiskFile { id: PdiskId(number), dir, size, replaces: None, adding: false, removing: None })
    });
    let node =
        NodeFile { id: NodeId(1), name: node_name, addr: node, pdisks: pdisks.collect::<Result<_>>()? };
    if matches!(args.journal.store, Some(StoreAt::Own)) {
        bail!(
            "--store etcd is for `up`, to try it on one machine; name the members: etcd://HOST,HOST,HOST/PREFIX"
        );
    }
    let clear = args.address.iter().all(std::net::IpAddr::is_loopback);
    let file = ClusterFile {
        format: ClusterDir::format(),
        name,
        id: make::new_id()?.to_string(),
        secret: Some(make::new_secret()?),
        former_secret: None,
        secret_changes: 0,
        cipher_list: args.cipher_list.unwrap_or(if clear { CipherList::Empty } else { CipherList::Default }),
        code: None,
        block_size: None,
        manager,
        manager_here: true,
        mirror: None,
        mirror_on: None,
        keeps_copy: false,
        metrics: None,
        analytics: args.page.addr(),
        etcd: EtcdFile::asked(&args.journal)?,
        managers: Vec::new(),
        mount: None,
        nodes: vec![node],
    };
    Ok(Plan { pool: None, file, rack: args.rack.clone(), log_dir: None, listeners })
}
