//! Charts as SVG: panels below one another over a common axis, each with lines. A writer of our own, for lines and text
//! are all that is needed: crates for charts bring rasterizers and fonts.

use std::fmt::Write as _;

const WIDTH: f64 = 800.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 24.0;
const PANEL: f64 = 230.0;
/// Above each panel: a margin, and each line of its legend.
const MARGIN: f64 = 22.0;
const LEGEND: f64 = 18.0;
const TITLE: f64 = 40.0;
const FOOT: f64 = 52.0;
/// Colours that the colour-blind tell apart: Okabe and Ito, <https://jfly.uni-koeln.de/color/>.
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#333333"];

/// A chart.
#[derive(Debug)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) panels: Vec<Panel>,
    /// Upright lines through all panels, with what they mean.
    pub(crate) marks: Vec<(f64, String)>,
}

/// The common axis.
#[derive(Debug)]
pub(crate) struct Axis {
    pub(crate) label: String,
    pub(crate) from: f64,
    pub(crate) to: f64,
    /// Whether each doubling is as wide as the other.
    pub(crate) doubling: bool,
}

/// One panel.
#[derive(Debug)]
pub(crate) struct Panel {
    pub(crate) label: String,
    /// Whether each doubling is as high as the other; otherwise the axis begins at 0.
    pub(crate) doubling: bool,
    pub(crate) lines: Vec<Line>,
}

/// A line.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) name: String,
    /// Which colour.
    pub(crate) colour: usize,
    pub(crate) dashed: bool,
    /// Whether it goes in steps: each value holds until the next.
    pub(crate) steps: bool,
    pub(crate) points: Vec<Point>,
}

/// A point, with the lowest and the highest of what it is the median of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) spread: Option<(f64, f64)>,
}

impl Axis {
    fn at(&self, x: f64) -> f64 {
        let scale = |x: f64| if self.doubling { x.log2() } else { x };
        let share = (scale(x) - scale(self.from)) / (scale(self.to) - scale(self.from));
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.doubling {
            let doubled = std::iter::successors(Some(self.from), |tick| Some(tick * 2.0));
            return doubled.take_while(|&tick| tick <= self.to).collect();
        }
        let step = step(self.to - self.from, 12.0);
        let first = (self.from / step).ceil() as i64;
        (first..).map(|n| n as f64 * step).take_while(|&tick| tick <= self.to + step * 1e-6).collect()
    }
}

impl Panel {
    /// The ticks of its axis, from its beginning to its end.
    fn ticks(&self) -> Vec<f64> {
        let points = self.lines.iter().flat_map(|line| &line.points);
        let (mut low, mut high) = (f64::INFINITY, f64::MIN_POSITIVE);
        for point in points {
            let (from, to) = point.spread.unwrap_or((point.y, point.y));
            (low, high) = (low.min(from), high.max(to));
        }
        if self.doubling {
            let power = |value: f64| value.max(1e-9).log2();
            let powers = power(low).floor() as i32..=power(high).ceil() as i32;
            return powers.map(|power| 2f64.powi(power)).collect();
        }
        let step = step(high * 1.04, 5.0);
        (0..=(high * 1.04 / step).ceil() as i32).map(|n| f64::from(n) * step).collect()
    }
}

impl Panel {
    /// Where each line of the legend begins: how far from the left, and in which row.
    fn legend(&self) -> Vec<(f64, usize)> {
        let (mut at, mut row) = (LEFT, 0);
        let place = |line: &Line| {
            let width = 52.0 + 7.4 * line.name.chars().count() as f64;
            if at > LEFT && at + width > WIDTH {
                (at, row) = (LEFT, row + 1);
            }
            at += width;
            (at - width, row)
        };
        self.lines.iter().map(place).collect()
    }

    fn head(&self) -> f64 {
        let rows = self.legend().last().map_or(0, |last| last.1 + 1);
        MARGIN + LEGEND * rows as f64
    }
}

