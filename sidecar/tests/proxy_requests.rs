//! Requests and responses that pass through: headers, bodies, connections to the application, upgrades,
//! HTTP/2.

mod early_answers;
mod http2;
mod http2_permits;

use http::Version;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::support::*;

#[tokio::test]
async fn the_application_receives_the_request_without_hop_by_hop_headers() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    client
        .send(
            "PUT /a%2Fb/../c//d?x=%20y HTTP/1.1\r\nHost: shop.example\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n\
             Keep-Alive: timeout=5\r\nTE: trailers, deflate\r\nX-Twice: 1\r\nX-Twice: 2\r\nX-Forwarded-For: 192.0.2.1\r\n\
             Content-Length: 5\r\n\r\nhello",
        )
        .await;
    let response = client.response().await;
    assert_eq!((response.status, response.body.as_str()), (200, "hello"));
    let seen = application.last();
    assert_eq!(seen.uri, "/a%2Fb/../c//d?x=%20y");
    let mut names: Vec<_> =
        seen.headers.iter().map(|(n, v)| format!("{n}={}", v.to_str().unwrap())).collect();
    names.sort();
    assert_eq!(
        names,
        [
            "content-length=5",
            "host=shop.example",
            "te=trailers",
            "x-forwarded-for=192.0.2.1, 127.0.0.1",
            "x-twice=1",
            "x-twice=2"
        ]
    );
}

#[tokio::test]
async fn an_absolute_target_replaces_the_host() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    client.send("GET http://other.example:81/x?y HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(client.response().await.status, 200);
    assert_eq!(application.last().uri, "/x?y");
    assert_eq!(application.last().headers["host"], "other.example:81");
    client.send("OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(client.response().await.status, 200);
    assert_eq!(application.last().uri, "*");
}

#[tokio::test]
async fn an_http_1_0_request_is_served_and_ends_its_connection() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    client.send("GET / HTTP/1.0\r\n\r\n").await;
    assert_eq!(client.response().await.status, 200);
    client.closed().await;
    assert_eq!(application.last().version, Version::HTTP_11);
    assert_eq!(application.last().headers["host"], application.address.to_string());
}

#[tokio::test]
async fn bodies_stream_both_ways_concurrently() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[limit("l", 100, "")])]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    client.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n").await;
    // Each chunk is echoed before the next is sent, so nothing waits for the end of a body.
    assert_eq!(client.line().await, "HTTP/1.1 200 OK");
    while !client.line().await.is_empty() {}
    for word in ["one", "two", "three"] {
        client.send(format!("{:x}\r\n{word}\r\n", word.len())).await;
        assert_eq!(client.line().await, format!("{:x}", word.len()).to_uppercase());
        assert_eq!(client.line().await, word);
    }
    client.send("0\r\n\r\n").await;
    assert_eq!(client.line().await, "0");
    assert_eq!(client.line().await, "");
    assert_eq!(client.get("").await.status, 200);
}

#[tokio::test]
async fn large_bodies_arrive_whole_and_the_connection_stays_usable() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[]);
    let body: String = (0..300_000).map(|n| char::from(b'a' + (n % 26) as u8)).collect();
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    for _ in 0..3 {
        let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", body.len());
        let (mut read, mut write) = client.0.into_inner().into_split();
        let sent = body.clone();
        let sending = tokio::spawn(async move {
            write.write_all(head.as_bytes()).await.unwrap();
            write.write_all(sent.as_bytes()).await.unwrap();
            write
        });
        let mut got = Vec::new();
        let end = loop {
            read.read_buf(&mut got).await.unwrap();
            if let Some(end) = got.windows(4).position(|w| w == b"\r\n\r\n") {
                break end + 4;
            }
        };
        while got.len() < end + body.len() {
            read.read_buf(&mut got).await.unwrap();
        }
        assert!(got[end..] == *body.as_bytes());
        let stream = sending.await.unwrap().reunite(read).unwrap();
        client = Client(tokio::io::BufReader::new(stream));
    }
}

#[tokio::test]
async fn trailers_pass_to_a_client_that_accepts_them() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    client.send("POST /trailers HTTP/1.1\r\nhost: a\r\nte: trailers\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n").await;
    assert_eq!(client.response().await.header("trailer x-sum"), "42");
}

#[tokio::test]
async fn pipelined_requests_get_their_responses_in_order() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[limit("l", 2, "")])]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    let one = |n| format!("POST /{n} HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\n{n}");
    client.send((0..4).map(one).collect::<String>()).await;
    let mut responses = Vec::new();
    for _ in 0..4 {
        let response = client.response().await;
        responses.push((response.status, response.body.chars().next().unwrap()));
    }
    assert_eq!(responses, [(200, '0'), (200, '1'), (429, '{'), (429, '{')]);
}

