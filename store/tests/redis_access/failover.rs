//! Managed stores under load while a master fails, loses the library, or restarts without its data. Each check has a
//! result within the latency budget, none of the tenant's rights is missing on a promoted replica, and afterwards the
//! counts are exact.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Connection, Value};
use sluice_limiter::{Algorithm, MAX_PERIOD_MS};
use sluice_store::redis::admin::{Administrator, Role};
use sluice_store::{
    Consistency, Counter, KeyHash, LimitPlan, LimitSpec, Limiter, LimiterOptions, OnStoreFailure,
    PlannedCounter, RedisOptions, RedisStore, Replica, Replicas, Source, StoreHealth,
};
use tokio::task::JoinHandle;

use super::managed::{administrator, provision, user};
use crate::checks::{patient, rate};
use crate::cluster::{Cluster, rows};
use crate::sentinel::Watched;
use crate::support::{Redis, eventually, until};

/// The number of both limits.
const NUMBER: u64 = 2000;
/// Admitted requests before and after a failure.
const ENOUGH: u64 = 200;
const PODS: u32 = 2;

/// A limit that denies without the store, and one of which each pod then has a share.
const POSTURES: [(&str, OnStoreFailure); 2] =
    [("deny", OnStoreFailure::Deny), ("share", OnStoreFailure::Share)];

/// A pod of the tenant.
struct Pod {
    limiter: Limiter,
    replicas: Arc<Replicas>,
}

impl Pod {
    /// Returns the counter of a limit for one key.
    fn counter(&self, (name, on_failure): (&str, OnStoreFailure), key: u128) -> PlannedCounter {
        let rates = vec![rate(NUMBER, MAX_PERIOD_MS, Algorithm::SLIDING_WINDOW)];
        let spec = Arc::new(LimitSpec::new(format!("shop/policy/{name}"), rates));
        let plan = LimitPlan::new(spec, Consistency::Strict, on_failure, false, self.replicas.clone());
        PlannedCounter { limit: Arc::new(plan), key: KeyHash(key), cost: 1 }
    }

    fn store(&self) -> &RedisStore {
        self.limiter.redis().unwrap()
    }

    /// Returns the name of a counter's key in Redis.
    fn key(&self, posture: (&str, OnStoreFailure), key: u128) -> String {
        let PlannedCounter { limit, key, cost } = self.counter(posture, key);
        self.store().key(&Counter { limit: limit.spec.clone(), key, cost })
    }
}

/// Starts the pods of a tenant, with its credentials.
async fn pods(url: &str) -> Vec<Arc<Pod>> {
    let budget = Duration::from_millis(500);
    let mut pods = Vec::new();
    for index in 0..PODS {
        let options = RedisOptions { latency_budget: budget, ..user("shop").options(&patient(url)) };
        let store = Arc::new(RedisStore::start(options).unwrap());
        let options = LimiterOptions { latency_budget: budget, ..LimiterOptions::default() };
        let limiter = Limiter::in_redis(store, &options, None);
        pods.push(Arc::new(Pod { limiter, replicas: Replicas::new(Replica::new(index, PODS)) }));
    }
    healthy(&pods).await;
    pods
}

async fn healthy(pods: &[Arc<Pod>]) {
    eventually("all pods use the store", || async {
        pods.iter().all(|pod| pod.limiter.health() == StoreHealth::Healthy)
    })
    .await;
}

/// The results of the checks of one key and posture.
#[derive(Debug, Default, Clone)]
struct Tally {
    /// Admitted by the store.
    admitted: u64,
    /// Admitted without it.
    admitted_locally: u64,
    /// Denied by the store.
    denied: u64,
    /// Checks that the store did not decide, by the reason.
    undecided: BTreeMap<&'static str, u64>,
}

