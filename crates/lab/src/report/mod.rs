//! The report of a run: each series held against its parts, the verdict, the environment. As one HTML file that
//! needs nothing else, or as Markdown, JSON or CSV.

mod build;
mod chart;
mod csv;
mod heat;
mod html;
mod markdown;
mod numbers;
mod table;
mod words;

pub use build::{PlanReport, Report, SeriesReport, build};
pub use csv::csv;
pub use html::{STYLE, html};
pub use markdown::markdown;
pub use numbers::{show, unit};
pub use words::{date, escape};
