//! The Redis store with Valkey, if it is installed: `valkey-server` on the path, or the program that
//! `SLUICE_VALKEY` names.

#![allow(missing_docs, clippy::unwrap_used)]

#[path = "support/checks.rs"]
mod checks;
mod support;

use std::sync::Arc;

use checks::{admitted, check, counter, failing, healthy, limit, patient_store, used};
use sluice_store::failure::StoreFault;
use support::{Redis, eventually, valkey};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_counts_exactly_in_valkey_and_survives_its_restart() {
    let Some(program) = valkey() else { return };
    let mut valkey = Redis::start_program(&program);
    let stores: Vec<_> = (0..3).map(|_| Arc::new(patient_store(&valkey.url()))).collect();
    let (one, two) = (limit("one", 400), limit("two", 300));
    let both = [counter(&one, 7), counter(&two, 7)];
    let callers: Vec<_> = (0..24)
        .map(|n| {
            let (store, both) = (stores[n % 3].clone(), both.clone());
            tokio::spawn(async move { admitted(&store, &both, 25).await })
        })
        .collect();
    let mut sum = 0;
    for caller in callers {
        sum += caller.await.unwrap();
    }
    assert_eq!(sum, 300);
    for counter in &both {
        assert_eq!(used(&mut valkey.connection(), &stores[0], counter), 300);
    }
    let (): () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut valkey.connection()).unwrap();
    assert!(stores[0].check(check(&[counter(&one, 7)])).await.unwrap().admitted);
    assert_eq!(stores[0].metrics().errors, 0);
    valkey.kill();
    failing(&stores[0], StoreFault::Unreachable).await;
    valkey.restart();
    healthy(&stores[0]).await;
    eventually("the counters start from zero", || async {
        stores[0].check(check(&both)).await.is_ok_and(|response| response.admitted)
    })
    .await;
}
