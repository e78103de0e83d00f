//! Token bucket, generic cell rate algorithm and leaky bucket: one state, the *theoretical arrival time* (TAT) of the
//! next request if all came at the rate's own pace. A request of cost c moves it to `max(TAT, now) + c * T`, with T =
//! period / requests, and conforms if it then is no more than the capacity ahead of now. After ITU-T I.371 and "Traffic
//! Management Specification Version 4.1" (ATM Forum, 1999), section 4.4.2, virtual scheduling; the same bucket counted in
//! tokens is Turner's (1986).
//!
//! - `tokenBucket`: the capacity is `burst * T`; a full bucket is a TAT in the past.
//! - `gcra`: the same, with a burst of 1 unless said otherwise.
//! - `leakyBucket`: who conforms waits until `max(TAT, now)`, which is no more than `maxWait` away: a constant outflow.
//!
//! T is seldom whole: 3 a second are 333,333 us and a third. Hence a TAT is whole microseconds and a rest in units of
//! 1 / requests microseconds: exact for 3 a second and for ten million.
//!
//! In a [`Record`]: `window` is the TAT's milliseconds, `previous` its microseconds within them, `current` the rest.

use crate::{Algorithm, Rate, Record};

/// A length of time in microseconds and a rest in units of 1 / requests of a microsecond, smaller than one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    pub(crate) micros: u64,
    pub(crate) rest: u64,
}

impl Span {
    pub(crate) const ZERO: Self = Self { micros: 0, rest: 0 };

    /// The time of so many requests: requests * period / per.
    #[inline]
    pub(crate) fn of(requests: u64, period_micros: u64, per: u64) -> Self {
        let per = per.max(1);
        if let Some(product) = requests.checked_mul(period_micros) {
            return Self { micros: product / per, rest: product % per };
        }
        let (product, per) = (u128::from(requests) * u128::from(period_micros), u128::from(per));
        Self {
            micros: u64::try_from(product / per).unwrap_or(u64::MAX >> 8).min(u64::MAX >> 8),
            rest: (product % per) as u64,
        }
    }

    pub(crate) fn plus(self, other: Self, per: u64) -> Self {
        let rest = self.rest + other.rest;
        let carry = u64::from(rest >= per.max(1));
        Self { micros: self.micros + other.micros + carry, rest: rest - carry * per.max(1) }
    }

    /// The difference, or nothing.
    pub(crate) fn minus(self, other: Self, per: u64) -> Self {
        if self <= other {
            Self::ZERO
        } else if self.rest >= other.rest {
            Self { micros: self.micros - other.micros, rest: self.rest - other.rest }
        } else {
            Self { micros: self.micros - other.micros - 1, rest: self.rest + per.max(1) - other.rest }
        }
    }

    /// Whole microseconds, rounded up.
    pub(crate) fn ceil(self) -> u64 {
        self.micros + u64::from(self.rest > 0)
    }
}

fn tat(record: &Record) -> u64 {
    record.window.saturating_mul(1000).saturating_add(record.previous)
}

fn set(record: &mut Record, micros: u64, rest: u64) {
    (record.window, record.previous, record.current) = (micros / 1000, micros % 1000, rest);
}

/// How far the TAT is ahead of now.
pub(crate) fn ahead(record: &Record, now: u64) -> Span {
    let tat = tat(record);
    if tat < now { Span::ZERO } else { Span { micros: tat - now, rest: record.current } }
}

/// The furthest that a TAT can be ahead, in whole microseconds; one beyond it comes from another clock or number.
pub(crate) fn furthest(rate: &Rate) -> u64 {
    match rate.algorithm {
        Algorithm::LeakyBucket { max_wait } => max_wait.micros() + rate.period.micros(),
        Algorithm::TokenBucket { burst } | Algorithm::Gcra { burst } => rate.span(burst.get()).ceil(),
        _ => 0,
    }
}

