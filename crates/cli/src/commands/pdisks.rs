//! `ropewalk pdisk fail|drain|keep|add|replace|remove`: which pdisks a cluster has.

use std::{
    ffi::OsStr,
    fs,
    path::{self, Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use base::{ByteSize, NodeId, PdiskId, PoolId};
use wire::{
    map::{ClusterMap, NodeEntry, PdiskState, PoolEntry},
    mgr::{MgrReply, MgrRequest, PdiskWish},
};

use crate::{
    args::{PdiskAdd, PdiskName, PdiskReplace},
    cluster_dir::{ClusterDir, ClusterFile, PdiskFile, access, make},
    link::{self, Link},
    output,
    process::{control, pid_file, units},
};

/// How long a node may take to stop and to serve again.
const RESTART_PATIENCE: Duration = Duration::from_secs(60);

/// A pdisk by its name or number.
pub fn find_pdisk(map: &ClusterMap, name: &str) -> Result<PdiskId> {
    let by_name = map.pdisks.iter().find(|p| p.name == name || p.id.0.to_string() == name);
    by_name.map(|p| p.id).with_context(|| {
        let names: Vec<&str> = map.pdisks.iter().map(|p| p.name.as_str()).collect();
        format!("there is no pdisk {name}; there are {}", names.join(", "))
    })
}

/// A node by its name.
pub fn find_node<'a>(map: &'a ClusterMap, name: &str) -> Result<&'a NodeEntry> {
    map.nodes.iter().find(|node| node.name == name).with_context(|| {
        let names: Vec<&str> = map.nodes.iter().map(|node| node.name.as_str()).collect();
        format!("there is no node {name}; there are {}", names.join(", "))
    })
}

/// The node that serves a pdisk.
fn node_of(map: &ClusterMap, pdisk: PdiskId) -> Result<&NodeEntry> {
    let node = map.pdisk(pdisk).and_then(|p| p.nodes.first()).and_then(|&node| map.node(node));
    node.with_context(|| format!("{pdisk} is on no node of the cluster"))
}

/// What can only be done on a node's own machine.
pub fn elsewhere(node: &NodeEntry) -> String {
    format!("node {} ({}) is on another machine; run this there", node.name, node.addrs.join(", "))
}

/// `ropewalk pdisk fail|drain|keep`.
pub fn pdisk_wish(args: &PdiskName, wish: PdiskWish) -> Result<()> {
    let dir = args.dir.open()?;
    link::run(async {
        let link = Link::new(&dir)?;
        let report = link.cluster().await?;
        let pdisk = find_pdisk(&report.map, &args.pdisk)?;
        link.manager(&MgrRequest::PdiskSet { pdisk, wish }).await?;
        let report = link.cluster().await?;
        let left: u32 = report.moving.iter().map(|m| m.left).sum();
        output::line(format!(
            "{} is {}; {left} strips of groups are to move (`ropewalk rebuild status` shows how far it is)",
            args.pdisk,
            report.map.pdisk_word(pdisk)
        ));
        Ok(())
    })
}

/// `ropewalk pdisk add`.
pub fn pdisk_add(args: &PdiskAdd) -> Result<()> {
    let mut dir = args.dir.open()?;
    let place = Place { size: args.size, path: args.path.clone(), log_dir: args.log_dir.clone() };
    let name = add(&mut dir, &args.node, place, None)?;
    output::line(format!("{name} is there; groups move to it (`ropewalk rebuild status`)"));
    Ok(())
}

/// Where a new pdisk is made, and how large; `None`: as its node's others.
#[derive(Clone)]
struct Place {
    size: Option<ByteSize>,
    path: Option<PathBuf>,
    log_dir: Option<PathBuf>,
}

/// Makes a pdisk in a directory on a node whose server is started after it; its name.
pub fn add_before_start(
    dir: &mut ClusterDir,
    node: &str,
    path: &Path,
    size: Option<ByteSize>,
) -> Result<String> {
    let size = make::pdisk_size(path, size, 1)?;
    let path = path::absolute(path).with_context(|| format!("find {}", path.display()))?;
    let place = Place { size: Some(size), path: Some(path), log_dir: None };
    register_anew(dir, node, place, None).map(|(name, ..)| name)
}

