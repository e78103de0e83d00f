//! Managed access: a user for each namespace and the function library, and what a tenant can do with the credentials of
//! its own sidecar.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::checks::{admitted, check, counter, failing, healthy, patient, rate};
use crate::cluster::Cluster;
use crate::sentinel::Watched;
use crate::support::{Redis, eventually};
use redis::{Connection, RedisResult, Value};
use sluice_limiter::{Algorithm, MAX_PERIOD_MS};
use sluice_store::failure::StoreFault;
use sluice_store::redis::admin::{Administrator, ManagedUser, Role};
use sluice_store::redis::library::Library;
use sluice_store::redis::{Secret, StoreCredentials};
use sluice_store::{Counter, FaultCause, KeyHash, LimitSpec, RedisStore, Store as _};

pub(crate) fn user(namespace: &str) -> ManagedUser {
    ManagedUser { namespace: namespace.into(), passwords: vec![Secret::new(format!("{namespace}-password"))] }
}

pub(crate) fn administrator(url: &str) -> Administrator {
    Administrator::new(patient(url)).unwrap()
}

/// Brings all servers up to date, and asserts that all of them are.
pub(crate) async fn provision(administrator: &Administrator, namespaces: &[&str]) -> Vec<Role> {
    let users: Vec<_> = namespaces.iter().map(|namespace| user(namespace)).collect();
    let reports = administrator.provision(&users).await.unwrap();
    for report in &reports {
        assert_eq!(report.problem, None, "{report:?}");
    }
    reports.into_iter().map(|report| report.role).collect()
}

pub(crate) fn store(url: &str, namespace: &str) -> RedisStore {
    RedisStore::start(user(namespace).options(&patient(url))).unwrap()
}

/// Connects with the credentials of a namespace.
pub(crate) fn user_connection(redis: &Redis, namespace: &str) -> Connection {
    let url = format!("redis://sluice%3a%40{namespace}:{namespace}-password@127.0.0.1:{}", redis.port);
    redis::Client::open(url).unwrap().get_connection().unwrap()
}

/// Returns a counter of a namespace with 10 requests per year.
fn of(namespace: &str, key: u128) -> Counter {
    let rates = vec![rate(10, MAX_PERIOD_MS, Algorithm::SLIDING_WINDOW)];
    counter(&Arc::new(LimitSpec::new(format!("{namespace}/policy/limit"), rates)), key)
}

/// Returns everything that is stored.
fn dump(connection: &mut Connection) -> BTreeMap<String, Vec<u8>> {
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(connection).unwrap();
    let value = |key: &String| redis::cmd("GET").arg(key).query(&mut *connection).unwrap();
    let values: Vec<Vec<u8>> = keys.iter().map(value).collect();
    keys.into_iter().zip(values).collect()
}

