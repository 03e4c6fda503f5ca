//! The manager's journal in etcd, as `cluster.toml` names it. Only the machine that runs the manager has this part.

use std::{
    net::SocketAddr,
    path::{self, Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use manager::store::Place;
use serde::{Deserialize, Serialize};

use crate::{
    args::{StoreArgs, StoreAt},
    input,
};

/// `[etcd]` in `cluster.toml`.
#[derive(Serialize, Deserialize, Clone)]
pub struct EtcdFile {
    /// `etcd://HOST:PORT,HOST:PORT/PREFIX`.
    pub place: String,
    /// By which etcd knows the manager.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// With the password; the file is its owner's only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// PEM files, absolute: etcd's authority, the manager's certificate and key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// Bytes that etcd's database may have, if other than etcd's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<u64>,
    /// Members that this machine runs itself, for trying: all there are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<EtcdMember>,
}

/// A member of etcd that `up` starts and `down` ends.
#[derive(Serialize, Deserialize, Clone)]
pub struct EtcdMember {
    /// What its files here are named by, and its data.
    pub name: String,
    /// Where managers reach it.
    pub addr: SocketAddr,
    /// Where the other members do.
    pub peer: SocketAddr,
}

impl EtcdFile {
    /// What the options say; none: the journal is a file.
    pub fn asked(args: &StoreArgs) -> Result<Option<EtcdFile>> {
        let Some(StoreAt::Place(place)) = &args.store else { return Ok(None) };
        if place.tls != args.etcd_ca.is_some() {
            bail!(
                "--store {place}: etcds:// and --etcd-ca FILE, the certificate of etcd's authority, go together"
            );
        }
        let there = |file: &Option<PathBuf>| -> Result<Option<PathBuf>> {
            let Some(file) = file else { return Ok(None) };
            input::open(file).with_context(|| format!("open {}", file.display()))?;
            Ok(Some(path::absolute(file).with_context(|| format!("find {}", file.display()))?))
        };
        let password = args.etcd_password.as_deref().map(first_line).transpose()?;
        Ok(Some(EtcdFile {
            place: place.to_string(),
            user: args.etcd_user.clone(),
            password,
            ca: there(&args.etcd_ca)?,
            cert: there(&args.etcd_cert)?,
            key: there(&args.etcd_key)?,
            quota: args.etcd_quota.map(|quota| quota.0),
            members: Vec::new(),
        }))
    }

    /// One of members of our own: they are reached by nobody else, since they listen on loopback, and prove themselves to nobody.
    pub fn own(members: Vec<EtcdMember>) -> EtcdFile {
        let addrs: Vec<String> = members.iter().map(|member| member.addr.to_string()).collect();
        let place = format!("etcd://{}/ropewalk", addrs.join(","));
        EtcdFile { place, user: None, password: None, ca: None, cert: None, key: None, quota: None, members }
    }

    /// The place.
    pub fn place(&self) -> Result<Place> {
        let place: Place = self.place.parse().context("`place` of [etcd] in cluster.toml")?;
        Ok(Place {
            user: self.user.clone().zip(self.password.clone()),
            ca: self.ca.clone(),
            client: self.cert.clone().zip(self.key.clone()),
            quota: self.quota,
            ..place
        })
    }
}

/// A file whose first line is a password has a few.
const PASSWORD_FILE_MAX: u64 = 64 << 10;

fn first_line(file: &Path) -> Result<String> {
    let text = input::text(file, PASSWORD_FILE_MAX).with_context(|| format!("read {}", file.display()))?;
    match text.lines().next().filter(|line| !line.is_empty()) {
        Some(line) => Ok(line.to_owned()),
        None => bail!("{}: its first line, the password, is empty", file.display()),
    }
}
