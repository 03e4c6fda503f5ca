//! Making the first machine of a cluster of several: the manager and one node. Pools and file systems come when more machines
//! have joined.

use std::{
    net::{IpAddr, SocketAddr, TcpListener},
    path::{self, Path},
};

use anyhow::{Context, Result, bail};
use base::{NodeId, PdiskId};

use super::{
    ClusterDir, ClusterFile, NodeFile, PdiskFile,
    make::{self, Plan},
};
use crate::args::{CipherList, Init};

/// Where a machine keeps what it runs, unless told otherwise.
pub const DEFAULT_DIR: &str = "/var/lib/ropewalk";

/// Makes it.
pub fn init(args: &Init) -> Result<ClusterDir> {
    let dir = args.dir.dir.clone().unwrap_or_else(|| DEFAULT_DIR.into());
    make::finish(&dir, plan(&dir, args)?)
}

fn plan(dir: &Path, args: &Init) -> Result<Plan> {
    check_listen("--address", args.address)?;
    let second = args
        .port
        .checked_add(1)
        .with_context(|| format!("--port {}: the node needs the next one", args.port))?;
    let [manager, node] = [args.port, second].map(|port| SocketAddr::new(args.address, port));
    let listeners = [manager, node].map(|addr| {
        TcpListener::bind(addr).with_context(|| {
            format!("{addr} is not free; stop the program that has it (`ss -ltnp` shows which), or choose another --port")
        })
    });
    let name = match &args.name {
        Some(name) => name.clone(),
        None => dir.file_name().map_or("rope".into(), |name| name.to_string_lossy().into_owned()),
    };
    let count = args.pdisk.len() as u32;
    let pdisks = args.pdisk.iter().zip(1..).map(|(place, number)| {
        let size = make::pdisk_size(place, args.pdisk_size, count)?;
        let dir = path::absolute(place).with_context(|| format!("find {}", place.display()))?;
        Ok(PdiskFile { id: PdiskId(number), dir, size })
    });
    let node = NodeFile {
        id: NodeId(1),
        name: args.node.clone().unwrap_or_else(host_name),
        addr: node,
        pdisks: pdisks.collect::<Result<_>>()?,
    };
    let clear = args.address.is_loopback();
    let file = ClusterFile {
        format: ClusterDir::format(),
        name,
        id: make::new_id()?.to_string(),
        secret: Some(make::new_secret()?),
        cipher_list: args.cipher_list.unwrap_or(if clear { CipherList::Empty } else { CipherList::Default }),
        code: None,
        block_size: None,
        manager,
        manager_here: true,
        mount: None,
        nodes: vec![node],
    };
    let listeners = listeners.into_iter().collect::<Result<_>>()?;
    Ok(Plan { pool: None, file, log_dir: None, listeners })
}

/// Refuses what is no address of this machine that others could connect to.
pub fn check_listen(option: &str, address: IpAddr) -> Result<()> {
    if address.is_unspecified() {
        bail!("{option} {address}: others need the address that they are to connect to");
    }
    drop(TcpListener::bind((address, 0)).with_context(|| {
        format!("{option} {address}: must be an address of this machine (`ip address` shows them)")
    })?);
    Ok(())
}

/// What this machine is called: the first part of its name.
pub fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let first: String = name.split('.').next().unwrap_or_default().chars().take(63).collect();
    if first.is_empty() { "node".to_owned() } else { first }
}
