//! The report of a run: each series held against its parts, the verdict, the environment. As one HTML file that
//! needs nothing else, or as Markdown, JSON or CSV.

mod build;
mod chart;
mod choices;
mod crossing;
mod csv;
mod fullstimer;
mod heat;
mod html;
mod jobs;
mod markdown;
mod numbers;
mod seen;
mod sentence;
mod table;
mod words;

pub use build::{JobsReport, PlanReport, Report, SeriesReport, build};
pub use csv::csv;
pub use fullstimer::logs;
pub use html::{STYLE, html};
pub use jobs::sentences;
pub use markdown::markdown;
pub use numbers::{show, time, unit};
pub use sentence::sentence;
pub use words::{date, escape};
