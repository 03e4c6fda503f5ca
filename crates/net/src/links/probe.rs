//! Which links a connection uses: a burst in each direction, and the counters of both nodes before and after.
//!
//! It works on a connection fresh from its handshake, before anything else is sent on it. What else the
//! nodes send meanwhile is noise: where it hides the burst the probe is repeated, larger, and only the links
//! that moved every time are believed.

use std::{io, net::IpAddr, time::Duration};

use bytes::Bytes;
use wire::{
    crc::crc32c,
    frame::{FrameKind, HEADER_LEN, Header, Service, Status},
    hello::{LinkCount, Links, NetRequest, PROBE_BYTES_MAX},
};

use crate::{
    connections::socket::Socket,
    links::{self, choose::Path},
};

/// Bytes of the first burst, and of those that follow when it was not clear.
const BURSTS: [u32; 3] = [128 << 10, 512 << 10, PROBE_BYTES_MAX];
/// Longest answer that is read.
const ANSWER_LEN_MAX: u32 = 64 << 10;
/// Requests on a raw connection are numbered from here, far from those of the endpoint.
const FIRST_ID: u64 = 1 << 62;

/// A connection that is being tried.
pub(crate) struct Probe<'a> {
    socket: &'a Socket,
    next_id: u64,
}

impl Probe<'_> {
    pub(crate) fn new(socket: &Socket) -> Probe<'_> {
        Probe { socket, next_id: FIRST_ID }
    }

    /// The peer's links.
    pub(crate) async fn peer_links(&mut self) -> io::Result<Links> {
        self.ask(&NetRequest::Links, 0).await
    }

    /// The path of this connection.
    pub(crate) async fn path(&mut self, towards: IpAddr) -> io::Result<Path> {
        let mut sides: Option<[Moved; 4]> = None;
        for bytes in BURSTS {
            let (here_before, peer_before) = (links::read(towards), self.peer_links().await?);
            let peer_between = self.ask(&NetRequest::Probe(bytes), bytes).await?;
            let (here_after, peer_after) = (links::read(towards), self.peer_links().await?);
            let now = [
                Moved::new(&here_before, &here_after, bytes, |l| l.sent),
                Moved::new(&peer_before, &peer_between, bytes, |l| l.received),
                Moved::new(&peer_between, &peer_after, bytes, |l| l.sent),
                Moved::new(&here_before, &here_after, bytes, |l| l.received),
            ];
            let clear = now.iter().all(|side| side.clear);
            sides = Some(match sides {
                None => now,
                Some(earlier) => {
                    let mut now = now.into_iter();
                    earlier.map(|side| side.and(now.next().unwrap_or_default()))
                }
            });
            if clear {
                break;
            }
        }
        let [out, out_at_peer, back_from_peer, back] = sides.unwrap_or_default().map(|s| s.names.join("+"));
        Ok(Path { out, out_at_peer, back_from_peer, back })
    }

    /// One exchange: a request with `payload` bytes, an answer with as many, `Links` as its body.
    async fn ask(&mut self, request: &NetRequest, payload: u32) -> io::Result<Links> {
        let body = wire::frame::encode(request);
        let header = Header {
            version: self.socket.version(),
            kind: FrameKind::Request,
            service: Service::Net,
            body_len: body.len() as u32,
            payload_len: payload,
            body_crc: crc32c(&body),
            deadline_us: 10_000_000,
            request_id: self.next_id,
            ..Header::default()
        };
        self.next_id += 1;
        let head = [&header.encode()[..], &body].concat();
        self.socket.write_all(&head).await?;
        let zeros = zeros(payload);
        // Both at once: the answer may come before the burst is out, and must not wait in the socket for us.
        let (sent, answer) =
            tokio::join!(self.socket.write_all(&zeros), answer(self.socket, header.request_id, payload));
        sent?;
        answer
    }
}

