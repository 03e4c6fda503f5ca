//! Making a new cluster: everything is checked first, then pdisks and the manager's store are made, and
//! `cluster.toml` last.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use base::{ByteSize, CipherList, ClusterId, FsId, NodeId, PdiskId, PoolId, name::name_like, units};
use layout::{Code, LayoutTable, PdiskDesc};
use wire::map::{FsEntry, NodeRack, PoolEntry, PoolPdisk};

use crate::{
    args::{StoreAt, Up},
    cluster_dir::{
        Addrs, ClusterDir, ClusterFile, EtcdFile, EtcdMember, ManagerFile, NodeFile, PdiskFile, access,
    },
    interrupt::{self, Interrupted},
    output,
    process::{mounts, tcp_ports::Beside},
};

/// The first pool.
const POOL: PoolId = PoolId(1);
/// Members of etcd that `up --store etcd` runs.
const ETCD_MEMBERS: usize = 3;
/// Smaller pdisks would be all log and reserve.
const PDISK_SIZE_MIN: u64 = 64 * units::MIB;

/// What a new cluster will be, every value checked.
pub struct Plan {
    /// Its pool, with a file system in it.
    pub pool: Option<PoolPlan>,
    /// Its file.
    pub file: ClusterFile,
    /// The rack that its nodes are in.
    pub rack: Option<String>,
    /// Where the pdisks' logs go, if not beside their data: a directory of this cluster's own.
    pub log_dir: Option<PathBuf>,
    /// Its ports, held.
    pub listeners: Vec<TcpListener>,
}

/// The pool of a new cluster.
pub struct PoolPlan {
    code: Code,
    block_size: u32,
    table: LayoutTable,
}

/// Makes the cluster that the options describe, in `dir`.
pub fn make(dir: &Path, args: &Up) -> Result<ClusterDir> {
    finish(dir, plan(dir, args)?)
}

/// Makes what was planned, or leaves nothing.
pub fn finish(dir: &Path, plan: Plan) -> Result<ClusterDir> {
    let claim = ClusterDir::claim(dir)?;
    let path = claim.path.clone();
    match build(&path, &plan) {
        Ok(()) => {
            drop(plan.listeners);
            let pdisks: Vec<&PdiskFile> = plan.file.nodes.iter().flat_map(|n| &n.pdisks).collect();
            let of = pdisks.first().map_or(String::new(), |first| format!(" of {}", first.size));
            let pool = plan.pool.as_ref().map_or(String::new(), |pool| {
                format!(", {} with blocks of {}", pool.code, ByteSize(pool.block_size.into()))
            });
            output::line(format!(
                "made cluster {} in {}: {} nodes, {} pdisks{of}{pool}",
                plan.file.name,
                path.display(),
                plan.file.nodes.len(),
                pdisks.len(),
            ));
            ClusterDir::open(&path)
        }
        Err(error) => {
            let error = match error.is::<Interrupted>() {
                true => Interrupted(format!("no cluster was made in {}", path.display())).into(),
                false => error,
            };
            ClusterDir::abandon(&path);
            if let Some(log_dir) = &plan.log_dir {
                let _ = fs::remove_dir_all(log_dir);
            }
            Err(error)
        }
    }
}

