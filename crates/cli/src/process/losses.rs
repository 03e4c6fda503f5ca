//! In the manager's process: blocks that are lost for good are counted, as long as any may be: again and again, since files are removed
//! and written anew. Groups of which all blocks are whole again are taken off the record.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    time::{Duration, Instant},
};

use anyhow::Result;
use base::{GroupId, PoolId, StripeId, beat};
use manager::{Counted, LossRecord, Losses, Manager};

use crate::{
    cluster_dir::ClusterDir,
    link::Link,
    lost_blocks::{group_of, lost_files},
};

/// How often it is looked whether there is anything to count, and the least pause between two counts.
const LOOK: Duration = Duration::from_secs(2);
/// A count goes over all extents: so many times as long as it took nothing is counted after it.
const REST: u32 = 20;

/// So long nothing lost may have been found in a group until it is taken off the record: a mount tells of blocks that it has written
/// within seconds, but some time after.
const SURE: Duration = Duration::from_secs(600);

/// Runs until it is dropped.
pub async fn run(dir: &ClusterDir, manager: &Manager) -> Infallible {
    let (mut pause, mut since) = (LOOK, BTreeMap::new());
    loop {
        tokio::time::sleep_until(beat::by(Instant::now(), pause).into()).await;
        pause = LOOK;
        let seen = match manager.losses() {
            Ok(seen) if !seen.is_empty() => seen,
            _ => continue,
        };
        let begun = Instant::now();
        let outcome = async {
            let (counted, whole) = count(dir, seen).await?;
            let sure = sure(&mut since, whole, begun);
            Ok::<_, anyhow::Error>(manager.count_losses(counted, sure).await?)
        };
        if let Err(error) = outcome.await {
            tracing::warn!("what is lost for good is counted later: {error:#}");
        }
        pause = LOOK.max(begun.elapsed() * REST);
    }
}

/// Those groups in which nothing was found now, and since long before, as the record of them stands. `since` says of each when that began.
fn sure(
    since: &mut BTreeMap<(PoolId, GroupId), (LossRecord, Instant)>,
    whole: Losses,
    now: Instant,
) -> Losses {
    since.retain(|place, (record, _)| whole.get(place) == Some(record));
    let mut long = |place, record| now.duration_since(since.entry(place).or_insert((record, now)).1) >= SURE;
    whole.into_iter().filter(|&(place, record)| long(place, record)).collect()
}

/// Lost blocks of these groups by pool, and the groups that have none.
async fn count(dir: &ClusterDir, seen: Losses) -> Result<(Counted, Losses)> {
    // Of this count alone: what is lost for good is rare.
    let link = Link::of(dir, "the manager, which counts what is lost".to_owned())?;
    let map = link.cluster().await?.map;
    let (mut counted, mut broken) = (Counted::new(), BTreeSet::<(PoolId, GroupId)>::new());
    let mut unclear = BTreeSet::new();
    for fs in &map.filesystems {
        let each = |lost: crate::lost_blocks::Lost| {
            let (pool, ino) = (lost.file.pool, lost.file.ino);
            let group = |&block| group_of(&map, pool, StripeId { fs: fs.id, inode: ino, block });
            let groups: Vec<_> = lost.named.iter().filter_map(group).map(|g| (pool, g)).collect();
            let of_record = groups.iter().filter(|of| seen.contains_key(of)).count() as u64;
            // Of those beyond the ones that are named one by one it is not known in which groups they are.
            let others = lost.file.blocks.saturating_sub(lost.named.len() as u64);
            if others > 0 {
                unclear.insert(pool);
            }
            if of_record + others > 0 {
                let of = counted.entry(pool).or_default();
                of.files += 1;
                of.blocks += of_record + others;
            }
            broken.extend(groups);
        };
        lost_files(&link, &map, fs.id, each).await?;
    }
    let mut whole = seen;
    whole.retain(|place, _| !broken.contains(place) && !unclear.contains(&place.0));
    Ok((counted, whole))
}

#[cfg(test)]
mod tests {
    use base::{Epoch, StripSet};

    use super::*;

    #[test]
    fn a_group_is_whole_when_it_was_found_so_for_long() {
        let record = |since| LossRecord { left: StripSet(1), since: Epoch(since) };
        let one = |since| Losses::from([((PoolId(1), GroupId(2)), record(since))]);
        let (mut since, begun) = (BTreeMap::new(), Instant::now());
        let mut at = |seconds, whole| sure(&mut since, whole, begun + Duration::from_secs(seconds)).len();
        assert_eq!((at(0, one(3)), at(599, one(3)), at(600, one(3))), (0, 0, 1));
        // Something was found in between, or it has lost more.
        assert_eq!((at(601, Losses::new()), at(602, one(3)), at(1201, one(3))), (0, 0, 0));
        assert_eq!((at(1202, one(4)), at(1300, one(4)), at(1802, one(4))), (0, 0, 1));
    }
}
