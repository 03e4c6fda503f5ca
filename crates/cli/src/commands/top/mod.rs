//! `ropewalk top`: who does what on the cluster now, a line each, drawn anew every second.
//! It only asks; what it shows is what `ropewalk analytics query` would say of the last seconds.

mod draw;
mod view;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tokio::sync::{mpsc, watch};

use self::view::{Line, View};
use super::analytics::{Span, Watch, read};
use crate::{
    args::{AnalyticsReplay, Look, Top},
    cluster_dir::ClusterDir,
    link, output,
    process::stop::Stop,
    terminal::Screen,
};

/// Lines that are told apart.
const ROWS_MAX: usize = 200;
/// Columns of what is printed once.
const PRINTED_COLUMNS: usize = 80;
/// How often it asks.
const EVERY: Duration = Duration::from_secs(1);
/// Who there is, is asked after so many times.
const LOOK_EVERY: u64 = 10;

/// `ropewalk top`.
pub fn top(args: &Top) -> Result<()> {
    let dir = args.dir.open()?;
    link::run(async {
        let watch = Watch::begin(&dir).await?;
        show(watch, Some(dir), &args.look).await
    })
}

/// `ropewalk analytics replay`.
pub fn replay(args: &AnalyticsReplay) -> Result<()> {
    // Printed once it is about the end.
    let once = args.look.once || args.look.json;
    let watch = Watch::replay(&read(&args.file)?, if once { 0.0 } else { args.speed }, Instant::now())?;
    link::run(show(watch, None, &args.look))
}

async fn show(mut watch: Watch, dir: Option<ClusterDir>, args: &Look) -> Result<()> {
    let over = args.over.as_secs();
    if !(1..=3600).contains(&over) {
        bail!("--over: 1s to 1h can be looked at");
    }
    let view = View::new(args.view);
    if !args.once && !args.json {
        return live(dir, watch, view, over).await;
    }
    let (lines, silent) = look(&mut watch, &view, over).await?;
    if args.json {
        output::json(&view.json(&lines, over, &silent))?;
    } else {
        for line in draw::plain(&view, &lines, over, PRINTED_COLUMNS) {
            output::line(line);
        }
    }
    match silent.is_empty() {
        true => Ok(()),
        false => bail!("not in the figures, since they do not answer: {}", silent.join(", ")),
    }
}

/// What a view shows now, and who did not answer.
async fn look(watch: &mut Watch, view: &View, over: u64) -> Result<(Vec<Line>, Vec<String>)> {
    let span = Span { from_ago: over, to_ago: 0, step: 0, idle: true };
    let operations = watch.ask(&view.query("ops"), span, ROWS_MAX).await?;
    let bytes = match view.has_bytes() {
        true => Some(watch.ask(&view.query("bytes"), span, ROWS_MAX).await?),
        false => None,
    };
    let silent = operations.silent().map(str::to_owned).collect();
    Ok((view::lines(&operations, bytes.as_ref()), silent))
}

/// What was asked, and what was found.
type Told = (View, Result<(Vec<Line>, Vec<String>)>);

/// Asks for what is wanted, every second and whenever something else is wanted, as long as somebody listens.
async fn ask(
    dir: Option<ClusterDir>,
    mut watch: Watch,
    mut wanted: watch::Receiver<View>,
    told: mpsc::Sender<Told>,
    over: u64,
) {
    for asked in 1u64.. {
        let view = wanted.borrow_and_update().clone();
        let found = async {
            if let Some(dir) = dir.as_ref().filter(|_| asked.is_multiple_of(LOOK_EVERY)) {
                watch.look(dir).await?;
            }
            look(&mut watch, &view, over).await
        };
        let found = found.await;
        if told.send((view, found)).await.is_err() {
            return;
        }
        tokio::select! {
            // Both only wait.
            () = tokio::time::sleep(EVERY) => {}
            changed = wanted.changed() => if changed.is_err() { return },
        }
    }
}

async fn live(dir: Option<ClusterDir>, watch: Watch, mut view: View, over: u64) -> Result<()> {
    let mut stop = Stop::listen()?;
    let screen = Screen::take()?;
    let mut keys = screen.keys()?;
    let (want, wanted) = watch::channel(view.clone());
    let (tell, mut told) = mpsc::channel(1);
    tokio::spawn(ask(dir, watch, wanted, tell, over));
    let (mut lines, mut note) = (Vec::new(), "asking ...".to_owned());
    loop {
        screen.show(&draw::screen(&view, &lines, over, &note, screen.size()))?;
        // Nothing is lost by waiting for one and not for the others.
        tokio::select! {
            biased;
            () = stop.wait() => return Ok(()),
            key = keys.recv() => {
                let asked = view.clone();
                if key.is_none_or(|key| !view.press(key, &lines)) {
                    return Ok(());
                }
                if view.asks_otherwise(&asked) {
                    (lines, note) = (Vec::new(), "asking ...".to_owned());
                    want.send_replace(view.clone());
                }
            }
            Some((of, found)) = told.recv() => {
                if of.asks_otherwise(&view) {
                    continue;
                }
                match found {
                    Ok((found, silent)) => {
                        lines = found;
                        note = match silent.is_empty() {
                            true => String::new(),
                            false => format!("no answer: {}", silent.join(", ")),
                        };
                    }
                    // What was seen last stays, and says so.
                    Err(error) => note = format!("{error:#}"),
                }
            }
        }
    }
}
