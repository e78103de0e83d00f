use std::net::Ipv4Addr;

use http::StatusCode;
use http_body_util::{BodyExt as _, Full};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Notify;

use super::table::{Maxima, PortMetrics, Strangers};
use super::*;
use crate::{drain, listen};

/// Answers with the number of bytes of a body, or says why there is none.
async fn length(request: Request<Received>) -> Result<Response<Full<Bytes>>, Infallible> {
    assert_ne!(request.uri().path(), "/defect");
    let (status, text) = match request.into_body().collect().await {
        Ok(body) => (StatusCode::OK, body.to_bytes().len().to_string()),
        Err(BodyError::TimedOut) => (StatusCode::REQUEST_TIMEOUT, String::new()),
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()),
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    Ok(response)
}

fn port<S>(service: S, maxima: Maxima, times: Times, drain: DrainWatch) -> Port<Routes<S>> {
    Port {
        answer: Routes::new(service),
        table: Table::new(maxima, PortMetrics::default()),
        times,
        age: ConnectionAge::default(),
        max_head: 16 << 10,
        http2: Some(Http2 { max_head: 1 << 14, streams: 9 }),
        tls: None,
        drain,
    }
}

/// Serves a port, and connects to it.
async fn connect<A: Answer>(port: Port<A>) -> TcpStream {
    let listener = listen::bind("127.0.0.1:0".parse().unwrap(), "--listen", 1).unwrap().remove(0);
    let address = listener.local_addr().unwrap();
    tokio::spawn(port.run(listener));
    TcpStream::connect(address).await.unwrap()
}

/// Sends requests on a connection of their own, and returns all that is answered until it ends.
async fn exchange(times: Times, requests: &str) -> String {
    let (_signal, drain) = drain::channel();
    let service = tower::service_fn(length);
    let mut stream = connect(port(service, Maxima::new(9, 1 << 20), times, drain)).await;
    stream.write_all(requests.as_bytes()).await.unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).await.unwrap();
    answers
}

const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(20);

#[tokio::test]
async fn a_body_that_does_not_arrive_is_an_error_in_time() {
    let times = Times { first: LONG, head: LONG, body: SHORT };
    let answers = exchange(times, "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nfew").await;
    assert!(answers.starts_with("HTTP/1.1 408 "), "{answers}");
}

#[tokio::test]
async fn a_caller_that_does_not_begin_or_sends_no_further_head_is_left() {
    let begins = Times { first: SHORT, head: LONG, body: LONG };
    assert_eq!(exchange(begins, "PRI").await, "");
    let goes_on = Times { first: LONG, head: SHORT, body: LONG };
    let answers = exchange(goes_on, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(answers.starts_with("HTTP/1.1 200 "), "{answers}");
}

#[tokio::test]
async fn a_defect_ends_its_request_only() {
    let times = Times { first: LONG, head: LONG, body: LONG };
    let requests =
        "GET /defect HTTP/1.1\r\nhost: a\r\n\r\nGET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    let answers = exchange(times, requests).await;
    assert!(answers.starts_with("HTTP/1.1 500 ") && answers.contains("HTTP/1.1 200 "), "{answers}");
    assert!(answers.contains("this is a defect of Sluice\n"), "{answers}");
}

/// Notified of each request for `/never`.
static ASKED: Notify = Notify::const_new();

/// Identifies whoever asks, and changes the protocol to an echo, but answers `/never` never.
async fn change(mut request: Request<Received>) -> Result<Response<Full<Bytes>>, Infallible> {
    request.extensions().get::<Arc<Connection>>().unwrap().identified();
    if request.uri().path() == "/never" {
        ASKED.notify_one();
        std::future::pending::<()>().await;
    }
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let (mut reader, mut writer) = tokio::io::split(TokioIo::new(upgraded.await.unwrap()));
        tokio::io::copy(&mut reader, &mut writer).await
    });
    let response = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
    Ok(response.header("connection", "upgrade").header("upgrade", "echo").body(Full::default()).unwrap())
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n")
}

/// A port whose callers must show who they are.
fn of_strangers(drain: DrainWatch) -> Port<impl Answer + use<>> {
    let strangers = Some(Strangers { connections: 2, of_address: 9 });
    let maxima = Maxima { strangers, ..Maxima::new(9, usize::MAX) };
    let times = Times { first: LONG, head: LONG, body: LONG };
    let age = ConnectionAge { max: None, grace: Some(Duration::ZERO) };
    Port { age, http2: None, ..port(tower::service_fn(change), maxima, times, drain) }
}

/// Reports whether a connection ends without an answer.
async fn is_closed(stream: &mut TcpStream) -> bool {
    timeout(LONG, stream.read(&mut [0])).await.is_ok_and(|read| read.unwrap_or(0) == 0)
}

async fn change_protocol(stream: &mut TcpStream) {
    stream.write_all(get("/echo").as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "));
}

#[tokio::test]
async fn a_connection_keeps_its_place_when_it_changes_its_protocol_and_when_the_port_ends() {
    let (signal, drain) = drain::channel();
    let port = of_strangers(drain);
    let connections = port.table.metrics.connections.clone();
    let mut stream = connect(port).await;
    change_protocol(&mut stream).await;
    signal.stop(Instant::now());
    // More than an HTTP request of which nothing is handed over may have.
    let sent = vec![7; 1 << 20];
    let mut received = vec![0; sent.len()];
    let (mut reader, mut writer) = stream.split();
    let (read, written) = tokio::join!(reader.read_exact(&mut received), writer.write_all(&sent));
    assert!(read.is_ok() && written.is_ok() && received == sent);
    assert_eq!(connections.get(), 1);
    drop(stream);
    timeout(LONG, async {
        while connections.get() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("it has left");
}

#[tokio::test]
async fn requests_without_grace_end_with_their_port() {
    let (signal, drain) = drain::channel();
    let mut stream = connect(of_strangers(drain)).await;
    stream.write_all(get("/never").as_bytes()).await.unwrap();
    ASKED.notified().await;
    signal.stop(Instant::now());
    assert!(is_closed(&mut stream).await);
}

#[tokio::test]
async fn a_strangers_connection_ends_in_time_and_one_that_is_identified_stays() {
    let (_signal, drain) = drain::channel();
    let port = of_strangers(drain);
    let mut known = connect(port.clone()).await;
    change_protocol(&mut known).await;
    let mut strangers = Vec::new();
    for n in 2..4 {
        strangers.push(connect(port.clone()).await);
        while port.table.metrics.connections.get() < n {
            tokio::task::yield_now().await;
        }
    }
    let since = Instant::now();
    tokio::time::pause();
    let new = port.table.place(Ipv4Addr::new(10, 0, 0, 1).into()).await.unwrap();
    assert!(new.0.is_seated().await, "the oldest makes room");
    for (stranger, seconds) in strangers.iter_mut().zip([5, 30]) {
        assert!(is_closed(stranger).await);
        assert_eq!(since.elapsed().as_secs(), seconds);
    }
    assert!(!is_closed(&mut known).await, "it is kept");
}

#[tokio::test]
async fn a_port_of_http1_alone_does_not_answer_http2() {
    let (_signal, drain) = drain::channel();
    let times = Times { first: LONG, head: LONG, body: LONG };
    let both = port(tower::service_fn(length), Maxima::new(9, 1 << 20), times, drain);
    for http2 in [both.http2, None] {
        let mut stream = connect(Port { http2, ..both.clone() }).await;
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        assert_eq!(is_closed(&mut stream).await, http2.is_none());
    }
}
