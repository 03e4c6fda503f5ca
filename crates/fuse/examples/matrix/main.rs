//! Every way to change a file against every way to read it: what was written must be seen ([`judge`]).
//! `matrix [OPTION...] DIR [READ-DIR]`: changes a file in DIR and reads it there, or as it is seen in READ-DIR. For each pair of
//! ways the file is read by two threads, and by the writer after each change; first through one descriptor, then opened anew
//! each time; in the end once more, at rest. Exits 1 if anything else was read than was to be read, or a call failed.
#![allow(clippy::print_stdout, clippy::print_stderr)] // a program
#![allow(missing_docs)] // the names of ways say it

mod calls;
mod judge;
mod read;
mod write;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use judge::{BASE, CELL, Judge, PAGE, Random};
use read::Reader;
use write::Writer;

const USAGE: &str = "usage: matrix [OPTION...] DIR [READ-DIR]
  --turn MS        how long each pair has (20), and at least four changes; half with descriptors that stay
  --seed N         (1)
  --only W+W,R+R   these ways only; either side may be empty
  --share N        every Nth pair, which ones by the seed (1)
  --local          another file system: O_DIRECT is of whole pages, and what it refuses (EOPNOTSUPP) is left out";

/// Told of what a file system does not have.
const REFUSED: &str = "os error 95";

struct Options {
    turn: Duration,
    seed: u64,
    only: (String, String),
    share: u64,
    local: bool,
    dirs: Vec<PathBuf>,
}

fn options() -> Option<Options> {
    let (turn, only) = (Duration::from_millis(20), Default::default());
    let mut o = Options { turn, seed: 1, only, share: 1, local: false, dirs: Vec::new() };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--turn" => o.turn = Duration::from_millis(words.next()?.parse().ok()?),
            "--seed" => o.seed = words.next()?.parse().ok()?,
            "--only" => o.only = words.next()?.split_once(',').map(|(w, r)| (w.into(), r.into()))?,
            "--share" => o.share = words.next()?.parse().ok().filter(|share| *share > 0)?,
            "--local" => o.local = true,
            dir => o.dirs.push(dir.into()),
        }
    }
    (1..=2).contains(&o.dirs.len()).then_some(o)
}

fn main() -> ExitCode {
    let Some(options) = options() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let (mut number, mut pairs, mut failed, counts) = (options.seed % options.share, 0, 0, Counts::default());
    let chosen = |only: &str, name: &str| only.is_empty() || only.split('+').any(|one| one == name);
    for (written, write) in write::WAYS.into_iter().filter(|(name, _)| chosen(&options.only.0, name)) {
        for (is_read, read) in read::WAYS.into_iter().filter(|(name, _)| chosen(&options.only.1, name)) {
            // A disk may refuse to read what a mapping is just changing (EIO).
            if options.local && write == write::Way::Map && read.is_direct() {
                continue;
            }
            number += 1;
            if !number.is_multiple_of(options.share) {
                continue;
            }
            pairs += 1;
            let began = Instant::now();
            match pair(&options, write, read, options.seed.wrapping_add(1000 * number), &counts) {
                Err(why) if !(options.local && why.contains(REFUSED)) => {
                    failed += 1;
                    println!("FAILED: written by {written}, read by {is_read}: {why}");
                }
                _ => {}
            }
            if began.elapsed() > Duration::from_secs(5) {
                println!("written by {written}, read by {is_read}: {:?}", began.elapsed());
            }
        }
    }
    let [writes, reads] = [&counts.writes, &counts.reads].map(|n| n.load(SeqCst));
    println!("{pairs} pairs, {writes} changes, {reads} reads, {failed} pairs failed");
    ExitCode::from(u8::from(failed > 0))
}

#[derive(Default)]
struct Counts {
    writes: AtomicU64,
    reads: AtomicU64,
}

/// One reader with what it has seen.
struct Eye<'a> {
    reader: Reader,
    limit: u64,
    /// What is read begins and ends with one.
    unit: u64,
    seen: Vec<u64>,
    judge: &'a Judge,
    reads: &'a AtomicU64,
    /// The file is changed on another mount. What the kernel knows of its end may then be old for a moment: of several
    /// questions for it that are under way at once it believes the first answer.
    elsewhere: bool,
}

