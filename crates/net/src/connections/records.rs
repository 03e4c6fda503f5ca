//! TLS 1.3 records (RFC 8446, section 5), sealed from and opened into the memory of payloads.
//!
//! The handshake is rustls' (`tls.rs`); the records after it are made here, since its own would copy every byte of a payload
//! twice more. What is sent is gathered into one buffer and sealed there; what comes is read into one buffer, and each record
//! is opened straight into the place of its bytes where that is in one piece.
//!
//! Invariants: no key seals more than [`RECORDS_MAX`] records; a sequence number is used once; of a record that was not
//! opened nothing is given to anybody.

use std::{
    fmt,
    io::{self, IoSlice, IoSliceMut},
};

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use parking_lot::Mutex;
use rustls::{
    AlertDescription, ConnectionTrafficSecrets, Error, ExtractedSecrets, client::ClientConnectionData,
    kernel::KernelConnection, server::ServerConnectionData,
};

/// Bytes before a record.
pub(crate) const HEAD: usize = 5;
/// Largest content of a record, bytes.
const CONTENT_MAX: usize = 16 << 10;
/// Largest record without its head: content, its type, padding and tag (section 5.2).
pub(crate) const RECORD_MAX: usize = CONTENT_MAX + 256;
/// Bytes of a tag.
const TAG: usize = 16;
/// Sealed bytes gathered before they are sent.
const GATHER: usize = 128 << 10;
/// A slice of at least this many bytes begins a record of its own, so that it is opened in one piece.
const LARGE: usize = 4 << 10;
/// Records that one key seals; AES-GCM bears 2^24.5 of this size (section 5.5).
const RECORDS_MAX: u64 = 1 << 24;

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;
/// A handshake message of one byte that says: the sender's next record has a new key. The byte: 1 if it wants one of the
/// receiver, too.
const KEY_UPDATE: [u8; 4] = [24, 0, 0, 1];

/// The peer ended the connection, and said why.
#[derive(Debug)]
pub(crate) struct Alerted(pub AlertDescription);

impl fmt::Display for Alerted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the peer ended it: {:?}", self.0)
    }
}
impl std::error::Error for Alerted {}

