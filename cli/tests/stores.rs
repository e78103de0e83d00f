//! `sluice run` with a Redis Cluster, behind sentinels, and with a Redis that asks for a certificate: one URL says which.
#![allow(clippy::unwrap_used)]

#[path = "../../store/tests/support/cluster.rs"]
mod cluster;
mod process;
#[path = "../../store/tests/support/sentinel.rs"]
mod sentinel;
#[path = "../../store/tests/support/mod.rs"]
mod support;
#[path = "../../store/tests/support/tls.rs"]
mod tls;

use std::path::{Path, PathBuf};

use cluster::Cluster;
use process::{Run, SLUICE, get_with, policy};
use sentinel::Watched;
use support::eventually;
use tempfile::TempDir;
use tls::{Authority, Files, serve};

/// What docs/install.md says a user of any Redis needs.
const RIGHTS: &str = "+evalsha +eval +time +get +mget +set +setrange";

/// So generous that a loaded machine does not fail a test about something else.
const BUDGET: [&str; 2] = ["--latency-budget", "10s"];

/// Five requests a day for each client.
fn five(directory: &TempDir) -> PathBuf {
    let file = directory.path().join("policy.yaml");
    std::fs::write(&file, policy("5").replace("per: 3s", "per: 24h")).unwrap();
    file
}

/// What a client is answered: the status, and the store's failure if there is one.
async fn ask(run: &Run, client: &str) -> (u16, Option<String>) {
    let answer = get_with(run.address, "/", &format!("x-api-key: {client}\r\n")).await;
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    let failure = answer.lines().find_map(|line| line.strip_prefix("x-sluice-store-failure: "));
    (status.unwrap_or_else(|| panic!("{answer}")), failure.map(str::to_owned))
}

