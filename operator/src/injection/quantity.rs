//! Quantities of Kubernetes, such as `500m` or `128Mi`, as exact numbers.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Suffixes and what they multiply by, in billionths.
/// See <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>.
const SUFFIXES: [(&str, i128); 15] = [
    ("Ki", ONE << 10),
    ("Mi", ONE << 20),
    ("Gi", ONE << 30),
    ("Ti", ONE << 40),
    ("Pi", ONE << 50),
    ("Ei", ONE << 60),
    ("n", 1),
    ("u", 1_000),
    ("m", MILLI),
    ("k", 1_000 * ONE),
    ("M", 1_000_000 * ONE),
    ("G", 1_000_000_000 * ONE),
    ("T", 1_000_000_000_000 * ONE),
    ("P", 1_000_000_000_000_000 * ONE),
    ("E", 1_000_000_000_000_000_000 * ONE),
];
const ONE: i128 = 1_000_000_000;
const MILLI: i128 = 1_000_000;
/// Largest amount: that of the API server, 2^63 - 1.
const MAX: i128 = i64::MAX as i128 * ONE;
/// Maximum number of digits, which the API server keeps exactly.
const MAX_DIGITS: usize = 18;

/// An amount that is not negative, exact to a billionth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Amount(i128);

impl Amount {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// Returns a number of thousandths.
    pub const fn milli(thousandths: u32) -> Self {
        Self(thousandths as i128 * MILLI)
    }

    /// Returns a number of MiB.
    pub const fn mebibytes(number: u32) -> Self {
        Self((number as i128 * ONE) << 20)
    }

    /// Reads a quantity. Returns `None` if the API server would not accept it or it is negative. What is smaller than a
    /// billionth is rounded up, as the API server does.
    pub fn parse(quantity: &str) -> Option<Self> {
        let end = quantity.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(quantity.len());
        let (number, suffix) = quantity.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if !number.starts_with(|c: char| c.is_ascii_digit()) || fraction.contains('.') {
            return None;
        }
        let digits = format!("{}{fraction}", whole.trim_start_matches('0'));
        if digits.len() > MAX_DIGITS {
            return None;
        }
        let value: i128 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
        let unit = match suffix {
            "" => ONE,
            _ => match SUFFIXES.iter().find(|(known, _)| *known == suffix) {
                Some((_, unit)) => *unit,
                None => return Self::with_exponent(value, fraction.len(), suffix),
            },
        };
        let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
        let scaled = value.checked_mul(unit)?;
        Self::checked(div_ceil(scaled, scale))
    }

    /// Returns a number with an exponent such as `e3` or `E-2`.
    fn with_exponent(value: i128, fraction: usize, suffix: &str) -> Option<Self> {
        let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
        let power = exponent.checked_add(9)?.checked_sub(i32::try_from(fraction).ok()?)?;
        let ten = |power: u32| 10_i128.checked_pow(power.min(38));
        if power >= 0 {
            return if value == 0 {
                Some(Self::ZERO)
            } else {
                Self::checked(value.checked_mul(ten(power.unsigned_abs())?)?)
            };
        }
        Self::checked(div_ceil(value, ten(power.unsigned_abs())?))
    }

    fn checked(billionths: i128) -> Option<Self> {
        (0..=MAX).contains(&billionths).then_some(Self(billionths))
    }

    /// Returns the quantity, in the largest unit that is exact.
    pub fn quantity(self) -> Quantity {
        let Self(value) = self;
        let in_units =
            |unit: i128, suffix: &str| (value % unit == 0).then(|| format!("{}{suffix}", value / unit));
        let binary = || {
            let of_two = [(ONE << 30, "Gi"), (ONE << 20, "Mi"), (ONE << 10, "Ki")];
            of_two.into_iter().filter(|_| value > 0).find_map(|(unit, suffix)| in_units(unit, suffix))
        };
        let decimal = || {
            let of_ten = [(ONE, ""), (MILLI, "m"), (1_000, "u")];
            of_ten.into_iter().find_map(|(unit, suffix)| in_units(unit, suffix))
        };
        Quantity(binary().or_else(decimal).unwrap_or_else(|| format!("{value}n")))
    }

