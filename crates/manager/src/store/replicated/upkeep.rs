//! etcd's database is looked after: its size against its quota, room that history has left in it, the alarm that it raises when it
//! is full. A member is asked for itself; one that does not answer is looked after the next time.
//!
//! What etcd counts is the size of the file: history that is compacted leaves holes there, which only a defragmentation gives
//! back. That stops the member while it lasts, so one after the other is done, the leader last, and only where it is worth it.

use std::{
    error::Error as _,
    time::{Duration, Instant},
};

use base::ByteSize;
use etcd_client::{AlarmAction, AlarmOptions, AlarmType, Client, Error};
use parking_lot::Mutex;

use super::super::Remark;

/// What etcd has if nobody tells it otherwise.
pub const QUOTA: u64 = 2 << 30;
/// Of the quota: from here on `health` warns.
const WARN_PERCENT: u64 = 70;
/// Of the quota: from here on no new names are made.
const FULL_PERCENT: u64 = 95;
/// Of the quota: below this records stay for those who copy a table.
const COPY_PERCENT: u64 = 50;
/// Of the quota: below this the alarm is taken away.
const ROOM_PERCENT: u64 = 90;
/// Of the quota: a smaller file is not worth a member's pause.
const WORTH_PERCENT: u64 = 25;
/// How often it is looked.
const EVERY: Duration = if cfg!(test) { Duration::from_millis(200) } else { Duration::from_secs(10) };
/// A member that takes what is put is defragmented no more often than this.
const DEFRAGMENT_EVERY: Duration = if cfg!(test) { Duration::from_secs(1) } else { Duration::from_secs(60) };
/// How long a defragmentation may take.
const DEFRAGMENT_DEADLINE: Duration = Duration::from_secs(60);
const DEADLINE: Duration = Duration::from_secs(2);

/// How full the fullest member is.
#[derive(Debug, Clone, Copy, Default)]
struct Room {
    bytes: u64,
    quota: u64,
    alarm: bool,
}

/// See the module.
#[derive(Default)]
pub struct Upkeep {
    room: Mutex<Room>,
    looked: Mutex<Option<Instant>>,
    defragmented: Mutex<Option<Instant>>,
}

/// A member as it says.
struct Seen {
    client: Client,
    leads: bool,
    bytes: u64,
    used: u64,
    alarm: bool,
    revision: i64,
    quota: u64,
}

async fn in_time<T>(deadline: Duration, work: impl Future<Output = Result<T, Error>>) -> Option<T> {
    tokio::time::timeout(deadline, work).await.ok()?.ok()
}

impl Seen {
    async fn ask(mut client: Client) -> Option<Seen> {
        let status = in_time(DEADLINE, client.status()).await?;
        let header = status.header()?;
        let number = |bytes: i64| u64::try_from(bytes).unwrap_or(0);
        Some(Seen {
            leads: status.leader() == header.member_id(),
            bytes: number(status.db_size()),
            used: number(status.raft_used_db_size()),
            alarm: status.errors().iter().any(|error| error.contains("NOSPACE")),
            revision: header.revision(),
            quota: number(status.db_size_quota()),
            client,
        })
    }
}

impl Upkeep {
    /// Whether it is time to look.
    pub fn due(&self) -> bool {
        let mut looked = self.looked.lock();
        let due = looked.is_none_or(|at| at.elapsed() >= EVERY);
        if due {
            *looked = Some(Instant::now());
        }
        due
    }

    /// Whether etcd takes nothing more, or soon will not.
    pub fn is_full(&self) -> bool {
        let Room { bytes, quota, alarm } = *self.room.lock();
        alarm || (quota > 0 && bytes * 100 >= quota * FULL_PERCENT)
    }

    /// Whether there is room for more records than are needed. Not known: no.
    pub fn has_room(&self) -> bool {
        let Room { bytes, quota, alarm } = *self.room.lock();
        !alarm && bytes * 100 < quota * COPY_PERCENT
    }

    /// What an admin should see to.
    pub fn remark(&self) -> Option<Remark> {
        let Room { bytes, quota, alarm } = *self.room.lock();
        if !alarm && (quota == 0 || bytes * 100 < quota * WARN_PERCENT) {
            return None;
        }
        let full = match alarm || bytes * 100 >= quota * FULL_PERCENT {
            true => "no new names are made until there is room",
            false => "at 95 % no new names are made",
        };
        let text = format!(
            "etcd's database has {} of its quota of {}{}: {full}. The manager keeps some 40 MB there; what else is in it? `etcdctl \
             endpoint status` shows it; a greater --quota-backend-bytes of etcd helps (and --etcd-quota says it to the manager)",
            ByteSize(bytes),
            ByteSize(quota),
            if alarm { ", and has raised the alarm NOSPACE" } else { "" }
        );
        Some(Remark { what: "etcd's database is nearly full", text })
    }

