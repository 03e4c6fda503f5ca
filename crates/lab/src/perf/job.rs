//! What to do: operation, pattern, sizes. Checked once, before anything is touched.

use std::str::FromStr;

use base::{ByteSize, units::UNIT};
use serde::Serialize;
use thiserror::Error;

/// Threads of one job at most.
pub const THREADS_MAX: u32 = 1024;
/// Longest record.
pub const RECORD_MAX: u64 = 64 << 20;

/// What is done with the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// Makes the file, or empties it, and writes it.
    Create,
    /// Reads a file that is there.
    Read,
    /// Overwrites a file that is there.
    Write,
    /// Reads some records and overwrites the others.
    MixRw,
    /// Gives up what is cached of the file, here.
    Uncache,
}

/// In which order records are visited.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Each thread has one part of the file and goes through it from its start.
    Seq,
    /// Each thread picks records of the whole file at random.
    Rand,
    /// Records a stride apart; threads take neighbouring records.
    Strided,
}

/// Why a job cannot be run as given.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum BadJob {
    /// A word that is not known.
    #[error("{what} {word:?} is not known; known are {known}")]
    Word {
        /// Operation or pattern.
        what: &'static str,
        /// As given.
        word: String,
        /// What there is.
        known: &'static str,
    },
    /// A value outside its range.
    #[error("{option}: {value} is refused: {reason}")]
    Value {
        /// As on the command line.
        option: &'static str,
        /// As given.
        value: u64,
        /// What would do.
        reason: String,
    },
    /// Neither bytes nor records.
    #[error("bad amount {input:?}; write bytes as 4096, 256k, 1m, 10g (binary), or records as 100R")]
    Amount {
        /// As given.
        input: String,
    },
    /// Needed and not given.
    #[error("{option} is needed: {reason}")]
    Missing {
        /// As on the command line.
        option: &'static str,
        /// For what.
        reason: &'static str,
    },
}

impl FromStr for Operation {
    type Err = BadJob;
    fn from_str(s: &str) -> Result<Operation, BadJob> {
        Ok(match s {
            "create" => Operation::Create,
            "read" => Operation::Read,
            "write" => Operation::Write,
            "mixrw" => Operation::MixRw,
            "uncache" => Operation::Uncache,
            _ => {
                let known = "create, read, write, mixrw, uncache";
                return Err(BadJob::Word { what: "operation", word: s.to_owned(), known });
            }
        })
    }
}

impl FromStr for Pattern {
    type Err = BadJob;
    fn from_str(s: &str) -> Result<Pattern, BadJob> {
        Ok(match s {
            "seq" => Pattern::Seq,
            "rand" => Pattern::Rand,
            "strided" => Pattern::Strided,
            _ => {
                let known = "seq, rand, strided";
                return Err(BadJob::Word { what: "pattern", word: s.to_owned(), known });
            }
        })
    }
}

/// Bytes, or a number of records (`100R`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Amount {
    /// So many bytes.
    Bytes(u64),
    /// So many records.
    Records(u64),
}

impl Amount {
    /// In bytes; as many as there can be if that is more.
    pub fn bytes(self, record: u64) -> u64 {
        match self {
            Amount::Bytes(bytes) => bytes,
            Amount::Records(records) => records.saturating_mul(record),
        }
    }
}

impl FromStr for Amount {
    type Err = BadJob;
    fn from_str(s: &str) -> Result<Amount, BadJob> {
        let bad = || BadJob::Amount { input: s.to_owned() };
        match s.trim().strip_suffix(['R', 'r']) {
            Some(records) => records.parse().map(Amount::Records).map_err(|_| bad()),
            None => s.parse::<ByteSize>().map(|size| Amount::Bytes(size.0)).map_err(|_| bad()),
        }
    }
}

/// One job, as given.
#[derive(Clone, Debug, Serialize)]
pub struct Spec {
    /// What is done.
    pub operation: Operation,
    /// In which order.
    pub pattern: Pattern,
    /// `-r`: bytes of a record.
    #[serde(skip)]
    pub record: Option<u64>,
    /// `-n`: what to transfer; a file that is made gets this size.
    #[serde(skip)]
    pub amount: Option<Amount>,
    /// `-s`: from one record to the next of a thread, for `strided`.
    #[serde(skip)]
    pub stride: Option<Amount>,
    /// `-th`.
    pub threads: u32,
    /// `-readratio`: percent of the records that `mixrw` reads.
    pub read_ratio: u32,
    /// `-dio`: round the caches.
    pub direct: bool,
    /// `-fsync`: flush at the end; its time counts.
    pub fsync: bool,
    /// `-osync`: every write is durable when it returns (O_DSYNC).
    pub sync_writes: bool,
    /// Caches of the file are given up before the test (`-noinv`: not).
    pub invalidate: bool,
    /// `-V`: records carry a pattern, which reads check.
    pub verify: bool,
    /// First value of the random order; the same gives the same order.
    pub seed: u64,
}

/// One job over a file of known size.
#[derive(Clone, Debug, Serialize)]
pub struct Job {
    /// As given; a file that is made has no caches to give up.
    #[serde(flatten)]
    pub spec: Spec,
    /// Bytes of a record.
    pub record_bytes: u64,
    /// Bytes of the file, in whole records.
    pub file_bytes: u64,
    /// Bytes transferred, in whole records.
    pub transfer_bytes: u64,
    /// Distance of a thread's records in a strided job.
    pub stride_bytes: u64,
}

