//! The start and the end of a sidecar, and what its admin port reports meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

use crate::support::*;

#[tokio::test]
async fn the_admin_port_serves_health_and_metrics_and_nothing_else() {
    let application = Application::start().await;
    let (sidecar, _) = sidecar(application.address);
    let admin = sidecar.admin().unwrap();
    assert_eq!(page(admin, "/livez").await.status, 200);
    assert_eq!(page(admin, "/readyz").await.status, 200);
    assert_eq!(page(admin, "/startupz").await.status, 503);
    assert_eq!(metric(&sidecar.metrics(), "sluice_sidecar_unlimited"), 1);
    assert_eq!(get(sidecar.addresses()[0], "").await.status, 200, "no limits before the first policies");
    publish(&sidecar, &sluice_config::store_access::StoreChoice::Memory, &[policy(&[limit("l", 1, "")])]);
    assert_eq!(page(admin, "/startupz").await.status, 200);
    let metrics = page(admin, "/metrics").await;
    assert_eq!(metrics.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    assert!(metrics.body.contains("# TYPE sluice_panics_total counter\n") && !metrics.body.contains("# EOF"));
    let mut scrape = Client::connect(admin).await;
    scrape.send("GET /metrics HTTP/1.1\r\nhost: a\r\naccept: application/openmetrics-text\r\n\r\n").await;
    let open_metrics = scrape.response().await;
    assert_eq!(
        open_metrics.header("content-type"),
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    );
    assert!(
        open_metrics.body.contains("# TYPE sluice_panics counter\n")
            && open_metrics.body.ends_with("# EOF\n")
    );
    assert_eq!(metric(&metrics.body, "sluice_sidecar_unlimited"), 0);
    for (name, reasons) in [
        ("upstream_errors", "connect_timeout connect nonsense closed unprocessed broken_request stopped"),
        (
            "refused_requests",
            "length coding host target path_length path limits connect body method version header head_size malformed no_policies",
        ),
        (
            "ended_connections",
            "evicted_idle evicted_stalled memory body_timeout idle_timeout upgrade_timeout",
        ),
        ("ended_streams", "memory body_timeout"),
    ] {
        for reason in reasons.split(' ') {
            let line = format!("sluice_{name}_total{{reason=\"{reason}\"}} 0");
            assert!(metrics.body.lines().any(|found| found == line), "{line}: {}", metrics.body);
        }
    }
    assert!(metrics.body.contains(
        "sluice_policy_info{policy_namespace=\"shop\",policy=\"checkout\",uid=\"uid-checkout\",hash=\""
    ));
    assert_eq!(page(admin, "/config").await.status, 404);
    let mut client = Client::connect(admin).await;
    client.send("POST /livez HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n").await;
    assert_eq!(client.response().await.status, 405);
    sidecar.drain();
    assert_eq!(page(admin, "/readyz").await.status, 503);
    assert_eq!(page(admin, "/livez").await.status, 200);
}

#[tokio::test]
async fn startup_succeeds_without_policies_after_the_startup_wait() {
    let application = Application::start().await;
    let route = sluice_sidecar::Route {
        listen: "127.0.0.1:0".parse().unwrap(),
        upstream: application.address.to_string().parse().unwrap(),
    };
    let mut options = sluice_sidecar::Options::new(vec![route]);
    options.admin = Some("127.0.0.1:0".parse().unwrap());
    options.startup_wait = Duration::ZERO;
    let sidecar = sluice_sidecar::Sidecar::start(options).unwrap();
    while page(sidecar.admin().unwrap(), "/startupz").await.status != 200 {}
    assert_eq!(metric(&sidecar.metrics(), "sluice_sidecar_unlimited"), 1);
}

#[tokio::test]
async fn a_draining_sidecar_accepts_connections_and_ends_them_after_a_request() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[]);
    let address = sidecar.addresses()[0];
    let mut client = Client::connect(address).await;
    assert_eq!(client.get("").await.header("connection"), "");
    sidecar.drain();
    assert_eq!(client.get("").await.header("connection"), "close");
    client.closed().await;
    assert_eq!(get(address, "").await.status, 200);
}

