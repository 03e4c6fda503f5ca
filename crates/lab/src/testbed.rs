//! Several hosts on one machine: network namespaces joined by veth links with a set rate in both directions.
//!
//! A testbed owns the namespaces `ropewalk-NAME-*` and nothing else: all devices, addresses, routes and
//! settings live inside them, so loopback, the machine's own interfaces and other testbeds are never
//! touched, and deleting the namespaces removes everything; with [`Spec::trees`] also directories (`tree`). A file in `/run/ropewalk/testbed` says what a
//! testbed is; it is written before the first namespace, so that one that was begun and not finished is
//! found as well. [`Testbed::scoped`] names its process as owner: what dead owners left behind is removed
//! by the next `scoped`, and by [`sweep`]; of several who remove the same one, one does, and the others wait.

mod build;
mod description;
mod error;
mod host;
mod link;
mod run;
mod spec;
mod state;
mod tree;

use std::ops::Deref;

pub use description::{Owner, Testbed};
pub use error::TestbedError;
pub use host::Host;
pub(crate) use host::within;
pub use link::{LinkBytes, LinkState};
pub use spec::{BitRate, HOSTS_MAX, Join, LINKS_MAX, Spec};
pub use state::{down, list, sweep};

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
        let made = build::build(&testbed)
            .and_then(|()| if testbed.spec.trees { tree::make(&testbed) } else { Ok(()) });
        if let Err(e) = made {
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
