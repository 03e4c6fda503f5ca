//! The decoders under libFuzzer: `fuzz/run.sh`.
#![no_main]

#[path = "../decode.rs"]
mod decode;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| decode::decode_all(bytes));
