//! Clients that do not read their streams, or send what the application does not read: the next stream of the same connection is
//! answered all the same.

use std::net::SocketAddr;

use bytes::Bytes;
use futures::future::poll_fn;
use h2::RecvStream;
use h2::client::SendRequest;
use http::Request;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::cgroup::Cgroup;
use super::shapes::Application;
use super::{MEMORY, Sidecar, TIMEOUT};

/// Streams of a connection, of which all but the last are not read.
const STREAMS: usize = 200;
/// So many connections hold more than the sidecar has memory for.
const CONNECTIONS: usize = 6;

/// Bytes that an upload sends at once.
const CHUNK: usize = 16 << 10;

async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(TIMEOUT, future).await.expect("the test hangs")
}

async fn connect(address: SocketAddr) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(address).await.unwrap();
    let mut builder = h2::client::Builder::new();
    builder.initial_connection_window_size(1 << 30);
    let (client, connection) = builder.handshake(stream).await.unwrap();
    tokio::spawn(connection);
    client
}

fn request(path: &str) -> Request<()> {
    Request::post(format!("http://a{path}")).body(()).unwrap()
}

async fn is_answered(client: &mut SendRequest<Bytes>) {
    let mut ready = within(client.clone().ready()).await.unwrap();
    let (response, _) = ready.send_request(request("/small"), true).unwrap();
    let mut body = within(response).await.unwrap().into_body();
    while let Some(data) = within(body.data()).await {
        data.unwrap();
    }
}

/// Downloads of which nothing is read.
async fn downloads(client: &mut SendRequest<Bytes>) -> Vec<RecvStream> {
    let mut unread = Vec::new();
    for _ in 1..STREAMS {
        let mut ready = within(client.clone().ready()).await.unwrap();
        let (response, _) = ready.send_request(request("/"), true).unwrap();
        unread.push(within(response).await.unwrap().into_body());
    }
    unread
}

/// Uploads that the application does not read. They go on until a window is full.
async fn uploads(client: &mut SendRequest<Bytes>) -> JoinSet<()> {
    let mut unread = JoinSet::new();
    for _ in 1..STREAMS {
        let mut ready = within(client.clone().ready()).await.unwrap();
        let (_response, mut upload) = ready.send_request(request("/"), false).unwrap();
        unread.spawn(async move {
            loop {
                upload.reserve_capacity(CHUNK);
                // A stream that has ended to make room takes no more.
                let Some(Ok(capacity)) = poll_fn(|cx| upload.poll_capacity(cx)).await else { break };
                if upload.send_data(vec![b'a'; capacity].into(), false).is_err() {
                    break;
                }
            }
        });
    }
    unread
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_stream_is_answered_in_128_mib_although_no_other_is_read() {
    let Some(cgroup) = Cgroup::new(MEMORY) else {
        println!("skipped: this process may not create a cgroup with a memory limit");
        return;
    };
    let mut sidecar = Sidecar::start(&cgroup).await;
    let (mut unread_downloads, mut unread_uploads, mut clients) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..CONNECTIONS {
        let mut client = connect(sidecar.address(Application::Endless)).await;
        unread_downloads.push(downloads(&mut client).await);
        is_answered(&mut client).await;
        clients.push(client);
        let mut client = connect(sidecar.address(Application::Silent)).await;
        unread_uploads.push(uploads(&mut client).await);
        is_answered(&mut client).await;
        clients.push(client);
    }
    // Streams may have ended, and no connection has.
    for client in &mut clients {
        is_answered(client).await;
    }
    assert_eq!(cgroup.oom_kills(), 0, "the kernel has killed the sidecar");
    assert!(sidecar.process.try_wait().unwrap().is_none(), "the sidecar has ended");
    println!("{} KiB, at most {} KiB", sidecar.memory(), sidecar.peak());
    sidecar.process.kill().await.unwrap();
}