impl Eye<'_> {
    fn look(&mut self, at: u64, len: u64) -> Result<(), String> {
        let end = (at + len).next_multiple_of(self.unit);
        let range = (at / self.unit * self.unit).min(self.limit)..end.min(self.limit);
        if range.is_empty() {
            return Ok(());
        }
        let mut again = if self.elsewhere { 3 } else { 0 };
        loop {
            self.reads.fetch_add(1, SeqCst);
            let before = self.judge.before(range.clone());
            let bytes = self.reader.read(range.start, (range.end - range.start) as usize);
            let bytes = bytes.map_err(|error| format!("a read: {error}"))?;
            let short = bytes.len() < (range.end - range.start) as usize;
            match self.judge.check(&before, bytes, &mut self.seen) {
                Err(_) if short && again > 0 => again -= 1,
                checked => return checked,
            }
        }
    }
}

fn pair(
    options: &Options,
    write: write::Way,
    read: read::Way,
    seed: u64,
    counts: &Counts,
) -> Result<(), String> {
    let (here, there) = (&options.dirs[0], options.dirs.last().unwrap_or(&options.dirs[0]));
    let name = "matrix";
    let made = File::create(here.join(name)).and_then(|file| file.set_len(BASE));
    made.map_err(|error| format!("making the file: {error}"))?;
    let judge = Judge::new();
    let scratch = Scratch(there);
    let eye = |number: u32, again| {
        let reader =
            Reader::new(read, there.join(name), scratch.path(&format!("read{number}")), again, here != there);
        let reader = reader.map_err(|error| format!("a reader: {error}"))?;
        let unit = if options.local { PAGE } else { CELL };
        let (limit, seen) = (read.limit(), Judge::unseen());
        Ok::<_, String>(Eye {
            reader,
            limit,
            unit,
            seen,
            judge: &judge,
            reads: &counts.reads,
            elsewhere: here != there,
        })
    };
    let random = Random(seed);
    let writer =
        Writer::new(write, here.join(name), here.join("matrix-written"), &judge, random, options.local);
    let mut writer = writer.map_err(|error| format!("the writer: {error}"))?;
    let mut outcome = Ok(());
    for again in [false, true] {
        let (ended, failure, hot) = (AtomicBool::new(false), Mutex::new(None), AtomicU64::new(0));
        let fail = |why: String| {
            ended.store(true, SeqCst);
            failure.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(why);
        };
        let mut own = eye(0, again)?;
        let eyes = [eye(1, again)?, eye(2, again)?];
        thread::scope(|scope| {
            for (number, mut eye) in eyes.into_iter().enumerate() {
                let (ended, fail, hot, limit) = (&ended, &fail, &hot, read.limit());
                scope.spawn(move || {
                    let mut random = Random(seed.wrapping_add(1 + number as u64));
                    while !ended.load(SeqCst) {
                        let near = hot.load(SeqCst).saturating_sub(random.below(16) * CELL);
                        let (at, len) = match random.below(8) {
                            0 => (0, limit),
                            1 | 2 => (random.below(limit / CELL) * CELL, (1 + random.below(2048)) * CELL),
                            _ => (near, (1 + random.below(2048)) * CELL),
                        };
                        if let Err(why) = eye.look(at, len) {
                            fail(why);
                        }
                    }
                });
            }
            let began = Instant::now();
            let mut steps = 0;
            while !ended.load(SeqCst) && (steps < 2 || began.elapsed() < options.turn / 2) {
                steps += 1;
                counts.writes.fetch_add(1, SeqCst);
                match writer.step() {
                    Err(error) => fail(format!("a change: {error}")),
                    Ok(range) => {
                        hot.store(range.start, SeqCst);
                        let seen = own.look(range.start, range.end - range.start);
                        seen.unwrap_or_else(|why| fail(format!("just changed: {why}")));
                    }
                }
            }
            ended.store(true, SeqCst);
        });
        let at_rest = own.look(0, read.limit()).map_err(|why| format!("and at rest: {why}"));
        let during = failure.into_inner().unwrap_or_else(|e| e.into_inner());
        let how = if again { "opened anew" } else { "kept open" };
        let why = [during, at_rest.err()].into_iter().flatten().collect::<Vec<_>>().join("; ");
        if !why.is_empty() && outcome.is_ok() {
            outcome = Err(format!("{how}: {why}"));
        }
    }
    outcome
}

/// Files that go again.
struct Scratch<'a>(&'a Path);

impl Scratch<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(format!("matrix-{name}"))
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        (0..3).for_each(|n| drop(fs::remove_file(self.path(&format!("read{n}")))));
    }
}