impl Spec {
    /// The job over a file of `file_len` bytes (`None`: it is not there), whose file system likes records
    /// of `block_size`.
    pub fn over(&self, file_len: Option<u64>, block_size: u64) -> Result<Job, BadJob> {
        let makes = self.operation == Operation::Create;
        let bad =
            |option, value, reason: &str| Err(BadJob::Value { option, value, reason: reason.to_owned() });
        let record = self.record.unwrap_or(block_size);
        if !(1..=RECORD_MAX).contains(&record) {
            return bad("-r", record, "a record has 1 byte to 64m");
        }
        if self.direct && !record.is_multiple_of(UNIT as u64) {
            return bad("-r", record, "with -dio a record is a multiple of 4k");
        }
        if !(1..=THREADS_MAX).contains(&self.threads) {
            return bad("-th", self.threads.into(), "1 to 1024 threads");
        }
        if self.read_ratio > 100 {
            return bad("-readratio", self.read_ratio.into(), "0 to 100 percent");
        }
        let file = match (makes, file_len, self.amount) {
            (true, _, Some(amount)) => amount.bytes(record),
            (true, _, None) => {
                return Err(BadJob::Missing { option: "-n", reason: "the size of the file to make" });
            }
            (false, len, _) => len.unwrap_or(0),
        };
        let records = file / record;
        if records == 0 && self.operation != Operation::Uncache {
            return bad("-r", record, &format!("the file has {file} bytes, less than one record"));
        }
        let transfer = self.amount.map_or(file, |amount| amount.bytes(record));
        let ops = transfer / record;
        if ops == 0 && self.operation != Operation::Uncache {
            return bad("-n", transfer, "less than one record");
        }
        if self.pattern == Pattern::Seq && records < u64::from(self.threads) {
            let why = format!("the file has {records} records: each thread needs one of its own");
            return bad("-th", self.threads.into(), &why);
        }
        let threads_wide = u64::from(self.threads) * record;
        let stride = self.stride.map_or(threads_wide, |stride| stride.bytes(record));
        if self.pattern == Pattern::Strided {
            if !stride.is_multiple_of(record) || stride < threads_wide {
                let why = format!(
                    "a stride is a multiple of the record and at least threads x record, {threads_wide}"
                );
                return bad("-s", stride, &why);
            }
            if stride > records * record {
                return bad("-s", stride, &format!("the file has {file} bytes"));
            }
        }
        Ok(Job {
            spec: Spec { invalidate: self.invalidate && !makes, ..self.clone() },
            record_bytes: record,
            file_bytes: records * record,
            transfer_bytes: ops * record,
            stride_bytes: stride,
        })
    }
}

impl Job {
    /// Whether it changes the file.
    pub fn writes(&self) -> bool {
        matches!(self.spec.operation, Operation::Create | Operation::Write | Operation::MixRw)
    }
}

/// A whole specification, for the tests of these modules to change.
#[cfg(test)]
pub(super) fn spec(operation: Operation, pattern: Pattern) -> Spec {
    Spec {
        operation,
        pattern,
        record: Some(1 << 20),
        amount: Some(Amount::Bytes(64 << 20)),
        stride: None,
        threads: 4,
        read_ratio: 70,
        direct: false,
        fsync: false,
        sync_writes: false,
        invalidate: true,
        verify: false,
        seed: 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_bytes_or_records() {
        assert_eq!("100R".parse(), Ok(Amount::Records(100)));
        assert_eq!("3072M".parse(), Ok(Amount::Bytes(3072 << 20)));
        assert_eq!(Amount::Records(3).bytes(10_000), 30_000);
        for bad in ["", "R", "1.5g", "x"] {
            assert!(bad.parse::<Amount>().unwrap_err().to_string().contains(&format!("{bad:?}")));
        }
    }

    #[test]
    fn what_cannot_be_run_is_refused_by_name() {
        let fails = |change: fn(&mut Spec)| {
            let mut spec = spec(Operation::Read, Pattern::Seq);
            change(&mut spec);
            spec.over(Some(8 << 20), 4 << 20).unwrap_err().to_string()
        };
        assert!(fails(|s| s.record = Some(0)).starts_with("-r: 0"));
        assert!(fails(|s| (s.record, s.direct) = (Some(10_000), true)).contains("multiple of 4k"));
        assert!(fails(|s| s.threads = 0).starts_with("-th: 0"));
        assert!(fails(|s| s.threads = 9).contains("8 records"));
        assert!(fails(|s| s.read_ratio = 101).starts_with("-readratio: 101"));
        assert!(fails(|s| s.record = Some(16 << 20)).contains("less than one record"));
        assert!(fails(|s| s.amount = Some(Amount::Bytes(5))).starts_with("-n: 5"));
        let strided =
            |stride| Spec { stride: Some(Amount::Bytes(stride)), ..spec(Operation::Read, Pattern::Strided) };
        assert!(strided(2 << 20).over(Some(64 << 20), 1).unwrap_err().to_string().starts_with("-s: 2097152"));
        assert!(strided(4 << 20).over(Some(64 << 20), 1).is_ok());
        let makes = Spec { amount: None, ..spec(Operation::Create, Pattern::Seq) };
        assert!(makes.over(None, 1).unwrap_err().to_string().starts_with("-n is needed"));
    }

    #[test]
    fn records_need_not_be_powers_of_two() {
        let spec = Spec { record: Some(10_000), threads: 1, ..spec(Operation::Read, Pattern::Rand) };
        let job = Spec { amount: Some(Amount::Bytes(100 << 20)), ..spec }.over(Some(10 << 20), 1).unwrap();
        assert_eq!((job.file_bytes, job.transfer_bytes), (1048 * 10_000, 10_485 * 10_000));
    }

    #[test]
    fn a_record_is_a_block_unless_given() {
        let spec = Spec { record: None, ..spec(Operation::Read, Pattern::Seq) };
        assert_eq!(spec.over(Some(64 << 20), 4 << 20).unwrap().record_bytes, 4 << 20);
    }
}
