//! Records against records; `tests/strangers.rs` has them against rustls'.

use std::sync::Arc;

use base::ClusterId;
use tokio::{
    net::{TcpListener, TcpStream, UnixStream},
    sync::Semaphore,
};
use trust::{Identity, Secret};
use wire::hello::Lane;

use super::*;
use crate::connections::{
    memory::Memory,
    shared::Shared,
    socket::{Protection, Socket},
    tls,
};

#[path = "../../../../fuzz/mutate.rs"]
pub(crate) mod mutate;

/// Both ends of a bulk connection: the one that has connected, and the one that has accepted.
pub(crate) async fn connected() -> (Socket, Socket) {
    connected_with(Protection::Encrypted).await
}

pub(crate) async fn connected_with(protection: Protection) -> (Socket, Socket) {
    let identity = Identity::from_secret(ClusterId(7), &Secret::new([7; 32])).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (mut accepted, _) = listener.accept().await.unwrap();
    let both = tokio::join!(
        tls::connect(&identity, stream, Lane::Bulk),
        tls::accept(&identity, &mut accepted, false)
    );
    let (Ok((connecting, _)), Ok(tls::Shaken { records, spoken, cipher, .. })) = both else {
        panic!("no handshake")
    };
    let accepting = Socket::sealed(accepted, records, spoken, cipher);
    (connecting.settle(protection, Lane::Bulk), accepting.settle(protection, Lane::Bulk))
}

pub(super) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect()
}

