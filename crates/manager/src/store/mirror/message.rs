//! What a manager and the machine that keeps a copy of its store say to each other, and the manager to servers about that copy. Sent as
//! calls of the manager ([`net::Service::Callback`]), encoded as all messages.
//!
//! Each of them may be carried out twice, and once of it late. Whatever is about a copy names its life ([`Life`]): from its
//! [`Ask::Look`] or [`Ask::Make`] on the keeper refuses what is of an earlier one, however late it comes.
//!
//! Manager, keeper and servers may be of different builds: the bytes of each message are those of the protocol's version, as all
//! others. A test holds them; another shape is another variant, at the end, and one that the other side may not know is refused there.

use std::{fmt, io};

use serde::{Deserialize, Serialize};

use super::super::{Changes, files::random};

/// The time in which a manager's process has one copy, as it found or made it. Those of a process rise.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Life(u64);

/// Bits that count the copies of a process. After the last one it is as another process.
const COPIES: u32 = 24;

impl Life {
    pub(super) const fn new(process: u64, copy: u64) -> Life {
        Life(process << COPIES | copy)
    }

    /// Before the first of a new process.
    pub(super) fn draw() -> io::Result<Life> {
        Ok(Life::new(random()?, 0))
    }

    pub(super) const fn next(self) -> Life {
        Life(self.0.wrapping_add(1))
    }

    /// Whose it is: no two have the same.
    pub(super) const fn process(self) -> u64 {
        self.0 >> COPIES
    }
}

impl fmt::Debug for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}.{}", self.process(), self.0 & ((1 << COPIES) - 1))
    }
}

/// A question, or an order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    /// Can a copy be made?
    Ready,
    /// Which copy that counts is there? It takes what this life sends.
    Look { life: Life },
    /// A new copy: of the state after a commit of a journal.
    Make { life: Life, journal: u64, last: u64 },
    /// What is in it, by rising key; of the state after which commit, as one that comes late must not get into another copy.
    Records { life: Life, last: u64, records: Vec<(Vec<u8>, Vec<u8>)> },
    /// That was all.
    Made { life: Life },
    /// A part of the commit of this number, which follows.
    Part { life: Life, number: u64, changes: Changes },
    /// A commit, with the parts before. Saying it again is harmless.
    Commit { life: Life, number: u64, changes: Changes },
    /// The copy has all that was acknowledged; it is called so.
    Count { life: Life, id: u64 },
    /// Is it there, and not promoted?
    Beat { life: Life },
    /// That copy does not count any more.
    Forget { id: u64 },
    /// To a server: is that copy promoted, or does it not count any more? What it hears first stands.
    Vote { id: u64, promoted: bool },
}

/// The answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// It is so, durably.
    Done,
    /// A copy that counts: its number, its journal, its last commit, and that one in full where it is known.
    Held { id: u64, journal: u64, last: u64, tail: Option<(u64, Changes)> },
    /// What stands at this server.
    Stands { promoted: bool },
    /// Not done, and why.
    Refused { why: String },
}

#[cfg(test)]
mod tests {
    use wire::frame;

    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Who changes one changes what a manager of the build before says to a keeper of this one.
    #[test]
    fn the_bytes_of_messages_are_as_they_were() {
        let (life, changes) = (Life::new(1, 2), Changes::from([(vec![7], Some(vec![8])), (vec![9], None)]));
        let asks = [
            (Ask::Ready, "00"),
            (Ask::Look { life }, "0182808008"),
            (Ask::Make { life, journal: 3, last: 4 }, "02828080080304"),
            (Ask::Records { life, last: 4, records: vec![(vec![5], vec![6])] }, "0382808008040101050106"),
            (Ask::Made { life }, "0482808008"),
            (Ask::Part { life, number: 5, changes: changes.clone() }, "058280800805020107010108010900"),
            (Ask::Commit { life, number: 5, changes: changes.clone() }, "068280800805020107010108010900"),
            (Ask::Count { life, id: 6 }, "078280800806"),
            (Ask::Beat { life }, "0882808008"),
            (Ask::Forget { id: 6 }, "0906"),
            (Ask::Vote { id: 6, promoted: true }, "0a0601"),
        ];
        for (ask, bytes) in asks {
            assert_eq!(hex(&frame::encode(&ask)), bytes, "{ask:?}");
        }
        let answers = [
            (Answer::Done, "00"),
            (
                Answer::Held { id: 6, journal: 3, last: 5, tail: Some((5, changes)) },
                "010603050105020107010108010900",
            ),
            (Answer::Stands { promoted: true }, "0201"),
            (Answer::Refused { why: "no".into() }, "03026e6f"),
        ];
        for (answer, bytes) in answers {
            assert_eq!(hex(&frame::encode(&answer)), bytes, "{answer:?}");
        }
        // One of a newer build is refused, not taken for another.
        assert!(frame::decode::<Ask>(&[11]).is_err() && frame::decode::<Answer>(&[4]).is_err());
        assert!(frame::decode::<Ask>(&[9, 6, 0]).is_err(), "and so is one with more in it");
    }
}