async fn answer(from: &Socket, id: u64, payload: u32) -> io::Result<Links> {
    loop {
        let mut bytes = [0; HEADER_LEN];
        from.read_exact(&mut bytes).await?;
        let header = Header::decode(&bytes, from.version()).map_err(io::Error::other)?;
        // The peer may ask whether we live; the answer to its last request says so as well.
        if header.kind == FrameKind::Ping && header.body_len == 0 && header.payload_len == 0 {
            continue;
        }
        let expected = header.kind == FrameKind::Reply
            && header.request_id == id
            && header.status == Status::Ok
            && header.body_len <= ANSWER_LEN_MAX
            && header.payload_len == payload;
        if !expected {
            return Err(io::Error::other(format!("unexpected answer to a probe: {header:?}")));
        }
        let mut body = vec![0; header.body_len as usize];
        from.read_exact(&mut body).await?;
        if crc32c(&body) != header.body_crc {
            return Err(io::Error::other("body CRC mismatch"));
        }
        let mut left = header.payload_len as usize;
        let mut scratch = vec![0; left.min(64 << 10)];
        while left > 0 {
            let room = left.min(scratch.len());
            from.read_exactly(&mut scratch[..room], left).await?;
            left -= room;
        }
        return wire::frame::decode(&body).map_err(io::Error::other);
    }
}

fn zeros(len: u32) -> Bytes {
    crate::calls::service::zeros(len)
}

/// Ends a connection that was tried and is not kept, such that the peer takes it for meant.
pub(crate) async fn part(socket: Socket) {
    let drain = Header { version: socket.version(), kind: FrameKind::Drain, ..Header::default() };
    let _ = socket.write_all(&drain.encode()).await;
    let mut answer = [0; HEADER_LEN];
    let _ = tokio::time::timeout(Duration::from_secs(1), socket.read_exact(&mut answer)).await;
}

/// The links whose counters moved by a burst.
#[derive(Default, Debug, PartialEq, Eq)]
struct Moved {
    names: Vec<String>,
    /// Nothing else moved much, so it is this burst that was seen.
    clear: bool,
}

impl Moved {
    fn new(before: &Links, after: &Links, burst: u32, count: impl Fn(&LinkCount) -> u64) -> Moved {
        let burst = u64::from(burst);
        let mut moved = Moved { names: Vec::new(), clear: true };
        for link in &after.links {
            let earlier = before.links.iter().find(|l| l.name == link.name).map_or(0, &count);
            let n = count(link).saturating_sub(earlier);
            // Headers and acknowledgements add some per cent.
            if n >= burst {
                moved.names.push(link.name.clone());
            }
            moved.clear &= n < burst / 4 || (burst..burst + burst / 4).contains(&n);
        }
        moved.names.sort_unstable();
        moved.clear &= !moved.names.is_empty();
        moved
    }

    /// What moved both times.
    fn and(self, other: Moved) -> Moved {
        let names = self.names.into_iter().filter(|n| other.names.contains(n)).collect();
        Moved { names, clear: self.clear || other.clear }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(counts: &[(&str, u64)]) -> Links {
        let link = |&(name, sent): &(&str, u64)| LinkCount { name: name.to_owned(), received: 0, sent };
        Links { links: counts.iter().map(link).collect(), ..Links::default() }
    }

    #[test]
    fn a_burst_shows_on_its_links_only() {
        let before = links(&[("bond0", 5), ("eth0", 5), ("eth1", 0)]);
        let after = links(&[("bond0", 1055), ("eth0", 1055), ("eth1", 20)]);
        let moved = Moved::new(&before, &after, 1000, |l| l.sent);
        assert_eq!(moved, Moved { names: vec!["bond0".to_owned(), "eth0".to_owned()], clear: true });
        let noisy = links(&[("bond0", 9000), ("eth0", 1055), ("eth1", 7900)]);
        let moved = Moved::new(&before, &noisy, 1000, |l| l.sent);
        assert!(!moved.clear);
        let later = links(&[("bond0", 10055), ("eth0", 2155), ("eth1", 7900)]);
        assert_eq!(moved.and(Moved::new(&noisy, &later, 1000, |l| l.sent)).names, ["bond0", "eth0"]);
        assert!(!Moved::new(&before, &before, 1000, |l| l.sent).clear, "nothing seen is not clear");
    }
}
