//! What the operator costs the API server and its sidecars, each test with a control plane of its own.

use serde_json::json;
use sluice_tests::components::{ControlClient, Operator};
use sluice_tests::kubernetes::{ControlPlane, TestNamespace};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Nothing listens here. The sidecars' reports decide about the store.
const STORE_URL: &str = "redis://127.0.0.1:1";

/// Starts a control plane with an operator, and creates a namespace.
async fn start() -> (ControlPlane, Operator, TestNamespace, ControlClient) {
    let plane = ControlPlane::start().await;
    let operator = Operator::start(&plane, "sluice-system", STORE_URL).await;
    let namespace = TestNamespace::create(plane.client().await, "many").await;
    let control = ControlClient::new(&operator.control_url, operator.ca_file());
    (plane, operator, namespace, control)
}

#[tokio::test]
async fn an_operator_that_stops_ends_its_sessions_before_it_finishes_other_requests() {
    let (_plane, mut operator, namespace, control) = start().await;
    let pod = namespace.pod("one", true, json!({"app": "a"})).await;
    let token = namespace.token(&pod, "sluice.dev").await;
    let mut session = control.connect(&token, None).await.expect("a session");
    session.policies().await;
    let admin = operator.admin_url.trim_start_matches("http://");
    let mut in_flight = TcpStream::connect(admin).await.unwrap();
    in_flight.write_all(b"GET /livez HTTP/1.1\r\nconnection: close\r\n").await.unwrap();
    operator.process.signal();
    while session.event().await.is_some() {}
    // It is still being waited for, as the sessions were before.
    in_flight.write_all(b"host: admin\r\n\r\n").await.unwrap();
    let mut response = String::new();
    in_flight.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert_eq!(operator.process.stop(), Some(0));
}
