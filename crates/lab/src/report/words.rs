//! Words that several forms of the report share.

use super::{build::SeriesReport, numbers::show};
use crate::{plan::Step, verdict::Limit};

/// Text in HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Sentences in HTML: what stands between backticks is what one types.
pub fn prose(text: &str) -> String {
    let mut parts: Vec<&str> = text.split('`').collect();
    // One without its other is only a character.
    let rest = if parts.len().is_multiple_of(2) { parts.pop() } else { None };
    let part = |(n, part): (usize, &&str)| match n % 2 {
        0 => escape(part),
        _ => format!("<code>{}</code>", escape(part)),
    };
    let html: String = parts.iter().enumerate().map(part).collect();
    rest.map_or(html.clone(), |rest| format!("{html}`{}", escape(rest)))
}

/// Milliseconds since 1970 as a date and time, UTC.
pub fn date(ms: u64) -> String {
    let text = base::when::date_time(ms / 1000);
    format!("{} UTC", &text[..text.len() - ":00Z".len()])
}

/// What each more part of a load adds, as far as a straight line says it.
pub fn fit(of: Step, series: &SeriesReport) -> Option<String> {
    Some(series.analysis.fit?.words(of, series.series.figure, &show))
}

/// A limit in a word or two.
pub fn limit_name(limit: Limit) -> &'static str {
    match limit {
        Limit::None => "no limit found",
        Limit::Cpu => "CPU",
        Limit::PinnedCpu => "pinned CPU",
        Limit::LoadThread => "load generator",
        Limit::Clients => "too few clients",
        Limit::SlowDevice => "slow part",
        Limit::Device => "shared disk",
        Limit::Link => "link",
        Limit::HashPolicy => "hash policy",
        Limit::Queue => "queue",
        Limit::Memory => "memory",
        Limit::PagePool => "page pool",
        Limit::Manager => "manager",
        Limit::Tokens => "write tokens",
        Limit::Neighbour => "other programs",
        Limit::Drift => "drift",
        Limit::NotKnown => "not known",
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn dates_and_escapes() {
        assert_eq!(super::date(0), "1970-01-01 00:00 UTC");
        assert_eq!(super::date(951_782_400_000), "2000-02-29 00:00 UTC");
        assert_eq!(super::date(1_795_269_660_000), "2026-11-21 14:01 UTC");
        assert_eq!(super::escape("<a href=\"&\">"), "&lt;a href=&quot;&amp;&quot;&gt;");
    }

    #[test]
    fn what_one_types_stands_out_and_a_single_backtick_stays() {
        assert_eq!(super::prose("of `a<b` and `c`"), "of <code>a&lt;b</code> and <code>c</code>");
        assert_eq!(super::prose("`a` it`s <"), "<code>a</code> it`s &lt;");
        assert_eq!(super::prose("plain"), "plain");
    }
}
