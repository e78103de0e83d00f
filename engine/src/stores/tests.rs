use std::cell::RefCell;
use std::time::Duration;

use sluice_config::KeySecret;
use sluice_config::policy::DEFAULT_STORE;
use sluice_config::store_access::{StoreAccess, StoreChoice};
use sluice_limiter::{Algorithm, MAX_PERIOD_MS, Period, Rate, Requests};
use sluice_store::redis::Secret;
use sluice_store::{
    Consistency, KeyHash, LimitPlan, LimitSpec, OnStoreFailure, PlannedCounter, RedisOptions, Replicas,
};

use super::*;
use crate::stores::limiter_handle::LimiterHandle;

const NUMBER: u64 = 10;

/// Access to a Redis that does not exist.
fn access(change: impl FnOnce(&mut StoreAccess)) -> StoreChoice {
    let redis = RedisOptions::from_url("redis://127.0.0.1:1").unwrap();
    let mut access = StoreAccess { redis, key_secret: KeySecret::new([0; 16]) };
    access.redis.latency_budget = Duration::from_secs(1);
    change(&mut access);
    StoreChoice::Access(Box::new(access))
}

fn counter(consistency: Consistency) -> PlannedCounter {
    let (number, period) = (Requests::new(NUMBER).unwrap(), Period::from_millis(MAX_PERIOD_MS).unwrap());
    let rate = Rate::new(number, period, Algorithm::FIXED_WINDOW).unwrap();
    let spec = Arc::new(LimitSpec::new(format!("n/p/{consistency:?}"), vec![rate]));
    let plan = LimitPlan::new(spec, consistency, OnStoreFailure::Share, false, Replicas::alone());
    PlannedCounter { limit: Arc::new(plan), key: KeyHash(7), cost: 1 }
}

/// Checks a counter several times, and returns how many checks were admitted.
async fn admitted(limiter: &Limiter, counter: &PlannedCounter, times: u64) -> u64 {
    let mut admitted = 0;
    for _ in 0..times {
        let outcome = limiter.check(std::slice::from_ref(counter)).await.unwrap();
        admitted += u64::from(outcome.response.admitted);
    }
    admitted
}

/// Chooses the default store, and waits until it is in use.
async fn in_use(stores: &mut Stores, choice: &StoreChoice) -> LimiterHandle {
    let starting = RefCell::new(None);
    let choices = StoreChoices::only(choice.clone());
    let now = stores.choose(&choices, &BTreeSet::from([DEFAULT_STORE]), |_, name, store| {
        *starting.borrow_mut() = Some((name, store));
    });
    let in_use = match starting.into_inner() {
        None => now,
        Some((name, store)) => {
            store.ready().await;
            stores.switch(&name, &store).unwrap()
        }
    };
    in_use.into_iter().next().unwrap().0
}

#[tokio::test]
async fn local_counts_continue_in_a_new_limiter_if_keys_keep_their_meaning() {
    let mut stores = Stores::new(Handle::current(), Clock::system(), (64, 1024), CurrentLimiters::default());
    let counters = [counter(Consistency::Local), counter(Consistency::Strict)];
    let first = in_use(&mut stores, &access(|_| {})).await;
    for counter in &counters {
        assert_eq!(admitted(&first, counter, 2).await, 2);
    }
    let same_keys = [
        access(|access| access.redis.password = Some(Secret::new("new"))),
        access(|access| access.redis.latency_budget = Duration::from_secs(2)),
        access(|access| access.redis.endpoints[0].port = 2),
        // This access cannot be used at all.
        access(|access| access.redis.endpoints.clear()),
        access(|_| {}),
    ];
    for choice in &same_keys {
        let limiter = in_use(&mut stores, choice).await;
        for counter in &counters {
            assert_eq!(admitted(&limiter, counter, 1).await, 1);
        }
    }
    for counter in &counters {
        assert_eq!(admitted(&first, counter, 1).await, 1, "a request that still holds the first limiter");
    }
    let last = in_use(&mut stores, &same_keys[0]).await;
    let left = NUMBER - 2 - same_keys.len() as u64 - 1;
    for counter in &counters {
        assert_eq!(admitted(&last, counter, NUMBER).await, left);
    }
    let other_keys = [
        access(|access| access.redis.prefix = "other:".into()),
        access(|access| access.redis.partitions = 128),
        access(|access| access.key_secret = KeySecret::new([1; 16])),
        StoreChoice::Unconfigured,
        access(|_| {}),
    ];
    for choice in &other_keys {
        let limiter = in_use(&mut stores, choice).await;
        for counter in &counters {
            assert_eq!(admitted(&limiter, counter, 2 * NUMBER).await, NUMBER);
        }
    }
}

#[tokio::test]
async fn a_replaced_limiter_is_closed_after_its_last_user() {
    let mut stores = Stores::new(Handle::current(), Clock::system(), (64, 1024), CurrentLimiters::default());
    let old = in_use(&mut stores, &access(|_| {})).await;
    in_use(&mut stores, &access(|access| access.redis.password = Some(Secret::new("new")))).await;
    assert_eq!(stores.runtime.closing.len(), 1);
    drop(old);
    stores.close().await;
    assert_eq!(stores.runtime.closing.len(), 0);
}

#[tokio::test]
async fn stores_have_limiters_of_their_own_and_one_that_is_not_used_is_closed() {
    let mut stores = Stores::new(Handle::current(), Clock::system(), (64, 1024), CurrentLimiters::default());
    let stores_of_pod =
        BTreeMap::from([("a".to_owned(), StoreChoice::Memory), ("b".to_owned(), StoreChoice::Memory)]);
    let choices = StoreChoices { stores: stores_of_pod, namespaces: None };
    let choose = |stores: &mut Stores, names: &[&str]| -> Vec<LimiterHandle> {
        let names = names.iter().copied().collect();
        stores
            .choose(&choices, &names, |_, _, _| unreachable!())
            .into_iter()
            .map(|(limiter, _)| limiter)
            .collect()
    };
    let both = choose(&mut stores, &["b", "a"]);
    assert_eq!(both.len(), 2);
    let counter = counter(Consistency::Strict);
    for limiter in &both {
        assert_eq!(admitted(limiter, &counter, 2 * NUMBER).await, NUMBER);
    }
    let with_unknown = choose(&mut stores, &["b", "c"]);
    assert!(Arc::ptr_eq(with_unknown[0].limiter(), both[1].limiter()));
    let states = stores.states();
    assert_eq!(states.keys().map(String::as_str).collect::<Vec<_>>(), ["b", "c"]);
    assert_eq!(states["c"], StoreState::Unconfigured);
    assert_eq!(stores.runtime.closing.len(), 1, "a");
}
