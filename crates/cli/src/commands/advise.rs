//! `ropewalk advise`: what this machine shows, and what to change.

use anyhow::Result;

use super::advise_dumps;
use crate::{
    args::{Advise, AdviseCommand},
    output,
};

/// `ropewalk advise`.
pub fn advise(args: &Advise) -> Result<()> {
    if let Some(AdviseCommand::ImportScale(args)) = &args.command {
        return advise_dumps::import(args);
    }
    if !args.inputs.inputs.is_empty() {
        return advise_dumps::advise(&args.inputs, args.json);
    }
    let facts = advisor::host_facts(&args.root);
    let findings = advisor::advise(&facts, &advisor::Context::default());
    if args.json {
        return output::json(&serde_json::json!({ "facts": facts, "findings": findings }));
    }
    if findings.is_empty() {
        output::line("nothing to change: no rule applies to what this machine shows");
    }
    for finding in findings {
        output::line(format!("{} ({:?}): {}", finding.rule, finding.severity, finding.trigger));
        finding.evidence.iter().for_each(|e| output::line(format!("  evidence: {e}")));
        output::line(format!("  advice:   {}", finding.advice.trim_end()));
        if let Some(command) = finding.command {
            output::line(format!("  command:  {command}"));
        }
    }
    Ok(())
}
