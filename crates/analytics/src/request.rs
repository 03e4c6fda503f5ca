//! What a process is asked about its history, and what it answers: as JSON within the messages that every process understands.

use std::{
    fmt::Write,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    answer::Answer,
    evaluate::{EvaluateError, Question, evaluate},
    files::{
        ended::{self, Ended},
        record::{self, Entry, MAGIC},
        writer,
    },
    legend::Legend,
    source::{Source, SourceError},
};

/// Bytes of records in one reply, about: as JSON they must fit into a message.
const PAGE_BYTES_MAX: usize = 3 << 20;

/// What is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// A query.
    Query(Question),
    /// What its clock says, and which histories lie beside its own, of processes that have ended.
    Hello,
    /// What it has recorded, itself.
    Records {
        /// What ends after this, by its clock, seconds since 1970 ...
        after: u64,
        /// ... and not after this.
        to: u64,
        /// Of one that has ended: its directory's name.
        ended: Option<String>,
    },
}

/// The answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// To a query.
    Answer(Answer),
    /// To a hello.
    Hello {
        /// The present by its clock, microseconds since 1970.
        now_us: u64,
        /// The histories beside its own.
        ended: Vec<Ended>,
    },
    /// Records.
    Records {
        /// The records, in hexadecimal digits.
        hex: String,
        /// Whether these are all; otherwise a shorter time must be asked for.
        whole: bool,
    },
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum RequestError {
    /// It is no request.
    #[error("read the question: {0}")]
    Unreadable(#[from] serde_json::Error),
    /// There is no such history.
    #[error("no history {0:?} lies here")]
    Absent(String),
    /// Of a query.
    #[error(transparent)]
    Evaluate(#[from] EvaluateError),
    /// Of records.
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// Answers for this process. `own`: where its history is on disk; `all`: where those of its machine lie. It reads files.
pub fn answer(request: &str, own: Option<&Path>, all: Option<&Path>) -> Result<String, RequestError> {
    let reply = match serde_json::from_str(request)? {
        Request::Query(question) => {
            let dir = question.ended.as_deref().map(|name| beside(all, name)).transpose()?;
            let source = dir.as_deref().map_or(Source::Own(own), Source::Ended);
            Reply::Answer(evaluate(&question, &source)?)
        }
        // Where nothing can be read there is nothing.
        Request::Hello => {
            let ended = all.and_then(|all| ended::histories(all).ok()).unwrap_or_default();
            Reply::Hello { now_us: now_us(), ended }
        }
        Request::Records { after, to, ended } => {
            let dir = ended.as_deref().map(|name| beside(all, name)).transpose()?;
            let source = dir.as_deref().map_or(Source::Own(own), Source::Ended);
            let (bytes, whole) = page(&source, after, to, PAGE_BYTES_MAX)?;
            let mut hex = String::with_capacity(bytes.len() * 2);
            for byte in bytes {
                // Writing to a String cannot fail.
                let _ = write!(hex, "{byte:02x}");
            }
            Reply::Records { hex, whole }
        }
    };
    Ok(serde_json::to_string(&reply)?)
}

/// The present, microseconds since 1970.
pub fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}

/// A history of this machine; the name comes from outside.
fn beside(all: Option<&Path>, name: &str) -> Result<PathBuf, RequestError> {
    let plain = !name.is_empty() && !name.starts_with('.') && !name.contains('/');
    let dir = all.filter(|_| plain).map(|all| all.join(name)).filter(|dir| dir.is_dir());
    dir.ok_or_else(|| RequestError::Absent(name.to_owned()))
}

/// The records of a time, with what their numbers mean, up to about `bytes_max`; whether that is all of it.
fn page(source: &Source<'_>, after: u64, to: u64, bytes_max: usize) -> Result<(Vec<u8>, bool), SourceError> {
    let mut bytes = MAGIC.to_vec();
    let (mut said, mut whole) = (Legend::default(), true);
    source.each(after, to, &mut |second, legend| {
        if bytes.len() >= bytes_max {
            whole = false;
            return;
        }
        // In another file numbers may mean something else: what changes is said anew.
        writer::explain(&mut bytes, second, legend, &mut said);
        record::put(&mut bytes, &Entry::Second(second.clone()));
    })?;
    Ok((bytes, whole))
}

/// Bytes of hexadecimal digits.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| (digit as char).to_digit(16);
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some((digit(pair[0])? * 16 + digit(*pair.get(1)?)?) as u8)).collect()
}
