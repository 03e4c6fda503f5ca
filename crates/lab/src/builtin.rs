//! The built-in plans, as TOML texts that can be printed, edited and run from a file.

use crate::plan::{Plan, PlanError};

const TEXTS: &[(&str, &str)] = &[
    ("device-scaling", include_str!("../plans/device-scaling.toml")),
    ("net-scaling", include_str!("../plans/net-scaling.toml")),
    ("conn-scaling", include_str!("../plans/conn-scaling.toml")),
    ("transport", include_str!("../plans/transport.toml")),
    ("queue-scaling", include_str!("../plans/queue-scaling.toml")),
    ("node-scaling", include_str!("../plans/node-scaling.toml")),
    ("step-load", include_str!("../plans/step-load.toml")),
    ("link-speed", include_str!("../plans/link-speed.toml")),
    ("stream-write", include_str!("../plans/stream-write.toml")),
    ("disk-read", include_str!("../plans/disk-read.toml")),
    ("client-steps", include_str!("../plans/client-steps.toml")),
    ("cached-read", include_str!("../plans/cached-read.toml")),
    ("blocksize", include_str!("../plans/blocksize.toml")),
    ("pagepool", include_str!("../plans/pagepool.toml")),
    ("fuse", include_str!("../plans/fuse.toml")),
    ("metadata", include_str!("../plans/metadata.toml")),
    ("io500", include_str!("../plans/io500.toml")),
    ("virtual-clients", include_str!("../plans/virtual-clients.toml")),
    ("registered-memory", include_str!("../plans/registered-memory.toml")),
    ("coalescing", include_str!("../plans/coalescing.toml")),
    ("numa", include_str!("../plans/numa.toml")),
    ("soak", include_str!("../plans/soak.toml")),
];

/// Plans of the mixed analytics workload: `ropewalk lab workload` runs them.
const WORKLOADS: &[(&str, &str)] = &[
    ("analytics-20", include_str!("../plans/analytics-20.toml")),
    ("analytics-30", include_str!("../plans/analytics-30.toml")),
    ("analytics-nodes", include_str!("../plans/analytics-nodes.toml")),
    ("analytics-links", include_str!("../plans/analytics-links.toml")),
];

/// Names of all.
pub fn names() -> impl Iterator<Item = &'static str> {
    TEXTS.iter().map(|(name, _)| *name)
}

/// The text of one.
pub fn text(name: &str) -> Option<&'static str> {
    TEXTS.iter().chain(WORKLOADS).find(|(n, _)| *n == name).map(|(_, text)| *text)
}

/// All plans in their full or short form.
pub fn all(short: bool) -> Result<Vec<Plan>, PlanError> {
    TEXTS.iter().map(|(name, text)| Plan::parse(name, text, short)).collect()
}

#[cfg(test)]
mod tests {
    use crate::engine::EngineKind;

    #[test]
    fn every_plan_is_whole_in_both_forms() {
        for short in [false, true] {
            let plans = super::all(short).unwrap_or_else(|e| panic!("{e}"));
            for (plan, name) in plans.iter().zip(super::names()) {
                assert_eq!(plan.name, name);
                assert!(!plan.title.is_empty() && !plan.source.is_empty(), "{name}");
            }
            for (name, text) in super::WORKLOADS {
                let plan = super::Plan::parse(name, text, short).unwrap_or_else(|e| panic!("{e}"));
                assert_eq!(plan.name, *name);
                assert!(plan.series.iter().all(|series| series.engine == EngineKind::Analytics));
            }
        }
    }
}