/// Whatever the slices are that it is sent from and received into.
#[tokio::test]
async fn what_is_received_is_what_was_sent() {
    let (from, to) = connected().await;
    let whole = pattern(1_500_000);
    for (out, into) in [(1_500_000, 1_500_000), (128, 4096), (4096, 128), (5000, 70_001), (16_385, 16_384)] {
        let sending = async {
            let mut slices: Vec<IoSlice<'_>> = whole.chunks(out).map(IoSlice::new).collect();
            let mut left = &mut slices[..];
            while !left.is_empty() {
                match from.try_writev(left, &[]) {
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

/// A record whose content is followed by its type and so many zeros.
fn padded(seal: &mut Seal, content: &[u8], kind: u8, zeros: usize) {
    let fill = |to: &mut Vec<u8>| {
        to.extend_from_slice(content);
        if zeros > 0 {
            to.push(kind);
            to.resize(to.len() + zeros - 1, 0);
        }
        content.len()
    };
    seal.record(if zeros > 0 { 0 } else { kind }, fill).unwrap();
}

/// All that was sealed, as it goes over the wire.
fn wire(records: &Records) -> Vec<u8> {
    let mut seal = records.seal.lock();
    let bytes = seal.pending().to_vec();
    seal.sent(bytes.len());
    bytes
}

/// What is given of these bytes when they come, into places of `place()` bytes.
fn given(to: &Records, mut bytes: &[u8], mut place: impl FnMut() -> usize) -> (Vec<u8>, io::Result<()>) {
    let (mut open, mut all) = (to.open.lock(), Vec::new());
    loop {
        let mut into = vec![0; place()];
        match to.open(&mut open, &mut [IoSliceMut::new(&mut into)], 0) {
            Ok(0) if open.ended() || bytes.is_empty() => return (all, Ok(())),
            Ok(0) => {
                let room = open.room();
                let n = room.len().min(bytes.len());
                assert!(n > 0, "no room");
                room[..n].copy_from_slice(&bytes[..n]);
                open.received(n);
                bytes = &bytes[n..];
            }
            Ok(n) => all.extend_from_slice(&into[..n]),
            Err(error) => return (all, Err(error)),
        }
    }
}

/// Of which there may be as many as somebody likes.
#[tokio::test]
async fn records_without_content_are_counted() {
    let (from, to) = connected().await;
    let (from, to) = (from.records().unwrap(), to.records().unwrap());
    let empty = |n| (0..n).for_each(|_| padded(&mut from.seal.lock(), b"", DATA, 7));
    let renewed = |n| (0..n).for_each(|_| from.renew(&mut from.seal.lock(), true).unwrap());
    for _ in 0..3 {
        empty(IDLE_MAX / 2);
        renewed(IDLE_MAX / 2);
        padded(&mut from.seal.lock(), b"x", DATA, 0);
    }
    let (all, result) = given(to, &wire(from), || 4);
    assert_eq!(all, b"xxx");
    result.unwrap();
    // That many wishes, and one answer waits.
    assert_eq!(to.seal.lock().pending().len(), HEAD + KEY_UPDATE.len() + 1 + 1 + TAG);
    // After data another one is due.
    to.seal(&mut to.seal.lock(), &[IoSlice::new(b"y")], 0).unwrap();
    renewed(2);
    padded(&mut from.seal.lock(), b"x", DATA, 0);
    given(to, &wire(from), || 4).1.unwrap();
    assert_eq!(given(from, &wire(to), || 4).0, b"y");
    empty(IDLE_MAX + 1);
    let error = given(to, &wire(from), || 4).1.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
}

/// It is sent by who reads, who may have nothing to say.
#[tokio::test]
async fn a_wish_for_a_new_key_is_answered_at_once() {
    let (from, to) = connected().await;
    let before = from.records().unwrap().open.lock().key.iv;
    from.records().unwrap().renew(&mut from.records().unwrap().seal.lock(), true).unwrap();
    from.write_all(b"x").await.unwrap();
    to.read_exact(&mut [0]).await.unwrap();
    assert!(to.records().unwrap().seal.lock().pending().is_empty());
    from.readable().await.unwrap();
    let error = from.try_readv(&mut [IoSliceMut::new(&mut [0])], 0).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    assert!(from.records().unwrap().open.lock().key.iv != before);
}

/// Padding makes a record longer than what it holds; wherever it begins in the buffer there is room for it.
#[tokio::test]
async fn there_is_room_for_every_record() {
    for by_record in [true, false] {
        let (from, to) = connected().await;
        let (from, to) = (from.records().unwrap(), to.records().unwrap());
        {
            let mut open = to.open.lock();
            (open.by_record, open.buffer) = (by_record, vec![0; 32 << 10].into());
        }
        let longest = RECORD_MAX - TAG - 2;
        let mut lengths: Vec<usize> = (0..=longest).collect();
        lengths.extend((16_000..=longest).flat_map(|zeros| [zeros, longest]));
        for some in lengths.chunks(100) {
            some.iter().for_each(|&zeros| padded(&mut from.seal.lock(), b"x", DATA, zeros));
            let (all, result) = given(to, &wire(from), || 1);
            result.unwrap();
            assert_eq!(all.len(), some.len());
        }
    }
}

/// A peer that seals one byte in each record makes much work of little: a read ends all the same, and nothing is lost by it.
#[tokio::test]
async fn a_read_of_small_records_is_bounded() {
    let shares = Arc::new(Semaphore::new(2));
    let share = || Arc::clone(&shares).try_acquire_owned().unwrap();
    let ((from, to), (bell, ear)) = (connected().await, UnixStream::pair().unwrap());
    let (memory, file) = Memory::create().unwrap();
    let from = from.share(Some(Shared::new(memory, bell, true, share()).unwrap()));
    let to = to.share(Some(Shared::new(Memory::map(&file).unwrap(), ear, false, share()).unwrap()));
    let whole = pattern(20_000);
    whole.chunks(1).for_each(|byte| padded(&mut from.records().unwrap().seal.lock(), byte, DATA, 0));
    from.try_flush().unwrap();
    let (mut place, mut received) = (vec![0; whole.len()], Vec::new());
    while received.len() < whole.len() {
        let n = to.try_readv(&mut [IoSliceMut::new(&mut place)], 0).unwrap();
        assert!((1..whole.len() / 2).contains(&n), "{n} bytes at once");
        received.extend_from_slice(&place[..n]);
    }
    assert!(received == whole);
}

/// What came before it is given; then it is told, once, and nothing more comes.
#[tokio::test]
async fn a_failure_takes_nothing_with_it() {
    let (from, to) = connected().await;
    from.write_all(b"first").await.unwrap();
    let (sealer, opener) = (from.records().unwrap(), to.records().unwrap());
    padded(&mut sealer.seal.lock(), b"changed", DATA, 0);
    *sealer.seal.lock().buffer.last_mut().unwrap() ^= 1;
    padded(&mut sealer.seal.lock(), b"third", DATA, 0);
    from.try_flush().unwrap();
    let mut place = [0; 100];
    let first = async {
        loop {
            to.readable().await.unwrap();
            match to.try_readv(&mut [IoSliceMut::new(&mut place)], 0) {
                Ok(n) => return place[..n].to_vec(),
                Err(e) => assert_eq!(e.kind(), io::ErrorKind::WouldBlock),
            }
        }
    };
    // Both have come, so that one read meets them.
    let both = (b"first".len() + b"changed".len()) + 2 * (HEAD + 1 + TAG);
    while to.as_ref().peek(&mut [0; 200]).await.unwrap() < both {}
    assert_eq!(first.await, b"first");
    let mut read = || to.try_readv(&mut [IoSliceMut::new(&mut place)], 0);
    assert_eq!(read().unwrap_err().kind(), io::ErrorKind::InvalidData);
    assert_eq!(read().unwrap(), 0);
    assert!(opener.open.lock().has_some(), "who waits for bytes is told of the end");
}

/// A connection takes the memory that its use asks for, and what has come before that is known is not lost.
#[tokio::test]
async fn memory_follows_the_use() {
    let (mut from, mut to) = connected().await;
    let ahead = |socket: &Socket| socket.records().unwrap().open.lock().buffer.len();
    assert_eq!((ahead(&from), ahead(&to)), (AHEAD_BULK, AHEAD));
    to.serve(Lane::Control);
    assert_eq!(ahead(&to), AHEAD);
    let whole = pattern(20_000);
    from.write_all(&whole).await.unwrap();
    // Some of it is taken, some opened, and some has only come.
    let mut received = vec![0; whole.len()];
    to.read_exact(&mut received[..100]).await.unwrap();
    assert!(to.records().unwrap().open.lock().has_some());
    to.serve(Lane::Bulk);
    assert_eq!(ahead(&to), AHEAD_BULK);
    to.read_exact(&mut received[100..]).await.unwrap();
    assert!(received == whole);
    let room = |socket: &Socket| socket.records().unwrap().seal.lock().buffer.capacity();
    from.write_all(&pattern(GATHER / 2)).await.unwrap();
    from.give_back();
    assert!(room(&from) <= KEPT);
    // Not while something is in it.
    padded(&mut from.records().unwrap().seal.lock(), &whole, DATA, 0);
    from.records().unwrap().seal.lock().buffer.reserve(GATHER);
    from.give_back();
    assert!(room(&from) > KEPT);
    from.serve(Lane::Control);
    assert_eq!(ahead(&from), AHEAD_BULK, "what was given is not taken back");
}

/// Where a socket fails its error is said once, and not instead of bytes.
#[tokio::test]
async fn an_error_of_the_socket_is_said_after_the_bytes() {
    let (_from, to) = connected().await;
    let mut open = to.records().unwrap().open.lock();
    assert_eq!(open.fail(io::ErrorKind::ConnectionReset.into(), 5).unwrap(), 5);
    drop(open);
    let read = || to.try_readv(&mut [IoSliceMut::new(&mut [0])], 0);
    assert_eq!(read().unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(read().unwrap(), 0);
}

/// Records of a peer that has the keys and seals what it likes, and records changed, left out, repeated and exchanged on the
/// way: whatever is given was sent, in its order from the first on, and nothing panics.
#[tokio::test]
async fn changed_records_give_nothing_that_was_not_sent() {
    let mut random = mutate::Random::seeded();
    let seed = random.0;
    let mut both = connected().await;
    for round in 0..mutate::rounds(500) {
        let (from, to) = (both.0.records().unwrap(), both.1.records().unwrap());
        let (mut sent, mut records, mut as_it_was) = (Vec::new(), Vec::new(), true);
        for _ in 0..random.below(6) {
            let mut content = pattern(match random.below(4) {
                0 => random.below(40),
                1 => random.below(5000),
                2 => CONTENT_MAX,
                _ => 0,
            });
            let (mut kind, mut zeros) = (DATA, 0);
            match random.below(8) {
                0 => zeros = random.below(RECORD_MAX - TAG - content.len() - 1),
                1 => {
                    content = [&KEY_UPDATE[..], &[random.below(2) as u8]].concat();
                    random.mutate(&mut content);
                    (kind, as_it_was) = (HANDSHAKE, false);
                }
                2 => {
                    content = vec![random.next() as u8 % 3, random.below(3) as u8];
                    (kind, as_it_was) = ([ALERT, HANDSHAKE, random.next() as u8][random.below(3)], false);
                }
                3 => from.renew(&mut from.seal.lock(), random.below(2) == 0).unwrap(),
                _ => {}
            }
            content.truncate(RECORD_MAX - TAG - 1 - zeros);
            padded(&mut from.seal.lock(), &content, kind, zeros);
            // As the standard has it: the type is the last byte that is not zero.
            let mut inner = [&content[..], &[kind]].concat();
            inner.truncate(inner.iter().rposition(|&b| b != 0).map_or(0, |at| at + 1));
            if inner.pop() == Some(DATA) {
                sent.extend_from_slice(&inner);
            }
            records.push(wire(from));
        }
        let before = records.concat();
        match random.below(6) {
            0 if records.len() > 1 => drop(records.remove(random.below(records.len()))),
            1 if records.len() > 1 => {
                let (a, b) = (random.below(records.len()), random.below(records.len()));
                records.swap(a, b);
            }
            2 if !records.is_empty() => records.push(records[random.below(records.len())].clone()),
            3 => {
                let mut all = records.concat();
                random.mutate(&mut all);
                records = vec![all];
            }
            _ => {}
        }
        as_it_was &= records.concat() == before;
        {
            let mut open = to.open.lock();
            open.by_record = random.below(2) == 0;
            open.buffer = vec![0; [32 << 10, 128 << 10][random.below(2)]].into();
            (open.sealed, open.content, open.ended, open.idle) = (0..0, 0..0, false, 0);
            open.failed = None;
        }
        let (all, result) = given(to, &records.concat(), || 1 + random.below(20_000));
        assert!(sent.starts_with(&all), "ROPEWALK_TEST_SEED={seed} round {round}: {} bytes", all.len());
        assert!(!as_it_was || result.is_ok() && all == sent, "ROPEWALK_TEST_SEED={seed} round {round}");
        assert!(to.seal.lock().pending().len() <= 27, "ROPEWALK_TEST_SEED={seed} round {round}");
        let in_step = {
            let (seal, mut open) = (from.seal.lock(), to.open.lock());
            open.key.seq = seal.key.seq;
            open.key.iv == seal.key.iv
        };
        if !in_step {
            both = connected().await;
        }
    }
}
