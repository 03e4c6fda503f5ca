//! `AUTHONLY`: pieces of payloads in the clear between the records of a connection, each with a tag.
//!
//! A piece is a head (its kind, and its length in 4 bytes), the bytes, and the GMAC over both. Records and pieces of a direction
//! share one sequence of numbers, which are in the nonces: what is changed, left out, repeated, exchanged or taken from elsewhere
//! does not fit its place. A piece's key is derived from that of the records around it, and changes with it.
//!
//! The bytes are sent from where they lie and received straight into their place. They are counted as received as they come, but
//! for the last one of each piece: that is read with the tag, and given when the tag is right. So no payload is whole before all
//! its tags were compared. A piece is only taken where its receiver expects a payload of at least its length: nothing else is
//! ever read from one.

use std::io::{self, IoSlice, IoSliceMut};

use aws_lc_rs::{constant_time, hkdf};
use rustls::ConnectionTrafficSecrets;

use super::{
    HEAD, Open, Records, Seal, broken,
    rest::{PIECE_MAX, Rest},
};
use crate::connections::gmac::{Gmac, KEY, NONCE, TAG};

/// In the place of a record's type, none of which has it.
const PIECE: u8 = 128;
/// What is behind the bytes that are read into their place: the last one, and the tag.
const TAIL: usize = 1 + TAG;
/// Slices of one transfer beside those of the payload.
const SLICES_BESIDE: usize = 2;

/// What makes the tags of a direction, from one change of its key to the next.
pub(super) struct Tags {
    gmac: Gmac,
    iv: [u8; NONCE],
}

/// As many bytes as a key and a vector have.
struct Length;

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        KEY + NONCE
    }
}

impl Tags {
    /// Beside what records are sealed by: HKDF (RFC 5869, SHA-256) of their key and vector.
    pub(super) fn beside(secrets: &ConnectionTrafficSecrets) -> io::Result<Tags> {
        use ConnectionTrafficSecrets::{Aes128Gcm, Aes256Gcm, Chacha20Poly1305};
        let (Aes128Gcm { key, iv } | Aes256Gcm { key, iv } | Chacha20Poly1305 { key, iv }) = secrets else {
            return Err(broken("a cipher that is not known here"));
        };
        let secret = [key.as_ref(), iv.as_ref()].concat();
        let mut derived = [0; KEY + NONCE];
        hkdf::Salt::new(hkdf::HKDF_SHA256, b"ropewalk pieces")
            .extract(&secret)
            .expand(&[b"key and iv"], Length)
            .and_then(|okm| okm.fill(&mut derived))
            .map_err(|_| broken("no key for pieces"))?;
        let (key, iv) = derived.split_at(KEY);
        let fits = |_| broken("a key of the wrong length");
        Ok(Tags { gmac: Gmac::new(key.try_into().map_err(fits)?)?, iv: iv.try_into().map_err(fits)? })
    }

    /// Begins the tag of the piece of this number and head.
    fn begin(&mut self, seq: u64, head: &[u8; HEAD]) -> io::Result<()> {
        let mut nonce = self.iv;
        nonce[4..].iter_mut().zip(seq.to_be_bytes()).for_each(|(byte, of_seq)| *byte ^= of_seq);
        self.gmac.begin(&nonce)?;
        self.gmac.update(head)
    }
}

/// A piece whose head is on its way.
pub(super) struct Sending {
    /// Bytes that the socket has not taken.
    left: usize,
    tag: [u8; TAG],
}

/// A piece whose head has come.
pub(super) struct Receiving {
    /// Bytes that are yet to be read into their place.
    left: usize,
}

