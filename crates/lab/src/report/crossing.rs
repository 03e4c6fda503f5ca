//! Where two values of the parameter that a plan picks cross along a key of sizes: the size from which on the other one gives
//! more. Only differences beyond the noise count; between the two sizes where it turns the place is interpolated. Pure.

use std::collections::BTreeMap;

use base::ByteSize;
use serde::Serialize;

use super::choices::Gave;
use crate::plan::{Params, Plan};

/// A difference of less is none, however quiet the machine.
const LEAST: f64 = 0.03;

/// Two values of the picked parameter along a key of sizes, other things equal.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Crossing {
    /// The series, without either key.
    pub of: String,
    /// The picked parameter.
    pub key: String,
    /// The key of sizes.
    pub along: String,
    /// The smallest size that was measured of both, and the largest.
    #[serde(rename = "range_bytes")]
    pub range: [u64; 2],
    /// Sizes at which both gave the same within the noise.
    #[serde(rename = "same_bytes")]
    pub same: Vec<u64>,
    /// Where it turns, the smallest first; empty: nowhere in the range.
    pub turns: Vec<Turn>,
    /// Which gives more where nothing turns; none: neither does beyond the noise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub more: Option<String>,
}

/// A size at which another value begins to give more.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Turn {
    /// Bytes, interpolated.
    #[serde(rename = "at_bytes")]
    pub at: u64,
    /// The sizes around it at which the difference is beyond the noise.
    #[serde(rename = "between_bytes")]
    pub between: [u64; 2],
    /// What gives more below.
    pub below: String,
    /// What gives more above.
    pub above: String,
}

/// One for each two values of the picked parameter and each group of series that differ in it and in the sizes only.
pub fn crossings(plan: &Plan, all: &[Gave<'_>]) -> Vec<Crossing> {
    let Some((pick, along)) = plan.pick.as_ref().and_then(|pick| Some((pick, pick.cross.as_ref()?))) else {
        return Vec::new();
    };
    // By value of the picked parameter and by size: best and noise.
    type Lines<'a> = BTreeMap<&'a str, BTreeMap<u64, (f64, f64)>>;
    let mut groups: BTreeMap<(String, Params), Lines<'_>> = BTreeMap::new();
    for gave in all.iter().filter(|gave| gave.best > 0.0) {
        let set = &gave.series.set;
        let (Some(value), Some(text)) = (set.get(&pick.key), set.get(along)) else { continue };
        let Ok(size) = text.parse::<ByteSize>() else { continue };
        let without = |name: String, key: &str, value: &str| name.replacen(&format!(" {key} {value}"), "", 1);
        let name = without(without(gave.series.name.clone(), &pick.key, value), along, text);
        let mut rest = set.clone();
        rest.retain(|key, _| *key != pick.key && key != along);
        let lines = groups.entry((name, rest)).or_default();
        lines.entry(value).or_default().insert(size.0, (gave.best, gave.noise));
    }
    let mut found = Vec::new();
    for ((of, _), lines) in &groups {
        for (i, (a, one)) in lines.iter().enumerate() {
            for (b, other) in lines.iter().skip(i + 1) {
                found.extend(crossing(of, (&pick.key, along), (a, one), (b, other)));
            }
        }
    }
    found
}

type Line<'a> = (&'a str, &'a BTreeMap<u64, (f64, f64)>);

fn crossing(
    of: &str,
    (key, along): (&str, &str),
    (a, one): Line<'_>,
    (b, other): Line<'_>,
) -> Option<Crossing> {
    // The logarithm of how many times as much `b` gives, where that is beyond the noise.
    let held = |(size, (first, noise)): (&u64, &(f64, f64))| {
        let (second, other_noise) = other.get(size)?;
        let times = (second / first).ln();
        let beyond = times.abs() > (1.0 + (2.0 * noise.max(*other_noise)).max(LEAST)).ln();
        Some((*size, beyond.then_some(times)))
    };
    let all: Vec<(u64, Option<f64>)> = one.iter().filter_map(held).collect();
    let (first, last) = (all.first()?.0, all.last()?.0);
    let name = |times: f64| if times > 0.0 { b.to_owned() } else { a.to_owned() };
    let clear: Vec<(u64, f64)> = all.iter().filter_map(|(size, times)| Some((*size, (*times)?))).collect();
    let turn = |pair: &[(u64, f64)]| {
        let [(low, before), (high, after)] = pair else { return None };
        // A line over the logarithm of the size, which is what sizes are stepped by.
        let part = before / (before - after);
        let at = (*low as f64) * (*high as f64 / *low as f64).powf(part);
        (before * after < 0.0).then(|| Turn {
            at: at.round() as u64,
            between: [*low, *high],
            below: name(*before),
            above: name(*after),
        })
    };
    let turns: Vec<Turn> = clear.windows(2).filter_map(turn).collect();
    Some(Crossing {
        of: of.to_owned(),
        key: key.to_owned(),
        along: along.to_owned(),
        range: [first, last],
        same: all.iter().filter(|(_, times)| times.is_none()).map(|(size, _)| *size).collect(),
        more: clear.first().filter(|_| turns.is_empty()).map(|(_, times)| name(*times)),
        turns,
    })
}

impl std::fmt::Display for Crossing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Crossing { of, key, along, range: [low, high], .. } = self;
        let (low, high) = (ByteSize(*low), ByteSize(*high));
        write!(f, "{of}: ")?;
        match (&self.turns[..], &self.more) {
            ([], None) => write!(
                f,
                "no crossover in {along} {low} to {high}: {key} makes no difference beyond the noise"
            )?,
            ([], Some(more)) => {
                write!(f, "no crossover in {along} {low} to {high}: {key} {more} gives more")?
            }
            (turns, _) => {
                for (n, turn) in turns.iter().enumerate() {
                    let Turn { at, between: [from, to], below, above } = turn;
                    let (from, to) = (ByteSize(*from), ByteSize(*to));
                    let comma = if n == 0 { "" } else { "; " };
                    write!(
                        f,
                        "{comma}crossover at {along} {} (interpolated between {from} and {to}): below {key} {below} gives more, \
                         above {above}",
                        about(*at)
                    )?;
                }
            }
        }
        if !self.same.is_empty() && (self.more.is_some() || !self.turns.is_empty()) {
            let same: Vec<String> = self.same.iter().map(|size| ByteSize(*size).to_string()).collect();
            write!(f, "; the same within the noise at {}", same.join(", "))?;
        }
        Ok(())
    }
}

