//! The hash of names in directories: SipHash-2-4 with a secret key, cut to 56 bits.
//!
//! It is a part of the store's format (cookies contain it), hence own code with published test
//! vectors. The key keeps anyone from making names that collide.

/// Numbers below this are never cookies.
pub const COOKIE_MIN: u64 = 1 << DISCRIMINATOR_BITS;
/// Names with equal hashes are told apart by this many bits.
pub const DISCRIMINATOR_BITS: u32 = 7;

/// Hashes names.
#[derive(Clone, Copy, Debug)]
pub struct DirHash {
    key: [u64; 2],
    mask: u64,
}

impl DirHash {
    /// With the store's key.
    pub fn new(key: [u64; 2]) -> DirHash {
        DirHash { key, mask: (1 << 56) - 1 }
    }

    /// Keeps only `bits` bits, so that tests meet collisions.
    #[cfg(test)]
    pub fn narrow(key: [u64; 2], bits: u32) -> DirHash {
        DirHash { key, mask: (1 << bits) - 1 }
    }

    /// The first cookie of a name; names with the same hash use the ones up to `+ 127`.
    pub fn first_cookie(&self, name: &[u8]) -> u64 {
        let hash = siphash24(self.key, name) & self.mask;
        hash.max(1) << DISCRIMINATOR_BITS
    }
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

fn siphash24(key: [u64; 2], bytes: &[u8]) -> u64 {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    let mut words = bytes.chunks_exact(8);
    let mut absorb = |word: u64| {
        v[3] ^= word;
        round(&mut v);
        round(&mut v);
        v[0] ^= word;
    };
    for word in &mut words {
        let mut le = [0; 8];
        le.copy_from_slice(word);
        absorb(u64::from_le_bytes(le));
    }
    let mut last = [0; 8];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    last[7] = bytes.len() as u8;
    absorb(u64::from_le_bytes(last));
    v[2] ^= 0xff;
    for _ in 0..4 {
        round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_of_the_siphash_paper() {
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        let message: Vec<u8> = (0..15).collect();
        assert_eq!(siphash24(key, &message), 0xa129_ca61_49be_45e5);
        assert_eq!(siphash24(key, &[]), 0x726f_db47_dd0e_0e31);
        assert_eq!(siphash24(key, &message[..8]), 0x93f5_f579_9a93_2462);
    }

    #[test]
    fn cookies_are_positive_and_leave_small_numbers_free() {
        let hash = DirHash::new([1, 2]);
        for n in 0..10_000u32 {
            let cookie = hash.first_cookie(&n.to_le_bytes());
            assert!(cookie >= COOKIE_MIN && cookie + 127 <= i64::MAX as u64);
            assert_eq!(cookie % 128, 0);
        }
        assert!(DirHash::narrow([0, 0], 0).first_cookie(b"x") >= COOKIE_MIN);
    }
}
