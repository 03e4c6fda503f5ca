//! How long a session that renews its lease may take to give up what others want, before it is fenced for it.
//!
//! What is done under a token ends by the client's own deadline, and must have had the time for that. What needs a pdisk of which nobody
//! else has the strips waits as long as nobody serves it: a reader can but wait or fail, and what is dirty cannot be stored. So
//! while such a pdisk is out of reach the time stands; it begins anew when that is over. Not for ever: a session that gives up nothing for
//! another reason would hold everybody else up as long as one broken machine is not taken out.

use std::time::Duration;

use wire::map::{PdiskEntry, PdiskState};

use super::Cluster;

/// What a session has beyond the time that one of its operations may take: what ended last is to be told.
const MARGIN: Duration = Duration::from_secs(30);
/// It is never less, however short the deadline of operations: much may be dirty.
const DEADLINE_MIN: Duration = Duration::from_secs(60);
/// So many times as long where pdisks are out of reach.
const OUT_OF_REACH: u32 = 10;

impl Cluster {
    /// Mounts made from now on end an operation after this time without progress (`operationDeadline`).
    pub fn set_operation_deadline(&mut self, deadline: Duration) {
        self.operation_deadline = deadline;
    }

    /// Notes whether somebody may be waiting for a pdisk that is out of reach. Those that others can stand in for are `missing` by now (and
    /// those of pools without redundancy, beside other pools), and nobody waits for one that has failed: its server answers.
    pub(super) fn note_out_of_reach(&mut self, now: Duration) {
        let waited_for = |id| self.disks.get(&id).is_none_or(|disk| !disk.failed);
        let away = self.map.pdisks.iter().filter(|pdisk| self.is_away(pdisk.id, now) && waited_for(pdisk.id));
        let alone = |pdisk: &PdiskEntry| match pdisk.state {
            PdiskState::Ok => true,
            PdiskState::Missing => !self.can_lose(pdisk.id, true),
            _ => false,
        };
        if away.into_iter().any(alone) {
            self.out_of_reach = Some(now);
        }
    }

    /// What was wanted since then or before is overdue. None: nothing can be.
    pub(super) fn overdue_since(&self, now: Duration) -> Option<Duration> {
        // A server is known to be gone when its lease has run out.
        let deadline = (self.operation_deadline + MARGIN).max(DEADLINE_MIN).max(self.lease * 2);
        let stands = self.out_of_reach.is_some_and(|at| now < at + deadline);
        now.checked_sub(if stands { deadline * OUT_OF_REACH } else { deadline })
    }
}

#[cfg(test)]
mod tests {
    use base::{Grant, InodeNo, SessionId};
    use wire::token::{Need, Token, TokenMode};

    use super::*;
    use crate::cluster::{Event, stage::Stage};

    /// What these sessions wait for, and the one that does not give it up.
    fn recalled() -> (Stage, SessionId, [SessionId; 2]) {
        let held = Token::new(InodeNo(7), TokenMode::Read, Grant(1));
        let (mut stage, first, second) = Stage::two(vec![held]);
        stage.acquire(second, 7, Need::Write);
        (stage, first, [first, second])
    }

    /// Seconds until the session is ended, of those that pass: all sessions renew, and all servers but these; somebody goes on wanting
    /// what it holds.
    fn pass(
        stage: &mut Stage,
        of: SessionId,
        all: [SessionId; 2],
        dead: &[u32],
        seconds: u64,
    ) -> Option<u64> {
        (1..=seconds).find(|second| {
            all.iter().for_each(|&id| stage.renew_client(id));
            stage.pass_without(dead, 1);
            if second % 50 == 0 {
                stage.acquire(all[1], 7, Need::Write);
            }
            !stage.cluster.clients.contains_key(&of)
        })
    }

    #[test]
    fn who_gives_nothing_up_is_ended_when_its_operations_have_had_their_time() {
        let (mut stage, first, all) = recalled();
        assert_eq!(pass(&mut stage, first, all, &[], 200), Some(90));
        let (mut stage, first, all) = recalled();
        stage.tell(Event::SetOperationDeadline(Duration::from_secs(5)));
        assert_eq!(pass(&mut stage, first, all, &[], 200), Some(60));
        let (mut stage, first, all) = recalled();
        stage.tell(Event::SetOperationDeadline(Duration::from_secs(600)));
        assert_eq!(pass(&mut stage, first, all, &[], 800), Some(630));
    }

    /// Readers wait for servers that are away, and the token with them.
    #[test]
    fn nobody_is_ended_for_what_waits_for_servers_that_are_away() {
        let (mut stage, first, all) = recalled();
        assert_eq!(pass(&mut stage, first, all, &[1, 2, 3, 4], 500), None);
        (1..=4).for_each(|node| stage.register(node, 2, 0));
        assert_eq!(pass(&mut stage, first, all, &[], 85), None, "they have all of their time again");
        let left = pass(&mut stage, first, all, &[], 100);
        assert!(left.is_some_and(|seconds| seconds <= 10), "{left:?}");
    }

    #[test]
    fn servers_that_stay_away_put_the_end_off_not_for_ever() {
        let (mut stage, first, all) = recalled();
        assert_eq!(pass(&mut stage, first, all, &[1, 2, 3, 4], 1000), Some(900));
    }

    /// Others have what these hold: nobody waits for them.
    #[test]
    fn servers_that_others_stand_in_for_put_nothing_off() {
        let (mut stage, first, all) = recalled();
        let ended = pass(&mut stage, first, all, &[1, 2], 200);
        assert_eq!(ended, Some(90));
    }
}
