//! `make chaos`: two processes with an odd number of clients, and faults in an order that a seed chooses. The store alone admits, as with
//! `onStoreFailure: Deny`, and each admission is put into the window of the store's clock in which it was charged.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use sluice_limiter::{Algorithm, Alignment, Burst, MAX_COUNT, SubWindows};
use sluice_store::{LimitSpec, RedisStore, Store as _};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::Server;
use crate::checks::{check, counter, limit, quick_store, rate, used};
use crate::cluster::{Cluster, rows};
use crate::sentinel::Watched;
use crate::support::{Redis, until};

/// Requests and period of each limit.
const REQUESTS: u64 = 23;
const PERIOD: u64 = 1_000;
/// Clients of each limit, and callers of each client in each of the two processes.
const CLIENTS: u128 = 3;
const CALLERS: usize = 3;

fn limits() -> Vec<Arc<LimitSpec>> {
    let algorithms = [
        Algorithm::SLIDING_WINDOW,
        Algorithm::SlidingWindowCounter {
            sub_windows: SubWindows::new(10).unwrap(),
            bound: sluice_limiter::Bound::Guaranteed,
        },
        Algorithm::FIXED_WINDOW,
        Algorithm::FixedWindow(Alignment::Spread),
        Algorithm::SlidingWindowLog { min_interval: 0 },
        Algorithm::TokenBucket { burst: Burst::new(REQUESTS).unwrap() },
    ];
    let limit = |(n, algorithm)| {
        Arc::new(LimitSpec::new(format!("chaos/rounds/{n}"), vec![rate(REQUESTS, PERIOD, algorithm)]))
    };
    algorithms.into_iter().enumerate().map(limit).collect()
}

/// A load, which has a runtime of its own.
struct Load {
    runtime: Runtime,
    stores: Vec<Arc<RedisStore>>,
    limits: Vec<Arc<LimitSpec>>,
    /// Never denies, so that every charge is visible.
    meter: Arc<LimitSpec>,
    stop: Arc<AtomicBool>,
    callers: Vec<JoinHandle<Vec<Admitted>>>,
}

/// An admission: the limit (the meter is the last one), the client, and the instant of the charge in microseconds of the store's clock.
type Admitted = (usize, u128, u64);

impl Load {
    fn start(url: &str) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (limits, meter, stop) = (limits(), limit("meter", MAX_COUNT), Arc::new(AtomicBool::new(false)));
        let stores = runtime.block_on(async { [0, 1].map(|_| Arc::new(quick_store(url))) }).to_vec();
        let mut load = Self { runtime, stores, limits, meter, stop, callers: Vec::new() };
        for store in 0..2 {
            for n in 0..load.limits.len() {
                for client in 0..CLIENTS {
                    (0..CALLERS).for_each(|_| load.call(store, n, client));
                }
            }
            load.call(store, load.limits.len(), 0);
        }
        load
    }

    /// Starts a caller.
    fn call(&mut self, store: usize, n: usize, client: u128) {
        let (store, stop) = (self.stores[store].clone(), self.stop.clone());
        // The hash of a key is spread over all bits.
        let key = (client + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let counters = [counter(self.limits.get(n).unwrap_or(&self.meter), key)];
        self.callers.push(self.runtime.spawn(async move {
            let mut admitted = Vec::new();
            while !stop.load(SeqCst) {
                if let Ok(response) = store.check(check(&counters)).await
                    && response.admitted
                {
                    admitted.push((n, key, response.at));
                }
                tokio::time::sleep(Duration::from_millis(rand::random_range(5..25))).await;
            }
            admitted
        }));
    }

    /// Ends the load. Returns all admissions.
    fn end(&mut self) -> Vec<Admitted> {
        self.stop.store(true, SeqCst);
        let callers = std::mem::take(&mut self.callers);
        let all = self.runtime.block_on(futures::future::join_all(callers));
        all.into_iter().flat_map(Result::unwrap).collect()
    }

    /// Returns the most that any window, or any time of a log or a bucket, has admitted above what its limit allows.
    fn above(&self, admitted: &[Admitted]) -> Vec<i64> {
        let above = |(n, limit): (usize, &Arc<LimitSpec>)| {
            let mut by_key = HashMap::<u128, Vec<u64>>::new();
            admitted
                .iter()
                .filter(|(of, ..)| *of == n)
                .for_each(|(_, key, at)| by_key.entry(*key).or_default().push(*at));
            let rate = limit.rates[0];
            let most = by_key.into_iter().map(|(key, mut at)| {
                at.sort_unstable();
                match rate.algorithm {
                    Algorithm::TokenBucket { .. } => fullest(&at).ceil() as i64,
                    Algorithm::SlidingWindowLog { .. } => {
                        // A log counts in whole milliseconds.
                        at.iter_mut().for_each(|at| *at /= 1000);
                        let first = |n: usize| at.partition_point(|other| other + PERIOD <= at[n]);
                        (0..at.len()).map(|n| (n + 1 - first(n)) as i64).max().unwrap_or(0)
                    }
                    _ => {
                        let mut windows = HashMap::<u64, i64>::new();
                        at.iter().for_each(|at| {
                            *windows.entry((at + rate.phase(key)) / (PERIOD * 1000)).or_default() += 1;
                        });
                        windows.into_values().max().unwrap_or(0)
                    }
                }
            });
            most.max().unwrap_or(0) - REQUESTS as i64
        };
        self.limits.iter().enumerate().map(above).collect()
    }
}

/// Returns the most tokens that were missing at any time in a bucket without a bottom.
fn fullest(instants: &[u64]) -> f64 {
    let (mut level, mut most, mut before) = (0.0_f64, 0.0_f64, 0);
    for &at in instants {
        level = (level - (at - before) as f64 * REQUESTS as f64 / (PERIOD * 1000) as f64).max(0.0) + 1.0;
        (most, before) = (most.max(level), at);
    }
    most
}

