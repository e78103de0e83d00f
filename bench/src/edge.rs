//! What each algorithm admits of somebody who sends one request (which opens a window where windows are opened by
//! requests), and then as fast as possible, from just before the edge of the window on. The time is no clock's, so this
//! is the same in each run.

use std::time::Duration;

use crate::algorithms::{Named, all, check};
use crate::plot::{Axis, Chart, Line, Panel, Point};
use crate::row::{Aim, Checks, Row};

const REQUESTS: u64 = 100;
const PERIOD: Duration = Duration::from_secs(10);
/// An edge of aligned windows, in milliseconds since the Unix epoch.
const EDGE: i64 = 1_700_000_000_000;
/// The one request, and when all the others begin, in milliseconds before the edge.
const FIRST: i64 = 9_500;
const FLOOD: i64 = 500;
const UNTIL: i64 = 25_000;
/// In each millisecond.
const EACH: usize = 3;

/// Draws the chart and counts.
pub(crate) fn measure() -> anyhow::Result<(Chart, Vec<Row>)> {
    let all = all(REQUESTS, PERIOD)?;
    let passed: Vec<Vec<i64>> = all.iter().map(attack).collect();
    let rows = all.iter().zip(&passed).map(|(named, passed)| {
        let what = format!("{REQUESTS} in 10 s, the most that passed within 10 s: {}", named.name);
        let row = Row::alone(what, "requests", most(passed) as f64, &Checks::default());
        if named.strict { row.aim(Aim::AtMost(REQUESTS as f64)) } else { row }
    });
    let panel = |label: &str, window: bool| {
        let of = all.iter().zip(&passed).filter(|(named, _)| named.window == window);
        let lines = of.enumerate().map(|(colour, (named, passed))| Line {
            name: named.name.to_owned(),
            colour,
            dashed: colour % 2 == 1,
            steps: true,
            points: steps(passed),
        });
        Panel { label: label.to_owned(), doubling: false, lines: lines.collect() }
    };
    let chart = Chart {
        title: format!("{REQUESTS} requests in 10 s: one comes, and 9 s later {EACH} in each millisecond"),
        x: Axis {
            label: "seconds from the edge of an aligned window".to_owned(),
            from: -10.0,
            to: UNTIL as f64 / 1e3,
            doubling: false,
        },
        panels: vec![panel("passed so far: windows", true), panel("passed so far: buckets", false)],
        marks: vec![(0.0, "edge of an aligned window".to_owned())],
    };
    Ok((chart, rows.collect()))
}

/// When each request that was admitted passed, in milliseconds from the edge; a leaky bucket lets it wait.
fn attack(named: &Named) -> Vec<i64> {
    let (mut stored, mut passed) = (None, Vec::new());
    for (at, times) in [(-FIRST, 1)].into_iter().chain((-FLOOD..UNTIL).map(|at| (at, EACH))) {
        for _ in 0..times {
            let decision = check(&named.rate, &mut stored, (EDGE + at) as u64 * 1_000);
            if decision.admitted {
                passed.push(at + decision.delay.div_ceil(1_000) as i64);
            }
        }
    }
    passed.retain(|&at| at < UNTIL);
    passed
}

/// The most within any period.
fn most(passed: &[i64]) -> usize {
    let period = PERIOD.as_millis() as i64;
    let within = |(first, &at): (usize, &i64)| passed.partition_point(|&other| other < at + period) - first;
    passed.iter().enumerate().map(within).max().unwrap_or(0)
}

/// How many passed until when: those that passed at once are one step.
fn steps(passed: &[i64]) -> Vec<Point> {
    let point = |at: i64, count: usize| Point { x: at as f64 / 1e3, y: count as f64, spread: None };
    let mut points = vec![point(-10_000, 0)];
    for (count, &at) in passed.iter().enumerate() {
        if passed.get(count + 1) != Some(&at) {
            points.push(point(at, count + 1));
        }
    }
    points.push(point(UNTIL, passed.len()));
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_within_a_period_is_found_wherever_it_is() {
        assert_eq!(most(&[]), 0);
        assert_eq!(most(&[0, 9_999, 10_000]), 2);
        assert_eq!(most(&[0, 5_000, 10_000, 14_999, 15_000]), 3);
    }

    #[test]
    fn strict_algorithms_let_no_more_than_their_number_pass() {
        let all = all(REQUESTS, PERIOD).unwrap();
        for named in all {
            let most = most(&attack(&named));
            assert!(most > 0 && (!named.strict || most <= REQUESTS as usize), "{}: {most}", named.name);
        }
    }
}
