//! What findings have to do with each other and with what runs on the host: pieces of advice that contradict, changes
//! that another would undo, programs that set the same values. It adds remarks and drops what another finding covers.

use crate::{facts::Facts, finding::Finding, rule::Severity};

/// If the first applies to a device, the second says nothing new about it.
const COVERED: &[(&str, &str)] = &[
    ("bond-alone", "bond-hash-without-ports"),
    ("ropewalk-memory-beyond-host", "ropewalk-memory-share"),
    ("fs-full", "fs-filling"),
    ("virtual-steal-high", "virtual-steal"),
];

/// Looks at all of them; they come best first.
pub fn consider(findings: &mut Vec<Finding>, facts: &Facts) {
    let found: Vec<(String, Option<String>)> =
        findings.iter().map(|f| (f.rule.clone(), f.device.clone())).collect();
    findings.retain(|f| {
        let covered = |(by, covered): &(&str, &str)| {
            *covered == f.rule && found.iter().any(|(rule, device)| rule == by && *device == f.device)
        };
        !COVERED.iter().any(covered)
    });
    contradictions(findings);
    programs(findings, facts);
}

/// Two changes of one fact: the better finding keeps its change, the other names it.
fn contradictions(findings: &mut [Finding]) {
    for i in 1..findings.len() {
        let (before, rest) = findings.split_at_mut(i);
        let Some(later) = rest.first_mut() else { return };
        let Some(change) = &later.change else { continue };
        let same_fact = |f: &&mut Finding| f.change.as_ref().is_some_and(|c| c.fact == change.fact);
        let Some(earlier) = before.iter_mut().find(same_fact) else { continue };
        if earlier.change.as_ref() == Some(change) {
            later.remarks.push(format!("{} asks for the same setting.", earlier.rule));
        } else {
            let asks = |rule: &str, command: &Option<String>| {
                format!("{rule} asks for `{}`", command.as_deref().unwrap_or("?"))
            };
            later.remarks.push(format!(
                "Contradicts {}, which is expected to bring more: decide for one.",
                asks(&earlier.rule, &earlier.command)
            ));
            earlier
                .remarks
                .push(format!("Contradicts {}, which ranks lower.", asks(&later.rule, &later.command)));
            later.change = None;
        }
    }
}

/// Programs that set such values themselves would set them again.
fn programs(findings: &mut [Finding], facts: &Facts) {
    let tuned = facts.bool("daemon.tuned") == Some(true);
    let profile = facts.text("tuned.profile");
    for finding in findings.iter_mut().filter(|f| f.change.is_some() || f.command.is_some()) {
        if tuned && let Some(profile) = profile {
            finding.remarks.push(format!(
                "tuned runs with profile {profile} and may set this again: change it in a profile that includes {profile}."
            ));
        }
        if finding.severity < Severity::Critical
            && facts.bool("daemon.mmfsd") == Some(true)
            && finding.disruptive
        {
            finding.remarks.push("Storage Scale runs here (mmfsd): stop it on this node first.".to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Catalogue, Origin, Path, finding::Change, rule::Gain};

    /// Two findings of a rule that the catalogue has, with these changes.
    fn pair(first: &str, second: &str) -> Vec<Finding> {
        let catalogue = Catalogue::load().unwrap();
        let mut facts = Facts::new();
        facts.insert("sysctl.vm.zone_reclaim_mode", 1i64, Origin::default());
        let rule = catalogue.rule("memory-zone-reclaim").unwrap();
        let finding = crate::rank::apply_rule(rule, &facts).remove(0);
        let with = |id: &str, value: &str| Finding {
            rule: id.to_owned(),
            gain: Gain::Medium,
            change: Some(Change { fact: Path::from("sysctl.x.y"), value: value.to_owned() }),
            ..finding.clone()
        };
        vec![with("one", first), with("two", second)]
    }

    #[test]
    fn two_pieces_of_advice_that_contradict_name_each_other() {
        let mut findings = pair("1", "2");
        consider(&mut findings, &Facts::new());
        assert!(findings[0].remarks[0].contains("two") && findings[1].remarks[0].contains("Contradicts one"));
        assert!(findings[0].change.is_some() && findings[1].change.is_none());
        let mut same = pair("1", "1");
        consider(&mut same, &Facts::new());
        assert_eq!((same[0].remarks.len(), same[1].remarks.len()), (0, 1));
    }

    #[test]
    fn what_another_finding_says_better_is_dropped() {
        let (by, covered) = COVERED[0];
        let mut findings = pair("1", "1");
        findings[0].rule = by.to_owned();
        findings[1].rule = covered.to_owned();
        let mut elsewhere = findings.clone();
        consider(&mut findings, &Facts::new());
        assert_eq!(findings.len(), 1);
        elsewhere[1].device = Some("bond.other".to_owned());
        consider(&mut elsewhere, &Facts::new());
        assert_eq!(elsewhere.len(), 2);
    }

    #[test]
    fn covered_rules_exist() {
        let catalogue = Catalogue::load().unwrap();
        for (by, covered) in COVERED {
            assert!(catalogue.rule(by).is_some() && catalogue.rule(covered).is_some(), "{by}, {covered}");
        }
    }

    #[test]
    fn tuned_is_named() {
        let mut facts = Facts::new();
        facts.insert("daemon.tuned", true, Origin::default());
        facts.insert("tuned.profile", "throughput-performance", Origin::default());
        let mut findings = pair("1", "1");
        consider(&mut findings, &facts);
        assert!(findings[0].remarks[0].contains("throughput-performance"));
    }
}
