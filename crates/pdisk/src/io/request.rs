//! Requests, and the batches they come in. A request owns its buffer and its file from submission to completion; who waits
//! for it may go away. The last completion of a batch runs its finish function, exactly once.

use std::{
    io,
    os::unix::fs::FileExt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use bytes::Bytes;
use parking_lot::Mutex;

use super::{file::IoFile, window::Window};

/// What to do with the file.
pub(crate) enum Op {
    Read(Window),
    Write(Bytes),
    /// fdatasync.
    Flush,
}

impl Op {
    /// Bytes that it moves.
    pub fn len(&self) -> usize {
        match self {
            Op::Read(window) => window.len(),
            Op::Write(bytes) => bytes.len(),
            Op::Flush => 0,
        }
    }
}

/// One request of a batch.
pub(crate) struct Request {
    pub file: Arc<IoFile>,
    pub op: Op,
    pub offset: u64,
    /// Names it in the batch's list of errors.
    pub tag: u32,
}

impl Request {
    /// Does it here, and waits for it.
    pub fn perform(&mut self) -> io::Result<()> {
        let (file, offset) = (&self.file.file, self.offset);
        match &mut self.op {
            Op::Read(window) => file.read_exact_at(window.as_mut(), offset),
            Op::Write(bytes) => file.write_all_at(bytes, offset),
            Op::Flush => file.sync_data(),
        }
    }
}

/// Requests of a batch that failed: tag and error.
pub(crate) type Errors = Vec<(u32, io::Error)>;
type Finish = Box<dyn FnOnce(Errors) + Send>;

pub(super) struct Batch {
    /// When its requests were put into their queues.
    pub begun: Instant,
    left: AtomicUsize,
    end: Mutex<(Errors, Option<Finish>)>,
}

impl Batch {
    pub fn new(requests: usize, finish: impl FnOnce(Errors) + Send + 'static) -> Arc<Batch> {
        let end = Mutex::new((Vec::new(), Some(Box::new(finish) as Finish)));
        Arc::new(Batch { begun: Instant::now(), left: AtomicUsize::new(requests), end })
    }

    fn complete(&self, tag: u32, result: io::Result<()>) {
        if let Err(e) = result {
            self.end.lock().0.push((tag, e));
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let (errors, finish) = {
                let mut end = self.end.lock();
                (std::mem::take(&mut end.0), end.1.take())
            };
            if let Some(finish) = finish {
                finish(errors);
            }
        }
    }
}

/// A request on its way, with the batch it belongs to.
pub(super) struct Job {
    pub request: Request,
    pub batch: Arc<Batch>,
}

impl Job {
    pub fn lane(&self) -> u64 {
        self.request.file.lane
    }

    /// Gives the buffer up first: the finish function takes it back.
    pub fn complete(self, result: io::Result<()>) {
        let tag = self.request.tag;
        drop(self.request);
        self.batch.complete(tag, result);
    }
}