/// Tasks that check without a pause longer than a millisecond.
struct Load {
    stop: Arc<AtomicBool>,
    tallies: Arc<Mutex<BTreeMap<(&'static str, u128), Tally>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    /// Checks these keys of both limits, in two tasks of each pod.
    fn start(pods: &[Arc<Pod>], keys: &[u128]) -> Self {
        let load = Self { stop: Arc::default(), tallies: Arc::default(), tasks: Vec::new() };
        let task = |pod: &Arc<Pod>| {
            let (pod, stop, tallies) = (pod.clone(), load.stop.clone(), load.tallies.clone());
            let counters: Vec<_> = POSTURES
                .into_iter()
                .flat_map(|posture| keys.iter().map(move |&key| (posture, key)))
                .map(|(posture, key)| ((posture.0, key), pod.counter(posture, key)))
                .collect();
            tokio::spawn(async move {
                while !stop.load(SeqCst) {
                    for (name, counter) in &counters {
                        let outcome = pod.limiter.check(std::slice::from_ref(counter)).await;
                        let mut tallies = tallies.lock().unwrap();
                        let tally = tallies.entry(*name).or_default();
                        let failure = match &outcome {
                            Ok(outcome) => outcome.failure.as_ref(),
                            Err(failure) => Some(failure),
                        };
                        if let Some(failure) = failure {
                            *tally.undecided.entry(failure.as_str()).or_default() += 1;
                        }
                        match outcome {
                            Ok(outcome) if outcome.source == Source::LocalQuota => {
                                tally.admitted_locally += u64::from(outcome.response.admitted);
                            }
                            Ok(outcome) if outcome.response.admitted => tally.admitted += 1,
                            Ok(_) => tally.denied += 1,
                            Err(_) => {}
                        }
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
        };
        let tasks = pods.iter().flat_map(|pod| [task(pod), task(pod)]).collect();
        Self { tasks, ..load }
    }

    fn tally(&self, posture: &'static str, key: u128) -> Tally {
        self.tallies.lock().unwrap().get(&(posture, key)).cloned().unwrap_or_default()
    }

    /// Waits until the store has admitted more requests of a key.
    async fn until_more_are_admitted(&self, key: u128) {
        let before = self.tally("deny", key).admitted;
        eventually("the store admits", || async { self.tally("deny", key).admitted >= before + ENOUGH })
            .await;
    }

    /// Waits until the store has admitted all that a limit has, and ends the load. Each check had a result by then.
    async fn end(self, keys: &[u128]) -> BTreeMap<(&'static str, u128), Tally> {
        eventually("the limit is exhausted", || async {
            keys.iter().all(|&key| self.tally("deny", key).denied >= ENOUGH)
        })
        .await;
        self.stop.store(true, SeqCst);
        for task in self.tasks {
            task.await.unwrap();
        }
        let tallies = self.tallies.lock().unwrap().clone();
        println!("{tallies:?}");
        tallies
    }
}

/// Returns the usage that a server has stored for a key, in both limits.
fn used(connection: &mut Connection, pod: &Pod, key: u128) -> [u64; 2] {
    POSTURES.map(|posture| {
        let bytes: Option<Vec<u8>> = redis::cmd("GET").arg(pod.key(posture, key)).query(connection).unwrap();
        let records = sluice_limiter::Record::decode_all(&bytes.unwrap_or_default()).unwrap();
        records.first().map_or(0, |record| record.current)
    })
}

/// Asserts that no more was admitted than the limit and what a failure lost, that everything is counted, and that a
/// new key is exact.
async fn assert_exact(
    pods: &[Arc<Pod>],
    tallies: &BTreeMap<(&'static str, u128), Tally>,
    key: u128,
    lost: [u64; 2],
    master: &mut Connection,
) {
    eventually("local usage is in the store", || async {
        pods.iter().all(|pod| pod.limiter.metrics().unwrap().local_quota.pending == 0)
    })
    .await;
    let [deny, share] = POSTURES.map(|(name, _)| &tallies[&(name, key)]);
    let [used_of_deny, used_of_share] = used(master, &pods[0], key);
    assert_eq!((used_of_deny, deny.admitted_locally), (NUMBER, 0));
    assert!(deny.admitted <= NUMBER + lost[0], "{} admitted, {lost:?} lost", deny.admitted);
    // All pods were cut off, so all shares together are the limit once more.
    let admitted = share.admitted + share.admitted_locally;
    assert!(admitted <= 2 * NUMBER + lost[1], "{admitted} admitted, {lost:?} lost");
    // Local usage is added as far as there is room.
    assert!(
        used_of_share == NUMBER || admitted <= used_of_share + lost[1],
        "{admitted}, {used_of_share} counted"
    );

    let fresh: Vec<_> = pods
        .iter()
        .map(|pod| {
            let pod = pod.clone();
            tokio::spawn(async move {
                let (counter, mut admitted) = (pod.counter(POSTURES[0], key + 1_000_000), 0);
                for _ in 0..NUMBER {
                    admitted += u64::from(
                        pod.limiter.check(std::slice::from_ref(&counter)).await.unwrap().response.admitted,
                    );
                }
                admitted
            })
        })
        .collect();
    let mut admitted = 0;
    for pod in fresh {
        admitted += pod.await.unwrap();
    }
    assert_eq!(admitted, NUMBER, "exact again");
}

/// Asserts that checks failed, and only for these reasons.
fn assert_reasons(tallies: &BTreeMap<(&'static str, u128), Tally>, key: u128, reasons: &[&str]) {
    for (posture, _) in POSTURES {
        let undecided = &tallies[&(posture, key)].undecided;
        assert!(!undecided.is_empty(), "no check met the failure");
        assert!(undecided.keys().all(|reason| reasons.contains(reason)), "{posture}: {undecided:?}");
    }
}

/// Returns the most that was admitted but is not stored on the server that takes over. Each task may have received one
/// more result that it has not yet recorded.
fn lost(load: &Load, key: u128, survived: [u64; 2]) -> [u64; 2] {
    let unrecorded = load.tasks.len() as u64;
    let [deny, share] = POSTURES.map(|(name, _)| load.tally(name, key).admitted + unrecorded);
    [deny.saturating_sub(survived[0]), share.saturating_sub(survived[1])]
}

fn has_field(connection: &mut Connection, field: &str) -> bool {
    let info: String = redis::cmd("INFO").arg("replication").query(connection).unwrap();
    info.lines().any(|line| line.trim() == field)
}

fn run(connection: &mut Connection, words: &[&str]) -> Value {
    redis::cmd(words[0]).arg(&words[1..]).query(connection).unwrap()
}

/// Failures of checks while a master is gone and its replica has not taken over. The user and the library are there from
/// the first moment on.
const NO_MASTER: [&str; 4] = ["unreachable", "timeout", "slow", "read-only"];

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_replica_that_sentinels_promote_serves_tenants_at_once() {
    let mut watched = Watched::start();
    let administrator = administrator(&watched.url());
    eventually("the replica is known", || async {
        provision(&administrator, &["shop"]).await.contains(&Role::Replica)
    })
    .await;
    let pods = pods(&watched.url()).await;
    let load = Load::start(&pods, &[1]);
    load.until_more_are_admitted(1).await;
    watched.master.kill();
    let mut replica = watched.replica.connection();
    until("the replica has lost its master", || has_field(&mut replica, "master_link_status:down"));
    let lost = lost(&load, 1, used(&mut replica, &pods[0], 1));
    load.until_more_are_admitted(1).await;
    let tallies = load.end(&[1]).await;
    assert_reasons(&tallies, 1, &NO_MASTER);
    assert_exact(&pods, &tallies, 1, lost, &mut watched.replica.connection()).await;
    // The old master returns without its users, as a replica.
    watched.master.restart();
    eventually("the old master is a replica", || async { is_replica(&watched.master) }).await;
    assert_all_servers_are_administered(&administrator, 2).await;
}

/// Reports whether a server is a replica. While it changes its role, it closes all connections.
fn is_replica(redis: &Redis) -> bool {
    let connection = redis::Client::open(redis.url()).unwrap().get_connection();
    connection.is_ok_and(|mut connection| {
        let role: Option<Vec<Value>> = redis::cmd("ROLE").query(&mut connection).ok();
        role.is_some_and(|role| role.first() == Some(&Value::BulkString("slave".into())))
    })
}

/// Waits until this number of masters and replicas is up to date.
async fn assert_all_servers_are_administered(administrator: &Administrator, servers: usize) {
    eventually("all servers are administered", || async {
        let reports = administrator.provision(&[user("shop")]).await.unwrap_or_default();
        let done = reports.iter().filter(|report| report.role != Role::Sentinel && report.problem.is_none());
        done.count() == servers
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_replica_that_a_cluster_promotes_serves_tenants_at_once() {
    let mut cluster = Cluster::start(&[]);
    let administrator = administrator(&cluster.url());
    // CLUSTER SLOTS lists a replica as soon as it has received a part of the replication stream.
    eventually("all replicas are known", || async {
        provision(&administrator, &["shop"]).await.iter().filter(|role| **role == Role::Replica).count() == 3
    })
    .await;
    let pods = pods(&cluster.url()).await;
    let owner = |cluster: &Cluster, key: u128, source: usize| {
        let mut command = redis::cmd("CLUSTER");
        command.arg("KEYSLOT").arg(pods[0].key(POSTURES[0], key));
        cluster.owner_of(command.query(&mut cluster.servers[source].connection()).unwrap(), source)
    };
    let failing = owner(&cluster, 1, 0);
    let other = (2..).find(|&key| owner(&cluster, key, 0) != failing).unwrap();
    let observer = owner(&cluster, other, 0);
    // Its replica.
    let Value::Array(replicas) =
        run(&mut cluster.servers[failing].connection(), &["CLUSTER", "REPLICAS", &cluster.id(failing)])
    else {
        panic!("no replicas")
    };
    let line: String = redis::from_redis_value(replicas[0].clone()).unwrap();
    let found =
        rows(&mut cluster.servers[failing].connection()).into_iter().find(|row| line.starts_with(&row.id));
    let replica = cluster.index(found.unwrap().port);

    let load = Load::start(&pods, &[1, other]);
    load.until_more_are_admitted(1).await;
    cluster.servers[failing].kill();
    let mut connection = cluster.servers[replica].connection();
    run(&mut connection, &["READONLY"]);
    until("the replica has lost its master", || has_field(&mut connection, "master_link_status:down"));
    let lost = lost(&load, 1, used(&mut connection, &pods[0], 1));
    load.until_more_are_admitted(1).await;
    assert_eq!(owner(&cluster, 1, observer), replica);
    let tallies = load.end(&[1, other]).await;
    assert_reasons(&tallies, 1, &NO_MASTER);
    assert_exact(&pods, &tallies, 1, lost, &mut cluster.servers[replica].connection()).await;
    // The counters of the other masters do not notice. A busy machine may let a check time out all the same.
    for (posture, _) in POSTURES {
        let tally = &tallies[&(posture, other)];
        let is_undisturbed = tally.undecided.keys().all(|reason| *reason == "timeout");
        let all = tally.admitted + tally.admitted_locally;
        assert!(is_undisturbed && tally.admitted <= NUMBER && all >= NUMBER, "{posture}: {tally:?}");
    }
    cluster.servers[failing].restart();
    assert_all_servers_are_administered(&administrator, 6).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn checks_go_on_when_a_deleted_library_is_loaded_again() {
    let redis = Redis::start(&[]);
    let administrator = administrator(&redis.url());
    provision(&administrator, &["shop"]).await;
    let pods = pods(&redis.url()).await;
    let load = Load::start(&pods, &[1]);
    load.until_more_are_admitted(1).await;
    run(&mut redis.connection(), &["FUNCTION", "FLUSH"]);
    eventually("the pods miss the library", || async {
        load.tally("deny", 1).undecided.values().sum::<u64>() >= ENOUGH
    })
    .await;
    provision(&administrator, &["shop"]).await;
    load.until_more_are_admitted(1).await;
    let tallies = load.end(&[1]).await;
    assert_reasons(&tallies, 1, &["nonsense"]);
    assert_exact(&pods, &tallies, 1, [0, 0], &mut redis.connection()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn checks_go_on_when_a_server_without_its_data_is_administered_again() {
    let mut redis = Redis::start_restartable(&[]);
    let administrator = administrator(&redis.url());
    provision(&administrator, &["shop"]).await;
    let pods = pods(&redis.url()).await;
    let load = Load::start(&pods, &[1]);
    load.until_more_are_admitted(1).await;
    redis.kill();
    let lost = lost(&load, 1, [0, 0]);
    redis.restart();
    // Neither the users nor the library are there.
    eventually("the pods are refused", || async { load.tally("deny", 1).undecided.contains_key("refused") })
        .await;
    provision(&administrator, &["shop"]).await;
    load.until_more_are_admitted(1).await;
    let tallies = load.end(&[1]).await;
    assert_reasons(&tallies, 1, &["unreachable", "timeout", "slow", "refused"]);
    assert_exact(&pods, &tallies, 1, lost, &mut redis.connection()).await;
}
