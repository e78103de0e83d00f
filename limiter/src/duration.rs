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

/// A number of milliseconds in words, such as `1 hour 30 minutes`.
#[derive(Debug, Clone, Copy)]
pub struct Words(pub u64);

/// The units of a duration in words, with their lengths in milliseconds.
const UNITS: [(u64, &str); 5] =
    [(86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second"), (1, "millisecond")];

impl Words {
    /// Returns the text behind `per`: a unit alone, such as `minute`, or the words.
    #[must_use]
    pub fn per(self) -> String {
        match UNITS.iter().find(|(millis, _)| *millis == self.0) {
            Some((_, unit)) => (*unit).to_owned(),
            None => self.to_string(),
        }
    }
}

impl Display for Words {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let mut rest = self.0;
        let mut separator = "";
        for (millis, unit) in UNITS {
            let count = rest / millis;
            // 36 hours are better known than 1 day 12 hours, and so are 90 seconds as 1 minute 30 seconds.
            if count == 0 || (unit == "day" && !rest.is_multiple_of(millis)) {
                continue;
            }
            // One by one, because a message is made for each denied request and `write!` takes several times as long.
            f.write_str(separator)?;
            f.write_str(itoa::Buffer::new().format(count))?;
            f.write_str(" ")?;
            f.write_str(unit)?;
            if count != 1 {
                f.write_str("s")?;
            }
            (rest, separator) = (rest % millis, " ");
        }
        if self.0 == 0 { f.write_str("0 seconds") } else { Ok(()) }
    }
}

impl Display for Period {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        Millis(self.millis()).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::{Millis, Words};

    #[test]
    fn a_duration_is_written_in_words() {
        for (millis, text) in [
            (0, "0 seconds"),
            (1, "1 millisecond"),
            (1_500, "1 second 500 milliseconds"),
            (60_000, "1 minute"),
            (90_000, "1 minute 30 seconds"),
            (129_600_000, "36 hours"),
            (172_800_000, "2 days"),
        ] {
            assert_eq!(Words(millis).to_string(), text);
        }
        assert_eq!((Words(3_600_000).per(), Words(7_200_000).per()), ("hour".into(), "2 hours".into()));
    }

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
