//! What waits for one queue, a lane for each pdisk. Each has its share of the queue's depth and no more: a disk that does
//! not answer holds that, and the others go on. Lanes take turns.

use std::collections::VecDeque;

pub(super) struct Lanes<T> {
    /// Whose turn it is first.
    lanes: VecDeque<Lane<T>>,
}

struct Lane<T> {
    of: u64,
    list: VecDeque<T>,
    active: usize,
}

impl<T> Default for Lanes<T> {
    fn default() -> Lanes<T> {
        Lanes { lanes: VecDeque::new() }
    }
}

impl<T> Lanes<T> {
    pub fn push(&mut self, of: u64, job: T) {
        match self.lanes.iter_mut().find(|lane| lane.of == of) {
            Some(lane) => lane.list.push_back(job),
            None => self.lanes.push_back(Lane { of, list: VecDeque::from([job]), active: 0 }),
        }
    }

    /// The next that may begin where each lane has `share`. It is active until [`Lanes::end`].
    pub fn next(&mut self, share: usize) -> Option<T> {
        let ready = |lane: &Lane<T>| lane.active < share && !lane.list.is_empty();
        let at = self.lanes.iter().position(ready)?;
        let job = self.lanes[at].list.pop_front();
        self.lanes[at].active += 1;
        self.lanes.rotate_left(at + 1);
        job
    }

    /// One of a lane is no longer active.
    pub fn end(&mut self, of: u64) {
        let Some(at) = self.lanes.iter().position(|lane| lane.of == of) else { return };
        let lane = &mut self.lanes[at];
        lane.active = lane.active.saturating_sub(1);
        if lane.active == 0 && lane.list.is_empty() {
            self.lanes.remove(at);
        }
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.lanes.iter().map(|lane| lane.list.len()).sum()
    }

    /// How many are active.
    pub fn active(&self) -> usize {
        self.lanes.iter().map(|lane| lane.active).sum()
    }
}

