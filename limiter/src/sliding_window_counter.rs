//! The sliding-window counter. The period is cut into m sub-windows, or windows; a record keeps the current window and the m
//! before it. `Estimate`: used = current + whole previous windows + ceil(oldest * rest / window length), rest being what is
//! left of the current window: the share of the oldest one that the last period still overlaps. With m = 1 it is the
//! counter of two windows that Cloudflare describes ("How we built rate limiting capable of scaling to millions of
//! domains", 2017); here in exact integers. `Guaranteed`: the oldest window counts whole.
//!
//! Within one aligned period never more than N pass. Within a trailing one the estimate can be driven by an adversary
//! who fills the end of a window and then the end of the m-th window after it. At the last admission of the period, with r
//! milliseconds left of a window of L, current + whole + ceil(oldest * r / L) <= N; the period holds at most current +
//! whole + oldest, and oldest <= N, r >= 1: so at most N + floor(N * (L - 1) / L) pass, whatever m is, which is 2N - 1
//! for windows of at least N milliseconds, and the adversary does reach it. More sub-windows bring the estimate of
//! ordinary traffic nearer, not this bound. `Guaranteed` never exceeds N in any trailing period, which touches no more
//! than m + 1 windows, and admits m / (m + 1) of the rate to who sends all the time: choose m well above 1.

use crate::algorithm::{Bound, shifted};
use crate::record::Counts;
use crate::{MAX_COUNT, Record};

/// The record at `now`, and the instant that counts.
#[inline]
pub(crate) fn roll(mut record: Record, now: u64) -> (Record, u64) {
    let length = record.tag.window_millis() * 1000;
    let newest = now / length;
    if record.window == newest {
        return (record, now);
    }
    let kept = record.tag.previous_windows();
    if record.window < newest {
        advance(&mut record, newest, kept);
        (record, now)
    } else if record.window - newest <= kept.max(1) {
        let at = record.window * length;
        (record, at)
    } else {
        let all = record.tail.iter().fold(record.current + record.previous, |sum, n| sum.saturating_add(*n));
        record.current = all.min(MAX_COUNT);
        record.previous = 0;
        record.tail.fill(0);
        record.window = newest;
        let now = now / 1000;
        record.overrun.since = record.overrun.since.min(now);
        record.overrun.last = record.overrun.last.min(now);
        (record, now * 1000)
    }
}

/// Moves a record on to a later window.
fn advance(record: &mut Record, newest: u64, kept: u64) {
    let by = newest - record.window;
    if by > kept {
        record.previous = 0;
        record.tail.fill(0);
    } else if record.tail.is_empty() {
        record.previous = record.current;
    } else {
        let by = by as usize;
        let (first, second) = (record.current, record.previous);
        let tail = record.tail.len();
        record.tail.rotate_right(by.min(tail));
        record.tail[..(by - 1).min(tail)].fill(0);
        if by >= 2 && by - 2 < tail {
            record.tail[by - 2] = first;
        }
        if by - 1 < tail {
            record.tail[by - 1] = second;
        }
        record.previous = if by == 1 { first } else { 0 };
    }
    record.current = 0;
    record.window = newest;
}

/// Requests used in the period that ends at `now`, as estimated or at most.
#[inline]
pub(crate) fn used(record: &Record, bound: Bound, now: u64) -> u64 {
    let (whole, oldest) = match record.tail.split_last() {
        None => (record.current, record.previous),
        Some((oldest, others)) => (record.current + record.previous + others.iter().sum::<u64>(), *oldest),
    };
    match bound {
        Bound::Guaranteed => whole + oldest,
        Bound::Estimate if oldest == 0 => whole,
        Bound::Estimate => {
            let length = record.tag.window_millis();
            whole + ceil_share(oldest, (record.window + 1) * length - now / 1000, length)
        }
    }
}

/// Microseconds until nothing counts any more.
pub(crate) fn reset(record: &Record, _bound: Bound, now: u64) -> u64 {
    let kept = record.tag.previous_windows();
    let counts = Counts(record);
    match (0..=kept).find(|&index| counts.get(index) > 0) {
        Some(index) => (record.window + kept + 1 - index) * record.tag.window_millis() * 1000 - now,
        None => 0,
    }
}

