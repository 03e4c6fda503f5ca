//! What a machine counts at the moment: its counters of two readings, some seconds apart, as rates. Drops and errors since
//! the machine began say that there were some; their rate says that there are.
//!
//! A rate is a fact beside the counter's name: `net.eth0.rx_dropped_rate`, in thousandths a second, so that one drop in a
//! minute is not none. Shares of the time between are percent: `cpu.now.steal`, `pressure.now.io`. Counters themselves, and
//! what is computed of them since boot, are taken out: a rule that judges those finds nothing beside the rules of rates.

use crate::{
    expr::rate_text,
    facts::{Facts, Origin, Path, Value},
    host::{NET_STATISTICS, VMSTAT},
};

/// Ticks of all CPUs; `cpu.time` has the shares of them since boot.
const TICKS: &str = "cpu.ticks.";
/// Microseconds in which some task stood still.
const STALLED: &str = "pressure.total_us.";
/// Requests that a device has finished, and the milliseconds that they took, all of them together.
const REQUESTS: &str = ".requests";
const REQUESTS_MS: &str = ".requests_ms";
/// A mean of fewer requests says nothing.
const REQUESTS_MIN: i64 = 20;

/// Of TCP's and IP's numbers those that count no events.
const STATES: &[&str] = &[
    "stat.Tcp.RtoAlgorithm",
    "stat.Tcp.RtoMin",
    "stat.Tcp.RtoMax",
    "stat.Tcp.MaxConn",
    "stat.Tcp.CurrEstab",
    "stat.Ip.Forwarding",
    "stat.Ip.DefaultTTL",
];

/// What is known of a counter.
enum Kind {
    /// Events.
    Events,
    /// Something that others are computed from.
    Part,
    /// Of the time since boot, or of minutes; of a moment there is another fact.
    Past,
}

fn kind(path: &Path) -> Option<Kind> {
    let text = path.as_str();
    let names: Vec<&str> = path.names().collect();
    match names[..] {
        ["net", _, "carrier_changes"] => Some(Kind::Events),
        ["net", _, counter] if NET_STATISTICS.contains(&counter) => Some(Kind::Events),
        ["vmstat", counter] if VMSTAT.contains(&counter) => Some(Kind::Events),
        ["stat", _, _] if !STATES.contains(&text) => Some(Kind::Events),
        ["softnet", _] => Some(Kind::Events),
        ["cpu", "time", _] | ["pressure", _] => Some(Kind::Past),
        _ if text.starts_with(TICKS) || text.starts_with(STALLED) => Some(Kind::Part),
        ["block", _, _] if text.ends_with(REQUESTS) || text.ends_with(REQUESTS_MS) => Some(Kind::Part),
        _ => None,
    }
}

/// The facts of `now`, with rates since `before` in the place of counters. A counter that began anew meanwhile has none.
/// None at all if no time has passed on the machine between them: then they are of a copy.
#[must_use]
pub fn rates(before: &Facts, now: &Facts) -> Option<Facts> {
    let uptime = |facts: &Facts| facts.int("host.uptime_ms");
    let span_ms = uptime(now)?.checked_sub(uptime(before)?).filter(|ms| *ms > 0)?;
    let counted = |path: &str| now.int(path)?.checked_sub(before.int(path)?).filter(|more| *more >= 0);
    let within =
        |from: &Origin| Origin::of(format!("in {}.{} s: {from}", span_ms / 1000, span_ms % 1000 / 100));
    let mut facts = Facts::new();
    for (path, fact) in now.iter() {
        let origin = || within(&fact.origin);
        match kind(path) {
            None => facts.put(path.clone(), fact.clone()),
            Some(Kind::Past) => {}
            Some(Kind::Events) => {
                if let Some(more) = counted(path.as_str()) {
                    let rate = per_second(more, span_ms);
                    let said = format!("{} ({more})", rate_text(rate));
                    facts.insert_written(format!("{path}_rate"), rate, &said, origin());
                }
            }
            Some(Kind::Part) => {
                let Some((name, value)) = share(path.as_str(), &counted, span_ms) else { continue };
                facts.insert(name, value, origin());
            }
        }
    }
    Some(facts)
}

/// A share of the time, or the mean of a wait, that a part of it gives.
fn share(path: &str, counted: &impl Fn(&str) -> Option<i64>, span_ms: i64) -> Option<(String, Value)> {
    let more = counted(path)?;
    let of = |part: i64, all: i64| (all > 0).then(|| Value::from(i128::from(part) * 100 / i128::from(all)));
    if let Some(name) = path.strip_prefix(TICKS).filter(|name| *name != "all") {
        return Some((format!("cpu.now.{name}"), of(more, counted(&format!("{TICKS}all"))?)?));
    }
    if let Some(name) = path.strip_prefix(STALLED) {
        return Some((format!("pressure.now.{name}"), of(more / 1000, span_ms)?));
    }
    let device = path.strip_suffix(REQUESTS_MS)?;
    let requests = counted(&format!("{device}{REQUESTS}")).filter(|requests| *requests >= REQUESTS_MIN)?;
    Some((format!("{device}.wait_us"), Value::from(i128::from(more) * 1000 / i128::from(requests))))
}

