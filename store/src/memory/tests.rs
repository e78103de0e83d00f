//! Tests of the memory store by scenario.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sluice_limiter::{Algorithm, Holder, Period, Rate, Record, Requests};

use super::shard::StoredCounter;
use super::{MemoryStore, SHARDS, shard_of};
use crate::check::{Counter, KeyHash, LimitSpec, Records, Settlement, Taking, ledger};
use crate::clock::Clock;

fn rate(requests: u64, period: u64, algorithm: Algorithm) -> Rate {
    Rate::new(Requests::new(requests).unwrap(), Period::from_millis(period).unwrap(), algorithm).unwrap()
}

fn limit(scope: &str, requests: u64, period: u64) -> Arc<LimitSpec> {
    Arc::new(LimitSpec::new(scope, vec![rate(requests, period, Algorithm::SLIDING_WINDOW)]))
}

/// Spreads small numbers over the shards as a hash would.
fn hashed(key: u128) -> KeyHash {
    KeyHash((key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

fn counter(limit: &Arc<LimitSpec>, key: u128) -> Counter {
    Counter { limit: limit.clone(), key: hashed(key), cost: 1 }
}

/// Returns for how many counters the tables have room.
fn capacity(store: &MemoryStore) -> usize {
    (0..SHARDS).map(|shard| store.lock(shard).capacity()).sum()
}

/// Returns how many counters the tables hold.
fn counters(store: &MemoryStore) -> usize {
    (0..SHARDS).map(|shard| store.lock(shard).len()).sum()
}

#[test]
fn store_admits_exactly_the_limit_and_again_after_the_window() {
    let clock = Clock::manual(60_000_000);
    let store = MemoryStore::new(100, clock.clone());
    let limit = limit("ns/p/l", 5, 60_000);
    let admitted = |key| (0..20).filter(|_| store.check(&[counter(&limit, key)]).admitted).count();
    assert_eq!(admitted(1), 5);
    assert_eq!(admitted(2), 5);
    clock.advance(120_000);
    assert_eq!(admitted(1), 5);
}

#[test]
fn store_creates_no_counter_for_a_denied_check() {
    let store = MemoryStore::new(100, Clock::manual(60_000_000));
    let none = limit("ns/p/none", 0, 60_000);
    let (wide, quiet) = (limit("ns/p/wide", 100, 60_000), Algorithm::SlidingWindowLog { min_interval: 0 });
    let quiet = Arc::new(LimitSpec::new("ns/p/quiet", vec![rate(1, 1000, quiet).counting_denied().unwrap()]));
    assert!(!store.check(&[counter(&none, 1)]).admitted);
    assert!(!store.check(&[counter(&none, 2), counter(&wide, 2)]).admitted);
    assert_eq!((store.keys(), counters(&store)), (0, 0));
    assert!(!store.check(&[counter(&none, 3), counter(&quiet, 3)]).admitted);
    assert_eq!((store.keys(), counters(&store)), (1, 1), "unless denials count");
    assert!(!store.check(&[counter(&quiet, 3)]).admitted);
}

#[test]
fn store_removes_idle_keys() {
    let clock = Clock::manual(60_000_000);
    let store = MemoryStore::new(100_000, clock.clone());
    let limit = limit("ns/p/l", 5, 1_000);
    for key in 0..20_000 {
        assert!(store.check(&[counter(&limit, key)]).admitted);
    }
    assert_eq!(store.keys(), 20_000);
    clock.advance(10_000);
    for key in 0..40_000 {
        let _ = store.check(&[counter(&limit, key % 8)]);
    }
    assert_eq!(store.keys(), counters(&store));
    assert!(store.keys() <= 8, "{} keys left", store.keys());
    assert!(capacity(&store) <= 32, "little memory is kept for few keys: room for {}", capacity(&store));
}

#[test]
fn a_check_visits_a_few_counters_of_other_shards_at_most() {
    let clock = Clock::manual(60_000_000);
    let store = MemoryStore::new(1_000_000, clock.clone());
    let limit = limit("ns/p/l", 5, 1_000);
    for key in 0..200_000 {
        assert!(store.check(&[counter(&limit, key)]).admitted);
    }
    clock.advance(10_000);
    let (before, of_one_shard) = (store.keys(), 2 * 200_000 / SHARDS);
    for checks in 1..60_000 {
        let _ = store.check(&[counter(&limit, 0)]);
        let removed = before - store.keys();
        assert!(removed <= 8 * checks + 2 * of_one_shard, "{removed} after {checks} checks");
    }
    assert!(store.keys() < before / 2, "though all checks are of one shard: {} left", store.keys());
}

/// Who looks never sees the reservation gone and its charge still there, nor the reverse.
#[test]
fn a_reservation_is_taken_and_its_charge_corrected_at_once() {
    let store = MemoryStore::new(1_000, Clock::manual(60_000_000));
    let (limit, lasts) = (limit("ns/p/l", 1_000, 60_000), Period::from_millis(60_000).unwrap());
    let ledger = |id| Arc::new(ledger(&limit.scope, id, lasts));
    let both = |id: Holder, cost| {
        let all = [counter(&limit, 1), Counter { limit: ledger(id), ..counter(&limit, 1) }];
        all.map(|counter| Counter { cost, ..counter })
    };
    let ids: Vec<_> = (1..=500).map(|id| Holder::new(id).unwrap()).collect();
    for &id in &ids {
        assert!(store.check(&both(id, 1)).admitted);
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for &id in &ids {
                let correction = Settlement {
                    limit: limit.clone(),
                    key: hashed(1),
                    charged: 60_000_000_000,
                    delta: -1,
                    overflowed: false,
                    least: 0,
                };
                assert!(store.take(&Taking { ledger: ledger(id), id, correction }));
            }
            is_over.store(true, Ordering::SeqCst);
        });
        while !is_over.load(Ordering::SeqCst) {
            let look = store.check(&both(ids[0], 0)).decisions;
            let reserved = Requests::MAX.get() - look[1].remaining;
            assert_eq!(1_000 - look[0].remaining, reserved, "what is charged is reserved");
        }
    });
}

