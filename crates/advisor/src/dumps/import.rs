//! The settings of Storage Scale as tunables of Ropewalk: each name is taken over, follows by itself, or is explained.
//! Reads what a dump or `mmlsconfig` changed; a node's section overrides what is common. Nothing is set by this.

use base::tunables::{Row, Tunables, elsewhere};
use serde::Serialize;

use super::{
    listing::Entry,
    split::Document,
    text::number,
    view::{Hit, View},
};

/// Names of another spelling here, with the same meaning and unit.
const RENAMED: [(&str, &str); 2] =
    [("nsdRAIDFastWriteFSDataLimit", "fast_write_limit"), ("nsdRAIDBufferPoolSizePct", "nsdBufSpace")];

/// What becomes of one setting.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "becomes")]
pub enum Outcome {
    /// A tunable of this name and value is set.
    Set {
        /// Its name here.
        name: &'static str,
        /// As `config set` takes it.
        value: String,
    },
    /// It is what follows from another tunable anyway.
    Follows {
        /// By which rule.
        rule: &'static str,
    },
    /// Nothing of that name is here; what there is instead.
    Explained {
        /// In a sentence.
        why: String,
    },
    /// The value is not taken here.
    Refused {
        /// The error, which says what is allowed.
        why: String,
    },
    /// A name that is not known.
    Unknown,
}

/// One setting of the dump.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Imported {
    /// As the dump spells it.
    pub name: String,
    /// As written.
    pub value: String,
    /// Its line.
    pub line: u32,
    /// Where it applies: `common`, or the nodes of a section.
    pub scope: String,
    /// What becomes of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Whether a name of Scale is known here in any way.
pub(crate) fn knows(name: &str) -> bool {
    Row::find(name).is_some() || elsewhere(name).is_some()
}

/// Everything that Scale's listings in a document set, in their order; of a name that comes twice the last value. With
/// several dumps in one document each is a scope of its own, called by its first line.
pub fn import_scale(doc: &Document) -> Vec<Imported> {
    let dumps = doc.listings.iter().filter(|l| l.kind == "mmdiag --config").count();
    let mut all: Vec<Imported> = Vec::new();
    for listing in &doc.listings {
        let common = if dumps > 1 && listing.kind == "mmdiag --config" {
            format!("line {}", listing.first)
        } else {
            "common".to_owned()
        };
        let marks = |name: &str| {
            listing
                .entries
                .iter()
                .find(|e| e.path.eq_ignore_ascii_case(&format!("scale/mark/{name}")))
                .map(|e| e.value.as_str())
        };
        let mut settings: Vec<(String, &str, &Entry)> = Vec::new();
        for entry in &listing.entries {
            let words: Vec<&str> = entry.path.split('/').collect();
            let (scope, name) = match words.as_slice() {
                // What the daemon found by itself is not taken over: it is found here as well.
                ["scale", "config", name] if !matches!(marks(name), Some("default" | "autotuned")) => {
                    (common.clone(), *name)
                }
                ["scale", "section", nodes, name] => ((*nodes).to_owned(), *name),
                _ => continue,
            };
            settings.retain(|(s, n, _)| *s != scope || !n.eq_ignore_ascii_case(name));
            settings.push((scope, name, entry));
        }
        let master = settings
            .iter()
            .find(|(_, name, _)| name.eq_ignore_ascii_case("workerThreads"))
            .map(|(_, _, e)| e.value.clone());
        for (scope, name, entry) in settings {
            let outcome = outcome(name, &entry.value, master.as_deref());
            all.push(Imported {
                name: name.to_owned(),
                value: entry.value.clone(),
                line: entry.line,
                scope,
                outcome,
            });
        }
    }
    all
}

fn outcome(name: &str, value: &str, master: Option<&str>) -> Outcome {
    let here =
        RENAMED.iter().find(|(scale, _)| scale.eq_ignore_ascii_case(name)).map_or(name, |(_, here)| *here);
    let Some(row) = Row::find(here) else {
        return elsewhere(name).map_or(Outcome::Unknown, |why| Outcome::Explained { why: why.to_owned() });
    };
    let mut tunables = Tunables::default();
    if let (Some(rule), Some(master)) = (row.derived, master) {
        let given =
            tunables.set("workerThreads", master).is_ok().then(|| tunables.get(row.name).ok()).flatten();
        if given.is_some_and(|given| number(&given) == number(value)) {
            return Outcome::Follows { rule };
        }
    }
    match tunables.set(row.name, value) {
        Ok(row) => Outcome::Set {
            name: row.name,
            value: tunables.get(row.name).unwrap_or_else(|_| value.to_owned()),
        },
        Err(error) => Outcome::Refused { why: error.to_string() },
    }
}

/// Whether a document holds settings of Scale at all.
pub fn has_scale_settings(doc: &Document) -> bool {
    let view = View::new(doc);
    let any: Vec<Hit<'_>> = view.all("scale/config/*");
    !any.is_empty()
}