/// As often as another machine takes the number first.
fn register_anew(
    dir: &mut ClusterDir,
    node: &str,
    place: Place,
    like: Option<PdiskId>,
) -> Result<(String, String, NodeId)> {
    for _ in 1..NUMBERS_TRIED {
        match register(dir, node, place.clone(), like) {
            Err(error) if error.is::<NumberTaken>() => {}
            outcome => return outcome,
        }
    }
    register(dir, node, place, like)
}

/// Another machine was given the number of a pdisk that was made here, and is taken away again.
#[derive(Debug, thiserror::Error)]
#[error("{0} was given to another machine meanwhile; try again")]
struct NumberTaken(PdiskId);

/// Removes what is in a directory, and then the directory unless a disk is mounted there.
fn empty(dir: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    match fs::remove_dir(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::ResourceBusy => Ok(()),
        removed => removed,
    }
}

/// How often a number is asked for.
const NUMBERS_TRIED: u32 = 8;

/// Makes a pdisk on a node, for the pools of `like` or for all; its name.
fn add(dir: &mut ClusterDir, node: &str, place: Place, like: Option<PdiskId>) -> Result<String> {
    let (name, node_name, node_id) = register_anew(dir, node, place, like)?;
    restart_node(dir, &node_name, node_id)?;
    Ok(name)
}

/// A pdisk that `cluster.toml` names since it was begun.
struct Entered {
    /// What the files of its node are named by here.
    node: String,
    pdisk: PdiskFile,
    /// The lost one that was where it is to be, and where that stood among the node's.
    lost: Option<(usize, PdiskFile)>,
    /// An interrupted run had begun it.
    before: bool,
}

/// Names a new one in the file, whose directory is `dir`; or finds what an interrupted run began in the place of `like`.
fn enter(
    file: &mut ClusterFile,
    dir: &Path,
    known: &NodeEntry,
    given: PdiskId,
    place: Place,
    like: Option<PdiskId>,
) -> Result<Entered> {
    // What an interrupted one left in the file has a number too.
    let last = file.nodes.iter().flat_map(|n| n.pdisks.iter().map(|p| p.id)).max();
    let id = PdiskId(given.max(last.unwrap_or_default()).0 + 1);
    let entry = file.nodes.iter_mut().find(|n| n.id == known.id).with_context(|| elsewhere(known))?;
    let node = entry.name.clone();
    let there = |p: &PdiskFile| place.path.as_ref().is_none_or(|path| dir.join(path) == dir.join(&p.dir));
    let begun = |p: &PdiskFile| like.is_some() && p.replaces == like;
    if let Some(pdisk) = entry.pdisks.iter().find(|p| begun(p) && there(p)).cloned() {
        return Ok(Entered { node, pdisk, lost: None, before: true });
    }
    let size = place.size.or(entry.pdisks.first().map(|p| p.size)).context("say how large it is: --size")?;
    let path = place.path.unwrap_or_else(|| PathBuf::from(format!("nodes/{node}/pdisk-{}", id.0)));
    let full = dir.join(&path);
    pdisk::Pdisk::is_free(&full).with_context(|| format!("make a pdisk in {}", full.display()))?;
    // One that was begun elsewhere is not used.
    entry.pdisks.retain(|p| !begun(p));
    // A new disk where the lost one was: the server must not look for the old one there.
    let at = entry.pdisks.iter().position(|p| Some(p.id) == like && dir.join(&p.dir) == full);
    let lost = at.map(|at| (at, entry.pdisks.remove(at)));
    let pdisk = PdiskFile { id, dir: path, size, replaces: like };
    entry.pdisks.push(pdisk.clone());
    Ok(Entered { node, pdisk, lost, before: false })
}