/// Commands of a tenant, each on a line; `OWN` and `OTHER` are keys of the tenant and of another namespace, `F` is a
/// function.
const ATTACKS: &str = "
    GET OTHER
    MGET OWN OTHER
    GETSET OTHER x
    SET OTHER x
    SETRANGE OTHER 12 x
    SET sluice:mall/ x
    SET mall x
    APPEND OTHER x
    INCR OTHER
    DEL OTHER
    DEL OWN
    UNLINK OTHER
    EXPIRE OTHER 1
    PERSIST OTHER
    RENAME OWN OTHER
    COPY OWN OTHER
    MOVE OTHER 1
    RESTORE OTHER 0 x
    DUMP OTHER
    TYPE OTHER
    OBJECT ENCODING OTHER
    STRLEN OTHER
    EXISTS OTHER
    TOUCH OTHER
    SORT OTHER GET *
    BITOP NOT OTHER OWN
    BLPOP OWN 0
    XREAD BLOCK 0 STREAMS OWN $
    KEYS *
    SCAN 0
    RANDOMKEY
    DBSIZE
    FLUSHALL
    FLUSHDB
    SWAPDB 0 1
    SELECT 1
    FCALL F 1 OTHER x
    FCALL F 2 OWN OTHER x
    FCALL_RO F 1 OWN x
    EVAL return(1) 0
    EVALSHA 0123456789012345678901234567890123456789 0
    EVAL_RO return(1) 0
    SCRIPT LOAD return(1)
    SCRIPT FLUSH
    SCRIPT KILL
    FUNCTION LIST
    FUNCTION DELETE sluice
    FUNCTION FLUSH
    FUNCTION KILL
    FUNCTION DUMP
    FUNCTION LOAD REPLACE x
    PUBLISH a b
    SUBSCRIBE a
    PSUBSCRIBE *
    MONITOR
    INFO
    CONFIG GET *
    CONFIG SET maxmemory 1
    CONFIG REWRITE
    ACL LIST
    ACL WHOAMI
    ACL GETUSER default
    ACL SETUSER sluice:@shop allkeys
    ACL DELUSER sluice:@mall
    ACL SAVE
    CLIENT LIST
    CLIENT KILL TYPE normal
    CLIENT PAUSE 10000
    CLIENT NO-EVICT on
    DEBUG SLEEP 1
    LATENCY RESET
    SLOWLOG GET
    MEMORY PURGE
    MODULE LOAD x
    SAVE
    BGSAVE
    BGREWRITEAOF
    SHUTDOWN NOSAVE
    REPLICAOF 127.0.0.1 1
    CLUSTER RESET
    PSYNC ? -1
    SYNC
    WAIT 1 0
    MULTI
    WATCH OTHER
    AUTH sluice:@mall guess
    AUTH default guess
    HELLO 3 AUTH sluice:@mall guess
    RESET
";

#[tokio::test]
async fn a_tenant_reaches_nothing_of_another_namespace_nor_of_the_server() {
    let redis = Redis::start(&[]);
    let administrator = administrator(&redis.url());
    assert_eq!(provision(&administrator, &["shop", "mall"]).await, [Role::Master]);
    let (shop, mall) = (store(&redis.url(), "shop"), store(&redis.url(), "mall"));
    healthy(&shop).await;
    assert_eq!(admitted(&shop, &[of("shop", 1)], 12).await, 10, "functions count like scripts");
    assert_eq!(admitted(&mall, &[of("mall", 1)], 4).await, 4);
    assert!(shop.check(check(&[of("mall", 1)])).await.is_err());

    // The password of the default user, which an administrator has set.
    let mut admin = redis.connection();
    let () = redis::cmd("ACL").arg(&["SETUSER", "default", "resetpass", ">admin"]).query(&mut admin).unwrap();
    let before = dump(&mut admin);
    let users: Vec<String> = redis::cmd("ACL").arg("LIST").query(&mut admin).unwrap();
    let config = |admin: &mut Connection| -> Vec<String> {
        redis::cmd("CONFIG").arg(&["GET", "*max*"]).query(admin).unwrap()
    };
    let config_before = config(&mut admin);
    let (own, other) = (shop.key(&of("shop", 1)), mall.key(&of("mall", 1)));
    for line in ATTACKS.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let mut connection = user_connection(&redis, "shop");
        connection.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let function = &Library::current().functions()[3];
        let mut words = line.split(' ').map(|word| match word {
            "OWN" => own.clone(),
            "OTHER" => other.clone(),
            "F" => function.clone(),
            word => word.to_owned(),
        });
        let mut command = redis::cmd(&words.next().unwrap());
        for word in words {
            command.arg(word);
        }
        let reply: RedisResult<Value> = command.query(&mut connection);
        let error = match reply {
            Ok(Value::ServerError(error)) => {
                format!("{} {}", error.code(), error.details().unwrap_or_default())
            }
            Err(error) => error.to_string(),
            // RESET only logs the tenant out.
            Ok(reply) if line == "RESET" => format!("{reply:?}, and the connection has no rights"),
            Ok(reply) => panic!("{line}: {reply:?}"),
        };
        println!("{line:<45} {error}");
    }
    assert_eq!(dump(&mut admin), before, "nothing was changed");
    let after: Vec<String> = redis::cmd("ACL").arg("LIST").query(&mut admin).unwrap();
    assert_eq!((after, config(&mut admin)), (users, config_before));
    assert_eq!(admitted(&mall, &[of("mall", 1)], 12).await, 6, "the other tenant counts on");
}

