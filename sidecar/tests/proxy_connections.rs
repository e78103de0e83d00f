//! Connections: timeouts, the maximum number, addresses, and isolation of clients from each other.

mod proxy_protocol;

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};

use crate::support::*;

fn request(path: &str) -> Request<Full<Bytes>> {
    Request::builder().uri(format!("http://a{path}")).body(Full::default()).unwrap()
}

#[tokio::test]
async fn an_idle_connection_outlives_the_head_timeout() {
    let application = Application::start().await;
    let sidecar =
        sidecar_tuned(application.address, |options| options.header_timeout = Duration::from_millis(50));
    let address = sidecar.addresses()[0];
    let silent = Client::connect(address).await;
    let mut idle = Client::connect(address).await;
    assert_eq!(idle.get("").await.status, 200);
    for head in ["G", "GET / HTTP/1.1\r\nhost"] {
        // When this connection is closed, the others have been idle for longer than the head timeout.
        let mut slow = Client::connect(address).await;
        slow.send(head).await;
        slow.closed().await;
    }
    assert_eq!(idle.get("").await.status, 200);
    idle.send("GET /").await;
    idle.closed().await;
    let mut silent = silent;
    assert_eq!(silent.get("").await.status, 200);
}

#[tokio::test]
async fn the_idle_timeout_applies_only_between_requests() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sidecar = sidecar_tuned(listener.local_addr().unwrap(), |options| {
        options.idle_timeout = Duration::from_secs(1);
    });
    let address = sidecar.addresses()[0];
    let mut waiting = Client::connect(address).await;
    waiting.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let (stream, _) = listener.accept().await.unwrap();
    let mut application = Client(tokio::io::BufReader::new(stream));
    while !application.line().await.is_empty() {}
    Client::connect(address).await.closed().await;
    application.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    assert_eq!(waiting.response().await.status, 200, "a request in flight is not idle");
    waiting.closed().await;
}

#[tokio::test]
async fn a_request_in_flight_keeps_its_place_and_the_pod_is_unready_when_all_places_are_taken() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sidecar = sidecar_tuned(listener.local_addr().unwrap(), |options| {
        (options.workers, options.max_connections) = (4, 1);
        options.admin = Some("127.0.0.1:0".parse().unwrap());
    });
    let (address, admin) = (sidecar.addresses()[0], sidecar.admin().unwrap());
    let mut first = Client::connect(address).await;
    first.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let mut application = Client(tokio::io::BufReader::new(listener.accept().await.unwrap().0));
    while !application.line().await.is_empty() {}
    assert_eq!(page(admin, "/readyz").await.status, 200);
    let mut others = Vec::new();
    for _ in 0..8 {
        let mut other = Client::connect(address).await;
        other.send("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
        others.push(other);
    }
    let unready = loop {
        let page = page(admin, "/readyz").await;
        if page.status != 200 {
            break page;
        }
    };
    assert_eq!((unready.status, unready.body.split(':').next()), (503, Some("saturated")));
    application.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
    assert_eq!(first.response().await.status, 200);
    let serving = tokio::spawn(async move {
        loop {
            let mut application = Client(tokio::io::BufReader::new(listener.accept().await.unwrap().0));
            while !application.line().await.is_empty() {}
            application.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
        }
    });
    for mut other in others {
        assert_eq!(other.response().await.status, 200);
    }
    assert_eq!(page(admin, "/readyz").await.status, 200);
    serving.abort();
}

#[tokio::test]
async fn silent_sockets_make_room() {
    let application = Application::start().await;
    let sidecar = sidecar_tuned(application.address, |options| options.max_connections = 16);
    let address = sidecar.addresses()[0];
    let mut silent = Vec::new();
    for n in 0..40 {
        let mut client = Client::connect(address).await;
        if n % 2 == 0 {
            client.send("GET / HTTP/1.1\r\nhost").await;
        }
        silent.push(client);
    }
    assert_eq!(get(address, "").await.status, 200);
    silent.remove(0).closed().await;
    let ended = metric(&sidecar.metrics(), "sluice_ended_connections_total{reason=\"evicted_idle\"}");
    assert!(ended >= 25, "{ended}");
}

#[tokio::test]
async fn the_longest_idle_connection_makes_room() {
    let application = Application::start().await;
    let sidecar = sidecar_tuned(application.address, |options| options.max_connections = 2);
    let address = sidecar.addresses()[0];
    let mut first = Client::connect(address).await;
    assert_eq!(first.get("").await.status, 200);
    let mut second = Client::connect(address).await;
    assert_eq!(second.get("").await.status, 200);
    assert_eq!(first.get("").await.status, 200);
    let mut third = Client::connect(address).await;
    assert_eq!(third.get("").await.status, 200);
    second.closed().await;
    assert_eq!(first.get("").await.status, 200);
}

