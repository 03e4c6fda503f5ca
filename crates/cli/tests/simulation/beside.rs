//! Two clients beside each other, whose programs work in directories of their own with names made ahead of the manager
//! (docs/names-ahead.md), and look into each other's at times: each sees at once all that the other's programs were answered. What is there
//! in the end is, of each program, a beginning of what it did ([`super::alone`]), no less than what was seen or said to be durable.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use client::Client;
use tokio::{task::JoinSet, time::sleep};

use super::{
    alone::{LOOK, Ledger, Program},
    cluster::{Cluster, Who},
    world::Process,
};
use crate::{Mishaps, all_back, all_gone, common::Random, observe_alone, prove};

/// How often one looks at what the other does.
const LOOKS: u64 = 6;

struct Side {
    client: Client,
    process: Process,
    ledger: Arc<Ledger>,
}

/// See the module.
pub async fn story(cluster: &Arc<Cluster>, seed: u64) -> Result<(), String> {
    let mut random = Random(!seed);
    let mut mounted = Vec::new();
    for who in 0..2 {
        mounted.push(cluster.mount(who).await.map_err(|error| format!("mount: {error}"))?);
    }
    let (mut sides, programs) = (Vec::new(), 1 + random.below(2) as usize);
    for (who, (client, process)) in mounted.into_iter().enumerate() {
        let first = client.clone();
        let begun = process.spawn(async move { Ledger::begin_from(&first, 10 * who, programs).await }).await;
        let ledger =
            begun.map_err(|error| error.to_string())?.map_err(|error| format!("begin: {error:?}"))?;
        sides.push(Side { client, process, ledger });
    }
    let (mut running, mut looking) = (JoinSet::new(), JoinSet::new());
    for (who, side) in sides.iter().enumerate() {
        for number in 0..programs {
            let (client, ledger) = (side.client.clone(), side.ledger.clone());
            let program = Program { client, number, ledger, random: Random(random.next()) };
            let steps = 40 + random.below(100);
            running.spawn_on(async move { (who as Who, program.run(steps).await) }, side.process.handle());
        }
        let (client, ledger) = (side.client.clone(), sides[1 - who].ledger.clone());
        let looks = look(client, ledger, Random(random.next()));
        looking.spawn_on(async move { (who as Who, looks.await) }, side.process.handle());
    }
    let mut mishaps = Mishaps {
        random,
        clients: 2,
        doomed: HashSet::new(),
        spared: BTreeMap::new(),
        long: true,
        gave_up: false,
    };
    let processes: BTreeMap<Who, Process> =
        (0..).zip(&sides).map(|(who, side)| (who, side.process.clone())).collect();
    for _ in 0..mishaps.random.below(5) {
        mishaps.next(cluster, &processes).await;
    }
    while let Some(ended) = running.join_next().await {
        match ended {
            Ok((_, Ok(()))) => {}
            Ok((who, Err(_))) if mishaps.doomed.contains(&who) => {}
            Ok((who, Err(error))) => return Err(format!("a program of client {who}: {error:?}")),
            Err(error) if error.is_cancelled() => {}
            Err(error) => return Err(format!("a program ended: {error}")),
        }
    }
    while let Some(ended) = looking.join_next().await {
        match ended {
            Ok((_, Ok(()))) => {}
            Ok((who, Err(broken))) if mishaps.doomed.contains(&who) && broken.starts_with(LOOK) => {}
            // What a session that has ended had not told is lost; of the rest it is seen in the end.
            Ok((who, Err(_))) if mishaps.doomed.contains(&(1 - who)) => {}
            Ok((who, Err(broken))) => return Err(format!("client {who} looks: {broken}")),
            Err(error) if error.is_cancelled() => {}
            Err(error) => return Err(format!("who looks ended: {error}")),
        }
    }
    for (who, side) in (0..).zip(&sides) {
        if mishaps.doomed.contains(&who) {
            continue;
        }
        let (client, answered) = (side.client.clone(), side.ledger.answered());
        let synced = side.process.spawn(async move { client.sync_all().await }).await;
        synced
            .map_err(|error| error.to_string())?
            .map_err(|error| format!("sync of client {who}: {error:?}"))?;
        side.ledger.must_be_there(&answered);
    }
    all_back(cluster).await?;
    for side in &sides {
        observe_alone(cluster, 51, &side.ledger).await?;
    }
    drop(sides);
    all_gone(cluster).await?;
    prove(cluster).await
}

async fn look(client: Client, other: Arc<Ledger>, mut random: Random) -> Result<(), String> {
    for _ in 0..LOOKS {
        sleep(Duration::from_millis(random.below(600))).await;
        other.check_beside(&client).await?;
    }
    Ok(())
}
