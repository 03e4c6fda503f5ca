//! A cluster's directory: what is in it, who may look into it, which one is meant, and how a new one is made.

pub mod access;
mod addrs;
mod change;
mod choice;
pub mod cipher;
mod claim;
mod directory;
mod etcd;
pub mod host;
pub mod init;
pub mod keys;
pub mod make;
pub mod manager_file;
mod managers;
pub mod page;
pub mod renewal;
pub mod revoked;
mod secrets;

pub use self::{
    addrs::Addrs,
    directory::{ClusterDir, ClusterFile, DEFAULT_DIR, NodeFile, PAGE, PdiskFile},
    etcd::{EtcdFile, EtcdMember},
    manager_file::{ManagerFile, OwnManager},
    secrets::{Secrets, SecretsReply},
};
