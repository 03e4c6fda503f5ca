//! Who holds the journal, and what is done after which answer. Without I/O: it says what to ask of etcd, and is told what was
//! heard.
//!
//! Leadership is a key that only one can make; its create revision is the fence. Who has made it reads what the table lacks,
//! then claims the journal with a record of its own, and only then serves. So nobody's records can follow those that were
//! read, and who finds its own record last may make the key anew if it was lost: nobody else has served meanwhile.
//! An answer that did not come decides nothing: the same is asked again, and what stands there says what it was.
//! Whatever does not fit stops the manager: it answers nothing more, and the next one reads what counts.

use std::sync::Arc;

use super::part::stored_crc;

/// A revision of etcd.
pub type Revision = i64;

/// A record in etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its number.
    pub number: u64,
    /// Its create revision.
    pub created: Revision,
    /// What stands there.
    pub bytes: Vec<u8>,
}

/// The journal's beginning, as etcd has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// Which journal it is.
    pub journal: u64,
    /// Its records begin behind this number.
    pub base: u64,
    /// It has ended with this number: a table has taken all, and goes on elsewhere.
    pub ended: Option<u64>,
    /// Create revision of the key.
    pub created: Revision,
}

/// What is asked of etcd. Each is one transaction; it may be done twice, and long after it was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Makes the leader's key if there is none.
    Win,
    /// Removes the leader's key if it was made at this revision.
    Depose {
        /// The revision.
        leader: Revision,
    },
    /// Makes the start if there is none, under the leader's key.
    Begin {
        /// The leader's key.
        leader: Revision,
        /// Its identity.
        journal: u64,
        /// Number behind which records begin.
        base: u64,
    },
    /// Writes into the start that the journal has ended, under the leader's key, if the last record is the one that is known.
    End {
        /// The leader's key.
        leader: Revision,
        /// Its identity.
        journal: u64,
        /// Number behind which records began.
        base: u64,
        /// Number of the last record.
        last: u64,
        /// Its create revision, or the start's if there is none.
        before: Revision,
    },
    /// The leader's key, the start, and records from a number on.
    Read {
        /// The number.
        from: u64,
    },
    /// Puts a record if the leader's key and the record before (the start if it is the first) are as they were, and
    /// nothing is there.
    Append {
        /// The leader's key.
        leader: Revision,
        /// Number of the record before.
        last: u64,
        /// There is none before: it is the journal's first, and the start counts.
        first: bool,
        /// Create revision of the record before, or of the start.
        before: Revision,
        /// The record.
        bytes: Arc<[u8]>,
    },
}

/// What was heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// To `Win`: the key that is there now.
    Leader {
        /// Its create revision.
        created: Revision,
        /// Whose it is: a manager's directory.
        member: u64,
        /// And which life of it.
        life: u64,
        /// The same for people.
        who: String,
    },
    /// To `Depose`, `Begin` and `End`: it was done, or there was nothing to do.
    Done,
    /// To `Read`.
    Records {
        /// Create revision of the leader's key.
        leader: Option<Revision>,
        /// The start.
        start: Option<Start>,
        /// Number of the first record there is.
        first: Option<u64>,
        /// Records from the number on, rising.
        records: Vec<Entry>,
        /// More stand behind them.
        more: bool,
    },
    /// To `Append`: it was put at this revision.
    Appended(Revision),
    /// To `Append`: a guard did not hold.
    Refused {
        /// Create revision of the leader's key.
        leader: Option<Revision>,
        /// What stands under the record's number.
        there: Option<Entry>,
    },
    /// Nothing: it may have been done, may be done later, or never.
    Unknown,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// This at once.
    Ask(Ask),
    /// This after a pause: etcd did not answer, or another leads; for people, why.
    Again(Ask, Waits),
    /// What was to be done is done.
    Done,
    /// Nothing is answered any more.
    Stop(Stop),
}

/// Why it is asked again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waits {
    /// No answer.
    Silent,
    /// Another manager leads.
    Led(String),
}