/// A round distance of ticks, so that there are at most so many.
fn step(length: f64, most: f64) -> f64 {
    let tens = 10f64.powf((length / most).log10().floor());
    let fits = [1.0, 2.0, 5.0, 10.0].into_iter().find(|times| times * tens * most >= length);
    fits.unwrap_or(10.0) * tens
}

impl Chart {
    /// The chart as a file.
    pub(crate) fn svg(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let panels = self.panels.iter().map(|panel| panel.head() + PANEL).sum::<f64>();
        let height = TITLE + panels + FOOT;
        writeln!(
            out,
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" font-family="DejaVu Sans, Verdana, Helvetica, Arial, sans-serif" font-size="13" fill="#222">"##
        )?;
        writeln!(out, r##"<rect width="{WIDTH}" height="{height}" fill="#fff"/>"##)?;
        let middle = WIDTH / 2.0;
        writeln!(
            out,
            r#"<text x="{middle}" y="27" font-size="16" font-weight="bold" text-anchor="middle">{}</text>"#,
            text(&self.title)
        )?;
        let mut top = TITLE;
        for (number, panel) in self.panels.iter().enumerate() {
            top += panel.head();
            self.panel(out, panel, top, number + 1 == self.panels.len())?;
            for (at, (x, what)) in self.marks.iter().enumerate() {
                let (x, bottom) = (self.x.at(*x), top + PANEL);
                writeln!(
                    out,
                    r##"<path d="M{x:.1} {top}V{bottom}" stroke="#555" stroke-dasharray="2 3"/>"##
                )?;
                if number == 0 {
                    let y = top + 16.0 + 17.0 * at as f64;
                    writeln!(out, r##"<text x="{:.1}" y="{y}" fill="#555">{}</text>"##, x + 5.0, text(what))?;
                }
            }
            top += PANEL;
        }
        let label = height - 12.0;
        writeln!(
            out,
            r#"<text x="{:.1}" y="{label}" text-anchor="middle">{}</text>"#,
            (LEFT + WIDTH - RIGHT) / 2.0,
            text(&self.x.label)
        )?;
        writeln!(out, "</svg>")
    }

    fn panel(&self, out: &mut String, panel: &Panel, top: f64, last: bool) -> std::fmt::Result {
        let ticks = panel.ticks();
        let scale = |value: f64| if panel.doubling { value.log2() } else { value };
        let ends = [ticks.first(), ticks.last()].map(|end| scale(end.copied().unwrap_or(1.0)));
        let (bottom, right) = (top + PANEL, WIDTH - RIGHT);
        let y = |value: f64| bottom - (scale(value) - ends[0]) / (ends[1] - ends[0]) * PANEL;
        for tick in ticks {
            let at = y(tick);
            writeln!(out, r##"<path d="M{LEFT} {at:.1}H{right}" stroke="#ddd"/>"##)?;
            writeln!(
                out,
                r#"<text x="{}" y="{:.1}" text-anchor="end">{}</text>"#,
                LEFT - 8.0,
                at + 4.5,
                number(tick)
            )?;
        }
        for tick in self.x.ticks() {
            let at = self.x.at(tick);
            writeln!(out, r##"<path d="M{at:.1} {bottom}v5" stroke="#222"/>"##)?;
            if last {
                let under = bottom + 20.0;
                writeln!(
                    out,
                    r#"<text x="{at:.1}" y="{under}" text-anchor="middle">{}</text>"#,
                    number(tick)
                )?;
            }
        }
        writeln!(out, r##"<path d="M{LEFT} {top}V{bottom}H{right}" stroke="#222" fill="none"/>"##)?;
        let centre = top + PANEL / 2.0;
        writeln!(
            out,
            r#"<text transform="translate(18 {centre}) rotate(-90)" text-anchor="middle">{}</text>"#,
            text(&panel.label)
        )?;
        let places = panel.legend();
        let rows = places.last().map_or(0, |last| last.1);
        for (line, (at, row)) in panel.lines.iter().zip(places) {
            let colour = COLOURS[line.colour % COLOURS.len()];
            let style = if line.dashed { r#" stroke-dasharray="6 4""# } else { "" };
            let legend = top - 14.0 - LEGEND * (rows - row) as f64;
            writeln!(out, r#"<path d="M{at:.1} {legend}h26" stroke="{colour}" stroke-width="2.2"{style}/>"#)?;
            writeln!(out, r#"<text x="{:.1}" y="{}">{}</text>"#, at + 32.0, legend + 4.5, text(&line.name))?;
            let mut path = String::new();
            for (index, point) in line.points.iter().enumerate() {
                let (px, py) = (self.x.at(point.x), y(point.y));
                match index {
                    0 => write!(path, "M{px:.1} {py:.1}")?,
                    _ if line.steps => write!(path, "H{px:.1}V{py:.1}")?,
                    _ => write!(path, "L{px:.1} {py:.1}")?,
                }
                if let Some((low, high)) = point.spread {
                    let (low, high) = (y(low), y(high));
                    writeln!(
                        out,
                        r#"<path d="M{px:.1} {low:.1}V{high:.1}" stroke="{colour}" stroke-width="5" opacity="0.25"/>"#
                    )?;
                }
                if !line.steps {
                    writeln!(out, r#"<circle cx="{px:.1}" cy="{py:.1}" r="2.8" fill="{colour}"/>"#)?;
                }
            }
            writeln!(
                out,
                r#"<path d="{path}" fill="none" stroke="{colour}" stroke-width="2.2" stroke-linejoin="round"{style}/>"#
            )?;
        }
        Ok(())
    }
}

/// `0.5`, `20`, `150k`.
fn number(value: f64) -> String {
    if value.abs() >= 10_000.0 {
        return format!("{}k", number(value / 1_000.0));
    }
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').replace("-0", if value == 0.0 { "0" } else { "-0" })
}

fn text(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!([1.0, 7.0, 43.0, 260_000.0].map(|length| step(length, 5.0)), [0.2, 2.0, 10.0, 100_000.0]);
        let axis = Axis { label: String::new(), from: 1.0, to: 8.0, doubling: true };
        assert_eq!(axis.ticks(), [1.0, 2.0, 4.0, 8.0]);
        let line = |y: f64| Line {
            name: String::new(),
            colour: 0,
            dashed: false,
            steps: false,
            points: vec![Point { x: 0.0, y, spread: None }],
        };
        let panel = |doubling| Panel { label: String::new(), doubling, lines: vec![line(3.0), line(11.0)] };
        assert_eq!(panel(true).ticks(), [2.0, 4.0, 8.0, 16.0]);
        assert_eq!(panel(false).ticks(), [0.0, 5.0, 10.0, 15.0]);
        assert_eq!([0.0, 0.5, -2.0, 100.0, 150_000.0].map(number), ["0", "0.5", "-2", "100", "150k"]);
    }

    #[test]
    fn a_chart_has_all_its_lines_within_its_frame() {
        let point = |x: f64, y: f64| Point { x, y, spread: None };
        let line = |name: &str| Line {
            name: name.to_owned(),
            colour: 0,
            dashed: false,
            steps: false,
            points: vec![point(0.0, 0.0), point(10.0, 5.0)],
        };
        let chart = Chart {
            title: "a < b".to_owned(),
            x: Axis { label: "s".to_owned(), from: 0.0, to: 10.0, doubling: false },
            panels: vec![Panel {
                label: "n".to_owned(),
                doubling: false,
                lines: vec![line("one"), line("other")],
            }],
            marks: vec![(5.0, "now".to_owned())],
        };
        let svg = chart.svg();
        assert!(
            svg.contains("a &lt; b")
                && svg.contains(">one<")
                && svg.contains(">other<")
                && svg.contains(">now<")
        );
        assert_eq!(svg.matches(r#"M78.0 310.0L776.0 118.3"#).count(), 2, "{svg}");
    }
}
