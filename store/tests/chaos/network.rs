//! The way to the server is slow, or swallows what is sent.

use std::time::Duration;

use sluice_store::failure::StoreFault;
use sluice_store::redis::LATENCY_BOUNDS_US;

use crate::case::{BUDGET, Case};
use crate::proxy::{Mode, Proxy};
use crate::verdict::Lost;
use crate::{Server, turn};

const LOADED: Duration = Duration::from_millis(1_500);
const NO_TIME: Duration = Duration::ZERO;

/// A call waits for the one before it, so that a check may take two round trips.
#[test]
fn store_serves_over_a_way_that_is_slower_but_within_the_budget() {
    let _turn = turn();
    let server = Server::start(&[]);
    let proxy = Proxy::to(server.redis.port);
    let budget = Duration::from_millis(250);
    let case = Case::start("30 ms each way", [proxy.url(), proxy.url()], budget);
    proxy.set(Mode::Slow(Duration::from_millis(30), Duration::from_millis(30)));
    case.goes_on(3 * LOADED);
    for store in &case.load.stores {
        let metrics = store.metrics();
        let slow: u64 = metrics.latency_buckets
            [LATENCY_BOUNDS_US.partition_point(|&bound| bound <= 50_000)..]
            .iter()
            .sum();
        assert!(slow > 10, "calls of more than 50 ms: {metrics:?}");
    }
    case.judge(&mut server.redis.connection(), &[], Lost::Replies);
}

fn too_slow(name: &'static str, mode: Mode, lost: Lost) {
    let _turn = turn();
    let server = Server::start(&[]);
    let proxy = Proxy::to(server.redis.port);
    let mut case = Case::start(name, [proxy.url(), proxy.url()], BUDGET);
    case.goes_on(LOADED);
    proxy.set(mode);
    case.broke();
    case.is_named(StoreFault::Slow);
    case.goes_on(Duration::from_secs(1));
    let back = case.ends();
    proxy.set(Mode::Pass);
    case.recovers(back);
    case.calls_timed_out();
    case.goes_on(LOADED);
    case.judge(&mut server.redis.connection(), &[], lost);
}

#[test]
fn store_gives_up_calls_that_arrive_too_late_and_they_count_nothing() {
    too_slow("calls 80 ms late", Mode::Slow(Duration::from_millis(80), NO_TIME), Lost::AtTheEdges);
}

/// The server has done its part: what was charged stays charged.
#[test]
fn store_gives_up_answers_that_arrive_too_late() {
    too_slow("answers 80 ms late", Mode::Slow(NO_TIME, Duration::from_millis(80)), Lost::Replies);
}

#[test]
fn store_gives_up_a_silent_way() {
    too_slow("nothing comes through", Mode::Silent, Lost::AtTheEdges);
}

/// As when a firewall forgets connections: nothing needs to be mended, the next ones work.
#[test]
fn store_leaves_half_open_connections() {
    let _turn = turn();
    let server = Server::start(&[]);
    let proxy = Proxy::to(server.redis.port);
    let mut case = Case::start("half-open connections", [proxy.url(), proxy.url()], BUDGET);
    case.goes_on(LOADED);
    let before = case.load.stores.each_ref().map(|store| store.metrics().reconnects);
    let since = std::time::Instant::now();
    proxy.forget_connections();
    case.is_named(StoreFault::Slow);
    case.recovers(since);
    for (store, before) in case.load.stores.iter().zip(before) {
        assert!(store.metrics().reconnects > before);
    }
    case.calls_timed_out();
    case.goes_on(LOADED);
    case.judge(&mut server.redis.connection(), &[], Lost::AtTheEdges);
}
