//! Links: their rate, faults on them, their byte counters.

use std::str::FromStr;

use serde::Serialize;

use super::{
    build,
    description::Testbed,
    error::TestbedError,
    host::Host,
    run,
    spec::{BitRate, Join},
};

/// What a link does. Seen from its host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkState {
    /// Both directions at the set rate.
    Up,
    /// The host's interface is taken down; the other end loses its carrier.
    Down,
    /// Everything is lost in both directions, and no interface shows it.
    Cut,
    /// Everything the host sends is lost.
    Mute,
    /// Everything sent to the host is lost.
    Deaf,
}

impl FromStr for LinkState {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "up" => Ok(LinkState::Up),
            "down" => Ok(LinkState::Down),
            "cut" => Ok(LinkState::Cut),
            "mute" => Ok(LinkState::Mute),
            "deaf" => Ok(LinkState::Deaf),
            other => Err(format!("bad link state {other:?}: up, down, cut, mute, deaf")),
        }
    }
}

/// What a link has carried since it was made, headers included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct LinkBytes {
    /// Sent by its host.
    pub sent: u64,
    /// Received by its host.
    pub received: u64,
}

impl Testbed {
    /// Changes what link `link` (from 1) of a host does. `Up` undoes every other state.
    pub fn set_link(&self, host: &str, link: u8, state: LinkState) -> Result<(), TestbedError> {
        let host = self.host(host)?;
        if !(1..=self.spec.links).contains(&link) {
            return Err(TestbedError::NoLink { host: host.name.clone(), link, links: self.spec.links });
        }
        let near = (host.netns.clone(), build::device(link));
        let far = build::far_end(self, host, link);
        let action = format!("set link {link} of {} {state:?}", host.name).to_lowercase();
        let (sends, receives) = match state {
            LinkState::Up | LinkState::Down => (true, true),
            LinkState::Cut => (false, false),
            LinkState::Mute => (false, true),
            LinkState::Deaf => (true, false),
        };
        for ((netns, device), passes) in [(&near, sends), (&far, receives)] {
            run::batch(&action, "tc", netns, &[build::shape(device, self.spec.rate, passes)])?;
        }
        let up = if state == LinkState::Down { "down" } else { "up" };
        run::batch(&action, "ip", &near.0, &[format!("link set {} {up}", near.1)])?;
        if state == LinkState::Up && self.spec.join != Join::Subnets {
            // A multipath route whose last link went down is gone.
            build::routes(self)?;
        }
        Ok(())
    }

    /// Changes the rate of link `link` (from 1) of a host in both directions, until its state is set again.
    pub fn set_rate(&self, host: &str, link: u8, rate: BitRate) -> Result<(), TestbedError> {
        let host = self.host(host)?;
        if !(1..=self.spec.links).contains(&link) {
            return Err(TestbedError::NoLink { host: host.name.clone(), link, links: self.spec.links });
        }
        let near = (host.netns.clone(), build::device(link));
        let far = build::far_end(self, host, link);
        let action = format!("set the rate of link {link} of {}", host.name);
        for (netns, device) in [&near, &far] {
            run::batch(&action, "tc", netns, &[build::shape(device, rate, true)])?;
        }
        Ok(())
    }

    /// The byte counters of a host's links, in order.
    pub fn link_bytes(&self, host: &Host) -> Result<Vec<LinkBytes>, TestbedError> {
        let read = || {
            // A new mount of sysfs would be needed in the namespace; this file follows the thread.
            std::fs::read_to_string("/proc/thread-self/net/dev")
        };
        let action = || format!("read the counters of {}", host.name);
        let text = host.run(read)?.map_err(|source| TestbedError::System { action: action(), source })?;
        let number = |fields: &[&str], i: usize| fields.get(i).and_then(|f| f.parse().ok()).unwrap_or(0);
        let of = |link: u8| {
            let prefix = format!("{}:", build::device(link));
            let line = text.lines().find_map(|l| l.trim_start().strip_prefix(&prefix)).unwrap_or_default();
            let fields: Vec<&str> = line.split_whitespace().collect();
            LinkBytes { received: number(&fields, 0), sent: number(&fields, 8) }
        };
        Ok((1..=self.spec.links).map(of).collect())
    }
}
