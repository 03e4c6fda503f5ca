//! A delete of many strips goes in rounds: others have the pdisk in between, and nothing of it is undone there.
#![allow(clippy::unwrap_used)] // tests

mod common;

use base::BlockIndex;
use common::*;
use pdisk::{EngineChoice, OpenOptions, Pdisk};
use wire::strip::{DeleteStrips, StripRefusal};

/// On one thread, so that what runs between the rounds does.
#[tokio::test]
async fn others_have_the_pdisk_between_the_rounds_of_a_delete() {
    const STRIPS: u64 = 40;
    let (dir, node) = (tempfile::tempdir().unwrap(), node(EngineChoice::Auto));
    create(dir.path(), 32 << 20);
    let options = OpenOptions { delete_round: 4, ..options() };
    let (p, _) = Pdisk::open(dir.path(), options.clone(), &node).unwrap();
    for i in 0..STRIPS {
        write(&p, strip(i), v(1, 1), &content(i, 1)).await;
    }
    let stripe = strip(0).stripe;
    let (first, last) = (BlockIndex(0), BlockIndex(u64::MAX));
    let all = DeleteStrips { fs: stripe.fs, inode: stripe.inode, first, last, highest: v(1, 5) };
    let deleting = tokio::spawn({
        let p = p.clone();
        async move { p.delete(vec![all]).await }
    });
    let mut late = None;
    while !deleting.is_finished() {
        let there = p.stats().strips;
        if 0 < there && there < STRIPS as _ && late.is_none() {
            // It was sent before the delete. Its block's turn is in the last round.
            late = Some(prepare(&p, whole(strip(STRIPS - 1), v(1, 3), &content(7, 1))).await);
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(deleting.await.unwrap(), Ok(STRIPS));
    assert_eq!(late, Some(Err(StripRefusal::NotNewer { present: v(1, 5) })));
    assert_eq!((p.stats().strips, p.stats().free), (0, p.stats().capacity));
    p.close().await.unwrap();
    let (p, _) = Pdisk::open(dir.path(), options, &node).unwrap();
    assert_eq!((p.stats().strips, p.stats().free), (0, p.stats().capacity));
}
