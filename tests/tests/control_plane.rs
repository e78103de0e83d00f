//! How an operator treats its sidecars when it stops.

use std::net::SocketAddr;

use serde_json::json;
use sluice_tests::components::{ControlClient, Operator};
use sluice_tests::kubernetes::{ControlPlane, TestNamespace};
use sluice_tests::process::free_port;
use sluice_tests::wait::until;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Nothing listens here. The sidecars' reports decide about the store.
const STORE_URL: &str = "redis://127.0.0.1:1";

/// Reports whether the server of a connection over IPv4 loopback has read all that was sent.
fn is_read(connection: &TcpStream) -> bool {
    let hex = |address: SocketAddr| format!("0100007F:{:04X}", address.port());
    let (server, client) = (hex(connection.peer_addr().unwrap()), hex(connection.local_addr().unwrap()));
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    // Number, both addresses, state, and the lengths of the two queues.
    let mut sockets = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let socket = sockets.find(|fields| fields[1] == server && fields[2] == client);
    socket.is_some_and(|fields| fields[4].ends_with(":00000000"))
}

#[tokio::test]
async fn sessions_last_until_the_next_leader_listens() {
    let (plane, name) = (ControlPlane::shared().await, "sluice-moves");
    let mut operator = Operator::start(plane, name, STORE_URL).await;
    let namespace = TestNamespace::create(plane.client().await, "moves").await;
    let pod = namespace.pod("one", true, json!({"app": "a"})).await;
    let token = namespace.token(&pod, "sluice.dev").await;
    let mut session =
        ControlClient::new(&operator.control_url, operator.ca_file()).connect(&token, None).await.unwrap();
    session.policies().await;
    let address = format!("127.0.0.1:{}", free_port());
    let url = format!("https://{address}");
    let mut next = Operator::begin(plane, name, STORE_URL, &url, &["--pod-name=next"]).await;
    until("another replica waits for the lease", async || {
        next.process.output().contains("the lease is watched").then_some(())
    })
    .await;
    operator.process.signal();
    while session.event().await.is_some() {}
    TcpStream::connect(&address).await.expect("the next leader listens");
    next.lead(plane, name).await;
    let mut session = ControlClient::new(&url, next.ca_file()).connect(&token, None).await.unwrap();
    session.policies().await;
    assert_eq!(operator.process.stop(), Some(0));
}

#[tokio::test]
async fn an_operator_that_stops_ends_its_sessions_before_it_finishes_other_requests() {
    let plane = ControlPlane::shared().await;
    let mut operator = Operator::start(plane, "sluice-stops", STORE_URL).await;
    let namespace = TestNamespace::create(plane.client().await, "stops").await;
    let pod = namespace.pod("one", true, json!({"app": "a"})).await;
    let token = namespace.token(&pod, "sluice.dev").await;
    let control = ControlClient::new(&operator.control_url, operator.ca_file());
    let mut session = control.connect(&token, None).await.expect("a session");
    session.policies().await;
    let admin = operator.admin_url.trim_start_matches("http://");
    let mut in_flight = TcpStream::connect(admin).await.unwrap();
    in_flight.write_all(b"GET /livez HTTP/1.1\r\nconnection: close\r\n").await.unwrap();
    until("the operator has read the beginning of a request", async || is_read(&in_flight).then_some(()))
        .await;
    operator.process.signal();
    while session.event().await.is_some() {}
    // It is still being waited for, as the sessions were before.
    in_flight.write_all(b"host: admin\r\n\r\n").await.unwrap();
    let mut response = String::new();
    in_flight.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert_eq!(operator.process.stop(), Some(0));
}