/// The instant, in milliseconds, from which on at most `spare` requests are used.
pub(crate) fn falls_to(record: &Record, bound: Bound, now: u64, spare: u64) -> u64 {
    let (kept, length) = (record.tag.previous_windows(), record.tag.window_millis());
    let counts = Counts(record);
    // What counts whole while window + ahead is the current one: all but the oldest.
    let mut whole: u64 = (0..kept).map(|index| counts.get(index)).sum();
    for ahead in 0..=kept {
        let begins = (record.window + ahead) * length;
        let oldest = counts.get(kept - ahead);
        if whole <= spare {
            let share = spare - whole;
            let at = if oldest <= share {
                begins
            } else {
                match bound {
                    Bound::Estimate => begins + length - floor_share(share, length, oldest),
                    Bound::Guaranteed => begins + length,
                }
            };
            return at.max(now / 1000);
        }
        if ahead < kept {
            whole -= counts.get(kept - ahead - 1);
        }
    }
    (record.window + kept + 1) * length
}

/// Corrects the count of the window that was charged.
pub(crate) fn settle(record: &mut Record, charged: u64, delta: i64) {
    let window = charged / (record.tag.window_millis() * 1000);
    let index = record.window.saturating_sub(window);
    let count = match index {
        0 => &mut record.current,
        _ if index > record.tag.previous_windows() => return,
        1 => &mut record.previous,
        _ => match record.tail.get_mut(index as usize - 2) {
            Some(count) => count,
            None => return,
        },
    };
    *count = shifted(*count, delta);
}

/// ceil(count * part / whole), for part <= whole: it fits wherever `count` does.
#[inline]
fn ceil_share(count: u64, part: u64, whole: u64) -> u64 {
    match count.checked_mul(part) {
        Some(product) => product.div_ceil(whole),
        None => (u128::from(count) * u128::from(part)).div_ceil(u128::from(whole)) as u64,
    }
}

