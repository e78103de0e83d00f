use super::Soft;
use crate::testing::{Random, check, rate};
use crate::{Algorithm, Record};

/// A window never holds more than N and the extra. More than N pass only for the configured time after the
/// first request above N, and again one period after the end of the window of the last request above N.
#[test]
fn the_extra_is_bounded_in_number_and_in_time() {
    let mut random = Random(23);
    let (mut extras, mut rearmed) = (0, 0);
    for _ in 0..400 {
        let (requests, period) = (1 + random.below(30), 1 + random.below(2000));
        let lasts = 1 + random.below(4 * period);
        let soft = Soft::new(1 + random.below(200), lasts).unwrap();
        let rate = rate(requests, period, Algorithm::FIXED_WINDOW).with_soft(soft).unwrap();
        let (mut now, mut stored, mut window, mut used) = (1_000_000_000_000, None, 0, 0);
        let mut extra: Option<(u64, u64)> = None;
        for _ in 0..600 {
            now += match random.below(8) {
                0 => random.below(3 * period * 1000),
                1..4 => 0,
                _ => random.below(period * 100),
            };
            let (millis, cost) = (now / 1000, 1 + random.below(3));
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
                    rearmed += u64::from(begins && extra.is_some());
                    extras += 1;
                    let since = if begins { millis } else { extra.unwrap_or_default().0 };
                    extra = Some((since, (window + 1) * period));
                }
            }
        }
    }
    assert!(extras > 1000 && rearmed > 100, "{extras} above the number, {rearmed} re-armed");
}

#[test]
fn the_extra_is_available_again_after_one_period_below_the_number() {
    let soft = Soft::new(20, 30_000).unwrap();
    let rate = rate(100, 10_000, Algorithm::FIXED_WINDOW).with_soft(soft).unwrap();
    let admitted_of = |stored: &mut Option<Record>, begins: u64, tries: u64| -> u64 {
        (0..tries)
            .filter(|_| {
                let (record, decision) = check(&rate, stored.take(), begins, 1);
                *stored = Some(record);
                decision.admitted
            })
            .count() as u64
    };
    let begin = 1_126_000_020_000_000;
    let mut stored = None;
    let admitted: Vec<u64> = (0..6).map(|n| admitted_of(&mut stored, begin + n * 10_000_000, 200)).collect();
    assert_eq!(admitted, [120, 120, 120, 100, 120, 120], "30 s of extra, one period without, and again");
    let _ = admitted_of(&mut stored, begin + 60_000_000, 50);
    assert_eq!(admitted_of(&mut stored, begin + 80_000_000, 200), 120);
}