/// As if it had not been begun.
fn take_back(file: &mut ClusterFile, entered: &Entered) {
    for node in file.nodes.iter_mut().filter(|node| node.name == entered.node) {
        node.pdisks.retain(|p| p.id != entered.pdisk.id);
        if let Some((at, lost)) = &entered.lost {
            node.pdisks.insert((*at).min(node.pdisks.len()), lost.clone());
        }
    }
}

/// Makes it, and names it to the manager; its name, and the node's in this directory and number. What an interrupted run began
/// in the place of `like` is gone on with.
fn register(
    dir: &mut ClusterDir,
    node: &str,
    place: Place,
    like: Option<PdiskId>,
) -> Result<(String, String, NodeId)> {
    let (report, given) = link::run(async {
        let link = Link::new(dir)?;
        match link.manager(&MgrRequest::LastPdisk).await? {
            MgrReply::LastPdisk { pdisk } => Ok((link.cluster().await?, pdisk)),
            other => bail!("unexpected answer from the manager to LastPdisk: {other:?}"),
        }
    })?;
    let known = find_node(&report.map, node)?;
    let node_id = known.id;
    let (path, log_dir) = (dir.path.clone(), place.log_dir.clone());
    // First the file, then the pdisk and the manager: who is interrupted finds by it what was begun, and groups that move to a
    // pdisk that no server will ever open would wait for it for ever. A pdisk that only the file names is left out by its server.
    let entered = dir.try_keep(|file| enter(file, &path, known, given, place, like))?;
    let PdiskFile { id, dir: path, size, .. } = &entered.pdisk;
    let (id, size, full) = (*id, *size, dir.path.join(path));
    if let Err(error) = make_files(dir, &full, id, size, log_dir) {
        if !entered.before {
            dir.keep(|file| take_back(file, &entered))?;
        }
        return Err(error);
    }
    let number = report.map.pdisks.iter().filter(|p| p.nodes.contains(&node_id)).count() + 1;
    let taken = |name: &String| report.map.pdisks.iter().any(|p| p.name == *name);
    let name = (number..).map(|n| format!("{node}p{n}")).find(|n| !taken(n)).unwrap_or_default();
    let uses = |pool: &&PoolEntry| like.is_none_or(|like| pool.pdisks.iter().any(|p| p.id == like));
    let pools: Vec<PoolId> = report.map.pools.iter().filter(uses).map(|p| p.id).collect();
    // An interrupted run may have named it already.
    if let Some(there) = report.map.pdisk(id).filter(|there| there.nodes.contains(&node_id)) {
        return Ok((there.name.clone(), entered.node, node_id));
    }
    let undone = || format!("not added; {} can be removed", full.display());
    let request =
        MgrRequest::PdiskAdd { pdisk: id, name: name.clone(), node: node_id, capacity: size.0, pools };
    if let Err(error) = link::run(async { Link::new(dir)?.manager(&request).await }) {
        // The answer may be lost, and the pdisk be there.
        let report = link::run(async { Link::new(dir)?.cluster().await }).with_context(|| {
            format!("{error:#}; `ropewalk pdisk list` shows later whether {name} is there")
        })?;
        let there = report.map.pdisk(id);
        if there.is_none_or(|there| !there.nodes.contains(&node_id)) {
            // What an interrupted run began may have waited too long: numbers only rise.
            let taken = there.is_some() || id <= given;
            if like.is_some() && !taken {
                return Err(
                    error.context(format!("not added yet; the same command goes on with {}", full.display()))
                );
            }
            dir.keep(|file| take_back(file, &entered))?;
            if taken {
                // All that is in it was made by this command; the directory itself may be where a disk is mounted.
                let log = pdisk::Pdisk::log_path(&full).ok();
                empty(&full).with_context(undone)?;
                log.map(fs::remove_file);
                return Err(NumberTaken(id).into());
            }
            return Err(error.context(undone()));
        }
    }
    Ok((name, entered.node, node_id))
}

