//! Durations in the format of the Kubernetes Gateway API (GEP-2257): one to four numbers of up to five
//! digits, each with a unit (h, m, s or ms), such as `1h30m`.

use sluice_limiter::{MAX_PERIOD_MS, Period};

/// Regular expression for durations in the schema.
pub const PATTERN: &str = "^([0-9]{1,5}(h|m|s|ms)){1,4}$";

/// Parses a duration of at most the longest period. The error says what is wrong and what is allowed.
pub fn period(text: &str) -> Result<Period, String> {
    up_to(text, MAX_PERIOD_MS)
}

/// Parses a duration of at most `max_millis` milliseconds. The error says what is wrong and what is allowed.
pub fn up_to(text: &str, max_millis: u64) -> Result<Period, String> {
    let millis = millis(text).ok_or_else(|| {
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
    })?;
    let in_range = Period::from_millis(millis).ok().filter(|_| millis <= max_millis);
    in_range.ok_or_else(|| format!("{text} is out of range: 1ms to {} are allowed", format(max_millis)))
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

/// Formats a number of milliseconds as the shortest duration.
#[must_use]
pub fn format(mut millis: u64) -> String {
    let mut text = String::new();
    for (unit, name) in [(3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")] {
        if millis >= unit {
            text.push_str(&format!("{}{name}", millis / unit));
            millis %= unit;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
            prop_assert_eq!(period(&format(millis)).map(Period::millis), Ok(millis));
        }
    }
}
