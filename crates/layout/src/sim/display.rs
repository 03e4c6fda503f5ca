//! The report as a table for people.

use std::fmt::{Display, Formatter, Result};

use base::ByteSize;

use super::{Event, Movement, Rebuild, Report};

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let s = &self.setup;
        let per_pdisk = f64::from(self.groups) * f64::from(s.code.width()) / f64::from(self.pdisks.max(1));
        let (least, most) = (self.arrays.iter().min().unwrap_or(&0), self.arrays.iter().max().unwrap_or(&0));
        let sizes = if least == most { least.to_string() } else { format!("{least} to {most}") };
        writeln!(
            f,
            "{} on {} nodes x {} pdisks of {}",
            s.code,
            s.nodes,
            s.pdisks_per_node,
            ByteSize(s.pdisk_bytes)
        )?;
        row(f, "arrays", format!("{} of {sizes} pdisks, {} pdisks in all", self.arrays.len(), self.pdisks))?;
        row(f, "groups", format!("{}, {per_pdisk:.0} on each pdisk", self.groups))?;
        row(f, "table", format!("built in {:.2} s, {:.1} KiB", self.build_seconds, kib(self.stored_bytes)))?;
        row(
            f,
            "survives",
            format!(
                "losses of any {} pdisk(s); of any {} node(s), with at most {} strip(s) of a group on a node",
                self.pdisk_losses_survived, self.node_losses_survived, self.strips_per_node_max
            ),
        )?;
        let e = &self.evenness;
        writeln!(f, "\n{:<32}{:>10}{:>10}", "EVENNESS, AGAINST THE MEAN", "LEAST", "MOST")?;
        for (what, least, most) in [
            ("groups of a pdisk", e.groups_min, e.groups_max),
            ("parity strips of a pdisk", e.parity_min, e.parity_max),
            ("groups two pdisks share", e.pairs_min, e.pairs_max),
        ] {
            writeln!(f, "{what:<32}{:>10.3}{:>10.3}", thousandths(least), thousandths(most))?;
        }
        let head = ["STRIPS", "LEAST", "RATIO", "GB", "ARRAYS", "NODES SURVIVED"];
        write!(f, "\n{:<24}", "CHANGE MOVES")?;
        writeln!(
            f,
            "{:>10}{:>10}{:>8}{:>12}{:>8}{:>16}",
            head[0], head[1], head[2], head[3], head[4], head[5]
        )?;
        for change in &self.changes {
            write!(f, "{:<24}", change.event.to_string())?;
            if let Some(movement) = &change.movement {
                writeln!(f, "{movement}")?;
            }
            if let Some(why) = &change.refused {
                writeln!(f, "  not possible: {why}")?;
            }
        }
        writeln!(f)?;
        match &self.rebuild {
            Some(rebuild) => rebuild.rows(f, self),
            None => row(f, "rebuild", "a lost pdisk cannot be rebuilt within this pool".into()),
        }
    }
}

impl Rebuild {
    fn rows(&self, f: &mut Formatter<'_>, report: &Report) -> Result {
        let s = &report.setup;
        writeln!(f, "REBUILD OF ONE PDISK (worst of {} tried)", self.tried)?;
        row(
            f,
            "load",
            format!(
                "{} pdisks take part; the busiest has {:.3} of the mean ({} strips, mean {:.1})",
                self.pdisks, self.load_max_over_mean, self.load_max, self.load_mean
            ),
        )?;
        if self.confined_to_node {
            let note = "every group fills every node: only pdisks of the same node can take its strips";
            row(f, "", note.into())?;
        }
        let rate = s.pdisk_bytes_per_second.get() as f64 / 1e6;
        row(f, "time", format!("{} at {rate} MB/s from each pdisk", clock(self.seconds)))?;
        let conventional = clock(self.conventional_seconds);
        row(
            f,
            "conventional",
            format!(
                "{conventional} for {} with a spare of its own: {:.1} times as long",
                s.code,
                self.speedup()
            ),
        )
    }
}

impl Display for Movement {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(
            f,
            "{:>10}{:>10}{:>8.3}{:>12.1}{:>8}{:>16}",
            self.strips,
            self.least,
            self.over_least(),
            self.bytes as f64 / 1e9,
            self.arrays,
            self.node_losses_survived
        )
    }
}

impl Display for Event {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self {
            Event::AddPdisk => "add a pdisk",
            Event::AddNode => "add a node",
            Event::LosePdisk => "lose or drain a pdisk",
            Event::LoseNode => "lose or drain a node",
        })
    }
}

fn row(f: &mut Formatter<'_>, name: &str, value: String) -> Result {
    writeln!(f, "{name:<14}{value}")
}

fn thousandths(value: u32) -> f64 {
    f64::from(value) / 1000.0
}

fn kib(bytes: u64) -> f64 {
    bytes as f64 / 1024.0
}

/// Seconds as people say them.
fn clock(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.1} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}
