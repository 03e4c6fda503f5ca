//! `pool verify`: every stripe is proved, and what pdisks hold is compared with what inodes name.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use base::{BlockIndex, GroupId, InodeNo, PoolId, StripeId, units::human_size};
use serde::{Deserialize, Serialize};
use wire::{
    admin::{AdminReply, AdminRequest},
    map::{ClusterMap, PoolEntry},
    mgr::{MgrReply, MgrRequest},
    owned::{OWNERS_MAX, Owner},
};

use crate::{
    args::PoolVerify,
    interrupt::Interrupted,
    link::{self, Link},
    lost_blocks::{PROVE_PATIENCE, group_count, group_of, server},
    output,
    process::stop::stop_signal,
};

/// Stripes proved in one request.
const PROVE_PAGE: u32 = 16;
/// Findings, and blocks, listed by name; further ones are counted.
const LISTED_MAX: usize = 1000;
/// What files are changed meanwhile looks wrong for a moment, and deletes are carried out late: so long is
/// looked again.
const COMPARE_PATIENCE: Duration = Duration::from_secs(15);
const COMPARE_PAUSE: Duration = Duration::from_millis(500);
/// Groups that move, or whose server starts just now, are asked again: so often in all, after a pause.
const ASK_AGAIN_MAX: u32 = 40;
const ASK_AGAIN_PAUSE: Duration = Duration::from_millis(500);

/// What `nsd::Page` says.
#[derive(Deserialize)]
struct Page {
    stripes: u64,
    bytes: u64,
    away: u64,
    there: Vec<StripeId>,
    findings: Vec<Found>,
    found: u64,
    repaired: u64,
    removed: u64,
    next: Option<StripeId>,
}

#[derive(Deserialize, Serialize, Clone)]
struct Found {
    stripe: StripeId,
    finding: serde_json::Value,
}

#[derive(Serialize, Default)]
struct Verified {
    pools: Vec<String>,
    groups: u64,
    stripes: u64,
    bytes: u64,
    /// Strips that were not looked at, because their pdisk does not count.
    away: u64,
    found: u64,
    repaired: u64,
    /// Blocks of inodes that do not exist, removed now.
    removed: u64,
    took_s: f64,
    findings: Vec<Found>,
    /// Groups that could not be asked, and why.
    unproved: BTreeMap<String, String>,
    /// Blocks that inodes name.
    recorded: u64,
    /// Blocks that an inode names and of which no strip is there, at most 1000 of them named.
    absent: u64,
    absent_blocks: Vec<StripeId>,
    /// Blocks on pdisks whose inode is not there, at most 1000 of them named.
    unowned: u64,
    unowned_blocks: Vec<StripeId>,
    /// Blocks on pdisks that their inode does not name: on their way, or left by a crash. They go with it.
    unrecorded: u64,
}

impl Verified {
    fn bad(&self) -> bool {
        self.found + self.absent + self.unowned > 0 || !self.unproved.is_empty()
    }
}

/// What inodes name, what is on pdisks beside it, and where nobody could look.
#[derive(Default)]
struct Compared {
    /// Blocks that inodes name and that were not seen (yet), with their pools.
    recorded: HashMap<StripeId, PoolId>,
    /// Blocks seen that were not named when this began.
    more: HashMap<StripeId, PoolId>,
    unproved: HashSet<(PoolId, GroupId)>,
    asked_again: u32,
}

