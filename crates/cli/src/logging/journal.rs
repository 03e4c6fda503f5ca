//! A line of the log. In the journal it begins with its priority (`<4>`), which `journalctl -p` asks for, and has no time,
//! which the journal adds; elsewhere with its time and level.

use std::os::fd::AsFd;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::{Format, Full, Writer},
    },
    registry::LookupSpan,
};

/// Whether that goes to the journal: its variable names the very stream.
fn takes(out: impl AsFd) -> bool {
    let Ok(named) = std::env::var("JOURNAL_STREAM") else { return false };
    rustix::fs::fstat(out).is_ok_and(|is| named == format!("{}:{}", is.st_dev, is.st_ino))
}

/// How an event becomes a line.
pub enum Lines {
    Plain(Format<Full>),
    Journal(Format<Full, ()>),
}

impl Lines {
    /// Those for what is written to `out`.
    pub fn to(out: impl AsFd) -> Lines {
        let format = Format::default().with_ansi(false);
        match takes(out) {
            true => Lines::Journal(format.without_time().with_level(false)),
            false => Lines::Plain(format),
        }
    }
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut line: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        match self {
            Lines::Plain(format) => format.format_event(context, line, event),
            Lines::Journal(format) => {
                write!(line, "<{}>", priority(*event.metadata().level()))?;
                format.format_event(context, line, event)
            }
        }
    }
}

/// That of syslog(3).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_named_stream_is_the_journal() {
        let file = tempfile::tempfile().unwrap();
        assert!(!takes(&file), "whatever this process inherited names another");
        assert_eq!([Level::ERROR, Level::WARN, Level::INFO, Level::TRACE].map(priority), [3, 4, 6, 7]);
    }
}