    /// Looks at each member; gives room back where it is worth it, and takes the alarm away once there is room.
    /// `quota`: as the admin says, if etcd does not say it itself.
    pub async fn look(&self, clients: Vec<Client>, quota: Option<u64>) -> Option<()> {
        let mut seen = self.see(clients, quota).await;
        let room = *self.room.lock();
        let mut gave = false;
        if room.alarm {
            // History, also that of others, is the first to go.
            let revision = seen.iter().map(|member| member.revision).max()?;
            let compacted = in_time(DEADLINE, seen.first_mut()?.client.compact(revision, None)).await;
            gave |= compacted.is_some();
            seen = self.see(seen.into_iter().map(|member| member.client).collect(), quota).await;
        }
        seen.sort_by_key(|member| member.leads);
        // While etcd takes nothing a member's pause costs nothing, and somebody may have made room since.
        let pause = if room.alarm { EVERY } else { DEFRAGMENT_EVERY };
        let rested = self.defragmented.lock().is_none_or(|at| at.elapsed() >= pause);
        for member in seen.iter_mut().filter(|_| rested) {
            // While it takes nothing, etcd does not count what a compaction has just let go.
            let worth = member.bytes >= room.quota * WORTH_PERCENT / 100;
            // Holes alone may fill the file: nobody is refused for those.
            let holes = member.bytes * 100 >= room.quota * FULL_PERCENT
                && member.used * 100 < room.quota * ROOM_PERCENT;
            if room.alarm || (worth && (member.used < member.bytes / 4 * 3 || holes)) {
                *self.defragmented.lock() = Some(Instant::now());
                tracing::info!(
                    "etcd's database is defragmented: {} of {} are in use",
                    ByteSize(member.used),
                    ByteSize(member.bytes)
                );
                gave |= in_time(DEFRAGMENT_DEADLINE, member.client.defragment()).await.is_some();
            }
        }
        if gave {
            seen = self.see(seen.into_iter().map(|member| member.client).collect(), quota).await;
        }
        let room = *self.room.lock();
        if room.alarm && room.bytes * 100 < room.quota * ROOM_PERCENT {
            let client = &mut seen.first_mut()?.client;
            let alarms = in_time(DEADLINE, client.alarm(AlarmAction::Get, AlarmType::None, None)).await?;
            for raised in alarms.alarms().iter().filter(|raised| raised.alarm() == AlarmType::Nospace) {
                let mut of = AlarmOptions::new();
                of.with_member(raised.member_id());
                let ended = client.alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(of));
                in_time(DEADLINE, ended).await?;
            }
            tracing::info!("etcd has room again: its alarm NOSPACE is taken away");
            self.see(seen.into_iter().map(|member| member.client).collect(), quota).await;
        }
        Some(())
    }

    /// Asks each member.
    async fn see(&self, clients: Vec<Client>, quota: Option<u64>) -> Vec<Seen> {
        let mut seen = Vec::new();
        for client in clients {
            seen.extend(Seen::ask(client).await);
        }
        let told = seen.iter().map(|member| member.quota).filter(|quota| *quota > 0).min();
        if let Some(bytes) = seen.iter().map(|member| member.bytes).max() {
            let alarm = seen.iter().any(|member| member.alarm);
            *self.room.lock() = Room { bytes, quota: told.or(quota).unwrap_or(QUOTA), alarm };
        }
        seen
    }

    /// etcd has said that it takes nothing more.
    pub fn refused(&self) {
        self.room.lock().alarm = true;
    }
}

/// Whether etcd refused because it is full.
pub fn is_full(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.message().contains("database space exceeded"))
}

/// Why a request failed, with what can be done about it, for people.
pub fn explain(error: &Error, tls: bool) -> String {
    let mut text = match error {
        Error::GRpcStatus(status) => status.message().to_owned(),
        error => error.to_string(),
    };
    let inner: Option<&dyn std::error::Error> = match error {
        Error::GRpcStatus(status) => status.source(),
        Error::TransportError(error) => error.source(),
        _ => None,
    };
    let mut cause = inner;
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    let remedies: [(&str, &str); 11] = [
        ("database space exceeded", "its quota is reached; the manager goes on when there is room"),
        ("request is too large", "start etcd with its default of --max-request-bytes, 1572864, or more"),
        (
            "invalid user ID or password",
            "`user` and `password` of [etcd] in cluster.toml are not those of etcd",
        ),
        ("user name is empty", "etcd asks for a user and a password: --etcd-user and --etcd-password"),
        (
            "permission denied",
            "the user's role must have readwrite on the place's prefix (`etcdctl role grant-permission --prefix`)",
        ),
        ("UnknownIssuer", "its certificate is not of the authority that --etcd-ca names"),
        (
            "certificate expired",
            "its certificate, or its authority's, has run out: renew it, and look at this machine's clock",
        ),
        ("not valid for name", "its certificate does not name the host by which it is reached"),
        ("CertificateRequired", "etcd asks for a certificate of the manager's: --etcd-cert and --etcd-key"),
        (
            "BadCertificate",
            "etcd takes no such certificate of the manager's (--etcd-cert): it asks for one of its --trusted-ca-file",
        ),
        ("CertificateUnknown", "etcd does not know the authority of the manager's certificate (--etcd-cert)"),
    ];
    let closed = ["connection closed", "roken pipe", "onnection reset"].iter().any(|how| text.contains(how));
    match remedies.iter().find(|(known, _)| text.contains(known)) {
        Some((_, remedy)) => format!("{text}; {remedy}"),
        // The alert that says why comes behind the handshake, and is not always read.
        None if tls && closed => format!(
            "{text}; if it stays so: etcd asks for a certificate of the manager's that its --trusted-ca-file signed (--etcd-cert and --etcd-key)"
        ),
        None => text,
    }
}
