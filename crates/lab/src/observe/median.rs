//! The middle of several values, and of a time.

/// The median; 0 of nothing.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// The mean over the middle of a load: its first and last interval are partly before and behind it, and so is what at either end is
/// less than half of what is usual. A mean, because what comes in bursts fills some intervals more than others, and because
/// what belongs together (a rate and its payload, a CPU's time and whose it is) must be of the same time.
pub(super) fn steady(values: &[f64]) -> f64 {
    let mut middle = if values.len() >= 4 { &values[1..values.len() - 1] } else { values };
    let half = median(middle) / 2.0;
    while let [first, rest @ ..] = middle
        && *first < half
    {
        middle = rest;
    }
    while let [rest @ .., last] = middle
        && *last < half
    {
        middle = rest;
    }
    if middle.is_empty() { 0.0 } else { middle.iter().sum::<f64>() / middle.len() as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!((median(&[]), median(&[3.0]), median(&[9.0, 1.0, 2.0])), (0.0, 3.0, 2.0));
        assert_eq!(median(&[1.0, 2.0, 3.0, 4.0]), 2.5);
    }

    #[test]
    fn what_begins_late_and_ends_early_is_not_diluted_and_bursts_count_whole() {
        assert_eq!((steady(&[]), steady(&[3.0]), steady(&[1.0, 3.0])), (0.0, 3.0, 2.0));
        assert_eq!(steady(&[0.0, 0.0, 0.1, 6.0, 6.0, 6.0, 6.0, 0.0]), 6.0);
        // A throttle lets go thirty each 100 ms: two or three times in 250 ms.
        assert_eq!(steady(&[60.0, 60.0, 90.0, 60.0, 90.0, 0.0]), 75.0);
        // What pauses in the middle is less.
        assert_eq!(steady(&[0.0, 8.0, 8.0, 0.0, 8.0, 8.0, 0.0]), 6.4);
    }
}
