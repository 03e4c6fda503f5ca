//! The table with its journal in etcd.
//!
//! A commit is put into etcd, then kept in memory above the table ([`Recent`]), which takes what has gathered there without a
//! flush, as with a journal in a file. After so many bytes it takes all durably; what lies far enough behind that is removed from
//! etcd. Opening wins the leader's key, reads what the table lacks, and claims the journal.
//! The mark beside the table says what was acknowledged here: an etcd that has lost it is refused.
//! When a commit fails, or another manager has taken over, nothing more is answered: the manager stops.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io,
    path::Path,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use wire::map::ManagerEntry;

use super::{
    super::{
        Changes, Confirmed, Marked, Read, RedbStore, Remark, Snapshot, Store, StoreError, blocks,
        files::{invalid, journal_path, mark_path, random, refused, write_durably},
        look,
        mark::{self, Acked, MarkFile},
        recent::Recent,
        redb::Mark,
    },
    etcd::{Claim, Etcd},
    following::Following,
    holder::{Ask, Entry, Heard, Holder, Next, Origin, Start, Stop, Waits},
    part::{self, Assembly},
    place::Place,
};

/// Changes held in memory above the table, at most, about.
const RECENT_MAX: usize = if cfg!(test) { 24 } else { 1024 };
/// Bytes of changes after which the table takes all durably.
const ROUND_BYTES: usize = if cfg!(test) { 16 << 10 } else { 8 << 20 };
/// Rounds of records that stay in etcd behind that, for tables that are further behind.
const ROUNDS_KEPT: usize = 4;
/// More stay for a table that is being copied, until so long after its last part was asked for, if etcd has room.
pub const HELD_FOR: Duration = if cfg!(test) { Duration::from_secs(3) } else { Duration::from_secs(300) };
/// How long a manager waits for an etcd that does not answer, before it gives up.
const SILENCE_MAX: Duration = Duration::from_secs(600);
/// The same when it is opened: who started it hears why.
const SILENCE_MAX_OPENING: Duration = Duration::from_secs(30);
/// How many leases it waits for a manager that leads to be gone: more than that of one that died.
const LEASES_LED_MAX: u32 = 5;
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// How often it is looked whether it still leads.
const LOOK: Duration = Duration::from_secs(1);

/// As what a manager opens its store.
#[derive(Debug, Clone, Default)]
pub struct Standing {
    /// Its machine and process, for people.
    pub who: String,
    /// Its name and addresses, for those who look for the one that leads.
    pub entry: ManagerEntry,
    /// As long as another one leads it is followed; without, opening fails then.
    pub standby: bool,
    /// Told how it stands.
    pub following: Following,
    /// What the table says of the lease under which it leads; none: it is not looked for there.
    pub lease: Option<fn(&dyn Read) -> Duration>,
    /// Whether its records may be packed, as the table says by the cluster's level; none: they may not.
    pub packs: Option<fn(&dyn Read) -> bool>,
    /// Sees what another one that leads has changed, above the table before that.
    pub sees: Option<fn(&dyn Read, &Changes)>,
}

impl Standing {
    /// The next one that leads does so under the lease that is stored.
    fn heed(&self, table: &dyn Read) {
        if let Some(lease) = self.lease {
            self.following.set_lease(lease(table));
        }
    }
}

/// A table whose journal is in etcd.
pub struct ReplicatedStore {
    table: RedbStore,
    etcd: Etcd,
    place: String,
    life: u64,
    state: Mutex<State>,
    following: Following,
    packs: Option<fn(&dyn Read) -> bool>,
    /// The record behind which a table that is being copied goes on, and when it was heard of last.
    held: Mutex<Option<(u64, Instant)>>,
}

struct State {
    holder: Holder,
    mark: MarkFile,
    /// What the journal holds and the table does not.
    recent: Recent,
    /// The table after its last commit; none before the first.
    base: Option<Snapshot>,
    /// The last commit that is whole.
    last: Mark,
    /// Nothing is committed any more.
    failed: Option<StoreError>,
    /// This machine's disk has failed: it gets nothing any more.
    disk_fails: bool,
    /// Bytes of changes since the table was durable.
    bytes: usize,
    /// Records are packed.
    packs: bool,
    /// Numbers up to which the table was durable, at the ends of the last rounds.
    rounds: VecDeque<u64>,
}

