//! The sliding-window counter of two windows: the current count plus the share of the previous one that the last
//! period still overlaps, rounded up: `used = current + ceil(previous * rest / period)`, `rest` being what is left of
//! the current window. As described by Cloudflare ("How we built rate limiting capable of scaling to millions of
//! domains", 2017); here in exact integers.
//!
//! Within one aligned window never more than N pass. Within a trailing one an adversary who fills the end of one
//! window can reach up to 2N - 1: the estimate supposes that the previous window was used evenly.

use crate::Record;

/// Requests used in the period that ends at `now`, as estimated.
#[must_use]
pub fn used(record: &Record, now: u64) -> u64 {
    let period = record.tag.slot_millis();
    record.current + ceil_share(record.previous, rest(record, now), period)
}

/// Milliseconds until nothing counts any more.
#[must_use]
pub fn reset(record: &Record, now: u64) -> u64 {
    if record.current > 0 {
        rest(record, now) + record.tag.slot_millis()
    } else if record.previous > 0 {
        rest(record, now)
    } else {
        0
    }
}

/// Milliseconds until at most `spare` requests are used. The record uses more than that at `now`.
#[must_use]
pub fn retry_after(record: &Record, now: u64, spare: u64) -> u64 {
    let (period, rest) = (record.tag.slot_millis(), rest(record, now));
    if record.current <= spare {
        // In this window: previous * (rest - wait) <= (spare - current) * period.
        rest - floor_share(spare - record.current, period, record.previous)
    } else {
        // In the next, where `current` has become `previous`: current * (period - offset) <= spare * period.
        rest + period - floor_share(spare, period, record.current)
    }
}

fn rest(record: &Record, now: u64) -> u64 {
    (record.slot + 1) * record.tag.slot_millis() - now
}

/// ceil(count * part / whole), for part <= whole: it fits wherever `count` does.
fn ceil_share(count: u64, part: u64, whole: u64) -> u64 {
    (u128::from(count) * u128::from(part)).div_ceil(u128::from(whole)) as u64
}

/// floor(count * period / whole), for count < whole: it is below `period`.
fn floor_share(count: u64, period: u64, whole: u64) -> u64 {
    (u128::from(count) * u128::from(period) / u128::from(whole)) as u64
}

#[cfg(test)]
mod tests {
    use crate::{Algorithm, Period, Rate, Record, Requests};

    #[test]
    fn the_previous_window_counts_by_what_is_left_of_it() {
        let rate = Rate {
            requests: Requests::new(10).unwrap(),
            period: Period::from_millis(1000).unwrap(),
            algorithm: Algorithm::SLIDING_WINDOW,
        };
        let record = Record { previous: 10, ..Record::empty(rate.tag(), 5_000) };
        assert_eq!(rate.used(&record, 5_000), 10);
        assert_eq!(rate.used(&record, 5_001), 10);
        assert_eq!(rate.used(&record, 5_100), 9);
        assert_eq!(rate.used(&record, 5_999), 1);
    }

    /// The known weakness of two windows, kept as a test so that nobody promises more.
    #[test]
    fn an_adversary_gets_nearly_twice_the_number_in_a_trailing_window() {
        let rate = Rate {
            requests: Requests::new(1000).unwrap(),
            period: Period::from_millis(60_000).unwrap(),
            algorithm: Algorithm::SLIDING_WINDOW,
        };
        let (mut record, mut passed) = (None, 0);
        for now in [119_999u64].into_iter().chain(120_000..=179_998) {
            loop {
                let (rolled, at) = rate.roll(record, now);
                record = Some(rolled);
                if !rate.has_room(&rolled, at, 1) {
                    break;
                }
                record = Some(rate.charge(rolled, 1));
                passed += 1;
            }
        }
        assert_eq!(passed, 1_999);
    }
}