/// The share of each of so many pdisks.
pub(super) fn share(depth: usize, pdisks: usize) -> usize {
    (depth / pdisks.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::Write,
        os::{fd::OwnedFd, unix::fs::FileExt},
        path::Path,
        sync::{Arc, mpsc},
        time::Duration,
    };

    use base::PdiskId;

    use super::{
        super::{Engine, Errors, IoFile, IoNode, Op, Queues, Request, split},
        *,
    };
    use crate::options::{EngineChoice, IoConfig};

    #[test]
    fn lanes_take_turns_and_one_that_is_full_holds_up_no_other() {
        let mut lanes = Lanes::default();
        (0..4).for_each(|n| lanes.push(1, (1, n)));
        (0..3).for_each(|n| lanes.push(2, (2, n)));
        let begun: Vec<_> = std::iter::from_fn(|| lanes.next(2)).collect();
        assert_eq!(begun, [(1, 0), (2, 0), (1, 1), (2, 1)]);
        assert_eq!((lanes.active(), lanes.waiting()), (4, 3));
        // The first does not answer.
        lanes.end(2);
        assert_eq!((lanes.next(2), lanes.next(2)), (Some((2, 2)), None));
        lanes.push(3, (3, 0));
        assert_eq!((lanes.next(2), lanes.next(2)), (Some((3, 0)), None));
        lanes.end(2);
        lanes.end(2);
        lanes.push(2, (2, 3));
        assert_eq!(lanes.next(2), Some((2, 3)));
        // It does.
        lanes.end(1);
        lanes.end(1);
        assert_eq!((lanes.next(2), lanes.next(2), lanes.next(2)), (Some((1, 2)), Some((1, 3)), None));
        [1, 1, 2, 3].into_iter().for_each(|of| lanes.end(of));
        assert_eq!((lanes.active(), lanes.waiting(), lanes.lanes.len()), (0, 0, 0));
        assert_eq!([share(64, 0), share(64, 1), share(64, 3), share(2, 5)], [64, 64, 21, 1]);
    }

    fn submit_read(
        node: &IoNode,
        queue: usize,
        file: &Arc<IoFile>,
        finish: impl FnOnce(Errors) + Send + 'static,
    ) {
        let window = split(node.buffer(4096), std::iter::once(0..4096)).1.remove(0);
        let request = Request { file: Arc::clone(file), op: Op::Read(window), offset: 0, tag: 0 };
        node.submit_queues(vec![(queue, request)], finish);
    }

    /// A read of 4 KiB; whether it was done.
    fn read(node: &IoNode, queue: usize, file: &Arc<IoFile>) -> mpsc::Receiver<bool> {
        let (tx, rx) = mpsc::channel();
        submit_read(node, queue, file, move |errors| {
            // Who asked has gone where the test has failed.
            let _ = tx.send(errors.is_empty());
        });
        rx
    }

    /// A pdisk of one file, with its share of one queue.
    fn pdisk(node: &IoNode, file: File) -> (Arc<IoFile>, Queues) {
        let queues = node.assign(1, Path::new("/"));
        (Arc::new(node.file(node.lane(PdiskId(1)), file, Path::new("data"))), queues)
    }

    fn readable() -> File {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 4096], 0).unwrap();
        file
    }

    /// Reads of a pipe that nobody writes to stand for those of a disk that does not answer.
    #[test]
    fn a_disk_that_does_not_answer_leaves_room_in_its_ring() {
        let config = IoConfig { num_io_queues: 1, queue_depth: 4, ..IoConfig::default() };
        let node = IoNode::start(config).unwrap();
        if node.engine() != Engine::IoUring {
            return; // psync cannot read pipes
        }
        let (end, mut start) = std::io::pipe().unwrap();
        let (hung, hung_queues) = pdisk(&node, File::from(OwnedFd::from(end)));
        let (well, well_queues) = pdisk(&node, readable());
        let hanging: Vec<_> = (0..20).map(|_| read(&node, hung_queues[0], &hung)).collect();
        for _ in 0..10 {
            let done = read(&node, well_queues[0], &well).recv_timeout(Duration::from_secs(60));
            assert_eq!(done, Ok(true), "it waits for the other disk");
        }
        assert!(hanging.iter().all(|read| read.try_recv() == Err(mpsc::TryRecvError::Empty)));
        // It answers.
        start.write_all(&[1; 20 * 4096]).unwrap();
        for read in hanging {
            assert_eq!(read.recv_timeout(Duration::from_secs(60)), Ok(true));
        }
    }

    /// Pdisks whose requests do not end: the answers of their reads are never taken, which keeps a thread each.
    #[test]
    fn disks_that_do_not_answer_leave_threads_to_the_others() {
        let config = IoConfig { num_io_queues: 1, engine: EngineChoice::Psync, ..IoConfig::default() };
        let node = IoNode::start(config).unwrap();
        let (_answer, answers) = mpsc::channel::<()>();
        let answers = Arc::new(std::sync::Mutex::new(answers));
        let (begun, begins) = mpsc::channel();
        let hang = |(file, queues): &(Arc<IoFile>, Queues)| {
            let (answers, begun) = (Arc::clone(&answers), begun.clone());
            submit_read(&node, queues[0], file, move |_| {
                let _ = begun.send(());
                // Ends when the test does.
                let _ = answers.lock().map(|answers| answers.recv());
            });
        };
        let begin = || begins.recv_timeout(Duration::from_secs(60)).expect("nobody begins it");
        let (well, well_queues) = pdisk(&node, readable());
        // Alone with the one that is well a disk may take half of the threads; with more each takes its share.
        let (mut hung, mut at_work) = (Vec::new(), 1);
        for _ in 0..40 {
            hung.push(pdisk(&node, readable()));
            let share = share(8, hung.len() + 1);
            (0..2 * share).for_each(|_| hang(&hung[hung.len() - 1]));
            (0..share).for_each(|_| begin());
            at_work += share as u64;
            let done = read(&node, well_queues[0], &well).recv_timeout(Duration::from_secs(60));
            assert_eq!(done, Ok(true), "it waits for {} other disks", hung.len());
        }
        assert!(begins.try_recv().is_err(), "more than its share");
        assert!(node.queue_stats()[0].deepest <= at_work, "the shares are the bound");
    }
}
