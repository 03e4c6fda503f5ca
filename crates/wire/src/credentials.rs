//! Users and groups of programs, whom a squashed machine acts as, and what modes let them do.
//!
//! One set of rules: the manager refuses by them what it is asked, and a mount, which knows the program, says so before.

use serde::{Deserialize, Serialize};

/// User and group of who is nobody.
pub const NOBODY: u32 = 65534;
/// Most supplementary groups that travel with a request; further ones count for nothing.
pub const GROUPS_MAX: usize = 1024;

/// To read, of a mode's three bits.
pub const READ: u16 = 4;
/// To write.
pub const WRITE: u16 = 2;
/// To look a name up in a directory, or to run a file.
pub const SEARCH: u16 = 1;

/// On whose behalf a mount asks: what the kernel says of a program.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Credentials {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary groups, at most [`GROUPS_MAX`].
    pub groups: Vec<u32>,
}

/// Whom the programs of a machine act as.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Squash {
    /// As whom it says.
    #[default]
    None,
    /// Root, and group 0, as this user and group; neither of them is 0.
    Root {
        /// User.
        uid: u32,
        /// Group.
        gid: u32,
    },
    /// All as this user and group; neither of them is 0.
    All {
        /// User.
        uid: u32,
        /// Group.
        gid: u32,
    },
}

impl Squash {
    /// Whether anybody acts as somebody else.
    pub fn is_any(self) -> bool {
        self != Squash::None
    }
    /// User and group that others act as.
    pub fn anonymous(self) -> Option<(u32, u32)> {
        match self {
            Squash::None => None,
            Squash::Root { uid, gid } | Squash::All { uid, gid } => Some((uid, gid)),
        }
    }
}

/// Who acts, after squashing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Who {
    /// May do everything: whose machine is not squashed is checked by its own kernel.
    Root,
    /// These.
    Program(Credentials),
    /// A program of a machine with squashed root, it is not known which: what any user but root may do.
    Anybody,
}

/// What is asked about: owner, group and mode of an inode.
#[derive(Clone, Copy, Debug)]
pub struct Owned {
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permission bits.
    pub mode: u16,
}

impl Who {
    /// Whoever asks on a machine; `by` is what it says, if it says anything.
    pub fn of(squash: Squash, by: Option<&Credentials>) -> Who {
        match (squash, by) {
            (Squash::None, _) => Who::Root,
            (Squash::All { uid, gid }, _) => Who::Program(Credentials { uid, gid, groups: Vec::new() }),
            (Squash::Root { uid, gid }, Some(by)) if by.uid == 0 => {
                Who::Program(Credentials { uid, gid, groups: Vec::new() })
            }
            (Squash::Root { gid, .. }, Some(by)) => Who::Program(Credentials {
                uid: by.uid,
                gid: if by.gid == 0 { gid } else { by.gid },
                groups: by.groups.iter().copied().filter(|group| *group != 0).take(GROUPS_MAX).collect(),
            }),
            (Squash::Root { .. }, None) => Who::Anybody,
        }
    }

    /// Whether it is this user.
    pub fn is_user(&self, uid: u32) -> bool {
        match self {
            Who::Root => true,
            Who::Program(by) => by.uid == uid,
            Who::Anybody => uid != 0,
        }
    }

    /// Whether it is in this group.
    pub fn is_in(&self, gid: u32) -> bool {
        match self {
            Who::Root => true,
            Who::Program(by) => by.gid == gid || by.groups.contains(&gid),
            Who::Anybody => gid != 0,
        }
    }

    /// Whether the mode lets it do all of `wanted`: [`READ`], [`WRITE`], [`SEARCH`].
    pub fn may(&self, what: Owned, wanted: u16) -> bool {
        let lets = |class: u16| (what.mode >> class) & wanted == wanted;
        match self {
            Who::Root => true,
            // Some user is the owner, or in the group; some other is neither.
            Who::Anybody => self.is_user(what.uid) && lets(6) || self.is_in(what.gid) && lets(3) || lets(0),
            Who::Program(_) if self.is_user(what.uid) => lets(6),
            Who::Program(_) if self.is_in(what.gid) => lets(3),
            Who::Program(_) => lets(0),
        }
    }

    /// Whether it may read a file's content, or run it. Its owner may, whatever the mode says: he may have had it open when that
    /// changed, and can change it back.
    pub fn may_read(&self, what: Owned) -> bool {
        self.is_user(what.uid) || self.may(what, READ) || self.may(what, SEARCH)
    }

    /// Whether it may write a file's content; not that of a program which gives rights that it has not. Elsewhere the bits that
    /// give them go with such a write: here it would be its own machine that takes them away.
    pub fn may_write(&self, what: Owned) -> bool {
        let gives = what.mode & !without_privileges(what.mode);
        let has = gives == 0 || self.is_user(what.uid) && (gives & 0o2000 == 0 || self.is_in(what.gid));
        has && (self.is_user(what.uid) || self.may(what, WRITE))
    }
}