/// `ropewalk pool verify`: exit status 0 only if everything is proved.
pub fn pool_verify(args: &PoolVerify) -> Result<()> {
    let dir = args.listing.dir.open()?;
    let begun = Instant::now();
    let mut verified = link::run(async {
        let link = Link::new(&dir)?;
        let map = link.cluster().await?.map;
        let pools: Vec<&PoolEntry> = match &args.pool {
            Some(name) => {
                let pool = map.pools.iter().find(|p| p.name == *name);
                vec![pool.with_context(|| format!("there is no pool {name}"))?]
            }
            None => map.pools.iter().collect(),
        };
        let mut verified =
            Verified { pools: pools.iter().map(|p| p.name.clone()).collect(), ..Verified::default() };
        let mut compared = Compared { recorded: recorded(&link, &map, &pools).await?, ..Compared::default() };
        verified.recorded = compared.recorded.len() as u64;
        let bar = output::progress("proving groups", pools.iter().map(|p| u64::from(group_count(p))).sum());
        for pool in &pools {
            for g in (0..group_count(pool)).map(GroupId) {
                // Interrupting it changes nothing: it only reads, and what is repaired is repaired.
                tokio::select! {
                    signal = stop_signal() => { signal?; bail!(Interrupted("what was repaired stays so".into())); }
                    outcome = verify_group(&link, &map, pool.id, g, args.repair, &mut verified, &mut compared) => {
                        if let Err(error) = outcome {
                            compared.unproved.insert((pool.id, g));
                            verified.unproved.insert(format!("{} group {}", pool.name, g.0), format!("{error:#}"));
                        }
                    }
                }
                verified.groups += 1;
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        tokio::select! {
            signal = stop_signal() => { signal?; bail!(Interrupted("what was repaired stays so".into())); }
            outcome = compare(&link, compared, &mut verified) => outcome?,
        }
        Ok(verified)
    })?;
    verified.took_s = begun.elapsed().as_secs_f64();
    if args.listing.json {
        output::json(&verified)?;
    } else {
        show(&verified);
    }
    match verified.bad() {
        false => Ok(()),
        true => bail!(
            "{} findings, {} groups not proved, {} blocks absent, {} blocks that no inode owns",
            verified.found,
            verified.unproved.len(),
            verified.absent,
            verified.unowned
        ),
    }
}

fn show(verified: &Verified) {
    for found in &verified.findings {
        output::line(format!("{}: {}", found.stripe, found.finding));
    }
    verified.unproved.iter().for_each(|(group, why)| output::line(format!("{group}: {why}")));
    verified
        .absent_blocks
        .iter()
        .for_each(|s| output::line(format!("{s}: stored, and no strip of it is in reach")));
    verified.unowned_blocks.iter().for_each(|s| output::line(format!("{s}: no inode owns it")));
    output::line(format!(
        "{} stripes in {} groups, {} read and compared in {:.1} s; {} wrong, {} strips made anew, {} strips away, {} \
         blocks of inodes that are gone removed",
        verified.stripes,
        verified.groups,
        human_size(verified.bytes),
        verified.took_s,
        verified.found,
        verified.repaired,
        verified.away,
        verified.removed,
    ));
    output::line(format!(
        "{} blocks that inodes name, {} of them without strips; {} blocks of no inode, {} not named by theirs (on \
         their way, or left by a crash: they go with the file)",
        verified.recorded, verified.absent, verified.unowned, verified.unrecorded,
    ));
}

/// All blocks of some pools that inodes name.
async fn recorded(link: &Link, map: &ClusterMap, pools: &[&PoolEntry]) -> Result<HashMap<StripeId, PoolId>> {
    let mut all = HashMap::new();
    for fs in &map.filesystems {
        let (mut ino, mut block) = (InodeNo(0), BlockIndex(0));
        loop {
            let MgrReply::Owned { runs, more } =
                link.manager(&MgrRequest::Owned { fs: fs.id, ino, block }).await?
            else {
                bail!("unexpected answer from the manager to Owned");
            };
            for of in &runs {
                let (first, end) = (of.run.first.0, of.run.first.0 + of.run.count);
                (ino, block) = (of.ino, BlockIndex(end));
                if pools.iter().any(|pool| pool.id == of.pool) {
                    let stripe = |block| StripeId { fs: fs.id, inode: of.ino, block: BlockIndex(block) };
                    all.extend((first..end).map(|block| (stripe(block), of.pool)));
                }
            }
            if !more {
                break;
            }
        }
    }
    Ok(all)
}

async fn verify_group(
    link: &Link,
    map: &ClusterMap,
    pool: PoolId,
    group: GroupId,
    repair: bool,
    verified: &mut Verified,
    compared: &mut Compared,
) -> Result<()> {
    let (mut newer, mut after) = (None, None);
    loop {
        let page = match server(newer.as_ref().unwrap_or(map), pool, group) {
            Ok(addr) => prove(link, addr, pool, group, after, PROVE_PAGE, repair).await,
            Err(error) => Err(error),
        };
        let page = match page {
            Err(_) if compared.asked_again < ASK_AGAIN_MAX => {
                compared.asked_again += 1;
                tokio::time::sleep(ASK_AGAIN_PAUSE).await;
                newer = Some(link.cluster().await?.map);
                continue;
            }
            page => page?,
        };
        verified.stripes += page.stripes;
        verified.bytes += page.bytes;
        verified.away += page.away;
        verified.found += page.found;
        verified.repaired += page.repaired;
        verified.removed += page.removed;
        let room = LISTED_MAX.saturating_sub(verified.findings.len());
        verified.findings.extend(page.findings.into_iter().take(room));
        for stripe in page.there {
            if compared.recorded.remove(&stripe).is_none() {
                compared.more.insert(stripe, pool);
            }
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(()),
        }
    }
}

async fn prove(
    link: &Link,
    addr: SocketAddr,
    pool: PoolId,
    group: GroupId,
    after: Option<StripeId>,
    limit: u32,
    repair: bool,
) -> Result<Page> {
    let request = AdminRequest::Prove { pool, group, after, limit, repair };
    let AdminReply::Json(text) = link.admin(&[addr], &request, PROVE_PATIENCE).await? else {
        bail!("unexpected answer");
    };
    let answer: Result<Page, String> = serde_json::from_str(&text).context("the server's answer")?;
    answer.map_err(anyhow::Error::msg)
}

/// Whether a stripe has a strip in reach.
async fn is_there(link: &Link, map: &ClusterMap, pool: PoolId, stripe: StripeId) -> Result<bool> {
    let group = group_of(map, pool, stripe).context("its pool is gone")?;
    let before = match (stripe.block.0, stripe.inode.0) {
        (0, ino) => StripeId { inode: InodeNo(ino - 1), block: BlockIndex(u64::MAX), ..stripe },
        (block, _) => StripeId { block: BlockIndex(block - 1), ..stripe },
    };
    let page = prove(link, server(map, pool, group)?, pool, group, Some(before), 1, false).await?;
    Ok(page.there.contains(&stripe))
}

/// Looks again at what did not fit, until it does, or time is up.
async fn compare(link: &Link, compared: Compared, verified: &mut Verified) -> Result<()> {
    let end = Instant::now() + COMPARE_PATIENCE;
    let map = link.cluster().await?.map;
    let proved = |(stripe, pool): &(StripeId, PoolId)| {
        group_of(&map, *pool, *stripe).is_none_or(|g| !compared.unproved.contains(&(*pool, g)))
    };
    let mut absent: Vec<_> = compared.recorded.into_iter().filter(proved).collect();
    let more: Vec<_> = compared.more.into_iter().collect();
    loop {
        absent = seen(link, &map, false, with_owner(link, &absent, Owner::Recorded).await?).await;
        let mut unowned = with_owner(link, &more, Owner::Nobody).await?;
        unowned.extend(with_owner(link, &more, Owner::Unknown).await?);
        let unowned = seen(link, &map, true, unowned).await;
        if unowned.is_empty() && absent.is_empty() || Instant::now() > end {
            let named = |of: &[(StripeId, PoolId)]| of.iter().map(|of| of.0).take(LISTED_MAX).collect();
            (verified.absent, verified.absent_blocks) = (absent.len() as u64, named(&absent));
            (verified.unowned, verified.unowned_blocks) = (unowned.len() as u64, named(&unowned));
            verified.unrecorded = with_owner(link, &more, Owner::Unrecorded).await?.len() as u64;
            return Ok(());
        }
        tokio::time::sleep(COMPARE_PAUSE).await;
    }
}

/// Those of some blocks that are there, or not; what cannot be asked, or is beyond what is named, counts too.
async fn seen(
    link: &Link,
    map: &ClusterMap,
    wanted: bool,
    blocks: Vec<(StripeId, PoolId)>,
) -> Vec<(StripeId, PoolId)> {
    let mut left = Vec::new();
    for (i, (stripe, pool)) in blocks.into_iter().enumerate() {
        let fits =
            i < LISTED_MAX && is_there(link, map, pool, stripe).await.is_ok_and(|there| there != wanted);
        if !fits {
            left.push((stripe, pool));
        }
    }
    left
}

/// Those of some blocks that belong to such an owner now.
async fn with_owner(
    link: &Link,
    blocks: &[(StripeId, PoolId)],
    wanted: Owner,
) -> Result<Vec<(StripeId, PoolId)>> {
    let mut found = Vec::new();
    for some in blocks.chunks(OWNERS_MAX) {
        let blocks = some.iter().map(|of| of.0).collect();
        let MgrReply::Owners(owners) = link.manager(&MgrRequest::Owners { blocks }).await? else {
            bail!("unexpected answer from the manager to Owners");
        };
        found.extend(some.iter().zip(owners).filter(|(_, owner)| *owner == wanted).map(|(of, _)| *of));
    }
    Ok(found)
}
