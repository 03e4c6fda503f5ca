//! The page's questions to the cluster: a few at a time, whoever asks. A question that finds no place in time is refused.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use analytics::Recording;
use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use tokio::{sync::Semaphore, time::timeout};

use super::super::ask::{Found, Span, Watch};
use crate::{cluster_dir::ClusterDir, link::Link};

/// Questions at a time.
const ASKED_MAX: usize = 4;
/// Live pages at a time.
pub const PAGES_MAX: usize = 16;
/// How long one waits for its turn.
const TURN: Duration = Duration::from_secs(10);
/// Who there is, is asked again after this.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// After this the end of the network is made anew: with the certificate that is valid then.
const WATCH_AGE_MAX: Duration = Duration::from_secs(3600);
/// Rows of one answer.
pub const ROWS_MAX: usize = 200;

struct Seat {
    watch: Watch,
    made: Instant,
    looked: Instant,
}

/// What is looked at.
pub enum Place {
    /// A cluster.
    Cluster(Box<ClusterDir>),
    /// A recording, from its beginning on so many times as fast as it was, since this process began; 0: it stands at its end.
    Recording {
        /// What is in it.
        recording: Arc<Recording>,
        /// How fast.
        speed: f64,
        /// When it began.
        begun: Instant,
    },
}

impl Place {
    async fn watch(&self) -> Result<Watch> {
        match self {
            Place::Cluster(dir) => Watch::begin(dir).await,
            Place::Recording { recording, speed, begun } => Watch::replay(recording, *speed, *begun),
        }
    }
}

/// Asks.
pub struct Asking {
    place: Place,
    /// Where worksheets are kept, if that is known.
    pub sheets: Option<PathBuf>,
    /// Those that nobody uses now. One whose question was dropped does not come back.
    seats: Mutex<Vec<Seat>>,
    turns: Semaphore,
    /// Pages that are live.
    pub live: Arc<Semaphore>,
}

impl Asking {
    /// Of this place, where nobody was asked yet.
    pub fn new(place: Place, sheets: Option<PathBuf>) -> Asking {
        Asking {
            place,
            sheets,
            seats: Mutex::default(),
            turns: Semaphore::new(ASKED_MAX),
            live: Arc::new(Semaphore::new(PAGES_MAX)),
        }
    }

    /// Finds out who there is.
    pub async fn look(&self) -> Result<()> {
        let seat = self.seat().await?;
        self.seats.lock().push(seat);
        Ok(())
    }

    async fn seat(&self) -> Result<Seat> {
        let kept = self.seats.lock().pop().filter(|seat| seat.made.elapsed() < WATCH_AGE_MAX);
        let now = Instant::now();
        let Some(mut seat) = kept else {
            return Ok(Seat { watch: self.place.watch().await?, made: now, looked: now });
        };
        if let Place::Cluster(dir) = &self.place
            && seat.looked.elapsed() >= LOOK_EVERY
        {
            if let Err(error) = seat.watch.look(dir).await {
                tracing::debug!("who there is: {error:#}");
            }
            seat.looked = now;
        }
        Ok(seat)
    }

    /// Does something with one of the few ends of the network.
    async fn turn<T>(&self, does: impl AsyncFnOnce(&mut Watch) -> Result<T>) -> Result<T> {
        let Ok(Ok(_turn)) = timeout(TURN, self.turns.acquire()).await else {
            bail!("too many questions at a time: ask again");
        };
        let mut seat = self.seat().await?;
        let done = does(&mut seat.watch).await;
        self.seats.lock().push(seat);
        done
    }

    /// The cluster's directory; a recording has none.
    pub fn dir(&self) -> Option<&ClusterDir> {
        match &self.place {
            Place::Cluster(dir) => Some(dir),
            Place::Recording { .. } => None,
        }
    }

    /// The present: of a recording what it has come to.
    pub async fn now(&self) -> Result<u64> {
        match &self.place {
            Place::Cluster(_) => Ok(base::stats::now()),
            Place::Recording { .. } => self.turn(async |watch| Ok(watch.now())).await,
        }
    }

    /// What a query finds.
    pub async fn ask(&self, text: &str, span: Span, rows_max: usize) -> Result<Found> {
        self.turn(async |watch| watch.ask(text, span, rows_max.clamp(1, ROWS_MAX)).await).await
    }

    /// A question of another kind, over the same end of the network.
    pub async fn with_link<T>(&self, does: impl AsyncFnOnce(Link) -> Result<T>) -> Result<T> {
        self.turn(async |watch| {
            does(watch.link().context("a recording is shown: there is no cluster to ask")?).await
        })
        .await
    }
}