/// A file's mode after its owner, or somebody's write, changed: setuid is gone, setgid too where it is one.
pub fn without_privileges(mode: u16) -> u16 {
    let setgid = if mode & 0o010 != 0 { 0o2000 } else { 0 };
    mode & !(0o4000 | setgid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANON: (u32, u32) = (NOBODY, NOBODY);

    fn program(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
        Credentials { uid, gid, groups: groups.to_vec() }
    }

    #[test]
    fn root_becomes_nobody_and_the_others_stay_who_they_are() {
        let root = Squash::Root { uid: ANON.0, gid: ANON.1 };
        let all = Squash::All { uid: 70, gid: 80 };
        let nobody = Who::Program(program(NOBODY, NOBODY, &[]));
        assert_eq!(Who::of(root, Some(&program(0, 0, &[0, 4, 24]))), nobody);
        assert_eq!(Who::of(root, Some(&program(0, 100, &[7]))), nobody);
        let user = Who::of(root, Some(&program(1000, 0, &[0, 4])));
        assert_eq!(user, Who::Program(program(1000, NOBODY, &[4])));
        assert_eq!(Who::of(root, None), Who::Anybody);
        for by in [None, Some(program(0, 0, &[])), Some(program(1000, 100, &[4]))] {
            assert_eq!(Who::of(Squash::None, by.as_ref()), Who::Root);
            assert_eq!(Who::of(all, by.as_ref()), Who::Program(program(70, 80, &[])));
        }
        let many = program(1000, 100, &vec![4; GROUPS_MAX + 5]);
        let Who::Program(cut) = Who::of(root, Some(&many)) else { panic!() };
        assert_eq!(cut.groups.len(), GROUPS_MAX);
    }

    #[test]
    fn the_first_class_that_fits_decides() {
        let owned = |uid, gid, mode| Owned { uid, gid, mode };
        let user = Who::Program(program(1000, 100, &[4, 24]));
        for (what, read, write) in [
            (owned(1000, 5, 0o600), true, true),
            (owned(1000, 100, 0o066), false, false),
            (owned(1, 100, 0o640), true, false),
            (owned(1, 24, 0o620), false, true),
            (owned(1, 4, 0o606), false, false),
            (owned(1, 5, 0o604), true, false),
            (owned(0, 0, 0o600), false, false),
        ] {
            assert_eq!((user.may(what, READ), user.may(what, WRITE)), (read, write), "{what:?}");
            assert!(Who::Root.may(what, READ | WRITE | SEARCH));
        }
        assert!(
            user.may(owned(1, 24, 0o030), WRITE | SEARCH) && !user.may(owned(1, 24, 0o050), WRITE | SEARCH)
        );
        // Its owner goes on with what he has open; nobody else does.
        assert!(user.may_write(owned(1000, 5, 0o400)) && !user.may_write(owned(1, 5, 0o444)));
        assert!(user.may_read(owned(1, 5, 0o711)) && user.may_read(owned(1000, 5, 0)));
        assert!(!user.may_read(owned(1, 5, 0o620)));
    }

    #[test]
    fn a_program_that_gives_rights_is_written_by_who_has_them() {
        let owned = |uid, gid, mode| Owned { uid, gid, mode };
        let user = Who::Program(program(1000, 100, &[24]));
        for (what, may) in [
            (owned(0, 24, 0o4775), false),
            (owned(0, 24, 0o2775), false),
            (owned(0, 24, 0o2664), true),
            (owned(1000, 100, 0o6755), true),
            (owned(1000, 5, 0o4755), true),
            (owned(1000, 0, 0o2755), false),
        ] {
            assert_eq!(user.may_write(what), may, "{what:?}");
            assert!(Who::Root.may_write(what) && user.may_read(what));
        }
        assert!(
            !Who::Anybody.may_write(owned(1000, 0, 0o2755)) && Who::Anybody.may_write(owned(1000, 5, 0o6755))
        );
    }

    #[test]
    fn what_any_user_may_is_all_but_roots_own() {
        let owned = |uid, gid, mode| Owned { uid, gid, mode };
        for (what, may) in [
            (owned(0, 0, 0o600), false),
            (owned(0, 0, 0o660), false),
            (owned(0, 24, 0o660), true),
            (owned(0, 24, 0o640), false),
            (owned(0, 0, 0o666), true),
            (owned(7, 0, 0o600), true),
        ] {
            assert_eq!(Who::Anybody.may(what, WRITE), may, "{what:?}");
        }
        assert!(!Who::Anybody.may_read(owned(0, 0, 0o700)) && !Who::Anybody.may_write(owned(0, 0, 0o700)));
    }
}