#[tokio::test]
async fn a_draining_sidecar_ends_http_2_connections_after_their_first_request() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[]);
    let address = sidecar.addresses()[0];
    let request = || http::Request::builder().uri("http://a/").body(http_body_util::Full::default()).unwrap();
    let (mut idle, end) = http2(address).await;
    assert_eq!(idle.send_request(request()).await.unwrap().status(), 200);
    let (mut unused, unused_end) = http2(address).await;
    sidecar.drain();
    end.await.unwrap().unwrap();
    for _ in 0..3 {
        let (mut client, end) = http2(address).await;
        assert_eq!(client.send_request(request()).await.unwrap().status(), 200);
        end.await.unwrap().unwrap();
    }
    assert_eq!(unused.send_request(request()).await.unwrap().status(), 200);
    unused_end.await.unwrap().unwrap();
    let (_never_used, _end) = http2(address).await;
    sidecar.shutdown(Duration::ZERO, Duration::from_secs(600)).await;
}

#[tokio::test]
async fn requests_in_flight_end_before_the_sidecar_does() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sidecar = sidecar_with(listener.local_addr().unwrap(), &[]);
    let address = sidecar.addresses()[0];
    let mut idle = Client::connect(address).await;
    let mut client = Client::connect(address).await;
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let (stream, _) = listener.accept().await.unwrap();
    let mut application = Client(tokio::io::BufReader::new(stream));
    while !application.line().await.is_empty() {}
    idle.send("GET / HTTP/1.1\r\nhost: a\r\n").await;
    // The request has reached the application: now the sidecar shuts down.
    let ending = tokio::spawn(sidecar.shutdown(Duration::ZERO, Duration::from_secs(600)));
    while TcpStream::connect(address).await.is_ok() {}
    application.send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe").await;
    assert_eq!(client.line().await, "HTTP/1.1 200 OK");
    application.send("llo").await;
    client.closed().await;
    // A request whose head had begun before the shutdown is served too.
    idle.send("\r\n").await;
    while !application.line().await.is_empty() {}
    application.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    assert_eq!(idle.response().await.status, 200);
    ending.await.unwrap();
}

#[tokio::test]
async fn requests_in_flight_are_cut_off_after_the_grace_period() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sidecar = sidecar_with(listener.local_addr().unwrap(), &[]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let _no_response = listener.accept().await.unwrap();
    sidecar.shutdown(Duration::ZERO, Duration::ZERO).await;
    client.closed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_under_load_loses_no_request() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[limit("l", 1 << 40, "")])]);
    let address = sidecar.addresses()[0];
    let (leaving, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..16)
        .map(|n| {
            let (leaving, answered) = (leaving.clone(), answered.clone());
            tokio::spawn(async move {
                // Like a client of a Service: it opens no new connections once the endpoint is gone, and uses
                // open connections until the server closes them.
                while !leaving.load(Ordering::SeqCst) {
                    let mut client = Client::connect(address).await;
                    loop {
                        let connection = if n % 4 == 0 { "connection: close\r\n" } else { "" };
                        let response = client.get(connection).await;
                        assert_eq!(response.status, 200);
                        answered.fetch_add(1, Ordering::SeqCst);
                        if response.header("connection") == "close" {
                            break;
                        }
                    }
                }
            })
        })
        .collect();
    while answered.load(Ordering::SeqCst) < 500 {
        tokio::task::yield_now().await;
    }
    sidecar.drain();
    let closing = answered.load(Ordering::SeqCst);
    while answered.load(Ordering::SeqCst) < closing + 500 {
        tokio::task::yield_now().await;
    }
    leaving.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.unwrap();
    }
    sidecar.shutdown(Duration::ZERO, Duration::from_secs(600)).await;
    assert_eq!(application.count(), answered.load(Ordering::SeqCst));
}
