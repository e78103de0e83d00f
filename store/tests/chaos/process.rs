//! The server is killed, stopped, full or demoted.

use std::time::{Duration, Instant};

use sluice_store::failure::StoreFault;

use crate::case::{BUDGET, Case};
use crate::support::until;
use crate::verdict::Lost;
use crate::{Server, turn};

const LOADED: Duration = Duration::from_millis(1_500);

fn killed(name: &'static str, arguments: &[&str], keeps: bool) {
    let _turn = turn();
    let mut server = Server::start(arguments);
    let mut case = Case::start(name, server.urls(), BUDGET);
    case.goes_on(LOADED);
    let before = Instant::now();
    server.redis.kill();
    case.broke();
    case.is_named(StoreFault::Unreachable);
    case.goes_on(Duration::from_millis(500));
    let back = case.ends();
    server.redis.restart();
    if !keeps {
        case.forgot(before);
    }
    case.recovers(back);
    case.goes_on(2 * LOADED);
    case.judge(&mut server.redis.connection(), &[StoreFault::Unreachable], Lost::AtTheEdges);
}

#[test]
fn store_survives_sigkill_and_an_empty_restart() {
    killed("SIGKILL, restarted empty", &[], false);
}

/// The log is written before an answer leaves; it need not be on the disk when only the process dies.
#[test]
fn store_survives_sigkill_and_a_restart_with_data() {
    killed("SIGKILL, restarted with data", &["--appendonly", "yes", "--appendfsync", "no"], true);
}

#[test]
fn store_survives_restarts_in_a_row() {
    let _turn = turn();
    let mut server = Server::start(&[]);
    let mut case = Case::start("three empty restarts", server.urls(), BUDGET);
    case.goes_on(LOADED);
    for _ in 0..3 {
        let before = Instant::now();
        server.redis.restart();
        case.forgot(before);
        case.recovers(before);
        case.goes_on(Duration::from_millis(300));
    }
    case.goes_on(LOADED);
    case.judge(&mut server.redis.connection(), &[StoreFault::Unreachable], Lost::AtTheEdges);
}

#[test]
fn store_survives_sigstop_and_nothing_is_counted_afterwards() {
    let _turn = turn();
    let server = Server::start(&[]);
    let mut case = Case::start("SIGSTOP for 2 s", server.urls(), BUDGET);
    case.goes_on(LOADED);
    server.redis.stop();
    case.broke();
    case.is_named(StoreFault::Slow);
    case.goes_on(Duration::from_secs(2));
    let back = case.ends();
    server.redis.go_on();
    case.recovers(back);
    case.calls_timed_out();
    case.goes_on(LOADED);
    case.judge(&mut server.redis.connection(), &[], Lost::AtTheEdges);
}

#[test]
fn store_survives_a_full_server() {
    let _turn = turn();
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let mut case = Case::start("maxmemory, noeviction", server.urls(), BUDGET);
    case.goes_on(LOADED);
    server.config("maxmemory", "1");
    case.broke();
    case.is_named(StoreFault::ReadOnly);
    case.goes_on(Duration::from_millis(500));
    let back = case.ends();
    server.config("maxmemory", "0");
    case.recovers(back);
    case.goes_on(LOADED);
    case.judge(&mut server.redis.connection(), &[StoreFault::ReadOnly], Lost::AtTheEdges);
}

/// The server that the stores know is demoted to a replica, with nothing lost (FAILOVER), and promoted again.
#[test]
fn store_survives_a_read_only_replica() {
    let _turn = turn();
    let server = Server::start(&[]);
    let other = Server::start(&["--replicaof", "127.0.0.1", &server.redis.port.to_string()]);
    let follows = |leader: &Server, follower: &Server| {
        until("the replica has caught up", || {
            follower.info("replication").contains("master_link_status:up")
                && leader.info("replication").contains("state=online")
        });
    };
    let hand_over = |from: &Server, to: &Server| {
        let mut failover = redis::cmd("FAILOVER");
        failover.arg("TO").arg("127.0.0.1").arg(to.redis.port);
        let (): () = failover.query(&mut from.redis.connection()).unwrap();
    };
    follows(&server, &other);
    let mut case = Case::start("read-only replica", server.urls(), BUDGET);
    case.goes_on(LOADED);
    hand_over(&server, &other);
    until("the server is a replica", || {
        server.info("replication").contains("role:slave")
            && server.info("replication").contains("master_failover_state:no-failover")
    });
    case.broke();
    case.is_named(StoreFault::ReadOnly);
    follows(&other, &server);
    case.goes_on(Duration::from_millis(300));
    let back = case.ends();
    hand_over(&other, &server);
    until("the server is promoted", || server.info("replication").contains("role:master"));
    case.recovers(back);
    case.goes_on(LOADED);
    case.judge(&mut server.redis.connection(), &[StoreFault::ReadOnly], Lost::AtTheEdges);
}
