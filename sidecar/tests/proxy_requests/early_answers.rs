//! Over HTTP/1: applications that answer before they have read a request, upgrades that were not asked for, and connections that
//! belong to one user.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::http2::within;
use crate::support::*;

/// Starts an application that serves each connection with this function and the number of the connection.
async fn serving<F: Future<Output = ()> + Send + 'static>(
    serve: impl Fn(Client, usize) -> F + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        for number in 0.. {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(Client(BufReader::new(stream)), number));
        }
    });
    address
}

/// Reads a head, and returns its lines; nothing at the end of the connection.
async fn head(client: &mut Client) -> Vec<String> {
    let mut lines = Vec::new();
    loop {
        let line = client.line().await;
        if line.is_empty() {
            return lines;
        }
        lines.push(line);
    }
}

const UPLOAD: usize = 3_000_000;

#[tokio::test]
async fn an_answer_before_the_end_of_an_upload_reaches_the_client() {
    let application = serving(async |mut client: Client, _| {
        head(&mut client).await;
        client
            .send("HTTP/1.1 413 Content Too Large\r\ncontent-length: 5\r\nconnection: close\r\n\r\nlarge")
            .await;
    })
    .await;
    let sidecar = sidecar_with(application, &[]);
    for round in 0..40 {
        let (mut read, mut write) = TcpStream::connect(sidecar.addresses()[0]).await.unwrap().into_split();
        let sending = tokio::spawn(async move {
            let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {UPLOAD}\r\n\r\n");
            let _ = write.write_all(head.as_bytes()).await;
            let _ = write.write_all(&vec![b'a'; UPLOAD]).await;
            write
        });
        let mut received = Vec::new();
        // A reset after the response is no loss.
        let _ = within(read.read_to_end(&mut received)).await;
        let text = String::from_utf8_lossy(&received);
        assert!(text.starts_with("HTTP/1.1 413 ") && text.ends_with("large"), "round {round}: {text:?}");
        let _ = within(sending).await;
    }
}

