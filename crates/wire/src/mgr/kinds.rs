//! What kinds of requests there are: for statistics, and which versions of the protocol have them.

use super::{Change, MgrRequest};
use crate::{
    token::Need,
    version::{PROTOCOL_BESIDE, PROTOCOL_LOSSES, PROTOCOL_UNNAMED},
};

impl MgrRequest {
    /// The names of all kinds, in the order of their numbers.
    pub const NAMES: [&'static str; 66] = [
        "get_map",
        "wait_map",
        "register_server",
        "renew",
        "open_session",
        "resolve_done",
        "close_session",
        "reserve",
        "report_silent",
        "stat_fs",
        "lookup",
        "get_attr",
        "read_dir",
        "read_link",
        "read_inline",
        "extents",
        "get_xattr",
        "list_xattr",
        "mutate",
        "mutate_many",
        "cluster",
        "config_set",
        "config_get",
        "acquire",
        "release",
        "wait_recalls",
        "claim",
        "resolved",
        "resolve_pass_done",
        "tokens",
        "detach",
        "pdisk_set",
        "pdisk_add",
        "pool_create",
        "fs_create",
        "lost_files",
        "events",
        "lock",
        "locks",
        "published",
        "pool_delete",
        "fs_delete",
        "owned",
        "owners",
        "log_marks",
        "node_add",
        "node_remove",
        "node_set",
        "last_pdisk",
        "invite",
        "admit",
        "members",
        "recertify",
        "revoke",
        "versions",
        "finalize",
        "may_use",
        "authorities",
        "paths",
        "manager_set",
        "manager_remove",
        "resign",
        "copy_table",
        "dump",
        "tell",
        "losses",
    ];

    /// The name of the kind with which an encoded request begins.
    pub fn name_of(number: u8) -> &'static str {
        Self::NAMES.get(usize::from(number)).copied().unwrap_or("other")
    }

    /// The first version of the protocol that has it; 0: all have.
    pub fn since(&self) -> u16 {
        match self {
            MgrRequest::Mutate { change, .. } => change.since(),
            MgrRequest::MutateMany { changes } => {
                changes.iter().map(|(_, change)| change.since()).max().unwrap_or_default()
            }
            MgrRequest::Tell { .. } | MgrRequest::Acquire { need: Need::Make, .. } => PROTOCOL_BESIDE,
            MgrRequest::Losses => PROTOCOL_LOSSES,
            _ => 0,
        }
    }
}

impl Change {
    fn since(&self) -> u16 {
        match self {
            Change::CreateUnnamed { .. } | Change::LinkUnnamed { .. } => PROTOCOL_UNNAMED,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use base::InodeNo;

    use super::*;
    use crate::mgr::{OpId, Timestamp};

    /// FORMAT.md "Messages".
    #[test]
    fn golden_changes_of_files_without_a_name() {
        let (now, parent) = (Timestamp { secs: 5, nanos: 7 }, InodeNo::ROOT);
        let made = Change::CreateUnnamed { parent, mode: 0o600, uid: 10, gid: 20, now };
        let named = Change::LinkUnnamed { ino: InodeNo(9), parent, name: b"f".to_vec(), now };
        let bytes = |change: &Change| postcard::to_allocvec(change).unwrap_or_default();
        assert_eq!(bytes(&made), [12, 1, 0x80, 3, 10, 20, 10, 7]);
        assert_eq!(bytes(&named), [13, 9, 1, 1, b'f', 10, 7]);
        let numbers = Change::Numbers { count: 1 };
        let once = |change: Change| MgrRequest::Mutate { op: OpId::default(), change, hold: false, by: None };
        let many = |changes: [Change; 2]| MgrRequest::MutateMany {
            changes: changes.into_iter().map(|change| (OpId::default(), change)).collect(),
        };
        assert_eq!((once(made.clone()).since(), once(numbers.clone()).since()), (10, 0));
        assert_eq!(
            (many([numbers.clone(), named]).since(), many([numbers.clone(), numbers]).since()),
            (10, 0)
        );
        assert_eq!(MgrRequest::GetMap.since(), 0);
    }

    /// FORMAT.md "Messages".
    #[test]
    fn golden_messages_of_losses() {
        use crate::mgr::{LostBlocks, MgrReply, PoolLosses};
        let counted = Some(LostBlocks { blocks: 9, files: 2 });
        let reply = MgrReply::Losses(vec![PoolLosses { pool: base::PoolId(3), groups: 5, counted }]);
        assert_eq!(postcard::to_allocvec(&MgrRequest::Losses).unwrap_or_default(), [65]);
        assert_eq!(postcard::to_allocvec(&reply).unwrap_or_default(), [44, 1, 3, 5, 1, 9, 2]);
        assert_eq!(MgrRequest::Losses.since(), 10);
    }

    /// FORMAT.md "Messages".
    #[test]
    fn golden_messages_of_names_made_beside_others() {
        let tell =
            MgrRequest::Tell { changes: vec![(OpId { slot: 3, seq: 5 }, Change::Numbers { count: 1 })] };
        let make = MgrRequest::Acquire { ino: InodeNo(9), need: Need::Make };
        let bytes = |request: &MgrRequest| postcard::to_allocvec(request).unwrap_or_default();
        assert_eq!(bytes(&tell), [64, 1, 3, 5, 11, 1]);
        assert_eq!(bytes(&make), [23, 9, 6]);
        assert_eq!((tell.since(), make.since()), (10, 10));
        assert_eq!(MgrRequest::Acquire { ino: InodeNo(9), need: Need::Names }.since(), 0);
    }
}
