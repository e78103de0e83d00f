//! Results of a simulation.

use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) requests: u64,
    pub(super) admitted: u64,
    pub(super) calls: u64,
    /// Calls and requests of the first period, in which the holders still learn.
    pub(super) first_period: (u64, u64),
    pub(super) acquisitions: u64,
    pub(super) returns: u64,
    pub(super) expired: u64,
    pub(super) returned: u64,
    /// Admitted and requested in each aligned period.
    pub(super) periods: BTreeMap<u64, (u64, u64)>,
    /// Time of each admission.
    pub(super) instants: Vec<u64>,
}

impl Report {
    pub(super) fn calls_per_request(&self) -> f64 {
        (self.calls - self.first_period.0) as f64 / (self.requests - self.first_period.1) as f64
    }

    /// Returns the fraction that was admitted of what the limit allows in whole periods.
    pub(super) fn utilization(&self, number: u64) -> f64 {
        let (mut admitted, mut possible) = (0, 0);
        // The holders learn in the first period, and the last one may be incomplete.
        for &(got, requested) in self.periods.values().skip(1).take(self.periods.len().saturating_sub(2)) {
            admitted += got;
            possible += requested.min(number);
        }
        admitted as f64 / possible as f64
    }

    pub(super) fn most_in_a_period(&self) -> u64 {
        self.periods.values().map(|&(admitted, _)| admitted).max().unwrap_or(0)
    }

    /// Returns the most that was admitted within any trailing `micros`.
    pub(super) fn most_in_any(&self, micros: u64) -> u64 {
        let mut instants = self.instants.clone();
        instants.sort_unstable();
        let ends = instants.iter().enumerate();
        let inside = |(n, end): (usize, &u64)| n + 1 - instants.partition_point(|at| at + micros <= *end);
        ends.map(inside).max().unwrap_or(0) as u64
    }

    pub(super) fn print(&self, name: &str, number: u64) {
        println!(
            "{name}: {:.4} calls per request, {:.4} utilization, {} of {} admitted, {} expired, {} returned; \
             {} acquisitions, {} returns, {} calls",
            self.calls_per_request(),
            self.utilization(number),
            self.admitted,
            self.requests,
            self.expired,
            self.returned,
            self.acquisitions,
            self.returns,
            self.calls,
        );
    }
}
