//! The clients in clients, in front of scripted responses and of `sluice run`.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use sluice_tests::process::{Process, binary, free_port, repository_root};
use sluice_tests::wait::until;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::time::Instant;

/// Longest time that a client needs for all its requests, with much to spare.
const PATIENCE: Duration = Duration::from_secs(120);

/// A program that sends requests with one of the clients.
struct Driver {
    program: &'static str,
    arguments: Vec<PathBuf>,
    directory: TempDir,
}

fn copy(from: &str, to: &Path) {
    let from = repository_root().join(from);
    std::fs::copy(&from, to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
}

impl Driver {
    /// Copies files of the tests and the client to a directory.
    fn copy(program: &'static str, language: &str, files: &[&str], client: (&str, &str)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for file in files {
            copy(&format!("tests/clients/{language}/{file}"), &directory.path().join(file));
        }
        let to = directory.path().join(client.1);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        copy(&format!("clients/{}", client.0), &to);
        Self { program, arguments: Vec::new(), directory }
    }

    async fn build(&self, program: &str, arguments: &[&str]) {
        let output = Command::new(program).args(arguments).current_dir(self.directory.path()).output().await;
        let output = output.unwrap_or_else(|error| panic!("{program}: {error}: run tests/node/apt.sh test"));
        assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    }

    fn python() -> Self {
        let driver = Self::copy("python3", "python", &["driver.py"], ("obey.py", "obey.py"));
        Self { arguments: vec!["driver.py".into()], ..driver }
    }

    async fn go() -> Self {
        let driver = Self::copy("./driver", "go", &["go.mod", "main.go"], ("obey.go", "obey/obey.go"));
        driver.build("go", &["vet", "./..."]).await;
        driver.build("go", &["build", "-o", "driver", "."]).await;
        driver
    }

    async fn typescript() -> Self {
        let files = ["driver.ts", "package.json", "package-lock.json"];
        let driver = Self::copy("node", "typescript", &files, ("obey.ts", "obey.ts"));
        driver.build("npm", &["ci", "--no-audit", "--no-fund"]).await;
        // What a newcomer begins with. Node.js runs what is erasable without a compiler.
        let tsc = "node_modules/.bin/tsc";
        driver.build(tsc, &["--init"]).await;
        driver.build(tsc, &["--erasableSyntaxOnly"]).await;
        // A package without `"type": "module"` has modules by their name.
        let other = driver.directory.path().join("other");
        std::fs::create_dir(&other).unwrap();
        std::fs::write(other.join("package.json"), "{}").unwrap();
        copy("clients/obey.ts", &other.join("obey.mts"));
        std::fs::copy(driver.directory.path().join("tsconfig.json"), other.join("tsconfig.json")).unwrap();
        driver.build(tsc, &["--project", "other", "--erasableSyntaxOnly"]).await;
        Self { arguments: vec!["driver.js".into()], ..driver }
    }

    /// Sends requests, and returns what the program prints.
    async fn send(&self, url: &str, requests: usize) -> Vec<String> {
        let mut command = Command::new(self.program);
        command.args(&self.arguments).arg(url).arg(requests.to_string());
        command.current_dir(self.directory.path()).stdin(Stdio::null()).kill_on_drop(true);
        let output =
            tokio::time::timeout(PATIENCE, command.output()).await.expect("the client ends").unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    /// Sends four requests to scripted responses. A client that waits for less than it should, or when it should not, fails.
    async fn obeys_a_script(&self) {
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
        let (printed, ()) = tokio::join!(self.send(&url, 4), server);
        assert_eq!(printed, ["200", "200", "gave up", "200"]);
    }

    /// Sends more requests than a limit admits at once. All are admitted in the end.
    async fn obeys_sluice(&self, sluice: &Sluice) {
        let printed = self.send(&sluice.url, 12).await;
        assert_eq!(printed, ["200"; 12]);
    }
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
    let (driver, sluice) = (Driver::python(), Sluice::start().await);
    tokio::join!(driver.obeys_a_script(), driver.obeys_sluice(&sluice));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_in_go_obeys() {
    let (driver, sluice) = (Driver::go().await, Sluice::start().await);
    tokio::join!(driver.obeys_a_script(), driver.obeys_sluice(&sluice));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_in_typescript_obeys() {
    let (driver, sluice) = (Driver::typescript().await, Sluice::start().await);
    tokio::join!(driver.obeys_a_script(), driver.obeys_sluice(&sluice));
}
