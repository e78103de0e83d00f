//! Usage that is held and settled later: slots of concurrency, and reservations in ledgers.

use std::sync::Arc;

use sluice_limiter::{Algorithm, Holder, Period, SlotsFound};
use sluice_store::{CheckRequest, Counter, LimitSpec, Lookup, Settlement, Store as _, Taking, ledger};

use super::{KEY, MINUTE, Subject, counter, decide, limit, rate, remaining, yearly};

/// The limit of so many slots, as a process checks it.
fn slots(scope: &str, max: u64, process: u64) -> Arc<LimitSpec> {
    let holder = Holder::new(process).unwrap();
    limit(scope, vec![rate(max, MINUTE, Algorithm::Concurrency { holder })])
}

/// Changes the slots of a process, which must have so many before.
fn change(limit: &Arc<LimitSpec>, charged: u64, delta: i64, least: u64) -> Settlement {
    Settlement { limit: limit.clone(), key: KEY, charged, delta, overflowed: false, least }
}

pub(super) async fn slots_are_taken_and_released_exactly(subject: &impl Subject) {
    let clients = subject.clients();
    let processes: Vec<_> = (1..=8).map(|process| slots("slots", 5, process)).collect();
    let take = |n: usize| {
        let (store, check) = (clients[n % clients.len()].clone(), counter(&processes[n % 8], 1));
        tokio::spawn(async move {
            let response = store.check(CheckRequest::from_iter([check])).await.unwrap();
            response.admitted.then_some((n % 8, response.at))
        })
    };
    for _ in 0..3 {
        let taken = futures::future::join_all((0..40).map(take)).await;
        let taken: Vec<_> = taken.into_iter().filter_map(Result::unwrap).collect();
        assert_eq!(taken.len(), 5);
        assert!(!decide(&*clients[0], &[counter(&processes[0], 1)]).await.admitted);
        for (process, charged) in taken {
            let found = clients[0].settle(change(&processes[process], charged, -1, 1)).await.unwrap();
            assert_eq!(found, SlotsFound::Enough);
        }
        assert_eq!(remaining(&*clients[0], &processes[0]).await, [5]);
    }
}

/// A renewal says how many slots the process has. They are made again if the store has lost them, but not if they were reset.
pub(super) async fn slots_that_the_store_lost_are_made_again(subject: &impl Subject) {
    let store = &*subject.clients()[0];
    let lost = slots("lost", 5, 1);
    // As if the counter had been there before.
    let now = decide(store, &[counter(&lost, 0)]).await.at;
    assert_eq!(store.settle(change(&lost, now, 0, 3)).await, Ok(SlotsFound::Fewer(3)));
    assert_eq!(remaining(store, &lost).await, [2]);
    assert_eq!(store.settle(change(&lost, now, -1, 3)).await, Ok(SlotsFound::Enough));
    assert_eq!(store.settle(change(&lost, now, -1, 3)).await, Ok(SlotsFound::Fewer(1)));
    assert_eq!(remaining(store, &lost).await, [3]);
    store.reset(&lost, KEY).await.unwrap();
    assert_eq!(store.settle(change(&lost, now, 0, 2)).await, Ok(SlotsFound::Reset));
    assert_eq!(remaining(store, &lost).await, [5]);
}

pub(super) async fn reservations_are_settled_once(subject: &impl Subject) {
    let clients = subject.clients();
    let store = &*clients[0];
    let limit = yearly("reserved", 100);
    let lasts = Period::from_millis(MINUTE).unwrap();
    let of = |id: u64| Arc::new(ledger(&limit.scope, Holder::new(id).unwrap(), lasts));
    let reserve = async |id: u64, cost| {
        let counters = [counter(&limit, cost), Counter { limit: of(id), ..counter(&limit, cost) }];
        decide(store, &counters).await.admitted
    };
    assert!(reserve(1, 40).await && reserve(2, 50).await);
    assert!(!reserve(3, 11).await, "no more is reserved than there is");
    let find = async |id: Option<u64>| {
        let id = id.map(|id| Holder::new(id).unwrap());
        store.find(Lookup { ledger: of(1), key: KEY, id }).await.unwrap()
    };
    let oldest = find(None).await.unwrap();
    assert_eq!((oldest.id.get(), oldest.cost, find(Some(3)).await), (1, 40, None));
    assert_eq!(find(Some(2)).await.unwrap().cost, 50);
    // Many callers settle the same one with what was used.
    let settle = |n: usize, used: i64| {
        let taking =
            Taking { ledger: of(1), id: oldest.id, correction: change(&limit, oldest.charged, used - 40, 0) };
        let store = clients[n % clients.len()].clone();
        tokio::spawn(async move { store.take(taking).await.unwrap() })
    };
    let settled = futures::future::join_all((0..20).map(|n| settle(n, 15))).await;
    assert_eq!(settled.into_iter().filter(|taken| *taken.as_ref().unwrap()).count(), 1);
    assert_eq!(remaining(store, &limit).await, [100 - 15 - 50]);
    assert_eq!((find(Some(1)).await, find(None).await.unwrap().id.get()), (None, 2));
    assert!(!settle(0, 0).await.unwrap(), "it is settled already");
    assert!(reserve(3, 35).await && !reserve(4, 1).await);
}