#[test]
fn store_keeps_its_size_while_keys_are_replaced() {
    let clock = Clock::manual(60_000_000);
    let store = MemoryStore::new(200_000, clock.clone());
    let several = vec![rate(5, 1_000, Algorithm::SLIDING_WINDOW), rate(50, 2_000, Algorithm::SLIDING_WINDOW)];
    for limit in [limit("ns/p/l", 5, 1_000), Arc::new(LimitSpec::new("ns/p/several", several))] {
        for round in 0..8 {
            for key in 0..50_000 {
                assert!(store.check(&[counter(&limit, round * 50_000 + key)]).admitted);
            }
            assert!((50_000..80_000).contains(&store.keys()), "{}", store.keys());
            assert_eq!(store.keys(), counters(&store));
            // A table has room for up to twice as many counters, and when it is full of removed ones, twice as many again.
            assert!(capacity(&store) <= 4 * 80_000, "{}", capacity(&store));
            clock.advance(10_000);
        }
    }
}

#[test]
fn store_shares_one_counter_among_new_keys_beyond_its_maximum() {
    let store = MemoryStore::new(16, Clock::manual(60_000_000));
    let limit = limit("ns/p/l", 2, 3_600_000);
    assert!(store.check(&[counter(&limit, 0)]).admitted);
    let flood = (1..5_000).filter(|&key| store.check(&[counter(&limit, key)]).admitted).count();
    assert_eq!(flood, 15 + 2, "15 more keys have room, and the overflow counter admits two requests");
    assert_eq!(store.keys(), 16 + 1);
    let known = store.check(&[counter(&limit, 0)]);
    assert!(known.admitted && known.decisions[0].remaining == 0, "a known key keeps its own counter");
}

#[test]
fn store_charges_the_overflow_counter_for_each_key_that_shares_it() {
    let store = MemoryStore::new(1, Clock::manual(60_000_000));
    let limit = limit("ns/p/l", 10, 3_600_000);
    assert!(store.check(&[counter(&limit, 0)]).admitted);
    let all = [counter(&limit, 1), counter(&limit, 0), counter(&limit, 2), counter(&limit, 3)];
    for left in [7, 4, 1] {
        let response = store.check(&all);
        let decisions: Vec<_> = response.decisions.iter().map(|decision| decision.remaining).collect();
        assert!(response.admitted);
        assert_eq!(decisions, [left, decisions[1], left, left]);
    }
    assert!(!store.check(&all).admitted);
    assert!(store.check(&all[..1]).admitted && !store.check(&all[2..3]).admitted);
    assert_eq!(store.check(&all[1..2]).decisions[0].remaining, 10 - 5);
}

