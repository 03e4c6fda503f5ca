//! `ropewalk init`, `ropewalk node token` and `ropewalk join`: a cluster of several machines.

use std::{
    env, fs,
    io::{self, Read, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::Command,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result, bail};
use net::{Role, VisitError};
use serde::Serialize;
use trust::{Request, Token, Visitor};
use wire::{
    credentials::{NOBODY, Squash},
    frame,
    join::{JoinRequest, Joined, VisitReply, VisitRequest},
    map::{Limits, ManagerEntry, Subtree},
    mgr::MgrRequest,
};

use crate::{
    args::{Init, Join, MANAGER_PORT, NODE_PORT, NodeToken, SquashKind},
    cluster_dir::{
        Addrs, ClusterDir, ClusterFile, DEFAULT_DIR, EtcdFile, ManagerFile, NodeFile, access, host, init,
        keys, make, manager_file,
    },
    commands::{members::SquashRow, page, pdisks, up},
    interrupt,
    link::{self, Link},
    output,
    process::{pid_file, tcp_ports::Beside},
};

/// How long the manager may take to answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// How often each manager is asked.
const TRIES: usize = 3;
/// Before the next is asked, where one is not active.
const PAUSE: Duration = Duration::from_millis(500);
/// The token comes on standard input.
const STDIN: &str = "-";
/// Longest token that is read.
const TOKEN_LEN_MAX: u64 = 4096;

/// `ropewalk init`.
pub fn init(args: &Init) -> Result<()> {
    interrupt::catch()?;
    let held = page::check(&args.page, None)?;
    let dir = init::init(args)?;
    drop(held);
    page::draw(&dir, &args.page)?;
    up::start(&dir, args.no_service)?;
    output::line(format!(
        "cluster {} is up: the manager, and node {}",
        dir.file.name, dir.file.nodes[0].name
    ));
    let place = dir.path.display();
    output::line(format!("let other machines join: ropewalk node token --dir {place}"));
    output::line(format!(
        "then: ropewalk pool create --dir {place} data --code 4+2p --block-size 4m; ropewalk fs create --dir {place} fs1 --pool data"
    ));
    page::begin(&dir, args.no_service)
}

#[derive(Serialize)]
struct Printed<'a> {
    token: String,
    role: String,
    expires_s: u64,
    /// Those that it may mount; empty: all.
    filesystems: &'a [String],
    read_only: bool,
    /// The directory that it is bound to.
    subtree: Option<&'a str>,
    #[serde(flatten)]
    squash: SquashRow,
}

