//! `ropewalk up`: a whole cluster on this machine, or what this machine runs of one. Makes it if the directory is empty, starts
//! what does not run yet, mounts, and stays until Ctrl-C unless told to detach.
//! Where systemd has units for its directory, these are started, and it comes back: they stay.
//! On failure of a new cluster everything made is removed; of an existing one, what was started is ended.

use std::{
    ffi::OsStr,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    process::Child,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use base::units::human_size;
use wire::{
    map::ClusterMap,
    mgr::{MgrReply, MgrRequest},
};

use crate::{
    args::{ListenAt, Up},
    cluster_dir::{Addrs, ClusterDir, NodeFile, make},
    commands::{down, mount, page},
    interrupt::{self, Interrupted},
    link::{self, Link},
    output,
    process::{
        control, mounts, pid_file, presence,
        tcp_ports::{self, Beside},
        units,
    },
};

/// How long the processes may take to serve: a server may have to wait out a lease and replay its log.
const START_PATIENCE: Duration = Duration::from_secs(90);

/// Does it.
pub fn up(args: &Up) -> Result<()> {
    let path = args.dir.path()?;
    interrupt::catch()?;
    let dir = match ClusterDir::open_if_made(&path)? {
        Some(mut dir) => {
            check_same(&dir, args)?;
            let _held = (check_beside(&dir, args)?, page::check(&args.page, Some(&dir))?);
            make_private(&mut dir)?;
            remember_mount(&mut dir, args)?;
            remember_metrics(&mut dir, args)?;
            page::remember(&mut dir, &args.page)?;
            dir
        }
        None => {
            let _held = page::check(&args.page, None)?;
            make::make(&path, args)?
        }
    };
    page::draw(&dir, &args.page)?;
    say_taken(&dir);
    let mut started = Started::new(args.no_service);
    let page = match bring_up(&dir, args, &mut started) {
        Ok(page) => page,
        Err(error) => {
            // Ended here, so that what is said then is true.
            drop(started);
            return Err(if error.is::<Interrupted>() {
                Interrupted(down::left_running(&dir)).into()
            } else {
                error
            });
        }
    };
    output::line(format!(
        "cluster {} is up{} {} nodes, {} pdisks of {} in all",
        dir.file.name,
        match dir.file.own_managers().len() {
            0 => " on this machine:".to_owned(),
            1 => ": 1 manager,".to_owned(),
            n => format!(": {n} managers,"),
        },
        dir.file.nodes.len(),
        dir.file.nodes.iter().map(|n| n.made().count()).sum::<usize>(),
        human_size(dir.file.nodes.iter().flat_map(NodeFile::made).map(|p| p.size.0).sum()),
    ));
    if args.detach || started.has_services() {
        started.begun.clear();
        output::line(format!("stop it with: ropewalk down --dir {}", dir.path.display()));
        return page;
    }
    if let Err(error) = page {
        output::note(&format!("{error:#}"));
    }
    output::line("Ctrl-C stops it");
    while !interrupt::asked() {
        std::thread::sleep(Duration::from_millis(50));
    }
    interrupt::taken();
    // The children are reaped here, since `down` sees an unreaped one as gone but the system does not.
    let ended = down::stop(&dir, false);
    started.begun.clear();
    ended
}

/// Starts what this machine runs of a cluster, and leaves it running.
pub fn start(dir: &ClusterDir, no_service: bool) -> Result<()> {
    let mut started = Started::new(no_service);
    serve_all(dir, &mut started)?;
    started.begun.clear();
    Ok(())
}

/// Starts what does not run yet, and mounts. Returned is what became of the page, for which nothing else is ended.
fn bring_up(dir: &ClusterDir, args: &Up, started: &mut Started) -> Result<Result<()>> {
    serve_all(dir, started)?;
    let mount = dir.file.mount.clone().filter(|_| !args.no_mount);
    if let Some(mountpoint) = &mount {
        if pid_file::live_pid(&dir.pid_file(&mounts::process_name(mountpoint))).is_none() {
            mounts::wait_dead(mountpoint);
        }
        let mountpoint = &mounts::check_mountpoint(mountpoint, &dir.path)?;
        if mounts::is_mounted(mountpoint)
            && pid_file::live_pid(&dir.pid_file(&mounts::process_name(mountpoint))).is_some()
        {
            output::line(format!("fs1 is mounted on {} already", mountpoint.display()));
        } else {
            let log = dir.log_file(&mounts::process_name(mountpoint));
            let child = mount::start(dir, "fs1", mountpoint, &mount::Way::default())?;
            started.begun.push(Begun::Child { name: "the mount".to_owned(), child, log, from: 0 });
            output::line(format!("fs1 is mounted on {}", mountpoint.display()));
        }
    }
    match page::begin(dir, args.no_service) {
        Err(error) if error.is::<Interrupted>() => Err(error),
        page => Ok(page),
    }
}

/// A process that was started here.
enum Begun {
    /// Apart from any service, with its log, and where in that its own lines begin.
    Child { name: String, child: Child, log: PathBuf, from: u64 },
    /// A unit of systemd.
    Service { name: String, unit: String },
}

impl Begun {
    fn name(&self) -> &str {
        let (Begun::Child { name, .. } | Begun::Service { name, .. }) = self;
        name
    }

    /// Refuses one that has ended, unless another one is there: a command that restarts it was faster.
    fn check(&mut self, dir: &ClusterDir) -> Result<()> {
        match self {
            Begun::Child { name, child, log, from } => {
                match child.try_wait().context("look after a child process")? {
                    None => Ok(()),
                    Some(_) if pid_file::live_pid(&dir.pid_file(name)).is_some() => Ok(()),
                    Some(status) => {
                        bail!("{name} ended at its start ({status}): {}", control::last_words(log, *from))
                    }
                }
            }
            Begun::Service { name, unit } => match units::ended(unit) {
                None => Ok(()),
                Some(why) => bail!("{name} ({unit}) ended at its start: {why}"),
            },
        }
    }
}

/// What is ended again if `up` fails half way.
struct Started {
    begun: Vec<Begun>,
    /// Nothing becomes a service.
    no_service: bool,
}

impl Started {
    fn new(no_service: bool) -> Started {
        Started { begun: Vec::new(), no_service }
    }

    fn has_services(&self) -> bool {
        self.begun.iter().any(|begun| matches!(begun, Begun::Service { .. }))
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        for begun in &mut self.begun {
            match begun {
                Begun::Service { unit, .. } => units::give_up(unit),
                Begun::Child { child, .. } => {
                    if std::thread::panicking() || child.try_wait().ok().flatten().is_none() {
                        control::terminate(child.id());
                    }
                }
            }
        }
        for begun in &mut self.begun {
            if let Begun::Child { child, .. } = begun {
                let _ = child.wait();
            }
        }
    }
}

/// Options that contradict the existing cluster are errors, not silently ignored.
fn check_same(dir: &ClusterDir, args: &Up) -> Result<()> {
    let differs = |what: &str, here: String, asked: String| -> Result<()> {
        if here == asked {
            return Ok(());
        }
        bail!(
            "--{what} {asked}: the cluster in {} has {here}; leave the option out, or make another cluster in another directory",
            dir.path.display()
        )
    };
    let first = dir.file.nodes.first();
    let first_pdisk = first.and_then(|node| node.pdisks.first());
    if let Some(nodes) = args.nodes {
        differs("nodes", dir.file.nodes.len().to_string(), nodes.to_string())?;
    }
    if let Some(pdisks) = args.pdisks {
        differs("pdisks", first.map_or(0, |node| node.made().count()).to_string(), pdisks.to_string())?;
    }
    if let Some(size) = args.pdisk_size {
        differs("pdisk-size", first_pdisk.map(|p| p.size).unwrap_or_default().to_string(), size.to_string())?;
    }
    if let (Some(asked), Some(pdisk)) = (&args.log_dir, first_pdisk) {
        let log = pdisk::Pdisk::log_path(&dir.path.join(&pdisk.dir))?;
        if !asked.canonicalize().is_ok_and(|asked| log.starts_with(asked)) {
            differs("log-dir", log.display().to_string(), asked.display().to_string())?;
        }
    }
    // The manager's, as a new cluster has them; elsewhere those of the first node.
    let at = first.filter(|_| !dir.file.manager_here).map_or(&dir.file.manager, |node| &node.addr).main();
    if let Some(listen) = args.listen {
        differs("listen", at.ip().to_string(), listen.to_string())?;
    }
    if let Some(asked) = args.cipher_list
        && asked != dir.cipher_list()?
    {
        bail!(
            "--cipher-list is for a new cluster; this one's connections are changed while it runs: \
             ropewalk config set cipherList={asked}"
        );
    }
    if let Some(port) = args.port {
        differs("port", at.port().to_string(), port.to_string())?;
    }
    if let Some(code) = &args.code {
        differs("code", dir.file.code.clone().unwrap_or_default(), code.clone())?;
    }
    if let Some(asked) = &args.journal.store {
        let here = match &dir.file.etcd {
            None => "a file",
            Some(etcd) if !etcd.members.is_empty() => "etcd",
            Some(etcd) => &etcd.place,
        };
        differs("store", here.to_owned(), asked.to_string())?;
    }
    if let Some(managers) = args.managers {
        let here = dir.file.own_managers().len();
        differs("managers", here.to_string(), managers.to_string())?;
    }
    if let Some(size) = args.block_size {
        differs("block-size", dir.file.block_size.unwrap_or_default().to_string(), size.to_string())?;
    }
    Ok(())
}

/// A cluster that an older version made is its owner's only from now on, and gets a secret.
fn make_private(dir: &mut ClusterDir) -> Result<()> {
    let open = dir.close_to_others()?;
    if open > 0 {
        output::line(format!(
            "{open} files and directories of the cluster were open to other users; now they are not"
        ));
    }
    if dir.file.secret.is_none() && dir.file.manager_here {
        let secret = make::new_secret()?;
        dir.keep(|file| {
            file.secret.get_or_insert(secret);
        })?;
        output::line(
            "cluster.toml has a secret now, without which nothing speaks to the cluster; other machines join with a token (`ropewalk node token`)",
        );
    }
    Ok(())
}

fn remember_mount(dir: &mut ClusterDir, args: &Up) -> Result<()> {
    let Some(wanted) = &args.mount else { return Ok(()) };
    if pid_file::live_pid(&dir.pid_file(&mounts::process_name(wanted))).is_none() {
        mounts::wait_dead(wanted);
    } else if dir.file.mount.as_ref() == Some(wanted) {
        // A look at it would wait for servers that do not run yet.
        return Ok(());
    }
    let wanted = mounts::check_mountpoint(wanted, &dir.path)?;
    if dir.file.mount.as_ref() != Some(&wanted) {
        dir.keep(|file| file.mount = Some(wanted))?;
    }
    Ok(())
}

/// Refuses ports of metrics and of the page that cannot be had beside each other, or not for metrics. Returned are those, held.
fn check_beside(dir: &ClusterDir, args: &Up) -> Result<Vec<TcpListener>> {
    let page = args.page.analytics.map_or(dir.file.analytics, |at| at.0);
    let metrics = args.metrics.map_or(dir.file.metrics, |at| at.0);
    let mount = args.mount.is_some() || dir.file.mount.is_some();
    if (page, metrics, mount) == (dir.file.analytics, dir.file.metrics, dir.file.mount.is_some()) {
        return Ok(Vec::new());
    }
    let beside = Beside::new(page, metrics, tcp_ports::showing(dir, mount));
    beside.check_apart()?;
    if args.metrics.is_some() { beside.hold(Some(dir)) } else { Ok(Vec::new()) }
}

fn remember_metrics(dir: &mut ClusterDir, args: &Up) -> Result<()> {
    if let Some(ListenAt(metrics)) = args.metrics
        && dir.file.metrics != metrics
    {
        dir.keep(|file| file.metrics = metrics)?;
    }
    Ok(())
}

/// Says which port for metrics somebody else has by now. That keeps nobody from his work: they are shown when it is free.
fn say_taken(dir: &ClusterDir) {
    if let Err(error) = Beside::of(dir, 0).hold(Some(dir))
        && !error.is::<Interrupted>()
    {
        output::note(&format!(
            "not all metrics are shown: {error:#}. All else works, and they are shown when the port is free; `ropewalk up --metrics off` \
             has them not shown any more"
        ));
    }
}

/// Starts the servers that do not run, but for those started already.
fn start_servers(dir: &ClusterDir, started: &mut Started) -> Result<()> {
    let absent: Vec<(String, Addrs)> = dir
        .servers()
        .into_iter()
        .filter(|(name, _)| started.begun.iter().all(|begun| begun.name() != *name))
        .filter(|(name, _)| pid_file::live_pid(&dir.pid_file(name)).is_none())
        .collect();
    for (name, addrs) in &absent {
        // Who ends takes its pid file away before it lets its port go.
        let ends = dir.pid_file(name).exists() || presence::restart_file(dir, name).exists();
        tcp_ports::take(ends, || addrs.iter().try_for_each(|&addr| check_port(name, addr)))?;
    }
    for (name, _) in absent {
        let unit = if started.no_service { None } else { units::of_process(&dir.path, &name) };
        if let Some(unit) = unit {
            started.begun.push(Begun::Service { name: name.clone(), unit: unit.clone() });
            units::begin(&unit).with_context(|| format!("start {name} as a service"))?;
            continue;
        }
        let log = dir.log_file(&name);
        let from = std::fs::metadata(&log).map(|m| m.len()).unwrap_or(0);
        let args: [&OsStr; 5] =
            ["serve".as_ref(), "--dir".as_ref(), dir.path.as_ref(), "--name".as_ref(), name.as_ref()];
        let child = control::spawn_detached(&args, &log)?;
        started.begun.push(Begun::Child { name, child, log, from });
    }
    Ok(())
}

/// A taken port is said before anything is started.
pub fn check_port(name: &str, addr: SocketAddr) -> Result<()> {
    TcpListener::bind(addr)
        .map(drop)
        .with_context(|| format!("{addr} for {name} is not free; stop the program that has it (`ss -ltnp` shows which), or choose other ports with --port for a new cluster"))
}

/// Starts what does not run, and waits until all nodes of this machine serve.
fn serve_all(dir: &ClusterDir, started: &mut Started) -> Result<()> {
    let end = Instant::now() + START_PATIENCE;
    let nodes = &dir.file.nodes;
    let bar = output::spinner("starting");
    link::run(async {
        let (mut link, mut why) = (None, String::new());
        loop {
            interrupt::check()?;
            // Each turn: who was just being killed when it was looked for is gone by now.
            start_servers(dir, started)?;
            started.begun.iter_mut().try_for_each(|begun| begun.check(dir))?;
            let asked = match ask_map(dir, &mut link).await {
                Ok(map) => Some(nodes.iter().filter(|n| serving(dir, n, &map)).count()),
                // Another version runs: that does not pass.
                Err(error) if is_refused(&error) => return Err(error),
                // It starts, or does not answer.
                Err(error) => {
                    why = format!("{error:#}");
                    None
                }
            };
            let text = match asked {
                Some(serve) => format!("{serve} of {} nodes serve", nodes.len()),
                None => format!("the manager at {} does not answer", dir.managers.places()),
            };
            if asked == Some(nodes.len()) && managers_stand(dir) {
                bar.finish_and_clear();
                return Ok(());
            }
            if Instant::now() > end && (!dir.file.manager_here || dir.file.keeps_copy) {
                bar.finish_and_clear();
                output::note(&format!(
                    "the manager does not answer yet: what was started waits for it ({why})"
                ));
                return Ok(());
            }
            if Instant::now() > end {
                bail!("after {START_PATIENCE:?} {text}; the logs are in {}", dir.path.join("log").display());
            }
            bar.set_message(text);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
}

/// Asks the manager. A machine whose certificate has ended has it renewed first, for which the manager must answer as well.
async fn ask_map(dir: &ClusterDir, link: &mut Option<Link>) -> Result<ClusterMap> {
    let link = match link {
        Some(link) => link,
        None => link.insert(Link::new(dir)?),
    };
    match link.manager(&MgrRequest::GetMap).await? {
        MgrReply::Map(map) => Ok(*map),
        other => bail!("unexpected answer from the manager: {other:?}"),
    }
}

fn is_refused(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| matches!(cause.downcast_ref(), Some(net::CallError::Refused(_))))
}

/// Those of this machine each lead or follow. A single one is seen by its answers.
fn managers_stand(dir: &ClusterDir) -> bool {
    let own = dir.file.own_managers();
    own.len() < 2 || own.iter().all(|one| dir.ready_file(&one.local).exists())
}

/// A node serves if it is registered and its process lives.
fn serving(dir: &ClusterDir, node: &NodeFile, map: &ClusterMap) -> bool {
    map.node(node.id).is_some_and(|entry| entry.session.is_some())
        && pid_file::live_pid(&dir.pid_file(&node.name)).is_some()
        && dir.ready_file(&node.name).exists()
        // One that ends, whom nobody may start again, is to be started.
        && !presence::restart_file(dir, &node.name).exists()
}