/// Makes the files of a pdisk, unless an interrupted run made them all; an error leaves none.
fn make_files(
    dir: &ClusterDir,
    full: &Path,
    id: PdiskId,
    size: ByteSize,
    log_dir: Option<PathBuf>,
) -> Result<()> {
    let cluster = dir.file.cluster_id()?;
    let what = || format!("make a pdisk of {size} in {}", full.display());
    if let Some(parent) = full.parent() {
        access::make_dir(parent).with_context(|| format!("create {}", parent.display()))?;
    }
    if !pdisk::Pdisk::clear_unfinished(full, cluster, id).with_context(what)? {
        let options = pdisk::CreateOptions { log_dir, ..pdisk::CreateOptions::new(cluster, id, size.0) };
        let made = pdisk::Pdisk::create(full, options);
        if made.is_err() {
            pdisk::Pdisk::clear_unfinished(full, cluster, id).ok(); // what hinders that is said already
        }
        made.with_context(what)?;
    }
    access::close(full).map(drop)
}

/// A node's server learns of its pdisks when it starts: it is stopped cleanly and started again.
pub fn restart_node(dir: &ClusterDir, name: &str, id: NodeId) -> Result<()> {
    let Some(process) = pid_file::live(&dir.pid_file(name)) else {
        output::line(format!(
            "{name} does not run; it knows its pdisks when it is started (`ropewalk up --detach`)"
        ));
        return Ok(());
    };
    let before = link::run(async { Link::new(dir)?.cluster().await })?;
    let session = before.map.node(id).and_then(|n| n.session);
    // A service is systemd's to restart, or it would be started apart from its unit.
    let mut child = None;
    let pid = process.pid;
    if !units::restart(pid) {
        control::terminate(pid);
        if !process.wait_gone(RESTART_PATIENCE) {
            bail!("{name} (process {pid}) does not end; start it again when it has");
        }
        let args: [&OsStr; 5] =
            ["serve".as_ref(), "--dir".as_ref(), dir.path.as_ref(), "--name".as_ref(), name.as_ref()];
        child = Some(control::spawn_detached(&args, &dir.log_file(name))?);
    }
    let end = Instant::now() + RESTART_PATIENCE;
    loop {
        let ended = child.as_mut().map(std::process::Child::try_wait).transpose();
        if let Some(status) = ended.context("look after a child process")?.flatten() {
            bail!("{name} ended at its start ({status}); see {}", dir.log_file(name).display());
        }
        let report = link::run(async { Link::new(dir)?.cluster().await })?;
        let now = report.map.node(id).and_then(|n| n.session);
        if now.is_some() && now != session && dir.ready_file(name).exists() {
            return Ok(());
        }
        if Instant::now() > end {
            bail!("{name} does not serve after {RESTART_PATIENCE:?}; see {}", dir.log_file(name).display());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// `ropewalk pdisk replace`: a new one on the same node takes over what the old one held.
pub fn pdisk_replace(args: &PdiskReplace) -> Result<()> {
    let PdiskReplace { name: PdiskName { dir, pdisk }, size, path, log_dir } = args;
    let mut dir = dir.open()?;
    let report = link::run(async { Link::new(&dir)?.cluster().await })?;
    let old = find_pdisk(&report.map, pdisk)?;
    let known = node_of(&report.map, old)?;
    let here = dir.file.node(known.id).with_context(|| elsewhere(known))?;
    let before = here.pdisks.iter().find(|p| p.id == old);
    // What an interrupted run began: the old one may be out of the file since.
    let begun = here.pdisks.iter().find(|p| p.replaces == Some(old)).cloned();
    let size_before = begun.as_ref().or(before).map(|p| p.size);
    let size_before = size_before.with_context(|| format!("cluster.toml has no {old}"))?;
    if let Some(before) = before.filter(|p| path.is_none() && begun.is_none() && p.dir.is_absolute()) {
        bail!(
            "--path: say in which directory the new one is to be; {pdisk} is in {}, on a disk of its own",
            before.dir.display()
        );
    }
    let path = path.as_deref().map(path::absolute).transpose().context("--path")?;
    let path = path.or(begun.as_ref().map(|p| p.dir.clone()));
    let elsewhere =
        |p: &PdiskFile| path.as_ref().is_some_and(|path| dir.path.join(&p.dir) != dir.path.join(path));
    if let Some(begun) = begun.filter(elsewhere) {
        let there = dir.path.join(&begun.dir);
        if let Some(named) = report.map.pdisk(begun.id).filter(|p| p.nodes.contains(&known.id)) {
            bail!(
                "an interrupted run has begun {} in {} in the place of {pdisk}: say --path {2} to go on with it, or \
                 take it out first (`ropewalk pdisk fail {0}`, `ropewalk pdisk remove {0}`)",
                named.name,
                there.display(),
                there.display()
            );
        }
        output::line(format!("what an interrupted run began in {} is not used", there.display()));
    }
    let (node, node_id) = (known.name.clone(), known.id);
    let state = report.map.pdisk(old).map(|p| p.state);
    let place = Place { size: Some(size.unwrap_or(size_before)), path, log_dir: log_dir.clone() };
    let name = add(&mut dir, &node, place, Some(old))?;
    // Out of the file: a new disk is where it was. One that only does not count yet (its server starts, it catches up) may hold
    // what nobody else has: it is not given up for that.
    let in_its_place = dir.file.node(node_id).is_none_or(|node| node.pdisks.iter().all(|p| p.id != old));
    let is_lost = in_its_place || state == Some(PdiskState::Failed);
    let wish = if is_lost { PdiskWish::Fail } else { PdiskWish::Drain };
    link::run(async {
        let link = Link::new(&dir)?;
        link.manager(&MgrRequest::PdiskSet { pdisk: old, wish }).await
    })?;
    ClusterDir::change(&dir.path, |file| {
        let pdisks = file.nodes.iter_mut().flat_map(|node| &mut node.pdisks);
        pdisks.filter(|p| p.replaces == Some(old)).fold(false, |_, p| p.replaces.take().is_some())
    })?;
    output::line(format!(
        "{name} takes the place of {pdisk}; when that is shown as \"replace\", `ropewalk pdisk remove {pdisk}` takes it out"
    ));
    Ok(())
}

/// `ropewalk pdisk remove`.
pub fn pdisk_remove(args: &PdiskName) -> Result<()> {
    let mut dir = args.dir.open()?;
    let report = link::run(async { Link::new(&dir)?.cluster().await })?;
    let pdisk = find_pdisk(&report.map, &args.pdisk)?;
    let node = node_of(&report.map, pdisk)?;
    // A server that goes on naming it would be refused when it registers again. One that is gone for good names nothing.
    if dir.file.node(node.id).is_none() && node.session.is_some() {
        bail!(elsewhere(node));
    }
    let request = MgrRequest::PdiskSet { pdisk, wish: PdiskWish::Remove };
    link::run(async { Link::new(&dir)?.manager(&request).await })?;
    let mut of = None;
    dir.keep(|file| {
        for node in &mut file.nodes {
            if let Some(at) = node.pdisks.iter().position(|p| p.id == pdisk) {
                of = Some((node.name.clone(), node.id, node.pdisks.remove(at).dir));
            }
        }
    })?;
    let Some((node, id, place)) = of else {
        output::line(format!("{} is out", args.pdisk));
        return Ok(());
    };
    restart_node(&dir, &node, id)?;
    let place = dir.path.join(place);
    // A disk that is gone does not say; its log is known by the name.
    let log = pdisk::Pdisk::log_path(&place).ok().filter(|log| !log.starts_with(&place));
    let log = log.map(|log| format!(" and its log {}", log.display())).unwrap_or_default();
    output::line(format!(
        "{} is out; its files in {}{log} are not used any more and can be removed",
        args.pdisk,
        place.display()
    ));
    Ok(())
}
