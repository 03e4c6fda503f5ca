//! CRC-32C (Castagnoli), the checksum of everything on wire and disk.

use base::units::UNIT;
use crc_fast::{CrcAlgorithm, checksum};

/// CRC-32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    // The 32-bit algorithms return their value in the low half.
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// CRC-32C of each 4 KiB unit of `bytes`, whose length is a multiple of 4 KiB.
pub fn unit_crcs(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    debug_assert!(bytes.len().is_multiple_of(UNIT));
    bytes.chunks_exact(UNIT).map(crc32c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_value_of_the_standard() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283); // RFC 3720 appendix B.4, "check" value of CRC-32C
        assert_eq!(crc32c(&[0u8; 32]), 0x8A91_36AA);
    }
}
