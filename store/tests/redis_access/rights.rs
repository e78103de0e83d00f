//! The rights that the Redis store needs.

use std::sync::Arc;

use crate::checks::{
    admitted, check, counter, failing, failures, healthy, limit, patient, patient_store, rate,
};
use crate::support::{Redis, eventually, keys};
use sluice_limiter::{Algorithm, MAX_PERIOD_MS};
use sluice_store::failure::StoreFault;
use sluice_store::{Counter, LimitSpec, RedisStore, Store as _, StoreError, StoreHealth};

/// The minimum rights of a Redis user for database 0 of a single server.
const RIGHTS: [&str; 7] = ["+evalsha", "+eval", "+time", "+get", "+mget", "+set", "+setrange"];

/// Creates a user with only these rights. Returns a URL with its credentials.
fn set_user(redis: &Redis, name: &str, rights: &[&str]) -> String {
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER").arg(name);
    for word in ["on", ">secret", "resetkeys", "~sluice:*", "resetchannels", "-@all"] {
        command.arg(word);
    }
    let (): () = command.arg(rights).query(&mut redis.connection()).unwrap();
    format!("redis://{name}:secret@127.0.0.1:{}", redis.port)
}

#[tokio::test]
async fn a_database_other_than_zero_requires_the_right_to_select() {
    let redis = Redis::start(&[]);
    let counters = [counter(&limit("database", 10), 1)];
    let refused = Err(StoreError::Unavailable(StoreFault::Refused));
    let url = set_user(&redis, "unselecting", &RIGHTS);
    let store = patient_store(&format!("{url}/3"));
    failing(&store, StoreFault::Refused).await;
    assert_eq!(store.check(check(&counters)).await, refused);
    assert_eq!((failures(&store, "refused"), failures(&store, "nonsense")), (1, 0));
    set_user(&redis, "unselecting", &[&RIGHTS[..], &["+select"]].concat());
    healthy(&store).await;
    assert_eq!(admitted(&store, &counters, 2).await, 2);
    // The counter is in database 3. Without a database number the right is not needed.
    let mut connection = redis.connection();
    let zero = keys(&mut connection);
    let (): () = redis::cmd("SELECT").arg(3).query(&mut connection).unwrap();
    let three = keys(&mut connection);
    assert_eq!((zero, three), (0, 1));
    let store = patient_store(&set_user(&redis, "plain", &RIGHTS));
    assert_eq!(admitted(&store, &counters, 2).await, 2);
}

#[tokio::test]
async fn a_missing_password_is_reported_with_a_database_other_than_zero() {
    let redis = Redis::start(&["--requirepass", "right"]);
    let store = patient_store(&format!("{}/3", redis.url()));
    failing(&store, StoreFault::Refused).await;
}

#[tokio::test]
async fn store_needs_exactly_the_documented_rights() {
    let redis = Redis::start(&[]);
    let store_of = |name: &str, rights: &[&str]| patient_store(&set_user(&redis, name, rights));
    // A long and a short window, so that keys are written in both ways.
    let fast = rate(1000, 1, Algorithm::FIXED_WINDOW);
    let slow = rate(1000, MAX_PERIOD_MS, Algorithm::SLIDING_WINDOW);
    let mixed = Arc::new(LimitSpec::new("ns/policy/acl", vec![fast, slow]));
    let plain = limit("acl-plain", 1000);
    let both = [counter(&mixed, 1), counter(&plain, 1)];
    let store = store_of("least", &RIGHTS);
    assert_eq!(admitted(&store, &both, 20).await, 20);
    assert_eq!(store.metrics().errors, 0);
    for left_out in RIGHTS {
        // Without the right to EVAL, only a server that knows the script works.
        let (): () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut redis.connection()).unwrap();
        let rights: Vec<_> = RIGHTS.into_iter().filter(|&right| right != left_out).collect();
        let store = store_of("less", &rights);
        eventually(&format!("rejected without {left_out}"), || async {
            // Outside of a run, a new key is read in another way than an existing one.
            let twice = Counter { cost: 2, ..counter(&plain, rand::random()) };
            let _ = store.check(check(&[twice])).await;
            let _ = store.check(check(&both)).await;
            store.health() == StoreHealth::Failing(StoreFault::Refused)
        })
        .await;
    }
    // A shared counter that cannot be read is not mistaken for one of another type.
    let store = store_of("no-get", &RIGHTS.map(|right| if right == "+get" { "+mget" } else { right }));
    let shared = [counter(&plain, rand::random()), counter(&limit("acl-shared", 1000), rand::random())];
    assert_eq!(store.check(check(&shared)).await, Err(StoreError::Unavailable(StoreFault::Refused)));
    // The user has no right to keys with another prefix.
    let mut options = patient(&format!("redis://least:secret@127.0.0.1:{}", redis.port));
    options.prefix = "other:".into();
    let store = RedisStore::start(options).unwrap();
    eventually("rejected with another prefix", || async {
        store.check(check(&both)).await == Err(StoreError::Unavailable(StoreFault::Refused))
    })
    .await;
}
