//! Whether connections are on the links on which they were placed: the links' counters compared with what
//! the connections say they carried. Decisions only.
//!
//! A link carries at least what its connections carried; where it carried clearly less they are somewhere
//! else: the routes or the hash have changed, or a link was lost. Other traffic can hide that, never feign it.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use wire::hello::LinkCount;

use crate::links::choose::Path;

/// Time between comparisons.
const WINDOW: Duration = Duration::from_secs(1);
/// Connections that carried less in a window say nothing.
const BYTES_MIN: u64 = 8 << 20;
/// A link that carried less than this part of what it should have is not the one.
const LESS: f64 = 0.7;
/// Windows in a row that must disagree.
const WINDOWS: u32 = 2;

/// What a placed connection has carried so far.
pub(crate) struct Carried<'a> {
    pub conn: u64,
    pub path: &'a Path,
    pub sent: u64,
    pub received: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Agrees,
    /// Several times in a row.
    Disagrees,
}

#[derive(Default)]
pub(crate) struct Verify {
    last: Option<(Instant, Vec<LinkCount>)>,
    carried: HashMap<u64, (u64, u64)>,
    bad: u32,
}

impl Verify {
    /// Whether it is time to look.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.last.as_ref().is_none_or(|(t, _)| now.saturating_duration_since(*t) >= WINDOW)
    }

    pub(crate) fn look(
        &mut self,
        now: Instant,
        links: Vec<LinkCount>,
        conns: &[Carried<'_>],
    ) -> Option<Verdict> {
        let mut expected: HashMap<(&str, bool), u64> = HashMap::new();
        let mut total = 0;
        for c in conns {
            let Some(&(sent, received)) = self.carried.get(&c.conn) else { continue };
            for (side, out, n) in [
                (&c.path.out, true, c.sent.saturating_sub(sent)),
                (&c.path.back, false, c.received.saturating_sub(received)),
            ] {
                total += n;
                side.split('+').for_each(|name| *expected.entry((name, out)).or_default() += n);
            }
        }
        self.carried = conns.iter().map(|c| (c.conn, (c.sent, c.received))).collect();
        let (then, before) = self.last.replace((now, links))?;
        let links = &self.last.as_ref()?.1;
        if total < BYTES_MIN || now.saturating_duration_since(then) > 3 * WINDOW {
            return None;
        }
        let moved = |name: &str, out: bool| {
            let count = |of: &[LinkCount]| {
                of.iter().find(|l| l.name == name).map_or(0, |l| if out { l.sent } else { l.received })
            };
            count(links).saturating_sub(count(&before))
        };
        let less = |(&(name, out), &n): (&(&str, bool), &u64)| {
            !name.is_empty() && n >= total / 8 && (moved(name, out) as f64) < n as f64 * LESS
        };
        if !expected.iter().any(less) {
            self.bad = 0;
            return Some(Verdict::Agrees);
        }
        self.bad += 1;
        (self.bad >= WINDOWS).then(|| {
            self.bad = 0;
            Verdict::Disagrees
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    struct Bench {
        verify: Verify,
        now: Instant,
        sent: [u64; 2],
        links: [u64; 2],
    }

    impl Bench {
        /// A second in which the connections, placed on x and y, send this, and the links carry that.
        fn second(&mut self, sent: [u64; 2], links: [u64; 2]) -> Option<Verdict> {
            self.now += WINDOW;
            let on = |name: &str| Path { out: name.to_owned(), back: name.to_owned(), ..Path::default() };
            let paths = [on("bond0+x"), on("bond0+y")];
            for i in 0..2 {
                self.sent[i] += sent[i] * MB;
                self.links[i] += links[i] * MB;
            }
            let count = |name: &str, sent| LinkCount { name: name.to_owned(), received: 0, sent };
            let links = vec![
                count("x", self.links[0]),
                count("y", self.links[1]),
                count("bond0", self.links[0] + self.links[1]),
            ];
            let carried: Vec<Carried<'_>> = (0..2)
                .map(|i| Carried { conn: i as u64, path: &paths[i], sent: self.sent[i], received: 0 })
                .collect();
            assert!(self.verify.is_due(self.now));
            self.verify.look(self.now, links, &carried)
        }
    }

    #[test]
    fn connections_found_on_other_links_are_noticed() {
        let mut b = Bench { verify: Verify::default(), now: Instant::now(), sent: [0; 2], links: [0; 2] };
        assert_eq!(b.second([100, 100], [105, 105]), None, "nothing to compare with yet");
        assert_eq!(b.second([100, 100], [105, 105]), Some(Verdict::Agrees));
        assert_eq!(b.second([100, 100], [500, 105]), Some(Verdict::Agrees), "others send as well");
        assert_eq!(b.second([1, 1], [0, 0]), None, "too little to say");
        assert_eq!(b.second([50, 50], [105, 0]), None, "once may be chance");
        assert_eq!(b.second([50, 50], [105, 0]), Some(Verdict::Disagrees));
        assert_eq!(b.second([50, 50], [105, 0]), None, "and again after as long");
    }
}
