//! Words that several forms of the report share.

use crate::verdict::Limit;

/// Text in HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Milliseconds since 1970 as a date and time, UTC (the days-to-civil algorithm of Howard Hinnant).
pub fn date(ms: u64) -> String {
    let (days, seconds) = ((ms / 86_400_000) as i64, ms / 1000 % 86_400);
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + i64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60)
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
}
