//! The values of several rounds.

use serde::{Deserialize, Serialize};

/// Median and range of the rounds of one measurement.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) median: f64,
    pub(crate) lowest: f64,
    pub(crate) highest: f64,
}

impl Sample {
    /// Summarizes the values; all NaN if there are none.
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let half = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            at(half)
        } else {
            f64::midpoint(at(half.saturating_sub(1)), at(half))
        };
        Self { median, lowest: at(0), highest: at(values.len().saturating_sub(1)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_a_median_and_a_range() {
        let sample = Sample::of([3.0, 1.0, 2.0].into_iter());
        assert_eq!((sample.lowest, sample.median, sample.highest), (1.0, 2.0, 3.0));
        assert_eq!(Sample::of([4.0, 1.0, 2.0, 3.0].into_iter()).median, 2.5);
        assert!(Sample::of(std::iter::empty()).median.is_nan());
    }
}