#[tokio::test]
async fn arguments_of_any_kind_end_soon_and_change_only_own_keys() {
    let redis = Redis::start(&[]);
    let administrator = administrator(&redis.url());
    provision(&administrator, &["shop", "mall"]).await;
    let mall = store(&redis.url(), "mall");
    assert_eq!(admitted(&mall, &[of("mall", 1)], 4).await, 4);
    let mut connection = user_connection(&redis, "shop");
    let mut random = 1u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random >> 33
    };
    let huge: Vec<u8> = vec![b'x'; 200 << 10];
    for n in 0..2_000 {
        let function = &Library::current().functions()[n % 4];
        let mut command = redis::cmd("FCALL");
        let keys = next() % 4;
        command.arg(function).arg(keys);
        for key in 0..keys {
            command.arg(format!("sluice:shop/p/l:{{0}}:{key}"));
        }
        match next() % 4 {
            0 => command.arg(&huge),
            // A MessagePack array of large numbers.
            1 => {
                let mut bytes = vec![0xdd, 0, 0, 0, 40];
                (0..40).for_each(|_| {
                    bytes.push(0xcf);
                    bytes.extend((next() << (next() % 30)).to_be_bytes());
                });
                command.arg(bytes)
            }
            2 => command.arg((0..next() % 300).map(|_| next() as u8).collect::<Vec<_>>()),
            _ => command.arg(""),
        };
        let _: RedisResult<Value> = command.query(&mut connection);
    }
    assert_eq!(admitted(&mall, &[of("mall", 1)], 12).await, 6);
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut redis.connection()).unwrap();
    assert!(keys.iter().filter(|key| !key.starts_with("sluice:shop/")).count() == 1, "{keys:?}");
}

#[tokio::test]
async fn batches_of_all_kinds_run_as_functions() {
    let redis = Redis::start(&[]);
    let administrator = administrator(&redis.url());
    provision(&administrator, &["shop"]).await;
    let shop = Arc::new(store(&redis.url(), "shop"));
    healthy(&shop).await;
    // Many at once form plain batches; two counters are a run; a token bucket needs the general script. Each task has a
    // limit of its own with the same counters, as around an edit, so some runs have no checks.
    let bucket =
        vec![rate(10, 3_600_000, Algorithm::TokenBucket { burst: sluice_limiter::Burst::new(10).unwrap() })];
    let bucket = Arc::new(LimitSpec::new("shop/policy/bucket", bucket));
    let all = vec![rate(10, MAX_PERIOD_MS, Algorithm::SLIDING_WINDOW)];
    let all = Arc::new(LimitSpec::new("shop/policy/all", all));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..600 {
        let (shop, bucket, all) = (shop.clone(), bucket.clone(), all.clone());
        tasks.spawn(async move {
            let counters = match n % 3 {
                0 => vec![of("shop", n % 30)],
                1 => vec![of("shop", 100 + n % 30), counter(&all, 1)],
                _ => vec![counter(&bucket, n % 30)],
            };
            usize::from(shop.check(check(&counters)).await.unwrap().admitted)
        });
    }
    let admitted: usize = tasks.join_all().await.into_iter().sum();
    // 200 of each kind: ten keys with 10 each; one counter of 10 beside others; ten buckets of 10.
    assert_eq!(admitted, 100 + 10 + 100);
}

