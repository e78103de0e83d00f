//! Stores that wait for a Redis: one that comes up late, restarts, or reads its data from disk, and many of them
//! at the same time.

use sluice_limiter::MAX_PERIOD_MS;
use sluice_store::Store as _;
use sluice_store::StoreHealth;
use sluice_store::failure::StoreFault;

use crate::checks::{admitted, counter, failing, healthy, limit, limit_per, patient_store};
use crate::support::{Redis, eventually, quiet_port};

crate::servers::pass_with_other_servers!();

/// Returns the number of connections that a server has accepted, those of this function included.
fn connections(redis: &Redis) -> usize {
    let info: String = redis::cmd("INFO").arg("stats").query(&mut redis.connection()).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    line.unwrap().trim().parse().unwrap()
}

/// Accepts connections on a port and closes them, until `until` of them have arrived.
async fn close_connections(port: u16, until: usize) {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    for _ in 0..until {
        listener.accept().await.unwrap();
    }
}

#[tokio::test]
async fn a_store_finds_a_redis_that_comes_up_late() {
    let port = quiet_port();
    let store = patient_store(&format!("redis://127.0.0.1:{port}"));
    failing(&store, StoreFault::Unreachable).await;
    // By then the delay between attempts has grown to its bound.
    close_connections(port, 20).await;
    let _redis = Redis::start_at(port, &[]);
    healthy(&store).await;
    assert_eq!(admitted(&store, &[counter(&limit("late", 2), 1)], 3).await, 2);
}

/// The table of `docs/stores.md`: the process is killed, and the machine goes on.
#[tokio::test]
async fn a_restart_keeps_what_the_persistence_of_redis_keeps() {
    const LONG: u64 = MAX_PERIOD_MS / 2;
    let cases = [
        ("none", vec![], false, 0),
        ("RDB", vec![], true, 7),
        ("AOF everysec", vec!["--appendonly", "yes", "--appendfsync", "everysec"], false, 13),
        ("AOF always", vec!["--appendonly", "yes", "--appendfsync", "always"], false, 13),
    ];
    for (name, arguments, saves, kept) in cases {
        let mut redis = Redis::start_restartable(&arguments);
        let stores = [patient_store(&redis.url()), patient_store(&redis.url())];
        for store in &stores {
            healthy(store).await;
        }
        let counter = [counter(&limit_per("kept", 20, LONG), 1)];
        assert_eq!(admitted(&stores[0], &counter, 7).await, 7);
        if saves {
            let (): () = redis::cmd("SAVE").query(&mut redis.connection()).unwrap();
        }
        assert_eq!(admitted(&stores[1], &counter, 6).await, 6);
        redis.kill();
        for store in &stores {
            failing(store, StoreFault::Unreachable).await;
        }
        redis.restart();
        for store in &stores {
            healthy(store).await;
        }
        assert_eq!(admitted(&stores[0], &counter, 21).await, 20 - kept, "{name}");
    }
}

#[tokio::test]
async fn a_store_waits_on_one_connection_while_redis_reads_its_data() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().to_string_lossy().into_owned();
    let mut redis = Redis::start_restartable(&["--dir", &directory]);
    let mut keys = redis::pipe();
    for key in 0..20_000 {
        keys.set(key, "value");
    }
    let (): () = keys.query(&mut redis.connection()).unwrap();
    let (): () = redis::cmd("SAVE").query(&mut redis.connection()).unwrap();
    let store = patient_store(&redis.url());
    healthy(&store).await;
    redis.kill();
    failing(&store, StoreFault::Unreachable).await;
    // Loads for at least 4 s, and serves its clients after every key.
    redis.restart_loading(&["--key-load-delay", "200", "--loading-process-events-interval-bytes", "1024"]);
    healthy(&store).await;
    // Before it waits on a connection, it has made a first attempt and then checked that the server is back.
    let all = connections(&redis);
    assert!((1..=4).contains(&all), "{all} connections");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_stores_reconnect_to_a_redis_with_few_connections_each() {
    // Each needs a socket here and one in the server, of the 1,024 that processes may often have.
    const STORES: usize = 300;
    let mut redis = Redis::start_restartable(&[]);
    let stores: Vec<_> = (0..STORES).map(|_| patient_store(&redis.url())).collect();
    for store in &stores {
        healthy(store).await;
    }
    redis.kill();
    for store in &stores {
        failing(store, StoreFault::Unreachable).await;
    }
    redis.restart();
    eventually("all stores are healthy", || async {
        stores.iter().all(|store| store.health() == StoreHealth::Healthy)
    })
    .await;
    let all = connections(&redis);
    // One to see that the server is back, and one to use. A busy machine may cost some a second attempt.
    assert!((STORES..=STORES * 4).contains(&all), "{all} connections of {STORES} stores");
    println!("{STORES} stores reconnected with {all} connections");
}
