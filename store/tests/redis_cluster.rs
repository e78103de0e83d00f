//! The Redis store with a real cluster of three masters with one replica each: exact under load from several
//! stores, while a hash slot moves, and while a master fails.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use sluice_store::failure::StoreFault;
use sluice_store::redis::Secret;
use sluice_store::{Counter, LimitSpec, RedisOptions, RedisStore, Store as _, StoreError, StoreHealth};

use crate::checks::{admitted, check, counter, failing, healthy, limit, patient, patient_store, used};
use crate::cluster::{Cluster, rows};
use crate::support;
use crate::support::{eventually, quiet_port};

crate::servers::pass_with_other_servers!();

fn start(cluster: &Cluster, budget: Duration) -> Arc<RedisStore> {
    Arc::new(RedisStore::start(RedisOptions { latency_budget: budget, ..patient(&cluster.url()) }).unwrap())
}

/// Tasks that check one key after another until `stop`, and count how many checks of each key were admitted.
struct Load {
    stop: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<Vec<Result<usize, String>>>>,
}

impl Load {
    /// Starts the tasks. Each one checks all keys, then pauses briefly, so that the load is light but
    /// lasting.
    fn start(stores: &[Arc<RedisStore>], tasks: usize, limits: &[Arc<LimitSpec>], keys: &[u128]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let tasks = (0..tasks)
            .map(|n| {
                let (store, limits, keys) =
                    (stores[n % stores.len()].clone(), limits.to_vec(), keys.to_vec());
                let stop = stop.clone();
                tokio::spawn(async move {
                    let mut admitted: Vec<Result<usize, String>> = vec![Ok(0); keys.len()];
                    while !stop.load(SeqCst) {
                        for (at, &key) in keys.iter().enumerate() {
                            let counters: Vec<Counter> =
                                limits.iter().map(|limit| counter(limit, key)).collect();
                            match (&mut admitted[at], store.check(check(&counters)).await) {
                                (Ok(count), Ok(response)) => *count += usize::from(response.admitted),
                                (Ok(_), Err(error)) => admitted[at] = Err(error.to_string()),
                                (Err(_), _) => {}
                            }
                        }
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    admitted
                })
            })
            .collect();
        Self { stop, tasks }
    }

    /// Stops the tasks and returns how many checks of each key were admitted. Panics if any check failed.
    async fn end(self, keys: usize) -> Vec<usize> {
        self.stop.store(true, SeqCst);
        let mut all = vec![0; keys];
        for task in self.tasks {
            for (sum, count) in all.iter_mut().zip(task.await.unwrap()) {
                *sum += count.expect("no check fails");
            }
        }
        all
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn several_stores_admit_exactly_the_limit_over_all_masters() {
    let cluster = Cluster::start(&[]);
    let stores: Vec<_> = (0..3).map(|_| start(&cluster, Duration::from_secs(10))).collect();
    let (hot, own) = (limit("hot", 500), limit("own", 25));
    // Their partitions lie all over the hash slots.
    let keys = || (0..120).step_by(3);
    let callers: Vec<_> = (0..48usize)
        .map(|n| {
            let (store, hot, own) = (stores[n % 3].clone(), hot.clone(), own.clone());
            tokio::spawn(async move {
                let one = admitted(&store, &[counter(&hot, 5)], 20).await;
                let mut others = 0;
                for key in keys() {
                    others += admitted(&store, &[counter(&own, key)], 1).await;
                }
                (one, others)
            })
        })
        .collect();
    let (mut one, mut others) = (0, 0);
    for caller in callers {
        let (a, b) = caller.await.unwrap();
        (one, others) = (one + a, others + b);
    }
    assert_eq!((one, others), (500, 40 * 25));
    let owners: HashSet<_> =
        keys().map(|key| cluster.owner_of(cluster.slot(&stores[0], &counter(&own, key)), 0)).collect();
    assert_eq!(owners.len(), 3, "the keys are spread over all masters");
    for key in keys() {
        let counter = counter(&own, key);
        let owner = cluster.owner_of(cluster.slot(&stores[0], &counter), 0);
        assert_eq!(used(&mut cluster.servers[owner].connection(), &stores[0], &counter), 25);
    }
    for store in &stores {
        assert_eq!(store.health(), StoreHealth::Healthy);
        let metrics = store.metrics();
        assert_eq!((metrics.errors, metrics.reconnects, metrics.redirected), (0, 0, 0), "{metrics:?}");
        assert!(metrics.merged > 0, "{metrics:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn counters_in_several_hash_slots_are_decided_together_and_denials_are_refunded() {
    let cluster = Cluster::start(&[]);
    let stores: Vec<_> = (0..2).map(|_| start(&cluster, Duration::from_secs(10))).collect();
    let (shared, own) = (limit("shared", 300), limit("client", 20));
    let both = |client: u128| [counter(&own, 1 + client), counter(&shared, 0)];
    let store = &stores[0];
    let slots: HashSet<_> = both(0).iter().map(|counter| cluster.slot(store, counter)).collect();
    assert_eq!(slots.len(), 2);
    // Concurrent checks of more than both limits admit: some may be denied while another check's charge
    // awaits its refund.
    let callers: Vec<_> = (0..40u128)
        .map(|n| {
            let (store, both) = (stores[n as usize % 2].clone(), both(n % 20));
            tokio::spawn(async move { (n % 20, admitted(&store, &both, 15).await) })
        })
        .collect();
    let mut by_client = vec![0; 20];
    for caller in callers {
        let (client, admitted) = caller.await.unwrap();
        by_client[client as usize] += admitted;
    }
    assert!(by_client.iter().sum::<usize>() <= 300 && by_client.iter().all(|&n| n <= 20), "{by_client:?}");
    // Consecutive checks receive exactly the rest, once all refunds are done.
    let started = Instant::now();
    while by_client.iter().sum::<usize>() < 300 {
        assert!(started.elapsed() < Duration::from_secs(60), "only {by_client:?} were admitted");
        for client in 0..20 {
            by_client[client as usize] += admitted(store, &both(client), 5).await;
        }
    }
    for client in 0..20 {
        by_client[client as usize] += admitted(store, &both(client), 2).await;
    }
    assert_eq!(by_client.iter().sum::<usize>(), 300, "{by_client:?}");
    let response = store.check(check(&both(0))).await.unwrap();
    assert!(!response.admitted && !response.decisions[1].admitted);
    assert_eq!((response.decisions[0].limit, response.decisions[1].limit), (20, 300));
    assert_eq!(response.decisions[0].remaining, 20 - by_client[0] as u64);
    for client in 0..20 {
        let [counter, _] = both(client);
        let owner = cluster.owner_of(cluster.slot(store, &counter), 0);
        eventually("denied charges are refunded", || async {
            used(&mut cluster.servers[owner].connection(), store, &counter)
                == by_client[client as usize] as u64
        })
        .await;
    }
}

/// Returns a limit with so many keys that the 8 of these tests fit into each partition.
fn with_max_keys(limit: &LimitSpec) -> Arc<LimitSpec> {
    let copy = LimitSpec::new(limit.scope.clone(), limit.rates.clone());
    Arc::new(copy.with_max_keys(64 * 20))
}

/// Moves a hash slot key by key, and calls `pause` between the steps.
fn move_slot(cluster: &Cluster, slot: u16, from: usize, to: usize, pause: impl Fn()) {
    let (source, target) = (cluster.id(from), cluster.id(to));
    cluster.set_slot(to, slot, "IMPORTING", &source).unwrap();
    cluster.set_slot(from, slot, "MIGRATING", &target).unwrap();
    pause();
    while cluster.migrate(slot, from, to, 2) > 0 {
        pause();
    }
    cluster.set_slot(to, slot, "NODE", &target).unwrap();
    pause();
    for server in 0..3 {
        cluster.set_slot(server, slot, "NODE", &target).unwrap();
    }
    pause();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn stores_admit_exactly_the_limit_while_a_hash_slot_moves() {
    let cluster = Cluster::start(&[]);
    let stores: Vec<_> = (0..2).map(|_| start(&cluster, Duration::from_secs(10))).collect();
    healthy(&stores[0]).await;
    // All keys are in one partition, so that all of them move. Two limits make checks of several keys.
    let (number, partitions) = (400, 64);
    // Their registries move as well, and never stand in the way of a key.
    let limits = [limit("moved-a", number), limit("moved-b", number)].map(|limit| with_max_keys(&limit));
    let keys: Vec<u128> = (0..8).map(|n| 17 + n * partitions).collect();
    let slot = cluster.slot(&stores[0], &counter(&limits[0], keys[0]));
    let (from, steps) = (cluster.owner_of(slot, 0), Arc::new(AtomicUsize::new(0)));
    let (before, new) = keys.split_at(5);
    let load = Load::start(&stores, 4, &limits, before);
    // These keys are created while the hash slot moves.
    let late = {
        let (stores, limits, new, steps) = (stores.clone(), limits.clone(), new.to_vec(), steps.clone());
        tokio::spawn(async move {
            while steps.load(SeqCst) < 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let mut all = vec![0; new.len()];
            for _ in 0..30 {
                for (sum, &key) in all.iter_mut().zip(&new) {
                    *sum +=
                        admitted(&stores[0], &[counter(&limits[0], key), counter(&limits[1], key)], 1).await;
                }
            }
            all
        })
    };
    let cluster = tokio::task::spawn_blocking({
        let steps = steps.clone();
        move || {
            for to in [(from + 1) % 3, (from + 2) % 3, from] {
                let owner = cluster.owner_of(slot, 0);
                move_slot(&cluster, slot, owner, to, || {
                    steps.fetch_add(1, SeqCst);
                    std::thread::sleep(Duration::from_millis(20));
                });
            }
            cluster
        }
    })
    .await
    .unwrap();
    let new_admitted = late.await.unwrap();
    let mut all = load.end(before.len()).await;
    all.extend(new_admitted);
    let redirected: u64 = stores.iter().map(|store| store.metrics().redirected).sum();
    let errors: u64 = stores.iter().map(|store| store.metrics().errors).sum();
    println!("{} steps, {redirected} calls redirected, admitted so far {all:?}", steps.load(SeqCst));
    assert!(redirected > 0);
    assert_eq!(errors, 0);
    for (&key, so_far) in keys.iter().zip(&all) {
        let counters = [counter(&limits[0], key), counter(&limits[1], key)];
        let rest = admitted(&stores[1], &counters, number as usize + 1 - so_far).await;
        assert_eq!(so_far + rest, number as usize, "key {key}");
        let mut owner = cluster.servers[cluster.owner_of(slot, 0)].connection();
        // While the slot still counts as moving, a check is sent counter by counter, and the refund of a
        // denied one may still be in flight.
        support::until("both counters are full", || {
            counters.iter().all(|counter| used(&mut owner, &stores[0], counter) == number)
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn checks_succeed_while_the_keys_of_a_hash_slot_are_on_two_servers() {
    let cluster = Cluster::start(&[]);
    let store = start(&cluster, Duration::from_secs(10));
    let limits = [limit("half-a", 3), limit("half-b", 5)].map(|limit| with_max_keys(&limit));
    let both = |n: u128| [counter(&limits[0], 17 + 64 * n), counter(&limits[1], 17 + 64 * n)];
    for n in 0..4 {
        assert_eq!(admitted(&store, &both(n), 1).await, 1);
    }
    let slot = cluster.slot(&store, &both(0)[0]);
    let from = cluster.owner_of(slot, 0);
    let to = (from + 1) % 3;
    cluster.set_slot(to, slot, "IMPORTING", &cluster.id(from)).unwrap();
    cluster.set_slot(from, slot, "MIGRATING", &cluster.id(to)).unwrap();
    // Three of the eight keys and two registries move, so some clients have their keys on two servers.
    assert_eq!(cluster.migrate(slot, from, to, 3), 3);
    // The first call has keys on the old server, on the new one, and new keys.
    let many: Vec<_> = (0..8)
        .map(|n| {
            let (store, both) = (store.clone(), both(n));
            tokio::spawn(async move { store.check(check(&both)).await.unwrap().admitted })
        })
        .collect();
    for one in many {
        assert!(one.await.unwrap());
    }
    for n in 0..8 {
        let so_far = if n < 4 { 2 } else { 1 };
        assert_eq!(admitted(&store, &both(n), 4).await, 3 - so_far, "client {n}");
        let second = std::slice::from_ref(&both(n)[1]).to_vec();
        assert_eq!(admitted(&store, &second, 4).await, 2, "client {n}: denied charges were refunded");
    }
    let metrics = store.metrics();
    assert!(metrics.redirected > 0 && metrics.errors == 0 && metrics.timeouts == 0, "{metrics:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn stores_recover_when_a_master_fails_and_the_others_are_not_affected() {
    let mut cluster = Cluster::start(&[]);
    let stores: Vec<_> = (0..2).map(|_| start(&cluster, Duration::from_secs(5))).collect();
    for store in &stores {
        healthy(store).await;
    }
    let number = 20_000usize;
    let limit = limit("dying", number as u64);
    let owner = |key| cluster.owner_of(cluster.slot(&stores[0], &counter(&limit, key)), 0);
    let key = 3;
    let dying = owner(key);
    let others: Vec<u128> = (0..64).filter(|&key| owner(key) != dying).collect();
    let survivor = owner(others[0]);
    let load = Load::start(&stores, 2, std::slice::from_ref(&limit), &others[..8]);
    // Callers of a key on the dying master. Each one stops at its first error.
    let callers: Vec<_> = (0..8)
        .map(|n| {
            let (store, limit) = (stores[n % 2].clone(), limit.clone());
            tokio::spawn(async move {
                let mut admitted = 0;
                loop {
                    match store.check(check(&[counter(&limit, key)])).await {
                        Ok(response) => admitted += usize::from(response.admitted),
                        Err(error) => return (admitted, error),
                    }
                    // The limit must not be reached before the master fails.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    cluster.servers[dying].kill();
    let died = Instant::now();
    let mut before = 0;
    for caller in callers {
        let (admitted, error) = caller.await.unwrap();
        assert_eq!(error, StoreError::Unavailable(StoreFault::Unreachable));
        before += admitted;
    }
    assert!(before > 0);
    failing(&stores[0], StoreFault::Unreachable).await;
    for store in &stores {
        healthy(store).await;
    }
    let down = died.elapsed();
    // No check on the other masters failed.
    load.end(8).await;
    let slot = cluster.slot_at(survivor, &stores[0], &counter(&limit, key));
    let heir = cluster.owner_of(slot, survivor);
    assert_ne!(heir, dying);
    let survived = used(&mut cluster.servers[heir].connection(), &stores[0], &counter(&limit, key)) as usize;
    let mut after = 0;
    let counters = [counter(&limit, key)];
    while after <= number {
        let more = admitted_concurrently(&stores, &counters).await;
        if more == 0 {
            break;
        }
        after += more;
    }
    let (total, lost) = (before + after, before.saturating_sub(survived));
    println!(
        "down {down:?}; limit {number}, admitted {before} before and {after} after, {lost} lost with the master"
    );
    assert!(total <= number + lost, "{total} admitted of {number}, {lost} of them lost");
    assert_eq!(survived + after, number);
    let rows = rows(&mut cluster.servers[survivor].connection());
    assert!(rows.iter().any(|row| row.failed && row.port == cluster.servers[dying].port), "{rows:?}");
    // The failed master returns as a replica without any effect on the stores.
    cluster.servers[dying].restart();
    for store in &stores {
        healthy(store).await;
        assert!(!store.check(check(&counters)).await.unwrap().admitted);
    }
}

/// Sends concurrent checks and returns how many were admitted.
async fn admitted_concurrently(stores: &[Arc<RedisStore>], counters: &[Counter]) -> usize {
    let tasks: Vec<_> = (0..64)
        .map(|n| {
            let (store, counters) = (stores[n % stores.len()].clone(), counters.to_vec());
            tokio::spawn(async move { admitted(&store, &counters, 20).await })
        })
        .collect();
    let mut sum = 0;
    for task in tasks {
        sum += task.await.unwrap();
    }
    sum
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn checks_on_a_hanging_master_fail_within_the_budget_until_its_replica_takes_over() {
    let cluster = Cluster::start(&[]);
    let budget = Duration::from_secs(2);
    let store = start(&cluster, budget);
    healthy(&store).await;
    let limit = limit("hanging", 1_000_000);
    let hanging = cluster.owner_of(cluster.slot(&store, &counter(&limit, 3)), 0);
    let other = (0..64)
        .find(|&key| cluster.owner_of(cluster.slot(&store, &counter(&limit, key)), 0) != hanging)
        .unwrap();
    cluster.servers[hanging].stop();
    eventually("checks on the hanging master fail", || async {
        assert!(store.check(check(&[counter(&limit, other)])).await.is_ok());
        store.check(check(&[counter(&limit, 3)])).await.is_err()
    })
    .await;
    eventually("the replica has taken over", || async {
        assert!(store.check(check(&[counter(&limit, other)])).await.is_ok());
        store.check(check(&[counter(&limit, 3)])).await.is_ok()
    })
    .await;
    healthy(&store).await;
    cluster.servers[hanging].go_on();
    eventually("the old master is a replica", || async {
        let rows = rows(&mut cluster.servers[hanging].connection());
        rows.iter().any(|row| row.port == cluster.servers[hanging].port && !row.master)
    })
    .await;
    assert!(store.check(check(&[counter(&limit, 3)])).await.is_ok());
}

#[tokio::test]
async fn store_finds_the_cluster_by_any_seed_and_reports_unreachable_ones() {
    let cluster = Cluster::start(&[]);
    let closed = format!("redis+cluster://127.0.0.1:{}", quiet_port());
    // A replica also knows the hash slots.
    let store = patient_store(&format!("{closed},127.0.0.1:{}", cluster.servers[4].port));
    let limit = limit("seeds", 5);
    for key in 0..20 {
        assert_eq!(admitted(&store, &[counter(&limit, key)], 7).await, 5);
    }
    assert_eq!(store.health(), StoreHealth::Healthy);
    assert!(store.check(check(&[])).await.unwrap().admitted);
    let store = patient_store(&closed);
    let response = store.check(check(&[counter(&limit, 1)])).await;
    assert_eq!(response, Err(StoreError::Unavailable(StoreFault::Unreachable)));
    failing(&store, StoreFault::Unreachable).await;
    // A server outside of any cluster.
    let alone = support::Redis::start(&[]);
    let store = patient_store(&format!("redis+cluster://127.0.0.1:{}", alone.port));
    failing(&store, StoreFault::Nonsense).await;
}

#[tokio::test]
async fn store_in_a_cluster_needs_only_the_documented_rights() {
    const RIGHTS: [&str; 9] =
        ["+evalsha", "+eval", "+time", "+get", "+mget", "+set", "+setrange", "+cluster|slots", "+asking"];
    let cluster = Cluster::start(&[]);
    let set_user = |name: &str, rights: &[&str]| {
        for server in &cluster.servers {
            let mut command = redis::cmd("ACL");
            command.arg("SETUSER").arg(name);
            for word in ["on", ">secret", "resetkeys", "~sluice:*", "resetchannels", "-@all"] {
                command.arg(word);
            }
            let (): () = command.arg(rights).query(&mut server.connection()).unwrap();
        }
        let mut options = patient(&cluster.url());
        (options.username, options.password) = (Some(name.to_owned()), Some(Secret::new("secret")));
        RedisStore::start(options).unwrap()
    };
    let limit = limit("acl", 1000);
    let store = set_user("least", &RIGHTS);
    for key in 0..10 {
        assert_eq!(admitted(&store, &[counter(&limit, key)], 3).await, 3);
    }
    // While a hash slot moves, a new key is created on the new server.
    let slot = cluster.slot(&store, &counter(&limit, 3));
    let from = cluster.owner_of(slot, 0);
    let to = (from + 1) % 3;
    cluster.set_slot(to, slot, "IMPORTING", &cluster.id(from)).unwrap();
    cluster.set_slot(from, slot, "MIGRATING", &cluster.id(to)).unwrap();
    assert_eq!(admitted(&store, &[counter(&limit, 3 + 64)], 3).await, 3);
    assert!(store.metrics().redirected > 0);
    assert_eq!(store.metrics().errors, 0);
    for left_out in ["+cluster|slots", "+asking"] {
        let rights: Vec<_> = RIGHTS.into_iter().filter(|&right| right != left_out).collect();
        let store = set_user("less", &rights);
        eventually(&format!("rejected without {left_out}"), || async {
            store.check(check(&[counter(&limit, 3 + 128)])).await
                == Err(StoreError::Unavailable(StoreFault::Refused))
        })
        .await;
    }
}
