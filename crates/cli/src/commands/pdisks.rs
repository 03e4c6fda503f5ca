//! `ropewalk pdisk fail|drain|keep|add|replace|remove`: which pdisks a cluster has.

use std::{
    fs,
    path::{self, Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use base::{ByteSize, NodeId, PdiskId, PoolId};
use wire::{
    map::{ClusterMap, NodeEntry, PdiskState, PoolEntry},
    mgr::{MgrError, MgrReply, MgrRequest, PdiskWish},
};

use super::{
    last_copies,
    node_restart::{hold_nodes, restart_node},
};
use crate::{
    args::{PdiskAdd, PdiskFail, PdiskName, PdiskReplace},
    cluster_dir::{ClusterDir, ClusterFile, PdiskFile, access, make},
    link::{self, Link},
    output,
};

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

/// `ropewalk pdisk fail`.
pub fn pdisk_fail(args: &PdiskFail) -> Result<()> {
    wish_of(&args.name, PdiskWish::Fail, args.accept_loss)
}

/// `ropewalk pdisk drain|keep`.
pub fn pdisk_wish(args: &PdiskName, wish: PdiskWish) -> Result<()> {
    wish_of(args, wish, true)
}

fn wish_of(args: &PdiskName, wish: PdiskWish, accept_loss: bool) -> Result<()> {
    let dir = args.dir.open()?;
    link::run(async {
        let link = Link::new(&dir)?;
        let report = link.cluster().await?;
        let pdisk = find_pdisk(&report.map, &args.pdisk)?;
        if !accept_loss {
            last_copies::check(&report, pdisk)?;
        }
        link.manager(&MgrRequest::PdiskSet { pdisk, wish }).await?;
        let report = link.cluster().await?;
        let left: u32 = report.moving.iter().map(|m| m.left).sum();
        output::line(format!(
            "{} is {}; {left} strips of groups are to move (`ropewalk rebuild status` shows how far it is)",
            args.pdisk,
            report.map.pdisk_word(pdisk)
        ));
        if wish == PdiskWish::Fail {
            last_copies::told(&report.map, pdisk).into_iter().for_each(output::line);
        }
        Ok(())
    })
}

/// `ropewalk pdisk add`.
pub fn pdisk_add(args: &PdiskAdd) -> Result<()> {
    let mut dir = args.dir.open()?;
    let _held = hold_nodes(&mut dir)?;
    let path = args.path.as_deref().map(path::absolute).transpose().context("--path")?;
    let place = Place { size: args.size, path, log_dir: args.log_dir.clone() };
    let Made { id, name, before, .. } = add(&mut dir, &args.node, place, None)?;
    has_ended(&mut dir, id)?;
    let (before, another) = match before {
        true => (", which an interrupted run had begun", "; for another one give the command again"),
        false => ("", ""),
    };
    output::line(format!("{name} is there{before}; groups move to it (`ropewalk rebuild status`){another}"));
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
    let _held = hold_nodes(dir)?;
    let Made { id, name, .. } = register_anew(dir, node, place, None)?;
    has_ended(dir, id)?;
    Ok(name)
}

/// What was begun with it is done.
fn has_ended(dir: &mut ClusterDir, id: PdiskId) -> Result<()> {
    dir.keep(|file| {
        let pdisks = file.nodes.iter_mut().flat_map(|node| &mut node.pdisks);
        pdisks.filter(|p| p.id == id).for_each(|p| (p.adding, p.replaces) = (false, None));
    })
}

/// A pdisk that the manager knows.
struct Made {
    id: PdiskId,
    name: String,
    /// Its node, and what the files of that are named by here.
    node: NodeId,
    node_name: String,
    /// An interrupted run had begun it.
    before: bool,
    /// Its server has it already.
    served: bool,
}

/// As often as another machine takes the number first.
fn register_anew(dir: &mut ClusterDir, node: &str, place: Place, like: Option<PdiskId>) -> Result<Made> {
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

/// Makes a pdisk on a node, for the pools of `like` or for all.
fn add(dir: &mut ClusterDir, node: &str, place: Place, like: Option<PdiskId>) -> Result<Made> {
    let made = register_anew(dir, node, place, like)?;
    if !made.served {
        restart_node(dir, &made.node_name, made.node)?;
    }
    Ok(made)
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

/// Where one is, unless told otherwise.
fn usual_place(node: &str, id: PdiskId) -> PathBuf {
    format!("nodes/{node}/pdisk-{}", id.0).into()
}

/// Names a new one in the file, whose directory is `dir`; or finds what an interrupted run of the same command began.
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
    let there = |p: &PdiskFile| match &place.path {
        Some(path) => dir.join(path) == dir.join(&p.dir),
        None => like.is_some() || p.dir == usual_place(&node, p.id),
    };
    let begun = |p: &PdiskFile| like.map_or(p.adding, |like| p.replaces == Some(like));
    if let Some(pdisk) = entry.pdisks.iter().find(|p| begun(p) && there(p)).cloned() {
        if let Some(other) = place.size.filter(|&size| size != pdisk.size) {
            let place = dir.join(&pdisk.dir);
            bail!(
                "an interrupted run has begun one of {} in {}, not of {other}: say --size {0} to go on with it",
                pdisk.size,
                place.display()
            );
        }
        return Ok(Entered { node, pdisk, lost: None, before: true });
    }
    let size = place.size.or(entry.pdisks.first().map(|p| p.size)).context("say how large it is: --size")?;
    let path = place.path.unwrap_or_else(|| usual_place(&node, id));
    let full = dir.join(&path);
    pdisk::Pdisk::is_free(&full).with_context(|| format!("make a pdisk in {}", full.display()))?;
    // One that was begun elsewhere is not used in its place.
    entry.pdisks.retain(|p| like.is_none() || !begun(p));
    // A new disk where the lost one was: the server must not look for the old one there.
    let at = entry.pdisks.iter().position(|p| Some(p.id) == like && dir.join(&p.dir) == full);
    let lost = at.map(|at| (at, entry.pdisks.remove(at)));
    let pdisk = PdiskFile { id, dir: path, size, replaces: like, adding: like.is_none(), removing: None };
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

/// Makes it, and names it to the manager. What an interrupted run began is gone on with.
fn register(dir: &mut ClusterDir, node: &str, place: Place, like: Option<PdiskId>) -> Result<Made> {
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
    // An interrupted run may have named it already: when all of it was made. Its server may have it open.
    let (node_name, before) = (entered.node.clone(), entered.before);
    let made = |name: String, served| Made { id, name, node: node_id, node_name, before, served };
    if let Some(there) = report.map.pdisk(id).filter(|there| there.nodes.contains(&node_id)) {
        let served = report.pdisks.iter().any(|p| p.id == id && p.served);
        return Ok(made(there.name.clone(), served));
    }
    if let Err(error) = make_files(dir, &full, id, size, log_dir) {
        // An old one that it stands in the place of may be out of the file since: by it the same command finds that.
        if !entered.before || like.is_none() {
            dir.keep(|file| take_back(file, &entered))?;
        }
        return Err(error);
    }
    let number = report.map.pdisks.iter().filter(|p| p.nodes.contains(&node_id)).count() + 1;
    let taken = |name: &String| report.map.pdisks.iter().any(|p| p.name == *name);
    let name = (number..).map(|n| format!("{node}p{n}")).find(|n| !taken(n)).unwrap_or_default();
    let uses = |pool: &&PoolEntry| like.is_none_or(|like| pool.pdisks.iter().any(|p| p.id == like));
    let pools: Vec<PoolId> = report.map.pools.iter().filter(uses).map(|p| p.id).collect();
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
            // One that the manager has not heard of, or hears of later, is not given up.
            if !taken && (like.is_some() || !is_refused(&error)) {
                return Err(
                    error.context(format!("not added yet; the same command goes on with {}", full.display()))
                );
            }
            dir.keep(|file| take_back(file, &entered))?;
            // All that is in it was made by this command; the directory itself may be where a disk is mounted.
            let log = pdisk::Pdisk::log_path(&full).ok();
            empty(&full).with_context(undone)?;
            log.map(fs::remove_file);
            return Err(if taken { NumberTaken(id).into() } else { error.context("not added") });
        }
    }
    Ok(made(name, false))
}

/// Whether the manager will have none of it, now or later.
fn is_refused(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(MgrError::Config(_) | MgrError::Role(_)))
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

/// `ropewalk pdisk replace`: a new one on the same node takes over what the old one held.
pub fn pdisk_replace(args: &PdiskReplace) -> Result<()> {
    let PdiskReplace { name: PdiskName { dir, pdisk }, accept_loss, size, path, log_dir } = args;
    let mut dir = dir.open()?;
    let _held = hold_nodes(&mut dir)?;
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
    let stays =
        before.is_some_and(|p| path.as_ref().is_none_or(|path| dir.path.join(&p.dir) != dir.path.join(path)));
    if !accept_loss && (!stays || state == Some(PdiskState::Failed)) {
        last_copies::check(&report, old)?;
    }
    let place = Place { size: Some(size.unwrap_or(size_before)), path, log_dir: log_dir.clone() };
    let Made { id, name, .. } = add(&mut dir, &node, place, Some(old))?;
    // Out of the file: a new disk is where it was. One that only does not count yet (its server starts, it catches up) may hold
    // what nobody else has: it is not given up for that.
    let in_its_place = dir.file.node(node_id).is_none_or(|node| node.pdisks.iter().all(|p| p.id != old));
    let is_lost = in_its_place || state == Some(PdiskState::Failed);
    let wish = if is_lost { PdiskWish::Fail } else { PdiskWish::Drain };
    link::run(async {
        let link = Link::new(&dir)?;
        link.manager(&MgrRequest::PdiskSet { pdisk: old, wish }).await
    })?;
    has_ended(&mut dir, id)?;
    output::line(format!(
        "{name} takes the place of {pdisk}; when that is shown as \"replace\", `ropewalk pdisk remove {pdisk}` takes it out"
    ));
    Ok(())
}

/// The cluster has it no more, and the file says so.
fn take_out(dir: &mut ClusterDir, map: &ClusterMap, pdisk: PdiskId) -> Result<()> {
    let node = node_of(map, pdisk)?;
    // A server that goes on naming it would be refused when it registers again. One that is gone for good names nothing.
    if dir.file.node(node.id).is_none() && node.session.is_some() {
        bail!(elsewhere(node));
    }
    let name = map.pdisk(pdisk).map(|pdisk| pdisk.name.clone());
    let say = |dir: &mut ClusterDir, name: &Option<String>| {
        dir.keep(|file| {
            let pdisks = file.nodes.iter_mut().flat_map(|node| &mut node.pdisks);
            pdisks.filter(|p| p.id == pdisk).for_each(|p| p.removing.clone_from(name));
        })
    };
    say(dir, &name)?;
    let request = MgrRequest::PdiskSet { pdisk, wish: PdiskWish::Remove };
    let asked = link::run(async { Link::new(dir)?.manager(&request).await });
    let Err(error) = asked else { return Ok(()) };
    if !is_refused(&error) {
        return Err(error);
    }
    // Asked twice, since the first answer was lost, it refuses what it has done.
    let map = link::run(async { Ok(Link::new(dir)?.cluster().await?.map) });
    if map.is_ok_and(|map| map.pdisk(pdisk).is_none()) {
        return Ok(());
    }
    say(dir, &None)?;
    Err(error)
}

/// `ropewalk pdisk remove`.
pub fn pdisk_remove(args: &PdiskName) -> Result<()> {
    let mut dir = args.dir.open()?;
    let _held = hold_nodes(&mut dir)?;
    let report = link::run(async { Link::new(&dir)?.cluster().await })?;
    let named = |p: &&PdiskFile| {
        p.removing.as_ref().is_some_and(|name| [name, &p.id.0.to_string()].contains(&&args.pdisk))
    };
    let begun = dir.file.nodes.iter().flat_map(|node| &node.pdisks).find(named).map(|p| p.id);
    let pdisk = match (find_pdisk(&report.map, &args.pdisk), begun) {
        // An interrupted run has taken it out of the cluster.
        (Err(_), Some(begun)) => begun,
        (found, _) => {
            let pdisk = found?;
            take_out(&mut dir, &report.map, pdisk)?;
            pdisk
        }
    };
    let of = dir.file.nodes.iter().find_map(|node| {
        let here = node.pdisks.iter().find(|p| p.id == pdisk)?;
        Some((node.name.clone(), node.id, here.dir.clone()))
    });
    let Some((node, id, place)) = of else {
        output::line(format!("{} is out", args.pdisk));
        return Ok(());
    };
    // It leaves out what the file names and the cluster does not. The file goes last: by it the same command finds what is to be done.
    restart_node(&dir, &node, id)?;
    dir.keep(|file| file.nodes.iter_mut().for_each(|node| node.pdisks.retain(|p| p.id != pdisk)))?;
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
