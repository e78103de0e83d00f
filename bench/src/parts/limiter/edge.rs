//! How much each algorithm admits to a client that sends a single request and then, from just before the edge
//! of a window, as fast as possible. The single request opens the window of algorithms whose windows begin
//! with a request. Time is simulated, so every run has the same result.

use std::time::Duration;

use super::algorithms::{Kind, NamedRate, all, check};
use crate::report::plot_data::PlotData;
use crate::report::row::{Aim, Row};
use crate::report::verification::Verification;

const REQUESTS: u64 = 100;
const PERIOD: Duration = Duration::from_secs(10);
/// The edge of aligned windows, in milliseconds since the Unix epoch. All other times are relative to it.
const EDGE: i64 = 1_700_000_000_000;
const SINGLE_REQUEST_MS: i64 = -9_500;
const FLOOD_FROM_MS: i64 = -500;
const FLOOD_UNTIL_MS: i64 = 25_000;
const FLOOD_PER_MS: usize = 3;
/// Range and resolution of the plot.
const PLOT_FROM_MS: i64 = -10_000;
const PLOT_STEP_MS: usize = 100;

/// Simulates all algorithms.
pub(crate) fn measure() -> anyhow::Result<(Vec<Row>, PlotData)> {
    let algorithms = all(REQUESTS, PERIOD)?;
    let passed: Vec<Vec<i64>> = algorithms.iter().map(flood).collect();
    let rows = algorithms.iter().zip(&passed).map(|(named, passed)| {
        let what = format!("{REQUESTS} requests in 10 s, most within any 10 s: {}", named.name);
        let row = Row::single(what, "requests", most_in_a_period(passed) as f64, &Verification::default());
        if named.is_strict { row.with_aim(Aim::AtMost(REQUESTS as f64)) } else { row }
    });
    Ok((rows.collect(), plot_data(&algorithms, &passed)))
}

/// Returns the times, in milliseconds from the edge, at which requests pass. A leaky bucket delays them.
fn flood(named: &NamedRate) -> Vec<i64> {
    let (mut stored, mut passed) = (None, Vec::new());
    let flood = (FLOOD_FROM_MS..FLOOD_UNTIL_MS).map(|at| (at, FLOOD_PER_MS));
    for (at, times) in [(SINGLE_REQUEST_MS, 1)].into_iter().chain(flood) {
        for _ in 0..times {
            let decision = check(&named.rate, &mut stored, (EDGE + at) as u64 * 1_000);
            if decision.admitted {
                passed.push(at + decision.delay.div_ceil(1_000) as i64);
            }
        }
    }
    passed.retain(|&at| at < FLOOD_UNTIL_MS);
    passed
}

/// Returns the largest number of requests within any interval of one period.
fn most_in_a_period(passed: &[i64]) -> usize {
    let period = PERIOD.as_millis() as i64;
    let within = |(first, &at): (usize, &i64)| passed.partition_point(|&other| other < at + period) - first;
    passed.iter().enumerate().map(within).max().unwrap_or(0)
}

/// One column an algorithm: the number of requests that have passed. Windows come before buckets.
fn plot_data(algorithms: &[NamedRate], passed: &[Vec<i64>]) -> PlotData {
    let of_kind = |kind| algorithms.iter().zip(passed).filter(move |(named, _)| named.kind == kind);
    let columns: Vec<_> = of_kind(Kind::Window).chain(of_kind(Kind::Bucket)).collect();
    let names = columns.iter().map(|(named, _)| named.name);
    let mut data = PlotData::new(["seconds"].into_iter().chain(names));
    for at in (PLOT_FROM_MS..=FLOOD_UNTIL_MS).step_by(PLOT_STEP_MS) {
        let counts = columns.iter().map(|(_, times)| times.partition_point(|&time| time <= at) as f64);
        data.push([at as f64 / 1e3].into_iter().chain(counts).collect());
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_in_a_period_is_found_at_any_offset() {
        assert_eq!(most_in_a_period(&[]), 0);
        assert_eq!(most_in_a_period(&[0, 9_999, 10_000]), 2);
        assert_eq!(most_in_a_period(&[0, 5_000, 10_000, 14_999, 15_000]), 3);
    }

    #[test]
    fn strict_algorithms_admit_at_most_the_rate() {
        for named in all(REQUESTS, PERIOD).unwrap() {
            let most = most_in_a_period(&flood(&named));
            assert!(most > 0 && (!named.is_strict || most <= REQUESTS as usize), "{}: {most}", named.name);
        }
    }
}