#[test]
fn a_flood_of_new_keys_does_not_change_decisions_on_known_keys() {
    let (clock, limits) =
        (Clock::manual(60_000_000), [limit("ns/p/l", 20, 60_000), limit("ns/p/m", 30, 120_000)]);
    let (calm, flooded) = (MemoryStore::new(1000, clock.clone()), MemoryStore::new(64, clock.clone()));
    let check = |key: u128| {
        let all = [counter(&limits[0], key), counter(&limits[1], key)];
        all[..1 + key as usize % 2].to_vec()
    };
    for key in 0..30 {
        assert_eq!(calm.check(&check(key)), flooded.check(&check(key)));
    }
    for round in 0..2_000 {
        // The flood checks one counter, both, and both with one known key.
        let mixed = [counter(&limits[0], round % 30), counter(&limits[1], 1_000 + round)];
        let _ = flooded.check(&[counter(&limits[0], 1_000 + round)]);
        let _ = flooded.check(&check(1_001 + 2 * round));
        // A mixed check also charges the first counter, so both stores are checked.
        if calm.check(&mixed[..1]).admitted {
            assert!(flooded.check(&mixed[..1]).admitted);
        } else {
            assert!(!flooded.check(&mixed).admitted);
        }
        assert_eq!(calm.check(&check(round * 7 % 30)), flooded.check(&check(round * 7 % 30)));
        if round % 4 == 0 {
            // Idle keys expire, but each of these is checked again earlier.
            clock.advance(100);
        }
    }
    assert!(flooded.keys() <= 64 + 2);
}

#[test]
fn an_edited_period_starts_with_the_usage_of_the_former_one() {
    // In the second minute of an hour.
    let store = MemoryStore::new(100, Clock::manual(7_260_000));
    let (minute, hour) = (limit("ns/p/l", 20, 60_000), limit("ns/p/l", 50, 3_600_000));
    assert_eq!((0..30).filter(|_| store.check(&[counter(&minute, 1)]).admitted).count(), 20);
    assert_eq!((0..60).filter(|_| store.check(&[counter(&hour, 1)]).admitted).count(), 30);
}

#[test]
fn store_removes_the_records_of_a_former_period_once_they_have_expired() {
    let clock = Clock::manual(7_200_000);
    let store = MemoryStore::new(100, clock.clone());
    let (minute, hour) = (limit("ns/p/l", 5, 60_000), limit("ns/p/l", 5, 3_600_000));
    let id = minute.counter_id(hashed(1));
    let now = || store.clock.now();
    let after = |limit, millis| -> usize {
        clock.advance(millis);
        assert!(store.check(&[counter(limit, 1)]).admitted);
        store.lock(shard_of(id)).records(id, now()).len()
    };
    assert_eq!(after(&minute, 0), 1);
    assert_eq!(after(&hour, 60_000), 2, "during a rollout both periods are in use");
    assert_eq!(after(&hour, 60_000), 1, "a record lasts two of its periods");
}

#[test]
fn store_denies_for_one_period_when_the_clock_goes_back_a_day() {
    let store = MemoryStore::new(100, Clock::manual(0));
    let several =
        vec![rate(5, 60_000, Algorithm::SLIDING_WINDOW), rate(50, 120_000, Algorithm::FIXED_WINDOW)];
    for limit in [limit("ns/p/l", 5, 60_000), Arc::new(LimitSpec::new("ns/p/several", several))] {
        let day = 86_400_000_000;
        let admits = |now| store.decide_at(&[counter(&limit, 1)], now, false).admitted;
        assert_eq!((0..9).filter(|n| admits(10 * day + n)).count(), 5);
        for second in 0..60 {
            assert!(!admits(9 * day + second * 1_000_000));
        }
        assert!(admits(9 * day + 120_000_000), "the usage counts from the first check after the step");
    }
}

