//! Stores behind sentinels of which one is wrong: it names an address where nobody listens, a replica, or an old master that
//! still lives.

use std::sync::Arc;

use crate::checks::{admitted, check, counter, healthy, limit, patient, patient_store, used};
use crate::log;
use crate::sentinel::Sentinel;
use crate::support::{Redis, eventually, quiet_port, until};
use redis::Commands as _;
use sluice_store::RedisStore;
use sluice_store::Store as _;
use sluice_store::redis::admin::{Administrator, Role};
use sluice_store::redis::{Secret, StoreCredentials};

/// A configuration epoch that is newer than that of the wrong sentinel.
const NEWER: &str = "sentinel config-epoch main 7\n";
const OLDER: &str = "sentinel config-epoch main 3\n";

/// A master with a replica, two sentinels that know it, and a server that was the master once.
struct Servers {
    master: Redis,
    replica: Redis,
    old: Redis,
    right: Vec<Sentinel>,
}

impl Servers {
    fn start(epoch: &str) -> Self {
        let master = Redis::start(&["--repl-diskless-sync-delay", "0"]);
        let replica = Redis::start(&["--replicaof", "127.0.0.1", &master.port.to_string()]);
        until("the replica is in sync", || {
            let info: String = redis::cmd("INFO").arg("replication").query(&mut master.connection()).unwrap();
            info.contains("state=online")
        });
        let right = (0..2).map(|_| Sentinel::start(master.port, epoch)).collect();
        Self { master, replica, old: Redis::start(&[]), right }
    }

    /// The URL of the two right sentinels, with another one before them.
    fn url(&self, first: u16) -> String {
        let [second, third] = [self.right[0].port, self.right[1].port];
        format!("redis+sentinel://127.0.0.1:{first},127.0.0.1:{second},127.0.0.1:{third}/main")
    }
}

