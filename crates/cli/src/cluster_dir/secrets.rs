//! The cluster's secrets in `cluster.toml`: the present one, and while it is exchanged the one before. Written whole or not at all, by what
//! is there at that moment.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use wire::frame;

use super::{ClusterDir, directory::lock};

/// What a visit begins with by which a manager's machine tells another of its secrets; no request to join begins so.
const TOLD: &[u8] = b"\xffropewalk secrets 1\n";

/// The cluster's secrets as a manager's machine has them. Whoever has them owns the data.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secrets {
    /// How often they were changed: more is newer.
    pub changes: u64,
    /// The present one, as `cluster.toml` has it.
    pub secret: String,
    /// The one before, while it is exchanged.
    pub former: Option<String>,
}

/// The other machine's answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SecretsReply {
    /// It has such that were changed so often.
    Has {
        /// How often.
        changes: u64,
    },
    /// It takes none from there.
    Refused {
        /// Why.
        reason: String,
    },
}

impl Secrets {
    /// As they are told.
    pub fn write(&self) -> Vec<u8> {
        [TOLD, &frame::encode(self)].concat()
    }

    /// If a visitor tells of any.
    pub fn read(said: &[u8]) -> Option<Secrets> {
        frame::decode(said.strip_prefix(TOLD)?).ok()
    }
}

impl ClusterDir {
    /// Changes the secrets, durably and at once, by what they are now: the present one and the one before.
    pub fn exchange_secrets(
        path: &Path,
        change: impl FnOnce(String, Option<String>) -> Result<(String, Option<String>)>,
    ) -> Result<()> {
        let _lock = lock(path)?;
        let mut file = ClusterDir::open(path)?.file;
        let secret = file.secret.take().context("this machine has no secret of the cluster")?;
        let (secret, former) = change(secret, file.former_secret.take())?;
        (file.secret, file.former_secret) = (Some(secret), former);
        file.secret_changes += 1;
        ClusterDir::write(path, &file)
    }

    /// Takes the secrets that another manager's machine has, if they are newer; how often those were changed that are here then. Who
    /// tells them must know the present one: with the one before alone nobody changes anything.
    pub fn take_secrets(path: &Path, told: &Secrets) -> Result<u64> {
        let _lock = lock(path)?;
        let mut file = ClusterDir::open(path)?.file;
        let own = file.secret.clone().context("this machine has no secret of the cluster")?;
        // How long the comparison takes says nothing of them.
        let same = |one: &str, other: &str| Sha256::digest(one) == Sha256::digest(other);
        let is = |one: &Option<String>, other: &str| one.as_ref().is_some_and(|one| same(one, other));
        if told.changes <= file.secret_changes {
            let known = same(&told.secret, &own) || is(&file.former_secret, &told.secret);
            return if known {
                Ok(file.secret_changes)
            } else {
                bail!("it does not know the cluster's secret")
            };
        }
        if !same(&told.secret, &own) && !is(&told.former, &own) {
            bail!("it does not know this machine's secret of the cluster");
        }
        (file.secret, file.former_secret) = (Some(told.secret.clone()), told.former.clone());
        file.secret_changes = told.changes;
        file.authorities()?;
        ClusterDir::write(path, &file)?;
        Ok(told.changes)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::MetadataExt};

    use super::*;

    #[test]
    fn what_was_read_before_an_exchange_does_not_bring_the_former_secret_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        let file = format!(
            "format = 1\nname = 'c'\nid = '7'\nsecret = '{}'\nmanager = '127.0.0.1:1'\nnodes = []\n",
            "01".repeat(32)
        );
        fs::write(path.join("cluster.toml"), file).unwrap();
        let mut before = ClusterDir::open(path).unwrap();
        let [first, second] = ["01", "02"].map(|byte| byte.repeat(32));
        ClusterDir::exchange_secrets(path, |now, former| {
            assert_eq!((&now, former), (&first, None));
            Ok((second.clone(), Some(now)))
        })
        .unwrap();
        before.keep(|file| file.name = "d".into()).unwrap();
        let now = ClusterDir::open(path).unwrap().file;
        assert_eq!((now.name.as_str(), now.secret, now.former_secret), ("d", Some(second), Some(first)));
        assert!(ClusterDir::exchange_secrets(path, |_, _| bail!("no")).is_err());
        assert_eq!(ClusterDir::open(path).unwrap().file.secret_changes, 1);
        assert_eq!(fs::metadata(path.join("cluster.toml")).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn only_who_knows_the_present_secret_brings_a_newer_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        let [first, second, third, evil] = ["01", "02", "03", "66"].map(|byte| byte.repeat(32));
        let file = format!(
            "format = 1\nname = 'c'\nid = '7'\nsecret = '{first}'\nmanager = '127.0.0.1:1'\nnodes = []\n"
        );
        fs::write(path.join("cluster.toml"), file).unwrap();
        let tell = |changes, secret: &str, former: Option<&String>| {
            let told = Secrets { changes, secret: secret.to_owned(), former: former.cloned() };
            let taken = ClusterDir::take_secrets(path, &told).ok();
            let now = ClusterDir::open(path).unwrap().file;
            (taken, now.secret_changes, now.secret.unwrap(), now.former_secret)
        };
        let at_first = |taken| (taken, 0, first.clone(), None);
        assert_eq!(tell(0, &first, None), at_first(Some(0)));
        assert_eq!(tell(0, &evil, None), at_first(None));
        assert_eq!(tell(9, &evil, None), at_first(None));
        assert_eq!(tell(9, &evil, Some(&second)), at_first(None));
        assert_eq!(tell(9, "no digits", Some(&first)), at_first(None));
        let exchanging = |taken| (taken, 1, second.clone(), Some(first.clone()));
        assert_eq!(tell(1, &second, Some(&first)), exchanging(Some(1)));
        // One that is late hears so; one that knows the former secret alone, or has begun another exchange, changes nothing.
        assert_eq!(tell(0, &first, None), exchanging(Some(1)));
        assert_eq!(tell(1, &third, Some(&first)), exchanging(None));
        assert_eq!(tell(9, &third, Some(&first)), exchanging(None));
        assert_eq!(tell(9, &first, None), exchanging(None));
        assert_eq!(tell(2, &second, None), (Some(2), 2, second.clone(), None));
        assert_eq!(tell(0, &first, None), (None, 2, second, None));
        let told = Secrets { changes: 1, secret: "a".into(), former: Some("b".into()) };
        assert_eq!(told.write(), b"\xffropewalk secrets 1\n\x01\x01a\x01\x01b");
        assert!(Secrets::read(&told.write()) == Some(told));
    }
}
