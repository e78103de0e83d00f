//! Soft limits: for some time a rate lets some more pass than its number, so that a short peak is not cut off.
//!
//! The extra begins with the first request that is admitted above N and lasts `for`; after that N is hard again. It
//! re-arms a whole period after the end of the window in which the last request was admitted above N. Both instants stand
//! in the record, as [`crate::record::Overrun`].

use crate::{Rate, Record, fixed_window};

/// Whether the extra can be used at an instant (milliseconds).
fn open(rate: &Rate, record: &Record, millis: u64) -> bool {
    let Some(soft) = rate.soft else { return false };
    record.overrun.since == 0
        || millis < record.overrun.since + soft.millis()
        || millis >= record.overrun.last + rate.period.millis()
}

/// Whether the extra has room for a use of `after`.
pub(crate) fn has_room(rate: &Rate, record: &Record, now: u64, after: u64) -> bool {
    after <= rate.ceiling() && open(rate, record, now / 1000)
}

/// Notes that a charge has gone above the number, if it has.
pub(crate) fn mark(rate: &Rate, record: &mut Record, now: u64) {
    if rate.used(record, now) > rate.requests.get() {
        let millis = now / 1000;
        let over = record.overrun;
        if over.since == 0 || over.since > millis || millis >= over.last + rate.period.millis() {
            record.overrun.since = millis;
        }
        record.overrun.last = fixed_window::ends(record);
    }
}

/// Microseconds until a window, soft or hard, has room for `cost`.
pub(crate) fn retry_after(rate: &Rate, record: &Record, now: u64, cost: u64) -> Option<u64> {
    let falls = |to: u64| to.checked_sub(cost).map(|spare| rate.falls_to(record, now, spare));
    let hard = falls(rate.requests.get());
    let extra = rate.soft.and_then(|_| falls(rate.ceiling())).map(|at| {
        if open(rate, record, at) { at } else { at.max(record.overrun.last + rate.period.millis()) }
    });
    let at = hard.into_iter().chain(extra).min()?;
    Some((at * 1000).saturating_sub(now))
}

#[cfg(test)]
mod tests {
    use crate::sliding_window_counter::tests::Numbers;
    use crate::testing::{check, rate};
    use crate::{Algorithm, Soft};

    /// Whatever comes: a window never holds more than N and the extra; above N only for so long after the first that was,
    /// and again only a whole period after the window of the last that was.
    #[test]
    fn the_extra_is_bounded_in_number_and_in_time() {
        let mut numbers = Numbers(23);
        let (mut extras, mut again) = (0, 0);
        for _ in 0..400 {
            let (requests, period) = (1 + numbers.below(30), 1 + numbers.below(2000));
            let lasts = 1 + numbers.below(4 * period);
            let soft = Soft::new(1 + numbers.below(200), lasts).unwrap();
            let rate = rate(requests, period, Algorithm::FIXED_WINDOW).softened(soft).unwrap();
            let (mut now, mut stored, mut window, mut used) = (1_000_000_000_000, None, 0, 0);
            let mut extra: Option<(u64, u64)> = None;
            for _ in 0..600 {
                now += match numbers.below(8) {
                    0 => numbers.below(3 * period * 1000),
                    1..4 => 0,
                    _ => numbers.below(period * 100),
                };
                let (millis, cost) = (now / 1000, 1 + numbers.below(3));
                if millis / period != window {
                    (window, used) = (millis / period, 0);
                }
                let (record, decision) = check(&rate, stored, now, cost);
                stored = Some(record);
                let open = extra.is_none_or(|(since, end)| millis < since + lasts || millis >= end + period);
                let most = if open { rate.ceiling() } else { requests };
                assert_eq!(decision.admitted, used + cost <= most, "{used} + {cost} at {now} of {rate:?}");
                if decision.admitted {
                    used += cost;
                    if used > requests {
                        let begins = extra.is_none_or(|(_, end)| millis >= end + period);
                        again += u64::from(begins && extra.is_some());
                        extras += 1;
                        let since = if begins { millis } else { extra.unwrap_or_default().0 };
                        extra = Some((since, (window + 1) * period));
                    }
                }
            }
        }
        assert!(extras > 1000 && again > 100, "{extras} above the number, {again} re-armed");
    }
}