/// Returns the time for which faults are made, and the random numbers that choose them.
fn setting(what: &str) -> (Duration, StdRng) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seed = number("SLUICE_CHAOS_SEED").unwrap_or_else(rand::random);
    let seconds = number("SLUICE_CHAOS_SECONDS").unwrap_or(20);
    println!("{what}: SLUICE_CHAOS_SEED={seed} SLUICE_CHAOS_SECONDS={seconds}");
    (Duration::from_secs(seconds), StdRng::seed_from_u64(seed))
}

/// Makes faults until the time is over, and checks what was admitted.
fn rounds(what: &str, url: &str, mut fault: impl FnMut(&mut StdRng)) {
    let (time, mut random) = setting(what);
    let (begun, mut load, mut faults) = (Instant::now(), Load::start(url), 0);
    while begun.elapsed() < time {
        std::thread::sleep(Duration::from_millis(random.random_range(200..2_500)));
        fault(&mut random);
        faults += 1;
    }
    std::thread::sleep(Duration::from_secs(3));
    let admitted = load.end();
    let above = load.above(&admitted);
    println!("{what}: {faults} faults, {} admitted, above N by limit: {above:?}", admitted.len());
    assert!(admitted.len() > 100, "{what}: the store was hardly there");
    let (bucket, windows) = above.split_last().unwrap();
    assert!(*bucket <= 2 && windows.iter().all(|above| *above <= 1), "{what}: {above:?}");
}

/// Stops a server for a while.
fn stall(redis: &Redis, random: &mut StdRng) {
    redis.stop();
    std::thread::sleep(Duration::from_millis(random.random_range(5..1_500)));
    redis.go_on();
}

/// Closes all connections of clients.
fn drop_clients(redis: &Redis) {
    let mut kill = redis::cmd("CLIENT");
    kill.arg("KILL").arg("TYPE").arg("normal");
    let _: redis::RedisResult<u64> = kill.query(&mut redis.connection());
}

#[test]
#[ignore = "make chaos"]
fn one_server_that_keeps_its_data() {
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let url = server.redis.url();
    rounds("one server", &url, |random| match random.random_range(0..3) {
        0 => stall(&server.redis, random),
        1 => drop_clients(&server.redis),
        _ => {
            server.redis.kill();
            std::thread::sleep(Duration::from_millis(random.random_range(5..1_500)));
            server.redis.restart();
        }
    });
}

#[test]
#[ignore = "make chaos"]
fn a_cluster_with_planned_failovers() {
    let cluster = Cluster::start(&["--cluster-node-timeout", "1000"]);
    let url = cluster.url();
    rounds("cluster", &url, |random| {
        let rows = rows(&mut cluster.servers[0].connection());
        let of_role = |master| rows.iter().filter(|row| row.master == master).collect::<Vec<_>>();
        let (masters, replicas) = (of_role(true), of_role(false));
        let server = |row: &crate::cluster::Row| &cluster.servers[cluster.index(row.port)];
        match random.random_range(0..4) {
            // Shorter than the time after which the others elect another master, which would lose what it has not sent.
            0 => {
                let redis = server(masters[random.random_range(0..masters.len())]);
                redis.stop();
                std::thread::sleep(Duration::from_millis(random.random_range(5..400)));
                redis.go_on();
            }
            1 => drop_clients(server(masters[random.random_range(0..masters.len())])),
            _ => {
                let mut failover = redis::cmd("CLUSTER");
                failover.arg("FAILOVER");
                let replica = server(replicas[random.random_range(0..replicas.len())]);
                let _: redis::RedisResult<()> = failover.query(&mut replica.connection());
            }
        }
    });
}

#[test]
#[ignore = "make chaos"]
fn planned_failovers_of_sentinels_lose_what_is_charged_in_a_second() {
    let watched = Watched::start();
    let (time, _) = setting("sentinels");
    let (begun, mut load, mut failovers) = (Instant::now(), Load::start(&watched.url()), 0);
    let mut servers = [&watched.master, &watched.replica];
    while failovers == 0 || begun.elapsed() < time {
        std::thread::sleep(Duration::from_secs(2));
        let mut failover = redis::cmd("SENTINEL");
        failover.arg("FAILOVER").arg("main");
        until("the sentinels begin a failover", || {
            failover.query::<()>(&mut watched.sentinels[failovers % 3].connection()).is_ok()
        });
        servers.reverse();
        until("the old master is a replica in sync", || {
            let info = |redis: &Redis| -> redis::RedisResult<String> {
                let mut connection = redis::Client::open(redis.url())?.get_connection()?;
                redis::cmd("INFO").arg("replication").query(&mut connection)
            };
            info(servers[0]).is_ok_and(|info| info.contains("role:master") && info.contains("state=online"))
        });
        failovers += 1;
    }
    let admitted = load.end();
    let meter = counter(&load.meter, admitted.iter().find(|(n, ..)| *n == load.limits.len()).unwrap().1);
    let kept = used(&mut servers[0].connection(), &load.stores[0], &meter);
    let counted: Vec<_> = admitted.iter().filter(|(n, ..)| *n == load.limits.len()).collect();
    let seconds = begun.elapsed().as_secs_f64();
    let lost = (counted.len() as f64 - kept as f64) / (counted.len() as f64 / seconds) / failovers as f64;
    println!(
        "sentinels: {failovers} failovers, each lost the charges of {lost:.2} s, of {} in {seconds:.0} s",
        counted.len()
    );
    assert!(lost <= 1.2, "{lost} s");
}
