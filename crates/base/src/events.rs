//! Events: what an administrator must hear of, each once, with its time. A pdisk that failed, a node that
//! runs with fewer queues than it was told to. Counters say how often; events say what and when.
//! Bounded: a process keeps the newest [`EVENTS_MAX`]; numbers go on, so that a reader sees what it missed.
//! No I/O: who raises an event also logs it, others ask for them.

use std::{collections::VecDeque, sync::LazyLock, time::SystemTime};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Events a process keeps; the oldest go.
pub const EVENTS_MAX: usize = 1024;

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Good to know.
    Info,
    /// Works, but not as told.
    Warning,
    /// Something no longer works.
    Error,
}

/// One event.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Counts the events of this process, from 1.
    pub number: u64,
    /// Microseconds since 1970.
    pub at_us: u64,
    /// How bad it is.
    pub severity: Severity,
    /// Its kind, `part_what` (`pdisk_failed`): the same for all events of the kind.
    pub name: String,
    /// What it is about (`pdisk7`).
    pub subject: String,
    /// What happened, and what to do.
    pub text: String,
}

/// Events of one process, the newest ones.
#[derive(Default)]
pub struct Events(Mutex<(u64, VecDeque<Event>)>);

impl Events {
    /// Adds an event; gives its number.
    pub fn raise(&self, severity: Severity, name: &str, subject: &str, text: &str) -> u64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut held = self.0.lock();
        let (last, list) = &mut *held;
        *last += 1;
        if list.len() == EVENTS_MAX {
            list.pop_front();
        }
        list.push_back(Event {
            number: *last,
            at_us: since.as_micros() as u64,
            severity,
            name: name.to_owned(),
            subject: subject.to_owned(),
            text: text.to_owned(),
        });
        *last
    }

    /// The events kept that are newer than number `after` (0: all), oldest first.
    pub fn after(&self, after: u64) -> Vec<Event> {
        let held = self.0.lock();
        held.1.iter().filter(|e| e.number > after).cloned().collect()
    }
}

static EVENTS: LazyLock<Events> = LazyLock::new(Events::default);

/// The events of this process.
pub fn events() -> &'static Events {
    &EVENTS
}

/// Adds an event to those of this process.
pub fn raise(severity: Severity, name: &str, subject: &str, text: &str) -> u64 {
    EVENTS.raise(severity, name, subject, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept_and_numbers_go_on() {
        let events = Events::default();
        for i in 0..EVENTS_MAX + 3 {
            events.raise(Severity::Warning, "pdisk_test", "pdisk7", &i.to_string());
        }
        let kept = events.after(0);
        assert_eq!((kept.len(), kept[0].number, kept[0].text.as_str()), (EVENTS_MAX, 4, "3"));
        let last = events.after(EVENTS_MAX as u64 + 2);
        assert_eq!((last.len(), last[0].number), (1, EVENTS_MAX as u64 + 3));
        assert!(events.after(EVENTS_MAX as u64 + 3).is_empty() && last[0].at_us > 1_700_000_000_000_000);
    }
}
