//! Repair of damaged strips on pdisks of this node: whoever finds one puts it into its pdisk's bounded queue; a
//! task for each pdisk, so that none waits for another's disk, makes them anew from the other strips. A strip that cannot be repaired now waits to be found
//! again: it stays marked as damaged, so its bytes are never returned. What was found need not be damaged: a disk may refuse a read once.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Instant,
};

use base::{
    OpClass, PdiskId, StripId,
    stats::{self, Counter},
};
use parking_lot::Mutex;
use stripe::StripeIo;
use tokio::sync::mpsc;
use wire::strip::StripState;

use crate::{
    config::ServedPdisk,
    records::Records,
    settle::{Maker, Place, Settled},
    status::RepairStatus,
    strips::Strips,
};

/// A pdisk, and the end of its queue.
pub type Queue<S> = (ServedPdisk<S>, mpsc::Receiver<StripId>);

/// The way into the queues.
pub struct Repairs {
    queues: HashMap<PdiskId, mpsc::Sender<StripId>>,
    queued: Mutex<HashSet<(PdiskId, StripId)>>,
    status: Mutex<RepairStatus>,
    counted: Counted,
}

/// The same counts in the process's registry.
struct Counted {
    found: Counter,
    repaired: Counter,
    sound: Counter,
    failed: Counter,
}

impl Counted {
    fn new() -> Counted {
        let of = |outcome| stats::counter("nsd_damaged_strips", &[("outcome", outcome)]);
        Counted { found: of("found"), repaired: of("repaired"), sound: of("sound"), failed: of("failed") }
    }
}

impl Repairs {
    /// The queues, of `max` strips each, and their ends.
    pub fn new<S: Strips>(max: usize, served: &[ServedPdisk<S>]) -> (Arc<Repairs>, Vec<Queue<S>>) {
        let (mut queues, mut ends) = (HashMap::new(), Vec::new());
        for on in served {
            let (queue, end) = mpsc::channel(max.max(1));
            queues.insert(on.id, queue);
            ends.push((on.clone(), end));
        }
        let repairs =
            Repairs { queues, queued: Mutex::default(), status: Mutex::default(), counted: Counted::new() };
        (Arc::new(repairs), ends)
    }

    /// A strip was found damaged.
    pub fn found(&self, pdisk: PdiskId, strip: StripId) {
        let mut queued = self.queued.lock();
        if queued.insert((pdisk, strip)) {
            self.note(|s| s.found += 1);
            self.counted.found.inc();
            if self.queues.get(&pdisk).is_none_or(|queue| queue.try_send(strip).is_err()) {
                queued.remove(&(pdisk, strip)); // full: found again at the next read
            }
        }
    }

    /// Counts.
    pub fn status(&self) -> RepairStatus {
        let queued = self.queued.lock().len();
        RepairStatus { queued, ..self.status.lock().clone() }
    }

    fn note(&self, change: impl FnOnce(&mut RepairStatus)) {
        change(&mut self.status.lock());
    }

    /// Repairs the strips of one pdisk until its queue is closed.
    pub async fn run<S: Strips>(
        self: Arc<Self>,
        (on, mut queue): Queue<S>,
        io: StripeIo,
        records: Arc<Records>,
    ) {
        let pdisk = on.id;
        while let Some(strip) = queue.recv().await {
            match repair(&io, &records, &on, strip).await {
                Ok(Settled::Fine | Settled::Sound) => {
                    let name = io.view().map.pdisk_called(pdisk);
                    tracing::info!(%strip, "strip of {name} is whole now: nothing is repaired");
                    self.note(|s| s.sound += 1);
                    self.counted.sound.inc();
                }
                Ok(settled) => {
                    let name = io.view().map.pdisk_called(pdisk);
                    tracing::warn!(%strip, ?settled, "damaged strip of {name} repaired");
                    self.note(|s| s.repaired += 1);
                    self.counted.repaired.inc();
                }
                Err(reason) => {
                    let name = io.view().map.pdisk_called(pdisk);
                    tracing::error!(%strip, reason, "damaged strip of {name} not repaired");
                    self.note(|s| s.failed += 1);
                    self.counted.failed.inc();
                }
            }
            self.queued.lock().remove(&(pdisk, strip));
        }
    }
}

async fn repair(
    io: &StripeIo,
    records: &Records,
    on: &ServedPdisk<impl Strips>,
    strip: StripId,
) -> Result<Settled, String> {
    let deadline = Instant::now() + io.config().deadline;
    loop {
        let Some(state) = state(&on.pdisk, strip).await? else { return Ok(Settled::Fine) };
        let place = Place { stripe: strip.stripe, pool: state.pool, group: state.group, index: strip.index };
        let attempt = deadline.min(Instant::now() + io.config().attempt);
        let maker = Maker {
            io,
            records,
            on: on.id,
            avoid: true,
            gives_up: false,
            doubted: !state.lost,
            class: OpClass::Scrub,
            deadline: attempt,
        };
        match maker.settle(&on.pdisk, place).await {
            // Something else took its place, or there is nothing to make it of.
            Ok(Settled::Fine) => {
                let now = self::state(&on.pdisk, strip).await?;
                let same = now.is_some_and(|now| (now.lost, now.adopted) == (state.lost, state.adopted));
                return if same { Err("nobody else has its bytes".into()) } else { Ok(Settled::Fine) };
            }
            Ok(settled) => return Ok(settled),
            Err(reason) if Instant::now() >= deadline => return Err(reason.to_string()),
            Err(_) => tokio::time::sleep(io.config().retry_pause * 4).await,
        }
    }
}

/// What a strip is, if it is there.
async fn state(pdisk: &impl Strips, strip: StripId) -> Result<Option<StripState>, String> {
    let states = pdisk.state(vec![strip]).await.map_err(|refusal| refusal.to_string())?;
    Ok(states.into_iter().next().filter(|s| s.adopted.is_some()))
}
