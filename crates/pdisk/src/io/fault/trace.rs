//! The record of every write and flush of the pdisks of a node, in the order they were submitted and
//! answered, with marks of the caller's own in between. Crash states are made from it.
//! It grows without bound: it is for tests, not for servers.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::io::{
    file::FileKind,
    request::{Op, Request},
};

/// One event. Numbers name a write or flush from submission to answer.
#[derive(Clone, Debug)]
pub enum TraceEvent {
    /// A write was submitted: from now on any part of it may be on the disk.
    Write {
        /// Its number.
        id: u64,
        /// The file.
        file: FileKind,
        /// Where in the file.
        offset: u64,
        /// What.
        bytes: Bytes,
    },
    /// A flush was submitted.
    Flush {
        /// Its number.
        id: u64,
        /// The file.
        file: FileKind,
    },
    /// A write or flush was answered. A flush makes those writes to its file durable that were answered
    /// before it was submitted.
    Done {
        /// Its number.
        id: u64,
        /// Without an error.
        ok: bool,
    },
    /// [`Trace::mark`].
    Mark(u64),
}

/// A shared record of events.
#[derive(Clone, Debug, Default)]
pub struct Trace(Arc<Mutex<Events>>);

#[derive(Debug, Default)]
struct Events {
    list: Vec<TraceEvent>,
    last_id: u64,
}

impl Trace {
    /// Adds a mark.
    pub fn mark(&self, mark: u64) {
        self.0.lock().list.push(TraceEvent::Mark(mark));
    }
    /// Takes the events out.
    pub fn take(&self) -> Vec<TraceEvent> {
        std::mem::take(&mut self.0.lock().list)
    }

    /// Notes a submission; reads are not noted.
    pub(super) fn submitted(&self, request: &Request) -> Option<u64> {
        let file = FileKind::of(&request.file.path);
        let mut events = self.0.lock();
        let id = events.last_id + 1;
        let event = match &request.op {
            Op::Read(_) => return None,
            Op::Write(bytes) => TraceEvent::Write { id, file, offset: request.offset, bytes: bytes.clone() },
            Op::Flush => TraceEvent::Flush { id, file },
        };
        events.last_id = id;
        events.list.push(event);
        Some(id)
    }

    pub(super) fn done(&self, id: u64, ok: bool) {
        self.0.lock().list.push(TraceEvent::Done { id, ok });
    }
}
