//! TLS 1.3 records (RFC 8446, section 5), sealed from and opened into the memory of payloads.
//!
//! The handshake is rustls' (`tls.rs`); the records after it are made here, since its own would copy every byte of a payload
//! twice more. What is sent is gathered into one buffer and sealed there; what comes is read into one buffer, and each record
//! is opened straight into the place of its bytes where that is in one piece.
//!
//! Invariants: no key seals more than [`RECORDS_MAX`] records; a sequence number is used once; of a record that was not
//! opened nothing is given to anybody, and after it nothing at all; what is given before it is not lost. A peer that sends
//! records without content gets nothing done by it: [`IDLE_MAX`] of them in a row end the connection, and however many new keys
//! it asks for, one answer waits. That is sent when it is read, or where the socket is full, before the next data.
//!
//! With `AUTHONLY` bulk payloads go between the records: `pieces.rs`.

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

#[path = "pieces.rs"]
mod pieces;
#[path = "rest.rs"]
mod rest;

use self::{
    pieces::{Receiving, Sending, Tags},
    rest::Rest,
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
/// Bytes of sealed records that are read at a time: at least one record.
const AHEAD: usize = 32 << 10;
/// The same where payloads come.
const AHEAD_BULK: usize = 128 << 10;
/// Room for sealed bytes that stays with a connection that sends no more than this between two heartbeats.
pub(crate) const KEPT: usize = 32 << 10;
/// A slice of at least this many bytes begins a record of its own, so that it is opened in one piece.
const LARGE: usize = 4 << 10;
/// Records that one key seals; AES-GCM bears 2^24.5 of this size (section 5.5).
const RECORDS_MAX: u64 = 1 << 24;
/// Records in a row that may come without a byte of content.
const IDLE_MAX: u32 = 32;

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
    /// For what goes in the clear beside it.
    tags: Tags,
}

impl Key {
    fn new((seq, secrets): (u64, ConnectionTrafficSecrets)) -> io::Result<Key> {
        use ConnectionTrafficSecrets::{Aes128Gcm, Aes256Gcm, Chacha20Poly1305};
        let tags = Tags::beside(&secrets)?;
        let (algorithm, key, iv) = match &secrets {
            Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(broken("a cipher that is not known here")),
        };
        let key =
            UnboundKey::new(algorithm, key.as_ref()).map_err(|_| broken("a key of the wrong length"))?;
        let iv = iv.as_ref().try_into().map_err(|_| broken("a vector of the wrong length"))?;
        Ok(Key { key: LessSafeKey::new(key), iv, seq, tags })
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
    /// A new key that the peer has asked for is in the buffer, and no data after it.
    answered: bool,
    /// The same is to be done when the piece that is being sent is over.
    answer_due: bool,
    /// What is sent after the buffer, and before anything else.
    piece: Option<Sending>,
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
    /// Payloads may come in pieces: beyond a record the head of what follows is read, and no more.
    pieces: bool,
    /// The piece that is being received.
    piece: Option<Receiving>,
    /// Nothing more is given.
    ended: bool,
    /// Why, to be told after what came before it.
    failed: Option<io::Error>,
    /// Records without content since the last one with any.
    idle: u32,
    /// The peer's wish for a new key was answered, and that is to be sent.
    answer: bool,
}

impl Records {
    /// Those of a connection whose handshake is done.
    pub(crate) fn new(secrets: ExtractedSecrets, keys: Keys) -> io::Result<Records> {
        let buffer = vec![0; AHEAD].into_boxed_slice();
        let (seal, open) = (Key::new(secrets.tx)?, Key::new(secrets.rx)?);
        Ok(Records {
            keys: Mutex::new(keys),
            seal: Mutex::new(Seal {
                key: seal,
                buffer: Vec::new(),
                sent: 0,
                answered: false,
                answer_due: false,
                piece: None,
            }),
            open: Mutex::new(Open {
                key: open,
                buffer,
                sealed: 0..0,
                content: 0..0,
                by_record: true,
                pieces: false,
                piece: None,
                ended: false,
                failed: None,
                idle: 0,
                answer: false,
            }),
        })
    }