impl Records {
    /// Sends what fits of `slices`: those that `payload` says are bulk payload in pieces, the rest in records. How many bytes
    /// that was; those in records may wait in `seal`. `write` is given what is to be sent now.
    pub(crate) fn send_pieces(
        &self,
        seal: &mut Seal,
        slices: &[IoSlice<'_>],
        payload: &[bool],
        mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut rest = Rest::new(slices, payload);
        let mut taken = 0;
        loop {
            taken += self.seal_until_piece(seal, &mut rest)?;
            let left = seal.piece.as_ref().map_or(0, |piece| piece.left);
            if seal.pending().is_empty() && left == 0 {
                return Ok(taken);
            }
            let tag = seal.piece.as_ref().map_or([0; TAG], |piece| piece.tag);
            let mut all = Vec::with_capacity(slices.len() + SLICES_BESIDE);
            all.push(IoSlice::new(seal.pending()));
            let offered = rest.first(left, &mut all);
            if left > 0 && offered == left {
                all.push(IoSlice::new(&tag));
            }
            let before = seal.pending().len();
            match write(&all) {
                Ok(n) => {
                    let (of_payload, of_tag) = seal.wrote(n, before, offered);
                    rest.advance(of_payload);
                    taken += of_payload;
                    self.end_piece(seal, of_tag)?;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && taken > 0 => return Ok(taken),
                Err(e) => return Err(e),
            }
        }
    }

    /// Seals up to the next piece, as much as is gathered at a time, and the head of that; how many bytes that was.
    fn seal_until_piece(&self, seal: &mut Seal, rest: &mut Rest<'_, '_>) -> io::Result<usize> {
        let mut taken = 0;
        while seal.piece.is_none() && !rest.is_empty() && seal.has_room() {
            match rest.piece() {
                0 => taken += self.seal_data(seal, rest)?,
                len => {
                    self.renew_used_up(seal)?;
                    seal.begin_piece(len, rest)?;
                }
            }
        }
        Ok(taken)
    }

    /// If all bytes of the piece are sent, `sent` bytes of its tag are, and the rest of that is next; then what had to wait for it.
    fn end_piece(&self, seal: &mut Seal, sent: usize) -> io::Result<()> {
        let Some(Sending { tag, .. }) = seal.piece.take_if(|piece| piece.left == 0) else { return Ok(()) };
        seal.buffer.extend_from_slice(&tag);
        seal.sent(sent);
        if std::mem::take(&mut seal.answer_due) {
            self.answer(seal)?;
        }
        Ok(())
    }

    /// Takes what has come, and reads more: up to the slices' length, of which the first `payload` bytes may be in pieces. `read`
    /// is given where it is to go; `Interrupted` by it ends this one. `Ok(0)` is the end of the stream.
    pub(crate) fn receive_pieces(
        &self,
        open: &mut Open,
        slices: &mut [IoSliceMut<'_>],
        payload: usize,
        mut answer: impl FnMut(),
        mut read: impl FnMut(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let wanted: usize = slices.iter().map(|s| s.len()).sum();
        let mut moved = 0;
        loop {
            moved += self.open(open, slices, moved)?;
            if open.take_answer() {
                answer();
            }
            if moved == wanted || open.ended() {
                return Ok(moved);
            }
            if open.has_piece_head() && payload <= moved && moved > 0 {
                return Ok(moved);
            }
            let more = match open.piece_next(payload.saturating_sub(moved)) {
                Ok(Some(last)) => {
                    place(slices, moved, last);
                    moved += 1;
                    continue;
                }
                Ok(None) => open.read_on(slices, moved, &mut read),
                Err(error) => return open.fail(error, moved),
            };
            match more {
                Ok(None) => return Ok(moved),
                Ok(Some(n)) => moved += n,
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                    return if moved > 0 { Ok(moved) } else { Err(e) };
                }
                // The kernel says it once.
                Err(e) => return open.fail(e, moved),
            }
        }
    }
}

/// Puts a byte at a place within the slices.
fn place(slices: &mut [IoSliceMut<'_>], mut at: usize, byte: u8) {
    for slice in slices {
        if let Some(place) = slice.get_mut(at) {
            *place = byte;
            return;
        }
        at -= slice.len();
    }
}

impl Seal {
    /// The tag is made of the bytes before any of them is sent, and they are sent while the CPU's cache still has them.
    fn begin_piece(&mut self, len: usize, rest: &Rest<'_, '_>) -> io::Result<()> {
        let tags = &mut self.key.tags;
        let [a, b, c, d] = (len as u32).to_be_bytes();
        let head = [PIECE, a, b, c, d];
        tags.begin(self.key.seq, &head)?;
        self.key.seq += 1;
        let mut parts = Vec::new();
        rest.first(len, &mut parts);
        parts.iter().try_for_each(|part| tags.gmac.update(part))?;
        self.buffer.extend_from_slice(&head);
        self.answered = false;
        self.piece = Some(Sending { left: len, tag: tags.gmac.finish()? });
        Ok(())
    }

    /// The socket has taken so many bytes of what was `pending`, `offered` of a payload, and a tag; how many were of the latter two.
    fn wrote(&mut self, n: usize, pending: usize, offered: usize) -> (usize, usize) {
        self.sent(n.min(pending));
        let of_payload = n.saturating_sub(pending).min(offered);
        if let Some(piece) = &mut self.piece {
            piece.left -= of_payload;
        }
        (of_payload, n.saturating_sub(pending + of_payload))
    }
}

impl Open {
    /// Where bytes of the stream begin or end a piece: its last byte, if the tag behind that is right. None: more is to be read, or
    /// no piece is next. `payload`: so many bytes of one are expected.
    fn piece_next(&mut self, payload: usize) -> io::Result<Option<u8>> {
        if self.has_piece_head() {
            self.begin_piece(payload)?;
        }
        let came = self.buffer[self.sealed.clone()].first_chunk::<TAIL>();
        let (Some(Receiving { left: 0 }), Some([last, tag @ ..])) = (&self.piece, came) else {
            return Ok(None);
        };
        let (tags, last) = (&mut self.key.tags, *last);
        tags.gmac.update(&[last])?;
        constant_time::verify_slices_are_equal(&tags.gmac.finish()?, tag).map_err(|_| {
            broken("a piece of a payload that the peer did not tag: somebody changes, repeats or leaves out what is sent")
        })?;
        self.sealed.start += TAIL;
        self.piece = None;
        Ok(Some(last))
    }

    /// Whether the head of a piece is what comes next.
    pub(super) fn has_piece_head(&self) -> bool {
        self.pieces
            && self.piece.is_none()
            && self.sealed.len() >= HEAD
            && self.buffer[self.sealed.start] == PIECE
    }

    fn begin_piece(&mut self, payload: usize) -> io::Result<()> {
        let Some(&head) = self.buffer[self.sealed.clone()].first_chunk::<HEAD>() else { return Ok(()) };
        let [_, a, b, c, d] = head;
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        if !(1..=PIECE_MAX.min(payload)).contains(&len) {
            return Err(broken("a piece of a payload where none of that length is due"));
        }
        self.key.tags.begin(self.key.seq, &head)?;
        self.key.seq += 1;
        self.sealed.start += HEAD;
        self.idle = 0;
        self.piece = Some(Receiving { left: len - 1 });
        Ok(())
    }

    /// Reads on: bytes of a piece into their place, and behind them, or where there is no piece, what is needed next. None: the
    /// stream has ended; else how many bytes of a payload have come.
    fn read_on(
        &mut self,
        slices: &mut [IoSliceMut<'_>],
        from: usize,
        read: &mut impl FnMut(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<Option<usize>> {
        let left = self.piece.as_ref().map_or(0, |piece| piece.left);
        let mut all = Vec::with_capacity(slices.len() + SLICES_BESIDE);
        let offered = limited(slices, from, left, &mut all);
        if offered == left {
            all.push(IoSliceMut::new(self.room()));
        }
        let n = read(&mut all)?;
        if n == 0 {
            return Ok(None);
        }
        let own = n.min(offered);
        let mut all = Vec::with_capacity(slices.len());
        limited(slices, from, own, &mut all);
        if let Some(piece) = &mut self.piece {
            piece.left -= own;
        }
        all.iter().try_for_each(|part| self.key.tags.gmac.update(part))?;
        self.received(n - own);
        Ok(Some(own))
    }

    /// Bytes from the socket that are needed before anything can be given; what follows them may be bytes of a payload.
    pub(super) fn needed(&self) -> usize {
        if self.piece.is_some() {
            return TAIL + HEAD;
        }
        let head = self.buffer[self.sealed.clone()].first_chunk::<HEAD>();
        // With a record comes the head of what follows it.
        head.map_or(HEAD, |_| self.wanted() + HEAD)
    }
}

/// Appends `max` bytes of the slices from byte `from` on; how many there were.
fn limited<'a>(
    slices: &'a mut [IoSliceMut<'_>],
    mut from: usize,
    max: usize,
    to: &mut Vec<IoSliceMut<'a>>,
) -> usize {
    let mut total = 0;
    for slice in slices {
        let skipped = from.min(slice.len());
        from -= skipped;
        let n = (slice.len() - skipped).min(max - total);
        if n > 0 {
            to.push(IoSliceMut::new(&mut slice[skipped..skipped + n]));
            total += n;
        }
    }
    total
}

#[cfg(test)]
#[path = "pieces_tests.rs"]
mod tests;
