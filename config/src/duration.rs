//! Durations in the format of the Kubernetes Gateway API (GEP-2257): one to four numbers of up to five
//! digits, each with a unit (h, m, s or ms), such as `1h30m`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sluice_limiter::{MAX_PERIOD_MS, Millis, Period};

/// Regular expression for durations in the schema.
pub const PATTERN: &str = "^([0-9]{1,5}(h|m|s|ms)){1,4}$";

/// A duration, in milliseconds. Policies write it as a text such as `1h30m`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("minLength" = 2, "maxLength" = 32, "pattern" = PATTERN)))]
#[serde(try_from = "String", into = "String")]
pub struct Duration(u64);

impl Duration {
    /// Creates a duration of so many milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Returns the length in milliseconds.
    #[must_use]
    pub fn millis(self) -> u64 {
        self.0
    }

    /// Returns the duration as a period. The error says what is allowed.
    pub fn period(self) -> Result<Period, String> {
        self.up_to(MAX_PERIOD_MS)
    }

    /// Returns a duration of at most `max_millis` milliseconds as a period. The error says what is allowed.
    pub fn up_to(self, max_millis: u64) -> Result<Period, String> {
        let in_range = Period::from_millis(self.0).ok().filter(|_| self.0 <= max_millis);
        in_range.ok_or_else(|| format!("{self} is out of range: 1ms to {} are allowed", Millis(max_millis)))
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Millis(self.0).fmt(f)
    }
}

impl From<Duration> for String {
    fn from(duration: Duration) -> Self {
        duration.to_string()
    }
}

impl TryFrom<String> for Duration {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Duration {
    type Err = String;

    /// Parses a duration. The error says what is wrong and what is allowed.
    fn from_str(text: &str) -> Result<Self, String> {
        millis(text).map(Self).ok_or_else(|| {
            let number = |unit| text.strip_suffix(unit)?.parse::<u32>().ok();
            if let Some(hours) =
                number('d').map(|days| u64::from(days) * 24).or(number('w').map(|weeks| u64::from(weeks) * 168))
            {
                return format!("{text:?} is not a duration: the longest unit is the hour, write {hours}h");
            }
            format!(
                "{text:?} is not a duration: write one to four numbers of up to five digits, each with a unit \
                 (h, m, s or ms), such as 1h30m"
            )
        })
    }
}

fn millis(text: &str) -> Option<u64> {
    let (mut rest, mut parts, mut total) = (text, 0, 0u64);
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        if digits == 0 || digits > 5 || parts == 4 {
            return None;
        }
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let (unit, length) = match rest {
            r if r.starts_with("ms") => (1, 2),
            r if r.starts_with('h') => (3_600_000, 1),
            r if r.starts_with('m') => (60_000, 1),
            r if r.starts_with('s') => (1_000, 1),
            _ => return None,
        };
        total += number * unit;
        rest = &rest[length..];
        parts += 1;
    }
    (parts > 0).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn period(text: &str) -> Result<Period, String> {
        text.parse::<Duration>()?.period()
    }

    #[test]
    fn durations_follow_gep_2257() {
        for (text, expected) in [
            ("1m", 60_000),
            ("1h30m", 5_400_000),
            ("500ms", 500),
            ("1s1ms", 1_001),
            ("8784h", 31_622_400_000),
        ] {
            assert_eq!(period(text).map(Period::millis), Ok(expected), "{text}");
        }
        for text in ["", "1", "m", "1.5h", "-1s", "1d", "123456s", "1h1h1h1h1h", "1 h", "1H"] {
            assert!(period(text).unwrap_err().contains("is not a duration"), "{text}");
        }
        for text in ["0s", "0ms", "8785h", "99999h"] {
            assert!(period(text).unwrap_err().contains("out of range"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_formatted_duration_parses_to_the_same_period(millis in 1u64..=sluice_limiter::MAX_PERIOD_MS) {
            prop_assert_eq!(period(&Millis(millis).to_string()).map(Period::millis), Ok(millis));
        }
    }
}
