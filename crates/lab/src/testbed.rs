//! Several hosts on one machine: network namespaces joined by veth links with a set rate in both directions.
//!
//! A testbed owns the namespaces `ropewalk-NAME-*` and nothing else: all devices, addresses, routes and
//! settings live inside them, so loopback, the machine's own interfaces and other testbeds are never
//! touched, and deleting the namespaces removes everything. A file in `/run/ropewalk/testbed` says what a
//! testbed is; it is written before the first namespace, so that one that was begun and not finished is
//! found as well. [`Testbed::scoped`] names its process as owner: what dead owners left behind is removed
//! by the next `scoped`, and by [`sweep`].

mod build;
mod error;
mod host;
mod link;
mod run;
mod spec;
mod state;

use std::{net::SocketAddr, ops::Deref};

pub use error::TestbedError;
pub use host::Host;
pub use link::{LinkBytes, LinkState};
use serde::{Deserialize, Serialize};
pub use spec::{BitRate, HOSTS_MAX, Join, LINKS_MAX, Spec};
pub use state::{Owner, down, list, sweep};

/// A testbed that stands.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Testbed {
    /// What was asked for.
    pub spec: Spec,
    /// `h1`, `h2`, ...
    pub hosts: Vec<Host>,
    /// The process that it ends with; `None`: it stays until `down`.
    pub owner: Option<Owner>,
}

impl Testbed {
    /// Brings one up that stays until [`down`]. On failure nothing is left.
    pub fn up(spec: Spec) -> Result<Testbed, TestbedError> {
        Testbed::build(spec, None)
    }

    /// Brings one up that goes when the returned guard is dropped, or, if this process is killed, with the
    /// next testbed somebody brings up.
    pub fn scoped(spec: Spec) -> Result<Scoped, TestbedError> {
        sweep()?;
        Testbed::build(spec, Some(Owner::this_process())).map(Scoped)
    }

    fn build(spec: Spec, owner: Option<Owner>) -> Result<Testbed, TestbedError> {
        spec.check()?;
        let testbed = Testbed { hosts: build::draw_hosts(&spec), spec, owner };
        state::save_new(&testbed)?;
        if let Err(e) = build::build(&testbed) {
            // The first error is the one to tell.
            let _ = down(&testbed.spec.name);
            return Err(e);
        }
        Ok(testbed)
    }

    /// One that is there already; without a name the only one that no process owns.
    pub fn find(name: Option<&str>) -> Result<Testbed, TestbedError> {
        let mut all = list()?;
        let Some(name) = name else {
            all.retain(|t| t.owner.is_none());
            if all.len() == 1 {
                return Ok(all.remove(0));
            }
            return Err(TestbedError::WhichTestbed { names: all.into_iter().map(|t| t.spec.name).collect() });
        };
        let found = all.into_iter().find(|t| t.spec.name == name);
        found.ok_or_else(|| TestbedError::NoTestbed { name: name.to_owned() })
    }

    /// The host with this name.
    pub fn host(&self, name: &str) -> Result<&Host, TestbedError> {
        self.hosts.iter().find(|h| h.name == name).ok_or_else(|| TestbedError::NoHost {
            name: name.to_owned(),
            hosts: self.hosts.iter().map(|h| h.name.clone()).collect(),
        })
    }

    /// All addresses of a host (counted from 0) with a port: what a peer of it is told. The index is this
    /// testbed's own; one beyond the last host is a mistake of the caller and panics.
    pub fn addrs(&self, host: usize, port: u16) -> Vec<SocketAddr> {
        self.hosts[host].addrs.iter().map(|&ip| SocketAddr::from((ip, port))).collect()
    }

    fn netns(&self, part: &str) -> String {
        spec::netns(&self.spec.name, part)
    }
}

/// A testbed that is taken down when this is dropped.
#[derive(Debug)]
pub struct Scoped(Testbed);

impl Deref for Scoped {
    type Target = Testbed;

    fn deref(&self) -> &Testbed {
        &self.0
    }
}

impl Drop for Scoped {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next sweep.
        let _ = down(&self.0.spec.name);
    }
}
