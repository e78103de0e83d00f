//! How often something happened, over time.

use serde::Serialize;

/// Number of intervals at most.
const MAX_INTERVALS: usize = 240;
/// Length of the first intervals, in microseconds.
const SHORTEST: u64 = 1_000_000;
/// Lengths of intervals, in seconds, each a multiple of the one before. Above them it doubles.
const LENGTHS: [u64; 11] = [1, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 21_600, 86_400];

/// Numbers of admitted and denied requests in intervals, whose length grows to the next that is easy to read when there are
/// too many of them.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Series {
    /// Beginning of the first interval, in microseconds since the Unix epoch.
    pub(super) begin_micros: u64,
    /// Length of an interval.
    pub(super) interval_micros: u64,
    /// Admitted and denied requests of each interval.
    pub(super) intervals: Vec<[u64; 2]>,
}

impl Series {
    pub(super) fn new(begin: u64) -> Self {
        Self { begin_micros: begin / SHORTEST * SHORTEST, interval_micros: SHORTEST, intervals: Vec::new() }
    }

    /// Counts a request at a time that is not before the beginning.
    pub(super) fn add(&mut self, at: u64, is_denied: bool) {
        while at.saturating_sub(self.begin_micros) / self.interval_micros >= MAX_INTERVALS as u64 {
            self.lengthen();
        }
        let position = (at.saturating_sub(self.begin_micros) / self.interval_micros) as usize;
        if self.intervals.len() <= position {
            self.intervals.resize(position + 1, [0; 2]);
        }
        self.intervals[position][usize::from(is_denied)] += 1;
    }

    /// Goes to the next length, whose intervals begin at its multiples.
    fn lengthen(&mut self) {
        let mut lengths = LENGTHS.iter().map(|seconds| seconds * 1_000_000);
        let longer =
            lengths.find(|&length| length > self.interval_micros).unwrap_or(self.interval_micros * 2);
        let begin = self.begin_micros / longer * longer;
        let before = ((self.begin_micros - begin) / self.interval_micros) as usize;
        let many = (longer / self.interval_micros) as usize;
        let mut intervals = vec![[0; 2]; (before + self.intervals.len()).div_ceil(many)];
        for (n, counts) in self.intervals.iter().enumerate() {
            let sum = &mut intervals[(before + n) / many];
            *sum = [sum[0] + counts[0], sum[1] + counts[1]];
        }
        (self.begin_micros, self.interval_micros, self.intervals) = (begin, longer, intervals);
    }

    /// Returns beginning and number of denials of the interval with most of them.
    pub(super) fn worst(&self) -> Option<(u64, u64)> {
        let denied = (0..).zip(&self.intervals).map(|(n, counts)| (counts[1], n));
        // The first of equal ones.
        let (denied, n) = denied.max_by_key(|&(denied, n): &(u64, u64)| (denied, u64::MAX - n))?;
        (denied > 0).then_some((self.begin_micros + n * self.interval_micros, denied))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_when_intervals_become_longer() {
        let mut series = Series::new(5_500_000);
        for second in 0..1_000 {
            series.add(5_500_000 + second * 1_000_000, second % 10 == 0);
        }
        assert!(series.intervals.len() <= MAX_INTERVALS);
        let sum = |n: usize| series.intervals.iter().map(|counts| counts[n]).sum::<u64>();
        assert_eq!((sum(0), sum(1), series.interval_micros), (900, 100, 5_000_000));
    }

    #[test]
    fn the_worst_interval_is_the_first_with_most_denials() {
        let mut series = Series::new(0);
        assert_eq!(series.worst(), None);
        for (second, is_denied) in [(0, false), (3, true), (3, true), (7, true), (9, true), (9, true)] {
            series.add(second * 1_000_000, is_denied);
        }
        assert_eq!(series.worst(), Some((3_000_000, 2)));
    }
}
