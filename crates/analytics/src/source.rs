//! Where seconds come from: this process's memory and its files, the files of one that has ended, or a recording.

use std::{
    io,
    path::{Path, PathBuf},
};

use base::stats;
use thiserror::Error;

use crate::{
    files::reader::{self, Take},
    legend::Legend,
    recording::Section,
};

/// A history.
pub enum Source<'a> {
    /// Of this process: in memory and, if it is written, on disk.
    Own(Option<&'a Path>),
    /// Of one that has ended, on disk.
    Ended(&'a Path),
    /// Of one that was recorded.
    Recorded(&'a Section),
}

/// A history on disk that cannot be read.
#[derive(Debug, Error)]
#[error("read the history in {dir}: {error}")]
pub struct SourceError {
    /// Where it lies.
    pub dir: PathBuf,
    /// Why not.
    pub error: io::Error,
}

impl Source<'_> {
    /// All that ends after `after` and not after `to`, each part from the finest that is kept of it.
    pub fn each(&self, after: u64, to: u64, take: Take<'_>) -> Result<(), SourceError> {
        if after >= to {
            return Ok(()); // also numbers that nothing can be added to
        }
        match self {
            Source::Recorded(section) => section.each(after, to, take),
            Source::Ended(dir) => files(dir, after, to, take)?,
            Source::Own(dir) => {
                // What memory has is taken from there, what is older from disk: also seconds of a clock that stood elsewhere then.
                let mut from = after;
                if let Some(dir) = dir {
                    // From the first of the last hour on: one from a clock that stood in 1970 says nothing of what a process before
                    // this one has written since.
                    let hour_ago = stats::now().saturating_sub(stats::SECONDS_MAX as u64);
                    from = stats::first_second(hour_ago).map_or(to, |first| first - 1).clamp(after, to);
                    files(dir, after, from, take)?;
                }
                let legend = Legend::own();
                stats::seconds(from, to).for_each(|second| take(&second, &legend));
            }
        }
        Ok(())
    }
}

fn files(dir: &Path, after: u64, to: u64, take: Take<'_>) -> Result<(), SourceError> {
    let failed = |error| SourceError { dir: dir.to_owned(), error };
    for part in reader::parts(dir, after, to).map_err(failed)? {
        reader::tier(dir, part.tier, part.after, part.to, take).map_err(failed)?;
    }
    Ok(())
}
