//! Dumps of other systems: what commands printed there, files, and articles that hold such.
//! [`document`] splits an input into listings, each recognised by what it says and not by its name, and reads them into paths
//! and values with their lines. [`judge`] holds rules against them. Nothing here fails on bytes: what is not understood is counted.

mod aix_devices;
mod aix_tables;
mod checks;
mod import;
mod judge;
mod linux_host;
mod linux_net;
mod listing;
mod measures;
mod power;
mod prose;
mod run_book;
mod scale_config;
mod scale_state;
mod shell;
mod split;
mod switch;
mod text;
mod view;

pub use import::{Imported, Outcome, has_scale_settings, import_scale};
pub use judge::{ROWS, Row, Verdict, judge};
pub use listing::{Entry, Fate, Listing};
pub use run_book::{RunBook, Step, run_books};
pub use split::{Document, document};
pub use view::Judgement;

use listing::Parser;

/// Every parser. Where two would begin at a line the first one that finds a value takes it.
static PARSERS: std::sync::LazyLock<Vec<Parser>> = std::sync::LazyLock::new(|| {
    let mut all = Vec::new();
    all.extend(scale_config::PARSERS);
    all.extend(scale_state::PARSERS);
    all.extend(aix_tables::PARSERS);
    all.extend(switch::PARSERS);
    all.extend(power::PARSERS);
    all.extend(linux_net::PARSERS);
    all.extend(linux_host::PARSERS);
    all.extend(aix_devices::PARSERS);
    all
});