/// Bytes of changes, without what says where one ends.
fn bytes_of(changes: &Changes) -> usize {
    changes.iter().map(|(key, value)| key.len() + value.as_ref().map_or(0, Vec::len)).sum()
}

fn failed(action: &'static str, reason: impl ToString) -> StoreError {
    StoreError::Engine { action, reason: reason.to_string() }
}

/// Which manager this directory is: a number of its own, made once.
fn member(path: &Path) -> Result<u64, StoreError> {
    let file = path.with_extension("member");
    let made = (|| -> io::Result<u64> {
        match fs::read_to_string(&file) {
            Ok(text) => {
                u64::from_str_radix(text.trim(), 16).map_err(|_| invalid("does not hold a manager's number"))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let number = random()?;
                write_durably(&file, &format!("{number:016x}\n"))?;
                Ok(number)
            }
            Err(error) => Err(error),
        }
    })();
    made.map_err(|error| refused(&file, &error))
}

/// The start at a place, which is asked for so long.
pub fn start_of(etcd: &Etcd, silence: Duration) -> Result<Option<Start>, StoreError> {
    let begin = Instant::now();
    loop {
        match etcd.ask(&Ask::Read { from: 0 }) {
            Heard::Records { start, .. } => return Ok(start),
            _ if begin.elapsed() >= silence => {
                return Err(failed("find a place for the journal of the", etcd.failure()));
            }
            _ => std::thread::sleep(PAUSE),
        }
    }
}