/// A size of two digits: an interpolated one is no more exact.
fn about(bytes: u64) -> String {
    let units = [(30, "g"), (20, "m"), (10, "k")];
    let (shift, unit) = units.into_iter().find(|(shift, _)| bytes >= 1 << shift).unwrap_or((0, ""));
    let value = bytes as f64 / (1u64 << shift) as f64;
    match value {
        ..9.95 if shift > 0 => format!("{value:.1}{unit}"),
        _ => format!("{value:.0}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Series;

    const TEXT: &str = "name='t'\ntitle='t'\nstep='connections'\nsteps=[1]\nseconds=1\n\
                        pick={key='transport',cross='size'}\n[[series]]\nname='m'\nengine='netperf'\nfigure='bytes'\n\
                        each={test=['read','write'],transport=['tcp','shm'],size=['4k','16k','64k','1m']}\n";

    /// What the sizes give by TCP and by memory, for reads; writes give none.
    fn found(tcp: [f64; 4], shm: [f64; 4], noise: f64) -> Vec<Crossing> {
        let plan = Plan::parse("t", TEXT, false).unwrap();
        let best = |series: &Series| {
            let at = ["4k", "16k", "64k", "1m"].iter().position(|size| *size == series.set["size"]).unwrap();
            if series.set["transport"] == "tcp" { tcp[at] } else { shm[at] }
        };
        let reads = plan.series.iter().filter(|series| series.set["test"] == "read");
        let all: Vec<Gave<'_>> =
            reads.map(|series| Gave { series, best: best(series), noise, doubtful: false }).collect();
        crossings(&plan, &all)
    }

    #[test]
    fn the_size_at_which_the_other_one_begins_to_give_more() {
        // Twice as much below, twice as much above: in the middle of 16k and 64k.
        let found = found([2e6, 2e6, 2e6, 2e6], [1e6, 1e6, 4e6, 8e6], 0.02);
        assert_eq!(found.len(), 1);
        let turn = &found[0].turns[0];
        assert_eq!((turn.at, turn.between), (32 << 10, [16 << 10, 64 << 10]));
        let said = "m test read: crossover at size 32k (interpolated between 16k and 64k): below transport tcp gives more, above shm";
        assert_eq!(found[0].to_string(), said);
        let json = serde_json::to_value(&found[0]).unwrap();
        assert_eq!(
            (&json["turns"][0]["at_bytes"], &json["turns"][0]["above"]),
            (&32768.into(), &"shm".into())
        );
    }

    #[test]
    fn what_is_within_the_noise_is_passed_over() {
        // At 16k and 64k they are one: it turns between the sizes where they differ, nearer to where they differ less.
        let found = found([2e6, 2e6, 2e6, 2e6], [1e6, 2.02e6, 1.98e6, 4e6], 0.02);
        let turn = &found[0].turns[0];
        assert_eq!((turn.at, turn.between), (64 << 10, [4 << 10, 1 << 20]));
        assert_eq!(found[0].same, [16 << 10, 64 << 10]);
        assert!(found[0].to_string().ends_with("the same within the noise at 16k, 64k"), "{}", found[0]);
    }

    #[test]
    fn no_crossover_in_the_range_is_an_answer() {
        let more = found([1e6, 1e6, 1e6, 1e6], [2e6, 3e6, 1.01e6, 4e6], 0.02);
        assert_eq!(
            more[0].to_string(),
            "m test read: no crossover in size 4k to 1m: transport shm gives more; the same within the noise at 64k"
        );
        let none = found([1e6, 1e6, 1e6, 1e6], [1.3e6, 0.8e6, 1.1e6, 0.9e6], 0.2);
        assert_eq!((none[0].turns.len(), &none[0].more), (0, &None));
        assert!(none[0].to_string().ends_with("makes no difference beyond the noise"), "{}", none[0]);
        // There and back.
        let twice = found([1e6, 1e6, 1e6, 1e6], [2e6, 0.5e6, 0.5e6, 2e6], 0.0);
        assert_eq!(twice[0].turns.iter().map(|turn| turn.at).collect::<Vec<_>>(), [8 << 10, 256 << 10]);
        // A size that only one of them has is left out; sizes that are none are an error of the plan.
        assert!(found([0.0; 4], [1e6; 4], 0.0).is_empty());
        let refused = |from: &str, to: &str| Plan::parse("t", &TEXT.replace(from, to), false).is_err();
        assert!(refused("cross='size'", "cross='depth'") && refused("cross='size'", "cross='test'"));
    }
}
