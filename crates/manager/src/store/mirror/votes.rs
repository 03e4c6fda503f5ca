//! What each server keeps of copies of the manager's store: of a copy, by its number, that it was promoted, or that it does not count
//! any more. What is said first stands, so of the two at most one is said by enough of them.
//!
//! A manager needs more than half of the servers to give a copy up; of three and more a promotion needs as many, so one of them would
//! know of both. Of two, one is enough to promote, and both are needed to give a copy up: with fewer machines than three the
//! manager waits for the other one, or for an admin.

use std::{fs, io, net::SocketAddr, path::PathBuf};

use base::NodeId;
use parking_lot::Mutex;
use wire::frame;

use super::{
    super::{
        StoreError,
        files::{invalid, refused, write_durably},
    },
    message::{Answer, Ask},
};

/// So many copies are remembered.
const COPIES_MAX: usize = 1000;

/// A server that is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Voter {
    /// Which it is, whatever it is called and wherever.
    pub id: NodeId,
    /// What people call it.
    pub name: String,
    /// Where it is.
    pub addrs: Vec<SocketAddr>,
}

/// So many of `all` give a copy up.
pub(super) fn to_give_up(all: usize) -> usize {
    all / 2 + 1
}

/// So many promote one.
pub(super) fn to_promote(all: usize) -> usize {
    if all < 3 { all.min(1) } else { all / 2 + 1 }
}

/// A server's memory of it: a file.
pub struct Ballots {
    path: PathBuf,
    turn: Mutex<()>,
}

impl Ballots {
    /// In this file, which need not be there yet.
    pub fn new(path: PathBuf) -> Ballots {
        Ballots { path, turn: Mutex::new(()) }
    }

    /// Answers a manager, or who promotes. Waits for a disk.
    pub fn answer(&self, body: &[u8]) -> Vec<u8> {
        let answer = match frame::decode(body) {
            Ok(Ask::Vote { id, promoted }) => self.vote(id, promoted).map_err(|error| error.to_string()),
            Ok(_) => Err("this machine keeps no copy of the manager's store".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        frame::encode(
            &answer.map_or_else(|why| Answer::Refused { why }, |promoted| Answer::Stands { promoted }),
        )
    }

    /// What stands of a copy: whether it is promoted.
    fn vote(&self, id: u64, promoted: bool) -> Result<bool, StoreError> {
        let _turn = self.turn.lock();
        let failed = |error: io::Error| refused(&self.path, &error);
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(failed(error)),
        };
        let mut lines: Vec<&str> = text.lines().collect();
        for line in &lines {
            let read = line.split_once(' ').and_then(|(number, word)| {
                let stands = match word {
                    "promoted" => true,
                    "behind" => false,
                    _ => return None,
                };
                Some((u64::from_str_radix(number, 16).ok()?, stands))
            });
            match read {
                // What it said may stand in what cannot be read.
                None => return Err(failed(invalid("is damaged"))),
                Some((of, stands)) if of == id => return Ok(stands),
                Some(_) => {}
            }
        }
        let line = format!("{id:016x} {}", if promoted { "promoted" } else { "behind" });
        lines.push(&line);
        let first = lines.len().saturating_sub(COPIES_MAX);
        write_durably(&self.path, &format!("{}\n", lines[first..].join("\n"))).map_err(failed)?;
        Ok(promoted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enough_to_give_up_and_enough_to_promote_meet() {
        for all in 1..40 {
            assert!(to_give_up(all) + to_promote(all) > all, "{all}");
            // With one of them away as well, where there are three.
            assert!(all < 3 || to_give_up(all).max(to_promote(all)) < all, "{all}");
            // One that comes or goes in that moment.
            assert!(all < 3 || to_give_up(all) + to_promote(all + 1) > all + 1, "{all}");
            assert!(all < 3 || to_give_up(all + 1) + to_promote(all) > all + 1, "{all}");
        }
    }

    #[test]
    fn what_a_server_hears_first_stands_and_damage_is_no_vote() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("votes");
        assert!(Ballots::new(path.clone()).vote(7, true).unwrap());
        let again = Ballots::new(path.clone());
        assert!(again.vote(7, false).unwrap());
        assert!(!again.vote(8, false).unwrap() && !again.vote(8, true).unwrap());
        for id in 100..100 + 2 * COPIES_MAX as u64 {
            assert!(!again.vote(id, false).unwrap());
        }
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), COPIES_MAX);
        let whole = fs::read(&path).unwrap();
        for damage in [&b"0000000000000007 prom\n"[..], b"zz behind\n", b"\xff\n", b"\n"] {
            fs::write(&path, [damage, &whole].concat()).unwrap();
            assert!(again.vote(9, true).is_err(), "{damage:?}");
        }
        for body in [&b""[..], b"\x63", &[255; 40]] {
            assert!(matches!(frame::decode(&again.answer(body)), Ok(Answer::Refused { .. })));
        }
    }
}
