//! Tests of the memory store by scenario.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use sluice_limiter::{Algorithm, Bound, Burst, Overrun, Period, Rate, Record, Requests, SubWindows};

use super::MemoryStore;
use super::cell::{CounterId, Layout, TableCell};
use super::store::{AlignedShard, SHARDS, shard_of};
use super::table::{CellTable, HOT_MICROS, SHARD_BITS, StoredCounter};
use crate::check::{Counter, KeyHash, LimitSpec, Records, Settlement};
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

fn cells(store: &MemoryStore) -> usize {
    (0..SHARDS).map(|shard| store.lock(shard).table.cells()).sum()
}

fn occupied_cells(store: &MemoryStore) -> usize {
    (0..SHARDS).map(|shard| store.lock(shard).table.len()).sum()
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
fn store_charges_nothing_when_one_of_several_counters_denies() {
    let store = MemoryStore::new(100, Clock::manual(60_000_000));
    let (wide, narrow) = (limit("ns/p/wide", 100, 60_000), limit("ns/p/narrow", 1, 60_000));
    let both = [counter(&wide, 1), counter(&narrow, 1)];
    assert!(store.check(&both).admitted);
    for _ in 0..10 {
        let response = store.check(&both);
        assert!(!response.admitted && response.decisions[0].admitted && !response.decisions[1].admitted);
    }
    assert_eq!(store.check(&[counter(&wide, 1)]).decisions[0].remaining, 98);
}

#[test]
fn store_creates_no_counter_for_a_denied_check() {
    let store = MemoryStore::new(100, Clock::manual(60_000_000));
    let none = limit("ns/p/none", 0, 60_000);
    let (wide, quiet) = (limit("ns/p/wide", 100, 60_000), Algorithm::SlidingWindowLog { min_interval: 0 });
    let quiet = Arc::new(LimitSpec::new("ns/p/quiet", vec![rate(1, 1000, quiet).counting_denied().unwrap()]));
    assert!(!store.check(&[counter(&none, 1)]).admitted);
    assert!(!store.check(&[counter(&none, 2), counter(&wide, 2)]).admitted);
    assert_eq!((store.keys(), occupied_cells(&store)), (0, 0));
    assert!(!store.check(&[counter(&none, 3), counter(&quiet, 3)]).admitted);
    assert_eq!((store.keys(), occupied_cells(&store)), (1, 1), "unless denials count");
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
        // A hot key makes no sweep due as long as the clock does not move.
        clock.advance_micros(1);
        let _ = store.check(&[counter(&limit, key % 8)]);
    }
    assert_eq!(store.keys(), occupied_cells(&store));
    assert!(store.keys() <= 8, "{} keys left", store.keys());
    assert!(cells(&store) < 300, "little memory is kept for few keys: {} cells", cells(&store));
}

