//! Who may ask the manager what: by role, by what a member is limited to, by the directory that it is bound to.

use base::InodeNo;

use super::{Change, MgrRequest};
use crate::{
    hello::Role,
    lock::LockRequest,
    map::Limits,
    token::{Need, Use},
};

impl MgrRequest {
    /// Whether a process in this role may ask it over the network.
    ///
    /// What only looks is for every member; what a session does, for those that have one; what changes the cluster, for
    /// administrators. A server's machine may add pdisks, and give its own up.
    pub fn is_for(&self, role: Role) -> bool {
        use MgrRequest as R;
        match self {
            // The manager's process lets machines in itself.
            R::Admit(_) | R::Recertify { .. } => false,
            // All names and contents of small files are in it.
            R::CopyTable { .. } | R::Dump { .. } => role == Role::Manager,
            _ if matches!(role, Role::Admin | Role::Manager) => true,
            R::GetMap
            | R::Versions
            | R::WaitMap { .. }
            | R::Cluster
            | R::Losses
            | R::ConfigGet
            | R::Events { .. }
            | R::StatFs { .. }
            | R::Tokens { .. }
            | R::Locks { .. }
            | R::Paths { .. }
            | R::LostFiles { .. }
            | R::LogMarks { .. }
            | R::LastPdisk
            | R::Owned { .. }
            | R::Owners { .. }
            | R::Members
            | R::Authorities
            | R::Renew { .. } => matches!(role, Role::Server | Role::Client),
            R::RegisterServer { .. } | R::PdiskAdd { .. } | R::PdiskSet { .. } | R::MayUse { .. } => {
                role == Role::Server
            }
            R::OpenSession { .. }
            | R::ResolveDone
            | R::CloseSession
            | R::Reserve { .. }
            | R::ReportSilent { .. }
            | R::Lookup { .. }
            | R::GetAttr { .. }
            | R::ReadDir { .. }
            | R::ReadLink { .. }
            | R::ReadInline { .. }
            | R::Extents { .. }
            | R::GetXattr { .. }
            | R::ListXattr { .. }
            | R::Mutate { .. }
            | R::MutateMany { .. }
            | R::Tell { .. }
            | R::Acquire { .. }
            | R::Release { .. }
            | R::WaitRecalls
            | R::Claim { .. }
            | R::Resolved { .. }
            | R::ResolvePassDone { .. }
            | R::Lock(_)
            | R::Published { .. } => role == Role::Client,
            R::ConfigSet { .. }
            | R::Detach { .. }
            | R::PoolCreate { .. }
            | R::PoolDelete { .. }
            | R::FsCreate { .. }
            | R::FsDelete { .. }
            | R::NodeAdd { .. }
            | R::NodeRemove { .. }
            | R::NodeSet { .. }
            | R::Invite { .. }
            | R::Revoke { .. }
            | R::Finalize
            | R::ManagerSet(_)
            | R::ManagerRemove { .. }
            | R::Resign { .. } => false,
        }
    }

    /// Whether it changes files, or keeps others from them, as nobody may do who may only read.
    pub fn is_for_writers(&self) -> bool {
        use MgrRequest as R;
        match self {
            R::Mutate { change, .. } => !matches!(change, Change::Forget { .. }),
            R::MutateMany { changes } | R::Tell { changes } => {
                changes.iter().any(|(_, change)| !matches!(change, Change::Forget { .. }))
            }
            R::Acquire { need, .. } => {
                matches!(need, Need::Write | Need::Make | Need::Blocks(_, Use::Write))
            }
            R::Reserve { .. } => true,
            _ => false,
        }
    }

    /// Whether it asks about a file system by number that the asker may not use. Other requests are about that of their session.
    pub fn is_beyond(&self, limits: &Limits) -> bool {
        use MgrRequest as R;
        match self {
            R::StatFs { fs }
            | R::Tokens { fs, .. }
            | R::Locks { fs, .. }
            | R::Paths { fs, .. }
            | R::LostFiles { fs, .. }
            | R::Owned { fs, .. } => !limits.allow(*fs),
            R::Owners { blocks } => blocks.iter().any(|stripe| !limits.allow(stripe.fs)),
            _ => false,
        }
    }

    /// Whether it says that stripes are resolved.
    pub fn is_of_resolver(&self) -> bool {
        use MgrRequest as R;
        matches!(self, R::ResolveDone | R::Resolved { .. } | R::ResolvePassDone { .. })
    }

    /// Whether it asks about a whole file system, where one may use a part of it.
    pub fn is_about_all(&self) -> bool {
        use MgrRequest as R;
        matches!(
            self,
            R::Tokens { .. }
                | R::Locks { .. }
                | R::Paths { .. }
                | R::LostFiles { .. }
                | R::Owned { .. }
                | R::Owners { .. }
        )
    }

    /// The inodes that it asks about or changes, by number. What names lead to in a directory is below it; what a session says of
    /// tokens and locks that it holds is not meant; nor is what it lets go.
    pub fn inodes(&self) -> Vec<InodeNo> {
        use MgrRequest as R;
        match self {
            R::Lookup { parent, .. } => vec![*parent],
            R::GetAttr { ino }
            | R::ReadDir { ino, .. }
            | R::ReadLink { ino }
            | R::ReadInline { ino }
            | R::Extents { ino, .. }
            | R::GetXattr { ino, .. }
            | R::ListXattr { ino }
            | R::Acquire { ino, .. }
            | R::Lock(LockRequest::Set { ino, .. } | LockRequest::Test { ino, .. }) => vec![*ino],
            R::Mutate { change, .. } => change.inodes(),
            R::MutateMany { changes } | R::Tell { changes } => {
                changes.iter().flat_map(|(_, change)| change.inodes()).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl Change {
    fn inodes(&self) -> Vec<InodeNo> {
        match self {
            Change::Create { parent, .. }
            | Change::CreateAs { parent, .. }
            | Change::CreateUnnamed { parent, .. }
            | Change::Unlink { parent, .. } => {
                vec![*parent]
            }
            Change::Link { ino, parent, .. } | Change::LinkUnnamed { ino, parent, .. } => vec![*ino, *parent],
            Change::Rename { parent, new_parent, .. } => vec![*parent, *new_parent],
            Change::SetAttr { ino, .. }
            | Change::CommitWrite { ino, .. }
            | Change::Deallocate { ino, .. }
            | Change::SetXattr { ino, .. }
            | Change::RemoveXattr { ino, .. } => vec![*ino],
            // An open inode without a name is the session's own.
            Change::Forget { .. } | Change::Numbers { .. } => Vec::new(),
        }
    }
}