#[test]
fn a_sweep_survives_damaged_records() {
    let store = MemoryStore::new(100, Clock::manual(60_000_000));
    let limit = limit("ns/p/l", 5, 60_000);
    let id = limit.counter_id(hashed(1));
    for window in [u64::MAX, u64::MAX / 60_000] {
        let record = Record { window, current: 1, ..Record::empty(limit.rates[0].tag(), 0) };
        assert_eq!(record.expires_at(), u64::MAX);
        store.lock(shard_of(id)).put(id, Records::from_iter([record]));
        for key in 2..20_000 {
            let _ = store.check(&[counter(&limit, key % 50 + 2)]);
        }
        assert!(store.check(&[counter(&limit, 1)]).admitted);
    }
}

#[test]
fn store_settles_charges() {
    let clock = Clock::manual(60_000_000);
    let store = MemoryStore::new(2, clock.clone());
    let limit = limit("ns/p/l", 100, 60_000);
    let charge = |key| {
        let response = store.check(&[Counter { cost: 10, ..counter(&limit, key) }]);
        (response.admitted, response.at)
    };
    let left = |key| store.check(&[Counter { cost: 0, ..counter(&limit, key) }]).decisions[0].remaining;
    let settle = |key, charged, delta| {
        store.settle(&Settlement {
            limit: limit.clone(),
            key: hashed(key),
            charged,
            delta,
            overflowed: false,
            least: 0,
        });
    };
    let (admitted, at) = charge(1);
    assert!(admitted);
    settle(1, at, 5);
    assert_eq!(left(1), 85);
    settle(1, at, -15);
    assert_eq!(left(1), 100);
    settle(1, at, i64::MIN);
    assert_eq!(left(1), 100, "never below zero usage");
    clock.advance(200_000);
    settle(1, at, 50);
    assert_eq!(left(1), 50, "more cost is charged now, although the counter had been removed");
    settle(1, at, -50);
    assert_eq!(left(1), 50, "a refund of an earlier window has no effect");

    settle(5, at, -50);
    assert_eq!(store.keys(), 1, "and creates no counter");
    assert!(charge(2).0 && charge(3).0, "the second key has no room");
    let (_, at) = charge(4);
    assert_eq!(left(3), 80);
    settle(4, at, 7);
    assert_eq!(left(3), 73, "an additional charge goes to the overflow counter");
    settle(4, at, -7);
    assert_eq!(left(3), 73, "but no refund does");
}

#[test]
fn checks_from_many_threads_are_atomic_across_shards() {
    let store = MemoryStore::new(1_000, Clock::manual(60_000_000));
    let limits: Vec<_> = (0..32).map(|n| limit(&format!("ns/p/{n}"), 100, 60_000)).collect();
    let total: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|n| {
                let (store, limits) = (&store, &limits);
                scope.spawn(move || {
                    let mut check: Vec<_> = limits.iter().map(|limit| counter(limit, 7)).collect();
                    check.rotate_left(n * 4);
                    (0..200).filter(|_| store.check(&check).admitted).count()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(total, 100);
    for limit in &limits {
        assert!(!store.check(&[counter(limit, 7)]).admitted);
    }
}

#[test]
fn store_counts_exactly_from_many_threads_up_to_its_maximum() {
    let store = MemoryStore::new(500, Clock::manual(60_000_000));
    let limit = limit("ns/p/l", 3, 60_000);
    let total: usize = std::thread::scope(|scope| {
        let work = || (0..4_000).filter(|key| store.check(&[counter(&limit, key % 1_000)]).admitted).count();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(store.keys(), counters(&store));
    // At most 500 keys and the overflow counter, each three times. When two threads reserve the last room
    // concurrently, both may fail.
    assert!((490..=501).contains(&store.keys()) && total == 3 * store.keys(), "{total} {}", store.keys());
}

#[test]
fn a_counter_takes_as_much_memory_as_the_documentation_says() {
    // A table has room for up to twice as many counters as it holds, leaves an eighth of it free, and needs a byte for each place.
    let (place, records) = (size_of::<(u128, StoredCounter)>() + 1, size_of::<Records>());
    assert!(place * 8 / 7 + records <= 140 && place * 16 / 7 + records <= 180, "{place} {records}");
}
