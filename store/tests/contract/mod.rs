//! The contract of all stores, wherever their counters are: each store passes the same tests. A new store has a file here that
//! says how it is started.
//!
//! - [`memory`], [`redis`]: how the stores are started.
//! - [`exactness`]: N is N under racing callers, all or none, and waits that are exact.
//! - [`lifecycle`]: refunds, edits, resets, limits of keys, and what costs nothing.
//! - [`holding`]: reservations and slots, which are held and settled.
//! - [`histories`]: generated histories, compared with [`definition`], which counts by the functions of the limiter.

mod definition;
mod exactness;
mod histories;
mod holding;
mod lifecycle;
mod memory;
mod redis;

use std::sync::Arc;

use sluice_limiter::{Algorithm, Burst, Period, Rate, Requests, SubWindows};
use sluice_store::{CheckRequest, CheckResponse, Counter, KeyHash, LimitSpec, Store};

crate::servers::pass_with_other_servers!();

/// A store under test, without counters.
pub(crate) trait Subject {
    type Store: Store;

    /// Returns clients of the store: several, if processes share it.
    fn clients(&self) -> &[Arc<Self::Store>];

    /// Returns the number of partitions in which the store counts the keys of a limit.
    fn partitions(&self) -> u64 {
        1
    }

    /// Moves the store's clock by microseconds, if it is not real. Reports whether it is not.
    fn pass(&self, _micros: i64) -> bool {
        false
    }
}

/// The tests that a store passes: each with a store of its own, or `together` with one that takes long to start.
macro_rules! passes_the_contract {
    (@all $how:ident $start:expr) => {
        crate::contract::passes_the_contract! { @$how ($start)
            exactness::every_algorithm_admits_exactly_its_number,
            exactness::the_smallest_of_three_limits_decides_and_denials_charge_nothing,
            exactness::the_smallest_of_three_rates_decides,
            exactness::a_client_is_blocked_after_exactly_so_many_denials,
            exactness::retry_after_is_exact_to_the_microsecond,
            histories::histories_are_those_of_the_definition,
            holding::slots_are_taken_and_released_exactly,
            holding::slots_that_the_store_lost_are_made_again,
            holding::reservations_are_settled_once,
            lifecycle::what_costs_nothing_charges_nothing,
            lifecycle::an_acquisition_is_as_many_checks,
            lifecycle::charges_are_corrected,
            lifecycle::a_charge_of_a_shared_counter_is_corrected_there,
            lifecycle::counts_survive_edits,
            lifecycle::what_was_charged_before_an_edit_is_refunded,
            lifecycle::a_reset_client_has_its_whole_quota,
            lifecycle::counters_expire,
            lifecycle::new_keys_beyond_the_maximum_share_a_counter_and_known_keys_stay_exact,
        }
    };
    (@each ($start:expr) $($module:ident::$name:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $name() {
                crate::contract::$module::$name(&$start).await;
            }
        )*
    };
    (@together ($start:expr) $($module:ident::$name:ident,)*) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
        async fn passes_all_tests() {
            let subject = $start;
            $(
                println!(stringify!($name));
                crate::contract::$module::$name(&subject).await;
            )*
        }
    };
    (together $start:expr) => {
        crate::contract::passes_the_contract! { @all together $start }
    };
    ($start:expr) => {
        crate::contract::passes_the_contract! { @all each $start }
    };
}
use passes_the_contract;

/// A key for all clients of a test.
const KEY: KeyHash = KeyHash(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
/// The most that a test needs to end, in milliseconds.
const MINUTE: u64 = 60_000;

fn rate(requests: u64, period: u64, algorithm: Algorithm) -> Rate {
    Rate::new(Requests::new(requests).unwrap(), Period::from_millis(period).unwrap(), algorithm).unwrap()
}

fn limit(scope: &str, rates: Vec<Rate>) -> Arc<LimitSpec> {
    Arc::new(LimitSpec::new(format!("ns/policy/{scope}"), rates))
}

/// A limit per year.
fn yearly(scope: &str, requests: u64) -> Arc<LimitSpec> {
    limit(scope, vec![rate(requests, exactness::long_period(), Algorithm::SLIDING_WINDOW)])
}

fn counter(limit: &Arc<LimitSpec>, cost: u64) -> Counter {
    Counter { limit: limit.clone(), key: KEY, cost }
}

/// Returns the counter of one of many clients.
fn client(limit: &Arc<LimitSpec>, number: u64) -> Counter {
    let key = (u128::from(number) + 1).wrapping_mul(KEY.0);
    Counter { limit: limit.clone(), key: KeyHash(key), cost: 1 }
}

async fn decide(store: &impl Store, check: &[Counter]) -> CheckResponse {
    store.check(check.iter().cloned().collect::<CheckRequest>()).await.unwrap()
}

/// Returns how many of so many checks, one after another, are admitted.
async fn admitted(store: &impl Store, check: &[Counter], times: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..times {
        admitted += usize::from(decide(store, check).await.admitted);
    }
    admitted
}

/// Returns what remains in a counter by each rate.
async fn remaining(store: &impl Store, limit: &Arc<LimitSpec>) -> Vec<u64> {
    let response = decide(store, &[counter(limit, 0)]).await;
    response.decisions.iter().map(|decision| decision.remaining).collect()
}

fn sub_windows(number: u64) -> SubWindows {
    SubWindows::new(number).unwrap()
}

fn burst(tokens: u64) -> Burst {
    Burst::new(tokens).unwrap()
}
