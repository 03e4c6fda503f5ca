//! What the text of a redundancy code says.

use wire::map::PoolEntry;

/// Data strips of a stripe, from the code's text: 4 of `4+2p`, 1 of `3way`.
pub fn data_strips(code: &str) -> Option<u8> {
    if code.strip_suffix("way").is_some_and(|copies| copies.parse::<u8>().is_ok()) {
        return Some(1);
    }
    code.split_once('+').and_then(|(data, _)| data.parse().ok()).filter(|&data| data > 0)
}

/// Data strips a group needs to be read; all of them where the code is not known.
pub(crate) fn needed(pool: &PoolEntry) -> usize {
    usize::from(data_strips(&pool.code).unwrap_or(pool.width))
}
