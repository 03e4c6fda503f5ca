//! Every decoder of what comes from the network, given whatever bytes. Shared by the fuzzer and by a seeded test
//! (`crates/net/tests/fuzz.rs`).

use wire::{
    admin::{AdminReply, AdminRequest},
    auth::Proven,
    frame::{self, HEADER_LEN, Header},
    hello::{Challenge, Hello, HelloReply, Introduction, Links, NetRequest, Welcome},
    mgr::{MgrReply, MgrRequest},
    nsd::{NsdReply, NsdRequest},
};

/// Nothing panics; what is accepted is what we would send.
pub fn decode_all(bytes: &[u8]) {
    let _ = frame::decode::<Hello>(bytes);
    let _ = frame::decode::<Challenge>(bytes);
    let _ = frame::decode::<Proven>(bytes);
    let _ = frame::decode::<Introduction>(bytes);
    let _ = frame::decode::<HelloReply>(bytes);
    let _ = frame::decode::<Welcome>(bytes);
    let _ = frame::decode::<NetRequest>(bytes);
    let _ = frame::decode::<Links>(bytes);
    let _ = frame::decode::<MgrRequest>(bytes);
    let _ = frame::decode::<MgrReply>(bytes);
    let _ = frame::decode::<NsdRequest>(bytes);
    let _ = frame::decode::<NsdReply>(bytes);
    let _ = frame::decode::<AdminRequest>(bytes);
    let _ = frame::decode::<AdminReply>(bytes);
    if let Some(head) = bytes.first_chunk::<HEADER_LEN>() {
        let _ = Header::decode(head);
        // With its checks made good, so that what is behind them is reached.
        let mut good = *head;
        good[..6].copy_from_slice(&Header::default().encode()[..6]);
        let crc = wire::crc::crc32c(&good[..HEADER_LEN - 4]);
        good[HEADER_LEN - 4..].copy_from_slice(&crc.to_le_bytes());
        if let Ok(header) = Header::decode(&good) {
            assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
    }
}
