//! The data that is sent, and its check. Each message's bytes differ from its neighbours', so that a message
//! taken for another is seen.

use bytes::Bytes;
use wire::crc::crc32c;

use super::message::{Data, INLINE_MAX};

/// Messages begin at this many places of the pattern.
const PLACES: usize = 512;
const STEP: usize = 8;

/// Where messages of one size are cut from.
#[derive(Clone)]
pub(super) struct Pattern {
    bytes: Bytes,
    size: usize,
    /// Small messages are in the body.
    inline: bool,
}

/// One message to send: its data is in the body or in the payload.
pub(super) struct Message {
    pub body: Vec<u8>,
    pub payload: Bytes,
}

impl Pattern {
    pub fn new(size: u32) -> Pattern {
        let size = size as usize;
        let len = size + PLACES * STEP;
        let bytes = (0..len).map(|i| ((i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8);
        Pattern { bytes: bytes.collect(), size, inline: size <= INLINE_MAX }
    }

    /// All messages are payloads, as those must be that a server shall fetch.
    pub fn into_payload(self) -> Pattern {
        Pattern { inline: false, ..self }
    }

    /// Bytes of a message.
    pub fn size(&self) -> u32 {
        self.size as u32
    }

    /// Message number `n`.
    pub fn message(&self, n: u64, verify: bool) -> Message {
        let from = (n as usize % PLACES) * STEP;
        let bytes = self.bytes.slice(from..from + self.size);
        let crc = if verify { crc32c(&bytes) } else { 0 };
        let data = Data { size: self.size as u32, verify, crc };
        if self.inline {
            Message { body: data.encode(&bytes), payload: Bytes::new() }
        } else {
            Message { body: data.encode(&[]), payload: bytes }
        }
    }
}

/// Whether data is as long as announced, and, if that is wanted, what was sent.
pub(super) fn check(data: Data, inline: &[u8], payload: &[u8]) -> Result<(), String> {
    let bytes = if inline.is_empty() { payload } else { inline };
    if bytes.len() != data.size as usize {
        return Err(format!("{} bytes came where {} were sent", bytes.len(), data.size));
    }
    if data.verify && crc32c(bytes) != data.crc {
        return Err(format!("{} bytes came changed: their CRC-32C is not the sender's", bytes.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_passes_and_changed_bytes_do_not() {
        for size in [1, 8, INLINE_MAX as u32, INLINE_MAX as u32 + 1, 1 << 20] {
            let pattern = Pattern::new(size);
            let message = pattern.message(3, true);
            let (data, inline) = Data::decode(&message.body).unwrap();
            assert_eq!(inline.is_empty(), size as usize > INLINE_MAX);
            assert_eq!(check(data, inline, &message.payload), Ok(()));
            let mut bytes = if inline.is_empty() { message.payload.to_vec() } else { inline.to_vec() };
            bytes[size as usize / 2] ^= 1;
            assert!(check(data, &bytes, &[]).unwrap_err().contains("changed"));
            assert!(check(data, &bytes[..bytes.len() - 1], &[]).is_err());
        }
        let small = Pattern::new(5).into_payload().message(0, true);
        assert_eq!(
            (small.payload.len(), check(Data::decode(&small.body).unwrap().0, &[], &small.payload)),
            (5, Ok(()))
        );
        let pattern = Pattern::new(100_000);
        assert_ne!(pattern.message(1, false).payload, pattern.message(2, false).payload);
    }
}
