//! What is to be measured.

use std::{fmt, str::FromStr, time::Duration};

use base::CipherList;
use net::{Dispatch, Transport};
use serde::{Deserialize, Serialize};

use super::error::NetperfError;

/// Largest message, bytes.
pub const SIZE_MAX: u32 = 16 << 20;
/// Tester threads of one client.
pub const THREADS_MAX: u32 = 4096;
/// Connections of one client to one server: what `maxTcpConnsPerNodeConn` allows.
pub const PARALLEL_MAX: u8 = 16;
/// Connections of a stream or rr test, each a group of its own.
pub const CONNECTIONS_MAX: u32 = 1024;
/// Longest test.
pub const TTIME_MAX: Duration = Duration::from_secs(24 * 3600);

/// The kinds of test. The first six are nsdperf's, the last two uperf's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Data to all servers in turn.
    Write,
    /// Data from all servers in turn.
    Read,
    /// A small request; the server fetches the data.
    Nwrite,
    /// Write, each thread to one server.
    Swrite,
    /// Read, each thread from one server.
    Sread,
    /// Half of the threads read, half write.
    Rw,
    /// One-way data, several messages under way on each connection.
    Stream,
    /// A request and an answer of the same size, one under way on each connection.
    Rr,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 8] =
        [Kind::Write, Kind::Read, Kind::Nwrite, Kind::Swrite, Kind::Sread, Kind::Rw, Kind::Stream, Kind::Rr];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Write => "write",
            Kind::Read => "read",
            Kind::Nwrite => "nwrite",
            Kind::Swrite => "swrite",
            Kind::Sread => "sread",
            Kind::Rw => "rw",
            Kind::Stream => "stream",
            Kind::Rr => "rr",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Kind, String> {
        let names = || Kind::ALL.map(Kind::name).join(", ");
        Kind::ALL
            .into_iter()
            .find(|k| k.name() == text)
            .ok_or_else(|| format!("unknown test {text:?}: {}", names()))
    }
}

/// One test.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// Which.
    pub kind: Kind,
    /// How long it runs; the first and last tenth are not counted. 100 ms to [`TTIME_MAX`].
    pub ttime: Duration,
    /// Bytes of a message, 1 to 16 MiB.
    pub buffsize: u32,
    /// Tester threads of each client, each with one message under way. For `Stream` the messages under way on each connection;
    /// `Rr` has one. 1 to [`THREADS_MAX`].
    pub threads: u32,
    /// Connections of each client to each server: the connection group's `maxTcpConnsPerNodeConn`.
    pub parallel: Parallel,
    /// `Stream` and `Rr`: connections of each client, dealt out over the servers; 1 to [`CONNECTIONS_MAX`].
    pub connections: u32,
    /// Whether the bytes received are checked.
    pub verify: bool,
    /// How messages are given to connections.
    pub dispatch: Dispatching,
    /// Whether connections are placed on links, or get the ports that the kernel gives.
    pub place: bool,
    /// How connections are protected.
    pub cipher_list: CipherList,
    /// What connections go by.
    pub transport: Transporting,
}

/// [`net::Dispatch`], as it is written and sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dispatching {
    /// To the connection with the least work under way, weighted by its rate.
    #[default]
    ShortestQueue,
    /// To each in turn.
    RoundRobin,
    /// Each tester's to one connection.
    Pinned,
}

/// What a result says of a peer whose connections were to go by memory, and do not.
pub const NOT_SHARED: &str = "some go by TCP: memory could not be shared";

/// [`net::Transport`], as it is written and sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transporting {
    /// TCP, also within a machine.
    #[default]
    Tcp,
    /// Memory of both ends; what cannot share it goes by TCP, and the result says so.
    Shm,
}

/// The number of bulk connections between a client and a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Parallel {
    /// So many, 1 to [`PARALLEL_MAX`].
    Fixed(u8),
    /// Found by measuring, up to [`PARALLEL_MAX`].
    Auto,
}

impl Parallel {
    /// The most connections there may be.
    pub fn most(self) -> u8 {
        match self {
            Parallel::Fixed(n) => n,
            Parallel::Auto => PARALLEL_MAX,
        }
    }
}

impl FromStr for Parallel {
    type Err = String;

    fn from_str(text: &str) -> Result<Parallel, String> {
        match text.parse() {
            Ok(n) if (1..=PARALLEL_MAX).contains(&n) => Ok(Parallel::Fixed(n)),
            _ if text == "auto" => Ok(Parallel::Auto),
            _ => Err(format!("{text:?} is no number of connections: 1 to {PARALLEL_MAX}, or auto")),
        }
    }
}

impl FromStr for Dispatching {
    type Err = String;

    fn from_str(text: &str) -> Result<Dispatching, String> {
        match text {
            "shortest_queue" => Ok(Dispatching::ShortestQueue),
            "round_robin" => Ok(Dispatching::RoundRobin),
            "pinned" => Ok(Dispatching::Pinned),
            other => Err(format!("unknown dispatch {other:?}: shortest_queue, round_robin, pinned")),
        }
    }
}

