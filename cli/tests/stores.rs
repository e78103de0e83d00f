//! `sluice run` with a Redis Cluster, with Redis behind sentinels, and with a Redis that requires a client
//! certificate.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::cluster::Cluster;
use crate::process::{Run, SLUICE, get_with, policy};
use crate::sentinel::Watched;
use crate::support;
use crate::support::eventually;
use crate::tls::{Authority, Files, serve};

/// Permissions that every Redis user needs, from docs/install.md.
const PERMISSIONS: &str = "+evalsha +eval +time +get +mget +set +setrange";

/// Long enough that a busy machine does not fail the tests.
const BUDGET: [&str; 2] = ["--latency-budget", "10s"];

/// Writes a policy of five requests per day for each client.
fn five_per_day(directory: &TempDir) -> PathBuf {
    let file = directory.path().join("policy.yaml");
    std::fs::write(&file, policy("5").replace("per: 3s", "per: 24h")).unwrap();
    file
}

/// Sends a request. Returns the status, and the store's failure if the response reports one.
async fn send(run: &Run, client: &str) -> (u16, Option<String>) {
    let response = get_with(run.address, "/", &format!("x-api-key: {client}\r\n")).await;
    let status = response.split(' ').nth(1).and_then(|status| status.parse().ok());
    let failure = response.lines().find_map(|line| line.strip_prefix("x-sluice-store-failure: "));
    (status.unwrap_or_else(|| panic!("{response}")), failure.map(str::to_owned))
}

