//! Whoever reaches a port keeps nobody else from it, and ends no process, whatever it sends or leaves out.

#[path = "../../../sidecar/tests/pressure/cgroup.rs"]
mod cgroup;

use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;
use futures::future::join_all;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use sluice_tests::components::operator::Operator;
use sluice_tests::components::session::ControlClient;
use sluice_tests::kubernetes::control_plane::ControlPlane;
use sluice_tests::process::repository_root;
use sluice_tests::wait::until;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::client::TlsStream;

use self::cgroup::Cgroup;
use super::daemon::{Kind, Plan};

/// The memory limit of the operator in the chart.
const MEMORY: u64 = 512 << 20;
/// More connections than any port of pages, the webhook or a port with `--max-connections=64` has.
const CONNECTIONS: usize = 1100;

/// Connects from an address of this machine.
async fn connect(source: Ipv4Addr, address: SocketAddr) -> Option<TcpStream> {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind((source, 0).into()).expect("an address");
    socket.connect(address).await.ok()
}

/// Reports whether a port answers, be it that it does not speak what it is asked.
async fn answers(source: Ipv4Addr, address: SocketAddr) -> bool {
    let Some(mut stream) = connect(source, address).await else { return false };
    let sent = stream.write_all(b"GET /nothing-here HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    let mut first = [0];
    sent.is_ok() && stream.read(&mut first).await.is_ok_and(|bytes| bytes > 0)
}

/// Returns connections that say nothing, begin a head, or begin a handshake of TLS.
async fn silent(source: Ipv4Addr, address: SocketAddr) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    for n in 0..CONNECTIONS {
        let beginning = [
            &b""[..],
            b"GET / HTTP/1.1\r\nhost:",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\x16\x03\x01\x02\x00",
        ][n % 4];
        if let Some(mut stream) = connect(source, address).await {
            let _ = stream.write_all(beginning).await;
            streams.push(stream);
        }
    }
    streams
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_of_one_peer_keep_nobody_from_any_port_of_any_daemon() {
    for kind in [Kind::Run, Kind::Serve, Kind::Sidecar, Kind::Service, Kind::Operator] {
        let mut plan = Plan::new(kind, "floods").await;
        if kind == Kind::Sidecar {
            plan = plan.with("--max-connections=64");
        }
        let ports = plan.ports.clone();
        let mut daemon = plan.start_logging();
        daemon.serves().await;
        for (name, port) in ports {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            // Where the operator does not lead, nobody listens for sidecars.
            until("the port is served", async || connect(Ipv4Addr::LOCALHOST, address).await).await;
            let flood = silent(Ipv4Addr::new(127, 9, 0, 1), address).await;
            until(&format!("{kind:?} {name} answers another peer"), async || {
                answers(Ipv4Addr::new(127, 9, 0, 2), address).await.then_some(())
            })
            .await;
            drop(flood);
        }
        assert!(daemon.process.is_running(), "{kind:?}: {}", daemon.process.output());
    }
}

fn review(kind: &str, object: &Value) -> String {
    let resource = json!({"group": "", "version": "v1", "resource": "pods"});
    let request = json!({
        "uid": "1", "kind": {"group": "", "version": "v1", "kind": kind}, "resource": resource, "operation": "CREATE",
        "userInfo": {}, "object": object, "namespace": "shop", "name": "p",
    });
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).to_string()
}

/// Returns a pod of about 3 MB.
fn large_pod() -> Value {
    let environment: Vec<Value> =
        (0..60_000).map(|n| json!({"name": format!("VARIABLE_{n}"), "value": "some value"})).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "large", "namespace": "shop"},
        "spec": {"containers": [{
            "name": "app", "image": "app", "ports": [{"name": "http", "containerPort": 8080}], "env": environment,
        }]},
    })
}

fn post(path: &str, body: String) -> Request<Full<Bytes>> {
    let request = Request::post(path).header("host", "a").header("content-type", "application/json");
    request.body(Full::new(Bytes::from(body))).expect("a request")
}

