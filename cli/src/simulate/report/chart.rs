//! A chart of admitted and denied requests over time, in SVG.

use std::fmt::Write as _;

use super::client::time;
use crate::output::grouped;
use crate::simulate::series::Series;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 160.0;
/// Space for the numbers on the left, and for the times below.
const LEFT: f64 = 56.0;
const BELOW: f64 = 22.0;

/// Draws stacked bars: denied requests above admitted ones. Each bar tells its numbers to a pointer. A line is the limit, if it is one
/// of all requests together: a number, and its period in microseconds.
pub(super) fn chart(series: &Series, limit: Option<(u64, u64)>) -> String {
    let limit = limit.map(|(number, period)| number as f64 * series.interval_micros as f64 / period as f64);
    let most = series.intervals.iter().map(|[admitted, denied]| admitted + denied).max().unwrap_or(0).max(1);
    let most = most.max(limit.map_or(0, |limit| limit.ceil() as u64));
    let width = (WIDTH - LEFT) / series.intervals.len().max(1) as f64;
    let height = |count: u64| count as f64 / most as f64 * HEIGHT;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"Requests over time\">\n",
        HEIGHT + BELOW + 8.0
    );
    // Writing to a string cannot fail.
    for (part, number) in [(1.0, most), (0.5, most / 2), (0.0, 0)] {
        let y = 8.0 + HEIGHT * (1.0 - part);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text class=\"y\" x=\"{}\" y=\"{:.1}\">{}</text>",
            LEFT - 6.0,
            y + 4.0,
            grouped(number)
        );
    }
    for (n, &[admitted, denied]) in series.intervals.iter().enumerate() {
        if admitted + denied == 0 {
            continue;
        }
        let (x, bar) = (LEFT + n as f64 * width, (width * 0.9).max(0.5));
        let begin = time(series.begin_micros + n as u64 * series.interval_micros);
        let (lower, upper) = (height(admitted), height(denied));
        let bottom = 8.0 + HEIGHT;
        let _ = writeln!(
            svg,
            "<g><title>{begin}: {} not denied, {} denied</title><rect class=\"admitted\" x=\"{x:.2}\" y=\"{:.2}\" width=\"{bar:.2}\" height=\"{lower:.2}\"/><rect class=\"denied\" x=\"{x:.2}\" y=\"{:.2}\" width=\"{bar:.2}\" height=\"{upper:.2}\"/></g>",
            grouped(admitted),
            grouped(denied),
            bottom - lower,
            bottom - lower - upper,
        );
    }
    if let Some(limit) = limit {
        let y = 8.0 + HEIGHT - limit / most as f64 * HEIGHT;
        let _ = writeln!(
            svg,
            "<line class=\"limit\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"><title>the limit: {limit:.0} in each interval</title></line>"
        );
    }
    let last = series.begin_micros + series.intervals.len() as u64 * series.interval_micros;
    let y = HEIGHT + BELOW;
    for (x, anchor, at) in [
        (LEFT, "start", series.begin_micros),
        ((LEFT + WIDTH) / 2.0, "middle", series.begin_micros.midpoint(last)),
        (WIDTH, "end", last),
    ] {
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{}</text>", time(at));
    }
    svg + "</svg>\n"
}
