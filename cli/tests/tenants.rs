//! The keys of `examples/per-tenant.yaml`, as `sluice run` enforces them.

use std::path::Path;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::process::Run;

async fn status(run: &Run, host: &str, path: &str) -> u16 {
    let mut stream = TcpStream::connect(run.address).await.unwrap();
    let request =
        format!("POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response.split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn each_host_and_each_method_of_a_host_has_its_own_counter() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/per-tenant.yaml");
    let text = std::fs::read_to_string(example).unwrap().replace("per: 1m", "per: 24h");
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), text).unwrap();
    let run = Run::start(file.path(), &["--store", "memory"]).await;
    for method in ["/shop.Cart/Add", "/shop.Cart/Remove"] {
        assert_eq!(status(&run, "a.example", method).await, 200);
        assert_eq!(status(&run, "A.example:80", method).await, 200, "the same host");
        assert_eq!(status(&run, "a.example.", method).await, 429, "the third call of {method}");
    }
    for _ in 0..2 {
        assert_eq!(status(&run, "a.example", "/other").await, 200);
    }
    assert_eq!(status(&run, "a.example", "/other").await, 429, "the seventh request of the tenant");
    assert_eq!(status(&run, "b.example", "/shop.Cart/Add").await, 200, "another tenant");
}
