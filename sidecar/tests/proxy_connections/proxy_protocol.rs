//! Connections through a proxy that reports the address of the client in the PROXY protocol.

use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use sluice_sidecar::Sidecar;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::support::*;

/// Starts a sidecar with a limit of one request for each address. It trusts the PROXY protocol of these networks.
async fn start(trusted: &str) -> (Application, Sidecar) {
    let application = Application::start().await;
    let by_address = limit("per-address", 1, "")
        .replace(r#"{"header":{"name":"x-api-key"}}"#, r#"{"clientIP":{"ipv4Prefix":32,"ipv6Prefix":64}}"#);
    let address =
        format!(r#""clientAddress":{{"trustedProxies":["{trusted}"],"header":"ProxyProtocol"}},"limits""#);
    let json = policy_json("checkout", "Allow", &[by_address]).replacen("\"limits\"", &address, 1);
    let sidecar = sidecar_with(application.address, &[prepare(&json)]);
    (application, sidecar)
}

fn v1(client: &str) -> Vec<u8> {
    format!("PROXY TCP4 {client} 198.51.100.1 4711 80\r\n").into_bytes()
}

/// Returns a header of version 2 from an IPv6 address that ends with this byte.
fn v2(client: u8) -> Vec<u8> {
    let mut addresses = [0; 36];
    (addresses[0], addresses[7]) = (0x20, client);
    [&b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x24"[..], &addresses].concat()
}

/// Sends parts of the beginning of a connection, and then a request. Returns the status.
async fn send(sidecar: &Sidecar, parts: &[&[u8]]) -> u16 {
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    for part in parts {
        client.send(part).await;
    }
    client.get("").await.status
}

#[tokio::test]
async fn clients_of_a_trusted_proxy_are_those_that_it_reports() {
    let (application, sidecar) = start("127.0.0.0/8").await;
    for header in [v1("192.0.2.1"), v1("192.0.2.2"), v2(1), v2(2)] {
        assert_eq!(send(&sidecar, &[&header]).await, 200);
        assert_eq!(send(&sidecar, &[&header]).await, 429);
    }
    assert_eq!(
        application.last().headers["x-forwarded-for"],
        "2000:0:0:2::",
        "the application learns the client"
    );
    // A health check of the proxy, and a peer without a header, are the peer itself.
    assert_eq!(send(&sidecar, &[b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"]).await, 200);
    assert_eq!(send(&sidecar, &[]).await, 429);
    // In parts of any size, before requests of any version of HTTP.
    let header = v1("192.0.2.3");
    let bytes: Vec<_> = header.chunks(1).collect();
    assert_eq!(send(&sidecar, &bytes).await, 200);
    let mut stream = TcpStream::connect(sidecar.addresses()[0]).await.unwrap();
    stream.write_all(&header).await.unwrap();
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let response =
        sender.send_request(Request::get("http://a/").body(Full::<Bytes>::default()).unwrap()).await.unwrap();
    assert_eq!(response.status(), 429);
    response.into_body().collect().await.unwrap();
}

#[tokio::test]
async fn a_header_that_is_not_valid_or_not_trusted_ends_the_connection() {
    let (application, trusting) = start("127.0.0.0/8").await;
    for header in
        ["PROXY TCP4 192.0.2.1 ::1 1 2\r\n", "PROXY TCP4 x y 1 2\r\n", "\r\n\r\n\0\r\nQUIT\n\x2f\x11\0\0"]
    {
        let mut client = Client::connect(trusting.addresses()[0]).await;
        client.send(header).await;
        client.closed().await;
    }
    // Whoever is not trusted cannot choose an address.
    let (_application, distrusting) = start("192.0.2.0/24").await;
    for header in [v1("192.0.2.1"), v2(1)] {
        let mut client = Client::connect(distrusting.addresses()[0]).await;
        client.send(&header).await;
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
        client.closed().await;
    }
    assert_eq!(application.count(), 0);
}