/// Asks until what was begun is done. What is read on the way goes to `found`.
fn run(
    (etcd, following): (&Etcd, &Following),
    holder: &mut Holder,
    mut ask: Ask,
    patience: &Patience,
    mut found: impl FnMut(Vec<Entry>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let begin = Instant::now();
    let (mut answered, mut leads) = (begin, String::new());
    loop {
        let heard = etcd.ask(&ask);
        let next = holder.heard(ask, heard);
        found(holder.take_found())?;
        following.set_last(holder.last());
        if !matches!(next, Next::Again(_, Waits::Silent)) {
            following.set_silence(None);
        }
        let (again, waits) = match next {
            Next::Done => return Ok(()),
            Next::Stop(why @ Stop::Behind { .. }) => {
                return Err(StoreError::Behind { reason: why.to_string() });
            }
            Next::Stop(why) => {
                if matches!(why, Stop::TakenOver(_)) {
                    following.set_deposed();
                }
                return Err(failed("go on with the", why));
            }
            Next::Ask(next) => {
                ask = next;
                continue;
            }
            Next::Again(again, waits) => (again, waits),
        };
        let (why, over) = match waits {
            Waits::Silent => {
                following.set_silence(Some(etcd.failure()));
                if etcd.upkeep().is_full() {
                    etcd.look_after();
                }
                (etcd.failure(), answered.elapsed() > patience.silence)
            }
            Waits::Led(who) => {
                answered = Instant::now();
                if leads.is_empty() {
                    tracing::info!("another manager leads: {who}");
                    leads = who;
                }
                let over = patience.led.is_some_and(|led| begin.elapsed() > led);
                (format!("another manager leads: {leads}"), over)
            }
        };
        if over || following.ends() {
            return Err(failed("reach the journal of the", why));
        }
        std::thread::sleep(PAUSE);
        ask = again;
    }
}

/// How long is waited.
struct Patience {
    silence: Duration,
    /// For a manager that leads; none: as long as it does.
    led: Option<Duration>,
}

impl ReplicatedStore {
    /// Opens the table at `path`, with its journal at `place`; one that never had a journal begins it there. `who` this is,
    /// for people. Waits for a manager that leads, and for an etcd that does not answer, for less than a minute. A standby
    /// waits as long as the other one leads, and brings its table up to what that one commits.
    pub fn open(
        path: &Path,
        cache_bytes: usize,
        place: &Place,
        who: &str,
        standby: bool,
    ) -> Result<ReplicatedStore, StoreError> {
        let standing = Standing { who: who.to_owned(), standby, ..Standing::default() };
        ReplicatedStore::open_as(path, cache_bytes, place, &standing)
    }

    /// The same as one of several managers.
    pub fn open_as(
        path: &Path,
        cache_bytes: usize,
        place: &Place,
        standing: &Standing,
    ) -> Result<ReplicatedStore, StoreError> {
        let Standing { who, entry, standby, following, .. } = standing;
        if journal_path(path).exists() {
            let text = format!("is the journal of this store, and not {place}");
            return Err(refused(&journal_path(path), &io::Error::other(text)));
        }
        if blocks::kind_of(path).map_err(|error| refused(path, &error))? == blocks::Kind::Former {
            look::renew(path, cache_bytes)?;
        }
        let life = random().map_err(|error| refused(path, &error))?;
        let claim = Claim { member: member(path)?, life, who: who.clone(), entry: entry.clone() };
        let member = claim.member;
        let etcd = Etcd::new(place, claim, following.clone())
            .map_err(|reason| failed("reach the journal of the", reason))?;
        let table = RedbStore::open(path, cache_bytes)?;
        standing.heed(&*table.snapshot()?);
        let mut of = table.mark()?.unwrap_or_default();
        if of.journal == 0 {
            match start_of(&etcd, SILENCE_MAX_OPENING)? {
                None => {}
                Some(Start { ended: Some(last), .. }) => {
                    return Err(failed("go on with the", Stop::Ended(last)));
                }
                Some(_) => return Err(failed("go on with the", Stop::Foreign)),
            }
            // Before it stands in etcd: it is known again, whatever ends this here.
            of.journal = random().map_err(|error| refused(path, &error))?;
            of.etcd = Some(0);
            table.commit_marked(&Changes::new(), of, true)?;
        }
        let mark = mark_path(path);
        let refused_mark = |error: io::Error| refused(&mark, &error);
        let acked = match File::open(&mark) {
            Ok(file) => mark::read(&file).map_err(refused_mark)?.filter(|acked| acked.journal == of.journal),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(refused_mark(error)),
        };
        let origin = Origin {
            journal: of.journal,
            applied: of.applied,
            crc: of.etcd.filter(|crc| *crc != 0),
            acked: acked.map_or(of.applied, |acked| acked.number),
            acked_crc: acked.map(|acked| acked.crc).filter(|crc| *crc != 0),
            new: acked.is_none(),
        };
        let mut holder = Holder::new(origin, member, life);

        let (mut last, mut recent, mut assembly) = (of, Recent::default(), Assembly::default());
        let patience = match *standby {
            true => Patience { silence: SILENCE_MAX, led: None },
            false => Patience { silence: SILENCE_MAX_OPENING, led: Some(following.lease() * LEASES_LED_MAX) },
        };
        let mut bytes_read = 0;
        let ask = holder.open();
        let followed = run((&etcd, following), &mut holder, ask, &patience, |entries| {
            let read = !entries.is_empty();
            for Entry { number, bytes, .. } in entries {
                let whole = assembly.push(of.journal, number, &bytes);
                if let Some(changes) = whole.map_err(|error| failed("read the journal of the", error))? {
                    if let Some(sees) = standing.sees {
                        sees(&*recent.above(table.snapshot()?), &changes);
                    }
                    bytes_read += bytes_of(&changes);
                    recent.push(changes);
                    last = Mark { applied: number, etcd: Some(part::stored_crc(&bytes)), ..last };
                }
            }
            let durable = bytes_read >= ROUND_BYTES;
            if durable || recent.len() >= RECENT_MAX {
                table.commit_marked(&std::mem::take(&mut recent).merged(), last, durable)?;
                bytes_read = if durable { 0 } else { bytes_read };
            }
            if read {
                standing.heed(&*recent.above(table.snapshot()?));
            }
            Ok(())
        });
        if let Err(error) = followed {
            if following.ends() {
                // As one that leads does when it ends in good order: its table has all that it has read.
                table.commit_marked(&recent.merged(), last, true)?;
            }
            return Err(error);
        }
        let acked = Acked { journal: of.journal, number: last.applied, crc: last.etcd.unwrap_or_default() };
        let mark = mark::place(&mark)
            .and_then(|file| MarkFile::create(Box::new(file), acked))
            .map_err(refused_mark)?;
        // What is there already are rounds as well: each that ends here removes a part of it, whoever has put it. Else nothing would be
        // removed where managers take over from each other, or begin anew, before they have put as many rounds themselves.
        let oldest = holder.oldest().unwrap_or(last.applied);
        let part = |k| oldest + last.applied.saturating_sub(oldest) * k / ROUNDS_KEPT as u64;
        let rounds = (1..=ROUNDS_KEPT as u64).map(part).collect();
        let state = State {
            holder,
            mark,
            recent,
            base: None,
            last,
            failed: None,
            disk_fails: false,
            bytes: bytes_read,
            packs: false,
            rounds,
        };
        let store = ReplicatedStore {
            table,
            etcd,
            place: format!("{}; its journal in {place}", path.display()),
            life,
            state: Mutex::new(state),
            following: following.clone(),
            packs: standing.packs,
            held: Mutex::default(),
        };
        store.look_at_level(&mut store.state.lock())?;
        // The claim: whoever finds it knows that this manager serves since.
        store.commit(&Changes::new())?;
        following.set_leads();
        Ok(store)
    }

    /// The table takes what is held in memory. Durably: a round ends, and what lies far enough behind is removed from etcd.
    fn settle(&self, state: &mut State, durable: bool) -> Result<(), StoreError> {
        // Before the commit, so that the pages it replaces can be used again.
        state.base = None;
        self.table.commit_marked(&state.recent.merged(), state.last, durable)?;
        state.base = Some(self.table.snapshot()?);
        state.recent = Recent::default();
        self.look_at_level(state)?;
        if durable {
            state.bytes = 0;
            state.rounds.push_back(state.last.applied);
            let held = self.held();
            let mut below = None;
            while state.rounds.len() > ROUNDS_KEPT
                && let Some(next) = state.rounds.pop_front_if(|next| held.is_none_or(|held| *next <= held))
            {
                below = Some(next);
            }
            if let Some(below) = below {
                self.etcd.trim(state.holder.leader(), below);
            }
        }
        Ok(())
    }

    /// Whether the table, as it was at its last commit or before, lets records be packed.
    fn look_at_level(&self, state: &mut State) -> Result<(), StoreError> {
        if let Some(packs) = self.packs.filter(|_| !state.packs) {
            state.packs = packs(&*self.state_of(state)?);
        }
        Ok(())
    }

    /// The record behind which records stay for a table that is being copied.
    fn held(&self) -> Option<u64> {
        let mut held = self.held.lock();
        held.take_if(|(_, heard)| heard.elapsed() > HELD_FOR || !self.etcd.upkeep().has_room());
        held.map(|(from, _)| from)
    }

    /// Ends the journal: the table has taken all, and nobody goes on with what is in etcd.
    pub fn end(&self) -> Result<(), StoreError> {
        let state = &mut *self.state.lock();
        self.settle(state, true)?;
        self.hold(state, Holder::end)
    }

    /// Has the holder do what `begin` begins, to its end. After a failure nothing is done any more.
    fn hold(&self, state: &mut State, begin: impl FnOnce(&mut Holder) -> Ask) -> Result<(), StoreError> {
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let ask = begin(&mut state.holder);
        let led = Some(self.following.lease() * LEASES_LED_MAX);
        let patience = Patience { silence: SILENCE_MAX, led };
        let outcome = run((&self.etcd, &self.following), &mut state.holder, ask, &patience, |_| Ok(()));
        outcome.inspect_err(|error| {
            state.failed = Some(error.clone());
            // It may have won the key anew before it read that another one has served meanwhile, which leads on without it.
            if self.following.is_deposed() {
                self.etcd.resign(state.holder.leader(), None);
            }
        })
    }

    /// For tests: it writes its mark there from now on.
    #[cfg(test)]
    pub(super) fn mark_on(&self, mark: MarkFile) {
        self.state.lock().mark = mark;
    }

    /// What was committed.
    fn state_of(&self, state: &State) -> Result<Snapshot, StoreError> {
        // None only before the first commit of the table, or after a failed one.
        let base = state.base.clone().map_or_else(|| self.table.snapshot(), Ok)?;
        Ok(state.recent.above(base))
    }
}

impl Drop for ReplicatedStore {
    fn drop(&mut self) {
        // A store that ends in good order needs little of its journal, and another manager need not wait for its lease.
        // Failing loses nothing but that.
        let state = &mut *self.state.lock();
        if !state.disk_fails {
            let _ = state.mark.flush();
            let _ = self.table.commit_marked(&state.recent.merged(), state.last, true);
        }
        self.etcd.resign(state.holder.leader(), self.following.heir());
    }
}

impl Store for ReplicatedStore {
    fn snapshot(&self) -> Result<Snapshot, StoreError> {
        self.state_of(&self.state.lock())
    }

    fn commit(&self, changes: &Changes) -> Result<(), StoreError> {
        let state = &mut *self.state.lock();
        let journal = state.last.journal;
        let number = state.holder.last() + 1;
        let records = part::split((journal, self.life), number, changes, state.packs)
            .map_err(|error| failed("commit to the journal of the", error))?;
        let mut crc = 0;
        state.bytes += bytes_of(changes);
        for record in records {
            crc = part::stored_crc(&record);
            self.hold(state, |holder| holder.append(record))?;
        }
        state.last = Mark { journal, applied: state.holder.last(), etcd: Some(crc) };
        let acked = Acked { journal, number: state.last.applied, crc };
        // Whatever fails from here on: a table that says that it has this one gets it.
        state.recent.push(changes.clone());
        let marked = state.mark.set(acked).map_err(|error| failed("write the mark of the", error));
        let kept = marked.and_then(|()| match (state.bytes, state.recent.len()) {
            (ROUND_BYTES.., _) => self.settle(state, true),
            (_, RECENT_MAX..) => self.settle(state, false),
            _ => Ok(()),
        });
        kept.inspect_err(|error| (state.failed, state.disk_fails) = (Some(error.clone()), true))
    }

    fn describe(&self) -> String {
        self.place.clone()
    }

    fn confirmed(&self) -> Option<Confirmed> {
        Some(self.etcd.confirmed())
    }

    fn following(&self) -> Option<Following> {
        Some(self.following.clone())
    }

    fn marked(&self) -> Result<Option<Marked>, StoreError> {
        let state = self.state.lock();
        Ok(Some(Marked { mark: state.last, life: self.life, snapshot: self.state_of(&state)? }))
    }

    fn copied(&self, first: Option<u64>) {
        let before = self.held();
        // Several may copy at a time: the first one's end is not known, and costs room only.
        let from = before.into_iter().chain(first).min();
        *self.held.lock() = from.map(|from| (from, Instant::now()));
    }

    fn tends(&self) -> Option<Duration> {
        Some(LOOK)
    }

    fn tend(&self) -> Result<(), StoreError> {
        // Whoever commits finds out as well.
        if let Some(mut state) = self.state.try_lock() {
            self.hold(&mut state, Holder::look)?;
        }
        self.etcd.look_after();
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.etcd.upkeep().is_full()
    }

    fn remarks(&self) -> Vec<Remark> {
        self.etcd.upkeep().remark().into_iter().collect()
    }

    fn end_waits(&self) {
        self.following.end();
    }

    fn damage(&self) -> Vec<u64> {
        self.table.damage()
    }

    fn scrub(&self, first: u64, count: u64) -> Result<Option<u64>, StoreError> {
        self.table.scrub(first, count)
    }
}
