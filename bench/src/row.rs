//! What was measured: medians of interleaved rounds, with the lowest and the highest.

use serde::{Deserialize, Serialize};

/// What one part found, or why it could not be measured.
pub(crate) type Part = Result<Vec<Row>, String>;

/// One line of the table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    /// What was measured.
    pub(crate) what: String,
    /// In which unit.
    pub(crate) unit: String,
    /// Of Sluice.
    pub(crate) ours: Sample,
    /// Of who is compared.
    pub(crate) peer: Option<Peer>,
    /// What it should be.
    pub(crate) aim: Option<Aim>,
    /// What was seen to be as expected, before and while it was measured.
    pub(crate) verified: Vec<String>,
    /// What was not: the measurement is worth nothing.
    pub(crate) wrong: Vec<String>,
}

/// Who is compared.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Peer {
    pub(crate) name: String,
    pub(crate) sample: Sample,
    /// Ours divided by the peer's, of each round.
    pub(crate) ratio: Sample,
}

/// What a median should be.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Aim {
    /// Ours divided by the peer's: no more.
    RatioAtMost(f64),
    /// Ours divided by the peer's: no less.
    RatioAtLeast(f64),
    /// Ours: no more.
    AtMost(f64),
    /// Ours: no less than the first, and no more than the second.
    Within(f64, f64),
}

/// The rounds of one measurement.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) median: f64,
    pub(crate) lowest: f64,
    pub(crate) highest: f64,
}

impl Sample {
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let half = values.len() / 2;
        let median = if values.len() % 2 == 1 { at(half) } else { f64::midpoint(at(half - 1), at(half)) };
        Self { median, lowest: at(0), highest: at(values.len().saturating_sub(1)) }
    }
}

impl Row {
    /// A row of rounds, each ours and the peer's.
    pub(crate) fn compared(
        what: impl Into<String>,
        unit: &str,
        rounds: &[(f64, f64)],
        name: &str,
        checks: &Checks,
    ) -> Self {
        let peer = Peer {
            name: name.to_owned(),
            sample: Sample::of(rounds.iter().map(|round| round.1)),
            ratio: Sample::of(rounds.iter().map(|round| round.0 / round.1)),
        };
        let ours = Sample::of(rounds.iter().map(|round| round.0));
        let Checks { verified, wrong } = checks.clone();
        Self { what: what.into(), unit: unit.to_owned(), ours, peer: Some(peer), aim: None, verified, wrong }
    }

    /// A row without a peer.
    pub(crate) fn alone(what: impl Into<String>, unit: &str, ours: f64, checks: &Checks) -> Self {
        Self::sampled(what, unit, Sample::of(std::iter::once(ours)), checks)
    }

    /// A row of rounds without a peer.
    pub(crate) fn sampled(what: impl Into<String>, unit: &str, ours: Sample, checks: &Checks) -> Self {
        let Checks { verified, wrong } = checks.clone();
        Self { what: what.into(), unit: unit.to_owned(), ours, peer: None, aim: None, verified, wrong }
    }

    /// The same row with an aim.
    pub(crate) fn aim(mut self, aim: Aim) -> Self {
        self.aim = Some(aim);
        self
    }

    /// Whether its aim is met, if it has one and was measured.
    pub(crate) fn met(&self) -> Option<bool> {
        let ratio = self.peer.as_ref().map_or(f64::NAN, |peer| peer.ratio.median);
        Some(match self.aim? {
            Aim::RatioAtMost(bound) => ratio <= bound,
            Aim::RatioAtLeast(bound) => ratio >= bound,
            Aim::AtMost(bound) => self.ours.median <= bound,
            Aim::Within(least, most) => (least..=most).contains(&self.ours.median),
        })
    }
}

/// What must be so for a measurement to be worth something.
#[derive(Debug, Clone, Default)]
pub(crate) struct Checks {
    verified: Vec<String>,
    wrong: Vec<String>,
}

impl Checks {
    /// That a count of both sides is as expected; `what` says of what.
    pub(crate) fn both(&mut self, what: &str, ours: u64, peers: u64, expected: u64) {
        self.one(&format!("Sluice: {what}"), ours, expected);
        self.one(&format!("peer: {what}"), peers, expected);
        if self.wrong.is_empty() {
            self.verified.truncate(self.verified.len() - 2);
            self.verified.push(format!("{what}: {expected} of both"));
        }
    }

    /// What was found, which nothing has to be.
    pub(crate) fn note(&mut self, what: impl Into<String>) {
        self.verified.push(what.into());
    }

    /// That a count is as expected.
    pub(crate) fn one(&mut self, what: &str, found: u64, expected: u64) {
        if found == expected {
            self.verified.push(format!("{what}: {expected}"));
        } else {
            self.wrong.push(format!("{what}: {found} instead of {expected}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aim_is_met_by_the_median_of_what_it_speaks_of() {
        let rounds = [(2.0, 4.0), (3.0, 4.0), (9.0, 4.0)];
        let row = Row::compared("", "", &rounds, "", &Checks::default());
        assert_eq!(row.met(), None);
        assert_eq!(row.clone().aim(Aim::RatioAtMost(0.75)).met(), Some(true));
        assert_eq!(row.clone().aim(Aim::RatioAtMost(0.7)).met(), Some(false));
        assert_eq!(row.clone().aim(Aim::RatioAtLeast(0.8)).met(), Some(false));
        assert_eq!(row.clone().aim(Aim::AtMost(3.0)).met(), Some(true));
        assert_eq!(row.clone().aim(Aim::Within(3.0, 3.0)).met(), Some(true));
        assert_eq!(row.clone().aim(Aim::Within(3.1, 4.0)).met(), Some(false));
        assert_eq!(row.aim(Aim::Within(2.0, 2.9)).met(), Some(false));
        assert_eq!(Row::alone("", "", 1.0, &Checks::default()).aim(Aim::RatioAtMost(9.0)).met(), Some(false));
    }

    #[test]
    fn a_sample_has_a_median_and_its_bounds() {
        let sample = Sample::of([3.0, 1.0, 2.0].into_iter());
        assert_eq!((sample.lowest, sample.median, sample.highest), (1.0, 2.0, 3.0));
        assert_eq!(Sample::of([4.0, 1.0, 2.0, 3.0].into_iter()).median, 2.5);
    }

    #[test]
    fn a_wrong_count_is_told_and_a_right_one_is_told_once() {
        let mut checks = Checks::default();
        checks.both("admitted", 5, 5, 5);
        assert_eq!((checks.verified.len(), checks.wrong.len()), (1, 0));
        checks.both("denied", 5, 4, 5);
        assert_eq!(checks.wrong, ["peer: denied: 4 instead of 5"]);
    }
}