#[tokio::test]
async fn what_is_missing_is_repaired_and_what_is_superfluous_removed() {
    let redis = Redis::start(&[]);
    let mut admin = redis.connection();
    let mut run =
        |words: &[&str]| -> Value { redis::cmd(words[0]).arg(&words[1..]).query(&mut admin).unwrap() };
    let administrator = administrator(&redis.url());
    // A user of another installation, whose prefix begins with this one's, and one that is not ours.
    run(&["ACL", "SETUSER", "sluice:b@shop", "on"]);
    run(&["ACL", "SETUSER", "somebody", "on"]);
    provision(&administrator, &["shop", "mall"]).await;
    let shop = store(&redis.url(), "shop");
    assert_eq!(admitted(&shop, &[of("shop", 1)], 3).await, 3);

    // The library is gone: checks fail with the reason until it is loaded again.
    run(&["FUNCTION", "FLUSH"]);
    eventually("the store lacks the library", || async {
        let _ = shop.check(check(&[of("shop", 1)])).await;
        shop.fault_cause() == Some(FaultCause::FunctionMissing)
    })
    .await;
    provision(&administrator, &["shop", "mall"]).await;
    healthy(&shop).await;
    assert_eq!(admitted(&shop, &[of("shop", 1)], 10).await, 7, "the count goes on");

    // A user with other rights or another password than it should have.
    for rules in [&["ACL", "SETUSER", "sluice:@shop", "-@all"][..], &["ACL", "DELUSER", "sluice:@shop"]] {
        run(rules);
        run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        eventually("the store refuses", || async {
            let _ = shop.check(check(&[of("shop", 1)])).await;
            matches!(
                shop.fault_cause(),
                Some(
                    FaultCause::FunctionMissing | FaultCause::NotPermitted | FaultCause::AuthenticationFailed
                )
            )
        })
        .await;
        provision(&administrator, &["shop", "mall"]).await;
        healthy(&shop).await;
        assert_eq!(admitted(&shop, &[of("shop", 2)], 1).await, 1);
    }

    // A namespace that is gone loses its user.
    provision(&administrator, &["shop"]).await;
    let Value::Array(users) = run(&["ACL", "USERS"]) else { panic!() };
    let users: Vec<String> =
        users.iter().map(|user| redis::from_redis_value(user.clone()).unwrap()).collect();
    assert_eq!(users.len(), 4, "{users:?}");
    assert!(!users.contains(&"sluice:@mall".to_owned()) && users.contains(&"sluice:b@shop".to_owned()));
}

#[tokio::test]
async fn a_password_is_replaced_without_a_lost_check() {
    let redis = Redis::start(&[]);
    let administrator = administrator(&redis.url());
    let (old, new) = (Secret::new("old"), Secret::new("new"));
    let with = |passwords: &[&Secret]| ManagedUser {
        namespace: "shop".into(),
        passwords: passwords.iter().map(|&password| password.clone()).collect(),
    };
    let first = with(&[&old]);
    administrator.provision(std::slice::from_ref(&first)).await.unwrap();
    let before = RedisStore::start(first.options(&patient(&redis.url()))).unwrap();
    assert_eq!(admitted(&before, &[of("shop", 1)], 2).await, 2);
    // Both are accepted while sidecars change over.
    let both = with(&[&new, &old]);
    administrator.provision(std::slice::from_ref(&both)).await.unwrap();
    let after = RedisStore::start(both.options(&patient(&redis.url()))).unwrap();
    assert_eq!(admitted(&after, &[of("shop", 1)], 2).await, 2);
    assert_eq!(admitted(&before, &[of("shop", 1)], 2).await, 2);
    administrator.provision(&[with(&[&new])]).await.unwrap();
    assert_eq!(admitted(&after, &[of("shop", 1)], 10).await, 4);
    let late = RedisStore::start(first.options(&patient(&redis.url()))).unwrap();
    eventually("the old password is refused", || async {
        late.fault_cause() == Some(FaultCause::AuthenticationFailed)
    })
    .await;
}

#[tokio::test]
async fn every_server_of_a_cluster_has_the_users_and_every_master_the_library() {
    let cluster = Cluster::start(&[]);
    let administrator = administrator(&cluster.url());
    let roles = provision(&administrator, &["shop"]).await;
    assert!(roles.iter().filter(|role| **role == Role::Master).count() >= 3, "{roles:?}");
    let shop = store(&cluster.url(), "shop");
    healthy(&shop).await;
    for key in 0..50 {
        let counter = Counter { key: KeyHash(key), ..of("shop", 0) };
        assert_eq!(admitted(&shop, &[counter], 11).await, 10);
    }
}

/// The rights of an administrator that the documentation names, at the servers and at sentinels.
const ADMINISTRATOR: [&str; 6] =
    ["+acl|setuser", "+acl|deluser", "+acl|list", "+function|load", "+function|list", "+info"];
