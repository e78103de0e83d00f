//! The server is killed, stopped, full or demoted.

use std::time::{Duration, Instant};

use sluice_store::failure::StoreFault;

use super::case::{BUDGET, Case};
use super::verdict::Timeouts;
use super::{Server, permit};
use crate::support::until;

const LOADED: Duration = Duration::from_millis(1_500);

fn killed(name: &'static str, arguments: &[&str], keeps_data: bool) {
    let _permit = permit();
    let mut server = Server::start(arguments);
    let mut case = Case::start(name, server.urls(), BUDGET);
    case.run_for(LOADED);
    let before = Instant::now();
    server.redis.kill();
    case.fault_begins();
    case.wait_until_reported(StoreFault::Unreachable);
    case.run_for(Duration::from_millis(500));
    let back = case.fault_ends();
    server.redis.restart();
    if !keeps_data {
        case.lost_data(before);
    }
    case.wait_until_recovered(back);
    case.run_for(2 * LOADED);
    case.judge(&mut server.redis.connection(), &[StoreFault::Unreachable], Timeouts::CountedAtEdges);
}

#[test]
fn store_survives_sigkill_and_an_empty_restart() {
    killed("SIGKILL, restarted empty", &[], false);
}

/// The append-only file is written before a reply is sent. It need not be on the disk when only the process
/// dies.
#[test]
fn store_survives_sigkill_and_a_restart_with_data() {
    killed("SIGKILL, restarted with data", &["--appendonly", "yes", "--appendfsync", "no"], true);
}

#[test]
fn store_survives_consecutive_restarts() {
    let _permit = permit();
    let mut server = Server::start(&[]);
    let mut case = Case::start("three empty restarts", server.urls(), BUDGET);
    case.run_for(LOADED);
    for _ in 0..3 {
        let before = Instant::now();
        server.redis.restart();
        case.lost_data(before);
        case.wait_until_recovered(before);
        case.run_for(Duration::from_millis(300));
    }
    case.run_for(LOADED);
    case.judge(&mut server.redis.connection(), &[StoreFault::Unreachable], Timeouts::CountedAtEdges);
}

#[test]
fn checks_that_time_out_during_sigstop_are_not_counted_afterwards() {
    let _permit = permit();
    let server = Server::start(&[]);
    let mut case = Case::start("SIGSTOP for 2 s", server.urls(), BUDGET);
    case.run_for(LOADED);
    server.redis.stop();
    case.fault_begins();
    case.wait_until_reported(StoreFault::Slow);
    case.run_for(Duration::from_secs(2));
    let back = case.fault_ends();
    server.redis.go_on();
    case.wait_until_recovered(back);
    case.assert_calls_timed_out();
    case.run_for(LOADED);
    case.judge(&mut server.redis.connection(), &[], Timeouts::CountedAtEdges);
}

#[test]
fn store_survives_a_full_server() {
    let _permit = permit();
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let mut case = Case::start("maxmemory, noeviction", server.urls(), BUDGET);
    case.run_for(LOADED);
    server.config("maxmemory", "1");
    case.fault_begins();
    case.wait_until_reported(StoreFault::ReadOnly);
    case.run_for(Duration::from_millis(500));
    let back = case.fault_ends();
    server.config("maxmemory", "0");
    case.wait_until_recovered(back);
    case.run_for(LOADED);
    case.judge(&mut server.redis.connection(), &[StoreFault::ReadOnly], Timeouts::CountedAtEdges);
}

/// FAILOVER demotes the stores' server to a replica without losing data, and then promotes it again.
#[test]
fn store_survives_a_read_only_replica() {
    let _permit = permit();
    let server = Server::start(&[]);
    let other = Server::start(&["--replicaof", "127.0.0.1", &server.redis.port.to_string()]);
    let wait_until_synced = |leader: &Server, follower: &Server| {
        until("the replica is in sync", || {
            follower.info("replication").contains("master_link_status:up")
                && leader.info("replication").contains("state=online")
        });
    };
    let fail_over = |from: &Server, to: &Server| {
        let mut failover = redis::cmd("FAILOVER");
        failover.arg("TO").arg("127.0.0.1").arg(to.redis.port);
        let (): () = failover.query(&mut from.redis.connection()).unwrap();
    };
    wait_until_synced(&server, &other);
    let mut case = Case::start("read-only replica", server.urls(), BUDGET);
    case.run_for(LOADED);
    fail_over(&server, &other);
    until("the server is a replica", || {
        server.info("replication").contains("role:slave")
            && server.info("replication").contains("master_failover_state:no-failover")
    });
    case.fault_begins();
    case.wait_until_reported(StoreFault::ReadOnly);
    wait_until_synced(&other, &server);
    case.run_for(Duration::from_millis(300));
    let back = case.fault_ends();
    fail_over(&other, &server);
    until("the server is promoted", || server.info("replication").contains("role:master"));
    case.wait_until_recovered(back);
    case.run_for(LOADED);
    case.judge(&mut server.redis.connection(), &[StoreFault::ReadOnly], Timeouts::CountedAtEdges);
}
