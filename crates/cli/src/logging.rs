//! What a process says on stderr, without ever waiting for it: lines go through a bounded queue to a thread of their own.
//!
//! A full disk, a closed pipe, a pipe that nobody reads: the line is lost, and counted, and nobody waits or fails
//! for it. When writing works again, how many were lost is the next line. (`tracing-subscriber` alone says with
//! `eprintln!` that stderr does not take a line, which panics; where that is in a destructor, the process aborts.)

mod journal;

use std::{
    io::Write,
    sync::{
        Arc, LazyLock, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    time::{Duration, Instant},
};

use base::{
    events::{self, Severity},
    stats::{Counter, counter},
};
use parking_lot::Mutex;
use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

/// Lines that wait to be written.
const LINES_MAX: usize = 4096;
/// Longest line, bytes; what is longer is cut. With [`LINES_MAX`] it bounds the memory.
const LINE_BYTES_MAX: usize = 8 << 10;
/// How long the end of a process waits for its last lines.
const LAST_WORDS: Duration = Duration::from_secs(1);

fn lost_lines() -> Counter {
    counter("log_lost_lines", &[])
}

/// The way to stderr. Clones are handles to the same queue.
#[derive(Clone)]
pub struct Log {
    lines: SyncSender<Vec<u8>>,
    shared: Arc<Shared>,
}

/// What the callers and the thread share.
struct Shared {
    /// Given to the thread and not done with yet.
    waiting: AtomicU64,
    /// Lost and not yet told.
    lost: AtomicU64,
    counter: Counter,
    /// That lines are lost was raised as an event, and writing has not worked since.
    told: AtomicBool,
}

impl Shared {
    fn lose(&self, lines: u64, why: &str) {
        self.lost.fetch_add(lines, SeqCst);
        self.counter.add(lines);
        if !self.told.swap(true, SeqCst) {
            let text = format!("the log cannot be written ({why}); lines are lost until that works again");
            events::raise(Severity::Warning, "log_lost", "log", &text);
        }
    }
}

impl Log {
    /// A queue to `out`, and its thread.
    fn start(out: impl Write + Send + 'static) -> Log {
        let (lines, queue) = sync_channel(LINES_MAX);
        let shared = Arc::new(Shared {
            waiting: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            counter: lost_lines(),
            told: AtomicBool::new(false),
        });
        let own = Arc::clone(&shared);
        // Without its thread the queue has no reader, and every line counts as lost.
        let _ = std::thread::Builder::new().name("log".into()).spawn(move || write_lines(&queue, out, &own));
        Log { lines, shared }
    }

    /// Waits for what was said before, but not for long.
    pub fn flush(&self) {
        let end = Instant::now() + LAST_WORDS;
        while self.shared.waiting.load(SeqCst) > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn send(&self, mut line: Vec<u8>) {
        if line.len() > LINE_BYTES_MAX {
            line.truncate(LINE_BYTES_MAX - 4);
            line.extend_from_slice(b"...\n");
        }
        self.shared.waiting.fetch_add(1, SeqCst);
        let why = match self.lines.try_send(line) {
            Ok(()) => return,
            Err(TrySendError::Full(_)) => "nobody reads it",
            Err(TrySendError::Disconnected(_)) => "its thread is gone",
        };
        self.shared.waiting.fetch_sub(1, SeqCst);
        self.shared.lose(1, why);
    }
}

/// The thread: writes until no handle is left.
fn write_lines(queue: &Receiver<Vec<u8>>, mut out: impl Write, shared: &Shared) {
    while let Ok(line) = queue.recv() {
        let lost = shared.lost.load(SeqCst);
        let told = match lost {
            0 => Ok(()),
            n => out.write_all(format!("{n} lines of this log could not be written\n").as_bytes()),
        };
        match told.and_then(|()| out.write_all(&line)).and_then(|()| out.flush()) {
            Ok(()) => {
                shared.lost.fetch_sub(lost, SeqCst);
                shared.told.store(false, SeqCst);
            }
            Err(error) => shared.lose(1, &error.to_string()),
        }
        shared.waiting.fetch_sub(1, SeqCst);
    }
}

/// One event's text; it becomes a line when it is dropped.
pub struct Line {
    log: Log,
    text: Vec<u8>,
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        // What is beyond the bound is cut anyway: memory need not hold it.
        let room = (LINE_BYTES_MAX + 1).saturating_sub(self.text.len());
        self.text.extend_from_slice(&bytes[..bytes.len().min(room)]);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if !self.text.is_empty() {
            self.log.send(std::mem::take(&mut self.text));
        }
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Line;
    fn make_writer(&self) -> Line {
        Line { log: self.clone(), text: Vec::new() }
    }
}

/// Straight to the descriptor: the standard library's handle has a lock that a panic message takes as well.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(rustix::io::write(rustix::stdio::stderr(), bytes)?)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

static LOG: LazyLock<Log> = LazyLock::new(|| Log::start(Stderr));

/// The level of a process that was not started with one of its own, and how it is changed.
struct Level {
    in_force: Mutex<String>,
    change: Box<dyn Fn(EnvFilter) + Send + Sync>,
}

/// Empty where `ROPEWALK_LOG` says what this process says: that stays.
static LEVEL: OnceLock<Level> = OnceLock::new();

/// This process's log. Panics go there as well, since a pipe that nobody reads must not hold up who panics.
pub fn start(default_level: &str) {
    let own = EnvFilter::try_from_env("ROPEWALK_LOG").ok();
    let changes = own.is_none();
    let log = tracing_subscriber::fmt()
        .with_ansi(false)
        .log_internal_errors(false)
        .event_format(journal::Lines::to(rustix::stdio::stderr()))
        .with_env_filter(own.unwrap_or_else(|| default_level.into()))
        .with_writer(LOG.clone())
        .with_filter_reloading();
    let handle = log.reload_handle();
    log.init();
    let change = Box::new(move |filter| drop(handle.reload(filter))); // it fails only when the log is gone
    if changes {
        let _ = LEVEL.set(Level { in_force: Mutex::new(default_level.to_owned()), change }); // once
    }
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let backtrace = std::backtrace::Backtrace::capture();
        let text = format!("thread {:?}: {panic}\n{backtrace}\n", thread.name().unwrap_or("without a name"));
        LOG.send(text.into_bytes());
    }));
}

