//! `sluice run` as a process: start, edits of the policy file, and end.

use std::path::PathBuf;

use tokio::net::TcpListener;
use tokio::process::Command;

use crate::process::{Run, SLUICE, get, policy};

#[tokio::test]
async fn a_valid_edit_is_applied_and_an_invalid_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.yaml");
    std::fs::write(&file, policy("5")).unwrap();
    let mut run = Run::start(&file, &[]).await;
    run.logged("policies applied").await;
    assert_eq!(run.limit().await, "5");

    std::fs::write(&file, policy("6")).unwrap();
    run.logged("policies applied").await;
    assert_eq!(run.limit().await, "6");

    std::fs::write(&file, policy("-7")).unwrap();
    let line = run.logged("policy.yaml:").await;
    assert!(line.contains("policy.yaml:15: spec.limits[0].rates[0].requests: "), "{line}");
    run.logged("what was in force stays").await;
    assert_eq!(run.limit().await, "6");

    std::fs::remove_file(&file).unwrap();
    run.logged("what was in force stays").await;
    assert_eq!(run.limit().await, "6");

    // A request can have at most 32 limits. The edit adds a 33rd and must not remove the applied policy.
    let good = policy("6");
    let (head, one) = good.split_once("  limits:\n").unwrap();
    let sixteen: String = (0..16).map(|n| one.replace("per-client", &format!("l{n}"))).collect();
    let many = |name: &str| format!("{}  limits:\n{sixteen}---\n", head.replace("demo", name));
    std::fs::write(&file, many("a") + &many("b") + &good).unwrap();
    let line = run.logged("more than 32 limits").await;
    assert!(line.contains("policy.yaml: default/demo: "), "{line}");
    run.logged("what was in force stays").await;
    assert_eq!(run.limit().await, "6");

    // Many editors write a new file and rename it.
    let other = directory.path().join(".policy.yaml.swp");
    std::fs::write(&other, policy("8")).unwrap();
    std::fs::rename(&other, &file).unwrap();
    run.logged("policies applied").await;
    assert_eq!(run.limit().await, "8");
    run.end().await;
}

#[tokio::test]
async fn an_update_of_a_config_map_volume_is_applied() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| -> PathBuf { directory.path().join(name) };
    // The kubelet writes policy.yaml -> ..data/policy.yaml and ..data -> the directory of a version.
    for (version, requests) in [("..v1", "5"), ("..v2", "9")] {
        std::fs::create_dir(path(version)).unwrap();
        std::fs::write(path(version).join("policy.yaml"), policy(requests)).unwrap();
    }
    std::os::unix::fs::symlink("..v1", path("..data")).unwrap();
    std::os::unix::fs::symlink("..data/policy.yaml", path("policy.yaml")).unwrap();
    let mut run = Run::start(&path("policy.yaml"), &[]).await;
    run.logged("policies applied").await;
    assert_eq!(run.limit().await, "5");
    std::os::unix::fs::symlink("..v2", path("..data_tmp")).unwrap();
    std::fs::rename(path("..data_tmp"), path("..data")).unwrap();
    run.logged("policies applied").await;
    assert_eq!(run.limit().await, "9");
    run.end().await;
}

#[tokio::test]
async fn an_unreachable_store_is_reported_without_its_password() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.yaml");
    std::fs::write(&file, policy("5")).unwrap();
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let store = format!("redis://:s3cret@{unused}");
    let mut run = Run::start(&file, &["--store", &store, "--log", "debug", "--latency-budget", "5s"]).await;
    run.logged("policies applied").await;
    assert!(get(run.admin, "/readyz").await.starts_with("HTTP/1.1 200"));
    assert!(get(run.address, "/").await.contains("x-sluice-store-failure: unreachable"));
    assert!(get(run.admin, "/metrics").await.contains(r#"sluice_store_healthy{store="default"} 0"#));
    assert!(!run.end().await.contains("s3cret"));
}

#[tokio::test]
async fn a_key_secret_that_anyone_can_derive_is_warned_about() {
    let directory = tempfile::tempdir().unwrap();
    let (file, secret) = (directory.path().join("policy.yaml"), directory.path().join("secret"));
    std::fs::write(&file, policy("5")).unwrap();
    std::fs::write(&secret, "AAAAAAAAAAAAAAAAAAAAAA==\n").unwrap();
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (bare, password) = (format!("redis://{unused}"), format!("redis://:s3cret@{unused}"));
    for (arguments, warned) in [
        (vec!["--store", bare.as_str()], true),
        (vec!["--store", &bare, "--key-secret-file", secret.to_str().unwrap()], false),
        (vec!["--store", &password], false),
        (vec![], false),
    ] {
        let log = Run::start(&file, &arguments).await.end().await;
        assert_eq!(log.contains("set --key-secret-file"), warned, "{arguments:?}: {log}");
    }
}

#[tokio::test]
async fn an_error_at_the_start_is_printed_and_ends_the_process() {
    let directory = tempfile::tempdir().unwrap();
    let (good, bad) = (directory.path().join("good.yaml"), directory.path().join("bad.yaml"));
    std::fs::write(&good, policy("5")).unwrap();
    std::fs::write(&bad, policy("lots")).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let occupied = listener.local_addr().unwrap().to_string();
    let (good, bad) = (good.to_str().unwrap(), bad.to_str().unwrap());
    for (arguments, expected) in [
        (
            vec!["--policy", bad, "--upstream", "http://127.0.0.1:1"],
            "bad.yaml:15: spec.limits[0].rates[0].requests: ",
        ),
        (
            vec!["--policy", "/nowhere.yaml", "--upstream", "http://127.0.0.1:1"],
            "/nowhere.yaml: No such file",
        ),
        (vec!["--policy", good, "--upstream", "https://127.0.0.1:1"], "without a path or TLS"),
        (
            vec!["--policy", good, "--upstream", "http://127.0.0.1:1", "--store", "redis://:s3cret@:x"],
            "--store: the store's URL cannot be used: its server has no host",
        ),
        (
            vec!["--policy", good, "--upstream", "http://127.0.0.1:1", "--store", "postgres://:s3cret@a"],
            "or a URL that begins with redis://, redis+cluster:// or redis+sentinel://",
        ),
        (
            vec!["--policy", good, "--upstream", "http://127.0.0.1:1", "--store", "Memory"],
            "--store: must be memory",
        ),
        (
            vec!["--policy", good, "--upstream", "http://127.0.0.1:1", "--key-secret-file", good],
            "--key-secret-file: not allowed with --store memory (the default)",
        ),
        (
            vec!["--policy", good, "--upstream", "http://127.0.0.1:1", "--listen", &occupied],
            "cannot listen on",
        ),
    ] {
        let output = Command::new(SLUICE)
            .args(["run", "--admin", "127.0.0.1:0"])
            .args(if arguments.contains(&"--listen") { vec![] } else { vec!["--listen", "127.0.0.1:0"] })
            .args(&arguments)
            .output()
            .await
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(expected), "{arguments:?}: {error}");
        assert!(!error.contains("s3cret"), "{error}");
    }
}

