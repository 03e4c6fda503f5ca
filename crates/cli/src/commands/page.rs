//! The page of analytics among the processes of a cluster on this machine: what `up` and `init` are told of it is checked before
//! anything is changed, kept in `cluster.toml`, and begun last. Its failure ends nothing else: it holds no data.

use std::{
    net::{SocketAddr, TcpListener},
    process::Child,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::ask::ASK_PATIENCE;
use crate::{
    args::{ListenAt, PAGE_ADDR, PageArgs},
    cluster_dir::{ClusterDir, PAGE, page},
    interrupt, output,
    process::{control, pid_file, tcp_ports, units},
};

/// How long it may take to be there: it asks the cluster first.
const START_PATIENCE: Duration = Duration::from_secs(90);
/// How long it may take to end before it is killed.
const END_PATIENCE: Duration = Duration::from_secs(30);
/// What it is asked whether it answers; whatever it says to that, it does.
const HELLO: &[u8] = b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n";

/// Refuses what is asked and cannot be. `dir`: none where the cluster is to be made. Returned is its port, held.
pub fn check(args: &PageArgs, dir: Option<&ClusterDir>) -> Result<Option<TcpListener>> {
    let at = match args.analytics {
        None => return Ok(None),
        Some(ListenAt(Some(at))) => at,
        Some(ListenAt(None)) if args.analytics_password => {
            bail!("--analytics-password: there is no page with --analytics off")
        }
        Some(ListenAt(None)) => return Ok(None),
    };
    let has_password =
        args.analytics_password || dir.map_or(Ok(None), |dir| page::password(&dir.path))?.is_some();
    if !at.ip().is_loopback() && !has_password {
        bail!(
            "--analytics {at}: whoever reaches it would see who does what; add --analytics-password, which draws a password \
             and shows it once"
        );
    }
    let Some(dir) = dir else { return listen(at).map(Some) };
    let is_same = |addr: &SocketAddr| tcp_ports::collide(*addr, at);
    if let Some((name, _)) = dir.servers().iter().find(|(_, addrs)| addrs.iter().any(is_same)) {
        bail!("--analytics {at}: that is the port of {name}; name another one");
    }
    // A unit that was enabled by hand is at the usual address.
    let is_active = || units::of_process(&dir.path, PAGE).is_some_and(|unit| units::is_active(&unit));
    let runs = is_same(&dir.file.analytics.unwrap_or(PAGE_ADDR)) && (is_there(dir) || is_active());
    // What runs there is its own, and is ended first where it is to be another.
    if runs { Ok(None) } else { port(dir, at).map(Some) }
}

/// Its port, for which it waits a moment where the page before was killed.
fn port(dir: &ClusterDir, at: SocketAddr) -> Result<TcpListener> {
    tcp_ports::take(dir.pid_file(PAGE).exists(), || listen(at))
}

fn listen(at: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(at).with_context(|| {
        format!(
            "the page of analytics cannot be at {at}; stop the program that has this port (`ss -ltnp` shows which), or name \
             another address of this machine with --analytics"
        )
    })
}

fn is_there(dir: &ClusterDir) -> bool {
    pid_file::live_pid(&dir.pid_file(PAGE)).is_some()
}

/// Keeps in `cluster.toml` where it is to be. One that runs elsewhere is ended.
pub fn remember(dir: &mut ClusterDir, args: &PageArgs) -> Result<()> {
    let Some(ListenAt(at)) = args.analytics else { return Ok(()) };
    // Also one that was begun by hand, which `off` ends.
    if dir.file.analytics != at || at.is_none() {
        end(dir)?;
        dir.keep(|file| file.analytics = at)?;
    }
    Ok(())
}

/// Draws its password, if that is asked for, and shows it. One that runs with another is ended.
pub fn draw(dir: &ClusterDir, args: &PageArgs) -> Result<()> {
    if args.analytics_password {
        end(dir)?;
        output::line(format!(
            "password of the page of analytics, shown this once; any user name goes with it: {}",
            page::draw_password(&dir.path)?
        ));
    }
    Ok(())
}

fn end(dir: &ClusterDir) -> Result<()> {
    if let Some(unit) = units::of_process(&dir.path, PAGE) {
        units::give_up(&unit);
    }
    let Some(process) = pid_file::live(&dir.pid_file(PAGE)) else { return Ok(()) };
    units::end(process.pid);
    if !process.wait_gone(END_PATIENCE) {
        interrupt::check()?;
        control::kill_and_wait("the page of analytics", process)?;
    }
    Ok(())
}

/// Begins it, if it is to be there and is not, and says where it is.
pub fn begin(dir: &ClusterDir, no_service: bool) -> Result<()> {
    let Some(at) = dir.file.analytics else { return Ok(()) };
    if !is_there(dir) {
        start(dir, at, no_service).context(
            "all else runs, but not the page of analytics (`ropewalk up --analytics off` takes it back)",
        )?;
    }
    let tls = !at.ip().is_loopback();
    output::line(format!("analytics: {}", page::url(at, tls)));
    if let Some(own) = page::certificate(&dir.path).filter(|_| tls) {
        output::note(&page::told(own.fingerprint()));
    }
    Ok(())
}

fn start(dir: &ClusterDir, at: SocketAddr, no_service: bool) -> Result<()> {
    drop(port(dir, at)?);
    let unit = if no_service { None } else { units::of_process(&dir.path, PAGE) };
    if let Some(unit) = unit {
        let ended = || match units::ended(&unit) {
            Some(why) => bail!("{unit} ended at its start: {why}"),
            None => Ok(()),
        };
        return units::begin(&unit)
            .and_then(|()| wait_ready(dir, ended))
            .inspect_err(|_| units::give_up(&unit));
    }
    let log = dir.log_file(PAGE);
    let from = std::fs::metadata(&log).map_or(0, |log| log.len());
    let listen = at.to_string();
    let mut child = control::spawn_detached(
        &[
            "analytics".as_ref(),
            "serve".as_ref(),
            "--dir".as_ref(),
            dir.path.as_ref(),
            "--listen".as_ref(),
            listen.as_ref(),
        ],
        &log,
    )?;
    let ended = |child: &mut Child| match child.try_wait().context("look after a child process")? {
        Some(status) => bail!("it ended at its start ({status}): {}", control::last_words(&log, from)),
        None => Ok(()),
    };
    let begun = wait_ready(dir, || ended(&mut child));
    if begun.is_err() {
        control::terminate(child.id());
        let _ = child.wait();
    }
    begun
}

/// Waits until it serves. `ended` fails if its process has ended.
fn wait_ready(dir: &ClusterDir, mut ended: impl FnMut() -> Result<()>) -> Result<()> {
    let end = Instant::now() + START_PATIENCE;
    while !(is_there(dir) && dir.ready_file(PAGE).exists()) {
        interrupt::check()?;
        ended()?;
        if Instant::now() > end {
            bail!("it does not serve after {START_PATIENCE:?}; its log is {}", dir.log_file(PAGE).display());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// What is wrong with that of this machine, if it is to be there.
pub async fn remark(dir: &ClusterDir) -> Option<String> {
    let at = dir.file.analytics?;
    let is_there = pid_file::live_pid(&dir.pid_file(PAGE)).is_some() && answers(at).await;
    (!is_there).then(|| format!("the page of analytics does not answer at {at}"))
}

/// Whether who listens at this address says something when it is greeted, or closes: either way somebody is there.
pub async fn answers(at: SocketAddr) -> bool {
    let asked = async {
        let mut stream = TcpStream::connect(at).await?;
        stream.write_all(HELLO).await?;
        // With TLS it is no greeting, and refused.
        let _ = stream.read_u8().await;
        Ok::<_, std::io::Error>(())
    };
    matches!(timeout(ASK_PATIENCE, asked).await, Ok(Ok(())))
}
