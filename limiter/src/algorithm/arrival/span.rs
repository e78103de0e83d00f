//! Exact lengths of time.

/// A length of time: whole microseconds and a rest. The rest counts in units of 1 / N microsecond, where N is
/// the number of requests of the rate, and is smaller than N.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    pub(crate) micros: u64,
    pub(crate) rest: u64,
}

impl Span {
    pub(crate) const ZERO: Self = Self { micros: 0, rest: 0 };

    /// Returns requests * period / per: the time that `requests` take at a rate of `per` requests a period.
    #[inline]
    pub(crate) fn of(requests: u64, period_micros: u64, per: u64) -> Self {
        let per = per.max(1);
        if let Some(product) = requests.checked_mul(period_micros) {
            return Self { micros: product / per, rest: product % per };
        }
        let (product, per) = (u128::from(requests) * u128::from(period_micros), u128::from(per));
        Self {
            micros: u64::try_from(product / per).unwrap_or(u64::MAX >> 8).min(u64::MAX >> 8),
            rest: (product % per) as u64,
        }
    }

    pub(crate) fn plus(self, other: Self, per: u64) -> Self {
        let rest = self.rest + other.rest;
        let carry = u64::from(rest >= per.max(1));
        Self { micros: self.micros + other.micros + carry, rest: rest - carry * per.max(1) }
    }

    /// Returns the difference, or zero if `other` is longer.
    pub(crate) fn minus(self, other: Self, per: u64) -> Self {
        if self <= other {
            Self::ZERO
        } else if self.rest >= other.rest {
            Self { micros: self.micros - other.micros, rest: self.rest - other.rest }
        } else {
            Self { micros: self.micros - other.micros - 1, rest: self.rest + per.max(1) - other.rest }
        }
    }

    /// Returns the length in whole microseconds, rounded up.
    pub(crate) fn ceil(self) -> u64 {
        self.micros + u64::from(self.rest > 0)
    }
}
