//! From a profile to a text that uperf reads as well.

use std::fmt::{self, Display, Formatter};

use super::{
    profile::{Profile, Transaction, Until},
    xml::quoted,
};

impl Display for Profile {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "<?xml version=\"1.0\"?>\n<profile name=\"{}\">", quoted(&self.name))?;
        for group in &self.groups {
            let strands = if group.threads { "nthreads" } else { "nprocs" };
            writeln!(f, "  <group {strands}=\"{}\">", group.strands)?;
            group.transactions.iter().try_for_each(|one| transaction(f, one))?;
            writeln!(f, "  </group>")?;
        }
        writeln!(f, "</profile>")
    }
}

fn transaction(f: &mut Formatter<'_>, one: &Transaction) -> fmt::Result {
    match one.until {
        Until::Iterations(n) => write!(f, "    <transaction iterations=\"{n}\"")?,
        Until::Duration(time) if time.subsec_nanos() == 0 => {
            write!(f, "    <transaction duration=\"{}s\"", time.as_secs())?;
        }
        Until::Duration(time) => write!(f, "    <transaction duration=\"{}ns\"", time.as_nanos())?,
    }
    if let Some(rate) = &one.rate {
        write!(f, " rate=\"{}\"", quoted(rate))?;
    }
    writeln!(f, ">")?;
    for flowop in &one.flowops {
        write!(f, "      <flowop type=\"{}\"", quoted(&flowop.kind))?;
        if !flowop.options.is_empty() {
            let word = |(key, value): &(String, Option<String>)| match value {
                Some(value) => format!("{key}={value}"),
                None => key.clone(),
            };
            let words: Vec<String> = flowop.options.iter().map(word).collect();
            write!(f, " options=\"{}\"", quoted(&words.join(" ")))?;
        }
        writeln!(f, "/>")?;
    }
    writeln!(f, "    </transaction>")
}