/// Takes in what may have been stored with another number or by another clock.
pub(crate) fn roll(rate: &Rate, mut record: Record, now: u64) -> Record {
    if record.current >= rate.requests.get().max(1) {
        // A rest of another number: rounded up.
        let micros = tat(&record).saturating_add(1);
        set(&mut record, micros, 0);
    }
    let latest = now + furthest(rate);
    if tat(&record) > latest {
        set(&mut record, latest, 0);
    }
    record
}

/// Moves the TAT.
pub(crate) fn reserve(rate: &Rate, record: &mut Record, now: u64, span: Span) {
    let after = ahead(record, now).plus(span, rate.requests.get());
    set(record, now + after.micros, after.rest);
}

/// How many requests of cost 1 fit now.
pub(crate) fn tokens(rate: &Rate, record: &Record, capacity: Span, now: u64) -> u64 {
    let requests = rate.requests.get();
    if requests == 0 {
        return 0;
    }
    let left = capacity.minus(ahead(record, now), requests);
    let left = u128::from(left.micros) * u128::from(requests) + u128::from(left.rest);
    (left / u128::from(rate.period.micros())) as u64
}

/// A span that a settlement may move a TAT by: larger ones would not be exact in a double.
pub(crate) fn capped(span: Span) -> Span {
    if span.micros >= 1 << 51 { Span { micros: 1 << 51, rest: 0 } } else { span }
}

/// What the TAT would be had the cost been another. In a leaky bucket others have reserved their instants behind this
/// one: only the last reservation, named by the instant at which its turn would have come, can be given back, or two
/// requests would leave together.
pub(crate) fn settle(rate: &Rate, record: &mut Record, charged: u64, delta: i64) {
    let requests = rate.requests.get();
    let span = capped(rate.span(delta.unsigned_abs().min(crate::MAX_COUNT)));
    let now = Span { micros: tat(record), rest: record.current };
    let after = if delta < 0 { now.minus(span, requests) } else { now.plus(span, requests) };
    let leaky = matches!(rate.algorithm, Algorithm::LeakyBucket { .. });
    let kept = leaky && delta < 0 && after.ceil() != charged;
    let after = if kept { now } else { after };
    set(record, after.micros, after.rest);
}

/// The record as it was before so much was charged.
pub(crate) fn undo_charge(rate: &Rate, record: &mut Record, cost: u64) {
    let now = Span { micros: tat(record), rest: record.current };
    let before = now.minus(rate.span(cost), rate.requests.get());
    set(record, before.micros, before.rest);
}

#[cfg(test)]
mod tests {
    use crate::sliding_window_counter::tests::Numbers;
    use crate::testing::{check, rate};
    use crate::{Algorithm, Burst, MaxWait, Rate};

    const START: u64 = 1_126_000_020_000_000;

    /// Rates of a token a microsecond or fewer, and their bursts: two or more, as a bucket of one overflows in the part of
    /// a microsecond between the instant when it is full and the next one.
    fn buckets() -> impl Iterator<Item = (Rate, u64, Numbers)> {
        (1..=300).map(|seed| {
            let mut numbers = Numbers(seed);
            let period = 1 + numbers.below(5000);
            let requests = 1 + numbers.below(if seed % 3 == 0 { period * 1000 } else { 20 });
            let tokens = 2 + numbers.below(30);
            let burst = Burst::new(tokens).unwrap();
            let algorithm =
                if seed % 2 == 0 { Algorithm::TokenBucket { burst } } else { Algorithm::Gcra { burst } };
            (rate(requests, period, algorithm), tokens, numbers)
        })
    }

    /// What a rate gives in some time: floor(micros * requests / period).
    fn gained(rate: &Rate, micros: u64) -> u64 {
        (u128::from(micros) * u128::from(rate.requests.get()) / u128::from(rate.period.micros())) as u64
    }