#[tokio::test]
async fn a_folder_is_enforced_and_one_policy_may_not_be_in_two_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| -> PathBuf { directory.path().join(name) };
    std::fs::write(path("a.yaml"), policy("5")).unwrap();
    let other = policy("7").replace("name: demo", "name: other").replace("per-client", "other");
    std::fs::create_dir(path("more")).unwrap();
    std::fs::write(path("more/b.yml"), &other).unwrap();
    let mut run = Run::start(directory.path(), &["-R"]).await;
    assert!(run.logged("policies applied").await.contains("default/demo, default/other"));
    std::fs::write(path("c.yaml"), policy("4")).unwrap();
    let line = run.logged("is defined in").await;
    assert!(line.contains("c.yaml:7: metadata.name: the RateLimitPolicy default/demo"), "{line}");
    run.logged("what was in force stays").await;
    std::fs::remove_file(path("c.yaml")).unwrap();
    run.logged("policies applied").await;
    run.end().await;
    // Without -R, and with files by their names.
    let mut run = Run::start(directory.path(), &[]).await;
    assert!(!run.logged("policies applied").await.contains("default/other"));
    run.end().await;
    let more = path("more/b.yml").display().to_string();
    let mut run = Run::start(&path("a.yaml"), &["-f", &more]).await;
    assert!(run.logged("policies applied").await.contains("default/demo, default/other"));
    run.end().await;
}

#[tokio::test]
async fn a_password_among_the_arguments_is_warned_of() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.yaml");
    std::fs::write(&file, policy("5")).unwrap();
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let url = format!("redis://:s3cret@{unused}");
    let warning = "--store has a password, and other users of this machine can read arguments";
    let log = Run::start(&file, &["--store", &url]).await.end().await;
    assert!(log.contains(warning) && !log.contains("s3cret"), "{log}");
    let log = Run::start_with(&file, &[], &[("SLUICE_STORE", &url)]).await.end().await;
    assert!(!log.contains(warning), "{log}");
}

#[tokio::test]
async fn a_command_line_that_is_wrong_exits_with_2_and_says_what_is_missing() {
    for (arguments, expected) in [
        (&["serve"][..], "--policy <FILE>|--ratelimit-config <DIRECTORY>"),
        (&["explain", "--descriptor", "user=a"], "--domain <NAME>"),
        (&["run"], "--policy <FILE>"),
        (&["check"], "<FILES>..."),
        (&["demo", "--no"], "--no"),
    ] {
        let output = Command::new(SLUICE).args(arguments).output().await.unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
    let empty = tempfile::tempdir().unwrap();
    let mut status = Command::new(SLUICE);
    status.arg("status").env("HOME", empty.path()).env_remove("KUBECONFIG");
    let output = status.output().await.unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(error.contains("set KUBECONFIG or pass --kubeconfig") && error.contains("--address"), "{error}");
}

#[tokio::test]
async fn shells_complete_and_man_pages_describe_each_command() {
    let script = Command::new(SLUICE).args(["completion", "bash"]).output().await.unwrap();
    let script = String::from_utf8(script.stdout).unwrap();
    let syntax = Command::new("bash").args(["-n", "-c", &script]).status().await.unwrap();
    assert!(syntax.success() && script.contains("--recursive"));
    let folder = tempfile::tempdir().unwrap();
    let pages = Command::new(SLUICE).arg("man").arg(folder.path()).status().await.unwrap();
    assert!(pages.success());
    for command in ["check", "run", "serve", "demo", "simulate", "status", "reset"] {
        let page = std::fs::read_to_string(folder.path().join(format!("sluice-{command}.1"))).unwrap();
        assert!(page.contains(".SH OPTIONS"), "{command}");
    }
}
