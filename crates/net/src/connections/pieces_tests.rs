//! Payloads in the clear: what is given of them was sent, in its place, and nothing else is.

use std::io;

use super::*;
use crate::connections::{
    records::{
        KEY_UPDATE, LARGE, RECORD_MAX, RECORDS_MAX,
        tests::{connected_with, mutate, pattern},
    },
    socket::{Protection, Socket},
};

/// What one end has on the wire for the other: a connection whose bytes a test carries, and can change.
struct Wire {
    from: Socket,
    to: Socket,
}

impl Wire {
    async fn new() -> Wire {
        let (from, to) = connected_with(Protection::AuthOnly).await;
        Wire { from, to }
    }

    /// The bytes of these, as they go over the wire; true: a payload.
    fn bytes(&self, parts: &[(&[u8], bool)]) -> Vec<u8> {
        let (slices, payload): (Vec<_>, Vec<_>) = parts.iter().map(|(p, of)| (IoSlice::new(p), *of)).unzip();
        let records = self.from.records().unwrap();
        let (mut seal, mut bytes) = (records.seal.lock(), Vec::new());
        let all: usize = slices.iter().map(|s| s.len()).sum();
        let taken = records.send_pieces(&mut seal, &slices, &payload, |slices| {
            slices.iter().for_each(|s| bytes.extend_from_slice(s));
            Ok(slices.iter().map(|s| s.len()).sum())
        });
        assert_eq!(taken.unwrap(), all);
        bytes
    }

    /// What is given of these bytes, in reads of at most `step` into a place of its own: first `head` bytes of no payload, then
    /// `payload` bytes of one.
    fn given(&self, mut bytes: &[u8], head: usize, payload: usize, step: usize) -> io::Result<Vec<u8>> {
        let records = self.to.records().unwrap();
        let mut open = records.open.lock();
        let mut all = vec![0; head + payload];
        let mut done = 0;
        while done < all.len() {
            let due = if done < head { 0 } else { all.len() - done };
            let end = if done < head { head } else { (done + step).min(all.len()) };
            let n = records.receive_pieces(
                &mut open,
                &mut [IoSliceMut::new(&mut all[done..end])],
                due,
                || {},
                |slices| {
                    let mut n = 0;
                    for slice in slices {
                        let m = slice.len().min(bytes.len()).min(step - n);
                        slice[..m].copy_from_slice(&bytes[..m]);
                        (bytes, n) = (&bytes[m..], n + m);
                    }
                    Ok(n)
                },
            )?;
            if n == 0 {
                all.truncate(done);
                return Ok(all);
            }
            done += n;
        }
        Ok(all)
    }
}

/// Where a piece begins in these bytes.
fn pieces(bytes: &[u8]) -> Vec<usize> {
    let (mut at, mut found) = (0, Vec::new());
    while let Some(&[kind, a, b, c, d]) = bytes[at..].first_chunk::<HEAD>() {
        if kind == PIECE {
            found.push(at);
            at += HEAD + u32::from_be_bytes([a, b, c, d]) as usize + TAG;
        } else {
            at += HEAD + usize::from(u16::from_be_bytes([c, d]));
        }
    }
    found
}

const HEADER: &[u8] = b"a header, and the body of a message";

/// Whatever it is cut into by its sender, by the network and by its receiver; and large parts are in the clear, and nothing else.
#[tokio::test]
async fn what_is_received_is_what_was_sent() {
    let whole = pattern(700_001);
    for cut in [1000, 5000, 70_001, 300_000, 700_001] {
        for step in [97, 4096, 65_536, 1 << 20] {
            let wire = Wire::new().await;
            let mut parts = vec![(HEADER, false)];
            parts.extend(whole.chunks(cut).map(|part| (part, true)));
            let bytes = wire.bytes(&parts);
            assert!(bytes.windows(100).any(|w| w == &whole[10_000..10_100]), "in the clear");
            assert!(!bytes.windows(20).any(|w| w == &HEADER[..20]), "encrypted");
            let given = wire.given(&bytes, HEADER.len(), whole.len(), step).unwrap();
            assert!(given == [HEADER, &whole].concat(), "{cut} {step}");
        }
    }
    // What is small is sealed.
    let wire = Wire::new().await;
    let bytes = wire.bytes(&[(HEADER, false), (&whole[..LARGE - 1], true), (HEADER, false)]);
    assert!(pieces(&bytes).is_empty());
    assert_eq!(
        wire.given(&bytes, 0, LARGE - 1 + 2 * HEADER.len(), 100).unwrap().len(),
        LARGE - 1 + 2 * HEADER.len()
    );
}

