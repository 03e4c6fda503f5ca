//! The task that owns the cluster's state machine: it stores what the machine wants stored, publishes the map, answers,
//! and only then takes the next event.

use std::{collections::HashMap, sync::Arc, time::Instant};

use base::beat;
use tokio::sync::{mpsc, watch};
use wire::{
    map::ClusterMap,
    mgr::{MgrError, MgrReply},
};

use super::{
    TICK,
    shared::{Asker, Inner, Message, REST},
};
use crate::{
    cluster::{Cluster, Event, Kind, Rest, Step, StoreOp, Ticket},
    format, namespace,
};

/// Where new versions of the map go.
pub(super) struct Publish {
    pub map: watch::Sender<Arc<ClusterMap>>,
    pub client_map: watch::Sender<Arc<ClusterMap>>,
}

/// Runs until nobody can send events any more, or the store fails.
pub(super) async fn run(
    mut cluster: Cluster,
    mut queue: mpsc::Receiver<Message>,
    publish: Publish,
    inner: Arc<Inner>,
) {
    let mut waiting: HashMap<Ticket, Asker> = HashMap::new();
    let tick = tokio::time::sleep_until(Instant::now().into());
    tokio::pin!(tick);
    let mut rest = Rest::default();
    inner.collect.notify_one();
    let broken = || inner.writer.fail("the cluster's state cannot be stored".into());
    if !take_step(cluster.begin_life(), &publish, &inner, &mut waiting).await {
        return broken();
    }
    loop {
        // Both arms only wait: nothing is lost when the other one wins. The clock comes first, so that questions
        // cannot keep a lease from running out.
        let ask = tokio::select! {
            biased;
            () = &mut tick => Some(Message { event: Event::Tick, answer: None }),
            ask = queue.recv() => ask,
        };
        let Some(Message { event, answer }) = ask else { return };
        waiting.extend(answer);
        let look = inner.look();
        let kind = Kind::of(&event);
        let mut calm = look.away.is_none();
        for event in look.away.map(Event::Away).into_iter().chain([event]) {
            let step = cluster.handle(event, look.present);
            calm &= step.is_nothing_new();
            if !take_step(step, &publish, &inner, &mut waiting).await {
                // Nothing is served without it. Dropping the answers tells everyone who waits.
                return broken();
            }
        }
        waiting.retain(|_, asker| !asker.answer.is_closed());
        let due = rest.after(kind, calm, &cluster, look.present);
        let now = Instant::now();
        let next = due.map_or(now + TICK, |due| {
            let left = due.saturating_sub(look.present);
            if left < REST { now + left } else { beat::by(now, REST) }
        });
        if kind == Kind::Tick || next < tick.deadline().into_std() {
            tick.as_mut().reset(next.into());
        }
    }
}

/// Stores, publishes, answers; false if the store has failed.
async fn take_step(
    mut step: Step,
    publish: &Publish,
    inner: &Arc<Inner>,
    waiting: &mut HashMap<Ticket, Asker>,
) -> bool {
    let mut ended = Vec::new();
    if !step.store.is_empty() {
        let ops = std::mem::take(&mut step.store);
        ended.extend(ops.iter().filter_map(|op| match op {
            StoreOp::EndSession(session) => Some(*session),
            _ => None,
        }));
        let stored = inner.writer.run(move |txn| {
            for op in ops {
                match op {
                    StoreOp::Put(key, value) => txn.put(key, value),
                    StoreOp::Delete(key) => txn.delete(key),
                    StoreOp::EndSession(session) => namespace::end_session(txn, session)?,
                }
            }
            Ok(())
        });
        if let Err(error) = stored.await {
            tracing::error!(%error, "the cluster's state cannot be stored");
            return false;
        }
    }
    for note in std::mem::take(&mut step.notes) {
        tracing::info!("{note}");
        inner.log.add(note);
    }
    if let Some(map) = step.map.take() {
        inner.writer.set_contexts(format::contexts(&map, inner.hash));
        publish.map.send_replace(map);
    }
    if let Some(map) = step.client_map.take() {
        publish.client_map.send_replace(map);
    }
    inner.holders.take(&mut step);
    inner.drop_orphans(std::mem::take(&mut step.left));
    for (ticket, reply) in std::mem::take(&mut step.replies) {
        if let Some(asker) = waiting.remove(&ticket) {
            let _ = asker.answer.send(reply); // who waited may have given up
        }
    }
    // Nothing that a session waits for comes once it has ended.
    for (_, asker) in waiting.extract_if(|_, asker| ended.contains(&asker.session)) {
        let _ = asker.answer.send(MgrReply::Error(MgrError::NoSession));
    }
    if step.collect {
        inner.collect.notify_one();
    }
    true
}
