//! The hash of the layout: own integer arithmetic, frozen, part of the on-disk contract
//! (docs/format-layout.md, "Hash"). Never change a constant here.

use base::StripeId;

/// 2^64 divided by the golden ratio, made odd: keeps small numbers apart.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes 64 bits; a bijection.
pub(crate) const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Folds one more word into a hash.
pub(crate) const fn fold(h: u64, word: u64) -> u64 {
    mix(h.wrapping_add(STEP) ^ mix(word.wrapping_add(STEP)))
}

/// `h` scaled to 0..n, without division.
pub(crate) const fn scale(h: u64, n: u32) -> u32 {
    ((h as u128 * n as u128) >> 64) as u32
}

/// The group of a stripe in a table of `groups` groups. The blocks of a file are taken in rows of
/// `groups` blocks; a row visits every group once, in order, from a start that depends on file and row.
/// So consecutive blocks never meet in a group, and no stride stays on few groups.
pub fn group_of(seed: u64, groups: u32, stripe: StripeId) -> base::GroupId {
    base::GroupId(group_number(seed, groups, stripe))
}

pub(crate) fn group_number(seed: u64, groups: u32, stripe: StripeId) -> u32 {
    let row = stripe.block.0 / u64::from(groups);
    let column = (stripe.block.0 % u64::from(groups)) as u32;
    let h = fold(fold(fold(mix(seed), u64::from(stripe.fs.0)), stripe.inode.0), row);
    let start = scale(h, groups);
    ((u64::from(start) + u64::from(column)) % u64::from(groups)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{BlockIndex, FsId, InodeNo};

    fn stripe(fs: u32, inode: u64, block: u64) -> StripeId {
        StripeId { fs: FsId(fs), inode: InodeNo(inode), block: BlockIndex(block) }
    }

    #[test]
    fn every_row_of_a_file_visits_every_group_once() {
        for groups in [1, 2, 7, 342] {
            for row in [0, 1, 99] {
                let mut seen = vec![0; groups as usize];
                for column in 0..u64::from(groups) {
                    let s = stripe(1, 42, row * u64::from(groups) + column);
                    seen[group_number(7, groups, s) as usize] += 1;
                }
                assert!(seen.iter().all(|&n| n == 1), "{groups} groups, row {row}");
            }
        }
    }

    #[test]
    fn first_blocks_of_many_files_are_even_over_groups() {
        let groups = 512;
        let mut seen = vec![0i64; groups as usize];
        let files = 512 * 400;
        (0..files).for_each(|inode| seen[group_number(1, groups, stripe(1, inode, 0)) as usize] += 1);
        // Chi squared with 511 degrees of freedom: mean 511, standard deviation 32.
        let chi: i64 = seen.iter().map(|n| (n - 400) * (n - 400)).sum::<i64>() / 400;
        assert!((350..680).contains(&chi), "{chi}");
    }

    #[test]
    fn strides_do_not_stay_on_few_groups() {
        let groups = 512u32;
        let mut seen = vec![0u32; groups as usize];
        (0..8192u64).for_each(|i| seen[group_number(3, groups, stripe(1, 9, i * 64)) as usize] += 1);
        assert!(seen.iter().filter(|&&n| n > 0).count() > 450);
    }
}