/// Sends six requests to the processes in turn and asserts that exactly five are admitted.
async fn assert_five_of_six(runs: &[&Run], client: &str) {
    for n in 0..6 {
        let expected = if n < 5 { 200 } else { 429 };
        assert_eq!(send(runs[n % runs.len()], client).await, (expected, None), "request {n} of {client}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_share_counters_on_all_masters_of_a_cluster() {
    let directory = tempfile::tempdir().unwrap();
    let file = five_per_day(&directory);
    let cluster = Cluster::start(&[]);
    for server in &cluster.servers {
        let permissions = format!(
            "on >s3cret@ resetkeys ~sluice:* resetchannels -@all {PERMISSIONS} +cluster|slots +asking"
        );
        let mut command = redis::cmd("ACL");
        command.arg("SETUSER").arg("sluice").arg(permissions.split(' ').collect::<Vec<_>>());
        let (): () = command.query(&mut server.connection()).unwrap();
    }
    // The URL names two of the servers. The others are discovered.
    let [one, other] = [0, 5].map(|n| format!("127.0.0.1:{}", cluster.servers[n].port));
    let url = format!("redis+cluster://sluice:s3cret%40@{one},{other}");
    let arguments = [&BUDGET[..], &["--log", "debug"]].concat();
    let start = async || Run::start_with(&file, &arguments, &[("SLUICE_STORE", &url)]).await;
    let (a, b) = (start().await, start().await);
    for client in 0..30 {
        assert_five_of_six(&[&a, &b], &format!("client-{client}")).await;
    }
    let with_keys = cluster.servers[..3].iter().filter(|server| {
        let keys: u64 = redis::cmd("DBSIZE").query(&mut server.connection()).unwrap();
        keys > 0
    });
    assert_eq!(with_keys.count(), 3, "all masters have counters");
    for run in [a, b] {
        assert!(!run.end().await.contains("s3cret"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_survive_the_death_of_the_master_behind_sentinels() {
    let directory = tempfile::tempdir().unwrap();
    let (file, secret) = (five_per_day(&directory), directory.path().join("secret"));
    std::fs::write(&secret, "secret\n").unwrap();
    let mut watched = Watched::start();
    let permissions = format!("{PERMISSIONS} +role");
    let permissions: Vec<_> = permissions.split(' ').collect();
    watched.set_users(("watcher", &["+sentinel|get-master-addr-by-name"]), ("sluice", &permissions));
    let sentinels: Vec<_> =
        watched.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
    let url = format!("redis+sentinel://sluice:secret@{}/main", sentinels.join(","));
    let sentinel = ["--store-sentinel-username", "watcher", "--store-sentinel-password-file"];
    let arguments = [&["--store", &url][..], &BUDGET, &sentinel, &[secret.to_str().unwrap()]].concat();
    let (a, b) = (Run::start(&file, &arguments).await, Run::start(&file, &arguments).await);
    assert_five_of_six(&[&a, &b], "before").await;
    for run in [&a, &b, &a, &b, &a] {
        assert_eq!(send(run, "through").await, (200, None));
    }
    // Writes that the replica has not received are lost with the master.
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
            // Requests get a response from the application or from the policy, whatever the state of the
            // store.
            let (status, failure) = send(run, "during").await;
            assert!(status == 200 || status == 429, "{status}");
            failure.is_none()
        })
        .await;
    }
    for run in [&a, &b] {
        assert_eq!(send(run, "through").await, (429, None), "the new master has the counters of the old one");
    }
    assert_five_of_six(&[&b, &a], "after").await;
    for run in [a, b] {
        run.end().await;
    }
}

/// Returns the arguments that name certificate files.
fn certificate_arguments<'a>(ca: &'a Path, pair: Option<&'a (PathBuf, PathBuf)>) -> Vec<&'a str> {
    let mut arguments = vec!["--store-ca", ca.to_str().unwrap()];
    if let Some((certificate, key)) = pair {
        arguments.extend(["--store-cert", certificate.to_str().unwrap()]);
        arguments.extend(["--store-key", key.to_str().unwrap()]);
    }
    arguments
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_requires_a_client_certificate_receives_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = five_per_day(&directory);
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

    let run = Run::start(&file, &[&store[..], &certificate_arguments(&ca, Some(&ours))].concat()).await;
    assert_five_of_six(&[&run], "client").await;
    run.end().await;

    let run = Run::start(&file, &[&store[..], &certificate_arguments(&ca, None)].concat()).await;
    eventually("Redis rejects a client without a certificate", || async {
        send(&run, "client").await.1.as_deref() == Some("refused")
    })
    .await;
    run.end().await;

    let mixed = (ours.0, other.1);
    let output = tokio::process::Command::new(SLUICE)
        .args(["run", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
        .args(["--upstream", "http://127.0.0.1:1", "--policy"])
        .arg(&file)
        .args(store)
        .args(certificate_arguments(&ca, Some(&mixed)))
        .output()
        .await
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("its key belongs to another certificate"), "{error}");
    assert!(!error.contains("PRIVATE KEY"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_is_reset_in_the_store_of_another_process() {
    let directory = tempfile::tempdir().unwrap();
    let file = five_per_day(&directory);
    let blocking = directory.path().join("blocking.yaml");
    let block = policy("5").replace("per: 3s", "per: 24h").replace("name: demo", "name: blocking");
    std::fs::write(&blocking, block + "    onLimit: {block: {after: 1, within: 24h, for: 48h}}\n").unwrap();
    let redis = support::Redis::start(&[]);
    let url = redis.url();
    let environment = [("SLUICE_STORE", url.as_str())];
    let reset = async |command: &str, policy: &Path, arguments: &[&str]| {
        let mut sluice = tokio::process::Command::new(SLUICE);
        sluice.arg(command).args(arguments).arg("--filename").arg(policy).args(BUDGET).envs(environment);
        let output = sluice.output().await.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    for policy in [&file, &blocking] {
        let name = if *policy == file { "default/demo" } else { "default/blocking" };
        let run = Run::start_with(policy, &BUDGET, &environment).await;
        assert_five_of_six(&[&run], "client").await;
        assert_five_of_six(&[&run], "other").await;
        let client = [name, "per-client", "client"];
        let (code, out, err) = reset("unblock", policy, &client).await;
        if *policy == file {
            assert_eq!((code, err.as_str()), (Some(0), ""));
            assert!(out.contains("is not blocked by limit per-client"), "{out}");
            let (code, out, err) = reset("reset", policy, &client).await;
            assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
        } else {
            assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
            assert!(out.contains("is removed"), "{out}");
        }
        // It may be denied from memory for a moment.
        eventually("the client has its quota again", || async { send(&run, "client").await.0 == 200 }).await;
        assert_eq!(send(&run, "other").await.0, 429);
        run.end().await;
    }
    let (code, _, err) = reset("reset", &file, &["default/demo", "no-limit", "client"]).await;
    assert_eq!(code, Some(1));
    assert!(err.contains("policy default/demo has no limit no-limit"), "{err}");
    // A debug port changes nothing.
    let address = ["default/demo", "per-client", "client", "--address", "127.0.0.1:1"];
    let output = tokio::process::Command::new(SLUICE).arg("reset").args(address).output().await.unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(err.contains("nothing can be changed at a debug port"), "{err}");
}
