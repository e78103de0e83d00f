//! N is N: for every algorithm, many concurrent callers are admitted exactly as often as the limit allows, and the retry-after
//! of a denial is exact.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use sluice_limiter::{
    Algorithm, Alignment, Bound, MAX_PERIOD_MS, MaxWait, Period, Rate, Requests, Soft, WarmUp,
};
use sluice_store::{CheckRequest, CheckResponse, Counter, LimitSpec, Store};

use super::definition::Definition;
use super::{KEY, MINUTE, Subject, burst, counter, decide, limit, rate, remaining, sub_windows};

const CALLERS: usize = 200;

fn sliding(slots: u64, bound: Bound) -> Algorithm {
    Algorithm::SlidingWindowCounter { sub_windows: sub_windows(slots), bound }
}

fn log(min_interval: u64) -> Algorithm {
    Algorithm::SlidingWindowLog { min_interval }
}

/// Returns a period of about a year in which no window ends during a test.
pub(super) fn long_period() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let phase = rate(1, MAX_PERIOD_MS, Algorithm::FixedWindow(Alignment::Spread)).phase(KEY.0) / 1000;
    let left = |period: u64, ahead: u64| period - (now.as_millis() as u64 + ahead) % period;
    // All of them can be divided by 60 and by 300.
    let periods = [MAX_PERIOD_MS, MAX_PERIOD_MS - 3_900_000, MAX_PERIOD_MS - 7_800_000];
    let is_quiet =
        |&period: &u64| left(period, 0) > 20 * MINUTE && left(period, phase % period) > 20 * MINUTE;
    periods.into_iter().find(is_quiet).unwrap()
}

/// Returns a rate of every algorithm, the number of concurrent checks that it admits, and what remains then.
fn all() -> Vec<(&'static str, Rate, u64, u64)> {
    let year = long_period();
    let n = 997;
    let soft = Soft::new(20, MAX_PERIOD_MS).unwrap();
    let wait = MaxWait::from_millis(year / 300 * 299).unwrap();
    let counted = |algorithm| rate(n, year, algorithm).counting_denied().unwrap();
    vec![
        ("slidingWindowCounter", rate(n, year, Algorithm::SLIDING_WINDOW), n, 0),
        ("slidingWindowCounter, 60 sub-windows", rate(n, year, sliding(60, Bound::Estimate)), n, 0),
        ("slidingWindowCounter, Guaranteed", rate(n, year, sliding(60, Bound::Guaranteed)), n, 0),
        ("fixedWindow, Clock", rate(n, year, Algorithm::FIXED_WINDOW), n, 0),
        ("fixedWindow, FirstRequest", rate(n, year, Algorithm::FixedWindow(Alignment::FirstRequest)), n, 0),
        ("fixedWindow, Spread", rate(n, year, Algorithm::FixedWindow(Alignment::Spread)), n, 0),
        ("slidingWindowLog", rate(n, year, log(0)), n, 0),
        ("slidingWindowLog, countDenied", counted(log(0)), n, 0),
        ("slidingWindowCounter, countDenied", counted(Algorithm::SLIDING_WINDOW), n, 0),
        // A minimum interval denies below the limit.
        ("slidingWindowLog, minInterval", rate(n, year, log(year)), 1, n - 1),
        ("tokenBucket, burst 997", rate(n, year, Algorithm::TokenBucket { burst: burst(n) }), n, 0),
        ("gcra, burst 1", rate(n, year, Algorithm::Gcra { burst: burst(1) }), 1, 0),
        ("leakyBucket, 299 delayed", rate(300, year, Algorithm::LeakyBucket { max_wait: wait }), 300, 0),
        ("warm-up", rate(n, year / 3, Algorithm::WarmUp(WarmUp::new(60_000, 3).unwrap())), 1, 0),
        ("soft, 20 % more", rate(1000, year, Algorithm::SLIDING_WINDOW).with_soft(soft).unwrap(), 1200, 0),
    ]
}

/// Sends concurrent checks from 200 callers. Returns how many were admitted.
async fn admitted_of(subject: &impl Subject, check: &[Counter], times: usize) -> u64 {
    let check: CheckRequest = check.iter().cloned().collect();
    let callers: Vec<_> = (0..CALLERS)
        .map(|n| {
            let clients = subject.clients();
            let (store, check) = (clients[n % clients.len()].clone(), check.clone());
            tokio::spawn(async move {
                let mut admitted = 0;
                for _ in 0..times.div_ceil(CALLERS) {
                    admitted += u64::from(store.check(check.clone()).await.unwrap().admitted);
                }
                admitted
            })
        })
        .collect();
    let mut total = 0;
    for caller in callers {
        total += caller.await.unwrap();
    }
    total
}