/// `ropewalk node token`.
pub fn token(args: &NodeToken) -> Result<()> {
    let dir = args.dir.open()?;
    let authorities = dir.file.authorities()?.context(
        "tokens are made where the cluster was made: this machine has no secret of the cluster in its cluster.toml",
    )?;
    let managers = dir.managers.known();
    if managers.iter().flat_map(ManagerEntry::sockets).all(|addr| addr.ip().is_loopback()) {
        output::note(
            "the manager listens on loopback: only this machine can join (`ropewalk init --address`)",
        );
    }
    let role = args.role.into();
    let squash = squash(args)?;
    let limited = args.read_only || args.subtree.is_some() || !args.filesystems.is_empty() || squash.is_any();
    if role != Role::Client && limited {
        bail!("--fs, --subtree, --read-only and --squash are for clients; add --role client");
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let token = Token {
        role,
        id: u64::from_le_bytes(make::random()?).max(1), // 0 is who has the secret
        expires: now + args.lifetime.as_secs(),
        secret: make::random()?,
        authority: authorities.newest().fingerprint(),
        managers: dir.managers.known().iter().flat_map(ManagerEntry::sockets).collect(),
    };
    link::run(async {
        let link = Link::new(&dir)?;
        if role == Role::Manager && dir.file.etcd.is_none() {
            // The map names those that there are, once there can be several.
            for own in dir.file.own_managers() {
                link.manager(&MgrRequest::ManagerSet(own.entry.entry())).await?;
            }
        }
        let invite = MgrRequest::Invite {
            token: token.id,
            hash: Token::hash(&token.secret),
            role: token.role,
            expires: token.expires,
            now,
            limits: Limits { squash, ..limits(&link, args).await? },
        };
        let sent = link.manager(&invite).await;
        sent.with_context(|| match &args.subtree {
            Some(path) => {
                format!("--subtree {path}, which is to be a directory of {}", args.filesystems.join(", "))
            }
            None => "no token".to_owned(),
        })
    })?;
    if args.json {
        return output::json(&Printed {
            token: token.to_string(),
            role: format!("{:?}", token.role).to_lowercase(),
            expires_s: token.expires,
            filesystems: &args.filesystems,
            read_only: args.read_only,
            subtree: args.subtree.as_deref(),
            squash: squash.into(),
        });
    }
    output::line(token.to_string());
    Ok(())
}

/// What the machine may do.
async fn limits(link: &Link, args: &NodeToken) -> Result<Limits> {
    let mut filesystems = Vec::new();
    if !args.filesystems.is_empty() {
        let map = link.cluster().await?.map;
        for name in &args.filesystems {
            let fs = map.fs_by_name(name);
            let unknown =
                || format!("there is no file system {name}; `ropewalk fs list` shows which there are");
            filesystems.push(fs.with_context(unknown)?.id);
        }
        filesystems.sort_unstable();
        filesystems.dedup();
    }
    if args.subtree.is_some() && filesystems.len() != 1 {
        bail!("--subtree is a directory of one file system; name it with --fs");
    }
    let subtree = args.subtree.clone().map(|path| Subtree { path, ..Subtree::default() });
    Ok(Limits { filesystems, read_only: args.read_only, subtree, ..Limits::default() })
}

/// Whom its programs act as.
fn squash(args: &NodeToken) -> Result<Squash> {
    let (uid, gid) = args.anon.unwrap_or((NOBODY, NOBODY));
    match args.squash {
        SquashKind::None if args.anon.is_some() => {
            bail!("--anon says whom squashed ones act as; add --squash root or --squash all")
        }
        SquashKind::None => Ok(Squash::None),
        SquashKind::Root => Ok(Squash::Root { uid, gid }),
        SquashKind::All => Ok(Squash::All { uid, gid }),
    }
}

/// `ropewalk join`.
pub fn join(args: &Join) -> Result<()> {
    let token = Token::parse(&text_of(&args.token)?)?;
    if args.token != STDIN {
        let error = hide(&args.token);
        tracing::debug!("the token stays in the list of processes: {error}");
    }
    let path = args.dir.dir.clone().unwrap_or_else(|| DEFAULT_DIR.into());
    if let Some(dir) = ClusterDir::open_if_made(&path)?.filter(|dir| !dir.file.manager_here) {
        if token.role == Role::Manager {
            bail!(
                "{} holds what this machine is of the cluster already: give the manager a directory of its own (--dir)",
                dir.path.display()
            );
        }
        return join_again(dir, &token, args);
    }
    let addrs = server_addresses(&token, args)?;
    // What would fail after the token has been used.
    for place in &args.pdisk {
        make::pdisk_size(place, args.pdisk_size, 1)?;
    }
    interrupt::catch()?;
    let claim = ClusterDir::claim(&path)?;
    let name = args.name.clone().unwrap_or_else(host::host_name);
    let joined = ask(&token, &name, addrs.as_ref(), args.rack.as_deref()).and_then(|(key, joined)| {
        keep(&claim.path, &token, &name, addrs, &key, &joined)?;
        Ok(joined)
    });
    let joined = match joined {
        Ok(joined) => joined,
        Err(error) => {
            ClusterDir::abandon(&claim.path);
            return Err(error);
        }
    };
    drop(claim);
    let mut dir = ClusterDir::open(&path)?;
    output::line(format!(
        "this machine is a member of cluster {} now{}; its directory is {}",
        joined.name,
        if joined.node.is_some() { format!(", as node {name}") } else { String::new() },
        dir.path.display()
    ));
    if joined.manager.is_some() {
        up::start(&dir, args.no_service)?;
        if dir.file.keeps_copy {
            output::line(format!(
                "manager {name} answers at {}; for it to keep a copy of the store, on the active one's machine: ropewalk down, ropewalk manager \
                 mirror {name}, ropewalk up",
                dir.file.manager
            ));
            return Ok(());
        }
        output::line(format!("manager {name} follows at {}", dir.file.manager));
        return Ok(());
    }
    if joined.node.is_none() {
        output::line(format!(
            "mount a file system: ropewalk mount --dir {} fs1 /mnt/fs1",
            dir.path.display()
        ));
        return Ok(());
    }
    let start = format!("`ropewalk up --dir {} --detach` starts it", dir.path.display());
    for place in &args.pdisk {
        if interrupt::asked() {
            let left = format!("the machine has joined, without a pdisk in {}: {start}", place.display());
            return Err(interrupt::Interrupted(left).into());
        }
        let made = pdisks::add_before_start(&mut dir, &name, place, args.pdisk_size);
        let made = made.with_context(|| {
            format!(
                "the machine has joined, and has no pdisk in {}: {start}, `ropewalk pdisk add` tries again",
                place.display(),
            )
        })?;
        output::line(format!("{made} is in {}", place.display()));
    }
    if interrupt::asked() {
        return Err(
            interrupt::Interrupted(format!("the machine has joined, and does not serve: {start}")).into()
        );
    }
    up::start(&dir, args.no_service)?;
    output::line(format!("node {name} serves at {}", dir.file.nodes[0].addr));
    Ok(())
}

/// The same of a machine that has joined before, and was shut out or missed an exchange of the authority: it gets another
/// certificate, of another key. What it runs, and the data on it, stay.
fn join_again(mut dir: ClusterDir, token: &Token, args: &Join) -> Result<()> {
    let place = dir.path.display().to_string();
    if !args.address.is_empty() || !args.pdisk.is_empty() {
        bail!(
            "this machine has joined before ({place}): its addresses and pdisks stay; leave --address and --pdisk out"
        );
    }
    let name_of = |pid: &Path| pid.file_stem().map(|name| name.to_string_lossy().into_owned());
    let run = fs::read_dir(dir.path.join("run")).into_iter().flatten().flatten().map(|entry| entry.path());
    let pids = run.filter(|path| path.extension().is_some_and(|end| end == "pid"));
    if let Some(lives) = pids.filter(|pid| pid_file::live_pid(pid).is_some()).find_map(|pid| name_of(&pid)) {
        bail!(
            "{lives} runs here by the former certificate; end what runs first: ropewalk down --dir {place} --force"
        );
    }
    let node = dir.file.nodes.first().cloned();
    if node.is_some() != (token.role == Role::Server) {
        let was = if node.is_some() { "a server" } else { "no server" };
        bail!(
            "this machine has joined before, and is {was}: make such a token (`ropewalk node token --role`)"
        );
    }
    interrupt::catch()?;
    let name =
        args.name.clone().or_else(|| Some(node.as_ref()?.name.clone())).unwrap_or_else(host::host_name);
    let addrs = node.as_ref().map(|node| &node.addr);
    let (key, joined) = ask(token, &name, addrs, args.rack.as_deref())?;
    if joined.cluster != dir.file.cluster_id()? {
        bail!("{place} is of another cluster than the token; name another directory (--dir)");
    }
    if joined.node != node.as_ref().map(|node| node.id) {
        bail!(
            "the manager has let this machine in as another node than before, since the one that it was is called otherwise by now, \
             or has been removed: first `ropewalk node remove {name}` there. Called otherwise: join again by that name (--name). \
             Removed: move {place} and the directories of its pdisks away, and join as a new machine"
        );
    }
    keys::save(&dir.path, &key, &joined.signed)?;
    let managers: Vec<_> = joined.managers.iter().filter_map(|entry| ManagerFile::of(entry, None)).collect();
    if managers.is_empty() {
        let manager = first_of(token)?;
        dir.keep(|file| file.manager = manager)?;
    } else {
        ClusterDir::change_managers(&dir.path, |_| managers)?;
    }
    let dir = ClusterDir::open(&dir.path)?;
    output::line(format!("this machine is a member of cluster {} again", joined.name));
    let Some(node) = node else { return Ok(()) };
    up::start(&dir, args.no_service)?;
    output::line(format!("node {name} serves at {}", node.addr));
    Ok(())
}

/// Becomes the same command with the token on standard input: the list of processes shows it for no longer than this takes.
/// Comes back only if that fails.
fn hide(token: &str) -> io::Error {
    let begin = || -> io::Result<Command> {
        let (read, mut write) = io::pipe()?;
        write.write_all(token.as_bytes())?; // it is short: the pipe holds it
        let mut words = env::args_os().map(|word| if word == token { STDIN.into() } else { word });
        let mut command = Command::new("/proc/self/exe");
        command.arg0(words.next().unwrap_or_default()).args(words).stdin(read);
        Ok(command)
    };
    match begin() {
        Ok(mut command) => command.exec(),
        Err(error) => error,
    }
}

/// `-`: from standard input, where no list of processes shows it.
fn text_of(token: &str) -> Result<String> {
    if token != STDIN {
        return Ok(token.to_owned());
    }
    let mut text = String::new();
    io::stdin()
        .take(TOKEN_LEN_MAX)
        .read_to_string(&mut text)
        .context("read the token from standard input")?;
    Ok(text)
}

/// Where the new node is to listen; nowhere for clients.
fn server_addresses(token: &Token, args: &Join) -> Result<Option<Addrs>> {
    if token.role != Role::Server && (!args.pdisk.is_empty() || args.rack.is_some()) {
        bail!("--pdisk and --rack are for servers, and the token is for a {:?}", token.role);
    }
    let port = match token.role {
        Role::Server => NODE_PORT,
        Role::Manager => MANAGER_PORT,
        _ if args.address.is_empty() => return Ok(None),
        _ => bail!("--address is for servers and managers, and the token is for a {:?}", token.role),
    };
    if args.address.is_empty() {
        bail!("--address: say at which address of this machine others reach it");
    }
    Ok(Some(make::listen_at(&args.address, args.port.unwrap_or(port), &Beside::default())?.0))
}

/// Asks each manager until one lets us in: the new key, and what was said.
fn ask(token: &Token, name: &str, addrs: Option<&Addrs>, rack: Option<&str>) -> Result<(Vec<u8>, Joined)> {
    let Request { key, request } = Request::new()?;
    let request = JoinRequest {
        token: token.id,
        secret: token.secret,
        name: name.to_owned(),
        addrs: addrs.map(Addrs::texts).unwrap_or_default(),
        rack: rack.unwrap_or_default().to_owned(),
        request,
    };
    let visitor = Visitor::new(vec![token.authority])?;
    let said = frame::encode(&VisitRequest::Join(request));
    let answered = link::run(async {
        let (mut failed, mut not_active) = (None, None);
        // An answer may be lost: to the same question the manager answers the same again.
        for &manager in token.managers.iter().cycle().take(TRIES * token.managers.len()) {
            interrupt::check()?;
            match net::visit(&visitor, manager, &said, PATIENCE).await {
                Ok(answer)
                    if frame::decode(&answer).is_ok_and(|said: VisitReply| said == VisitReply::NotActive) =>
                {
                    not_active = Some(answer);
                    tokio::time::sleep(PAUSE).await;
                }
                Ok(answer) => return Ok(answer),
                Err(error @ VisitError::Stranger(_)) => return Err(error.into()),
                Err(error) => failed = Some(error),
            }
        }
        if let Some(answer) = not_active {
            return Ok(answer);
        }
        let failed =
            failed.map_or_else(|| anyhow::anyhow!("the token names no manager"), anyhow::Error::from);
        Err(failed.context(
            "this machine may have been let in all the same: join again with another token, the same --name and --address",
        ))
    })?;
    match frame::decode(&answered).context("decode the manager's answer")? {
        VisitReply::Joined(joined) => Ok((key, *joined)),
        VisitReply::Refused { reason } => bail!("the manager does not let this machine in: {reason}"),
        VisitReply::NotActive => bail!("no manager that answers is active; try again in a moment"),
        VisitReply::Renewed(_) => bail!("unexpected answer from the manager to Join"),
    }
}

/// Where the manager is, by a token; as if there were one.
fn first_of(token: &Token) -> Result<Addrs> {
    Addrs::new(token.managers.clone()).context("the token's managers")
}

/// Makes the directory of a machine that was let in.
fn keep(
    dir: &Path,
    token: &Token,
    name: &str,
    addrs: Option<Addrs>,
    key: &[u8],
    joined: &Joined,
) -> Result<()> {
    for sub in ["run", "log", "nodes"] {
        access::make_dir(&dir.join(sub)).with_context(|| format!("create {}", dir.join(sub).display()))?;
    }
    if joined.manager.is_none() {
        keys::save(dir, key, &joined.signed)?;
    }
    let node = |(id, addr)| NodeFile { id, name: name.to_owned(), addr, pdisks: Vec::new() };
    let local = |entry: &ManagerEntry| {
        (joined.manager.is_some() && entry.name == name).then(|| manager_file::FIRST.to_owned())
    };
    let managers = joined.managers.iter().filter_map(|entry| ManagerFile::of(entry, local(entry))).collect();
    let keys = joined.manager.as_ref();
    // None: the journal is a file.
    let etcd = keys.filter(|keys| !keys.etcd.is_empty()).map(|keys| toml::from_str(&keys.etcd)).transpose();
    let etcd: Option<EtcdFile> = etcd.context("read where the manager's journal is")?;
    let mut file = ClusterFile {
        format: ClusterDir::format(),
        name: joined.name.clone(),
        id: joined.cluster.to_string(),
        code: None,
        block_size: None,
        secret: keys.map(|keys| keys.secret.clone()),
        former_secret: keys.and_then(|keys| keys.former_secret.clone()),
        // A manager is told how often they were changed.
        secret_changes: 0,
        cipher_list: joined.cipher_list,
        // Where there can be several, the list replaces it.
        manager: first_of(token)?,
        manager_here: false,
        mirror: None,
        mirror_on: None,
        keeps_copy: keys.is_some() && etcd.is_none(),
        metrics: None,
        analytics: None,
        etcd,
        managers: Vec::new(),
        mount: None,
        nodes: joined.node.zip(addrs).map(node).into_iter().collect(),
    };
    file.set_managers(managers);
    ClusterDir::save(dir, &file)
}