/// Why a manager stops, for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// Somebody else has written.
    #[error(
        "another manager has taken over: record {0} in etcd is not this one's; what was not answered is not known here"
    )]
    TakenOver(u64),
    /// The place is another store's.
    #[error(
        "the place in etcd holds the journal of another store: name another place, or remove what is there (`etcdctl del --prefix`) \
         if no cluster needs it"
    )]
    Foreign,
    /// It was ended.
    #[error(
        "the journal in etcd ended with record {0}, when the store's journal went into a file beside its table (`ropewalk manager \
         migrate --to-file`): what follows stands only there. On that machine the same command again finishes what was not told; a \
         manager on another one is of no use any more"
    )]
    Ended(u64),
    /// There is nothing.
    #[error(
        "the place in etcd is empty, and this store has a journal there: etcd was made anew, or it is another one"
    )]
    Empty,
    /// Records are missing that the table has, or that were acknowledged.
    #[error("etcd's records end with {found}, and {known} is known here: it was restored from an older copy")]
    Older {
        /// The last it has.
        found: u64,
        /// The last known.
        known: u64,
    },
    /// Records are missing that the table does not have.
    #[error(
        "the table has all up to {applied}, and etcd's records begin with {first}: it is too far behind; bring a newer copy"
    )]
    Behind {
        /// The last applied.
        applied: u64,
        /// The first there.
        first: u64,
    },
    /// A record is not the one that the table has.
    #[error(
        "record {0} in etcd is not the one that the table holds: etcd was restored from an older copy and went on without it"
    )]
    Other(u64),
    /// Records are missing in the middle.
    #[error("record {0} is missing in etcd, and later ones are there")]
    Gap(u64),
}

/// Rules of this module. Tests take one out, and must find a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// An answer that did not come is no success.
    SilenceIsNoSuccess,
    /// What is found under a record's number counts only if it is that record.
    OnlyTheOwnRecord,
    /// Records are read after the leader's key was made.
    ReadBehindTheFence,
    /// The first record read is compared with what the table holds.
    SameRecordAsTheTables,
    /// The last record that was acknowledged is compared with what was acknowledged.
    SameRecordAsAcknowledged,
    /// Who leads again goes on only if nobody wrote meanwhile.
    NobodyWroteMeanwhile,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    Idle,
    Winning,
    Following,
    Deposing,
    Beginning,
    Reading,
    Appending,
    Ending,
}

/// What a manager knows of its journal when it opens it.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    /// Which journal.
    pub journal: u64,
    /// The last record that the table holds.
    pub applied: u64,
    /// The CRC in it; none if there is no such record, because the journal begins behind it.
    pub crc: Option<u32>,
    /// The last record that was acknowledged, as far as it is known here.
    pub acked: u64,
    /// The CRC in it, if it is known.
    pub acked_crc: Option<u32>,
    /// The journal was never seen in etcd: it may be begun.
    pub new: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Holder {
    origin: Origin,
    member: u64,
    life: u64,
    doing: Doing,
    /// The leader's key as this manager made it.
    leader: Revision,
    /// The last record.
    last: u64,
    /// Its create revision, or the start's; none until it was read.
    before: Option<Revision>,
    /// There is no such record: the journal begins behind it.
    first: bool,
    /// What is to be put behind it.
    pending: Option<Arc<[u8]>>,
    /// Records were read to the end once; from then on only its own follow.
    whole: bool,
    /// It is to end; where it began.
    ends: bool,
    base: u64,
    /// The first record there was when it was read last.
    oldest: Option<u64>,
    found: Vec<Entry>,
    /// Taken out, by tests only.
    without: Option<Rule>,
}

impl Holder {
    /// Who opens the journal: a manager's directory (`member`) in one of its lives. Nothing is done yet.
    pub fn new(origin: Origin, member: u64, life: u64) -> Holder {
        Holder {
            origin,
            member,
            life,
            doing: Doing::Idle,
            leader: 0,
            last: origin.applied,
            before: None,
            first: false,
            pending: None,
            whole: false,
            ends: false,
            base: 0,
            oldest: None,
            found: Vec::new(),
            without: None,
        }
    }

    /// The same with a rule taken out.
    #[cfg(test)]
    pub fn without(mut self, rule: Option<Rule>) -> Holder {
        self.without = rule;
        self
    }

    fn keeps(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    /// The last record of the journal that is known.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The first record there was when it was read last; none: there was none.
    pub fn oldest(&self) -> Option<u64> {
        self.oldest
    }

    /// The leader's key as it was made.
    pub fn leader(&self) -> Revision {
        self.leader
    }

    /// Records that were read since, in order, each once: for the table.
    pub fn take_found(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.found)
    }

    /// Begins to win and to read. Done: the table can be brought up to date, and the journal be claimed by the first record.
    pub fn open(&mut self) -> Ask {
        if self.keeps(Rule::ReadBehindTheFence) { self.win() } else { self.read() }
    }