fn plan(dir: &Path, args: &Up) -> Result<Plan> {
    let nodes = args.nodes.unwrap_or(4);
    let per_node = args.pdisks.unwrap_or(2);
    let code: Code = args.code.as_deref().unwrap_or("4+2p").parse()?;
    let block_size = args.block_size.unwrap_or(ByteSize(4 * units::MIB));
    if !block_size.0.is_power_of_two() || !(256 * units::KIB..=16 * units::MIB).contains(&block_size.0) {
        bail!("--block-size {block_size}: must be a power of two from 256k to 16m");
    }
    let mount = args.mount.as_deref().map(|m| mounts::check_mountpoint(m, dir)).transpose()?;
    let size = pdisk_size(dir, args.pdisk_size, nodes * per_node)?;

    let descriptions: Vec<PdiskDesc> = (0..nodes * per_node)
        .map(|i| PdiskDesc {
            id: PdiskId(i + 1),
            node: NodeId(i / per_node + 1),
            enclosure: None,
            weight: size.0,
        })
        .collect();
    let seed = random_u64()?;
    let table = LayoutTable::build(
        code,
        &descriptions,
        0,
        layout::default_groups(code, descriptions.len() as u32),
        seed,
    )
    .with_context(|| format!("--code {code} on {nodes} nodes with {per_node} pdisks each"))?;

    let listen = args.listen.unwrap_or(Ipv4Addr::LOCALHOST.into());
    check_listen("--listen", listen)?;
    let own_etcd = matches!(args.journal.store, Some(StoreAt::Own));
    let managers = args.managers.unwrap_or(1);
    if managers > 1 && args.journal.store.is_none() {
        bail!(
            "--managers {managers}: several follow one journal, which is in etcd; add --store etcd, or --store etcd://..."
        );
    }
    // After those of one manager and the nodes: of further managers, and of etcd two for each member.
    let further = managers as usize - 1;
    let beside = further + if own_etcd { 2 * ETCD_MEMBERS } else { 0 };
    // Each of them but the second ones of etcd's has a port for metrics, and so has a mount.
    let members = if own_etcd { ETCD_MEMBERS } else { 0 };
    let showing = 1 + nodes as usize + further + members + usize::from(args.mount.is_some());
    let metrics = args.metrics.and_then(|at| at.0);
    // First, so that ports that are chosen here are others.
    let kept = Beside::new(args.page.addr(), metrics, showing);
    kept.check_apart()?;
    let shown = kept.hold(None)?;
    let mut listeners = reserve_ports(listen, args.port, nodes + beside as u32, &kept)?;
    let further_at = nodes as usize + 1;
    let addr = |i: usize| -> Result<SocketAddr> { Ok(listeners[i].local_addr()?) };
    let name = cluster_name(dir);
    let node = |n: u32| -> Result<NodeFile> {
        Ok(NodeFile {
            id: NodeId(n + 1),
            name: format!("n{}", n + 1),
            addr: addr(n as usize + 1)?.into(),
            pdisks: (0..per_node)
                .map(|p| PdiskFile {
                    id: PdiskId(n * per_node + p + 1),
                    dir: PathBuf::from(format!("nodes/n{}/pdisk{}", n + 1, p + 1)),
                    size,
                    replaces: None,
                    adding: false,
                    removing: None,
                })
                .collect(),
        })
    };
    let etcd = match own_etcd {
        true => Some(EtcdFile::own(own_members(&listeners[further_at + further..])?)),
        false => EtcdFile::asked(&args.journal)?,
    };
    let mut file = ClusterFile {
        format: ClusterDir::format(),
        name,
        id: new_id()?.to_string(),
        secret: Some(new_secret()?),
        former_secret: None,
        secret_changes: 0,
        cipher_list: args.cipher_list.unwrap_or(if listen.is_loopback() {
            CipherList::Empty
        } else {
            CipherList::Default
        }),
        code: Some(code.to_string()),
        block_size: Some(block_size),
        manager: addr(0)?.into(),
        manager_here: true,
        mirror: None,
        mirror_on: None,
        keeps_copy: false,
        metrics,
        analytics: args.page.addr(),
        etcd,
        managers: Vec::new(),
        mount,
        nodes: (0..nodes).map(node).collect::<Result<_>>()?,
    };
    if further > 0 {
        let names = (2..).map(|n| format!("m{n}"));
        let mut all = file.all_managers();
        for (name, at) in names.zip(further_at..further_at + further) {
            let local = Some(file.local_name(&name));
            all.push(ManagerFile { name, addr: addr(at)?.into(), local });
        }
        file.set_managers(all);
    }
    // Others may have their logs there as well.
    let log_dir = args.log_dir.as_ref().map(|dir| dir.join(format!("ropewalk-{}", file.id)));
    let pool = PoolPlan { code, block_size: block_size.0 as u32, table };
    listeners.extend(shown);
    Ok(Plan { pool: Some(pool), file, rack: None, log_dir, listeners })
}

/// What a cluster in this directory is called, unless it is told.
pub fn cluster_name(dir: &Path) -> String {
    let called = dir.file_name().and_then(|name| name_like(&name.to_string_lossy()));
    called.unwrap_or_else(|| "rope".to_owned())
}