/// From now on lines of this level (`error`, `warn`, `info`, `debug`) and graver ones are written, unless `ROPEWALK_LOG` says
/// which.
pub fn set_level(level: &str) {
    let Some(own) = LEVEL.get() else { return };
    let mut in_force = own.in_force.lock();
    if *in_force != level {
        (own.change)(level.into());
        level.clone_into(&mut in_force);
        say(&format!("the log's level is {level} now"));
    }
}

/// Lines of this process's log that could not be written, in all.
pub fn lost() -> u64 {
    LOG.shared.counter.get()
}

/// Says a line on stderr in its turn, whatever the level.
pub fn say(text: &str) {
    LOG.send(format!("{text}\n").into_bytes());
}

/// Waits for what was said, but not for long: for the end of the process.
pub fn flush() {
    LOG.flush();
}

#[cfg(test)]
mod tests {
    use std::{io, sync::mpsc};

    use parking_lot::Mutex;

    use super::*;

    /// Fails as long as it is told to; waits when it is told to.
    struct Disk {
        full: Arc<AtomicBool>,
        written: Arc<Mutex<Vec<u8>>>,
        gate: Option<mpsc::Receiver<()>>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if let Some(gate) = &self.gate {
                let _ = gate.recv();
            }
            if self.full.load(SeqCst) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.written.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn settled(log: &Log) {
        while log.shared.waiting.load(SeqCst) > 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn lines_that_a_full_disk_does_not_take_are_counted_and_told_later() {
        let (full, written) = (Arc::new(AtomicBool::new(true)), Arc::<Mutex<Vec<u8>>>::default());
        let log = Log::start(Disk { full: Arc::clone(&full), written: Arc::clone(&written), gate: None });
        let before = lost_lines().get();
        for _ in 0..3 {
            writeln!(log.make_writer(), "lost").unwrap();
        }
        settled(&log);
        assert_eq!(log.shared.lost.load(SeqCst), 3);
        // Other tests of this process lose lines as well.
        assert!(lost_lines().get() - before >= 3);
        assert!(events::events().after(0).iter().any(|e| e.name == "log_lost"));
        full.store(false, SeqCst);
        writeln!(log.make_writer(), "{}", "long ".repeat(LINE_BYTES_MAX)).unwrap();
        settled(&log);
        let text = String::from_utf8(written.lock().clone()).unwrap();
        let (told, line) = text.split_once('\n').unwrap();
        assert_eq!(told, "3 lines of this log could not be written");
        assert!(line.ends_with("...\n") && line.len() <= LINE_BYTES_MAX, "{}", line.len());
    }

    #[test]
    fn a_pipe_that_nobody_reads_holds_nobody_up() {
        let (open, gate) = mpsc::channel();
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let full = Arc::new(AtomicBool::new(false));
        let log = Log::start(Disk { full, written: Arc::clone(&written), gate: Some(gate) });
        let many = 3 * LINES_MAX;
        for i in 0..many {
            writeln!(log.make_writer(), "{i}").unwrap();
        }
        // The thread holds one line, the queue the rest of what is not lost.
        let lost = log.shared.lost.load(SeqCst);
        assert!((many - LINES_MAX - 1..=many - LINES_MAX).contains(&(lost as usize)), "{lost}");
        drop(open);
        settled(&log);
        let text = String::from_utf8(written.lock().clone()).unwrap();
        // In one go, or in two if the thread took its first line late.
        let told = text.lines().filter_map(|l| l.strip_suffix(" lines of this log could not be written"));
        assert_eq!(told.map(|n| n.parse::<u64>().unwrap()).sum::<u64>(), lost);
    }
}