/// Programs send searches as they are typed. hyper refuses them, and applications do not.
#[tokio::test]
async fn quotation_marks_and_angle_brackets_of_a_target_are_encoded_for_all() {
    let application = Application::start().await;
    let matches = r#","matches":[{"query":[{"name":"filter","exact":"{\"a\":1}"}]}]"#;
    let sidecar = sidecar_with(application.address, &[policy(&[limit("l", 1, matches)])]);
    let address = sidecar.addresses()[0];
    let search = "GET /a\"b?filter={\"a\":1}&x=<y> HTTP/1.1\r\nhost: a\r\nx-api-key: a\r\n\r\n";
    let mut client = Client::connect(address).await;
    client.send(search).await;
    assert_eq!(client.response().await.status, 200);
    assert_eq!(application.last().uri, "/a\"b?filter={%22a%22:1}&x=%3Cy%3E");
    // Also where it comes in pieces, and behind another request.
    client.send(format!("GET / HTTP/1.1\r\nhost: a\r\n\r\n{}", &search[..20])).await;
    assert_eq!(client.response().await.status, 200);
    client.send(&search[20..]).await;
    assert_eq!(client.response().await.status, 429, "the same parameter in the same limit");
    // It becomes three times as long, which is more than hyper reads at once.
    let quotes = 9_000;
    client
        .send(format!(
            "GET /?{} HTTP/1.1\r\nhost: a\r\n\r\nGET /next HTTP/1.1\r\nhost: a\r\n\r\n",
            "\"".repeat(quotes)
        ))
        .await;
    assert_eq!(client.response().await.status, 200);
    assert_eq!(client.response().await.status, 200);
    assert_eq!(application.last().uri, "/next");
}

#[tokio::test]
async fn connections_to_the_application_are_reused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sidecar = sidecar_with(listener.local_addr().unwrap(), &[]);
    let (count, mut accepted) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            count.send(()).unwrap();
            tokio::spawn(async move {
                let mut client = Client(tokio::io::BufReader::new(stream));
                loop {
                    while !client.line().await.is_empty() {}
                    client.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
                }
            });
        }
    });
    for _ in 0..5 {
        // Each request has a client connection of its own.
        assert_eq!(get(sidecar.addresses()[0], "").await.body, "ok");
    }
    accepted.recv().await.unwrap();
    assert!(accepted.try_recv().is_err(), "one connection served all requests");
}

/// An application that closes its connections as `after` says, and sends the request lines to the receiver.
async fn closing_application(after: &'static str) -> (std::net::SocketAddr, mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (send_line, lines) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let send_line = send_line.clone();
            tokio::spawn(async move {
                let mut client = Client(tokio::io::BufReader::new(stream));
                let mut first = true;
                loop {
                    let line = client.line().await;
                    if line.is_empty() {
                        return;
                    }
                    send_line.send(line).unwrap();
                    while !client.line().await.is_empty() {}
                    if !first && after == "close on the second request" {
                        return;
                    }
                    client.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
                    if after == "close" {
                        return;
                    }
                    first = false;
                }
            });
        }
    });
    (address, lines)
}

#[tokio::test]
async fn a_connection_that_the_application_closed_while_idle_loses_no_request() {
    for after in ["close", "close on the second request"] {
        let (application, _lines) = closing_application(after).await;
        let sidecar = sidecar_with(application, &[]);
        let mut client = Client::connect(sidecar.addresses()[0]).await;
        for n in 0..20 {
            assert_eq!(client.get("").await.status, 200, "{after}, request {n}");
        }
        assert_eq!(metric(&sidecar.metrics(), "sluice_upstream_errors_total"), 0);
    }
}

#[tokio::test]
async fn a_request_that_is_not_idempotent_is_not_repeated() {
    let (application, mut lines) = closing_application("close on the second request").await;
    let sidecar = sidecar_with(application, &[]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    assert_eq!(client.get("").await.status, 200);
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n").await;
    let response = client.response().await;
    assert_eq!(response.status, 502);
    assert!(response.json()["detail"].as_str().unwrap().contains(&application.to_string()));
    assert_eq!(client.get("").await.status, 200, "the client's connection stays usable");
    let mut requests = Vec::new();
    while let Ok(line) = lines.try_recv() {
        requests.push(line);
    }
    assert_eq!(requests, ["GET / HTTP/1.1", "POST / HTTP/1.1", "GET / HTTP/1.1"]);
}

#[tokio::test]
async fn an_application_that_is_down_or_does_not_speak_http_causes_a_502_with_the_reason() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let sidecar = sidecar_with(gone, &[]);
    let response = get(sidecar.addresses()[0], "").await;
    assert_eq!((response.status, response.header("content-type")), (502, "application/problem+json"));
    let detail = response.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains(&gone.to_string()) && detail.contains("refused"), "{detail}");
    assert_eq!(response.header("connection"), "close", "a new connection may reach another pod");
    assert_eq!(metric(&sidecar.metrics(), "sluice_upstream_errors_total{reason=\"connect\"}"), 1);

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sidecar = sidecar_with(listener.local_addr().unwrap(), &[]);
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"SSH-2.0-nonsense\r\n\r\n").await.unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await;
    });
    assert_eq!(get(sidecar.addresses()[0], "").await.status, 502);
}

