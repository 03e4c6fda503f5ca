//! Which versions a build speaks and reads: of the protocol, and of what is stored (the *level* of a cluster). Each build knows
//! its own and the one before, so that processes can be replaced one after the other. FORMAT.md "Versions" has the rules.

use std::{fmt, sync::OnceLock};

use serde::{Deserialize, Serialize};

/// Version of header and messages. Two processes speak the greatest that both know.
pub const PROTOCOL_VERSION: u16 = 10;
/// The first version whose builds can speak more than one.
const PROTOCOL_FIRST: u16 = 9;
/// The version that brought files without a name.
pub const PROTOCOL_UNNAMED: u16 = 10;
/// The version that brought names made ahead of the manager beside other sessions.
pub const PROTOCOL_BESIDE: u16 = 10;
/// The version that brought counts of what is lost for good.
pub const PROTOCOL_LOSSES: u16 = 10;
/// The newest level. What is stored in a new way is stored so only in a cluster whose level says that everybody can read it.
pub const LEVEL: u16 = 2;
/// The level of all clusters from before there were levels.
pub const LEVEL_FIRST: u16 = 1;
/// From this level on the manager's store keeps which build each node's server had.
pub const LEVEL_BUILDS_KEPT: u16 = 2;
/// From this level on a pdisk flushes bytes in its data file together with the record that names them. Not a level of its own: no
/// build that knows levels is released.
pub const LEVEL_FLUSHED_TOGETHER: u16 = 2;
/// From this level on the manager's records in etcd may be packed. Not a level of its own, for the same reason.
pub const LEVEL_RECORDS_PACKED: u16 = 2;

/// What this process is.
static OWN: OnceLock<Build> = OnceLock::new();

/// Versions that follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Span {
    /// The oldest.
    pub least: u16,
    /// The newest.
    pub greatest: u16,
}

impl Span {
    /// A version and the one before, but none before `first`.
    fn up_to(greatest: u16, first: u16) -> Span {
        Span { least: greatest.saturating_sub(1).max(first), greatest }
    }
    /// Whether it is one of them.
    pub fn contains(self, version: u16) -> bool {
        (self.least..=self.greatest).contains(&version)
    }
    /// The greatest that is in both.
    pub fn common(self, other: Span) -> Option<u16> {
        let greatest = self.greatest.min(other.greatest);
        (greatest >= self.least.max(other.least)).then_some(greatest)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Span { least, greatest } if least == greatest => write!(f, "{least}"),
            Span { least, greatest } => write!(f, "{least} to {greatest}"),
        }
    }
}

/// A build of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Build {
    /// Its version.
    pub version: [u16; 3],
    /// Versions of the protocol that it speaks.
    pub protocols: Span,
    /// Levels that it reads and writes.
    pub levels: Span,
}

impl Build {
    /// This one.
    pub fn own() -> Build {
        *OWN.get_or_init(|| Build::with(PROTOCOL_VERSION, LEVEL))
    }

    /// For tests of upgrades: this process takes itself for the build whose newest versions are `PROTOCOL,LEVEL`; false: it
    /// knows better already, or these are none. Builds for use do not have it.
    #[cfg(debug_assertions)]
    pub fn pretend(newest: &str) -> bool {
        let both = newest.split_once(',').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        both.is_some_and(|(protocol, level)| OWN.set(Build::with(protocol, level)).is_ok())
    }

    /// One whose newest versions are these.
    pub fn with(protocol: u16, level: u16) -> Build {
        let part = |text: &str| text.parse().unwrap_or_default();
        Build {
            version: [
                part(env!("CARGO_PKG_VERSION_MAJOR")),
                part(env!("CARGO_PKG_VERSION_MINOR")),
                part(env!("CARGO_PKG_VERSION_PATCH")),
            ],
            protocols: Span::up_to(protocol, PROTOCOL_FIRST),
            levels: Span::up_to(level, LEVEL_FIRST),
        }
    }

    /// As people write its version.
    pub fn version(&self) -> String {
        self.version.map(|part| part.to_string()).join(".")
    }

    /// Refuses to be part of a cluster of that level. The text names the remedy.
    pub fn check_level(&self, level: u16) -> Result<(), String> {
        let Build { levels, .. } = self;
        if level > levels.greatest {
            return Err(format!(
                "it is too old: the cluster is at level {level}, and its ropewalk ({self}) knows levels up to {}; install a \
                 newer ropewalk there",
                levels.greatest
            ));
        }
        if level < levels.least {
            return Err(format!(
                "it is too new: the cluster is at level {level}, and its ropewalk ({self}) knows levels from {} on; give \
                 `ropewalk cluster finalize` with the version before, or install that one there",
                levels.least
            ));
        }
        Ok(())
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ropewalk {}", self.version())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_builds_speak_the_greatest_that_both_know() {
        let [old, new, later, last] = [9, 10, 11, 12].map(|protocol| Build::with(protocol, 1).protocols);
        assert_eq!((old.least, new.least, last.least), (9, 9, 11));
        assert_eq!(old.common(old), Some(9));
        assert_eq!((old.common(new), new.common(old)), (Some(9), Some(9)));
        assert_eq!(new.common(later), Some(10));
        assert_eq!((old.common(later), later.common(old)), (None, None));
    }

    #[test]
    fn a_build_joins_a_cluster_of_its_level_and_of_the_one_before() {
        assert_eq!(Build::with(9, 1).levels, Span { least: 1, greatest: 1 });
        let build = Build::with(9, 3);
        assert!(build.check_level(2).is_ok() && build.check_level(3).is_ok());
        assert!(build.check_level(1).unwrap_err().contains("too new"));
        let too_old = build.check_level(4).unwrap_err();
        assert!(too_old.contains("level 4") && too_old.contains("install a newer ropewalk"), "{too_old}");
    }
}