#[test]
fn store_keeps_its_size_while_keys_are_replaced() {
    let clock = Clock::manual(60_000_000);
    let store = MemoryStore::new(200_000, clock.clone());
    let several = vec![rate(5, 1_000, Algorithm::SLIDING_WINDOW), rate(50, 2_000, Algorithm::SLIDING_WINDOW)];
    for limit in [limit("ns/p/l", 5, 1_000), Arc::new(LimitSpec::new("ns/p/several", several))] {
        let mut first = None;
        for round in 0..8 {
            for key in 0..50_000 {
                assert!(store.check(&[counter(&limit, round * 50_000 + key)]).admitted);
            }
            assert!((50_000..80_000).contains(&store.keys()), "{}", store.keys());
            assert_eq!(store.keys(), occupied_cells(&store));
            let first = *first.get_or_insert(cells(&store));
            // At the maximum number of keys, 66 % to 85 % of the cells are occupied.
            assert!(cells(&store) <= first.max(80_000 * 100 / 66), "{} {first}", cells(&store));
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
fn store_keeps_counts_when_a_limit_is_edited() {
    let store = MemoryStore::new(100, Clock::manual(60_000_000));
    let (five, three, eight) =
        (limit("ns/p/l", 5, 60_000), limit("ns/p/l", 3, 60_000), limit("ns/p/l", 8, 60_000));
    assert_eq!((0..4).filter(|_| store.check(&[counter(&five, 1)]).admitted).count(), 4);
    assert!(!store.check(&[counter(&three, 1)]).admitted);
    assert_eq!((0..9).filter(|_| store.check(&[counter(&eight, 1)]).admitted).count(), 4);
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
    let id = minute.prepared.id(hashed(1).0);
    let after = |limit, millis| -> usize {
        clock.advance(millis);
        assert!(store.check(&[counter(limit, 1)]).admitted);
        store.lock(shard_of(id)).peek(id).unwrap().len()
    };
    assert_eq!(after(&minute, 0), 1);
    assert_eq!(after(&hour, 60_000), 2, "during a rollout both periods are in use");
    assert_eq!(after(&hour, 60_000), 1, "a record lasts two of its periods");
    assert!(
        store.lock(shard_of(id)).table.find(id.tagged(&hour.prepared.layout.unwrap())).is_some(),
        "the remaining record is packed again"
    );
}

#[test]
fn store_denies_for_one_period_when_the_clock_goes_back_a_day() {
    let store = MemoryStore::new(100, Clock::manual(0));
    let several =
        vec![rate(5, 60_000, Algorithm::SLIDING_WINDOW), rate(50, 120_000, Algorithm::FIXED_WINDOW)];
    for limit in [limit("ns/p/l", 5, 60_000), Arc::new(LimitSpec::new("ns/p/several", several))] {
        let day = 86_400_000_000;
        let admits = |now| store.check_at(&[counter(&limit, 1)], now).admitted;
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
    let id = limit.prepared.id(hashed(1).0);
    for window in [u64::MAX, u64::MAX / 60_000] {
        let record = Record { window, current: 1, ..Record::empty(limit.rates[0].tag(), 0) };
        assert_eq!(record.expires_at(), u64::MAX);
        store.lock(shard_of(id)).put(id, &limit, Records::from_iter([record]), StoredCounter::default(), 0);
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
    assert_eq!(store.keys(), occupied_cells(&store));
    // At most 500 keys and the overflow counter, each three times. When two threads reserve the last room
    // concurrently, both may fail.
    assert!((490..=501).contains(&store.keys()) && total == 3 * store.keys(), "{total} {}", store.keys());
}

/// Reports whether a counter is hot.
fn is_hot(store: &MemoryStore, counter: &Counter) -> bool {
    let hot = &store.hot[shard_of(counter.limit.prepared.id(counter.key.0))];
    hot.is_live() && hot.may_hold(counter.limit.prepared.id(counter.key.0))
}

#[test]
fn a_key_that_is_checked_repeatedly_becomes_hot_and_cold_again() {
    let clock = Clock::manual(60_000_000);
    let store = MemoryStore::new(100, clock.clone());
    let limit = limit("ns/p/l", 1_000, 60_000);
    let check = |key| store.check(&[counter(&limit, key)]).decisions[0].remaining;
    let check_repeatedly = || assert!((0..10).all(|_| check(1) > 0));
    check(1);
    assert!(!is_hot(&store, &counter(&limit, 1)));
    check_repeatedly();
    assert!(is_hot(&store, &counter(&limit, 1)));
    assert_eq!((check(1), check(2)), (1_000 - 12, 999));
    // A check of several counters sees all charges, and its own charge is seen afterwards.
    let both = [counter(&limit, 1), counter(&limit, 2)];
    assert_eq!(store.check(&both).decisions[0].remaining, 1_000 - 13);
    assert!(!is_hot(&store, &counter(&limit, 1)));
    check_repeatedly();
    assert!(is_hot(&store, &counter(&limit, 1)));
    let settlement = Settlement {
        limit: limit.clone(),
        key: hashed(1),
        charged: store.clock.now(),
        delta: 100,
        overflowed: false,
        least: 0,
    };
    store.settle(&settlement);
    assert_eq!(check(1), 1_000 - 124);
    // It stays hot for a limited time.
    check_repeatedly();
    assert!(is_hot(&store, &counter(&limit, 1)));
    clock.advance_micros(HOT_MICROS);
    assert_eq!(check(1), 1_000 - 135);
    assert!(!is_hot(&store, &counter(&limit, 1)));
    // This also holds when another counter of the shard has been checked since.
    let shard = |key| shard_of(limit.prepared.id(hashed(key).0));
    let neighbour = (2..).find(|&key| shard(key) == shard(1)).unwrap();
    check(neighbour);
    check_repeatedly();
    check(neighbour);
    assert!(is_hot(&store, &counter(&limit, 1)));
    clock.advance_micros(HOT_MICROS);
    check(1);
    assert_eq!(store.check(&both).decisions[0].remaining, 1_000 - 147);
    // An edit of the limit applies immediately, and so does its reversal.
    check_repeatedly();
    let fewer = self::limit("ns/p/l", 10, 60_000);
    assert!(!store.check(&[counter(&fewer, 1)]).admitted);
    assert_eq!(check(1), 1_000 - 158);
}

#[test]
fn store_counts_a_key_exactly_while_it_becomes_hot_and_cold() {
    let clock = Clock::manual(60_000_000);
    let store = MemoryStore::new(100, clock.clone());
    let (hot, other) = (limit("ns/p/hot", 60_000, 3_600_000), limit("ns/p/other", 1 << 30, 3_600_000));
    let was_hot = std::sync::atomic::AtomicBool::new(false);
    let total: usize = std::thread::scope(|scope| {
        let (store, hot, was_hot) = (&store, &hot, &was_hot);
        let many = || (0..20_000).filter(|_| store.check(&[counter(hot, 1)]).admitted).count();
        let several = || {
            let check = [counter(hot, 1), counter(&other, 1)];
            let one = |n: usize| {
                was_hot.fetch_or(is_hot(store, &check[0]), Ordering::Relaxed);
                clock.advance_micros(u64::from(n.is_multiple_of(8)));
                // Leaves the other threads time for consecutive checks.
                (0..50).for_each(|_| std::hint::spin_loop());
                store.check(&check[..1 + n % 2]).admitted
            };
            (0..20_000).filter(|&n| one(n)).count()
        };
        let mut threads: Vec<_> = (0..4).map(|_| scope.spawn(many)).collect();
        threads.push(scope.spawn(several));
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(total, 60_000, "of 100,000");
    assert!(was_hot.into_inner());
    assert!(!store.check(&[counter(&hot, 1)]).admitted);
}

/// Ids of which many share the half that determines their position.
fn any_id() -> impl Strategy<Value = CounterId> {
    let high = prop_oneof![
        Just(0u64),
        Just(1 << 57),
        Just(u64::MAX << 1),
        (0u64..64).prop_map(|n| n << 52),
        any::<u64>()
    ];
    (high, 0u64..4)
        .prop_map(|(high, low)| CounterId { high: high & (u64::MAX >> SHARD_BITS) & !1, low: low << 45 })
}

proptest! {
    #[test]
    fn a_table_finds_what_was_inserted(steps in proptest::collection::vec((any_id(), 0u8..4), 1..400)) {
        let mut table = CellTable::new(5);
        let mut model: Vec<CounterId> = Vec::new();
        for (id, action) in steps {
            let known = model.iter().position(|known| *known == id);
            match (table.seek(id), known) {
                (Ok(at), Some(_)) if action == 0 => {
                    table.remove(at);
                    model.retain(|known| *known != id);
                    table.shrink();
                }
                (Ok(at), Some(_)) => prop_assert_eq!(table.get(at).unwrap().id, id),
                (Err(at), None) => {
                    table.insert(id, at, TableCell::spilled(id, 0, 0));
                    model.push(id);
                }
                other => prop_assert!(false, "{:?}", other),
            }
            prop_assert_eq!(table.len(), model.len());
            for id in &model {
                prop_assert!(table.seek(*id).is_ok());
                let unique = model.iter().filter(|other| other.high == id.high).count() == 1;
                prop_assert!(table.find(*id).map_or(!unique, |cell| cell.id == *id));
            }
        }
    }

    #[test]
    fn a_cell_holds_its_record(
        period in prop_oneof![1u64..100, 1..=sluice_limiter::MAX_PERIOD_MS], instant in 0u64..1 << 49, current in 0u64..1 << 47, shift in 0u32..47, previous in 0u64..1 << 34, id: (u64, u64), kind in 0usize..4,
    ) {
        let algorithm = [
            Algorithm::SLIDING_WINDOW, Algorithm::FIXED_WINDOW,
            Algorithm::SlidingWindowCounter { sub_windows: SubWindows::ONE, bound: Bound::Guaranteed }, Algorithm::Gcra { burst: Burst::new(1).unwrap() },
        ][kind];
        let tag = rate(1 << 30, period, algorithm).tag();
        let layout = Layout::of(tag).unwrap();
        let window = if kind == 3 { instant } else { instant / period };
        let id = CounterId { high: id.0 & !1, low: id.1 };
        let record = Record { window, current: current >> shift, previous: previous >> shift, ..Record::empty(tag, 0) };
        if let Some(cell) = TableCell::pack(id, &layout, &record) {
            prop_assert_eq!(cell.unpack(&layout), record.clone());
            prop_assert_eq!(cell.layout(id), Some(layout));
            prop_assert!(id.is_of(&cell) && cell.spill_index().is_none() && !cell.is_empty());
            let (expires, later) = (record.expires_at(), cell.expires_at());
            prop_assert!(expires <= later && later - expires <= 2 * period / 1000);
        } else {
            let instant = u128::from(window) * u128::from(if kind == 3 { 1 } else { period });
            prop_assert!(instant >> 48 > 0 || (record.current >> 31 > 0 && record.previous >> 18 > 0) || record.current >> 45 > 0 || record.previous >> 32 > 0);
        }
        let overrun = Record { overrun: Overrun { since: 1, last: 2 }, ..record };
        prop_assert!(TableCell::pack(id, &layout, &overrun).is_none());
    }
}

#[test]
fn a_cell_is_half_a_cache_line() {
    assert_eq!(size_of::<TableCell>(), 32);
    assert!(size_of::<AlignedShard>() <= 128);
    assert!(
        Layout::of(
            rate(
                1,
                60_000,
                Algorithm::SlidingWindowCounter {
                    sub_windows: SubWindows::new(60).unwrap(),
                    bound: Bound::Estimate,
                }
            )
            .tag()
        )
        .is_none()
    );
}
