//! A member of etcd that this machine runs itself, for trying (`up --store etcd`): the distribution's program, as a process of the
//! cluster's, with its data in the cluster's directory. It listens on loopback, where nobody proves anything: who has an account
//! on the machine can change what is there.

use std::{env, os::unix::process::CommandExt as _, process::Command};

use anyhow::{Error, anyhow};

use super::presence::Presence;
use crate::cluster_dir::{ClusterDir, EtcdMember};

/// Its entries that are kept in memory. The default takes more than all else of a small cluster.
const SNAPSHOT_COUNT: &str = "1000";

/// How many threads of its work at a time, unless the environment says so. It shares the machine with the other members: more of them
/// spend a fifth of its CPU in looking for work.
const THREADS: (&str, &str) = ("GOMAXPROCS", "1");

/// Becomes that program. Comes back only with why not.
pub fn become_member(dir: &ClusterDir, member: &EtcdMember, presence: Presence) -> Error {
    let all: Vec<String> = dir
        .file
        .etcd
        .iter()
        .flat_map(|etcd| &etcd.members)
        .map(|m| format!("{}=http://{}", m.name, m.peer))
        .collect();
    let (client, peer) = (format!("http://{}", member.addr), format!("http://{}", member.peer));
    let mut program = Command::new("etcd");
    program
        .args(["--name", &member.name, "--log-level", "warn", "--snapshot-count", SNAPSHOT_COUNT])
        .arg("--data-dir")
        .arg(dir.path.join(&member.name))
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &all.join(",")]);
    if env::var_os(THREADS.0).is_none() {
        program.env(THREADS.0, THREADS.1);
    }
    presence.hand_over();
    anyhow!("start etcd: {}; install it (`apt-get install etcd-server`)", program.exec())
}
