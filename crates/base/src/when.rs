//! Dates and times of day in UTC, as people write them, and seconds since 1970. The days-to-civil algorithms are Howard Hinnant's.

/// `2026-11-25 10:00:00Z`.
pub fn date_time(seconds: u64) -> String {
    let days = (seconds / 86_400) as i64;
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + i64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {}", time_of_day(seconds))
}

/// `10:00:00Z`.
pub fn time_of_day(seconds: u64) -> String {
    let of_day = seconds % 86_400;
    format!("{:02}:{:02}:{:02}Z", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

fn days(year: i64, month: u32, day: u32) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let yoe = year.rem_euclid(400);
    let mp = i64::from((month + 9) % 12);
    let doy = (153 * mp + 2) / 5 + i64::from(day) - 1;
    era * 146_097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719_468
}

/// A number of so many digits.
fn digits(text: &str, count: usize) -> Option<u32> {
    (text.len() == count && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

/// Reads `2026-11-25`, `2026-11-25T10:00`, `2026-11-25T10:00:30`, with `Z` or `+02:00` behind a time; without, it is UTC. Seconds
/// since 1970; none if it is no time from 1970 to 9999.
pub fn parse(text: &str) -> Option<u64> {
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "00:00"));
    let [year, month, day] = date.split('-').collect::<Vec<_>>()[..] else { return None };
    let (year, month, day) = (i64::from(digits(year, 4)?), digits(month, 2)?, digits(day, 2)?);
    let (clock, ahead) = match time.strip_suffix('Z') {
        Some(clock) => (clock, 0),
        None => match time.find(['+', '-']) {
            Some(at) => (&time[..at], zone(&time[at..])?),
            None => (time, 0),
        },
    };
    let (hour, minute, second) = match clock.split(':').collect::<Vec<_>>()[..] {
        [hour, minute] => (digits(hour, 2)?, digits(minute, 2)?, 0),
        [hour, minute, second] => (digits(hour, 2)?, digits(minute, 2)?, digits(second, 2)?),
        _ => return None,
    };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let month_days = match month {
        2 => 28 + u32::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=month_days).contains(&day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let of_day = i64::from(hour * 3600 + minute * 60 + second);
    u64::try_from(days(year, month, day) * 86_400 + of_day - ahead).ok()
}

/// `+02:00`, seconds.
fn zone(text: &str) -> Option<i64> {
    let (hours, minutes) = text[1..].split_once(':')?;
    let seconds = i64::from(digits(hours, 2)? * 3600 + digits(minutes, 2)? * 60);
    Some(if text.starts_with('-') { -seconds } else { seconds })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_as_they_are_written() {
        assert_eq!(parse("1970-01-01"), Some(0));
        assert_eq!(parse("2026-11-25T10:00"), Some(1_795_600_800));
        assert_eq!(parse("2026-11-25 10:00:30Z"), Some(1_795_600_830));
        assert_eq!(parse("2026-11-25T12:00+02:00"), parse("2026-11-25T10:00"));
        assert_eq!(date_time(1_795_600_830), "2026-11-25 10:00:30Z");
        assert_eq!(parse("2028-02-29").map(date_time).as_deref(), Some("2028-02-29 00:00:00Z"));
        for wrong in [
            "",
            "2026",
            "2026-02-29",
            "2026-13-01",
            "2026-1-1",
            "2026-11-25T24:00",
            "2026-11-25T10",
            "1969-12-31",
            "2026-11-25T10:00+2",
            "x-y-z",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_again(seconds in 0u64..253_402_300_800) {
            prop_assert_eq!(parse(&date_time(seconds)), Some(seconds));
        }

        #[test]
        fn nothing_panics(text in "[0-9T:+Z é-]{0,24}") {
            let _ = parse(&text);
        }
    }
}
