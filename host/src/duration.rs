//! Durations on the command line.

use std::time::Duration;

/// Parses a duration such as `500ms`, `10s` or `1m30s`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let invalid = || format!("invalid duration {text:?}: write for example 500ms, 10s or 1m30s");
    let (mut rest, mut sum) = (text, Duration::ZERO);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(invalid)?;
        let number: u32 = rest[..digits].parse().map_err(|_| invalid())?;
        let unit = &rest[digits..];
        let (unit, length) = match unit.find(|c: char| c.is_ascii_digit()) {
            Some(end) => (&unit[..end], digits + end),
            None => (unit, rest.len()),
        };
        let one = match unit {
            "ms" => Duration::from_millis(1),
            "s" => Duration::from_secs(1),
            "m" => Duration::from_secs(60),
            "h" => Duration::from_secs(3600),
            _ => return Err(invalid()),
        };
        sum += one * number;
        rest = &rest[length..];
    }
    if text.is_empty() { Err(invalid()) } else { Ok(sum) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_sequence_of_numbers_with_units() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        for bad in ["", "5", "s", "-1s", "1.5s", "1d", "99999999999s", "1s "] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
