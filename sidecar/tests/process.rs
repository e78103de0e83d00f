//! The sidecar as a process: from its arguments, through an operator's session, to its end by a signal.

use std::net::SocketAddr;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStderr, Command};

use crate::support::operator::Operator;
use crate::support::*;

struct Process {
    child: Child,
    log: Lines<BufReader<ChildStderr>>,
    address: SocketAddr,
    admin: SocketAddr,
}

impl Process {
    async fn start(operator: &Operator, application: SocketAddr, arguments: &[&str]) -> Self {
        Self::start_after("", operator, application, arguments).await
    }

    /// Starts a sidecar after a command of a shell in a name space of mounts of its own.
    async fn start_after(
        before: &str,
        operator: &Operator,
        application: SocketAddr,
        arguments: &[&str],
    ) -> Self {
        let file = |name| operator.files.path().join(name).to_str().unwrap().to_owned();
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice-sidecar"));
        if !before.is_empty() {
            command = Command::new("unshare");
            let script = format!("{before} && exec \"$0\" \"$@\"");
            command.args([
                "--map-root-user",
                "--mount",
                "sh",
                "-c",
                &script,
                env!("CARGO_BIN_EXE_sluice-sidecar"),
            ]);
        }
        let mut child = command
            .args(["--proxy", &format!("127.0.0.1:0={application}"), "--admin", "127.0.0.1:0"])
            .args(["--operator", &operator.url, "--state-dir", &file("state")])
            .args(["--ca-file", &file("ca.crt"), "--token-file", &file("token"), "--workers", "2"])
            .args(["--log-format", "json"])
            .args(arguments)
            .env("SLUICE_DRAIN_DELAY", "0s")
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let line: serde_json::Value = loop {
            let line = log.next_line().await.unwrap().unwrap();
            if line.contains("\"listen\"") {
                break serde_json::from_str(&line).unwrap();
            }
        };
        let address = |name: &str| line[name].as_str().unwrap().parse().unwrap();
        Self { child, log, address: address("listen"), admin: address("admin") }
    }

    async fn signal(&self, signal: &str) {
        let id = self.child.id().unwrap();
        let status = Command::new("sh").args(["-c", &format!("kill -{signal} {id}")]).status().await;
        assert!(status.unwrap().success());
    }

    async fn logged(&mut self, part: &str) {
        while !self.log.next_line().await.unwrap().unwrap().contains(part) {}
    }
}

#[tokio::test]
async fn a_process_enforces_received_policies_and_ends_on_sigterm() {
    let application = Application::start().await;
    let mut operator = Operator::start().await;
    let mut process = Process::start(&operator, application.address, &[]).await;
    assert_eq!(page(process.admin, "/startupz").await.status, 503);
    let session = operator.session().await;
    session.credentials("1");
    session.policies("2", &[("uid-a", &policy_json("a", "Allow", &[limit("l", 1, "")]))]);
    operator.report().await;
    assert_eq!(page(process.admin, "/startupz").await.status, 200);
    assert_eq!(get(process.address, "x-api-key: a\r\n").await.status, 200);
    assert_eq!(get(process.address, "x-api-key: a\r\n").await.status, 429, "workers share counters");
    process.signal("TERM").await;
    process.logged("drained").await;
    assert!(process.child.wait().await.unwrap().success());

    // A restart without the operator enforces the last good policies.
    drop(session);
    let url = operator.url.clone();
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    operator.url = format!("https://{gone}");
    let process = Process::start(&operator, application.address, &[]).await;
    operator.url = url;
    let response = get(process.address, "x-api-key: b\r\n").await;
    assert_eq!(response.header("x-ratelimit-limit"), "1");
}