fn broken(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// What makes the next keys.
pub(crate) enum Keys {
    Connecting(KernelConnection<ClientConnectionData>),
    Accepting(KernelConnection<ServerConnectionData>),
}

impl Keys {
    fn next(&mut self, to_send: bool) -> Result<(u64, ConnectionTrafficSecrets), Error> {
        match (self, to_send) {
            (Keys::Connecting(keys), true) => keys.update_tx_secret(),
            (Keys::Connecting(keys), false) => keys.update_rx_secret(),
            (Keys::Accepting(keys), true) => keys.update_tx_secret(),
            (Keys::Accepting(keys), false) => keys.update_rx_secret(),
        }
    }
}

/// One direction's key, and the number of its next record.
struct Key {
    key: LessSafeKey,
    iv: [u8; 12],
    seq: u64,
}

impl Key {
    fn new((seq, secrets): (u64, ConnectionTrafficSecrets)) -> io::Result<Key> {
        use ConnectionTrafficSecrets::{Aes128Gcm, Aes256Gcm, Chacha20Poly1305};
        let (algorithm, key, iv) = match &secrets {
            Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(broken("a cipher that is not known here")),
        };
        let key =
            UnboundKey::new(algorithm, key.as_ref()).map_err(|_| broken("a key of the wrong length"))?;
        let iv = iv.as_ref().try_into().map_err(|_| broken("a vector of the wrong length"))?;
        Ok(Key { key: LessSafeKey::new(key), iv, seq })
    }

    /// For the next record (section 5.3).
    fn nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        nonce[4..].iter_mut().zip(self.seq.to_be_bytes()).for_each(|(byte, of_seq)| *byte ^= of_seq);
        self.seq += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

/// Both directions of a connection.
pub(crate) struct Records {
    keys: Mutex<Keys>,
    /// The sending side.
    pub seal: Mutex<Seal>,
    /// The receiving side.
    pub open: Mutex<Open>,
}

/// What is sealed and not yet sent.
pub(crate) struct Seal {
    key: Key,
    /// Records, of which those before `sent` are gone.
    buffer: Vec<u8>,
    sent: usize,
}

/// What has come and is not yet opened, or not yet taken.
pub(crate) struct Open {
    key: Key,
    buffer: Box<[u8]>,
    /// Received and not opened.
    sealed: std::ops::Range<usize>,
    /// Opened in place and not taken; before `sealed`.
    content: std::ops::Range<usize>,
    /// Not a byte is read beyond a record: what follows may not be sealed.
    by_record: bool,
    ended: bool,
}

impl Records {
    /// Those of a connection whose handshake is done. `ahead`: bytes read at a time, at least one record.
    pub(crate) fn new(secrets: ExtractedSecrets, keys: Keys, ahead: usize) -> io::Result<Records> {
        let buffer = vec![0; ahead.max(HEAD + RECORD_MAX)].into_boxed_slice();
        let (seal, open) = (Key::new(secrets.tx)?, Key::new(secrets.rx)?);
        Ok(Records {
            keys: Mutex::new(keys),
            seal: Mutex::new(Seal { key: seal, buffer: Vec::new(), sent: 0 }),
            open: Mutex::new(Open {
                key: open,
                buffer,
                sealed: 0..0,
                content: 0..0,
                by_record: true,
                ended: false,
            }),
        })
    }

    /// Seals what is in `slices` from byte `from` on, as much as is gathered at a time; how many bytes that was.
    pub(crate) fn seal(&self, seal: &mut Seal, slices: &[IoSlice<'_>], from: usize) -> io::Result<usize> {
        let mut rest = Rest { slices, at: 0, skip: 0 };
        rest.advance(from);
        let mut taken = 0;
        while !rest.is_empty() && seal.buffer.len() + HEAD + CONTENT_MAX + 1 + TAG <= GATHER {
            if seal.key.seq >= RECORDS_MAX {
                self.renew(seal, false)?;
            }
            taken += seal.record(DATA, |content| rest.take(content))?;
        }
        Ok(taken)
    }

    /// From the next record on another key seals. `wanted`: of the peer's, too.
    fn renew(&self, seal: &mut Seal, wanted: bool) -> io::Result<()> {
        seal.record(HANDSHAKE, |content| {
            content.extend_from_slice(&KEY_UPDATE);
            content.push(u8::from(wanted));
            KEY_UPDATE.len() + 1
        })?;
        seal.key = Key::new(self.keys.lock().next(true).map_err(io::Error::other)?)?;
        Ok(())
    }

    /// Moves what was opened, and opens what has come whole, into `slices` from byte `from` on; how many bytes that was.
    pub(crate) fn open(
        &self,
        open: &mut Open,
        slices: &mut [IoSliceMut<'_>],
        mut from: usize,
    ) -> io::Result<usize> {
        let mut moved = 0;
        for slice in slices {
            let skipped = from.min(slice.len());
            from -= skipped;
            let mut place = &mut slice[skipped..];
            while !place.is_empty() {
                let n = if open.content.is_empty() {
                    match self.next_record(open, place)? {
                        Some(n) => n,
                        None => return Ok(moved),
                    }
                } else {
                    open.take(place)
                };
                moved += n;
                place = &mut place[n..];
            }
        }
        Ok(moved)
    }

    /// Opens the next record if it is whole: into `place` if it fits there, which yields its length, else in its own place,
    /// which yields 0.
    fn next_record(&self, open: &mut Open, place: &mut [u8]) -> io::Result<Option<usize>> {
        if open.ended {
            return Ok(None);
        }
        let Some((head, body)) = open.whole_record()? else { return Ok(None) };
        let nonce = open.key.nonce();
        let forged = |_| {
            broken(
                "a record that the peer did not seal: somebody changes, repeats or leaves out what is sent",
            )
        };
        let len = body.len() - TAG;
        open.sealed.start = body.end;
        // One byte more is opened than it holds: its type, which what comes next overwrites.
        if len <= place.len() {
            let (sealed, tag) = open.buffer[body].split_at(len);
            open.key
                .key
                .open_separate_gather(nonce, Aad::from(head), sealed, tag, &mut place[..len])
                .map_err(forged)?;
            let (kind, len) = kind_of(&place[..len])?;
            return match kind {
                DATA => Ok(Some(len)),
                _ => {
                    let message = place[..len].to_vec();
                    self.message(open, kind, &message).map(|()| Some(0))
                }
            };
        }
        let start = body.start;
        let opened =
            open.key.key.open_in_place(nonce, Aad::from(head), &mut open.buffer[body]).map_err(forged)?;
        let (kind, len) = kind_of(opened)?;
        if kind == DATA {
            open.content = start..start + len;
            return Ok(Some(0));
        }
        let message = open.buffer[start..start + len].to_vec();
        self.message(open, kind, &message).map(|()| Some(0))
    }

    /// What is no data.
    fn message(&self, open: &mut Open, kind: u8, message: &[u8]) -> io::Result<()> {
        match (kind, message) {
            (HANDSHAKE, [24, 0, 0, 1, wanted @ (0 | 1)]) => {
                open.key = Key::new(self.keys.lock().next(false).map_err(io::Error::other)?)?;
                if *wanted == 1 {
                    self.renew(&mut self.seal.lock(), false)?;
                }
                Ok(())
            }
            // That nothing more comes is an end like that of a connection without TLS: frames say what is whole.
            (ALERT, [_, 0]) => {
                open.ended = true;
                Ok(())
            }
            (ALERT, [_, alert]) => Err(broken(Alerted((*alert).into()))),
            _ => Err(broken("a message of TLS that has no place after the handshake")),
        }
    }
}

/// The type of a record's content, and its length without padding (section 5.4).
fn kind_of(opened: &[u8]) -> io::Result<(u8, usize)> {
    let end = opened.iter().rposition(|&byte| byte != 0);
    end.map(|at| (opened[at], at)).ok_or_else(|| broken("a record without a type"))
}

impl Seal {
    /// Appends one record whose content `fill` appends; returns what that does.
    fn record(&mut self, kind: u8, fill: impl FnOnce(&mut Vec<u8>) -> usize) -> io::Result<usize> {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(&[DATA, 3, 3, 0, 0]);
        let filled = fill(&mut self.buffer);
        self.buffer.push(kind);
        let len = self.buffer.len() - start - HEAD + TAG;
        self.buffer[start + 3..start + HEAD].copy_from_slice(&(len as u16).to_be_bytes());
        let nonce = self.key.nonce();
        let (head, content) = self.buffer[start..].split_at_mut(HEAD);
        let sealed = self.key.key.seal_in_place_separate_tag(nonce, Aad::from(&*head), content);
        let tag = sealed.map_err(|_| broken("a record could not be sealed"))?;
        self.buffer.extend_from_slice(tag.as_ref());
        Ok(filled)
    }

    /// Sealed and not sent.
    pub(crate) fn pending(&self) -> &[u8] {
        &self.buffer[self.sent..]
    }

    /// So many bytes of it are sent.
    pub(crate) fn sent(&mut self, n: usize) {
        self.sent += n;
        if self.sent == self.buffer.len() {
            self.buffer.clear();
            self.sent = 0;
        }
    }
}

impl Open {
    /// Where the next bytes from the socket go; not empty. Nothing opened is left, and no whole record.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        if self.buffer.len() - self.sealed.end < self.buffer.len() / 2 {
            self.buffer.copy_within(self.sealed.clone(), 0);
            self.sealed = 0..self.sealed.len();
        }
        let end = if self.by_record { self.sealed.start + self.wanted() } else { self.buffer.len() };
        &mut self.buffer[self.sealed.end..end]
    }

    /// Length of the present record as far as that is known. A wrong head was refused before.
    fn wanted(&self) -> usize {
        let head = self.buffer[self.sealed.clone()].first_chunk::<HEAD>();
        HEAD + head.and_then(|head| record_len(head).ok()).unwrap_or(0)
    }

    /// All that follows is sealed: it may be read ahead.
    pub(crate) fn read_ahead(&mut self) {
        self.by_record = false;
    }

    /// So many bytes have come there.
    pub(crate) fn received(&mut self, n: usize) {
        self.sealed.end += n;
    }

    /// Whether something of the stream is here already.
    pub(crate) fn has_some(&self) -> bool {
        !self.content.is_empty() || !self.sealed.is_empty()
    }

    /// The peer has said that nothing more comes.
    pub(crate) fn ended(&self) -> bool {
        self.ended
    }

    fn take(&mut self, place: &mut [u8]) -> usize {
        let n = place.len().min(self.content.len());
        place[..n].copy_from_slice(&self.buffer[self.content.start..self.content.start + n]);
        self.content.start += n;
        n
    }

    /// The head of the next record, and where its body is, if all of it has come.
    fn whole_record(&self) -> io::Result<Option<([u8; HEAD], std::ops::Range<usize>)>> {
        let Some(&head) = self.buffer[self.sealed.clone()].first_chunk::<HEAD>() else { return Ok(None) };
        let len = record_len(&head)?;
        if head[0] != DATA || len <= TAG {
            return Err(broken("something other than a sealed record after the handshake"));
        }
        let body = self.sealed.start + HEAD..self.sealed.start + HEAD + len;
        Ok((body.end <= self.sealed.end).then_some((head, body)))
    }
}

/// Bytes that follow a record's head.
pub(crate) fn record_len(head: &[u8; HEAD]) -> io::Result<usize> {
    let len = usize::from(u16::from_be_bytes([head[3], head[4]]));
    if !(20..=23).contains(&head[0]) || head[1] != 3 || len > RECORD_MAX {
        return Err(broken("no record of TLS"));
    }
    Ok(len)
}

/// What of several slices is not sealed yet.
struct Rest<'a, 'b> {
    slices: &'a [IoSlice<'b>],
    at: usize,
    skip: usize,
}

impl Rest<'_, '_> {
    fn present(&self) -> &[u8] {
        self.slices.get(self.at).map_or(&[], |slice| &slice[self.skip..])
    }

    fn advance(&mut self, mut n: usize) {
        self.skip_empty();
        while n > 0 && self.at < self.slices.len() {
            let step = n.min(self.present().len());
            self.skip += step;
            n -= step;
            self.skip_empty();
        }
    }

    fn skip_empty(&mut self) {
        while self.at < self.slices.len() && self.present().is_empty() {
            (self.at, self.skip) = (self.at + 1, 0);
        }
    }

    fn is_empty(&self) -> bool {
        self.at == self.slices.len()
    }

    /// Appends the content of one record; how many bytes. Small slices go together, and so do large ones.
    fn take(&mut self, to: &mut Vec<u8>) -> usize {
        let (start, large) = (to.len(), self.present().len() >= LARGE);
        while !self.is_empty() && to.len() - start < CONTENT_MAX && (self.present().len() >= LARGE) == large {
            let n = self.present().len().min(CONTENT_MAX - (to.len() - start));
            to.extend_from_slice(&self.present()[..n]);
            self.advance(n);
        }
        to.len() - start
    }
}

#[cfg(test)]
mod tests {
    use base::ClusterId;
    use tokio::net::{TcpListener, TcpStream};
    use trust::{Identity, Secret};
    use wire::hello::Lane;

    use super::*;
    use crate::connections::{socket::Socket, tls};

    async fn connected() -> (Socket, Socket) {
        let identity = Identity::from_secret(ClusterId(7), &Secret::new([7; 32])).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut accepted, _) = listener.accept().await.unwrap();
        let both = tokio::join!(
            tls::connect(&identity, stream, Lane::Bulk),
            tls::accept(&identity, &mut accepted, false)
        );
        let (Ok((connecting, _)), Ok((records, _))) = both else { panic!("no handshake") };
        (connecting.settle(false), Socket::sealed(accepted, records).settle(false))
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect()
    }

    /// Whatever the slices are that it is sent from and received into.
    #[tokio::test]
    async fn what_is_received_is_what_was_sent() {
        let (from, to) = connected().await;
        let whole = pattern(1_500_000);
        for (out, into) in
            [(1_500_000, 1_500_000), (128, 4096), (4096, 128), (5000, 70_001), (16_385, 16_384)]
        {
            let sending = async {
                let mut slices: Vec<IoSlice<'_>> = whole.chunks(out).map(IoSlice::new).collect();
                let mut left = &mut slices[..];
                while !left.is_empty() {
                    match from.try_writev(left) {
                        Ok(n) => IoSlice::advance_slices(&mut left, n),
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => from.writable().await.unwrap(),
                        Err(e) => panic!("{e}"),
                    }
                }
                from.write_all(&[]).await.unwrap(); // what still waits
            };
            let receiving = async {
                let mut received = vec![0; whole.len()];
                for chunk in received.chunks_mut(into) {
                    to.read_exact(chunk).await.unwrap();
                }
                received
            };
            let ((), received) = tokio::join!(sending, receiving);
            assert!(received == whole, "{out} {into}");
        }
    }

    #[tokio::test]
    async fn a_key_that_is_used_up_is_followed_by_another() {
        let (from, to) = connected().await;
        let records = from.records().unwrap();
        let before = records.seal.lock().key.iv;
        // The same place in both sequences, just before the end.
        records.seal.lock().key.seq = RECORDS_MAX - 2;
        to.records().unwrap().open.lock().key.seq = RECORDS_MAX - 2;
        let whole = pattern(100_000);
        from.write_all(&whole).await.unwrap();
        assert!(records.seal.lock().key.iv != before && records.seal.lock().key.seq < 10);
        let mut received = vec![0; whole.len()];
        to.read_exact(&mut received).await.unwrap();
        assert_eq!(received, whole);
        // And in the other direction, which keeps its key.
        to.write_all(&whole).await.unwrap();
        from.read_exact(&mut received).await.unwrap();
    }

    #[tokio::test]
    async fn of_a_record_that_was_changed_nothing_is_given() {
        let (from, to) = connected().await;
        let (from, to) = (from.records().unwrap(), to.records().unwrap());
        let mut sealed = {
            let mut seal = from.seal.lock();
            assert_eq!(from.seal(&mut seal, &[IoSlice::new(b"what was said")], 0).unwrap(), 13);
            seal.pending().to_vec()
        };
        *sealed.last_mut().unwrap() ^= 1;
        let mut open = to.open.lock();
        open.room()[..sealed.len()].copy_from_slice(&sealed);
        open.received(sealed.len());
        let mut place = [0; 5];
        let error = to.open(&mut open, &mut [IoSliceMut::new(&mut place)], 0).unwrap_err();
        assert_eq!((error.kind(), place), (io::ErrorKind::InvalidData, [0; 5]));
    }
}