/// Over sockets, whose buffers are full in the middle of everything.
#[tokio::test]
async fn a_full_socket_takes_nothing_away() {
    let (from, to) = connected_with(Protection::AuthOnly).await;
    let whole = pattern(6_000_001);
    let sending = async {
        for _ in 0..3 {
            let mut slices: Vec<_> =
                std::iter::once(HEADER).chain(whole.chunks(900_000)).map(IoSlice::new).collect();
            let (mut left, count) = (&mut slices[..], whole.chunks(900_000).len() + 1);
            while !left.is_empty() {
                let payload: Vec<bool> = (0..left.len()).map(|i| count - left.len() + i > 0).collect();
                match from.try_writev(left, &payload) {
                    Ok(n) => IoSlice::advance_slices(&mut left, n),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => from.writable().await.unwrap(),
                    Err(e) => panic!("{e}"),
                }
            }
        }
        from.write_all(&[]).await.unwrap(); // what still waits
    };
    let receiving = async {
        for _ in 0..3 {
            let (mut header, mut received) = (vec![0; HEADER.len()], vec![0; whole.len()]);
            to.read_exact(&mut header).await.unwrap();
            to.read_exactly(&mut received, whole.len()).await.unwrap();
            assert!(header == HEADER && received == whole);
        }
    };
    tokio::join!(sending, receiving);
}

/// Each change on the way ends the connection before the payload is whole.
#[tokio::test]
async fn what_was_changed_on_the_way_is_not_given() {
    let whole = pattern(600_000);
    let (head, len) = (HEADER.len(), whole.len());
    type Change = fn(&mut Vec<u8>, &[usize]);
    let size = |at: usize, bytes: &[u8]| {
        HEAD + u32::from_be_bytes(bytes[at + 1..at + 5].try_into().unwrap()) as usize + TAG
    };
    let changes: [(&str, Change); 8] = [
        ("a bit of the payload", |bytes, at| bytes[at[0] + HEAD + 77_777] ^= 4),
        ("the last byte of a piece", |bytes, at| bytes[at[1] - TAG - 1] ^= 1),
        ("a bit of a tag", |bytes, at| bytes[at[1] - 1] ^= 128),
        ("the length in a head", |bytes, at| bytes[at[0] + 4] ^= 1),
        ("two pieces exchanged", |bytes, at| {
            let (first, second) = (bytes[at[0]..at[1]].to_vec(), bytes[at[1]..at[2]].to_vec());
            bytes.splice(at[0]..at[2], [second, first].concat());
        }),
        ("a piece left out", |bytes, at| drop(bytes.drain(at[0]..at[1]))),
        ("a piece sent again", |bytes, at| {
            let first = bytes[at[0]..at[1]].to_vec();
            bytes.splice(at[1]..at[1], first);
        }),
        ("the record before it sent again", |bytes, at| {
            let record = bytes[..at[0]].to_vec();
            bytes.splice(at[0]..at[0], record);
        }),
    ];
    for (what, change) in changes {
        let wire = Wire::new().await;
        let mut bytes = wire.bytes(&[(HEADER, false), (&whole, true)]);
        let at = pieces(&bytes);
        assert_eq!((at.len(), size(at[0], &bytes)), (3, HEAD + PIECE_MAX + TAG));
        change(&mut bytes, &at);
        let error = wire.given(&bytes, head, len, 10_000).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{what}: {error}");
        // And nothing more, whatever comes.
        assert_eq!(wire.given(&bytes, 0, 1, 10).unwrap(), b"", "{what}");
    }
}

/// A piece of another connection of the same two, at the same place of its stream.
#[tokio::test]
async fn what_was_sent_on_another_connection_is_not_given() {
    let (one, other) = (Wire::new().await, Wire::new().await);
    let whole = pattern(300_000);
    let parts = [(HEADER, false), (&whole[..], true)];
    let (mut bytes, recorded) = (one.bytes(&parts), other.bytes(&parts));
    let at = pieces(&bytes)[0];
    assert_eq!((pieces(&recorded)[0], bytes.len()), (at, recorded.len()));
    bytes[at..].copy_from_slice(&recorded[at..]);
    let error = one.given(&bytes, HEADER.len(), whole.len(), 10_000).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
}

/// Wherever it is cut off the payload is not whole.
#[tokio::test]
async fn of_a_stream_that_is_cut_no_payload_is_whole() {
    let whole = pattern(300_000);
    let before = Wire::new().await.bytes(&[(HEADER, false), (&whole, true)]).len();
    for missing in [1, TAG, TAG + 1, TAG + 2, 40_000, 290_000] {
        let wire = Wire::new().await;
        let bytes = wire.bytes(&[(HEADER, false), (&whole, true)]);
        let given = wire.given(&bytes[..before - missing], HEADER.len(), whole.len(), 10_000).unwrap();
        assert!(given.len() < HEADER.len() + whole.len(), "{missing}");
    }
}

