//! The connection to the server is slow, or loses data.

use std::time::Duration;

use sluice_store::failure::StoreFault;
use sluice_store::redis::LATENCY_BOUNDS_US;

use super::case::{BUDGET, Case};
use super::proxy::{Mode, Proxy};
use super::verdict::Timeouts;
use super::{Server, permit};

const LOADED: Duration = Duration::from_millis(1_500);
const NO_DELAY: Duration = Duration::ZERO;

/// A check may take two round trips, because a call can wait for the one before it.
#[test]
fn store_serves_over_a_slow_connection_within_the_budget() {
    let _permit = permit();
    let server = Server::start(&[]);
    let proxy = Proxy::to(server.redis.port);
    let budget = Duration::from_millis(250);
    let case = Case::start("30 ms each way", [proxy.url(), proxy.url()], budget);
    proxy.set(Mode::Slow(Duration::from_millis(30), Duration::from_millis(30)));
    case.run_for(3 * LOADED);
    for store in &case.load.stores {
        let metrics = store.metrics();
        let slow: u64 = metrics.latency_buckets
            [LATENCY_BOUNDS_US.partition_point(|&bound| bound <= 50_000)..]
            .iter()
            .sum();
        assert!(slow > 10, "too few calls took more than 50 ms: {metrics:?}");
    }
    case.judge(&mut server.redis.connection(), &[], Timeouts::MayBeCounted);
}

fn too_slow(name: &'static str, mode: Mode, timeouts: Timeouts) {
    let _permit = permit();
    let server = Server::start(&[]);
    let proxy = Proxy::to(server.redis.port);
    let mut case = Case::start(name, [proxy.url(), proxy.url()], BUDGET);
    case.run_for(LOADED);
    proxy.set(mode);
    case.fault_begins();
    case.wait_until_reported(StoreFault::Slow);
    case.run_for(Duration::from_secs(1));
    let back = case.fault_ends();
    proxy.set(Mode::Pass);
    case.wait_until_recovered(back);
    case.assert_calls_timed_out();
    case.run_for(LOADED);
    case.judge(&mut server.redis.connection(), &[], timeouts);
}

#[test]
fn calls_that_arrive_too_late_are_not_counted() {
    too_slow("calls 80 ms late", Mode::Slow(Duration::from_millis(80), NO_DELAY), Timeouts::CountedAtEdges);
}

/// The server has run the calls, so their charges remain.
#[test]
fn store_survives_replies_that_arrive_too_late() {
    too_slow("replies 80 ms late", Mode::Slow(NO_DELAY, Duration::from_millis(80)), Timeouts::MayBeCounted);
}

#[test]
fn store_survives_a_silent_connection() {
    too_slow("no data passes", Mode::Silent, Timeouts::CountedAtEdges);
}

/// This happens when a firewall forgets its connections. New connections work.
#[test]
fn store_replaces_half_open_connections() {
    let _permit = permit();
    let server = Server::start(&[]);
    let proxy = Proxy::to(server.redis.port);
    let mut case = Case::start("half-open connections", [proxy.url(), proxy.url()], BUDGET);
    case.run_for(LOADED);
    let before = case.load.stores.each_ref().map(|store| store.metrics().reconnects);
    let since = std::time::Instant::now();
    proxy.forget_connections();
    case.wait_until_reported(StoreFault::Slow);
    case.wait_until_recovered(since);
    for (store, before) in case.load.stores.iter().zip(before) {
        assert!(store.metrics().reconnects > before);
    }
    case.assert_calls_timed_out();
    case.run_for(LOADED);
    case.judge(&mut server.redis.connection(), &[], Timeouts::CountedAtEdges);
}
