//! Straight lines through measured points, by least squares: what each part of a load adds, and how a steady load
//! drifts. Pure. A line through fewer than three points says nothing and is not given.

use serde::Serialize;

use crate::plan::{Figure, Step};

/// A line fits if it leaves less than this part of the differences unexplained.
const UNEXPLAINED: f64 = 0.05;

/// A line through points.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Line {
    /// Value at 0.
    pub base: f64,
    /// What one more adds.
    pub each: f64,
    /// Which part of the differences it explains, 0 to 1; 1 where there are none.
    pub explains: f64,
}

impl Line {
    /// Its value there.
    pub fn at(&self, x: f64) -> f64 {
        self.base + self.each * x
    }
}

/// The line with the least squares; `None` of fewer than three different places.
pub fn through(points: &[(f64, f64)]) -> Option<Line> {
    let n = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let (mut xx, mut xy, mut yy) = (0.0, 0.0, 0.0);
    for (a, b) in points {
        xx += (a - x) * (a - x);
        xy += (a - x) * (b - y);
        yy += (b - y) * (b - y);
    }
    if points.len() < 3 || xx <= 0.0 {
        return None;
    }
    let each = xy / xx;
    let explains = if yy <= f64::EPSILON * y * y { 1.0 } else { xy * xy / (xx * yy) };
    Some(Line { base: y - each * x, each, explains })
}

/// The line through the steps of a load, as far as it is one.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Fit {
    /// The line.
    pub line: Line,
    /// The last step that it goes through.
    pub upto: u32,
    /// Whether the steps go on beyond, where it no longer holds.
    pub bends: bool,
}

/// The line through all points (step and value, ascending) up to the knee.
pub fn fit(points: &[(u32, f64)], knee: Option<u32>) -> Option<Fit> {
    let upto = knee.or(points.last().map(|point| point.0))?;
    let before = points.iter().filter(|point| point.0 <= upto);
    let line = through(&before.map(|(step, value)| (f64::from(*step), *value)).collect::<Vec<_>>())?;
    Some(Fit { line, upto, bends: knee.is_some() })
}

impl Fit {
    /// One sentence for people. Only what goes on straight to the last step is carried on, to twice as many.
    pub fn words(&self, of: Step, figure: Figure, show: &dyn Fn(Figure, f64) -> String) -> String {
        let (upto, explains) = (of.count(self.upto), self.line.explains);
        if explains < 1.0 - UNEXPLAINED || self.line.each <= 0.0 {
            return format!(
                "no straight line fits up to {upto} (r² {explains:.2}), so nothing is extrapolated"
            );
        }
        let each = show(figure, self.line.each);
        let what = if figure == Figure::Bytes { "bytes of payload" } else { "operations" };
        let fits =
            format!("up to {upto} one more of them adds {each} ({what}; linear fit, r² {explains:.2})");
        if self.bends {
            return format!("{fits}; beyond it the line does not hold, so nothing is extrapolated");
        }
        let twice = self.upto * 2;
        format!(
            "{fits}; extrapolated, not measured: {} would give {}, if nothing becomes full before",
            of.count(twice),
            show(figure, self.line.at(f64::from(twice)))
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(_: Figure, value: f64) -> String {
        format!("{value:.0}")
    }

    #[test]
    fn a_line_is_found_and_says_how_well_it_fits() {
        // The source's own: 42,000 for each two clients, 20,000 for the last.
        let clients = [(2.0, 42e3), (4.0, 84e3), (6.0, 126e3), (8.0, 168e3), (9.0, 188e3)];
        let line = through(&clients).unwrap();
        assert!((line.each - 20.9e3).abs() < 200.0 && line.explains > 0.999, "{line:?}");
        let flat = through(&[(1.0, 5.0), (2.0, 5.0), (3.0, 5.0)]).unwrap();
        assert_eq!((flat.each, flat.explains, flat.at(9.0)), (0.0, 1.0, 5.0));
        assert_eq!(through(&clients[..2]), None);
        assert_eq!(through(&[(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)]), None);
    }

    #[test]
    fn only_what_goes_on_straight_is_extrapolated() {
        let line = Line { base: 0.0, each: 1000.0, explains: 0.99 };
        let words = |line, bends| Fit { line, upto: 9, bends }.words(Step::Nodes, Figure::Operations, &show);
        let straight = words(line, false);
        assert!(straight.contains("18 client nodes") && straight.contains("not measured"), "{straight}");
        for (line, bends) in [(line, true), (Line { explains: 0.5, ..line }, false)] {
            assert!(words(line, bends).ends_with("nothing is extrapolated"));
        }
    }
}
