//! Stores in a cluster that a server has left: it is empty, a cluster of its own, or a stranger has its address.

use std::sync::Arc;
use std::time::Duration;

use crate::checks::{check, counter, healthy, limit, patient_store};
use crate::cluster::Cluster;
use crate::log;
use crate::support::{Redis, eventually, until};
use sluice_store::{Counter, RedisStore, Store as _};

/// Clients of a test: their counters are on all masters.
const CLIENTS: u128 = 40;
const LIMIT: u64 = 30;

fn cluster_command<T: redis::FromRedisValue>(server: &Redis, words: &[&str]) -> T {
    redis::cmd("CLUSTER").arg(words).query(&mut server.connection()).unwrap()
}

/// Gives all hash slots to a server that belongs to no cluster.
fn own_cluster(server: &Redis) {
    let mut command = redis::cmd("CLUSTER");
    let (): () =
        command.arg("ADDSLOTS").arg((0..16_384).collect::<Vec<_>>()).query(&mut server.connection()).unwrap();
    until("it serves all slots", || {
        cluster_command::<String>(server, &["INFO"]).contains("cluster_state:ok")
    });
}

fn keys(server: &Redis) -> usize {
    redis::cmd("DBSIZE").query(&mut server.connection()).unwrap()
}

fn counters(scope: &str) -> Vec<Counter> {
    let limit = limit(scope, LIMIT);
    (0..CLIENTS).map(|client| counter(&limit, client)).collect()
}

/// Sends as many checks of each client as its limit, from both stores in turn, and returns how many were admitted. A check
/// that fails is sent again.
async fn admitted(stores: &[Arc<RedisStore>], counters: &[Counter]) -> u64 {
    let mut admitted = 0;
    for counter in counters {
        for n in 0..LIMIT + 3 {
            let store = &stores[n as usize % stores.len()];
            let decided = async {
                loop {
                    if let Ok(response) = store.check(check(std::slice::from_ref(counter))).await {
                        return response.admitted;
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let decided = tokio::time::timeout(Duration::from_secs(60), decided).await;
            admitted += u64::from(decided.expect("a check is decided"));
        }
    }
    admitted
}

/// Ends all connections of clients, upon which the stores read the map again.
fn disconnect(servers: &[Redis]) {
    for server in servers {
        let _: redis::RedisResult<usize> =
            redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").query(&mut server.connection());
    }
}

/// Moves all hash slots of a master away, and removes it from the cluster.
fn remove(cluster: &Cluster, server: usize) {
    let id = cluster.id(server);
    let other = (0..3).find(|&at| at != server).unwrap();
    let address = format!("127.0.0.1:{}", cluster.servers[other].port);
    let cli = |arguments: &[&str]| {
        let output = std::process::Command::new("redis-cli").args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "redis-cli {arguments:?}: {text}");
    };
    let weight = format!("{id}=0");
    until("the cluster has no slot on the server", || {
        let rebalance = ["--cluster", "rebalance", &address, "--cluster-weight", &weight];
        // It may find the cluster still busy, and is run again.
        let _ = std::process::Command::new("redis-cli").args(rebalance).output().unwrap();
        crate::cluster::rows(&mut cluster.servers[other].connection())
            .iter()
            .any(|row| row.id == id && row.slots.is_empty())
    });
    cli(&["--cluster", "del-node", &address, &id]);
    until("it has left", || crate::cluster::rows(&mut cluster.servers[server].connection()).len() == 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_has_left_the_cluster_is_not_believed() {
    log::keep();
    let cluster = Cluster::start(&[]);
    let stores: Vec<_> = (0..2).map(|_| Arc::new(patient_store(&cluster.url()))).collect();
    let both = counters("left");
    for store in &stores {
        healthy(store).await;
    }
    // The first of the seeds.
    remove(&cluster, 0);
    let left = &cluster.servers[0];
    for _ in 0..5 {
        disconnect(&cluster.servers[1..3]);
        let _ = stores[0].check(check(&both[..1])).await;
    }
    // Counted from zero in the new place of each counter.
    assert_eq!(admitted(&stores, &counters("empty")).await, CLIENTS as u64 * LIMIT);
    own_cluster(left);
    let own = counters("own");
    let (first, second) = own.split_at(own.len() / 2);
    let mut sum = admitted(&stores, first).await;
    for _ in 0..5 {
        disconnect(&cluster.servers[..3]);
        let _ = stores[1].check(check(&second[..1])).await;
    }
    let late = [(); 2].map(|()| Arc::new(patient_store(&cluster.url())));
    sum += admitted(&late, first).await + admitted(&[stores, late.to_vec()].concat(), second).await;
    // The checks that provoked readings were admitted too, or failed.
    assert!((CLIENTS as u64 * LIMIT - 5..=CLIENTS as u64 * LIMIT).contains(&sum), "{sum}");
    assert_eq!(keys(left), 0);
    assert_eq!(log::lines(&["has no master for some"]), Vec::<String>::new());
    let own = format!("127.0.0.1:{0} name 127.0.0.1:{0} for 64 of 64 slots", left.port);
    assert!(!log::lines(&["WARN", "disagree", &own]).is_empty(), "no line names the server that has left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_at_the_address_of_a_master_gets_no_counter() {
    log::keep();
    let mut cluster = Cluster::start(&["--cluster-node-timeout", "1000"]);
    let stores: Vec<_> = (0..2).map(|_| Arc::new(patient_store(&cluster.url()))).collect();
    for store in &stores {
        healthy(store).await;
    }
    let (port, id) = (cluster.servers[0].port, cluster.id(0));
    cluster.servers[0].kill();
    until("its replica was promoted", || {
        let rows = crate::cluster::rows(&mut cluster.servers[1].connection());
        rows.iter().any(|row| row.id == id && row.failed && row.slots.is_empty())
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("nodes.conf");
    let arguments = ["--cluster-enabled", "yes", "--cluster-config-file", file.to_str().unwrap()];
    let stranger = Redis::start_at(port, &arguments);
    own_cluster(&stranger);
    let counters = counters("stranger");
    let (first, second) = counters.split_at(counters.len() / 2);
    let mut sum = admitted(&stores, first).await;
    // A process that starts now has the stranger as its first seed.
    let late = Arc::new(patient_store(&cluster.url()));
    let all = [stores, vec![late]].concat();
    for _ in 0..5 {
        disconnect(&cluster.servers[1..]);
        sum += admitted(&all, &second[..1]).await;
    }
    sum += admitted(&all, &second[1..]).await;
    assert_eq!(sum, CLIENTS as u64 * LIMIT);
    assert_eq!(keys(&stranger), 0);
    let own = format!("127.0.0.1:{port} name 127.0.0.1:{port} for 64 of 64 slots");
    assert!(!log::lines(&["WARN", "disagree", &own]).is_empty(), "no line names the stranger");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_made_anew_is_used_after_a_while() {
    log::keep();
    let cluster = Cluster::start(&[]);
    let store = Arc::new(patient_store(&cluster.url()));
    healthy(&store).await;
    for server in &cluster.servers {
        let _: redis::RedisResult<()> = redis::cmd("FLUSHALL").query(&mut server.connection());
        cluster_command::<()>(server, &["RESET", "HARD"]);
    }
    let cluster = cluster.again();
    disconnect(&cluster.servers);
    let counters = counters("anew");
    eventually("the new cluster is used", || async {
        !log::lines(&["WARN", "those of another cluster now"]).is_empty()
    })
    .await;
    healthy(&store).await;
    assert_eq!(admitted(&[store], &counters).await, CLIENTS as u64 * LIMIT);
}