/// Sends reviews that are never complete, over many connections of one address.
async fn incomplete(webhook: &ControlClient, connections: usize) -> Vec<TlsStream<TcpStream>> {
    let chunk = vec![b' '; 1 << 20];
    let mut streams = Vec::new();
    for _ in 0..connections {
        let Ok(mut stream) = webhook.dial().await else { continue };
        let head = "POST /inject HTTP/1.1\r\nhost: a\r\ncontent-length: 8388608\r\n\r\n";
        let mut sent = stream.write_all(head.as_bytes()).await;
        for _ in 0..7 {
            if sent.is_ok() {
                sent = stream.write_all(&chunk).await;
            }
        }
        streams.push(stream);
    }
    streams
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_ends_an_operator_by_reviews() {
    let Some(cgroup) = Cgroup::new(MEMORY) else {
        println!("skipped: this process may not create a cgroup with a memory limit");
        return;
    };
    let plane = ControlPlane::shared().await;
    let mut operator = Operator::start(plane, "flooded-system", "redis://127.0.0.1:1").await;
    std::fs::write(cgroup.processes(), operator.process.child()).expect("a cgroup of the test");
    let client = || ControlClient::new(&operator.webhook_url, operator.ca_file());
    let (attacker, server) = (client(), client());
    let _incomplete = incomplete(&attacker, 63).await;
    let webhook = operator.webhook_url.trim_start_matches("https://").parse().expect("an address");
    let _silent = silent(Ipv4Addr::new(127, 9, 0, 1), webhook).await;

    // The API server gets through meanwhile.
    let large = review("Pod", &large_pod());
    let response = server.send(post("/inject", large.clone())).await;
    assert_eq!(response.status(), 200);
    let response = response.into_body().collect().await.expect("a body").to_bytes();
    let response: Value = serde_json::from_slice(&response).expect("a review");
    assert_eq!(response["response"]["allowed"], true);
    assert!(response["response"]["patch"].is_array(), "it has a sidecar: {response}");

    // Many large reviews at once, of pods, policies and stores, each as expensive as it can be made.
    let small = json!({"a": 0});
    let policy = json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "RateLimitPolicy",
        "metadata": {"name": "p", "namespace": "shop"}, "spec": {"limits": vec![small.clone(); 400_000]},
    });
    let store = json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "RateLimitStore",
        "metadata": {"name": "s", "namespace": "shop"}, "spec": {"redis": vec![small; 400_000]},
    });
    let (policy, store) = (review("RateLimitPolicy", &policy), review("RateLimitStore", &store));
    let many = (0..24).map(|n| match n % 3 {
        0 => ("/inject", &large),
        1 => ("/validate", &policy),
        _ => ("/validate", &store),
    });
    // Some connections end so that others have room.
    let many = many.map(async |(path, body)| attacker.try_send(post(path, body.clone())).await.ok());
    let answers: Vec<_> = join_all(many).await.into_iter().flatten().map(|answer| answer.status()).collect();
    assert!(answers.iter().all(|status| [200, 503].contains(&status.as_u16())), "{answers:?}");
    assert!(answers.contains(&http::StatusCode::OK), "{answers:?}");
    assert!(operator.process.is_running(), "{}", operator.process.output());
    assert_eq!(cgroup.oom_kills(), 0, "the kernel has killed the operator");
    let ready =
        sluice_tests::client::get(operator.admin_url.trim_start_matches("http://"), "/livez", &[]).await;
    assert_eq!(ready.status, 200);
}

#[test]
fn the_docs_have_a_row_for_every_port() {
    let security = std::fs::read_to_string(repository_root().join("docs/security.md")).expect("a page");
    let table = security.split("\n## Ports\n").nth(1).expect("a section about ports");
    for port in [
        "operator 9443",
        "operator 8443",
        "operator 8080",
        "service 8081",
        "8080",
        "service 8791",
        "service 8793",
        "sidecar 8790",
        "sidecar 8791",
        "sidecar 8793",
    ] {
        assert!(table.lines().any(|row| row.starts_with("| ") && row.contains(port)), "{port}");
    }
}
