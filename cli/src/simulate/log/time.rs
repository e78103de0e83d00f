//! Times as logs write them.

use jiff::Timestamp;
use jiff::fmt::strtime;

/// Reads `2026-11-23T10:00:00.123Z`, with any offset, as microseconds since the Unix epoch.
pub(super) fn rfc3339(text: &str) -> Option<u64> {
    micros(text.parse().ok()?)
}

/// Reads `23/Nov/2026:10:00:00 +0000`, also with fractions of a second.
pub(super) fn clf(text: &str) -> Option<u64> {
    micros(strtime::parse("%d/%b/%Y:%H:%M:%S%.f %z", text).ok()?.to_timestamp().ok()?)
}

/// Reads `23/Nov/2026:10:00:00.123` as UTC.
pub(super) fn without_offset(text: &str) -> Option<u64> {
    clf(&format!("{text} +0000"))
}

/// Returns the begin of a request that ended at a time, and took so many seconds.
pub(super) fn begin(end: u64, seconds: Option<f64>) -> u64 {
    end.saturating_sub((seconds.unwrap_or(0.0).max(0.0) * 1e6) as u64)
}

/// Reads seconds, milliseconds, microseconds or nanoseconds since the Unix epoch. The size tells the unit: all are of this century.
pub(super) fn number(number: f64) -> Option<u64> {
    let factor = match number {
        n if !(1e8..1e20).contains(&n) => return None,
        n if n < 1e11 => 1e6,
        n if n < 1e14 => 1e3,
        n if n < 1e17 => 1.0,
        _ => 1e-3,
    };
    Some((number * factor) as u64)
}

/// Reads a time of any of these forms.
pub(super) fn any(text: &str) -> Option<u64> {
    let text = text.trim_matches(['[', ']']);
    rfc3339(text).or_else(|| clf(text)).or_else(|| number(text.parse().ok()?))
}

pub(super) fn micros(time: Timestamp) -> Option<u64> {
    u64::try_from(time.as_microsecond()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_all_forms_are_read() {
        let second = 1_795_428_000_000_000;
        for text in [
            "2026-11-23T10:00:00Z",
            "2026-11-23T11:00:00+01:00",
            "[2026-11-23T10:00:00.000Z]",
            "23/Nov/2026:10:00:00 +0000",
            "23/Nov/2026:10:00:00.000 +0000",
            "[23/Nov/2026:05:00:00 -0500]",
            "1795428000",
            "1795428000.000",
            "1795428000000",
            "1795428000000000",
            "1795428000000000000",
        ] {
            assert_eq!(any(text), Some(second), "{text}");
        }
        for text in ["", "yesterday", "10:00", "-1", "1e300", "NaN", "12"] {
            assert_eq!(any(text), None, "{text}");
        }
    }
}
