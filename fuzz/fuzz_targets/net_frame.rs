//! Every decoder of what comes from the network.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::{
    frame::{self, HEADER_LEN, Header},
    hello::{Hello, HelloReply, Links, NetRequest},
};

fuzz_target!(|bytes: &[u8]| {
    if let Some(head) = bytes.first_chunk::<HEADER_LEN>() {
        if let Ok(header) = Header::decode(head) {
            // What is accepted is what we would send.
            assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
    }
    let _ = frame::decode::<Hello>(bytes);
    let _ = frame::decode::<HelloReply>(bytes);
    let _ = frame::decode::<NetRequest>(bytes);
    let _ = frame::decode::<Links>(bytes);
});
