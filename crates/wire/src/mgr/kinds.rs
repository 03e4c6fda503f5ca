//! What kinds of requests there are, for statistics.

use super::MgrRequest;

impl MgrRequest {
    /// The names of all kinds, in the order of their numbers.
    pub const NAMES: [&'static str; 59] = [
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
    ];

    /// The name of the kind with which an encoded request begins.
    pub fn name_of(number: u8) -> &'static str {
        Self::NAMES.get(usize::from(number)).copied().unwrap_or("other")
    }
}
