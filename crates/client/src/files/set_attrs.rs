//! New values of attributes.

use wire::mgr::{Attr, Timestamp};

/// New values of attributes; `None` leaves as is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttrs {
    /// Permission bits, 0..=0o7777.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size: truncate or extend.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<Timestamp>,
    /// Modification time.
    pub mtime: Option<Timestamp>,
    /// Change time; now, if not given.
    pub ctime: Option<Timestamp>,
    /// Set-user-id and set-group-id bits of a file go, if no mode is given. With a change of its owner they do in any case.
    pub drop_privileges: bool,
}

impl SetAttrs {
    /// Attributes as they are with these set; size and modification time are not looked at.
    pub(crate) fn overlay(&self, attr: &mut Attr) {
        attr.mode = self.mode.unwrap_or(attr.mode);
        attr.uid = self.uid.unwrap_or(attr.uid);
        attr.gid = self.gid.unwrap_or(attr.gid);
        attr.atime = self.atime.unwrap_or(attr.atime);
    }
}