/// Headers and bodies are never read from a piece, and no payload from one that is longer: also of a peer that has the keys.
#[tokio::test]
async fn a_piece_is_taken_only_where_it_is_due() {
    let whole = pattern(100_000);
    for (head, payload, comes) in
        [(50, 100_000, 0), (0, 99_999, 0), (HEADER.len() + 1, 100_000, HEADER.len())]
    {
        let wire = Wire::new().await;
        let bytes = wire.bytes(&[(&HEADER[..comes], false), (&whole, true)]);
        let error = wire.given(&bytes, head, payload, 10_000).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{head} {payload}");
    }
    // Of no length, and of more than there are.
    for len in [0u32, PIECE_MAX as u32 + 1, u32::MAX] {
        let wire = Wire::new().await;
        let bytes = [&[PIECE][..], &len.to_be_bytes(), &whole].concat();
        let error = wire.given(&bytes, 0, 1 << 20, 10_000).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{len}");
    }
    // Where everything is to be encrypted there are none.
    let (_, to) = connected_with(Protection::Encrypted).await;
    let (from, _) = connected_with(Protection::AuthOnly).await;
    let wire = Wire { from, to };
    let bytes = wire.bytes(&[(&whole, true)]);
    assert!(wire.given(&bytes, 0, 100_000, 10_000).is_err());
}

/// Pieces and records use up the same key, and the next one is for both.
#[tokio::test]
async fn a_key_that_is_used_up_is_followed_by_another() {
    let wire = Wire::new().await;
    let (from, to) = (wire.from.records().unwrap(), wire.to.records().unwrap());
    let before = from.seal.lock().key.tags.iv;
    from.seal.lock().key.seq = RECORDS_MAX - 2;
    to.open.lock().key.seq = RECORDS_MAX - 2;
    let whole = pattern(1_000_000);
    let bytes = wire.bytes(&[(HEADER, false), (&whole, true)]);
    assert!(from.seal.lock().key.tags.iv != before && from.seal.lock().key.seq < 10);
    let given = wire.given(&bytes, HEADER.len(), whole.len(), 10_000).unwrap();
    assert!(given == [HEADER, &whole].concat());
    assert_eq!(to.open.lock().key.tags.iv, from.seal.lock().key.tags.iv);
}

/// The answer to a wish for a new key waits until the piece that is under way is sent.
#[tokio::test]
async fn a_wish_for_a_new_key_in_the_middle_of_a_piece_is_answered_behind_it() {
    let wire = Wire::new().await;
    let (from, to) = (wire.from.records().unwrap(), wire.to.records().unwrap());
    let whole = pattern(100_000);
    let slices = [IoSlice::new(&whole)];
    let mut bytes = Vec::new();
    // The socket takes the head and some of the payload, and then no more.
    let mut times = 0;
    let taken = from.send_pieces(&mut from.seal.lock(), &slices, &[true], |slices| {
        times += 1;
        if times > 1 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        bytes.extend_from_slice(&slices[0]);
        bytes.extend_from_slice(&slices[1][..1000]);
        Ok(HEAD + 1000)
    });
    assert_eq!(taken.unwrap(), 1000);
    let before = from.seal.lock().key.iv;
    assert!(!from.answer(&mut from.seal.lock()).unwrap());
    assert!(from.seal.lock().pending().is_empty() && from.seal.lock().key.iv == before);
    let rest = [IoSlice::new(&whole[1000..]), IoSlice::new(HEADER)];
    let taken = from.send_pieces(&mut from.seal.lock(), &rest, &[true, false], |slices| {
        slices.iter().for_each(|s| bytes.extend_from_slice(s));
        Ok(slices.iter().map(|s| s.len()).sum())
    });
    assert_eq!(taken.unwrap(), whole.len() - 1000 + HEADER.len());
    assert!(from.seal.lock().key.iv != before);
    // What follows the payload is of no payload.
    let given = wire.given(&bytes, 0, whole.len() + HEADER.len(), 10_000).unwrap();
    assert!(given == [&whole, HEADER].concat());
    assert_eq!(to.open.lock().key.iv, from.seal.lock().key.iv);
    assert_eq!(KEY_UPDATE.len(), 4);
}

/// Streams changed at random: a payload that is whole is what was sent, and nothing panics.
#[tokio::test]
async fn changed_streams_give_nothing_that_was_not_sent() {
    let mut random = mutate::Random::seeded();
    let seed = random.0;
    for round in 0..mutate::rounds(150) {
        let wire = Wire::new().await;
        let whole = pattern(LARGE + random.below(2 * PIECE_MAX));
        let mut bytes = wire.bytes(&[(HEADER, false), (&whole, true), (HEADER, false)]);
        let at = random.below(bytes.len().min(3 * RECORD_MAX));
        let mut changed = bytes.split_off(at);
        let before = changed.clone();
        random.mutate(&mut changed);
        let same = changed == before;
        bytes.extend_from_slice(&changed);
        let expected = [HEADER, &whole, HEADER].concat();
        let result = wire.given(&bytes, HEADER.len(), whole.len(), 1 + random.below(100_000));
        let is_whole = result.as_ref().is_ok_and(|given| given.len() == HEADER.len() + whole.len());
        let name = format!("ROPEWALK_TEST_SEED={seed} round {round}");
        assert!(!is_whole || expected.starts_with(&result.unwrap()), "{name}");
        assert!(!same || is_whole, "{name}");
    }
}
