//! The one table of tunables.
//! Each row of [`table`] says name, meaning, unit, default, allowed values, scope and when a change takes
//! effect; from it come the typed getters, validation, `config show`, `config explain` and
//! `docs/tunables.md`. [`Tunables`] is a plain value: who uses it decides how to hear of changes.
//! Names are those of Storage Scale where the meaning is the same, and are compared without case.
//! A bad value is refused with its name, its allowed values and the remedy; nothing is clamped.

mod attributes;
mod error;
mod scale;
mod setting;
mod show;
mod table;
mod values;

pub use attributes::{Change, Scope};
pub use error::TunableError;
pub use scale::elsewhere;
pub use setting::{Choice, ConnCount, IoEngine, LogLevel, TransferMode, TransportMode, parse_duration};
pub use show::{Mark, ShowRow, explain, markdown};
pub use table::{ROWS, Row, Tunables};