    /// Begins to put a record under the number `last() + 1`. Done: it is durable. One at a time.
    pub fn append(&mut self, bytes: Vec<u8>) -> Ask {
        assert!(self.doing == Doing::Idle && self.whole, "a record while {:?}", self.doing);
        self.pending = Some(bytes.into());
        self.put()
    }

    /// Begins to look whether it still leads; if not, it tries to lead again.
    pub fn look(&mut self) -> Ask {
        assert!(self.doing == Doing::Idle && self.whole, "a look while {:?}", self.doing);
        self.read()
    }

    /// Begins to end the journal. Done: nobody goes on with it, and `last()` is its last record.
    pub fn end(&mut self) -> Ask {
        assert!(self.doing == Doing::Idle && self.whole, "an end while {:?}", self.doing);
        self.ends = true;
        self.read()
    }

    fn win(&mut self) -> Ask {
        self.doing = Doing::Winning;
        Ask::Win
    }

    fn read(&mut self) -> Ask {
        self.doing = Doing::Reading;
        Ask::Read { from: self.last }
    }

    fn put(&mut self) -> Ask {
        match (&self.pending, self.before) {
            (Some(bytes), Some(before)) => {
                self.doing = Doing::Appending;
                Ask::Append {
                    leader: self.leader,
                    last: self.last,
                    first: self.first,
                    before,
                    bytes: bytes.clone(),
                }
            }
            _ => self.read(),
        }
    }

    fn stop(&mut self, why: Stop) -> Next {
        self.doing = Doing::Idle;
        Next::Stop(why)
    }

    fn done(&mut self) -> Next {
        self.doing = Doing::Idle;
        Next::Done
    }

    /// The answer to what was asked last.
    pub fn heard(&mut self, asked: Ask, heard: Heard) -> Next {
        match (self.doing, heard) {
            (Doing::Appending, Heard::Unknown) if !self.keeps(Rule::SilenceIsNoSuccess) => {
                self.pending = None;
                self.done()
            }
            (_, Heard::Unknown) => Next::Again(asked, Waits::Silent),
            (Doing::Winning, Heard::Leader { created, member, life, who }) => {
                if (member, life) == (self.member, self.life) {
                    self.leader = created;
                    let read = self.keeps(Rule::ReadBehindTheFence);
                    return if read { Next::Ask(self.read()) } else { self.go_on() };
                }
                if member == self.member {
                    // An earlier life of this manager, whose files this one has open: it is over.
                    self.doing = Doing::Deposing;
                    return Next::Ask(Ask::Depose { leader: created });
                }
                if self.whole && self.keeps(Rule::ReadBehindTheFence) {
                    return self.stop(Stop::TakenOver(self.last + 1));
                }
                self.doing = Doing::Following;
                Next::Again(Ask::Read { from: self.last }, Waits::Led(who))
            }
            (Doing::Deposing, _) => Next::Ask(self.win()),
            (Doing::Beginning | Doing::Ending, _) => Next::Ask(self.read()),
            (Doing::Following, Heard::Records { leader, start, first, records, more }) => {
                // What another has put stays there, whoever leads next. The start may be about to be made.
                if start.is_some()
                    && let Some(stopped) = self.take(start, first, records)
                {
                    return stopped;
                }
                match leader {
                    _ if more => Next::Ask(Ask::Read { from: self.last }),
                    Some(_) => Next::Again(Ask::Read { from: self.last }, Waits::Led(String::new())),
                    None => Next::Ask(self.win()),
                }
            }
            (Doing::Reading, Heard::Records { leader, start, first, records, more }) => {
                self.records(leader, start, first, records, more)
            }
            (Doing::Appending, Heard::Appended(created)) => self.put_at(created),
            (Doing::Appending, Heard::Refused { leader, there }) => self.refused(leader, there),
            (doing, heard) => unreachable!("{heard:?} while {doing:?}"),
        }
    }

    /// The record stands there.
    fn put_at(&mut self, created: Revision) -> Next {
        self.pending = None;
        (self.last, self.before, self.first) = (self.last + 1, Some(created), false);
        self.done()
    }

    fn refused(&mut self, leader: Option<Revision>, there: Option<Entry>) -> Next {
        if leader != Some(self.leader) {
            return Next::Ask(self.win());
        }
        match there {
            Some(there) if self.is_pending(&there) => self.put_at(there.created),
            Some(there) => self.stop(Stop::TakenOver(there.number)),
            None => self.stop(Stop::Older { found: self.last.saturating_sub(1), known: self.last }),
        }
    }

