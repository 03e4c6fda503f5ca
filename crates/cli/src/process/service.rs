//! What a process tells the service manager that started it (the protocol of `sd_notify`): that it serves, that it stops, that
//! it lives. Without `NOTIFY_SOCKET` in the environment nobody is told, and nothing else differs.
//!
//! It says that it lives only as long as its runtime takes up new tasks and its timers go off: one whose runtime hangs is
//! started again. That is safe at any moment, since a lease that is not renewed ends what the process may do.

use std::{
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    time::Duration,
};

/// A message that is not taken within this time is lost: nobody waits for the service manager.
const SEND_PATIENCE: Duration = Duration::from_secs(1);

/// It serves from now on. Within the runtime, which from now on shows that it lives.
pub fn ready() {
    tell("READY=1\nSTATUS=serves");
    if let Some(every) = watchdog_period() {
        tokio::spawn(live(every));
    }
}

/// It was told to stop, and does.
pub fn stopping() {
    tell("STOPPING=1\nSTATUS=stops");
}

/// What it is at, for `systemctl status`.
pub fn status(doing: &str) {
    tell(&format!("STATUS={doing}"));
}

async fn live(every: Duration) {
    loop {
        // Through a task of its own: a worker takes it up, or the watchdog hears nothing.
        if tokio::spawn(async { tell("WATCHDOG=1") }).await.is_err() {
            return; // the runtime ends
        }
        tokio::time::sleep(every).await;
    }
}

/// How often the service manager wants to hear that this process lives: a third of the time after which it acts.
fn watchdog_period() -> Option<Duration> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    // The variables may have been meant for another process, and inherited.
    let meant = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    number("WATCHDOG_USEC").filter(|&time| meant && time > 0).map(|time| Duration::from_micros(time) / 3)
}

fn tell(what: &str) {
    let Some(place) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&place, what) {
        tracing::warn!("the service manager at {} is not told {what:?}: {error}", place.display());
    }
}

/// A leading `@` stands for the null byte of an abstract socket.
fn send(place: &OsStr, what: &str) -> io::Result<()> {
    let to = match place.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(place)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(SEND_PATIENCE))?;
    socket.send_to_addr(what.as_bytes(), &to).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_sockets_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let (path, name) = (dir.path().join("notify"), format!("@ropewalk-test-{}", std::process::id()));
        let named = SocketAddr::from_abstract_name(&name[1..]).unwrap();
        let listeners = [UnixDatagram::bind(&path).unwrap(), UnixDatagram::bind_addr(&named).unwrap()];
        for (place, listener) in [path.as_os_str(), name.as_ref()].into_iter().zip(listeners) {
            send(place, "READY=1").unwrap();
            let mut said = [0; 64];
            let len = listener.recv(&mut said).unwrap();
            assert_eq!(&said[..len], b"READY=1");
        }
        assert!(send(OsStr::new("/nowhere/notify"), "READY=1").is_err());
    }
}