/// floor(count * period / whole), for count < whole: it is below `period`.
fn floor_share(count: u64, period: u64, whole: u64) -> u64 {
    match count.checked_mul(period) {
        Some(product) => product / whole,
        None => (u128::from(count) * u128::from(period) / u128::from(whole)) as u64,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Rate;
    use crate::testing::{rate, sliding};

    /// A generator of numbers that repeats itself: xorshift64* (Vigna, 2016).
    pub(crate) struct Numbers(pub(crate) u64);

    impl Numbers {
        pub(crate) fn below(&mut self, end: u64) -> u64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % end
        }
    }

    /// One move of an adversary: when, in a window and microseconds within it, and what part of what fits.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    struct Move {
        window: u64,
        micros: u64,
        part: u64,
    }

    impl Move {
        /// Half of them a microsecond from an edge, and half in a window that is nearly a period away.
        fn any(numbers: &mut Numbers, windows: u64, length: u64) -> Self {
            let window = match numbers.below(2) {
                0 => [0, 1, windows - 1, windows, windows + 1, 2 * windows][numbers.below(6) as usize],
                _ => numbers.below(2 * windows + 2),
            };
            let micros = match numbers.below(6) {
                0 => 0,
                1 => 1,
                2 => length - 1,
                3 => length - 2,
                _ => numbers.below(length),
            };
            Self { window: window, micros, part: [1, 1, 1, 2, 3, u64::MAX][numbers.below(6) as usize] }
        }
    }

    /// What is admitted, by instant, to an adversary who makes these moves.
    fn admitted(rate: &Rate, moves: &[Move], length: u64) -> Vec<(u64, u64)> {
        // A multiple of all windows, so that moves fall where they say.
        let start = 1_000_000 * rate.period.micros();
        let (mut stored, mut all) = (None, vec![]);
        for each in moves {
            let now = start + each.window * length + each.micros;
            let (record, at) = rate.roll(stored.take(), now);
            let room = rate.requests.get().saturating_sub(rate.used(&record, at));
            let cost = (room / each.part).max(u64::from(room > 0));
            if cost > 0 {
                assert!(rate.has_room(&record, at, cost) && !rate.has_room(&record, at, room + 1));
                stored = Some(rate.charge(record, at, cost));
                all.push((now, cost));
            } else {
                stored = Some(record);
            }
        }
        all
    }

    /// The most that any trailing period holds, in the unit of the instants.
    pub(crate) fn fullest(admitted: &[(u64, u64)], period: u64) -> u64 {
        let (mut first, mut sum, mut most) = (0, 0, 0);
        for &(now, cost) in admitted {
            sum += cost;
            while admitted[first].0 + period <= now {
                sum -= admitted[first].1;
                first += 1;
            }
            most = most.max(sum);
        }
        most
    }

    /// The most that a search for the worst case finds in a trailing period, to the microsecond: schedules at random, and
    /// changes of the best so far.
    pub(crate) fn worst(rate: &Rate, tries: u64, seed: u64) -> u64 {
        worst_in(rate, tries, seed, 1)
    }

    /// As [`worst`], where only so many microseconds are told apart.
    pub(crate) fn worst_in(rate: &Rate, tries: u64, seed: u64, unit: u64) -> u64 {
        let windows = rate.tag().previous_windows().max(1);
        let length = rate.tag().window_millis() * 1000;
        let mut numbers = Numbers(seed);
        let (mut best, mut most) = (vec![], 0);
        for _ in 0..tries {
            let mut moves: Vec<Move> = if numbers.below(2) == 0 { vec![] } else { best.clone() };
            if !moves.is_empty() {
                let at = numbers.below(moves.len() as u64) as usize;
                moves.swap_remove(at);
            }
            for _ in 0..1 + numbers.below(4) {
                moves.push(Move::any(&mut numbers, windows, length));
            }
            moves.sort_unstable();
            let mut all = admitted(rate, &moves, length);
            all.iter_mut().for_each(|(now, _)| *now /= unit);
            let found = fullest(&all, rate.period.micros() / unit);
            if found > most {
                (best, most) = (moves, found);
            }
        }
        most
    }

    /// The bound at the head of this module.
    fn bound(rate: &Rate) -> u64 {
        let (requests, length) = (rate.requests.get(), rate.tag().window_millis());
        requests + requests * (length - 1) / length
    }

    #[test]
    fn an_adversary_gets_1999_of_1000_in_a_trailing_period_of_two_windows() {
        let rate = rate(1000, 60_000, crate::Algorithm::SLIDING_WINDOW);
        assert_eq!((worst(&rate, 20_000, 1), bound(&rate)), (1999, 1999));
    }

    #[test]
    fn sub_windows_do_not_help_against_an_adversary() {
        for (windows, expected) in [(2, 1999), (10, 1999), (60, 1999)] {
            let rate = rate(1000, 3_600_000, sliding(windows, Bound::Estimate));
            let found = worst(&rate, 40_000, windows);
            println!("estimate, m = {windows}: {found} of 1000 in a trailing period");
            assert_eq!((found, bound(&rate)), (expected, expected));
        }
        // Slots shorter than N milliseconds: a millisecond's share of the oldest is more than one.
        for (windows, length, expected) in [(1, 100, 1990), (10, 50, 1980), (60, 1, 1000), (60, 2, 1500)] {
            let rate = rate(1000, windows * length, sliding(windows, Bound::Estimate));
            assert_eq!((worst(&rate, 40_000, windows), bound(&rate)), (expected, expected));
        }
    }

    #[test]
    fn no_adversary_exceeds_the_bound_of_the_estimate() {
        let mut numbers = Numbers(7);
        for windows in 1..=60 {
            let length = 1 + numbers.below(2000);
            let rate = rate(1 + numbers.below(3000), windows * length, sliding(windows, Bound::Estimate));
            let found = worst(&rate, 1500, windows);
            assert!(found <= bound(&rate), "{found} of {rate:?}");
        }
    }

    /// And the same search, for the estimate, does exceed it.
    #[test]
    fn no_adversary_exceeds_the_number_when_it_is_guaranteed() {
        for windows in 1..=60 {
            let worst = |bound| worst(&rate(1000, windows * 1000, sliding(windows, bound)), 1500, windows);
            assert_eq!(worst(Bound::Guaranteed), 1000, "m = {windows}");
            assert!(worst(Bound::Estimate) > 1300, "m = {windows}");
        }
    }

    /// Who asks each millisecond gets m / (m + 1) of the rate, on the average of whole rounds.
    #[test]
    fn a_guaranteed_counter_admits_its_share_of_the_rate() {
        for windows in [1, 2, 4, 20] {
            let rate = rate(60, 20 * 6 * windows, sliding(windows, Bound::Guaranteed));
            let (rounds, mut stored, mut total) = (50, None, 0);
            for millis in 0..rounds * (windows + 1) * 120 {
                let (record, at) = rate.roll(stored.take(), millis * 1000);
                let room = rate.requests.get() - rate.used(&record, at);
                total += room;
                stored = Some(rate.charge(record, at, room));
            }
            // A round is m + 1 windows, in which N pass.
            assert_eq!(total, rounds * 60, "m = {windows}");
        }
    }
}