/// Members of etcd on these ports. They listen on loopback: what they say is not protected.
fn own_members(listeners: &[TcpListener]) -> Result<Vec<EtcdMember>> {
    let at = |listener: &TcpListener| -> Result<SocketAddr> {
        Ok((Ipv4Addr::LOCALHOST, listener.local_addr()?.port()).into())
    };
    let member = |(n, ports): (usize, &[TcpListener])| {
        Ok(EtcdMember { name: format!("etcd@{}", n + 1), addr: at(&ports[0])?, peer: at(&ports[1])? })
    };
    listeners.chunks_exact(2).enumerate().map(member).collect()
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

/// The addresses of this machine with a port of a process on each; refused if one is not free, or is for another process here.
pub fn listen_at(ips: &[IpAddr], port: u16, kept: &Beside) -> Result<(Addrs, Vec<TcpListener>)> {
    ips.iter().try_for_each(|&ip| check_listen("--address", ip))?;
    let addrs = Addrs::new(ips.iter().map(|&ip| SocketAddr::new(ip, port)).collect()).context("--address")?;
    let listen = |addr: &SocketAddr| {
        kept.check(*addr)?;
        TcpListener::bind(addr).with_context(|| {
            format!("{addr} is not free; stop the program that has it (`ss -ltnp` shows which), or choose another --port")
        })
    };
    let listeners = addrs.iter().map(listen).collect::<Result<_>>()?;
    Ok((addrs, listeners))
}

/// The size asked for, if it fits; else 16 GiB or what fits half of the free space.
pub fn pdisk_size(dir: &Path, asked: Option<ByteSize>, count: u32) -> Result<ByteSize> {
    let free = free_space(dir)?;
    let smallest = PDISK_SIZE_MIN;
    if let Some(size) = asked {
        if size.0 < smallest {
            bail!("--pdisk-size {size}: at least {} is needed", ByteSize(smallest));
        }
        if size.0.saturating_mul(count.into()) > free {
            bail!(
                "--pdisk-size {size}: {count} pdisks need {}, and {} has {} free; choose at most {}m",
                units::human_size(size.0.saturating_mul(count.into())),
                dir.display(),
                units::human_size(free),
                free / u64::from(count) / units::MIB,
            );
        }
        return Ok(size);
    }
    let fits = free / 2 / u64::from(count) / (64 * units::MIB) * (64 * units::MIB);
    if fits < smallest {
        bail!(
            "{} has only {} free: too little for {count} pdisks of {}",
            dir.display(),
            units::human_size(free),
            ByteSize(smallest)
        );
    }
    Ok(ByteSize(fits.min(16 * units::GIB)))
}

/// Free space of the file system that a path is (or will be) on.
fn free_space(path: &Path) -> Result<u64> {
    let existing = path.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/"));
    let stat = rustix::fs::statvfs(existing)
        .with_context(|| format!("ask for the free space under {}", existing.display()))?;
    Ok(stat.f_bavail * stat.f_frsize)
}

/// Where ports are looked for: below those that the system gives to connections, which could take a port
/// while its server is down.
const PORTS: std::ops::Range<u16> = 10_000..32_000;
/// Places tried before giving up.
const PLACES_MAX: u32 = 200;

/// One port for the manager and one for each node, in a row. Held until the cluster is made.
fn reserve_ports(listen: IpAddr, first: Option<u16>, nodes: u32, kept: &Beside) -> Result<Vec<TcpListener>> {
    if let Some(first) = first {
        return ports_from(listen, first, nodes, kept);
    }
    let mut refused = None;
    for _ in 0..PLACES_MAX {
        let place = random_u64()? % u64::from(PORTS.end - PORTS.start);
        match ports_from(listen, PORTS.start + place as u16, nodes, kept) {
            Ok(listeners) => return Ok(listeners),
            Err(error) => refused = Some(error),
        }
    }
    Err(refused.unwrap_or_else(|| anyhow::anyhow!("no free ports")))
        .context("find free ports; name some with --port")
}

fn ports_from(listen: IpAddr, first: u16, nodes: u32, kept: &Beside) -> Result<Vec<TcpListener>> {
    (0..=nodes)
        .map(|i| {
            let port = u16::try_from(u32::from(first) + i)
                .ok()
                .with_context(|| format!("--port {first}: {nodes} nodes need ports beyond 65535"))?;
            kept.check((listen, port).into()).with_context(|| format!("--port {first}"))?;
            TcpListener::bind((listen, port)).with_context(|| {
                format!("port {port} is taken; stop the program that has it (`ss -ltnp` shows which), or choose another --port")
            })
        })
        .collect()
}

fn build(path: &Path, plan: &Plan) -> Result<()> {
    for sub in ["run", "log", "nodes"] {
        access::make_dir(&path.join(sub)).with_context(|| format!("create {}", path.join(sub).display()))?;
    }
    let cluster = plan.file.cluster_id()?;
    let all: Vec<&PdiskFile> = plan.file.nodes.iter().flat_map(|n| &n.pdisks).collect();
    let bar = output::progress("preallocating pdisks", all.len() as u64);
    std::thread::scope(|scope| -> Result<()> {
        let makers: Vec<_> = all
            .iter()
            .map(|p| {
                let dir = path.join(&p.dir);
                let (bar, log_dir) = (&bar, plan.log_dir.clone());
                scope.spawn(move || -> Result<()> {
                    let options = pdisk::CreateOptions {
                        log_dir,
                        ..pdisk::CreateOptions::new(cluster, p.id, p.size.0)
                    };
                    pdisk::Pdisk::create(&dir, options)
                        .with_context(|| format!("make {} in {}", p.id, dir.display()))?;
                    bar.inc(1);
                    interrupt::check()
                })
            })
            .collect();
        makers.into_iter().try_for_each(|m| m.join().unwrap_or_else(|_| bail!("making a pdisk panicked")))
    })?;
    bar.finish_and_clear();

    let spec = manager::Spec {
        cluster,
        name: plan.file.name.clone(),
        nodes: plan
            .file
            .nodes
            .iter()
            .map(|n| wire::map::NodeEntry {
                id: n.id,
                name: n.name.clone(),
                addrs: n.addr.texts(),
                session: None,
            })
            .collect(),
        racks: plan
            .rack
            .iter()
            .flat_map(|rack| plan.file.nodes.iter().map(|n| NodeRack { node: n.id, rack: rack.clone() }))
            .collect(),
        pdisks: plan
            .file
            .nodes
            .iter()
            .flat_map(|n| n.pdisks.iter().enumerate().map(move |(i, p)| (n, i, p)))
            .map(|(n, i, p)| wire::map::PdiskEntry {
                id: p.id,
                name: format!("{}p{}", n.name, i + 1),
                nodes: vec![n.id],
                capacity: p.size.0,
                ..Default::default()
            })
            .collect(),
        pools: plan.pool.iter().map(pool_entry).collect(),
        filesystems: plan
            .pool
            .iter()
            .map(|_| FsEntry { id: FsId(1), name: "fs1".to_owned(), pool: POOL })
            .collect(),
    };
    manager::format(&path.join("manager"), spec).context("make the manager's store")?;
    ClusterDir::save(path, &plan.file)
}

fn pool_entry(plan: &PoolPlan) -> PoolEntry {
    PoolEntry {
        id: POOL,
        name: "pool1".to_owned(),
        code: plan.code.to_string(),
        block_size: plan.block_size,
        width: plan.code.width(),
        spare: 0,
        seed: plan.table.seed(),
        table: plan.table.group_ids().flat_map(|g| plan.table.members(g).to_vec()).collect(),
        pdisks: plan
            .table
            .pdisks()
            .iter()
            .map(|p| PoolPdisk {
                id: p.id,
                array: plan.table.array_of(p.id),
                weight: p.weight,
                enclosure: p.enclosure,
            })
            .collect(),
        ..Default::default()
    }
}

/// A new cluster's number.
pub fn new_id() -> Result<ClusterId> {
    random().map(u128::from_le_bytes).map(ClusterId)
}

/// A new secret, as `cluster.toml` holds it.
pub fn new_secret() -> Result<String> {
    Ok(net::Secret::new(random()?).to_hex())
}

fn random_u64() -> Result<u64> {
    random().map(u64::from_le_bytes)
}

/// Random bytes of the system.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0u8; N];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .context("draw random bytes")?;
    if got != bytes.len() {
        bail!("the system gave too few random bytes");
    }
    Ok(bytes)
}
