//! The clients in clients, in front of scripted responses and of `sluice run`.

use std::time::Duration;

use sluice_tests::driver::Driver;
use sluice_tests::process::{Process, binary, free_port, repository_root};
use sluice_tests::wait::until;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::Instant;

/// Sends four requests to scripted responses. A client that waits for less than it should, or when it should not, fails.
async fn obeys_a_script(driver: &Driver) {
    let policy = "ratelimit-policy: \"a \\\"b\\\"\";q=250;w=60, \"c\";q=9;w=3600\r\n";
    let script = [
        // 60 s / 250, and not the 60 s after which all is free again.
        (200, format!("{policy}ratelimit: \"a \\\"b\\\"\";r=0;t=60, \"c\";r=5;t=3600\r\n"), 240),
        (429, "retry-after: 1\r\nratelimit: \"a\";r=0;t=60\r\n".to_owned(), 1_000),
        (200, format!("{policy}ratelimit: \"a \\\"b\\\"\";r=3;t=60\r\n"), 0),
        (429, String::new(), 0),
        (200, String::new(), 0),
    ];
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let server = async {
        let mut not_before = Instant::now();
        for (n, (status, headers, wait)) in script.into_iter().enumerate() {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            assert!(stream.read(&mut request).await.unwrap() > 0);
            assert!(Instant::now() >= not_before, "request {n} is too early");
            // Clocks of other programs may count a little less.
            not_before = Instant::now() + Duration::from_millis(wait) * 99 / 100;
            let response =
                format!("HTTP/1.1 {status} x\r\nconnection: close\r\n{headers}content-length: 0\r\n\r\n");
            stream.write_all(response.as_bytes()).await.unwrap();
        }
    };
    let arguments = [&*url, "4"];
    let (printed, ()) = tokio::join!(driver.run(&arguments), server);
    assert_eq!(printed, ["200", "200", "gave up", "200"]);
}

/// Sends more requests than a limit admits at once. All are admitted in the end.
async fn obeys_sluice(driver: &Driver, sluice: &Sluice) {
    let printed = driver.run(&[&sluice.url, "12"]).await;
    assert_eq!(printed, ["200"; 12]);
}

/// A running `sluice run` whose limit admits five requests in three seconds.
struct Sluice {
    url: String,
    _process: Process,
    _directory: TempDir,
}

impl Sluice {
    async fn start() -> Self {
        let application = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = format!("http://{}", application.local_addr().unwrap());
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = application.accept().await.unwrap();
                tokio::spawn(async move {
                    let mut request = [0; 4096];
                    while let Ok(1..) = stream.read(&mut request).await {
                        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
                    }
                });
            }
        });
        let directory = tempfile::tempdir().unwrap();
        let policy = repository_root().join("examples/demo.yaml").display().to_string();
        let (listen, admin) = (free_port(), free_port());
        let arguments = ["run", "--policy", &policy, "--upstream", &upstream].map(str::to_owned);
        let ports = [format!("--listen=127.0.0.1:{listen}"), format!("--admin=127.0.0.1:{admin}")];
        let log = directory.path().join("log");
        let process =
            Process::start(&binary("sluice"), &[&arguments[..], &ports].concat(), &[], &log, "TERM");
        until("sluice listens", async || tokio::net::TcpStream::connect(("127.0.0.1", listen)).await.ok())
            .await;
        Self { url: format!("http://127.0.0.1:{listen}/"), _process: process, _directory: directory }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_in_python_obeys() {
    let (driver, sluice) = (Driver::python("obey", "obey"), Sluice::start().await);
    tokio::join!(obeys_a_script(&driver), obeys_sluice(&driver, &sluice));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_in_go_obeys() {
    let (driver, sluice) = (Driver::go("obey", "obey").await, Sluice::start().await);
    tokio::join!(obeys_a_script(&driver), obeys_sluice(&driver, &sluice));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_in_typescript_obeys() {
    let (driver, sluice) = (Driver::typescript("obey", "obey").await, Sluice::start().await);
    tokio::join!(obeys_a_script(&driver), obeys_sluice(&driver, &sluice));
}
