//! The line chart of a series: measured, the sum of the parts, and the lowest bound. Plain SVG; colours are the
//! page's variables, so that light, dark and print need no second picture. Values show when pointed at.

use std::fmt::Write;

use super::{
    build::SeriesReport,
    numbers::{percent, show, ticks},
    words::escape,
};
use crate::{
    expect::Point,
    plan::{Figure, Step},
};

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 68.0;
const RIGHT: f64 = 96.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 44.0;
/// Labels at line ends are at least this far apart.
const LABEL: f64 = 14.0;

struct Axes {
    steps: f64,
    top: f64,
}

impl Axes {
    fn x(&self, step: f64) -> f64 {
        LEFT + step / self.steps * (WIDTH - LEFT - RIGHT)
    }
    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - value / self.top * (HEIGHT - TOP - BOTTOM)
    }
}

/// The chart.
pub fn line_chart(of: Step, report: &SeriesReport) -> String {
    let points = &report.analysis.points;
    let highest = points.iter().map(|p| p.measured.max(p.expected.value)).fold(0.0, f64::max);
    // The parts' sum may run far above everything else; it is cut off there.
    let (step, n) = ticks(highest * 1.15);
    let axes = Axes { steps: points.last().map_or(1.0, |p| f64::from(p.step)), top: step * f64::from(n) };
    let figure = report.series.figure;
    let title = format!("{} by {}", report.series.name, of.unit());
    let mut svg = format!(
        "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
        escape(&title)
    );
    grid(&mut svg, &axes, step, n, figure, of, points.iter().map(|p| p.step));
    let clip = |value: f64| value.min(axes.top);
    let line = |svg: &mut String, class: &str, values: &[(f64, f64)]| {
        let path: Vec<String> =
            values.iter().map(|(x, y)| format!("{:.1},{:.1}", axes.x(*x), axes.y(clip(*y)))).collect();
        let _ = writeln!(svg, "<polyline class=\"{class}\" points=\"{}\"/>", path.join(" "));
    };
    let at = |value: fn(&Point) -> f64| -> Vec<(f64, f64)> {
        points.iter().map(|p| (f64::from(p.step), value(p))).collect()
    };
    let (measured, sum, bound) = (at(|p| p.measured), at(|p| p.parts_sum), at(|p| p.expected.value));
    // From nothing: the sum of no parts is zero.
    line(&mut svg, "sum", &cut(&sum, axes.top));
    if bounded(points) {
        line(&mut svg, "bound", &bound);
    }
    line(&mut svg, "measured", &measured);
    if let Some(knee) = report.analysis.knee {
        let x = axes.x(f64::from(knee));
        let _ = writeln!(
            svg,
            "<line class=\"knee\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{:.1}\"/>\
             <text class=\"knee-label\" x=\"{:.1}\" y=\"{:.1}\">knee at {knee}</text>",
            HEIGHT - BOTTOM,
            x + 4.0,
            TOP - 6.0
        );
    }
    for p in points.iter() {
        let tip = format!(
            "{} {}: {}, {} of the parts' sum; bound by {}: {}",
            p.step,
            of.unit(),
            show(figure, p.measured),
            percent(p.efficiency),
            p.expected.layer,
            show(figure, p.expected.value)
        );
        let (x, y) = (axes.x(f64::from(p.step)), axes.y(clip(p.measured)));
        let _ = writeln!(
            svg,
            "<g><title>{}</title><circle class=\"dot\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{}\"/></g>",
            escape(&tip),
            if points.len() > 20 { 2.0 } else { 3.5 }
        );
    }
    labels(&mut svg, &axes, report);
    svg.push_str("</svg>\n");
    svg
}

/// Whether something lies below the sum of the parts.
fn bounded(points: &[Point]) -> bool {
    points.iter().any(|p| (p.expected.value - p.parts_sum).abs() >= 1e-9 * p.parts_sum)
}

/// A rising line up to the top of the picture.
fn cut(line: &[(f64, f64)], top: f64) -> Vec<(f64, f64)> {
    let mut out: Vec<(f64, f64)> = Vec::new();
    for &(x, y) in line {
        if y <= top {
            out.push((x, y));
            continue;
        }
        let (x0, y0) = out.last().copied().unwrap_or((0.0, 0.0));
        out.push((x0 + (x - x0) * (top - y0) / (y - y0).max(f64::MIN_POSITIVE), top));
        break;
    }
    out
}

fn grid(
    svg: &mut String,
    axes: &Axes,
    step: f64,
    n: u32,
    figure: Figure,
    of: Step,
    steps: impl Iterator<Item = u32>,
) {
    for i in 0..=n {
        let value = step * f64::from(i);
        let y = axes.y(value);
        let text = if i == 0 { "0".to_owned() } else { show(figure, value) };
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"tick\" text-anchor=\"end\" x=\"{:.1}\" y=\"{:.1}\">{text}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            y + 4.0
        );
    }
    let mut last = f64::MIN;
    for value in steps {
        let x = axes.x(f64::from(value));
        if x - last < 18.0 {
            continue;
        }
        last = x;
        let _ = writeln!(
            svg,
            "<text class=\"tick\" text-anchor=\"middle\" x=\"{x:.1}\" y=\"{:.1}\">{value}</text>",
            HEIGHT - BOTTOM + 17.0
        );
    }
    let _ = writeln!(
        svg,
        "<text class=\"axis\" text-anchor=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 8.0,
        of.unit()
    );
}

/// Names at the ends of the lines, moved apart where they would overlap.
fn labels(svg: &mut String, axes: &Axes, report: &SeriesReport) {
    let Some(last) = report.analysis.points.last() else { return };
    let mut names = vec![("measured", "measured".to_owned(), last.measured)];
    if bounded(&report.analysis.points) {
        names.push(("bound", format!("bound: {}", last.expected.layer), last.expected.value));
    }
    names.push(("sum", "sum of parts".to_owned(), last.parts_sum));
    let mut placed: Vec<(&str, String, f64)> =
        names.into_iter().map(|(class, name, value)| (class, name, axes.y(value.min(axes.top)))).collect();
    placed.sort_by(|a, b| a.2.total_cmp(&b.2));
    for i in 1..placed.len() {
        placed[i].2 = placed[i].2.max(placed[i - 1].2 + LABEL);
    }
    for (class, name, y) in placed {
        let _ = writeln!(
            svg,
            "<text class=\"label {class}-label\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            WIDTH - RIGHT + 6.0,
            y + 4.0,
            escape(&name)
        );
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_line_that_leaves_the_picture_is_cut_at_its_edge() {
        assert_eq!(
            super::cut(&[(1.0, 1.0), (2.0, 2.0), (4.0, 4.0)], 3.0),
            [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]
        );
        assert_eq!(super::cut(&[(1.0, 1.0)], 3.0), [(1.0, 1.0)]);
    }
}
