//! A server that fails again and again, and one whose commands have other names: few attempts, few lines, and lines that say what
//! Redis said without what is secret.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::checks::{admitted, check, counter, healthy, limit, patient, patient_store};
use crate::log;
use crate::support::{Redis, eventually};
use sluice_store::redis::{Secret, StoreCredentials};
use sluice_store::{RedisStore, Store as _, StoreHealth};

/// Returns the number of connections that a server has accepted, those of this function included.
fn connections(redis: &Redis) -> usize {
    let info: String = redis::cmd("INFO").arg("stats").query(&mut redis.connection()).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    line.unwrap().trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_ends_each_connection_is_asked_with_growing_delays_and_has_few_lines() {
    log::keep();
    let redis = Redis::start(&[]);
    let store = patient_store(&redis.url());
    healthy(&store).await;
    let address = format!("\"127.0.0.1:{}\"", redis.port);
    let kills = AtomicU64::new(0);
    // The next line comes after 10 s, and says how often it was.
    eventually("the failures are counted", || async {
        if store.health() == StoreHealth::Healthy {
            // Limits are exact again with the first connection.
            let once = limit(&format!("kill{}", kills.load(SeqCst)), 1);
            if store.check(check(&[counter(&once, 1)])).await.is_ok_and(|response| response.admitted) {
                let killed: usize = redis::cmd("CLIENT")
                    .arg("KILL")
                    .arg("TYPE")
                    .arg("normal")
                    .arg("SKIPME")
                    .arg("yes")
                    .query(&mut redis.connection())
                    .unwrap();
                kills.fetch_add(u64::from(killed > 0), SeqCst);
            }
        }
        !log::lines(&["WARN", "again and again", &address]).is_empty()
    })
    .await;
    let kills = kills.into_inner();
    let lines = log::lines(&["Redis", &address]);
    assert!(lines.len() <= 5, "{kills} kills: {lines:#?}");
    // The delays add up to 20 ms, 40 ms ... 800 ms, 800 ms ...
    assert!((8..=40).contains(&kills), "{kills} kills in 10 s");
    eventually("the connection has held", || async {
        let _ = store.check(check(&[counter(&limit("held", 1 << 40), 1)])).await;
        !log::lines(&["INFO", "Redis has recovered", &address]).is_empty()
    })
    .await;
}

/// The commands of a connection and of the scripts.
const COMMANDS: [&str; 9] = ["AUTH", "SELECT", "EVALSHA", "EVAL", "TIME", "GET", "MGET", "SET", "SETRANGE"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renamed_command_is_named_and_nothing_secret_is() {
    log::keep();
    let secret = "hunter2-of-the-store";
    for command in COMMANDS {
        let redis = Redis::start(&["--requirepass", secret, "--rename-command", command, ""]);
        let options = patient(&format!("redis://127.0.0.1:{}/1", redis.port));
        let credentials =
            StoreCredentials { password: Some(Secret::new(secret)), ..StoreCredentials::default() };
        let store = RedisStore::start(options.with_credentials(credentials).unwrap()).unwrap();
        let address = format!("\"127.0.0.1:{}\"", redis.port);
        let named = counter(&limit("secret-key", 5), 7);
        let before = store.health();
        eventually(&format!("{command} is missed"), || async {
            let _ = store.check(check(std::slice::from_ref(&named))).await;
            let _ = store.check(check(&[named.clone(), counter(&limit("secret-other", 5), 7)])).await;
            !log::lines(&["WARN", "Redis has failed", &address]).is_empty()
                // Not every command is used by each server and each check.
                || matches!(command, "EVAL" | "SETRANGE" | "MGET" | "GET" | "TIME") && store.health() != before
        })
        .await;
        for line in log::lines(&["WARN", &address]) {
            assert!(!line.contains("too old"), "{line}");
            if !matches!(command, "AUTH") && line.contains("it said") {
                assert!(
                    line.contains(command) || line.contains("Unknown") || line.contains("NOAUTH"),
                    "{command}: {line}"
                );
            }
        }
    }
    for secret in [secret, "secret-key", "secret-other"] {
        assert_eq!(log::lines(&[secret]), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wrong_kind_of_server_is_named() {
    log::keep();
    let redis = Redis::start(&[]);
    let (port, stores) = (redis.port, ["/99", "", "", ""]);
    for (path, (scheme, text)) in stores.into_iter().zip([
        ("redis", "it has no database of this number"),
        ("redis+cluster", "it is no part of a cluster"),
        ("redis+sentinel", "it is not a Sentinel"),
        ("rediss", "the TLS handshake does not end"),
    ]) {
        if scheme == "rediss" {
            let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        }
        let path = if scheme == "redis+sentinel" { "/main" } else { path };
        let store = RedisStore::start(patient(&format!("{scheme}://127.0.0.1:{port}{path}"))).unwrap();
        eventually(text, || async { !log::lines(&["WARN", text]).is_empty() }).await;
        drop(store);
    }
    let store = patient_store(&redis.url());
    assert_eq!(admitted(&store, &[counter(&limit("kind", 2), 1)], 3).await, 2);
    assert!(connections(&redis) > 0);
}