    /// Seals what is in `slices` from byte `from` on, as much as is gathered at a time; how many bytes that was.
    pub(crate) fn seal(&self, seal: &mut Seal, slices: &[IoSlice<'_>], from: usize) -> io::Result<usize> {
        let mut rest = Rest::new(slices, &[]);
        rest.advance(from);
        let mut taken = 0;
        while !rest.is_empty() && seal.has_room() {
            taken += self.seal_data(seal, &mut rest)?;
        }
        Ok(taken)
    }

    /// One record of what is next, under a key that is not used up; how many bytes that was.
    fn seal_data(&self, seal: &mut Seal, rest: &mut Rest<'_, '_>) -> io::Result<usize> {
        self.renew_used_up(seal)?;
        seal.answered = false;
        seal.record(DATA, |content| rest.take(content))
    }

    fn renew_used_up(&self, seal: &mut Seal) -> io::Result<()> {
        if seal.key.seq >= RECORDS_MAX { self.renew(seal, false) } else { Ok(()) }
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

    /// The peer wants a new key; whether one was sealed. One answer is enough for all that was asked before it (section 4.6.3).
    fn answer(&self, seal: &mut Seal) -> io::Result<bool> {
        seal.answer_due = seal.piece.is_some();
        if seal.answered || seal.answer_due {
            return Ok(false);
        }
        self.renew(seal, false)?;
        seal.answered = true;
        Ok(true)
    }

    /// Moves what was opened, and opens what has come whole, into `slices` from byte `from` on; how many bytes that was. Those
    /// before `from` are not taken yet: what fails then is told the next time.
    pub(crate) fn open(
        &self,
        open: &mut Open,
        slices: &mut [IoSliceMut<'_>],
        from: usize,
    ) -> io::Result<usize> {
        if let Some(error) = open.failed.take() {
            return Err(error);
        }
        let mut moved = 0;
        match self.open_into(open, slices, from, &mut moved) {
            Ok(()) => Ok(moved),
            Err(error) => open.fail(error, from + moved).map(|_| moved),
        }
    }

    fn open_into(
        &self,
        open: &mut Open,
        slices: &mut [IoSliceMut<'_>],
        mut from: usize,
        moved: &mut usize,
    ) -> io::Result<()> {
        for slice in slices {
            let skipped = from.min(slice.len());
            from -= skipped;
            let mut place = &mut slice[skipped..];
            while !place.is_empty() {
                let n = if open.content.is_empty() {
                    match self.next_record(open, place)? {
                        Some(n) => n,
                        None => return Ok(()),
                    }
                } else {
                    open.take(place)
                };
                *moved += n;
                place = &mut place[n..];
            }
        }
        Ok(())
    }

    /// Opens the next record if it is whole: into `place` if it fits there, which yields its length, else in its own place,
    /// which yields 0.
    fn next_record(&self, open: &mut Open, place: &mut [u8]) -> io::Result<Option<usize>> {
        if open.ended || open.piece.is_some() || open.has_piece_head() {
            return Ok(None);
        }
        let Some(n) = self.open_record(open, place)? else { return Ok(None) };
        open.idle = if n > 0 || !open.content.is_empty() { 0 } else { open.idle + 1 };
        if open.idle > IDLE_MAX {
            return Err(broken("records without content, one after the other"));
        }
        Ok(Some(n))
    }

    fn open_record(&self, open: &mut Open, place: &mut [u8]) -> io::Result<Option<usize>> {
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
                    open.answer |= self.answer(&mut self.seal.lock())?;
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

    /// Whether one more record is gathered before what there is is sent.
    fn has_room(&self) -> bool {
        self.buffer.len() + HEAD + CONTENT_MAX + 1 + TAG <= GATHER
    }

    /// Sealed and not sent.
    pub(crate) fn pending(&self) -> &[u8] {
        &self.buffer[self.sent..]
    }

    /// Little was sent for a while: room for much is given back if nothing is in it.
    pub(crate) fn give_back(&mut self) {
        if self.buffer.is_empty() && self.buffer.capacity() > KEPT {
            self.buffer = Vec::new();
        }
    }

    /// So many bytes of it are sent.
    pub(crate) fn sent(&mut self, n: usize) {
        self.sent += n;
        if self.sent == self.buffer.len() {
            self.buffer.clear();
            (self.sent, self.answered) = (0, false);
        }
    }
}

impl Open {
    /// Payloads will come: much is read at a time. What is here already stays.
    pub(crate) fn expect_payloads(&mut self) {
        if self.buffer.len() < AHEAD_BULK {
            let mut buffer = vec![0; AHEAD_BULK].into_boxed_slice();
            buffer[..self.buffer.len()].copy_from_slice(&self.buffer);
            self.buffer = buffer;
        }
    }

    /// Where the next bytes from the socket go; not empty. Nothing opened is left, and no whole record.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        let len = self.buffer.len();
        // Room for much at a time, and in any case for the rest of the longest record.
        if len - self.sealed.end < len / 2 || len - self.sealed.start < HEAD + RECORD_MAX + HEAD {
            self.buffer.copy_within(self.sealed.clone(), 0);
            self.sealed = 0..self.sealed.len();
        }
        let end = match (self.by_record, self.pieces) {
            (false, _) => self.buffer.len(),
            (true, false) => self.sealed.start + self.wanted(),
            (true, true) => self.sealed.start + self.needed(),
        };
        &mut self.buffer[self.sealed.end..end]
    }

    /// Length of the present record as far as that is known. A wrong head was refused before.
    fn wanted(&self) -> usize {
        let head = self.buffer[self.sealed.clone()].first_chunk::<HEAD>();
        HEAD + head.and_then(|head| record_len(head).ok()).unwrap_or(0)
    }

    /// All that follows is sealed, and may be read ahead, but for payloads that may come in `pieces`.
    pub(crate) fn settle(&mut self, pieces: bool) {
        (self.by_record, self.pieces) = (pieces, pieces);
    }

    /// So many bytes have come there.
    pub(crate) fn received(&mut self, n: usize) {
        self.sealed.end += n;
    }

    /// Whether something of the stream is here already, or its end.
    pub(crate) fn has_some(&self) -> bool {
        !self.content.is_empty() || !self.sealed.is_empty() || self.ended
    }

    /// The stream has failed. `moved` bytes were given by the present read: if there are any they count, and the next one says
    /// why.
    pub(crate) fn fail(&mut self, error: io::Error, moved: usize) -> io::Result<usize> {
        self.ended = true;
        if moved == 0 {
            return Err(error);
        }
        self.failed = Some(error);
        Ok(moved)
    }

    /// Whether an answer to the peer was sealed since this was asked.
    pub(crate) fn take_answer(&mut self) -> bool {
        std::mem::take(&mut self.answer)
    }

    /// The peer has said that nothing more comes, or it has failed.
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

#[cfg(test)]
#[path = "records_tests.rs"]
pub(crate) mod tests;
