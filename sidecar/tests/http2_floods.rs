//! HTTP/2 clients that send frames by hand: each flood ends its connection or is bounded, and another client is
//! answered throughout.

use std::net::SocketAddr;
use std::time::Duration;

use crate::support::frames::{self, Raw};
use crate::support::*;

/// Sends frames until the connection ends, and requests of an honest client meanwhile.
async fn ends(address: SocketAddr, mut flood: impl FnMut(u32) -> Vec<u8>) {
    let mut raw = Raw::connect(address).await;
    let mut honest = Client::connect(address).await;
    for n in 0..10_000 {
        if raw.send(&flood(n)).await.is_err() {
            assert_eq!(honest.get("").await.status, 200);
            assert_eq!(get(address, "").await.status, 200);
            return;
        }
        if n % 100 == 0 {
            assert_eq!(honest.get("").await.status, 200, "after {n} times");
        }
    }
    panic!("the flood has not ended the connection");
}

async fn sidecar_and_application() -> (sluice_sidecar::Sidecar, Application) {
    let application = Application::start().await;
    (sidecar_with(application.address, &[]), application)
}

#[tokio::test]
async fn a_flood_of_ping_ends_its_connection() {
    let (sidecar, _application) = sidecar_and_application().await;
    ends(sidecar.addresses()[0], |_| frames::frame(frames::PING, 0, 0, &[0; 8]).repeat(16)).await;
}

#[tokio::test]
async fn a_flood_of_settings_ends_its_connection() {
    let (sidecar, _application) = sidecar_and_application().await;
    ends(sidecar.addresses()[0], |_| {
        frames::frame(frames::SETTINGS, 0, 0, &[0, 4, 0, 0, 255, 255]).repeat(16)
    })
    .await;
}

#[tokio::test]
async fn a_flood_of_priority_ends_its_connection() {
    let (sidecar, _application) = sidecar_and_application().await;
    ends(sidecar.addresses()[0], |n| frames::frame(frames::PRIORITY, 0, 2 * n + 1, &[0; 5]).repeat(16)).await;
}

#[tokio::test]
async fn a_flood_of_window_update_ends_its_connection() {
    let (sidecar, _application) = sidecar_and_application().await;
    ends(sidecar.addresses()[0], |_| frames::frame(frames::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]).repeat(16))
        .await;
}

#[tokio::test]
async fn a_rapid_reset_ends_its_connection() {
    let (sidecar, _application) = sidecar_and_application().await;
    ends(sidecar.addresses()[0], |n| {
        let mut bytes = frames::request(2 * n + 1, true);
        bytes.extend(frames::frame(frames::RST_STREAM, 0, 2 * n + 1, &[0, 0, 0, 8]));
        bytes
    })
    .await;
}

#[tokio::test]
async fn a_flood_of_continuation_ends_its_connection() {
    let (sidecar, _application) = sidecar_and_application().await;
    ends(sidecar.addresses()[0], |n| match n {
        0 => frames::frame(frames::HEADERS, 0, 1, &frames::head()),
        _ => frames::frame(frames::CONTINUATION, 0, 1, &frames::header(b"x-bomb", &[b'a'; 100])),
    })
    .await;
}

#[tokio::test]
async fn a_flood_of_empty_data_ends_its_connection() {
    let (sidecar, _application) = sidecar_and_application().await;
    ends(sidecar.addresses()[0], |n| match n {
        0 => frames::request(1, false),
        _ => frames::frame(frames::DATA, 0, 1, &[]),
    })
    .await;
}

#[tokio::test]
async fn a_header_bomb_is_refused() {
    let (sidecar, application) = sidecar_and_application().await;
    let address = sidecar.addresses()[0];
    let mut raw = Raw::connect(address).await;
    // One large header enters the dynamic table, and a byte for each repetition names it.
    let mut head = frames::head();
    head.extend(frames::indexed_header(b"x-bomb", &[b'a'; 3000]));
    head.extend([0x80 | 62; 4000]);
    raw.send(&frames::frame(frames::HEADERS, frames::END_HEADERS | frames::END_STREAM, 1, &head))
        .await
        .unwrap();
    let mut honest = Client::connect(address).await;
    assert_eq!(honest.get("").await.status, 200);
    raw.refused(1).await;
    assert_eq!(application.count(), 1, "only the honest request reached the application");
    assert_eq!(honest.get("").await.status, 200);
}

#[tokio::test]
async fn a_client_that_grants_no_window_times_out() {
    let application = responding(1 << 20).await;
    let sidecar = sidecar_tuned(application, |options| options.body_timeout = Some(Duration::from_secs(1)));
    let address = sidecar.addresses()[0];
    let mut raw = Raw::connect(address).await;
    raw.send(&frames::frame(frames::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])).await.unwrap();
    for stream in 0..50 {
        raw.send(&frames::request(2 * stream + 1, true)).await.unwrap();
    }
    assert_eq!(get(address, "").await.status, 200);
    // Each of them ends, and the connection goes on.
    let mut left = 50;
    while left > 0 {
        let (kind, _, _) = raw.next().await.expect("the connection goes on");
        left -= u32::from(kind == frames::RST_STREAM);
    }
    assert_eq!(metric(&sidecar.metrics(), "sluice_ended_streams_total{reason=\"body_timeout\"}"), 50);
    raw.send(&frames::frame(frames::SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0])).await.unwrap();
    raw.send(&frames::request(101, true)).await.unwrap();
    while raw.next().await.expect("the connection goes on").1 != 101 {}
    assert_eq!(get(address, "").await.status, 200);
}

#[tokio::test]
async fn a_connection_with_an_invalid_preface_is_closed_without_a_response() {
    let (sidecar, _application) = sidecar_and_application().await;
    for preface in [
        "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
        "PRI * HTTP/2.0\r\nhost: a\r\n\r\n",
        "INVALID CONNECTION PREFACE\r\n\r\n",
        "\u{1}\u{2}\r\n\r\n",
    ] {
        let mut client = Client::connect(sidecar.addresses()[0]).await;
        client.send(preface).await;
        let mut received = Vec::new();
        let _ = tokio::io::AsyncReadExt::read_to_end(&mut client.0, &mut received).await;
        assert_eq!(String::from_utf8_lossy(&received), "", "{preface:?}");
    }
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    client.send("PRINT / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(client.response().await.status, 200, "a method that begins like the preface");
}
