//! A password in a file, which changes while connections are open.

use crate::checks::{admitted, counter, healthy, limit, patient};
use crate::log;
use crate::support::{Redis, eventually};
use redis::Value;
use sluice_store::redis::Secret;
use sluice_store::{RedisOptions, RedisStore};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_changes_is_sent_on_the_open_connection_and_read_for_each_new_one() {
    log::keep();
    let redis = Redis::start(&[]);
    let acl =
        |words: &[&str]| -> Value { redis::cmd("ACL").arg(words).query(&mut redis.connection()).unwrap() };
    let (one, two) = ("token-one", "token-two");
    acl(&["SETUSER", "app", "on", ">token-one", "~*", "+@all"]);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{one}\n")).unwrap();
    let options = RedisOptions {
        password_file: Some(file.path().into()),
        ..patient(&format!("redis://app@127.0.0.1:{}", redis.port))
    };
    let store = RedisStore::start(options.clone()).unwrap();
    healthy(&store).await;
    let counters = [counter(&limit("token", 6), 1)];
    assert_eq!(admitted(&store, &counters, 2).await, 2);
    // The next token. Redis counts the logins with each password only by their success, so the log tells.
    acl(&["SETUSER", "app", "<token-one", ">token-two"]);
    acl(&["LOG", "RESET"]);
    std::fs::write(file.path(), two).unwrap();
    eventually("the new password was accepted on the open connection", || async {
        let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut redis.connection()).unwrap();
        let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_auth:calls="));
        calls.is_some_and(|calls| !calls.starts_with("1,") && !calls.starts_with("2,"))
    })
    .await;
    assert_eq!(store.metrics().reconnects, 0);
    assert_eq!(admitted(&store, &counters, 2).await, 2);
    // A new connection has the new password too.
    let other = RedisStore::start(options).unwrap();
    assert_eq!(admitted(&other, &counters, 4).await, 2);
    for secret in [one, two] {
        assert_eq!(log::lines(&[secret]), Vec::<String>::new());
    }
}

#[test]
fn a_file_that_cannot_be_read_and_a_second_password_are_refused() {
    let with = |url: &str, file: &str| {
        let options =
            RedisOptions { password_file: Some(file.into()), ..RedisOptions::from_url(url).unwrap() };
        options.check().unwrap_err().to_string()
    };
    let error = with("redis://app@a", "/nowhere");
    assert!(error.contains("cannot be read") && error.contains("No such file"), "{error}");
    let options =
        RedisOptions { password: Some(Secret::new("x")), ..RedisOptions::from_url("redis://a").unwrap() };
    let options = RedisOptions { password_file: Some("/nowhere".into()), ..options };
    assert!(options.check().unwrap_err().to_string().contains("both"));
}