/// Sends checks of one client from both stores, an odd number at the same time, and returns how many were admitted.
async fn admitted_together(stores: &[Arc<RedisStore>; 2], scope: &str, number: u64) -> usize {
    let counters = [counter(&limit(scope, number), 1)];
    let clients: Vec<_> = (0..7)
        .map(|n| {
            let (store, counters) = (stores[n % 2].clone(), counters.clone());
            tokio::spawn(async move {
                let mut admitted = 0;
                for _ in 0..number {
                    admitted += usize::from(store.check(check(&counters)).await.unwrap().admitted);
                }
                admitted
            })
        })
        .collect();
    let mut admitted = 0;
    for client in clients {
        admitted += client.await.unwrap();
    }
    admitted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_other_sentinels_are_asked_when_the_first_one_is_wrong() {
    log::keep();
    let servers = Servers::start(NEWER);
    let master = format!("127.0.0.1:{}", servers.master.port);
    for (kind, named) in
        [("closed", quiet_port()), ("replica", servers.replica.port), ("old", servers.old.port)]
    {
        let wrong = Sentinel::start(named, OLDER);
        let stores = [(); 2].map(|()| Arc::new(patient_store(&servers.url(wrong.port))));
        assert_eq!(admitted_together(&stores, kind, 301).await, 301, "{kind}");
        assert_eq!(used(&mut servers.master.connection(), &stores[0], &counter(&limit(kind, 301), 1)), 301);
        let lines = || log::lines(&["WARN", "disagree", &master, &format!("127.0.0.1:{named} (epoch 3")]);
        // The others are waited for shortly, and on a busy machine the wrong one may be one of those that were too late.
        for _ in 0..100 {
            if lines().is_empty() {
                let other = patient_store(&servers.url(wrong.port));
                other.check(check(&[counter(&limit("another", 1_000), 1)])).await.unwrap();
            }
        }
        assert!(!lines().is_empty(), "{kind}: no line names both servers");
        assert_eq!(log::lines(&["WARN", "Redis has failed", &master]), Vec::<String>::new(), "{kind}");
    }
    assert_eq!(keys(&servers.old), 0);
}

fn keys(redis: &Redis) -> usize {
    redis::cmd("DBSIZE").query(&mut redis.connection()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_right_to_read_epochs_the_order_of_addresses_decides() {
    log::keep();
    let servers = Servers::start(NEWER);
    let old = Redis::start(&[]);
    let wrong = Sentinel::start(old.port, OLDER);
    for sentinel in servers.right.iter().chain([&wrong]) {
        let mut command = redis::cmd("ACL");
        command.arg("SETUSER").arg("watcher").arg("on").arg(">secret").arg("resetchannels").arg("-@all");
        let (): () =
            command.arg("+sentinel|get-master-addr-by-name").query(&mut sentinel.connection()).unwrap();
    }
    let start = || {
        let credentials = StoreCredentials {
            sentinel_username: Some("watcher".into()),
            sentinel_password: Some(Secret::new("secret")),
            ..StoreCredentials::default()
        };
        let options = patient(&servers.url(wrong.port)).with_credentials(credentials).unwrap();
        Arc::new(RedisStore::start(options).unwrap())
    };
    let stores = [start(), start()];
    assert_eq!(admitted_together(&stores, "order", 301).await, 301);
    let first = if servers.master.port.to_string() < old.port.to_string() { &servers.master } else { &old };
    assert_eq!(used(&mut first.connection(), &stores[0], &counter(&limit("order", 301), 1)), 301);
    let old = format!("127.0.0.1:{} (unknown epoch", old.port);
    assert!(!log::lines(&["WARN", "disagree", &old]).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_works_is_left_only_for_one_that_works_too() {
    log::keep();
    let servers = Servers::start(OLDER);
    for (kind, named) in [("closed", quiet_port()), ("replica", servers.replica.port)] {
        let first = quiet_port();
        let store = patient_store(&servers.url(first));
        healthy(&store).await;
        // It comes back, and has heard of a newer master that nobody can use.
        let _wrong = Sentinel::start_at(first, named, NEWER);
        let named = format!("127.0.0.1:{named} (epoch 7");
        let used = format!("used=\"127.0.0.1:{}\"", servers.master.port);
        eventually("the disagreement is logged", || async {
            !log::lines(&["WARN", "disagree", &named, &used]).is_empty()
        })
        .await;
        assert_eq!(store.metrics().reconnects, 0, "{kind}");
        assert_eq!(admitted(&store, &[counter(&limit(kind, 3), 1)], 5).await, 3);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_use_an_old_master_leave_it_when_they_hear_of_a_newer_one() {
    log::keep();
    let servers = Servers::start(NEWER);
    let wrong = Sentinel::start(servers.old.port, OLDER);
    let later = quiet_port();
    let url = format!("redis+sentinel://127.0.0.1:{},127.0.0.1:{later}/main", wrong.port);
    let stores = [(); 2].map(|()| Arc::new(patient_store(&url)));
    assert_eq!(admitted_together(&stores, "before", 101).await, 101);
    assert_eq!(keys(&servers.old), 1);
    let _right = Sentinel::start_at(later, servers.master.port, NEWER);
    let counter = counter(&limit("after", 1 << 40), 1);
    eventually("both processes use the newer master", || async {
        let mut both = true;
        for store in &stores {
            store.check(check(std::slice::from_ref(&counter))).await.unwrap();
            both &= servers.master.connection().del::<_, usize>(store.key(&counter)).unwrap() == 1;
        }
        both
    })
    .await;
    assert_eq!(admitted_together(&stores, "then", 301).await, 301);
    let (from, to) = (servers.old.port, servers.master.port);
    let line = format!("from=\"127.0.0.1:{from}\" to=\"127.0.0.1:{to}\"");
    assert_eq!(log::lines(&["WARN", "the sentinels have another master", &line]).len(), 2);
    // Nothing failed meanwhile.
    assert!(stores.iter().all(|store| store.metrics().errors == 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_administrator_finds_the_master_as_processes_do() {
    let servers = Servers::start(NEWER);
    let wrong = Sentinel::start(servers.old.port, OLDER);
    until("the sentinels know the replica", || servers.right.iter().all(|sentinel| sentinel.knows().1 == 1));
    let administrator = Administrator::new(patient(&servers.url(wrong.port))).unwrap();
    let reports = administrator.provision(&[]).await.unwrap();
    let addresses = |role| {
        let of_role = reports.iter().filter(|report| report.role == role);
        of_role.map(|report| report.address.clone()).collect::<Vec<_>>()
    };
    assert_eq!(addresses(Role::Master), [format!("127.0.0.1:{}", servers.master.port)]);
    assert_eq!(addresses(Role::Replica), [format!("127.0.0.1:{}", servers.replica.port)]);
    assert_eq!(addresses(Role::Sentinel).len(), 3);
}