#[tokio::test]
async fn an_idle_http_2_connection_makes_room_and_receives_goaway() {
    let application = Application::start().await;
    let sidecar = sidecar_tuned(application.address, |options| options.max_connections = 1);
    let address = sidecar.addresses()[0];
    let (mut idle, end) = http2(address).await;
    assert_eq!(idle.send_request(request("/")).await.unwrap().status(), 200);
    assert_eq!(get(address, "").await.status, 200);
    end.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_body_without_progress_ends_its_connection() {
    let application = Application::start().await;
    let sidecar = sidecar_tuned(application.address, |options| {
        options.body_timeout = Some(Duration::from_secs(1));
    });
    let address = sidecar.addresses()[0];
    let mut slow = Client::connect(address).await;
    slow.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n12345").await;
    slow.closed().await;
    let mut slow = frames::Raw::connect(address).await;
    slow.send(&frames::request(1, false)).await.unwrap();
    slow.closed().await;
    ended(&sidecar, "body_timeout", 2).await;
}

/// Sends a request whose response never ends, and reads nothing until the sidecar ends the connection. Returns how
/// the response ends.
async fn unread_response(address: SocketAddr, sidecar: &sluice_sidecar::Sidecar) -> std::io::Result<usize> {
    let mut client = Client::connect(address).await;
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    ended(sidecar, "body_timeout", 1).await;
    client.0.read_to_end(&mut Vec::new()).await
}

#[tokio::test]
async fn a_connection_whose_client_does_not_read_is_reset() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sidecar = sidecar_tuned(listener.local_addr().unwrap(), |options| {
        options.body_timeout = Some(Duration::from_secs(1));
    });
    tokio::spawn(async move {
        let mut application = Client(tokio::io::BufReader::new(listener.accept().await.unwrap().0));
        while !application.line().await.is_empty() {}
        application.send("HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n").await;
        while application.0.write_all(&[b'a'; 16_384]).await.is_ok() {}
    });
    // The kernel would otherwise keep what the client does not read, in the sidecar's name.
    let error = unread_response(sidecar.addresses()[0], &sidecar).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_silent_upgraded_connection_times_out_only_if_configured() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sidecar = sidecar_tuned(listener.local_addr().unwrap(), |options| {
        options.upgrade_idle_timeout = Some(Duration::from_secs(1));
    });
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    client.send("GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n").await;
    let mut application = Client(tokio::io::BufReader::new(listener.accept().await.unwrap().0));
    while !application.line().await.is_empty() {}
    application
        .send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n")
        .await;
    assert_eq!(client.response().await.status, 101);
    client.send("ping\r\n").await;
    assert_eq!(application.line().await, "ping");
    client.closed().await;
    application.closed().await;
}

#[tokio::test]
async fn the_unspecified_ipv6_address_accepts_ipv4_too() {
    let application = Application::start().await;
    let sidecar = sidecar_tuned(application.address, |options| {
        options.routes[0].listen = "[::]:0".parse().unwrap();
        options.admin = Some("[::]:0".parse().unwrap());
    });
    let (address, admin) = (sidecar.addresses()[0], sidecar.admin().unwrap());
    let v4 = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    assert_eq!(get(v4(address.port()), "").await.status, 200);
    assert_eq!(application.last().headers["x-forwarded-for"], "127.0.0.1", "no IPv4-mapped address");
    assert_eq!(page(v4(admin.port()), "/livez").await.status, 200);
    if address.is_ipv6() {
        assert_eq!(get(format!("[::1]:{}", address.port()).parse().unwrap(), "").await.status, 200);
        assert_eq!(application.last().headers["x-forwarded-for"], "::1");
    }
}

#[tokio::test]
async fn connections_to_a_loopback_application_do_not_come_from_127_0_0_1() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sidecar = sidecar_with(listener.local_addr().unwrap(), &[]);
    let address = sidecar.addresses()[0];
    let source = if cfg!(target_os = "linux") { [127, 0, 0, 6] } else { [127, 0, 0, 1] };
    let mut client = Client::connect(address).await;
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(listener.accept().await.unwrap().1.ip(), IpAddr::from(source));
    let (mut sender, _connection) = http2(address).await;
    let _request = tokio::spawn(async move { sender.send_request(request("/")).await });
    assert_eq!(listener.accept().await.unwrap().1.ip(), IpAddr::from(source));
}

/// An HTTP/2 application that allows one concurrent stream for each connection. It never responds to `/hold`.
async fn narrow() -> (SocketAddr, Arc<Notify>, mpsc::UnboundedReceiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let held = Arc::new(Notify::new());
    let (count, accepted) = mpsc::unbounded_channel();
    let holds = held.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            count.send(()).unwrap();
            let holds = holds.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let holds = holds.clone();
                async move {
                    if request.uri().path() == "/hold" {
                        holds.notify_one();
                        std::future::pending::<()>().await;
                    }
                    Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
                }
            });
            let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            server.max_concurrent_streams(1);
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
        }
    });
    (address, held, accepted)
}

#[tokio::test]
async fn an_http_2_client_that_uses_up_its_connection_blocks_no_other() {
    let (application, held, mut accepted) = narrow().await;
    let sidecar = sidecar_with(application, &[]);
    let address = sidecar.addresses()[0];
    let (mut greedy, _connection) = http2(address).await;
    let _holding = tokio::spawn(async move { greedy.send_request(request("/hold")).await });
    held.notified().await;
    let (mut other, _connection) = http2(address).await;
    for _ in 0..3 {
        assert_eq!(other.send_request(request("/")).await.unwrap().status(), 200);
    }
    accepted.recv().await.unwrap();
    accepted.recv().await.unwrap();
    assert!(accepted.try_recv().is_err(), "the requests of a client share a connection");
}

#[tokio::test]
async fn an_http_2_connection_that_the_application_ends_is_replaced() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sidecar = sidecar_with(listener.local_addr().unwrap(), &[]);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let end = Arc::new(Notify::new());
            let ending = end.clone();
            let service = service_fn(move |_| {
                ending.notify_one();
                async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())) }
            });
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let mut connection = Box::pin(server.serve_connection(TokioIo::new(stream), service));
            tokio::spawn(async move {
                tokio::select! {
                    _ = &mut connection => return,
                    () = end.notified() => connection.as_mut().graceful_shutdown(),
                }
                let _ = connection.await;
            });
        }
    });
    let (mut client, _connection) = http2(sidecar.addresses()[0]).await;
    for n in 0..20 {
        assert_eq!(client.send_request(request("/")).await.unwrap().status(), 200, "request {n}");
    }
}
