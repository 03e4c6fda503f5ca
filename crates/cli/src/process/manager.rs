//! The manager's process. One with its journal in etcd answers from its beginning: as long as another one leads it follows, and says
//! who asks that it is not the active one.
//!
//! When it is deposed, or has made way, nothing of it counts any more, and it starts its program anew, as the same process: what
//! comes up reads what counts.

use std::{
    os::unix::process::CommandExt as _,
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use base::{Epoch, MemberId, SessionId, beat};
use manager::{
    Manager, Replicated,
    format::store_path,
    store::{self, CopyPlace, Following, KeptBy, NetWay, Part, Standing, TableCopy},
};
use net::{Endpoint, Role};
use wire::mgr::{MgrReply, MgrRequest};

use super::{
    admin, endpoint, joining::Door, losses, presence::Presence, resolver, secrets, service, shut_out,
    stop::Stop, tunables,
};
use crate::{
    cluster_dir::{ClusterDir, OwnManager, access, host::host_name},
    link::Link,
};

/// How long a manager waits for the store of one that was killed.
const STORE_WAIT: Duration = Duration::from_secs(5);
/// Between two looks at how it stands.
const LOOK: Duration = Duration::from_millis(50);
/// Between two attempts to copy the table.
const COPY_PAUSE: Duration = Duration::from_millis(300);
/// How often those who ask for the authorities are told anew.
const TELL: Duration = Duration::from_secs(1);
/// How long one that follows may take to write what it has read, when it is told to stop.
const END_MAX: Duration = Duration::from_secs(10);
/// How long a manager may take to register itself.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two questions of a standby to the active one whether it is still one of the cluster's.
const ASK: Duration = Duration::from_secs(2);

/// Opens the manager's store, when it is this manager's turn. The process that had it may be dead for all to see and still have
/// threads that hold the file: who restarts a killed manager at once waits for them.
///
/// `ROPEWALK_MANAGER_UNFLUSHED` is a seed, for tests: what the store has not flushed is lost when this process is killed.
async fn open(
    dir: &ClusterDir,
    own: &OwnManager,
    endpoint: Option<&Endpoint>,
    following: &Following,
) -> Result<Manager> {
    let seed = std::env::var("ROPEWALK_MANAGER_UNFLUSHED").ok();
    let seed = seed.map(|seed| seed.parse().context("read ROPEWALK_MANAGER_UNFLUSHED")).transpose()?;
    let standing = Standing {
        who: format!("process {} on {}", std::process::id(), host_name()),
        entry: own.entry.entry(),
        standby: true,
        following: following.clone(),
        ..Standing::default()
    };
    let journal = match &dir.file.etcd {
        Some(etcd) => Some(Replicated { place: etcd.place()?, standing }),
        None => None,
    };
    let mirror: Option<Arc<dyn CopyPlace>> = match (&dir.file.mirror_on, endpoint) {
        (Some(name), Some(endpoint)) => {
            let way = Box::new(NetWay::new(endpoint, dir.keeper_addrs(name)));
            Some(Arc::new(KeptBy::new(way, name, dir.witness_of(&dir.data_of(own)), manager::VOTERS)?))
        }
        _ => dir.mirror().map(|mirror| Arc::new(mirror) as _),
    };
    let options = manager::Options { loses_unflushed: seed, journal, mirror, ..manager::Options::default() };
    let (place, until) = (dir.data_of(own), Instant::now() + STORE_WAIT);
    let follows = options.journal.is_some();
    if follows {
        // Before it is this one's turn: it remembers what another one removes meanwhile.
        access::make_dir(&place).with_context(|| format!("create {}", place.display()))?;
        manager::last_names::keep(&place);
    }
    loop {
        if let Some(endpoint) = endpoint.filter(|_| follows && dir.managers.known().len() > 1) {
            tokio::select! {
                copied = copy_if_none(dir, &place, endpoint) => copied?,
                // What there is of it is made anew.
                () = ends(following) => bail!("told to stop before the table was copied"),
            }
        }
        let (path, options) = (place.clone(), options.clone());
        let opening = tokio::task::spawn_blocking(move || Manager::open_with(&path, &options));
        match opening.await.context("open the manager's store")? {
            Err(error) if error.is_in_use() && Instant::now() < until => tokio::time::sleep(LOOK).await,
            Err(error) if error.is_behind() && endpoint.is_some() && dir.managers.known().len() > 1 => {
                tracing::warn!("{error}: the table is copied anew from the active manager");
                store::put_aside(&store_path(&place))?;
            }
            outcome => {
                let manager = outcome.context("open the manager's store")?;
                if !follows {
                    manager::last_names::keep(&place);
                }
                return Ok(manager);
            }
        }
    }
}

/// Copies the table from the active manager if there is none here.
async fn copy_if_none(dir: &ClusterDir, place: &Path, endpoint: &Endpoint) -> Result<()> {
    let path = store_path(place);
    if path.exists() {
        return Ok(());
    }
    access::make_dir(place).with_context(|| format!("create {}", place.display()))?;
    let link = Link::over(endpoint, &dir.managers);
    let begun = Instant::now();
    tracing::info!("copies the table from the active manager");
    service::status("copies the table from the active manager");
    loop {
        match copy(&path, &link).await {
            Ok(()) => break,
            // It starts, or another one has just taken over.
            Err(error) => tracing::info!("the table is not copied yet: {error:#}"),
        }
        tokio::time::sleep(COPY_PAUSE).await;
    }
    tracing::info!("the table is copied ({:.1} s)", begun.elapsed().as_secs_f64());
    Ok(())
}

async fn copy(path: &Path, link: &Link) -> Result<()> {
    let (mut copy, mut after) = (TableCopy::begin(path)?, Vec::new());
    loop {
        let part = match link.manager(&MgrRequest::CopyTable { after }).await? {
            MgrReply::TablePart { journal, applied, crc, life, records, more } => {
                Part { mark: store::Mark { journal, applied, etcd: Some(crc) }, life, records, more }
            }
            other => bail!("unexpected answer from the manager to CopyTable: {other:?}"),
        };
        match tokio::task::spawn_blocking(move || copy.take(part)).await.context("write the table")?? {
            None => return Ok(()),
            Some(goes_on) => copy = goes_on,
        }
        after = copy.last_key().to_vec();
    }
}

/// Resolves when another one leads, and is followed.
async fn follows(own: &OwnManager, following: &Following) {
    while following.leader().is_none_or(|leader| leader.name == own.entry.name) {
        tokio::time::sleep(LOOK).await;
    }
}

/// Resolves when this one is told to end.
async fn ends(following: &Following) {
    while !following.ends() {
        tokio::time::sleep(LOOK).await;
    }
}

/// Resolves when the active manager's map does not name this one any more: it was removed.
pub(super) async fn removed(dir: &ClusterDir, own: &OwnManager, endpoint: Option<&Endpoint>) {
    let Some(endpoint) = endpoint else { return std::future::pending().await };
    let (link, mut have, mut was_there) = (Link::over(endpoint, &dir.managers), Epoch(0), false);
    loop {
        if let Ok(MgrReply::Map(map)) = link.manager(&MgrRequest::WaitMap { have }).await {
            have = map.epoch;
            let there = map.managers.iter().any(|one| one.name == own.entry.name);
            if was_there && !there {
                return;
            }
            was_there |= there;
        } else {
            tokio::time::sleep(ASK).await;
        }
    }
}

/// Keeps what the manager says of the cluster's authorities as its process believes them.
async fn tell_authorities(manager: Manager, endpoint: Endpoint) {
    loop {
        let believed: Vec<_> = endpoint.identity().believed().iter().map(|one| one.0).collect();
        let exchanging = believed.len() > 1;
        let others = if exchanging { endpoint.of_other_authorities() } else { Vec::new() };
        manager.set_authorities(believed, others);
        tokio::time::sleep_until(beat::by(Instant::now(), TELL).into()).await;
    }
}

/// Has the map name this machine's managers, where there can be several: this one, which leads, and at the beginning the others that
/// this machine runs. False: the map names others, and this one was removed while it was down.
async fn register(dir: &ClusterDir, own: &OwnManager, manager: &Manager) -> Result<bool> {
    let named = manager.map().borrow().managers.clone();
    let none = named.is_empty();
    if !none && named.iter().all(|one| one.name != own.entry.name) {
        return Ok(false);
    }
    for one in dir.file.own_managers().into_iter().filter(|one| none || one.local == own.local) {
        let expires = (Instant::now() + PATIENCE).into();
        let caller = manager::Caller { session: SessionId(0), member: MemberId(0), expires, build: None };
        match manager.handle(caller, MgrRequest::ManagerSet(one.entry.entry())).await {
            MgrReply::Done => {}
            other => bail!("the cluster does not take manager {}: {other:?}", one.entry.name),
        }
    }
    let map = manager.map().borrow().clone();
    dir.managers.learn(&map);
    Ok(true)
}

/// This machine's cluster.toml has this manager no more.
pub(super) fn forget(dir: &ClusterDir, own: &OwnManager) -> Result<()> {
    tracing::info!("manager {} was removed from the cluster", own.entry.name);
    ClusterDir::change_managers(&dir.path, |all| {
        all.iter().filter(|one| one.name != own.entry.name).cloned().collect()
    })
}

/// Starts the program anew in the place of this one. Comes back only with why not.
fn start_over(presence: Presence) -> anyhow::Error {
    drop(presence);
    crate::logging::flush();
    let program = std::env::current_exe();
    let run = |program| Command::new(program).args(std::env::args_os().skip(1)).exec();
    let error = program.map_or_else(|error| error, run);
    anyhow::Error::new(error).context("start the manager's program anew")
}

/// What a process that is a manager does until it leads: it listens, and answers.
pub(super) fn listen(
    dir: &ClusterDir,
    own: &OwnManager,
    door: &Arc<Door>,
) -> Result<(Endpoint, Arc<admin::Running>)> {
    let endpoint = endpoint::start_endpoint(dir, Role::Manager, base::NodeId(0), &own.entry.addr)?;
    let told = admin::serve_admin(&endpoint, "manager", &own.entry.name);
    told.history.keep(dir, &own.local, (&own.entry.name, "manager"), None);
    let door = Arc::clone(door);
    endpoint.receive_visitors(Box::new(move |from, said| {
        let door = Arc::clone(&door);
        Box::pin(async move { door.answer(from, &said).await })
    }));
    tunables::follow(&endpoint, dir, Arc::clone(&told));
    secrets::tell(dir, &endpoint);
    Ok((endpoint, told))
}

/// Until it is told to stop.
pub async fn run(dir: &ClusterDir, own: &OwnManager, presence: Presence, mut stop: Stop) -> Result<()> {
    let (following, door) = (Following::default(), Arc::new(Door::new(dir)));
    let mut listening = None;
    let several = dir.file.etcd.is_some();
    if several || dir.file.mirror_on.is_some() {
        let (endpoint, told) = listen(dir, own, &door)?;
        if several {
            let _ = told.standing.set(following.clone()); // once
        }
        manager::serve_standby(&endpoint, following.clone());
        listening = Some((endpoint, told));
    }
    let network = listening.as_ref().map(|(endpoint, _)| endpoint);
    let manager = {
        let mut opening = std::pin::pin!(open(dir, own, network, &following));
        let mut removed = std::pin::pin!(removed(dir, own, network.filter(|_| several)));
        let mut ready = false;
        loop {
            tokio::select! {
                () = stop.wait() => {
                    // One that follows writes what it has read into its table. What else it is at before it leads is left as after a
                    // crash.
                    following.end();
                    if following.leader().is_some()
                        && let Ok(Ok(leads)) = tokio::time::timeout(END_MAX, opening).await
                    {
                        leads.stop().await;
                    }
                    presence.end_process(Ok(()))
                }
                opened = &mut opening => match opened {
                    Err(error) if following.is_deposed() => {
                        tracing::warn!("{error:#}");
                        return Err(start_over(presence));
                    }
                    opened => break opened?,
                },
                () = follows(own, &following), if !ready => {
                    presence.ready()?;
                    tracing::info!("manager {} follows", own.entry.name);
                    service::status("follows the active manager");
                    ready = true;
                }
                () = &mut removed => presence.end_process(forget(dir, own)),
            }
        }
    };
    let begun = async {
        shut_out::merge(dir, &manager).await?;
        match &listening {
            Some(_) if several => register(dir, own, &manager).await,
            _ => Ok(true),
        }
    };
    match begun.await {
        Ok(true) => {}
        Ok(false) => presence.end_process(forget(dir, own)),
        Err(error) if following.is_deposed() => {
            tracing::warn!("{error:#}");
            return Err(start_over(presence));
        }
        Err(error) => return Err(error),
    }
    tokio::spawn(shut_out::keep(dir.path.clone(), manager.clone()));
    let (endpoint, told) = match listening {
        Some(listening) => listening,
        None => listen(dir, own, &door)?,
    };
    let _ = told.manager.set(manager.clone()); // once
    let running = manager.serve(&endpoint)?;
    door.open_for(running.manager());
    tokio::spawn(tell_authorities(running.manager().clone(), endpoint.clone()));
    presence.ready()?;
    tracing::info!("manager serves at {}", own.entry.addr);
    let made_way = tokio::select! {
        // No arm holds state: the signal ends the process, and so does the store's failure.
        () = stop.wait() => false,
        () = running.manager().resigned() => true,
        error = running.failed() => {
            if following.is_deposed() {
                tracing::warn!("{error}");
                return Err(start_over(presence));
            }
            bail!("the manager stops: {error}")
        }
        // What it is at is bounded by its session, which lapses.
        end = resolver::run(dir, running.manager()) => { end?; false }
        // It only looks.
        never = losses::run(dir, running.manager()) => match never {}
    };
    if made_way {
        door.close();
        manager::serve_standby(&endpoint, following);
    }
    running.stop().await;
    if made_way { Err(start_over(presence)) } else { Ok(()) }
}