pub(super) async fn every_algorithm_admits_exactly_its_number(subject: &impl Subject) {
    for (n, (name, rate, expected, left)) in all().into_iter().enumerate() {
        let limit = limit(&format!("one-{n}"), vec![rate]);
        let admitted = admitted_of(subject, &[counter(&limit, 1)], 3000).await;
        println!("| {name} | {} clients | {CALLERS} callers | {admitted} of 3000 |", subject.clients().len());
        assert_eq!(admitted, expected, "{name}");
        assert!(!decide(&*subject.clients()[0], &[counter(&limit, 1)]).await.admitted, "{name}");
        assert_eq!(remaining(&*subject.clients()[0], &limit).await, [left], "{name}");
    }
}

/// Returns three limits for one check, with numbers of 500, 300 and 700.
fn three_limits() -> Vec<(&'static str, [Rate; 3])> {
    let year = long_period();
    let window = Algorithm::SLIDING_WINDOW;
    vec![
        ("windows", [rate(500, year, window), rate(300, year, window), rate(700, year, window)]),
        (
            "window, log, bucket",
            [
                rate(500, year, sliding(60, Bound::Estimate)),
                rate(300, year, log(0)),
                rate(700, year, Algorithm::TokenBucket { burst: burst(700) }),
            ],
        ),
        (
            "Spread, Guaranteed, FirstRequest",
            [
                rate(500, year, Algorithm::FixedWindow(Alignment::Spread)),
                rate(300, year, sliding(60, Bound::Guaranteed)),
                rate(700, year, Algorithm::FixedWindow(Alignment::FirstRequest)),
            ],
        ),
    ]
}

/// The others are charged only for the admitted checks, so the rest of their quota remains.
pub(super) async fn the_smallest_of_three_limits_decides_and_denials_charge_nothing(subject: &impl Subject) {
    for (n, (name, rates)) in three_limits().into_iter().enumerate() {
        let limits = rates.map(|rate| limit(&format!("three-{n}-{}", rate.requests.get()), vec![rate]));
        let all: Vec<_> = limits.iter().map(|limit| counter(limit, 1)).collect();
        assert_eq!(admitted_of(subject, &all, 3000).await, 300, "{name}");
        let denied = decide(&*subject.clients()[0], &all).await;
        let by: Vec<_> = denied.decisions.iter().map(|decision| decision.admitted).collect();
        assert_eq!((denied.admitted, &by[..]), (false, &[true, false, true][..]), "{name}");
        for (limit, rest) in limits.iter().zip([200, 0, 400]) {
            assert_eq!(admitted_of(subject, &[counter(limit, 1)], 1000).await, rest, "{name}");
        }
    }
}

pub(super) async fn the_smallest_of_three_rates_decides(subject: &impl Subject) {
    for (n, (name, rates)) in three_limits().into_iter().enumerate() {
        // Rates of one limit need different periods.
        let with_own_period = |(n, rate): (usize, Rate)| {
            let period = Period::from_millis(rate.period.millis() - 60 * n as u64).unwrap();
            Rate::new(rate.requests, period, rate.algorithm).unwrap()
        };
        let limit =
            limit(&format!("rates-{n}"), rates.into_iter().enumerate().map(with_own_period).collect());
        assert_eq!(admitted_of(subject, &[counter(&limit, 1)], 3000).await, 300, "{name}");
        assert_eq!(remaining(&*subject.clients()[0], &limit).await, [200, 0, 400], "{name}");
    }
}

/// Many callers try to guess a password, all at once.
pub(super) async fn a_client_is_blocked_after_exactly_so_many_denials(subject: &impl Subject) {
    let year = Period::from_millis(long_period()).unwrap();
    for (n, algorithm) in [Algorithm::SLIDING_WINDOW, Algorithm::TokenBucket { burst: burst(5) }, log(0)]
        .into_iter()
        .enumerate()
    {
        let block = Rate::block(Requests::new(10).unwrap(), year, year).unwrap();
        let limit = limit(&format!("block-{n}"), vec![rate(5, year.millis(), algorithm), block]);
        let checks = (0..800).map(|n| {
            let clients = subject.clients();
            let (store, check) =
                (clients[n % clients.len()].clone(), [counter(&limit, 1)].into_iter().collect());
            tokio::spawn(async move { store.check(check).await.unwrap() })
        });
        let (mut admitted, mut denied, mut blocked) = (0, 0, 0);
        for check in checks.collect::<Vec<_>>() {
            let response = check.await.unwrap();
            match &response.decisions[..] {
                _ if response.admitted => admitted += 1,
                [_, block] if block.admitted => denied += 1,
                _ => blocked += 1,
            }
        }
        assert_eq!((admitted, denied, blocked), (5, 10, 785));
        let store = &*subject.clients()[0];
        store.reset(&limit, KEY).await.unwrap();
        assert!(decide(store, &[counter(&limit, 1)]).await.admitted, "a reset lifts the block");
    }
}