    /// Whether a record under the next number is the one that was to be put.
    fn is_pending(&self, entry: &Entry) -> bool {
        !self.keeps(Rule::OnlyTheOwnRecord)
            || self.pending.as_ref().is_some_and(|bytes| **bytes == *entry.bytes)
    }

    /// Whether the record that is found first is the one that the table has. (Later it is known by its create revision.)
    fn is_applied(&self, entry: &Entry) -> bool {
        !self.keeps(Rule::SameRecordAsTheTables)
            || self.before.is_some()
            || self.origin.crc.is_none_or(|crc| crc == stored_crc(&entry.bytes))
    }

    /// Whether a record may stand where the last acknowledged one does: what was acknowledged behind the table's last record, or
    /// was in a copied table already, may have been lost with an older copy of etcd, which went on without it.
    fn is_acked(&self, entry: &Entry) -> bool {
        entry.number != self.origin.acked
            || !self.keeps(Rule::SameRecordAsAcknowledged)
            || self.origin.acked_crc.is_none_or(|crc| crc == stored_crc(&entry.bytes))
    }

    fn records(
        &mut self,
        leader: Option<Revision>,
        start: Option<Start>,
        first: Option<u64>,
        records: Vec<Entry>,
        more: bool,
    ) -> Next {
        let unfenced = !self.keeps(Rule::ReadBehindTheFence);
        if leader != Some(self.leader) && !unfenced {
            return Next::Ask(self.win());
        }
        if start.is_none() && self.origin.new && self.before.is_none() {
            self.doing = Doing::Beginning;
            let Origin { journal, applied, .. } = self.origin;
            return Next::Ask(Ask::Begin { leader: self.leader, journal, base: applied });
        }
        if let Some(stopped) = self.take(start, first, records) {
            return stopped;
        }
        if more {
            return Next::Ask(self.read());
        }
        if !self.whole && self.last < self.origin.acked {
            return self.stop(Stop::Older { found: self.last, known: self.origin.acked });
        }
        self.whole = true;
        if unfenced { Next::Ask(self.win()) } else { self.go_on() }
    }

    /// Takes records that were read, if they follow those that are known; else how it stops.
    fn take(&mut self, start: Option<Start>, first: Option<u64>, records: Vec<Entry>) -> Option<Next> {
        let Some(start) = start else { return Some(self.stop(Stop::Empty)) };
        if start.journal != self.origin.journal {
            return Some(self.stop(Stop::Foreign));
        }
        if let Some(last) = start.ended {
            let done = self.ends && last == self.last;
            return Some(if done { self.done() } else { self.stop(Stop::Ended(last)) });
        }
        self.base = start.base;
        self.oldest = first;
        let mut records = records.into_iter().peekable();
        // The last one known must be there, and be the same.
        let (known, first) = match records.next_if(|entry| entry.number == self.last) {
            Some(entry) if self.is_applied(&entry) => (entry.created, false),
            Some(_) => return Some(self.stop(Stop::Other(self.last))),
            None if start.base == self.last && first.is_none_or(|first| first == start.base + 1) => {
                (start.created, true)
            }
            None => {
                return Some(match first.filter(|first| *first > self.last) {
                    Some(first) => self.stop(Stop::Behind { applied: self.last, first }),
                    None => self.stop(Stop::Older { found: self.last.saturating_sub(1), known: self.last }),
                });
            }
        };
        if self.before.is_some_and(|before| before != known) {
            return Some(self.stop(Stop::TakenOver(self.last)));
        }
        (self.before, self.first) = (Some(known), first);
        for entry in records {
            if entry.number != self.last + 1 {
                return Some(self.stop(Stop::Gap(self.last + 1)));
            }
            if !self.is_acked(&entry) {
                return Some(self.stop(Stop::Other(entry.number)));
            }
            if self.whole && self.keeps(Rule::NobodyWroteMeanwhile) && !self.is_pending(&entry) {
                return Some(self.stop(Stop::TakenOver(entry.number)));
            }
            (self.last, self.before, self.first) = (entry.number, Some(entry.created), false);
            if self.whole {
                self.pending = None;
            } else {
                self.found.push(entry);
            }
        }
        None
    }

    /// It leads, and knows all records.
    fn go_on(&mut self) -> Next {
        match (self.ends, self.before) {
            (true, Some(before)) => {
                self.doing = Doing::Ending;
                let (journal, base, last) = (self.origin.journal, self.base, self.last);
                Next::Ask(Ask::End { leader: self.leader, journal, base, last, before })
            }
            _ if self.pending.is_some() => Next::Ask(self.put()),
            _ => self.done(),
        }
    }
}
