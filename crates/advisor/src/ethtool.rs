//! What ethtool sets of an interface: offloads, rings, channels, adaptive interrupts. Read back from what it prints; in a copy of a
//! machine both are of the text that it printed there.

use std::{fs, io, path::Path, time::Duration};

use crate::{
    host::{is_live, program},
    replace,
};

/// How long it may take: a card that makes its rings anew is away for seconds.
const PATIENCE: Duration = Duration::from_secs(30);
/// Behind this line stands what is, before it what could be.
const CURRENT: &str = "Current hardware settings";

/// One value that ethtool shows and sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Knob {
    /// The fact below the interface.
    pub fact: &'static str,
    /// The option that shows it.
    pub shows: &'static str,
    /// The option that sets it.
    pub sets: &'static str,
    /// The word behind that.
    pub word: &'static str,
    /// What stands before it in what is shown.
    key: &'static str,
}

const fn knob(fact: &'static str, [shows, sets, word]: [&'static str; 3], key: &'static str) -> Knob {
    Knob { fact, shows, sets, word, key }
}

const KNOBS: [Knob; 8] = [
    knob("gro", ["-k", "-K", "gro"], "generic-receive-offload"),
    knob("tso", ["-k", "-K", "tso"], "tcp-segmentation-offload"),
    knob("rx_checksum", ["-k", "-K", "rx"], "rx-checksumming"),
    knob("tx_checksum", ["-k", "-K", "tx"], "tx-checksumming"),
    knob("ring_rx", ["-g", "-G", "rx"], "RX"),
    knob("ring_tx", ["-g", "-G", "tx"], "TX"),
    knob("channels", ["-l", "-L", "combined"], "Combined"),
    knob("adaptive_rx", ["-c", "-C", "adaptive-rx"], "Adaptive RX"),
];

impl Knob {
    /// The knob of a fact.
    pub fn of(fact: &str) -> Option<Knob> {
        KNOBS.into_iter().find(|knob| knob.fact == fact)
    }

    /// The value in force.
    ///
    /// # Errors
    /// ethtool is not there, or does not show it.
    pub fn read(self, root: &Path, file: &str, device: &str) -> io::Result<String> {
        let missing =
            || io::Error::other(format!("ethtool {} {device} does not show {}", self.shows, self.key));
        let text = if is_live(root) {
            program::output(&["ethtool", self.shows, device]).ok_or_else(missing)?
        } else {
            fs::read_to_string(root.join(file))?
        };
        let (at, length) = self.place(&text).ok_or_else(missing)?;
        Ok(text[at..at + length].to_owned())
    }

    /// Sets it.
    ///
    /// # Errors
    /// What ethtool said.
    pub fn write(self, root: &Path, file: &str, device: &str, value: &str) -> io::Result<()> {
        if is_live(root) {
            let words = ["ethtool", self.sets, device, self.word, value];
            return program::run(&words, PATIENCE).map_err(io::Error::other);
        }
        let path = root.join(file);
        let mut text = fs::read_to_string(&path)?;
        if let Some((at, length)) = self.place(&text) {
            text.replace_range(at..at + length, value);
        }
        replace::replace(&path, &text, false)
    }

    /// Where the value stands in what is shown: at which byte, and how long it is.
    fn place(self, text: &str) -> Option<(usize, usize)> {
        let begin = text.find(CURRENT).unwrap_or(0);
        let mut at = begin;
        for line in text[begin..].split_inclusive('\n') {
            if let Some(rest) = line.strip_prefix(self.key).and_then(|rest| rest.strip_prefix(':')) {
                let value = rest.split_whitespace().next()?;
                let skipped = line.len() - rest.len() + rest.find(value)?;
                return Some((at + skipped, value.len()));
            }
            at += line.len();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_what_is_shown() {
        let rings = "Ring parameters for e:\nPre-set maximums:\nRX:\t\t8192\nTX:\t\t8192\nCurrent hardware settings:\nRX:\t\t1024\nTX:\t\t512\n";
        let features = "Features for e:\nrx-checksumming: on\ntcp-segmentation-offload: on\n\ttx-tcp-segmentation: on\ngeneric-receive-offload: off [fixed]\n";
        let coalescing = "Coalesce parameters for e:\nAdaptive RX: off  TX: n/a\n";
        for (fact, text, value) in [
            ("ring_rx", rings, Some("1024")),
            ("ring_tx", rings, Some("512")),
            ("gro", features, Some("off")),
            ("tso", features, Some("on")),
            ("rx_checksum", features, Some("on")),
            ("adaptive_rx", coalescing, Some("off")),
            ("channels", "Combined:", None),
            ("gro", "", None),
        ] {
            let place = Knob::of(fact).unwrap().place(text);
            assert_eq!(place.map(|(at, length)| &text[at..at + length]), value, "{fact}");
        }
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("x"), rings).unwrap();
        let knob = Knob::of("ring_rx").unwrap();
        knob.write(root.path(), "x", "e", "8192").unwrap();
        assert_eq!(knob.read(root.path(), "x", "e").unwrap(), "8192");
        assert_eq!(fs::read_to_string(root.path().join("x")).unwrap(), rings.replace("1024", "8192"));
        assert!(knob.read(root.path(), "y", "e").is_err() && Knob::of("mtu").is_none());
    }
}