/// Returns a rate of a few requests per minute of every algorithm.
fn few() -> Vec<Rate> {
    let n = 7;
    let wait = MaxWait::from_millis(20_000).unwrap();
    let soft = Soft::new(50, 1000).unwrap();
    vec![
        rate(n, MINUTE, Algorithm::SLIDING_WINDOW),
        rate(n, MINUTE, sliding(6, Bound::Estimate)),
        rate(n, MINUTE, sliding(10, Bound::Guaranteed)),
        rate(n, MINUTE, Algorithm::FIXED_WINDOW),
        rate(n, MINUTE, Algorithm::FixedWindow(Alignment::FirstRequest)),
        rate(n, MINUTE, Algorithm::FixedWindow(Alignment::Spread)),
        rate(n, MINUTE, log(0)),
        rate(n, MINUTE + 1, log(1500)),
        rate(n, MINUTE + 2, log(0)).counting_denied().unwrap(),
        rate(n, MINUTE, Algorithm::TokenBucket { burst: burst(n) }),
        rate(n, MINUTE + 1, Algorithm::Gcra { burst: burst(n) }),
        rate(n, MINUTE + 2, Algorithm::LeakyBucket { max_wait: wait }),
        rate(n, MINUTE, Algorithm::WarmUp(WarmUp::new(30_000, 3).unwrap())),
        rate(n, MINUTE + 1, Algorithm::SLIDING_WINDOW).with_soft(soft).unwrap(),
    ]
}

/// Returns every algorithm alone, with the next one, and with the next two.
fn combinations() -> Vec<Vec<Rate>> {
    let few = few();
    let (hard, all) = (few.len() - 1, few.len());
    let single = few.iter().map(|rate| vec![*rate]);
    // A soft rate may lose its extra room while other rates gain room, so it only occurs alone.
    let several = (2..=3).flat_map(|how_many| {
        let few = &few;
        (0..hard).map(move |from| (from..from + how_many).map(|n| few[n % hard]).collect::<Vec<_>>())
    });
    let combinations: Vec<_> = single.chain(several).collect();
    assert_eq!(combinations.len(), all + 2 * hard);
    combinations
}

/// Returns the retry-after of a denied check: the longest of all denying rates.
fn retry_after(response: &CheckResponse) -> Option<u64> {
    assert!(!response.admitted);
    let denials = response.decisions.iter().filter(|decision| !decision.admitted);
    let waits: Vec<_> = denials.map(|decision| decision.retry_after).collect();
    waits.into_iter().collect::<Option<Vec<_>>>()?.into_iter().max()
}

/// Sends checks until one is denied.
async fn until_denied(
    subject: &impl Subject,
    limit: &Arc<LimitSpec>,
    cost: u64,
) -> (CheckResponse, Definition) {
    let mut definition = Definition::default();
    let check = [counter(limit, cost)];
    loop {
        let response = decide(&*subject.clients()[0], &check).await;
        assert_eq!(response.admitted, definition.check(&check, response.at).admitted);
        if !response.admitted {
            return (response, definition);
        }
        subject.pass(7919);
    }
}

/// After the wait the definition admits the check, and a microsecond before it does not. So does a store whose clock can be moved.
pub(super) async fn retry_after_is_exact_to_the_microsecond(subject: &impl Subject) {
    for (n, rates) in combinations().into_iter().enumerate() {
        for cost in 1..=7 {
            let limit = limit(&format!("retry-{n}-{cost}"), rates.clone());
            let (denied, mut definition) = until_denied(subject, &limit, cost).await;
            let (store, check, wait) =
                (&*subject.clients()[0], [counter(&limit, cost)], retry_after(&denied).unwrap());
            let ready = denied.at + wait;
            let context = || format!("{wait} us: cost {cost} of {rates:?}");
            assert!(!definition.clone().check(&check, ready - 1).admitted, "before {}", context());
            assert!(definition.clone().check(&check, ready).admitted, "after {}", context());
            let has_moved = subject.pass(wait as i64 - 1);
            if has_moved {
                let before = decide(store, &check).await;
                assert_eq!((before.admitted, before.at), (false, ready - 1), "before {}", context());
                definition.check(&check, before.at);
                subject.pass(1);
            }
            let after = decide(store, &check).await;
            assert_eq!(after.admitted, definition.check(&check, after.at).admitted, "after {}", context());
            // A denial that counts may have made the wait longer.
            let is_longer = has_moved && limit.counts_denied();
            assert!(is_longer || after.admitted == (after.at >= ready), "after {}", context());
        }
    }
}
