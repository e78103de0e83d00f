use crate::testing::{Random, check, rate};
use crate::{Algorithm, Burst, MaxWait, Rate};

const START: u64 = 1_126_000_020_000_000;

/// Generates rates of at most one token a microsecond, with their bursts. The bursts are two or more: a
/// bucket of one overflows in the part of a microsecond between the instant when it is full and the next
/// whole one.
fn buckets() -> impl Iterator<Item = (Rate, u64, Random)> {
    (1..=300).map(|seed| {
        let mut random = Random(seed);
        let period = 1 + random.below(5000);
        let requests = 1 + random.below(if seed % 3 == 0 { period * 1000 } else { 20 });
        let tokens = 2 + random.below(30);
        let burst = Burst::new(tokens).unwrap();
        let algorithm =
            if seed % 2 == 0 { Algorithm::TokenBucket { burst } } else { Algorithm::Gcra { burst } };
        (rate(requests, period, algorithm), tokens, random)
    })
}

/// Returns the tokens that a bucket gains in a time: floor(micros * requests / period).
fn gained(rate: &Rate, micros: u64) -> u64 {
    (u128::from(micros) * u128::from(rate.requests.get()) / u128::from(rate.period.micros())) as u64
}

/// In any interval a bucket admits at most its burst and what it gains in that time.
#[test]
fn a_bucket_never_gives_more_than_its_burst_and_its_rate() {
    for (rate, burst, mut random) in buckets() {
        let spacing = 3 * rate.period.micros() / rate.requests.get() + 2;
        let (mut now, mut stored, mut admitted) = (START, None, Vec::<(u64, u64)>::new());
        for _ in 0..200 {
            now += if random.below(3) == 0 { 0 } else { random.below(spacing) };
            let cost = 1 + random.below(burst.min(4));
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

/// A client that takes the burst, and then each token as soon as it exists, reaches the bound at every
/// instant.
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

#[test]
fn ten_million_a_second_neither_admit_all_requests_nor_none() {
    let admitted_in_a_millisecond = |algorithm| {
        let rate = rate(10_000_000, 1000, algorithm);
        let (mut stored, mut admitted) = (None, 0);
        for now in START..START + 1000 {
            for _ in 0..20 {
                let (record, decision) = check(&rate, stored, now, 1);
                admitted += u64::from(decision.admitted);
                stored = Some(record);
            }
        }
        admitted
    };
    let burst = Burst::new(1).unwrap();
    for algorithm in [Algorithm::Gcra { burst }, Algorithm::TokenBucket { burst }] {
        // A bucket of one admits one request each time that the clock moves, which is each microsecond.
        assert_eq!(admitted_in_a_millisecond(algorithm), 1000);
    }
    let burst = Burst::new(10).unwrap();
    assert_eq!(admitted_in_a_millisecond(Algorithm::TokenBucket { burst }), 10_000);
}

#[test]
fn a_leaky_bucket_spaces_requests_and_denies_long_waits() {
    let max_wait = MaxWait::from_millis(1000).unwrap();
    let rate = rate(3, 1000, Algorithm::LeakyBucket { max_wait });
    let mut stored = None;
    let mut delays = vec![];
    for _ in 0..6 {
        let (record, decision) = check(&rate, stored, START, 1);
        delays.push(decision.admitted.then_some(decision.delay));
        stored = Some(record);
    }
    assert_eq!(delays, [Some(0), Some(333_334), Some(666_667), Some(1_000_000), None, None]);
}

/// Admitted requests leave at the rate's own pace, to the microsecond and without drift. A request that would
/// wait longer than allowed is denied. The test computes the expected times in fractions.
#[test]
fn a_leaky_bucket_flows_out_at_a_constant_rate() {
    let (mut yes, mut delayed, mut no) = (0, 0, 0);
    for seed in 1..=300 {
        let mut random = Random(seed);
        let (period, requests) = (1 + random.below(5000), 1 + random.below(3000));
        let wait = random.below(3 * period);
        let max_wait = MaxWait::from_millis(wait).unwrap();
        let rate = rate(requests, period, Algorithm::LeakyBucket { max_wait });
        // In units of 1 / requests microseconds.
        let per = u128::from(requests);
        let time_of_one = u128::from(period) * 1000;
        let (mut free, mut now, mut stored) = (0, START, None);
        let (mut begin, mut taken, mut last) = (0, 0, 0);
        for _ in 0..300 {
            now += if random.below(2) == 0 { 0 } else { random.below(2 * period * 1000 / requests + 2) };
            let cost = 1 + random.below(requests.min(3));
            let (record, decision) = check(&rate, stored, now, cost);
            stored = Some(record);
            let at = u128::from(now) * per;
            let leaves = free.max(at);
            assert_eq!(decision.admitted, leaves - at <= u128::from(wait) * 1000 * per, "{rate:?}");
            if !decision.admitted {
                no += 1;
                continue;
            }
            assert_eq!(u128::from(decision.delay), (leaves - at).div_ceil(per), "{rate:?}");
            let start = now + decision.delay;
            assert!(start >= last);
            last = start;
            if decision.delay == 0 {
                (begin, taken) = (now, 0);
            } else {
                // Since the backlog began, not only since the previous request.
                let since = u128::from(start - begin) * per;
                assert!(since >= taken && since - taken < per, "{rate:?}");
                delayed += 1;
            }
            taken += u128::from(cost) * time_of_one;
            free = leaves + u128::from(cost) * time_of_one;
            yes += 1;
        }
    }
    assert!(yes > 10_000 && delayed > 5000 && no > 5000, "{yes} admitted, {delayed} delayed, {no} denied");
}
