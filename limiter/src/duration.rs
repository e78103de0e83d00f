//! The text of durations.

use std::fmt::{Display, Formatter, Result};

use crate::number::Period;

/// A number of milliseconds. It is written as the shortest duration of GEP-2257, such as `1h30m`.
#[derive(Debug, Clone, Copy)]
pub struct Millis(pub u64);

impl Display for Millis {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let mut rest = self.0;
        for (unit, name) in [(3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")] {
            if rest >= unit {
                write!(f, "{}{name}", rest / unit)?;
                rest %= unit;
            }
        }
        if self.0 == 0 { f.write_str("0s") } else { Ok(()) }
    }
}

impl Display for Period {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        Millis(self.millis()).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::Millis;

    #[test]
    fn a_duration_is_written_in_its_shortest_form() {
        for (millis, text) in [
            (0, "0s"),
            (1, "1ms"),
            (1_500, "1s500ms"),
            (60_000, "1m"),
            (5_400_000, "1h30m"),
            (90_061_001, "25h1m1s1ms"),
        ] {
            assert_eq!(Millis(millis).to_string(), text);
        }
    }
}