    /// In any stretch of time, whatever comes: at most the burst and what the rate gives in that time.
    #[test]
    fn a_bucket_never_gives_more_than_its_burst_and_its_rate() {
        for (rate, burst, mut numbers) in buckets() {
            let spacing = 3 * rate.period.micros() / rate.requests.get() + 2;
            let (mut now, mut stored, mut admitted) = (START, None, Vec::<(u64, u64)>::new());
            for _ in 0..200 {
                now += if numbers.below(3) == 0 { 0 } else { numbers.below(spacing) };
                let cost = 1 + numbers.below(burst.min(4));
                let (record, decision) = check(&rate, stored, now, cost);
                stored = Some(record);
                if decision.admitted {
                    admitted.push((now, cost));
                }
            }
            for (n, &(from, _)) in admitted.iter().enumerate() {
                let mut sum = 0;
                for &(to, cost) in &admitted[n..] {
                    sum += cost;
                    assert!(sum <= burst + gained(&rate, to - from), "{sum} in {} of {rate:?}", to - from);
                }
            }
        }
    }

    /// The bound is reached, at every instant, by who takes the burst and then each token as it comes.
    #[test]
    fn a_bucket_gives_all_of_its_burst_and_its_rate() {
        for (rate, burst, _) in buckets() {
            let (mut stored, first) = check(&rate, None, START, burst);
            assert!(first.admitted);
            let mut now = START;
            for token in 1..500 {
                let (_, denied) = check(&rate, Some(stored.clone()), now, 1);
                now += denied.retry_after.unwrap_or_default();
                let (record, decision) = check(&rate, Some(stored), now, 1);
                assert!(decision.admitted);
                stored = record;
                assert_eq!(gained(&rate, now - START), token, "{rate:?}");
                assert_eq!(gained(&rate, now - 1 - START), token - 1, "not a microsecond later: {rate:?}");
            }
        }
    }

    /// What the admitted are told to wait spaces them at the rate's own pace, to the microsecond and without drift, and
    /// who would wait longer than allowed is denied. The expectation is in fractions, computed apart.
    #[test]
    fn a_leaky_bucket_flows_out_at_a_constant_rate() {
        let (mut yes, mut waited, mut no) = (0, 0, 0);
        for seed in 1..=300 {
            let mut numbers = Numbers(seed);
            let (period, requests) = (1 + numbers.below(5000), 1 + numbers.below(3000));
            let wait = numbers.below(3 * period);
            let max_wait = MaxWait::from_millis(wait).unwrap();
            let rate = rate(requests, period, Algorithm::LeakyBucket { max_wait });
            // In units of 1 / requests microseconds.
            let per = u128::from(requests);
            let cost_of_one = u128::from(period) * 1000;
            let (mut free, mut now, mut stored) = (0, START, None);
            let (mut begins, mut taken, mut last) = (0, 0, 0);
            for _ in 0..300 {
                now +=
                    if numbers.below(2) == 0 { 0 } else { numbers.below(2 * period * 1000 / requests + 2) };
                let cost = 1 + numbers.below(requests.min(3));
                let (record, decision) = check(&rate, stored, now, cost);
                stored = Some(record);
                let at = u128::from(now) * per;
                let turn = free.max(at);
                assert_eq!(decision.admitted, turn - at <= u128::from(wait) * 1000 * per, "{rate:?}");
                if !decision.admitted {
                    no += 1;
                    continue;
                }
                assert_eq!(u128::from(decision.delay), (turn - at).div_ceil(per), "{rate:?}");
                let start = now + decision.delay;
                assert!(start >= last);
                last = start;
                if decision.delay == 0 {
                    (begins, taken) = (now, 0);
                } else {
                    // The whole backlog since it began, not only from one to the next.
                    let since = u128::from(start - begins) * per;
                    assert!(since >= taken && since - taken < per, "{rate:?}");
                    waited += 1;
                }
                taken += u128::from(cost) * cost_of_one;
                free = turn + u128::from(cost) * cost_of_one;
                yes += 1;
            }
        }
        assert!(yes > 10_000 && waited > 5000 && no > 5000, "{yes} admitted, {waited} waited, {no} denied");
    }
}
