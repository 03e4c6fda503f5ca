//! What netperf's processes say to each other: requests of `Service::Lab`, encoded with postcard. These are
//! not part of the cluster's protocol: netperf's endpoints have a cluster number of their own, so that no
//! cluster ever takes one for its node. Both ends are the same version of the program, or refuse each other.

use base::ClusterId;
use serde::{Deserialize, Serialize};

use super::{
    result::{ClientResult, ServerResult},
    spec::{SIZE_MAX, Spec},
};

/// "netperf": the cluster number of all its processes.
pub(super) const CLUSTER: ClusterId = ClusterId(0x006e_6574_7065_7266);

/// A message up to this size travels in the request itself, as small requests of a file system do.
pub(super) const INLINE_MAX: usize = 16 << 10;

/// The data operations, in the frame's `op`.
pub(super) mod op {
    /// Control requests: [`super::Control`].
    pub const CONTROL: u8 = 1;
    /// The request's payload is data; the answer is empty.
    pub const WRITE: u8 = 2;
    /// The answer's payload is data.
    pub const READ: u8 = 3;
    /// Data in, as much data out.
    pub const ECHO: u8 = 4;
}

/// The head of a data request's or answer's body; small data follows it there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Data {
    /// Bytes of the message.
    pub size: u32,
    /// Whether the data is checked.
    pub verify: bool,
    /// CRC-32C of data that comes with this head, if it is checked.
    pub crc: u32,
}

impl Data {
    const LEN: usize = 9;

    /// The body, with inline data.
    pub fn encode(self, inline: &[u8]) -> Vec<u8> {
        let mut body = Vec::with_capacity(Data::LEN + inline.len());
        body.extend_from_slice(&self.size.to_le_bytes());
        body.push(self.verify.into());
        body.extend_from_slice(&self.crc.to_le_bytes());
        body.extend_from_slice(inline);
        body
    }

    /// Head and inline data; `None`: it is none, or lies about its size.
    pub fn decode(body: &[u8]) -> Option<(Data, &[u8])> {
        let (size, rest) = body.split_first_chunk()?;
        let (&[verify], rest) = rest.split_first_chunk()?;
        let (crc, inline) = rest.split_first_chunk()?;
        let (size, crc) = (u32::from_le_bytes(*size), u32::from_le_bytes(*crc));
        let data = Data { size, verify: verify != 0, crc };
        (verify <= 1 && (1..=SIZE_MAX).contains(&size)).then_some((data, inline))
    }
}

/// Requests that prepare, time and end tests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Control {
    /// Who are you? Also used to measure the round trip.
    Info,
    /// Be a client: connect to the servers and wait for `Start`. Replaces a test that was prepared before.
    Prepare { test: u64, spec: Spec, servers: Vec<Vec<String>> },
    /// Begin in this many microseconds. To clients and servers; the latter note their CPU time.
    Start { test: u64, in_us: u64, ttime_ms: u64 },
    /// How far?
    Progress { test: u64 },
    /// A client's result, once it has ended.
    ClientResult { test: u64 },
    /// A server's, once the time is over.
    ServerResult { test: u64 },
    /// End this test now.
    Stop { test: u64 },
    /// End the process.
    Quit,
}

/// Answers, one for each request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Info(Info),
    Ready,
    Progress {
        bytes: u64,
        messages: u64,
        errors: u64,
    },
    /// It goes on.
    NotYet,
    Client(Box<ClientResult>),
    Server(ServerResult),
    /// It cannot be done; for a person.
    No(String),
}

/// Who a process is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Info {
    /// Drawn at its start.
    pub id: u64,
    pub host: String,
    pub cpus: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_come_back_and_lies_do_not() {
        let data = Data { size: 5, verify: true, crc: 0x1234_5678 };
        let body = data.encode(b"hello");
        assert_eq!(body, b"\x05\0\0\0\x01\x78\x56\x34\x12hello");
        assert_eq!(Data::decode(&body), Some((data, &b"hello"[..])));
        for bad in [&body[..8], &[0; 9][..], &[0xff; 12], &Data { size: SIZE_MAX + 1, ..data }.encode(b"")] {
            assert_eq!(Data::decode(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn changed_messages_are_refused_or_mean_something() {
        use wire::frame::{decode, encode};
        let spec = Spec::new(crate::netperf::Kind::Rw);
        let info = Info { id: 1, host: "h".into(), cpus: 2 };
        let samples = [
            encode(&Control::Prepare { test: 1, spec, servers: vec![vec!["127.0.0.1:1".into()]] }).to_vec(),
            encode(&Control::Start { test: 1, in_us: 2, ttime_ms: 3 }).to_vec(),
            encode(&Answer::Info(info)).to_vec(),
            encode(&Answer::Client(Box::default())).to_vec(),
            Data { size: 5, verify: true, crc: 1 }.encode(b"hello"),
        ];
        crate::mutate::mutated(&samples, 50_000, |bytes| {
            let _ = (decode::<Control>(bytes), decode::<Answer>(bytes));
            if let Some((data, inline)) = Data::decode(bytes) {
                assert_eq!(data.encode(inline).len(), bytes.len());
            }
        });
    }
}