impl FromStr for Transporting {
    type Err = String;

    fn from_str(text: &str) -> Result<Transporting, String> {
        match text {
            "tcp" => Ok(Transporting::Tcp),
            "shm" => Ok(Transporting::Shm),
            other => Err(format!("unknown transport {other:?}: tcp, shm")),
        }
    }
}

impl From<Transporting> for Transport {
    fn from(transporting: Transporting) -> Transport {
        match transporting {
            Transporting::Tcp => Transport::Tcp,
            Transporting::Shm => Transport::Shm,
        }
    }
}

impl From<Dispatching> for Dispatch {
    fn from(dispatching: Dispatching) -> Dispatch {
        match dispatching {
            Dispatching::ShortestQueue => Dispatch::ShortestQueue,
            Dispatching::RoundRobin => Dispatch::RoundRobin,
            Dispatching::Pinned => Dispatch::Pinned,
        }
    }
}

impl Spec {
    /// nsdperf's defaults: 10 seconds, 4 MiB, 4 threads, one connection.
    pub fn new(kind: Kind) -> Spec {
        Spec {
            kind,
            ttime: Duration::from_secs(10),
            buffsize: 4 << 20,
            threads: 4,
            parallel: Parallel::Fixed(1),
            connections: 1,
            verify: false,
            dispatch: Dispatching::default(),
            place: true,
            cipher_list: CipherList::Empty,
            transport: Transporting::default(),
        }
    }

    /// Whether each connection is a group of its own.
    pub(super) fn per_connection(&self) -> bool {
        matches!(self.kind, Kind::Stream | Kind::Rr)
    }

    /// Messages under way in each client.
    pub(super) fn testers(&self) -> u32 {
        match self.kind {
            Kind::Stream => self.connections.saturating_mul(self.threads),
            Kind::Rr => self.connections,
            _ => self.threads,
        }
    }

    /// The counted time.
    pub(super) fn counted(&self) -> (Duration, Duration) {
        (self.ttime / 10, self.ttime * 9 / 10)
    }

    /// Refuses what is out of bounds. What comes from another process is checked as well.
    pub fn check(&self) -> Result<(), NetperfError> {
        let check = |ok: bool, name, value: String, allowed: String| {
            if ok { Ok(()) } else { Err(NetperfError::BadSpec { name, value, allowed }) }
        };
        let ttimes = format!("100ms to {TTIME_MAX:?}");
        let ttime_ok = (Duration::from_millis(100)..=TTIME_MAX).contains(&self.ttime);
        check(ttime_ok, "ttime", format!("{:?}", self.ttime), ttimes)?;
        let sizes = "1 to 16m".to_owned();
        check((1..=SIZE_MAX).contains(&self.buffsize), "buffsize", self.buffsize.to_string(), sizes)?;
        let least = if self.kind == Kind::Rw { 2 } else { 1 };
        let threads = format!("{least} to {THREADS_MAX} for {}", self.kind);
        check((least..=THREADS_MAX).contains(&self.threads), "threads", self.threads.to_string(), threads)?;
        let parallels = format!("1 to {PARALLEL_MAX}");
        let parallel = self.parallel.most();
        check((1..=PARALLEL_MAX).contains(&parallel), "parallel", parallel.to_string(), parallels)?;
        let connections = format!("1 to {CONNECTIONS_MAX}");
        let connections_ok = (1..=CONNECTIONS_MAX).contains(&self.connections);
        check(connections_ok, "connections", self.connections.to_string(), connections)?;
        let in_all = format!("at most {THREADS_MAX} messages under way in one client");
        check(self.testers() <= THREADS_MAX, "threads x connections", self.testers().to_string(), in_all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_named() {
        let bad = |change: fn(&mut Spec)| {
            let mut spec = Spec::new(Kind::Rw);
            change(&mut spec);
            spec.check().unwrap_err().to_string()
        };
        assert!(bad(|s| s.buffsize = 0).contains("buffsize 0: allowed are 1 to 16m"));
        assert!(bad(|s| s.buffsize = (16 << 20) + 1).contains("buffsize 16777217"));
        assert!(bad(|s| s.threads = 1).contains("threads 1: allowed are 2 to 4096 for rw"));
        assert!(bad(|s| s.parallel = Parallel::Fixed(17)).contains("parallel 17"));
        assert!(bad(|s| s.ttime = Duration::ZERO).contains("ttime 0ns"));
        assert!(bad(|s| (s.kind, s.threads, s.connections) = (Kind::Stream, 8, 1000)).contains("8000"));
        for kind in Kind::ALL {
            assert!(Spec::new(kind).check().is_ok());
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert!("mixed".parse::<Kind>().unwrap_err().contains("nwrite"));
        assert_eq!(("16".parse(), "auto".parse()), (Ok(Parallel::Fixed(16)), Ok(Parallel::Auto)));
        assert!("0".parse::<Parallel>().is_err() && "17".parse::<Parallel>().unwrap_err().contains("auto"));
    }
}