#[tokio::test]
async fn a_requested_drain_ends_connections_and_the_process_serves_until_a_signal() {
    let application = Application::start().await;
    let operator = Operator::start().await;
    let request = operator.files.path().join("state/draining");
    std::fs::write(&request, "left by an earlier process").unwrap();
    let mut process = Process::start(&operator, application.address, &[]).await;
    assert!(!request.exists());
    let mut client = Client::connect(process.address).await;
    assert_eq!(client.get("").await.header("connection"), "");
    assert_eq!(page(process.admin, "/readyz").await.status, 200);

    let drain = async |directory: &std::path::Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice-sidecar"));
        // Commands in a container have the environment of its process.
        let command =
            command.arg("drain").arg("--state-dir").arg(directory).env("SLUICE_PROXY", "127.0.0.1:1=a:1");
        command.output().await.unwrap()
    };
    let nowhere = drain(&operator.files.path().join("nowhere")).await;
    assert!(!nowhere.status.success());
    assert!(String::from_utf8(nowhere.stderr).unwrap().contains("nowhere: No such file"));
    assert!(drain(&operator.files.path().join("state")).await.status.success());
    process.logged("drain requested").await;
    while page(process.admin, "/readyz").await.status != 503 {}
    assert_eq!(client.get("").await.header("connection"), "close");
    client.closed().await;
    assert_eq!(get(process.address, "").await.status, 200, "it still accepts");
    process.signal("TERM").await;
    process.logged("drained").await;
    assert!(process.child.wait().await.unwrap().success());
}

/// A disk is full, or cannot be written: the sidecar goes on without what it keeps for its own restart.
#[tokio::test]
async fn a_state_directory_that_takes_nothing_stops_nothing() {
    let application = Application::start().await;
    for (options, reason) in [("size=4k", "No space left on device"), ("ro", "Read-only file system")] {
        let mut operator = Operator::start().await;
        let state = operator.files.path().join("state");
        let state = state.display();
        let before = format!(
            "mount -t tmpfs -o {options} tmpfs {state} && (cat /dev/zero >{state}/full || true) 2>/dev/null"
        );
        let mut process = Process::start_after(&before, &operator, application.address, &[]).await;
        let session = operator.session().await;
        session.credentials("1");
        session.policies("2", &[("uid-a", &policy_json("a", "Allow", &[limit("l", 1, "")]))]);
        operator.report().await;
        process.logged(reason).await;
        assert_eq!(get(process.address, "x-api-key: a\r\n").await.status, 200);
        assert_eq!(get(process.address, "x-api-key: a\r\n").await.status, 429);
        process.signal("TERM").await;
        process.logged("drained").await;
        assert!(process.child.wait().await.unwrap().success());
    }
}

#[tokio::test]
async fn a_second_signal_ends_a_draining_process() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let operator = Operator::start().await;
    let arguments = ["--drain-timeout", "1h"];
    let mut process = Process::start(&operator, listener.local_addr().unwrap(), &arguments).await;
    let mut client = Client::connect(process.address).await;
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let _no_response = listener.accept().await.unwrap();
    process.signal("TERM").await;
    process.logged("draining").await;
    process.signal("INT").await;
    process.logged("a second signal").await;
    assert!(process.child.wait().await.unwrap().success());
    client.closed().await;
}

#[tokio::test]
async fn invalid_arguments_are_reported() {
    for (arguments, expected) in [
        (&["--proxy", "127.0.0.1:0=a"][..], "HOST:PORT"),
        (&["--proxy", "127.0.0.1:0=127.0.0.1:1", "--operator", "http://a"], "https://HOST:PORT"),
        (&["--proxy", "127.0.0.1:0=127.0.0.1:1", "--drain-delay", "soon"], "invalid duration"),
        (&["--proxy", "127.0.0.1:0=127.0.0.1:1", "--log", "=x="], "log filter"),
        (&["--proxy", "192.0.2.1:80=127.0.0.1:1", "--admin", "127.0.0.1:0"], "cannot listen on 192.0.2.1:80"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice-sidecar"));
        let output = command.args(arguments).output().await.unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(expected), "{arguments:?}: {error}");
    }
}
