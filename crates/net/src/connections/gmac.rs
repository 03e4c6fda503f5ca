//! GMAC (NIST SP 800-38D) over bytes as they come: AES-128-GCM of nothing, with the bytes as what is authenticated beside it.
//!
//! The library has this only for bytes in one place (`aead`); a payload lies in as many as its owner likes, and is read in
//! pieces. So the functions below it are called directly. Nothing here is ever encrypted.

use std::{
    io,
    ptr::{self, NonNull},
};

use aws_lc_sys::{
    EVP_CIPHER_CTX, EVP_CIPHER_CTX_ctrl, EVP_CIPHER_CTX_free, EVP_CIPHER_CTX_new, EVP_CTRL_AEAD_GET_TAG,
    EVP_EncryptFinal_ex, EVP_EncryptInit_ex, EVP_EncryptUpdate, EVP_aes_128_gcm,
};

/// Bytes of a key.
pub(crate) const KEY: usize = 16;
/// Bytes of a nonce.
pub(crate) const NONCE: usize = 12;
/// Bytes of a tag.
pub(crate) const TAG: usize = 16;
/// Most bytes given to the library at a time: it counts in an int.
const STEP: usize = 1 << 30;

/// A key, and a tag that is being made.
pub(crate) struct Gmac(NonNull<EVP_CIPHER_CTX>);

// SAFETY: the context is owned by this value alone, and not bound to a thread.
unsafe impl Send for Gmac {}

fn done(result: i32) -> io::Result<()> {
    if result == 1 { Ok(()) } else { Err(io::Error::other("the cryptographic library has failed")) }
}

impl Gmac {
    pub(crate) fn new(key: &[u8; KEY]) -> io::Result<Gmac> {
        // SAFETY: it takes nothing, and gives a new context or null.
        let context = NonNull::new(unsafe { EVP_CIPHER_CTX_new() }).ok_or(io::ErrorKind::OutOfMemory)?;
        let gmac = Gmac(context);
        // SAFETY: the context is new; the cipher is static; it reads as many bytes of the key as the cipher's keys have, which
        // are `KEY`, and no nonce yet.
        done(unsafe {
            EVP_EncryptInit_ex(
                context.as_ptr(),
                EVP_aes_128_gcm(),
                ptr::null_mut(),
                key.as_ptr(),
                ptr::null(),
            )
        })?;
        Ok(gmac)
    }

    /// Begins a tag. No nonce may be used twice under one key.
    pub(crate) fn begin(&mut self, nonce: &[u8; NONCE]) -> io::Result<()> {
        // SAFETY: the context has its cipher and key; it reads as many bytes of the nonce as the cipher's default, `NONCE`.
        done(unsafe {
            EVP_EncryptInit_ex(self.0.as_ptr(), ptr::null(), ptr::null_mut(), ptr::null(), nonce.as_ptr())
        })
    }

    /// The next bytes that the tag is over.
    pub(crate) fn update(&mut self, bytes: &[u8]) -> io::Result<()> {
        for bytes in bytes.chunks(STEP) {
            let mut len = 0;
            // SAFETY: it reads `bytes`, whose length fits, and writes `len`; without a place for output nothing is encrypted.
            done(unsafe {
                EVP_EncryptUpdate(
                    self.0.as_ptr(),
                    ptr::null_mut(),
                    &mut len,
                    bytes.as_ptr(),
                    bytes.len() as i32,
                )
            })?;
        }
        Ok(())
    }

    /// The tag of what there was since `begin`.
    pub(crate) fn finish(&mut self) -> io::Result<[u8; TAG]> {
        let (mut tag, mut len, mut nothing) = ([0; TAG], 0, [0; TAG]);
        // SAFETY: it writes `len` and, since nothing was encrypted, no byte of `nothing`, which has room for a block.
        done(unsafe { EVP_EncryptFinal_ex(self.0.as_ptr(), nothing.as_mut_ptr(), &mut len) })?;
        let (of, room) = (self.0.as_ptr(), TAG as i32);
        // SAFETY: it writes `TAG` bytes of the tag, which has room for them.
        done(unsafe { EVP_CIPHER_CTX_ctrl(of, EVP_CTRL_AEAD_GET_TAG, room, tag.as_mut_ptr().cast()) })?;
        Ok(tag)
    }
}

impl Drop for Gmac {
    fn drop(&mut self) {
        // SAFETY: it is ours, and given back once. The library overwrites what is in it.
        unsafe { EVP_CIPHER_CTX_free(self.0.as_ptr()) }
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

    use super::*;

    /// As the library makes it of bytes in one place, however they are cut.
    #[test]
    fn it_is_the_tag_of_gcm_over_nothing() {
        let (key, nonce) = ([7; KEY], [9; NONCE]);
        let whole: Vec<u8> = (0..100_003u32).map(|i| (i * 31) as u8).collect();
        let expected = |bytes: &[u8]| {
            let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key).unwrap());
            let nonce = Nonce::assume_unique_for_key(nonce);
            key.seal_in_place_separate_tag(nonce, Aad::from(bytes), &mut []).unwrap().as_ref().to_vec()
        };
        let mut gmac = Gmac::new(&key).unwrap();
        for step in [1, 15, 16, 17, 4096, 70_000, whole.len()] {
            gmac.begin(&nonce).unwrap();
            whole.chunks(step).for_each(|bytes| gmac.update(bytes).unwrap());
            assert_eq!(gmac.finish().unwrap()[..], expected(&whole), "{step}");
        }
        // A tag that was begun and given up leaves nothing behind.
        gmac.begin(&[1; NONCE]).unwrap();
        gmac.update(b"given up").unwrap();
        gmac.begin(&nonce).unwrap();
        assert_eq!(gmac.finish().unwrap()[..], expected(b""));
    }
}