    /// Reports whether it is a whole number, other than zero.
    pub fn is_whole(self) -> bool {
        self.0 > 0 && self.0 % ONE == 0
    }

    /// Returns the sum.
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0).min(MAX))
    }

    /// Returns the difference, or zero if the other amount is larger.
    pub fn minus(self, other: Self) -> Self {
        Self((self.0 - other.0).max(0))
    }

    /// Returns the least amount of this unit that, times a ratio, reaches this one.
    pub fn divided(self, ratio: Self, unit: Self) -> Self {
        if ratio.0 == 0 {
            return Self(MAX);
        }
        let exact = div_ceil(self.0.saturating_mul(ONE), ratio.0);
        Self(div_ceil(exact, unit.0.max(1)).saturating_mul(unit.0.max(1)).min(MAX))
    }

    /// Returns the product with a ratio, rounded down.
    pub fn times(self, ratio: Self) -> Self {
        match self.0.checked_mul(ratio.0) {
            Some(product) => Self((product / ONE).min(MAX)),
            None => Self(MAX),
        }
    }

    /// Returns the amount, rounded down to a multiple of a unit.
    pub fn floor(self, unit: Self) -> Self {
        Self(self.0 - self.0 % unit.0.max(1))
    }
}

fn div_ceil(value: i128, by: i128) -> i128 {
    value / by + i128::from(value % by != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantity_is_an_exact_number_with_a_suffix_or_an_exponent() {
        let amounts = [
            ("2", 2 * ONE),
            ("0.5", ONE / 2),
            ("500m", ONE / 2),
            ("128Mi", 134_217_728 * ONE),
            ("1k", 1_000 * ONE),
            ("0", 0),
            ("1e3", 1_000 * ONE),
            ("1E3", 1_000 * ONE),
            ("12e-1", 1_200 * MILLI),
            ("1.5e+2", 150 * ONE),
            ("1E", 1_000_000_000_000_000_000 * ONE),
            ("1.5Gi", 1_610_612_736 * ONE),
            ("0.1n", 1),
            ("5.", 5 * ONE),
            ("0e99", 0),
            ("000000000000000000001", ONE),
        ];
        for (text, expected) in amounts {
            assert_eq!(Amount::parse(text), Some(Amount(expected)), "{text}");
        }
        for bad in [
            "",
            "Mi",
            "-1",
            "1 Gi",
            "1.2.3",
            "1mb",
            "one",
            ".5",
            "1Mim",
            "9999999999999999999",
            "1e",
            "1e99",
            "1ee3",
            "10E",
            "1e3m",
        ] {
            assert_eq!(Amount::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_quantity_is_written_in_the_largest_unit_that_is_exact() {
        for text in ["200m", "1", "128Mi", "3Gi", "0", "50u", "7n", "1536Ki"] {
            assert_eq!(Amount::parse(text).unwrap().quantity().0, text);
        }
        assert_eq!(Amount::parse("1.5Gi").unwrap().quantity().0, "1536Mi");
        assert_eq!(Amount::parse("1e3").unwrap().quantity().0, "1000");
    }

    #[test]
    fn ratios_are_exact() {
        let amount = |text| Amount::parse(text).unwrap();
        assert_eq!(amount("200m").divided(amount("4"), Amount::milli(1)), amount("50m"));
        assert_eq!(amount("200m").divided(amount("3"), Amount::milli(1)), amount("67m"));
        assert_eq!(amount("67m").times(amount("3")), amount("201m"));
        assert_eq!(amount("8E").times(amount("8E")), Amount(MAX));
        assert_eq!(amount("1").minus(amount("2")), Amount::ZERO);
        assert_eq!(amount("1234567n").floor(Amount::milli(1)), amount("1m"));
    }
}