/// Events in thousandths a second, one at least where there was one.
fn per_second(events: i64, span_ms: i64) -> i64 {
    let rate = (i128::from(events) * 1_000_000 + i128::from(span_ms) - 1) / i128::from(span_ms.max(1));
    i64::try_from(rate).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Catalogue, advise};

    fn facts(of: &[(&str, i64)]) -> Facts {
        let mut facts = Facts::new();
        of.iter().for_each(|(path, value)| facts.insert(*path, *value, Origin::of("a test")));
        facts
    }
    fn values(facts: &Facts) -> Vec<(&str, i64)> {
        facts.iter().map(|(path, fact)| (path.as_str(), fact.value.as_int().unwrap())).collect()
    }

    #[test]
    fn counters_become_rates_and_settings_stay() {
        let before = facts(&[
            ("block.a.requests", 100),
            ("block.a.requests_ms", 100),
            ("block.b.requests", 100),
            ("block.b.requests_ms", 100),
            ("cpu.ticks.all", 1000),
            ("cpu.ticks.steal", 10),
            ("host.uptime_ms", 50_000),
            ("net.e.rx_dropped", 500),
            ("net.e.collisions", 2),
            ("net.f.rx_packets", 900),
            ("pressure.total_us.io", 1_000_000),
            ("stat.Tcp.RetransSegs", 10),
            ("vmstat.oom_kill", 0),
        ]);
        let now = facts(&[
            ("block.a.requests", 200),
            ("block.a.requests_ms", 5100),
            ("block.b.requests", 101),
            ("block.b.requests_ms", 5100),
            ("cpu.ticks.all", 1200),
            ("cpu.ticks.steal", 110),
            ("cpu.time.steal", 9),
            ("host.uptime_ms", 60_000),
            ("net.e.collisions", 2),
            ("net.e.rx_dropped", 512),
            ("net.e.rx_queues", 4),
            // It began to count anew; it was not there before.
            ("net.f.rx_packets", 20),
            ("net.g.rx_packets", 7),
            ("pressure.memory", 40),
            ("pressure.total_us.io", 6_000_000),
            ("stat.Tcp.CurrEstab", 5),
            ("stat.Tcp.RetransSegs", 13),
            ("vmstat.oom_kill", 0),
        ]);
        let rates = rates(&before, &now).unwrap();
        let expected = [
            ("block.a.wait_us", 50_000),
            ("cpu.now.steal", 50),
            ("host.uptime_ms", 60_000),
            ("net.e.collisions_rate", 0),
            ("net.e.rx_dropped_rate", 1200),
            ("net.e.rx_queues", 4),
            ("pressure.now.io", 50),
            ("stat.Tcp.CurrEstab", 5),
            ("stat.Tcp.RetransSegs_rate", 300),
            ("vmstat.oom_kill_rate", 0),
        ];
        assert_eq!(values(&rates), expected);
        let dropped = rates.get("net.e.rx_dropped_rate").unwrap();
        assert_eq!(dropped.written.as_deref(), Some("1.2/s (12)"));
        assert_eq!(dropped.origin.to_string(), "in 10.0 s: a test");
    }

    #[test]
    fn a_copy_has_no_rates_and_absurd_counters_are_no_panic() {
        let at = |ms: i64, count: i64| {
            facts(&[
                ("host.uptime_ms", ms),
                ("net.e.rx_dropped", count),
                ("cpu.ticks.all", count),
                ("cpu.ticks.steal", count),
            ])
        };
        assert_eq!(rates(&at(5, 1), &at(5, 1)), None);
        assert_eq!(rates(&at(5, 1), &at(4, 1)), None);
        assert_eq!(rates(&facts(&[]), &at(4, 1)), None);
        for (before, now) in [(i64::MIN, i64::MAX), (0, i64::MAX), (i64::MAX, 0)] {
            for span in [1, i64::MAX] {
                let _ = rates(&at(0, before), &at(span, now)).unwrap();
            }
        }
        let largest = rates(&at(0, 0), &at(1, i64::MAX)).unwrap();
        assert_eq!(largest.int("net.e.rx_dropped_rate"), Some(i64::MAX));
    }

    /// What happened long ago is not said of the moment; what happens now is, as a rate.
    #[test]
    fn rules_judge_the_moment() {
        let catalogue = Catalogue::load().unwrap();
        let of = |ms: i64, missed: i64, packets: i64| {
            facts(&[
                ("host.uptime_ms", ms),
                ("net.e.rx_missed_errors", missed),
                ("net.e.rx_packets", packets),
            ])
        };
        let found = |facts: &Facts| -> Vec<String> {
            advise(&catalogue, facts, &[]).into_iter().map(|f| format!("{}: {}", f.rule, f.title)).collect()
        };
        let begin = of(1000, 5000, 1_000_000);
        assert_eq!(found(&begin), ["nic-ring-overflow: e: the receive ring overflows"]);
        let quiet = rates(&begin, &of(11_000, 5000, 1_900_000)).unwrap();
        assert_eq!(found(&quiet), [""; 0]);
        let busy = rates(&begin, &of(11_000, 6200, 1_900_000)).unwrap();
        assert_eq!(found(&busy), ["now-ring-overflow: e: its receive ring overflows: 120/s"]);
    }
}
