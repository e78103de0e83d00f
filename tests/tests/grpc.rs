//! Real clients and servers of gRPC, with `sluice run` between them: grpcio, which is gRPC in C, and tonic.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use sluice_tests::client::get;
use sluice_tests::installed::install;
use sluice_tests::process::{Process, binary, free_port};
use sluice_tests::wait::until;
use tokio::process::Command;
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// Longest time that a client needs for all its calls, with much to spare.
const PATIENCE: Duration = Duration::from_secs(300);

/// Checks that hold without a proxy too. The server ends its connections all the time, for which a client without retries has errors,
/// unless a proxy makes the calls again that were not processed.
const DIRECT: [&str; 8] = [
    "unary",
    "compressed",
    "streams",
    "unread_downloads",
    "unread_uploads",
    "errors",
    "long_trailers",
    "cancellation",
];
const THROUGH_A_PROXY: [&str; 3] = ["too_long_trailers", "leaving_connections", "denied"];

/// Starts a sidecar before an application, with a limit of two calls for each user that says its name.
async fn start_sidecar(upstream: &str, directory: &Path) -> (Process, String) {
    let policy = json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "RateLimitPolicy", "metadata": {"name": "calls"},
        "spec": {"limits": [{
            "name": "users",
            "matches": [{"grpc": {"service": "test.Calls"}}],
            "key": {"parts": [{"header": {"name": "user"}}], "onMissing": "Skip"},
            "algorithm": {"fixedWindow": {}},
            "rates": [{"requests": 2, "per": "24h"}],
        }]},
    });
    let file = directory.join("policy.yaml");
    std::fs::write(&file, policy.to_string()).unwrap();
    let (port, admin) = (free_port().to_string(), format!("127.0.0.1:{}", free_port()));
    let address = format!("127.0.0.1:{port}");
    let arguments =
        ["run", "--listen", &address, "--admin", &admin, "--upstream", &format!("http://{upstream}")];
    let arguments: Vec<_> = arguments.into_iter().map(str::to_owned).collect();
    let policy = ["--policy".to_owned(), file.display().to_string()];
    let process = Process::start(
        &binary("sluice"),
        &[arguments, policy.to_vec()].concat(),
        &[],
        &directory.join("sluice.log"),
        "KILL",
    );
    until("the sidecar is ready", async || (get(&admin, "/readyz", &[]).await.status == 200).then_some(()))
        .await;
    (process, port)
}

#[tokio::test]
async fn calls_of_grpcio_are_as_without_a_proxy() {
    let application = install("grpc");
    let directory = tempfile::tempdir().unwrap();
    // A client of grpcio can itself lose a call to a connection that the server ends. Only the sidecar is tried with that.
    let (_calm, port) = start_server(&application, "3600000", directory.path()).await;
    check(&application, &port, &DIRECT).await;
    let (_server, port) = start_server(&application, "500", directory.path()).await;
    let (_sidecar, port) = start_sidecar(&format!("127.0.0.1:{port}"), directory.path()).await;
    check(&application, &port, &[&DIRECT[..], &THROUGH_A_PROXY].concat()).await;
}

/// Starts a server whose connections live for so many milliseconds. Returns its port.
async fn start_server(application: &Path, age: &str, directory: &Path) -> (Process, String) {
    let port = free_port().to_string();
    let arguments = ["server".to_owned(), port.clone(), age.to_owned()];
    let log = directory.join(format!("server-{age}.log"));
    let process = Process::start(&application.join("run"), &arguments, &[], &log, "KILL");
    let address = format!("127.0.0.1:{port}");
    until("the server listens", async || tokio::net::TcpStream::connect(&address).await.ok()).await;
    (process, port)
}

/// Makes the calls of each check, and asserts that it holds.
async fn check(application: &Path, port: &str, checks: &[&str]) {
    let mut command = Command::new(application.join("run"));
    command.args(["client", port]).args(checks).current_dir(application).kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await.expect("the client hangs").unwrap();
    assert!(output.status.success(), "{output:?}");
    let passed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(passed.lines().collect::<Vec<_>>(), checks);
}

#[tokio::test]
async fn calls_of_tonic_are_as_without_a_proxy() {
    let (reporter, service) = tonic_health::server::health_reporter();
    reporter.set_service_status("shop", ServingStatus::Unknown).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = listener.local_addr().unwrap().to_string();
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
    let directory = tempfile::tempdir().unwrap();
    let (_sidecar, port) = start_sidecar(&upstream, directory.path()).await;

    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
    let mut client = HealthClient::new(endpoint.connect().await.unwrap());
    let mut watch = async |service: &str| {
        client.watch(HealthCheckRequest { service: service.to_owned() }).await.unwrap().into_inner()
    };
    // Streams stay open, and each change reaches all of them.
    let mut watches = Vec::new();
    for _ in 0..50 {
        watches.push(watch("shop").await);
    }
    for (status, number) in [(ServingStatus::Serving, 1), (ServingStatus::NotServing, 2)] {
        reporter.set_service_status("shop", status).await;
        for watch in &mut watches {
            while watch.message().await.unwrap().expect("the stream goes on").status != number {}
        }
    }
    let response = client.check(HealthCheckRequest { service: "shop".to_owned() }).await.unwrap();
    assert_eq!(response.into_inner().status, 2);
    let error = client.check(HealthCheckRequest { service: "other".to_owned() }).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::NotFound);
}
