//! Rules that compute what an expression cannot say. Each is a plain function of facts; its row here names it for the
//! catalogue, says what it looks at and which values it gives to the rule's texts.

use crate::{
    facts::{Facts, Path, Value},
    topology,
};

/// What a code rule found: on which device, and values for the rule's texts.
pub struct Hit {
    /// The device; none for the machine.
    pub device: Option<Path>,
    /// The values it gives, by the names that [`CodeRule::gives`] lists.
    pub values: Vec<(&'static str, Value)>,
    /// The facts it decided by.
    pub evidence: Vec<Path>,
}

/// One of them.
pub struct CodeRule {
    /// The name by which the catalogue calls it.
    pub name: &'static str,
    /// The facts it looks at.
    pub looks_at: &'static [&'static str],
    /// The words it gives to the rule's texts.
    pub gives: &'static [&'static str],
    /// What it finds.
    pub check: fn(&Facts) -> Vec<Hit>,
}

const ALL: &[CodeRule] = &[
    CodeRule {
        name: "numa_uneven",
        looks_at: &["numa.*.cpus", "numa.*.memory"],
        gives: &["nodes", "least", "most", "score"],
        check: numa_uneven,
    },
    CodeRule {
        name: "odd_disk_out",
        looks_at: &[
            "block.*.model",
            "block.*.nr_requests",
            "block.*.scheduler",
            "block.*.read_ahead_kb",
            "block.*.max_sectors_kb",
        ],
        gives: &["what", "own", "usual", "others"],
        check: odd_disk_out,
    },
];

/// The rule of this name.
pub fn find(name: &str) -> Option<CodeRule> {
    ALL.iter().find(|rule| rule.name == name).map(|rule| CodeRule { ..*rule })
}

/// Whether a machine is scattered over its memory nodes.
fn numa_uneven(facts: &Facts) -> Vec<Hit> {
    let of = |pattern: &'static str| -> Vec<i64> {
        facts.matching(pattern).filter_map(|(_, fact)| fact.value.as_int()).filter(|n| *n > 0).collect()
    };
    let cpus = of("numa.*.cpus");
    let Some(score) = topology::scattered_percent(facts) else { return Vec::new() };
    if score < 5 {
        return Vec::new();
    }
    let evidence = facts.matching("numa.*.cpus").chain(facts.matching("numa.*.memory"));
    vec![Hit {
        device: None,
        values: vec![
            ("nodes", Value::from(cpus.len())),
            ("least", Value::Int(cpus.iter().copied().min().unwrap_or(0))),
            ("most", Value::Int(cpus.iter().copied().max().unwrap_or(0))),
            ("score", Value::from(score)),
        ],
        evidence: evidence.map(|(path, _)| path.clone()).collect(),
    }]
}

/// Disks of one model that are set otherwise than most of their kind.
fn odd_disk_out(facts: &Facts) -> Vec<Hit> {
    let mut hits = Vec::new();
    let models: Vec<(&Path, &str)> = facts
        .matching("block.*.model")
        .filter_map(|(path, fact)| Some((path, fact.value.as_text()?)))
        .collect();
    for setting in ["scheduler", "nr_requests", "read_ahead_kb", "max_sectors_kb"] {
        let value_of = |model_path: &Path| {
            let path = Path::from(format!("{}.{setting}", model_path.as_str().strip_suffix(".model")?));
            Some((facts.value(path.as_str())?, path))
        };
        for (path, model) in &models {
            let alike: Vec<&Value> =
                models.iter().filter(|(_, m)| m == model).filter_map(|(p, _)| Some(value_of(p)?.0)).collect();
            let Some((own, own_path)) = value_of(path) else { continue };
            let usual = alike.iter().find(|v| alike.iter().filter(|w| w == v).count() * 4 >= alike.len() * 3);
            // Of three or fewer none is the odd one.
            if let Some(usual) = usual.filter(|usual| **usual != own && alike.len() >= 4) {
                let device = path.as_str().strip_suffix(".model").map(Path::from);
                hits.push(Hit {
                    device,
                    values: vec![
                        ("what", Value::from(setting)),
                        ("own", own.clone()),
                        ("usual", (*usual).clone()),
                        ("others", Value::from(alike.len() - 1)),
                    ],
                    evidence: vec![own_path, (*path).clone()],
                });
            }
        }
    }
    hits
}
