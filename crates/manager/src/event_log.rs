//! The last things that happened in the cluster, for people. Bounded; starts anew with the manager.

use std::{collections::VecDeque, time::SystemTime};

use parking_lot::Mutex;
use wire::mgr::{ClusterEvent, Timestamp};

/// Most events kept; the oldest go first.
const EVENTS_KEPT: usize = 1000;

/// See the module.
#[derive(Debug, Default)]
pub struct EventLog(Mutex<VecDeque<ClusterEvent>>);

impl EventLog {
    /// Something happened now.
    pub fn add(&self, text: String) {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let at = Timestamp { secs: since.as_secs() as i64, nanos: since.subsec_nanos() };
        let mut log = self.0.lock();
        let number = log.back().map_or(1, |last| last.number + 1);
        log.push_back(ClusterEvent { number, at, text });
        if log.len() > EVENTS_KEPT {
            log.pop_front();
        }
    }

    /// What happened after event `number`, oldest first.
    pub fn after(&self, number: u64) -> Vec<ClusterEvent> {
        let log = self.0.lock();
        log.iter().filter(|event| event.number > number).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_and_numbers_stay() {
        let log = EventLog::default();
        (0..EVENTS_KEPT + 5).for_each(|i| log.add(format!("event {i}")));
        let all = log.after(0);
        assert_eq!((all.len(), all[0].number, all[0].text.as_str()), (EVENTS_KEPT, 6, "event 5"));
        let last = log.after(EVENTS_KEPT as u64 + 4);
        assert_eq!(last.len(), 1);
        assert_eq!(last[0].number, EVENTS_KEPT as u64 + 5);
    }
}
