//! The one table of tunables.
//! Each row of [`table`] says name, meaning, unit, default, allowed values, scope and when a change takes
//! effect; from it come the typed getters, validation, `config show`, `config explain` and
//! `docs/tunables.md`. [`Tunables`] is a plain value: who uses it decides how to hear of changes.
//! Names are those of Storage Scale where the meaning is the same, and are compared without case.
//! A bad value is refused with its name, its allowed values and the remedy; nothing is clamped.

mod setting;
mod show;
mod table;
mod values;

pub use setting::{Choice, ConnCount, IoEngine, TransferMode};
pub use show::{Mark, ShowRow, explain, markdown};
pub use table::{ROWS, Tunables};
pub use values::TunableError;

use table::Values;

/// Where a tunable has one value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// One value for the cluster.
    Cluster,
    /// Each node may have its own.
    Node,
    /// Each mount may have its own.
    Mount,
}

/// When a change takes effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// At once.
    Live,
    /// When the pdisk, the connection group or the mount is opened again.
    Reopen,
    /// When the process starts again.
    Restart,
}

/// Whether this version acts on a tunable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It has the effect described.
    Used,
    /// It is accepted and kept, but nothing reads it yet.
    Planned,
}

/// One tunable.
pub struct Row {
    /// As it is spelled in messages and documents.
    pub name: &'static str,
    /// The name of its getter.
    pub getter: &'static str,
    /// Other spellings that are understood.
    pub aliases: &'static [&'static str],
    /// The part of the table it stands in.
    pub section: &'static str,
    /// What it does, in one or a few sentences.
    pub meaning: &'static str,
    /// The unit of its value.
    pub unit: &'static str,
    /// Where it has one value.
    pub scope: Scope,
    /// When a change takes effect.
    pub change: Change,
    /// Whether this version acts on it.
    pub status: Status,
    /// The rule by which its value follows from another tunable, unless it is set itself.
    pub derived: Option<&'static str>,
    /// Its place in the table.
    index: usize,
    allowed_text: fn() -> String,
    get_text: fn(&Values) -> String,
    set_text: fn(&mut Values, &str) -> Result<(), String>,
    copy: fn(&mut Values, &Values),
    derive: Option<fn(&mut Values)>,
}

impl Row {
    /// The row of this name or alias, in any case.
    pub fn find(name: &str) -> Option<&'static Row> {
        ROWS.iter().find(|row| row.spellings().any(|s| s.eq_ignore_ascii_case(name)))
    }
    /// The default, as text.
    pub fn default_text(&self) -> String {
        (self.get_text)(&Values::default())
    }
    /// The allowed values, as text.
    pub fn allowed_text(&self) -> String {
        (self.allowed_text)()
    }
    fn spellings(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }
}

impl std::fmt::Debug for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Row").field(&self.name).finish()
    }
}
