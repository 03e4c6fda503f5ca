//! Dumps of other systems: what commands printed there, files, and articles that hold such.
//! [`document`] splits an input into listings, each recognised by what it says and not by its name, and reads them into paths
//! and values with their lines. [`judge`] holds rules against them. Nothing here fails on bytes: what is not understood is counted.

mod aix_devices;
mod aix_tables;
mod bridge;
mod checks;
mod import;
mod judge;
mod linux_host;
mod linux_net;
mod linux_nvme;
mod listing;
mod measures;
mod parsers;
mod power;
mod prose;
mod run_book;
mod says;
mod scale_config;
mod scale_state;
mod shell;
mod split;
mod switch;
mod text;
mod view;

pub use bridge::facts;
pub use import::{Imported, Outcome, has_scale_settings, import_scale};
pub use judge::{ROWS, Row, Verdict, judge, judge_for};
pub use listing::{Entry, Fate, Listing};
pub use run_book::{RunBook, Step, run_books};
pub(crate) use split::output;
pub use split::{Document, Part, document};
pub use view::Judgement;
