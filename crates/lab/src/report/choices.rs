//! What a choice gave: the values of the parameter that a plan picks, held against each other, other things equal.
//! A difference within the noise is none. Pure.

use std::{collections::BTreeMap, iter};

use base::ByteSize;

use super::numbers::{percent, show};
use crate::plan::{Params, Plan, Rule, Series};

/// A difference of less is none, however quiet the machine.
const LEAST: f64 = 0.03;

/// What a series gave.
pub struct Gave<'a> {
    /// The series.
    pub series: &'a Series,
    /// Its best point.
    pub best: f64,
    /// The noise of its points.
    pub noise: f64,
    /// Whether other programs were busy meanwhile.
    pub doubtful: bool,
}

/// One sentence for each group of series that differ in one picked parameter only.
pub fn choices(plan: &Plan, all: &[Gave<'_>]) -> Vec<String> {
    let Some(pick) = &plan.pick else { return Vec::new() };
    let mut said = Vec::new();
    for key in iter::once(&pick.key).chain(&pick.also) {
        let mut groups: BTreeMap<(String, Params), Vec<(&str, &Gave<'_>)>> = BTreeMap::new();
        for gave in all {
            let Some(value) = gave.series.set.get(key) else { continue };
            let name = gave.series.name.replacen(&format!(" {key} {value}"), "", 1);
            let mut rest = gave.series.set.clone();
            rest.remove(key);
            groups.entry((name, rest)).or_default().push((value, gave));
        }
        let rule = pick.rule.as_ref().filter(|_| *key == pick.key);
        said.extend(
            groups
                .into_iter()
                .filter_map(|((name, rest), gave)| sentence((key.as_str(), rule), &name, &rest, gave)),
        );
    }
    said
}

fn sentence(
    (key, rule): (&str, Option<&Rule>),
    name: &str,
    rest: &Params,
    mut gave: Vec<(&str, &Gave<'_>)>,
) -> Option<String> {
    gave.sort_by(|a, b| b.1.best.total_cmp(&a.1.best));
    let ((first, most), (_, least)) = (gave.first()?, gave.last()?);
    if gave.len() < 2 || most.best <= 0.0 {
        return None;
    }
    let figure = most.series.figure;
    let noise = gave.iter().map(|one| one.1.noise).fold(0.0, f64::max);
    let rule = rule.and_then(|rule| {
        let of: ByteSize = rest.get(&rule.of)?.parse().ok()?;
        let wanted = of.0.checked_mul(rule.times)?;
        let found = gave.iter().find(|one| one.0.parse::<ByteSize>().is_ok_and(|size| size.0 == wanted));
        let what = format!("the rule, {} x {}, proposes {}", rule.times, rule.of, ByteSize(wanted));
        Some(match found {
            Some(one) => format!("; {what}, which gave {}", show(figure, one.1.best)),
            None => format!("; {what}, which is not among them"),
        })
    });
    let (mut rule, best) = (rule.unwrap_or_default(), show(figure, most.best));
    if gave.iter().any(|one| one.1.doubtful) {
        rule += "; other programs were busy meanwhile: measure again on a quiet machine";
    }
    if most.best - least.best <= (2.0 * noise).max(LEAST) * most.best {
        let values: Vec<&str> = gave.iter().map(|one| one.0).collect();
        let (values, noise) = (values.join(", "), percent(noise));
        return Some(format!(
            "{name}: {key} {values} gave the same within the noise of {noise}, at most {best}{rule}"
        ));
    }
    let others = gave[1..].iter().map(|one| format!("{} {}", one.0, percent(one.1.best / most.best)));
    let others = others.collect::<Vec<_>>().join(", ");
    Some(format!("{name}: {key} {first} gave most, {best}; of that {others}{rule}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_held_against_each_other_and_against_the_rule() {
        let text = "name='t'\ntitle='t'\nstep='workers'\nsteps=[1]\nseconds=1\n\
                    pick={key='block',rule={of='record',times=32}}\n[[series]]\nname='w'\nengine='perf'\n\
                    figure='bytes'\neach={block=['1m','8m'],record=['64k','256k']}\n";
        let plan = Plan::parse("t", text, false).unwrap();
        let gave = |series: &Series| match (series.set["block"].as_str(), series.set["record"].as_str()) {
            ("8m", "256k") => 200e6,
            ("8m", "64k") => 102e6,
            _ => 100e6,
        };
        let all = |noise| -> Vec<Gave<'_>> {
            let gave = |series| Gave { series, best: gave(series), noise, doubtful: false };
            plan.series.iter().map(gave).collect()
        };
        let said = choices(&plan, &all(0.05));
        let most = "w record 256k: block 8m gave most, 200 MB/s; of that 1m 50 %; the rule, 32 x record, proposes \
                    8m, which gave 200 MB/s";
        assert_eq!((said.len(), said[0].as_str()), (2, most));
        assert!(
            said[1].contains("same within the noise") && said[1].ends_with("is not among them"),
            "{}",
            said[1]
        );
        // Noise hides even that.
        assert!(choices(&plan, &all(0.3))[0].contains("same within the noise of 30 %"));
        assert!(Plan::parse("t", &text.replace("key='block'", "key='depth'"), false).is_err());
    }

    #[test]
    fn each_picked_key_is_told_of_by_itself() {
        let text = "name='t'\ntitle='t'\nstep='queues'\nsteps=[1]\nseconds=1\npick={key='coalesce_count',also=['coalesce_us']}\n\
                    [[series]]\nname='by count'\nengine='pdisk'\nfigure='operations'\nset={coalesce_us=200}\n\
                    each={coalesce_count=[1,8]}\n[[series]]\nname='by time'\nengine='pdisk'\nfigure='operations'\n\
                    set={coalesce_count=255}\neach={coalesce_us=[0,200,1000]}\n";
        let plan = Plan::parse("t", text, false).unwrap();
        let best = |series: &Series| match (series.name.as_str(), &series.set["coalesce_us"][..]) {
            ("by count coalesce_count 8", _) => 2000.0,
            (_, "1000") => 500.0,
            _ => 1000.0,
        };
        let all: Vec<Gave<'_>> = plan
            .series
            .iter()
            .map(|series| Gave { series, best: best(series), noise: 0.01, doubtful: false })
            .collect();
        let said = choices(&plan, &all);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].starts_with("by count: coalesce_count 8 gave most"), "{said:?}");
        assert!(said[1].starts_with("by time: coalesce_us 0 gave most"), "{said:?}");
        assert!(said[1].ends_with("of that 200 100 %, 1000 50 %"), "{said:?}");
        assert!(Plan::parse("t", &text.replace("also=['coalesce_us']", "also=['depth']"), false).is_err());
    }
}