#[tokio::test]
async fn a_body_that_the_application_does_not_ask_for_is_not_read() {
    let rest = Arc::new(Mutex::new(Vec::new()));
    let received = rest.clone();
    let application = serving(move |mut client: Client, _| {
        let rest = received.clone();
        async move {
            head(&mut client).await;
            client.send("HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\nno").await;
            let mut bytes = Vec::new();
            let _ = client.0.read_to_end(&mut bytes).await;
            rest.lock().unwrap().push(bytes.len());
        }
    })
    .await;
    let sidecar = sidecar_with(application, &[]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    client
        .send(format!(
            "PUT / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: {UPLOAD}\r\n\r\n"
        ))
        .await;
    let response = client.response().await;
    assert_eq!((response.status, response.body.as_str()), (401, "no"));
    assert_eq!(response.header("connection"), "close");
    client.closed().await;
    within(async {
        while rest.lock().unwrap().is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(*rest.lock().unwrap(), [0]);
}

#[tokio::test]
async fn a_body_is_sent_when_the_application_asks_for_it() {
    let application = serving(async |mut client: Client, _| {
        for _ in 0..2 {
            assert!(head(&mut client).await.contains(&"expect: 100-continue".to_owned()));
            client.send("HTTP/1.1 100 Continue\r\n\r\n").await;
            let mut body = [0; 5];
            client.0.read_exact(&mut body).await.unwrap();
            client.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        }
    })
    .await;
    let sidecar = sidecar_with(application, &[]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    for _ in 0..2 {
        client.send("PUT / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n").await;
        assert_eq!(head(&mut client).await, ["HTTP/1.1 100 Continue"]);
        client.send("hello").await;
        assert_eq!(client.response().await.status, 200, "over the same connection");
    }
}

#[tokio::test]
async fn a_body_is_sent_when_the_application_begins_to_answer_without_asking() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    client.send("PUT / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n").await;
    let lines = head(&mut client).await;
    assert_eq!(lines[0], "HTTP/1.1 200 OK");
    client.send("hello").await;
    let mut body = [0; 5];
    client.0.read_exact(&mut body).await.unwrap();
    assert_eq!(&body, b"hello");
}

#[tokio::test]
async fn an_upgrade_that_is_required_is_named_and_one_that_nobody_asked_for_is_an_error() {
    let application = serving(async |mut client: Client, _| {
        loop {
            let lines = head(&mut client).await;
            match lines.first().map(String::as_str) {
                Some("GET /required HTTP/1.1") => {
                    let required =
                        "HTTP/1.1 426 Upgrade Required\r\nupgrade: websocket\r\nconnection: upgrade\r\n";
                    client.send(format!("{required}content-length: 0\r\n\r\n")).await;
                }
                Some(_) => {
                    client
                        .send("HTTP/1.1 101 Switching Protocols\r\nupgrade: a\r\nconnection: upgrade\r\n\r\n")
                        .await;
                }
                None => return,
            }
        }
    })
    .await;
    let sidecar = sidecar_with(application, &[]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    client.send("GET /required HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let response = client.response().await;
    assert_eq!((response.status, response.header("upgrade")), (426, "websocket"));
    assert_eq!(response.header("connection"), "upgrade");
    assert_eq!(client.get("").await.status, 502);
}

#[tokio::test]
async fn a_connection_that_a_user_has_authenticated_serves_no_other() {
    let connections = Arc::new(AtomicUsize::new(0));
    let count = connections.clone();
    let application = serving(move |mut client: Client, number| {
        count.fetch_add(1, Ordering::SeqCst);
        async move {
            let mut user = "nobody".to_owned();
            loop {
                let lines = head(&mut client).await;
                if lines.is_empty() {
                    return;
                }
                let authorization = lines.iter().find_map(|line| line.strip_prefix("authorization: NTLM "));
                let challenge = if let Some(name) = authorization {
                    user = name.to_owned();
                    ""
                } else if lines[0].contains("/ask") {
                    "www-authenticate: NTLM\r\n"
                } else {
                    ""
                };
                let body = format!("{number} {user}");
                client
                    .send(format!(
                        "HTTP/1.1 200 OK\r\n{challenge}content-length: {}\r\n\r\n{body}",
                        body.len()
                    ))
                    .await;
            }
        }
    })
    .await;
    let sidecar = sidecar_with(application, &[]);
    let connect = || Client::connect(sidecar.addresses()[0]);
    let (mut alice, mut bob, mut carol) = (connect().await, connect().await, connect().await);
    assert_eq!(alice.get("").await.body, "0 nobody");
    assert_eq!(alice.get("authorization: NTLM alice\r\n").await.body, "1 alice");
    // Others use other connections, and she uses hers.
    assert_eq!(bob.get("").await.body, "0 nobody");
    assert_eq!(alice.get("").await.body, "1 alice");
    assert_eq!(bob.get("authorization: NTLM bob\r\n").await.body, "2 bob");
    assert_eq!(carol.get("").await.body, "0 nobody");
    assert_eq!((alice.get("").await.body, bob.get("").await.body), ("1 alice".into(), "2 bob".into()));
    // A response that asks for it keeps the connection too.
    carol.send("GET /ask HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(carol.response().await.body, "0 nobody");
    assert_eq!(get(sidecar.addresses()[0], "").await.body, "3 nobody");
    assert_eq!(carol.get("authorization: NTLM carol\r\n").await.body, "0 carol");
    // They end with their clients.
    drop((alice, bob, carol));
    for _ in 0..3 {
        assert_eq!(get(sidecar.addresses()[0], "").await.body, "3 nobody");
    }
    assert_eq!(connections.load(Ordering::SeqCst), 4);
}

/// The numbers of docs/protocols.md.
#[tokio::test]
async fn heads_and_trailers_have_bounds() {
    // Answers with a header, or a trailer, of as many bytes as the path says, in as many fields.
    let application = serving(async |mut client: Client, _| {
        loop {
            let lines = head(&mut client).await;
            let Some(target) = lines.first().and_then(|line| line.split(' ').nth(1)) else { return };
            let mut parts = target.trim_start_matches('/').split('/');
            let kind = parts.next().unwrap().to_owned();
            let mut number = || parts.next().map_or(0, |number| number.parse::<usize>().unwrap());
            let (bytes, count) = (number(), number().max(1));
            let fields: String =
                (0..count).map(|n| format!("x-{n}: {}\r\n", "a".repeat(bytes / count))).collect();
            let ok = "HTTP/1.1 200 OK\r\n";
            if kind == "trailers" {
                let names: Vec<_> = (0..count).map(|n| format!("x-{n}")).collect();
                let trailer = format!(
                    "trailer: {}\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n",
                    names.join(",")
                );
                client.send(format!("{ok}{trailer}{fields}\r\n")).await;
            } else {
                client.send(format!("{ok}{fields}content-length: 2\r\n\r\nok")).await;
            }
        }
    })
    .await;
    let sidecar = sidecar_with(application, &[]);
    let ask = async |target: &str, fields: &str| {
        let mut client = Client::connect(sidecar.addresses()[0]).await;
        client.send(format!("GET {target} HTTP/1.1\r\nhost: a\r\nte: trailers\r\n{fields}\r\n")).await;
        client
    };
    for (target, status) in
        [("/head/30000", 200), ("/head/34000", 502), ("/head/9000/90", 200), ("/head/9000/101", 502)]
    {
        assert_eq!(ask(target, "").await.response().await.status, status, "{target}");
    }
    for (bytes, count, status) in [(30_000, 1, 200), (34_000, 1, 431), (9_000, 90, 200), (9_000, 101, 431)] {
        let fields: String =
            (0..count).map(|n| format!("x-{n}: {}\r\n", "a".repeat(bytes / count))).collect();
        assert_eq!(ask("/head/1", &fields).await.response().await.status, status, "{bytes} in {count}");
    }
    for (bytes, status) in [(15_000, 200), (17_000, 400)] {
        let mut client = Client::connect(sidecar.addresses()[0]).await;
        let trailer = "a".repeat(bytes);
        let head = "POST /head/1 HTTP/1.1\r\nhost: a\r\ntrailer: x\r\ntransfer-encoding: chunked\r\n\r\n";
        client.send(format!("{head}2\r\nok\r\n0\r\nx: {trailer}\r\n\r\n")).await;
        assert_eq!(client.response().await.status, status, "{bytes}");
    }
    let response = ask("/trailers/15000", "").await.response().await;
    assert_eq!(response.header("trailer x-0").len(), 15_000);
    let mut rest = Vec::new();
    let mut client = ask("/trailers/17000", "").await;
    let _ = within(client.0.read_to_end(&mut rest)).await;
    let text = String::from_utf8_lossy(&rest);
    assert!(text.starts_with("HTTP/1.1 200") && !text.ends_with("0\r\n\r\n"), "{text}");
}
