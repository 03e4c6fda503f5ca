//! Every decoder of what comes from the network, given whatever bytes. Shared by the fuzzer and by seeded tests
//! (`crates/net/tests/fuzz.rs`, `crates/wire/tests/messages.rs`).

use wire::{
    admin::{AdminReply, AdminRequest},
    frame::{self, HEADER_LEN, Header, PROTOCOL_VERSION},
    hello::{Introduction, Links, Meeting, NetRequest, Welcome},
    map::ClusterMap,
    mgr::{MgrReply, MgrRequest},
    nsd::{NsdReply, NsdRequest},
};

/// What is accepted is what would be sent.
fn whole<T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    if let Ok(message) = frame::decode::<T>(bytes) {
        assert_eq!(frame::decode::<T>(&frame::encode(&message)).as_ref(), Ok(&message));
    }
}

/// Nothing panics; what is accepted is what we would send.
pub fn decode_all(bytes: &[u8]) {
    whole::<ClusterMap>(bytes);
    let _ = frame::decode::<Introduction>(bytes);
    let _ = frame::decode::<Welcome>(bytes);
    let _ = frame::decode::<NetRequest>(bytes);
    let _ = frame::decode::<Links>(bytes);
    whole::<Meeting>(bytes);
    whole::<MgrRequest>(bytes);
    whole::<MgrReply>(bytes);
    whole::<NsdRequest>(bytes);
    whole::<NsdReply>(bytes);
    whole::<AdminRequest>(bytes);
    whole::<AdminReply>(bytes);
    if let Some(head) = bytes.first_chunk::<HEADER_LEN>() {
        let _ = Header::decode(head, PROTOCOL_VERSION);
        // With its checks made good, so that what is behind them is reached.
        let mut good = *head;
        good[..6].copy_from_slice(&Header::default().encode()[..6]);
        let crc = wire::crc::crc32c(&good[..HEADER_LEN - 4]);
        good[HEADER_LEN - 4..].copy_from_slice(&crc.to_le_bytes());
        if let Ok(header) = Header::decode(&good, PROTOCOL_VERSION) {
            assert_eq!(Header::decode(&header.encode(), PROTOCOL_VERSION), Ok(header));
        }
    }
}