#[tokio::test]
async fn a_response_with_two_lengths_arrives_whole() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sidecar = sidecar_with(listener.local_addr().unwrap(), &[]);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let mut application = Client(tokio::io::BufReader::new(stream));
            while !application.line().await.is_empty() {}
            let response = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\nConnection: X-Hop\r\n\
                 X-Hop: 1\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
            application.send(response).await;
        }
    });
    let response = get(sidecar.addresses()[0], "").await;
    assert_eq!((response.body.as_str(), response.header("x-hop")), ("hello", ""));
}

#[tokio::test]
async fn the_response_to_head_keeps_its_content_length() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sidecar = sidecar_with(listener.local_addr().unwrap(), &[]);
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut client = Client(tokio::io::BufReader::new(stream));
        loop {
            while !client.line().await.is_empty() {}
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n").await;
        }
    });
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    for _ in 0..2 {
        client.send("HEAD / HTTP/1.1\r\nhost: a\r\n\r\n").await;
        assert_eq!(client.response_to("HEAD").await.header("content-length"), "1234");
    }
}

#[tokio::test]
async fn websockets_pass_and_an_upgrade_to_http_2_does_not() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sidecar = sidecar_with(listener.local_addr().unwrap(), &[policy(&[limit("l", 3, "")])]);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut client = Client(tokio::io::BufReader::new(stream));
                let mut upgrade = false;
                loop {
                    let line = client.line().await;
                    upgrade |= line.eq_ignore_ascii_case("upgrade: websocket");
                    if line.is_empty() {
                        break;
                    }
                }
                if !upgrade {
                    client.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
                    return;
                }
                client.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n").await;
                let (mut read, mut write) = client.0.into_inner().into_split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
            });
        }
    });
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    let h2c =
        client.get("connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAA\r\n").await;
    assert_eq!(h2c.status, 200);
    let response = client.get("connection: Upgrade\r\nupgrade: websocket\r\n").await;
    assert_eq!((response.status, response.header("upgrade")), (101, "websocket"));
    assert_eq!(response.header("x-ratelimit-remaining"), "1");
    for message in
        ["GET /?\"<> HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", "\u{1}binary\n"]
    {
        client.send(message).await;
        let mut echo = vec![0; message.len()];
        client.0.read_exact(&mut echo).await.unwrap();
        assert_eq!(echo, message.as_bytes());
    }
}

#[tokio::test]
async fn http_2_with_prior_knowledge_passes_with_trailers_and_is_limited() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[limit("l", 2, "")])]);
    let stream = TcpStream::connect(sidecar.addresses()[0]).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let (send, receive) = mpsc::channel::<Result<Frame<Bytes>, std::io::Error>>(1);
    let body = StreamBody::new(futures::stream::unfold(receive, |mut receive| async {
        receive.recv().await.map(|frame| (frame, receive))
    }));
    let request = || http::Request::builder().method("POST").uri("http://shop.example/trailers");
    let request_body = |body| request().header("te", "trailers").body(body).unwrap();
    let mut response = sender.send_request(request_body(body.boxed())).await.unwrap();
    assert_eq!(response.headers()["x-ratelimit-remaining"], "1");
    for word in ["one", "two"] {
        send.send(Ok(Frame::data(word.into()))).await.unwrap();
        let frame = response.body_mut().frame().await.unwrap().unwrap();
        assert_eq!(frame.data_ref().unwrap(), word);
    }
    drop(send);
    let trailers = response.into_body().collect().await.unwrap().trailers().cloned().unwrap();
    assert_eq!(trailers["x-sum"], "42");
    assert_eq!(application.last().version, Version::HTTP_2);
    assert_eq!(application.last().uri, "http://shop.example/trailers");
    let full = |text: &'static str| Full::from(text).map_err(|never| match never {}).boxed();
    assert_eq!(sender.send_request(request_body(full("x"))).await.unwrap().status(), 200);
    let denied = sender.send_request(request_body(full("x"))).await.unwrap();
    assert_eq!((denied.status().as_u16(), &denied.headers()["retry-after"]), (429, &"60".parse().unwrap()));
    let call = request().header("content-type", "application/grpc").body(full("")).unwrap();
    let denied = sender.send_request(call).await.unwrap();
    assert_eq!((denied.status().as_u16(), &denied.headers()["grpc-status"]), (200, &"8".parse().unwrap()));
}
