//! The classic transport: reader threads on `/dev/fuse`, each with its own queue of the connection.
//! A reader owns a buffer, reads one request into it, and hands it to the session. Answers go back
//! by the queue the request came from. Readers end when the kernel says that the mount is gone
//! (ENODEV); the last one out reports it.

use std::{
    fs::{File, OpenOptions},
    io::{self, IoSlice, Read, Write},
    sync::Arc,
    thread,
};

use base::InodeNo;
use tokio::{runtime, sync::watch};
use zerocopy::IntoBytes;

use crate::{
    abi,
    buffers::{Buffer, Buffers},
    calls::Calls,
    reply::Sink,
    request::{Operation, Request},
    session::{Notifier, Session},
    sys,
};

/// Where FUSE connections are made.
pub const DEVICE: &str = "/dev/fuse";
/// Most parts of one writev.
const PARTS_MAX: usize = 1024;

/// One queue of a connection.
pub struct Channel {
    file: File,
}

impl Channel {
    /// The queue that came with the mount.
    pub fn new(file: File) -> Arc<Channel> {
        Arc::new(Channel { file })
    }

    /// One more queue of the same connection.
    pub fn another(&self) -> io::Result<Arc<Channel>> {
        let file = OpenOptions::new().read(true).write(true).open(DEVICE)?;
        sys::clone_device(&self.file, &file)?;
        Ok(Channel::new(file))
    }

    /// The device, for ring commands.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The next request; 0 bytes are never given.
    pub fn receive(&self, space: &mut [u8]) -> io::Result<usize> {
        (&self.file).read(space)
    }

    fn write(&self, unique: u64, error: i32, parts: &[&[u8]]) -> io::Result<()> {
        let len = size_of::<abi::OutHeader>() + parts.iter().map(|p| p.len()).sum::<usize>();
        let header = abi::OutHeader { len: len as u32, error, unique };
        let mut slices = Vec::with_capacity(1 + parts.len());
        slices.push(IoSlice::new(header.as_bytes()));
        slices.extend(parts.iter().filter(|p| !p.is_empty()).map(|p| IoSlice::new(p)));
        // The kernel takes a whole answer or none.
        if slices.len() > PARTS_MAX {
            let whole: Vec<u8> = slices.iter().flat_map(|s| s.iter().copied()).collect();
            return (&self.file).write(&whole).map(drop);
        }
        (&self.file).write_vectored(&slices).map(drop)
    }
}

impl Sink for Channel {
    fn send(&self, unique: u64, error: i32, parts: &[&[u8]]) -> io::Result<()> {
        self.write(unique, -error, parts)
    }
}

impl Notifier for Channel {
    fn inval_inode(&self, ino: InodeNo, offset: u64, len: u64) -> io::Result<()> {
        let clamp = |n: u64| n.min(i64::MAX as u64) as i64;
        let out = abi::NotifyInvalInodeOut { ino: ino.0, off: clamp(offset), len: clamp(len) };
        match self.write(0, abi::NOTIFY_INVAL_INODE, &[out.as_bytes()]) {
            // The kernel does not have that inode: nothing cached.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            result => result,
        }
    }

    fn inval_attr(&self, ino: InodeNo) -> io::Result<bool> {
        let out = abi::NotifyInvalInodeOut { ino: ino.0, off: -1, len: 0 };
        match self.write(0, abi::NOTIFY_INVAL_INODE, &[out.as_bytes()]) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            result => result.map(|()| true),
        }
    }

    fn inc_epoch(&self) -> io::Result<()> {
        self.write(0, abi::NOTIFY_INC_EPOCH, &[])
    }
}

/// How the readers ended.
pub type ReadersEnd = Result<(), Arc<io::Error>>;

/// Starts a reader thread per channel, each of which holds `last` while it runs.
pub fn start_readers<C: Calls>(
    session: &Arc<Session<C>>,
    channels: Vec<Arc<Channel>>,
    buffers: &Arc<Buffers>,
    runtime: &runtime::Handle,
    last: &Arc<LastOut>,
) -> io::Result<()> {
    for (i, channel) in channels.into_iter().enumerate() {
        let (session, buffers) = (session.clone(), buffers.clone());
        let (runtime, last) = (runtime.clone(), last.clone());
        thread::Builder::new().name(format!("fuse-read-{i}")).spawn(move || {
            let _inside = runtime.enter();
            if let Err(error) = read_requests(&session, &channel, &buffers) {
                last.failed(error);
            }
        })?;
    }
    Ok(())
}

/// Held by everything that reads requests; says that all have ended when the last one drops it.
pub struct LastOut(watch::Sender<Option<ReadersEnd>>);

impl LastOut {
    /// `ended` gets a value when this is dropped.
    pub fn new(ended: watch::Sender<Option<ReadersEnd>>) -> Arc<LastOut> {
        Arc::new(LastOut(ended))
    }

    /// A reader cannot go on.
    pub fn failed(&self, error: io::Error) {
        tracing::error!(%error, "reading from the kernel failed");
        self.0.send_replace(Some(Err(Arc::new(error))));
    }
}

impl Drop for LastOut {
    fn drop(&mut self) {
        self.0.send_if_modified(|end| {
            let unset = end.is_none();
            if unset {
                *end = Some(Ok(()));
            }
            unset
        });
    }
}

fn read_requests<C: Calls>(
    session: &Arc<Session<C>>,
    channel: &Arc<Channel>,
    buffers: &Arc<Buffers>,
) -> io::Result<()> {
    let sink: Arc<dyn Sink> = channel.clone();
    let mut spare: Option<Buffer> = None;
    loop {
        let mut buffer = spare.take().unwrap_or_else(|| buffers.take());
        let len = match channel.receive(buffer.space()) {
            Ok(len) => len,
            Err(error) => match error.raw_os_error() {
                Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(()),
                // A request taken back by its asker, or a signal.
                Some(libc::ENOENT | libc::EINTR | libc::EAGAIN) => {
                    spare = Some(buffer);
                    continue;
                }
                _ => return Err(error),
            },
        };
        spare = match Request::decode(&buffer.request()[..len]) {
            Ok(request) => handle(session, request, buffer, &sink),
            Err(bad) => {
                tracing::error!(%bad, "request refused");
                if let Some(unique) = bad.unique {
                    // Nothing more can be done for it.
                    drop(sink.send(unique, libc::EIO, &[]));
                }
                Some(buffer)
            }
        };
    }
}

/// Gives the buffer back unless the request needs it on.
fn handle<C: Calls>(
    session: &Arc<Session<C>>,
    request: Request,
    buffer: Buffer,
    sink: &Arc<dyn Sink>,
) -> Option<Buffer> {
    let (payload, buffer) = match &request.operation {
        Operation::Write { data, .. } => {
            let (payload, buffer) = buffer.payload(data.clone());
            (Some(payload), buffer)
        }
        _ => (None, Some(buffer)),
    };
    session.handle(request, payload, sink);
    buffer
}
