//! Which of our tests a profile is, and which profile a test is.

use std::{collections::BTreeMap, time::Duration};

use base::{ByteSize, CipherList};

use super::profile::{Flowop, Group, Profile, Transaction, Until, UperfError};
use crate::netperf::{CONNECTIONS_MAX, Kind, PORT, Spec};

/// A profile as a test of ours.
#[derive(Clone, PartialEq, Debug)]
pub struct Test {
    /// The test.
    pub spec: Spec,
    /// Who takes part as a server, each as HOST:PORT.
    pub servers: Vec<String>,
}

/// What one group does.
#[derive(PartialEq)]
struct Work {
    kind: Kind,
    size: u64,
    count: u32,
    time: Duration,
    tls: bool,
}

fn no(why: impl Into<String>) -> UperfError {
    UperfError::NoTest(why.into())
}

impl Profile {
    /// The test that does what it says; why there is none, with the remedy.
    pub fn test(&self) -> Result<Test, UperfError> {
        let mut all: Option<Work> = None;
        let mut strands: BTreeMap<String, u32> = BTreeMap::new();
        for group in &self.groups {
            let (work, peer) = group.work()?;
            if all.as_ref().is_some_and(|have| *have != work) {
                return Err(no("its groups do different things at one time; write a profile for each"));
            }
            all = Some(work);
            let sum = strands.entry(peer).or_default();
            *sum = sum.saturating_add(group.strands);
        }
        let work = all.ok_or_else(|| no("it has no group"))?;
        let each = strands.values().next().copied().unwrap_or_default();
        if strands.values().any(|n| *n != each) {
            return Err(no("its peers have different numbers of strands; give each the same"));
        }
        let connections = each.checked_mul(strands.len() as u32).filter(|n| *n <= CONNECTIONS_MAX);
        let connections =
            connections.ok_or_else(|| no(format!("it has more than {CONNECTIONS_MAX} strands in all")))?;
        let buffsize =
            u32::try_from(work.size).map_err(|_| no(format!("its size {} is too large", work.size)))?;
        let cipher_list = if work.tls { CipherList::Default } else { CipherList::Empty };
        let spec = Spec {
            ttime: work.time,
            buffsize,
            threads: work.count,
            connections,
            cipher_list,
            ..Spec::new(work.kind)
        };
        spec.check().map_err(|error| no(error.to_string()))?;
        Ok(Test { spec, servers: strands.into_keys().collect() })
    }

    /// The profile of a stream or rr test with so many connections to each of the servers.
    pub fn of(spec: &Spec, servers: &[String]) -> Option<Profile> {
        let size = ("size".to_owned(), Some(ByteSize(u64::from(spec.buffsize)).to_string()));
        let flow = |kind: &str, options: Vec<(String, Option<String>)>| Flowop { kind: kind.into(), options };
        let (name, flowops) = match spec.kind {
            Kind::Stream => {
                let count = ("count".to_owned(), Some(spec.threads.to_string()));
                ("TCP_STREAM", vec![flow("write", vec![count, size])])
            }
            Kind::Rr => ("TCP_RR", vec![flow("write", vec![size.clone()]), flow("read", vec![size])]),
            _ => return None,
        };
        let once = |flowop| Transaction { until: Until::Iterations(1), rate: None, flowops: vec![flowop] };
        let group = |server: &String| {
            let (host, port) = match server.rsplit_once(':') {
                Some((host, port)) if port != PORT.to_string() => (host, Some(port)),
                Some((host, _)) => (host, None),
                None => (server.as_str(), None),
            };
            let protocol = if spec.cipher_list == CipherList::Empty { "tcp" } else { "ssl" };
            let mut options = vec![
                ("remotehost".to_owned(), Some(host.to_owned())),
                ("protocol".to_owned(), Some(protocol.to_owned())),
            ];
            options.extend(port.map(|port| ("port".to_owned(), Some(port.to_owned()))));
            let during =
                Transaction { until: Until::Duration(spec.ttime), rate: None, flowops: flowops.clone() };
            let transactions =
                vec![once(flow("connect", options)), during, once(flow("disconnect", Vec::new()))];
            Group { strands: spec.connections, threads: false, transactions }
        };
        Some(Profile { name: name.into(), groups: servers.iter().map(group).collect() })
    }
}

impl Group {
    /// What it does, and with whom.
    fn work(&self) -> Result<(Work, String), UperfError> {
        let (mut peer, mut found, mut tls) = (None, None, false);
        for transaction in &self.transactions {
            if let Some(rate) = &transaction.rate {
                return Err(no(format!("rate {rate}: a rate is not kept to; remove it")));
            }
            let mut moves: Vec<&Flowop> = Vec::new();
            for flowop in &transaction.flowops {
                match flowop.kind.as_str() {
                    "connect" => (peer, tls) = connect(flowop)?,
                    "disconnect" | "nop" => {}
                    "write" | "send" | "read" | "recv" => moves.push(flowop),
                    other => {
                        let why =
                            format!("the flowop {other}; connect, write, read and disconnect can be run");
                        return Err(no(why));
                    }
                }
            }
            if moves.is_empty() {
                continue;
            }
            let Until::Duration(time) = transaction.until else {
                return Err(no("a transaction that moves data by iterations; give it a duration"));
            };
            if found.replace((time, moves)).is_some() {
                return Err(no("a second transaction that moves data; write a profile for each"));
            }
        }
        let peer = peer.ok_or_else(|| no("a group without a connect, which says with whom"))?;
        let (time, moves) = found.ok_or_else(|| no("a group that moves no data"))?;
        let (kind, size, count) = moved(&moves)?;
        Ok((Work { kind, size, count, time, tls }, peer))
    }
}

/// Whom a connect names, and whether by TLS.
fn connect(flowop: &Flowop) -> Result<(Option<String>, bool), UperfError> {
    let host = flowop.option("remotehost").ok_or_else(|| no("a connect without remotehost"))?;
    let tls = match flowop.option("protocol").unwrap_or("tcp") {
        "tcp" => false,
        "ssl" => true,
        other => return Err(no(format!("protocol {other}; tcp and ssl can be run"))),
    };
    let port = flowop.option("port").map_or(PORT.to_string(), str::to_owned);
    let host =
        if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.to_owned() };
    Ok((Some(format!("{host}:{port}")), tls))
}

/// Kind of test, bytes of a message, messages under way.
fn moved(moves: &[&Flowop]) -> Result<(Kind, u64, u32), UperfError> {
    let writes = |flowop: &&Flowop| matches!(flowop.kind.as_str(), "write" | "send");
    let size = |flowop: &Flowop| {
        let text = flowop.option("size").ok_or_else(|| no(format!("a {} without size", flowop.kind)))?;
        text.parse::<ByteSize>().map(|size| size.0).map_err(|_| {
            no(format!("size {text}; a size is a number, with k, m or g or without, and the same for all"))
        })
    };
    let count = |flowop: &Flowop| match flowop.option("count") {
        None => Ok(1),
        Some(text) => text.parse::<u32>().map_err(|_| no(format!("count {text} is no number"))),
    };
    match moves {
        [write] if writes(write) => Ok((Kind::Stream, size(write)?, count(write)?)),
        [write, read] if writes(write) && !writes(read) => {
            if size(write)? != size(read)? || count(write)? != 1 || count(read)? != 1 {
                return Err(no(
                    "a request and an answer of different sizes or counts; give both the same size",
                ));
            }
            Ok((Kind::Rr, size(write)?, 1))
        }
        _ => Err(no(
            "a transaction is either writes, or a write and a read; for reads run `ropewalk netperf test read`",
        )),
    }
}
