//! Numbers for people: three figures and a decimal prefix.

use crate::plan::Figure;

/// A figure with its unit: `12.3 k/s`, `1.23 GB/s` (decimal), `1.50 s`.
pub fn show(figure: Figure, value: f64) -> String {
    match figure {
        Figure::Operations => format!("{}/s", short(value)),
        Figure::Bytes => format!("{}B/s", short(value)),
        Figure::Seconds => time(value * 1e6),
    }
}

/// The unit of a figure.
pub fn unit(figure: Figure) -> &'static str {
    match figure {
        Figure::Operations => "operations/s",
        Figure::Bytes => "bytes/s",
        Figure::Seconds => "s",
    }
}

/// Three figures and a prefix, with a space before the prefix.
pub fn short(value: f64) -> String {
    let (scale, prefix) = match value.abs() {
        v if v >= 1e12 => (1e12, "T"),
        v if v >= 1e9 => (1e9, "G"),
        v if v >= 1e6 => (1e6, "M"),
        v if v >= 1e3 => (1e3, "k"),
        _ => (1.0, ""),
    };
    let scaled = value / scale;
    let digits = if scaled.fract().abs() < 1e-9 { 0 } else { behind_point(scaled) };
    format!("{scaled:.digits$} {prefix}")
}

/// How many digits behind the point make three in all.
fn behind_point(value: f64) -> usize {
    match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    }
}

/// Microseconds as people say them, in three figures.
pub fn time(us: f64) -> String {
    let (scale, unit) = match us {
        us if us >= 1e6 => (1e6, "s"),
        us if us >= 1e3 => (1e3, "ms"),
        us => return format!("{us:.0} µs"),
    };
    let scaled = us / scale;
    format!("{scaled:.*} {unit}", behind_point(scaled))
}

/// A part as percent.
pub fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

/// Round steps for an axis that ends at or above `top`: the distance, and how many.
pub fn ticks(top: f64) -> (f64, u32) {
    if !top.is_finite() || top <= 0.0 {
        return (1.0, 1);
    }
    let rough = top / 4.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|m| m * power).find(|step| *step >= rough * 0.999);
    let step = step.unwrap_or(10.0 * power);
    (step, (top / step - 1e-9).ceil().max(1.0) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(show(Figure::Operations, 12_345.0), "12.3 k/s");
        assert_eq!(show(Figure::Bytes, 1.2e9), "1.20 GB/s");
        assert_eq!(show(Figure::Bytes, 0.0), "0 B/s");
        assert_eq!(show(Figure::Seconds, 40.0), "40.0 s");
        assert_eq!(
            (time(12.4), time(1500.0), time(262_144.0), time(2.5e6)),
            ("12 µs".into(), "1.50 ms".into(), "262 ms".into(), "2.50 s".into())
        );
        for top in [0.3, 1.0, 7.0, 99.0, 28.9e6] {
            let (step, n) = ticks(top);
            assert!(step * f64::from(n) >= top * 0.999 && (2..=5).contains(&n), "{top}: {step} x {n}");
        }
        assert_eq!(ticks(f64::NAN), (1.0, 1));
    }
}
