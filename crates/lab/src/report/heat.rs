//! The latency heat map of a load that changes while it runs: time to the right, latency upwards by powers of
//! two, darker where more operations ended.

use std::fmt::Write;

use super::numbers::time;
use crate::cell::Second;

const WIDTH: f64 = 520.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 10.0;
const ROW: f64 = 14.0;
const BOTTOM: f64 = 42.0;

/// The heat map; empty where nothing was counted. `seconds` is the length of one period.
pub fn heat_map(timeline: &[Second], seconds: f64, unit: &str) -> String {
    let counted = |i: usize| timeline.iter().any(|s| s.buckets.get(i).is_some_and(|n| *n > 0));
    let longest = timeline.iter().map(|s| s.buckets.len()).max().unwrap_or(0);
    let (Some(low), Some(high)) =
        ((0..longest).find(|i| counted(*i)), (0..longest).rev().find(|i| counted(*i)))
    else {
        return String::new();
    };
    let rows = (high - low + 1) as f64;
    let height = TOP + rows * ROW + BOTTOM;
    let column = (WIDTH - LEFT - RIGHT) / timeline.len() as f64;
    let most = timeline.iter().flat_map(|s| s.buckets.iter()).copied().max().unwrap_or(1).max(1) as f64;
    let mut svg = format!(
        "<svg class=\"chart heat\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"latency heat map\">\n"
    );
    for i in low..=high + 1 {
        let y = TOP + (high + 1 - i) as f64 * ROW;
        if (i - low) % 2 == 0 {
            let us = 2f64.powi(i as i32);
            let _ = writeln!(
                svg,
                "<text class=\"tick\" text-anchor=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                LEFT - 6.0,
                y + 4.0,
                time(us)
            );
        }
    }
    for (t, second) in timeline.iter().enumerate() {
        for i in low..=high {
            let count = second.buckets.get(i).copied().unwrap_or(0);
            if count == 0 {
                continue;
            }
            // The square root keeps rare slow operations visible.
            let darkness = (count as f64 / most).sqrt().clamp(0.06, 1.0);
            let _ = writeln!(
                svg,
                "<g><title>{} {unit}, {} to {}: {count}</title><rect class=\"hot\" fill-opacity=\"{darkness:.2}\" \
                 x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"/></g>",
                second.parts,
                time(2f64.powi(i as i32)),
                time(2f64.powi(i as i32 + 1)),
                LEFT + t as f64 * column,
                TOP + (high - i) as f64 * ROW,
                (column - 0.5).max(0.5),
                ROW - 1.0
            );
        }
    }
    let every = (timeline.len() as f64 / 12.0).ceil().max(1.0) as usize;
    for (t, second) in timeline.iter().enumerate().filter(|(t, _)| t % every == 0) {
        let _ = writeln!(
            svg,
            "<text class=\"tick\" text-anchor=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            LEFT + (t as f64 + 0.5) * column,
            TOP + rows * ROW + 15.0,
            second.parts
        );
    }
    let _ = writeln!(
        svg,
        "<text class=\"axis\" text-anchor=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{unit}, one more each {seconds} s</text>\n</svg>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        height - 8.0
    );
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counted_bucket_is_one_rectangle() {
        let second = |parts, buckets: &[u64]| Second {
            parts,
            operations: buckets.iter().sum(),
            buckets: buckets.to_vec(),
        };
        let map = heat_map(&[second(1, &[0, 5, 1]), second(2, &[0, 2])], 1.0, "writers");
        assert_eq!(map.matches("<rect").count(), 3, "{map}");
        assert!(map.contains("fill-opacity=\"1.00\"") && map.contains("2 µs to 4 µs: 5"), "{map}");
        // What stands beside an axis has room for seven letters.
        let map = heat_map(&[second(1, &[1; 26])], 1.0, "writers");
        let labels =
            map.split("text-anchor=\"end\"").skip(1).filter_map(|label| label.split(['>', '<']).nth(1));
        let longest = labels.max_by_key(|label| label.chars().count());
        assert_eq!(longest.map(|label| label.chars().count()), Some(7), "{longest:?}");
        assert_eq!(heat_map(&[second(1, &[0])], 1.0, "writers"), "");
        assert_eq!(heat_map(&[], 1.0, "writers"), "");
    }
}
