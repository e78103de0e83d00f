//! Fixed windows: admit iff count + cost <= N, and begin again with the next window. Up to 2N may pass within one
//! period across an edge; that is the definition, and why it is not the default.
//!
//! - `Clock`: windows begin at multiples of the period since the Unix epoch.
//! - `Spread`: the same, moved for each key by a share of the period that its hash says, so that not all clients come
//!   back at the same instant.
//! - `FirstRequest`: a window begins with the first request that is admitted. `window` of the record is that instant in
//!   milliseconds.

use crate::algorithm::Kind;
use crate::{Rate, Record};

/// The record of `FirstRequest` at `now`, and the instant that counts.
pub(crate) fn roll(rate: &Rate, mut record: Record, now: u64) -> (Record, u64) {
    let (millis, period) = (now / 1000, rate.period.millis());
    if record.window <= millis {
        if millis - record.window >= period {
            record.current = 0;
        }
        if record.current == 0 {
            record.window = millis;
        }
        (record, now)
    } else if record.window - millis <= period {
        let at = record.window * 1000;
        (record, at)
    } else {
        record.window = millis;
        record.overrun.since = record.overrun.since.min(millis);
        record.overrun.last = record.overrun.last.min(millis);
        (record, now)
    }
}

/// When the window ends, in milliseconds.
pub(crate) fn ends(record: &Record) -> u64 {
    if record.tag.kind() == Some(Kind::FirstRequest) {
        record.window + record.tag.period_millis()
    } else {
        (record.window + 1) * record.tag.window_millis()
    }
}

/// Microseconds until the window ends; 0 when nothing is used.
pub(crate) fn reset(record: &Record, now: u64) -> u64 {
    if record.current == 0 { 0 } else { ends(record) * 1000 - now }
}

#[cfg(test)]
mod tests {
    use crate::sliding_window_counter::tests::{Numbers, fullest, worst};
    use crate::testing::{check, rate};
    use crate::{Algorithm, Alignment};

    #[test]
    fn an_adversary_gets_twice_the_number_across_an_edge_and_no_more() {
        for alignment in [Alignment::Clock, Alignment::Spread, Alignment::FirstRequest] {
            let rate = rate(1000, 60_000, Algorithm::FixedWindow(alignment));
            assert_eq!(worst(&rate, 20_000, 3), 2000, "{alignment:?}");
        }
    }

    /// Windows of `FirstRequest` by their own definition: it ends a period after the first request in it.
    #[test]
    fn a_window_from_the_first_request_holds_no_more_than_its_number() {
        let mut numbers = Numbers(11);
        for _ in 0..300 {
            let (requests, period) = (1 + numbers.below(20), 1 + numbers.below(3000));
            let rate = rate(requests, period, Algorithm::FixedWindow(Alignment::FirstRequest));
            let (mut now, mut stored, mut opened, mut used) = (10_000_000_000, None, None::<u64>, 0);
            for _ in 0..200 {
                now += match numbers.below(4) {
                    0 => 0,
                    1 => period * 1000 - 1 + numbers.below(3),
                    _ => numbers.below(period * 300),
                };
                let cost = 1 + numbers.below(3);
                // Windows look at whole milliseconds.
                if opened.is_none_or(|opened| now / 1000 - opened >= period) {
                    (opened, used) = (None, 0);
                }
                let (record, decision) = check(&rate, stored, now, cost);
                stored = Some(record);
                assert_eq!(decision.admitted, used + cost <= requests, "{used} of {rate:?} at {now}");
                if decision.admitted {
                    opened = opened.or(Some(now / 1000));
                    used += cost;
                }
            }
        }
    }

    /// Every key has a window of its own length, and of a thousand keys about as many begin at any time.
    #[test]
    fn spread_windows_begin_at_all_times_and_each_holds_its_number() {
        let period = 60_000;
        let rate = rate(7, period, Algorithm::FixedWindow(Alignment::Spread));
        let mut numbers = Numbers(5);
        let mut begins = [0; 10];
        for _ in 0..1000 {
            let key = u128::from(numbers.below(1 << 53)) << 64 << 11;
            let (begin, mut stored, mut admitted) = (600_000_000_000, None, vec![]);
            for step in 0..4 * 60 {
                let now = begin + step * 1_000_000;
                for _ in 0..9 {
                    let (record, decision) = check(&rate, stored, now + rate.phase(key), 1);
                    stored = Some(record);
                    admitted.extend(decision.admitted.then_some((now, 1)));
                }
            }
            // Seven at the beginning, seven at each edge, and the edges are a period apart.
            let edges: Vec<u64> = admitted.iter().step_by(7).map(|&(now, _)| now).collect();
            assert!(edges.windows(2).skip(1).all(|edge| edge[1] - edge[0] == period * 1000), "{edges:?}");
            assert!(fullest(&admitted, period * 1000) <= 14);
            begins[((edges[1] - begin) / 6_000_001) as usize] += 1;
        }
        assert!(begins.iter().all(|n| (60..140).contains(n)), "{begins:?}");
    }
}
