//! `ropewalk pdisk verify|dump`: the tools of one pdisk, without a cluster.

use std::io::{BufWriter, Write};

use anyhow::{Result, bail};
use base::ByteSize;
use pdisk::tools;

use crate::{args::PdiskDir, output};

/// `ropewalk pdisk verify`: exit status 0 only if nothing is wrong.
pub fn verify(args: &PdiskDir) -> Result<()> {
    let bar = output::progress("comparing", 0);
    let report = tools::verify(&args.dir, args.log_dir.as_deref(), &mut |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    if args.json {
        output::json(&report)?;
    } else {
        report.findings.iter().for_each(|finding| output::line(finding.to_string()));
        report.notes.iter().for_each(|note| output::line(format!("note: {note}")));
        output::line(format!(
            "{} strips ({} seals alone), {} of {} used, {} compared, {} of log behind the checkpoint",
            report.strips,
            report.tombstones,
            ByteSize(report.used_bytes),
            ByteSize(report.data_bytes),
            ByteSize(report.compared_bytes),
            ByteSize(report.log_bytes),
        ));
    }
    if !report.is_consistent() {
        bail!("{}: {} inconsistencies", args.dir.display(), report.findings.len() as u64 + report.not_listed);
    }
    Ok(())
}

/// `ropewalk pdisk dump`: a line an item; with `--json` an object a line.
pub fn dump(args: &PdiskDir) -> Result<()> {
    let mut found = Ok(());
    output::written_by(|out| {
        let mut out = BufWriter::new(out);
        let mut written = Ok(());
        found = tools::dump(&args.dir, args.log_dir.as_deref(), &mut |item| {
            if written.is_ok() {
                written = if args.json {
                    serde_json::to_writer(&mut out, &item)
                        .map_err(Into::into)
                        .and_then(|()| out.write_all(b"\n"))
                } else {
                    writeln!(out, "{item}")
                };
            }
        });
        written.and_then(|()| out.flush())
    });
    Ok(found?)
}