const WATCHER: [&str; 6] = [
    "+acl|setuser",
    "+acl|deluser",
    "+acl|list",
    "+sentinel|get-master-addr-by-name",
    "+sentinel|master",
    "+sentinel|replicas",
];

#[tokio::test]
async fn sentinels_and_replicas_have_the_users_and_their_new_passwords_before_a_failover() {
    let mut watched = Watched::start();
    let rights = [&ADMINISTRATOR[..], &["+role"]].concat();
    watched.set_users(("watcher", &WATCHER), ("administrator", &rights));
    let credentials = StoreCredentials {
        username: Some("administrator".into()),
        password: Some(Secret::new("secret")),
        sentinel_username: Some("watcher".into()),
        sentinel_password: Some(Secret::new("secret")),
        ..StoreCredentials::default()
    };
    let options = patient(&watched.url()).with_credentials(credentials).unwrap();
    let administrator = Administrator::new(options.clone()).unwrap();
    let with = |passwords: &[&str]| ManagedUser {
        namespace: "shop".into(),
        passwords: passwords.iter().map(|&password| Secret::new(password)).collect(),
    };
    let set = async |user: ManagedUser| {
        let reports = administrator.provision(&[user]).await.unwrap();
        assert!(reports.iter().all(|report| report.problem.is_none()), "{reports:?}");
        let mut roles: Vec<_> = reports.iter().map(|report| report.role as u8).collect();
        roles.sort_unstable();
        roles
            == [Role::Master, Role::Replica, Role::Sentinel, Role::Sentinel, Role::Sentinel]
                .map(|role| role as u8)
    };
    eventually("all servers are administered", || set(with(&["old"]))).await;
    let old = RedisStore::start(with(&["old"]).options(&options)).unwrap();
    assert_eq!(admitted(&old, &[of("shop", 1)], 2).await, 2);
    assert!(set(with(&["new", "old"])).await);
    let new = RedisStore::start(with(&["new"]).options(&options)).unwrap();
    assert_eq!(admitted(&new, &[of("shop", 1)], 2).await, 2);
    assert_eq!(admitted(&old, &[of("shop", 1)], 2).await, 2);
    assert!(set(with(&["new"])).await);

    // A tenant can look up the master, and nothing else.
    for sentinel in &watched.sentinels {
        let login = |password: &str| {
            let url = format!("redis://sluice%3a%40shop:{password}@127.0.0.1:{}", sentinel.port);
            redis::Client::open(url).unwrap().get_connection()
        };
        assert!(login("old").is_err(), "the old password");
        let mut tenant = login("new").unwrap();
        let mut run = |line: &str| -> RedisResult<Value> {
            let words: Vec<&str> = line.split(' ').collect();
            match redis::cmd(words[0]).arg(&words[1..]).query(&mut tenant)? {
                Value::ServerError(error) => Err(error.into()),
                value => Ok(value),
            }
        };
        assert!(run("SENTINEL GET-MASTER-ADDR-BY-NAME main").is_ok());
        for line in [
            "SENTINEL FAILOVER main",
            "SENTINEL RESET *",
            "SENTINEL REMOVE main",
            "SENTINEL SET main quorum 1",
            "SENTINEL MONITOR other 127.0.0.1 1 1",
            "SENTINEL MASTERS",
            "SENTINEL CONFIG GET *",
            "ACL LIST",
            "ACL SETUSER sluice:@shop +@all",
            "INFO",
            "SHUTDOWN",
            "SUBSCRIBE __sentinel__:hello",
            "PUBLISH __sentinel__:hello x",
        ] {
            assert!(run(line).is_err(), "{line}");
        }
    }

    // The replica that takes over has the user with the new password only.
    watched.master.kill();
    failing(&new, StoreFault::Unreachable).await;
    healthy(&new).await;
    let late = RedisStore::start(with(&["old"]).options(&options)).unwrap();
    eventually("the old password is refused", || async {
        late.fault_cause() == Some(FaultCause::AuthenticationFailed)
    })
    .await;
    assert!(admitted(&new, &[of("shop", 1)], 11).await >= 4);
    assert_eq!(admitted(&new, &[of("shop", 2)], 11).await, 10);
}