/// Asks six times, of several processes in turn, and sees that five are admitted.
async fn five_of_six(runs: &[&Run], client: &str) {
    for n in 0..6 {
        let expected = if n < 5 { 200 } else { 429 };
        assert_eq!(ask(runs[n % runs.len()], client).await, (expected, None), "request {n} of {client}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_share_their_counts_over_all_masters_of_a_cluster() {
    let directory = tempfile::tempdir().unwrap();
    let file = five(&directory);
    let cluster = Cluster::start(&[]);
    for server in &cluster.servers {
        let rights =
            format!("on >s3cret@ resetkeys ~sluice:* resetchannels -@all {RIGHTS} +cluster|slots +asking");
        let mut command = redis::cmd("ACL");
        command.arg("SETUSER").arg("sluice").arg(rights.split(' ').collect::<Vec<_>>());
        let (): () = command.query(&mut server.connection()).unwrap();
    }
    // Two of its servers; the others are learnt.
    let [one, other] = [0, 5].map(|n| format!("127.0.0.1:{}", cluster.servers[n].port));
    let url = format!("redis+cluster://sluice:s3cret%40@{one},{other}");
    let arguments = [&BUDGET[..], &["--log", "debug"]].concat();
    let start = async || Run::start_with(&file, &arguments, &[("SLUICE_STORE", &url)]).await;
    let (a, b) = (start().await, start().await);
    for client in 0..30 {
        five_of_six(&[&a, &b], &format!("client-{client}")).await;
    }
    let with_keys = cluster.servers[..3].iter().filter(|server| {
        let keys: u64 = redis::cmd("DBSIZE").query(&mut server.connection()).unwrap();
        keys > 0
    });
    assert_eq!(with_keys.count(), 3, "the counters lie on all masters");
    for run in [a, b] {
        assert!(!run.end().await.contains("s3cret"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_go_on_and_counts_stay_when_the_master_behind_sentinels_dies() {
    let directory = tempfile::tempdir().unwrap();
    let (file, secret) = (five(&directory), directory.path().join("secret"));
    std::fs::write(&secret, "secret\n").unwrap();
    let mut watched = Watched::start();
    let rights = format!("{RIGHTS} +role");
    let rights: Vec<_> = rights.split(' ').collect();
    watched.set_users(("watcher", &["+sentinel|get-master-addr-by-name"]), ("sluice", &rights));
    let sentinels: Vec<_> =
        watched.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
    let url = format!("redis+sentinel://sluice:secret@{}/main", sentinels.join(","));
    let sentinel = ["--store-sentinel-username", "watcher", "--store-sentinel-password-file"];
    let arguments = [&["--store", &url][..], &BUDGET, &sentinel, &[secret.to_str().unwrap()]].concat();
    let (a, b) = (Run::start(&file, &arguments).await, Run::start(&file, &arguments).await);
    five_of_six(&[&a, &b], "before").await;
    for run in [&a, &b, &a, &b, &a] {
        assert_eq!(ask(run, "through").await, (200, None));
    }
    // What the replica has not heard goes with the master.
    eventually("the replica has all that the master has", || async {
        let all = |redis: &support::Redis| {
            let mut connection = redis.connection();
            let mut keys: Vec<String> = redis::cmd("KEYS").arg("sluice:*").query(&mut connection).unwrap();
            keys.sort();
            let values: Vec<Vec<u8>> = redis::cmd("MGET").arg(&keys).query(&mut connection).unwrap();
            (keys, values)
        };
        all(&watched.master) == all(&watched.replica)
    })
    .await;
    watched.master.kill();
    for run in [&a, &b] {
        eventually("the new master counts", || async {
            // Whatever the store does, every request is answered by the application or by the policy.
            let (status, failure) = ask(run, "during").await;
            assert!(status == 200 || status == 429, "{status}");
            failure.is_none()
        })
        .await;
    }
    for run in [&a, &b] {
        assert_eq!(ask(run, "through").await, (429, None), "the new master knows what was counted");
    }
    five_of_six(&[&b, &a], "after").await;
    for run in [a, b] {
        run.end().await;
    }
}

/// The arguments that name files.
fn files<'a>(ca: &'a Path, pair: Option<&'a (PathBuf, PathBuf)>) -> Vec<&'a str> {
    let mut arguments = vec!["--store-ca", ca.to_str().unwrap()];
    if let Some((certificate, key)) = pair {
        arguments.extend(["--store-cert", certificate.to_str().unwrap()]);
        arguments.extend(["--store-key", key.to_str().unwrap()]);
    }
    arguments
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_shown_to_a_redis_that_asks_for_one() {
    let directory = tempfile::tempdir().unwrap();
    let file = five(&directory);
    let authority = Authority::new();
    let server = Files::new(&authority, "127.0.0.1");
    let ca = server.0.path().join("ca");
    let (_redis, port) = serve(&server, "yes");
    let url = format!("rediss://127.0.0.1:{port}");
    let issue = |name: &str| {
        let (certificate, key) = authority.issue(name);
        let paths = ["crt", "key"].map(|kind| directory.path().join(format!("{name}.{kind}")));
        std::fs::write(&paths[0], certificate).unwrap();
        std::fs::write(&paths[1], key).unwrap();
        let [certificate, key] = paths;
        (certificate, key)
    };
    let (ours, other) = (issue("ours"), issue("other"));
    let store = [&["--store", &url][..], &BUDGET].concat();

    let run = Run::start(&file, &[&store[..], &files(&ca, Some(&ours))].concat()).await;
    five_of_six(&[&run], "client").await;
    run.end().await;

    let run = Run::start(&file, &[&store[..], &files(&ca, None)].concat()).await;
    eventually("Redis refuses whoever shows none", || async {
        ask(&run, "client").await.1.as_deref() == Some("refused")
    })
    .await;
    run.end().await;

    let mixed = (ours.0, other.1);
    let output = tokio::process::Command::new(SLUICE)
        .args(["run", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
        .args(["--upstream", "http://127.0.0.1:1", "--policy"])
        .arg(&file)
        .args(store)
        .args(files(&ca, Some(&mixed)))
        .output()
        .await
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("its key belongs to another certificate"), "{error}");
    assert!(!error.contains("PRIVATE KEY"), "{error}");
}
