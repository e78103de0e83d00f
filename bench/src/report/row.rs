//! One line of the table: what was measured, for Sluice and perhaps for a peer.

use serde::{Deserialize, Serialize};

use super::sample::Sample;
use super::verification::Verification;

/// The rows of one part, or why it could not be measured.
pub(crate) type PartResult = Result<Vec<Row>, String>;

/// A line of the table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) unit: String,
    pub(crate) ours: Sample,
    pub(crate) peer: Option<Peer>,
    pub(crate) aim: Option<Aim>,
    pub(crate) verification: Verification,
}

/// The peer's side of a comparison.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Peer {
    pub(crate) name: String,
    pub(crate) sample: Sample,
    /// Sluice's value divided by the peer's, computed round by round.
    pub(crate) ratio: Sample,
}

/// The range in which a median should be.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Aim {
    /// Upper bound of the ratio of Sluice to the peer.
    RatioAtMost(f64),
    /// Lower bound of that ratio.
    RatioAtLeast(f64),
    /// Upper bound of Sluice's value.
    AtMost(f64),
    /// Both bounds of Sluice's value.
    Within(f64, f64),
}

impl Row {
    /// A row for rounds of Sluice's value and the peer's.
    pub(crate) fn compared(
        what: impl Into<String>,
        unit: &str,
        rounds: &[(f64, f64)],
        peer_name: &str,
        verification: &Verification,
    ) -> Self {
        let peer = Peer {
            name: peer_name.to_owned(),
            sample: Sample::of(rounds.iter().map(|round| round.1)),
            ratio: Sample::of(rounds.iter().map(|round| round.0 / round.1)),
        };
        let ours = Sample::of(rounds.iter().map(|round| round.0));
        Self { peer: Some(peer), ..Self::sampled(what, unit, ours, verification) }
    }

    /// A row for a single value without a peer.
    pub(crate) fn single(
        what: impl Into<String>,
        unit: &str,
        ours: f64,
        verification: &Verification,
    ) -> Self {
        Self::sampled(what, unit, Sample::of(std::iter::once(ours)), verification)
    }

    /// A row for several rounds without a peer.
    pub(crate) fn sampled(
        what: impl Into<String>,
        unit: &str,
        ours: Sample,
        verification: &Verification,
    ) -> Self {
        let verification = verification.clone();
        Self { what: what.into(), unit: unit.to_owned(), ours, peer: None, aim: None, verification }
    }

    /// Returns the row with an aim.
    pub(crate) fn with_aim(mut self, aim: Aim) -> Self {
        self.aim = Some(aim);
        self
    }

    /// Reports whether the aim is met; `None` without an aim.
    pub(crate) fn is_aim_met(&self) -> Option<bool> {
        let ratio = self.peer.as_ref().map_or(f64::NAN, |peer| peer.ratio.median);
        Some(match self.aim? {
            Aim::RatioAtMost(bound) => ratio <= bound,
            Aim::RatioAtLeast(bound) => ratio >= bound,
            Aim::AtMost(bound) => self.ours.median <= bound,
            Aim::Within(least, most) => (least..=most).contains(&self.ours.median),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aim_is_judged_by_the_median() {
        let none = Verification::default();
        let rounds = [(2.0, 4.0), (3.0, 4.0), (9.0, 4.0)];
        let row = Row::compared("", "", &rounds, "", &none);
        assert_eq!(row.is_aim_met(), None);
        for (aim, met) in [
            (Aim::RatioAtMost(0.75), true),
            (Aim::RatioAtMost(0.7), false),
            (Aim::RatioAtLeast(0.8), false),
            (Aim::AtMost(3.0), true),
            (Aim::Within(3.0, 3.0), true),
            (Aim::Within(3.1, 4.0), false),
            (Aim::Within(2.0, 2.9), false),
        ] {
            assert_eq!(row.clone().with_aim(aim).is_aim_met(), Some(met), "{aim:?}");
        }
        assert_eq!(Row::single("", "", 1.0, &none).with_aim(Aim::RatioAtMost(9.0)).is_aim_met(), Some(false));
    }
}
